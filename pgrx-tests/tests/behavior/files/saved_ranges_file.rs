//! Would catch: cached ids restored twice, or to another row, after a clean stop (I3, I6): from a
//! file that was copied, corrupted or put back, or after the rows were edited; and a server that
//! does not start because of the file.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leaf_id_tests::{
    DAMAGES, Damage, Server, Session, Stop, assert_issued_once, random, wait_until,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

const LIMIT: Duration = Duration::from_secs(30);
const TAGS: [&str; 4] = ["a", "b", "c", "d"];

fn file(server: &Server) -> PathBuf {
    server.data_dir().join("leaf_id_saved_ranges.json")
}

/// A server with four tags in segments of 1,000 ids.
fn server_with_tags() -> Server {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for tag in TAGS {
        session.create_steady_tag(tag, 1000);
    }
    server
}

/// All ids of a test, by tag.
#[derive(Default)]
struct Issued(HashMap<&'static str, Vec<i64>>);

impl Issued {
    /// Takes a few ids of every tag, too few for another claim. Checks that they are new and in
    /// order.
    fn draw(&mut self, server: &Server) {
        let mut session = server.session();
        for tag in TAGS {
            self.0.entry(tag).or_default().extend(session.take(tag, 7));
        }
        self.check();
    }

    fn check(&self) {
        for ids in self.0.values() {
            assert_issued_once([ids]);
        }
    }

    /// Number of ids skipped before the last seven.
    fn gap(&self, tag: &str) -> i64 {
        let ids = &self.0[tag];
        ids[ids.len() - 7] - ids[ids.len() - 8] - 1
    }
}

/// Number of log lines about the file.
fn log_lines(server: &Server) -> usize {
    let log = server.log();
    log.lines()
        .filter(|line| line.contains("leaf_id: ") && line.contains("leaf_id_saved_ranges.json"))
        .count()
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir(path).unwrap();
    } else if path.exists() {
        fs::remove_file(path).unwrap();
    }
}

/// Replaces the number of the first such key.
fn edit(path: &Path, key: &str, value: &str) {
    let text = fs::read_to_string(path).unwrap();
    let start = text.find(&format!("\"{key}\":")).unwrap() + key.len() + 3;
    let end = start + text[start..].find([',', '}', ']']).unwrap();
    fs::write(path, format!("{}{value}{}", &text[..start], &text[end..])).unwrap();
}

#[test]
fn remainders_come_back_once() {
    let server = server_with_tags();
    let mut issued = Issued::default();
    issued.draw(&server);
    for _ in 0..2 {
        server.stop(Stop::Fast);
        assert!(file(&server).is_file());
        server.launch();
        issued.draw(&server);
        for tag in TAGS {
            assert_eq!(issued.gap(tag), 0, "{tag}");
        }
        assert!(!file(&server).exists(), "it is gone before it is used");
    }
    assert_eq!(log_lines(&server), 0);
    // A crash loses cached ids, including restored remainders. (If only the postmaster dies, the
    // launcher can still save them.)
    server.stop(Stop::Immediate);
    server.launch();
    issued.draw(&server);
    assert!(issued.gap("a") > 0);
}

#[test]
fn a_file_that_cannot_be_used_is_a_gap() {
    let server = server_with_tags();
    let mut issued = Issued::default();
    issued.draw(&server);
    let more: [(&str, Damage); 3] = [
        ("of another timeline", |path| edit(path, "timeline", "77")),
        ("of another cluster", |path| {
            edit(path, "system_identifier", "7000000000000000001")
        }),
        ("of no row", |path| edit(path, "incarnation", "1")),
    ];
    for (name, damage) in DAMAGES.into_iter().chain(more) {
        println!("{name}");
        let before = log_lines(&server);
        server.stop(Stop::Fast);
        damage(&file(&server));
        server.launch();
        issued.draw(&server);
        assert!(issued.gap("a") > 0, "{name}");
        if name != "of no row" {
            assert!(log_lines(&server) > before, "{name} is not logged");
            assert!(issued.gap("d") > 0, "{name}");
        }
        // That ends the problem.
        remove(&file(&server));
        server.restart();
        issued.draw(&server);
        for tag in TAGS {
            assert_eq!(issued.gap(tag), 0, "{tag} after {name}");
        }
    }
}

