//! Would catch: failures that need concurrent events: ids issued twice or out of order (I3, I4,
//! I7), ids without a claim (I1, I8), sessions that hang (I5), and ids lost by a clean restart
//! (I6). 16 sessions run a mixed load, while processes are killed, the server restarts,
//! administrators edit tags, and the clock is set up to an hour forward and back. Also: snowflake
//! ids refused although the clock is within the max lead.

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Backup, Cut, Failure, History, IdRange, Part, Server, Session, Source, Stop, Window,
    wait_until, worker_of,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::driver::{
    Driver, Extent, LIMIT, NEXT_CLAIM, ROWS_AND_MARKS, Subject, Work, end_of, lock_of, run,
};
use super::event::{Happening, Loss, events};

const SESSIONS: usize = 16;
const REFILL_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the launcher to notice the end of a reset.
const RESET_MARGIN: Duration = Duration::from_secs(3);
/// Time until snowflake ids continue after a reset, in milliseconds.
const RESET_MS: Range<u64> = 400..1500;
/// Steps of the clock, in milliseconds.
const CLOCK_STEPS_MS: [i64; 6] = [20, 1000, 4000, 11_000, 60_000, 3_600_000];
/// If the clock is set back by more than this, snowflake ids may be refused: ids may lead the clock
/// by ten seconds, of which crashes use up some reservations.
const FAR_BACK_MS: i64 = 9000;
/// Time at the max lead after a start that cannot know which ids were issued before: with another
/// worker id.
const UNKNOWN: Duration = Duration::from_secs(15);
/// A tag, and its use.
struct Tag {
    name: &'static str,
    step: i32,
    max_step: i32,
    max_value: i64,
    most: u32,
    is_opaque: bool,
}

impl Tag {
    fn source(&self) -> Source {
        if self.is_opaque {
            Source::Opaque(self.name.into())
        } else {
            Source::Tag(self.name.into())
        }
    }
}

const ENDLESS: i64 = i64::MAX - 1;
const LIMITED: &str = "limited";

const TAGS: [Tag; 5] = [
    // Its allocator is always claiming, so a signal may hit it between any two steps.
    Tag {
        name: "tiny",
        step: 3,
        max_step: 20,
        max_value: ENDLESS,
        most: 10,
        is_opaque: false,
    },
    Tag {
        name: "small",
        step: 50,
        max_step: 1000,
        max_value: ENDLESS,
        most: 30,
        is_opaque: false,
    },
    Tag {
        name: "big",
        step: 10_000,
        max_step: 1_000_000,
        max_value: ENDLESS,
        most: 200,
        is_opaque: false,
    },
    Tag {
        name: LIMITED,
        step: 100,
        max_step: 500,
        max_value: 5000,
        most: 20,
        is_opaque: false,
    },
    Tag {
        name: "secret",
        step: 20,
        max_step: 1000,
        max_value: (1 << 53) - 1,
        most: 20,
        is_opaque: true,
    },
];
const SERIES: &str = "invoices";

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
    FailReset
    SetClockAhead
    SetClockBack
    CrashWithClockBack
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
    SetBackTags
    SetBackMarks
    SetBackSeries
    SetBackSeriesMarks
    UndoEdit
    KillEditor
    OtherExtension
    OtherDatabase
    PromoteStandby
    RestoreBackup
}

impl Happening for Event {
    const ALL: &'static [Self] = EVENTS;

    fn is_cheap(self) -> bool {
        matches!(
            self,
            Self::CancelCaller
                | Self::TerminateCaller
                | Self::CancelAllocator
                | Self::TerminateAllocator
                | Self::PauseAllocator
                | Self::ChangeWorkerId
                | Self::SetClockAhead
                | Self::ChangeSteps
                | Self::RaiseMaxId
                | Self::RaiseMaxValue
                | Self::ReplaceTag
                | Self::DropAndCreateTag
                | Self::RenameTag
                | Self::ResetTag
                | Self::Truncate
                | Self::VacuumFull
                | Self::LockTable
                | Self::LockRow
                | Self::UndoEdit
        )
    }

