//! Would catch: a function, setting, view, table or error that is missing or wrong in
//! docs/reference.md, and one listed there that does not exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leaf_id_tests::{Server, Session};

use super::page::{Page, root};

const MEMBERS: &str = "FROM pg_depend d
    WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
        AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')";

fn page() -> Page {
    Page::read("docs/reference.md")
}

/// Asserts that both lists are equal, and reports the differences.
#[track_caller]
fn assert_same(what: &str, documented: &[String], real: &[String]) {
    assert!(real.len() > 1, "no {what} at all: {real:?}");
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these
            .iter()
            .filter(|this| !those.contains(this))
            .cloned()
            .collect()
    };
    let (undocumented, unreal) = (only(real, documented), only(documented, real));
    assert!(
        undocumented.is_empty() && unreal.is_empty() && documented.len() == real.len(),
        "{what}\nnot in the reference: {undocumented:#?}\nonly in the reference: {unreal:#?}"
    );
}

/// Abbreviates types as in the reference.
fn short(text: &str) -> String {
    text.replace("timestamp with time zone", "timestamptz")
}

/// Signatures in a text block; each starts at the margin.
fn signatures(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines() {
        match found.last_mut() {
            Some(last) if line.starts_with(' ') => *last += &format!(" {}", line.trim()),
            _ => found.push(line.trim().into()),
        }
    }
    found
}

/// Signatures, with the schema where it does not depend on CREATE EXTENSION. What only leaf_id itself
/// calls is not for readers.
pub fn functions(session: &mut Session) -> Vec<String> {
    let sql = format!(
        "SELECT format('%s%s(%s) → %s', CASE p.pronamespace WHEN 'leaf_id'::regnamespace THEN 'leaf_id.' END,
             p.proname, pg_get_function_arguments(p.oid), coalesce(pg_get_function_result(p.oid), 'procedure'))
         FROM pg_proc p
         WHERE p.oid IN (SELECT objid {MEMBERS} AND d.classid = 'pg_proc'::regclass)
             AND p.pronamespace <> 'leaf_id_internal'::regnamespace"
    );
    let plain = |signature: &String| {
        let mut signature = short(signature);
        for left_out in ["::integer", "::text", "::bigint", "IN "] {
            signature = signature.replace(left_out, "");
        }
        signature
    };
    session.column::<String>(&sql).iter().map(plain).collect()
}

#[test]
fn it_has_every_function_as_it_is() {
    let server = Server::with_leaf_id(&[]);
    let blocks = page().blocks();
    let listed = blocks.iter().filter(|block| block.text.contains(" → "));
    let documented: Vec<_> = listed.flat_map(|block| signatures(&block.text)).collect();
    assert_same("functions", &documented, &functions(&mut server.session()));
}

#[test]
fn it_lists_no_internal_function() {
    let server = Server::with_leaf_id(&[]);
    let internal = server.session().column::<String>(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'leaf_id_internal'::regnamespace",
    );
    assert!(internal.len() > 10, "{internal:?}");
    let page = page();
    let words: BTreeSet<_> = page
        .text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let listed: Vec<_> = internal
        .iter()
        .filter(|name| words.contains(&***name))
        .collect();
    assert!(listed.is_empty(), "{listed:?}");
}

#[test]
fn it_has_every_setting_as_it_is() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    // Valid values of a text setting are not in pg_settings, so the reference describes them in
    // words.
    let sql = "SELECT concat_ws(' | ', format('`%s`', name), boot_val, coalesce(unit, ''),
                   CASE vartype WHEN 'string' THEN '*' WHEN 'bool' THEN 'on, off' WHEN 'enum' THEN array_to_string(enumvals, ', ')
                       ELSE min_val || ' to ' || max_val END,
                   context)
               FROM pg_settings WHERE name LIKE 'leaf\\_id.%'";
    let real = session.column::<String>(sql);
    let is_text = |name: &str| {
        real.iter()
            .any(|row| row.starts_with(name) && row.contains(" | * | "))
    };
    let page = page();
    let tables = ["Settings", "Advanced settings"].map(|heading| page.table(heading));
    assert_eq!(tables[0].len(), 5, "those that come first");
    let rows = tables.into_iter().flatten().map(|row| {
        assert_eq!(row.len(), 6, "{row:?}");
        assert!(!row[5].is_empty(), "{row:?}");
        let range = if is_text(&row[0]) { "*" } else { &row[3] };
        [&row[0], &row[1], &row[2], range, &row[4]].join(" | ")
    });
    assert_same("settings", &rows.collect::<Vec<_>>(), &real);
}