/// Uses up the remainders of a stop, then puts back the file of that stop while the server is
/// stopped, and checks that nothing in it is used again. The file is outdated, but the rows, which
/// are unchanged, do not show that.
fn assert_put_back_is_a_gap(keep: impl Fn(&Path, &Path), put_back: impl Fn(&Path, &Path, u64)) {
    let server = server_with_tags();
    let mut issued = Issued::default();
    issued.draw(&server);
    let rows = "SELECT string_agg(a::text, ';' ORDER BY biz_tag) FROM leaf_id.leaf_alloc a";
    let before: String = server.session().value(rows);
    server.stop(Stop::Fast);
    let (file, aside) = (file(&server), server.dir().join("aside"));
    keep(&file, &aside);
    let inode = fs::metadata(&file).unwrap().ino();
    server.launch();
    issued.draw(&server);
    let after: String = server.session().value(rows);
    assert_eq!(after, before, "no claim was made");
    server.stop(Stop::Immediate);
    put_back(&aside, &file, inode);
    if file.exists() {
        server.give(&file);
    }
    server.launch();
    issued.draw(&server);
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

#[test]
fn a_copied_file_repeats_nothing() {
    assert_put_back_is_a_gap(copy, |aside, file, _| fs::rename(aside, file).unwrap());
}

/// Like backup programs that hard-link unchanged files.
#[test]
fn a_file_kept_by_a_hard_link_repeats_nothing() {
    assert_put_back_is_a_gap(
        |file, aside| fs::hard_link(file, aside).unwrap(),
        |aside, file, _| fs::rename(aside, file).unwrap(),
    );
}

/// A file system may reuse the inode of a removed file.
#[test]
fn a_copied_file_with_the_inode_of_the_first_repeats_nothing() {
    assert_put_back_is_a_gap(copy, |aside, file, inode| {
        let mut others = Vec::new();
        // The server may have created it since then, and does not need it.
        let cache = file.with_file_name("global").join("pg_internal.init");
        fs::remove_file(cache).unwrap();
        for i in 0..20_000 {
            let path = file.with_extension(format!("{i}"));
            fs::write(&path, b"").unwrap();
            if fs::metadata(&path).unwrap().ino() == inode {
                fs::write(&path, fs::read(aside).unwrap()).unwrap();
                fs::rename(path, file).unwrap();
                println!("inode {inode} came again after {i} others");
                break;
            }
            others.push(path);
        }
        for other in others {
            fs::remove_file(other).unwrap();
        }
        if !file.exists() {
            println!("SKIPPED: this file system did not use inode {inode} again");
        }
    });
}

/// The rows change while no launcher runs, since the library is not loaded.
#[test]
fn rows_edited_without_a_launcher_restore_no_remainder() {
    let server = server_with_tags();
    server.session().run("CREATE DATABASE other");
    let mut other = server.session_in("other");
    other.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('x')");
    other.next("x");
    drop(other);
    let mut issued = Issued::default();
    issued.draw(&server);
    let mut session = server.session();
    session.create_tag("dropped");
    session.next("dropped");
    drop(session);
    server.stop(Stop::Fast);
    assert!(file(&server).is_file());
    let conf = server.data_dir().join("postgresql.conf");
    let loaded = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, format!("{loaded}shared_preload_libraries = ''\n")).unwrap();
    server.launch();
    let mut session = server.session();
    session.run(
        "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 5000 WHERE biz_tag = 'a';
         UPDATE leaf_id.leaf_alloc SET max_value = max_id - 900 WHERE biz_tag = 'b';
         DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'c' ;
         INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('c', 1000000);
         DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'dropped'",
    );
    session.run("DROP DATABASE other");
    let max_id: i64 = session.value("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 'a'");
    let max_value: i64 =
        session.value("SELECT max_value FROM leaf_id.leaf_alloc WHERE biz_tag = 'b'");
    drop(session);
    server.stop(Stop::Fast);
    assert!(file(&server).is_file(), "no launcher has taken it");
    fs::write(&conf, loaded).unwrap();
    server.launch();
    let mut session = server.session();
    assert_eq!(session.next("a"), max_id);
    assert_eq!(session.next("c"), 1_000_000);
    session
        .fails("SELECT leaf_segment_next('dropped')")
        .is("42704");
    // The tag has an end now: no remainder may exceed it.
    let mut b = issued.0["b"].clone();
    while let Ok(id) = session.try_next("b") {
        b.push(id);
    }
    println!("the last id of b is {:?}, {max_value} at most", b.last());
    assert!(*b.last().unwrap() <= max_value);
    assert_issued_once([b]);
    let d = issued.0.get_mut("d").unwrap();
    d.extend(session.take("d", 7));
    assert_eq!(issued.gap("d"), 0, "it was not changed");
    issued.check();
}

