//! What becomes of the row of a tag and of the mark of its name: everything that decides it.
//!
//! A row is a name with settings. People edit it, tools rewrite it, and failovers set it back. The
//! position up to which ids of the name were claimed must never go back. It is stored twice: in the
//! row's `max_id`, and in the mark of the name, one past the highest id ever claimed under the name
//! in this database. If one of the two is set back, the next claim corrects it from the other.
//!
//! The callers, `src/tags`, read rows and marks, and write what is returned here.
//! tests/row_explorer.rs runs the same functions through every history of small models, and prints
//! the shortest history that issues an id twice if a rule is left out.

use serde::{Deserialize, Serialize};

use crate::step::{self, Decay, Limits};

/// The server that decides.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    /// Identifier of its database system.
    pub system: u64,
    /// Its timeline.
    pub timeline: u32,
    /// Max claims of a tag that a promotion may have lost (`leaf_id.failover_skip`).
    pub lost_claims: u32,
}

/// A row's record of its last claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LastClaim {
    /// Identifier of the database system.
    pub system: u64,
    /// Timeline.
    pub timeline: u32,
    /// Largest recent claim, in ids; 0 if the row was written with triggers disabled.
    pub largest: u32,
}

impl LastClaim {
    fn made(here: &Here, largest: u32) -> Self {
        Self {
            system: here.system,
            timeline: here.timeline,
            largest,
        }
    }

    /// Number of promotions since then whose lost claims may be missing here. If another system has
    /// made the claim, the row was dumped or upgraded, and its timeline does not apply: any promotion
    /// of this system may have lost the first claim here.
    #[must_use]
    pub fn promotions(&self, here: &Here) -> u32 {
        if self.system != here.system {
            here.timeline.saturating_sub(1)
        } else if self.timeline == here.timeline {
            0
        } else {
            here.timeline.saturating_sub(self.timeline).max(1)
        }
    }
}

/// The columns of a row that say which ids it gives. `S` names a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TagRow<S> {
    /// The lowest id not yet claimed.
    pub max_id: i64,
    /// The largest valid id.
    pub max_value: i64,
    /// Limits of a claim.
    pub limits: Limits,
    /// Tells the row from an earlier or later one of the same tag.
    pub incarnation: i64,
    /// The last claim.
    pub last_claim: LastClaim,
    /// The server that the tag is sourced from.
    pub server: Option<S>,
    /// `incarnation` of the source server's row that the last segment came from; 0 if none.
    pub server_incarnation: i64,
}

/// Ids taken from a row.
#[derive(Debug, Clone, Copy)]
pub struct Claim<S> {
    /// The row afterwards; its `max_id` is also the mark.
    pub row: TagRow<S>,
    /// First id.
    pub first: i64,
    /// Number of ids.
    pub len: u32,
}

/// What an UPDATE depends on besides the two rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Update {
    /// The name changes.
    pub is_renamed: bool,
    /// It is replicated, and must not be refused.
    pub is_replicated: bool,
    /// [`TagRow::skip`] of the old row.
    pub skip: u64,
    /// Mark of the old name; 0 for none.
    pub mark: i64,
    /// One past the last id that the open transaction has issued of the tag; 0 for none.
    pub issued: i64,
}

/// A claim that a source server has made for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClaimAnswer {
    /// First id.
    pub first: i64,
    /// Number of ids.
    pub len: u32,
    /// `incarnation` of the row they came from.
    pub incarnation: i64,
    /// `max_step` of the row.
    pub max_step: u32,
    /// `max_value` of the row.
    pub max_value: i64,
    /// Ids skipped before the first one because of a failover.
    pub skipped: u64,
}

/// Reason to discard a source server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// The row was replaced, or has been sourced differently, since the request.
    Replaced,
    /// That server hands out ids below those received.
    Behind,
    /// The ids are above `max_value`.
    End,
}

/// Where the ids of a name go on: above the `max_id` of its row and its mark (0 for none), plus the
/// ids to skip. A claim begins there, a row that comes begins there, and a row that goes leaves it
/// as the mark: lost claims are skipped at once, before another row starts there.
#[must_use]
pub fn next(max_id: i64, mark: i64, skip: u64) -> i64 {
    max_id.max(mark).saturating_add_unsigned(skip)
}

