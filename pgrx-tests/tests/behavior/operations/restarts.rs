//! Would catch: an id issued again after a stop or a crash under load (I1, I3, I6), or at the
//! smallest and largest steps of a tag. Restarts at rest are tested in `survival`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leaf_id_tests::{Failure, Server, Session, Stop, assert_issued_once, becomes, random, timed};
use parking_lot::Mutex;
use rand::RngExt;

const STEPS: [i32; 3] = [1, 1 << 30, i32::MAX];

/// First and last id of a range.
fn range(session: &mut Session, tag: &str, n: i32) -> (i64, i64) {
    let row = session
        .query_one("SELECT * FROM leaf_segment_next_range($1, $2)", &[&tag, &n])
        .unwrap();
    let (first, last) = (row.get("first_id"), row.get("last_id"));
    assert_eq!(last - first, i64::from(n) - 1, "contiguous");
    (first, last)
}

/// Takes ids until an error, as after a shutdown.
fn take_to_the_end(session: &mut Session, at_once: i32) -> (Vec<i64>, Failure) {
    let mut ids = Vec::new();
    loop {
        match session.try_take("t", at_once) {
            Ok(more) => ids.extend(more),
            Err(failure) => return (ids, failure),
        }
    }
}

#[test]
fn the_smallest_and_largest_steps_survive_restarts() {
    let server = Server::with_leaf_id(&[]);
    for step in STEPS {
        let tag = format!("t{step}");
        // The step must not exceed an integer (in the original Leaf it wrapped).
        server.session().run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => 2147483647)"
        ));
        let mut issued = Vec::new();
        let restarts: [fn(&Server); 3] = [|_| (), Server::restart, Server::crash];
        for restart in restarts {
            restart(&server);
            let (mut a, mut b) = (server.session(), server.session());
            for _ in 0..3 {
                issued.extend([a.next(&tag), b.next(&tag)]);
                issued.extend(a.take(&tag, 100));
                for n in [step, 3, i32::MAX] {
                    let (first, last) = range(&mut b, &tag, n);
                    issued.push(first);
                    issued.extend((last > first).then_some(last));
                }
            }
        }
        println!("step {step}: up to {}", issued.last().unwrap());
        assert_issued_once(&[issued]);
    }
}

/// Sessions take ids and use them at once while the server is killed repeatedly. Their commits are
/// flushed late; only claims must be flushed at once.
#[test]
fn kill_9_at_any_moment_repeats_nothing() {
    let server = Server::with_leaf_id(&[
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "10s"),
        ("wal_writer_flush_after", "0"),
    ]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 200)");
    let mut random = random();
    let mut issued: Vec<i64> = Vec::new();
    for round in 0..8 {
        // The tag's row is flushed.
        server.session().run("CHECKPOINT");
        let drawn = Mutex::new(Vec::new());
        let dead = AtomicBool::new(false);
        thread::scope(|scope| {
            for mut session in (0..4).map(|_| server.session()).collect::<Vec<_>>() {
                let (drawn, dead) = (&drawn, &dead);
                scope.spawn(move || {
                    let (ids, failure) = take_to_the_end(&mut session, 20);
                    drawn.lock().push(ids);
                    assert!(dead.load(Ordering::SeqCst), "{failure}");
                });
            }
            thread::sleep(Duration::from_millis(random.random_range(20..400)));
            dead.store(true, Ordering::SeqCst);
            server.kill_9();
        });
        let drawn = drawn.into_inner();
        assert_issued_once(&drawn);
        let first = drawn.iter().flatten().min();
        println!(
            "round {round}: {:?} to {:?}",
            first,
            drawn.iter().flatten().max()
        );
        assert!(first.is_none_or(|first| Some(first) > issued.iter().max()));
        issued.extend(drawn.iter().flatten());
        server.launch();
        let (id, took) = timed(|| server.session().next("t"));
        println!("the first id after the start took {took:?}");
        assert!(Some(&id) > issued.iter().max());
        issued.push(id);
    }
}

#[test]
fn a_stop_in_full_use_repeats_nothing() {
    let server = Server::with_leaf_id(&[]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 500)");
    let mut issued: Vec<i64> = Vec::new();
    for _ in 0..3 {
        let drawn = Mutex::new(Vec::new());
        let in_use = thread::scope(|scope| {
            for mut session in (0..4).map(|_| server.session()).collect::<Vec<_>>() {
                let drawn = &drawn;
                scope.spawn(move || {
                    let (ids, failure) = take_to_the_end(&mut session, 50);
                    drawn.lock().push(ids);
                    failure.is_termination();
                });
            }
            let mut watcher = server.session();
            let in_use = becomes(Duration::from_secs(30), || {
                watcher.ids("SELECT max_id FROM leaf_id.leaf_alloc")[0]
                    > issued.iter().max().unwrap_or(&0) + 5000
            });
            let ((), took) = timed(|| server.stop(Stop::Fast));
            println!("it stopped in {took:?}");
            in_use
        });
        assert!(in_use, "the stop came in no use");
        let drawn = drawn.into_inner();
        assert_issued_once(&drawn);
        assert!(drawn.iter().flatten().min() > issued.iter().max());
        issued.extend(drawn.iter().flatten());
        server.launch();
    }
}
