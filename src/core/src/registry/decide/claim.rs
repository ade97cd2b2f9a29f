//! Choice of the worker id for a claim.
//!
//! A row with the requester's role, system and node name is its own row. With the row's token, the
//! requester proves that it is the holder and not a copy. Before its own row, two others count:
//!
//! * *inherited*: the registry's own server gets the worker id of its predecessor, unless it shows
//!   the token of its own row outside of a grace. During a grace, another server may have had that
//!   row, and that may have been lost.
//! * *entered*: during a grace, a requester gets the worker id that it holds according to its last
//!   answer, although the registry has forgotten it.
//!
//! | own row | token | lease | without a grace | during a grace |
//! | --- | --- | --- | --- | --- |
//! | none | | | inherited, another | inherited, entered, refused: Grace |
//! | usable | shown | live | its own | inherited, entered, its own |
//! | usable | shown | ended | its own, above the moved floor | inherited, entered, refused: Grace |
//! | unusable | shown | any | another | inherited, refused: Grace |
//! | any | not shown | may be live | inherited, refused: Held | inherited, entered, refused: Held |
//! | usable | not shown | ended | inherited, its own above all its ids | inherited, entered, refused: Grace |
//! | unusable | not shown | ended | inherited, another | inherited, refused: Grace |
//!
//! A row is unusable if it is retired, or beyond the layout, which may have been changed for one with
//! fewer worker ids. A retired row is never entered. Another worker id is a free one, or one whose
//! lease has ended; without either, the claim is refused (Full). The worker id that the registry's own
//! server has by hand counts as retired.

use super::super::terms::{Bounds, Hold, Row};
use super::{Case, Choice, Stop, refused, shown};
use crate::lease::Status;
use crate::sometimes;

/// The requester's own row: see the table in this file's header.
enum Own {
    Missing,
    /// Its token is shown, and its lease is live.
    Held(Row),
    /// Its token is shown, and its lease has ended.
    Ended(Row),
    /// Its token is not shown, and its lease may be live.
    Contested(Row),
    /// Its token is not shown, and its lease has ended.
    Unproven(Row),
    Unusable,
}

