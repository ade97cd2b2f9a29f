//! Would catch: what docs/reference.md promises to keep, and a change takes away: a function, column,
//! setting, SQLSTATE, file of the data directory, message between servers, or table in dumps.
//!
//! sql/released/stays.txt lists them, a line each. With `LEAF_ID_EXPECTED=write`, what is new is added
//! there; no test removes a line. A text of an error may change: edit its line, and keep the SQLSTATE.

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
        "SELECT concat_ws(' ', 'setting', name, vartype, unit, context, enumvals)
         FROM pg_settings WHERE name LIKE 'leaf\\_id.%'",
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

fn now() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    of_members(&mut found);
    of_catalogs(&mut Server::with_leaf_id(&[]).session(), &mut found);
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
    let now = now();
    let kept: BTreeSet<_> = fs::read_to_string(list())
        .unwrap_or_default()
        .lines()
        .map(String::from)
        .collect();
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
        "column", "dump", "error", "file", "function", "message", "setting",
    ];
    assert!(kinds.into_iter().eq(expected));
}
