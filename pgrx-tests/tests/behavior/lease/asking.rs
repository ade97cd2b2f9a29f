//! Nodes that request worker ids from the registry like servers, from test sessions.

use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, Server, Session, lease_message, lease_query, wait_until};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Parameters of a request.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// Requester's clock minus the registry's.
    pub(crate) ahead_ms: i64,
    pub(crate) epoch_ms: i64,
}

pub(crate) const TERMS: Terms = Terms {
    ahead_ms: 0,
    epoch_ms: 1_288_834_974_657,
};

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) worker_id: Option<i32>,
    pub(crate) floor_ms: Option<i64>,
    pub(crate) reserved_until_ms: Option<i64>,
    pub(crate) registry_ms: i64,
    pub(crate) peers: i32,
    pub(crate) peers_offset_ms: Option<i64>,
    pub(crate) detail: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn is(self, status: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        let granted = status == "granted";
        assert_eq!(self.worker_id.is_some(), granted, "{self:?}");
        assert_eq!(self.floor_ms.is_some(), granted, "{self:?}");
        assert_eq!(self.reserved_until_ms.is_some(), granted, "{self:?}");
        assert_eq!(self.detail.is_empty(), granted, "{self:?}");
        assert_eq!(self.peers_offset_ms.is_some(), self.peers > 0, "{self:?}");
        self
    }

    /// The granted worker id; checks that there is no floor.
    #[track_caller]
    pub(crate) fn id(self) -> i32 {
        let answer = self.is("granted");
        assert_eq!(answer.floor_ms, Some(0), "{answer:?}");
        answer.worker_id.unwrap()
    }

    /// The floor of the grant.
    #[track_caller]
    pub(crate) fn floor(self) -> i64 {
        self.is("granted").floor_ms.unwrap()
    }

    #[track_caller]
    pub(crate) fn details(self, text: &str) {
        assert!(self.detail.contains(text), "no {text:?} in {self:?}");
    }
}

/// Sends a request, built by [`lease_message`].
pub(crate) fn try_call(session: &mut Session, fields: &str) -> Result<Answer, Failure> {
    let sql = lease_query(&lease_message(fields));
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
        detail: row.get("detail"),
    })
}

/// A simulated server that leases a worker id.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    /// Worker id, floor and end of its last grant.
    pub(crate) held: Option<(i32, i64, i64)>,
    pub(crate) token: Option<i64>,
    /// Token to be recorded next; sent with each request until one is granted, so that a lost
    /// answer is detected. Drawn by the first request, since copies of the node would share it
    /// otherwise.
    pub(crate) next_token: Option<i64>,
}

impl Node {
    pub(crate) fn new(name: &str, terms: Terms) -> Self {
        Self {
            name: name.into(),
            terms,
            held: None,
            token: None,
            next_token: None,
        }
    }

    /// Fields that identify the requester.
    pub(crate) fn who(&mut self) -> String {
        let next_token = self
            .next_token
            .get_or_insert_with(|| rand::random_range(1..i64::MAX));
        format!(
            "4711, '{}', {}, {next_token}",
            self.name,
            or_null(self.token),
        )
    }

    /// Sends a request whose answer is lost.
    pub(crate) fn unanswered(&mut self, session: &mut Session) {
        self.who();
        self.clone().ask(session).is("granted");
    }

    pub(crate) fn what(&self) -> String {
        let Terms { ahead_ms, epoch_ms } = self.terms;
        format!("{NOW_MS} + {ahead_ms}, {epoch_ms}, '41/10/12'")
    }

    /// All fields of a request.
    pub(crate) fn fields(&mut self) -> String {
        let held = self
            .held
            .map_or("NULL, NULL, NULL".into(), |(id, floor, until)| {
                format!("{id}, {floor}, {until}")
            });
        format!("{}, {held}, {}", self.who(), self.what())
    }

    pub(crate) fn try_ask(&mut self, session: &mut Session) -> Result<Answer, Failure> {
        let answer = try_call(session, &self.fields())?;
        if answer.status == "granted" {
            let (worker_id, floor_ms) = (answer.worker_id.unwrap(), answer.floor_ms.unwrap());
            self.held = Some((worker_id, floor_ms, answer.reserved_until_ms.unwrap()));
            self.token = self.next_token.take();
        }
        Ok(answer)
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, session: &mut Session) -> Answer {
        self.try_ask(session)
            .unwrap_or_else(|failure| panic!("{} asks: {failure}", self.name))
    }

    /// R of its last grant.
    #[track_caller]
    pub(crate) fn until_ms(&self) -> i64 {
        self.held.unwrap().2
    }

    /// The node as known by its token alone.
    pub(crate) fn by_token(&self) -> Self {
        Self {
            held: None,
            next_token: None,
            ..self.clone()
        }
    }

    /// A server restored from a base backup of the node.
    pub(crate) fn copied(&self) -> Self {
        Self::new(&self.name, self.terms)
    }
}

pub(crate) fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

/// Repeats a request until the status of its answer changes.
#[track_caller]
pub(crate) fn once_no_longer(status: &str, mut ask: impl FnMut() -> Answer) -> Answer {
    let mut last = None;
    wait_until(LIMIT, "another answer", || {
        let answer = ask();
        let other = answer.status != status;
        last = Some(answer);
        other
    });
    last.unwrap()
}

/// Retires all other worker ids.
pub(crate) fn leave(session: &mut Session, ids: std::ops::Range<i32>) {
    session.run(&format!(
        "SELECT leaf_id.leaf_worker_retire(n) FROM generate_series(0, 1023) n
         WHERE n NOT BETWEEN {} AND {}",
        ids.start,
        ids.end - 1
    ));
}

/// A registry with its defaults.
pub(crate) fn server_and_session() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let session = server.session();
    (server, session)
}

/// A registry that grants this many milliseconds ahead.
pub(crate) fn server_and_session_ahead(ahead_ms: i64) -> (Server, Session) {
    let (server, mut session) = server_and_session();
    session.run(&format!(
        "INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES ({ahead_ms})"
    ));
    (server, session)
}

/// Like a server, retries after a lock timeout or a conflict.
pub(crate) fn ask_at_last(session: &mut Session, node: &mut Node) -> Answer {
    let started = Instant::now();
    loop {
        match node.try_ask(session) {
            Ok(answer) => return answer,
            Err(failure) => {
                let state = &*failure.state;
                assert!(["55P03", "40001"].contains(&state), "{failure}");
                assert!(started.elapsed() < LIMIT, "{failure}");
            }
        }
    }
}
