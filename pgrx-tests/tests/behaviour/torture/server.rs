//! Would catch: whatever it takes more than one thing at a time to see: ids twice or out of
//! order (I3, I4, I7), ids that no claim covers (I1, I8), sessions that hang (I5), and ids
//! that a clean restart loses (I6), under 16 sessions with a mixed load, while processes
//! are killed, the server restarts, and administrators edit tags.
//!
//! The events are drawn from the seed; how they meet the sessions is not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{mem, thread};

use leaf_id_tests::{
    Caller, Failure, Haste, History, Load, Part, Plan, Run, Server, Session, Source, Stop, Window,
    random, wait_until,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

const LIMIT: Duration = Duration::from_secs(60);
const SESSIONS: usize = 16;
/// Who drives notes its own calls after those of the sessions.
const DRIVER: Caller = Caller {
    server: 0,
    session: SESSIONS,
};
const REFILL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a call may take while the server is up: some of its ids may each have to wait,
/// and two processors are few for all of this.
const STUCK: Duration = Duration::from_secs(10);
/// How long after the end of a reset the launcher may notice it.
const RESET_MARGIN: Duration = Duration::from_secs(3);
/// One round may take this long at most.
const ROUND: Duration = Duration::from_secs(300);

/// A tag, and how much of it is used at once.
struct Tag {
    name: &'static str,
    step: i32,
    max_step: i32,
    max_value: i64,
    most: u32,
}

const ENDLESS: i64 = i64::MAX - 1;
const LIMITED: &str = "limited";

const TAGS: [Tag; 4] = [
    // Its allocator claims all the time: a blow against it falls between any two steps.
    Tag {
        name: "tiny",
        step: 3,
        max_step: 20,
        max_value: ENDLESS,
        most: 10,
    },
    Tag {
        name: "small",
        step: 50,
        max_step: 1000,
        max_value: ENDLESS,
        most: 30,
    },
    Tag {
        name: "big",
        step: 10_000,
        max_step: 1_000_000,
        max_value: ENDLESS,
        most: 200,
    },
    Tag {
        name: LIMITED,
        step: 100,
        max_step: 500,
        max_value: 5000,
        most: 20,
    },
];

/// The kinds of events, and all of them in a list.
macro_rules! events {
    ($($event:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Event {
            $($event,)*
        }

        const EVENTS: &[Event] = &[$(Event::$event),*];
    };
}

events! {
    CancelCaller
    TerminateCaller
    KillCaller
    CancelAllocator
    TerminateAllocator
    KillAllocator
    KillAllocatorAtLockedRow
    PauseAllocator
    TerminateLauncher
    KillLauncher
    PauseLauncher
    KillServer
    KillPostmaster
    StopImmediately
    RestartInUse
    RestartAtRest
    ChangeWorkerId
    UnsetWorkerId
    ResetSnowflake
    ChangeSteps
    RaiseMaxId
    RaiseMaxValue
    ReplaceTag
    DropAndCreateTag
    RenameTag
    ResetTag
    Truncate
    VacuumFull
    LockTable
    LockRow
    UndoEdit
    KillEditor
    OtherExtension
    OtherDatabase
}

/// What an event may cost, the most expensive first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// What is cached.
    Crash,
    /// A claim that has committed and was not published.
    Worker,
    /// Nothing, and that is hard.
    CleanRestart,
    /// Nothing: what an edit drops is counted by the status view.
    Nothing,
}

impl Event {
    fn loss(self) -> Loss {
        match self {
            Self::KillCaller
            | Self::KillAllocator
            | Self::KillAllocatorAtLockedRow
            | Self::KillLauncher
            | Self::KillEditor
            | Self::KillServer
            | Self::KillPostmaster
            | Self::StopImmediately => Loss::Crash,
            Self::RestartInUse | Self::RestartAtRest => Loss::CleanRestart,
            Self::CancelAllocator | Self::TerminateAllocator => Loss::Worker,
            _ => Loss::Nothing,
        }
    }

    /// Whether this is how sessions may see it.
    fn explains(self, failure: &Failure) -> bool {
        // Empty: the connection is lost.
        let states: &[_] = match self {
            Self::CancelCaller => &["57014"],
            Self::TerminateCaller => &["57P01", ""],
            Self::KillCaller
            | Self::KillAllocator
            | Self::KillAllocatorAtLockedRow
            | Self::KillLauncher
            | Self::KillEditor => &["57P02", "57P03", ""],
            Self::KillServer
            | Self::KillPostmaster
            | Self::StopImmediately
            | Self::RestartInUse => &["57P01", "57P03", ""],
            Self::UnsetWorkerId if failure.message.contains("leaf_id.worker_id") => &["55000"],
            Self::DropAndCreateTag | Self::RenameTag => &["42704"],
            _ => &[],
        };
        states.contains(&&*failure.state)
    }
}

/// What came of it all.
#[derive(Default)]
struct Report {
    events: BTreeMap<Event, u32>,
    ids: BTreeMap<&'static str, u64>,
    /// Ids lost that no call may have taken and no view tells of.
    lost: BTreeMap<Loss, u64>,
    cut: u64,
    dropped: u64,
    errors: BTreeMap<String, u64>,
    longest_call: Duration,
    longest_silence: Duration,
}

struct Torture<'a> {
    server: &'a Server,
    history: &'a History,
    plan: &'a Plan,
    load: &'a Load<'a>,
    random: &'a mut StdRng,
    began: Instant,
    report: Report,
    /// What happened since the last settlement, and what before it.
    events: Vec<Event>,
    earlier: Vec<Event>,
    /// When that settlement was.
    settled: Instant,
    /// Until when `leaf_snowflake_reset` has calls wait, or be refused.
    reset_ends: Instant,
}

