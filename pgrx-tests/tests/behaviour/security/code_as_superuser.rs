//! Would catch: a claim, a commit, a worker, a view or a function of leaf_id that runs code
//! of somebody else with rights that they have not (I9).

use std::time::{Duration, Instant};

use leaf_id_tests::{
    ATTACKERS, Attack, Attacker, Failure, HERS, MALLORY, SHOP, assert_issued_once, becomes, each,
    in_threads_until, now_ms, wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);
/// How long the attacker tries to win a race. In 0.1.0 it takes a fraction of that.
const RACE: Duration = Duration::from_secs(5);

/// Those who own the database.
const OWNERS: [Attacker; 2] = [Attacker::Owner, Attacker::Installer];

/// The tag t with segments of 10, and its row's `max_id`.
fn create_tag(attack: &Attack) {
    attack.admin().create_steady_tag("t", 10);
}

/// What runs when the attacker's own tables are written to, which look like leaf_id's.
#[derive(Clone, Copy, Debug)]
enum Imitation {
    Plain,
    Trigger,
    Rule,
    Child,
    View,
}

/// Such tables, in the schema `evil`. Their ids begin at one again.
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

/// Puts the schema `evil` in the place of each of leaf_id's, and back, again and again until
/// the race is over or won, while others take ids.
fn swap_schemas(attack: &Attack) -> Vec<Vec<i64>> {
    let schemas = attack.admin().schemas_of_leaf_id();
    let (drawn, swaps) = in_threads_until(
        4,
        |_, done| {
            let mut alice = attack.alice();
            alice.run("SET leaf_id.refill_timeout = '100ms'");
            let mut ids = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // While her schema is there in its place, the functions are not.
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

/// S1. Before: superuser in 20 ms.
#[test]
fn schemas_that_are_renamed_while_ids_are_taken() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[("fsync", "off")]);
        create_tag(&attack);
        attack.mallory_tries(&imitations(&attack, Imitation::Trigger));
        swap_schemas(&attack);
        attack.assert_nobody_ran_her_code();
    });
}

/// S1, without a trigger: what is read from one table and written to another one is not
/// durable (I1). Before: ids come again after a crash.
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

/// S1: the schema is dropped while a claim waits for the table, and there is another one of
/// that name when it has done waiting. Before: superuser.
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
            // Known to this session, whose calls need no name.
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
                // Whoever waits goes on, and asks again.
                watcher.run("SELECT pg_sleep(1)");
                watcher.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'alice'",
            );
            });
            attack.assert_nobody_ran_her_code();
        },
    );
}

/// Triggers on leaf_id's tables that everybody's claims, leases and commits pass, by those who
/// may create them.
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

/// Takes ids and leases as others do, so that every way is gone in which leaf_id writes to its
/// tables with rights of its own.
fn use_everything(attack: &Attack) {
    let mut alice = attack.alice();
    alice.run("SET leaf_id.refill_timeout = '1s'");
    // Claims.
    let _ = alice.try_take("t", 100);
    let mut admin = attack.admin();
    admin.run(
        "DO $$ BEGIN CREATE ROLE member LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         GRANT EXECUTE ON FUNCTION leaf_claim, leaf_worker_claim, leaf_worker_renew TO member",
    );
    // Claims and leases of other servers.
    let mut member = attack.server.connect_as("member", SHOP);
    for call in member_calls() {
        if let Err(failure) = member.try_run(&format!("SELECT * FROM {call}")) {
            println!("{call}: {failure}");
        }
    }
}

/// S2. Before: superuser at the next claim; the same for `leaf_worker` and `leaf_registry`.
#[test]
fn triggers_on_the_tables_of_leaf_id() {
    each(ATTACKERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let made = attack.mallory_tries(&triggers(&attack));
        println!("{made} triggers");
        use_everything(&attack);
        attack.assert_nobody_ran_her_code();
        attack.let_alice_take("t", 50).unwrap();
    });
}

/// S2: the table `leaf_worker` alone, with `GRANT ALL`. Before: superuser at the first lease.
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
    attack.assert_nobody_ran_her_code();
}