impl<S: Copy + PartialEq> TagRow<S> {
    /// Number of ids to skip before the next claim, as promotions may have lost claims.
    ///
    /// For one promotion, these are the claims that may have come next, also after an edit. For more, the servers on the
    /// timelines in between have skipped as many, and may have lost claims above that. Those grew
    /// from claims that are unknown here, so `d` promotions require `2d - 1` times the longest
    /// claims. No claim of a sourced tag is made from its row.
    #[must_use]
    pub fn skip(&self, here: &Here) -> u64 {
        let claims = here.lost_claims;
        match u64::from(self.last_claim.promotions(here)) {
            _ if self.server.is_some() => 0,
            0 => 0,
            // An edit that was lost has made the largest recent claim a whole step.
            1 => {
                let largest = self.largest_recent().max(self.limits.step);
                step::most_taken(claims, largest, self.limits)
            }
            d => (u64::from(claims) * u64::from(self.limits.max_step)).saturating_mul(2 * d - 1),
        }
    }

    fn largest_recent(&self) -> u32 {
        match self.last_claim.largest {
            0 => self.limits.step,
            largest => largest,
        }
    }

    /// Max length of the next claim, in ids.
    #[must_use]
    pub fn longest_claim(&self) -> u32 {
        step::longest_claim(self.largest_recent(), self.limits)
    }

    /// Claims ids: as many as wanted, up to [`Self::longest_claim`] and `max_value`. `None` if the
    /// tag is at its end.
    #[must_use]
    pub fn claim(
        &self,
        mark: i64,
        skip: u64,
        here: &Here,
        wanted: u32,
        decay: Decay,
    ) -> Option<Claim<S>> {
        let first = next(self.max_id, mark, skip);
        debug_assert!(first >= self.max_id && first >= mark, "claimed before");
        let len = up_to(wanted.min(self.longest_claim()), first, self.max_value)?;
        let largest = step::largest_recent(self.largest_recent(), len, decay);
        Some(self.taken(first, len, LastClaim::made(here, largest)))
    }

    fn taken(&self, first: i64, len: u32, last_claim: LastClaim) -> Claim<S> {
        debug_assert!(
            self.max_value - first >= i64::from(len) - 1,
            "beyond the end"
        );
        let row = Self {
            max_id: first + i64::from(len),
            last_claim,
            ..*self
        };
        Claim { row, first, len }
    }

    /// A row that was inserted, or reset by an UPDATE to incarnation 0. One from a dump keeps its
    /// incarnation: servers that source from it must not take it for a reset. `incarnation`: a new
    /// one.
    #[must_use]
    pub fn begun(&self, here: &Here, incarnation: i64) -> Self {
        Self {
            incarnation: match self.incarnation {
                0 => incarnation,
                dumped => dumped,
            },
            last_claim: LastClaim::made(here, self.limits.step),
            server_incarnation: 0,
            ..*self
        }
    }

    /// A row that comes under a name with this mark.
    #[must_use]
    pub fn raised_to(&self, mark: i64) -> Self {
        Self {
            max_id: next(self.max_id, mark, 0),
            ..*self
        }
    }

    /// The row to write for an UPDATE of `old` to this one; `None` if it would lower `max_id`, and
    /// is not replicated. Where it [`Self::arrives`], it is also [`Self::raised_to`] the mark of its
    /// name.
    #[must_use]
    pub fn updated(&self, old: &Self, here: &Here, update: &Update) -> Option<Self> {
        if self.max_id < old.max_id && !update.is_replicated {
            return None;
        }
        let mut max_id = self.max_id.max(old.max_id);
        // The skip depends on the limits of the lost claims, so it is applied before they change.
        // Even beyond max_value: the old primary may have raised and used that. And a tool may have
        // taken claims back from the row, which leaves its name, or is dumped or released next. (A
        // sourced row goes by its source.)
        if update.skip > 0 || update.is_renamed || old.server.is_none() {
            max_id = max_id.max(next(old.max_id, update.mark, update.skip));
        }
        let arrives = self.arrives(old, update.is_renamed);
        if arrives {
            // From now on, the source server's ids are compared with max_id alone.
            max_id = max_id.max(update.issued);
        }
        Some(Self {
            max_id,
            incarnation: old.incarnation,
            last_claim: LastClaim {
                // A larger step may be claimed at once.
                largest: old.last_claim.largest.max(self.limits.step),
                ..match update.skip {
                    0 => old.last_claim,
                    _ => LastClaim::made(here, 0),
                }
            },
            // Under another name, the ids come from another row of the source server, or its row was
            // renamed, too. 0 accepts any source row whose ids are above max_id.
            server_incarnation: if arrives { 0 } else { old.server_incarnation },
            ..*self
        })
    }

