//! The registry's decision: who gets which worker id, from when and up to which time, and what is
//! locked for it.
//!
//! Would catch: two holders of one time; a grant that a failover forgets and another registry gives
//! again; a registry that trusts a member beyond its owner's bounds, so that one bad member, or one
//! bad role, harms the others.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Grant, Question, Status};
use leaf_id_core::registry::{
    Bounds, Decision, Here, Hold, Holder, LAST_MS, LeaseRequest, MAX_PER_NAME, Next, Place,
    Registry, Reply, Requester, Row, Tables, decide,
};

const NOW: i64 = 1_800_000_000_000;
const EPOCH: i64 = 1_288_834_974_657;
const AHEAD_MS: i64 = Bounds::DEFAULT.grant_ahead_ms;
const SKEW_MS: i64 = Bounds::DEFAULT.max_skew_ms;
/// How far ids of the registry's own server may lead.
const LEAD_MS: i64 = 11_000;
const SYSTEM: i64 = 4711;
const HERE: Place = Place {
    system_identifier: 1,
    timeline: 1,
    database: 1,
    relation: 1,
};

/// A registry and its evolution.
#[derive(Clone)]
struct World {
    registry: Registry,
    rows: Vec<Row>,
    here: Here,
    /// Rows locked by other transactions.
    busy: Vec<u16>,
    /// What another transaction does to a row before that can be locked.
    change: fn(&mut Row),
    /// Locks taken for the last request: the registry's row, and worker ids.
    locked: (bool, Vec<u16>),
    /// Tokens drawn.
    drawn: i64,
}

/// A member and its request.
#[derive(Clone, Copy)]
struct Member<'a> {
    role: &'a str,
    node: &'a str,
    token: i64,
    /// `None`: drawn.
    next_token: Option<i64>,
    held: Option<Grant>,
    /// Its clock, ahead of the registry's.
    ahead_ms: i64,
    epoch_ms: i64,
    /// `None` means the registry's layout.
    layout: Option<Layout>,
    trusted: bool,
    /// It is the registry's own server.
    host: bool,
}

const MEMBER: Member<'static> = Member {
    role: "members",
    node: "a",
    token: 0,
    next_token: None,
    held: None,
    ahead_ms: 0,
    epoch_ms: EPOCH,
    layout: None,
    trusted: false,
    host: false,
};

fn member<'a>(role: &'a str, node: &'a str) -> Member<'a> {
    Member {
        role,
        node,
        ..MEMBER
    }
}

/// The registry's own server.
fn host(node: &str) -> Member<'_> {
    Member {
        node,
        host: true,
        trusted: true,
        ..MEMBER
    }
}

impl Member<'_> {
    fn is_ahead(self, ahead_ms: i64) -> Self {
        Self { ahead_ms, ..self }
    }

    fn holds(self, worker_id: u16, floor_ms: i64, reserved_until_ms: i64) -> Self {
        let held = Some(Grant {
            worker_id,
            floor_ms,
            reserved_until_ms,
        });
        Self { held, ..self }
    }
}

impl World {
    fn new() -> Self {
        Self {
            registry: Registry {
                place: Some(HERE),
                epoch_ms: None,
                layout: None,
                moved_at_ms: None,
                moved_floor_ms: None,
                bounds: Bounds::DEFAULT,
            },
            rows: Vec::new(),
            here: Here {
                place: HERE,
                epoch_ms: EPOCH,
                layout: Layout::DEFAULT,
                arrived_ms: NOW,
                now_ms: NOW,
                worker_id: None,
                max_lead_ms: LEAD_MS,
                format_ms: |ms| ms.to_string(),
            },
            busy: Vec::new(),
            change: |_| {},
            locked: (false, Vec::new()),
            drawn: 100,
        }
    }

    /// With this number of worker ids, a power of two.
    fn with_worker_ids(number: u16) -> Self {
        let mut world = Self::new();
        let bits = u8::try_from(number.ilog2()).unwrap();
        world.here.layout = Layout::new(41, bits, 12).unwrap();
        world
    }

    /// Sets the registry's clock.
    fn set_clock(&mut self, ms: i64) {
        self.here.arrived_ms = ms;
        self.here.now_ms = ms;
    }

    fn now(&self) -> i64 {
        self.here.now_ms
    }

    fn pass(&mut self, ms: i64) {
        self.set_clock(self.now() + ms);
    }

    fn row(&self, worker_id: u16) -> &Row {
        let mut rows = self.rows.iter();
        rows.find(|row| row.worker_id == worker_id).unwrap()
    }

    fn request(&mut self, member: Member<'_>) -> LeaseRequest {
        self.drawn += 1;
        LeaseRequest {
            question: Question {
                token: member.token,
                next_token: member.next_token.unwrap_or(self.drawn),
                held: member.held,
            },
            system_identifier: SYSTEM,
            node_name: member.node.into(),
            now_ms: self.here.arrived_ms + member.ahead_ms,
            epoch_ms: member.epoch_ms,
            layout: member.layout.unwrap_or(self.here.layout),
        }
    }

    /// Takes the locks that are asked for, until there is a decision or the request starts over.
    fn next(&mut self, member: Member<'_>) -> Next {
        let request = self.request(member);
        assert!(request.is_valid());
        let requester = Requester {
            role: member.role.as_bytes(),
            trusted: member.trusted,
            address: None,
            host: member.host,
        };
        self.locked = (false, Vec::new());
        let mut rows: Vec<_> = (self.rows.iter().cloned())
            .map(|row| (row, Hold::Seen))
            .collect();
        loop {
            let tables = Tables {
                registry: &self.registry,
                registry_locked: self.locked.0,
                rows: &rows,
            };
            match decide(tables, &request, &requester, &self.here) {
                Next::LockRegistry => {
                    assert_eq!(self.locked, (false, vec![]), "first, and once");
                    self.locked.0 = true;
                }
                Next::LockRow { worker_id, wait } => {
                    let found = rows.iter_mut().find(|(row, _)| row.worker_id == worker_id);
                    let (row, hold) = found.unwrap();
                    assert_eq!(*hold, Hold::Seen, "worker id {worker_id} twice");
                    *hold = if self.busy.contains(&worker_id) {
                        assert!(!wait, "it would wait for ever");
                        Hold::Busy
                    } else {
                        self.locked.1.push(worker_id);
                        (self.change)(row);
                        Hold::Locked
                    };
                }
                next => return next,
            }
        }
    }

