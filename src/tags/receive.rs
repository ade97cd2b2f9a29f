//! What a claim on another server has brought: written down here.

use leaf_id_core::step::Pace;

use super::claim::{ClaimAnswer, TagSource, Written, new_incarnation, with_row};
use crate::error::RefillError;
use crate::pg::Caught;
use crate::shmem::{Access, Claimed, Key};

/// What the allocator knows of a tag when an answer has come from the source server.
pub struct Arrival {
    /// The row as it was when that server was asked.
    pub source: TagSource,
    /// What it has answered.
    pub answer: ClaimAnswer,
    /// How fast the tag was used so far.
    pub pace: Pace,
    /// The adaptive step that it was asked with.
    pub step: u32,
    /// When a segment was first asked for, in Unix milliseconds ...
    pub asked_ms: i64,
    /// ... and the clock.
    pub now_ms: i64,
    /// `incarnation` of the row that was published from, 0 for none ...
    pub row_incarnation: i64,
    /// ... and one past the last id that was.
    pub high: i64,
    /// Who may take from the slot, as far as that is known.
    pub access: Access,
}

/// Why what another server has answered is not used: it is a gap.
pub enum Unreceived {
    /// The row is not the one any more for which that server was asked.
    Replaced,
    /// The row's own `max_value` has passed, or that server is behind.
    Tag(RefillError),
    /// PostgreSQL has raised an error.
    Raised(Caught),
}

impl From<Caught> for Unreceived {
    fn from(error: Caught) -> Self {
        Self::Raised(error)
    }
}

impl From<RefillError> for Unreceived {
    fn from(error: RefillError) -> Self {
        match error {
            RefillError::NoSuchTag => Self::Replaced,
            error => Self::Tag(error),
        }
    }
}

/// Writes down what another server has answered, in the open transaction: the ids may be
/// used once that is durable. The truth is there, and no id depends on this; but it is how
/// a server that has lost claims is noticed.
///
/// Another incarnation of the row there is a new incarnation of the row here: the ids may be lower.
/// # Errors
/// See [`Unreceived`]; the transaction is then to be rolled back.
pub fn receive(key: &Key, arrival: &Arrival) -> Result<Claimed, Unreceived> {
    let Arrival { source, answer, .. } = arrival;
    with_row(key, |locked, row| {
        let is_same = row.incarnation == source.row_incarnation
            && row.server == Some(source.server)
            && row.server_incarnation == source.server_incarnation;
        if !is_same {
            return Err(Unreceived::Replaced);
        }
        let reset = row.server_incarnation != 0 && row.server_incarnation != answer.incarnation;
        let published = if row.incarnation == arrival.row_incarnation {
            arrival.high
        } else {
            0
        };
        let received = row.max_id().max(published);
        if !reset && answer.first < received {
            let answered = answer.first;
            return Err(RefillError::ServerBehind { received, answered }.into());
        }
        let left = row
            .max_value()
            .saturating_sub(answer.first)
            .saturating_add(1);
        if left < 1 {
            let max_value = row.max_value();
            return Err(RefillError::EndOfTag { max_value, skip: 0 }.into());
        }
        let len = u32::try_from(left).map_or(answer.len, |left| answer.len.min(left));
        let incarnation = if reset {
            new_incarnation()
        } else {
            row.incarnation
        };
        let pace = if row.incarnation == arrival.row_incarnation {
            arrival.pace
        } else {
            Pace::default()
        };
        // As much as that server gives at once, where that is less.
        let step = arrival.step.min(answer.len);
        let claimed = Claimed {
            first: answer.first,
            len,
            row_incarnation: incarnation,
            pace: pace.claimed(arrival.asked_ms, arrival.now_ms, step, row.limits),
            max_step: row.limits.max_step.min(answer.max_step),
            skipped: answer.skipped,
            access: row.access(&key.tag, arrival.row_incarnation, arrival.access),
        };
        locked.write(&Written {
            max_id: claimed.end(),
            largest_recent: len,
            incarnation,
            server_incarnation: answer.incarnation,
        });
        Ok(claimed)
    })
}
