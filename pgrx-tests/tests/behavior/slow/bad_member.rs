//! Would catch: a member of the worker registry that harms others by false information about its
//! clock, its name, its needs or its epoch; and a server of the registry that harms a member.

use std::time::Duration;

use leaf_id_tests::{
    Failure, Fleet, Server, Session, assert_issued_once, becomes, each, impersonate, lease_message,
    lease_query, now_ms, promptly,
};
use postgres::Row;

const EPOCH_MS: i64 = 1_288_834_974_657;
const MINUTE_MS: i64 = 60_000;

/// Claims of a node about itself.
#[derive(Clone, Copy)]
struct Says {
    system: i64,
    ahead_ms: i64,
    epoch_ms: i64,
}

/// An honest node.
const HONEST: Says = Says {
    system: 4711,
    ahead_ms: 0,
    epoch_ms: EPOCH_MS,
};

/// Answer of a registry, unless it raises an error.
#[derive(Debug)]
struct Answer {
    status: String,
    worker_id: Option<i32>,
    floor_ms: Option<i64>,
    reserved_until_ms: Option<i64>,
}

impl Answer {
    fn granted(&self) -> bool {
        self.status == "granted"
    }
}

impl From<Row> for Answer {
    fn from(row: Row) -> Self {
        Self {
            status: row.get("status"),
            worker_id: row.get("worker_id"),
            floor_ms: row.get("floor_ms"),
            reserved_until_ms: row.get("reserved_until_ms"),
        }
    }
}

/// Last fields of a request.
fn terms(says: Says) -> String {
    format!(
        "{}, {}, '41/10/12'",
        now_ms() + says.ahead_ms,
        says.epoch_ms
    )
}

fn claim(session: &mut Session, node: &str, says: Says) -> Result<Answer, Failure> {
    let fields = format!(
        "{}, '{node}', NULL, {}, NULL, NULL, NULL, {}",
        says.system,
        rand::random_range(1..i64::MAX),
        terms(says)
    );
    let sql = lease_query(&lease_message(&fields));
    let row = session.query_one(&sql, &[]);
    row.map(Answer::from).map_err(|error| Failure::from(&error))
}

/// A registry whose members have separate roles: honest and mallory.
fn registry() -> (Server, Session, Session) {
    let server = Server::with_leaf_id(&[]);
    server.session().run(
        "CREATE ROLE honest LOGIN; CREATE ROLE other LOGIN; CREATE ROLE mallory LOGIN;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO honest, other, mallory",
    );
    let honest = server.connect_as("honest", "postgres");
    let mallory = server.connect_as("mallory", "postgres");
    (server, honest, mallory)
}

/// Asserts that the honest node gets a worker id.
#[track_caller]
fn assert_granted(session: &mut Session, node: &str) -> Answer {
    match claim(session, node, HONEST) {
        Ok(answer) if answer.granted() => answer,
        other => panic!("{node} gets no worker id: {other:?}"),
    }
}

/// S10. Before: 1,024 nodes of one role, and `full` for all other roles, for a day.
#[test]
fn a_role_takes_no_more_worker_ids_than_its_share() {
    let (_server, mut honest, mut mallory) = registry();
    assert_granted(&mut honest, "h1");
    let granted = (0..1024)
        .map(|n| claim(&mut mallory, &format!("n{n}"), HONEST))
        .filter(|answer| answer.as_ref().is_ok_and(Answer::granted))
        .count();
    println!("{granted} worker ids for one role");
    assert_granted(&mut honest, "h2");
}

/// S10. Before: the average of the others moves, and clocks of honest servers are refused
/// (`clock`): snowflake ids stop everywhere.
#[test]
fn a_members_clock_harms_itself() {
    each([50 * MINUTE_MS, -50 * MINUTE_MS, 3000, 900], |&ahead_ms| {
        let (server, mut honest, mut mallory) = registry();
        assert_granted(&mut honest, "h1");
        assert_granted(&mut server.connect_as("other", "postgres"), "o1");
        let off = Says { ahead_ms, ..HONEST };
        for n in 0..20 {
            let answer = claim(&mut mallory, &format!("n{n}"), off);
            if n == 0 {
                println!("{answer:?}");
            }
        }
        assert_granted(&mut honest, "h2");
        assert_granted(&mut honest, "h3");
        // An honest server's clock is slightly off.
        for ahead_ms in [-400, 400] {
            let other = Says { ahead_ms, ..HONEST };
            let answer = claim(&mut honest, "h4", other).unwrap();
            assert!(answer.granted(), "{answer:?}");
        }
    });
}

