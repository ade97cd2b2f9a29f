//! Would catch: an id issued again because another role has added something to the table of tags,
//! changed settings of a claim, created an object with a recycled oid, or rolled back (I1, I3).

use std::time::Duration;

use leaf_id_tests::{
    Attack, Attacker, HERS, Server, Session, Stop, assert_issued_once, each, timed,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Creates an audit table with a key from leaf_id, and a trigger on the table of tags, `{table}`,
/// that writes to it.
const AUDIT: &str = "
    CREATE TABLE public.audit (id bigint PRIMARY KEY DEFAULT leaf_segment_next('audit'),
        operation text NOT NULL, tag text NOT NULL);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.audit (operation, tag) VALUES (tg_op, coalesce(NEW.biz_tag, OLD.biz_tag));
        RETURN NULL;
    END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION audit()";

/// Ways to manage tags.
#[derive(Clone, Copy, Debug)]
enum Way {
    Functions,
    Statements,
}

impl Way {
    fn create(self, table: &str, tag: &str) -> String {
        match self {
            Self::Functions => {
                format!("SELECT leaf_tag_create('{tag}', step => 10, max_step => 10)")
            }
            Self::Statements => {
                format!("INSERT INTO {table} (biz_tag, step, max_step) VALUES ('{tag}', 10, 10)")
            }
        }
    }

    fn drop(self, table: &str, tag: &str) -> String {
        match self {
            Self::Functions => format!("SELECT leaf_tag_drop('{tag}')"),
            Self::Statements => format!("DELETE FROM {table} WHERE biz_tag = '{tag}'"),
        }
    }
}

/// Entries in the audit table.
fn audited(session: &mut Session) -> Vec<(String, String)> {
    let rows = session
        .query("SELECT operation, tag FROM audit ORDER BY id", &[])
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn entry(operation: &str, tag: &str) -> (String, String) {
    (operation.into(), tag.into())
}

/// S5. Before: the commit's own writes are audited with ids that it does not record; every claim of
/// the audit's tag waits for itself (55P03).
#[test]
fn edits_of_tags_are_audited_in_a_table_with_ids_of_its_own() {
    each(
        [
            (Way::Functions, true),
            (Way::Functions, false),
            (Way::Statements, true),
            (Way::Statements, false),
        ],
        |&(way, at_once)| {
            let server = Server::start(&[]);
            server.session().run("CREATE DATABASE shop");
            let mut admin = server.session_in("shop");
            admin.run("CREATE EXTENSION leaf_id");
            let table = admin.table("leaf_alloc");
            admin.run("SET leaf_id.refill_timeout = '3s'");
            // In one transaction, or in several.
            let (begin, commit) = if at_once {
                ("BEGIN", "COMMIT")
            } else {
                ("", "")
            };
            for statement in [
                begin.to_string(),
                way.create(&table, "audit"),
                AUDIT.replace("{table}", &table),
                way.create(&table, "orders"),
                "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
                 INSERT INTO orders SELECT FROM generate_series(1, 3)"
                    .into(),
                way.create(&table, "users"),
                commit.into(),
            ] {
                admin.run(&statement);
            }
            let mut expected = vec![entry("INSERT", "orders"), entry("INSERT", "users")];
            assert_eq!(audited(&mut admin), expected);

            // Claims of these tags, including the audit's, are not edits.
            admin.run("INSERT INTO orders SELECT FROM generate_series(1, 100)");
            admin.take("users", 100);
            admin.take("audit", 100);
            assert_eq!(audited(&mut admin), expected);

            let edits = [
                (
                    format!("UPDATE {table} SET step = 5 WHERE biz_tag = 'orders'"),
                    vec![entry("UPDATE", "orders")],
                ),
                (
                    format!("UPDATE {table} SET max_id = 5000 WHERE biz_tag = 'users'"),
                    vec![entry("UPDATE", "users")],
                ),
                (way.create(&table, "more"), vec![entry("INSERT", "more")]),
                (way.drop(&table, "more"), vec![entry("DELETE", "more")]),
                (
                    "SELECT leaf_tag_reset('users', 9000)".into(),
                    vec![entry("UPDATE", "users")],
                ),
            ];
            for (edit, entries) in edits {
                // A claim overtaken by the edit becomes a gap.
                for tag in ["orders", "users"] {
                    admin.wait_for_spare(tag);
                }
                let (_, took) = timed(|| admin.run(&edit));
                assert!(took < LIMIT, "{edit} took {took:?}");
                expected.extend(entries);
            }
            assert_eq!(audited(&mut admin), expected);
            admin.run("INSERT INTO orders SELECT FROM generate_series(1, 100)");
            assert_eq!(admin.next("users"), 9000);

            // In one transaction, a tag is created, used, edited and dropped.
            admin.run(&format!(
                "BEGIN; {}; SELECT leaf_segment_next_batch('brief', 50);
                 UPDATE {table} SET description = 'brief' WHERE biz_tag = 'brief'; {}; COMMIT",
                way.create(&table, "brief"),
                way.drop(&table, "brief"),
            ));
            expected.extend(["INSERT", "UPDATE", "DELETE"].map(|edit| entry(edit, "brief")));
            assert_eq!(audited(&mut admin), expected);
            let mut ids = admin.ids("SELECT id FROM audit ORDER BY id");
            ids.extend(admin.take("audit", 50));
            assert_issued_once([ids]);

            drop(admin);
            let mut session = server.session();
            session.wait_for_empty("shop");
            session.run("DROP DATABASE shop");
        },
    );
}

/// The audit's own tag is edited: its ids are not available in that transaction, with an error that
/// says so, or they are. No id is issued twice. Before: the audit's claims wait for themselves
/// (55P03).
#[test]
fn the_audits_own_tag_is_edited() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    let table = admin.table("leaf_alloc");
    admin.create_steady_tag("audit", 10);
    admin.run(&AUDIT.replace("{table}", &table));
    admin.run("SET leaf_id.refill_timeout = '3s'");
    for edit in [
        "UPDATE {table} SET step = 5 WHERE biz_tag = 'audit'",
        "UPDATE {table} SET description = 'x' WHERE biz_tag = 'audit'",
        "UPDATE {table} SET max_id = max_id + 100 WHERE biz_tag = 'audit'",
        "UPDATE {table} SET biz_tag = 'audit_2' WHERE biz_tag = 'audit';
         UPDATE {table} SET biz_tag = 'audit' WHERE biz_tag = 'audit_2'",
    ] {
        match admin.try_run(&edit.replace("{table}", &table)) {
            Ok(()) => println!("{edit}"),
            Err(failure) => {
                println!("{edit}: {failure}");
                assert!(["55000", "42704"].contains(&&*failure.state), "{failure}");
            }
        }
        admin.run(
            "INSERT INTO audit (operation, tag) SELECT 'test', 't' FROM generate_series(1, 35)",
        );
    }
    let mut ids = admin.ids("SELECT id FROM audit ORDER BY id");
    ids.extend(admin.take("audit", 50));
    assert_issued_once([ids]);
}

/// Objects of the table's owner that prevent an UPDATE, and whether claims must succeed
/// nevertheless.
const IN_THE_WAY: [(&str, bool); 6] = [
    (
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER a BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION nothing()",
        true,
    ),
    (
        "CREATE FUNCTION old() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
         CREATE TRIGGER z BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION old()",
        true,
    ),
    (
        "CREATE RULE r AS ON UPDATE TO {table} DO INSTEAD NOTHING",
        true,
    ),
    (
        "CREATE RULE r AS ON UPDATE TO {table} DO ALSO
             DELETE FROM {table} WHERE biz_tag = 'none'",
        true,
    ),
    (
        "CREATE ROLE other; GRANT CREATE ON SCHEMA {schema} TO other; ALTER TABLE {table} OWNER TO other;
         ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
         CREATE POLICY s ON {table} FOR SELECT USING (true);
         CREATE POLICY i ON {table} FOR INSERT WITH CHECK (true)",
        false,
    ),
    (
        "CREATE TABLE child () INHERITS ({table});
         INSERT INTO child (biz_tag, step, max_step, max_id) VALUES ('n', 10, 10, 1), ('t', 10, 10, 1)",
        true,
    ),
];

/// S5b: ids of a tag created in an open transaction are written to its row by the commit, or the
/// commit fails. Before: it succeeds, with a `max_id` of 1 (with a trigger, a rule or a policy).
#[test]
fn ids_of_an_open_transaction_are_written_or_it_fails() {
    each(IN_THE_WAY, |(what, harmless)| {
        let server = Server::with_leaf_id(&[]);
        let mut admin = server.session();
        admin.create_steady_tag("t", 10);
        let table = admin.table("leaf_alloc");
        let (schema, _) = table.split_once('.').unwrap();
        admin.run(&what.replace("{table}", &table).replace("{schema}", schema));
        admin.run(
            "SET leaf_id.refill_timeout = '2s';
             BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('n', 10, 10)",
        );
        let mut ids = admin.take("n", 25);
        match admin.try_run("COMMIT") {
            Ok(()) => {
                let max_id: i64 = admin.value(&format!(
                    "SELECT max_id FROM ONLY {table} WHERE biz_tag = 'n'"
                ));
                assert!(
                    max_id > 25,
                    "ids up to 25 were issued, and max_id is {max_id}"
                );
                match admin.try_take("n", 100) {
                    Ok(more) => ids.extend(more),
                    Err(failure) => {
                        println!("{failure}");
                        assert!(!harmless, "{failure}");
                    }
                }
                assert_issued_once([ids]);
            }
            Err(failure) => {
                println!("the commit fails: {failure}");
                assert!(!harmless, "{failure}");
            }
        }
    });
}

/// S5b for claims: no trigger, rule, policy or child table prevents them. Before: all claims fail
/// from then on (55P03).
#[test]
fn claims_are_written_whatever_is_on_the_table() {
    each(IN_THE_WAY, |(what, harmless)| {
        let server = Server::with_leaf_id(&[]);
        let mut admin = server.session();
        admin.create_steady_tag("t", 10);
        let table = admin.table("leaf_alloc");
        let (schema, _) = table.split_once('.').unwrap();
        let mut ids = admin.take("t", 25);
        admin.run(&what.replace("{table}", &table).replace("{schema}", schema));
        admin.run("SET leaf_id.refill_timeout = '2s'");
        match admin.try_take("t", 100) {
            Ok(more) => ids.extend(more),
            Err(failure) => {
                println!("{failure}");
                assert!(!harmless, "{failure}");
            }
        }
        // A member's claims. They are not ordered relative to locally cached ids, which may be
        // saved if only the postmaster dies, and be issued after the crash.
        let mut claimed = Vec::new();
        match admin.try_column::<i64>(
            "SELECT (token::json ->> 'first')::bigint FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)",
        ) {
            Ok(first) => claimed.extend(first[0]..first[0] + 10),
            Err(failure) => {
                println!("{failure}");
                assert!(!harmless, "{failure}");
            }
        }
        let max_id: i64 = admin.value(&format!(
            "SELECT max_id FROM ONLY {table} WHERE biz_tag = 't'"
        ));
        assert!(
            ids.iter().chain(&claimed).all(|id| *id < max_id),
            "{max_id}, {ids:?}"
        );
        server.crash();
        let mut session = server.session();
        session.run("SET leaf_id.refill_timeout = '2s'");
        if let Ok(more) = session.try_take("t", 50) {
            ids.extend(more);
        }
        assert_issued_once([ids, claimed]);
    });
}

/// A row of the same tag in a child table does not belong to leaf_id. Before: claims change it.
#[test]
fn a_row_in_a_child_table_is_left_alone() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    let table = admin.table("leaf_alloc");
    admin.run(&format!(
        "SELECT leaf_tag_create('t', step => 10, max_step => 10);
         CREATE TABLE child () INHERITS ({table});
         INSERT INTO child (biz_tag, step, max_step, max_id) VALUES ('t', 10, 10, 7), ('alone', 10, 10, 7)"
    ));
    let ids = admin.take("t", 100);
    assert_issued_once([ids]);
    assert_eq!(admin.ids("SELECT max_id FROM child"), [7, 7]);
    // Nor does it define a tag.
    admin.run("SET leaf_id.refill_timeout = '2s'");
    admin.try_next("alone").unwrap_err().is("42704");
}

