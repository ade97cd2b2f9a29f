//! The decision; see the header of [`super`].

use super::peers;
use super::terms::*;
use crate::lease::{Held, Kind, Question, Status};
use crate::message::shown;
use crate::sometimes;

mod claim;

/// Decides on a request, or returns which lock is needed; see the header of [`super`]. The request
/// must be valid.
#[must_use]
pub fn decide(
    tables: Tables<'_>,
    request: &LeaseRequest,
    requester: &Requester<'_>,
    here: &Here,
) -> Next {
    let registry = *tables.registry;
    let bounds = registry.bounds;
    let mut case = Case {
        rows: tables.rows,
        request,
        requester,
        here,
        registry,
        max_skew_ms: request.max_skew_ms.min(bounds.max_skew_ms),
        lease_ms: request.question.lease_ms.min(bounds.max_lease_ms),
        max_lead_ms: request.max_lead_ms.min(bounds.max_lead_ms),
        clock_offset_ms: request.now_ms.saturating_sub(here.arrived_ms),
        grace_ms: None,
    };
    let peers = case.peers();
    let mut changes = Changes::default();
    let outcome = case.outcome(tables.registry_locked, peers, &mut changes);
    let outcome = match outcome {
        Ok(granted) => Ok(granted),
        Err(Stop::Refused(refusal)) => Err(refusal),
        Err(Stop::LockRegistry) => return Next::LockRegistry,
        Err(Stop::LockRow { worker_id, wait }) => return Next::LockRow { worker_id, wait },
    };
    Next::Done(Box::new(Decision {
        reply: Reply {
            registry_ms: here.arrived_ms,
            peers,
            max_skew_ms: case.max_skew_ms,
            outcome,
        },
        registry: (case.registry != registry).then_some(case.registry),
        rows: changes.rows,
        events: changes.events,
    }))
}

/// Reason why a request cannot be granted now.
enum Stop {
    LockRegistry,
    LockRow { worker_id: u16, wait: bool },
    Refused(Refusal),
}

fn refused<T>(status: Status, detail: impl Into<String>) -> Result<T, Stop> {
    let detail = detail.into();
    Err(Stop::Refused(Refusal { status, detail }))
}

#[derive(Default)]
struct Changes {
    rows: Vec<Row>,
    events: Vec<Event>,
}

/// The worker id to be granted.
struct Choice {
    row: Row,
    floor_ms: i64,
}

impl Choice {
    /// A worker id whose floor remains in force: the answer that contained it may have been lost.
    fn kept(row: Row, floor_ms: i64) -> Self {
        let floor_ms = floor_ms.max(row.floor_ms);
        Self { row, floor_ms }
    }
}

/// A request and its context.
struct Case<'a> {
    rows: &'a [(Row, Hold)],
    request: &'a LeaseRequest,
    requester: &'a Requester<'a>,
    here: &'a Here,
    /// The registry's row after the decision.
    registry: Registry,
    /// Tolerated clock skew: the smaller of the request's and the registry's.
    max_skew_ms: i64,
    /// Duration of the lease to be granted.
    lease_ms: i64,
    /// Max lead over the requester's clock: the smaller of the request's and the registry's.
    max_lead_ms: i64,
    clock_offset_ms: i64,
    /// Time until worker ids are assigned again; `None` if there is no grace.
    grace_ms: Option<i64>,
}

