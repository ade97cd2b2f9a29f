//! Would catch: a holder of a worker id that goes on with it after its lease: because it was
//! stopped somewhere and did not notice, because its clock was set back meanwhile, or because
//! it is a copy of the holder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use leaf_id_tests::{Fleet, Server, Session, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const EPOCH_MS: i64 = 1_288_834_974_657;
const CONF: [(&str, &str); 2] = [
    ("leaf_id.timestamp_reservation", "200ms"),
    ("leaf_id.worker_lease", "2s"),
];

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

fn assert_all_different(servers: &[Vec<i64>]) {
    let all: BTreeSet<i64> = servers.concat().into_iter().collect();
    assert_eq!(
        all.len(),
        servers.iter().map(Vec::len).sum::<usize>(),
        "an id came twice"
    );
}

/// A centre with one worker id to give, which the first of two members has.
struct Contest {
    fleet: Fleet,
    /// Of both members.
    ids: [Vec<i64>; 2],
}

impl Contest {
    fn new(fleet: Fleet) -> Self {
        fleet.centre.lease_worker_ids();
        fleet
            .centre
            .session()
            .run("SELECT leaf_worker_retire(n) FROM generate_series(1, 1023) n");
        let [holder, other] = [&fleet.members[0], &fleet.members[1]];
        holder.lease_from_link("m1");
        let ids = [vec![holder.session().next_snowflake()], Vec::new()];
        other.lease_from_link("m2");
        Self { fleet, ids }
    }

    fn holder(&self) -> &Server {
        &self.fleet.members[0]
    }

    /// Waits until the other member has the id, and uses it.
    fn take_over(&mut self) {
        let mut session = self.fleet.members[1].session();
        for _ in 0..20 {
            self.ids[1].push(session.next_snowflake());
        }
        assert!(self.ids[1].iter().all(|id| worker_of(*id) == 0));
    }

    fn settle(self) {
        assert_all_different(&self.ids);
    }
}

/// What a session that was frozen too gets at first. There must be no id of the old lease.
fn ask_at_once(session: &mut Session) {
    session.run("SET leaf_id.refill_timeout = '500ms'");
    for _ in 0..5 {
        let failure = session.fails("SELECT leaf_snowflake_next()");
        println!("{failure}");
        assert!(
            ["55000", "55P03", "53400"].contains(&&*failure.state),
            "{failure}"
        );
    }
}

#[test]
fn a_frozen_holder_issues_nothing_on_the_old_lease() {
    let mut contest = Contest::new(Fleet::new(2, &CONF));
    let mut session = contest.holder().session();
    let frozen = contest.holder().freeze();
    contest.take_over();
    drop(frozen);
    ask_at_once(&mut session);
    contest.take_over();
    contest.settle();
}

/// By the clock that was set, the lease would go on for a while.
#[test]
fn a_frozen_holder_with_the_clock_set_back_issues_nothing_either() {
    let centre = Server::with_leaf_id(&[]);
    centre.admit_members();
    let holder = Server::start_unrelated_with_clock(1, 0, &CONF);
    let other = Server::start_unrelated(2, &CONF);
    let members = vec![holder, other];
    for member in &members {
        member.feed_from(&[centre.dir()]);
    }
    let mut contest = Contest::new(Fleet { centre, members });
    let mut session = contest.holder().session();
    // The word is behind the clock that will be.
    let before = session.next_snowflake();
    let frozen = contest.holder().freeze();
    contest.take_over();
    let last_ms = (before >> 22) + EPOCH_MS;
    let clock = contest.holder().clock();
    clock.set(last_ms + 20 - clock.now_ms());
    drop(frozen);
    ask_at_once(&mut session);
    clock.set(0);
    contest.ids[0].push(before);
    contest.take_over();
    contest.settle();
}

/// The launcher, which would close the generator, is not there to do it.
#[test]
fn a_frozen_launcher() {
    let centre = Server::with_leaf_id(&[]);
    centre.admit_members();
    centre.lease_worker_ids();
    let conf = [("leaf_id.timestamp_reservation", "1s"), CONF[1]];
    let member = Server::start_unrelated_with_clock(1, 0, &conf);
    member.feed_from(&[centre.dir()]);
    member.lease_from_link("m1");
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    let launcher = session.worker("launcher").unwrap();
    let paused = member.pause(launcher);
    ids.extend(session.ids("SELECT leaf_snowflake_next()"));
    let last_ms = (ids[1] >> 22) + EPOCH_MS;
    let over = "SELECT lease_until < now() FROM leaf_snowflake_status";
    wait_until(LIMIT, "the end of the lease", || session.value(over));
    // By a clock that is set back the lease would go on, and what is reserved too.
    let clock = member.clock();
    session.run("SET leaf_id.refill_timeout = '300ms'");
    for ahead_ms in [last_ms + 20 - clock.now_ms(), 0] {
        clock.set(ahead_ms);
        let failure = session.fails("SELECT leaf_snowflake_next()");
        println!("{failure}");
        failure.is("55000").says("lease of worker id 0 has ended");
    }
    session.run("RESET leaf_id.refill_timeout");
    drop(paused);
    ids.push(session.next_snowflake());
    assert_all_different(&[ids]);
}

