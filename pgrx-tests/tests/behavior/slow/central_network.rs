//! Would catch: a network failure that stalls unrelated work, waits for another server that cannot
//! be ended (I5), errors that do not explain why there are no ids, claims lost twice or issued
//! twice after a lost answer (I3, I6), and a server that needs a restart to recover.

use std::cell::RefCell;
use std::time::Duration;

use leaf_id_tests::{
    CENTRAL, Failure, Mode, PATIENCE, Proxy, Server, Session, Stop, assert_issued_once,
    disturb_waiting, promptly, wait_until,
};

use crate::segment::waits::assert_can_be_ended;

const LIMIT: Duration = Duration::from_secs(60);
const STEP: i32 = 100;
const NEXT: &str = "SELECT leaf_segment_next('t')";
const CLAIM: &str = "pg_catalog.ts_parse(";

/// A central server, and a member with tag `t` that connects through a proxy.
struct Pair {
    member: Server,
    proxy: Proxy,
    central: Server,
}

impl Pair {
    fn new() -> Self {
        Self::with_claim_timeout("1s")
    }

    /// A pair with [`PATIENCE`] as its network timeouts.
    fn patient() -> Self {
        Self::with_claim_timeout(&format!("{}s", PATIENCE.as_secs())).patient_to_connect()
    }

    fn patient_to_connect(self) -> Self {
        self.member.session().run(&format!(
            "ALTER SERVER {CENTRAL} OPTIONS (SET connect_timeout '{}')",
            PATIENCE.as_secs()
        ));
        self
    }

    fn with_claim_timeout(timeout: &str) -> Self {
        let central = Server::with_leaf_id(&[]);
        central.admit_members();
        let mut session = central.session();
        for tag in ["t", "other"] {
            session.create_steady_tag(tag, STEP);
        }
        let proxy = Proxy::to(&central);
        let member = Server::start_unrelated(1, &[("leaf_id.claim_timeout", timeout)]);
        member.source_from(&[proxy.dir()]);
        member.session().create_sourced_tag("t", STEP, STEP);
        Self {
            member,
            proxy,
            central,
        }
    }

    /// Uses the tag, causes a failure, and checks that waits for it can be ended and show their
    /// reason, that the log mentions it once, and that waits end with the failure. Returns all ids
    /// taken.
    #[track_caller]
    fn suffers(&self, begin: impl FnOnce(), detail: &str, end: impl FnOnce()) -> Vec<i64> {
        let mut session = self.member.session();
        let mut ids = session.take("t", 5);
        session.wait_for_spare("t");
        begin();
        ids.extend(drain(&mut session).0);
        let mut left = assert_can_be_ended(&self.member, NEXT, "55P03");
        session.run("SET leaf_id.refill_timeout = '500ms'");
        let mut failure = None;
        wait_until(LIMIT, detail, || {
            failure = session.try_next("t").err();
            let failure = failure.as_ref().expect("no id comes");
            failure.is("55P03").details(CENTRAL);
            failure.detail.contains(detail)
        });
        let shown: (String, String) = {
            let row = session
                .query_one("SELECT name, last_error FROM leaf_id.fleet", &[])
                .unwrap();
            (row.get(0), row.get(1))
        };
        assert_eq!(shown.0, CENTRAL);
        assert!(shown.1.contains(detail), "{shown:?}");
        end();
        for session in &mut left {
            session.run("SET leaf_id.refill_timeout = '60s'");
            ids.push(session.next("t"));
        }
        assert_issued_once(ids.iter().map(|id| [*id]));
        let log = self.member.log();
        let logged = |text: &str| -> Vec<_> {
            log.lines()
                .filter(|line| line.contains("leaf_id allocator") && line.contains(CENTRAL))
                .filter_map(|line| Some(line.split_once(text)?.1.to_owned()))
                .collect()
        };
        assert_eq!(logged("is back").len(), 1, "{log}");
        let mut warnings = logged("WARNING:");
        let count = warnings.len();
        warnings.sort_unstable();
        warnings.dedup();
        assert!(count > 0 && warnings.len() == count, "{log}");
        ids
    }

    /// Number of ids claimed at the central server that the member did not receive.
    fn lost(&self) -> i64 {
        self.member.session().wait_for_spare("t");
        self.central.session().max_id("t") - self.member.session().max_id("t")
    }
}

/// All ids available without a wait, and the error of the next call.
fn drain(session: &mut Session) -> (Vec<i64>, Failure) {
    session.run("SET leaf_id.refill_timeout = '50ms'");
    let mut ids = Vec::new();
    let failure = loop {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) => break failure,
        }
        assert!(ids.len() < 100_000, "there is no end of them");
    };
    session.run("RESET leaf_id.refill_timeout");
    (ids, failure.is("55P03").clone())
}

