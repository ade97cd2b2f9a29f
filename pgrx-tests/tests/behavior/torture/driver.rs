//! Shared driver of the torture tests: sessions at work, rounds of events, and after each round a
//! check of all issued ids and of all errors. A round is one or two events from a shuffled deck, a
//! burst of cheap ones, or both at once. A torture test defines its events and their allowed
//! effects.
//!
//! The seed determines the events, but not their timing relative to the sessions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use std::{mem, thread};

use leaf_id_tests::{
    Caller, Cut, Failure, Haste, History, Load, Part, Plan, Server, Session, Source, Stop, Window,
    random,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::branches;
use super::event::{Happening, Loss};
use super::stalls::Stalls;

/// Time limit for anything that must happen.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Number of interrupted claims in a row after which a call may have waited too long: the pauses
/// before the next claims, 0.1 s and twice as long each time, add up to the timeout of a call.
const DELAYS: usize = 5;
/// Time limit of a round.
const ROUND: Duration = Duration::from_secs(300);

/// Servers under test, their events, and the checks.
pub(super) trait Subject: Sized {
    /// Kind of event.
    type Event: Happening;
    /// Time limit of a call while its server is up. Some of its ids may each have to wait, and the
    /// machine is overloaded.
    const STUCK: Duration;

    /// All servers, including those that issue nothing.
    fn servers(&self) -> Vec<&Server>;

    /// Performs an event.
    fn perform(driver: &mut Driver<'_, Self>, event: Self::Event);

    /// Checks ids issued since the last call, while the sessions are paused. Has a session on each
    /// issuing server.
    fn settle(&self, history: &History, sessions: &mut [Session]) -> Vec<Window>;

    /// True if the source has a last id, after which calls fail.
    fn ends(_source: &Source) -> bool {
        false
    }

    /// True if a call may have failed because of its kind of caller.
    fn excuses(&self, _cut: &Cut) -> bool {
        false
    }

    /// True if the current state, or any since the last settlement, explains an error that no event
    /// explains.
    fn explains(&self, _failure: &Failure, _settled: Instant) -> bool {
        false
    }
}

/// Duration of a torture test.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    /// Ten events from the deck, with their bursts.
    Short,
    /// All of the deck, and this time at least.
    Long(Duration),
}

impl Extent {
    /// `LEAF_ID_TORTURE_SECONDS`, or ten minutes.
    pub(super) fn long() -> Self {
        let seconds = std::env::var("LEAF_ID_TORTURE_SECONDS")
            .map_or(600, |seconds| seconds.parse().expect("a number"));
        Self::Long(Duration::from_secs(seconds))
    }
}

/// Load of a torture test.
pub(super) struct Work<'a> {
    /// Issuing servers, in the order of [`Caller::server`].
    pub(super) servers: &'a [&'a Server],
    /// Number of further servers that may issue for a while.
    pub(super) copies: usize,
    /// Sources.
    pub(super) parts: Vec<Part>,
    /// Number of sessions, on all servers.
    pub(super) sessions: usize,
}

/// Performs events until the extent is reached. Finally stops all servers.
pub(super) fn run<S: Subject>(subject: S, work: Work<'_>, extent: Extent) {
    let began = Instant::now();
    let mut random = random();
    let plan = Plan {
        parts: work.parts,
        sessions: work.sessions,
        hasty: true,
        seed: random.random(),
    };
    for server in work.servers {
        Load::prepare(&mut server.session(), &plan.parts);
    }
    let history = plan.history(work.servers[0].dir(), work.servers.len() + work.copies);
    let (subject, report, stalls) = Load::run(work.servers, &history, &plan, |load| {
        let mut driver = Driver {
            subject,
            history: &history,
            load,
            random,
            servers: work.servers,
            plan: &plan,
            began,
            report: Report::new(),
            stalls: Stalls::new(),
            events: Vec::new(),
            earlier: Vec::new(),
            settled: Instant::now(),
            hurries: false,
        };
        let (events, at_least) = match extent {
            Extent::Short => (10, Duration::ZERO),
            Extent::Long(at_least) => (S::Event::ALL.len(), at_least),
        };
        let mut deck = Vec::new();
        let mut drawn = 0;
        while drawn < events || began.elapsed() < at_least {
            let (from_deck, burst) = driver.draw_round();
            if deck.len() < from_deck {
                deck = S::Event::ALL.to_vec();
                deck.shuffle(&mut driver.random);
            }
            let mut round = deck.split_off(deck.len() - from_deck);
            drawn += from_deck;
            round.extend(driver.draw_cheap(burst));
            round.shuffle(&mut driver.random);
            driver.round(&round);
        }
        (driver.subject, driver.report, driver.stalls)
    });
    report.print();
    stalls.print();
    branches::print();
    assert!(report.issued() > 10_000, "the sessions were not at work");
    for server in subject.servers() {
        server.stop(Stop::Fast);
        assert_eq!(server.processes(), [], "left behind");
    }
    println!("{:?} in all", began.elapsed());
}

