//! Would catch: a role that makes other roles' calls fail or wait, by taking all worker slots, a
//! tag's ids, or the slots in shared memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Attack, Attacker, PROMPTLY, Registry, Server, Session, assert_issued_once, becomes, each,
    in_threads_until, tell, wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Queries of one role that occupy all worker slots.
const CROWD: usize = 4;

/// Runs `work` while a role that can only connect, in its own database, occupies every worker slot
/// with parallel queries.
fn in_a_crowd<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let mut admin = server.session();
    admin.run("CREATE ROLE crowd LOGIN");
    admin.run("CREATE DATABASE crowd");
    let (_, result) = in_threads_until(
        CROWD,
        |_, _| {
            let mut session = server.connect_as("crowd", "crowd");
            session.run(
                "SET max_parallel_workers = 1024; SET max_parallel_workers_per_gather = 1024;
                 SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;
                 SET parallel_tuple_cost = 0",
            );
            // Takes minutes unless terminated.
            let _ = session.try_run("SELECT count(pg_sleep(0.2)) FROM pg_proc");
        },
        || {
            let mut busy = (0, Instant::now());
            wait_until(LIMIT, "the crowd", || {
                let now: i64 = admin.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'",
                );
                if now != busy.0 {
                    busy = (now, Instant::now());
                }
                now > 0 && busy.1.elapsed() > Duration::from_secs(1)
            });
            tell(&format!("{} parallel workers", busy.0));
            let result = catch_unwind(AssertUnwindSafe(work));
            admin.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'crowd'",
            );
            result.unwrap_or_else(|panic| resume_unwind(panic))
        },
    );
    result
}

/// The longest of as many calls as fit in `time`, and their results.
fn longest<T>(time: Duration, mut call: impl FnMut() -> T) -> (Duration, Vec<T>) {
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut got = Vec::new();
    while start.elapsed() < time {
        let before = Instant::now();
        got.push(call());
        longest = longest.max(before.elapsed());
    }
    (longest, got)
}

/// S7, with the default `max_worker_processes`. Before: 54000 as long as the queries run.
#[test]
fn claims_go_on_when_parallel_queries_have_all_worker_slots() {
    let server = Server::with_leaf_id(&[("leaf_id.allocator_idle_timeout", "200ms")]);
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    session.be_patient();
    let mut ids = session.take("t", 10);
    wait_until(LIMIT, "the allocator to leave", || {
        session.worker("allocator").is_none()
    });
    let (longest, taken) = in_a_crowd(&server, || {
        longest(Duration::from_secs(6), || session.take("t", 1500))
    });
    tell(&format!(
        "claims while parallel queries have all worker slots: the longest of {} waits was {longest:?}",
        taken.len()
    ));
    ids.extend(taken.concat());
    assert_issued_once([ids]);
    assert!(longest < PROMPTLY, "{longest:?}");
}

/// S7, for several databases at once. Before: 54000.
#[test]
fn claims_of_several_databases_go_on_when_all_worker_slots_are_taken() {
    let server = Server::with_leaf_id(&[("leaf_id.allocator_idle_timeout", "200ms")]);
    let databases = ["one", "two", "three"];
    for name in databases {
        server.session().run(&format!("CREATE DATABASE {name}"));
        let mut session = server.session_in(name);
        session.run("CREATE EXTENSION leaf_id");
        session.create_steady_tag("t", 100);
    }
    let mut sessions = databases.map(|name| server.session_in(name));
    let (longest, _) = in_a_crowd(&server, || {
        longest(Duration::from_secs(6), || {
            for session in &mut sessions {
                session.be_patient();
                session.take("t", 150);
            }
        })
    });
    tell(&format!(
        "claims of three databases in turn: the longest of all three was {longest:?}"
    ));
    assert!(longest < PROMPTLY, "{longest:?}");
}

/// S7. Before: no worker slot for the registrar, and snowflake ids stop when the lease ends.
#[test]
fn leases_are_renewed_when_parallel_queries_have_all_worker_slots() {
    let registry = Registry::start();
    let member = registry.member_with("m", &[("leaf_id.allocator_idle_timeout", "200ms")]);
    let mut session = member.session();
    session.next_snowflake();
    session.create_steady_tag("t", 1000);
    session.be_patient();
    let (longest, ids) = in_a_crowd(&member, || {
        // For four leases.
        longest(Duration::from_secs(8), || {
            // Claims need the same worker.
            session.take("t", 300);
            session.value::<i64>("SELECT leaf_snowflake_next()")
        })
    });
    tell(&format!(
        "a lease of 2 s while parallel queries have all worker slots: the longest wait of {} was {longest:?}",
        ids.len()
    ));
    assert_issued_once([ids]);
    assert!(longest < PROMPTLY, "{longest:?}");
}

/// S8: a role that may not issue ids of a tag cannot exhaust it. Before: an integer tag is
/// exhausted by 2,148 calls, and there is no privilege to revoke for a single tag.
#[test]
fn a_tag_is_not_used_up_by_those_who_may_not_issue_its_ids() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.run(
        "SELECT leaf_tag_create('cars', max_step => 1000000, max_value => 2147483647);
         CREATE TABLE cars (id integer PRIMARY KEY DEFAULT leaf_segment_next('cars')::integer);
         GRANT INSERT ON cars TO alice",
    );
    for rights in [
        "SELECT leaf_tag_revoke('cars', 'public')",
        "SELECT leaf_tag_grant('cars', 'alice')",
    ] {
        if let Err(failure) = admin.try_run(rights) {
            println!("{rights}: {failure}");
        }
    }
    let mut mallory = attack.mallory();
    for call in [
        "SELECT leaf_segment_next_range('cars', 1000000)",
        "SELECT count(*) FROM leaf_segment_next_batch('cars', 1000000)",
        "SELECT leaf_segment_next('cars')",
        "SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 'cars', 'n', 1000000)::text)",
    ] {
        for _ in 0..3000 {
            if mallory.try_run(call).is_err() {
                break;
            }
        }
    }
    attack.alice().run("INSERT INTO cars DEFAULT VALUES");
    assert!(admin.row::<i64>("cars", "max_id") < 100_000);
    mallory.try_next("cars").unwrap_err().is("42501");
}

