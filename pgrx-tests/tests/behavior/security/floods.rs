//! Would catch: a source server that makes the process that asks it use up the memory of the machine, or
//! whose words control the terminal that shows the log.

use std::fs;
use std::path::{Path, PathBuf};

use leaf_id_tests::{
    Fleet, Flood, Mode, PATIENCE, Proxy, Server, Session, impersonate, wait_until,
};

/// How much more memory the process may have had than before, in kB. A flood is four times as much.
const MOST_KB: u64 = 64 << 10;
const STEP: i32 = 10;
const CLAIM: &str = "pg_catalog.ts_parse(";
const GREETING: &str = "pg_catalog.pg_ts_parser";
const STARTUP: &str = "application_name";

/// Parsed, bound, and described as one column of text.
const DESCRIBED: &[u8] = b"1\0\0\0\x042\0\0\0\x04T\0\0\0\x1e\0\x01token\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
/// Logged in, and waiting for a query.
const LOGGED_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0";

/// A message of the protocol, with its length.
fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + content.len()).unwrap();
    [&[kind][..], &length.to_be_bytes(), content].concat()
}

/// Message after message.
fn flood(first: &[u8], kind: u8, content: &[u8]) -> &'static Flood {
    Box::leak(Box::new(Flood {
        first: first.into(),
        again: message(kind, content),
    }))
}

/// One message that does not end.
fn endless(first: &[u8], kind: u8) -> &'static Flood {
    Box::leak(Box::new(Flood {
        first: [first, &[kind][..], &0x3fff_ffffu32.to_be_bytes()].concat(),
        again: vec![b'x'; 65536],
    }))
}

fn floods() -> Vec<(&'static str, Mode)> {
    let long = vec![b'x'; 20_000];
    let row = [&[0, 1, 0, 0][..], &20_000u16.to_be_bytes(), &long].concat();
    let notification = [&[0, 0, 0, 1][..], b"channel\0", &long, b"\0"].concat();
    let error = [b"SERROR\0C42000\0M", &long[..], b"\0\0"].concat();
    let setting = [b"setting 00000000\0", &long[..], b"\0"].concat();
    vec![
        (
            "rows",
            Mode::FloodInstead(CLAIM, flood(DESCRIBED, b'D', &row)),
        ),
        (
            "rows as a greeting",
            Mode::FloodInstead(GREETING, flood(DESCRIBED, b'D', &row)),
        ),
        (
            "notifications",
            Mode::FloodInstead(CLAIM, flood(b"", b'A', &notification)),
        ),
        (
            "errors",
            Mode::FloodInstead(CLAIM, flood(b"", b'E', &error)),
        ),
        (
            "notices",
            Mode::FloodInstead(CLAIM, flood(b"", b'N', &error)),
        ),
        (
            "settings",
            Mode::FloodInstead(CLAIM, flood(b"", b'S', &setting)),
        ),
        (
            "settings at the login",
            Mode::FloodInstead(STARTUP, flood(LOGGED_IN, b'S', &setting)),
        ),
        (
            "an endless row",
            Mode::FloodInstead(CLAIM, endless(DESCRIBED, b'D')),
        ),
        (
            "an endless error",
            Mode::FloodInstead(CLAIM, endless(b"", b'E')),
        ),
        (
            "an endless notice",
            Mode::FloodInstead(CLAIM, endless(b"", b'N')),
        ),
        (
            "an endless notice at the login",
            Mode::FloodInstead(STARTUP, endless(LOGGED_IN, b'N')),
        ),
        (
            "unasked notifications",
            Mode::FloodAfter(CLAIM, flood(b"", b'A', &notification)),
        ),
        (
            "unasked rows",
            Mode::FloodAfter(CLAIM, flood(DESCRIBED, b'D', &row)),
        ),
        (
            "unasked settings",
            Mode::FloodAfter(CLAIM, flood(b"", b'S', &setting)),
        ),
        (
            "an endless unasked notice",
            Mode::FloodAfter(CLAIM, endless(b"", b'N')),
        ),
    ]
}

/// The directory of the allocator in /proc.
fn allocator(session: &mut Session) -> PathBuf {
    let pid: i32 = session.value(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id allocator' AND datname = 'postgres'",
    );
    format!("/proc/{pid}").into()
}

/// Its memory, now or at most, in kB.
fn memory_kb(process: &Path, which: &str) -> u64 {
    let status = fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(which));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Before: rows 3.6 GB in 9 s, notifications 1.7 GB, bytes that no question asked for 1.3 GB.
#[test]
fn no_flood_fills_the_memory() {
    let central = Server::with_leaf_id(&[]);
    central.admit_members();
    central.session().create_steady_tag("t", STEP);
    let proxy = Proxy::to(&central);
    let member = Server::start_unrelated(1, &[("leaf_id.claim_timeout", "5s")]);
    member.source_from(&[proxy.dir()]);
    let mut session = member.session();
    session.create_sourced_tag("t", STEP, STEP);
    session.run("SET leaf_id.refill_timeout = '60s'");
    let mut too_many = Vec::new();
    for (name, mode) in floods() {
        // All that was claimed, and the first id of the next segment.
        session.take("t", 2 * STEP + 1);
        let process = allocator(&mut session);
        // What it has at most is counted from here on.
        fs::write(process.join("clear_refs"), "5").unwrap();
        let (before, floods) = (memory_kb(&process, "VmRSS"), proxy.floods());
        proxy.set(mode);
        if matches!(mode, Mode::FloodInstead(STARTUP | GREETING, _)) {
            proxy.end_connections();
        }
        // I10: by another connection, ids go on.
        wait_until(PATIENCE, name, || {
            let _ = session.try_next("t");
            proxy.floods() > floods
        });
        session.take("t", 2 * STEP + 1);
        assert_eq!(
            allocator(&mut session),
            process,
            "{name}: the allocator has ended"
        );
        let more = memory_kb(&process, "VmHWM").saturating_sub(before);
        println!("{name}: {more} kB");
        if more > MOST_KB {
            too_many.push(format!("{name}: {more} kB"));
        }
    }
    assert!(too_many.is_empty(), "{too_many:?}");
}

/// Before: escape sequences and carriage returns are in the log, and so in the terminal of its reader.
#[test]
fn control_characters_stay_out_of_the_log() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", STEP, STEP);
    fleet.central.session().run(&format!(
        "CREATE FUNCTION pg_catalog.shout() RETURNS text LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION E'shout \x1b[2J\x07\rall is well'; END $$;
         {}",
        impersonate("pg_catalog.shout()")
    ));
    let member = &fleet.members[0];
    let mut session = member.session();
    session.run("SET leaf_id.refill_timeout = '1s'");
    wait_until(PATIENCE, "the server's words", || {
        let failure = session.try_next("t").unwrap_err();
        assert!(!failure.detail.contains('\x1b'), "{failure:?}");
        failure.detail.contains("shout ")
    });
    let log = member.log();
    let line = log.lines().find(|line| line.contains("shout"));
    println!("{line:?}");
    assert!(line.is_some(), "{log}");
    assert!(
        !line
            .unwrap()
            .contains(|c: char| c.is_control() && c != '\t'),
        "{line:?}"
    );
}