impl Case<'_> {
    fn now_ms(&self) -> i64 {
        self.here.now.wall_ms
    }

    fn renews(&self) -> bool {
        self.request.question.kind == Kind::Renew
    }

    fn is_requester(&self, row: &Row) -> bool {
        let LeaseRequest {
            system_identifier,
            node_name,
            ..
        } = self.request;
        // Names are scoped by role: none takes another's.
        row.is_held_by(*system_identifier, node_name)
            && row
                .role
                .as_deref()
                .is_none_or(|role| role == self.requester.role)
    }

    /// True if the worker id is retired, or if the registry's own server has it by hand.
    fn is_retired(&self, row: &Row) -> bool {
        row.retired || self.here.worker_id == Some(row.worker_id)
    }

    fn is_here(&self) -> bool {
        self.registry.place == Some(self.here.place)
    }

    /// True if the row may have a holder whose lease another registry's clock would still renew.
    fn may_be_live(&self, row: &Row) -> bool {
        row.may_be_live(self.now_ms(), self.registry.bounds.max_skew_ms)
    }

    fn find(&self, worker_id: u16) -> Option<&(Row, Hold)> {
        self.rows.iter().find(|(row, _)| row.worker_id == worker_id)
    }

    /// The locked row of a worker id; `None` if there is none.
    fn lock(&self, worker_id: u16) -> Result<Option<Row>, Stop> {
        match self.find(worker_id) {
            Some((row, Hold::Locked)) => Ok(Some(row.clone())),
            Some(_) => Err(Stop::LockRow {
                worker_id,
                wait: true,
            }),
            None => Ok(None),
        }
    }

    /// True if the requester proves that it is the holder and not a copy.
    fn shows_token(&self, row: &Row) -> bool {
        let Question {
            token, next_token, ..
        } = self.request.question;
        row.token != 0 && [token, next_token].contains(&row.token)
    }

    /// Vote of the other members with a live lease. Offsets measured by another registry's clock,
    /// before a promotion, are excluded.
    fn peers(&self) -> Peers {
        let mut offsets: Vec<(Option<&[u8]>, i64)> = Vec::new();
        if self.is_here() {
            let moved_at_ms = self.registry.moved_at_ms;
            for (row, _) in self.rows {
                let met = match (row.renewed_at_ms, moved_at_ms) {
                    (Some(renewed), Some(moved)) => renewed >= moved,
                    _ => true,
                };
                if let Some(offset) = row.clock_offset_ms
                    && met
                    && row.is_live(self.here.arrived_ms)
                    && !self.is_requester(row)
                {
                    offsets.push((row.role.as_deref(), offset));
                }
            }
        }
        peers::vote(offsets, self.requester.role, self.clock_offset_ms)
    }

    fn outcome(
        &mut self,
        locked: bool,
        peers: Peers,
        changes: &mut Changes,
    ) -> Result<Granted, Stop> {
        self.compare_clocks(peers, changes)?;
        if !self.renews() || self.registry.grace.is_some() || !self.is_here() {
            // Serialize claims, until the transaction is committed and acknowledged.
            if !locked {
                return Err(Stop::LockRegistry);
            }
            self.note_move(changes);
        }
        let epoch_ms = self.registry.epoch_ms.unwrap_or(self.here.epoch_ms);
        if epoch_ms != self.request.epoch_ms {
            let asked = self.request.epoch_ms;
            return refused(
                Status::Epoch,
                format!("the epoch of this registry is {epoch_ms}, not {asked}"),
            );
        }
        let layout = self.registry.layout.unwrap_or(self.here.layout);
        if layout != self.request.layout {
            let asked = self.request.layout;
            return refused(
                Status::Layout,
                format!("the layout of this registry is {layout}, not {asked}"),
            );
        }
        let choice = if self.renews() {
            self.renew()?
        } else {
            self.claim()?
        };
        if !self.renews() {
            self.registry.epoch_ms = Some(epoch_ms);
            self.registry.layout = Some(layout);
        }
        self.grant(choice, changes)
    }

    /// Checks the requester's clock, before waiting for any lock.
    fn compare_clocks(&self, peers: Peers, changes: &mut Changes) -> Result<(), Stop> {
        let off = |by_ms: i64, what: String| {
            let ms = by_ms.unsigned_abs();
            let side = if by_ms > 0 { "ahead of" } else { "behind" };
            refused(Status::Clock, format!("the clock is {ms} ms {side} {what}"))
        };
        let allowed = -self.max_skew_ms..=self.max_skew_ms;
        if !allowed.contains(&self.clock_offset_ms) {
            return off(self.clock_offset_ms, "the registry's".into());
        }
        let Some(offset_ms) = peers.offset_ms.filter(|_| peers.votes >= 2) else {
            return Ok(());
        };
        let by_ms = self.clock_offset_ms.saturating_sub(offset_ms);
        if allowed.contains(&by_ms) {
            return Ok(());
        }
        // If the registry's own clock was set, all recorded offsets are outdated. Recording new
        // ones makes the members agree again.
        let own = (self.rows.iter().map(|(row, _)| row))
            .find(|row| self.is_requester(row) && self.shows_token(row));
        if let Some(own) = own
            && let Some(row) = self.lock(own.worker_id)?
        {
            changes.rows.push(Row {
                clock_offset_ms: Some(self.clock_offset_ms),
                ..row
            });
        }
        let votes = peers.votes;
        let whose = if peers.by_role { "roles" } else { "servers" };
        off(by_ms, format!("the median of {votes} other {whose}"))
    }

    /// Detects a move of the registry, and computes the remaining grace.
    fn note_move(&mut self, changes: &mut Changes) {
        let now = self.here.now;
        let begun = Grace {
            since_boot_ms: now.boot_ms,
            server_start: self.here.server_start,
        };
        if !self.is_here() {
            self.registry.place = Some(self.here.place);
            self.registry.moved_at_ms = Some(now.wall_ms);
            self.registry.grace = Some(begun);
            sometimes!("registry: moved");
            changes.events.push(Event::Moved);
        }
        let Some(grace) = self.registry.grace else {
            return;
        };
        let grace = if grace.server_start == begun.server_start {
            grace
        } else {
            begun
        };
        let leases = self.rows.iter().map(|(row, _)| row.lease_ms);
        let longest = leases.chain([self.lease_ms]).max().unwrap_or(0);
        let left = longest.saturating_sub(now.boot_ms.saturating_sub(grace.since_boot_ms));
        if left > 0 {
            self.registry.grace = Some(grace);
            self.grace_ms = Some(left);
            return;
        }
        sometimes!("registry: the grace is over");
        // Fixed by the first claim after the grace; recomputing it per claim would push every new
        // holder ahead of the clock.
        self.registry.grace = None;
        self.registry.moved_floor_ms = self
            .registry
            .moved_floor_ms
            .max(Some(self.above_forgotten()));
    }

    /// A time above everything that may have been recorded before a move, given that all those
    /// leases have ended: the end of a lease plus the skew and the lead granted to its holder, by
    /// the clock of a registry that was ahead of this one. Uses the bounds for all members, not the
    /// requester's.
    fn above_forgotten(&self) -> i64 {
        let Bounds {
            max_skew_ms,
            max_lead_ms,
            ..
        } = self.registry.bounds;
        self.now_ms()
            .saturating_add(2 * max_skew_ms)
            .saturating_add(max_lead_ms)
    }

    /// See [`Registry::moved_floor_ms`].
    fn moved_floor(&self) -> i64 {
        self.registry.moved_floor_ms.unwrap_or(0)
    }

    /// A floor above all ids of previous holders.
    fn floor_above(&self, row: &Row) -> i64 {
        let above_clock = self.now_ms().saturating_add(self.max_skew_ms);
        row.reserved_until_ms
            .max(above_clock)
            .max(self.moved_floor())
    }

    fn in_grace<T>(&self) -> Result<T, Stop> {
        let ms = self.grace_ms.unwrap_or(0);
        refused(
            Status::Grace,
            format!(
                "the registry was promoted or restored and may have forgotten leases: it grants worker ids again in {ms} ms"
            ),
        )
    }

    fn renew(&self) -> Result<Choice, Stop> {
        let lost = |detail: String| refused(Status::Lost, detail);
        let Some(Held { worker_id, .. }) = self.request.question.held else {
            return lost("no worker id was named".into());
        };
        let row = self.lock(worker_id)?;
        let Some((row, holder)) = row.and_then(|row| {
            let holder = row.holder.clone()?;
            Some((row, holder))
        }) else {
            return lost(format!("worker id {worker_id} is leased to nobody"));
        };
        if !self.is_requester(&row) {
            // Do not disclose node names across roles.
            return lost(if row.admits(self.requester) {
                format!(
                    "worker id {worker_id} is leased to node \"{}\" of system {}",
                    shown(&holder.node_name),
                    holder.system_identifier
                )
            } else {
                format!("worker id {worker_id} is leased to a server of another role")
            });
        }
        if !self.shows_token(&row) {
            let node = shown(&holder.node_name);
            return lost(format!(
                "worker id {worker_id} was renewed by a copy of node \"{node}\""
            ));
        }
        if self.is_retired(&row) {
            sometimes!("registry: a retired worker id is not renewed");
            return refused(Status::Retired, format!("worker id {worker_id} is retired"));
        }
        let live = row.is_live(self.now_ms());
        if self.grace_ms.is_some() && !live {
            // It may have been reassigned since, and that may have been lost.
            return self.in_grace();
        }
        Ok(Choice::kept(row, if live { 0 } else { self.moved_floor() }))
    }

    fn grant(&self, choice: Choice, changes: &mut Changes) -> Result<Granted, Stop> {
        let Choice {
            row: before,
            floor_ms,
        } = choice;
        // A node has one worker id. The one it had before was retired.
        for (row, _) in self.rows {
            if row.worker_id != before.worker_id
                && self.is_requester(row)
                && let Some(row) = self.lock(row.worker_id)?
            {
                sometimes!("registry: a node leaves its former worker id");
                changes.rows.push(row.without_holder());
            }
        }
        let now_ms = self.now_ms();
        let worker_id = before.worker_id;
        let same = self.is_requester(&before);
        if !same {
            changes.events.push(Event::Leased(worker_id));
        }
        // Above the floor, or nothing could be issued before the first renewal, but no further than
        // a holder's ids can be at the end of its lease.
        let latest = now_ms
            .saturating_add(self.lease_ms)
            .saturating_add(self.max_skew_ms)
            .saturating_add(self.max_lead_ms);
        let wanted = (self.request.reserve_until_ms).max(floor_ms.saturating_add(self.lease_ms));
        let reserved_until_ms = (before.reserved_until_ms).max(wanted.min(latest));
        changes.rows.push(Row {
            worker_id,
            holder: Some(Holder {
                system_identifier: self.request.system_identifier,
                node_name: self.request.node_name.clone(),
            }),
            role: Some(self.requester.role.to_vec()),
            token: self.request.question.next_token,
            leased_at_ms: before.leased_at_ms.filter(|_| same).or(Some(now_ms)),
            renewed_at_ms: Some(now_ms),
            lease_until_ms: Some(now_ms.saturating_add(self.lease_ms)),
            lease_ms: self.lease_ms,
            reserved_until_ms,
            floor_ms,
            clock_offset_ms: Some(self.clock_offset_ms),
            retired: before.retired,
            host: self.requester.host,
            address: self.requester.address.map(<[u8]>::to_vec),
        });
        Ok(Granted {
            worker_id,
            floor_ms,
            reserved_until_ms,
            lease_ms: self.lease_ms,
            max_lead_ms: self.max_lead_ms,
        })
    }
}