    fn recovers(self) -> Duration {
        match self {
            // Until the time at which ids are to continue.
            Self::ResetSnowflake => Duration::from_millis(RESET_MS.end) + RESET_MARGIN,
            _ => Duration::from_secs(2),
        }
    }

    fn loss(self) -> Loss {
        match self {
            Self::KillCaller
            | Self::KillAllocator
            | Self::KillAllocatorAtLockedRow
            | Self::KillLauncher
            | Self::KillEditor
            | Self::KillServer
            | Self::KillPostmaster
            | Self::StopImmediately
            | Self::CrashWithClockBack
            // Of which a crash may be a part.
            | Self::SetBackTags
            | Self::SetBackMarks
            | Self::SetBackSeries
            | Self::SetBackSeriesMarks
            | Self::PromoteStandby
            | Self::RestoreBackup => Loss::Crash,
            Self::RestartInUse | Self::RestartAtRest => Loss::CleanRestart,
            Self::CancelAllocator | Self::TerminateAllocator => Loss::Worker,
            _ => Loss::Nothing,
        }
    }

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
            Self::SetBackTags
            | Self::SetBackMarks
            | Self::SetBackSeries
            | Self::SetBackSeriesMarks => &["42704", "57P01", "57P03", ""],
            // PostgreSQL schedules timeouts by the wall clock once one of them has expired.
            Self::SetClockAhead | Self::SetClockBack => &["57014"],
            Self::CrashWithClockBack => &["57014", "57P01", "57P03", ""],
            Self::FailReset => &["58030"],
            Self::UnsetWorkerId if failure.message.contains("leaf_id.worker_id") => &["55000"],
            Self::DropAndCreateTag | Self::RenameTag => &["42704"],
            _ => &[],
        };
        states.contains(&&*failure.state)
    }
}

struct OneServer<'a> {
    server: &'a Server,
    /// Time until which `leaf_snowflake_reset` may delay or refuse calls.
    reset_ends: Instant,
    /// Time until which ids may be at the max lead.
    unknown_until: Instant,
    /// Last time at which the clock was further back than tolerated.
    far_back_until: Option<Instant>,
}

impl Subject for OneServer<'_> {
    type Event = Event;
    const STUCK: Duration = Duration::from_secs(10);

    fn servers(&self) -> Vec<&Server> {
        vec![self.server]
    }

    fn settle(&self, history: &History, sessions: &mut [Session]) -> Vec<Window> {
        history.settle(&mut sessions[0])
    }

    fn ends(source: &Source) -> bool {
        *source == Source::Tag(LIMITED.into())
    }

    fn explains(&self, failure: &Failure, settled: Instant) -> bool {
        let far_back = self.far_back_until.is_some_and(|until| settled <= until);
        failure.state == "55000"
            && failure.message.contains("clock")
            && (settled <= self.reset_ends || far_back)
    }

    fn excuses(&self, cut: &Cut) -> bool {
        // From the observer of a clock that was set back.
        cut.kind == WATCHED && ["55000", "55P03"].contains(&&*cut.failure.state)
    }

    fn perform(driver: &mut Driver<'_, Self>, event: Event) {
        driver.perform(event);
    }
}

fn reset_sql(ms: u64) -> String {
    format!("SELECT leaf_id.leaf_snowflake_reset(now() + interval '{ms} ms')")
}

/// Calls that only check whether ids are available.
const WATCHED: &str = "snowflake, watched";

