//! Nodes that ask the registry for worker ids as servers do, by sessions of their own.

use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, Server, Session, wait_until};

pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What a server asks for.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// How far its clock is ahead of the registry's.
    pub(super) ahead_ms: i64,
    /// It would reserve for so long from now on.
    pub(super) reserve_ms: i64,
    pub(super) lease_ms: i32,
    pub(super) skew_ms: i32,
    pub(super) lead_ms: i32,
    pub(super) epoch_ms: i64,
}

pub(super) const TERMS: Terms = Terms {
    ahead_ms: 0,
    reserve_ms: 10_000,
    lease_ms: 60_000,
    skew_ms: 1000,
    lead_ms: 1000,
    epoch_ms: 1_288_834_974_657,
};

/// Those of a server whose lease is soon over.
pub(super) const BRIEF: Terms = Terms {
    lease_ms: 3000,
    ..TERMS
};

#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: String,
    pub(super) worker_id: Option<i32>,
    pub(super) floor_ms: Option<i64>,
    pub(super) reserved_until_ms: Option<i64>,
    pub(super) registry_ms: i64,
    pub(super) peers: i32,
    pub(super) peers_offset_ms: Option<i64>,
    pub(super) detail: String,
}

impl Answer {
    #[track_caller]
    pub(super) fn is(self, status: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        let granted = status == "granted";
        assert_eq!(self.worker_id.is_some(), granted, "{self:?}");
        assert_eq!(self.floor_ms.is_some(), granted, "{self:?}");
        assert_eq!(self.reserved_until_ms.is_some(), granted, "{self:?}");
        assert_eq!(self.detail.is_empty(), granted, "{self:?}");
        assert_eq!(self.peers_offset_ms.is_some(), self.peers > 0, "{self:?}");
        self
    }

    /// The worker id that was granted, without a floor.
    #[track_caller]
    pub(super) fn id(self) -> i32 {
        let answer = self.is("granted");
        assert_eq!(answer.floor_ms, Some(0), "{answer:?}");
        answer.worker_id.unwrap()
    }

    /// The floor of a grant.
    #[track_caller]
    pub(super) fn floor(self) -> i64 {
        self.is("granted").floor_ms.unwrap()
    }

    #[track_caller]
    pub(super) fn details(self, text: &str) {
        assert!(self.detail.contains(text), "no {text:?} in {self:?}");
    }
}

/// A call of the registry.
pub(super) fn try_call(
    session: &mut Session,
    function: &str,
    arguments: &str,
) -> Result<Answer, Failure> {
    let sql = format!("SELECT * FROM {function}({arguments})");
    let row = session
        .query_one(&sql, &[])
        .map_err(|error| Failure::from(&error))?;
    Ok(Answer {
        status: row.get("status"),
        worker_id: row.get("worker_id"),
        floor_ms: row.get("floor_ms"),
        reserved_until_ms: row.get("reserved_until_ms"),
        registry_ms: row.get("registry_ms"),
        peers: row.get("peers"),
        peers_offset_ms: row.get("peers_offset_ms"),
        detail: row.get::<_, Option<String>>("detail").unwrap_or_default(),
    })
}

/// A server that leases a worker id.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) terms: Terms,
    /// What it holds, and was told.
    pub(super) worker_id: Option<i32>,
    pub(super) reserved_until_ms: Option<i64>,
    pub(super) token: Option<i64>,
    /// Shown with each request, from the first until one is granted: so that a lost answer is
    /// known. Made for it, not before: copies of the node would share it.
    pub(super) next_token: Option<i64>,
}

impl Node {
    pub(super) fn new(name: &str, terms: Terms) -> Self {
        Self {
            name: name.into(),
            terms,
            worker_id: None,
            reserved_until_ms: None,
            token: None,
            next_token: None,
        }
    }