    fn ask(&mut self, member: Member<'_>) -> Decision {
        let Next::Done(decision) = self.next(member) else {
            panic!("nothing has changed");
        };
        if let Some(registry) = decision.registry {
            assert!(self.locked.0, "written without a lock");
            self.registry = registry;
        }
        let outcome = decision.reply.answer.outcome;
        assert_eq!(decision.row.is_none(), outcome.is_err());
        assert_eq!(decision.reply.detail.is_empty(), outcome.is_ok());
        if let Some(row) = &decision.row {
            let granted = outcome.unwrap();
            assert_eq!(row.worker_id, granted.worker_id);
            assert_eq!(row.reserved_until_ms, granted.reserved_until_ms);
            assert_eq!(row.floor_ms, granted.floor_ms);
            let found = (self.rows.iter_mut()).find(|other| other.worker_id == row.worker_id);
            match found {
                Some(found) => {
                    assert!(self.locked.1.contains(&row.worker_id), "not locked");
                    assert!(row.reserved_until_ms >= found.reserved_until_ms);
                    *found = row.clone();
                }
                None => {
                    assert!(self.locked.0, "inserted without a lock");
                    self.rows.push(row.clone());
                }
            }
        }
        *decision
    }

    #[track_caller]
    fn granted(&mut self, member: Member<'_>) -> Grant {
        let answer = self.ask(member).reply.answer;
        assert_eq!(answer.ahead_ms, self.registry.bounds.grant_ahead_ms);
        answer.outcome.expect("a worker id")
    }

    /// The member after a grant, with what it holds.
    #[track_caller]
    fn join<'a>(&mut self, member: Member<'a>) -> Member<'a> {
        let grant = self.granted(member);
        Member {
            token: self.row(grant.worker_id).token,
            held: Some(grant),
            ..member
        }
    }

    #[track_caller]
    fn refused(&mut self, member: Member<'_>, status: Status) -> String {
        let reply = self.ask(member).reply;
        assert_eq!(reply.answer.outcome, Err(status), "{}", reply.detail);
        reply.detail
    }

    /// Changes the timeline, as a promotion does.
    fn promote(&mut self) {
        self.here.place.timeline += 1;
    }

    /// Promotes a standby, in its state when it received its last WAL, on a server whose clock is
    /// behind.
    fn fail_over(&self, standby: &Self, behind_ms: i64) -> Self {
        let mut promoted = standby.clone();
        promoted.here = self.here;
        promoted.set_clock(self.now() - behind_ms);
        promoted.promote();
        promoted
    }

    /// Notes a promotion, and returns the floor of what it may have forgotten.
    fn use_promoted(&mut self) -> i64 {
        self.promote();
        self.refused(member("strangers", "stranger"), Status::Moved);
        self.registry.moved_floor_ms.unwrap()
    }
}

/// Renewals do not wait for one another, nor for what else is asked.
#[test]
fn only_what_is_needed_is_locked() {
    let mut world = World::with_worker_ids(2);
    let holder = world.join(MEMBER);
    assert_eq!(world.locked, (true, vec![]));
    let other = world.join(member("x", "b"));
    assert_eq!(world.locked, (true, vec![]));
    let holder = world.join(holder);
    assert_eq!(world.locked, (false, vec![0]));
    // No question about what all have in common waits, or notes a move.
    world.promote();
    let before = world.registry;
    for (epoch_ms, status) in [(0, Status::Epoch), (EPOCH, Status::Layout)] {
        let layout = Layout::parse("41/6/6");
        let asking = Member {
            epoch_ms,
            layout,
            ..other
        };
        world.refused(asking, status);
        assert_eq!((&world.locked, world.registry), (&(false, vec![]), before));
    }
    // After a move, the registry's row first, and until nothing forgotten is left.
    let holder = world.join(holder);
    assert_eq!(world.locked, (true, vec![0]));
    let holder = world.join(holder);
    assert_eq!(world.locked, (true, vec![0]));
    world.refused(member("x", "b"), Status::Moved);
    assert_eq!(world.locked, (true, vec![]));
    world.pass(AHEAD_MS + 2 * SKEW_MS);
    // Late; another one's.
    let holder = world.join(holder);
    assert_eq!(world.locked, (true, vec![0]));
    world.join(member("x", "c"));
    assert_eq!(world.locked, (true, vec![1]));
    world.join(holder);
    assert_eq!(world.locked, (false, vec![0]));
}

/// Never the registry's row after its own: others lock them the other way around.
#[test]
fn a_renewal_whose_row_has_changed_starts_over() {
    let changes: [fn(&mut Row); 4] = [
        |row| row.reserved_until_ms = NOW,
        |row| row.retired = true,
        |row| row.token = 77,
        |row| row.holder = None,
    ];
    for (change, worker_id) in changes.into_iter().zip([0, 1, 1, 1]) {
        let mut world = World::new();
        let holder = world.join(MEMBER);
        world.change = change;
        assert_eq!(world.next(holder), Next::StartOver { worker_id: 0 });
        assert_eq!(world.locked, (false, vec![0]));
        // The next question.
        change(&mut world.rows[0]);
        assert_eq!(world.granted(holder).worker_id, worker_id);
        assert!(world.locked.0);
    }
    // What else may have changed is no reason.
    let mut world = World::new();
    let holder = world.join(MEMBER);
    world.change = |row| row.reserved_until_ms = NOW + 1;
    assert!(matches!(world.next(holder), Next::Done(_)));
}

/// One wrong clock puts no R far ahead.
#[test]
fn r_is_ahead_of_the_earlier_clock_and_never_lowered() {
    const DAY_MS: i64 = 86_400_000;
    for (registry_ms, member_ms, before_ms, after_ms) in [
        (NOW, NOW, NOW + 1, NOW + AHEAD_MS),
        (NOW, NOW + 1, NOW + 1, NOW + AHEAD_MS),
        (NOW, NOW - 1, NOW + 1, NOW - 1 + AHEAD_MS),
        (NOW, NOW + DAY_MS, NOW + 1, NOW + AHEAD_MS),
        (NOW, NOW - DAY_MS, NOW + 1, NOW + 1),
        (NOW + DAY_MS, NOW, NOW + 1, NOW + AHEAD_MS),
        (NOW - DAY_MS, NOW, NOW + 1, NOW + 1),
        (NOW, NOW, NOW + DAY_MS, NOW + DAY_MS),
        (NOW, NOW, NOW - 1, NOW + AHEAD_MS),
        (LAST_MS - 1, LAST_MS, NOW, LAST_MS),
    ] {
        let mut world = World::new();
        let holder = world.join(MEMBER).is_ahead(member_ms - registry_ms);
        world.rows[0].reserved_until_ms = before_ms;
        world.set_clock(registry_ms);
        let renewed = world.granted(holder);
        let what = format!("{registry_ms}, {member_ms}, {before_ms}");
        assert_eq!(renewed.reserved_until_ms, after_ms, "{what}");
        assert_eq!(renewed.worker_id, 0, "{what}");
        // Whatever its clock is, that is what the others are compared with.
        let offset_ms = Some(member_ms - registry_ms);
        assert_eq!(world.row(0).clock_offset_ms, offset_ms, "{what}");
    }
    // The owner's.
    let mut world = World::new();
    world.registry.bounds.grant_ahead_ms = 30_000;
    assert_eq!(world.granted(MEMBER).reserved_until_ms, NOW + 30_000);
}