impl Driver<'_, OneServer<'_>> {
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
            Event::KillServer => self.history.while_down(0, || self.subject.server.crash()),
            Event::KillPostmaster => self.history.while_down(0, || {
                self.subject.server.kill_9_postmaster();
                self.subject.server.launch();
            }),
            Event::StopImmediately => self.history.while_down(0, || {
                self.subject.server.stop(Stop::Immediate);
                self.subject.server.launch();
            }),
            Event::RestartInUse => {
                self.correct_rows();
                self.history.restart(0, self.subject.server);
            }
            Event::RestartAtRest => self.restart_at_rest(),
            // Several times: the order is at risk only within a millisecond.
            Event::ChangeWorkerId => (0..3).for_each(|_| self.set_worker_id()),
            Event::UnsetWorkerId => {
                self.subject.server.set("leaf_id.worker_id", "");
                self.pass(20..200);
                self.set_worker_id();
            }
            Event::ResetSnowflake => self.reset_snowflake(),
            Event::FailReset => self.fail_reset(),
            Event::SetClockAhead => {
                let clock = self.subject.server.clock();
                clock.set(clock.ahead_ms() + self.choose_clock_step());
            }
            Event::SetClockBack => self.set_clock_back(|_| ()),
            Event::CrashWithClockBack => self.set_clock_back(|driver| {
                driver.pass(0..100);
                let server = driver.subject.server;
                driver.history.while_down(0, || server.crash());
            }),
            Event::ChangeSteps
            | Event::RaiseMaxId
            | Event::RaiseMaxValue
            | Event::ReplaceTag
            | Event::DropAndCreateTag
            | Event::RenameTag
            | Event::ResetTag
            | Event::Truncate => self.edit(event),
            Event::VacuumFull => self
                .subject
                .server
                .session()
                .run("VACUUM FULL leaf_id.leaf_alloc"),
            Event::LockTable => {
                let mut session = self.subject.server.session();
                self.hold_lock(&mut session, "LOCK TABLE leaf_id.leaf_alloc", 50..600);
            }
            Event::LockRow => {
                let (_, tag) = self.choose_tag();
                let mut session = self.subject.server.session();
                self.hold_lock(&mut session, &lock_of(tag.name), 50..600);
            }
            Event::SetBackTags => self.set_back("leaf_alloc"),
            Event::SetBackMarks => self.set_back("leaf_high_mark"),
            Event::SetBackSeries => self.set_back("leaf_gapless"),
            Event::SetBackSeriesMarks => self.set_back("leaf_gapless_mark"),
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
            Event::PromoteStandby => self.promote_standby(),
            Event::RestoreBackup => self.restore_backup(),
        }
    }

    fn signal_caller(&mut self, function: &str) {
        let mut session = self.subject.server.session();
        if let Some(pid) = callers(&mut session).choose(&mut self.random) {
            session.run(&format!("SELECT {function}({pid})"));
        }
    }

    fn signal_worker(&mut self, function: &str, which: &str) {
        let mut session = self.subject.server.session();
        let pid = awaited_worker(&mut session, which);
        session.run(&format!("SELECT {function}({pid})"));
    }

    fn pause_worker(&mut self, which: &str) {
        let pid = awaited_worker(&mut self.subject.server.session(), which);
        // It may hold a lock that every statement needs, so run no statement until it resumes.
        let paused = self.subject.server.pause(pid);
        self.pass(50..800);
        drop(paused);
    }

    fn terminate_launcher(&mut self) {
        let mut session = self.subject.server.session();
        let pid = awaited_worker(&mut session, LAUNCHER);
        session.run(&format!("SELECT pg_terminate_backend({pid})"));
        wait_until(LIMIT, "another launcher", || {
            worker(&mut session, LAUNCHER).is_some_and(|other| other != pid)
        });
    }

    /// Kills a process, and waits until the server is back.
    fn crash(&mut self, mut victim: impl FnMut(&mut Session, &mut StdRng) -> Option<i32>) {
        let server = self.subject.server;
        let mut session = server.session();
        wait_until(LIMIT, "a process to kill", || {
            let pid = victim(&mut session, &mut self.random);
            pid.is_some_and(|pid| self.kill(0, server, pid))
        });
    }

    fn kill_allocator_at_locked_row(&mut self) {
        let mut holder = self.subject.server.session();
        holder.run(&format!("BEGIN; {}", lock_of("tiny")));
        self.crash(|session, _| worker(session, BLOCKED));
    }

    /// As the next claims would. A clean restart loses the cached ids of a row that a tool has set
    /// back.
    fn correct_rows(&self) {
        self.subject.server.session().run(
            "UPDATE leaf_id.leaf_alloc SET max_id = high FROM leaf_id.leaf_high_mark
             WHERE tag = biz_tag AND max_id < high",
        );
    }

    /// If no session requests ids, none may be lost: the next one follows.
    fn restart_at_rest(&mut self) {
        let pause = self.load.pause(LIMIT);
        self.correct_rows();
        let mut session = self.subject.server.session();
        self.settle();
        let next = TAGS.each_ref().map(|tag| {
            session.value::<i64>(&format!(
                "SELECT coalesce((SELECT coalesce(current_next, spare_first)
                     FROM leaf_id.tags_detail WHERE tag = '{}'), ({}))",
                tag.name,
                end_of(tag.name)
            ))
        });
        drop(session);
        self.history.while_down(0, || self.subject.server.restart());
        self.load.reconnect();
        let mut session = self.subject.server.session();
        for (source, (tag, next)) in TAGS.iter().zip(next).enumerate() {
            let call = || {
                let taken = IdRange::of(&session.try_column(&tag.source().next())?);
                if taken != IdRange::of(&[next]) {
                    let name = tag.name;
                    self.history.fail(&format!(
                        "tag {name}: {taken:?} and not {next} after a restart"
                    ));
                }
                Ok(taken)
            };
            let result = self
                .history
                .call(self.caller(0), source, "after a restart", 1, call);
            if let Err(failure) = result {
                assert_eq!((tag.name, &*failure.state), (LIMITED, "2200H"), "{failure}");
            }
        }
        self.goes_on(Event::RestartAtRest);
        self.settle();
        drop(pause);
    }

    fn choose_clock_step(&mut self) -> i64 {
        *CLOCK_STEPS_MS.choose(&mut self.random).unwrap()
    }

    /// Sets the clock back for a while, and does something else then. Reports how long no ids were
    /// available.
    fn set_clock_back(&mut self, then: impl FnOnce(&mut Self)) {
        let server = self.subject.server;
        let clock = server.clock();
        let ahead_ms = clock.ahead_ms();
        let step_ms = self.choose_clock_step();
        let longest = self.draw(100..1500);
        let far_back = step_ms > FAR_BACK_MS || Instant::now() < self.subject.unknown_until;
        clock.set(ahead_ms - step_ms);
        then(self);
        let begin = Instant::now();
        let mut session = server.session();
        session.run("SET leaf_id.refill_timeout = '50ms'");
        let mut refused: Option<(Instant, Instant)> = None;
        while begin.elapsed() < longest {
            let start = Instant::now();
            if !self.issues(&mut session) {
                refused = Some((refused.map_or(start, |(first, _)| first), Instant::now()));
            }
            self.pass(1..5);
        }
        clock.set(ahead_ms);
        let right = Instant::now();
        wait_until(LIMIT, "an id", || self.issues(&mut session));
        let right = right.elapsed();
        if far_back {
            self.subject.far_back_until = Some(Instant::now());
        }
        println!(
            "  {step_ms} ms back for {longest:?}: refused for {:?}, ids {right:?} after it was right",
            refused.map(|(first, last)| last - first)
        );
    }

    /// True if a snowflake id is available.
    fn issues(&self, session: &mut Session) -> bool {
        self.issue(session).is_some()
    }

    /// The next snowflake id, if one is available.
    fn issue(&self, session: &mut Session) -> Option<i64> {
        let mut issued = None;
        let call = || {
            let id = session.try_snowflake()?;
            issued = Some(id);
            Ok(IdRange::of(&[id]))
        };
        // Refusals are recorded, too.
        let _ = self
            .history
            .call(self.caller(0), TAGS.len(), WATCHED, 1, call);
        issued
    }

    fn set_worker_id(&mut self) {
        self.subject.unknown_until = Instant::now() + UNKNOWN;
        // Few, so that one comes again, also while it is retired.
        let id: u32 = self.random.random_range(0..16);
        self.subject
            .server
            .set("leaf_id.worker_id", &id.to_string());
    }

    /// Ids continue at the given time. Until then calls wait, or are refused if that takes too
    /// long.
    fn reset_snowflake(&mut self) {
        let mut session = self.session_that_may_reset();
        let ms = self.random.random_range(RESET_MS);
        self.subject.unknown_until = Instant::now() + UNKNOWN;
        self.subject.reset_ends = Instant::now() + Duration::from_millis(ms) + RESET_MARGIN;
        if let Err(failure) = session.try_run(&reset_sql(ms)) {
            // The last one went further.
            failure.is("55000").details("reserved until");
        }
    }

    /// A reset that cannot write the file, nor can the launcher at that time. Ids go on as
    /// if it had not been called.
    fn fail_reset(&mut self) {
        let mut session = self.session_that_may_reset();
        let ms = self.random.random_range(RESET_MS);
        let set_mode = |mode| {
            let directory = self.subject.server.data_dir();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o500);
        let failed = session.try_run(&reset_sql(ms));
        set_mode(0o700);
        let failure = failed.expect_err("a reset without a file");
        if failure.state != "58030" {
            failure.is("55000").details("reserved until");
        }
    }

    /// From then on, a reset goes on above all ids, of all worker ids: else it is refused.
    fn session_that_may_reset(&mut self) -> Session {
        let mut session = self.subject.server.session();
        wait_until(LIMIT, "an id with the worker id that is set", || {
            let id = self.issue(&mut session);
            let set: String = session.value("SHOW leaf_id.worker_id");
            id.is_some_and(|id| worker_of(id).to_string() == set)
        });
        session
    }

    fn choose_tag(&mut self) -> (usize, &'static Tag) {
        let source = self.random.random_range(0..TAGS.len());
        (source, &TAGS[source])
    }

    /// A tag that may be renamed: a name keeps its key.
    fn choose_plain_tag(&mut self) -> (usize, &'static Tag) {
        loop {
            let (source, tag) = self.choose_tag();
            if !tag.is_opaque {
                return (source, tag);
            }
        }
    }

    /// Edits a tag. If its ids would restart, they start above all claimed ones, so none may be
    /// issued twice, across all incarnations of the row.
    fn edit(&mut self, event: Event) {
        let (source, tag) = if event == Event::RenameTag {
            self.choose_plain_tag()
        } else {
            self.choose_tag()
        };
        let name = tag.name;
        let gap: i64 = self.random.random_range(0..2000);
        let factor = self.random.random_range(1..4);
        let mut session = self.subject.server.session();
        match event {
            Event::ChangeSteps => session.run(&format!(
                "UPDATE leaf_id.leaf_alloc SET step = {}, max_step = {} WHERE biz_tag = '{name}'",
                tag.step * factor,
                tag.max_step * factor
            )),
            Event::RaiseMaxId => {
                session.run("BEGIN");
                let max_id: i64 = session.value(&lock_of(name));
                session.run(&format!(
                    "UPDATE leaf_id.leaf_alloc SET max_id = {max_id} + {gap} WHERE biz_tag = '{name}';
                     COMMIT"
                ));
                self.history.skip(source, max_id, max_id + gap);
            }
            Event::RaiseMaxValue => session.run(&format!(
                "UPDATE leaf_id.leaf_alloc SET max_value = greatest(max_id, max_value) + 5000
                 WHERE biz_tag = '{LIMITED}'"
            )),
            Event::RenameTag => {
                // A name of its own: each remembers the ids of all rows that had it.
                for (from, to) in [(name, &*away(name)), (&*away(name), name)] {
                    session.run(&format!(
                        "UPDATE leaf_id.leaf_alloc SET biz_tag = '{to}' WHERE biz_tag = '{from}'"
                    ));
                    self.pass(0..200);
                }
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
                let max_id: i64 = session.value(&lock_of(name));
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

    /// All tags at once. They are replaced, so their first ids are issued after the commit.
    fn truncate(&self, session: &mut Session, gap: i64) {
        session.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc");
        let max_ids = TAGS
            .each_ref()
            .map(|tag| session.value::<i64>(&end_of(tag.name)));
        session.run("SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc");
        for (tag, max_id) in TAGS.iter().zip(max_ids) {
            create_tag(session, tag, max_id + gap);
        }
        session
            .fails(&format!(
                "SAVEPOINT s; SELECT leaf_segment_next('{}')",
                TAGS[0].name
            ))
            .is("55000");
        session.run("ROLLBACK TO s; COMMIT");
        let call = || Ok(IdRange::of(&[session.try_next(TAGS[0].name)?]));
        let result = self
            .history
            .call(self.caller(0), 0, "by the creator", 1, call);
        result.expect("an id of a tag that was replaced");
        for (source, max_id) in max_ids.into_iter().enumerate() {
            self.history.skip(source, max_id, max_id + gap);
        }
    }

    /// A tool sets a table back to an earlier copy, and the server goes on, is restarted, or crashes,
    /// or a tag is renamed at once, perhaps before its next claim.
    fn set_back(&mut self, table: &str) {
        let server = self.subject.server;
        let mut session = server.session();
        session.keep_copy(table);
        self.pass(20..500);
        session.set_back(table);
        match self.random.random_range(0..4) {
            0 => self.history.restart(0, server),
            1 => self.history.while_down(0, || server.crash()),
            2 => self.edit(Event::RenameTag),
            _ => {}
        }
    }

    /// A transaction that has edited a tag, and will not commit.
    fn begin_edit(&mut self) -> Session {
        let (_, tag) = self.choose_plain_tag();
        let edits = [
            "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1000",
            &format!(
                "UPDATE leaf_id.leaf_alloc SET biz_tag = '{}'",
                away(tag.name)
            ),
            "DELETE FROM leaf_id.leaf_alloc",
        ];
        let edit = edits.choose(&mut self.random).unwrap();
        let mut session = self.subject.server.session();
        session.run(&format!("BEGIN; {edit} WHERE biz_tag = '{}'", tag.name));
        session
    }

    fn replace_other_extension(&mut self) {
        let mut session = self.subject.server.session_in("other");
        session.run(
            "ALTER EXTENSION leaf_id UPDATE;
             DROP EXTENSION leaf_id;
             CREATE EXTENSION leaf_id",
        );
        session.create_tag("small");
        // Its own ids, from the start.
        let ids = session.take("small", 2000);
        assert!(ids.iter().copied().eq(1..=2000), "{ids:?}");
    }

    fn copy_other_database(&mut self) {
        let mut session = self.subject.server.session();
        session.run("CREATE DATABASE copy TEMPLATE other");
        let mut other = self.subject.server.session_in("other");
        let mut copy = self.subject.server.session_in("copy");
        for _ in 0..3 {
            other.take("small", 500);
            copy.take("small", 500);
        }
        drop(copy);
        session.run("DROP DATABASE copy");
    }
}

impl Driver<'_, OneServer<'_>> {
    /// The server dies, and with it claims that its standby has not received.
    fn promote_standby(&mut self) {
        let server = self.subject.server;
        let ahead_ms = server.clock().ahead_ms();
        let backup = self.back_up().with_clock(ahead_ms);
        let standby = backup.start_standby(server, &[]);
        self.pass(50..500);
        let pause = self.load.pause(LIMIT);
        // No claim is in flight.
        self.settle();
        standby.replay_all_of(server);
        standby.stop(Stop::Fast);
        self.claim();
        self.settle();
        server.kill_9();
        standby.replace(server);
        self.begin_timeline(Event::PromoteStandby, pause);
    }

    /// The server is replaced by a backup, which recovers what is in its WAL.
    fn restore_backup(&mut self) {
        let server = self.subject.server;
        let backup = self.back_up();
        self.pass(50..500);
        let pause = self.load.pause(LIMIT);
        self.settle();
        if self.random.random() {
            server.stop(Stop::Fast);
        } else {
            server.kill_9();
        }
        backup.restore(server);
        self.begin_timeline(Event::RestoreBackup, pause);
    }

    /// A base backup, which takes many times as long under load.
    fn back_up(&self) -> Backup {
        let _pause = self.load.pause(LIMIT);
        self.subject.server.backup()
    }

    /// The sessions go on, until each tag has skipped the claims that may be lost.
    fn begin_timeline<T>(&mut self, event: Event, pause: T) {
        self.goes_on(event);
        self.load.reconnect();
        self.subject.unknown_until = Instant::now() + UNKNOWN;
        drop(pause);
        let mut session = self.subject.server.session();
        // It may be at its end.
        session.run(&format!(
            "UPDATE leaf_id.leaf_alloc SET step = step WHERE biz_tag = '{LIMITED}'"
        ));
        wait_until(LIMIT, "a claim of each tag", || {
            session.value(&format!(
                "SELECT bool_and({NEXT_CLAIM} = greatest(max_id, high)) FROM {ROWS_AND_MARKS}"
            ))
        });
    }

    /// Claims at most as many segments of each tag as a promotion may lose.
    fn claim(&self) {
        let mut session = self.subject.server.session();
        for (source, tag) in TAGS.iter().enumerate() {
            let left = session.figure(
                tag.name,
                "coalesce(current_remaining, 0) + coalesce(spare_remaining, 0)",
            );
            if left > 2000 {
                continue;
            }
            // The last id is one of a new claim, and may request another.
            let asked = left + 1;
            let sql = format!("{} FROM generate_series(1, {asked})", tag.source().next());
            let call = || Ok(IdRange::of(&session.try_column(&sql)?));
            let caller = self.caller(0);
            let asked = asked.try_into().expect("few");
            let called = self.history.call(caller, source, "to be lost", asked, call);
            assert!(called.is_ok() || tag.name == LIMITED);
            session.wait_for_spare(tag.name);
        }
    }
}

const LAUNCHER: &str = "backend_type = 'leaf_id launcher'";
/// An allocator during a claim, at a random step.
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

fn away(tag: &str) -> String {
    format!("{tag}_away")
}

fn drop_tag(session: &mut Session, tag: &str) -> i64 {
    session.value(&format!(
        "WITH gone AS (DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}' RETURNING *)
         SELECT {NEXT_CLAIM} FROM gone LEFT JOIN leaf_id.leaf_high_mark ON tag = biz_tag"
    ))
}

fn create_tag(session: &mut Session, tag: &Tag, start: i64) {
    // If the tag would start at its end, it gets a larger one.
    let max_value = tag.max_value.max(start.saturating_add(1000));
    session.run(&format!(
        "SELECT leaf_tag_create('{}', step => {}, max_step => {}, start => {start},
             max_value => {max_value})",
        tag.name, tag.step, tag.max_step
    ));
}

fn torture(extent: Extent) {
    let conf = [
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "300ms"),
        // For what a standby has not received, or a backup has to recover.
        ("wal_keep_size", "256MB"),
        (
            "leaf_id.refill_timeout",
            &format!("{}s", REFILL_TIMEOUT.as_secs()),
        ),
    ];
    let server = Server::with_clock(0, &conf);
    let tags = TAGS.iter().map(|tag| (tag.source(), tag.most));
    let others = [
        (Source::Snowflake, 100),
        (Source::Gapless(SERIES.into()), 3),
    ];
    let parts = tags.chain(others);
    let parts = parts.map(|(source, most)| Part { source, most }).collect();
    let mut session = server.session();
    for tag in &TAGS {
        if tag.is_opaque {
            session.run(&format!(
                "SELECT leaf_id_internal.leaf_make_key('{}', {}, '')",
                tag.name, tag.max_value
            ));
        }
        create_tag(&mut session, tag, 1);
    }
    session.run(&format!("SELECT leaf_id.leaf_gapless_create('{SERIES}')"));
    session.run("CREATE DATABASE other");
    let mut other = server.session_in("other");
    other.run("CREATE EXTENSION leaf_id");
    other.create_tag("small");
    drop((session, other));
    let work = Work {
        servers: &[&server],
        copies: 0,
        parts,
        sessions: SESSIONS,
    };
    let subject = OneServer {
        server: &server,
        reset_ends: Instant::now(),
        unknown_until: Instant::now() + UNKNOWN,
        far_back_until: None,
    };
    run(subject, work, extent);
}

#[test]
fn ten_events_under_sixteen_sessions_repeat_nothing() {
    torture(Extent::Short);
}

/// Run by `make torture`.
#[test]
#[ignore = "takes LEAF_ID_TORTURE_SECONDS, or ten minutes"]
fn events_for_ten_minutes_repeat_nothing() {
    torture(Extent::long());
}
