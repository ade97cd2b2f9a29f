//! Would catch: random SQL that reaches every function and view of leaf_id and crashes a process,
//! fails an assertion or panics. Run by `make torture`, preferably on a server built with
//! assertions (`LEAF_ID_PG_BIN`).
//!
//! `LEAF_ID_SMITH_SECONDS`: run time for each of the two roles (60).

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, random};
use rand::RngExt;

/// Log messages that no statement may cause.
const DISASTERS: [&str; 5] = [
    "was terminated by signal",
    "TRAP:",
    "PANIC",
    "panicked at",
    "terminating any other active server processes",
];

fn is_here() -> bool {
    let found = Command::new("sqlsmith").arg("--version").output();
    found.is_ok()
}

#[test]
#[ignore = "minutes long: make torture"]
fn random_statements_crash_nothing() {
    if !is_here() {
        println!("SKIPPED: there is no sqlsmith here");
        eprintln!("SKIPPED: there is no sqlsmith here");
        return;
    }
    let seconds = std::env::var("LEAF_ID_SMITH_SECONDS").map_or(60, |text| text.parse().unwrap());
    let mut random = random();
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("statement_timeout", "2s"),
        ("leaf_id.refill_timeout", "200ms"),
    ]);
    server.allow(Duration::from_secs(2 * seconds + 300));
    server.expect_internal_errors();
    let mut admin = server.session();
    admin.run(
        "SET leaf_id.refill_timeout = '30s';
         SELECT leaf_tag_create(t) FROM unnest('{orders,cars,a}'::text[]) t;
         CREATE TABLE public.orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'),
             other bigint DEFAULT leaf_snowflake_next(), tag text DEFAULT 'cars');
         INSERT INTO public.orders (tag) SELECT 'a' FROM generate_series(1, 100);
         CREATE ROLE smith LOGIN; GRANT pg_monitor TO smith;
         GRANT USAGE ON SCHEMA leaf_id TO smith WITH GRANT OPTION;
         GRANT ALL ON ALL TABLES IN SCHEMA public, leaf_id TO smith;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO smith",
    );
    for role in ["smith", "postgres"] {
        println!("as {role}, for {seconds} s");
        let target = format!(
            "--target=host={} port=5432 dbname=postgres user={role}",
            server.dir().display()
        );
        let mut start = || {
            let seed: u32 = random.random();
            println!("sqlsmith --seed={seed}");
            Command::new("sqlsmith")
                .args([
                    &target,
                    &format!("--seed={seed}"),
                    "--max-queries=1000000000",
                ])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut smith = start();
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            // A superuser's functions can terminate its own session.
            if smith.try_wait().unwrap().is_some() {
                smith = start();
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = smith.kill();
        smith.wait().unwrap();
        let log = server.log();
        let errors = log.matches(" ERROR:  ").count();
        println!("{errors} statements of all so far have failed, as most do");
        for disaster in DISASTERS {
            let found: Vec<_> = log.lines().filter(|line| line.contains(disaster)).collect();
            assert!(found.is_empty(), "{found:#?}");
        }
        // Ids are still issued.
        let mut session = server.session();
        session.run(
            "SET leaf_id.refill_timeout = '10s'; SELECT leaf_tag_create('after') WHERE NOT EXISTS
             (SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'after')",
        );
        session.next("after");
    }
}
