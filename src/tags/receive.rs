//! Recording of claims made on a source server.

use leaf_id_core::row::{ClaimAnswer, Discarded};
use leaf_id_core::sometimes;

use super::claim::{Ask, TagSource, here, new_incarnation, raised, with_row};
use super::{heap, mark};
use crate::error::RefillError;
use crate::pg::Caught;
use crate::shmem::{Claimed, Key};

/// A source server's claim, not yet recorded in the local row.
#[derive(Clone, Copy)]
pub struct Received {
    /// The row at the time of the request.
    pub source: TagSource,
    /// The answer.
    pub answer: ClaimAnswer,
    /// Requested number of ids, by the adaptive step.
    pub step: u32,
}

/// Reason to discard an answer; its ids become a gap.
pub enum Unreceived {
    /// The row was replaced, or has been sourced differently, since the request.
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

/// Records a source server's answer in the open transaction. The ids may be used once that is
/// durable. The source server's row is authoritative and no id depends on this record, but it
/// detects a source server that has lost claims.
///
/// A new incarnation of the row there becomes a new incarnation here, since its ids may be lower.
///
/// # Errors
/// See [`Unreceived`]; the caller must roll back.
pub fn receive(key: &Key, ask: &Ask, received: &Received) -> Result<Claimed, Unreceived> {
    let Received {
        source,
        answer,
        step,
    } = received;
    with_row(key, |locked, alloc| {
        let row = &alloc.row;
        let claim = row.received(&source.row, answer, &here(), new_incarnation());
        let claim = claim.map_err(|discarded| match discarded {
            Discarded::Replaced => Unreceived::Replaced,
            Discarded::Behind => Unreceived::Tag(RefillError::ServerBehind {
                received: row.max_id,
                answered: answer.first,
            }),
            Discarded::End => Unreceived::Tag(RefillError::EndOfTag {
                max_value: row.max_value,
                skip: 0,
            }),
        })?;
        // The source server may have given less than requested.
        let step = answer.len.min(*step);
        let claimed = Claimed {
            first: claim.first,
            len: claim.len,
            row_incarnation: claim.row.incarnation,
            pace: (ask.pace_of(row)).claimed(ask.asked_ms, ask.now_ms, step, row.limits),
            max_step: row.limits.max_step.min(answer.max_step),
            skipped: answer.skipped,
            access: alloc.access(&key.tag, ask.row_incarnation, ask.access),
        };
        let is_reset = claim.row.incarnation != row.incarnation;
        sometimes!("answer: of a tag that was reset there", is_reset);
        // If a tool takes back the row and the tag is then dropped, the name goes on above. A reset
        // there is one of the name here, too: a tag that was created again would refuse the answers.
        let mark = raised(mark::lock(&key.tag));
        let (name, high) = (heap::key(&key.tag), claim.row.max_id);
        if is_reset {
            mark.set(name, high);
        } else {
            mark.raise(name, high);
        }
        locked.write(&claim.row);
        Ok(claimed)
    })
}
