//! Would catch: a worker id that two servers hold at once, a new holder that is not told
//! where the ids of the last one may end, a copy of a server that passes for it, and a
//! registry that gives ids away while it may have forgotten who has them.
//!
//! Here sessions call the registry's functions as servers do.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Failure, STANDBY, Server, Session, Stop, becomes, in_threads, random, wait_until,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);

const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What a server asks for.
#[derive(Clone, Copy)]
struct Terms {
    /// How far its clock is ahead of the registry's.
    ahead_ms: i64,
    /// It would reserve for so long from now on.
    reserve_ms: i64,
    lease_ms: i32,
    skew_ms: i32,
    epoch_ms: i64,
}

const TERMS: Terms = Terms {
    ahead_ms: 0,
    reserve_ms: 10_000,
    lease_ms: 60_000,
    skew_ms: 1000,
    epoch_ms: 1_288_834_974_657,
};

/// Those of a server whose lease is soon over.
const BRIEF: Terms = Terms {
    lease_ms: 3000,
    ..TERMS
};

#[derive(Clone, Debug)]
struct Answer {
    status: String,
    worker_id: Option<i32>,
    floor_ms: Option<i64>,
    reserved_until_ms: Option<i64>,
    registry_ms: i64,
    peers: i32,
    peers_offset_ms: Option<i64>,
    detail: String,
}

