//! Would catch: a registry that trusts a member beyond its owner's bounds, so that one bad member,
//! or one bad role, harms the others.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Clocks, Held, Kind, Lease, LeaseHolder, Question, Rules, Status};
use leaf_id_core::registry::{
    Bounds, Decision, Event, Grace, Granted, Here, Hold, Holder, LeaseRequest, Next, Place,
    Registry, Requester, Row, Tables, decide,
};

const NOW: i64 = 1_800_000_000_000;
const BOOT: i64 = 5_000_000;
const EPOCH: i64 = 1_288_834_974_657;
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
    /// Locks taken for the last request: the registry's row, and worker ids.
    locked: (bool, Vec<u16>),
}

/// A member: its role, its node and its request.
#[derive(Clone, Copy)]
struct Member<'a> {
    role: &'a str,
    node: &'a str,
    token: i64,
    ahead_ms: i64,
    max_skew_ms: i64,
    max_lead_ms: i64,
    lease_ms: i64,
    reserve_ms: i64,
    epoch_ms: i64,
    /// `None` means the registry's layout.
    layout: Option<Layout>,
    trusted: bool,
    /// It is the registry's own server.
    host: bool,
    held: Option<(u16, i64)>,
}

const MEMBER: Member<'static> = Member {
    role: "members",
    node: "a",
    token: 1,
    ahead_ms: 0,
    max_skew_ms: 1000,
    max_lead_ms: 10_000,
    lease_ms: 60_000,
    reserve_ms: 60_000,
    epoch_ms: EPOCH,
    layout: None,
    trusted: false,
    host: false,
    held: None,
};

fn member<'a>(role: &'a str, node: &'a str) -> Member<'a> {
    Member {
        role,
        node,
        ..MEMBER
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
                grace: None,
                bounds: Bounds::DEFAULT,
            },
            rows: Vec::new(),
            here: Here {
                place: HERE,
                server_start: 1,
                epoch_ms: EPOCH,
                layout: Layout::DEFAULT,
                arrived_ms: NOW,
                worker_id: None,
                now: Clocks {
                    boot_ms: BOOT,
                    wall_ms: NOW,
                },
                format_ms: |ms| ms.to_string(),
            },
            busy: Vec::new(),
            locked: (false, Vec::new()),
        }
    }

    /// Sets the number of worker ids, a power of two.
    fn have_worker_ids(&mut self, number: u16) {
        let bits = u8::try_from(number.ilog2()).unwrap();
        self.here.layout = Layout::new(41, bits, 12).unwrap();
        self.registry.layout = None;
    }

    fn pass(&mut self, ms: i64) {
        self.here.arrived_ms += ms;
        self.here.now.wall_ms += ms;
        self.here.now.boot_ms += ms;
    }

    fn row(&self, worker_id: u16) -> &Row {
        let mut rows = self.rows.iter();
        rows.find(|row| row.worker_id == worker_id).unwrap()
    }

    fn ask(&mut self, kind: Kind, member: Member<'_>) -> Decision {
        let now_ms = self.here.arrived_ms + member.ahead_ms;
        let question = Question {
            kind,
            token: member.token,
            next_token: member.token + 1,
            held: member.held.map(|(worker_id, reserved_until_ms)| Held {
                worker_id,
                reserved_until_ms,
            }),
            lease_ms: member.lease_ms,
        };
        self.decide(question, member, now_ms)
    }

    /// Sends a request of a [`LeaseHolder`] at this time.
    fn ask_question(&mut self, question: Question, node: &str, now_ms: i64) -> Decision {
        self.decide(question, member(MEMBER.role, node), now_ms)
    }

    fn decide(&mut self, question: Question, member: Member<'_>, now_ms: i64) -> Decision {
        let request = LeaseRequest {
            question,
            system_identifier: 4711,
            node_name: member.node.into(),
            now_ms,
            reserve_until_ms: now_ms + member.reserve_ms,
            max_skew_ms: member.max_skew_ms,
            max_lead_ms: member.max_lead_ms,
            epoch_ms: member.epoch_ms,
            layout: member.layout.unwrap_or(self.here.layout),
        };
        assert!(request.is_valid());
        let requester = Requester {
            role: member.role.as_bytes(),
            trusted: member.trusted,
            address: None,
            host: member.host,
        };
        let mut registry_locked = false;
        let mut rows: Vec<_> = (self.rows.iter().cloned())
            .map(|row| (row, Hold::Seen))
            .collect();
        self.locked = (false, Vec::new());
        let decision = loop {
            let tables = Tables {
                registry: &self.registry,
                registry_locked,
                rows: &rows,
            };
            match decide(tables, &request, &requester, &self.here) {
                Next::LockRegistry => {
                    assert!(!registry_locked, "it is locked");
                    registry_locked = true;
                }
                Next::LockRow { worker_id, wait } => {
                    let row = rows.iter_mut().find(|(row, _)| row.worker_id == worker_id);
                    let (_, hold) = row.unwrap();
                    assert_eq!(*hold, Hold::Seen, "worker id {worker_id} twice");
                    *hold = if self.busy.contains(&worker_id) {
                        assert!(!wait, "it would wait for ever");
                        Hold::Busy
                    } else {
                        self.locked.1.push(worker_id);
                        Hold::Locked
                    };
                }
                Next::Done(decision) => break *decision,
            }
        };
        self.locked.0 = registry_locked;
        if let Some(registry) = decision.registry {
            assert!(registry_locked, "written without a lock");
            self.registry = registry;
        }
        for row in &decision.rows {
            let found = (self.rows.iter_mut()).find(|other| other.worker_id == row.worker_id);
            match found {
                Some(found) => {
                    assert!(self.locked.1.contains(&row.worker_id), "not locked");
                    assert!(row.reserved_until_ms >= found.reserved_until_ms);
                    *found = row.clone();
                }
                None => self.rows.push(row.clone()),
            }
        }
        decision
    }

    #[track_caller]
    fn granted(&mut self, kind: Kind, member: Member<'_>) -> Granted {
        let decision = self.ask(kind, member);
        decision.reply.outcome.expect("a worker id")
    }

    #[track_caller]
    fn refused(&mut self, kind: Kind, member: Member<'_>, status: Status) -> String {
        let refusal = self.ask(kind, member).reply.outcome.unwrap_err();
        assert_eq!(refusal.status, status, "{refusal:?}");
        refusal.detail
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
        promoted.here.server_start += 1;
        promoted.here.arrived_ms -= behind_ms;
        promoted.here.now.wall_ms -= behind_ms;
        promoted.promote();
        promoted
    }

    /// Repeats a request every millisecond until a worker id is granted.
    #[track_caller]
    fn granted_at_last(&mut self, member: Member<'_>, status: Status) -> Granted {
        for _ in 0..120_000 {
            match self.ask(Kind::Claim, member).reply.outcome {
                Ok(granted) => return granted,
                Err(refusal) => assert_eq!(refusal.status, status, "{refusal:?}"),
            }
            self.pass(1);
        }
        panic!("{status:?} for two minutes");
    }
}

