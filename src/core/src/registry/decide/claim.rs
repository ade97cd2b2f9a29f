//! Choice of the worker id for a claim: the requester's previous one, the one it inherits as the
//! registry's server, one that it holds but the registry has forgotten, or another one.

use super::super::terms::{Bounds, Hold, Row};
use super::{Case, Choice, Stop, refused, shown};
use crate::lease::Status;

impl Case<'_> {
    pub(super) fn claim(&self) -> Result<Choice, Stop> {
        let mut rows = self.rows.iter().map(|(row, _)| row);
        let own = rows.find(|row| self.is_requester(row));
        if let Some(row) = own {
            self.admit(row)?;
        }
        let own = match own {
            Some(row) => self.lock(row.worker_id)?,
            None => None,
        };
        let known = own.as_ref().is_some_and(|row| self.shows_token(row));
        // During a grace, another server may have had it, and that may have been lost.
        if (!known || self.grace_ms.is_some())
            && let Some(inherited) = self.inherit()?
        {
            return Ok(inherited);
        }
        let live = own.as_ref().is_some_and(|row| {
            if known {
                row.is_live(self.now_ms())
            } else {
                // As for any other requester.
                self.may_be_live(row)
            }
        });
        if self.grace_ms.is_some()
            && let Some(entered) = self.enter(own.as_ref())?
        {
            return Ok(entered);
        }
        let Some(row) = own else {
            return match self.grace_ms {
                Some(_) => self.in_grace(),
                None => self.other(),
            };
        };
        if live && !known {
            let until = row
                .lease_until_ms
                .map_or(String::new(), self.here.format_ms);
            let (id, node) = (row.worker_id, shown(&self.request.node_name));
            return refused(
                Status::Held,
                format!(
                    "worker id {id} is leased until {until} to node \"{node}\", which this server is not, or is a copy of"
                ),
            );
        }
        if self.grace_ms.is_some() && (row.retired || !live) {
            return self.in_grace();
        }
        if row.retired {
            return self.other();
        }
        Ok(Choice {
            floor_ms: match (known, live) {
                (true, true) => 0,
                // The requester knows which ids it has issued itself.
                (true, false) => self.moved_floor(),
                (false, _) => self.floor_above(&row),
            },
            row,
            entered_until_ms: None,
            stays: known,
        })
    }

    /// The worker id of the registry's previous server, for its current one. Like a worker id that
    /// is not leased, it passes on with the replicated data, and its previous holder is down. So
    /// neither its lease nor a grace is waited for, and the recorded reservation does not count:
    /// the floor is above everything that another server of the cluster can have issued.
    fn inherit(&self) -> Result<Option<Choice>, Stop> {
        if !self.requester.host {
            return Ok(None);
        }
        let largest = self.request.layout.max_worker_id();
        let passes_on = |row: &Row| {
            let holder = row.holder.as_ref();
            row.host
                && !row.retired
                && row.worker_id <= largest
                && holder.is_some_and(|holder| {
                    holder.system_identifier == self.request.system_identifier
                })
        };
        let mut rows = self.rows.iter().map(|(row, _)| row);
        let Some(found) = rows.find(|row| passes_on(row)) else {
            return Ok(None);
        };
        let row = self.lock(found.worker_id)?.filter(passes_on);
        // As for a worker id that is not leased, use the settings that these servers share: the max
        // lead, plus the possible difference of their clocks. The registry's bounds may be smaller.
        let above_others_ms = self.now_ms().saturating_add(self.request.max_lead_ms);
        Ok(row.map(|row| Choice {
            // And above earlier holders.
            floor_ms: above_others_ms.max(row.floor_ms),
            row,
            entered_until_ms: None,
            stays: false,
        }))
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
        let enters = (earliest..=latest).contains(&until_ms) && !row.retired && !kept && free;
        Ok(enters.then_some(Choice {
            row,
            floor_ms: 0,
            entered_until_ms: Some(until_ms),
            stays: true,
        }))
    }

    /// True if the row is held by the requester's role.
    fn belongs(&self, row: &Row) -> bool {
        row.holder.is_some() && row.role.as_deref() == Some(self.requester.role)
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
            let free = (0..=largest).zip(&taken).find(|(_, taken)| !**taken);
            if let Some((worker_id, _)) = free {
                return Ok(Choice {
                    row: Row {
                        worker_id,
                        ..Row::default()
                    },
                    floor_ms: self.moved_floor(),
                    entered_until_ms: None,
                    stays: false,
                });
            }
        }
        let ended = self.rows.iter().filter(|(row, hold)| {
            // A locked row is being renewed.
            *hold != Hold::Busy
                && !row.retired
                && row.worker_id <= largest
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
                entered_until_ms: None,
                stays: false,
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