/// The registry has recorded what the member does not know.
#[test]
fn a_question_whose_answer_was_lost_gets_the_same_again() {
    for pass_ms in [0, AHEAD_MS] {
        let mut world = World::with_worker_ids(1);
        world.granted(member("members", "b"));
        world.pass(AHEAD_MS + SKEW_MS);
        let asking = Member {
            next_token: Some(5),
            ..MEMBER
        };
        let lost = world.granted(asking);
        assert_eq!(lost.floor_ms, NOW + AHEAD_MS);
        world.pass(pass_ms);
        let again = world.ask(asking);
        assert_eq!((again.is_moved, again.is_new), (false, false));
        let again = again.reply.answer.outcome.unwrap();
        assert_eq!((again.worker_id, again.floor_ms), (0, lost.floor_ms));
        // A third one, with the next token: the row's is the one before.
        let third = Member {
            token: 5,
            next_token: Some(6),
            ..MEMBER
        };
        assert_eq!(world.granted(third).floor_ms, lost.floor_ms);
    }
}

/// Fixed at the first use, above all that another registry can have granted.
#[test]
fn what_a_failover_may_have_forgotten_is_a_floor_that_stays() {
    let new = member("members", "b");
    let mut world = World::with_worker_ids(4);
    world.granted(MEMBER);
    world.promote();
    // The question has waited for the lock, and others were answered.
    world.here.now_ms += 500;
    let decision = world.ask(new);
    assert_eq!((decision.is_moved, decision.is_new), (true, false));
    let floor_ms = NOW + 500 + AHEAD_MS + SKEW_MS;
    let moved = world.registry;
    assert_eq!(moved.place, Some(world.here.place));
    assert_eq!(moved.moved_at_ms, Some(NOW + 500));
    assert_eq!(moved.moved_floor_ms, Some(floor_ms));
    // Later questions change nothing, and wait until it has passed by every clock.
    for now_ms in [NOW + 500, NOW + 10_000, floor_ms, floor_ms + SKEW_MS - 1] {
        world.set_clock(now_ms);
        let decision = world.ask(new);
        assert!(!decision.is_moved && !decision.is_new);
        assert_eq!(decision.registry, None);
        let Reply { answer, detail } = decision.reply;
        assert_eq!(answer.outcome, Err(Status::Moved));
        let until = format!("until {} it leases", floor_ms + SKEW_MS);
        assert!(detail.contains(&until), "{detail}");
    }
    for pass_ms in [1, 10_000, 600_000] {
        world.pass(pass_ms);
        let decision = world.ask(new);
        assert_eq!((decision.is_moved, decision.is_new), (false, true));
        assert_eq!(decision.reply.answer.outcome.unwrap().floor_ms, floor_ms);
        assert_eq!(world.registry.moved_floor_ms, Some(floor_ms));
        world.rows.pop();
    }
    // The next move raises it, ...
    let now_ms = world.now();
    let mut later = world.clone();
    assert_eq!(later.use_promoted(), now_ms + AHEAD_MS + SKEW_MS);
    // ... unless it is to a clock that is far behind, and less is granted by now: it begins with the
    // last one.
    let mut behind = world.fail_over(&world, 1_000_000);
    behind.registry.bounds.grant_ahead_ms /= 2;
    assert_eq!(behind.use_promoted(), floor_ms);
    assert_eq!(behind.registry.moved_at_ms, Some(NOW + 500));
}

#[test]
fn every_other_place_is_a_move() {
    let elsewhere: [fn(&mut World); 5] = [
        |world| world.here.place.system_identifier += 1,
        |world| world.here.place.timeline += 1,
        |world| world.here.place.database += 1,
        |world| world.here.place.relation += 1,
        |world| world.registry.place = None,
    ];
    for move_to in elsewhere {
        let mut world = World::new();
        let holder = world.join(MEMBER);
        move_to(&mut world);
        assert!(world.ask(holder).is_moved);
        assert!(!world.ask(holder).is_moved);
    }
}

/// What has passed then has passed, though another clock may have been set back.
#[test]
fn the_time_is_never_before_the_last_move() {
    let mut world = World::new();
    let holder = world.join(MEMBER);
    world.registry.moved_at_ms = Some(NOW + AHEAD_MS);
    // By this clock, its R has not passed.
    let holder = world.join(holder.is_ahead(AHEAD_MS));
    assert_eq!(world.locked, (true, vec![0]), "late");
    let until_ms = NOW + 2 * AHEAD_MS;
    assert_eq!(holder.held.unwrap().reserved_until_ms, until_ms);
    // Its peers are compared by the clock as it is.
    assert_eq!(world.ask(MEMBER).reply.answer.registry_ms, NOW);
    assert_eq!(world.row(0).clock_offset_ms, Some(AHEAD_MS));
}

/// A registry with one worker id, held, whose row lacks the last renewals, and which was promoted.
/// Returns its holder and the floor of what it may have forgotten.
fn moved(until_ms: i64) -> (World, Member<'static>, i64) {
    let mut world = World::new();
    let holder = world.join(MEMBER);
    let floor_ms = world.use_promoted();
    world.rows[0].reserved_until_ms = until_ms;
    world.rows[0].floor_ms = 500;
    (world, holder, floor_ms)
}

