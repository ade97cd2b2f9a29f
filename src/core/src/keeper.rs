//! State machine of the snowflake generator: when to open it, with which worker id and above which
//! floor, when to renew its reservation, and why to close it. It has no access to the clock, the
//! file, shared memory or the registry: the launcher passes its observations to [`Keeper::step`]
//! and executes the result. Times in Unix milliseconds.
//!
//! # Turns
//!
//! A turn starts with [`Input::Look`] and ends with [`Then::Wait`]. In between, a step may end with
//! an operation whose result is the next input. For the whole turn the launcher is the only writer
//! of the reservation and of the generator.
//!
//! | step ends with | next input |
//! | --- | --- |
//! | [`Then::Read`]: read the reservation file | [`Input::File`] |
//! | [`Then::Lease`]: advance the lease | [`Input::Lease`] |
//! | [`Then::Reserve`]: write the file, and only then raise the reservation (I7) | [`Input::Written`] |
//! | [`Then::Wait`] | [`Input::Look`] |
//!
//! # States
//!
//! Each turn reevaluates everything, so most rows apply in every state. The first row that applies
//! ends the step, unless it says "go on". `w` is the worker id to use: the one configured, or the
//! one granted.
//!
//! | state | input | next state | action |
//! | --- | --- | --- | --- |
//! | any | Look: there was a reset | Starting | forget the floor; go on |
//! | Open | Look: a session whose reset failed has closed it | Starting | forget the floor; go on |
//! | any | Look: leasing was turned on or off, and nothing issued yet | the same | forget the floor; go on |
//! | any | Look: promoted, and nothing issued yet | the same | forget the floor; go on |
//! | any | Look: the clock is lower than at the floor, and nothing issued yet | the same | forget the floor; go on |
//! | Open | Look: ids have started or stopped leading the clock | the same | report it; go on |
//! | any | Look: a standby, worker id not leased, or from a registry on itself | Standby | stop leasing, close, wait |
//! | any | Look: no floor, and the word has a last id | the same | show that floor; go on |
//! | any | Look: no floor, and the word has none | the same | read |
//! | any | File: it yields a floor | the same | show it; go on |
//! | any | File: it yields none, and a worker id is configured | Refused | close, wait; log an unreadable file |
//! | any | Look, File: no worker id is configured | Unconfigured | stop leasing, close, wait |
//! | any | Look: no registry is set | Refused: NoRegistrySet | stop leasing, close, wait |
//! | any | Look: the first registry, or another one | Starting | stop leasing, close, begin a lease |
//! | any | Look: the same registry | the same | lease |
//! | any | Lease: refused | Refused, with the reason | close, set no recorded time, wait |
//! | any | Lease: granted, not a continuation | Starting | close, set the recorded time; go on |
//! | any | Lease: grant continued | the same | set the recorded time; go on |
//! | any | Lease: the clock or the last id has come to the recorded time | the same | show that, ask the registry soon, wait |
//! | not Open with `w` | File: nothing above the floor is recorded | the same | show that, ask the registry soon, wait |
//! | Open with `w` | Look, Lease: reserved too far, by a clock that was ahead | Starting | close, read |
//! | Open with `w` | Look, Lease | the same | reserve, or wake and wait, or wait: [`Renewal::decide`] |
//! | not Open with `w` | Look, Lease | the same | read |
//! | not Open with `w` | File: no call has asked yet, and no id was issued here | Ready with `w` | write that, unless it is there; wait |
//! | not Open with `w` | File: no call has asked yet, and the floor is by the clock | Ready with `w` | wait |
//! | not Open with `w` | File: the floor is within the max lead | the same | reserve: [`Opening::decide`] |
//! | not Open with `w` | File: the floor is beyond it | WaitingOut, Refused | close, wait: [`Opening::decide`] |
//! | Open with another | File: the floor above others is beyond it | the same | wait |
//! | not Open with `w` | File: unreadable | Refused: FileProblem, or Open | log, wait |
//! | not Open with `w` | Written | Open with `w` | open, wait |
//! | not Open with `w` | Written: that no id was issued | Ready with `w` | wait |
//! | not Open with `w` | Written: failed | Refused: FileProblem, or Open | log, wait |
//! | Open with `w` | Written | the same | wake, wait |
//! | Open with `w` | Written: failed | the same | log, wait |
//!
//! If the file cannot be read or written, an open generator stays open until its reservation is
//! used up; sessions see the problem in the view. It also stays open while its worker id is being
//! changed.
//!
//! Ready is shown as open: nothing is missing but a call. Until then nothing is reserved: the epoch and
//! the layout may still be chosen, and a floor that was found while the clock was ahead becomes lower.