impl Answer {
    #[track_caller]
    fn is(self, status: &str) -> Self {
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
    fn id(self) -> i32 {
        let answer = self.is("granted");
        assert_eq!(answer.floor_ms, Some(0), "{answer:?}");
        answer.worker_id.unwrap()
    }

    /// The floor of a grant.
    #[track_caller]
    fn floor(self) -> i64 {
        self.is("granted").floor_ms.unwrap()
    }

    #[track_caller]
    fn details(self, text: &str) {
        assert!(self.detail.contains(text), "no {text:?} in {self:?}");
    }
}

/// A call of the registry.
fn try_call(session: &mut Session, function: &str, arguments: &str) -> Result<Answer, Failure> {
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
struct Node {
    name: String,
    terms: Terms,
    /// What it holds, and was told.
    worker_id: Option<i32>,
    reserved_until_ms: Option<i64>,
    token: Option<i64>,
    /// Shown with each request, from the first until one is granted: so that a lost answer is
    /// known. Made for it, not before: copies of the node would share it.
    next_token: Option<i64>,
}

impl Node {
    fn new(name: &str, terms: Terms) -> Self {
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
    fn who(&mut self) -> String {
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
    fn unanswered(&mut self, ask: impl FnOnce(&mut Self) -> Answer) {
        self.who();
        ask(&mut self.clone()).is("granted");
    }

    fn what(&self) -> String {
        let Terms {
            ahead_ms,
            reserve_ms,
            lease_ms,
            skew_ms,
            epoch_ms,
        } = self.terms;
        format!("{NOW_MS} + {ahead_ms}, {NOW_MS} + {reserve_ms}, {lease_ms}, {skew_ms}, {epoch_ms}")
    }

    fn try_claim(&mut self, session: &mut Session) -> Result<Answer, Failure> {
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
    fn claim(&mut self, session: &mut Session) -> Answer {
        self.try_claim(session)
            .unwrap_or_else(|failure| panic!("{} claims: {failure}", self.name))
    }

    #[track_caller]
    fn renew(&mut self, session: &mut Session) -> Answer {
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

    fn learn(&mut self, answer: &Answer) {
        if answer.status == "granted" {
            self.worker_id = answer.worker_id;
            self.reserved_until_ms = answer.reserved_until_ms;
            self.token = self.next_token.take();
        }
    }

    /// Itself after a restart: it has the token, and no lease that it could go on with.
    fn restarted(&self) -> Self {
        Self {
            worker_id: None,
            reserved_until_ms: None,
            ..self.clone()
        }
    }

    /// A server made of a base backup of it.
    fn copied(&self) -> Self {
        Self::new(&self.name, self.terms)
    }
}

fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".into(), |value| value.to_string())
}

/// Asks again until an answer is of another status.
#[track_caller]
fn once_no_longer(status: &str, mut ask: impl FnMut() -> Answer) -> Answer {
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
fn leave(session: &mut Session, ids: std::ops::Range<i32>) {
    session.run(&format!(
        "SELECT leaf_worker_retire(n) FROM generate_series(0, 1023) n
         WHERE n NOT BETWEEN {} AND {}",
        ids.start,
        ids.end - 1
    ));
}

fn server_and_session() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let session = server.session();
    (server, session)
}

/// As a server does: it asks again where it waited too long, or others were quicker.
fn claim_at_last(session: &mut Session, node: &mut Node) -> Answer {
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

#[test]
fn twenty_sessions_at_once_get_twenty_ids() {
    let (server, mut admin) = server_and_session();
    for (round, isolation) in (0..).zip(["read committed", "repeatable read", "serializable"]) {
        admin.run("BEGIN; LOCK TABLE leaf_id.leaf_registry IN EXCLUSIVE MODE");
        let together = in_threads(21, |i| {
            if i == 20 {
                let mut watcher = server.session();
                let all_wait = becomes(LIMIT, || {
                    watcher.value(
                        "SELECT count(*) = 20 FROM pg_locks
                         WHERE NOT granted AND relation = 'leaf_id.leaf_registry'::regclass",
                    )
                });
                watcher.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks
                     WHERE granted AND mode = 'ExclusiveLock' AND relation = 'leaf_id.leaf_registry'::regclass",
                );
                assert!(all_wait, "they do not come together");
                return None;
            }
            let mut session = server.session();
            session.run(&format!(
                "SET default_transaction_isolation = '{isolation}'"
            ));
            let mut node = Node::new(&format!("node {round} {i}"), TERMS);
            Some(claim_at_last(&mut session, &mut node).id())
        });
        admin = server.session();
        let ids: HashSet<_> = together.into_iter().flatten().collect();
        let expected: HashSet<_> = (20 * round..20 * (round + 1)).collect();
        assert_eq!(ids, expected, "{isolation}");
    }
    assert_eq!(
        admin.value::<i64>("SELECT count(*) FROM leaf_worker_status WHERE live"),
        60
    );
}

#[test]
fn the_same_node_gets_its_id_back() {
    let (server, mut session) = server_and_session();
    let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, BRIEF));
    for (id, node) in (0..).zip(&mut nodes) {
        assert_eq!(node.claim(&mut session).id(), id);
    }
    // By its name: the same one in another cluster is another one.
    let other = format!("4712, 'a', NULL, 1, NULL, NULL, {}", nodes[0].what());
    let answer = try_call(&mut session, "leaf_worker_claim", &other).unwrap();
    assert_eq!(answer.id(), 3);
    // At once, by its token ...
    for (id, node) in (0..).zip(&mut nodes) {
        *node = node.restarted();
        assert_eq!(node.claim(&mut session).id(), id);
    }
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "the end of all leases", || {
        session.value("SELECT NOT bool_or(live) FROM leaf_worker_status")
    });
    // ... when its lease has ended too, as nobody else got it ...
    assert_eq!(nodes[1].renew(&mut session).id(), 1);
    nodes[2] = nodes[2].restarted();
    assert_eq!(nodes[2].claim(&mut session).id(), 2);
    // ... and without its data directory, above what it had reserved.
    let reserved = nodes[0].reserved_until_ms.unwrap();
    let answer = nodes[0].copied().claim(&mut session);
    assert_eq!(answer.worker_id, Some(0));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");
    nodes[0].renew(&mut session).is("lost").details("by a copy");
}

#[test]
fn a_new_holder_gets_the_floor() {
    let (_server, mut session) = server_and_session();
    leave(&mut session, 7..8);
    let mut a = Node::new("a", BRIEF);
    assert_eq!(a.claim(&mut session).id(), 7);
    // What is reserved is bounded by the registry's own clock, and never goes down.
    a.terms.reserve_ms = 1_000_000_000;
    let answer = a.renew(&mut session).is("granted");
    let bound = answer.registry_ms + 3000 + 1000;
    let reserved = answer.reserved_until_ms.unwrap();
    assert!(
        (bound..bound + 500).contains(&reserved),
        "{reserved} is not a little above {bound}"
    );
    for less in [0, i64::MIN / 2] {
        a.terms.reserve_ms = less;
        assert_eq!(a.renew(&mut session).reserved_until_ms, Some(reserved));
    }
    let mut b = Node::new("b", TERMS);
    b.claim(&mut session).is("full").details("1024");
    let answer = once_no_longer("full", || b.claim(&mut session));
    assert_eq!(answer.worker_id, Some(7));
    let floor = answer.clone().floor();
    assert!(floor >= reserved, "{answer:?} after {reserved}");
    assert!(floor >= answer.registry_ms + 1000, "{answer:?}");
    assert!(answer.reserved_until_ms.unwrap() >= reserved, "{answer:?}");
    // Nothing that the old one does changes that.
    a.terms.reserve_ms = 1_000_000;
    a.renew(&mut session).is("lost").details("to node \"b\"");
    a.claim(&mut session).is("full");
    let now = b.renew(&mut session).is("granted");
    assert!(now.reserved_until_ms.unwrap() < now.registry_ms + 11_000);
}

#[test]
fn a_lost_answer_is_no_clone() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    // The answer to the first claim is lost, and that to a renewal, by a restart too.
    a.unanswered(|a| a.claim(&mut session));
    assert_eq!(a.claim(&mut session).id(), 0);
    a.unanswered(|a| a.renew(&mut session));
    let before = a.clone();
    assert_eq!(a.renew(&mut session).id(), 0);
    a.unanswered(|a| a.renew(&mut session));
    a = a.restarted();
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
    // Who shows what was shown before that is somebody else.
    before.clone().renew(&mut session).is("lost");
    before.clone().claim(&mut session).is("held");
}

#[test]
fn a_clone_is_held_off() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", BRIEF);
    assert_eq!(a.claim(&mut session).id(), 0);
    let image = a.clone();
    assert_eq!(a.renew(&mut session).id(), 0);
    for mut clone in [image.clone(), image.restarted(), a.copied()] {
        let until = clone.claim(&mut session).is("held");
        until.details("worker id 0 is leased until");
        if clone.token.is_some() {
            clone.worker_id = Some(0);
            clone.renew(&mut session).is("lost").details("by a copy");
        }
        assert_eq!(a.renew(&mut session).id(), 0);
    }
    // Of two with the same token the one that is quicker stays.
    let mut quicker = a.clone();
    assert_eq!(quicker.renew(&mut session).id(), 0);
    a.renew(&mut session).is("lost").details("by a copy");
    a = quicker;
    // No token is not the token of nobody.
    for token in ["NULL", "0"] {
        let arguments = format!("4711, 'a', {token}, 5, NULL, NULL, {}", a.what());
        let answer = try_call(&mut session, "leaf_worker_claim", &arguments);
        answer.unwrap().is("held");
    }
    // With the lease the right to the id ends, for the one that then asks last.
    let mut clone = a.copied();
    let reserved = a.reserved_until_ms.unwrap();
    let answer = once_no_longer("held", || clone.claim(&mut session));
    assert!(answer.floor() >= reserved);
    a.renew(&mut session).is("lost").details("by a copy");
    a.claim(&mut session).is("held");
}