impl Torture<'_> {
    fn round(&mut self, events: &[Event]) {
        self.server.allow(ROUND);
        for &event in events {
            self.pass(50..300);
            self.events.push(event);
            *self.report.events.entry(event).or_default() += 1;
            println!("{:?} {event:?}", self.began.elapsed());
            self.perform(event);
        }
        self.pass(100..400);
        let pause = self.load.pause(LIMIT);
        self.settle(&mut self.server.session());
        drop(pause);
    }

    /// Lets the sessions work.
    fn pass(&mut self, ms: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.random.random_range(ms)));
    }

    fn perform(&mut self, event: Event) {
        match event {
            Event::CancelCaller => self.signal_caller("pg_cancel_backend"),
            Event::TerminateCaller => self.signal_caller("pg_terminate_backend"),
            Event::KillCaller => {
                self.crash(|session, random| callers(session).choose(random).copied())
            }
            Event::CancelAllocator => self.signal_worker("pg_cancel_backend", CLAIMING),
            Event::TerminateAllocator => self.signal_worker("pg_terminate_backend", CLAIMING),
            Event::KillAllocator => self.crash(|session, _| worker(session, CLAIMING)),
            Event::KillAllocatorAtLockedRow => self.kill_allocator_at_locked_row(),
            Event::PauseAllocator => self.pause_worker(CLAIMING),
            Event::TerminateLauncher => self.terminate_launcher(),
            Event::KillLauncher => self.crash(|session, _| worker(session, LAUNCHER)),
            Event::PauseLauncher => self.pause_worker(LAUNCHER),
            Event::KillServer => self.history.while_down(0, || self.server.crash()),
            Event::KillPostmaster => self.history.while_down(0, || {
                self.server.kill_9_postmaster();
                self.server.launch();
            }),
            Event::StopImmediately => self.history.while_down(0, || {
                self.server.stop(Stop::Immediate);
                self.server.launch();
            }),
            Event::RestartInUse => self.history.restart(0, self.server),
            Event::RestartAtRest => self.restart_at_rest(),
            // Again and again: the order is at stake within a millisecond only.
            Event::ChangeWorkerId => (0..20).for_each(|_| self.set_worker_id()),
            Event::UnsetWorkerId => {
                self.server.set("leaf_id.worker_id", "");
                self.pass(20..200);
                self.set_worker_id();
            }
            Event::ResetSnowflake => self.reset_snowflake(),
            Event::ChangeSteps
            | Event::RaiseMaxId
            | Event::RaiseMaxValue
            | Event::ReplaceTag
            | Event::DropAndCreateTag
            | Event::RenameTag
            | Event::ResetTag
            | Event::Truncate => self.edit(event),
            Event::VacuumFull => self.server.session().run("VACUUM FULL leaf_id.leaf_alloc"),
            Event::LockTable => self.hold_lock("LOCK TABLE leaf_id.leaf_alloc"),
            Event::LockRow => {
                let (_, tag) = self.choose_tag();
                self.hold_lock(&format!("{} FOR UPDATE", row_of(tag.name)));
            }
            Event::UndoEdit => {
                let mut session = self.begin_edit();
                self.pass(0..300);
                session.run("ROLLBACK");
            }
            Event::KillEditor => {
                let mut editor = self.begin_edit();
                let pid = editor.pid();
                self.crash(|_, _| Some(pid));
            }
            Event::OtherExtension => self.replace_other_extension(),
            Event::OtherDatabase => self.copy_other_database(),
        }
    }

    fn signal_caller(&mut self, function: &str) {
        let mut session = self.server.session();
        if let Some(pid) = callers(&mut session).choose(self.random) {
            session.run(&format!("SELECT {function}({pid})"));
        }
    }

    fn signal_worker(&mut self, function: &str, which: &str) {
        let mut session = self.server.session();
        let pid = awaited_worker(&mut session, which);
        session.run(&format!("SELECT {function}({pid})"));
    }

    fn pause_worker(&mut self, which: &str) {
        let pid = awaited_worker(&mut self.server.session(), which);
        // It may hold a lock that every statement needs: nothing is asked meanwhile.
        let paused = self.server.pause(pid);
        self.pass(50..800);
        drop(paused);
    }

    fn terminate_launcher(&mut self) {
        let mut session = self.server.session();
        let pid = awaited_worker(&mut session, LAUNCHER);
        session.run(&format!("SELECT pg_terminate_backend({pid})"));
        wait_until(LIMIT, "another launcher", || {
            worker(&mut session, LAUNCHER).is_some_and(|other| other != pid)
        });
    }

    /// Kills one process, and waits until the server is back.
    fn crash(&mut self, mut victim: impl FnMut(&mut Session, &mut StdRng) -> Option<i32>) {
        let crashes = || self.server.log().matches(" reinitializing").count();
        let before = crashes();
        let mut session = self.server.session();
        wait_until(LIMIT, "a process to kill", || {
            let pid = victim(&mut session, self.random);
            pid.is_some_and(|pid| {
                let killed = Instant::now();
                // It may have ended by itself.
                self.server.kill_9_backend(pid) && {
                    wait_until(LIMIT, "the server to be back", || {
                        // It still takes connections until the postmaster has noticed.
                        crashes() > before
                            && self.server.try_connect("postgres", "postgres").is_ok()
                    });
                    self.history.was_down(0, killed);
                    true
                }
            })
        });
    }

    fn kill_allocator_at_locked_row(&mut self) {
        let mut holder = self.server.session();
        holder.run(&format!("BEGIN; {} FOR UPDATE", row_of("tiny")));
        self.crash(|session, _| worker(session, BLOCKED));
    }

    /// While nobody asks for ids, not even one may be lost: the very next one comes.
    fn restart_at_rest(&mut self) {
        let pause = self.load.pause(LIMIT);
        let mut session = self.server.session();
        self.settle(&mut session);
        let next = TAGS.each_ref().map(|tag| {
            let sql = "SELECT coalesce(current_next, spare_first, max_id) FROM leaf_segment_status";
            session.value::<i64>(&format!("{sql} WHERE tag = '{}'", tag.name))
        });
        drop(session);
        self.history.while_down(0, || self.server.restart());
        self.load.reconnect();
        let mut session = self.server.session();
        for (source, (tag, next)) in TAGS.iter().zip(next).enumerate() {
            let call = || {
                let id = session.try_next(tag.name)?;
                if id != next {
                    let name = tag.name;
                    self.history
                        .fail(&format!("tag {name}: {id} and not {next} after a restart"));
                }
                Ok(Run::of(&[id]))
            };
            let result = self
                .history
                .call(DRIVER, source, "after a restart", 1, call);
            if let Err(failure) = result {
                assert_eq!((tag.name, &*failure.state), (LIMITED, "2200H"), "{failure}");
            }
        }
        self.events.push(Event::RestartAtRest);
        self.settle(&mut session);
        drop(pause);
    }

    fn set_worker_id(&mut self) {
        let id: u32 = self.random.random_range(0..1024);
        self.server.set("leaf_id.worker_id", &id.to_string());
    }

    /// Ids go on when the given time has come; until then calls wait, or are refused where
    /// that is too long.
    fn reset_snowflake(&mut self) {
        let ms = self.random.random_range(400..1500);
        let sql = format!("SELECT leaf_snowflake_reset(now() + interval '{ms} ms')");
        self.reset_ends = Instant::now() + Duration::from_millis(ms) + RESET_MARGIN;
        if let Err(failure) = self.server.session().try_run(&sql) {
            // The last one went further.
            failure.is("55000").details("reserved until");
        }
    }

    fn choose_tag(&mut self) -> (usize, &'static Tag) {
        let source = self.random.random_range(0..TAGS.len());
        (source, &TAGS[source])
    }

    /// Edits a tag. Where ids would start anew, they start above all that were claimed, so
    /// that none may come twice, whatever incarnation of the row it is from.
    fn edit(&mut self, event: Event) {
        let (source, tag) = self.choose_tag();
        let name = tag.name;
        let gap: i64 = self.random.random_range(0..2000);
        let factor = self.random.random_range(1..4);
        let mut session = self.server.session();
        match event {
            Event::ChangeSteps => session.run(&format!(
                "UPDATE leaf_id.leaf_alloc SET step = {}, max_step = {} WHERE biz_tag = '{name}'",
                tag.step * factor,
                tag.max_step * factor
            )),
            Event::RaiseMaxId => {
                let sql = format!(
                    "UPDATE leaf_id.leaf_alloc SET max_id = max_id + {gap} WHERE biz_tag = '{name}'
                     RETURNING max_id"
                );
                let max_id: i64 = session.value(&sql);
                self.history.skip(source, max_id - gap, max_id);
            }
            Event::RaiseMaxValue => session.run(&format!(
                "UPDATE leaf_id.leaf_alloc SET max_value = greatest(max_id, max_value) + 5000
                 WHERE biz_tag = '{LIMITED}'"
            )),
            Event::RenameTag => {
                session.run(&format!(
                    "UPDATE leaf_id.leaf_alloc SET biz_tag = 'away' WHERE biz_tag = '{name}'"
                ));
                self.pass(0..200);
                session.run(&format!(
                    "UPDATE leaf_id.leaf_alloc SET biz_tag = '{name}' WHERE biz_tag = 'away'"
                ));
            }
            Event::ReplaceTag => {
                session.run("BEGIN");
                let max_id = drop_tag(&mut session, name);
                create_tag(&mut session, tag, max_id + gap);
                session.run("COMMIT");
                self.history.skip(source, max_id, max_id + gap);
            }
            Event::DropAndCreateTag => {
                let max_id = drop_tag(&mut session, name);
                self.pass(0..200);
                create_tag(&mut session, tag, max_id + gap);
                self.history.skip(source, max_id, max_id + gap);
            }
            Event::ResetTag => {
                session.run("BEGIN");
                let max_id: i64 = session.value(&format!("{} FOR UPDATE", row_of(name)));
                session.run(&format!(
                    "SELECT leaf_tag_reset('{name}', {})",
                    max_id + gap
                ));
                session.run("COMMIT");
                self.history.skip(source, max_id, max_id + gap);
            }
            _ => self.truncate(&mut session, gap),
        }
    }

    /// All tags at once; and the first id of one is taken by the transaction itself.
    fn truncate(&self, session: &mut Session, gap: i64) {
        session.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc");
        let max_ids = TAGS
            .each_ref()
            .map(|tag| session.value::<i64>(&row_of(tag.name)));
        session.run("TRUNCATE leaf_id.leaf_alloc");
        for (tag, max_id) in TAGS.iter().zip(max_ids) {
            create_tag(session, tag, max_id + gap);
        }
        let call = || {
            let id = session.try_next(TAGS[0].name)?;
            session.try_run("COMMIT")?;
            Ok(Run::of(&[id]))
        };
        let result = self.history.call(DRIVER, 0, "by the creator", 1, call);
        result.expect("an id of a tag created here");
        for (source, max_id) in max_ids.into_iter().enumerate() {
            self.history.skip(source, max_id, max_id + gap);
        }
    }

    /// A transaction that has edited a tag, and is not going to commit.
    fn begin_edit(&mut self) -> Session {
        let (_, tag) = self.choose_tag();
        let edits = [
            "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1000",
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'away'",
            "DELETE FROM leaf_id.leaf_alloc",
        ];
        let edit = edits.choose(self.random).unwrap();
        let mut session = self.server.session();
        session.run(&format!("BEGIN; {edit} WHERE biz_tag = '{}'", tag.name));
        session
    }

    fn hold_lock(&mut self, statement: &str) {
        let mut session = self.server.session();
        session.run(&format!("BEGIN; {statement}"));
        self.pass(50..600);
        session.run("COMMIT");
    }

    fn replace_other_extension(&mut self) {
        let mut session = self.server.session_in("other");
        session.run(
            "ALTER EXTENSION leaf_id UPDATE;
             DROP EXTENSION leaf_id;
             CREATE EXTENSION leaf_id",
        );
        session.create_tag("small");
        // Its own, and from the beginning.
        let ids = session.take("small", 2000);
        assert!(ids.iter().copied().eq(1..=2000), "{ids:?}");
    }

    fn copy_other_database(&mut self) {
        let mut session = self.server.session();
        session.run("CREATE DATABASE copy TEMPLATE other");
        let mut other = self.server.session_in("other");
        let mut copy = self.server.session_in("copy");
        for _ in 0..3 {
            other.take("small", 500);
            copy.take("small", 500);
        }
        drop(copy);
        session.run("DROP DATABASE copy");
    }

    /// Checks what happened since the last time, and adds it to the report. While the
    /// sessions pause.
    fn settle(&mut self, session: &mut Session) {
        let windows = self.history.settle(session);
        // The rows were a check of their own, by the primary key.
        for part in &self.plan.parts {
            session.run(&format!("TRUNCATE {}", part.table()));
        }
        for failure in self.load.take_troubles() {
            // Any statement of a hasty session may have taken too long.
            self.judge(&failure, &["57014"]);
        }
        for (source, window) in self.history.sources().iter().zip(&windows) {
            self.enter(source, window);
        }
        self.earlier = mem::take(&mut self.events);
        self.settled = Instant::now();
    }

    fn enter(&mut self, source: &Source, window: &Window) {
        let limited = *source == Source::Tag(LIMITED.into());
        for cut in &window.cut {
            let haste = self.plan.haste(cut.caller.session);
            let expected: &[_] = match haste {
                _ if limited && cut.failure.state == "2200H" => &["2200H"],
                Haste::None => &[],
                Haste::Refill => &["55P03"],
                Haste::Statement => &["57014"],
            };
            self.judge(&cut.failure, expected);
            self.report.cut += u64::from(cut.asked);
        }
        let failed = window.cut.iter().map(|cut| cut.took).max();
        let longest = window.longest_call.max(failed.unwrap_or_default());
        if longest > STUCK {
            self.history
                .fail(&format!("{source}: a call took {longest:?}"));
        }
        let report = &mut self.report;
        report.longest_call = report.longest_call.max(window.longest_call);
        if !limited {
            report.longest_silence = report.longest_silence.max(window.longest_silence);
        }
        for (kind, ids) in &window.ids {
            *report.ids.entry(kind).or_default() += ids;
        }
        report.dropped += window.dropped;
        let loss = self.events.iter().map(|event| event.loss()).min();
        let loss = loss.unwrap_or(Loss::Nothing);
        let lost = window.unexplained();
        *report.lost.entry(loss).or_default() += lost;
        if lost > 0 && loss >= Loss::CleanRestart {
            let events = &self.events;
            self.history
                .fail(&format!("{source}: {lost} ids are lost by {events:?}"));
        }
    }

    /// Ends the test at an error that nothing explains: neither what its session is like,
    /// nor what happened, nor what happened before, which a session may have missed.
    fn judge(&mut self, failure: &Failure, expected: &[&str]) {
        let state = &*failure.state;
        *self.report.errors.entry(state.into()).or_default() += 1;
        let mut events = self.earlier.iter().chain(&self.events);
        let is_reset = state == "55000"
            && failure.message.contains("far ahead of the clock")
            && self.settled <= self.reset_ends;
        if !events.any(|event| event.explains(failure)) && !expected.contains(&state) && !is_reset {
            self.history.fail(&format!(
                "{failure}\nafter {:?} and {:?}",
                self.earlier, self.events
            ));
        }
    }
}