/// The attacker requests an id of each of many tags once, with a short timeout.
fn ask_for_many(attack: &Attack, tags: i32) {
    let mut mallory = attack.mallory();
    mallory.run("SET leaf_id.refill_timeout = '1ms'");
    for n in 1..=tags {
        // A server that does not respond yields no ids.
        let _ = mallory.try_next(&format!("many{n}"));
    }
}

/// Tags of another database in use, not at the end of a segment.
fn victims(server: &Server) -> Session {
    let mut victim = server.session();
    victim.run("CREATE EXTENSION IF NOT EXISTS leaf_id");
    for tag in ["a", "b", "c", "d"] {
        victim.create_steady_tag(tag, 1000);
        victim.take(tag, 5);
        victim.wait_for_spare(tag);
    }
    victim
}

/// S9: tags whose server is down. Before: 54000 for every other tag of any database, until it is
/// back.
#[test]
fn requests_without_an_answer_keep_no_slot_from_others() {
    each([64, 1024], |&slots: &i32| {
        let attack = Attack::on_installed(
            Attacker::Installer,
            &[("leaf_id.max_tags", &slots.to_string())],
        );
        let mut admin = attack.admin();
        admin.run(
            "CREATE EXTENSION dblink;
             CREATE SERVER away FOREIGN DATA WRAPPER dblink_fdw
                 OPTIONS (host '/nowhere', dbname 'postgres', connect_timeout '2');
             CREATE USER MAPPING FOR mallory SERVER away OPTIONS (user 'x', password 'x');
             GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO mallory;
             ALTER SERVER away OWNER TO mallory",
        );
        let tags = slots + 40;
        attack.mallory().run(&format!(
            "SELECT leaf_tag_create('many' || n, step => 10, server => 'away')
             FROM generate_series(1, {tags}) n"
        ));
        ask_for_many(&attack, tags);
        let mut session = attack.server.session();
        session.run("CREATE EXTENSION leaf_id; SET leaf_id.refill_timeout = '10s'");
        for tag in ["a", "b", "c"] {
            session.create_tag(tag);
            let ids = session.try_take(tag, 20);
            let ids = ids.unwrap_or_else(|failure| panic!("tag {tag}: {failure}"));
            assert_issued_once([ids]);
        }
        // Her requests are retried, and others keep their slots.
        ask_for_many(&attack, tags);
        assert_eq!(session.next("a"), 21);
    });
}

/// S9, without an outage: a loop over many tags. Before: the tags of all databases are evicted.
#[test]
fn a_loop_over_many_tags_evicts_those_of_its_own_database() {
    each([Attacker::Installer, Attacker::Grantee], |&by| {
        let attack = Attack::on_installed(by, &[("leaf_id.max_tags", "64")]);
        if by == Attacker::Grantee {
            attack
                .admin()
                .run("GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop TO mallory");
        }
        let mut victim = victims(&attack.server);
        for _ in 0..3 {
            let mut mallory = attack.mallory();
            mallory.run(
                "SELECT leaf_tag_create('many' || n, step => 10) FROM generate_series(1, 200) n",
            );
            for n in 1..=200 {
                mallory.next(&format!("many{n}"));
            }
            mallory.run("SELECT leaf_tag_drop('many' || n) FROM generate_series(1, 200) n");
        }
        for tag in ["a", "b", "c", "d"] {
            assert_eq!(victim.next(tag), 6, "tag {tag} was evicted");
            assert_eq!(victim.figure(tag, "refills"), 1);
        }
    });
}

/// S9: ids lost by an eviction are counted. Before: `ids_lost` is 0.
#[test]
fn evicted_ids_are_counted() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "4")]);
    let mut session = server.session();
    for n in 0..12 {
        session.create_steady_tag(&format!("t{n}"), 10);
    }
    let mut issued = 0;
    for _ in 0..2 {
        for n in 0..12 {
            session.take(&format!("t{n}"), 5);
            issued += 5;
        }
    }
    let table = session.table("leaf_alloc");
    let claimed = format!("SELECT (sum(max_id) - count(*))::bigint FROM {table}");
    // Evicted slots belong to no tag.
    let sql = "SELECT coalesce(sum(coalesce(current_remaining, 0) + coalesce(spare_remaining, 0)), 0)::bigint,
             (coalesce(sum(ids_lost), 0) + (SELECT evicted_ids FROM leaf_id.server))::bigint
         FROM leaf_id.tags_detail";
    let mut last = String::new();
    let is_counted = becomes(Duration::from_secs(10), || {
        let claimed: i64 = session.value(&claimed);
        let figures = session.query_one(sql, &[]).unwrap();
        let (cached, lost): (i64, i64) = (figures.get(0), figures.get(1));
        last = format!("{claimed} claimed, {issued} issued, {cached} cached, {lost} lost");
        claimed == issued + cached + lost
    });
    assert!(is_counted, "{last}");
}
