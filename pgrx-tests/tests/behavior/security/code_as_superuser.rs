//! Would catch: a claim, a commit, a worker, a view or a function of leaf_id that runs another
//! role's code with rights that role does not have (I9).

use std::time::{Duration, Instant};

use leaf_id_tests::{
    ATTACKERS, Attack, Attacker, HERS, MALLORY, SHOP, assert_issued_once, becomes, call, each,
    in_threads_until, lease_message, now_ms,
};

pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Time for the attacker to win a race. Before the mends, a fraction of it was sufficient.
const RACE: Duration = Duration::from_secs(5);

/// Attackers that own the database.
pub(super) const OWNERS: [Attacker; 2] = [Attacker::Owner, Attacker::Installer];

/// Creates tag t with segments of 10.
pub(super) fn create_tag(attack: &Attack) {
    attack.admin().create_steady_tag("t", 10);
}

/// Code attached to the attacker's look-alike tables.
#[derive(Clone, Copy, Debug)]
enum Imitation {
    Plain,
    Trigger,
    Rule,
    Child,
    View,
}

/// Statements that create such tables in schema `evil`. Their ids restart at one.
fn imitations(attack: &Attack, kind: Imitation) -> Vec<String> {
    let trigger = |when: &str, table: &str| {
        format!(
            "CREATE TRIGGER a {when} INSERT OR UPDATE OR DELETE ON {table}
             FOR EACH ROW EXECUTE FUNCTION {HERS}.fire()"
        )
    };
    let row = "(biz_tag, max_id, step, max_step, max_value) VALUES ('t', 1, 10, 10, 9000000000)";
    let mut statements = vec!["CREATE SCHEMA evil".to_string()];
    for table in ["leaf_alloc", "leaf_worker", "leaf_registry"] {
        let base = match kind {
            Imitation::View => HERS,
            _ => "evil",
        };
        statements.push(attack.imitation(table, base));
        if table == "leaf_alloc" {
            statements.push(format!("INSERT INTO {base}.{table} {row}"));
        }
        let name = format!("evil.{table}");
        match kind {
            Imitation::Plain => {}
            Imitation::Trigger => statements.push(trigger("BEFORE", &name)),
            Imitation::Rule => statements.push(format!(
                "CREATE RULE r AS ON UPDATE TO {name} DO ALSO SELECT {HERS}.run('rule')"
            )),
            Imitation::Child => {
                let child = format!("{HERS}.child_of_{table}");
                statements.push(format!("CREATE TABLE {child} () INHERITS ({name})"));
                statements.push(trigger("BEFORE", &child));
                if table == "leaf_alloc" {
                    statements.push(format!("INSERT INTO {child} {row}"));
                }
            }
            Imitation::View => {
                statements.push(format!(
                    "CREATE VIEW {name} AS SELECT * FROM {HERS}.{table} WHERE {HERS}.run('view')"
                ));
                statements.push(trigger("INSTEAD OF", &name));
            }
        }
    }
    statements.push("GRANT USAGE ON SCHEMA evil TO PUBLIC".into());
    statements
}

/// Repeatedly replaces each of leaf_id's schemas by schema `evil` and back, until the race is over
/// or won, while others take ids.
fn swap_schemas(attack: &Attack) -> Vec<Vec<i64>> {
    let schemas = attack.admin().schemas_of_leaf_id();
    let (drawn, swaps) = in_threads_until(
        4,
        |_, done| {
            let mut alice = attack.alice();
            alice.run("SET leaf_id.refill_timeout = '100ms'");
            let mut ids = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // While her schema is in place, the functions are missing.
                if let Ok(more) = alice.try_take("t", 25) {
                    ids.extend(more);
                }
            }
            ids
        },
        || {
            let mut mallory = attack.mallory();
            let start = Instant::now();
            let mut swaps = 0;
            while start.elapsed() < RACE && !(swaps % 20 == 0 && attack.has_won()) {
                for schema in &schemas {
                    let there = format!(
                        "ALTER SCHEMA {schema} RENAME TO kept; ALTER SCHEMA evil RENAME TO {schema}"
                    );
                    let back = format!(
                        "ALTER SCHEMA {schema} RENAME TO evil; ALTER SCHEMA kept RENAME TO {schema}"
                    );
                    if mallory.try_run(&there).is_ok() {
                        mallory.run(&back);
                    }
                }
                swaps += 1;
            }
            println!("{swaps} swaps in {:?}", start.elapsed());
            swaps
        },
    );
    assert!(swaps > 0);
    drawn
}

