//! Would catch: an updated extension that differs from a fresh one, depending on who installed or
//! updated it; an update script that grants too much; a comparison that detects nothing; a library
//! that cannot distinguish an older extension from an altered table; and ids that repeat or stop
//! after an update.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leaf_id_tests::catalog::{catalog, differences};
use leaf_id_tests::installation::{VERSION, script};
use leaf_id_tests::{Server, assert_issued_once, in_threads_until, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A feature that a made-up earlier version lacks. The update script adds it.
struct Change {
    /// Parts removed from the current script: from the first text to the end of the second. In the
    /// update script, `{0}` stands for the first part.
    cuts: &'static [(&'static str, &'static str)],
    /// The update script for it, and the privileges that it grants: to others, and to the owner.
    step: &'static str,
    grants: &'static str,
    to_owner: &'static str,
}

const NOTHING: Change = Change {
    cuts: &[],
    step: "{0}",
    grants: "",
    to_owner: "",
};

const FUNCTION: Change = Change {
    cuts: &[
        (
            "CREATE FUNCTION @extschema@.leaf_tag_reset(",
            "below those in columns only by force';",
        ),
        (
            "    @extschema@.leaf_tag_reset(text, bigint, boolean)",
            ",\n",
        ),
        (
            "    @extschema@.leaf_tag_reset(text, bigint, boolean)",
            ",\n",
        ),
    ],
    grants: "GRANT EXECUTE ON FUNCTION @extschema@.leaf_tag_reset(text, bigint, boolean) TO PUBLIC;",
    to_owner: "'GRANT EXECUTE ON FUNCTION %2$s.leaf_tag_reset(text, bigint, boolean) TO %1$s WITH GRANT OPTION'",
    ..NOTHING
};

const COLUMN: Change = Change {
    cuts: &[
        (
            "COMMENT ON COLUMN leaf_id.leaf_alloc.granted_to",
            "and leaf_tag_revoke()';",
        ),
        ("    granted_to name[] NOT NULL", "1000),\n"),
        (
            ",\n    CONSTRAINT leaf_alloc_server_incarnation_of_server",
            "OPERATOR(pg_catalog.=) 0)",
        ),
    ],
    step: "ALTER TABLE leaf_id.leaf_alloc ADD COLUMN granted_to name[],
           ADD CONSTRAINT leaf_alloc_server_incarnation_of_server CHECK (
               server IS NOT NULL OR server_incarnation OPERATOR(pg_catalog.=) 0);
           UPDATE leaf_id.leaf_alloc SET granted_to = ARRAY['public']::name[];
           ALTER TABLE leaf_id.leaf_alloc ALTER granted_to SET NOT NULL,
               ALTER granted_to SET DEFAULT CASE WHEN current_setting('leaf_id.public_tags', true) = 'on'
                   THEN '{public}'::name[] ELSE ARRAY[CURRENT_USER]::name[] END,
               ADD CONSTRAINT leaf_alloc_granted_to_length CHECK (cardinality(granted_to) <= 1000);
           {0}",
    ..NOTHING
};

const TRIGGER: Change = Change {
    cuts: &[
        (
            "CREATE TRIGGER leaf_alloc_truncate",
            "leaf_alloc_truncate();",
        ),
        (
            "ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_truncate",
            ";",
        ),
    ],
    step: "{0} ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_truncate;",
    ..NOTHING
};

const VIEW: Change = Change {
    cuts: &[
        ("CREATE VIEW leaf_id.server", "its snowflake generator';"),
        ("COMMENT ON COLUMN leaf_id.server.slots", "null if it did';"),
        (" leaf_id.server,", ","),
    ],
    step: "{0} {1}",
    grants: "GRANT SELECT ON leaf_id.server TO PUBLIC;",
    ..NOTHING
};

const CONSTRAINT: Change = Change {
    cuts: &[(
        "CONSTRAINT leaf_worker_node_name_length",
        "OPERATOR(pg_catalog.<=) 63)",
    )],
    step: "ALTER TABLE leaf_id.leaf_worker ADD {0};",
    ..NOTHING
};

const DUMPED: Change = Change {
    cuts: &[(
        "SELECT pg_catalog.pg_extension_config_dump('leaf_id.leaf_gapless'",
        ";",
    )],
    ..NOTHING
};

const COMMENT: Change = Change {
    cuts: &[("COMMENT ON SCHEMA leaf_id", ";")],
    ..NOTHING
};

/// A function with another body. Users' own functions may depend on it, so it is replaced.
const BODY: Change = Change {
    cuts: &[(
        "    DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = $1;",
        "\n",
    )],
    step: "{leaf_tag_drop}",
    ..NOTHING
};

/// The made-up version.
const OLD: &str = "0.0.1-test";

const CHANGES: &[Change] = &[
    BODY, FUNCTION, COLUMN, TRIGGER, VIEW, CONSTRAINT, DUMPED, COMMENT,
];

/// A file in sql/.
fn source(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    fs::read_to_string(root.join(name)).unwrap()
}

/// Removes a part of a text.
fn cut(text: &mut String, (from, to): (&str, &str)) -> String {
    let start = text
        .find(from)
        .unwrap_or_else(|| panic!("no {from:?} in the script"));
    let end = start + text[start..].find(to).unwrap() + to.len();
    text.drain(start..end).collect()
}

fn script_name(version: &str) -> String {
    format!("leaf_id--{version}.sql")
}

fn step_name(version: &str) -> String {
    format!("leaf_id--{version}--{VERSION}.sql")
}

/// Script of a version without these changes, and an update script that lacks one of them.
fn before(changes: &[Change], forgotten: Option<usize>) -> (String, String) {
    let mut old = script();
    let body = cut(
        &mut script(),
        ("CREATE FUNCTION @extschema@.leaf_tag_drop(", "\n$$;"),
    );
    let body = body.replacen("CREATE", "CREATE OR REPLACE", 1);
    let (mut step, mut grants, mut to_owner) = (String::new(), String::new(), Vec::new());
    for (number, change) in changes.iter().enumerate() {
        let mut text = change.step.replace("{leaf_tag_drop}", &body);
        for (piece, range) in change.cuts.iter().enumerate() {
            text = text.replace(&format!("{{{piece}}}"), &cut(&mut old, *range));
        }
        if forgotten != Some(number) {
            step += &format!("{text}\n");
            grants += &format!("{}\n", change.grants);
            to_owner.extend((!change.to_owner.is_empty()).then_some(change.to_owner));
        }
    }
    let strangers = cut(&mut source("privileges.sql"), ("DO $$", "END\n$$;"));
    let step = source("step.sql.in")
        .replace("@CHANGES@", &step)
        .replace("@GRANTS@", &grants)
        .replace("@GRANTS_TO_OWNER@", &to_owner.join(", "))
        .replace("@STRANGERS@", &strangers);
    (old, step)
}

/// A database whose owner is an ordinary role, with default privileges that would apply to
/// everything created there.
fn new_database(server: &Server, name: &str) {
    server
        .session()
        .run(&format!("CREATE DATABASE {name} OWNER owner"));
    server.session_in(name).run(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO mallory;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO mallory",
    );
}

/// The catalog after these statements by these roles.
fn after(server: &Server, database: &str, statements: &[(&str, String)]) -> BTreeSet<String> {
    new_database(server, database);
    for (role, statement) in statements {
        server.connect_as(role, database).run(statement);
    }
    catalog(server, database)
}

fn server_with(scripts: &[(String, String)]) -> Server {
    let server = Server::with_scripts(scripts, &[]);
    server
        .session()
        .run("CREATE ROLE owner LOGIN; CREATE ROLE mallory");
    server
}

fn create(version: &str) -> String {
    format!("CREATE EXTENSION leaf_id VERSION '{version}'")
}

const UPDATE: &str = "ALTER EXTENSION leaf_id UPDATE";

/// Whichever role installs and updates, the catalog must be the same as after a fresh installation
/// by the installing role.
#[track_caller]
fn assert_updated_is_fresh(server: &Server, version: &str) {
    for (number, (installs, updates)) in [
        ("postgres", "postgres"),
        ("owner", "owner"),
        ("owner", "postgres"),
    ]
    .into_iter()
    .enumerate()
    {
        let fresh = after(
            server,
            &format!("fresh_{number}"),
            &[(installs, create(VERSION))],
        );
        let updated = after(
            server,
            &format!("updated_{number}"),
            &[(installs, create(version)), (updates, UPDATE.into())],
        );
        let different = differences(&fresh, &updated);
        assert!(
            different.is_empty(),
            "{version}, installed by {installs} and updated by {updates}:\n{different}"
        );
        for database in ["fresh", "updated"] {
            server
                .session()
                .run(&format!("DROP DATABASE {database}_{number}"));
        }
    }
}

/// A script that looks a function up where its owner can create one, as in a schema that is renamed
/// while the script runs.
#[test]
fn a_function_of_another_role_is_noticed() {
    let (whole, ours) = (
        script(),
        "EXECUTE FUNCTION leaf_id_internal.leaf_alloc_stamp()",
    );
    assert!(whole.contains(ours));
    let careless = whole.replace(ours, "EXECUTE FUNCTION @extschema@.stamp()");
    let server = server_with(&[(script_name(OLD), careless)]);
    new_database(&server, "app");
    let mut owner = server.connect_as("owner", "app");
    owner.run(
        "CREATE FUNCTION public.stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    );
    owner
        .fails(&create(OLD))
        .is("55000")
        .says("function stamp(), which is not its own");
}

#[test]
fn an_updated_extension_is_a_fresh_one() {
    let (old, step) = before(CHANGES, None);
    let server = server_with(&[(script_name(OLD), old), (step_name(OLD), step)]);
    assert_updated_is_fresh(&server, OLD);
}

/// An update script that lacks a change, or part of the frame, results in another catalog.
#[test]
fn what_a_step_forgets_is_seen() {
    let whole = before(CHANGES, None).1;
    let mut steps: Vec<_> = (0..CHANGES.len())
        .map(|number| (format!("change-{number}"), before(CHANGES, Some(number)).1))
        .collect();
    for (name, part, instead) in [
        ("revoke", "        EXECUTE statement;", ""),
        ("public", FUNCTION.grants, ""),
        ("view", VIEW.grants, ""),
        (
            "owner",
            "pg_catalog.format(privilege, role, schema)",
            "pg_catalog.format(privilege, 'CURRENT_USER', schema)",
        ),
        ("option", " WITH GRANT OPTION", ""),
        ("default", "ARRAY[CURRENT_USER]::name[]", "'{}'"),
        (
            "order",
            "ALTER TABLE leaf_id.leaf_alloc ADD COLUMN granted_to",
            "ALTER TABLE leaf_id.leaf_alloc ADD other int; ALTER TABLE leaf_id.leaf_alloc DROP other; ALTER TABLE leaf_id.leaf_alloc ADD COLUMN granted_to",
        ),
        ("always", "ENABLE ALWAYS", "ENABLE"),
        (
            "owned",
            "CREATE VIEW",
            "CREATE VIEW @extschema@.own AS SELECT 1; CREATE VIEW",
        ),
        (
            "not-owned",
            "",
            "ALTER EXTENSION leaf_id DROP VIEW leaf_id.server",
        ),
    ] {
        let step = if part.is_empty() {
            format!("{whole}\n{instead};")
        } else {
            assert!(whole.contains(part), "{part}");
            whole.replacen(part, instead, 1)
        };
        steps.push((name.into(), step));
    }
    let old = before(CHANGES, None).0;
    let scripts = steps.iter().flat_map(|(name, step)| {
        [
            (script_name(name), old.clone()),
            (step_name(name), step.clone()),
        ]
    });
    let server = server_with(&scripts.collect::<Vec<_>>());
    let fresh = after(&server, "fresh", &[("owner", create(VERSION))]);
    let again = after(&server, "again", &[("owner", create(VERSION))]);
    assert_eq!(differences(&fresh, &again), "");
    for (number, (name, _)) in steps.iter().enumerate() {
        let updated = after(
            &server,
            &format!("updated_{number}"),
            &[("owner", create(name)), ("postgres", UPDATE.into())],
        );
        let different = differences(&fresh, &updated);
        println!("{name}\n{different}");
        assert!(!different.is_empty(), "{name} is not seen");
    }
}

/// An extension that is not updated yet answers under the new library, or says what it needs: each
/// view, and each kind of id.
fn assert_answers(server: &Server, version: &str) {
    new_database(server, "not_updated");
    let mut admin = server.session_in("not_updated");
    admin.run(&create(version));
    let views: Vec<String> = admin.column(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'leaf_id'::regnamespace AND relkind = 'v'",
    );
    assert!(views.len() > 2, "{views:?}");
    let views = views
        .into_iter()
        .map(|view| format!("SELECT * FROM {view}"));
    let others = [
        "SELECT leaf_tag_create('t')",
        "SELECT leaf_segment_next('t')",
        "SELECT leaf_ordered_next('t')",
        "SELECT leaf_snowflake_next()",
        "SELECT leaf_id.leaf_opaque_create('o')",
        "SELECT leaf_opaque_next('o')",
        "SELECT leaf_id.leaf_gapless_create('g')",
        "SELECT leaf_id.leaf_gapless_next('g')",
        "SELECT * FROM leaf_check()",
    ];
    for call in views.chain(others.map(String::from)) {
        if let Err(refusal) = admin.try_run(&call) {
            println!("{version}: {call}: {refusal}");
            refusal.is("55000").hints("ALTER EXTENSION leaf_id UPDATE");
        }
    }
    drop(admin);
    server.session().run("DROP DATABASE not_updated");
}

/// Functions of a later version before the restart: this library knows fewer columns, and forms no
/// row of them.
#[test]
fn an_older_library_forms_no_row_of_a_later_version() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "5")]);
    server.expect_internal_errors();
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    admin.next("t");
    let calls: Vec<String> = admin.column(
        r"SELECT unnest(ARRAY[
              regexp_replace(regexp_replace(pg_get_functiondef(p.oid), '\)\n RETURNS', E', OUT one_more text)\n RETURNS'),
                             '^[^(]*\(', 'CREATE FUNCTION public.later('),
              format('SELECT * FROM public.later(%s)', (
                  SELECT string_agg(format(CASE type WHEN 'text'::regtype THEN '%L::%s'
                                                     WHEN 'oid'::regtype THEN '%L::regclass::%s' ELSE '1::%2$s' END,
                                           CASE WHEN proargnames[number] = 'layout' THEN '41/10/12' WHEN type = 'text'::regtype THEN 't'
                                                ELSE 'leaf_id.leaf_alloc' END,
                                           type::regtype), ', ' ORDER BY number)
                  FROM unnest(proargtypes) WITH ORDINALITY arguments(type, number)))])
          FROM pg_proc p
          WHERE probin = '$libdir/leaf_id' AND prorettype = 'record'::regtype AND prokind = 'f'
              AND NOT 'pg_node_tree'::regtype = ANY (proargtypes)",
    );
    assert!(calls.len() > 10, "{calls:?}");
    for create_and_call in calls.chunks(2) {
        let [create, call] = create_and_call else {
            unreachable!()
        };
        println!("{create}{call}");
        admin.run(create);
        admin
            .fails(call)
            .is("XX000")
            .says("the library is of another version than this function");
        admin.run("DROP FUNCTION public.later");
    }
}

