//! Rows of small worlds.

use leaf_id_core::row::{self, Here, Update};
use leaf_id_core::step::{Decay, Limits};

use super::search::{Ids, narrow};

/// The columns of a row, in a few bytes: a search remembers millions of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// First id not yet claimed.
    pub max_id: u8,
    /// Distinguishes rows of the same name; 0 for one that is not inserted yet.
    pub incarnation: u8,
    /// System and timeline of the last claim.
    pub system: u8,
    pub timeline: u8,
    /// Ids per claim. They do not grow here; they do in `chains`.
    pub step: u8,
    /// The center that the tag is sourced from, ...
    pub server: Option<u8>,
    /// ... and the incarnation of its row; 0 before the first answer.
    pub server_incarnation: u8,
}

impl Row {
    /// A row that claims one id at a time.
    pub const fn new(max_id: u8) -> Self {
        Self {
            max_id,
            incarnation: 0,
            system: 1,
            timeline: 1,
            step: 1,
            server: None,
            server_incarnation: 0,
        }
    }

    /// The same for the shipped code.
    pub fn full(self) -> row::TagRow<u8> {
        let step = self.step.into();
        row::TagRow {
            max_id: self.max_id.into(),
            max_value: i64::from(Ids::LAST) - 1,
            limits: Limits {
                step,
                max_step: step,
            },
            incarnation: self.incarnation.into(),
            last_claim: row::LastClaim {
                system: self.system.into(),
                timeline: self.timeline.into(),
                largest: step,
            },
            server: self.server,
            server_incarnation: self.server_incarnation.into(),
        }
    }

    /// The row inserted or reset, at or above this mark.
    pub fn begun(self, mark: u8, here: &Here, incarnation: u8) -> Self {
        let begun = self.full().begun(here, incarnation.into());
        begun.raised_to(mark.into()).into()
    }

    /// The row updated to another one. `mark`: that of the new name.
    pub fn updated(self, to: Self, mark: u8, here: &Here, update: &Update) -> Option<Self> {
        let (old, new) = (self.full(), to.full());
        let updated = new.updated(&old, here, update)?;
        Some(if new.arrives(&old, update.is_renamed) {
            updated.raised_to(mark.into()).into()
        } else {
            updated.into()
        })
    }

    /// Claims ids. Returns the first; the others are below the new `max_id`.
    pub fn claim(&mut self, mark: u8, skip: u64, here: &Here) -> Option<u8> {
        let row = self.full();
        let claim = row.claim(mark.into(), skip, here, self.step.into(), Decay::Alone)?;
        *self = claim.row.into();
        Some(narrow(claim.first))
    }
}

/// The mark that a row leaves, and where another one begins.
pub fn next(max_id: u8, mark: u8, skip: u64) -> u8 {
    narrow(row::next(max_id.into(), mark.into(), skip))
}

impl From<row::TagRow<u8>> for Row {
    fn from(row: row::TagRow<u8>) -> Self {
        Self {
            max_id: narrow(row.max_id),
            incarnation: narrow(row.incarnation),
            system: narrow(row.last_claim.system.cast_signed()),
            timeline: narrow(row.last_claim.timeline.into()),
            step: narrow(row.limits.step.into()),
            server: row.server,
            server_incarnation: narrow(row.server_incarnation),
        }
    }
}

/// A server that is not promoted.
pub const HERE: Here = Here {
    system: 1,
    timeline: 1,
    lost_claims: 1,
};

/// A server of the first system, on a timeline.
pub fn here(timeline: impl Into<u32>) -> Here {
    Here {
        timeline: timeline.into(),
        ..HERE
    }
}