/// S1. Before: superuser within 20 ms.
#[test]
fn schemas_that_are_renamed_while_ids_are_taken() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[("fsync", "off")]);
        create_tag(&attack);
        attack.mallory_tries(&imitations(&attack, Imitation::Trigger));
        swap_schemas(&attack);
        attack.assert_her_code_did_not_run();
    });
}

/// S1, without a trigger: a claim that reads one table and writes another one is not durable (I1).
/// Before: ids repeat after a crash.
#[test]
fn ids_are_written_to_the_table_that_they_were_read_from() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[("fsync", "off")]);
        create_tag(&attack);
        attack.mallory_tries(&imitations(&attack, Imitation::Plain));
        let mut drawn = swap_schemas(&attack);
        assert_issued_once(&drawn);
        let highest = drawn.iter().flatten().max().copied().unwrap_or(0);
        let max_id: i64 = attack.admin().row("t", "max_id");
        println!("up to {highest}, and max_id is {max_id}");
        assert!(highest < max_id, "{highest} was issued, max_id is {max_id}");
        attack.server.crash();
        drawn.push(attack.alice().take("t", 50));
        assert_issued_once(&drawn);
    });
}

/// S1: the schema is dropped while a claim waits for the table, and another one of that name exists
/// when the wait ends. Before: superuser.
#[test]
fn a_schema_that_is_replaced_under_a_waiting_claim() {
    use Imitation::{Child, Rule, Trigger, View};
    let cases = [Trigger, Rule, Child, View].map(|kind| (Attacker::Owner, kind));
    each(
        [&cases[..], &[(Attacker::Installer, Trigger)]].concat(),
        |&(by, kind)| {
            let attack = Attack::on_installed(by, &[]);
            create_tag(&attack);
            let mut admin = attack.admin();
            let table = admin.table("leaf_alloc");
            let mut taken = attack.alice().take("t", 5);
            admin.wait_for_spare("t");
            let (schema, _) = table.split_once('.').unwrap();
            let relation: u32 = admin.value(&format!("SELECT '{table}'::regclass::oid"));
            let own = [
                imitations(&attack, kind).join("; "),
                format!("DROP SCHEMA IF EXISTS {schema} CASCADE"),
                "DROP SCHEMA IF EXISTS public CASCADE".into(),
                format!("ALTER SCHEMA evil RENAME TO {schema}"),
            ];
            let mut mallory = attack.mallory();
            let mut alice = attack.alice();
            // Prepared earlier, so calls of this session need no name.
            alice.run(
                "SET leaf_id.refill_timeout = '20s'; PREPARE next AS SELECT leaf_segment_next('t')",
            );
            alice.run("EXECUTE next");
            mallory.run("BEGIN");
            for statement in &own {
                if let Err(failure) = mallory.try_run(&format!("SAVEPOINT s; {statement}")) {
                    println!("refused: {statement}: {failure}");
                    mallory.run("ROLLBACK TO s");
                }
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while let Ok(ids) = alice.try_column::<i64>("EXECUTE next") {
                        taken.extend(ids);
                    }
                });
                let waits = format!(
                    "SELECT count(*) > 0 FROM pg_locks WHERE relation = {relation} AND NOT granted
                     AND pid <> pg_backend_pid()"
                );
                let mut watcher = attack.server.session();
                let claims = becomes(LIMIT, || watcher.value(&waits));
                mallory.run("COMMIT");
                assert!(claims, "no claim waits for the table");
                // Waiting sessions retry.
                watcher.run("SELECT pg_sleep(1)");
                watcher.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'alice'",
            );
            });
            attack.assert_her_code_did_not_run();
        },
    );
}

/// Triggers on leaf_id's tables that fire in all roles' claims, leases and commits, created by
/// roles that may create them.
fn triggers(attack: &Attack) -> Vec<String> {
    let mut admin = attack.admin();
    ["leaf_alloc", "leaf_worker", "leaf_registry"]
        .into_iter()
        .map(|name| (name, admin.table(name)))
        .flat_map(|(name, table)| {
            let trigger = move |when: &str, number: i32| {
                format!(
                    "CREATE TRIGGER a{number}_{name} {when} ON {table}
                     FOR EACH ROW EXECUTE FUNCTION {HERS}.fire()"
                )
            };
            [
                trigger("BEFORE INSERT OR UPDATE", 1),
                trigger("AFTER INSERT OR UPDATE", 2),
            ]
        })
        .collect()
}