/// Waits until a session of the member has requested ids of `t`, then acts.
#[track_caller]
fn while_waiting(member: &Server, act: impl FnOnce()) -> Result<(), Failure> {
    let mut waiter = member.session();
    waiter.run("SET leaf_id.refill_timeout = '110s'");
    disturb_waiting(member, waiter, NEXT, |_| act()).result
}

/// A server that accepts connections but does not respond is the worst case: a process that waits
/// in libpq notices nothing else.
#[test]
fn a_silent_server_stalls_no_other_session() {
    let pair = Pair::new().patient_to_connect();
    let member = &pair.member;
    let mut session = member.session();
    session.create_foreign_server("open", &[pair.central.dir()]);
    session.create_steady_tag("local", STEP);
    session.run("SELECT leaf_tag_create('other', step => 100, max_step => 100, server => 'open')");
    for tag in ["t", "local", "other"] {
        session.take(tag, 5);
    }
    session.run("CREATE DATABASE idle");
    pair.proxy.set(Mode::Silent);
    drain(&mut session);
    let result = while_waiting(member, || {
        // After a timeout, the member reconnects.
        wait_until(LIMIT, "a connection", || pair.proxy.connections() > 1);
        for tag in ["local", "other"] {
            for _ in 0..10 {
                promptly(|| session.take(tag, STEP));
            }
        }
        promptly(|| session.run("DROP DATABASE idle"));
        // A shutdown terminates a waiting session as usual.
        promptly(|| member.stop(Stop::Fast));
    });
    result.unwrap_err().is_termination();
}

/// Nor does a server that never stops sending, so that no request can be sent.
#[test]
fn a_server_that_talks_without_end_stalls_no_other_session() {
    let pair = Pair::new();
    let member = &pair.member;
    let mut session = member.session();
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET connect_timeout '2')"
    ));
    session.create_steady_tag("local", STEP);
    session.take("t", 5);
    session.take("local", 5);
    session.run("CREATE DATABASE idle");
    pair.proxy.set(Mode::Chatter);
    pair.proxy.end_connections();
    drain(&mut session);
    let result = while_waiting(member, || {
        // The connection was given up at least once.
        wait_until(LIMIT, "three connections", || pair.proxy.connections() > 3);
        for _ in 0..10 {
            promptly(|| session.take("local", STEP));
        }
        promptly(|| session.run("DROP DATABASE idle"));
        promptly(|| member.stop(Stop::Fast));
    });
    result.unwrap_err().is_termination();
}

/// A server that accepts connections but refuses all claims counts as away. An alert needs the
/// duration and the number of attempts.
#[test]
fn a_server_that_only_refuses_is_away_until_it_claims() {
    let pair = Pair::new();
    let mut session = pair.member.session();
    session.take("t", 5);
    session.wait_for_spare("t");
    // Otherwise libpq itself would refuse the connection.
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (DROP target_session_attrs)"
    ));
    pair.central.set("default_transaction_read_only", "on");
    wait_until(LIMIT, "the reload", || {
        let mut new = pair.central.session();
        new.value::<String>("SHOW default_transaction_read_only") == "on"
    });
    drain(&mut session);
    let figures = "SELECT ARRAY[extract(epoch FROM since) * 1000, attempts]::bigint[]
                   FROM leaf_id.fleet WHERE state = 'away'";
    let mut first = None;
    let mut last = Vec::new();
    session.run("SET leaf_id.refill_timeout = '1s'");
    wait_until(LIMIT, "many attempts", || {
        session.try_next("t").unwrap_err().is("55P03");
        let Some(now) = session.column::<Vec<i64>>(figures).pop() else {
            return false;
        };
        last = now;
        first.get_or_insert(last[0]);
        last[1] >= 8
    });
    assert_eq!(
        first,
        Some(last[0]),
        "it was away from the first attempt on"
    );
    pair.central.set("default_transaction_read_only", "off");
    session.run("SET leaf_id.refill_timeout = '60s'");
    session.next("t");
    let recoveries = pair.member.log().matches("is back, after").count();
    assert_eq!(recoveries, 1);
}

