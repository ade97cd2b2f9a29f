//! Would catch: a name of leaf_id's, or used by its SQL, that resolves to another role's object and
//! runs it with rights that role does not have (I9).

use leaf_id_tests::{
    Attack, Attacker, Failure, HERS, MALLORY, SHOP, Server, Session, becomes, each, wait_until,
};

use super::code_as_superuser::{LIMIT, OWNERS, create_tag, member_calls, use_everything};

/// Operators and functions that match the arguments in leaf_id's SQL better than those of
/// pg_catalog, as far as they can be created.
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

/// Statements of a superuser who monitors leaf_id.
fn look_after(attack: &Attack) {
    let mut admin = attack.admin();
    for statement in [
        "SELECT leaf_tag_create('v', step => 10, max_value => 1000000)",
        "SELECT leaf_segment_next_batch('v', 200)",
        "SELECT * FROM leaf_id.tags",
        "SELECT * FROM leaf_id.problems",
        "SELECT * FROM leaf_id.server",
        "SELECT leaf_id.leaf_worker_retire(5)",
        "SELECT leaf_id.leaf_worker_retire(5, false)",
        "SELECT leaf_id.leaf_worker_set_aside(6, now())",
        "SELECT * FROM leaf_id.fleet",
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

/// S3. Before: one SELECT on a status view by a superuser makes the planter a superuser.
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
            // For a rate to exist, and a reservation.
            attack.alice().take("t", 100);
            look_after(&attack);
            attack.assert_her_code_did_not_run();
        }
    });
}

/// Types with the names of those that variables are declared with. Before: a procedure, whose
/// search_path is its caller's, takes a domain of hers for pg_catalog's type, whose CHECK runs.
#[test]
fn types_in_the_place_of_those_of_pg_catalog() {
    let attack = Attack::on_installed(Attacker::Installer, &[]);
    let mut mallory = attack.mallory();
    mallory.run("CREATE TABLE t (id serial)");
    for name in [
        "record", "text", "oid", "name", "boolean", "bool", "regclass", "integer", "int4",
        "bigint", "int8",
    ] {
        mallory.run(&format!(
            "CREATE DOMAIN {HERS}.\"{name}\" AS pg_catalog.text CHECK ({HERS}.run('type {name}'))"
        ));
    }
    for call in [
        "CALL public.leaf_adopt_all('public')",
        "CALL public.leaf_release_all('public')",
        "SELECT public.leaf_adopt('t', 'id')",
        "SELECT public.leaf_release('t', 'id')",
        "SELECT * FROM public.leaf_sync()",
    ] {
        let mut admin = attack.admin();
        admin.run(&format!("SET search_path = {HERS}, pg_catalog, public"));
        if let Err(failure) = admin.try_run(call) {
            println!("{call}: {failure}");
        }
        attack.assert_her_code_did_not_run();
    }
    // All have worked.
    let made =
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attidentity <> ''";
    assert_eq!(attack.admin().ids(made), [1]);
}

/// S3, S4: schemas, tables, types and functions with names of objects that leaf_id is going to
/// create. CREATE EXTENSION may fail. Before: the tables are in a schema that she can rename and
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

/// S4: her function replaces one that leaf_id's functions call. Before: a member's next call runs
/// it as the superuser.
#[test]
fn a_function_in_the_place_of_leaf_ids() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let mut admin = attack.admin();
        admin.run(
            "CREATE ROLE member LOGIN;
             GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member",
        );
        attack.mallory_tries(&replaced_functions(&attack));
        let mut member = attack.server.connect_as("member", SHOP);
        let schema = admin.schema_of_functions();
        for call in member_calls() {
            if let Err(failure) = member.try_run(&format!("SELECT * FROM {schema}.{call}")) {
                println!("{call}: {failure}");
            }
        }
        for call in [
            "leaf_tag_create('n')",
            "leaf_tag_grant('n', 'member')",
            "leaf_tag_reset('n', 7)",
            "leaf_tag_drop('n')",
        ] {
            admin.run(&format!("SELECT {schema}.{call}"));
        }
        for call in [
            "opaque_create('o')",
            "gapless_create('g')",
            "gapless_next('g')",
        ] {
            admin.run(&format!("SELECT leaf_id.leaf_{call}"));
        }
        admin.run(&format!(
            "SELECT * FROM {schema}.leaf_sync(); SELECT * FROM {schema}.leaf_check()"
        ));
        attack.assert_her_code_did_not_run();
    });
}

