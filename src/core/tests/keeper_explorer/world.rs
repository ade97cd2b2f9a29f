//! Two servers with worker ids set by hand: their launchers, words, files and clocks.

use std::cell::RefCell;
use std::collections::HashMap;

use leaf_id_core::keeper::{Action, Configured, File, Found, Input, Keeper, Look, Seen, Then};
use leaf_id_core::layout::{Layout, Parts};
use leaf_id_core::reservation::{Reader, Stored, Terms, Used, retire};
use leaf_id_core::snowflake::Lead;

use crate::search::{self, Rules};

const TICK_MS: i64 = 1_000;
const BEGIN_MS: i64 = 1_000 * TICK_MS;
const RESERVATION_MS: i64 = TICK_MS;
const LEAD_MS: i64 = 2 * TICK_MS;
const TERMS: Terms = Terms {
    write_ms: 0,
    reservation_ms: RESERVATION_MS,
    max_lead_ms: LEAD_MS,
};
/// How far a clock is ahead that is not right.
const HOURS_MS: i64 = 100 * TICK_MS;
/// Ticks after which a server issues again, once all is well.
const SOON: u32 = 8;
const WORKER_IDS: usize = 3;
/// Epochs and layouts to choose from: the first one, a later epoch, and a layout with smaller ids.
const FORMATS: [(i64, &str); 3] = [(0, "41/10/12"), (TICK_MS, "41/10/12"), (0, "41/6/6")];
/// Timeline on which the other server's own cluster begins.
const OTHER_CLUSTER: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// That ids may have been issued is on disk before the first one.
    IssuedFirst,
    /// That none was issued is believed of the original file only.
    IssuedOfOriginal,
    /// The reservation is given back before a lower one is written.
    GivenBack,
    /// A reset goes no lower than others may have issued, if their ids are not known.
    ResetAboveOthers,
    /// A reset retires worker ids.
    Retired,
    /// Before the first id, the file binds neither the epoch nor the layout.
    Unissued,
    /// A reservation by a clock that was ahead is replaced by a lower one.
    LowerReservation,
    /// The floor above others is by the lowest reading of the clock.
    LowerReading,
    /// What others may have issued is bounded by the first look.
    FirstLook,
    /// Assumption: a promoted server has the epoch and the layout that were issued with, or a file
    /// that names them.
    FormatKept,
    /// Assumption: no server takes over while ids lead the clock by more than the max lead.
    ClocksAgree,
    /// Assumption: no file is deleted while ids lead by more than the max lead.
    KeptWhileAhead,
    /// Assumption: no reset with a worker id that another server has used a moment ago, except after
    /// a promotion.
    ResetVouched,
    /// Assumption: no reset to before a change of the epoch or the layout.
    ResetAfterChange,
    /// Assumption: no crash between getting a worker id back and the first id with it.
    UsedAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Issue(usize),
    /// Time passes; each launcher looks.
    Tick,
    Kill(usize),
    /// The clock is hours ahead, or right again.
    Ahead(usize),
    Right(usize),
    FullDisk(usize),
    MakeRoom(usize),
    /// Another epoch or layout, with a clean restart of a server that runs.
    SetFormat(usize, usize),
    SetWorker(usize, u8),
    Unset(usize),
    Reset(usize),
    /// The standby's copy of the primary's file.
    CopyFile,
    /// A crash, and a start without the file.
    LoseFile(usize),
    /// Server 1 takes over from server 0.
    Promote,
    /// Server 1 is a cluster of its own.
    BeginOther,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Reserved {
    until_ms: i64,
    format: usize,
    worker_id: u8,
    timeline: u8,
    original: bool,
    clean: bool,
    issued: bool,
    /// Worker ids used before: until when, and whether retired.
    used: [Option<(i64, bool)>; WORKER_IDS],
}

