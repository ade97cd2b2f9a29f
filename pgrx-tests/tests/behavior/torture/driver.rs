//! Shared driver of the torture tests: sessions at work, events drawn from a shuffled deck, and
//! after every one or two events a check of all issued ids and of all errors. A torture test
//! defines its events and their allowed effects.
//!
//! The seed determines the events, but not their timing relative to the sessions.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::time::{Duration, Instant};
use std::{mem, thread};

use leaf_id_tests::{
    Caller, Cut, Failure, Haste, History, Load, Part, Plan, Server, Session, Source, Stop, Window,
    random,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// How long anything may take that must come.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// One round may take this long at most.
const ROUND: Duration = Duration::from_secs(300);

/// The kinds of events, and all of them in a list.
macro_rules! events {
    ($($event:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Event {
            $($event,)*
        }

        const EVENTS: &[Event] = &[$(Event::$event),*];
    };
}
pub(super) use events;

/// What may happen to servers under load.
pub(super) trait Happening: Copy + Debug + Ord + 'static {
    /// Every kind of it.
    const ALL: &'static [Self];

    /// What it may cost.
    fn loss(self) -> Loss;

    /// Whether this is how sessions may see it.
    fn explains(self, failure: &Failure) -> bool;
}

/// How ids may be lost that no failed call may have taken and no view counts, the most
/// expensive first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// What is cached.
    Crash,
    /// A claim that has committed and was not published.
    Worker,
    /// Nothing, and that is hard.
    CleanRestart,
    /// Nothing: what an edit drops is counted by the status view.
    Nothing,
}

/// The servers of a torture, what happens to them, and what must hold then.
pub(super) trait Subject: Sized {
    /// What happens.
    type Event: Happening;
    /// How long a call may take while its server is up: some of its ids may each have to
    /// wait, and two processors are few for all of this.
    const STUCK: Duration;

    /// All servers, also those that issue nothing.
    fn servers(&self) -> Vec<&Server>;

    /// Has an event happen.
    fn perform(driver: &mut Driver<'_, Self>, event: Self::Event);

    /// Checks what was issued since the last time, while the sessions pause.
    fn settle(&self, history: &History) -> Vec<Window>;

    /// Whether a source has a last id, after which calls fail.
    fn ends(_source: &Source) -> bool {
        false
    }

    /// Whether a call may have failed for what its caller is.
    fn excuses(&self, _cut: &Cut) -> bool {
        false
    }

    /// Whether something explains a failure that no event explains, now or at any time since
    /// the last settlement.
    fn explains(&self, _failure: &Failure, _settled: Instant) -> bool {
        false
    }
}

/// How long a torture goes on.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    events: usize,
    at_least: Duration,
}

impl Extent {
    /// Ten events.
    pub(super) const SHORT: Self = Self {
        events: 10,
        at_least: Duration::ZERO,
    };

    /// A hundred events, and `LEAF_ID_TORTURE_SECONDS`, or ten minutes.
    pub(super) fn long() -> Self {
        let seconds = std::env::var("LEAF_ID_TORTURE_SECONDS")
            .map_or(600, |seconds| seconds.parse().expect("a number"));
        Self {
            events: 100,
            at_least: Duration::from_secs(seconds),
        }
    }
}

/// Who takes ids, and from whom.
pub(super) struct Work<'a> {
    /// The servers that issue, in the order of [`Caller::server`].
    pub(super) servers: &'a [&'a Server],
    /// How many more servers may issue for a while.
    pub(super) copies: usize,
    /// From which sources.
    pub(super) parts: Vec<Part>,
    /// How many sessions, of all servers.
    pub(super) sessions: usize,
}

/// Has events happen until there were so many and so much time has passed. All servers are
/// stopped then.
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
    let (subject, report) = Load::run(work.servers, &history, &plan, |load| {
        let mut driver = Driver {
            subject,
            history: &history,
            load,
            random,
            servers: work.servers,
            plan: &plan,
            began,
            report: Report::new(),
            events: Vec::new(),
            earlier: Vec::new(),
            settled: Instant::now(),
        };
        let mut deck = Vec::new();
        let mut happened = 0;
        while happened < extent.events || began.elapsed() < extent.at_least {
            // One after the other, mostly; or before the effects of another are over.
            let count = if driver.random.random_bool(0.7) { 1 } else { 2 };
            if deck.len() < count {
                deck = S::Event::ALL.to_vec();
                deck.shuffle(&mut driver.random);
            }
            driver.round(&deck.split_off(deck.len() - count));
            happened += count;
        }
        (driver.subject, driver.report)
    });
    report.print();
    assert!(report.issued() > 10_000, "the sessions were not at work");
    for server in subject.servers() {
        server.stop(Stop::Fast);
        assert_eq!(server.processes(), [], "left behind");
    }
    println!("{:?} in all", began.elapsed());
}

