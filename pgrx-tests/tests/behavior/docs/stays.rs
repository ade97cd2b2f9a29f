//! Would catch: what docs/reference.md promises to keep, and a change takes away: a function, column,
//! setting, SQLSTATE, file of the data directory, message between servers, or table in dumps.
//!
//! sql/released/stays.txt lists them, a line each. With `LEAF_ID_EXPECTED=write`, what is new is added
//! there; no test removes a line. A text of an error may change: edit its line, and keep the SQLSTATE.
//! scripts/released.sh keeps the list of each released version.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use leaf_id_tests::{Registry, Server, Session, Stop, wait_until};

use super::page::root;
use super::reference::{errors, functions};

const LIMIT: Duration = Duration::from_secs(60);

fn list() -> PathBuf {
    root().join("sql/released/stays.txt")
}

/// Adds the names in a JSON object, with those of what is in it.
fn of_json(session: &mut Session, what: &str, text: &str, found: &mut BTreeSet<String>) {
    found.extend(session.column::<String>(&format!(
        "WITH RECURSIVE part(path, value) AS (
             SELECT '{what}', $json${text}$json$::jsonb
             UNION ALL
             SELECT concat_ws(' ', path, inner_part.key), inner_part.value
             FROM part, LATERAL (
                 SELECT * FROM jsonb_each(CASE jsonb_typeof(value) WHEN 'object' THEN value ELSE '{{}}' END)
                 UNION ALL
                 SELECT NULL, item FROM jsonb_array_elements(CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END) item
             ) inner_part
         )
         SELECT path FROM part WHERE jsonb_typeof(value) NOT IN ('object', 'array')"
    )));
}

/// What the catalogs show.
fn of_catalogs(session: &mut Session, found: &mut BTreeSet<String>) {
    let functions = functions(session).into_iter();
    found.extend(functions.map(|signature| format!("function {signature}")));
    // Of all tables: a dump has their rows.
    found.extend(session.column::<String>(
        "SELECT format('column %s.%s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod))
         FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
         WHERE relnamespace = 'leaf_id'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped",
    ));
    found.extend(session.column::<String>(
        "SELECT line
         FROM pg_settings, unnest(ARRAY[
             concat_ws(' ', 'setting', name, vartype, unit, context),
             CASE WHEN vartype = 'string' AND boot_val <> '' THEN concat_ws(' ', 'default', name, boot_val) END]) line
         WHERE name LIKE 'leaf\\_id.%' AND line IS NOT NULL",
    ));
    found.extend(session.column::<String>(
        "SELECT concat_ws(' ', 'value', name, value)
         FROM pg_settings, unnest(coalesce(enumvals, ARRAY[min_val, max_val])) value
         WHERE name LIKE 'leaf\\_id.%' AND value IS NOT NULL",
    ));
    // Of all that users may have in an index, a generated column or a plan.
    found.extend(session.column::<String>(
        "SELECT format('volatility %s(%s) %s%s', proname, pg_get_function_identity_arguments(p.oid),
                    CASE provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
                    CASE WHEN proisstrict THEN ' strict' END)
         FROM pg_proc p
         JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
         JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'leaf_id'
         WHERE pronamespace <> 'leaf_id_internal'::regnamespace AND prokind = 'f'",
    ));
    found.extend(session.column::<String>(
        "SELECT 'dump ' || unnest(extconfig)::regclass FROM pg_extension WHERE extname = 'leaf_id'",
    ));
    found.extend(session.column::<String>(
        "SELECT 'message ' || prsnamespace::regnamespace || '.' || prsname FROM pg_ts_parser
         WHERE prsname LIKE 'leaf\\_%'",
    ));
}

/// What a member of a fleet writes and sends, and the answers.
fn of_members(found: &mut BTreeSet<String>) {
    let registry = Registry::start();
    registry.server.set("log_statement", "all");
    let member = registry.member("a");
    let mut session = member.session();
    session.next_snowflake();
    session.create_steady_tag("t", 10);
    session.take("t", 3);
    session.wait_for_spare("t");
    let mut renewal = None;
    wait_until(LIMIT, "a renewal in the log", || {
        let log = registry.server.log();
        let mut sent = log.lines().filter_map(|line| {
            let (_, parameter) = line.split_once("$1 = '")?;
            Some(parameter.strip_suffix('\'')?.replace("''", "'"))
        });
        renewal = sent.rfind(|sent| sent.contains("\"held\":{"));
        renewal.is_some()
    });
    drop(session);
    member.stop(Stop::Fast);

    let mut session = registry.server.session();
    for entry in fs::read_dir(member.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("leaf_id") {
            let text = fs::read_to_string(&path).unwrap();
            of_json(&mut session, &format!("file {name}"), &text, found);
        }
    }
    session.create_steady_tag("t", 10);
    let mut ask = |parser: &str, question: &str| {
        let sql = format!("SELECT token FROM ts_parse('leaf_id.{parser}', $json${question}$json$)");
        let answer: String = session.value(&sql);
        let message = format!("message {parser}");
        of_json(
            &mut session,
            &format!("{message} question"),
            question,
            found,
        );
        of_json(&mut session, &format!("{message} answer"), &answer, found);
    };
    ask("leaf_claim", r#"{"version": 1, "tag": "t", "n": 10}"#);
    // The answer to one that is repeated is the same, since it may have been lost.
    ask("leaf_worker_lease", &renewal.unwrap());
}

/// Those of the lines that name a value within a range of today, which may have become wider.
fn accepted(session: &mut Session, kept: &BTreeSet<String>) -> Vec<String> {
    let within = |line: &&String| {
        let mut words = line.strip_prefix("value ")?.split(' ');
        let (name, value) = (words.next()?, words.next()?.parse::<i64>().ok()?);
        let is_within = session.value::<bool>(&format!(
            "SELECT count(*) = 1 FROM pg_settings
             WHERE name = '{name}' AND {value} BETWEEN min_val::numeric AND max_val::numeric"
        ));
        is_within.then_some(())
    };
    let mut within = within;
    kept.iter()
        .filter(|line| within(line).is_some())
        .cloned()
        .collect()
}

fn now(kept: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    of_members(&mut found);
    let server = Server::with_leaf_id(&[]);
    of_catalogs(&mut server.session(), &mut found);
    found.extend(accepted(&mut server.session(), kept));
    let mut raised = BTreeSet::new();
    for folder in ["src", "sql"] {
        errors(&root().join(folder), &mut raised);
    }
    found.extend(
        raised
            .into_iter()
            .map(|(state, text)| format!("error {state} {text}")),
    );
    found
}

#[test]
fn what_is_promised_stays() {
    let kept: BTreeSet<_> = fs::read_to_string(list())
        .unwrap_or_default()
        .lines()
        .map(String::from)
        .collect();
    let now = now(&kept);
    let gone: Vec<_> = kept.difference(&now).collect();
    let new: Vec<_> = now.difference(&kept).collect();
    let writes = env::var("LEAF_ID_EXPECTED").is_ok_and(|what| what == "write");
    if writes {
        let all: String = kept.union(&now).map(|line| format!("{line}\n")).collect();
        fs::write(list(), all).unwrap();
    }
    assert!(
        gone.is_empty(),
        "docs/reference.md says that these stay: {gone:#?}"
    );
    assert!(
        writes || new.is_empty(),
        "not in sql/released/stays.txt: {new:#?}"
    );
    let kinds: BTreeSet<_> = now
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let expected = [
        "column",
        "default",
        "dump",
        "error",
        "file",
        "function",
        "message",
        "setting",
        "value",
        "volatility",
    ];
    assert!(kinds.into_iter().eq(expected));
}