/// Takes ids and leases like other roles, to cover every way in which leaf_id writes to its tables
/// with its own rights.
pub(super) fn use_everything(attack: &Attack) {
    let mut alice = attack.alice();
    alice.run("SET leaf_id.refill_timeout = '1s'");
    // Claims.
    let _ = alice.try_take("t", 100);
    let mut admin = attack.admin();
    admin.run(
        "DO $$ BEGIN CREATE ROLE member LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member",
    );
    // Claims and leases of other servers.
    let mut member = attack.server.connect_as("member", SHOP);
    for call in member_calls() {
        if let Err(failure) = member.try_run(&format!("SELECT * FROM {call}")) {
            println!("{call}: {failure}");
        }
    }
}

/// S2. Before: superuser at the next claim; also for `leaf_worker` and `leaf_registry`.
#[test]
fn triggers_on_the_tables_of_leaf_id() {
    each(ATTACKERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let made = attack.mallory_tries(&triggers(&attack));
        println!("{made} triggers");
        use_everything(&attack);
        attack.assert_her_code_did_not_run();
        attack.let_alice_take("t", 50).unwrap();
    });
}

/// S2: only table `leaf_worker`, with `GRANT ALL`. Before: superuser at the first lease.
#[test]
fn triggers_on_the_registry() {
    let attack = Attack::on_installed(Attacker::Grantee, &[]);
    create_tag(&attack);
    let triggers = triggers(&attack);
    let triggers: Vec<_> = triggers
        .iter()
        .filter(|sql| !sql.contains("leaf_alloc"))
        .collect();
    assert_eq!(attack.mallory_tries(&triggers), triggers.len());
    use_everything(&attack);
    attack.assert_her_code_did_not_run();
}

/// S2, in a commit of the attacker: the ids of a tag created there are written with the rights of
/// the table's owner. Before: superuser, without any action by others.
#[test]
fn triggers_on_what_a_commit_writes() {
    let attack = Attack::on_installed(Attacker::Grantee, &[]);
    let table = attack.admin().table("leaf_alloc");
    attack.mallory_tries(&triggers(&attack));
    let commit = format!(
        "BEGIN; INSERT INTO {table} (biz_tag) VALUES ('mine');
         SELECT leaf_segment_next('mine'); COMMIT"
    );
    attack.mallory_tries(&[
        &commit,
        &format!(
            "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION {HERS}.fire()"
        ),
        &commit.replace("mine", "mine_too"),
    ]);
    attack.assert_her_code_did_not_run();
    let mut mallory = attack.mallory();
    assert_eq!(mallory.next("mine"), 2);
}