/// S6: a database with the oid of a dropped one. Before: its ids continue in the dropped database's
/// cache, among ids in use (23505).
#[test]
fn a_database_with_the_oid_of_one_that_is_gone() {
    each([false, true], |&restart| {
        let server = Server::start(&[]);
        let mut admin = server.session();
        admin.run("CREATE DATABASE template");
        let mut session = server.session_in("template");
        session.run(
            "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', step => 100, max_step => 100);
             CREATE TABLE used (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'))",
        );
        drop(session);
        let create = "CREATE DATABASE copy TEMPLATE template OID 500000";
        let fill = |database: &str, count: i32| {
            let mut session = server.session_in(database);
            session.run(&format!(
                "INSERT INTO used SELECT FROM generate_series(1, {count})"
            ));
            drop(session);
            server.session().wait_for_empty(database);
        };
        admin.wait_for_empty("template");
        admin.run(create);
        // Part of a segment; the rest is cached.
        fill("copy", 3);
        drop(admin);
        if restart {
            // Or saved in a file for the next run.
            server.restart();
        }
        let mut admin = server.session();
        admin.run("DROP DATABASE copy");
        // The template has issued the same ids, so its copy contains them.
        fill("template", 50);
        admin.run(create);
        fill("copy", 200);
        drop(admin);
        let mut session = server.session_in("copy");
        assert_issued_once([session.ids("SELECT id FROM used ORDER BY id")]);
    });
}

/// S11: settings changed during a claim by other roles' code. Before: ids 4 to 6 repeat after an
/// immediate shutdown, as their claims were not flushed (I1).
#[test]
fn nothing_set_in_a_claim_makes_it_less_durable() {
    each([Attacker::Grantee, Attacker::Stranger], |&by| {
        // No other session flushes WAL in between.
        let attack = Attack::on_installed(
            by,
            &[
                ("wal_writer_delay", "10s"),
                ("wal_writer_flush_after", "1GB"),
                ("autovacuum", "off"),
                ("bgwriter_delay", "10s"),
            ],
        );
        let mut admin = attack.admin();
        admin.create_steady_tag("t", 3);
        let table = admin.table("leaf_alloc");
        let trigger = [
            format!(
                "CREATE FUNCTION {HERS}.off() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                     PERFORM set_config('synchronous_commit', 'off', false);
                     PERFORM set_config('commit_delay', '0', true);
                     RETURN NEW;
                 END $$"
            ),
            format!(
                "CREATE TRIGGER a BEFORE UPDATE ON {table}
                 FOR EACH ROW EXECUTE FUNCTION {HERS}.off()"
            ),
        ];
        if by == Attacker::Grantee {
            attack.mallory_tries(&trigger);
        } else {
            trigger.iter().for_each(|sql| admin.run(sql));
        }
        admin.run("CHECKPOINT");
        let mut ids = attack.alice().take("t", 6);
        drop(admin);
        attack.server.stop(Stop::Immediate);
        attack.server.launch();
        ids.extend(attack.alice().take("t", 6));
        assert_issued_once([ids]);
    });
}