/// S10. Before: a member's reservation and lease duration apply to the next holder of its worker
/// id: no snowflake ids for a day.
#[test]
fn what_a_member_says_does_not_stop_the_next_holder() {
    let (server, mut honest, mut mallory) = registry();
    server.session().run(
        "INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000);
         SELECT leaf_id.leaf_worker_retire(n) FROM generate_series(1, 1023) n",
    );
    let far = [900, 50 * MINUTE_MS, -50 * MINUTE_MS];
    for (token, ahead_ms) in (1..).zip(far) {
        let fields = format!(
            "4711, 'n', {token}, {}, 0, 0, 253402300799999, {}",
            token + 1,
            terms(Says { ahead_ms, ..HONEST })
        );
        let row = mallory.query_one(&lease_query(&lease_message(&fields)), &[]);
        let answer = Answer::from(row.unwrap());
        assert!(
            answer.reserved_until_ms.unwrap() <= now_ms() + 2000,
            "{answer:?}"
        );
    }
    let mut answer = None;
    let is_free = becomes(Duration::from_secs(10), || {
        let asked = claim(&mut honest, "h", HONEST).unwrap();
        answer = Some(asked).filter(Answer::granted);
        answer.is_some()
    });
    assert!(is_free);
    assert!(answer.unwrap().floor_ms.unwrap() < now_ms());
}

/// S10. Before: any role that knows a node's name gets its worker id after its lease, and the node
/// is taken for a copy.
#[test]
fn a_nodes_name_is_its_roles() {
    let (server, mut honest, mut mallory) = registry();
    server
        .session()
        .run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (1000)");
    let mine = claim(&mut honest, "h1", HONEST).unwrap();
    assert!(mine.granted());
    let stolen = becomes(Duration::from_secs(3), || {
        let answer = claim(&mut mallory, "h1", HONEST);
        answer.is_ok_and(|answer| answer.granted() && answer.worker_id == mine.worker_id)
    });
    assert!(!stolen, "mallory has worker id {:?}", mine.worker_id);
    assert_eq!(assert_granted(&mut honest, "h1").worker_id, mine.worker_id);
}

/// Before: the byte stays in leaf_worker, and no dump of the database can be restored.
#[test]
fn a_nodes_name_is_text() {
    let (server, mut honest, _) = registry();
    let mut ask = |name: &str| {
        let fields = format!("4711, 'NODE', NULL, 1, NULL, NULL, NULL, {}", terms(HONEST));
        let message = format!(
            "replace(({})::text, 'NODE', '{name}')",
            lease_message(&fields)
        );
        honest
            .query_one(&lease_query(&message), &[])
            .map(Answer::from)
    };
    for name in ["\\u00ff", "\\u00c3", "a\\u00e2\\u0082"] {
        let error = ask(name).expect_err(name);
        Failure::from(&error).is("22023").says("terms");
    }
    // As members send it.
    assert!(ask("\\u00c3\\u00a9").unwrap().granted());
    let mut admin = server.session();
    let table = admin.table("leaf_worker");
    assert_eq!(
        admin.column::<String>(&format!("SELECT node_name FROM {table}")),
        ["é"]
    );
}

/// S10. Before: the first requester determines the epoch of the whole fleet.
#[test]
fn the_epoch_is_the_owners() {
    let (_server, mut honest, mut mallory) = registry();
    let other = Says {
        epoch_ms: 0,
        ..HONEST
    };
    println!("{:?}", claim(&mut mallory, "n", other));
    assert_granted(&mut honest, "h1");
}

/// A central server whose owner chooses its answers.
fn hostile_central(answers: &[&str]) -> Fleet {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    let cases: String = (1..)
        .zip(answers)
        .map(|(n, answer)| format!("WHEN {n} THEN '{{\"version\": 1, {answer}}}' "))
        .collect();
    let last = answers.last().unwrap();
    central.run(&format!(
        "CREATE SEQUENCE turn; GRANT USAGE ON SEQUENCE turn TO PUBLIC;
         {}",
        impersonate(&format!(
            "CASE nextval('public.turn') {cases} ELSE '{{\"version\": 1, {last}}}' END"
        ))
    ));
    let mut member = fleet.members[0].session();
    member.create_sourced_tag("t", 1000, i32::MAX);
    fleet
}