/// Fills the registry with leases that end an hour from now, or ended as long ago.
fn fill(session: &mut Session, ended: &[i32]) {
    session.run(&format!(
        "INSERT INTO leaf_id.leaf_worker (worker_id, system_identifier, node_name, token, lease_until, reserved_until_ms)
         SELECT n, 1, 'node ' || n, 1,
             now() + CASE WHEN n = ANY ('{{{}}}') THEN make_interval(mins => -n) ELSE '1 hour' END, n
         FROM generate_series(0, 1023) n",
        ended.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
    ));
}

#[test]
fn full_is_an_error() {
    let (_server, mut session) = server_and_session();
    fill(&mut session, &[]);
    let mut a = Node::new("a", TERMS);
    a.claim(&mut session).is("full").details("all 1024");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker WHERE token = 1"),
        1024
    );
    // Who has one goes on.
    let renewal = format!("5, 1, 'node 5', 1, 2, {}", a.what());
    let answer = try_call(&mut session, "leaf_worker_renew", &renewal).unwrap();
    assert_eq!(answer.id(), 5);
}

#[test]
fn an_ended_lease_is_granted_again() {
    let (server, mut session) = server_and_session();
    fill(&mut session, &[3, 500, 1023, 4]);
    session.run("SELECT leaf_worker_retire(500)");
    // The one that ended first; but not one that is being renewed.
    let mut renewing = server.session();
    renewing.run("BEGIN; SELECT FROM leaf_id.leaf_worker WHERE worker_id = 1023 FOR UPDATE");
    let mut claim = |name: &str| Node::new(name, TERMS).claim(&mut session);
    assert_eq!(claim("a").worker_id, Some(4));
    renewing.run("ROLLBACK");
    assert_eq!(claim("b").worker_id, Some(1023));
    assert_eq!(claim("c").worker_id, Some(3));
    claim("d").is("full");
}

#[test]
fn retire_and_release() {
    let (_server, mut session) = server_and_session();
    let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, TERMS));
    // One that some server has by its settings.
    session.run("SELECT leaf_worker_retire(1)");
    let [a, b, c] = &mut nodes;
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(b.claim(&mut session).id(), 2);
    // Its holder may issue what it has reserved; then it needs another one.
    session.run("SELECT leaf_worker_retire(0)");
    a.renew(&mut session).is("retired").details("worker id 0");
    a.copied().claim(&mut session).is("held");
    assert_eq!(a.claim(&mut session).id(), 3);
    assert_eq!(a.renew(&mut session).id(), 3);
    assert_eq!(c.claim(&mut session).id(), 4);

    let reserved = b.reserved_until_ms.unwrap();
    session.run("SELECT leaf_worker_release(2)");
    b.renew(&mut session).is("lost").details("to nobody");
    let left: Vec<(i32, bool)> = session
        .query(
            "SELECT worker_id, live FROM leaf_worker_status WHERE node_name IS NULL ORDER BY 1",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(left, [(0, true), (1, false), (2, false)]);
    leave(&mut session, 2..3);
    let answer = Node::new("d", TERMS).claim(&mut session);
    assert_eq!(answer.worker_id, Some(2));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");
    // A retired id comes back, above what was reserved.
    let reserved = c.reserved_until_ms.unwrap();
    session.run("SELECT leaf_worker_release(4)");
    Node::new("e", TERMS).claim(&mut session).is("full");
    session.run("SELECT leaf_worker_retire(4, false)");
    let answer = Node::new("e", TERMS).claim(&mut session);
    assert_eq!(answer.worker_id, Some(4));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");

    session.fails("SELECT leaf_worker_release(1)").is("42704");
    session
        .fails("SELECT leaf_worker_release(NULL)")
        .is("42704");
    session.fails("SELECT leaf_worker_release(-7)").is("42704");
    session.fails("SELECT leaf_worker_retire(1024)").is("22023");
    session.fails("SELECT leaf_worker_retire(NULL)").is("22004");
    session
        .fails("SELECT leaf_worker_retire(1, NULL)")
        .is("22004");
}