/// Performs events, one round after another.
pub(super) struct Driver<'a, S: Subject> {
    pub(super) subject: S,
    pub(super) history: &'a History,
    pub(super) load: &'a Load<'a>,
    pub(super) random: StdRng,
    servers: &'a [&'a Server],
    plan: &'a Plan,
    began: Instant,
    report: Report<S::Event>,
    stalls: Stalls<S::Event>,
    /// Events since the last settlement, and those before it.
    events: Vec<S::Event>,
    earlier: Vec<S::Event>,
    /// Time of that settlement.
    settled: Instant,
    /// In a burst, times without an event are short.
    hurries: bool,
}

impl<S: Subject> Driver<'_, S> {
    /// Numbers of events from the deck and of cheap ones.
    fn draw_round(&mut self) -> (usize, usize) {
        // Usually one at a time; sometimes before the effects of another one are over.
        let from_deck = if self.random.random_bool(0.7) { 1 } else { 2 };
        let burst = self.random.random_range(5..=20);
        match self.random.random_range(0..4) {
            0 => (from_deck, 0),
            1 => (from_deck, burst),
            _ => (0, burst),
        }
    }

    /// Sources without a last id.
    fn endless(&self) -> Vec<usize> {
        let sources = self.history.sources().iter().enumerate();
        let endless = sources.filter(|(_, source)| !S::ends(source));
        endless.map(|(place, _)| place).collect()
    }

    fn draw_cheap(&mut self, count: usize) -> Vec<S::Event> {
        let cheap = S::Event::ALL.iter().copied();
        let cheap: Vec<_> = cheap.filter(|event| event.is_cheap()).collect();
        (0..count)
            .map(|_| *cheap.choose(&mut self.random).expect("a cheap event"))
            .collect()
    }

    fn round(&mut self, events: &[S::Event]) {
        for server in self.subject.servers() {
            server.allow(ROUND);
        }
        self.hurries = events.len() > 2;
        for &event in events {
            self.pass(50..300);
            self.events.push(event);
            *self.report.events.entry(event).or_default() += 1;
            println!("{:?} {event:?}", self.began.elapsed());
            self.stalls.begin();
            S::perform(self, event);
            self.stalls.end(event, &self.endless(), self.servers.len());
        }
        self.hurries = false;
        self.pass(50..500);
        let pause = self.load.pause(LIMIT);
        self.settle();
        drop(pause);
    }

    /// Lets the sessions work for a random time.
    pub(super) fn pass(&mut self, ms: Range<u64>) {
        let time = self.draw(ms);
        thread::sleep(if self.hurries { time / 10 } else { time });
    }

    /// A random number of milliseconds.
    pub(super) fn draw(&mut self, ms: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(ms))
    }

    /// The driver's own calls are recorded after those of the sessions.
    pub(super) fn caller(&self, server: usize) -> Caller {
        Caller {
            server,
            session: self.plan.sessions,
        }
    }

    /// Kills a process of a server, and waits until the server is back. False if the process had
    /// already exited.
    pub(super) fn kill(&self, number: usize, server: &Server, pid: i32) -> bool {
        let killed = Instant::now();
        let crashed = server.crash_by(pid);
        if crashed {
            self.history.was_down(number, killed);
        }
        crashed
    }

    /// Holds the locks of a statement for a random time.
    pub(super) fn hold_lock(&mut self, session: &mut Session, statement: &str, ms: Range<u64>) {
        session.run(&format!("BEGIN; {statement}"));
        self.pass(ms);
        session.run("COMMIT");
    }

    /// Checks the calls since the last settlement, and adds them to the report. The sessions must
    /// be paused.
    pub(super) fn settle(&mut self) {
        let paused = Instant::now();
        let sessions = self.servers.iter().map(|server| server.session());
        let mut sessions: Vec<_> = sessions.collect();
        let windows = self.subject.settle(self.history, &mut sessions);
        for session in &mut sessions {
            Load::clear(session, &self.plan.parts);
        }
        for failure in self.load.take_failures() {
            // Any statement of a session with a short timeout may have timed out.
            self.judge(&failure, failure.state == "57014");
        }
        let history = self.history;
        for (place, (source, window)) in history.sources().iter().zip(&windows).enumerate() {
            self.enter(source, window);
            let entered = self.stalls.enter(place, source, window, paused);
            entered.unwrap_or_else(|stall| history.fail(&stall));
        }
        self.stalls.settled(paused.elapsed());
        self.earlier = mem::take(&mut self.events);
        self.settled = Instant::now();
    }

    /// The event continues after a settlement.
    pub(super) fn goes_on(&mut self, event: S::Event) {
        self.events.push(event);
    }

    fn enter(&mut self, source: &Source, window: &Window) {
        for cut in &window.cut {
            let state = &*cut.failure.state;
            let expected = match self.plan.haste(cut.caller.session) {
                _ if S::ends(source) && state == "2200H" => true,
                _ if self.subject.excuses(cut) => true,
                Haste::None => false,
                // The clock would reach the floor later than the timeout.
                Haste::Refill if state == "55000" => cut.failure.message.contains("clock"),
                Haste::Refill => state == "55P03",
                Haste::Statement => state == "57014",
            };
            self.judge(&cut.failure, expected);
            self.report.cut += u64::from(cut.asked);
        }
        let failed = window.cut.iter().map(|cut| cut.took).max();
        let longest = window.longest_call.max(failed.unwrap_or_default());
        if longest > S::STUCK {
            self.history
                .fail(&format!("{source}: a call took {longest:?}"));
        }
        let loss = self.events.iter().map(|event| event.loss()).min();
        let loss = match source {
            // A number of a failed transaction is the next one's.
            Source::Gapless(_) => Loss::Nothing,
            _ => loss.unwrap_or(Loss::Nothing),
        };
        let lost = window.unexplained();
        if lost > 0 && loss >= Loss::CleanRestart {
            let events = &self.events;
            self.history
                .fail(&format!("{source}: {lost} ids are lost by {events:?}"));
        }
        *self.report.lost.entry(loss).or_default() += lost;
        let report = &mut self.report;
        report.longest_call = report.longest_call.max(window.longest_call);
        if !S::ends(source) {
            report.longest_silence = report.longest_silence.max(window.longest_silence);
        }
        for (kind, ids) in &window.ids {
            *report.ids.entry(kind).or_default() += ids;
        }
        report.dropped += window.dropped;
    }

    /// Fails the test on an unexplained error: neither expected for its session, nor explained by
    /// recent events, nor by earlier ones, which a session may have noticed late.
    fn judge(&mut self, failure: &Failure, expected: bool) {
        let state = failure.state.clone();
        *self.report.errors.entry(state).or_default() += 1;
        let events = || self.earlier.iter().chain(&self.events);
        let delays = events().filter(|event| event.delays()).count();
        let explained = expected
            || events().any(|event| event.explains(failure))
            || (failure.state == "55P03" && delays >= DELAYS)
            || self.subject.explains(failure, self.settled);
        if !explained {
            self.history.fail(&format!(
                "{failure}\nafter {:?} and {:?}",
                self.earlier, self.events
            ));
        }
    }
}