#[test]
fn it_has_every_view_and_table_and_the_columns_that_stay() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let relations = session.column::<String>(&format!(
        "SELECT CASE relkind WHEN 'v' THEN oid::regclass::text ELSE relname END FROM pg_class
         WHERE relkind IN ('r', 'v') AND oid IN (SELECT objid {MEMBERS} AND d.classid = 'pg_class'::regclass)"
    ));
    let page = page();
    let headings = page.headings().into_iter();
    let headings: Vec<_> = headings.filter(|text| text.starts_with("leaf_")).collect();
    let views = headings.iter().filter(|text| text.starts_with("leaf_id."));
    let views = views.map(|view| (*view).to_string());
    let tables = page.table("Tables").into_iter();
    let tables = tables.map(|row| row[0].trim_matches('`').to_string());
    assert_same(
        "views and tables",
        &views.chain(tables).collect::<Vec<_>>(),
        &relations,
    );
    // Of the tables, only this one is for users to edit.
    assert!(headings.contains(&"leaf_alloc"));
    for relation in headings {
        let columns = session.column::<String>(&format!(
            "SELECT format('`%s` %s', attname, format_type(atttypid, atttypmod))
             FROM pg_attribute a
             WHERE attrelid = 'leaf_id.{}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            relation.trim_start_matches("leaf_id.")
        ));
        let real: Vec<_> = columns.iter().map(|column| short(column)).collect();
        // `a`, `b` type | meaning
        let rows = page.table(relation).into_iter().flat_map(|row| {
            assert!(row.len() == 2 && !row[1].is_empty(), "{row:?}");
            let (names, column_type) = row[0].rsplit_once('`').expect("a name");
            let names = names.split('`').skip(1).step_by(2);
            let columns = names.map(|name| format!("`{name}`{column_type}"));
            columns.collect::<Vec<_>>()
        });
        let documented: Vec<_> = rows.collect();
        assert_same(relation, &documented, &real);
        assert_eq!(documented, real, "the order of the columns of {relation}");
    }
}

/// SQLSTATEs by the names used in Rust and PL/pgSQL.
const SQLSTATES: [(&str, &str); 31] = [
    ("successful_completion", "00000"),
    ("object_not_in_prerequisite_state", "55000"),
    ("read_only_sql_transaction", "25006"),
    ("undefined_object", "42704"),
    ("query_canceled", "57014"),
    ("t_r_serialization_failure", "40001"),
    ("undefined_table", "42P01"),
    ("undefined_column", "42703"),
    ("invalid_schema_name", "3F000"),
    ("dependent_objects_still_exist", "2BP01"),
    ("duplicate_object", "42710"),
    ("object_in_use", "55006"),
    ("insufficient_privilege", "42501"),
    ("invalid_parameter_value", "22023"),
    ("lock_not_available", "55P03"),
    ("numeric_value_out_of_range", "22003"),
    ("warning", "01000"),
    ("program_limit_exceeded", "54000"),
    ("feature_not_supported", "0A000"),
    ("sequence_generator_limit_exceeded", "2200H"),
    ("datatype_mismatch", "42804"),
    ("duplicate_schema", "42P06"),
    ("wrong_object_type", "42809"),
    ("e_r_i_e_trigger_protocol_violated", "39P01"),
    ("invalid_name", "42602"),
    ("null_value_not_allowed", "22004"),
    ("io_error", "58030"),
    ("foreign_key_violation", "23503"),
    ("unique_violation", "23505"),
    ("duplicate_schema", "42P06"),
    ("invalid_text_representation", "22P02"),
];