#[test]
fn after_a_move_only_what_is_held_counts() {
    let (.., moved_ms) = moved(0);
    let ahead_ms = NOW + AHEAD_MS;
    // R of the row; floor and R held; R and floor granted.
    for (row_ms, held, granted) in [
        (NOW, Some((0, NOW + 1)), Some((ahead_ms, 500))),
        (NOW, Some((700, NOW + 1)), Some((ahead_ms, 700))),
        (NOW, Some((0, moved_ms)), Some((moved_ms, 500))),
        // What it cannot have been granted.
        (NOW, Some((0, moved_ms + 1)), None),
        // That may be another server's.
        (NOW, Some((0, NOW)), None),
        (NOW, None, None),
        (NOW + 1, Some((0, NOW)), Some((ahead_ms, 500))),
        (NOW + 1, Some((700, 0)), Some((ahead_ms, 700))),
        (NOW + 1, Some((700, moved_ms + 1)), Some((ahead_ms, 500))),
        // The other one may be a copy's.
        (moved_ms, Some((0, NOW + 1)), Some((moved_ms, 500))),
        (NOW + 1, None, None),
    ] {
        let (world, holder, _) = moved(row_ms);
        // Its own, of a renewal that was lost, or none.
        for token in [holder.token, 77, 0] {
            let mut world = world.clone();
            let member = Member { token, ..MEMBER };
            let member = match held {
                Some((floor_ms, until_ms)) => member.holds(0, floor_ms, until_ms),
                None => member,
            };
            let what = format!("{row_ms}, {held:?}, {token}");
            let outcome = world.ask(member).reply.answer.outcome;
            let is_last =
                held.is_some_and(|held| held.1 > NOW && (row_ms..=moved_ms).contains(&held.1));
            match granted.filter(|_| is_last || token == holder.token) {
                Some((until_ms, floor_ms)) => {
                    let grant = outcome.expect(&what);
                    assert_eq!(grant.worker_id, 0, "{what}");
                    assert_eq!(grant.reserved_until_ms, until_ms, "{what}");
                    assert_eq!(grant.floor_ms, floor_ms, "{what}");
                }
                None => assert_eq!(outcome.expect_err(&what), Status::Moved, "{what}"),
            }
        }
    }
}

