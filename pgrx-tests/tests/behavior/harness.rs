//! Would catch: a test harness that reports success without checking anything. The only tests that
//! do not need leaf_id.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Call, Mode, Proxy, Server, Session, Stop, assert_in_order, assert_issued_once, in_threads,
    timed, wait_until, while_repeating,
};

const PLAIN: (&str, &str) = ("shared_preload_libraries", "");

#[test]
fn a_server_starts_stops_and_keeps_its_data() {
    let (server, took) = timed(|| Server::start(&[PLAIN, ("work_mem", "5MB")]));
    println!("started in {took:?}");
    let mut session = server.session();
    assert_eq!(session.value::<String>("SHOW work_mem"), "5MB");
    assert_eq!(session.value::<String>("SHOW fsync"), "on");
    session.run("CREATE TABLE kept AS SELECT 1::bigint AS id");
    for stop in [Server::restart, Server::crash] {
        let ((), took) = timed(|| stop(&server));
        println!("restarted in {took:?}");
        assert_eq!(server.session().ids("SELECT id FROM kept"), [1]);
    }
    server.stop(Stop::Immediate);
    server.launch();
    server.set("work_mem", "6MB");
    wait_until(Duration::from_secs(10), "the reload", || {
        server.session().value::<String>("SHOW work_mem") == "6MB"
    });
    assert_eq!(
        server.run("psql", &["-XAtc", "SELECT id FROM kept", "postgres"]),
        "1\n"
    );
    assert!(server.log().contains("database system is ready"));
    let dir = server.dir().to_path_buf();
    drop(server);
    wait_until(Duration::from_secs(60), "the directory to go", || {
        !dir.exists()
    });
}

#[test]
fn a_disaster_in_the_log_fails_the_test() {
    let server = Server::start(&[PLAIN]);
    let crash = |number, kill: &dyn Fn(&mut Session)| {
        kill(&mut server.session());
        wait_until(Duration::from_secs(30), "the restart", || {
            server.log().matches("terminated by signal 9").count() == number
                && server.try_connect("postgres", "postgres").is_ok()
        });
    };
    // An expected crash is acceptable, but must not hide another one.
    crash(1, &|victim| assert!(server.kill_9_backend(victim.pid())));
    crash(2, &|victim| {
        let pid = victim.pid();
        let _ = victim.try_run(&format!("COPY (SELECT 1) TO PROGRAM 'kill -9 {pid}'"));
    });
    let dir = server.dir().to_path_buf();
    let caught = catch_unwind(AssertUnwindSafe(|| drop(server)));
    assert!(caught.is_err(), "the log was not looked at");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_announced_crash_is_no_disaster() {
    let server = Server::start(&[PLAIN]);
    let pid = server.session().pid();
    assert!(!server.kill_9_backend(i32::MAX), "there is none");
    // A process that is ending has left its directory before it stops to accept signals.
    wait_until(Duration::from_secs(30), "the session to end", || {
        !Path::new(&format!("/proc/{pid}")).exists()
    });
    assert!(!server.kill_9_backend(pid), "it has ended");
    let mut victim = server.session();
    assert!(server.kill_9_backend(victim.pid()));
    wait_until(Duration::from_secs(30), "the restart", || {
        server.log().contains("terminated by signal 9")
            && server.try_connect("postgres", "postgres").is_ok()
    });
    server.stop(Stop::Fast);
    assert_eq!(server.processes(), []);
}

#[test]
fn errors_come_with_all_their_parts() {
    let server = Server::start(&[PLAIN]);
    let mut session = server.session();
    session
        .fails(
            "DO $$ BEGIN RAISE EXCEPTION 'message' USING ERRCODE = '55P03', DETAIL = 'detail', \
             HINT = 'hint'; END $$",
        )
        .is("55P03")
        .says("message")
        .details("detail")
        .hints("hint");
    session.run("SET statement_timeout = '10ms'");
    session.fails("SELECT pg_sleep(10)").is("57014");
    session.run("DISCARD ALL");
    assert_eq!(session.value::<String>("SHOW statement_timeout"), "2min");
}

#[test]
fn duplicates_and_disorder_are_found() {
    assert_issued_once(&[vec![1, 3], vec![2, 4]]);
    let at = Instant::now();
    let call = |start, end, first, last| Call {
        start: at + Duration::from_secs(start),
        end: at + Duration::from_secs(end),
        first,
        last,
    };
    assert_in_order(vec![call(0, 2, 5, 9), call(1, 3, 1, 4), call(4, 5, 10, 10)]);
    let disorder = vec![call(0, 2, 5, 9), call(3, 4, 8, 10)];
    assert!(catch_unwind(|| assert_in_order(disorder)).is_err());
    for bad in [
        [vec![1, 2], vec![2, 3]],
        [vec![2, 1], vec![3, 4]],
        [vec![0, 1], vec![2, 3]],
    ] {
        assert!(
            catch_unwind(|| assert_issued_once(&bad)).is_err(),
            "{bad:?}"
        );
    }
}

#[test]
fn sessions_run_at_once_and_disturbers_stop() {
    let server = Server::start(&[PLAIN]);
    let mut disturber = server.session();
    disturber.run("CREATE SEQUENCE s");
    let pids = while_repeating(
        || disturber.run("SELECT nextval('s')"),
        || in_threads(8, |_| server.session().pid()),
    );
    assert_eq!(pids.len(), 8);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        while_repeating(
            || disturber.run("SELECT nextval('s')"),
            || panic!("expected"),
        )
    }));
    assert!(failed.is_err());
}