    /// Arguments that claim and renew share.
    pub(super) fn who(&mut self) -> String {
        let next_token = self
            .next_token
            .get_or_insert_with(|| rand::random_range(1..i64::MAX));
        format!(
            "4711, '{}', {}, {next_token}",
            self.name,
            or_null(self.token),
        )
    }

    /// Something that it asks for is not answered.
    pub(super) fn unanswered(&mut self, ask: impl FnOnce(&mut Self) -> Answer) {
        self.who();
        ask(&mut self.clone()).is("granted");
    }

    pub(super) fn what(&self) -> String {
        let Terms {
            ahead_ms,
            reserve_ms,
            lease_ms,
            skew_ms,
            lead_ms,
            epoch_ms,
        } = self.terms;
        format!(
            "{NOW_MS} + {ahead_ms}, {NOW_MS} + {reserve_ms}, {lease_ms}, {skew_ms}, {lead_ms}, {epoch_ms}, '41/10/12'"
        )
    }

    pub(super) fn try_claim(&mut self, session: &mut Session) -> Result<Answer, Failure> {
        let arguments = format!(
            "{}, {}, {}, {}",
            self.who(),
            or_null(self.worker_id),
            or_null(self.reserved_until_ms),
            self.what()
        );
        let answer = try_call(session, "leaf_worker_claim", &arguments)?;
        self.learn(&answer);
        Ok(answer)
    }

    #[track_caller]
    pub(super) fn claim(&mut self, session: &mut Session) -> Answer {
        self.try_claim(session)
            .unwrap_or_else(|failure| panic!("{} claims: {failure}", self.name))
    }

    #[track_caller]
    pub(super) fn renew(&mut self, session: &mut Session) -> Answer {
        let arguments = format!(
            "{}, {}, {}",
            or_null(self.worker_id),
            self.who(),
            self.what()
        );
        let answer = try_call(session, "leaf_worker_renew", &arguments)
            .unwrap_or_else(|failure| panic!("{} renews: {failure}", self.name));
        self.learn(&answer);
        answer
    }

    pub(super) fn learn(&mut self, answer: &Answer) {
        if answer.status == "granted" {
            self.worker_id = answer.worker_id;
            self.reserved_until_ms = answer.reserved_until_ms;
            self.token = self.next_token.take();
        }
    }

    /// Itself after a restart: it has the token, and no lease that it could go on with.
    pub(super) fn restarted(&self) -> Self {
        Self {
            worker_id: None,
            reserved_until_ms: None,
            ..self.clone()
        }
    }

    /// A server made of a base backup of it.
    pub(super) fn copied(&self) -> Self {
        Self::new(&self.name, self.terms)
    }
}

pub(super) fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

/// Asks again until an answer is of another status.
#[track_caller]
pub(super) fn once_no_longer(status: &str, mut ask: impl FnMut() -> Answer) -> Answer {
    let mut last = None;
    wait_until(LIMIT, "another answer", || {
        let answer = ask();
        let other = answer.status != status;
        last = Some(answer);
        other
    });
    last.unwrap()
}

/// Leaves the registry these worker ids only.
pub(super) fn leave(session: &mut Session, ids: std::ops::Range<i32>) {
    session.run(&format!(
        "SELECT leaf_worker_retire(n) FROM generate_series(0, 1023) n
         WHERE n NOT BETWEEN {} AND {}",
        ids.start,
        ids.end - 1
    ));
}

pub(super) fn server_and_session() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let session = server.session();
    (server, session)
}

/// As a server does: it asks again where it waited too long, or others were quicker.
pub(super) fn claim_at_last(session: &mut Session, node: &mut Node) -> Answer {
    let started = Instant::now();
    loop {
        match node.try_claim(session) {
            Ok(answer) => return answer,
            Err(failure) => {
                // The second one only where its transactions are serializable.
                let state = &*failure.state;
                assert!(["55P03", "40001"].contains(&state), "{failure}");
                assert!(started.elapsed() < LIMIT, "{failure}");
            }
        }
    }
}