/// The word; at most one id a millisecond.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Word {
    is_open: bool,
    /// 0: never opened.
    last_ms: i64,
    worker_id: u8,
    reserved_ms: i64,
    not_given_back_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    /// Number of its launcher's state; `None`: it is down.
    keeper: Option<usize>,
    word: Word,
    resets: u32,
    ahead: bool,
    full: bool,
    format: usize,
    worker_id: Option<u8>,
    timeline: u8,
    file: Option<Reserved>,
    /// Highest reading of the clock in this run.
    highest_ms: i64,
    /// A launcher has looked since the clock is right.
    looked: bool,
    /// Worker ids that another server, or a run it has forgotten, has used since its last id with
    /// them.
    used_since: [bool; WORKER_IDS],
    /// Worker ids that it had before, and has not issued with again.
    given_up: [bool; WORKER_IDS],
    /// The time of its first id with another epoch or layout.
    changed_ms: i64,
    /// It may wait until then: nothing shows that no id was that far.
    excused_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    now_ms: i64,
    servers: [Server; 2],
    /// The largest time of ids, by format and worker id; 0: none.
    largest_ms: [[i64; WORKER_IDS]; FORMATS.len()],
    /// The format of the last id.
    issued_with: Option<usize>,
    is_twice: bool,
}

thread_local! {
    /// The states of launchers, which worlds name by number.
    static KEEPERS: RefCell<(Vec<Keeper>, HashMap<String, usize>)> = RefCell::default();
}

fn number_of(keeper: Keeper) -> usize {
    let text = format!("{keeper:?}");
    KEEPERS.with_borrow_mut(|(keepers, numbers)| {
        *numbers.entry(text).or_insert_with(|| {
            keepers.push(keeper);
            keepers.len() - 1
        })
    })
}

fn keeper_of(number: usize) -> Keeper {
    KEEPERS.with_borrow(|(keepers, _)| keepers[number].clone())
}

fn layout(format: usize) -> Layout {
    Layout::parse(FORMATS[format].1).expect("a layout")
}

fn epoch_ms(format: usize) -> i64 {
    FORMATS[format].0
}

fn value(format: usize, worker_id: u16, ms: i64, sequence: u16) -> i64 {
    layout(format).compose(Parts {
        ms: ms - epoch_ms(format),
        worker_id,
        sequence,
    })
}

impl Reserved {
    fn copied(self) -> Self {
        Self {
            original: false,
            ..self
        }
    }

    fn used(&self) -> Vec<Used> {
        let list = (0..).zip(self.used).filter_map(|(worker_id, used)| {
            used.map(|(until_ms, retired)| Used {
                worker_id,
                until_ms,
                retired,
            })
        });
        list.collect()
    }

    /// As in `used_before`.
    fn used_before(file: Option<Self>, worker_id: u8, until_ms: i64) -> Vec<Used> {
        let mut used = file.as_ref().map_or_else(Vec::new, Self::used);
        if let Some(file) = file.filter(|file| file.worker_id != worker_id) {
            Used::add(
                &mut used,
                file.worker_id.into(),
                until_ms.max(file.until_ms),
            );
        }
        used
    }

    fn stored(&self, server: &Server, rules: Rules<Rule>) -> Stored {
        let mut stored = Stored {
            reserved_until_ms: self.until_ms,
            epoch_ms: epoch_ms(self.format),
            layout: layout(self.format),
            issued: self.issued || !rules.hold(Rule::Unissued),
            system_identifier: u64::from(self.timeline >= OTHER_CLUSTER),
            timeline: self.timeline.into(),
            original: self.original,
            clean: self.clean,
            left_behind_until_ms: self
                .used
                .iter()
                .flatten()
                .filter(|used| used.1)
                .map(|used| used.0)
                .max(),
        };
        if !self.issued && !rules.hold(Rule::IssuedOfOriginal) {
            stored.epoch_ms = epoch_ms(server.format);
            stored.layout = layout(server.format);
        }
        stored
    }
}

fn packed(list: &[Used]) -> [Option<(i64, bool)>; WORKER_IDS] {
    let mut used = [None; WORKER_IDS];
    for one in list {
        used[usize::from(one.worker_id)] = Some((one.until_ms, one.retired));
    }
    used
}

