//! Would catch: a caller of the registry's functions who needs more rights than EXECUTE, is
//! answered what he can still take back, or leaves behind what no server would have asked for.

use leaf_id_tests::{Server, Session};

use super::asking::{NOW_MS, Node, TERMS, server_and_session, try_call};

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
        a.what().replace('\'', "''")
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
        "1",
        "'a'",
        "NULL",
        "5",
        "NULL",
        "NULL",
        NOW_MS,
        NOW_MS,
        "2000",
        "1000",
        "1000",
        &epoch,
        "'41/10/12'",
    ];
    let try_claim = |session: &mut Session, changed: &[(usize, &str)]| {
        let mut arguments = usual.map(String::from);
        for (argument, value) in changed {
            arguments[*argument] = (*value).into();
        }
        try_call(session, "leaf_worker_claim", &arguments.join(", "))
    };
    for argument in [0, 1, 3, 6, 7, 8, 9, 10, 11, 12] {
        let failure = try_claim(&mut session, &[(argument, "NULL")]);
        failure.unwrap_err().is("22004");
    }
    let long = format!("'{}'", "x".repeat(64));
    for (argument, values) in [
        (1, vec![&*long, "E'a\\nb'"]),
        (3, vec!["0"]),
        (4, vec!["-1", "65536", "2147483647", "-2147483648"]),
        (6, vec![&*min, &*max, "-1"]),
        (8, vec!["0", "-1", "86400001", "2147483647"]),
        (9, vec!["-1", "3600001", "2147483647", "-2147483648"]),
        (10, vec!["-1", "3600001", "2147483647", "-2147483648"]),
        (
            12,
            vec!["''", "'41/10'", "'41/10/13'", "'41/10/12 '", "E'\\u00e4'"],
        ),
    ] {
        for value in values {
            println!("argument {argument}: {value}");
            let failure = try_claim(&mut session, &[(argument, value)]);
            failure.unwrap_err().is("22023");
        }
    }
    let failure = try_claim(&mut session, &[(4, "1024"), (5, "1")]);
    failure.unwrap_err().is("22023");
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
                    (11, epoch_ms),
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
    let renewal = format!(
        "0, {min}, 'a', {min}, 101, {NOW_MS}, {max}, 86400000, 3600000, 3600000, {epoch}, '41/10/12'"
    );
    let answer = try_call(&mut session, "leaf_worker_renew", &renewal).unwrap();
    assert_eq!(answer.is("granted").worker_id, Some(0));
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_worker_status"),
        2
    );
}
