//! Would catch: ids lost (I6), repeated or reordered (I3, I4, I7) by a clean restart, or by the end
//! of the launcher, while sessions take them as fast as possible.

use std::thread;
use std::time::Duration;

use leaf_id_tests::{Load, Part, Plan, Server, Session, Source, random, wait_until};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);
const SESSIONS: usize = 16;
const STEPS: [i32; 2] = [2_000, 10_000];

fn launcher(session: &mut Session) -> Option<i32> {
    session
        .column("SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id launcher'")
        .pop()
}

#[test]
fn clean_restarts_and_ended_launchers_lose_nothing() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "300ms"),
        ("leaf_id.refill_timeout", "30s"),
    ]);
    let mut random = random();
    let tag = |step| Part {
        source: Source::Tag(format!("by_{step}")),
        most: 20,
    };
    let snowflake = Part {
        source: Source::Snowflake,
        most: 20,
    };
    let plan = Plan {
        parts: vec![tag(STEPS[0]), tag(STEPS[1]), snowflake],
        sessions: SESSIONS,
        hasty: false,
        seed: random.random(),
    };
    let mut session = server.session();
    for step in STEPS {
        session.create_steady_tag(&format!("by_{step}"), step);
    }
    Load::prepare(&mut session, &plan.parts);
    drop(session);
    let history = plan.history(server.dir(), 1);
    let (windows, failures) = Load::run(&[&server], &history, &plan, |load| {
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(random.random_range(100..500)));
            history.restart(0, &server);
            thread::sleep(Duration::from_millis(random.random_range(100..500)));
            end_launcher(&server);
        }
        let pause = load.pause(LIMIT);
        let windows = history.settle(&mut server.session());
        drop(pause);
        (windows, load.take_failures())
    });
    let cut = windows.iter().flat_map(|window| &window.cut);
    for failure in cut.map(|cut| &cut.failure).chain(&failures) {
        // The server accepts no connections while it restarts.
        assert!(
            ["57P01", "57P03", ""].contains(&&*failure.state),
            "{failure}"
        );
    }
    for (source, window) in history.sources().iter().zip(&windows) {
        let ids: u64 = window.ids.values().sum();
        assert!(ids > 1000, "{source} was in use");
        println!(
            "{source}: {ids} ids, {} calls cut, {} ids lost, {} of them counted by the view, \
             longest call {:?}",
            window.cut.len(),
            window.lost,
            window.dropped,
            window.longest_call
        );
        if window.unexplained() > 0 {
            history.fail(&format!("{source}: {} ids are lost", window.unexplained()));
        }
    }
}

fn end_launcher(server: &Server) {
    let mut session = server.session();
    let mut ended = None;
    wait_until(LIMIT, "the launcher", || {
        ended = launcher(&mut session);
        ended.is_some()
    });
    let ended = ended.unwrap();
    session.run(&format!("SELECT pg_terminate_backend({ended})"));
    wait_until(LIMIT, "another launcher", || {
        launcher(&mut session).is_some_and(|pid| pid != ended)
    });
}