/// Even the database with a claim in flight.
#[test]
fn a_database_is_dropped_while_its_server_is_silent() {
    let pair = Pair::patient();
    let mut admin = pair.member.session();
    admin.run("CREATE DATABASE shop");
    let mut session = pair.member.session_in("shop");
    session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &[pair.proxy.dir()]);
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET connect_timeout '{}')",
        PATIENCE.as_secs()
    ));
    session.create_sourced_tag("t", STEP, STEP);
    session.take("t", 5);
    session.wait_for_spare("t");
    // During a claim, and while connecting.
    for connections in [1, 2] {
        pair.proxy.set(Mode::Silent);
        drain(&mut session);
        wait_until(LIMIT, "a connection", || {
            pair.proxy.connections() >= connections
        });
        drop(session);
        promptly(|| admin.run("CREATE DATABASE copy TEMPLATE shop"));
        admin.run("DROP DATABASE copy");
        promptly(|| admin.run("ALTER DATABASE shop RENAME TO market"));
        admin.run("ALTER DATABASE market RENAME TO shop");
        session = pair.member.session_in("shop");
        session.run("SET leaf_id.refill_timeout = '300ms'");
        session.fails(NEXT).is("55P03");
        if connections == 1 {
            pair.proxy.set(Mode::Pass);
            session.run("SET leaf_id.refill_timeout = '60s'");
            session.next("t");
            pair.proxy.end_connections();
        }
    }
    drop(session);
    promptly(|| admin.run("DROP DATABASE shop"));
}

/// A packet that does not fit into the socket's buffer. Before: the allocator waits in libpq, and DROP
/// DATABASE of any database and the shutdown wait for it.
#[test]
fn a_server_that_does_not_read_is_given_up() {
    let pair = Pair::patient();
    let mut session = pair.member.session();
    pair.proxy.set(Mode::Silent);
    session.run(&format!(
        "DO $$BEGIN EXECUTE format('ALTER SERVER {CENTRAL} OPTIONS (ADD options %L)', repeat(' ', 20000000)); END$$;
         SET leaf_id.refill_timeout = '300ms'"
    ));
    session.fails(NEXT).is("55P03");
    let mut admin = pair.member.session();
    admin.run("CREATE DATABASE other");
    promptly(|| admin.run("DROP DATABASE other"));
    session.run(&format!("ALTER SERVER {CENTRAL} OPTIONS (DROP options)"));
    pair.proxy.set(Mode::Pass);
    session.run("SET leaf_id.refill_timeout = '60s'");
    session.next("t");
}

#[test]
fn a_silent_first_host_is_passed_over() {
    let pair = Pair::new();
    pair.proxy.set(Mode::Silent);
    let mut session = pair.member.session();
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET host '{},{}')",
        pair.proxy.dir().display(),
        pair.central.dir().display()
    ));
    session.be_patient();
    assert_issued_once([session.take("t", 5 * STEP)]);
    // One attempt ends by connect_timeout. The connection to the second host is kept.
    assert_eq!(pair.proxy.connections(), 1);
}

#[test]
fn connections_refused() {
    let pair = Pair::new();
    pair.suffers(
        || pair.proxy.set(Mode::Refuse),
        "Connection refused",
        || pair.proxy.set(Mode::Pass),
    );
    assert_eq!(pair.lost(), 0);
}

/// A request that was not passed on costs nothing. One that was cut off is repeated as a new claim.
#[test]
fn cut_in_mid_claim() {
    let pair = Pair::new();
    let mut session = pair.member.session();
    session.run("SET leaf_id.refill_timeout = '60s'");
    let mut ids = session.take("t", 5);
    for cuts in 1..=5 {
        pair.proxy.set(Mode::CutBefore(CLAIM));
        ids.extend(session.take("t", 3 * STEP));
        assert_eq!(pair.proxy.cuts(), cuts);
    }
    let count = i64::try_from(ids.len()).unwrap();
    assert!(ids.iter().copied().eq(1..=count), "there are gaps");
    assert_eq!(pair.lost(), 0);
}