fn sqlstate(name: &str) -> &'static str {
    let lower = name.to_lowercase();
    let plain = lower
        .rsplit("::")
        .next()
        .unwrap()
        .trim_start_matches("errcode_")
        .to_string();
    let known = SQLSTATES.iter().find(|(name, _)| *name == plain);
    known
        .unwrap_or_else(|| panic!("which SQLSTATE is {name}?"))
        .1
}

/// True if the pattern, in which `...` is any text, fits the whole message.
fn fits(pattern: &str, message: &str) -> bool {
    match pattern.split_once("...") {
        None => pattern == message,
        Some((before, after)) => message.strip_prefix(before).is_some_and(|rest| {
            let mut ends = rest.char_indices().map(|(place, _)| place);
            ends.any(|place| fits(after, &rest[place..])) || fits(after, "")
        }),
    }
}

/// Converts a message to a pattern with `...` for variable parts.
fn pattern(message: &str) -> String {
    let mut pattern = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once('{') {
        pattern += before;
        pattern += "...";
        rest = after.split_once('}').unwrap().1;
    }
    (pattern + rest)
        .replace("%s", "...")
        .replace("@extschema@", "...")
}

/// Contents of parentheses; `text` starts after the opening one.
fn in_brackets(text: &str) -> &str {
    let mut depth = 1;
    let mut in_string = false;
    let mut escaped = false;
    for (place, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '(' if !in_string => depth += 1,
            ')' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..place];
        }
    }
    panic!("brackets are not closed: {text}")
}

/// String literals in Rust code.
fn literals(rust: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = rust;
    while let Some((_, after)) = rest.split_once('"') {
        let mut literal = String::new();
        let mut chars = after.char_indices();
        loop {
            match chars.next().expect("the end of a literal") {
                (_, '\\') => literal.push(chars.next().unwrap().1),
                (place, '"') => {
                    rest = &after[place + 1..];
                    break;
                }
                (_, c) => literal.push(c),
            }
        }
        found.push(literal);
    }
    found
}

/// Errors raised by Rust code with their SQLSTATEs: arguments of `error(` and `ErrorReport::new(`.
/// Resolves constants that hold a code.
fn errors_of_rust(source: &str, found: &mut BTreeSet<(String, String)>) {
    let code = |word: &str| {
        let held = source
            .split_once(&format!("let {word} = "))
            .map(|(_, after)| after);
        let name = held.map_or(word, |after| after.split(';').next().unwrap());
        sqlstate(name.trim())
    };
    for call in ["error(", "ErrorReport::new("] {
        for (place, _) in source.match_indices(call) {
            let before = source[..place].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let arguments = in_brackets(&source[place + call.len()..]);
            // A single word is not a message.
            for message in literals(arguments).iter().filter(|text| text.contains(' ')) {
                let state = code(arguments.split(',').next().unwrap().trim());
                found.insert((state.into(), pattern(message)));
            }
        }
    }
}

/// Errors raised by a script: the message is the first argument, or MESSAGE. Omits errors that pass
/// on another error's SQLSTATE.
fn errors_of_sql(source: &str, found: &mut BTreeSet<(String, String)>) {
    let literal = |text: &str| text.split('\'').nth(1).unwrap().to_string();
    for raise in source.split("RAISE ").skip(1) {
        let raise = raise.split(";\n").next().unwrap();
        let Some((_, name)) = raise.split_once("ERRCODE = '") else {
            continue;
        };
        let text = match raise.split_once("MESSAGE = ") {
            Some((_, message)) => literal(message),
            None => literal(raise).replace('%', "%s"),
        };
        let name = name.split('\'').next().unwrap();
        found.insert((sqlstate(name).into(), pattern(&text)));
    }
}