/// The same worker id with another epoch repeats ids.
#[test]
fn another_epoch_is_refused() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.claim(&mut session).id(), 0);
    for epoch_ms in [TERMS.epoch_ms + 1, 0, i64::MIN, i64::MAX] {
        let terms = Terms { epoch_ms, ..TERMS };
        let answer = Node::new("b", terms).claim(&mut session).is("epoch");
        answer.details(&format!("is {}, not {epoch_ms}", TERMS.epoch_ms));
        a.terms = terms;
        a.renew(&mut session).is("epoch");
        a.restarted().claim(&mut session).is("epoch");
    }
    a.terms = TERMS;
    assert_eq!(a.renew(&mut session).id(), 0);
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        1
    );
}

#[test]
fn a_clock_that_is_off_is_refused() {
    let (_server, mut session) = server_and_session();
    let off = |ahead_ms| Terms { ahead_ms, ..TERMS };
    for (ahead_ms, text) in [
        (2000, "ms ahead of the registry's"),
        (-2000, "ms behind the registry's"),
    ] {
        let answer = Node::new("a", off(ahead_ms)).claim(&mut session);
        answer.is("clock").details(text);
    }
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        0
    );
    let mut a = Node::new("a", off(900));
    assert_eq!(a.claim(&mut session).peers, 0);
    // One other server may itself be the one that is off.
    let mut late = Node::new("late", off(-400));
    let answer = late.claim(&mut session).is("granted");
    assert_eq!(answer.peers, 1);
    assert!(
        (850..=950).contains(&answer.peers_offset_ms.unwrap()),
        "{answer:?}"
    );
    let mut b = Node::new(
        "b",
        Terms {
            lease_ms: 2000,
            ..off(900)
        },
    );
    b.claim(&mut session).is("granted");
    // Against the median of the two others, not against the registry. It keeps what it has,
    // and gets no more.
    let reserved = late.reserved_until_ms;
    let answer = late.renew(&mut session).is("clock");
    assert_eq!(answer.peers, 2);
    answer.details("behind the median of 2 other servers");
    let sql = "SELECT reserved_until_ms FROM leaf_id.leaf_worker WHERE node_name = 'late'";
    assert_eq!(Some(session.value::<i64>(sql)), reserved);
    let mut new = Node::new("new", off(-800));
    new.claim(&mut session)
        .is("clock")
        .details("behind the median of 3");
    // Those count whose leases are live.
    let answer = once_no_longer("clock", || late.renew(&mut session));
    assert_eq!(answer.is("granted").peers, 1);
}

/// A primary, and what becomes of its standby when it dies.
fn pair() -> (Server, Server) {
    let primary = Server::with_leaf_id(&[]);
    let standby = primary.standby(&[]);
    (primary, standby)
}