impl Server {
    fn new(worker_id: Option<u8>) -> Self {
        Self {
            keeper: None,
            word: Word::default(),
            resets: 0,
            ahead: false,
            full: false,
            format: 0,
            worker_id,
            timeline: 1,
            file: None,
            highest_ms: 0,
            looked: false,
            used_since: [false; WORKER_IDS],
            given_up: [false; WORKER_IDS],
            changed_ms: 0,
            excused_ms: 0,
        }
    }

    fn clock_ms(&self, now_ms: i64) -> i64 {
        now_ms + if self.ahead { HOURS_MS } else { 0 }
    }

    fn is_used_since(&self) -> bool {
        (self.worker_id).is_some_and(|worker_id| self.used_since[usize::from(worker_id)])
    }

    fn is_given_up(&self) -> bool {
        (self.worker_id).is_some_and(|worker_id| self.given_up[usize::from(worker_id)])
    }

    /// Sets another worker id, or none.
    fn set_worker(&mut self, worker_id: Option<u8>) {
        if let Some(before) = self.worker_id {
            self.given_up[usize::from(before)] = true;
        }
        self.worker_id = worker_id;
    }

    fn reader(&self) -> Reader {
        Reader {
            system_identifier: u64::from(self.timeline >= OTHER_CLUSTER),
            timeline: self.timeline.into(),
            leased: false,
        }
    }

    /// Its file is further ahead than servers wait, and it did not have the time to correct that.
    fn excuse(&mut self, now_ms: i64) {
        if let Some(file) = self.file
            && file.until_ms > now_ms + LEAD_MS + RESERVATION_MS
            && (!self.looked || self.keeper.is_none())
        {
            self.excused_ms = self.excused_ms.max(file.until_ms);
        }
    }

    fn new_keeper(&self, kept: Option<u8>) -> Keeper {
        let (epoch_ms, layout) = (epoch_ms(self.format), layout(self.format));
        Keeper::new(epoch_ms, layout, self.resets, false, kept.map(Into::into))
    }

    fn start(&mut self, now_ms: i64) {
        self.word = Word::default();
        self.resets = 0;
        self.highest_ms = self.clock_ms(now_ms);
        self.keeper = Some(number_of(self.new_keeper(self.worker_id)));
        self.looked = false;
    }

    fn stop_cleanly(&mut self) {
        if self.word.is_open && !self.full {
            let (until_ms, worker_id) = (self.word.last_ms, self.word.worker_id);
            let used = Reserved::used_before(self.file, worker_id, i64::MIN);
            self.write(worker_id, until_ms, true, true, &used);
        }
        self.keeper = None;
    }

    fn write(&mut self, worker_id: u8, until_ms: i64, clean: bool, issued: bool, used: &[Used]) {
        self.file = Some(Reserved {
            until_ms,
            format: self.format,
            worker_id,
            timeline: self.timeline,
            original: true,
            clean,
            issued,
            used: packed(used),
        });
    }

    fn seen(&self, now_ms: i64, rules: Rules<Rule>) -> Seen {
        let was_opened = self.word.last_ms > 0;
        let clock_ms = self.clock_ms(now_ms);
        let lower = rules.hold(Rule::LowerReading) || was_opened;
        let reserved_ms = self.word.reserved_ms;
        Seen {
            now_ms: if lower {
                clock_ms
            } else {
                clock_ms.max(self.highest_ms)
            },
            last_ms: self.word.last_ms.max(epoch_ms(self.format)),
            last_worker_id: was_opened.then_some(self.word.worker_id.into()),
            is_open: self.word.is_open,
            reserved_until_ms: if rules.hold(Rule::LowerReservation) {
                reserved_ms
            } else {
                reserved_ms.min(clock_ms + LEAD_MS)
            },
            lead: Lead::NONE,
        }
    }

