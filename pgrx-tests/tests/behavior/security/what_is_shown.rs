//! Would catch: disclosure of hosts, logins and volumes to roles they do not belong to, and a
//! function that refuses what the same role may do by statements.

use std::time::Duration;

use leaf_id_tests::{Attack, Attacker, Failure, SHOP, Server, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Error of a call for tag t, whose central server is unreachable, once that has been detected.
fn failure_of_a_sourced_tag(
    attack: &Attack,
    role: &str,
    is_known: impl Fn(&str) -> bool,
) -> Failure {
    let mut session = attack.server.connect_as(role, SHOP);
    session.run("SET leaf_id.refill_timeout = '1s'");
    let mut failure = None;
    wait_until(LIMIT, "why the central server is away", || {
        let failed = session.try_next("t").unwrap_err();
        let known = is_known(&failed.to_string());
        failure = Some(failed);
        known
    });
    failure.unwrap()
}

/// S13. Before: the DETAIL discloses host and login of the central server to any role.
#[test]
fn hosts_and_logins_of_a_central_server_are_pg_monitors_to_know() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    // One that is unreachable, and one that refuses the login.
    let there = attack.server.dir().to_str().unwrap().to_owned();
    admin.run(&format!(
        "CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor;
         CREATE ROLE secret_login LOGIN PASSWORD 'wrong';
         CREATE EXTENSION dblink;
         CREATE SERVER away FOREIGN DATA WRAPPER dblink_fdw
             OPTIONS (host '/secret_host', dbname 'postgres', connect_timeout '2');
         CREATE USER MAPPING FOR CURRENT_USER SERVER away
             OPTIONS (user 'secret_login', password 'x');
         CREATE SERVER refuses FOREIGN DATA WRAPPER dblink_fdw
             OPTIONS (host '{there}', dbname 'postgres', connect_timeout '2');
         CREATE USER MAPPING FOR CURRENT_USER SERVER refuses
             OPTIONS (user 'secret_login', password 'x');
         SELECT leaf_tag_create('t', server => 'away')"
    ));
    attack.server.require_password("secret_login");
    let secrets = ["secret_host", "secret_login", &there];
    for server in ["away", "refuses"] {
        admin.run(&format!(
            "SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t', server => '{server}')"
        ));
        // A monitor gets the text, sooner or later.
        let shown = failure_of_a_sourced_tag(&attack, "monitor", |text| {
            secrets.iter().any(|secret| text.contains(secret))
        });
        println!("monitor: {shown}");
        let shown = failure_of_a_sourced_tag(&attack, "alice", |_| true);
        println!("alice: {shown}");
        let text = shown.to_string();
        for secret in secrets {
            assert!(!text.contains(secret), "{secret:?} in {text}");
        }
    }
}

/// A reset is an UPDATE, and requires exactly that privilege.
#[test]
fn a_reset_takes_what_an_update_takes() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.create_steady_tag("t", 10);
    let table = admin.table("leaf_alloc");
    admin.grant_tables("SELECT, UPDATE", "mallory");
    admin.run("GRANT EXECUTE ON FUNCTION leaf_tag_reset TO mallory");
    let mut mallory = attack.mallory();
    mallory.take("t", 25);
    // A claim overtaken by the edit becomes a gap.
    admin.wait_for_spare("t");
    mallory.run(&format!(
        "UPDATE {table} SET max_id = 500 WHERE biz_tag = 't'"
    ));
    assert_eq!(mallory.next("t"), 500);
    admin.wait_for_spare("t");
    mallory.run("SELECT leaf_tag_reset('t', 70)");
    assert_eq!(mallory.next("t"), 70);
    // It is also necessary.
    admin.run(&format!("REVOKE UPDATE ON {table} FROM mallory"));
    mallory.fails("SELECT leaf_tag_reset('t', 900)").is("42501");
}

/// S13: PREPARE refuses a transaction that has edited `step`, as documented in the README; or
/// sessions that wait for it get the correct reason. Before: it is prepared, and the DETAIL
/// mentions a lock timeout.
#[test]
fn an_edit_of_step_is_not_prepared_or_said() {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "2")]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    let table = admin.table("leaf_alloc");
    for edit in ["step = 5", "description = 'x'", "max_step = 20"] {
        admin.run(&format!(
            "BEGIN; UPDATE {table} SET {edit} WHERE biz_tag = 't'"
        ));
        match admin.try_run("PREPARE TRANSACTION 'edit'") {
            Err(failure) => {
                failure.is("0A000");
            }
            Ok(()) => {
                let failure = drained(&server);
                admin.run("ROLLBACK PREPARED 'edit'");
                assert!(failure.detail.contains("prepared"), "{edit}: {failure}");
            }
        }
    }
}

/// A row locked, but not edited, by a prepared transaction. Before: the DETAIL mentions a lock
/// timeout, not the holder of the lock.
#[test]
fn a_lock_of_a_prepared_transaction_is_said() {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "2")]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    let table = admin.table("leaf_alloc");
    admin.run(&format!(
        "BEGIN; SELECT FROM {table} FOR UPDATE; PREPARE TRANSACTION 'locks'"
    ));
    let failure = drained(&server);
    println!("{failure}");
    admin.run("ROLLBACK PREPARED 'locks'");
    failure.details("prepared");
}