/// A session that has read the clock, and not issued yet, stops there again and again while
/// the worker id changes hands.
#[test]
fn a_frozen_session_between_clock_and_word() {
    let fleet = Fleet::leasing(2, &CONF);
    fleet
        .centre
        .session()
        .run("SELECT leaf_worker_retire(n) FROM generate_series(1, 1023) n");
    let over = AtomicBool::new(false);
    let ids = thread::scope(|scope| {
        let draw = |member: &Server| {
            let mut session = member.session();
            session.run("SET leaf_id.refill_timeout = '100ms'");
            let mut ids = Vec::new();
            while !over.load(Ordering::Relaxed) {
                if let Ok(more) = session.try_column::<i64>("SELECT leaf_snowflake_next_batch(50)")
                {
                    ids.extend(more);
                }
            }
            ids
        };
        let drawing: Vec<_> = fleet
            .members
            .iter()
            .flat_map(|member| [member, member])
            .map(|member| scope.spawn(move || draw(member)))
            .collect();
        let mut centre = fleet.centre.session();
        for round in 0..8 {
            let member = &fleet.members[round % 2];
            let busy: Vec<i32> = member.session().column(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT leaf_snowflake_next_batch%'",
            );
            let paused: Vec<_> = busy.into_iter().map(|pid| member.pause(pid)).collect();
            centre.run(
                "SELECT leaf_worker_release(0) FROM leaf_worker
                 WHERE worker_id = 0 AND node_name IS NOT NULL",
            );
            wait_until(LIMIT, "a holder", || {
                centre.value("SELECT node_name IS NOT NULL FROM leaf_worker WHERE worker_id = 0")
            });
            thread::sleep(Duration::from_millis(200));
            drop(paused);
        }
        over.store(true, Ordering::Relaxed);
        drawing
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    println!("{:?} ids", ids.iter().map(Vec::len).collect::<Vec<_>>());
    assert_all_different(&ids);
}

#[test]
fn a_clone_of_a_data_directory() {
    let fleet = Fleet::leasing(1, &[CONF[0], ("leaf_id.worker_lease", "6s")]);
    let member = &fleet.members[0];
    let mut session = member.session();
    let mut ids = [vec![session.next_snowflake()], Vec::new()];
    let clone = member.backup().start(&[]);
    let mut on_clone = clone.session();
    on_clone.run("SET leaf_id.refill_timeout = '300ms'");
    wait_until(LIMIT, "the refusal", || {
        let result = on_clone.try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_err_and(|failure| {
            println!("{failure}");
            failure.state == "55000" && failure.message.contains("another server")
        })
    });
    // The original goes on, renewed more than once.
    let renewed =
        "SELECT renewed_at > leased_at + interval '5s' FROM leaf_worker WHERE node_name = 'm1'";
    let mut centre = fleet.centre.session();
    wait_until(LIMIT, "two renewals", || {
        ids[0].extend(session.ids("SELECT leaf_snowflake_next()"));
        on_clone.fails("SELECT leaf_snowflake_next()");
        centre.value(renewed)
    });
    // With a name of its own the clone is a server of its own.
    clone.set("leaf_id.node_name", "clone");
    ids[1].push(on_clone.next_snowflake());
    assert_ne!(worker_of(ids[0][0]), worker_of(ids[1][0]));
    clone.set("leaf_id.node_name", "m1");
    wait_until(LIMIT, "the refusal", || {
        on_clone
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_err()
    });
    // Only when the original is gone for longer than its lease, the clone is taken for it.
    member.kill_9();
    ids[1].push(on_clone.next_snowflake());
    assert_eq!(worker_of(ids[1][1]), worker_of(ids[0][0]));
    assert_all_different(&ids);
}

/// All of a running machine's disk is copied, with everything that tells one file from
/// another, and started elsewhere: it is held off, and the original stays what it is.
#[test]
fn a_disk_image_clone() {
    let fleet = Fleet::leasing(1, &[CONF[0], ("leaf_id.worker_lease", "6s")]);
    let member = &fleet.members[0];
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    let clone = member.backup().start(&[]);
    clone.stop(leaf_id_tests::Stop::Fast);
    for file in ["leaf_id_lease.json", "leaf_id_reservation.json"] {
        imitate(&member.data_dir().join(file), &clone, file);
    }
    clone.launch();
    let mut on_clone = clone.session();
    let state = "SELECT state FROM leaf_snowflake_status";
    wait_until(LIMIT, "the refusal", || {
        on_clone.value::<String>(state) == "refused: another server has the worker id of this node"
    });
    let mut centre = fleet.centre.session();
    let renewed =
        "SELECT renewed_at > now() - interval '1s' FROM leaf_worker WHERE node_name = 'm1'";
    for _ in 0..2 {
        wait_until(LIMIT, "a renewal", || {
            ids.extend(session.ids("SELECT leaf_snowflake_next()"));
            centre.value(renewed)
        });
        wait_until(LIMIT, "a while without one", || {
            !centre.value::<bool>(renewed)
        });
    }
    assert_eq!(
        on_clone.value::<String>(state),
        "refused: another server has the worker id of this node"
    );
    assert_all_different(&[ids]);
}

/// A file of the original as it would be on a copy of its disk, on another machine.
fn imitate(original: &Path, clone: &Server, name: &str) {
    let text = fs::read_to_string(original).unwrap();
    let path = clone.data_dir().join(name);
    fs::write(&path, &text).unwrap();
    clone.give(&path);
    let copy = fs::metadata(&path).unwrap();
    let created = copy.created().ok().map(|time| {
        time.duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos()
            .to_string()
    });
    let mut text = replace(&text, "inode", &copy.ino().to_string());
    if let Some(created) = created {
        text = replace(&text, "created_ns", &created);
    }
    if text.contains("\"boot_id\"") {
        text = text.replacen("\"boot_id\":\"", "\"boot_id\":\"f", 1);
    }
    fs::write(&path, text).unwrap();
}

fn replace(text: &str, key: &str, value: &str) -> String {
    let key = format!("\"{key}\":");
    let start = text.find(&key).unwrap() + key.len();
    let length = text[start..].find([',', '}']).unwrap();
    format!("{}{value}{}", &text[..start], &text[start + length..])
}