    /// One turn of the launcher.
    fn turn(&mut self, now_ms: i64, wanted: bool, rules: Rules<Rule>) {
        let Some(number) = self.keeper else {
            return;
        };
        self.highest_ms = self.highest_ms.max(self.clock_ms(now_ms));
        let mut keeper = keeper_of(number);
        let differs = self.file.is_some_and(|file| file.format != self.format);
        if !rules.hold(Rule::FirstLook) && self.word.last_ms == 0 && differs {
            keeper = self.new_keeper(keeper.kept_worker_id().map(|kept| kept as u8));
        }
        let configured = self.worker_id;
        let mut input = Input::Look(Look {
            write_ms: 0,
            configured: configured.map_or(Configured::Unset, |id| Configured::Fixed(id.into())),
            in_recovery: false,
            registry_is_here: false,
            resets: self.resets,
            wanted,
            led: false,
            reservation_ms: RESERVATION_MS,
            max_lead_ms: LEAD_MS,
            max_burst_ms: 0,
        });
        loop {
            let step = keeper.step(&self.seen(now_ms, rules), input);
            for action in step.actions {
                self.act(&action, rules);
            }
            input = match step.then {
                Then::Read => Input::File(File {
                    system_identifier: self.reader().system_identifier,
                    timeline: self.timeline.into(),
                    pristine: false,
                    found: self.file.map_or(Found::Nothing, |file| Found::Contents {
                        stored: file.stored(self, rules),
                        worker_id: Some(file.worker_id.into()),
                        retired: file
                            .used()
                            .iter()
                            .filter(|used| used.retired && rules.hold(Rule::Retired))
                            .map(|used| (used.worker_id, used.until_ms))
                            .collect(),
                    }),
                }),
                Then::Reserve { .. } if self.full => Input::Written(Err("full".into())),
                Then::Reserve {
                    worker_id,
                    until_ms,
                    issued,
                } => {
                    let worker_id = worker_id as u8;
                    let used = Reserved::used_before(self.file, worker_id, until_ms);
                    let said = issued && (rules.hold(Rule::IssuedFirst) || self.word.last_ms > 0);
                    self.write(worker_id, until_ms, !issued, said, &used);
                    if issued {
                        self.word.reserved_ms = self.word.reserved_ms.max(until_ms);
                    }
                    Input::Written(Ok(None))
                }
                Then::Wait(_) => break,
                Then::Lease { .. } => unreachable!("a worker id that is not leased"),
            };
        }
        self.keeper = Some(number_of(keeper));
    }

    /// A second in which the launcher looks, and again after it has opened the generator.
    fn look(&mut self, now_ms: i64, rules: Rules<Rule>) {
        self.turn(now_ms, false, rules);
        self.turn(now_ms, false, rules);
        self.looked = !self.ahead && !self.full;
    }

    fn act(&mut self, action: &Action, rules: Rules<Rule>) {
        let word = &mut self.word;
        match *action {
            Action::Close => {
                word.is_open = false;
                if !rules.hold(Rule::GivenBack) {
                    word.not_given_back_ms = word.reserved_ms;
                }
                word.reserved_ms = word.last_ms;
            }
            Action::Open {
                worker_id,
                above_ms,
            } => {
                let next_ms = word.last_ms + i64::from(word.last_ms > 0);
                word.last_ms = next_ms.max(above_ms);
                word.worker_id = worker_id as u8;
                word.is_open = true;
                word.reserved_ms = word.reserved_ms.max(word.not_given_back_ms);
            }
            _ => {}
        }
    }

    /// The time of the next id, if there is one.
    fn next_ms(&self, now_ms: i64) -> Option<i64> {
        let clock_ms = self.clock_ms(now_ms);
        let ms = clock_ms.max(self.word.last_ms + 1);
        // A call waits for a few milliseconds.
        let leads = ms - clock_ms > LEAD_MS + 10;
        let may = self.word.is_open && ms <= self.word.reserved_ms && !leads;
        may.then_some(ms)
    }

