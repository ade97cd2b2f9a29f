//! The complete catalog contents of a database as text, to compare: a database with an updated
//! extension must have the same contents as one with a fresh one.

use std::collections::BTreeSet;

use crate::server::Server;

/// The extension, its members and their dependencies, which no dump contains.
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

/// Lines that always differ between databases: oids, transaction ages, and the key of psql's
/// restricted mode.
const OWN: [&str; 7] = [
    "SELECT pg_catalog.binary_upgrade_set_next_",
    "SET relfrozenxid = ",
    // A TOAST table.
    "WHERE oid = '1",
    "\\restrict ",
    "\\unrestrict ",
    // Contains the oids of configuration tables. MEMBERS covers their names, and everything else in
    // this call.
    "pg_catalog.binary_upgrade_create_empty_extension(",
    // Where leaf_registry was created.
    "}'::pg_catalog.int8[]$$;",
];

/// Catalog contents of a database, one entry per object, as dumped for `pg_upgrade`. So members of
/// extensions are included, with their privileges, comments, triggers, dropped columns and column
/// order.
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

/// Lines contained in only one of two catalogs; empty if they are equal.
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
