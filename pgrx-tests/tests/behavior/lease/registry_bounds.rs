//! Would catch: a member, or a role, that harms the other members of a worker registry: by taking
//! all worker ids, or by keeping others from issuing with claims about its clock. A server that goes
//! on beyond what the registry grants, or a renewal that outlives the terms that it was granted on.
//! And foreign code that runs in the registry's functions.
//! (Single-session behavior is tested in sql/registry.sql.)

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, CENTRAL, Failure, Registry, Server, Session, assert_apart, becomes, impersonate,
    in_threads, in_threads_until, lease_message, lease_query, now_ms, time_of, wait_until,
    worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);
/// How far ahead a registry grants whose members renew while a test waits, in milliseconds.
const BRIEF_MS: i64 = 6_000;

/// A request to the registry.
#[derive(Clone, Copy)]
struct Ask<'a> {
    node: &'a str,
    ahead_ms: i64,
}

const ASK: Ask<'static> = Ask {
    node: "n",
    ahead_ms: 0,
};

#[derive(Debug)]
struct Answer {
    status: String,
    worker_id: Option<i32>,
    reserved_until_ms: Option<i64>,
    registry_ms: i64,
    detail: String,
}

impl Ask<'_> {
    #[track_caller]
    fn ask(&self, session: &mut Session) -> Answer {
        let now = now_ms() + self.ahead_ms;
        let fields = format!(
            "4711, '{}', 1, 2, NULL, NULL, NULL, {now}, 1288834974657, '41/10/12'",
            self.node
        );
        let sql = lease_query(&lease_message(&fields));
        let row = session
            .query_one(&sql, &[])
            .unwrap_or_else(|error| panic!("{sql}: {}", Failure::from(&error)));
        Answer {
            status: row.get("status"),
            worker_id: row.get("worker_id"),
            reserved_until_ms: row.get("reserved_until_ms"),
            registry_ms: row.get("registry_ms"),
            detail: row.get("detail"),
        }
    }
}

impl Answer {
    #[track_caller]
    fn is(self, status: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    #[track_caller]
    fn details(self, text: &str) -> Self {
        assert!(self.detail.contains(text), "no {text:?} in {self:?}");
        self
    }
}

/// Creates a role that may claim and renew, and connects as it.
fn role(server: &Server, name: &str) -> Session {
    server.session().run(&format!(
        "CREATE ROLE {name} LOGIN;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO {name}"
    ));
    server.connect_as(name, "postgres")
}

/// An attack: one role claims as many worker ids as possible, for nodes that do not exist, with a
/// clock 50 minutes ahead.
#[test]
fn one_role_harms_itself() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), BRIEF_MS);
    let servers = ["a", "b"].map(|node| registry.member(node));
    let asking = [Asking::default(), Asking::default()];
    let mut bad = role(&registry.server, "bad");
    for server in &servers {
        server.session().next_snowflake();
    }
    in_threads_until(
        2,
        |i, done| asking[i].ask(&servers[i], done),
        || {
            for n in 0..1021 {
                let node = format!("bad {n}");
                let ahead = Ask {
                    node: &node,
                    ahead_ms: 3_000_000,
                };
                ahead.ask(&mut bad).is("clock");
            }
            // Then with a clock that is just acceptable.
            let mut taken = HashSet::new();
            let mut last = String::new();
            for n in 0..1021 {
                let node = format!("bad {n}");
                let just = Ask {
                    node: &node,
                    ahead_ms: 900,
                };
                let answer = just.ask(&mut bad);
                if answer.status == "granted" {
                    let until_ms = answer.reserved_until_ms.unwrap();
                    assert_eq!(until_ms, answer.registry_ms + BRIEF_MS, "{answer:?}");
                    taken.insert(answer.worker_id.unwrap());
                    last = node;
                } else {
                    answer.is("full").details("role \"bad\" has 256 worker ids");
                }
            }
            assert_eq!(taken.len(), 256);
            // A holder's clock is not compared, and gets it nothing.
            let far = Ask {
                node: &last,
                ahead_ms: 3_000_000,
            };
            let answer = far.ask(&mut bad).is("granted");
            let until_ms = answer.reserved_until_ms.unwrap();
            assert_eq!(until_ms, answer.registry_ms + BRIEF_MS, "{answer:?}");
            // Other members continue: they renew, and a new one gets a worker id and issues at
            // once.
            for asking in &asking {
                asking.wait_for_ids();
            }
            for worker_id in [0, 1] {
                registry.wait_for_renewal(worker_id);
            }
            let new = registry.member("c");
            let id = new.session().next_snowflake();
            assert!(!taken.contains(&worker_of(id)));
        },
    );
    for asking in &asking {
        asking.is_never_refused();
    }
    assert_apart(&asking);
}