#[test]
fn a_promoted_registry_grants_nothing_for_one_lease() {
    let (primary, standby) = pair();
    let mut session = primary.session();
    let mut nodes = ["a", "b", "c", "old"].map(|name| Node::new(name, TERMS));
    for node in &mut nodes {
        node.claim(&mut session).is("granted");
    }
    let [a, b, c, old] = &mut nodes;
    // The test has no minute: as if all had been leased for this long, and just now.
    session.run(
        "UPDATE leaf_id.leaf_worker SET lease_ms = 5000;
         UPDATE leaf_id.leaf_worker SET lease_until = now() WHERE node_name = 'old'",
    );
    standby.replay_all_of(&primary);
    let stale = a.clone();
    standby.cut_off();
    // The standby does not know of these.
    a.renew(&mut session).is("granted");
    let mut late = Node::new("late", TERMS);
    assert_eq!(late.claim(&mut session).id(), 4);
    primary.kill_9();
    standby.promote();

    for node in [&mut *a, &mut *b, &mut *c, &mut *old, &mut late] {
        node.terms.lease_ms = 5000;
    }
    let mut session = standby.session();
    let first = Instant::now();
    let mut new = Node::new("new", BRIEF);
    new.claim(&mut session).is("grace").details("promoted");
    // It holds nothing, or what it says cannot be.
    new.worker_id = Some(5);
    for impossible in [
        i64::MIN,
        -1,
        i64::MAX,
        b.reserved_until_ms.unwrap() + 100_000_000,
    ] {
        new.reserved_until_ms = Some(impossible);
        new.claim(&mut session).is("grace");
    }
    new.worker_id = b.worker_id;
    new.reserved_until_ms = b.reserved_until_ms;
    new.claim(&mut session).is("grace");
    (new.worker_id, new.reserved_until_ms) = (None, None);
    // Who holds an id goes on: by its token, ...
    assert_eq!(b.renew(&mut session).id(), 1);
    *c = c.restarted();
    assert_eq!(c.claim(&mut session).id(), 2);
    // ... or by what it was told, where its renewal is forgotten, or its id altogether.
    stale.copied().claim(&mut session).is("held");
    a.renew(&mut session).is("lost");
    let told = a.reserved_until_ms.unwrap();
    let answer = a.claim(&mut session);
    assert!(answer.reserved_until_ms.unwrap() >= told, "{answer:?}");
    assert_eq!(answer.id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
    stale.clone().claim(&mut session).is("held");
    late.renew(&mut session).is("lost").details("to nobody");
    assert_eq!(late.claim(&mut session).id(), 4);
    // This one's lease has ended as far as is known: it may be another's by now.
    old.renew(&mut session).is("grace");
    old.restarted().claim(&mut session).is("grace");
    assert_eq!(
        session.value::<i64>(
            "SELECT count(*) FROM leaf_id.leaf_registry WHERE grace_since_ms IS NOT NULL"
        ),
        1
    );
    let answer = once_no_longer("grace", || new.claim(&mut session));
    assert!(first.elapsed() >= Duration::from_secs(5));
    // Not where ids of forgotten holders may lie.
    assert_eq!(answer.worker_id, Some(5));
    assert!(answer.clone().floor() >= answer.registry_ms + 1000);
    let answer = old.renew(&mut session);
    assert!(answer.clone().floor() >= answer.registry_ms + 1000);
    // It is over, whatever happens.
    standby.restart();
    let answer = Node::new("newer", TERMS).claim(&mut standby.session());
    assert_eq!(answer.is("granted").worker_id, Some(6));
}

/// The clock of before a restart says nothing.
#[test]
fn a_restart_within_that_time_begins_it_anew() {
    let (primary, standby) = pair();
    let terms = Terms {
        lease_ms: 4000,
        ..TERMS
    };
    Node::new("a", terms)
        .claim(&mut primary.session())
        .is("granted");
    standby.replay_all_of(&primary);
    primary.kill_9();
    standby.promote();
    let mut new = Node::new("new", terms);
    let mut session = standby.session();
    new.claim(&mut session).is("grace");
    let left = |answer: &Answer| -> i64 {
        let ms = answer.detail.rsplit(' ').nth(1).unwrap();
        ms.parse().unwrap()
    };
    wait_until(LIMIT, "a part of it", || {
        left(&new.claim(&mut session).is("grace")) < 3500
    });
    standby.restart();
    let restarted = Instant::now();
    let mut session = standby.session();
    let answer = new.claim(&mut session).is("grace");
    assert_eq!(left(&answer), 4000);
    once_no_longer("grace", || new.claim(&mut session)).is("granted");
    assert!(restarted.elapsed() >= Duration::from_secs(4));
}

/// A registry without a single row, or with no more than its owner's settings, may have
/// forgotten all of them.
#[test]
fn a_promoted_registry_that_was_never_used_waits_too() {
    for settings in [
        "",
        "INSERT INTO leaf_id.leaf_registry (max_ids_per_role) VALUES (7)",
    ] {
        let (primary, standby) = pair();
        primary.session().run(settings);
        standby.replay_all_of(&primary);
        primary.kill_9();
        standby.promote();
        let mut session = standby.session();
        Node::new("a", BRIEF).claim(&mut session).is("grace");
        // Here nothing can be forgotten: it was created on this timeline.
        session.run("DROP EXTENSION leaf_id; CREATE EXTENSION leaf_id");
        assert_eq!(Node::new("a", BRIEF).claim(&mut session).id(), 0);
    }
}

#[test]
fn a_registry_on_a_standby_is_none() {
    let (primary, standby) = pair();
    standby.replay_all_of(&primary);
    let mut session = standby.session();
    let failure = Node::new("a", TERMS).try_claim(&mut session).unwrap_err();
    failure.is("25006");
    session.fails("SELECT leaf_worker_retire(1)").is("25006");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_worker_status"),
        0
    );
}