/// S2, in a commit of the attacker's own: the ids of a tag that is created there are written
/// with the rights of the table's owner. Before: superuser, without anybody else's doing.
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
    attack.assert_nobody_ran_her_code();
    let mut mallory = attack.mallory();
    assert_eq!(mallory.next("mine"), 2);
}

/// S2: what default privileges gave away on the tables, on a schema and on functions is
/// nobody's after CREATE EXTENSION. Before: all privileges on the tables; superuser.
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
         WHERE proname ~ '^leaf_(tag_|claim|worker_|snowflake_reset|segment_slots)'
             AND has_function_privilege('{MALLORY}', oid, 'EXECUTE')"
    );
    assert_eq!(admin.column::<String>(&sql), [""; 0]);
    attack.mallory_tries(&triggers(&attack));
    use_everything(&attack);
    attack.assert_nobody_ran_her_code();
}

/// Operators and functions that fit the arguments of leaf_id's SQL better than those of
/// pg_catalog, as far as there may be any.
fn better_matches() -> String {
    format!(
        "DO $$
        DECLARE
            l text; r text; op text; result text; f record;
            types text[] := ARRAY['integer', 'bigint', 'numeric', 'double precision', 'real', 'text',
                'name', 'oid', 'boolean', 'regclass'];
            number integer := 0;
        BEGIN
            FOREACH op IN ARRAY ARRAY['+', '-', '*', '/', '<', '>', '<=', '>=', '=', '<>', '||'] LOOP
                FOREACH l IN ARRAY types LOOP
                    FOREACH r IN ARRAY types LOOP
                        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_operator o
                            WHERE o.oprname = op AND o.oprleft = l::regtype AND o.oprright = r::regtype);
                        number := number + 1;
                        result := CASE WHEN op IN ('<', '>', '<=', '>=', '=', '<>') THEN 'boolean'
                            WHEN op = '||' THEN 'text' ELSE 'double precision' END;
                        BEGIN
                            EXECUTE format('CREATE FUNCTION public.better_%s(l %s, r %s) RETURNS %s
                                LANGUAGE plpgsql AS $f$BEGIN PERFORM {HERS}.run(%L); RETURN %s; END$f$',
                                number, l, r, result, format('operator %s (%s, %s)', op, l, r),
                                CASE result WHEN 'boolean' THEN 'true' WHEN 'text' THEN 'NULL' ELSE '1' END);
                            EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.better_%s)',
                                op, l, r, number);
                        EXCEPTION WHEN OTHERS THEN NULL;
                        END;
                    END LOOP;
                END LOOP;
            END LOOP;
            FOR f IN SELECT * FROM (VALUES
                ('to_timestamp(s numeric)', 'timestamptz', 'now()'),
                ('to_timestamp(s bigint)', 'timestamptz', 'now()'),
                ('make_interval(years numeric, secs numeric)', 'interval', 'NULL'),
                ('make_interval(secs double precision)', 'interval', 'NULL'),
                ('make_interval(secs numeric)', 'interval', 'NULL'),
                ('format(a text, b text)', 'text', 'a'),
                ('format(a text, b bigint)', 'text', 'a'),
                ('format(a text, b name)', 'text', 'a'),
                ('octet_length(a name)', 'integer', '1'),
                ('quote_ident(a name)', 'text', 'a'),
                ('num_nulls(a bigint, b bigint)', 'integer', '0'),
                ('pg_has_role(a oid, b text)', 'boolean', 'true'),
                ('abs(a name)', 'bigint', '1')
            ) AS t(head, result, value) LOOP
                EXECUTE format('CREATE FUNCTION public.%s RETURNS %s LANGUAGE plpgsql AS
                    $f$BEGIN PERFORM {HERS}.run(%L); RETURN %s; END$f$', f.head, f.result, f.head, f.value);
            END LOOP;
        END $$;
        GRANT USAGE ON SCHEMA public TO PUBLIC"
    )
}