/// Who has the events happen, one round after the other.
pub(super) struct Driver<'a, S: Subject> {
    pub(super) subject: S,
    pub(super) history: &'a History,
    pub(super) load: &'a Load<'a>,
    pub(super) random: StdRng,
    servers: &'a [&'a Server],
    plan: &'a Plan,
    began: Instant,
    report: Report<S::Event>,
    /// What happened since the last settlement, and what before it.
    events: Vec<S::Event>,
    earlier: Vec<S::Event>,
    /// When that settlement was.
    settled: Instant,
}

impl<S: Subject> Driver<'_, S> {
    fn round(&mut self, events: &[S::Event]) {
        for server in self.subject.servers() {
            server.allow(ROUND);
        }
        for &event in events {
            self.pass(50..300);
            self.events.push(event);
            *self.report.events.entry(event).or_default() += 1;
            println!("{:?} {event:?}", self.began.elapsed());
            S::perform(self, event);
        }
        self.pass(100..1000);
        let pause = self.load.pause(LIMIT);
        self.settle();
        drop(pause);
    }

    /// Lets the sessions work.
    pub(super) fn pass(&mut self, ms: Range<u64>) {
        thread::sleep(self.draw(ms));
    }

    /// So many milliseconds.
    pub(super) fn draw(&mut self, ms: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(ms))
    }

    /// Who drives notes its own calls after those of the sessions.
    pub(super) fn caller(&self, server: usize) -> Caller {
        Caller {
            server,
            session: self.plan.sessions,
        }
    }

    /// Kills one process of a server, and waits until that is back. False if the process had
    /// ended by itself.
    pub(super) fn kill(&self, number: usize, server: &Server, pid: i32) -> bool {
        let killed = Instant::now();
        let crashed = server.crash_by(pid);
        if crashed {
            self.history.was_down(number, killed);
        }
        crashed
    }

    /// Has a transaction hold the locks of a statement for a while.
    pub(super) fn hold_lock(&mut self, session: &mut Session, statement: &str, ms: Range<u64>) {
        session.run(&format!("BEGIN; {statement}"));
        self.pass(ms);
        session.run("COMMIT");
    }

    /// Checks what happened since the last time, and adds it to the report. While the
    /// sessions pause.
    pub(super) fn settle(&mut self) {
        let windows = self.subject.settle(self.history);
        for server in self.servers {
            let mut session = server.session();
            // The rows were a check of their own, by the primary key.
            for part in &self.plan.parts {
                session.run(&format!("TRUNCATE {}", part.table()));
            }
        }
        for failure in self.load.take_failures() {
            // Any statement of a hasty session may have taken too long.
            self.judge(&failure, failure.state == "57014");
        }
        for (source, window) in self.history.sources().iter().zip(&windows) {
            self.enter(source, window);
        }
        self.earlier = mem::take(&mut self.events);
        self.settled = Instant::now();
    }

    /// The same event goes on after a settlement.
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
        let loss = loss.unwrap_or(Loss::Nothing);
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

    /// Ends the test at an error that nothing explains: neither what its session is like,
    /// nor what happened, nor what happened before, which a session may have missed.
    fn judge(&mut self, failure: &Failure, expected: bool) {
        let state = failure.state.clone();
        *self.report.errors.entry(state).or_default() += 1;
        let mut events = self.earlier.iter().chain(&self.events);
        let explained = expected
            || events.any(|event| event.explains(failure))
            || self.subject.explains(failure, self.settled);
        if !explained {
            self.history.fail(&format!(
                "{failure}\nafter {:?} and {:?}",
                self.earlier, self.events
            ));
        }
    }
}

/// What came of it all.
struct Report<E> {
    events: BTreeMap<E, u32>,
    ids: BTreeMap<&'static str, u64>,
    lost: BTreeMap<Loss, u64>,
    /// Ids that failed calls have asked for, and that the status view counts as lost.
    cut: u64,
    dropped: u64,
    errors: BTreeMap<String, u64>,
    longest_call: Duration,
    longest_silence: Duration,
}

impl<E: Happening> Report<E> {
    fn new() -> Self {
        Self {
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
        println!("events: {}", self.events.values().sum::<u32>());
        for (event, times) in &self.events {
            println!("  {:26} {times:>12}", format!("{event:?}"));
        }
        // Each was compared with all the others, of all servers: see the history.
        println!("ids, none of them twice: {}", self.issued());
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
