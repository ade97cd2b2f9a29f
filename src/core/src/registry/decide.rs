//! The decision; see the header of [`super`].
//!
//! | the requester | has moved, up to MF + skew | otherwise |
//! | --- | --- | --- |
//! | shows the token of its row, R not passed | as below | R raised |
//! | the registry's own server, and such a worker id is there | inherited | inherited, unless its token is shown |
//! | shows the token of its row, R passed | as below | the same worker id, above MF |
//! | holds a segment of a row under its name, which has not passed, nor ends before the row's | R raised | as below |
//! | holds one that has passed, and shows the token of the row, which has not | R raised | as below |
//! | any other | refused: Moved | another worker id, or refused: Clock, Full |
//!
//! A row counts if it is in service, and in the layout, which may have been changed for one with
//! fewer worker ids. The worker id that the registry's own server has by hand is not in service.

use super::peers;
use super::terms::*;
use crate::lease::{Answer, Grant, Peers, Question, Status};
use crate::message::shown;
use crate::sometimes;

/// Max worker ids of one name that have not passed.
pub const MAX_PER_NAME: usize = 3;

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
    let mut case = Case {
        rows: tables.rows,
        registry_locked: tables.registry_locked,
        request,
        requester,
        here,
        registry,
        now_ms: here.arrived_ms.max(registry.moved_at_ms.unwrap_or(0)),
    };
    let peers = case.peers();
    let (outcome, row, detail, is_new) = match case.choose(peers) {
        Ok(choice) => {
            let is_new = choice.is_new;
            let (granted, row) = case.grant(choice);
            (Ok(granted), Some(row), String::new(), is_new)
        }
        Err(Stop::Refused(status, detail)) => (Err(status), None, detail, false),
        Err(Stop::LockRegistry) => {
            let locked = tables.rows.iter().find(|(_, hold)| *hold == Hold::Locked);
            return match locked {
                Some((row, _)) => Next::StartOver {
                    worker_id: row.worker_id,
                },
                None => Next::LockRegistry,
            };
        }
        Err(Stop::LockRow { worker_id, wait }) => return Next::LockRow { worker_id, wait },
    };
    let answer = Answer {
        registry_ms: here.arrived_ms,
        peers,
        max_skew_ms: registry.bounds.max_skew_ms,
        ahead_ms: registry.bounds.grant_ahead_ms,
        outcome,
    };
    Next::Done(Box::new(Decision {
        reply: Reply { answer, detail },
        registry: (case.registry != registry).then_some(case.registry),
        row,
        is_moved: case.registry.place != registry.place,
        is_new,
    }))
}

/// Reason why a request cannot be granted now.
enum Stop {
    LockRegistry,
    LockRow { worker_id: u16, wait: bool },
    Refused(Status, String),
}

fn refused<T>(status: Status, detail: String) -> Result<T, Stop> {
    Err(Stop::Refused(status, detail))
}

/// The worker id to be granted.
struct Choice {
    row: Row,
    floor_ms: i64,
    is_new: bool,
}

impl Choice {
    /// A worker id whose floor remains in force: the answer that contained it may have been lost.
    fn kept(row: Row, floor_ms: i64) -> Self {
        Self {
            floor_ms: floor_ms.max(row.floor_ms),
            row,
            is_new: false,
        }
    }
}

/// A request and its context.
struct Case<'a> {
    rows: &'a [(Row, Hold)],
    registry_locked: bool,
    request: &'a LeaseRequest,
    requester: &'a Requester<'a>,
    here: &'a Here,
    /// The registry's row after the decision.
    registry: Registry,
    /// When the request arrived, but not before the last move: another clock may have been set
    /// back, and what has passed then has passed.
    now_ms: i64,
}