/// A registry with one worker id, leased to `MEMBER`, and its standby, which receives nothing
/// afterwards.
fn one_id_and_a_standby() -> (World, World) {
    let mut world = World::new();
    world.have_worker_ids(1);
    world.granted(Kind::Claim, MEMBER);
    let standby = world.clone();
    (world, standby)
}

/// The holder in [`one_id_and_a_standby`], with its worker id.
const HOLDER: Member<'static> = Member {
    token: 2,
    held: Some((0, NOW + 60_000)),
    ..MEMBER
};

/// Claim, claim by another member, failover, renewal: the promoted registry does not know that the
/// worker id was reassigned, and by its clock the first lease has not ended.
#[test]
fn rule_5_no_other_registrys_clock_revives_a_lease_that_was_given_away() {
    let (mut world, standby) = one_id_and_a_standby();
    let given = world.granted_at_last(member("members", "b"), Status::Full);
    assert!(given.floor_ms >= NOW + 60_000);
    let mut promoted = world.fail_over(&standby, Bounds::DEFAULT.max_skew_ms);
    promoted.refused(Kind::Renew, HOLDER, Status::Grace);
    // An ended lease is not sent as held.
    let claiming = Member {
        held: None,
        ..HOLDER
    };
    promoted.refused(Kind::Claim, claiming, Status::Grace);
    // No longer than necessary.
    assert_eq!(world.here.now.wall_ms, NOW + 61_000);
}

/// The same if it is reassigned to a node of the holder's name without a token: a copy, or the
/// holder without its data directory.
#[test]
fn rule_5_nor_one_that_was_given_to_a_copy() {
    let (mut world, standby) = one_id_and_a_standby();
    let copy = Member {
        token: 77,
        ..MEMBER
    };
    let given = world.granted_at_last(copy, Status::Held);
    assert!(given.floor_ms >= NOW + 60_000);
    let mut promoted = world.fail_over(&standby, Bounds::DEFAULT.max_skew_ms);
    promoted.refused(Kind::Renew, HOLDER, Status::Grace);
    assert_eq!(world.here.now.wall_ms, NOW + 61_000);
    // The holder itself need not wait: nobody else can have had its worker id.
    let mut world = standby;
    world.pass(60_000);
    world.granted(Kind::Renew, HOLDER);
}

/// The same if a member enters what it holds, after a first failover.
#[test]
fn rule_5_nor_one_that_somebody_has_entered() {
    let (mut world, standby) = one_id_and_a_standby();
    world.pass(50_000);
    let mut first = world.fail_over(&standby, 0);
    let entering = Member {
        held: Some((0, NOW + 100_000)),
        ..member("members", "b")
    };
    let entered = first.granted_at_last(entering, Status::Grace);
    assert_eq!(entered.floor_ms, 0);
    let mut second = first.fail_over(&standby, Bounds::DEFAULT.max_skew_ms);
    second.refused(Kind::Renew, HOLDER, Status::Grace);
}