/// What a superuser does to look after leaf_id.
fn look_after(attack: &Attack) {
    let mut admin = attack.admin();
    for statement in [
        "SELECT leaf_tag_create('v', step => 10, max_value => 1000000)",
        "SELECT leaf_segment_next_batch('v', 200)",
        "SELECT * FROM leaf_segment_status",
        "SELECT * FROM leaf_central_status",
        "SELECT * FROM leaf_snowflake_status",
        "SELECT leaf_worker_retire(5)",
        "SELECT leaf_worker_retire(5, false)",
        "SELECT * FROM leaf_worker_status",
        "SELECT leaf_worker_release(0)",
        "SELECT leaf_snowflake_decode(leaf_snowflake_next())",
        "SELECT leaf_snowflake_min(now())",
        "SELECT leaf_tag_reset('v', 1)",
        "SELECT leaf_tag_drop('v')",
    ] {
        if let Err(failure) = admin.try_run(statement) {
            println!("{statement}: {failure}");
        }
    }
}

/// S3. Before: one SELECT on a status view by a superuser, and the planter is one.
#[test]
fn operators_and_functions_that_fit_better_than_those_of_pg_catalog() {
    each(OWNERS, |&by| {
        for (early, names) in [(true, "before"), (false, "after")] {
            println!("planted {names} CREATE EXTENSION");
            let attack = Attack::before_install(by, &[("leaf_id.worker_id", "1")]);
            if early {
                attack.mallory().run(&better_matches());
                attack.install();
            } else {
                attack.install();
                attack.mallory().run(&better_matches());
            }
            create_tag(&attack);
            use_everything(&attack);
            // So that there is a rate, and something is reserved.
            attack.alice().take("t", 100);
            look_after(&attack);
            attack.assert_nobody_ran_her_code();
        }
    });
}

/// S3, S4: schemas, tables, types and functions that stand where leaf_id's are to be created.
/// CREATE EXTENSION may fail. Before: the tables lie in a schema that is hers to rename and
/// drop.
#[test]
fn what_stands_where_leaf_id_is_to_be_created() {
    each(OWNERS, |&by| {
        let attack = Attack::before_install(by, &[]);
        attack.mallory_tries(&[
            "CREATE SCHEMA leaf_id",
            "GRANT ALL ON SCHEMA leaf_id TO PUBLIC",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA leaf_id GRANT ALL ON TABLES TO PUBLIC",
        ]);
        let installed = match by {
            Attacker::Installer => attack.mallory().try_run("CREATE EXTENSION leaf_id"),
            _ => Err(Failure::default()),
        };
        let installed = installed.or_else(|failure| {
            println!("{failure}");
            attack.admin().try_run("CREATE EXTENSION leaf_id")
        });
        if let Err(failure) = installed {
            println!("{failure}");
            attack.mallory().run("DROP SCHEMA leaf_id");
            attack.install();
        }
        let mut admin = attack.admin();
        for table in ["leaf_alloc", "leaf_worker", "leaf_registry"] {
            let table = admin.table(table);
            let (schema, _) = table.split_once('.').unwrap();
            let sql = format!(
                "SELECT pg_has_role('{MALLORY}', nspowner, 'MEMBER') FROM pg_namespace
                 WHERE nspname = '{schema}'"
            );
            assert!(!admin.value::<bool>(&sql), "{table} is in a schema of hers");
        }
    });
}

/// S4: her own function in the place of one that leaf_id's functions call. Before: the next
/// call of a member's runs it as the superuser.
#[test]
fn a_function_in_the_place_of_leaf_ids() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let mut admin = attack.admin();
        admin.run(
            "CREATE ROLE member LOGIN;
             GRANT EXECUTE ON FUNCTION leaf_claim, leaf_worker_claim, leaf_worker_renew TO member",
        );
        attack.mallory_tries(&replaced_functions(&attack));
        let mut member = attack.server.connect_as("member", SHOP);
        let schema = admin.schema_of_functions();
        for call in member_calls() {
            if let Err(failure) = member.try_run(&format!("SELECT * FROM {schema}.{call}")) {
                println!("{call}: {failure}");
            }
        }
        attack.assert_nobody_ran_her_code();
    });
}