    /// True if an UPDATE of `old` brings the row under another name, or has its ids come from another
    /// server.
    #[must_use]
    pub fn arrives(&self, old: &Self, is_renamed: bool) -> bool {
        is_renamed || self.server != old.server
    }

    /// This row with the `max_id` of a replicated one that comes under its name, which is left out.
    /// `None` if it stays as it is. The source server knows which ids of a sourced tag are in use.
    #[must_use]
    pub fn merged(&self, max_id: i64) -> Option<Self> {
        let is_raised = self.server.is_none() && max_id > self.max_id;
        is_raised.then_some(Self { max_id, ..*self })
    }

    /// Records an answer to a request made for the row `asked`. A new incarnation of the row there
    /// becomes a new one here, since its ids may be lower.
    ///
    /// # Errors
    /// See [`Discarded`].
    pub fn received(
        &self,
        asked: &Self,
        answer: &ClaimAnswer,
        here: &Here,
        incarnation: i64,
    ) -> Result<Claim<S>, Discarded> {
        let identity = |row: &Self| (row.incarnation, row.server, row.server_incarnation);
        if identity(self) != identity(asked) {
            return Err(Discarded::Replaced);
        }
        let is_reset = ![0, answer.incarnation].contains(&self.server_incarnation);
        if !is_reset && answer.first < self.max_id {
            return Err(Discarded::Behind);
        }
        let len = up_to(answer.len, answer.first, self.max_value).ok_or(Discarded::End)?;
        let row = Self {
            incarnation: if is_reset {
                incarnation
            } else {
                self.incarnation
            },
            server_incarnation: answer.incarnation,
            ..*self
        };
        Ok(row.taken(answer.first, len, LastClaim::made(here, len)))
    }

    /// True if ids up to `last` that were saved from a row with this incarnation and `max_id` may be
    /// issued: it was not edited, and no claim came in between.
    #[must_use]
    pub fn fits(&self, incarnation: i64, max_id: i64, last: i64) -> bool {
        (self.incarnation, self.max_id) == (incarnation, max_id) && last <= self.max_value
    }
}

/// What the open transaction has made of the tag under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edited<T> {
    /// Created, under a name that it had not touched: no other session can see the tag, so the
    /// transaction issues its ids itself.
    Created(T),
    /// Edited otherwise: no ids until the transaction commits, since it may roll back.
    Changed,
    /// Only the list of roles has changed, which takes effect when the transaction commits.
    Regranted,
}

/// What an edit makes of the old name and of the new one. `new`: the new row, and what is known of
/// it if it is created; `known`: what the transaction has made of its name before.
#[must_use]
pub fn edited<S: Copy + PartialEq, T>(
    known: Option<&Edited<T>>,
    old: Option<&TagRow<S>>,
    new: Option<(&TagRow<S>, T)>,
    is_renamed: bool,
    is_regranted: bool,
) -> [Option<Edited<T>>; 2] {
    use Edited::{Changed, Created, Regranted};
    let ids = |row: &TagRow<S>| (row.incarnation, row.max_id, row.max_value, row.server);
    match (old, new) {
        (None, Some((_, created))) if known.is_none() => [None, Some(Created(created))],
        (None, Some(_)) => [None, Some(Changed)],
        (_, None) => [Some(Changed), None],
        (Some(old), Some((new, created)))
            if matches!(known, Some(Created(_)))
                && !is_renamed
                && old.incarnation == new.incarnation =>
        {
            [None, Some(Created(created))]
        }
        (Some(old), Some((new, _))) if is_renamed || ids(old) != ids(new) => {
            [Some(Changed), Some(Changed)]
        }
        _ if is_regranted && known.is_none() => [None, Some(Regranted)],
        _ => [None, None],
    }
}

/// `len`, or as many ids as there are from `first` to `max_value`; `None` if there are none.
fn up_to(len: u32, first: i64, max_value: i64) -> Option<u32> {
    let left = max_value.saturating_sub(first).saturating_add(1);
    (left > 0).then(|| u32::try_from(left).map_or(len, |left| len.min(left)))
}