/// Ids claimed there but never received are a gap, once, and are not issued by others.
#[test]
fn a_lost_answer_is_a_gap() {
    let pair = Pair::new();
    let mut session = pair.member.session();
    session.run("SET leaf_id.refill_timeout = '60s'");
    let mut ids = session.take("t", 5);
    session.wait_for_spare("t");
    let step = i64::from(STEP);
    for cuts in 1..=3 {
        pair.proxy.set(Mode::CutAfter(CLAIM));
        // The two cached segments, and more.
        ids.extend(session.take("t", 2 * STEP));
        assert_eq!(pair.proxy.cuts(), cuts);
        session.wait_for_spare("t");
    }
    assert_issued_once([&ids]);
    let gaps: Vec<_> = ids
        .windows(2)
        .map(|pair| pair[1] - pair[0] - 1)
        .filter(|gap| *gap > 0)
        .collect();
    // The last one may be before the spare.
    assert!([2, 3].contains(&gaps.len()), "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap == step), "{gaps:?}");
    assert_eq!(pair.lost(), 0);
    let claimed = session.figure("t", "refills") + 3;
    assert_eq!(pair.central.session().max_id("t"), 1 + claimed * step);
}

/// Its connections remain open, and the kernel continues to accept new ones.
#[test]
fn a_frozen_server_goes_on() {
    let pair = Pair::new();
    let frozen = RefCell::new(None);
    let ids = pair.suffers(
        || *frozen.borrow_mut() = Some(pair.central.freeze()),
        "no answer from",
        || drop(frozen.take()),
    );
    // Late claims are a gap.
    let mut session = pair.member.session();
    let mut more = session.take("t", 5 * STEP);
    more.extend(ids);
    more.sort_unstable();
    assert_issued_once([more]);
    assert_eq!(pair.lost() % i64::from(STEP), 0);
}

#[test]
fn wrong_password() {
    let pair = Pair::new();
    let sql = |password: &str| {
        format!(
            "ALTER USER MAPPING FOR CURRENT_USER SERVER {CENTRAL} OPTIONS (SET password '{password}')"
        )
    };
    pair.central.require_password("leaf_member");
    let mut admin = pair.member.session();
    pair.suffers(
        || admin.run(&sql("wrong")),
        "password authentication failed",
        || pair.member.session().run(&sql("secret")),
    );
    assert_eq!(pair.lost(), 0);
    let log = pair.member.log();
    for password in ["secret", "wrong"] {
        let disclosed = log.lines().find(|line| line.contains(password));
        assert!(disclosed.is_none(), "{disclosed:?}");
    }
}

#[test]
fn no_user_mapping() {
    let pair = Pair::new();
    let mut admin = pair.member.session();
    pair.suffers(
        || {
            admin.run(&format!(
                "DROP USER MAPPING FOR CURRENT_USER SERVER {CENTRAL}"
            ))
        },
        "user mapping not found",
        || {
            pair.member.session().run(&format!(
                "CREATE USER MAPPING FOR CURRENT_USER SERVER {CENTRAL}
                     OPTIONS (user 'leaf_member', password 'secret')"
            ));
        },
    );
    assert_eq!(pair.lost(), 0);
}

#[test]
fn a_role_that_may_not_claim() {
    let pair = Pair::new();
    let mut admin = pair.central.session();
    pair.suffers(
        || {
            admin.run("REVOKE EXECUTE ON FUNCTION leaf_id.leaf_claim FROM leaf_member");
            pair.proxy.end_connections();
        },
        "which takes GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO leaf_member",
        || {
            let mut admin = pair.central.session();
            admin.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO leaf_member");
        },
    );
    assert_eq!(pair.lost(), 0);
}

#[test]
fn no_extension() {
    let pair = Pair::new();
    let sql = |database| format!("ALTER SERVER {CENTRAL} OPTIONS (SET dbname '{database}')");
    let mut admin = pair.member.session();
    pair.suffers(
        || admin.run(&sql("template1")),
        "\"leaf_id\" is not installed in database \"template1\"",
        || pair.member.session().run(&sql("postgres")),
    );
    assert_eq!(pair.lost(), 0);
}

#[test]
fn an_old_version() {
    let pair = Pair::new();
    let mut central = pair.central.session();
    let parser = "TEXT SEARCH PARSER leaf_id.leaf_claim";
    pair.suffers(
        || {
            central.run(&format!("ALTER EXTENSION leaf_id DROP {parser}"));
            pair.proxy.end_connections();
        },
        "has no function leaf_claim",
        || {
            let mut central = pair.central.session();
            central.run(&format!("ALTER EXTENSION leaf_id ADD {parser}"));
        },
    );
    assert_eq!(pair.lost(), 0);
}

#[test]
fn a_server_that_was_dropped() {
    let pair = Pair::new();
    let mut admin = pair.member.session();
    pair.suffers(
        || admin.run(&format!("DROP SERVER {CENTRAL} CASCADE")),
        "does not exist",
        || {
            let mut session = pair.member.session();
            session.create_foreign_server(CENTRAL, &[pair.proxy.dir()]);
        },
    );
    assert_eq!(pair.lost(), 0);
}

/// The existing connection is to the old server, and works.
#[test]
fn alter_server_is_noticed() {
    let pair = Pair::new();
    let mut session = pair.member.session();
    let mut ids = session.take("t", 5);
    let other = Proxy::to(&pair.central);
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET host '{}')",
        other.dir().display()
    ));
    ids.extend(session.take("t", 5 * STEP));
    assert!(other.connections() > 0);
    assert!(!pair.member.log().contains("WARNING"));
    assert_issued_once([ids]);
}