/// What other servers ask for.
fn member_calls() -> [String; 3] {
    let now = now_ms();
    let terms = format!("{now}, {}, 60000, 1000, 1288834974657", now + 1000);
    [
        "leaf_claim('t', 10)".into(),
        format!("leaf_worker_claim(1, 'm', NULL, 7, NULL, NULL, {terms})"),
        format!("leaf_worker_renew(0, 1, 'm', 7, 8, {terms})"),
    ]
}

/// Moves the schema public away, and makes another one with functions of the same names and
/// arguments as all of leaf_id's.
fn replaced_functions(attack: &Attack) -> Vec<String> {
    let mut admin = attack.admin();
    let mut statements = vec![
        "ALTER SCHEMA public RENAME TO kept".to_string(),
        "CREATE SCHEMA public".into(),
        "GRANT USAGE ON SCHEMA public TO PUBLIC".into(),
        "GRANT USAGE ON SCHEMA kept TO PUBLIC".into(),
    ];
    let functions: Vec<String> = admin.column(&format!(
        "SELECT format('CREATE FUNCTION public.%I(%s)%s LANGUAGE plpgsql AS
                 $f$BEGIN PERFORM {HERS}.run(%L); RETURN; END$f$',
             proname, pg_get_function_arguments(p.oid),
             CASE WHEN pg_get_function_arguments(p.oid) LIKE '%OUT %' THEN ''
                 ELSE ' RETURNS SETOF ' || regexp_replace(
                     pg_get_function_result(p.oid), '^SETOF ', '') END,
             'function ' || proname)
         FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
             AND d.deptype = 'e'
         JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leaf_id'
         WHERE prorettype <> 'trigger'::regtype"
    ));
    assert!(functions.len() > 10, "{functions:?}");
    statements.extend(functions);
    statements
}

/// S4: the same, where the registrar of this server asks the registry by itself. Before:
/// superuser within 2 s, without anybody's call.
#[test]
fn a_function_in_the_place_of_leaf_ids_that_a_worker_calls() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[("leaf_id.worker_lease", "2s")]);
        create_tag(&attack);
        attack.server.lease(SHOP, "here");
        let mut admin = attack.admin();
        wait_until(LIMIT, "a lease", || {
            admin
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .is_ok()
        });
        attack.mallory_tries(&replaced_functions(&attack));
        let mut renewed_at = || -> String {
            let table = admin.table("leaf_worker");
            admin.value(&format!("SELECT max(renewed_at)::text FROM {table}"))
        };
        let before = renewed_at();
        let renewed = becomes(LIMIT, || attack.has_won() || renewed_at() != before);
        attack.assert_nobody_ran_her_code();
        assert!(renewed, "leases are not renewed any more");
    });
}

/// An inheritance child, a rule, a policy and the like, by who may create them on leaf_id's
/// tables; and what only a superuser may. Before: triggers of the same role won.
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
            "ALTER EXTENSION leaf_id DROP FUNCTION leaf_claim(text, integer)".into(),
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
        attack.assert_nobody_ran_her_code();
        attack.let_alice_take("t", 50).unwrap();
    });
}

/// The same by a DBA's hand, who gave her the right to: what a superuser has put on the table
/// runs in the statements of users, and not in claims. Before: superuser at the next claim.
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
        attack.assert_nobody_ran_her_code();
        ids.push(attack.let_alice_take("t", 100).unwrap());
        assert_issued_once(&[ids.concat()]);
    });
}

/// Claims of a server whose table of tags belongs to her, a row's own functions in its types,
/// checks and indexes: nothing of it runs with anybody's rights but hers. (Such a table may be
/// refused, 42804.)
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
        ],
        |what| {
            println!("{what}");
            let attack = Attack::on_installed(Attacker::Stranger, &[]);
            create_tag(&attack);
            attack.mallory().run(
                "CREATE FUNCTION hers.stable(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql
                 AS 'BEGIN RETURN $1; END'",
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
            // What ALTER TABLE itself ran is the DBA's own doing.
            attack.mallory().run(
                "CREATE OR REPLACE FUNCTION hers.stable(bigint) RETURNS bigint IMMUTABLE
                 LANGUAGE plpgsql AS 'BEGIN PERFORM hers.run(''stable''); RETURN $1; END'",
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