const LAUNCHER: &str = "backend_type = 'leaf_id launcher'";
/// An allocator at a claim. (Which step of it, only chance tells.)
const CLAIMING: &str =
    "backend_type = 'leaf_id allocator' AND state = 'active' AND query LIKE 'claim ids%'";
const BLOCKED: &str = "backend_type = 'leaf_id allocator' AND wait_event_type = 'Lock'";

fn callers(session: &mut Session) -> Vec<i32> {
    session.column(
        "SELECT pid FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state = 'active'",
    )
}

fn worker(session: &mut Session, which: &str) -> Option<i32> {
    session
        .column(&format!(
            "SELECT pid FROM pg_stat_activity WHERE {which}
                 AND coalesce(datname, current_database()) = current_database()"
        ))
        .pop()
}

fn awaited_worker(session: &mut Session, which: &str) -> i32 {
    let mut pid = None;
    wait_until(LIMIT, which, || {
        pid = worker(session, which);
        pid.is_some()
    });
    pid.unwrap()
}

fn row_of(tag: &str) -> String {
    format!("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}'")
}

fn drop_tag(session: &mut Session, tag: &str) -> i64 {
    session.value(&format!(
        "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}' RETURNING max_id"
    ))
}

fn create_tag(session: &mut Session, tag: &Tag, start: i64) {
    // Where it would be at its end, it gets another one.
    let max_value = tag.max_value.max(start.saturating_add(1000));
    session.run(&format!(
        "SELECT leaf_tag_create('{}', step => {}, max_step => {}, start => {start},
             max_value => {max_value})",
        tag.name, tag.step, tag.max_step
    ));
}