/// Error of the first call after the last cached id.
fn drained(server: &Server) -> Failure {
    let mut session = server.session();
    session.run("SET leaf_id.refill_timeout = '1s'");
    for _ in 0..1000 {
        if let Err(failure) = session.try_next("t") {
            return failure.is("55P03").clone();
        }
    }
    panic!("ids were claimed past the lock");
}

/// A tag's existence, volume and current id are visible only to its roles. Before: any role can
/// distinguish all of them by errors.
#[test]
fn a_tag_that_is_not_ones_own_tells_nothing() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.run("SELECT leaf_tag_create('secret', step => 10, max_value => 1000, max_step => 50)");
    for statement in [
        "SELECT leaf_tag_revoke('secret', 'public')",
        "SELECT leaf_tag_grant('secret', 'alice')",
    ] {
        if let Err(failure) = admin.try_run(statement) {
            println!("{statement}: {failure}");
        }
    }
    attack.alice().take("secret", 5);
    let mut mallory = attack.mallory();
    for call in [
        "leaf_segment_next('{}')",
        "leaf_segment_next_range('{}', 100)",
        "leaf_segment_next_range('{}', 1)",
        "leaf_segment_next_batch('{}', 2000)",
    ] {
        let failure = mallory.fails(&format!("SELECT {}", call.replace("{}", "secret")));
        println!("{failure}");
        failure.is("42501");
        for shown in ["1000", "50", "6"] {
            assert!(!failure.detail.contains(shown), "{failure}");
        }
    }
}

/// S4. Before: EXPLAIN of a view tells any role the number of tags and the addresses of members, since a
/// view is planned with its owner's statistics; and what a role locks with a view, or by a function that
/// keeps the extension, is `leaf_alloc`: a VACUUM FULL waits for that, and each claim for the VACUUM FULL.
#[test]
fn a_view_tells_and_locks_nothing() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t'); CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor",
    );
    let views: Vec<String> = admin.column(
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass
         WHERE c.relkind = 'v' AND d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')",
    );
    assert!(views.len() >= 5, "{views:?}");
    let plans = || -> Vec<String> {
        let mut mallory = attack.mallory();
        let asks = views.iter().flat_map(|view| {
            ["", "WHERE 'secret' IN (v::text)", "ORDER BY v::text"]
                .map(|rest| format!("EXPLAIN SELECT * FROM {view} v {rest}"))
        });
        let asks = asks.chain(["EXPLAIN SELECT FROM leaf_id.tags WHERE tag = 'secret'".into()]);
        asks.flat_map(|ask| match mallory.try_column::<String>(&ask) {
            Ok(lines) => lines,
            Err(failure) => vec![failure.to_string()],
        })
        .collect()
    };
    let before = plans();
    admin.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'secret ' || n FROM generate_series(1, 5000) n;
         INSERT INTO leaf_id.leaf_worker (worker_id, system_identifier, node_name, address)
         SELECT n, n, 'node ' || n, '10.0.0.1' FROM generate_series(1, 1000) n;
         ANALYZE leaf_id.leaf_alloc, leaf_id.leaf_worker",
    );
    assert_eq!(before, plans());

    let mut mallory = attack.mallory();
    mallory.run("BEGIN");
    let locks = views
        .iter()
        .map(|view| format!("LOCK TABLE {view} IN ACCESS SHARE MODE"));
    let calls = [
        "leaf_id_internal.leaf_require('')",
        "leaf_segment_next('t')",
    ]
    .map(|call| format!("SELECT {call}"));
    for lock in locks.chain(calls) {
        let locked = mallory.try_run(&format!("SAVEPOINT s; {lock}"));
        println!("{lock}: {locked:?}");
        if locked.is_err() {
            mallory.run("ROLLBACK TO s");
        }
    }
    let held: Vec<String> = admin.column(&format!(
        "SELECT l.relation::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'i')
         WHERE l.pid = {} AND c.relnamespace = 'leaf_id'::regnamespace AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        mallory.pid()
    ));
    assert_eq!(held, Vec::<String>::new());
    admin.run("SET lock_timeout = '10s'");
    admin.run("VACUUM FULL leaf_id.leaf_alloc");
    mallory.run("ROLLBACK");

    // Who may read a view sees what is in it, and who may not gets the GRANT as a hint.
    let mut monitor = attack.server.connect_as("monitor", SHOP);
    let seen = |view: &str| format!("SELECT count(*) FROM {view}");
    assert_eq!(monitor.value::<i64>(&seen("leaf_id.tags")), 5001);
    assert_eq!(monitor.value::<i64>(&seen("leaf_id.fleet")), 1000);
    for view in &views {
        monitor.value::<i64>(&seen(view));
        let failure = mallory.fails(&seen(view));
        failure.is("42501");
        assert!(failure.hint.contains("GRANT"), "{view}: {failure}");
    }
}