impl Case<'_> {
    pub(super) fn claim(&self) -> Result<Choice, Stop> {
        let own = self.own()?;
        let in_grace = self.grace_ms.is_some();
        let shows_token = own.as_ref().is_some_and(|row| self.shows_token(row));
        if (in_grace || !shows_token)
            && let Some(inherited) = self.inherit()?
        {
            return Ok(inherited);
        }
        if in_grace && let Some(entered) = self.enter(own.as_ref())? {
            return Ok(entered);
        }
        match (self.state(own), in_grace) {
            (Own::Held(row), _) => Ok(Choice::kept(row, 0)),
            (Own::Contested(row), _) => {
                sometimes!("registry: a claim for another's worker id");
                self.contested(&row)
            }
            (_, true) => {
                sometimes!("registry: a claim waits for the end of the grace");
                self.in_grace()
            }
            (Own::Missing | Own::Unusable, false) => self.other(),
            // The requester knows which ids it has issued itself.
            (Own::Ended(row), false) => Ok(Choice::kept(row, self.moved_floor())),
            (Own::Unproven(row), false) => {
                sometimes!("registry: a node without its token, after its lease");
                Ok(Choice {
                    floor_ms: self.floor_above(&row),
                    row,
                })
            }
        }
    }

    /// The requester's own row, locked.
    fn own(&self) -> Result<Option<Row>, Stop> {
        let mut rows = self.rows.iter().map(|(row, _)| row);
        let Some(row) = rows.find(|row| self.is_requester(row)) else {
            return Ok(None);
        };
        self.lock(row.worker_id)
    }

    fn state(&self, own: Option<Row>) -> Own {
        let Some(row) = own else {
            return Own::Missing;
        };
        let is_usable = !self.is_retired(&row) && self.is_in_layout(&row);
        match self.shows_token(&row) {
            true if !is_usable => Own::Unusable,
            true if row.is_live(self.now_ms()) => Own::Held(row),
            true => Own::Ended(row),
            // As for any other requester.
            false if self.may_be_live(&row) => Own::Contested(row),
            false if is_usable => Own::Unproven(row),
            false => Own::Unusable,
        }
    }

    fn contested(&self, row: &Row) -> Result<Choice, Stop> {
        let until = row
            .lease_until_ms
            .map_or(String::new(), self.here.format_ms);
        let (id, node) = (row.worker_id, shown(&self.request.node_name));
        refused(
            Status::Held,
            format!(
                "worker id {id} is leased until {until} to node \"{node}\", which this server is not, or is a copy of"
            ),
        )
    }

    /// The worker id of the registry's previous server, for its current one. Like a worker id that
    /// is not leased, it passes on with the replicated data, and its previous holder is down. So
    /// neither its lease nor a grace is waited for, and the recorded reservation does not count:
    /// the floor is above everything that another server of the cluster can have issued.
    fn inherit(&self) -> Result<Option<Choice>, Stop> {
        if !self.requester.host {
            return Ok(None);
        }
        let passes_on = |row: &Row| {
            let holder = row.holder.as_ref();
            row.host
                && !row.retired
                && self.is_in_layout(row)
                && holder.is_some_and(|holder| {
                    holder.system_identifier == self.request.system_identifier
                })
        };
        let mut rows = self.rows.iter().map(|(row, _)| row);
        let Some(found) = rows.find(|row| passes_on(row)) else {
            return Ok(None);
        };
        let row = self.lock(found.worker_id)?;
        // As for a worker id that is not leased, use the settings that these servers share: the max
        // lead, plus the possible difference of their clocks. The registry's bounds may be smaller.
        let above_others_ms = self.now_ms().saturating_add(self.request.max_lead_ms);
        // And above earlier holders.
        Ok(row.map(|row| Choice::kept(row, above_others_ms)))
    }

    /// The worker id that the requester holds according to its last answer, although the registry
    /// has forgotten it.
    fn enter(&self, own: Option<&Row>) -> Result<Option<Choice>, Stop> {
        let Some(held) = self.request.question.held else {
            return Ok(None);
        };
        let (worker_id, until_ms) = (held.worker_id, held.reserved_until_ms);
        if own.is_some_and(|own| own.worker_id != worker_id) {
            return Ok(None);
        }
        let found = match own {
            Some(own) => Some(own.clone()),
            None => self.lock(worker_id)?,
        };
        let row = found.unwrap_or_else(|| Row {
            worker_id,
            ..Row::default()
        });
        // A stale copy of the holder was granted an earlier time than recorded; a released holder,
        // at most the recorded one.
        let earliest = row.reserved_until_ms + i64::from(own.is_none());
        // No holder was granted a later time than the max lease, lead and skew allow.
        let Bounds {
            max_skew_ms,
            max_lease_ms,
            max_lead_ms,
            ..
        } = self.registry.bounds;
        let latest = self.now_ms() + max_lease_ms + max_lead_ms + 2 * max_skew_ms;
        let free = own.is_some()
            || !self.may_be_live(&row)
                && row.admits(self.requester)
                && (self.belongs(&row) || self.below_limit());
        let kept = row.host && own.is_none();
        let enters =
            (earliest..=latest).contains(&until_ms) && !self.is_retired(&row) && !kept && free;
        Ok(enters.then_some(Choice::kept(
            Row {
                reserved_until_ms: until_ms.max(row.reserved_until_ms),
                ..row
            },
            0,
        )))
    }

    /// False if the layout was changed for one with fewer worker ids.
    fn is_in_layout(&self, row: &Row) -> bool {
        row.worker_id <= self.request.layout.max_worker_id()
    }

    /// True if the row is held by the requester's role.
    fn belongs(&self, row: &Row) -> bool {
        row.role.as_deref() == Some(self.requester.role)
    }

    /// True if the requester's role may have another worker id, not counting the requester's own.
    fn below_limit(&self) -> bool {
        let Some(max) = self.registry.bounds.max_ids_per_role else {
            return true;
        };
        let others = self.rows.iter().map(|(row, _)| row);
        let others = others.filter(|row| self.belongs(row) && !self.is_requester(row));
        self.requester.trusted || i64::try_from(others.count()).is_ok_and(|count| count < max)
    }

    /// A worker id that was never leased, or whose lease has ended.
    fn other(&self) -> Result<Choice, Stop> {
        let below_limit = self.below_limit();
        let largest = self.request.layout.max_worker_id();
        if below_limit {
            let mut taken = vec![false; usize::from(largest) + 1];
            for (row, _) in self.rows {
                if let Some(taken) = taken.get_mut(usize::from(row.worker_id)) {
                    *taken = true;
                }
            }
            if let Some(taken) = self
                .here
                .worker_id
                .and_then(|own| taken.get_mut(usize::from(own)))
            {
                *taken = true;
            }
            let free = (0..=largest).zip(&taken).find(|(_, taken)| !**taken);
            if let Some((worker_id, _)) = free {
                return Ok(Choice {
                    row: Row {
                        worker_id,
                        ..Row::default()
                    },
                    floor_ms: self.moved_floor(),
                });
            }
        }
        let ended = self.rows.iter().filter(|(row, hold)| {
            // A locked row is being renewed.
            *hold != Hold::Busy
                && !self.is_retired(row)
                && self.is_in_layout(row)
                && (!row.host || self.requester.host)
                && !self.may_be_live(row)
                && (below_limit || self.belongs(row))
        });
        // Avoid a worker id reserved far ahead if there is another.
        let oldest =
            ended.min_by_key(|(row, _)| (self.floor_above(row), row.lease_until_ms, row.worker_id));
        match oldest {
            Some((row, Hold::Locked)) => Ok(Choice {
                floor_ms: self.floor_above(row),
                row: row.clone(),
            }),
            Some((row, _)) => Err(Stop::LockRow {
                worker_id: row.worker_id,
                wait: false,
            }),
            None if below_limit => {
                let all = u32::from(largest) + 1;
                refused(
                    Status::Full,
                    format!("all {all} worker ids are leased or retired"),
                )
            }
            None => {
                let role = shown(self.requester.role);
                let max = self.registry.bounds.max_ids_per_role.unwrap_or(0);
                refused(
                    Status::Full,
                    format!(
                        "role \"{role}\" has {max} worker ids, as many as \"max_ids_per_role\" in leaf_registry allows"
                    ),
                )
            }
        }
    }
}