/// Has events happen, from a shuffled deck of all kinds, until there were so many and so
/// much time has passed.
fn torture(events: usize, at_least: Duration) {
    let began = Instant::now();
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "300ms"),
        (
            "leaf_id.refill_timeout",
            &format!("{}s", REFILL_TIMEOUT.as_secs()),
        ),
    ]);
    let mut random = random();
    let mut parts = TAGS
        .each_ref()
        .map(|tag| Part {
            source: Source::Tag(tag.name.into()),
            most: tag.most,
        })
        .to_vec();
    parts.push(Part {
        source: Source::Snowflake,
        most: 100,
    });
    let plan = Plan {
        parts,
        sessions: SESSIONS,
        hasty: true,
        seed: random.random(),
    };
    let mut session = server.session();
    for tag in &TAGS {
        create_tag(&mut session, tag, 1);
    }
    Load::prepare(&mut session, &plan.parts);
    session.run("CREATE DATABASE other");
    let mut other = server.session_in("other");
    other.run("CREATE EXTENSION leaf_id");
    other.create_tag("small");
    drop((session, other));

    let history = plan.history(server.dir(), 1);
    let report = Load::run(&[&server], &history, &plan, |load| {
        let mut torture = Torture {
            server: &server,
            history: &history,
            plan: &plan,
            load,
            random: &mut random,
            began,
            report: Report::default(),
            events: Vec::new(),
            earlier: Vec::new(),
            settled: Instant::now(),
            reset_ends: Instant::now(),
        };
        let mut deck = Vec::new();
        let mut happened = 0;
        while happened < events || began.elapsed() < at_least {
            // One after the other, mostly; or before the effects of another are over.
            let count = if torture.random.random_bool(0.7) {
                1
            } else {
                2
            };
            if deck.len() < count {
                deck = EVENTS.to_vec();
                deck.shuffle(torture.random);
            }
            torture.round(&deck.split_off(deck.len() - count));
            happened += count;
        }
        torture.report
    });
    report.print();
    let ids: u64 = report.ids.values().sum();
    assert!(ids > 10_000, "the sessions were not at work");
    server.stop(Stop::Fast);
    assert_eq!(server.processes(), [], "left behind");
    println!("{:?} in all", began.elapsed());
}