use crate::layout::Layout;
use crate::lease::Effect;
use crate::reservation::{
    self, AboveOthers, Decision, Floor, Opening, Reason, Renew, Renewal, Start, Terms,
    reserve_until,
};
use crate::sometimes;
use crate::state::{Refusal, State};

mod lead;
mod phase;
mod turn;

use lead::Leading;
use phase::{Lease, LeasedAs, Makes, Phase, Turn, Usable, Writing};

pub use turn::{
    Action, Configured, FOR_EVER, File, Found, Input, Look, Message, Registry, Seen, Step, Then,
};

/// Retry interval after a file problem, or while waiting for a clock that may be corrected, in
/// milliseconds.
const RETRY_MS: i64 = 1000;
/// Poll interval for the end of recovery on a standby, in milliseconds.
const STANDBY_MS: i64 = 1000;
/// Max interval between looks at an open generator: the clock may have been corrected, in milliseconds.
const LOOK_MS: i64 = 10_000;

/// The state machine.
#[derive(Debug, Clone)]
pub struct Keeper {
    epoch_ms: i64,
    layout: Layout,
    state: State,
    /// The worker id that the generator is opened with once a call asks for the first id.
    ready: Option<u16>,
    /// A call asks for it.
    asked: bool,
    phase: Phase,
    /// `None` until determined.
    floor: Option<Floor>,
    /// The clock when it was.
    found_at_ms: i64,
    /// The floor of a run that does not know its predecessor; `None` until the first look.
    above_others: Option<AboveOthers>,
    /// Time of the last renewal of the reservation.
    renewed_at_ms: i64,
    /// Last file problem, logged once.
    problem: Option<String>,
    /// Reset counter as last seen.
    resets: u32,
    standby: bool,
    lease: Lease,
    /// The time that the registry has recorded leaves nothing to reserve.
    is_used_up: bool,
    leased_as: LeasedAs,
    /// A grant was in the lease file in this run.
    was_granted: bool,
    /// The worker id is leased, by configuration.
    leased: bool,
    /// The last worker id in force here, if it is known and was not leased.
    previous_worker_id: Option<u16>,
    /// The worker id set by hand, if it was the one since the launcher first looked, or since it was
    /// in force here: no other server can have used it since then.
    kept_worker_id: Option<u16>,
    /// No id was issued here before: the worker id that was set at the start has no predecessor.
    is_first: bool,
    /// A worker id that another server may have used before, and the floor above its ids.
    others: Option<(u16, AboveOthers)>,
    leading: Leading,
    actions: Vec<Action>,
}

impl Keeper {
    /// A launcher that has just started, with a closed generator. `kept_worker_id`: that of the last
    /// launcher of this run ([`Keeper::kept_worker_id`]), or the one set by hand if this is the first.
    #[must_use]
    pub fn new(
        epoch_ms: i64,
        layout: Layout,
        resets: u32,
        in_recovery: bool,
        kept_worker_id: Option<u16>,
    ) -> Self {
        Self {
            epoch_ms,
            layout,
            state: State::Starting,
            ready: None,
            asked: false,
            phase: Phase::Idle,
            floor: None,
            found_at_ms: 0,
            above_others: None,
            renewed_at_ms: 0,
            problem: None,
            resets,
            standby: in_recovery,
            lease: Lease::None,
            is_used_up: false,
            leased_as: LeasedAs::None,
            was_granted: false,
            leased: false,
            previous_worker_id: None,
            kept_worker_id,
            is_first: false,
            others: None,
            leading: Leading::NONE,
            actions: Vec::new(),
        }
    }

    /// The worker id set by hand, if no other server can have used it since this one has. For the
    /// next launcher.
    #[must_use]
    pub fn kept_worker_id(&self) -> Option<u16> {
        self.kept_worker_id
    }