/// A member whose clock is as far behind as allowed is not refused because another role has
/// invented hundreds of nodes with clocks ahead.
#[test]
fn invented_nodes_have_one_vote() {
    let server = Server::with_leaf_id(&[]);
    let mut bad = role(&server, "bad");
    let mut good = role(&server, "good");
    let mut other = role(&server, "other");
    for n in 0..100 {
        let node = format!("bad {n}");
        let ahead = Ask {
            node: &node,
            ahead_ms: 900,
        };
        ahead.ask(&mut bad).is("granted");
    }
    ASK.ask(&mut other).is("granted");
    let late = Ask {
        node: "late",
        ahead_ms: -600,
    };
    late.ask(&mut good).is("granted");
    // If all nodes have one role, each has a vote.
    let late = Ask {
        node: "bad late",
        ..late
    };
    server
        .session()
        .run("SET session_replication_role = replica; DELETE FROM leaf_id.leaf_worker WHERE worker_id IN (100, 101)");
    late.ask(&mut bad)
        .is("clock")
        .details("the median of 100 other servers");
}

/// The name of a server counts within its role: another role cannot take its worker id over.
#[test]
fn a_server_with_another_role_has_another_worker_id() {
    let registry = Registry::start();
    registry.server.session().run(
        "CREATE ROLE elsewhere LOGIN PASSWORD 'secret';
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO elsewhere",
    );
    let server = registry.member("a");
    let mut session = server.session();
    session.next_snowflake();
    session.run(&format!(
        "ALTER USER MAPPING FOR CURRENT_USER SERVER {CENTRAL}
             OPTIONS (SET user 'elsewhere', SET password 'secret')"
    ));
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "another worker id", || {
        session.try_snowflake().is_ok_and(|id| worker_of(id) == 1)
    });
}

/// A server issues up to R, and not beyond.
#[test]
fn a_lease_is_as_long_as_the_registry_says() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 3000);
    let server = registry.member("a");
    let mut session = server.session();
    session.next_snowflake();
    // It renews as often as necessary.
    for _ in 0..2 {
        registry.wait_for_renewal(0);
    }
    let held = registry.holder(0).unwrap();
    assert!(held.reserved_until_ms <= now_ms() + 3000);
    let asking = Asking::default();
    in_threads_until(
        1,
        |_, done| asking.ask(&server, done),
        || {
            asking.wait_for_ids();
            registry.server.kill_9();
            let failure = session.wait_for_refusal("the lease of worker id 0 is used up");
            failure
                .is("55000")
                .details("Worker registry \"postgres/leaf_central\" has not renewed it since ")
                .hints("as soon as the registry renews it");
        },
    );
    let until = "(extract(epoch FROM lease_until) * 1000)::bigint";
    let until_ms: i64 = session.snowflake_status(until);
    let calls = asking.calls();
    let last = calls.iter().map(|call| call.last).max().unwrap();
    assert!((until_ms - 1000..=until_ms).contains(&time_of(last)));
    asking.is_refused_with(&["55000", "55P03"]);
}

/// A renewal that has read the old terms would commit a later R after them, and a standby could have
/// the terms without it.
#[test]
fn lower_terms_wait_for_renewals() {
    let registry = Registry::start();
    let server = registry.member("a");
    server.session().next_snowflake();
    let mut admin = registry.server.session();
    admin.run("UPDATE leaf_id.leaf_registry SET grant_ahead_ms = 9000");
    let far = || registry.holder(0).unwrap().reserved_until_ms > now_ms() + 4000;
    wait_until(LIMIT, "a renewal on these terms", far);
    // Its transaction stays open.
    registry.server.set("synchronous_standby_names", "absent");
    wait_until(LIMIT, "a renewal that is not acknowledged", || {
        admin.value(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE wait_event = 'SyncRep' AND usename = 'leaf_member')",
        )
    });
    in_threads(2, |i| {
        let mut session = registry.server.session();
        if i == 0 {
            session.run("UPDATE leaf_id.leaf_registry SET grant_ahead_ms = 1000");
            return;
        }
        let waits = becomes(LIMIT, || {
            session.value(
                "SELECT EXISTS (SELECT FROM pg_locks
                     WHERE NOT granted AND relation = 'leaf_id.leaf_worker'::regclass AND mode = 'ShareLock')",
            )
        });
        registry.server.set("synchronous_standby_names", "");
        assert!(waits, "it does not wait");
    });
    // Those that follow go by the new ones, and lower no R.
    let before_ms = registry.holder(0).unwrap().reserved_until_ms;
    for _ in 0..2 {
        registry.wait_for_renewal(0);
        let until_ms = registry.holder(0).unwrap().reserved_until_ms;
        assert!((before_ms..=before_ms.max(now_ms() + 1000)).contains(&until_ms));
    }
}

/// A server that asks for a worker id learns the clock skew tolerated by the registry.
#[test]
fn a_skew_is_as_the_registry_says() {
    let registry = Registry::start();
    registry
        .server
        .session()
        .run("UPDATE leaf_id.leaf_registry SET max_skew_ms = 200");
    let server = registry.member_with_clock("a", 500, &[]);
    let mut session = server.session();
    session
        .wait_for_refusal("cannot issue snowflake ids: the clock is")
        .is("55000")
        .says("ahead");
    server.clock().set(0);
    session.next_snowflake();
}