/// Calls, and does something once the call waits. Returns how the call ended.
fn during_a_wait(
    attack: &Attack,
    caller: &mut Session,
    call: &str,
    wait: &str,
    during: impl FnOnce(),
) -> Result<(), Failure> {
    let pid = caller.pid();
    let waits = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND {wait}");
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.try_run(call));
        let mut watcher = attack.admin();
        wait_until(LIMIT, "the call to wait", || watcher.value(&waits));
        during();
        calling.join().unwrap()
    })
}

/// The extension goes, and other functions come in its place, while a superuser's call waits.
/// Before: the next try runs hers.
#[test]
fn functions_in_the_place_of_leaf_ids_while_a_call_waits() {
    for call in [
        "SELECT leaf_release('t', 'id')",
        "CALL leaf_release_all('public')",
    ] {
        let attack = Attack::on_installed(Attacker::Installer, &[]);
        let mut mallory = attack.mallory();
        mallory.run(
            "CREATE TABLE s (id serial); SELECT leaf_adopt('s', 'id');
             CREATE TABLE t (id serial); SELECT leaf_adopt('t', 'id')",
        );
        mallory.run("BEGIN; SELECT * FROM t");
        let mut admin = attack.admin();
        let moved = during_a_wait(&attack, &mut admin, call, "wait_event = 'PgSleep'", || {
            mallory.run("SET LOCAL lock_timeout = '300ms'");
            mallory.fails("DROP EXTENSION leaf_id CASCADE").is("55P03");
            mallory.run("ROLLBACK");
        });
        moved.unwrap();
        mallory.run("DROP EXTENSION leaf_id CASCADE");
        attack.assert_her_code_did_not_run();
    }
}

/// A view, in the place of the table that a superuser's call waits for. Before: LOCK TABLE also locks
/// what is under it, of whomever, and the next try waits with that.
#[test]
fn a_view_in_the_place_of_a_table_that_is_moved() {
    let attack = Attack::on_installed(Attacker::Installer, &[]);
    attack
        .admin()
        .run("CREATE SCHEMA alices AUTHORIZATION alice; CREATE TABLE alices.orders ()");
    let (mut holder, mut other) = (attack.mallory(), attack.mallory());
    holder.run(&format!(
        "CREATE TABLE {HERS}.t (id serial); CREATE TABLE {HERS}.u (id int); GRANT USAGE ON SCHEMA {HERS} TO PUBLIC"
    ));
    attack
        .admin()
        .run(&format!("GRANT USAGE ON SCHEMA alices TO {MALLORY}"));
    holder.run(&format!("BEGIN; LOCK TABLE {HERS}.t IN ACCESS SHARE MODE"));
    other.run(&format!("BEGIN; LOCK TABLE {HERS}.u IN ACCESS SHARE MODE"));
    let mut admin = attack.admin();
    admin.run("SET lock_timeout = '100ms'");
    let call = format!("SELECT leaf_adopt('{HERS}.t', 'id')");
    let moved = during_a_wait(&attack, &mut admin, &call, "wait_event = 'PgSleep'", || {
        holder.run(&format!(
            "ALTER TABLE {HERS}.t RENAME TO moved;
             CREATE VIEW {HERS}.t WITH (security_invoker = true) AS SELECT 1 AS x FROM alices.orders, {HERS}.u;
             COMMIT"
        ));
    });
    moved.unwrap();
    attack.assert_her_code_did_not_run();
}

/// Before: where `standard_conforming_strings` is off, the name of a tag is a statement in the HINT.
#[test]
fn a_hint_quotes_the_name_of_a_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    // Since 19 it is always on.
    let settings: &[_] = if session.major() < 19 {
        &["on", "off"]
    } else {
        &["on"]
    };
    for setting in settings {
        session.run(&format!("SET standard_conforming_strings = {setting}"));
        let create = r"SELECT leaf_id.leaf_opaque_create(E'\\\'); SELECT 1; --')";
        let _ = session.try_run(create);
        session.fails(create).hints(r"(E'\\''); SELECT 1; --')");
    }
}