#[test]
fn needs_execute_and_nothing_else() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE SCHEMA \"the ids\"; CREATE EXTENSION leaf_id SCHEMA \"the ids\";
         CREATE ROLE member LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
         GRANT USAGE ON SCHEMA \"the ids\" TO member, monitor;
         REVOKE ALL ON SCHEMA public FROM PUBLIC",
    );
    let mut member = server.connect_as("member", "postgres");
    let mut a = Node::new("a", TERMS);
    let claim = format!("{}, NULL, NULL, {}", a.who(), a.what());
    let claim = |session: &mut Session| try_call(session, "\"the ids\".leaf_worker_claim", &claim);
    claim(&mut member).unwrap_err().is("42501");
    let functions = "FUNCTION \"the ids\".leaf_worker_claim, \"the ids\".leaf_worker_renew";
    admin.run(&format!("GRANT EXECUTE ON {functions} TO member"));
    // Nothing of the caller's is run with the owner's rights.
    member.run(
        "CREATE TEMP TABLE leaf_worker (worker_id int); CREATE TEMP TABLE leaf_registry (one bool);
         CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
         SET search_path = pg_temp, pg_catalog",
    );
    a.learn(&claim(&mut member).unwrap());
    assert_eq!(a.worker_id, Some(0));
    let renewal = format!("0, {}, {}", a.who(), a.what());
    let answer = try_call(&mut member, "\"the ids\".leaf_worker_renew", &renewal);
    answer.unwrap().is("granted");
    for statement in [
        "SELECT \"the ids\".leaf_worker_release(0)",
        "SELECT \"the ids\".leaf_worker_retire(0)",
        "SELECT * FROM leaf_id.leaf_worker",
        "SELECT * FROM leaf_id.leaf_registry",
        "SELECT * FROM \"the ids\".leaf_worker_status",
        "DELETE FROM leaf_id.leaf_worker",
        "UPDATE leaf_id.leaf_registry SET epoch_ms = 0",
    ] {
        println!("{statement}");
        member.fails(statement).is("42501");
    }
    let mut monitor = server.connect_as("monitor", "postgres");
    monitor.run("SET search_path = \"the ids\"");
    assert_eq!(
        monitor.column::<String>("SELECT node_name FROM leaf_worker_status WHERE live"),
        ["a"]
    );
    assert_eq!(
        monitor.ids("SELECT epoch_ms FROM leaf_id.leaf_registry"),
        [TERMS.epoch_ms]
    );
    // Who sees a token can pass for its holder.
    let shown: String = monitor.value("SELECT string_agg(s::text, ' ') FROM leaf_worker_status s");
    let token: i64 = admin.value("SELECT token FROM leaf_id.leaf_worker");
    assert!(!shown.contains(&token.to_string()), "{shown}");
    monitor
        .fails("SELECT * FROM leaf_id.leaf_worker")
        .is("42501");
    claim(&mut monitor).unwrap_err().is("42501");
}

#[test]
fn refuses_a_transaction_block() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    let claim = format!(
        "SELECT leaf_worker_claim({}, NULL, NULL, {})",
        a.who(),
        a.what()
    );
    let renewal = format!("SELECT leaf_worker_renew(0, {}, {})", a.who(), a.what());
    let caught = |call: &str| {
        format!(
            "DO $$ BEGIN BEGIN PERFORM 1; {}; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$",
            call.replacen("SELECT", "PERFORM", 1)
        )
    };
    for (call, function) in [
        (&claim, "leaf_worker_claim()"),
        (&renewal, "leaf_worker_renew()"),
    ] {
        for statement in [
            format!("BEGIN; {call}; COMMIT"),
            format!("{call}; SELECT 1"),
            caught(call),
        ] {
            println!("{statement}");
            let failure = session.fails(&statement);
            failure.is("25001").says(function);
            session.run("ROLLBACK");
        }
    }
    assert_eq!(
        session.value::<i64>(
            "SELECT (SELECT count(*) FROM leaf_id.leaf_worker) + (SELECT count(*) FROM leaf_id.leaf_registry)"
        ),
        0
    );
    a.claim(&mut session).is("granted");
}

/// What a procedure has learned and takes back it tells nobody.
#[test]
fn a_procedure_that_takes_its_claim_back_tells_nobody() {
    let (server, mut admin) = server_and_session();
    let mut a = Node::new("a", TERMS);
    admin.run(&format!(
        "CREATE PROCEDURE claims(INOUT told bigint) LANGUAGE plpgsql AS
             'BEGIN told := (leaf_worker_claim({}, NULL, NULL, {})).reserved_until_ms; ROLLBACK; END'",
        a.who().replace('\'', "''"),
        a.what()
    ));
    let mut session = server.session();
    let told = session.try_column::<i64>("CALL claims(0)");
    println!("{told:?}");
    assert!(told.is_err(), "it was told {told:?}");
    assert!(session.try_run("SELECT 1").is_err());
    assert_eq!(
        admin.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        0
    );
    assert_eq!(a.claim(&mut admin).id(), 0);
}

