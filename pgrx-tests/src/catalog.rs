//! All that the catalogs of a database hold, as text to compare: a database in which an extension
//! was updated has to hold what a fresh one does.

use std::collections::BTreeSet;

use crate::server::Server;

/// The extension, its members, and what each of them depends on: what no dump tells.
const MEMBERS: &str = "
    WITH members AS (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    )
    SELECT format('%s %s %s %s %s %s', extname, extversion, extowner::regrole, extnamespace::regnamespace,
        extrelocatable, (SELECT array_agg(format('%s %s', dumped::regclass, condition) ORDER BY dumped::regclass::text)
            FROM unnest(extconfig, extcondition) AS u (dumped, condition)))
    FROM pg_extension
    UNION ALL
    SELECT format('%s (%s) %s', pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype,
        pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid))
    FROM pg_depend d JOIN members m USING (classid, objid)";

/// Lines that differ from database to database, by PostgreSQL's own doing: oids, ages of transactions,
/// and the key that restricts psql.
const OWN: [&str; 6] = [
    "SELECT pg_catalog.binary_upgrade_set_next_",
    "SET relfrozenxid = ",
    // Of a TOAST table.
    "WHERE oid = '1",
    "\\restrict ",
    "\\unrestrict ",
    // With the oids of the tables that are dumped: MEMBERS has their names, and all else of it.
    "pg_catalog.binary_upgrade_create_empty_extension(",
];

/// What the catalogs of a database hold: an entry for each object, as `pg_dump` tells it to
/// `pg_upgrade`. So members of extensions are in there, with what was granted on them, their
/// comments, triggers, dropped columns and the order of the others.
#[must_use]
#[track_caller]
pub fn catalog(server: &Server, database: &str) -> BTreeSet<String> {
    let dump = server.run("pg_dump", &["--binary-upgrade", "--schema-only", database]);
    let mut entries: BTreeSet<String> = server
        .session_in(database)
        .column::<String>(MEMBERS)
        .into_iter()
        .collect();
    let lines: Vec<_> = dump
        .lines()
        .filter(|line| !OWN.iter().any(|own| line.contains(own)))
        .collect();
    let dump = lines.join("\n");
    entries.extend(dump.split("\n--\n-- Name: ").map(str::to_owned));
    assert!(entries.len() > 100, "{entries:#?}");
    entries
}

/// What only one of two catalogs holds, by lines; empty where they are the same.
#[must_use]
pub fn differences(one: &BTreeSet<String>, other: &BTreeSet<String>) -> String {
    let only = |these: &BTreeSet<String>, those: &BTreeSet<String>, mark: &str| {
        let others: BTreeSet<_> = those.difference(these).flat_map(|e| e.lines()).collect();
        let mut found = String::new();
        for entry in these.difference(those) {
            for (number, line) in entry.lines().enumerate() {
                if number == 0 || !others.contains(line) {
                    found += &format!("{mark} {line}\n");
                }
            }
        }
        found
    };
    only(one, other, "-") + &only(other, one, "+")
}