/// A server whose ids have another layout gets the reason.
#[test]
fn a_server_learns_that_the_layout_is_another() {
    let registry = Registry::start();
    let mut in_registry = registry.server.session();
    in_registry.run("UPDATE leaf_id.leaf_registry SET layout = '41/6/6'");
    let server = registry.member("a");
    let mut session = server.session();
    let failure = session.wait_for_refusal("is not that of the worker registry");
    failure
        .is("55000")
        .says("\"leaf_id.snowflake_layout\"")
        .details("the layout of this registry is 41/6/6, not 41/10/12")
        .hints("\"leaf_id.snowflake_layout\"");
    let state: String = session.snowflake_status("snowflake_state");
    assert_eq!(state, "refused: layout is not that of the worker registry");
    in_registry.run("UPDATE leaf_id.leaf_registry SET layout = NULL");
    session.next_snowflake();
}

/// Triggers, rules and policies on the registry's tables, and renamed schemas, while servers lease
/// over the network and locally.
#[test]
fn nobodys_code_runs_in_the_registry() {
    let registry = Registry::start();
    let mut admin = registry.server.session();
    let server = registry.member("a");
    let local = Registry::on(Server::with_leaf_id(&[])).server;
    local.lease("postgres", "b");
    for (server, mut admin) in [
        (&server, registry.server.session()),
        (&local, local.session()),
    ] {
        server.session().next_snowflake();
        for table in ["leaf_worker", "leaf_registry"] {
            admin.run(&format!(
                "CREATE FUNCTION hostile_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
                     BEGIN RAISE EXCEPTION 'run as %', current_user; END $$;
                 CREATE TRIGGER hostile BEFORE INSERT OR UPDATE ON leaf_id.{table}
                     FOR EACH ROW EXECUTE FUNCTION hostile_{table}();
                 ALTER TABLE leaf_id.{table} ENABLE ALWAYS TRIGGER hostile"
            ));
            // The table is not written to, either, since a tool's trigger would miss it.
            admin
                .fails("SELECT leaf_id.leaf_worker_retire(7)")
                .is("42804");
            admin.run(&format!(
                "DROP TRIGGER hostile ON leaf_id.{table};
                 CREATE RULE nothing AS ON UPDATE TO leaf_id.{table} DO INSTEAD NOTHING;
                 ALTER TABLE leaf_id.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
            ));
        }
        admin.run(
            "ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public;
             CREATE FUNCTION public.leaf_worker_exchange() RETURNS int LANGUAGE sql AS 'SELECT 1/0'",
        );
    }
    registry.wait_for_renewal(0);
    let renewed = "SELECT renewed_at::text FROM leaf_id.leaf_worker WHERE node_name = 'b'";
    let mut in_local = local.session();
    let before: String = in_local.value(renewed);
    wait_until(LIMIT, "a renewal", || {
        in_local.value::<String>(renewed) != before
    });
    admin.run("SET search_path = elsewhere");
    ASK.ask(&mut admin).is("granted");
    admin.run("SELECT leaf_id.leaf_worker_retire(7)");
    // An altered table is not written to.
    admin.run("ALTER TABLE leaf_id.leaf_worker ALTER token TYPE numeric");
    admin
        .fails("SELECT leaf_id.leaf_worker_retire(0)")
        .is("42804");
    for log in [registry.server.log(), local.log()] {
        assert!(!log.contains("run as"), "{log}");
    }
}

/// A registry that grants no time ahead is not asked without a pause.
#[test]
fn a_registry_that_grants_no_time_is_asked_in_peace() {
    let registry = Registry::start();
    let mut session = registry.server.session();
    session.run("CREATE SEQUENCE asked; GRANT USAGE ON SEQUENCE asked TO PUBLIC");
    let mut grant = |worker_id: i32| {
        session.run(&format!(
            "CREATE OR REPLACE FUNCTION answer(n bigint) RETURNS json LANGUAGE sql AS $$
                 SELECT json_build_object('version', 1, 'detail', '', 'answer', json_build_object(
                     'registry_ms', now_ms, 'max_skew_ms', 5000, 'ahead_ms', 0,
                     'peers', json_build_object('votes', 1, 'offset_ms', 0, 'by_role', false),
                     'outcome', json_build_object('Ok', json_build_object('worker_id', {worker_id},
                         'floor_ms', 0, 'reserved_until_ms', now_ms))))
                 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) c
             $$;
             {}",
            impersonate("public.answer(nextval('public.asked'))")
        ));
    };
    grant(1024);
    let member = registry.member("a");
    let mut on_member = member.session();
    wait_until(LIMIT, "why there is no lease", || {
        let error: String = on_member.snowflake_status("coalesce(registry_error, '')");
        error.contains("its answer is not understood")
    });
    grant(5);
    wait_until(LIMIT, "a grant", || {
        on_member.snowflake_status("registry_error IS NULL")
    });
    let mut asked = || -> i64 { session.value("SELECT last_value FROM asked") };
    let (before, start) = (asked(), Instant::now());
    wait_until(LIMIT, "more requests", || asked() > before + 5);
    let pause = start.elapsed() / 6;
    assert!(pause > Duration::from_millis(80), "{pause:?}");
}