impl Case<'_> {
    fn is_requester(&self, row: &Row) -> bool {
        // Names are scoped by role: none takes another's.
        row.is_held_by(self.request.system_identifier, &self.request.node_name)
            && row
                .role
                .as_deref()
                .is_none_or(|role| role == self.requester.role)
    }

    /// True if the requester proves that it is the holder and not a copy.
    fn shows_token(&self, row: &Row) -> bool {
        let Question {
            token, next_token, ..
        } = self.request.question;
        row.token != 0 && [token, next_token].contains(&row.token)
    }

    fn is_in_service(&self, row: &Row) -> bool {
        !row.retired
            && self.here.worker_id != Some(row.worker_id)
            && row.worker_id <= self.request.layout.max_worker_id()
            && (!row.host || self.requester.host)
    }

    /// True if R has passed by every clock that the registry may have. If a failover lost what is
    /// granted then, the promoted registry would not renew the previous holder's grant.
    fn has_passed(&self, until_ms: i64) -> bool {
        until_ms.saturating_add(self.registry.bounds.max_skew_ms) <= self.now_ms
    }

    fn is_here(&self) -> bool {
        self.registry.place == Some(self.here.place)
    }

    /// See [`Registry::moved_floor_ms`].
    fn moved_floor(&self) -> i64 {
        self.registry.moved_floor_ms.unwrap_or(0)
    }

    /// True if rows may lack what was granted before a move.
    fn may_have_forgotten(&self) -> bool {
        self.registry.moved_floor_ms.is_some() && !self.has_passed(self.moved_floor())
    }

    /// The locked row of a worker id; `None` if there is none.
    fn lock(&self, worker_id: u16) -> Result<Option<Row>, Stop> {
        let of = |(row, _): &&(Row, Hold)| row.worker_id == worker_id;
        match self.rows.iter().find(of) {
            Some((row, Hold::Locked)) => Ok(Some(row.clone())),
            Some(_) => Err(Stop::LockRow {
                worker_id,
                wait: true,
            }),
            None => Ok(None),
        }
    }

    /// The row whose token the requester shows, unlocked.
    fn own(&self) -> Option<&Row> {
        let mut rows = self.rows.iter().map(|(row, _)| row);
        rows.find(|row| self.is_requester(row) && self.shows_token(row) && self.is_in_service(row))
    }

    fn choose(&mut self, peers: Peers) -> Result<Choice, Stop> {
        self.compare_ids()?;
        if self.is_here()
            && !self.may_have_forgotten()
            && let Some(own) = self.own()
            && own.reserved_until_ms > self.now_ms
            && let Some(row) = self.lock(own.worker_id)?
        {
            return Ok(Choice::kept(row, 0));
        }
        // Serialize everything else, until the transaction is committed and acknowledged.
        if !self.registry_locked {
            return Err(Stop::LockRegistry);
        }
        self.note_move();
        let choice = if self.may_have_forgotten() {
            match self.inherited()? {
                Some(inherited) => Ok(inherited),
                None => self.held(),
            }
        } else {
            self.claim(peers)
        }?;
        self.registry.epoch_ms.get_or_insert(self.request.epoch_ms);
        self.registry.layout.get_or_insert(self.request.layout);
        Ok(choice)
    }

    /// Checks what all members must have in common, before any lock.
    fn compare_ids(&self) -> Result<(), Stop> {
        let epoch_ms = self.registry.epoch_ms.unwrap_or(self.here.epoch_ms);
        let asked = self.request.epoch_ms;
        if epoch_ms != asked {
            let detail = format!("the epoch of this registry is {epoch_ms}, not {asked}");
            return refused(Status::Epoch, detail);
        }
        let layout = self.registry.layout.unwrap_or(self.here.layout);
        let asked = self.request.layout;
        if layout != asked {
            let detail = format!("the layout of this registry is {layout}, not {asked}");
            return refused(Status::Layout, detail);
        }
        Ok(())
    }

    /// Notes the first use after a move: the latest time that the registry can have granted
    /// elsewhere, given that its clocks differ by no more than the max skew. Fixed once: computed
    /// for each claim, it would push every new holder ahead of the clock.
    fn note_move(&mut self) {
        if self.is_here() {
            return;
        }
        sometimes!("registry: moved");
        let Bounds {
            grant_ahead_ms,
            max_skew_ms,
            ..
        } = self.registry.bounds;
        self.now_ms = self.now_ms.max(self.here.now_ms);
        let forgotten_ms = self.now_ms.saturating_add(grant_ahead_ms + max_skew_ms);
        self.registry.place = Some(self.here.place);
        self.registry.moved_at_ms = Some(self.now_ms);
        self.registry.moved_floor_ms = Some(forgotten_ms.max(self.moved_floor()));
    }

    /// The worker id of the registry's previous server, for its current one. Like a worker id set
    /// by hand, it passes on with the replicated data, and its previous holder is down. So nothing
    /// is waited for, and the recorded reservation does not count: the floor is above everything
    /// that another server of the cluster can have issued.
    fn inherited(&self) -> Result<Option<Choice>, Stop> {
        if !self.requester.host {
            return Ok(None);
        }
        let passes_on = |row: &&Row| {
            let holder = row.holder.as_ref();
            row.host
                && self.is_in_service(row)
                && holder.is_some_and(|holder| {
                    holder.system_identifier == self.request.system_identifier
                })
        };
        let Some(found) = self.rows.iter().map(|(row, _)| row).find(passes_on) else {
            return Ok(None);
        };
        let row = self.lock(found.worker_id)?;
        let above_others_ms = self.now_ms.saturating_add(self.here.max_lead_ms);
        // And above earlier holders.
        Ok(row.map(|row| Choice {
            is_new: !self.is_requester(&row),
            ..Choice::kept(row, above_others_ms)
        }))
    }

    /// The worker id that the requester holds by its last answer. Its row may lack the last
    /// renewals, and so the token of it. The worker id cannot have been granted to another server
    /// since: the segment has not passed, and the row has none that ends later; or its answer was
    /// lost, and the row, whose token the requester shows, has not passed. A token alone is no proof,
    /// since the holder's may be a later one.
    fn held(&self) -> Result<Choice, Stop> {
        if let Some(held) = self.request.question.held
            && let Some(row) = self.lock(held.worker_id)?
            && self.is_in_service(&row)
            && self.is_requester(&row)
        {
            let until_ms = held.reserved_until_ms;
            let is_granted = until_ms <= self.moved_floor();
            // Where the row's ends later, a copy may have got that.
            let is_last = until_ms >= row.reserved_until_ms;
            let is_known = self.shows_token(&row) && row.reserved_until_ms > self.now_ms;
            if is_known || is_granted && is_last && until_ms > self.now_ms {
                sometimes!("registry: a holder goes on after a move");
                let (floor_ms, until_ms) = match is_granted {
                    true => (held.floor_ms, until_ms),
                    false => (0, 0),
                };
                let reserved_until_ms = row.reserved_until_ms.max(until_ms);
                return Ok(Choice::kept(
                    Row {
                        reserved_until_ms,
                        ..row
                    },
                    floor_ms,
                ));
            }
        }
        sometimes!("registry: a claim waits until nothing forgotten is left");
        let until = (self.here.format_ms)(
            self.moved_floor()
                .saturating_add(self.registry.bounds.max_skew_ms),
        );
        refused(
            Status::Moved,
            format!(
                "the registry was promoted or restored and may have forgotten leases: until {until} it leases worker ids only to servers that hold one"
            ),
        )
    }

    fn claim(&self, peers: Peers) -> Result<Choice, Stop> {
        if let Some(own) = self.own()
            && let Some(row) = self.lock(own.worker_id)?
        {
            sometimes!("registry: a holder is late");
            return Ok(Choice::kept(row, self.moved_floor()));
        }
        if let Some(inherited) = self.inherited()? {
            return Ok(inherited);
        }
        if self.request.question.held.is_none() {
            self.compare_clocks(peers)?;
        }
        self.count_names()?;
        let row = self.another()?;
        Ok(Choice {
            floor_ms: row.reserved_until_ms.max(self.moved_floor()),
            row,
            is_new: true,
        })
    }

    fn clock_offset_ms(&self) -> i64 {
        (self.request.now_ms).saturating_sub(self.here.arrived_ms)
    }

    /// Checks the clock of a server that holds nothing. That of a holder may be anything: it has R.
    fn compare_clocks(&self, peers: Peers) -> Result<(), Stop> {
        let max_skew_ms = self.registry.bounds.max_skew_ms;
        let allowed = -max_skew_ms..=max_skew_ms;
        let off = |by_ms: i64, what: String| {
            let ms = by_ms.unsigned_abs();
            let side = if by_ms > 0 { "ahead of" } else { "behind" };
            refused(Status::Clock, format!("the clock is {ms} ms {side} {what}"))
        };
        let offset_ms = self.clock_offset_ms();
        if !allowed.contains(&offset_ms) {
            return off(offset_ms, "the registry's".into());
        }
        let median_ms = peers.offset_ms.filter(|_| peers.votes >= 2);
        let by_ms = offset_ms.saturating_sub(median_ms.unwrap_or(offset_ms));
        if !allowed.contains(&by_ms) {
            let votes = peers.votes;
            let whose = if peers.by_role { "roles" } else { "servers" };
            return off(by_ms, format!("the median of {votes} other {whose}"));
        }
        Ok(())
    }

    /// Vote of the other members that hold a worker id. Offsets measured by another registry's
    /// clock, before a promotion, are excluded.
    fn peers(&self) -> Peers {
        let is_peer = |row: &&Row| {
            let moved_at_ms = self.registry.moved_at_ms.unwrap_or(0);
            self.is_here()
                && row.renewed_at_ms.is_none_or(|at_ms| at_ms >= moved_at_ms)
                && row.reserved_until_ms > self.now_ms
                && !self.is_requester(row)
        };
        let rows = self.rows.iter().map(|(row, _)| row).filter(is_peer);
        let offsets = rows.filter_map(|row| Some((row.role.as_deref(), row.clock_offset_ms?)));
        peers::vote(
            offsets.collect(),
            self.requester.role,
            self.clock_offset_ms(),
        )
    }

    /// Checks how many worker ids this name has that have not passed.
    fn count_names(&self) -> Result<(), Stop> {
        let rows = self.rows.iter().map(|(row, _)| row);
        let of_name = |row: &&Row| {
            self.is_requester(row) && !row.retired && !self.has_passed(row.reserved_until_ms)
        };
        let mut live: Vec<&Row> = rows.filter(of_name).collect();
        if live.len() < MAX_PER_NAME {
            return Ok(());
        }
        live.sort_unstable_by_key(|row| row.worker_id);
        let first_ms = live.iter().map(|row| row.reserved_until_ms).min();
        let free_ms = first_ms.unwrap_or(0) + self.registry.bounds.max_skew_ms;
        sometimes!("registry: a name has enough worker ids");
        let ids: Vec<_> = live.iter().map(|row| row.worker_id.to_string()).collect();
        refused(
            Status::Full,
            format!(
                "node \"{}\" has worker ids {}, of servers that were rebooted or copied: the first is free after {}",
                shown(&self.request.node_name),
                ids.join(", "),
                (self.here.format_ms)(free_ms),
            ),
        )
    }

    /// True if the row is held by the requester's role.
    fn belongs(&self, row: &Row) -> bool {
        row.role.as_deref() == Some(self.requester.role)
    }

    /// True if the requester's role may have another worker id.
    fn is_below_limit(&self) -> bool {
        let Some(max) = self.registry.bounds.max_ids_per_role else {
            return true;
        };
        let in_service = self.rows.iter().filter(|(row, _)| !row.retired);
        let rows = in_service.filter(|(row, _)| self.belongs(row));
        self.requester.trusted || i64::try_from(rows.count()).is_ok_and(|count| count < max)
    }

    /// A worker id that has passed, locked, or one that was never granted.
    fn another(&self) -> Result<Row, Stop> {
        let is_below_limit = self.is_below_limit();
        let passed = self.rows.iter().filter(|(row, hold)| {
            // A locked row is being renewed.
            *hold != Hold::Busy
                && self.is_in_service(row)
                && self.has_passed(row.reserved_until_ms)
                && (is_below_limit || self.belongs(row))
        });
        let largest = self.request.layout.max_worker_id();
        let fresh = self.fresh(largest).filter(|_| is_below_limit);
        let fresh = fresh.map(|worker_id| Row {
            worker_id,
            ..Row::default()
        });
        let fresh = fresh.map(|row| (row, Hold::Locked));
        let rows = passed.chain(&fresh);
        // One of its own name first, then one that was never granted.
        let by_age = |(row, _): &&(Row, Hold)| {
            let is_used = row.leased_at_ms.is_some();
            let is_others = !self.is_requester(row);
            (is_others, is_used, row.reserved_until_ms, row.worker_id)
        };
        match rows.min_by_key(by_age) {
            Some((row, Hold::Locked)) => Ok(row.clone()),
            Some((row, _)) => Err(Stop::LockRow {
                worker_id: row.worker_id,
                wait: false,
            }),
            None => self.full(largest, is_below_limit),
        }
    }

    /// A worker id without a row.
    fn fresh(&self, largest: u16) -> Option<u16> {
        let mut taken = vec![false; usize::from(largest) + 1];
        let rows = self.rows.iter().map(|(row, _)| row.worker_id);
        for worker_id in rows.chain(self.here.worker_id) {
            if let Some(taken) = taken.get_mut(usize::from(worker_id)) {
                *taken = true;
            }
        }
        let mut all = (0..=largest).zip(taken);
        all.find_map(|(worker_id, taken)| (!taken).then_some(worker_id))
    }

    fn full(&self, largest: u16, is_below_limit: bool) -> Result<Row, Stop> {
        let detail = if is_below_limit {
            let all = u32::from(largest) + 1;
            format!("all {all} worker ids are leased or retired")
        } else {
            let role = shown(self.requester.role);
            let max = self.registry.bounds.max_ids_per_role.unwrap_or(0);
            format!(
                "role \"{role}\" has {max} worker ids, as many as \"max_ids_per_role\" in leaf_registry allows"
            )
        };
        refused(Status::Full, detail)
    }

    fn grant(&self, choice: Choice) -> (Grant, Row) {
        let Choice {
            row: before,
            floor_ms,
            is_new,
        } = choice;
        let worker_id = before.worker_id;
        // By both clocks, so that one that is wrong puts no R far ahead.
        let ahead_ms = self.registry.bounds.grant_ahead_ms;
        let latest_ms = self
            .now_ms
            .min(self.request.now_ms)
            .saturating_add(ahead_ms);
        let reserved_until_ms = before.reserved_until_ms.max(latest_ms.min(LAST_MS));
        let row = Row {
            worker_id,
            holder: Some(Holder {
                system_identifier: self.request.system_identifier,
                node_name: self.request.node_name.clone(),
            }),
            role: Some(self.requester.role.to_vec()),
            token: self.request.question.next_token,
            leased_at_ms: before
                .leased_at_ms
                .filter(|_| !is_new)
                .or(Some(self.now_ms)),
            renewed_at_ms: Some(self.now_ms),
            reserved_until_ms,
            floor_ms,
            clock_offset_ms: Some(self.clock_offset_ms()),
            retired: false,
            host: self.requester.host,
            address: self.requester.address.map(<[u8]>::to_vec),
        };
        let grant = Grant {
            worker_id,
            floor_ms,
            reserved_until_ms,
        };
        (grant, row)
    }
}