#[test]
fn after_a_move_no_server_enters_what_is_not_its_own() {
    let changes: [fn(&mut World, &mut Member<'_>); 8] = [
        |world, _| world.rows[0].retired = true,
        |world, _| world.rows[0].host = true,
        |world, _| world.here.worker_id = Some(0),
        |world, _| world.rows[0].holder = None,
        |world, _| world.rows[0].holder.as_mut().unwrap().system_identifier += 1,
        |_, member| member.role = "thieves",
        |_, member| member.node = "b",
        // Forgotten altogether.
        |_, member| member.held.as_mut().unwrap().worker_id = 9,
    ];
    let (world, holder, _) = moved(NOW + 1);
    world.clone().granted(holder);
    for (change, number) in changes.into_iter().zip(0..) {
        let mut world = world.clone();
        let mut member = holder;
        change(&mut world, &mut member);
        let said = world.refused(member, Status::Moved);
        assert!(said.contains("only to servers that hold one"), "{number}");
    }
}

/// Claim, claim by another server, failover, question: the promoted registry does not know that the
/// worker id was given to another, and its clock is behind.
#[test]
fn no_other_registrys_clock_revives_what_was_given_away() {
    // To another name, or to one without a token: a copy, or itself without its data directory.
    for node in ["a", "b"] {
        let mut world = World::with_worker_ids(1);
        let holder = world.join(MEMBER);
        let standby = world.clone();
        world.pass(AHEAD_MS + SKEW_MS - 1);
        world.refused(member("members", node), Status::Full);
        world.pass(1);
        let given = world.granted(member("members", node));
        assert_eq!(given.floor_ms, NOW + AHEAD_MS);
        let mut promoted = world.fail_over(&standby, SKEW_MS);
        promoted.refused(holder, Status::Moved);
        // Here, too.
        world.refused(holder, Status::Full);
    }
}

/// What the first registry has recorded, whichever clock was ahead, and the second has lost, is
/// below the floor of the next holder.
#[test]
fn whatever_was_forgotten_is_below_the_floor() {
    for ahead_ms in [-SKEW_MS, 0, SKEW_MS] {
        let mut world = World::new();
        let standby = world.clone();
        let forgotten = world.granted(MEMBER.is_ahead(ahead_ms));
        for behind_ms in [-SKEW_MS, 0, SKEW_MS] {
            let mut promoted = world.fail_over(&standby, behind_ms);
            promoted.use_promoted();
            promoted.pass(AHEAD_MS + 2 * SKEW_MS - 1);
            promoted.refused(member("members", "b"), Status::Moved);
            promoted.pass(1);
            let granted = promoted.granted(member("members", "b"));
            assert_eq!(granted.worker_id, forgotten.worker_id);
            assert!(granted.floor_ms >= forgotten.reserved_until_ms);
        }
    }
}

#[test]
fn a_late_holder_goes_on_above_what_was_forgotten() {
    for (moved_floor_ms, floor_ms) in [(None, 500), (Some(400), 500), (Some(NOW), NOW)] {
        let mut world = World::new();
        let holder = world.join(MEMBER);
        world.rows[0].floor_ms = 500;
        world.registry.moved_floor_ms = moved_floor_ms;
        // Also long after others could have had it.
        for pass_ms in [AHEAD_MS, 2 * AHEAD_MS] {
            let mut world = world.clone();
            world.pass(pass_ms);
            let decision = world.ask(holder);
            assert!(!decision.is_new);
            let late = decision.reply.answer.outcome.unwrap();
            assert_eq!((late.worker_id, late.floor_ms), (0, floor_ms));
            assert_eq!(late.reserved_until_ms, NOW + pass_ms + AHEAD_MS);
        }
    }
    // Not a retired one: it gets another at its next question, however off its clock is.
    let mut world = World::new();
    let holder = world.join(MEMBER);
    world.rows[0].retired = true;
    assert_eq!(world.granted(holder.is_ahead(50_000)).worker_id, 1);
}

#[test]
fn a_first_claim_gets_what_has_passed_for_the_longest() {
    let passed_ms = NOW - SKEW_MS;
    let of = |worker_id, node: &str, reserved_until_ms| Row {
        reserved_until_ms,
        ..row_of(worker_id, node)
    };
    let mut world = World::with_worker_ids(8);
    world.rows = vec![
        of(0, "x", passed_ms),
        of(1, "a", passed_ms),
        of(2, "a", passed_ms - 1),
        of(3, "y", passed_ms - 3),
        of(4, "z", passed_ms - 2),
        of(5, "z", passed_ms - 2),
        of(6, "w", passed_ms + 1),
    ];
    world.registry.moved_floor_ms = Some(passed_ms - 2);
    // Its own name's, the one that was never granted, and the others by R.
    for (node, worker_id, floor_ms) in [
        ("a", 2, passed_ms - 1),
        ("a", 1, passed_ms),
        ("b", 7, passed_ms - 2),
        ("c", 3, passed_ms - 2),
        ("d", 4, passed_ms - 2),
        ("e", 5, passed_ms - 2),
        ("f", 0, passed_ms),
    ] {
        // What is being renewed is left out.
        let mut renewed = world.clone();
        renewed.busy = vec![worker_id];
        if worker_id != 7 {
            let outcome = renewed.ask(member("members", node)).reply.answer.outcome;
            assert!(outcome.is_err() || outcome.unwrap().worker_id != worker_id);
        }
        let decision = world.ask(member("members", node));
        let grant = decision.reply.answer.outcome.unwrap();
        assert_eq!((grant.worker_id, grant.floor_ms), (worker_id, floor_ms));
        assert!(decision.is_new);
        assert_eq!(world.row(worker_id).leased_at_ms, Some(NOW));
    }
    let said = world.refused(member("members", "g"), Status::Full);
    assert_eq!(said, "all 8 worker ids are leased or retired");
    // Not before R has passed by every clock.
    world.pass(1);
    assert_eq!(world.granted(member("members", "g")).worker_id, 6);
}

/// A server that crashes again and again, or is copied, does not take them all.
#[test]
fn a_name_has_a_few_worker_ids_that_have_not_passed() {
    let mut world = World::new();
    for worker_id in 0..u16::try_from(MAX_PER_NAME).unwrap() {
        assert_eq!(world.granted(MEMBER).worker_id, worker_id);
        world.pass(1_000);
    }
    let said = world.refused(MEMBER, Status::Full);
    let first_ms = NOW + AHEAD_MS;
    assert_eq!(
        said,
        format!(
            "node \"a\" has worker ids 0, 1, 2, of servers that were rebooted or copied: the first is free after {}",
            first_ms + SKEW_MS
        )
    );
    // No other name, role or system.
    world.granted(member("members", "b"));
    world.granted(member("x", "a"));
    let mut others = world.clone();
    for row in &mut others.rows {
        row.holder.as_mut().unwrap().system_identifier += 1;
    }
    others.granted(MEMBER);
    // A retired one does not count, ...
    let mut retired = world.clone();
    retired.rows[1].retired = true;
    assert_eq!(retired.granted(MEMBER).worker_id, 5);
    // ... nor one that has passed: that is the next.
    world.set_clock(first_ms + SKEW_MS - 1);
    world.refused(MEMBER, Status::Full);
    world.pass(1);
    assert_eq!(world.granted(MEMBER).worker_id, 0);
}

/// Promoted because its predecessor is down, it need not wait for what another server may have been
/// granted.
#[test]
fn a_promoted_registrys_server_goes_on_with_its_predecessors_worker_id() {
    let mut world = World::new();
    world.granted(member("members", "b"));
    assert_eq!(world.granted(host("a")).worker_id, 1);
    assert!(world.row(1).host);
    let standby = world.clone();
    world.pass(20_000);
    let mut promoted = world.fail_over(&standby, SKEW_MS);
    promoted.refused(member("members", "d"), Status::Moved);
    let granted = promoted.granted(host("c"));
    assert_eq!(granted.worker_id, 1);
    assert_eq!(granted.floor_ms, promoted.now() + LEAD_MS);
    assert!(granted.reserved_until_ms > granted.floor_ms);
    // And its successor, too; also one that is restored and has no token, ...
    promoted.pass(50_000);
    promoted.promote();
    assert_eq!(promoted.granted(host("a")).worker_id, 1);
    assert_eq!(promoted.granted(host("a")).worker_id, 1);
    // ... or a clock that is off.
    promoted.pass(2 * AHEAD_MS);
    let off = host("e").is_ahead(50_000);
    assert_eq!(promoted.granted(off).worker_id, 1);
}

/// After a switchover whose successor's claim is lost, its own token proves nothing.
#[test]
fn the_registrys_server_starts_above_a_successor_that_a_failover_has_forgotten() {
    let mut world = World::new();
    let holder = world.join(host("a"));
    world.pass(20_000);
    world.promote();
    let again = world.granted(holder);
    assert_eq!(again.worker_id, 0);
    assert_eq!(again.floor_ms, world.now() + LEAD_MS);
    // Above earlier holders, too, whatever was reserved for them.
    let reserved = world.now() + 500_000;
    world.rows[0].floor_ms = reserved;
    world.promote();
    assert_eq!(world.granted(host("b")).floor_ms, reserved);
}

/// A standby of the same name that leases for itself counts as a copy.
#[test]
fn the_registrys_server_takes_nothing_from_a_member_of_its_name() {
    let mut world = World::new();
    world.granted(MEMBER);
    assert_eq!(world.granted(host("a")).worker_id, 1);
}

#[test]
fn the_worker_id_of_the_registrys_server_is_kept_for_it() {
    let mut world = World::with_worker_ids(2);
    world.granted(host("a"));
    world.granted(member("members", "b"));
    world.pass(1_000_000);
    // Otherwise a failover could lose a grant to another member.
    assert_eq!(world.granted(member("members", "c")).worker_id, 1);
    world.refused(member("members", "d"), Status::Full);
}

/// Neither while it has no row, nor after its R has passed, nor to the server that had it.
#[test]
fn the_worker_id_that_the_registrys_server_has_by_hand_is_for_no_other() {
    let mut world = World::with_worker_ids(2);
    world.here.worker_id = Some(0);
    let holder = world.join(MEMBER);
    assert_eq!(holder.held.unwrap().worker_id, 1);
    world.refused(member("members", "b"), Status::Full);
    world.pass(1_000_000);
    world.here.worker_id = Some(1);
    assert_eq!(world.granted(member("members", "b")).worker_id, 0);
    world.refused(member("members", "c"), Status::Full);
    world.refused(holder, Status::Full);
}

#[test]
fn no_server_goes_on_with_the_worker_id_of_another_systems_or_a_retired_one() {
    let changes: [fn(&mut Row); 2] = [
        // Restored from a dump elsewhere.
        |row| row.holder.as_mut().unwrap().system_identifier += 1,
        |row| row.retired = true,
    ];
    for change in changes {
        let mut world = World::new();
        world.granted(host("a"));
        change(&mut world.rows[0]);
        world.promote();
        world.refused(host("b"), Status::Moved);
    }
}

/// A bad role: hundreds of made-up nodes, and a clock 50 minutes ahead.
#[test]
fn one_role_cannot_take_everything() {
    let names = |kind: &str, number| {
        (0..number)
            .map(|n| format!("{kind} {n}"))
            .collect::<Vec<_>>()
    };
    let mut world = World::new();
    let honest = names("honest", 5);
    let honest: Vec<_> = (honest.iter())
        .map(|node| world.join(member("members", node)))
        .collect();
    let said = world.refused(member("bad", "bad").is_ahead(3_000_000), Status::Clock);
    assert_eq!(said, "the clock is 3000000 ms ahead of the registry's");
    // Then with a clock just within the bound.
    let mut got = 0;
    for node in names("bad", 300) {
        let reply = world.ask(member("bad", &node).is_ahead(SKEW_MS)).reply;
        match reply.answer.outcome {
            Ok(granted) => {
                got += 1;
                assert_eq!(granted.reserved_until_ms, NOW + AHEAD_MS);
            }
            Err(status) => {
                assert_eq!(status, Status::Full);
                assert_eq!(
                    reply.detail,
                    "role \"bad\" has 256 worker ids, as many as \"max_ids_per_role\" in leaf_registry allows"
                );
            }
        }
    }
    assert_eq!(got, 256);
    // The others continue, including one whose clock is off in the other direction, and new members
    // get worker ids with which they can issue at once.
    for member in honest {
        world.granted(member.is_ahead(-600));
    }
    for node in names("new", 251) {
        assert_eq!(world.granted(member("members", &node)).floor_ms, 0);
    }
    world.refused(member("members", "one more"), Status::Full);
    assert_eq!(world.granted(member("third", "a")).floor_ms, 0);
}

/// A role at its limit keeps the worker ids it has.
#[test]
fn a_role_at_its_limit_has_its_own_ids_again() {
    let mut world = World::new();
    world.registry.bounds.max_ids_per_role = Some(2);
    let first = world.join(member("x", "a"));
    assert_eq!(world.granted(member("y", "a2")).worker_id, 1);
    assert_eq!(world.granted(member("x", "b")).worker_id, 2);
    world.refused(member("x", "c"), Status::Full);
    // A holder goes on; other roles and superusers are not affected.
    world.granted(first);
    assert_eq!(world.granted(member("y", "b2")).worker_id, 3);
    let trusted = Member {
        trusted: true,
        ..member("x", "t")
    };
    assert_eq!(world.granted(trusted).worker_id, 4);
    world.pass(AHEAD_MS + SKEW_MS);
    // Not another role's, although that one passed first, but one of its own.
    world.rows[1].reserved_until_ms = 0;
    let mut renewed = world.clone();
    assert_eq!(world.granted(member("x", "c")).worker_id, 0);
    // Unless that is being renewed.
    renewed.busy = vec![0, 2, 4];
    renewed.refused(member("x", "d"), Status::Full);
    renewed.registry.bounds.max_ids_per_role = None;
    assert_eq!(renewed.granted(member("x", "d")).worker_id, 5);
}

#[test]
fn names_are_apart_by_role() {
    let mut world = World::new();
    // The first one takes nothing from the other.
    world.granted(member("y", "a"));
    let holder = world.join(member("x", "a"));
    assert_eq!(holder.held.unwrap().worker_id, 1);
    let before = world.row(1).clone();
    // Not even with its token and what it holds, and after R.
    let thief = Member {
        role: "y",
        ..holder
    };
    for (pass, worker_id) in [(0, 2), (AHEAD_MS, 3), (SKEW_MS, 0)] {
        world.pass(pass);
        assert_eq!(world.granted(thief).worker_id, worker_id);
    }
    assert_eq!(*world.row(1), before);
    assert_eq!(world.granted(holder).worker_id, 1);
}

/// A bad role has one vote, however many nodes it makes up.
#[test]
fn clocks_are_compared_by_role() {
    let fleet = |fleet: &[(&str, u16, i64)]| {
        let mut world = World::new();
        for (role, nodes, ahead_ms) in fleet {
            for n in 0..*nodes {
                let node = format!("{role} {ahead_ms} {n}");
                world.granted(member(role, &node).is_ahead(*ahead_ms));
            }
        }
        world
    };
    let late = member("x", "late").is_ahead(-600);
    let mut world = fleet(&[("x", 3, 0), ("y", 3, 10), ("bad", 200, 1000)]);
    let decision = world.ask(late);
    let peers = decision.reply.answer.peers;
    assert!(peers.by_role);
    assert_eq!((peers.votes, peers.offset_ms), (3, Some(10)));
    decision.reply.answer.outcome.unwrap();
    let mut world = fleet(&[("x", 2, 500), ("y", 1, 900), ("bad", 9, 1000)]);
    let said = world.refused(late, Status::Clock);
    let expected = "the clock is 1500 ms behind the median of 3 other roles";
    assert_eq!(said, expected);
    // If all others share one other role, that has one vote, too, and one vote is no comparison.
    let mut world = fleet(&[("bad", 3, 1000)]);
    let decision = world.ask(member("x", "alone").is_ahead(-5));
    assert_eq!(decision.reply.answer.peers.votes, 1);
    decision.reply.answer.outcome.unwrap();
    // The same number of nodes of the requester's role have a vote each.
    let mut world = fleet(&[("x", 1, 0), ("x", 3, 900)]);
    let said = world.refused(late, Status::Clock);
    assert!(said.ends_with("the median of 4 other servers"), "{said}");
    // Half of the votes is not a majority.
    let mut world = fleet(&[("x", 1, 900), ("x", 1, -100)]);
    world.granted(late);
    let mut world = fleet(&[("x", 1, 900), ("x", 1, 500)]);
    let said = world.refused(late, Status::Clock);
    let expected = "the clock is 1100 ms behind the median of 2 other servers";
    assert_eq!(said, expected);
}

/// Old offsets would outvote those that are right, and another registry's clock is another one. An
/// own offset is no other's.
#[test]
fn a_server_whose_time_is_used_up_has_no_vote() {
    let mut world = World::new();
    let others = ["a", "b"].map(|node| world.join(member("x", node).is_ahead(900)));
    let late = member("x", "late").is_ahead(-600);
    let votes = |world: &World, member| world.clone().ask(member).reply.answer.peers.votes;
    world.refused(late, Status::Clock);
    assert_eq!(votes(&world, others[0]), 1);
    world.pass(AHEAD_MS - 1);
    assert_eq!(votes(&world, late), 2);
    world.pass(1);
    assert_eq!(votes(&world, late), 0);
    world.granted(late);
    // After a move, those that it has answered.
    for other in others {
        world.granted(other);
    }
    world.pass(1);
    world.promote();
    assert_eq!(votes(&world, late), 0);
    let floor_ms = world.use_promoted();
    assert_eq!(votes(&world, late), 0);
    let held = world.row(0).reserved_until_ms;
    world.granted(member("x", "a").holds(0, 0, held));
    assert_eq!(votes(&world, late), 1);
    // A row with no time of a renewal counts, as one that an owner has made.
    world.rows[1].renewed_at_ms = None;
    world.rows[1].reserved_until_ms = floor_ms;
    assert_eq!(votes(&world, late), 2);
}

/// A holder has R, whatever its clock shows; a new one would start with the wrong time.
#[test]
fn a_clock_that_is_off_is_refused_at_a_first_claim_only() {
    let mut world = World::new();
    let holder = world.join(MEMBER);
    for (ahead_ms, what) in [
        (SKEW_MS, None),
        (-SKEW_MS, None),
        (SKEW_MS + 1, Some("1001 ms ahead of")),
        (-SKEW_MS - 1, Some("1001 ms behind")),
    ] {
        let mut world = world.clone();
        let new = member("members", "b").is_ahead(ahead_ms);
        match what {
            None => drop(world.granted(new)),
            Some(what) => {
                let said = world.refused(new, Status::Clock);
                assert_eq!(said, format!("the clock is {what} the registry's"));
                assert_eq!(world.rows.len(), 1);
            }
        }
        // With a token, before R and after it; with what it holds, though that is not its any more.
        let without_token = Member { token: 0, ..holder };
        let without_segment = Member {
            held: None,
            ..holder
        };
        for (pass_ms, member, worker_id) in [
            (0, without_segment, 0),
            (AHEAD_MS, without_segment, 0),
            (0, without_token, 1),
        ] {
            let mut world = world.clone();
            world.rows.truncate(1);
            world.pass(pass_ms);
            let granted = world.granted(member.is_ahead(ahead_ms));
            assert_eq!(granted.worker_id, worker_id);
            let offset_ms = world.row(worker_id).clock_offset_ms;
            assert_eq!(offset_ms, Some(ahead_ms));
        }
    }
    // The owner's.
    world.registry.bounds.max_skew_ms = 5_000;
    let decision = world.ask(member("members", "b").is_ahead(5_000));
    assert_eq!(decision.reply.answer.max_skew_ms, 5_000);
    decision.reply.answer.outcome.unwrap();
    world.refused(member("members", "c").is_ahead(5_001), Status::Clock);
}

#[test]
fn the_epoch_is_the_owners() {
    let mut world = World::new();
    for epoch_ms in [0, EPOCH + 1, i64::MAX] {
        let said = world.refused(Member { epoch_ms, ..MEMBER }, Status::Epoch);
        assert!(said.contains(&EPOCH.to_string()), "{said}");
    }
    assert_eq!(world.registry.epoch_ms, None);
    let holder = world.join(MEMBER);
    assert_eq!(world.registry.epoch_ms, Some(EPOCH));
    // A later change of the server's setting has no effect.
    world.here.epoch_ms = 0;
    world.granted(member("members", "b"));
    world.registry.epoch_ms = Some(7);
    let seven = Member {
        epoch_ms: 7,
        ..member("members", "c")
    };
    world.granted(seven);
    world.refused(holder, Status::Epoch);
}

/// One layout for all members, like the epoch.
#[test]
fn the_layout_is_the_owners() {
    let small = Layout::parse("41/6/6").unwrap();
    let large = Layout::parse("41/15/7").unwrap();
    let with = |layout, member| Member {
        layout: Some(layout),
        ..member
    };
    let mut world = World::new();
    for wrong in [small, large] {
        let said = world.refused(with(wrong, MEMBER), Status::Layout);
        let expected = format!("the layout of this registry is 41/10/12, not {wrong}");
        assert_eq!(said, expected);
    }
    assert_eq!(world.registry.layout, None);
    let holder = world.join(MEMBER);
    assert_eq!(world.registry.layout, Some(Layout::DEFAULT));
    // A later change of the server's setting has no effect.
    world.here.layout = small;
    world.granted(with(Layout::DEFAULT, member("members", "b")));
    world.refused(with(small, member("members", "c")), Status::Layout);
    world.refused(with(small, holder), Status::Layout);
}

/// As many worker ids as the layout has.
#[test]
fn the_layout_says_how_many_worker_ids_there_are() {
    for (layout, ids) in [("41/6/6", 64), ("41/0/12", 1), ("41/12/10", 4096)] {
        let mut world = World::new();
        world.registry.bounds.max_ids_per_role = None;
        world.registry.layout = Layout::parse(layout);
        world.here.layout = world.registry.layout.unwrap();
        // All but the last are out of service.
        world.rows.extend((0..ids - 1).map(|worker_id| Row {
            worker_id,
            retired: true,
            ..Row::default()
        }));
        assert_eq!(world.granted(MEMBER).worker_id, ids - 1);
        let said = world.refused(member("members", "b"), Status::Full);
        assert_eq!(said, format!("all {ids} worker ids are leased or retired"));
        // Not one beyond the layout, even if its row was inserted by hand.
        world.rows.push(Row {
            worker_id: ids,
            ..Row::default()
        });
        world.refused(member("members", "b"), Status::Full);
    }
}

/// The owner has changed the layout for one with fewer worker ids: each holder of one that is beyond
/// it gets another, as soon as it asks.
#[test]
fn a_worker_id_beyond_the_layout_is_left() {
    for (holder, again) in [(MEMBER, "a"), (host("a"), "a"), (host("a"), "b")] {
        let mut world = World::new();
        let holder = world.join(holder);
        world.rows[0].worker_id = 900;
        let layout = Layout::parse("41/6/6").unwrap();
        world.registry.layout = Some(layout);
        world.here.layout = layout;
        // The file has no such worker id any more.
        let asking = Member {
            node: again,
            held: None,
            ..holder
        };
        if again != holder.node {
            world.promote();
            world.refused(asking, Status::Moved);
            world.pass(AHEAD_MS + 2 * SKEW_MS);
        }
        assert_eq!(world.granted(asking).worker_id, 0);
    }
}

/// For composed ids: allowed only if no id can have been issued with it.
#[test]
fn only_a_worker_id_that_was_never_used_is_set_aside() {
    let fresh = Row {
        worker_id: 7,
        ..Row::default()
    };
    let aside = fresh.clone().set_aside(NOW).unwrap();
    assert!(aside.retired);
    assert_eq!(aside.reserved_until_ms, NOW);
    let mut world = World::new();
    world.granted(MEMBER);
    let held = world.row(0).clone();
    let left = Row {
        holder: None,
        ..held.clone()
    };
    let restored = Row {
        reserved_until_ms: 0,
        ..left.clone()
    };
    let by_hand = Row {
        retired: true,
        ..fresh
    };
    for used in [held, left, restored, by_hand, aside] {
        assert_eq!(used.clone().set_aside(NOW), None, "{used:?}");
    }
}

/// Another server may have had it by hand.
#[test]
fn a_worker_id_that_is_back_in_service_is_held_by_no_server() {
    for (until_ms, reserved_ms) in [(NOW, NOW + AHEAD_MS), (NOW + 999_000, NOW + 999_000)] {
        let mut world = World::with_worker_ids(1);
        let holder = world.join(MEMBER);
        world.rows[0].retired = true;
        world.pass(10 * AHEAD_MS);
        world.refused(holder, Status::Full);
        world.set_clock(NOW);
        world.rows[0] = world.row(0).clone().back_in_service(until_ms);
        let row = world.row(0);
        assert_eq!((&row.holder, &row.role, row.token), (&None, &None, 0));
        // It proves nothing to the one that had it.
        world.refused(holder, Status::Full);
        world.set_clock(reserved_ms + SKEW_MS - 1);
        world.refused(MEMBER, Status::Full);
        world.pass(1);
        let decision = world.ask(holder);
        assert!(decision.is_new);
        assert_eq!(decision.reply.answer.outcome.unwrap().floor_ms, reserved_ms);
    }
}

/// The registry's owner can set a token to 0, so that the holder gets another worker id.
#[test]
fn a_token_of_0_is_none() {
    let mut world = World::new();
    let holder = world.join(MEMBER);
    world.rows[0].token = 0;
    let without = Member { token: 0, ..holder };
    assert_eq!(world.granted(without).worker_id, 1);
}

/// Its own worker id, which does not count then.
#[test]
fn a_role_at_its_limit_has_a_retired_id_replaced() {
    let mut world = World::new();
    world.registry.bounds.max_ids_per_role = Some(1);
    let holder = world.join(MEMBER);
    world.rows[0].retired = true;
    assert_eq!(world.granted(holder).worker_id, 1);
}

/// No server of this extension sends anything else.
#[test]
fn a_request_is_within_what_the_decision_relies_on() {
    let valid = World::new().request(MEMBER.holds(1023, LAST_MS, LAST_MS));
    assert!(valid.is_valid());
    let changes: [fn(&mut LeaseRequest, &mut Grant); 11] = [
        |_, held| held.worker_id = 1024,
        |_, held| held.floor_ms = -1,
        |_, held| held.floor_ms = LAST_MS + 1,
        |_, held| held.reserved_until_ms = -1,
        |_, held| held.reserved_until_ms = LAST_MS + 1,
        |request, _| request.node_name = vec![b'x'; 64],
        |request, _| request.node_name = b"a\nb".into(),
        |request, _| request.question.next_token = 0,
        |request, _| request.question.token = request.question.next_token,
        |request, _| request.now_ms = -1,
        |request, _| request.now_ms = LAST_MS + 1,
    ];
    for (change, number) in changes.into_iter().zip(0..) {
        let mut request = valid.clone();
        let mut held = request.question.held.unwrap();
        change(&mut request, &mut held);
        request.question.held = Some(held);
        assert!(!request.is_valid(), "{number}");
    }
}

/// Arbitrary values in the tables must not terminate the process.
#[test]
fn absurd_rows_are_survived() {
    for value in [i64::MIN, -1, 0, i64::MAX] {
        let mut world = World::new();
        world.registry.moved_at_ms = Some(value);
        world.registry.moved_floor_ms = Some(value);
        world.registry.bounds = Bounds {
            max_skew_ms: value.clamp(0, 3_600_000),
            grant_ahead_ms: value.clamp(30_000, 86_400_000),
            max_ids_per_role: Some(value),
        };
        for worker_id in 0..3 {
            world.rows.push(Row {
                holder: Some(Holder {
                    system_identifier: value,
                    node_name: vec![b'n', u8::try_from(worker_id).unwrap()],
                }),
                renewed_at_ms: Some(value),
                reserved_until_ms: value.clamp(0, LAST_MS),
                clock_offset_ms: Some(value),
                ..row_of(worker_id, "")
            });
        }
        for promoted in [false, true] {
            for held in [MEMBER, MEMBER.holds(0, 0, LAST_MS), host("h")] {
                let mut world = world.clone();
                world.here.place.timeline += i32::from(promoted);
                drop(world.ask(held));
            }
        }
    }
}

/// The requester's own row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnRow {
    OtherRoles,
    Retired,
    /// R is ahead.
    Live,
    /// R was less than the max skew ago.
    WithinSkew,
    /// R has passed.
    Passed,
}

