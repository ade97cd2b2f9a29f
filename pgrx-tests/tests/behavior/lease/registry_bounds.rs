//! Would catch: a member, or a role, that harms the other members of a worker registry: by taking
//! all worker ids, by keeping others from issuing with claims about its clock, or by deciding on
//! the duration of all leases. And foreign code that runs in the registry's functions.
//! (Single-session behavior is tested in sql/registry.sql.)

use std::collections::HashSet;
use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Failure, Registry, Server, Session, assert_apart, impersonate,
    in_threads_until, lease_message, lease_query, now_ms, wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A request to the registry.
#[derive(Clone, Copy)]
struct Ask<'a> {
    node: &'a str,
    ahead_ms: i64,
    reserve_ms: i64,
    lease_ms: i32,
    skew_ms: i32,
}

const ASK: Ask<'static> = Ask {
    node: "n",
    ahead_ms: 0,
    reserve_ms: 60_000,
    lease_ms: 60_000,
    skew_ms: 1000,
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
    fn claim(&self, session: &mut Session) -> Answer {
        let now = now_ms() + self.ahead_ms;
        let fields = format!(
            "4711, '{}', 1, 2, NULL, NULL, {now}, {now} + {}, {}, {}, 15000, 1288834974657, '41/10/12'",
            self.node, self.reserve_ms, self.lease_ms, self.skew_ms
        );
        let sql = lease_query(&lease_message("claim", &fields));
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
/// clock 50 minutes ahead and excessive limits.
#[test]
fn one_role_harms_itself() {
    let registry = Registry::start();
    let servers = ["a", "b"].map(|node| registry.member(node));
    let asking = [Asking::default(), Asking::default()];
    let mut bad = role(&registry.server, "bad");
    let greedy = Ask {
        reserve_ms: 86_400_000,
        lease_ms: 86_400_000,
        skew_ms: 3_600_000,
        ..ASK
    };
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
                    ..greedy
                };
                ahead.claim(&mut bad).is("clock");
            }
            // Then with a clock that is just acceptable.
            let mut taken = HashSet::new();
            for n in 0..1021 {
                let node = format!("bad {n}");
                let just = Ask {
                    node: &node,
                    ahead_ms: 900,
                    ..greedy
                };
                let answer = just.claim(&mut bad);
                if answer.status == "granted" {
                    let reserved = answer.reserved_until_ms.unwrap() - answer.registry_ms;
                    assert!(reserved < 3_600_000 + 17_000, "{answer:?}");
                    taken.insert(answer.worker_id.unwrap());
                } else {
                    answer.is("full").details("role \"bad\" has 256 worker ids");
                }
            }
            assert_eq!(taken.len(), 256);
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
            ..ASK
        };
        ahead.claim(&mut bad).is("granted");
    }
    ASK.claim(&mut other).is("granted");
    let late = Ask {
        node: "late",
        ahead_ms: -600,
        ..ASK
    };
    late.claim(&mut good).is("granted");
    // If all nodes have one role, each has a vote.
    let late = Ask {
        node: "bad late",
        ..late
    };
    server
        .session()
        .run("SELECT leaf_id.leaf_worker_release(100)");
    server
        .session()
        .run("SELECT leaf_id.leaf_worker_release(101)");
    late.claim(&mut bad)
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
    // Its lease is valid until its end.
    registry.wait_for_end(0);
    server.restart();
    let mut session = server.session();
    assert_eq!(worker_of(session.next_snowflake()), 1);
}

/// A server observes the duration granted, not the one requested.
#[test]
fn a_lease_is_as_long_as_the_registry_says() {
    let registry = Registry::start();
    let mut in_registry = registry.server.session();
    in_registry.run(
        "INSERT INTO leaf_id.leaf_registry (max_lease_ms) VALUES (3000)
         ON CONFLICT (one) DO UPDATE SET max_lease_ms = excluded.max_lease_ms",
    );
    let server = registry.member_with("a", &[("leaf_id.worker_lease", "1h")]);
    let mut session = server.session();
    session.next_snowflake();
    let left = "lease_until < clock_timestamp() + interval '3 s'";
    assert!(session.snowflake_status::<bool>(left));
    let (held, row) = (
        registry.holder(0).unwrap(),
        "SELECT lease_ms FROM leaf_id.leaf_worker",
    );
    assert!(held.lease_until_ms.unwrap() <= now_ms() + 3000);
    assert!(held.reserved_until_ms <= now_ms() + 3000 + 1000 + 15_000);
    assert_eq!(in_registry.value::<i32>(row), 3000);
    // It renews as often as necessary.
    for _ in 0..2 {
        registry.wait_for_renewal(0);
    }
    drop(in_registry);
    registry.server.kill_9();
    session.wait_for_refusal("the lease of worker id 0 has ended");
}

/// A server learns the clock skew tolerated by the registry.
#[test]
fn a_skew_is_as_the_registry_says() {
    let registry = Registry::start();
    registry
        .server
        .session()
        .run("INSERT INTO leaf_id.leaf_registry (max_skew_ms) VALUES (200)");
    let server = registry.member_with_clock("a", 500, &[("leaf_id.max_clock_skew", "1h")]);
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
    in_registry.run("INSERT INTO leaf_id.leaf_registry (layout) VALUES ('41/6/6')");
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
    let local = Server::with_leaf_id(&[("leaf_id.worker_lease", "2s")]);
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
    ASK.claim(&mut admin).is("granted");
    admin.run("SELECT leaf_id.leaf_worker_release(1); SELECT leaf_id.leaf_worker_retire(7)");
    // An altered table is not written to.
    admin.run("ALTER TABLE leaf_id.leaf_worker ALTER lease_ms TYPE bigint");
    admin
        .fails("SELECT leaf_id.leaf_worker_release(0)")
        .is("42804");
    for log in [registry.server.log(), local.log()] {
        assert!(!log.contains("run as"), "{log}");
    }
}

/// A grant of zero duration would be renewed at once, forever.
#[test]
fn a_grant_of_no_time_is_refused_by_the_member() {
    let registry = Registry::start();
    let mut session = registry.server.session();
    let mut grant = |lease_ms: i32| {
        session.run(&format!(
            "CREATE OR REPLACE FUNCTION answer(message json) RETURNS json LANGUAGE sql AS $$
                 SELECT json_build_object('version', 1, 'registry_ms', now_ms, 'max_skew_ms', 5000,
                     'peers', json_build_object('votes', 1, 'offset_ms', 0, 'by_role', false),
                     'outcome', CASE message #>> '{{question,kind}}'
                         WHEN 'claim' THEN json_build_object('Ok', json_build_object('worker_id', 5, 'floor_ms', now_ms,
                             'reserved_until_ms', now_ms, 'lease_ms', {lease_ms}, 'max_lead_ms', 15000))
                         ELSE json_build_object('Err', json_build_object('status', 'lost', 'detail', 'it is unknown')) END)
                 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) c
             $$;
             {}",
            impersonate("public.answer(txt::json)")
        ));
    };
    grant(0);
    let member = registry.member("a");
    let mut session = member.session();
    wait_until(LIMIT, "why there is no lease", || {
        let error: String = session.snowflake_status("coalesce(registry_error, '')");
        error.contains("its answer is not understood")
    });
    // Otherwise the grant is valid, and will be renewed.
    grant(30_000);
    wait_until(LIMIT, "another answer", || {
        let error: String = session.snowflake_status("coalesce(registry_error, '')");
        error.contains("it is unknown")
    });
}