/// S2: default privileges on tables, schemas and functions are revoked by CREATE EXTENSION. Before:
/// all privileges on the tables; superuser.
#[test]
fn default_privileges_give_nothing_of_leaf_id_away() {
    let attack = Attack::before_install(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    for what in ["TABLES", "SCHEMAS", "FUNCTIONS", "SEQUENCES", "TYPES"] {
        admin.run(&format!(
            "ALTER DEFAULT PRIVILEGES GRANT ALL ON {what} TO {MALLORY}"
        ));
    }
    attack.install();
    create_tag(&attack);
    for table in ["leaf_alloc", "leaf_worker", "leaf_registry"] {
        let table = admin.table(table);
        for privilege in [
            "SELECT",
            "INSERT",
            "UPDATE",
            "DELETE",
            "TRUNCATE",
            "TRIGGER",
            "REFERENCES",
        ] {
            let sql = format!("SELECT has_table_privilege('{MALLORY}', '{table}', '{privilege}')");
            assert!(!admin.value::<bool>(&sql), "{privilege} on {table}");
        }
    }
    for schema in admin.schemas_of_leaf_id() {
        let sql = format!("SELECT has_schema_privilege('{MALLORY}', '{schema}', 'CREATE')");
        assert!(!admin.value::<bool>(&sql), "CREATE on schema {schema}");
    }
    let sql = format!(
        "SELECT proname::text FROM pg_proc
         WHERE proname ~ '^leaf_(claim|worker_|snowflake_reset)'
             AND has_function_privilege('{MALLORY}', oid, 'EXECUTE')"
    );
    assert_eq!(admin.column::<String>(&sql), [""; 0]);
    // All roles may execute these: they ask for a privilege that she does not have, ...
    for function in ["segment_slots", "central_connections", "server_state"] {
        attack
            .mallory()
            .fails(&format!("SELECT leaf_id_internal.leaf_{function}()"))
            .is("42501");
    }
    // ... or run with the caller's rights.
    for call in [
        "create('x')",
        "drop('t')",
        "reset('t', 1)",
        "revoke('t', 'public')",
    ] {
        attack
            .mallory()
            .fails(&format!("SELECT leaf_tag_{call}"))
            .is("42501");
    }
    attack.mallory_tries(&triggers(&attack));
    use_everything(&attack);
    attack.assert_her_code_did_not_run();
}

/// A claim of ids by another server.
pub(super) fn claim(tag: &str, n: i32) -> String {
    let message = format!("json_build_object('version', 1, 'tag', '{tag}', 'n', {n})");
    call("leaf_claim", &message)
}

/// Calls made by other servers.
pub(super) fn member_calls() -> [String; 3] {
    let now = now_ms();
    let lease = |tokens: &str| {
        let fields =
            format!("1, 'm', {tokens}, NULL, NULL, NULL, {now}, 1288834974657, '41/10/12'");
        call("leaf_worker_lease", &lease_message(&fields))
    };
    [claim("t", 10), lease("NULL, 7"), lease("7, 8")]
}

/// An inheritance child, a rule, a policy and so on, created by roles that may; and objects that
/// only a superuser may create. Before: the same role won with triggers.
#[test]
fn everything_else_that_could_run_in_a_statement() {
    each(ATTACKERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let table = attack.admin().table("leaf_alloc");
        attack.mallory_tries(&imitations(&attack, Imitation::Trigger));
        let made = attack.mallory_tries(&[
            format!("CREATE RULE r1 AS ON UPDATE TO {table} DO ALSO SELECT {HERS}.run('rule')"),
            format!("CREATE RULE r2 AS ON UPDATE TO {table} DO INSTEAD SELECT {HERS}.run('rule')"),
            format!("CREATE POLICY p ON {table} USING ({HERS}.run('policy'))"),
            format!("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"),
            format!("ALTER TABLE {table} FORCE ROW LEVEL SECURITY"),
            format!("CREATE TABLE {HERS}.child () INHERITS ({table})"),
            format!("CREATE INDEX ON {table} ((max_id::text)) WHERE {HERS}.run('index')"),
            format!("ALTER TABLE {table} ADD CHECK ({HERS}.run('check'))"),
            format!("ALTER TABLE {table} ADD more boolean DEFAULT {HERS}.run('default')"),
            format!("CREATE STATISTICS {HERS}.s ON max_id, step FROM {table}"),
            format!("CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION {HERS}.ddl()"),
            format!("CREATE DOMAIN {HERS}.d AS bigint CHECK ({HERS}.run('domain'))"),
            format!("ALTER TABLE {table} ALTER max_id TYPE {HERS}.d"),
            "CREATE CAST (bigint AS boolean) WITHOUT FUNCTION".into(),
            format!("ALTER TABLE {table} OWNER TO {MALLORY}"),
            format!("ALTER EXTENSION leaf_id DROP TABLE {table}"),
            format!("ALTER EXTENSION leaf_id SET SCHEMA {HERS}"),
            "ALTER EXTENSION leaf_id ADD TABLE evil.leaf_alloc".into(),
            "ALTER EXTENSION leaf_id ADD TABLE evil.leaf_worker".into(),
            "ALTER EXTENSION leaf_id ADD TABLE evil.leaf_registry".into(),
            "ALTER EXTENSION leaf_id ADD SCHEMA evil".into(),
            "ALTER EXTENSION leaf_id DROP FUNCTION leaf_id.leaf_claim(internal, integer)".into(),
            "ALTER EXTENSION leaf_id DROP TEXT SEARCH PARSER leaf_id.leaf_claim".into(),
            format!("ALTER TEXT SEARCH PARSER leaf_id.leaf_claim SET SCHEMA {HERS}"),
            format!("ALTER EXTENSION leaf_id ADD FUNCTION {HERS}.run(text)"),
            format!("CREATE PUBLICATION p FOR TABLE {table}"),
            format!("CREATE TABLE {HERS}.refers (tag text REFERENCES {table})"),
            format!(
                "CREATE TRIGGER a1 AFTER UPDATE ON {table}
                 FOR EACH STATEMENT EXECUTE FUNCTION {HERS}.fire()"
            ),
            format!(
                "CREATE CONSTRAINT TRIGGER a2 AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION {HERS}.fire()"
            ),
        ]);
        println!("{made} were not refused");
        use_everything(&attack);
        attack.assert_her_code_did_not_run();
        attack.let_alice_take("t", 50).unwrap();
    });
}