/// Arguments that no server sends, as somebody may who has EXECUTE.
#[test]
fn absurd_arguments_leave_nothing_behind() {
    let (_server, mut session) = server_and_session();
    let (min, max) = (i64::MIN.to_string(), i64::MAX.to_string());
    let epoch = TERMS.epoch_ms.to_string();
    let usual = [
        "1", "'a'", "NULL", "5", "NULL", "NULL", NOW_MS, NOW_MS, "2000", "1000", &epoch,
    ];
    let try_claim = |session: &mut Session, changed: &[(usize, &str)]| {
        let mut arguments = usual.map(String::from);
        for (argument, value) in changed {
            arguments[*argument] = (*value).into();
        }
        try_call(session, "leaf_worker_claim", &arguments.join(", "))
    };
    for argument in [0, 1, 3, 6, 7, 8, 9, 10] {
        let failure = try_claim(&mut session, &[(argument, "NULL")]);
        failure.unwrap_err().is("22004");
    }
    let long = format!("'{}'", "x".repeat(64));
    for (argument, values) in [
        (1, vec![&*long, "E'a\\nb'"]),
        (3, vec!["0"]),
        (4, vec!["-1", "1024", "2147483647", "-2147483648"]),
        (6, vec![&*min, &*max, "-1"]),
        (8, vec!["0", "-1", "86400001", "2147483647"]),
        (9, vec!["-1", "3600001", "2147483647", "-2147483648"]),
    ] {
        for value in values {
            println!("argument {argument}: {value}");
            let failure = try_claim(&mut session, &[(argument, value)]);
            failure.unwrap_err().is("22023");
        }
    }
    let failure = try_claim(&mut session, &[(2, "6"), (3, "6")]);
    failure.unwrap_err().is("22023");
    assert_eq!(
        session.value::<i64>(
            "SELECT (SELECT count(*) FROM leaf_id.leaf_worker) + (SELECT count(*) FROM leaf_id.leaf_registry)"
        ),
        0
    );
    // These are possible, if strange: what is reserved is bounded.
    let mut token = 100;
    for (system, reserve, held_until) in [(&min, &max, &max), (&max, &min, &min)] {
        for epoch_ms in [&epoch, &max] {
            token += 1;
            let answer = try_claim(
                &mut session,
                &[
                    (0, system),
                    (3, &token.to_string()),
                    (4, "9"),
                    (5, held_until),
                    (7, reserve),
                    (10, epoch_ms),
                ],
            )
            .unwrap();
            if *epoch_ms == epoch {
                let reserved = answer.reserved_until_ms.unwrap();
                assert!(
                    (0..answer.registry_ms + 10_000).contains(&reserved),
                    "{answer:?}"
                );
                answer.id();
            } else {
                answer.is("epoch");
            }
        }
    }
    let renewal = format!("0, {min}, 'a', {min}, 101, {NOW_MS}, {max}, 86400000, 3600000, {epoch}");
    let answer = try_call(&mut session, "leaf_worker_renew", &renewal).unwrap();
    assert_eq!(answer.is("granted").worker_id, Some(0));
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_worker_status"),
        2
    );
}

#[test]
fn a_dump_carries_floors() {
    let (server, mut session) = server_and_session();
    let terms = Terms {
        lease_ms: 1000,
        ..TERMS
    };
    let mut nodes = ["a", "b"].map(|name| Node::new(name, terms));
    for node in &mut nodes {
        node.claim(&mut session).is("granted");
    }
    session.run("SELECT leaf_worker_retire(2)");
    let dump = server.dir().join("dump.sql");
    let dump = dump.to_str().unwrap();
    server.run("pg_dump", &["-f", dump, "postgres"]);
    let forgotten = Node::new("c", terms).claim(&mut session);
    let elsewhere = Server::start_unrelated(1, &[]);
    session.run("CREATE DATABASE beside");
    // As a copy of the whole database does, which keeps the oids of its tables.
    drop(session);
    server
        .session_in("beside")
        .run("CREATE DATABASE copy TEMPLATE postgres");
    for (server, database, restored) in [
        (&elsewhere, "postgres", true),
        (&server, "beside", true),
        (&server, "copy", false),
    ] {
        println!("{database}");
        if restored {
            server.run(
                "psql",
                &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", dump],
            );
        }
        let mut session = server.session_in(database);
        let reserved =
            "SELECT reserved_until_ms FROM leaf_id.leaf_worker WHERE node_name IN ('a', 'b')
                        ORDER BY worker_id";
        let told = nodes.clone().map(|node| node.reserved_until_ms.unwrap());
        assert_eq!(session.ids(reserved), told);
        // Leases of after the dump are forgotten.
        let mut new = Node::new("new", terms);
        new.claim(&mut session).is("grace");
        let answer = once_no_longer("grace", || new.claim(&mut session)).is("granted");
        let next_free = if restored {
            forgotten.worker_id
        } else {
            Some(4)
        };
        assert_eq!(answer.worker_id, next_free);
        assert!(answer.floor() > 0);
        let answer = nodes[0].copied().claim(&mut session);
        assert!(answer.floor() >= told[0]);
        nodes[1].clone().renew(&mut session).is("granted");
    }
}