pub fn errors(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Scripts of earlier versions, and update scripts.
        let earlier = ["/released", "/leaf_id--"];
        if earlier
            .iter()
            .any(|name| path.to_str().unwrap().contains(name))
        {
            continue;
        }
        let read = || fs::read_to_string(&path).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            None => errors(&path, found),
            Some("rs") => errors_of_rust(&read(), found),
            Some("sql") => errors_of_sql(&read(), found),
            Some(_) => {}
        }
    }
}

#[test]
fn it_has_every_error() {
    let mut real = BTreeSet::new();
    errors(&root().join("src"), &mut real);
    errors(&root().join("sql"), &mut real);
    assert!(real.len() > 60, "{real:#?}");

    let page = page();
    let sections = page
        .headings()
        .into_iter()
        .skip_while(|text| *text != "Errors")
        .skip(1);
    let tables = sections
        .take_while(|text| *text != "PostgreSQL's own")
        .flat_map(|section| page.table(section));
    let documented: Vec<(String, String)> = tables
        .flat_map(|row| {
            // `SQLSTATE message | cause and cure`, or `SQLSTATE | messages`.
            let (state, first) = row[0].split_at(5);
            let of_row = if first.is_empty() { &row[1] } else { first };
            let messages: Vec<_> = of_row.split('`').skip(1).step_by(2).collect();
            // One that fits everything would hide what is missing.
            let says = |text: &&str| text.replace("...", "").len() > 8;
            assert!(!messages.is_empty() && messages.iter().all(says), "{row:?}");
            let of_row = messages.iter();
            let of_row = of_row.map(|text| (state.to_string(), (*text).to_string()));
            of_row.collect::<Vec<_>>()
        })
        .collect();
    let is_one = |(state, text): &(String, String), (real_state, message): &(String, String)| {
        state == real_state && fits(text, message)
    };
    let missing: Vec<_> = real
        .iter()
        .filter(|error| !documented.iter().any(|listed| is_one(listed, error)))
        .collect();
    let unreal: Vec<_> = documented
        .iter()
        .filter(|listed| !real.iter().any(|error| is_one(listed, error)))
        .collect();
    assert!(
        missing.is_empty() && unreal.is_empty(),
        "not in the reference: {missing:#?}\nonly in the reference: {unreal:#?}"
    );
}

#[test]
fn a_pattern_fits_what_it_stands_for() {
    assert!(fits("tag \"...\" is gone", "tag \"...\" is gone"));
    assert!(fits(
        "... of ...() is null",
        "argument of leaf_sync() is null"
    ));
    assert!(fits("cannot issue ids: ...", "cannot issue ids: the clock"));
    assert!(fits("cannot issue ids...", "cannot issue ids"));
    assert!(!fits(
        "cannot issue ids: ...",
        "cannot issue an id: the clock"
    ));
    assert!(!fits("tag \"...\"", "tag \"a\" is gone"));
}

#[test]
fn errors_are_found_in_the_sources() {
    let mut found = BTreeSet::new();
    errors_of_rust(
        r#"let full = Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED;
           let error = |code, message: String| ErrorReport::new(code, message, "leaf_id");
           match self {
               Self::A { tag } => error(full, format!("no \"{tag}\" (really)")).set_hint("a hint"),
               Self::B => error(Code::ERRCODE_IO_ERROR, match x { 1 => "one thing".into(), _ => "word".into() }),
           }"#,
        &mut found,
    );
    errors_of_sql(
        "RAISE EXCEPTION USING ERRCODE = 'invalid_name', MESSAGE = format('no %s', x);
         RAISE EXCEPTION 'not \"%\"', x USING ERRCODE = state;
         RAISE EXCEPTION 'only \"%\"', x USING ERRCODE = 'invalid_name', HINT = 'Another.';",
        &mut found,
    );
    let found: Vec<_> = found
        .iter()
        .map(|(state, text)| (&**state, &**text))
        .collect();
    let expected = [
        ("42602", "no ..."),
        ("42602", "only \"...\""),
        ("54000", "no \"...\" (really)"),
        ("58030", "one thing"),
    ];
    assert_eq!(found, expected);
}