/// Two answers of a hostile central server that together exceed the length of a segment. Before:
/// they are published as one.
#[test]
fn answers_that_add_up_to_more_than_a_segment() {
    let fleet = hostile_central(&[
        r#""first": 1, "len": 1500000000, "incarnation": 7, "max_step": 2147483647, "max_value": 9000000000000000000, "skipped": 0"#,
        r#""first": 1500000001, "len": 2147483647, "incarnation": 7, "max_step": 2147483647, "max_value": 9000000000000000000, "skipped": 0"#,
        r#""first": 3647483648, "len": 1000, "incarnation": 7, "max_step": 2147483647, "max_value": 9000000000000000000, "skipped": 0"#,
    ]);
    let mut session = fleet.members[0].session();
    session.run("SET leaf_id.refill_timeout = '3s'");
    let range = session.query_one(
        "SELECT first_id, last_id FROM leaf_segment_next_range('t', 2000000000)",
        &[],
    );
    let mut ids = Vec::new();
    match range {
        Ok(row) => {
            let (first, last): (i64, i64) = (row.get(0), row.get(1));
            println!("{first} to {last}");
            assert_eq!(last - first + 1, 2_000_000_000);
            ids.extend([first, last]);
        }
        Err(error) => println!("{}", Failure::from(&error)),
    }
    for _ in 0..5 {
        match session.try_take("t", 300) {
            Ok(more) => ids.extend(more),
            Err(failure) => println!("{failure}"),
        }
    }
    let figures = session
        .query_one(
            "SELECT current_first, current_last, spare_first, spare_last, max_id
             FROM leaf_id.tags_detail",
            &[],
        )
        .unwrap();
    println!("{figures:?}");
    for pair in [(0, 1), (2, 3)] {
        let bounds: (Option<i64>, Option<i64>) = (figures.get(pair.0), figures.get(pair.1));
        if let (Some(first), Some(last)) = bounds {
            assert!(last - first < i64::from(i32::MAX), "{first} to {last}");
        }
    }
    assert_issued_once([ids]);
}

/// Invalid answers result in an error, or are truncated. Nothing crashes, and no id is issued
/// twice. Before: the same.
#[test]
fn nonsense_from_a_central_server() {
    each(
        [
            r#""first": 1, "len": 10, "incarnation": 0, "max_step": -5, "max_value": -1, "skipped": -7"#,
            r#""first": 1, "len": 10, "incarnation": 7, "max_step": 0, "max_value": 9000000000000000000, "skipped": 9223372036854775807"#,
            r#""first": 1, "len": 10, "incarnation": 7, "max_step": 2147483647, "max_value": 5, "skipped": 0"#,
            r#""first": 9223372036854775806, "len": 2, "incarnation": 7, "max_step": 10, "max_value": 9223372036854775807, "skipped": 0"#,
            r#""first": -10, "len": 10, "incarnation": 7, "max_step": 10, "max_value": 100, "skipped": 0"#,
            r#""first": 0, "len": 10, "incarnation": 7, "max_step": 10, "max_value": 100, "skipped": 0"#,
            r#""first": 20, "len": -9, "incarnation": 7, "max_step": 10, "max_value": 100, "skipped": 0"#,
            r#""first": null, "len": null, "incarnation": null, "max_step": null, "max_value": null, "skipped": null"#,
        ],
        |answer| {
            let fleet = hostile_central(&[answer]);
            let mut session = fleet.members[0].session();
            session.run("SET leaf_id.refill_timeout = '1s'");
            let mut ids = Vec::new();
            promptly(|| {
                for _ in 0..15 {
                    match session.try_next("t") {
                        Ok(id) => ids.push(id),
                        Err(failure) => {
                            println!("{failure}");
                            break;
                        }
                    }
                }
            });
            assert!(ids.iter().all(|id| (1..i64::MAX).contains(id)), "{ids:?}");
            assert_issued_once([ids]);
        },
    );
}