#[test]
fn fewer_slots_than_remainders_are_a_gap() {
    let server = server_with_tags();
    let mut issued = Issued::default();
    issued.draw(&server);
    for slots in ["2", "1", "1024"] {
        let mut session = server.session();
        session.run(&format!("ALTER SYSTEM SET leaf_id.max_tags = {slots}"));
        drop(session);
        server.restart();
        issued.draw(&server);
        issued.draw(&server);
    }
    server.restart();
    issued.draw(&server);
    issued.draw(&server);
}

/// A wrong digit is damage, too: the resulting number must not be trusted.
#[test]
fn a_file_with_a_wrong_digit_repeats_nothing() {
    let server = server_with_tags();
    let mut issued = Issued::default();
    let mut random = random();
    issued.draw(&server);
    for round in 0..12 {
        server.stop(Stop::Fast);
        let mut text = fs::read(file(&server)).unwrap();
        // Every other time, decreases a first id: that id was issued.
        let smaller = round % 2 == 0;
        let keys = ["first", "len", "max_id", "incarnation", "relation"];
        let key = if smaller {
            "first"
        } else {
            keys.choose(&mut random).unwrap()
        };
        let key = format!("\"{key}\":");
        let digits: Vec<usize> = (key.len()..text.len())
            .filter(|end| text[..*end].ends_with(key.as_bytes()))
            .flat_map(|start| {
                let number = text[start..].iter().take_while(|c| c.is_ascii_digit());
                start..start + number.count()
            })
            .filter(|place| !smaller || text[*place] > b'1')
            .collect();
        let Some(&place) = digits.choose(&mut random) else {
            // All of them are 0 and 1.
            server.launch();
            issued.draw(&server);
            continue;
        };
        let wrong = if smaller {
            text[place] - 1
        } else {
            b'0' + (text[place] - b'0' + random.random_range(1..10)) % 10
        };
        println!(
            "{} for {} of {key}",
            char::from(wrong),
            char::from(text[place])
        );
        text[place] = wrong;
        fs::write(file(&server), text).unwrap();
        server.launch();
        issued.draw(&server);
    }
}

#[test]
fn a_disk_that_is_full_when_the_launcher_ends_is_a_gap() {
    let server = server_with_tags();
    let mut issued = Issued::default();
    issued.draw(&server);
    let temporary = server.data_dir().join("leaf_id_saved_ranges.json.tmp");
    let launchers: [fn(&Server, &mut Session); 2] = [
        |_, session| {
            let launcher = session.worker("launcher").unwrap();
            session.run(&format!("SELECT pg_terminate_backend({launcher})"));
            wait_until(LIMIT, "another launcher", || {
                session
                    .worker("launcher")
                    .is_some_and(|pid| pid != launcher)
            });
        },
        |server, _| server.restart(),
    ];
    for end in launchers {
        let before = log_lines(&server);
        symlink("/dev/full", &temporary).unwrap();
        end(&server, &mut server.session());
        issued.draw(&server);
        assert!(issued.gap("a") > 0);
        assert!(log_lines(&server) > before);
        fs::remove_file(&temporary).unwrap();
        server.restart();
        issued.draw(&server);
        assert_eq!(issued.gap("a"), 0);
    }
}