    /// `leaf_snowflake_reset(now())`. False if it is refused.
    fn reset(&mut self, now_ms: i64, rules: Rules<Rule>) -> bool {
        let Some(worker_id) = self.worker_id else {
            return false;
        };
        let (reader, word) = (self.reader(), self.word);
        let stored = self.file.map(|file| file.stored(self, rules));
        let stored = stored.filter(|stored| !stored.is_unissued(reader));
        let is_own = word.last_ms > 0 || stored.is_some_and(|stored| stored.is_own(reader));
        let clock_ms = self.clock_ms(now_ms);
        let until_ms = if is_own || !rules.hold(Rule::ResetAboveOthers) {
            clock_ms
        } else {
            TERMS.above_others_ms(clock_ms)
        };
        if let Some(stored) = stored {
            let (epoch_ms, layout) = (epoch_ms(self.format), layout(self.format));
            let below = stored.layout == layout || stored.is_below(epoch_ms, layout, until_ms + 1);
            if stored.epoch_ms < epoch_ms || !below {
                return false;
            }
        }
        let mut used = self.file.as_ref().map_or_else(Vec::new, Reserved::used);
        if let Some(file) = self.file {
            Used::add(&mut used, file.worker_id.into(), file.until_ms);
        }
        if word.last_ms > 0 {
            let last_ms = word.reserved_ms.max(word.last_ms);
            Used::add(&mut used, word.worker_id.into(), last_ms);
        }
        let Ok(used) = retire(used, worker_id.into(), until_ms) else {
            return false;
        };
        if self.full {
            return false;
        }
        self.write(worker_id, until_ms, true, true, &used);
        self.word = Word {
            is_open: false,
            last_ms: until_ms,
            worker_id,
            reserved_ms: until_ms,
            not_given_back_ms: 0,
        };
        self.resets += 1;
        true
    }
}

impl World {
    /// All of them, over all formats.
    fn largest_of(&self, worker_id: u8) -> i64 {
        let of = self.largest_ms.iter().map(|by| by[usize::from(worker_id)]);
        of.max().unwrap_or(0)
    }

    /// Its worker id may have been used elsewhere, which its own file does not tell.
    fn was_used(&self, number: usize) -> bool {
        let server = &self.servers[number];
        let is_own = |file: &Reserved| file.original && file.timeline == server.timeline;
        let named = server.file.filter(is_own).map(|file| file.worker_id);
        server.worker_id.is_some()
            && named == server.worker_id
            && (server.is_used_since() || server.is_given_up())
    }

    /// Each server that runs has the format of the last id, or a file that tells.
    fn is_format_kept(&self, rules: Rules<Rule>) -> bool {
        self.servers.iter().all(|server| {
            let tells = |file: Reserved| {
                let is_own = file.original && file.timeline == server.timeline;
                (is_own && (file.issued || !rules.hold(Rule::IssuedFirst)))
                    || (!is_own && Some(file.format) == self.issued_with)
            };
            server.keeper.is_none()
                || self
                    .issued_with
                    .is_none_or(|format| format == server.format)
                || server.file.is_some_and(tells)
        })
    }

    /// Ids with it lead.
    fn leads(&self, worker_id: u8) -> bool {
        self.largest_of(worker_id) > self.now_ms + LEAD_MS + 10
    }

    /// A call. False if it gets no id in this moment.
    fn issue(&mut self, number: usize, rules: Rules<Rule>) -> bool {
        let now_ms = self.now_ms;
        let server = &mut self.servers[number];
        if server.next_ms(now_ms).is_none() {
            if server.ahead && server.full {
                // It is opened for this call once there is room, though the call has failed.
                server.excused_ms = now_ms + 2 * HOURS_MS;
            }
            server.turn(now_ms, true, rules);
        }
        let Some(ms) = server.next_ms(now_ms) else {
            return false;
        };
        server.word.last_ms = ms;
        let (format, worker_id) = (server.format, server.word.worker_id);
        if self.issued_with.is_some_and(|before| before != format) {
            server.changed_ms = ms;
        }
        self.check(format, worker_id, ms);
        let of = usize::from(worker_id);
        let largest_ms = &mut self.largest_ms[format][of];
        *largest_ms = ms.max(*largest_ms);
        self.issued_with = Some(format);
        self.servers[number].used_since[of] = false;
        self.servers[number].given_up[of] = false;
        self.servers[1 - number].used_since[of] = true;
        true
    }