/// The first id of the next claim, in [`ROWS_AND_MARKS`]: a tool may have set back either, and after
/// a promotion, lost claims are skipped.
pub(super) const NEXT_CLAIM: &str = "leaf_id.leaf_left(greatest(max_id, high), step, max_step,
    system_identifier, timeline, largest_claim, server IS NOT NULL)";
pub(super) const ROWS_AND_MARKS: &str =
    "leaf_id.leaf_alloc LEFT JOIN leaf_id.leaf_high_mark ON tag = biz_tag";

/// A SELECT of that of a tag.
pub(super) fn end_of(tag: &str) -> String {
    format!("SELECT {NEXT_CLAIM} FROM {ROWS_AND_MARKS} WHERE biz_tag = '{tag}'")
}

/// The same, while it locks the row.
pub(super) fn lock_of(tag: &str) -> String {
    format!("{} FOR UPDATE OF leaf_alloc", end_of(tag))
}

/// Results of a torture test.
struct Report<E> {
    began: Instant,
    events: BTreeMap<E, u32>,
    ids: BTreeMap<&'static str, u64>,
    lost: BTreeMap<Loss, u64>,
    /// Ids requested by failed calls, and ids counted as lost by the status view.
    cut: u64,
    dropped: u64,
    errors: BTreeMap<String, u64>,
    longest_call: Duration,
    longest_silence: Duration,
}

impl<E: Happening> Report<E> {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            events: BTreeMap::new(),
            ids: BTreeMap::new(),
            lost: BTreeMap::new(),
            cut: 0,
            dropped: 0,
            errors: BTreeMap::new(),
            longest_call: Duration::ZERO,
            longest_silence: Duration::ZERO,
        }
    }

    fn issued(&self) -> u64 {
        self.ids.values().sum()
    }

    fn print(&self) {
        let events: u32 = self.events.values().sum();
        let a_minute = f64::from(events) * 60.0 / self.began.elapsed().as_secs_f64();
        println!("events: {events}, {a_minute:.0} a minute");
        for (event, times) in &self.events {
            println!("  {:26} {times:>12}", format!("{event:?}"));
        }
        // The history has compared each with all others, of all servers.
        println!("ids, none of them twice: {}", self.issued());
        for (kind, ids) in &self.ids {
            println!("  {kind:26} {ids:>12}");
        }
        println!("ids lost:");
        for (loss, ids) in &self.lost {
            println!("  {:26} {ids:>12}", loss.words());
        }
        println!("  {:26} {:>12}", "dropped by an edit", self.dropped);
        println!("  {:26} {:>12}", "by calls cut off, at most", self.cut);
        println!("errors:");
        for (state, times) in &self.errors {
            let state = match &**state {
                "" => "connection lost",
                state => state,
            };
            println!("  {state:26} {times:>12}");
        }
        println!("longest call that got ids {:?}", self.longest_call);
        println!(
            "longest time without an id of a source on one server {:?}",
            self.longest_silence
        );
    }
}