impl Report {
    fn print(&self) {
        println!("events: {}", self.events.values().sum::<u32>());
        for (event, times) in &self.events {
            println!("  {:26} {times:>12}", format!("{event:?}"));
        }
        // Each was compared with all the others: see the history.
        println!(
            "ids, none of them twice: {}",
            self.ids.values().sum::<u64>()
        );
        for (kind, ids) in &self.ids {
            println!("  {kind:26} {ids:>12}");
        }
        println!("ids lost:");
        for (loss, ids) in &self.lost {
            println!("  {:26} {ids:>12}", format!("{loss:?}"));
        }
        println!("  {:26} {:>12}", "counted by the view", self.dropped);
        println!("  {:26} {:>12}", "at most, by calls cut off", self.cut);
        println!("errors:");
        for (state, times) in &self.errors {
            let state = if state.is_empty() {
                "connection lost"
            } else {
                state
            };
            println!("  {state:26} {times:>12}");
        }
        println!("longest call that got ids {:?}", self.longest_call);
        println!(
            "longest time without an id of a tag {:?}",
            self.longest_silence
        );
    }
}

#[test]
fn ten_events_under_sixteen_sessions_repeat_nothing() {
    torture(10, Duration::ZERO);
}

/// By `make torture`.
#[test]
#[ignore = "takes LEAF_ID_TORTURE_SECONDS, or ten minutes"]
fn a_hundred_events_in_ten_minutes_repeat_nothing() {
    let seconds = std::env::var("LEAF_ID_TORTURE_SECONDS")
        .map_or(600, |seconds| seconds.parse().expect("a number"));
    torture(100, Duration::from_secs(seconds));
}