#[test]
fn a_frozen_server_says_nothing_until_it_goes_on() {
    let server = Server::start(&[PLAIN]);
    let mut session = server.session();
    let frozen = server.freeze();
    thread::scope(|scope| {
        let asking = scope.spawn(|| session.value::<i32>("SELECT 1"));
        let connecting = scope.spawn(|| server.session().value::<i32>("SELECT 2"));
        thread::sleep(Duration::from_millis(300));
        assert!(!asking.is_finished() && !connecting.is_finished());
        drop(frozen);
        assert_eq!(asking.join().unwrap(), 1);
        assert_eq!(connecting.join().unwrap(), 2);
    });
    // Nor does it delay the end of the server.
    let frozen = server.freeze();
    server.kill_9();
    drop(frozen);
    server.launch();
}

#[test]
fn a_password_can_be_required() {
    let server = Server::start(&[PLAIN]);
    server
        .session()
        .run("CREATE ROLE closed LOGIN PASSWORD 'p'; CREATE ROLE open LOGIN");
    server.require_password("closed");
    assert!(server.try_connect("closed", "postgres").is_err());
    server.connect_as("open", "postgres").run("SELECT 1");
}

#[test]
fn servers_of_other_numbers_have_other_system_identifiers() {
    let mut identifiers: Vec<i64> = [0, 1, 2]
        .map(|number| {
            let server = Server::start_unrelated(number, &[PLAIN]);
            let sql = "SELECT system_identifier FROM pg_control_system()";
            server.session().value(sql)
        })
        .into();
    identifiers.sort_unstable();
    identifiers.dedup();
    assert_eq!(identifiers.len(), 3);
}

#[test]
fn a_proxy_fails_in_every_way_of_a_network() {
    const INSERT: &str = "INSERT INTO t VALUES (1)";
    let server = Server::start(&[PLAIN]);
    let count = || server.session().value::<i64>("SELECT count(*) FROM t");
    server.session().run("CREATE TABLE t (i int)");
    let proxy = Proxy::to(&server);
    let mut session = proxy.try_session().unwrap();
    session.run(INSERT);
    assert_eq!((count(), proxy.connections()), (1, 1));

    proxy.set(Mode::Silent);
    thread::scope(|scope| {
        let asking = scope.spawn(|| session.run(INSERT));
        let connecting = scope.spawn(|| proxy.try_session().unwrap().run(INSERT));
        wait_until(Duration::from_secs(10), "the connection", || {
            proxy.connections() == 2
        });
        thread::sleep(Duration::from_millis(300));
        assert!(!asking.is_finished() && !connecting.is_finished());
        assert_eq!(count(), 1);
        proxy.set(Mode::Pass);
        asking.join().unwrap();
        connecting.join().unwrap();
    });
    assert_eq!(count(), 3);

    proxy.set(Mode::CutBefore("INSERT"));
    session.run("SELECT 1");
    session.fails(INSERT).is("");
    assert_eq!((count(), proxy.cuts()), (3, 1));
    let mut session = proxy.try_session().unwrap();
    session.run(INSERT);
    proxy.set(Mode::CutAfter("INSERT"));
    session.run("SELECT 1");
    session.fails(INSERT).is("");
    assert_eq!((count(), proxy.cuts()), (5, 2));

    let mut session = proxy.try_session().unwrap();
    proxy.set(Mode::Refuse);
    session.fails("SELECT 1").is("");
    assert!(proxy.try_session().is_err());
    proxy.set(Mode::Pass);
    let mut session = proxy.try_session().unwrap();
    proxy.end_connections();
    session.fails("SELECT 1").is("");
    proxy.try_session().unwrap().run("SELECT 1");
    assert_eq!(proxy.connections(), 6);
}

const WAITING: &str = "harness::waits_to_be_killed";
/// File to which that test writes its server's directory.
const FILE: &str = "LEAF_ID_TEST_FILE";

#[test]
#[ignore = "is run by the next one"]
fn waits_to_be_killed() {
    let server = Server::start(&[PLAIN]);
    let dir = server.dir().to_str().unwrap();
    fs::write(std::env::var(FILE).unwrap(), format!("{dir}\n")).unwrap();
    loop {
        thread::park();
    }
}

/// Killed directly, or together with the runner that started it.
#[test]
fn servers_end_with_the_process_of_their_test() {
    const LIMIT: Duration = Duration::from_secs(60);
    let tests = std::env::current_exe().unwrap();
    let itself = |file: &Path| {
        let mut command = Command::new(&tests);
        command
            .args(["--exact", "--ignored", WAITING])
            .env(FILE, file);
        command
    };
    let by_the_runner = |file: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command
            .arg(&tests)
            .arg(file.with_extension("times"))
            .arg(WAITING)
            .env(FILE, file);
        command
    };
    let place = Server::start(&[PLAIN]);
    for (name, command) in [
        ("itself", &itself as &dyn Fn(&Path) -> Command),
        ("by_the_runner", &by_the_runner),
    ] {
        let file = place.dir().join(name);
        let mut child = command(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let printed = || fs::read_to_string(&file).unwrap_or_default();
        wait_until(LIMIT, "the server", || printed().ends_with('\n'));
        let dir = PathBuf::from(printed().trim());
        let here = |process: fs::DirEntry| {
            fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&dir))
        };
        let runs = || fs::read_dir("/proc").unwrap().flatten().any(here);
        assert!(runs());
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until(LIMIT, "the server to end", || !runs());
        wait_until(LIMIT, "its directory to go", || !dir.exists());
    }
}