/// Released versions, from their frozen scripts.
#[test]
fn every_released_version_reaches_this_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql/released");
    let mut released = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let version = name
            .strip_prefix("leaf_id--")
            .and_then(|name| name.strip_suffix(".sql"));
        if let Some(version) = version.filter(|version| *version != VERSION) {
            released.push((version.to_owned(), source(&format!("released/{name}"))));
        }
    }
    println!("{} released versions", released.len());
    if released.is_empty() {
        return;
    }
    let scripts = released
        .iter()
        .map(|(version, text)| (script_name(version), text.clone()));
    let server = server_with(&scripts.collect::<Vec<_>>());
    server.set("leaf_id.worker_id", "5");
    for (version, _) in &released {
        assert_answers(&server, version);
        assert_updated_is_fresh(&server, version);
    }
}

/// New library, old tables: no ids, but an error with a hint; then ids continue. If the library
/// requires nothing new, no action is needed.
#[test]
fn a_newer_library_says_what_an_older_extension_needs() {
    let (old, step) = before(CHANGES, None);
    let server = server_with(&[(script_name(OLD), old), (step_name(OLD), step)]);
    let mut admin = server.session();
    admin.run(&create(OLD));
    server.set("leaf_id.worker_id", "5");
    // Without its trigger, which reads the table, too.
    admin.run(
        "ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER USER;
         INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('t', 10, 10);
         ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp,
             ENABLE ALWAYS TRIGGER leaf_alloc_edit",
    );
    for call in [
        "SELECT leaf_segment_next('t')",
        "SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)",
        "SELECT leaf_tag_create('u')",
        "UPDATE leaf_id.leaf_alloc SET step = 20",
    ] {
        admin
            .fails(call)
            .is("55000")
            .says(&format!(
                "version {OLD}, but the library is version {VERSION}"
            ))
            .details("\"granted_to\"")
            .hints("ALTER EXTENSION leaf_id UPDATE");
    }
    // Snowflake ids need no table.
    admin.run("SELECT leaf_snowflake_next()");
    admin.run(UPDATE);
    let mut ids = admin.take("t", 50);
    ids.extend(server.session().take("t", 50));
    assert_issued_once(&[ids]);
    // An altered table is reported as such, whatever the version.
    admin.run("ALTER TABLE leaf_id.leaf_alloc ALTER update_time TYPE text");
    admin
        .fails("SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)")
        .is("42804");
}