    /// Reports what is configured, also where no turn can be taken now: others may use a worker id
    /// while it is not configured here.
    pub fn heed(&mut self, configured: Configured) {
        let is_set = |of: u16| configured == Configured::Fixed(of);
        self.others = self.others.filter(|(of, _)| is_set(*of));
        self.kept_worker_id = self.kept_worker_id.filter(|of| is_set(*of));
    }

    /// The state for the views.
    fn shown(&self) -> State {
        match self.state {
            State::Open { .. } | State::Starting if self.is_used_up => {
                State::Refused(Refusal::TimeUsedUp)
            }
            State::Starting if let Some(worker_id) = self.ready => State::Open { worker_id },
            State::Open { .. } if self.problem.is_some() => State::Refused(Refusal::FileProblem),
            state => state,
        }
    }

    /// Executes one step.
    pub fn step(&mut self, seen: &Seen, input: Input) -> Step {
        let then = match (core::mem::replace(&mut self.phase, Phase::Idle), input) {
            (_, Input::Look(look)) => self.begin(seen, look),
            (Phase::Floor(turn), Input::File(file)) => self.find_floor(seen, turn, file),
            (Phase::Leasing(turn), Input::Lease { effect, again_ms }) => {
                let lease_again_ms = again_ms;
                let turn = Turn {
                    lease_again_ms,
                    ..turn
                };
                self.follow_lease(seen, turn, effect)
            }
            (Phase::Opening(turn, usable), Input::File(file)) => {
                self.open(seen, turn, usable, file)
            }
            (Phase::Writing(turn, writing), Input::Written(result)) => {
                self.written(turn, writing, result)
            }
            // Ignore an unexpected result; the next turn starts over.
            (_, Input::File(_) | Input::Lease { .. } | Input::Written(_)) => {
                debug_assert!(false, "an input that was not asked for");
                Then::Wait(Some(RETRY_MS))
            }
        };
        Step {
            actions: core::mem::take(&mut self.actions),
            shown: self.shown(),
            then,
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn close(&mut self, state: State) {
        self.state = state;
        self.act(Action::Close);
    }

    fn close_once(&mut self, state: State) {
        if self.state != state {
            self.close(state);
        }
    }

    /// Forgets the lease, if any, and closes.
    fn stop_leasing(&mut self) {
        self.is_used_up = false;
        if !matches!(self.lease, Lease::None) {
            self.lease = Lease::None;
            self.act(Action::StopLeasing);
            self.close(State::Starting);
        }
    }

    /// Ends the turn. The next one is due after `ms`, or earlier for the lease, the lead or the end
    /// of recovery.
    fn wait(&self, turn: &Turn, ms: Option<i64>) -> Then {
        let standby = self.standby.then_some(STANDBY_MS);
        let lease = turn.lease_again_ms;
        let lead = turn.lead_again_ms;
        Then::Wait(ms.into_iter().chain(lease).chain(lead).chain(standby).min())
    }

    fn begin(&mut self, seen: &Seen, look: Look) -> Then {
        let mut turn = Turn {
            look,
            was_reset: self.resets != look.resets,
            lease_again_ms: None,
            lead_again_ms: None,
        };
        if turn.was_reset {
            self.resets = look.resets;
            self.floor = None;
            self.state = State::Starting;
            // Who called it vouches for its worker id.
            self.kept_worker_id = seen.last_worker_id;
        } else if matches!(self.state, State::Open { .. }) && !seen.is_open {
            sometimes!("generator: was closed by a session whose reset failed");
            self.floor = None;
            self.state = State::Starting;
        }
        self.heed(look.configured);
        self.ready = None;
        // Calls repeat that, unless they see a file problem.
        self.asked = look.wanted || (self.asked && self.problem.is_some());
        let issued = seen.last_ms > self.epoch_ms;
        let leased = matches!(look.configured, Configured::Leased(_));
        if core::mem::replace(&mut self.leased, leased) != leased && !issued {
            // The timeline matters only if the worker id is not leased.
            self.forget_floor();
        }
        if matches!(self.state, State::Open { .. }) {
            turn.lead_again_ms = self.leading.follow(seen, look.led, &mut self.actions);
        }
        if self.standby && !look.in_recovery {
            self.standby = false;
            // Promoted: reread the file on the new timeline. Once an id has been issued, the word
            // is authoritative.
            if !issued {
                self.forget_floor();
            }
        }
        // Its worker id is probably the primary's: copied with the configuration, or leased while
        // this server was the primary, with the registry replicated along.
        if self.standby && (!leased || look.registry_is_here) {
            self.stop_leasing();
            self.close_once(State::Standby);
            return Then::Wait(Some(STANDBY_MS));
        }
        let is_lower = seen.now_ms < self.found_at_ms && self.leased_as != LeasedAs::Another;
        if is_lower && !issued {
            // The clock was ahead when the floor was found: a start now would find a lower one.
            self.floor = None;
        }
        match self.floor {
            Some(floor) => self.configure(seen, turn, floor),
            None if issued => {
                self.previous_worker_id = seen.last_worker_id;
                let floor = Floor::of_word(seen.last_ms, turn.was_reset);
                self.found_floor(seen, turn, floor)
            }
            // Even without a worker id: an excessive lead is waited out all the same.
            None => {
                self.phase = Phase::Floor(turn);
                Then::Read
            }
        }
    }

    /// Forgets what the floor was found by.
    fn forget_floor(&mut self) {
        self.floor = None;
        self.above_others = None;
    }

    /// Updates the max lead, if it has changed.
    fn set_lead(&mut self, seen: &Seen, turn: &Turn, terms: Terms) {
        let lead = terms.lead(turn.look.max_burst_ms);
        if lead != seen.lead {
            self.act(Action::SetLead(lead));
        }
    }

    fn find_floor(&mut self, seen: &Seen, turn: Turn, file: File) -> Then {
        let (refusal, again_ms) = match self.floor_of(seen, &turn, file) {
            Ok(floor) => return self.found_floor(seen, turn, floor),
            Err(refused) => refused,
        };
        if turn.look.configured == Configured::Unset {
            return self.unconfigured(&turn);
        }
        self.close(State::Refused(refusal));
        Then::Wait(again_ms)
    }

    /// The floor of this run by the file, or the refusal and the retry interval.
    fn floor_of(
        &mut self,
        seen: &Seen,
        turn: &Turn,
        file: File,
    ) -> Result<Floor, (Refusal, Option<i64>)> {
        let reader = file.reader(turn);
        let mut worker_id = None;
        let stored = match file.found {
            Found::Contents {
                stored,
                worker_id: of_file,
                ..
            } => {
                worker_id = of_file;
                Some(stored)
            }
            Found::Nothing => None,
            // The registry knows which ids may have been issued.
            Found::Damaged(_) if reader.leased => None,
            Found::Damaged(text) | Found::Unreadable(text) => {
                self.log_problem(text);
                return Err((Refusal::FileProblem, Some(RETRY_MS)));
            }
        };
        let above_others =
            AboveOthers::read(seen.now_ms, turn.terms()).or_earlier(self.above_others);
        self.above_others = Some(above_others);
        let start = Start {
            now_ms: seen.now_ms,
            epoch_ms: self.epoch_ms,
            layout: self.layout,
            above_others_ms: above_others.ms,
            reader,
            // A copy or a promoted standby is on another timeline, or has the file.
            never_issued: file.pristine && file.timeline == 1,
        };
        // Retry: as time passes, ids come to exceed those of the previous epoch or layout.
        let floor = reservation::floor(start, stored).map_err(|why| (why, Some(RETRY_MS)))?;
        self.found_at_ms = seen.now_ms;
        self.previous_worker_id = worker_id.filter(|_| floor.knows_worker_id());
        self.is_first = floor.reason == Reason::NewCluster;
        if let Configured::Fixed(configured) = turn.look.configured
            && !floor.knows_worker_id()
            && !self.is_first
        {
            // The floor of this run is above others' ids, too. That of a new cluster is only its clock.
            self.others = Some((configured, above_others));
        }
        Ok(floor)
    }

    fn found_floor(&mut self, seen: &Seen, turn: Turn, floor: Floor) -> Then {
        self.floor = Some(floor);
        self.act(Action::ShowFloor(floor));
        self.configure(seen, turn, floor)
    }

    fn unconfigured(&mut self, turn: &Turn) -> Then {
        self.stop_leasing();
        self.close_once(State::Unconfigured);
        self.wait(turn, None)
    }

    fn configure(&mut self, seen: &Seen, turn: Turn, floor: Floor) -> Then {
        match turn.look.configured {
            Configured::Unset => self.unconfigured(&turn),
            Configured::Fixed(worker_id) => {
                self.stop_leasing();
                self.act(Action::SetRecorded(FOR_EVER));
                let usable = Usable {
                    worker_id,
                    floor: Some(floor),
                    grant: None,
                };
                self.use_worker_id(seen, turn, usable)
            }
            Configured::Leased(Registry::Unset) => {
                self.stop_leasing();
                self.close_once(State::Refused(Refusal::NoRegistrySet));
                self.wait(&turn, None)
            }
            Configured::Leased(Registry::Same) if !matches!(self.lease, Lease::None) => {
                self.phase = Phase::Leasing(turn);
                Then::Lease { begin: None }
            }
            Configured::Leased(Registry::Same | Registry::Other) => {
                let own = self.begin_leasing(floor);
                self.phase = Phase::Leasing(turn);
                Then::Lease { begin: Some(own) }
            }
        }
    }

    /// Begins a lease. True if the lease file of an earlier run may be used.
    fn begin_leasing(&mut self, floor: Floor) -> bool {
        self.stop_leasing();
        self.lease = Lease::Asked;
        // Also closes a generator with a configured worker id.
        self.close(State::Starting);
        match self.leased_as {
            LeasedAs::Itself => return true,
            // The lease file is still that of an earlier run, if none could be written since.
            LeasedAs::Another => return self.was_granted,
            LeasedAs::None => {}
        }
        if floor.is_own() {
            self.leased_as = LeasedAs::Itself;
            return true;
        }
        // A worker id leased as another server has a floor above all ids ever issued with it, so no
        // other floor applies.
        self.leased_as = LeasedAs::Another;
        self.act(Action::ShowFloor(Floor {
            ms: i64::MIN,
            ..floor
        }));
        false
    }

    fn follow_lease(&mut self, seen: &Seen, turn: Turn, effect: Effect) -> Then {
        self.is_used_up = false;
        match effect {
            Effect::Keep => {}
            Effect::Close(refusal) => {
                self.lease = Lease::Asked;
                self.close(State::Refused(refusal));
                // Without a grant, nothing may be reserved.
                self.act(Action::SetRecorded(0));
            }
            Effect::Use { grant, anew } => {
                // Before the new grant takes effect: time reserved for another holder or another
                // worker id must not be used with this one.
                if anew {
                    self.close(State::Starting);
                }
                self.act(Action::SetRecorded(grant.reserved_until_ms));
                self.lease = Lease::Granted(grant);
                self.was_granted = true;
            }
        }
        let Lease::Granted(grant) = self.lease else {
            return self.wait(&turn, None);
        };
        if seen.now_ms >= grant.reserved_until_ms {
            return self.hurry(&turn);
        }
        let usable = Usable {
            worker_id: grant.worker_id,
            floor: self.floor.filter(|_| self.leased_as == LeasedAs::Itself),
            grant: Some(grant),
        };
        self.use_worker_id(seen, turn, usable)
    }

    /// Asks the registry soon, because its recorded time is used up.
    fn hurry(&mut self, turn: &Turn) -> Then {
        sometimes!("generator: the granted time is used up");
        self.is_used_up = true;
        self.act(Action::Hurry);
        self.wait(turn, Some(RETRY_MS))
    }

    /// Renews the reservation if the generator is open with this worker id, or starts to open it.
    fn use_worker_id(&mut self, seen: &Seen, turn: Turn, usable: Usable) -> Then {
        let worker_id = usable.worker_id;
        let is_open = self.state == (State::Open { worker_id });
        let is_kept = usable.grant.is_some() || self.kept_worker_id == Some(worker_id);
        if is_open && !is_kept {
            self.close(State::Starting);
        }
        if !is_open || !is_kept {
            self.phase = Phase::Opening(turn, usable);
            return Then::Read;
        }
        self.others = None;
        let terms = turn.terms();
        let (now_ms, last_ms) = (seen.now_ms, seen.last_ms);
        let too_far = reservation::is_too_far(now_ms, last_ms, seen.reserved_until_ms, terms);
        // On a full disk, what is reserved is all there is.
        if too_far && self.problem.is_none() {
            sometimes!("generator: a lower reservation, after the clock was ahead");
            // Gives the reservation back before a lower one is written (I7).
            self.close(State::Starting);
            self.phase = Phase::Opening(turn, usable);
            return Then::Read;
        }
        self.set_lead(seen, &turn, terms);
        let renewal = Renewal {
            now_ms: seen.now_ms,
            last_ms: seen.last_ms,
            reserved_until_ms: seen.reserved_until_ms,
            recorded_until_ms: usable.recorded_until_ms(),
            renewed_at_ms: self.renewed_at_ms,
            wanted: turn.look.wanted || self.problem.is_some(),
            terms,
        };
        match renewal.decide() {
            Renew::Later(ms) => self.wait(&turn, Some(ms.unwrap_or(LOOK_MS).min(LOOK_MS))),
            Renew::Until(until_ms) => self.reserve(seen, turn, &usable, until_ms, None),
            // Ids may lead the clock.
            Renew::Enough if seen.last_ms >= usable.recorded_until_ms() => self.hurry(&turn),
            // Until a write succeeds again, it is not known whether the disk has room.
            Renew::Enough if self.problem.is_some() => {
                self.reserve(seen, turn, &usable, seen.reserved_until_ms, None)
            }
            Renew::Enough => self.renewed(&turn, terms),
        }
    }

    fn renewed(&mut self, turn: &Turn, terms: Terms) -> Then {
        self.act(Action::Wake);
        self.wait(turn, Some(terms.renew_after_ms()))
    }

    /// Opens the generator, or changes the worker id of an open one.
    fn open(&mut self, seen: &Seen, turn: Turn, usable: Usable, file: File) -> Then {
        let is_of_other_ids = file.is_of_other_ids(self.epoch_ms, self.layout);
        // A standby's copy of the file binds what it says.
        let is_noted = !is_of_other_ids
            && matches!(
                &file.found,
                Found::Contents { worker_id, .. } if worker_id.is_none_or(|of| of == usable.worker_id)
            );
        let was_opened = seen.last_ms > self.epoch_ms;
        let is_unissued = file.is_unissued(&turn);
        // Its floor may become lower, if the clock was ahead.
        let is_by_clock = usable.floor.is_some_and(|own| !own.knows_worker_id()) || is_of_other_ids;
        let retired = match file.found {
            Found::Contents { retired, .. } => retired,
            Found::Nothing | Found::Damaged(_) => Vec::new(),
            Found::Unreadable(text) => return self.file_problem(&turn, text),
        };
        let left_behind = retired
            .into_iter()
            .filter(|(worker_id, _)| *worker_id == usable.worker_id);
        let terms = turn.terms();
        self.others = self.find_others(seen, &usable, terms);
        let is_by_clock = is_by_clock || self.others.is_some();
        let opening = Opening {
            now_ms: seen.now_ms,
            last_ms: seen.last_ms,
            floor: usable.floor,
            granted_floor_ms: usable.grant.map(|grant| grant.floor_ms),
            others_floor_ms: self.others.map(|(_, above)| above.ms),
            retired_until_ms: left_behind.map(|(_, until_ms)| until_ms).max(),
            terms,
        };
        let (state, until_ms) = match opening.decide() {
            Decision::Open { floor, .. } if floor.ms >= usable.recorded_until_ms() => {
                return self.hurry(&turn);
            }
            Decision::Open { floor, .. }
                if (is_unissued || is_by_clock) && !was_opened && !self.asked =>
            {
                self.state = State::Starting;
                if is_unissued && !is_noted {
                    return self.note_unissued(seen, turn, usable.worker_id, floor);
                }
                self.mended();
                self.ready = Some(usable.worker_id);
                return self.wait(&turn, None);
            }
            // Reserved for this worker id before its first id (I7).
            Decision::Open { floor, until_ms } => {
                return self.reserve(seen, turn, &usable, until_ms, Some(floor));
            }
            Decision::WaitOut { until_ms } => {
                sometimes!("generator: waits for the clock to reach its floor");
                (State::WaitingOut { until_ms }, until_ms)
            }
            Decision::WaitOutRetired { until_ms } => {
                let refusal = Refusal::WorkerIdRetired { until_ms };
                (State::Refused(refusal), until_ms)
            }
        };
        // Until another worker id may be used, ids go on with the one in force.
        let goes_on = matches!(self.state, State::Open { .. });
        if !goes_on || !matches!(state, State::WaitingOut { .. }) {
            self.close(state);
        }
        let left_ms = until_ms.saturating_sub(seen.now_ms);
        self.wait(&turn, Some(left_ms.clamp(1, RETRY_MS)))
    }

    /// The floor above the ids of another server with this worker id, from the turn that first
    /// looked for it since it was configured; `None` if there was none, or its ids are known.
    fn find_others(
        &self,
        seen: &Seen,
        usable: &Usable,
        terms: Terms,
    ) -> Option<(u16, AboveOthers)> {
        let worker_id = usable.worker_id;
        let is_known = self.kept_worker_id == Some(worker_id)
            && (self.is_first || self.previous_worker_id == Some(worker_id));
        if usable.grant.is_some() || is_known {
            return None;
        }
        let earlier = self.others.map(|(_, above)| above);
        let above = AboveOthers::read(seen.now_ms, terms).or_earlier(earlier);
        Some((worker_id, above))
    }

    /// Writes that no id was issued here before.
    fn note_unissued(&mut self, seen: &Seen, turn: Turn, worker_id: u16, floor: Floor) -> Then {
        let writing = Writing {
            worker_id,
            since_ms: seen.now_ms,
            makes: Makes::Ready,
            terms: turn.terms(),
        };
        self.phase = Phase::Writing(turn, writing);
        Then::Reserve {
            worker_id,
            until_ms: floor.ms.max(self.epoch_ms),
            issued: false,
        }
    }

    fn reserve(
        &mut self,
        seen: &Seen,
        turn: Turn,
        usable: &Usable,
        wanted_ms: i64,
        above: Option<Floor>,
    ) -> Then {
        let worker_id = usable.worker_id;
        let recorded_ms = usable.recorded_until_ms();
        let writing = Writing {
            worker_id,
            since_ms: seen.now_ms,
            makes: above.map_or(Makes::Renewed, Makes::Open),
            terms: turn.terms(),
        };
        self.phase = Phase::Writing(turn, writing);
        Then::Reserve {
            worker_id,
            until_ms: reserve_until(wanted_ms, seen.reserved_until_ms, recorded_ms),
            issued: true,
        }
    }

    fn written(
        &mut self,
        turn: Turn,
        writing: Writing,
        result: Result<Option<String>, String>,
    ) -> Then {
        match result {
            Ok(None) => {}
            Ok(Some(damage)) => self.act(Action::Log(Message::FileHealed(damage))),
            Err(text) => return self.file_problem(&turn, text),
        }
        self.mended();
        self.renewed_at_ms = writing.since_ms;
        let worker_id = writing.worker_id;
        let above = match writing.makes {
            Makes::Renewed => return self.renewed(&turn, writing.terms),
            Makes::Ready => {
                self.ready = Some(worker_id);
                return self.wait(&turn, None);
            }
            Makes::Open(above) => above,
        };
        self.state = State::Open { worker_id };
        // A leased worker id may pass to another server.
        self.previous_worker_id = (!self.leased).then_some(worker_id);
        self.kept_worker_id = self.previous_worker_id;
        self.is_first = false;
        self.leading.opened(above, writing.since_ms);
        if above.reason == Reason::OtherWorkerId {
            self.act(Action::ShowFloor(above));
        }
        self.act(Action::SetLead(writing.terms.lead(turn.look.max_burst_ms)));
        self.act(Action::Open {
            worker_id,
            above_ms: above.ms,
        });
        // If it leads the clock, run again at once to report that.
        let again_ms = if above.ms > writing.since_ms {
            1
        } else {
            writing.terms.renew_after_ms()
        };
        self.wait(&turn, Some(again_ms))
    }

    /// Handles a file that cannot be read or written. An open generator stays open.
    fn file_problem(&mut self, turn: &Turn, text: String) -> Then {
        self.log_problem(text);
        if !matches!(self.state, State::Open { .. }) {
            self.state = State::Refused(Refusal::FileProblem);
        }
        self.wait(turn, Some(RETRY_MS))
    }

    fn mended(&mut self) {
        if self.problem.take().is_some() {
            self.act(Action::Log(Message::FileMended));
        }
    }

    fn log_problem(&mut self, text: String) {
        if self.problem.as_ref() != Some(&text) {
            self.problem = Some(text.clone());
            self.act(Action::Log(Message::FileProblem(text)));
        }
    }
}