    fn check(&mut self, format: usize, worker_id: u8, ms: i64) {
        let first = value(format, worker_id.into(), ms, 0);
        for (other, by) in self.largest_ms.into_iter().enumerate() {
            for (used, before_ms) in (0..).zip(by).filter(|(_, before_ms)| *before_ms > 0) {
                let last = value(other, used, before_ms, layout(other).max_sequence());
                // With the same layout and no later epoch, worker ids keep them apart.
                let apart = layout(other) == layout(format)
                    && epoch_ms(format) <= epoch_ms(other)
                    && used != u16::from(worker_id);
                self.is_twice |= !apart && first <= last;
            }
        }
    }

    /// True if this server need not issue, though all is well.
    fn is_excused(&self, number: usize) -> bool {
        let server = &self.servers[number];
        let horizon_ms = self.now_ms + LEAD_MS + RESERVATION_MS;
        let ahead = self.largest_ms.iter().flatten().any(|ms| *ms > horizon_ms);
        // Smaller ids are refused for good after larger ones; of a copy, no one knows.
        let smaller = |of: usize| of != server.format && server.format == 2;
        let is_own = |file: &Reserved| file.original && file.timeline == server.timeline;
        let file = server.file;
        let refused = (0..FORMATS.len()).any(|of| smaller(of) && self.largest_ms[of] != [0; 3])
            || file.is_some_and(|file| smaller(file.format) && (file.issued || !is_own(&file)));
        let retired = file.is_some_and(|file| {
            // With another format, their times count for each worker id.
            (0..).zip(file.used).any(|(of, used)| {
                used.is_some_and(|(_, retired)| retired)
                    && (server.worker_id == Some(of) || file.format != server.format)
            })
        });
        ahead || refused || retired || server.excused_ms > self.now_ms
    }

    /// True if each server that is up issues soon, once all is well.
    fn recovers(mut self, rules: Rules<Rule>) -> bool {
        for server in &mut self.servers {
            (server.ahead, server.full) = (false, false);
        }
        (0..2).all(|number| {
            let server = &self.servers[number];
            if server.keeper.is_none() || server.worker_id.is_none() || self.is_excused(number) {
                return true;
            }
            let mut world = self;
            (0..SOON).any(|_| {
                world.now_ms += TICK_MS;
                for server in &mut world.servers {
                    server.look(world.now_ms, rules);
                }
                world.issue(number, rules)
            })
        })
    }

    fn set_worker(&mut self, number: usize, worker_id: u8, rules: Rules<Rule>) -> Option<()> {
        let other = &self.servers[1 - number];
        let shared = other.keeper.is_some() && other.worker_id == Some(worker_id);
        let elsewhere = self.servers[number].used_since[usize::from(worker_id)];
        if shared
            || (elsewhere && self.leads(worker_id))
            || self.servers[number].worker_id == Some(worker_id)
        {
            return None;
        }
        let now_ms = self.now_ms;
        let server = &mut self.servers[number];
        server.set_worker(Some(worker_id));
        if server.ahead {
            // A running server begins at once, far ahead.
            server.excused_ms = now_ms + 2 * HOURS_MS;
        }
        server.turn(now_ms, false, rules);
        Some(())
    }

    fn promote(&mut self, rules: Rules<Rule>) -> Option<()> {
        let now_ms = self.now_ms;
        let [primary, standby] = &mut self.servers;
        if primary.keeper.is_none() || standby.keeper.is_some() {
            return None;
        }
        let worker_id = primary.worker_id?;
        primary.keeper = None;
        standby.worker_id = Some(worker_id);
        standby.timeline = primary.timeline + 1;
        standby.excuse(now_ms);
        standby.start(now_ms);
        standby.turn(now_ms, false, rules);
        let is_assumed = !self.leads(worker_id) || !rules.hold(Rule::ClocksAgree);
        is_assumed.then_some(())
    }
}

