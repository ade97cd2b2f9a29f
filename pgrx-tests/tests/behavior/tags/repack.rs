//! Would catch: an id or a number that comes twice, out of order or not at all, because REPACK or
//! REPACK (CONCURRENTLY) has put its copy of one of the extension's tables in its place, while
//! sessions claim, lease and number. (VACUUM FULL and CLUSTER: `edits_under_load.rs`.)

use std::time::Duration;

use leaf_id_tests::{Load, Part, Plan, Server, Source, random};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 5;

#[test]
fn every_table_is_repacked_under_load() {
    let server = Server::with_leaf_id(&[
        ("wal_level", "logical"),
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
        ("leaf_id.refill_timeout", "30s"),
    ]);
    let mut admin = server.session();
    if admin.major() < 19 {
        println!("SKIPPED: REPACK is of PostgreSQL 19");
        return;
    }
    let part = |source| Part { source, most: 5 };
    let plan = Plan {
        parts: vec![
            part(Source::Tag("orders".into())),
            part(Source::Opaque("secret".into())),
            part(Source::Gapless("invoices".into())),
            part(Source::Snowflake),
        ],
        sessions: 6,
        hasty: false,
        seed: random().random(),
    };
    // Short leases and segments, so that their rows change all the time.
    admin.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000)");
    admin.create_steady_tag("orders", 10);
    admin.run(
        "SELECT leaf_id.leaf_opaque_create('secret', step => 10, max_step => 10);
         SELECT leaf_id.leaf_gapless_create('invoices')",
    );
    Load::prepare(&mut admin, &plan.parts);
    let tables: Vec<String> = admin.column(
        "SELECT oid::regclass::text FROM pg_class
         WHERE relnamespace = 'leaf_id'::regnamespace AND relkind = 'r'",
    );
    let history = plan.history(server.dir(), 1);
    let (windows, failures) = Load::run(&[&server], &history, &plan, |load| {
        for table in tables.iter().cycle().take(ROUNDS * tables.len()) {
            for how in ["", "(CONCURRENTLY)"] {
                admin.run(&format!("REPACK {how} {table}"));
            }
        }
        // Nothing is refused or lost.
        let pause = load.pause(LIMIT);
        let windows = history.settle(&mut admin);
        drop(pause);
        let failures = load.take_failures();
        // What was put in place is on disk.
        history.while_down(0, || server.crash());
        let pause = load.pause(LIMIT);
        let mut admin = server.session();
        history.settle(&mut admin);
        Load::clear(&mut admin, &plan.parts);
        drop(pause);
        (windows, failures)
    });
    assert!(failures.is_empty(), "{failures:?}");
    for (source, window) in history.sources().iter().zip(&windows) {
        let ids: u64 = window.ids.values().sum();
        println!(
            "{source}: {ids} ids while {} tables were repacked {ROUNDS} times in both ways",
            tables.len()
        );
        assert!(ids > 20, "{source} was in use");
        assert!(
            window.cut.is_empty(),
            "{source}: {:?}",
            window.cut[0].failure
        );
        // A number that comes while the table changes is not encrypted, but a gap.
        if !matches!(source, Source::Opaque(_)) {
            assert_eq!(window.unexplained(), 0, "{source}: lost ids");
        }
    }
}
