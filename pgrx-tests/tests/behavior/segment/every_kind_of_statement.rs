//! Would catch: an id issued twice because a place in SQL that can call the functions keeps ids, or
//! restores them when it is rolled back (I2, I3). All of them at once, on one tag.

use std::io::Write;

use leaf_id_tests::{Server, Session, assert_issued_once, in_threads, while_repeating};

const ROUNDS: usize = 25;

/// Does its work once, given the number of the round, and returns the ids it has seen.
type Work = fn(&mut Session, usize) -> Vec<i64>;

/// Objects used by the kinds.
const SCHEMA: &str = "
    SELECT leaf_tag_create('t', step => 10, max_step => 300);
    CREATE TABLE plain (id bigint DEFAULT leaf_segment_next('t'), i int);
    CREATE TABLE two_phase (LIKE plain INCLUDING ALL);
    CREATE TABLE conflicts (id bigint DEFAULT leaf_segment_next('t'), i int PRIMARY KEY);
    CREATE TABLE merged (LIKE conflicts INCLUDING ALL);
    CREATE TABLE copied (LIKE plain INCLUDING ALL);
    CREATE TABLE parts (id bigint DEFAULT leaf_segment_next('t'), i int) PARTITION BY LIST (i);
    CREATE TABLE part_0 PARTITION OF parts FOR VALUES IN (0);
    CREATE TABLE part_1 PARTITION OF parts (id DEFAULT leaf_segment_next('t')) FOR VALUES IN (1);
    CREATE TABLE triggered (id bigint, i int, other bigint);
    CREATE FUNCTION give_id() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.id := leaf_segment_next('t'); RETURN NEW; END $$;
    CREATE FUNCTION give_other() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO plain SELECT FROM leaf_segment_next_batch('t', 2);
            RETURN NULL;
        END $$;
    CREATE TRIGGER b BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION give_id();
    CREATE CONSTRAINT TRIGGER a AFTER INSERT ON triggered DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION give_other();
    CREATE TABLE wide AS SELECT i, repeat('x', 100) AS filler FROM generate_series(1, 2000) i;
    ALTER TABLE wide SET (parallel_workers = 2);
    ANALYZE wide;
    CREATE FUNCTION with_exceptions() RETURNS bigint[] LANGUAGE plpgsql AS $$
        DECLARE ids bigint[] := '{}';
        BEGIN
            FOR i IN 1..20 LOOP
                BEGIN
                    ids := ids || leaf_segment_next('t');
                    ids := ids || ARRAY(SELECT leaf_segment_next_batch('t', 3));
                    IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
                EXCEPTION WHEN division_by_zero THEN
                    ids := ids || leaf_segment_next('t');
                END;
            END LOOP;
            RETURN ids;
        END $$;
    CREATE PROCEDURE with_commits(INOUT ids bigint[]) LANGUAGE plpgsql AS $$
        BEGIN
            FOR i IN 1..10 LOOP
                ids := ids || leaf_segment_next('t');
                INSERT INTO plain DEFAULT VALUES;
                IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
            END LOOP;
        END $$";

/// Tables of ids that no statement returned, or that should be in there.
const TABLES: [&str; 7] = [
    "plain",
    "two_phase",
    "conflicts",
    "merged",
    "copied",
    "parts",
    "triggered",
];