impl search::World for World {
    const NAME: &'static str = "worker ids by hand";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        let mut world = Self {
            now_ms: BEGIN_MS,
            servers: [Server::new(Some(1)), Server::new(None)],
            largest_ms: [[0; WORKER_IDS]; FORMATS.len()],
            issued_with: None,
            is_twice: false,
        };
        let primary = &mut world.servers[0];
        primary.start(BEGIN_MS);
        world
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        let now_ms = self.now_ms;
        let before = self;
        match step {
            Step::Issue(number) => {
                self.servers[number].keeper?;
                self.issue(number, rules);
            }
            Step::Tick => {
                self.now_ms += TICK_MS;
                for server in &mut self.servers {
                    server.look(self.now_ms, rules);
                }
            }
            Step::Kill(number) => {
                if self.was_used(number) && rules.hold(Rule::UsedAgain) {
                    return None;
                }
                let server = &mut self.servers[number];
                server.keeper?;
                server.excuse(now_ms);
                server.start(now_ms);
                server.turn(now_ms, false, rules);
            }
            Step::Ahead(number) => {
                self.servers[number].ahead = true;
                self.servers[number].looked = false;
            }
            Step::Right(number) => self.servers[number].ahead = false,
            Step::FullDisk(number) => {
                self.servers[number].full = true;
                self.servers[number].looked = false;
            }
            Step::MakeRoom(number) => self.servers[number].full = false,
            Step::SetFormat(number, format) => {
                if self.was_used(number) && self.servers[number].keeper.is_some() {
                    return None;
                }
                let server = &mut self.servers[number];
                if server.format == format {
                    return None;
                }
                let was_up = server.keeper.is_some();
                if was_up {
                    server.excuse(now_ms);
                    server.stop_cleanly();
                }
                server.format = format;
                if was_up {
                    server.start(now_ms);
                    server.turn(now_ms, false, rules);
                }
            }
            Step::SetWorker(number, worker_id) => {
                self.servers[number].keeper?;
                self.set_worker(number, worker_id, rules)?;
            }
            Step::Unset(number) => {
                let server = &mut self.servers[number];
                server.keeper?;
                server.set_worker(None);
                server.turn(now_ms, false, rules);
            }
            Step::Reset(number) => {
                let server = &mut self.servers[number];
                server.keeper?;
                let is_own = |file: Reserved| file.original && file.timeline == server.timeline;
                let knows = server.word.last_ms > 0 || server.file.is_some_and(is_own);
                if knows && server.is_used_since() && rules.hold(Rule::ResetVouched) {
                    return None;
                }
                if server.changed_ms > now_ms && rules.hold(Rule::ResetAfterChange) {
                    return None;
                }
                if server.ahead || !server.reset(now_ms, rules) {
                    return None;
                }
                server.turn(now_ms, false, rules);
            }
            Step::CopyFile => {
                let [primary, standby] = &mut self.servers;
                if standby.keeper.is_some() {
                    return None;
                }
                standby.file = primary.file.map(Reserved::copied);
            }
            Step::LoseFile(number) => {
                let led = (0..WORKER_IDS as u8).any(|worker_id| self.leads(worker_id));
                if led && rules.hold(Rule::KeptWhileAhead) {
                    return None;
                }
                if self.was_used(number) && self.servers[number].keeper.is_some() {
                    return None;
                }
                let server = &mut self.servers[number];
                server.file = None;
                // It forgets its former worker ids, too.
                server.used_since = [true; WORKER_IDS];
                if server.keeper.is_some() {
                    server.start(now_ms);
                    server.turn(now_ms, false, rules);
                }
            }
            Step::Promote => self.promote(rules)?,
            Step::BeginOther => {
                let other = &mut self.servers[1];
                if other.keeper.is_some() {
                    return None;
                }
                other.timeline = OTHER_CLUSTER;
                other.start(now_ms);
                other.turn(now_ms, false, rules);
            }
        }
        let is_assumed = !rules.hold(Rule::FormatKept) || self.is_format_kept(rules);
        (is_assumed && self != before).then_some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }
}

/// Asks of a world whether every server can issue, once all is well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recovering {
    world: World,
    is_stuck: bool,
}

impl search::World for Recovering {
    const NAME: &'static str = "worker ids by hand, all well";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            world: World::new(),
            is_stuck: false,
        }
    }

    fn after(self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        let world = self.world.after(step, rules)?;
        let is_stuck = !world.recovers(rules);
        Some(Self { world, is_stuck })
    }

    fn is_broken(&self) -> bool {
        self.is_stuck
    }
}