/// Sessions that take ids do not notice an update, neither during nor after it.
#[test]
fn ids_go_on_while_the_extension_is_updated() {
    let (old, step) = before(&[BODY, FUNCTION, VIEW, CONSTRAINT, COMMENT], None);
    // Its locks are held for a while.
    let step = format!("{step}\nLOCK leaf_id.leaf_alloc; SELECT pg_catalog.pg_sleep(0.3);");
    let server = server_with(&[(script_name(OLD), old), (step_name(OLD), step)]);
    server.set("leaf_id.worker_id", "5");
    assert_answers(&server, OLD);
    let mut admin = server.session();
    admin.run(&create(OLD));
    admin.create_steady_tag("t", 10);
    let enough = AtomicUsize::new(0);
    let (ids, ()) = in_threads_until(
        3,
        |_, done| {
            let mut session = server.session();
            session.be_patient();
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                ids.push(session.next("t"));
                enough.fetch_add(1, Ordering::Relaxed);
            }
            ids
        },
        || {
            let taken = || enough.load(Ordering::Relaxed);
            wait_until(LIMIT, "ids before the update", || taken() > 100);
            admin.run(UPDATE);
            let before = taken();
            wait_until(LIMIT, "ids after the update", || taken() > before + 100);
        },
    );
    assert_issued_once(&ids);
    let version: String =
        admin.value("SELECT extversion FROM pg_extension WHERE extname = 'leaf_id'");
    assert_eq!(version, VERSION);
}