/// All kinds of places. Ids inserted and committed are found in the tables afterwards, so only
/// other ids are returned.
const KINDS: [(&str, Work); 21] = [
    ("a prepared transaction", |session, round| {
        let name = format!("p{round}");
        session.run("BEGIN; INSERT INTO two_phase SELECT FROM generate_series(1, 5)");
        let ids =
            session.ids("INSERT INTO two_phase SELECT FROM generate_series(1, 15) RETURNING id");
        session.run(&format!("PREPARE TRANSACTION '{name}'"));
        let mut ids: Vec<i64> = if round % 2 == 0 {
            session.run(&format!("COMMIT PREPARED '{name}'"));
            Vec::new()
        } else {
            session.run(&format!("ROLLBACK PREPARED '{name}'"));
            ids
        };
        ids.extend(session.take("t", 3));
        ids
    }),
    ("serializable", |session, _| {
        session.run("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM plain");
        let ids = session.take("t", 15);
        // It may fail because of the others.
        let _ = session.try_run("INSERT INTO plain DEFAULT VALUES; COMMIT");
        let _ = session.try_run("ROLLBACK");
        ids
    }),
    ("repeatable read", |session, _| {
        session
            .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leaf_id.leaf_alloc");
        let ids = [session.take("t", 15), session.take("t", 40)].concat();
        session.run("COMMIT");
        ids
    }),
    ("read only", |session, _| {
        session.run("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE");
        let ids = session.take("t", 15);
        session.run("COMMIT");
        ids
    }),
    ("a rollback", |session, _| {
        session.run("BEGIN");
        let ids = session.ids("INSERT INTO plain SELECT FROM generate_series(1, 15) RETURNING id");
        session.run("ROLLBACK");
        ids
    }),
    ("savepoints", |session, _| {
        session.run("BEGIN; SAVEPOINT a");
        let mut ids = session.take("t", 5);
        session.run("SAVEPOINT b");
        ids.extend(session.take("t", 5));
        session.run("ROLLBACK TO a");
        ids.extend(session.take("t", 5));
        session.run("COMMIT");
        ids
    }),
    ("exception blocks", |session, _| {
        session.ids("SELECT unnest(with_exceptions())")
    }),
    ("commits inside a procedure", |session, _| {
        session.value::<Vec<i64>>("CALL with_commits('{}')")
    }),
    ("triggers, a deferred one too", |session, _| {
        session.run("INSERT INTO triggered (i) SELECT generate_series(1, 5)");
        Vec::new()
    }),
    ("a cursor WITH HOLD", |session, _| {
        session.run(
            "BEGIN; DECLARE c CURSOR WITH HOLD FOR
                 SELECT leaf_segment_next('t') FROM generate_series(1, 30)",
        );
        let mut ids = session.ids("FETCH 7 FROM c");
        session.run("COMMIT");
        ids.extend(session.ids("FETCH 20 FROM c"));
        session.run("CLOSE c");
        ids
    }),
    ("a cursor that is rolled back", |session, _| {
        session.run("BEGIN; DECLARE c CURSOR FOR SELECT leaf_segment_next_batch('t', 100)");
        let ids = session.ids("FETCH 17 FROM c");
        session.run("ROLLBACK");
        ids
    }),
    ("a parallel query", |session, _| {
        session.run(
            "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
             SET min_parallel_table_scan_size = 0",
        );
        let mut ids = session.ids("SELECT leaf_segment_next('t') FROM wide WHERE i % 20 = 0");
        ids.sort_unstable();
        ids
    }),
    ("LISTEN and NOTIFY", |session, _| {
        session.run("LISTEN news; BEGIN; NOTIFY news, 'x'");
        let ids = session.take("t", 15);
        session.run("INSERT INTO plain DEFAULT VALUES; COMMIT; UNLISTEN *");
        ids
    }),
    ("DISCARD ALL", |session, _| {
        let mut ids = session.ids("SELECT leaf_segment_next('t') FROM generate_series(1, 12)");
        session.run("DISCARD ALL");
        ids.extend(session.ids("SELECT leaf_segment_next_batch('t', 12)"));
        ids
    }),
    ("prepared statements", |session, round| {
        // Not s{round}: the client library names its own statements so.
        let name = format!("of_round_{round}");
        session.run(&format!(
            "SET plan_cache_mode = force_generic_plan;
             PREPARE {name}(text) AS SELECT leaf_segment_next($1) FROM generate_series(1, 5)"
        ));
        let mut ids = session.ids(&format!("EXECUTE {name}('t')"));
        ids.extend(session.ids(&format!("EXECUTE {name}('t')")));
        session.run(&format!("DEALLOCATE {name}"));
        ids
    }),
    ("COPY with a default", |session, _| {
        let mut writer = session.copy_in("COPY copied (i) FROM STDIN").unwrap();
        for i in 0..40 {
            writeln!(writer, "{i}").unwrap();
        }
        writer.finish().unwrap();
        Vec::new()
    }),
    ("ON CONFLICT", |session, round| {
        session.run(&format!(
            "INSERT INTO conflicts (i) SELECT generate_series({round}, {round} + 10)
                 ON CONFLICT DO NOTHING;
             INSERT INTO conflicts (i) SELECT generate_series({round}, {round} + 10)
                 ON CONFLICT (i) DO UPDATE SET id = excluded.id"
        ));
        Vec::new()
    }),
    ("partitions", |session, _| {
        session.run(
            "INSERT INTO parts (i) SELECT i % 2 FROM generate_series(1, 10) i;
             INSERT INTO part_1 (i) VALUES (1);
             UPDATE parts SET i = 1 - i
                 WHERE id IN (SELECT id FROM parts ORDER BY random() LIMIT 2)",
        );
        Vec::new()
    }),
    ("MERGE", |session, round| {
        session.run(&format!(
            "MERGE INTO merged USING generate_series({round}, {round} + 10) AS new (i)
                 ON merged.i = new.i
                 WHEN MATCHED THEN UPDATE SET id = leaf_segment_next('t')
                 WHEN NOT MATCHED THEN INSERT (i) VALUES (new.i)"
        ));
        Vec::new()
    }),
    ("subqueries", |session, _| {
        session.ids(
            "WITH a AS MATERIALIZED (
                 SELECT leaf_segment_next('t') AS id FROM generate_series(1, 5)),
                  b AS (INSERT INTO plain SELECT FROM a RETURNING i)
             SELECT id FROM a
             UNION ALL SELECT (SELECT leaf_segment_next('t')) FROM generate_series(1, 3)
                 WHERE generate_series = 1
             UNION ALL SELECT x.id FROM generate_series(1, 4) i,
                 LATERAL (SELECT leaf_segment_next_batch('t', i) AS id) x",
        )
    }),
    ("a failed statement", |session, _| {
        session
            .fails(
                "INSERT INTO plain
                     SELECT leaf_segment_next('t'), 1 / (10 - i) FROM generate_series(1, 10) i",
            )
            .is("22012");
        session.take("t", 3)
    }),
];