/// The same between two columns, whose transactions end; and for a role that may only become a
/// superuser. Before: the third column is moved by her function.
#[test]
fn a_function_in_the_place_of_leaf_ids_between_two_columns() {
    let attack = Attack::on_installed(Attacker::Installer, &[]);
    // PostgreSQL's, where a table is gone that a function was waiting for.
    attack.server.expect_internal_errors();
    attack.admin().run(&format!(
        "CREATE ROLE dba LOGIN; GRANT postgres TO dba; CREATE SCHEMA apps AUTHORIZATION dba;
         GRANT SELECT, INSERT, UPDATE ON leaf_id.leaf_alloc TO dba; GRANT USAGE ON SCHEMA apps TO {MALLORY}"
    ));
    let mut dba = attack.server.connect_as("dba", SHOP);
    for n in 1..=5 {
        dba.run(&format!(
            "CREATE TABLE apps.t{n} (id serial); GRANT SELECT ON apps.t{n} TO {MALLORY}"
        ));
    }
    let mut holder = attack.mallory();
    holder.run("BEGIN; SELECT * FROM apps.t1");
    let planted = format!(
        "BEGIN; DROP EXTENSION leaf_id CASCADE; CREATE SCHEMA leaf_id;
         CREATE SCHEMA leaf_id_internal;
         CREATE FUNCTION leaf_id_internal.leaf_adopt_column(relation regclass, column_name name, wanted_tag text, step integer,
             force boolean, OUT tag text, OUT first_id bigint, OUT details text)
         LANGUAGE plpgsql AS $f$BEGIN PERFORM {HERS}.run('leaf_adopt_column'); END$f$;
         GRANT USAGE ON SCHEMA leaf_id, leaf_id_internal TO PUBLIC; COMMIT"
    );
    let mut watcher = attack.admin();
    let mut waits = |what: &str| {
        let sql = format!("SELECT count(*) > 0 FROM pg_stat_activity WHERE {what}");
        wait_until(LIMIT, what, || watcher.value(&sql));
    };
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| dba.try_run("CALL leaf_adopt_all('apps')"));
        waits("usename = 'dba' AND wait_event = 'PgSleep'");
        // Or the two wait for each other, and hers is given up: until the call has ended, at the latest.
        let dropping = scope.spawn(|| {
            while let Err(failure) = attack.mallory().try_run(&planted) {
                failure.is("40P01");
            }
        });
        waits("query LIKE 'BEGIN; DROP EXTENSION%' AND wait_event_type = 'Lock'");
        holder.run("ROLLBACK");
        dropping.join().unwrap();
        println!("{:?}", calling.join().unwrap());
    });
    attack.assert_her_code_did_not_run();
}

/// As above, but the call is her own, of a function that runs with the extension's rights. Before: it
/// waits for the table, and then reads her view instead.
#[test]
fn a_view_in_the_place_of_a_table_that_a_function_of_more_rights_reads() {
    for call in [
        "SELECT leaf_id_internal.leaf_require('SELECT')",
        "SELECT public.leaf_tag_create('x')",
        "SELECT public.leaf_tag_drop('x')",
    ] {
        let attack = Attack::on_installed(Attacker::Installer, &[]);
        // PostgreSQL's, where a table is gone that a function was waiting for.
        attack.server.expect_internal_errors();
        let mut mallory = attack.mallory();
        mallory.run("CREATE TABLE t (id int)");
        let mut caller = attack.mallory();
        mallory.run(&format!(
            "BEGIN; DROP EXTENSION leaf_id; CREATE SCHEMA leaf_id;
             CREATE VIEW leaf_id.leaf_alloc AS SELECT 'x' AS biz_tag WHERE {HERS}.run('view');
             CREATE VIEW leaf_id.leaf_high_mark AS SELECT 'x' AS tag WHERE {HERS}.run('view')"
        ));
        let called = during_a_wait(
            &attack,
            &mut caller,
            call,
            "wait_event_type = 'Lock'",
            || {
                mallory.run("COMMIT");
            },
        );
        println!("{call}: {called:?}");
        attack.assert_her_code_did_not_run();
    }
}

/// Renames schema public, and creates another one with functions of the same names and arguments as
/// all of leaf_id's.
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

/// S4: the same, if this server's registrar calls the registry. Before: superuser within 2 s,
/// without any call by others.
#[test]
fn a_function_in_the_place_of_leaf_ids_that_a_worker_calls() {
    each(OWNERS, |&by| {
        let attack = Attack::on_installed(by, &[]);
        create_tag(&attack);
        let mut admin = attack.admin();
        admin.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000)");
        attack.server.lease(SHOP, "here");
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
        attack.assert_her_code_did_not_run();
        assert!(renewed, "leases are not renewed any more");
    });
}