/// The same, created by a DBA who granted her the right: objects on the table created by a
/// superuser run in statements of users, but not in claims. Before: superuser at the next claim.
#[test]
fn a_dbas_rules_policies_and_children_that_call_her_code() {
    each([
        "CREATE RULE r AS ON UPDATE TO {table} DO ALSO SELECT {hers}.run('rule')",
        "CREATE RULE r AS ON UPDATE TO {table} DO INSTEAD SELECT {hers}.run('rule')",
        "CREATE TRIGGER a AFTER UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {hers}.fire()",
        "CREATE CONSTRAINT TRIGGER a AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION {hers}.fire()",
        "CREATE TRIGGER a BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {hers}.fire();
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER a",
        "CREATE TABLE {hers}.child () INHERITS ({table}); ALTER TABLE {hers}.child OWNER TO mallory;
         CREATE TRIGGER a BEFORE UPDATE ON {hers}.child FOR EACH ROW EXECUTE FUNCTION {hers}.fire();
         INSERT INTO {hers}.child (biz_tag, max_id, step, max_step) VALUES ('t', 5, 10, 10)",
        "CREATE POLICY p ON {table} USING ({hers}.run('policy'));
         ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
    ], |what| {
        println!("{what}");
        let attack = Attack::on_installed(Attacker::Stranger, &[]);
        create_tag(&attack);
        let mut admin = attack.admin();
        let mut ids = vec![admin.take("t", 25)];
        let table = admin.table("leaf_alloc");
        admin.run(&what.replace("{table}", &table).replace("{hers}", HERS));
        ids.push(attack.let_alice_take("t", 100).unwrap_or_default());
        use_everything(&attack);
        attack.assert_her_code_did_not_run();
        ids.push(attack.let_alice_take("t", 100).unwrap());
        assert_issued_once(&[ids.concat()]);
    });
}

/// Claims on a server where she owns the table of tags, with her functions in its types, checks and
/// indexes: they run with her rights only. (Such a table may be refused, 42804.)
#[test]
fn functions_in_the_table_itself() {
    each(
        [
            "CREATE INDEX ON {table} ((hers.stable(max_id)))",
            "CREATE INDEX ON {table} (max_id) WHERE hers.stable(step) IS NOT NULL",
            "ALTER TABLE {table} ADD CONSTRAINT c CHECK (hers.run('check'))",
            "ALTER TABLE {table} ADD more bigint GENERATED ALWAYS AS (hers.stable(max_id)) STORED",
            "CREATE DOMAIN hers.d AS bigint CHECK (hers.run('domain'));
         ALTER TABLE {table} ALTER max_id TYPE hers.d",
            "CREATE TYPE hers.r AS RANGE (subtype = bigint, subtype_diff = hers.diff);
         ALTER TABLE {table} ADD r hers.r;
         INSERT INTO {table} (biz_tag) SELECT 'tag ' || g FROM generate_series(1, 2000) g;
         UPDATE {table} SET r = hers.r((random() * 1e5)::bigint, 200000 + (random() * 1e5)::bigint);
         CREATE INDEX ON {table} USING gist (r); CREATE INDEX ON {table} (max_id)",
        ],
        |what| {
            println!("{what}");
            let attack = Attack::on_installed(Attacker::Stranger, &[]);
            create_tag(&attack);
            attack.mallory().run(
                "CREATE FUNCTION hers.stable(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql
                 AS 'BEGIN RETURN $1; END'",
            );
            attack.mallory().run(
                "CREATE FUNCTION hers.diff(bigint, bigint) RETURNS float8 IMMUTABLE LANGUAGE plpgsql
                 AS 'BEGIN RETURN $1 - $2; END'",
            );
            let mut admin = attack.admin();
            let mut ids = admin.take("t", 25);
            let table = admin.table("leaf_alloc");
            let altered = what.replace("{table}", &table);
            for statement in altered.split("; ") {
                if let Err(failure) = admin.try_run(statement) {
                    println!("{statement}: {failure}");
                }
            }
            // Code run by ALTER TABLE itself is the DBA's responsibility.
            attack.mallory().run(
                "CREATE OR REPLACE FUNCTION hers.stable(bigint) RETURNS bigint IMMUTABLE
                 LANGUAGE plpgsql AS 'BEGIN PERFORM hers.run(''stable''); RETURN $1; END'",
            );
            attack.mallory().run(
                "CREATE OR REPLACE FUNCTION hers.diff(bigint, bigint) RETURNS float8 IMMUTABLE
                 LANGUAGE plpgsql AS 'BEGIN PERFORM hers.run(''diff''); RETURN $1 - $2; END'",
            );
            admin.run("ALTER ROLE mallory NOSUPERUSER");
            let log = attack.server.log().len();
            let taken = attack.let_alice_take("t", 100);
            let ran: String = attack.server.log().split_off(log);
            assert!(!ran.contains("mallory has her code run"), "{ran}");
            assert!(!attack.has_won());
            match taken {
                Ok(more) => ids.extend(more),
                Err(failure) => println!("{failure}"),
            }
            assert_issued_once(&[ids]);
        },
    );
}