#[test]
fn all_at_once_issue_each_id_once() {
    let server = Server::with_leaf_id(&[
        ("max_prepared_transactions", "10"),
        ("max_worker_processes", "12"),
    ]);
    server.session().run(SCHEMA);
    let mut editor = server.session();
    let mut step = 0;
    let mut drawn = while_repeating(
        || {
            step = step % 97 + 1;
            // Never lower: issued ids stay below.
            let max_id = if step % 10 == 0 {
                ", max_id = max_id + 7"
            } else {
                ""
            };
            editor.run(&format!(
                "UPDATE leaf_id.leaf_alloc SET step = {step}{max_id}"
            ));
        },
        || {
            in_threads(KINDS.len(), |i| {
                let (name, work) = KINDS[i];
                let mut session = server.session();
                let ids: Vec<i64> = (0..ROUNDS)
                    .flat_map(|round| work(&mut session, round))
                    .collect();
                println!("{name}: {} ids", ids.len());
                ids
            })
        },
    );
    let mut session = server.session();
    for table in TABLES {
        let ids = session.ids(&format!("SELECT id FROM {table} ORDER BY id"));
        assert!(!ids.is_empty(), "{table} has no rows");
        drawn.push(ids);
    }
    println!("{} ids together", drawn.iter().map(Vec::len).sum::<usize>());
    assert_issued_once(&drawn);
    let highest = drawn.iter().flatten().max().unwrap();
    assert!(session.next("t") > *highest);
}