/// Claim, another claim in transit for long, claim by another member, failover, arrival: the
/// promoted registry knows nothing, and trusts `held`.
#[test]
fn rule_5_what_is_held_is_not_shown_when_it_may_arrive_late() {
    let rules = Rules {
        lease_ms: 60_000,
        max_skew_ms: 1000,
    };
    let skew_ms = Bounds::DEFAULT.max_skew_ms;
    // Connecting may take that long, and the lease may end meanwhile.
    let delays = [0, 4_000];
    let moments = delays.map(|late_ms| (56_000..62_500).step_by(50).map(move |at| (at, late_ms)));
    for (sent_after_ms, late_ms) in moments.into_iter().flatten() {
        let mut world = World::new();
        world.have_worker_ids(1);
        let standby = world.clone();
        // Its clock is ahead by the allowed max, so its request looks younger than it is.
        let mut holder = LeaseHolder::new(Lease::default());
        let clocks = |after_ms| Clocks {
            boot_ms: after_ms,
            wall_ms: NOW + after_ms + skew_ms,
        };
        let mut tokens = 1..;
        let mut draw = || tokens.next().unwrap();
        holder.prepare(&mut draw);
        let question = holder.ask(0, rules).at(0);
        let told = world.ask_question(question, MEMBER.node, clocks(0).wall_ms);
        let answer = told.reply.heard(clocks(0), clocks(0)).unwrap();
        holder.hear(&question, &answer, rules, &mut draw);
        // After a restart it claims with its stored lease.
        let mut holder = LeaseHolder::new(*holder.lease());
        let late = holder.ask(sent_after_ms - late_ms, rules).at(sent_after_ms);
        world.pass(60_000);
        let given = world.granted_at_last(member("members", "b"), Status::Full);
        assert!(given.floor_ms >= NOW + 60_000);
        let mut promoted = world.fail_over(&standby, skew_ms);
        let outcome = promoted
            .ask_question(late, MEMBER.node, clocks(sent_after_ms).wall_ms)
            .reply
            .outcome;
        assert!(
            outcome.is_err(),
            "{sent_after_ms}, due {late_ms} before: {outcome:?}"
        );
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

/// Promoted because its predecessor is down, it need not wait for what another server may have been
/// granted.
#[test]
fn a_promoted_registrys_server_goes_on_with_its_predecessors_worker_id() {
    let mut world = World::new();
    world.granted(Kind::Claim, member("members", "b"));
    let of_host = world.granted(Kind::Claim, host("a")).worker_id;
    assert_eq!(of_host, 1);
    assert!(world.row(of_host).host);
    let standby = world.clone();
    world.pass(20_000);
    let mut promoted = world.fail_over(&standby, 1_000);
    promoted.refused(Kind::Claim, member("members", "d"), Status::Grace);
    let granted = promoted.granted(Kind::Claim, host("c"));
    assert_eq!(granted.worker_id, of_host);
    let now = promoted.here.now.wall_ms;
    assert_eq!(granted.floor_ms, now + granted.max_lead_ms);
    assert!(granted.reserved_until_ms > granted.floor_ms);
    // And its successor, too; also one that is restored and has no token.
    promoted.pass(50_000);
    promoted.promote();
    assert_eq!(promoted.granted(Kind::Claim, host("a")).worker_id, of_host);
    let restored = Member {
        token: 77,
        ..host("a")
    };
    assert_eq!(promoted.granted(Kind::Claim, restored).worker_id, of_host);
}

/// After a switchover whose successor's claim is lost, its own token proves nothing.
#[test]
fn the_registrys_server_starts_above_a_successor_that_a_failover_has_forgotten() {
    let mut world = World::new();
    let first = world.granted(Kind::Claim, host("a"));
    world.pass(20_000);
    world.promote();
    let shown = Member {
        token: 2,
        ..host("a")
    };
    let again = world.granted(Kind::Claim, shown);
    assert_eq!(again.worker_id, first.worker_id);
    let now = world.here.now.wall_ms;
    assert_eq!(again.floor_ms, now + MEMBER.max_lead_ms);
    // Above earlier holders, too, whatever was reserved for them.
    let reserved = now + 500_000;
    world.rows[0].floor_ms = reserved;
    world.promote();
    assert_eq!(world.granted(Kind::Claim, host("b")).floor_ms, reserved);
}

/// A standby of the same name that leases for itself counts as a copy: the lease is waited out.
#[test]
fn the_registrys_server_takes_nothing_from_a_member_of_its_name() {
    let mut world = World::new();
    world.granted(Kind::Claim, member("members", "a"));
    let host = Member {
        token: 77,
        ..host("a")
    };
    world.refused(Kind::Claim, host, Status::Held);
}

#[test]
fn the_worker_id_of_the_registrys_server_is_kept_for_it() {
    let mut world = World::new();
    world.have_worker_ids(2);
    world.granted(Kind::Claim, host("a"));
    world.granted(Kind::Claim, member("members", "b"));
    world.pass(1_000_000);
    // Otherwise a failover could lose a grant to another member.
    let other = world.granted(Kind::Claim, member("members", "c"));
    assert_eq!(other.worker_id, 1);
    world.refused(Kind::Claim, member("members", "d"), Status::Full);
    let held = Member {
        held: Some((0, world.here.now.wall_ms + 60_000)),
        ..member("members", "d")
    };
    world.promote();
    world.refused(Kind::Claim, held, Status::Grace);
}

/// Neither while it has no row, nor after its lease has ended, nor to who had it.
#[test]
fn the_worker_id_that_the_registrys_server_has_by_hand_is_leased_to_nobody() {
    let mut world = World::new();
    world.have_worker_ids(2);
    world.here.worker_id = Some(0);
    let other = world.granted(Kind::Claim, member("members", "a"));
    assert_eq!(other.worker_id, 1);
    world.refused(Kind::Claim, member("members", "b"), Status::Full);
    world.pass(1_000_000);
    world.here.worker_id = Some(1);
    let other = world.granted(Kind::Claim, member("members", "b"));
    assert_eq!(other.worker_id, 0);
    world.refused(Kind::Claim, member("members", "c"), Status::Full);
    let again = Member {
        token: world.row(1).token,
        held: Some((1, world.row(1).reserved_until_ms)),
        ..member("members", "a")
    };
    world.refused(Kind::Renew, again, Status::Retired);
    world.refused(Kind::Claim, again, Status::Full);
}

#[test]
fn no_server_goes_on_with_the_worker_id_of_another_systems_or_a_retired_one() {
    let mut world = World::new();
    world.granted(Kind::Claim, host("a"));
    let copy = world.clone();
    // Restored from a dump elsewhere.
    let row = &mut world.rows[0];
    row.holder.as_mut().unwrap().system_identifier += 1;
    world.here.place.system_identifier += 1;
    world.refused(Kind::Claim, host("b"), Status::Grace);
    let mut world = copy;
    world.rows[0].retired = true;
    world.promote();
    world.refused(Kind::Claim, host("b"), Status::Grace);
}

/// A bad role: hundreds of made-up nodes, a clock 50 minutes ahead, and terms beyond the bounds.
#[test]
fn one_role_cannot_take_everything() {
    let mut world = World::new();
    let honest: Vec<String> = (0..5).map(|n| format!("honest {n}")).collect();
    for node in &honest {
        world.granted(Kind::Claim, member("members", node));
    }
    let bad = Member {
        max_skew_ms: 3_600_000,
        lease_ms: 86_400_000,
        reserve_ms: 86_400_000,
        ..member("bad", "bad")
    };
    let ahead = Member {
        ahead_ms: 3_000_000,
        ..bad
    };
    let said = world.refused(Kind::Claim, ahead, Status::Clock);
    assert_eq!(said, "the clock is 3000000 ms ahead of the registry's");
    // Then with a clock just within the bound.
    let mut got = 0;
    for n in 0..1021 {
        let node = format!("bad {n}");
        let bad = Member {
            node: &node,
            ahead_ms: 1000,
            ..bad
        };
        match world.ask(Kind::Claim, bad).reply.outcome {
            Ok(granted) => {
                got += 1;
                assert_eq!(granted.lease_ms, 3_600_000);
                assert_eq!(granted.reserved_until_ms, NOW + 3_600_000 + 11_000);
            }
            Err(refusal) => {
                assert_eq!(refusal.status, Status::Full);
                assert_eq!(
                    refusal.detail,
                    "role \"bad\" has 256 worker ids, as many as \"max_ids_per_role\" in leaf_registry allows"
                );
            }
        }
    }
    assert_eq!(got, 256);
    // The others continue, including one whose clock is slightly off in the other direction, and
    // new members get worker ids with which they can issue at once.
    for (id, node) in (0..).zip(&honest) {
        let renewing = Member {
            token: 2,
            held: Some((id, 0)),
            ahead_ms: -600,
            ..member("members", node)
        };
        world.granted(Kind::Renew, renewing);
    }
    for n in 0..251 {
        let node = format!("new {n}");
        let granted = world.granted(Kind::Claim, member("members", &node));
        assert_eq!(granted.floor_ms, 0);
    }
    world.refused(Kind::Claim, member("members", "one more"), Status::Full);
    assert_eq!(world.granted(Kind::Claim, member("third", "a")).floor_ms, 0);
}

/// A role at its limit keeps the worker ids it has.
#[test]
fn a_role_at_its_limit_has_its_own_ids_again() {
    let mut world = World::new();
    world.registry.bounds.max_ids_per_role = Some(2);
    assert_eq!(world.granted(Kind::Claim, member("x", "a")).worker_id, 0);
    assert_eq!(world.granted(Kind::Claim, member("y", "a2")).worker_id, 1);
    assert_eq!(world.granted(Kind::Claim, member("x", "b")).worker_id, 2);
    world.refused(Kind::Claim, member("x", "c"), Status::Full);
    // A node with a worker id gets it again; other roles and superusers are not affected.
    let again = Member {
        token: 2,
        ..member("x", "b")
    };
    assert_eq!(world.granted(Kind::Claim, again).worker_id, 2);
    assert_eq!(world.granted(Kind::Claim, member("y", "b2")).worker_id, 3);
    let trusted = Member {
        trusted: true,
        ..member("x", "t")
    };
    assert_eq!(world.granted(Kind::Claim, trusted).worker_id, 4);
    world.pass(61_000);
    // Not another role's, although that lease ended first, but one of its own.
    world.rows[1].lease_until_ms = Some(0);
    let granted = world.granted(Kind::Claim, member("x", "c"));
    assert_eq!(granted.worker_id, 0);
    assert!(granted.floor_ms >= world.here.now.wall_ms);
    // Unless that is being renewed.
    world
        .rows
        .iter_mut()
        .for_each(|row| row.lease_until_ms = Some(0));
    world.busy = vec![0, 2, 4];
    world.refused(Kind::Claim, member("x", "d"), Status::Full);
    world.busy.clear();
    world.registry.bounds.max_ids_per_role = None;
    assert_eq!(world.granted(Kind::Claim, member("x", "d")).worker_id, 5);
}

/// A reservation far ahead would keep the next holder from issuing.
#[test]
fn an_id_that_is_reserved_far_ahead_comes_last() {
    let mut world = World::new();
    world.have_worker_ids(2);
    let far = Member {
        lease_ms: 3_600_000,
        reserve_ms: 3_600_000,
        ..member("bad", "a")
    };
    assert_eq!(world.granted(Kind::Claim, far).worker_id, 0);
    let brief = Member {
        token: 2,
        lease_ms: 1,
        held: Some((0, 0)),
        ..far
    };
    world.granted(Kind::Renew, brief);
    assert_eq!(world.granted(Kind::Claim, member("x", "b")).worker_id, 1);
    world.pass(61_000);
    // Its lease ended long before the other one's.
    let granted = world.granted(Kind::Claim, member("y", "c"));
    assert_eq!(granted.worker_id, 1);
    assert_eq!(granted.floor_ms, world.here.now.wall_ms + 1000);
}

#[test]
fn names_are_apart_by_role() {
    let mut world = World::new();
    // The first one takes nothing from the other.
    world.granted(Kind::Claim, member("y", "a"));
    assert_eq!(world.granted(Kind::Claim, member("x", "a")).worker_id, 1);
    let before = world.row(1).clone();
    // Not even with the token, and after the end of the lease.
    let thief = Member {
        token: 2,
        held: Some((1, NOW + 60_000)),
        ..member("y", "a")
    };
    for pass in [0, 120_000] {
        world.pass(pass);
        assert_eq!(world.granted(Kind::Claim, thief).worker_id, 0);
        // It must not learn anything about other roles' servers.
        let said = world.refused(Kind::Renew, thief, Status::Lost);
        assert_eq!(said, "worker id 1 is leased to a server of another role");
    }
    // Nor by a wrong clock that the others would then be compared with.
    for (role, node) in [("x", "b"), ("x", "c"), ("z", "d")] {
        let behind = Member {
            ahead_ms: -900,
            ..member(role, node)
        };
        world.granted(Kind::Claim, behind);
    }
    let off = Member {
        ahead_ms: 900,
        ..thief
    };
    world.refused(Kind::Renew, off, Status::Clock);
    assert_eq!(*world.row(1), before);
    assert_eq!(world.granted(Kind::Claim, member("x", "a")).worker_id, 1);
}

/// During a grace, too, when `held` is trusted.
#[test]
fn nobody_enters_what_belongs_to_another_role() {
    let mut world = World::new();
    world.granted(Kind::Claim, member("x", "a"));
    world.pass(61_000);
    world.promote();
    let now = world.here.now.wall_ms;
    let thief = Member {
        held: Some((0, now + 30_000)),
        ..member("y", "b")
    };
    world.refused(Kind::Claim, thief, Status::Grace);
    // The honest member, whose last renewals are lost.
    let own = Member {
        token: 77,
        held: Some((0, now + 30_000)),
        ..member("x", "a")
    };
    let granted = world.granted(Kind::Claim, own);
    assert_eq!(granted.floor_ms, 0);
    assert!(granted.reserved_until_ms >= now + 30_000);
    // A worker id without a holder may be entered, within bounds and the limit.
    for (until_ms, allowed) in [
        (now + 3_600_000 + 12_000, true),
        (now + 3_600_000 + 17_001, false),
        (0, false),
    ] {
        let mut world = World::new();
        world.promote();
        world.pass(61_000);
        let forgotten = Member {
            held: Some((9, until_ms)),
            ..member("y", "b")
        };
        let outcome = world.ask(Kind::Claim, forgotten).reply.outcome;
        assert_eq!(outcome.is_ok(), allowed, "{until_ms}: {outcome:?}");
    }
    world.registry.bounds.max_ids_per_role = Some(1);
    let second = Member {
        held: Some((9, now + 30_000)),
        ..member("x", "c")
    };
    world.refused(Kind::Claim, second, Status::Grace);
}

#[test]
fn what_is_asked_for_is_clamped() {
    let mut world = World::new();
    let greedy = Member {
        max_skew_ms: 3_600_000,
        lease_ms: 86_400_000,
        reserve_ms: i64::MAX / 2,
        ..MEMBER
    };
    let decision = world.ask(Kind::Claim, greedy);
    assert_eq!(decision.reply.max_skew_ms, 1000);
    let granted = decision.reply.outcome.unwrap();
    assert_eq!(granted.lease_ms, 3_600_000);
    assert_eq!(granted.reserved_until_ms, NOW + 3_611_000);
    assert_eq!(world.row(0).lease_ms, 3_600_000);
    assert_eq!(world.row(0).lease_until_ms, Some(NOW + 3_600_000));
    // The owner may allow more, and a member less.
    world.registry.bounds.max_lease_ms = 86_400_000;
    world.registry.bounds.max_skew_ms = 5_000;
    let strict = Member {
        max_skew_ms: 100,
        node: "b",
        ..greedy
    };
    let decision = world.ask(Kind::Claim, strict);
    assert_eq!(decision.reply.max_skew_ms, 100);
    assert_eq!(decision.reply.outcome.unwrap().lease_ms, 86_400_000);
    let off = Member {
        ahead_ms: 101,
        ..strict
    };
    world.refused(Kind::Claim, off, Status::Clock);
    let allowed = Member {
        ahead_ms: 5000,
        ..member("members", "c")
    };
    world.refused(Kind::Claim, allowed, Status::Clock);
    let allowed = Member {
        max_skew_ms: 10_000,
        ..allowed
    };
    world.granted(Kind::Claim, allowed);
}

/// The lead is clamped like the skew, and the answer has the result.
#[test]
fn rule_2_a_lead_is_clamped_and_told() {
    let mut world = World::new();
    for (node, asked_ms, told_ms) in [("a", 3_600_000, 10_000), ("b", 100, 100), ("c", 0, 0)] {
        let greedy = Member {
            max_lead_ms: asked_ms,
            reserve_ms: i64::MAX / 2,
            ..member("members", node)
        };
        let granted = world.granted(Kind::Claim, greedy);
        assert_eq!(granted.max_lead_ms, told_ms);
        // End of the lease, by a clock as far ahead as allowed.
        assert_eq!(granted.reserved_until_ms, NOW + 60_000 + 1000 + told_ms);
    }
    world.registry.bounds.max_lead_ms = 3_600_000;
    let greedy = Member {
        token: 2,
        max_lead_ms: 3_600_000,
        held: Some((0, 0)),
        ..MEMBER
    };
    assert_eq!(world.granted(Kind::Renew, greedy).max_lead_ms, 3_600_000);
}

/// A new holder can issue at once, for a whole lease, even if the previous one's ids led the clock
/// as far as allowed and its own do not.
#[test]
fn rule_2_what_is_reserved_is_above_the_floor() {
    let mut world = World::new();
    world.have_worker_ids(1);
    let led = Member {
        reserve_ms: 80_000,
        ..MEMBER
    };
    let before = world.granted(Kind::Claim, led);
    assert_eq!(before.reserved_until_ms, NOW + 71_000);
    let brief = Member {
        lease_ms: 10_000,
        reserve_ms: 10_000,
        ..member("members", "b")
    };
    let after = world.granted_at_last(brief, Status::Full);
    assert_eq!(after.floor_ms, before.reserved_until_ms);
    assert_eq!(after.reserved_until_ms, after.floor_ms + 10_000);
    // A renewal has no floor of its own and gets that one. Until the clock has passed it, the
    // reservation does not exceed it by more than a lease.
    let renewing = Member {
        token: 2,
        held: Some((0, 0)),
        ..brief
    };
    world.pass(3_000);
    let renewed = world.granted(Kind::Renew, renewing);
    assert_eq!(renewed.reserved_until_ms, after.reserved_until_ms);
    world.pass(12_000);
    let renewing = Member {
        token: 3,
        ..renewing
    };
    let renewed = world.granted(Kind::Renew, renewing);
    assert_eq!(renewed.reserved_until_ms, world.here.now.wall_ms + 10_000);
}

/// Above all ids of previous holders, whichever of the three bounds is the latest.
#[test]
fn rule_3_a_new_holder_starts_above_all_that_was_reserved_and_the_clock() {
    // The reservation: of a holder whose ids lead its clock, for another member and for one without
    // a token.
    for (node, status) in [("a", Status::Held), ("b", Status::Full)] {
        let mut world = World::new();
        world.have_worker_ids(1);
        let led = Member {
            reserve_ms: 80_000,
            ..MEMBER
        };
        let reserved = world.granted(Kind::Claim, led).reserved_until_ms;
        let new = Member {
            token: 77,
            ..member("members", node)
        };
        assert_eq!(world.granted_at_last(new, status).floor_ms, reserved);
        // The clock: the last holder's ids are only known to be below it.
        let mut world = World::new();
        world.have_worker_ids(1);
        world.granted(Kind::Claim, MEMBER);
        world.pass(500_000);
        let now_ms = world.here.now.wall_ms;
        let granted = world.granted(Kind::Claim, new);
        assert_eq!(granted.floor_ms, now_ms + 1000);
        // Leases lost in a failover.
        let mut world = World::new();
        world.have_worker_ids(1);
        world.granted(Kind::Claim, MEMBER);
        world.registry.moved_floor_ms = Some(NOW + 600_000);
        world.pass(500_000);
        let granted = world.granted(Kind::Claim, new);
        assert_eq!(granted.floor_ms, NOW + 600_000);
    }
    // Without a row nobody had it, apart from lost leases.
    let mut world = World::new();
    assert_eq!(world.granted(Kind::Claim, MEMBER).floor_ms, 0);
    world.registry.moved_floor_ms = Some(NOW + 600_000);
    let second = world.granted(Kind::Claim, member("members", "b"));
    assert_eq!(second.floor_ms, NOW + 600_000);
}

/// Fixed by the first claim after the grace, and then kept.
#[test]
fn rule_4_what_a_failover_may_have_forgotten_is_a_floor_that_stays() {
    let (_, standby) = one_id_and_a_standby();
    // The owner's bounds count, not the requester's.
    let strict = Member {
        max_skew_ms: 10,
        max_lead_ms: 10,
        ..member("members", "b")
    };
    let renewing = Member {
        ahead_ms: 10,
        ..HOLDER
    };
    for first in [Kind::Claim, Kind::Renew] {
        let mut world = standby.clone();
        world.have_worker_ids(2);
        world.promote();
        world.refused(Kind::Claim, strict, Status::Grace);
        assert_eq!(world.registry.moved_floor_ms, None);
        world.pass(60_000);
        let floor_ms = NOW + 60_000 + 12_000;
        if first == Kind::Renew {
            let renewed = world.granted(Kind::Renew, renewing);
            assert_eq!(renewed.floor_ms, floor_ms);
        }
        let claimed = world.granted(Kind::Claim, strict);
        assert_eq!(claimed.floor_ms, floor_ms);
        assert_eq!(world.registry.grace, None);
        // Later claims do not move it, nor does a restart of the server.
        for pass_ms in [1, 10_000, 600_000] {
            world.pass(pass_ms);
            world.here.server_start += 1;
            world.rows.pop();
            let claimed = world.granted(Kind::Claim, strict);
            assert_eq!(claimed.floor_ms, floor_ms);
            assert_eq!(world.registry.moved_floor_ms, Some(floor_ms));
        }
    }
}

/// A restart, or another failover, before the first claim after the grace: the grace starts over,
/// and the floor is that of its end. It never decreases.
#[test]
fn rule_4_the_floor_is_that_of_the_last_grace() {
    let (_, mut world) = one_id_and_a_standby();
    world.have_worker_ids(2);
    let new = member("members", "b");
    world.promote();
    world.refused(Kind::Claim, new, Status::Grace);
    world.pass(60_000);
    world.here.server_start += 1;
    let said = world.refused(Kind::Claim, new, Status::Grace);
    assert!(said.ends_with("again in 60000 ms"), "{said}");
    assert_eq!(world.registry.moved_floor_ms, None);
    world.pass(60_000);
    world.promote();
    world.refused(Kind::Claim, new, Status::Grace);
    assert_eq!(world.registry.moved_floor_ms, None);
    world.pass(60_000);
    let floor_ms = NOW + 180_000 + 12_000;
    assert_eq!(world.granted(Kind::Claim, new).floor_ms, floor_ms);
    // The next move raises it, ...
    let mut later = world.clone();
    later.promote();
    later.refused(Kind::Claim, member("members", "c"), Status::Grace);
    later.pass(60_000);
    let later_floor_ms = floor_ms + 60_000;
    let granted = later.granted(Kind::Claim, member("members", "c"));
    assert_eq!(granted.floor_ms, later_floor_ms);
    // ... unless it is to a server whose clock is behind by more than allowed.
    let mut behind = world.fail_over(&world, 100_000);
    let new = member("members", "c");
    behind.refused(Kind::Claim, new, Status::Grace);
    behind.pass(60_000);
    behind.rows.pop();
    assert_eq!(behind.granted(Kind::Claim, new).floor_ms, floor_ms);
}

/// Claim, failover, claim: what the first registry has recorded, for a member whose ids lead its
/// clock and whose clock was set forward since, and the second has lost, is below its floor,
/// although its clock is behind the first one's.
#[test]
fn rule_4_whatever_was_forgotten_is_below_the_floor() {
    for ahead_ms in [-1000, 0, 1000] {
        let mut world = World::new();
        let standby = world.clone();
        let forgotten = Member {
            ahead_ms,
            reserve_ms: 3_600_000,
            ..MEMBER
        };
        let forgotten = world.granted(Kind::Claim, forgotten);
        for behind_ms in [-1000, 0, 1000] {
            let mut promoted = world.fail_over(&standby, behind_ms);
            let new = member("members", "b");
            let granted = promoted.granted_at_last(new, Status::Grace);
            assert_eq!(granted.worker_id, forgotten.worker_id);
            assert!(
                granted.floor_ms >= forgotten.reserved_until_ms,
                "{granted:?} after {forgotten:?}"
            );
        }
    }
}

/// A promoted registry makes new holders start above the lost reservation of a member with a larger
/// skew than the requester's.
#[test]
fn a_moved_registrys_floor_is_above_the_largest_skew() {
    let mut world = World::new();
    world.promote();
    let strict = Member {
        max_skew_ms: 10,
        ..MEMBER
    };
    let decision = world.ask(Kind::Claim, strict);
    assert_eq!(decision.reply.outcome.unwrap_err().status, Status::Grace);
    assert_eq!(decision.events, [Event::Moved]);
    assert_eq!(
        world.registry.grace,
        Some(Grace {
            since_boot_ms: BOOT,
            server_start: 1
        })
    );
    world.pass(60_000);
    let granted = world.granted(Kind::Claim, strict);
    assert_eq!(granted.floor_ms, NOW + 60_000 + 12_000);
    assert_eq!(world.registry.grace, None);
}

/// The longest lease on record is the grace of a promoted registry.
#[test]
fn one_member_cannot_make_a_grace_last() {
    let mut world = World::new();
    let greedy = Member {
        lease_ms: 86_400_000,
        ..member("bad", "a")
    };
    world.granted(Kind::Claim, greedy);
    world.promote();
    let said = world.refused(Kind::Claim, member("members", "b"), Status::Grace);
    assert!(said.ends_with("again in 3600000 ms"), "{said}");
}

#[test]
fn the_epoch_is_the_owners() {
    let mut world = World::new();
    for epoch_ms in [0, EPOCH + 1, i64::MAX] {
        let wrong = Member { epoch_ms, ..MEMBER };
        let said = world.refused(Kind::Claim, wrong, Status::Epoch);
        assert!(said.contains(&EPOCH.to_string()), "{said}");
    }
    assert_eq!(world.registry.epoch_ms, None);
    world.granted(Kind::Claim, MEMBER);
    assert_eq!(world.registry.epoch_ms, Some(EPOCH));
    // A later change of the server's setting has no effect.
    world.here.epoch_ms = 0;
    world.granted(Kind::Claim, member("members", "b"));
    world.registry.epoch_ms = Some(7);
    let seven = Member {
        epoch_ms: 7,
        ..member("members", "c")
    };
    world.granted(Kind::Claim, seven);
    let renewal = Member {
        token: 2,
        held: Some((0, 0)),
        ..MEMBER
    };
    world.refused(Kind::Renew, renewal, Status::Epoch);
}

/// One layout for all members, like the epoch.
#[test]
fn rule_6_the_layout_is_the_owners() {
    let small = Layout::parse("41/6/6").unwrap();
    let large = Layout::parse("41/15/7").unwrap();
    let with = |layout, node| Member {
        layout: Some(layout),
        ..member("members", node)
    };
    let mut world = World::new();
    for wrong in [small, large] {
        let said = world.refused(Kind::Claim, with(wrong, "a"), Status::Layout);
        let expected = format!("the layout of this registry is 41/10/12, not {wrong}");
        assert_eq!(said, expected);
    }
    assert_eq!(world.registry.layout, None);
    world.granted(Kind::Claim, MEMBER);
    assert_eq!(world.registry.layout, Some(Layout::DEFAULT));
    // A later change of the server's setting has no effect.
    world.here.layout = small;
    world.granted(Kind::Claim, with(Layout::DEFAULT, "b"));
    world.refused(Kind::Claim, with(small, "c"), Status::Layout);
    let renewal = Member {
        token: 2,
        held: Some((0, 0)),
        ..with(small, "a")
    };
    world.refused(Kind::Renew, renewal, Status::Layout);
}

/// As many worker ids as the layout has.
#[test]
fn rule_6_the_layout_says_how_many_worker_ids_there_are() {
    for (layout, ids) in [("41/6/6", 64), ("41/0/12", 1), ("41/12/10", 4096)] {
        let mut world = World::new();
        world.registry.bounds.max_ids_per_role = None;
        world.registry.layout = Layout::parse(layout);
        world.here.layout = world.registry.layout.unwrap();
        // All but the last belong to another member.
        for worker_id in 0..ids - 1 {
            world.rows.push(Row {
                worker_id,
                retired: true,
                ..Row::default()
            });
        }
        assert_eq!(world.granted(Kind::Claim, MEMBER).worker_id, ids - 1);
        let said = world.refused(Kind::Claim, member("members", "b"), Status::Full);
        assert_eq!(said, format!("all {ids} worker ids are leased or retired"));
        // A worker id beyond the layout is not assigned, even if somebody has inserted its row.
        world.rows.push(Row {
            worker_id: ids,
            ..Row::default()
        });
        world.refused(Kind::Claim, member("members", "b"), Status::Full);
    }
}

/// The owner has changed the layout for one with fewer worker ids: each holder of one that is beyond
/// it gets another, as soon as it asks.
#[test]
fn a_worker_id_beyond_the_layout_is_left() {
    let host = Member {
        host: true,
        ..member("members", "host")
    };
    for (holder, moves) in [(MEMBER, false), (host, false), (host, true)] {
        let mut world = World::new();
        world.granted(Kind::Claim, holder);
        world.rows[0].worker_id = 900;
        let layout = Layout::parse("41/6/6").unwrap();
        world.registry.layout = Some(layout);
        world.here.layout = layout;
        let again = if moves {
            world.promote();
            Member {
                node: "another host",
                ..holder
            }
        } else {
            Member { token: 2, ..holder }
        };
        if moves {
            world.refused(Kind::Claim, again, Status::Grace);
            world.pass(60_000);
        }
        assert_eq!(world.granted(Kind::Claim, again).worker_id, 0);
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
    world.granted(Kind::Claim, MEMBER);
    let held = world.row(0).clone();
    let released = held.clone().released();
    let restored = Row {
        reserved_until_ms: 0,
        ..released.clone()
    };
    let by_hand = Row {
        retired: true,
        ..fresh
    };
    for used in [held, released, restored, by_hand, aside.clone()] {
        assert_eq!(used.clone().set_aside(NOW), None, "{used:?}");
    }
    // A later holder starts above.
    let mut world = World::new();
    world.have_worker_ids(1);
    world.rows.push(Row {
        worker_id: 0,
        reserved_until_ms: NOW + 99_000,
        ..aside
    });
    world.refused(Kind::Claim, MEMBER, Status::Full);
    world.rows[0].retired = false;
    assert_eq!(world.granted(Kind::Claim, MEMBER).floor_ms, NOW + 99_000);
}

/// A bad role has one vote, however many nodes it makes up.
#[test]
fn clocks_are_compared_by_role() {
    let mut world = World::new();
    for (role, nodes, ahead_ms) in [("x", 3, 0), ("y", 3, 10), ("bad", 200, 1000)] {
        for n in 0..nodes {
            let node = format!("{role} {n}");
            let member = Member {
                ahead_ms,
                ..member(role, &node)
            };
            world.granted(Kind::Claim, member);
        }
    }
    let late = Member {
        ahead_ms: -600,
        ..member("x", "late")
    };
    let decision = world.ask(Kind::Claim, late);
    let peers = decision.reply.peers;
    assert!(peers.by_role);
    assert_eq!((peers.votes, peers.offset_ms), (3, Some(10)));
    decision.reply.outcome.unwrap();
    // If all others share one other role, that has one vote, too, and one vote is no comparison.
    let mut world = World::new();
    for n in 0..3 {
        let node = format!("bad {n}");
        let ahead = Member {
            ahead_ms: 1000,
            ..member("bad", &node)
        };
        world.granted(Kind::Claim, ahead);
    }
    let alone = Member {
        ahead_ms: -5,
        ..member("x", "alone")
    };
    let decision = world.ask(Kind::Claim, alone);
    assert_eq!(decision.reply.peers.votes, 1);
    decision.reply.outcome.unwrap();
    // The same number of nodes of the requester's role have a vote each.
    let mut world = World::new();
    for n in 0..4 {
        let node = format!("x {n}");
        let member = Member {
            ahead_ms: if n == 0 { -1000 } else { 900 },
            ..member("x", &node)
        };
        world.ask(Kind::Claim, member);
    }
    let said = world.refused(Kind::Claim, late, Status::Clock);
    assert!(said.ends_with("the median of 4 other servers"), "{said}");
}

/// Half of the votes is not a majority.
#[test]
fn of_two_others_both_must_be_far_off() {
    for (others, by_ms) in [([900, -100], None), ([900, 500], Some(1100))] {
        let mut world = World::new();
        for (node, ahead_ms) in ["a", "b"].into_iter().zip(others) {
            let member = Member {
                ahead_ms,
                ..member("x", node)
            };
            world.granted(Kind::Claim, member);
        }
        let late = Member {
            ahead_ms: -600,
            ..member("x", "late")
        };
        match by_ms {
            None => {
                world.granted(Kind::Claim, late);
            }
            Some(by_ms) => {
                let said = world.refused(Kind::Claim, late, Status::Clock);
                let expected =
                    format!("the clock is {by_ms} ms behind the median of 2 other servers");
                assert_eq!(said, expected);
            }
        }
    }
}

/// Old offsets would outvote those that are right. An own offset is no other's.
#[test]
fn who_holds_no_lease_has_no_vote() {
    let mut world = World::new();
    for node in ["a", "b"] {
        let ahead = Member {
            ahead_ms: 900,
            ..member("x", node)
        };
        world.granted(Kind::Claim, ahead);
    }
    let late = Member {
        ahead_ms: -600,
        ..member("x", "late")
    };
    world.refused(Kind::Claim, late, Status::Clock);
    world.pass(60_000);
    let decision = world.ask(Kind::Claim, late);
    assert_eq!(decision.reply.peers.votes, 0);
    decision.reply.outcome.unwrap();
    let again = Member { token: 2, ..late };
    let decision = world.ask(Kind::Claim, again);
    assert_eq!(decision.reply.peers.votes, 0);
}

/// The registry's owner can set a token to 0, so that the holder has to wait for the end of its
/// lease.
#[test]
fn nobody_shows_a_token_of_0() {
    let mut world = World::new();
    world.granted(Kind::Claim, MEMBER);
    world.rows[0].token = 0;
    let without = Member { token: 0, ..MEMBER };
    world.refused(Kind::Claim, without, Status::Held);
}

/// A copy of the holder, with another worker id that the registry has forgotten, does not get the
/// holder's.
#[test]
fn nobody_enters_with_another_worker_id() {
    let mut world = World::new();
    world.granted(Kind::Claim, MEMBER);
    world.promote();
    let copy = Member {
        token: 77,
        held: Some((1, NOW + 90_000)),
        ..MEMBER
    };
    world.refused(Kind::Claim, copy, Status::Held);
}

/// The recorded time of a released holder, who may be there still, is the next holder's floor; a
/// stale copy has been granted less than is recorded of its original.
#[test]
fn nobody_enters_with_less_than_is_recorded() {
    let mut released = World::new();
    released.granted(Kind::Claim, MEMBER);
    let copied = released.clone();
    released.rows[0] = released.row(0).clone().released();
    for (world, until_ms, refused) in [
        (&released, NOW + 60_000, Some(Status::Grace)),
        (&released, NOW + 60_001, None),
        (&copied, NOW + 59_999, Some(Status::Held)),
        (&copied, NOW + 60_000, None),
    ] {
        let mut world = world.clone();
        world.promote();
        let entering = Member {
            token: 77,
            held: Some((0, until_ms)),
            ..MEMBER
        };
        let outcome = world.ask(Kind::Claim, entering).reply.outcome;
        let status = outcome.err().map(|refusal| refusal.status);
        assert_eq!(status, refused, "{until_ms}");
    }
}

/// Its own worker id, which does not count then.
#[test]
fn a_role_at_its_limit_has_a_retired_id_replaced() {
    let mut world = World::new();
    world.registry.bounds.max_ids_per_role = Some(1);
    world.granted(Kind::Claim, MEMBER);
    world.rows[0].retired = true;
    let holder = Member { token: 2, ..MEMBER };
    assert_eq!(world.granted(Kind::Claim, holder).worker_id, 1);
    assert_eq!(world.row(0).holder, None, "a node has one worker id");
}

/// Claims are serialized; renewals do not wait for them.
#[test]
fn only_what_is_needed_is_locked() {
    let mut world = World::new();
    for node in ["a", "b"] {
        world.granted(Kind::Claim, member("x", node));
        assert_eq!(world.locked, (true, vec![]));
    }
    let renewal = Member {
        token: 2,
        held: Some((1, 0)),
        ..member("x", "b")
    };
    world.granted(Kind::Renew, renewal);
    assert_eq!(world.locked, (false, vec![1]));
    let off = Member {
        ahead_ms: 5000,
        ..MEMBER
    };
    world.refused(Kind::Claim, off, Status::Clock);
    assert_eq!(world.locked, (false, vec![]));
    world.promote();
    let renewal = Member {
        token: 3,
        ..renewal
    };
    world.granted(Kind::Renew, renewal);
    assert_eq!(world.locked, (true, vec![1]));
}

/// Arbitrary values in the tables must not terminate the process.
#[test]
fn absurd_rows_are_survived() {
    for value in [i64::MIN, -1, 0, i64::MAX] {
        let mut world = World::new();
        world.registry.moved_at_ms = Some(value);
        world.registry.moved_floor_ms = Some(value);
        world.registry.grace = Some(Grace {
            since_boot_ms: value,
            server_start: 1,
        });
        world.registry.bounds = Bounds {
            max_skew_ms: value.clamp(0, 3_600_000),
            max_lease_ms: value.clamp(1, 86_400_000),
            max_lead_ms: value.clamp(0, 3_600_000),
            max_ids_per_role: Some(value),
        };
        for worker_id in 0..3 {
            world.rows.push(Row {
                worker_id,
                holder: Some(Holder {
                    system_identifier: value,
                    node_name: vec![b'n', u8::try_from(worker_id).unwrap()],
                }),
                token: 1,
                lease_until_ms: Some(value),
                renewed_at_ms: Some(value),
                lease_ms: value,
                reserved_until_ms: value.clamp(0, 253_402_300_799_999),
                clock_offset_ms: Some(value),
                ..Row::default()
            });
        }
        for kind in [Kind::Claim, Kind::Renew] {
            for held in [None, Some((0, value)), Some((1023, value))] {
                let member = Member { held, ..MEMBER };
                drop(world.ask(kind, member));
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnRow {
    OtherRoles,
    Missing,
    Usable,
    Retired,
}

/// End of the lease in the requester's own row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseEnd {
    Ahead,
    /// Less than the max skew ago: may be live by another registry's clock.
    WithinSkew,
    Past,
}

/// Result of a claim that inherits and enters nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimed {
    Own,
    OwnAboveMoved,
    OwnAboveAll,
    Another,
    Refused(Status),
}

/// The table in the header of `registry/decide/claim.rs`: own row, whether its token is shown, its
/// lease, the outcome without a grace, and the outcome during a grace.
type ClaimLine = (
    OwnRow,
    &'static [bool],
    &'static [LeaseEnd],
    Claimed,
    Claimed,
);
const CLAIMS: [ClaimLine; 8] = {
    use Claimed::{Another, Own, OwnAboveAll, OwnAboveMoved, Refused};
    use LeaseEnd::{Ahead, Past, WithinSkew};
    use OwnRow::{Missing, OtherRoles, Retired, Usable};
    use Status::{Grace, Held};
    let any = &[Ahead, WithinSkew, Past];
    let ended = &[WithinSkew, Past];
    let may_be_live = &[Ahead, WithinSkew];
    [
        // Another node.
        (OtherRoles, &[true, false], any, Another, Refused(Grace)),
        (Missing, &[true, false], any, Another, Refused(Grace)),
        (Usable, &[true], &[Ahead], Own, Own),
        (Usable, &[true], ended, OwnAboveMoved, Refused(Grace)),
        (Retired, &[true], any, Another, Refused(Grace)),
        // Usable or retired.
        (Usable, &[false], may_be_live, Refused(Held), Refused(Held)),
        (Usable, &[false], &[Past], OwnAboveAll, Refused(Grace)),
        (Retired, &[false], &[Past], Another, Refused(Grace)),
    ]
};

fn claim_line(own: OwnRow, shown: bool, lease: LeaseEnd) -> (Claimed, Claimed) {
    // The table has one line for both.
    let contested = own == OwnRow::Retired && !shown && lease != LeaseEnd::Past;
    let own = if contested { OwnRow::Usable } else { own };
    let lines: Vec<_> = (CLAIMS.iter())
        .filter(|line| line.0 == own && line.1.contains(&shown) && line.2.contains(&lease))
        .collect();
    let [(.., without, during)] = lines[..] else {
        panic!("{own:?}, shown: {shown}, {lease:?}: {lines:?}");
    };
    (*without, *during)
}

const OWN_ID: u16 = 2;
const HOSTS_ID: u16 = 3;
const ENTERED_ID: u16 = 4;
const MOVED_FLOOR_MS: i64 = NOW + 2_000;
const OWN_FLOOR_MS: i64 = NOW - 5_000;
const OWN_RESERVED_MS: i64 = NOW + 10_000;

fn row_of(worker_id: u16, node: &str) -> Row {
    Row {
        worker_id,
        holder: Some(Holder {
            system_identifier: 4711,
            node_name: node.into(),
        }),
        role: Some(MEMBER.role.into()),
        token: 99,
        lease_until_ms: Some(NOW + 30_000),
        lease_ms: 60_000,
        ..Row::default()
    }
}

fn claim_world(own: OwnRow, shown: bool, lease: LeaseEnd, grace: bool, inherits: bool) -> World {
    let mut world = World::new();
    world.registry.moved_floor_ms = Some(MOVED_FLOOR_MS);
    world.registry.grace = grace.then_some(Grace {
        since_boot_ms: BOOT,
        server_start: 1,
    });
    world.rows.push(row_of(1, "other"));
    if inherits {
        world.rows.push(Row {
            host: true,
            ..row_of(HOSTS_ID, "predecessor")
        });
    }
    if own != OwnRow::Missing {
        let role = match own {
            OwnRow::OtherRoles => "others",
            _ => MEMBER.role,
        };
        let after_ms = match lease {
            LeaseEnd::Ahead => 30_000,
            LeaseEnd::WithinSkew => -500,
            LeaseEnd::Past => -5_000,
        };
        world.rows.push(Row {
            role: Some(role.into()),
            token: if shown { MEMBER.token } else { 99 },
            lease_until_ms: Some(NOW + after_ms),
            reserved_until_ms: OWN_RESERVED_MS,
            floor_ms: OWN_FLOOR_MS,
            retired: own == OwnRow::Retired,
            ..row_of(OWN_ID, MEMBER.node)
        });
    }
    world
}

/// Each line, with and without a worker id to inherit, and one to enter.
#[test]
fn a_claim_follows_the_table() {
    let owns = [
        OwnRow::OtherRoles,
        OwnRow::Missing,
        OwnRow::Usable,
        OwnRow::Retired,
    ];
    let leases = [LeaseEnd::Ahead, LeaseEnd::WithinSkew, LeaseEnd::Past];
    let bits = 0..16;
    for (own, lease, bits) in (owns.into_iter())
        .flat_map(|own| leases.map(|lease| (own, lease)))
        .flat_map(|(own, lease)| bits.clone().map(move |bits| (own, lease, bits)))
    {
        let [shown, grace, inherits, enters] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let entered = match own {
            OwnRow::Missing => Some(ENTERED_ID),
            OwnRow::Usable => Some(OWN_ID),
            OwnRow::Retired | OwnRow::OtherRoles => None,
        };
        let held = enters.then_some((entered.unwrap_or(OWN_ID), NOW + 40_000));
        let mut world = claim_world(own, shown, lease, grace, inherits);
        let claimant = Member {
            host: inherits,
            held,
            ..MEMBER
        };
        let outcome = world.ask(Kind::Claim, claimant).reply.outcome;
        let outcome = outcome.map(|granted| (granted.worker_id, granted.floor_ms));
        let outcome = outcome.map_err(|refusal| refusal.status);

        let proves = shown && !matches!(own, OwnRow::Missing | OwnRow::OtherRoles);
        let (without, during) = claim_line(own, shown, lease);
        let expected = match if grace { during } else { without } {
            _ if inherits && (grace || !proves) => Ok((HOSTS_ID, NOW + MEMBER.max_lead_ms)),
            _ if let (true, true, Some(entered)) = (grace, enters, entered) => {
                let known = entered == OWN_ID;
                Ok((entered, if known { OWN_FLOOR_MS } else { 0 }))
            }
            Claimed::Own => Ok((OWN_ID, OWN_FLOOR_MS)),
            Claimed::OwnAboveMoved => Ok((OWN_ID, MOVED_FLOOR_MS)),
            Claimed::OwnAboveAll => Ok((OWN_ID, OWN_RESERVED_MS)),
            Claimed::Another => Ok((0, MOVED_FLOOR_MS)),
            Claimed::Refused(status) => Err(status),
        };
        assert_eq!(
            outcome, expected,
            "{own:?}, {lease:?}, token shown: {shown}, grace: {grace}, inherits: {inherits}, enters: {enters}"
        );
        let is_entered = expected.is_ok_and(|(id, _)| Some(id) == entered) && grace && enters;
        if is_entered && !inherits {
            let row = world.row(entered.unwrap());
            assert!(row.reserved_until_ms >= NOW + 40_000);
        }
    }
}