const OWN_ID: u16 = 2;
const HOSTS_ID: u16 = 3;
const OWN_FLOOR_MS: i64 = NOW - 8_000;
/// Floor of a segment that is held.
const HELD_FLOOR_MS: i64 = NOW - 7_000;

fn row_of(worker_id: u16, node: &str) -> Row {
    Row {
        worker_id,
        holder: Some(Holder {
            system_identifier: SYSTEM,
            node_name: node.into(),
        }),
        role: Some(MEMBER.role.into()),
        token: 99,
        reserved_until_ms: NOW + 30_000,
        ..Row::default()
    }
}

/// Each line of the table in the header of `registry/decide.rs`.
#[test]
fn a_request_follows_the_table() {
    use OwnRow::{Live, OtherRoles, Passed, Retired, WithinSkew};
    let owns = [OtherRoles, Retired, Live, WithinSkew, Passed];
    for (own, bits) in (owns.into_iter()).flat_map(|own| (0..16).map(move |bits| (own, bits))) {
        let [shown, has_moved, inherits, holds] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let reserved_ms = match own {
            WithinSkew => NOW - 500,
            Passed => NOW - SKEW_MS,
            _ => NOW + 30_000,
        };
        let moved_floor_ms = if has_moved { NOW - 500 } else { NOW - SKEW_MS };
        let mut world = World::new();
        world.registry.moved_floor_ms = Some(moved_floor_ms);
        world.rows = vec![
            row_of(1, "other"),
            Row {
                host: true,
                ..row_of(HOSTS_ID, "predecessor")
            },
            Row {
                role: Some((if own == OtherRoles { "x" } else { MEMBER.role }).into()),
                reserved_until_ms: reserved_ms,
                floor_ms: OWN_FLOOR_MS,
                retired: own == Retired,
                ..row_of(OWN_ID, MEMBER.node)
            },
        ];
        let asking = Member {
            host: inherits,
            token: if shown { 99 } else { 98 },
            ..MEMBER
        };
        let asking = match holds {
            true => asking.holds(OWN_ID, HELD_FLOOR_MS, moved_floor_ms),
            false => asking,
        };
        let expected = match (own, shown, has_moved) {
            (Live, true, false) => Ok((OWN_ID, OWN_FLOOR_MS)),
            (WithinSkew | Passed, true, false) => Ok((OWN_ID, moved_floor_ms)),
            _ if inherits => Ok((HOSTS_ID, NOW + LEAD_MS)),
            // What it holds has passed.
            (Live, true, true) if holds => Ok((OWN_ID, HELD_FLOOR_MS)),
            (_, _, true) => Err(Status::Moved),
            (Passed, false, false) => Ok((OWN_ID, reserved_ms)),
            _ => Ok((0, moved_floor_ms)),
        };
        let outcome = world.ask(asking).reply.answer.outcome;
        let outcome = outcome.map(|granted| (granted.worker_id, granted.floor_ms));
        let what = format!(
            "{own:?}, token shown: {shown}, moved: {has_moved}, inherits: {inherits}, holds: {holds}"
        );
        assert_eq!(outcome, expected, "{what}");
        let is_renewal = own == Live && shown && !has_moved;
        assert_eq!(world.locked.0, !is_renewal, "{what}");
    }
}
