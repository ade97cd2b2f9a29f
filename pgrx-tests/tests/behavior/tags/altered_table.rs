//! Would catch: a claim that writes to a table altered since the extension created it (a crash of
//! the server, a corrupt index, a violated constraint), one that does not recover after the change
//! is reverted, and one that replication does not notice.

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A change of the table, its reversal, and text expected in the DETAIL.
const CHANGES: [(&str, &str, &str); 11] = [
    (
        "ALTER TABLE leaf_id.leaf_alloc ALTER largest_claim TYPE bigint",
        "ALTER TABLE leaf_id.leaf_alloc ALTER largest_claim TYPE integer",
        "largest_claim",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc ALTER update_time TYPE text",
        "ALTER TABLE leaf_id.leaf_alloc ALTER update_time DROP DEFAULT,
             ALTER update_time TYPE timestamptz USING update_time::timestamptz,
             ALTER update_time SET DEFAULT now()",
        "update_time",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc RENAME step TO stride",
        "ALTER TABLE leaf_id.leaf_alloc RENAME stride TO step",
        "step",
    ),
    (
        "CREATE INDEX by_sum ON leaf_id.leaf_alloc ((max_id + step))",
        "DROP INDEX leaf_id.by_sum",
        "by_sum",
    ),
    (
        "CREATE INDEX high ON leaf_id.leaf_alloc (max_id) WHERE max_id > 10",
        "DROP INDEX leaf_id.high",
        "high",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc ADD CONSTRAINT apart EXCLUDE (max_id WITH =)",
        "ALTER TABLE leaf_id.leaf_alloc DROP CONSTRAINT apart",
        "apart",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc ADD CONSTRAINT late UNIQUE (max_id) DEFERRABLE",
        "ALTER TABLE leaf_id.leaf_alloc DROP CONSTRAINT late",
        "late",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc ADD CONSTRAINT small CHECK (max_id < 1000000000)",
        "ALTER TABLE leaf_id.leaf_alloc DROP CONSTRAINT small",
        "small",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc ADD twice bigint GENERATED ALWAYS AS (max_id * 2) STORED",
        "ALTER TABLE leaf_id.leaf_alloc DROP twice",
        "twice",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc SET UNLOGGED",
        "ALTER TABLE leaf_id.leaf_alloc SET LOGGED",
        "logged",
    ),
    (
        "ALTER TABLE leaf_id.leaf_alloc DROP CONSTRAINT leaf_alloc_pkey",
        "ALTER TABLE leaf_id.leaf_alloc ADD CONSTRAINT leaf_alloc_pkey PRIMARY KEY (biz_tag)",
        "primary key",
    ),
];

/// Takes ids until none are available, and checks the view.
fn drain(server: &Server, session: &mut Session) -> Vec<i64> {
    session.run("SET leaf_id.refill_timeout = '300ms'");
    let mut ids = Vec::new();
    let mut failures = 0;
    while failures < 2 {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(_) => failures += 1,
        }
        assert!(ids.len() < 100, "claims go on: {}", server.log());
    }
    session.run("RESET leaf_id.refill_timeout");
    ids
}

#[test]
fn a_changed_table_is_left_alone_until_it_is_changed_back() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    let mut session = server.session();
    let mut ids = vec![session.next("t")];
    for (change, back, named) in CHANGES {
        println!("{change}");
        admin.run(change);
        ids.extend(drain(&server, &mut session));
        // A session without a slot gets the error at once.
        session
            .fails("SELECT leaf_segment_next('another')")
            .is("42804")
            .details(named);
        admin.run(back);
        let mut next = None;
        wait_until(LIMIT, "the change was taken back, and ids come", || {
            next = session.try_next("t").ok();
            next.is_some()
        });
        ids.extend(next);
    }
    assert_issued_once(&[ids]);
}

#[test]
fn more_columns_indexes_and_another_fillfactor_do_no_harm() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    let mut ids = admin.take("t", 50);
    admin.run(
        "ALTER TABLE leaf_id.leaf_alloc ADD team text DEFAULT 'none', ADD gone int;
         ALTER TABLE leaf_id.leaf_alloc DROP gone;
         ALTER TABLE leaf_id.leaf_alloc SET (fillfactor = 100);
         CREATE INDEX by_max_id ON leaf_id.leaf_alloc (max_id, team);
         UPDATE leaf_id.leaf_alloc SET team = 'a', description = repeat('long ', 100000)",
    );
    ids.extend(admin.take("t", 500));
    admin.run("VACUUM FULL leaf_id.leaf_alloc");
    ids.extend(admin.take("t", 500));
    assert_issued_once(&[ids]);
    admin.run("SET enable_seqscan = off");
    // In one snapshot: the allocator may be claiming the next segment.
    assert_eq!(
        admin.value::<i64>(
            "SELECT count(*) FROM leaf_id.leaf_alloc
             WHERE max_id = (SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 't')
             AND team = 'a' AND length(description) = 500000"
        ),
        1
    );
    admin.run("CREATE EXTENSION amcheck");
    for index in ["leaf_alloc_pkey", "by_max_id"] {
        admin.run(&format!("SELECT bt_index_check('leaf_id.{index}', true)"));
    }
}

/// A subscriber receives claims, and never a row that it cannot apply.
#[test]
fn logical_decoding_sees_claims() {
    let server = Server::with_leaf_id(&[("wal_level", "logical")]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    admin.run("SELECT pg_create_logical_replication_slot('s', 'test_decoding')");
    let ids = admin.take("t", 50);
    let last: i64 = admin.value("SELECT max_id FROM leaf_id.leaf_alloc");
    let changes = admin
        .column::<String>("SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")
        .join("\n");
    assert!(
        changes.contains(&format!(
            "table leaf_id.leaf_alloc: UPDATE: biz_tag[text]:'t' max_id[bigint]:{last}"
        )),
        "{changes}"
    );
    admin.run(
        "CREATE PUBLICATION p FOR TABLE leaf_id.leaf_alloc;
         ALTER TABLE leaf_id.leaf_alloc REPLICA IDENTITY NOTHING",
    );
    let mut more = drain(&server, &mut server.session());
    admin.run("ALTER TABLE leaf_id.leaf_alloc REPLICA IDENTITY DEFAULT");
    more.extend(admin.take("t", 50));
    assert_issued_once(&[[ids, more].concat()]);
}