/// A session that claims while no standby answers, once it waits.
fn claims_unanswered(
    server: &Server,
    node: &Node,
    then: impl FnOnce(&mut Session, i32),
) -> Result<Answer, Failure> {
    let mut session = server.session();
    session.run("SET synchronous_commit = off; SET statement_timeout = '500ms'");
    let pid = session.pid();
    let mut node = node.clone();
    thread::scope(|scope| {
        let claiming = scope.spawn(move || node.try_claim(&mut session));
        let mut watcher = server.session();
        wait_until(LIMIT, "the claim to wait for the standby", || {
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND wait_event = 'SyncRep'
                     AND clock_timestamp() > query_start + interval '1 s'"
            ))
        });
        then(&mut watcher, pid);
        claiming.join().unwrap()
    })
}

#[test]
fn a_cancelled_wait_for_a_standby_answers_nothing() {
    let (primary, standby) = pair();
    let mut session = primary.session();
    primary.configure("synchronous_standby_names", STANDBY);
    wait_until(LIMIT, "the standby to be synchronous", || {
        session.value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.claim(&mut session).id(), 0);
    standby.stop(Stop::Fast);
    a.who();
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let unanswered = claims_unanswered(&primary, &a, |watcher, pid| {
            watcher.run(&format!("SELECT {end}({pid})"));
        });
        let failure = unanswered.unwrap_err();
        println!("{end}: {failure}");
        failure.is_termination();
    }
    // With the standby it is answered, and the two before were answers that were lost.
    let answer = claims_unanswered(&primary, &a, |_, _| standby.launch());
    assert_eq!(answer.unwrap().id(), 0);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
}

/// What one of many was told holds, whatever the others do.
#[test]
fn under_load_no_id_has_two_holders() {
    let (server, mut admin) = server_and_session();
    leave(&mut admin, 0..3);
    // (worker id, after, until): no id of this holder carries a time outside of it.
    let spans = in_threads(8, |i| {
        let mut session = server.session();
        let mut random = random();
        let mut spans: Vec<(i32, i64, i64)> = Vec::new();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(6) {
            let terms = Terms {
                lease_ms: random.random_range(1..100),
                reserve_ms: random.random_range(-100..300),
                skew_ms: 60,
                ..TERMS
            };
            let mut node = Node::new(&format!("node {i}"), terms);
            let Ok(answer) = node.try_claim(&mut session) else {
                continue;
            };
            if answer.status != "granted" {
                continue;
            }
            let id = answer.worker_id.unwrap();
            let after = answer.floor_ms.unwrap();
            let mut until = answer.reserved_until_ms.unwrap();
            while random.random_bool(0.7) {
                let answer = node.renew(&mut session);
                if answer.status == "granted" {
                    until = answer.reserved_until_ms.unwrap();
                }
            }
            spans.push((id, after, until));
        }
        spans
    });
    let mut spans: Vec<_> = spans.concat();
    println!("{} grants", spans.len());
    assert!(spans.len() > 50);
    spans.retain(|(_, after, until)| after < until);
    spans.sort_unstable();
    let mut compared = 0;
    for pair in spans.windows(2) {
        let ((id, _, until), (next_id, after, _)) = (pair[0], pair[1]);
        if id == next_id {
            assert!(after >= until, "two held worker id {id}: {pair:?}");
            compared += 1;
        }
    }
    assert!(compared > 10, "only {compared} changes of a holder");
}

/// Three servers whose clocks are as far from the registry's as is allowed; then that one's is
/// another one, as far off on the other side.
fn three_ahead(session: &mut Session) -> [Node; 3] {
    ["a", "b", "c"].map(|name| {
        let terms = Terms {
            ahead_ms: 600,
            ..TERMS
        };
        let mut node = Node::new(name, terms);
        node.claim(session).is("granted");
        node.terms.ahead_ms = -600;
        node
    })
}

#[test]
fn after_a_failover_peers_count_once_they_have_met_the_new_clock() {
    let (_server, mut session) = server_and_session();
    let mut nodes = three_ahead(&mut session);
    // As a promotion does it.
    session.run("UPDATE leaf_id.leaf_registry SET timeline = 0");
    for node in &mut nodes {
        node.renew(&mut session).is("granted");
    }
    assert_eq!(nodes[0].renew(&mut session).is("granted").peers, 2);
}

#[test]
fn when_the_registrys_clock_is_set_servers_agree_again() {
    let (_server, mut session) = server_and_session();
    let mut nodes = three_ahead(&mut session);
    let refused = nodes[0].renew(&mut session).is("clock");
    refused.details("behind the median");
    for node in &mut nodes[1..] {
        node.renew(&mut session);
    }
    for node in &mut nodes {
        node.renew(&mut session).is("granted");
    }
}
