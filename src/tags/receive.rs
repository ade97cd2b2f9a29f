//! What a claim on another server has brought: written down here, with the key of an opaque tag.

use leaf_id_core::step::Pace;

use super::claim::{Answer, LockedRow, TagSource, Written, new_incarnation, raised, with_row};
use super::heap::{self, AllocRow, Edit};
use super::opaque::{self, Handed, Opaque};
use crate::error::TagError;
use crate::pg::Value;
use crate::shmem::{Claimed, Key};

/// What the allocator knows of a tag when an answer has come from the source server.
pub struct Arrival {
    /// The row as it was when that server was asked.
    pub source: TagSource,
    /// What it has answered.
    pub answer: Answer,
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
}

/// Why what another server has answered is not used: it is a gap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unreceived {
    /// The row is not the one any more for which that server was asked.
    Replaced,
    /// The row's own `max_value` has passed, or that server is behind.
    Tag(TagError),
}

impl From<TagError> for Unreceived {
    fn from(error: TagError) -> Self {
        match error {
            TagError::NoSuchTag => Self::Replaced,
            error => Self::Tag(error),
        }
    }
}

/// Writes down what another server has answered, in the open transaction: the ids may be
/// used once that is durable. The truth is there, and no id depends on this; but it is how
/// a server that has lost claims is noticed.
///
/// Another incarnation of the row there is a new incarnation of the row here: the ids may be lower.
/// `remember` is told of any other row that was changed.
///
/// # Errors
/// See [`Unreceived`]; the transaction is then to be rolled back.
pub fn receive(key: &Key, arrival: &Arrival, remember: fn(&Edit)) -> Result<Claimed, Unreceived> {
    let Arrival { source, answer, .. } = arrival;
    with_row(key, |locked, row| {
        let is_same = row.incarnation == source.row_incarnation
            && row.server == Some(source.server)
            && row.server_incarnation == source.server_incarnation;
        if !is_same {
            return Err(Unreceived::Replaced);
        }
        if row.opaque_key.is_some() != answer.opaque.is_some() {
            let opaque_there = answer.opaque.is_some();
            return Err(TagError::OtherKind { opaque_there }.into());
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
            return Err(TagError::ServerBehind { received, answered }.into());
        }
        let left = row
            .max_value()
            .saturating_sub(answer.first)
            .saturating_add(1);
        if left < 1 {
            let max_value = row.max_value();
            return Err(TagError::EndOfTag { max_value, skip: 0 }.into());
        }
        let (opaque, renewed) = take_over(locked, key, row, answer.opaque.as_ref(), remember)?;
        let len = u32::try_from(left).map_or(answer.len, |left| answer.len.min(left));
        let incarnation = if reset || renewed {
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
            growth_limited: answer.growth_limited,
            access: row.access(),
        };
        locked.write(&Written {
            max_id: claimed.end(),
            largest_recent: len,
            incarnation,
            server_incarnation: answer.incarnation,
            opaque,
        });
        Ok(claimed)
    })
}

/// Writes the key down that has come with an answer. What the row is to say of it, and whether that
/// is another key than was used here, or a domain that has grown: no id of before may meet it.
fn take_over(
    locked: &LockedRow,
    key: &Key,
    row: &AllocRow,
    handed: Option<&Handed>,
    remember: fn(&Edit),
) -> Result<(Option<Opaque>, bool), TagError> {
    let Some(handed) = handed else {
        return Ok((None, false));
    };
    let max_value = row.max_value();
    if handed.opaque.domain.last() > max_value {
        return Err(TagError::EndOfTag { max_value, skip: 0 });
    }
    let before = row.opaque().ok().flatten();
    let mut opaque = handed.opaque;
    if let Some(before) = before.filter(|before| before.key == opaque.key) {
        let (was, is) = (before.domain.bounds(), opaque.domain.bounds());
        // A failover there has lost how far max_value was raised: up to there all is as it was.
        if was.starts_with(is) {
            opaque.domain = before.domain;
        } else if !is.starts_with(was) {
            return Err(TagError::OtherDomain);
        }
    } else if raised(opaque::has_key(opaque.key)) {
        free_key(locked, key, row, opaque.key, remember)?;
    }
    raised(opaque::take_over(handed, before.map(|before| before.key)));
    Ok((Some(opaque), before.is_some_and(|before| before != opaque)))
}

/// Where tags were renamed on the source server, another row may have the key of this one. It gets
/// one of its own, as when it was created, until it claims. What comes for it is of another row there
/// and may be lower, which its `server_incarnation` tells. Of a row that is sourced elsewhere, or not at
/// all, that server has nothing to say.
fn free_key(
    locked: &LockedRow,
    key: &Key,
    row: &AllocRow,
    number: i64,
    remember: fn(&Edit),
) -> Result<(), TagError> {
    let rows = locked.table.rows_with(heap::OPAQUE_KEY, number);
    let mut rows = rows.iter().map(AllocRow::of);
    let other = rows.find(|row| row.tag != Some(key.tag));
    let Some(tag) = other.and_then(|row| row.tag) else {
        return Ok(());
    };
    let Some(stored) = locked.table.lock(&heap::key(&tag)) else {
        return Ok(());
    };
    let old = AllocRow::of(&stored);
    if old.server != row.server {
        return Err(TagError::KeyInUse);
    }
    let new = AllocRow {
        incarnation: new_incarnation(),
        opaque_key: Some(opaque::random_number()),
        opaque_bounds: Vec::new(),
        ..old.clone()
    };
    locked.table.update(
        &stored,
        &[
            (heap::INCARNATION, Value::Bigint(new.incarnation)),
            (
                heap::OPAQUE_KEY,
                new.opaque_key.map_or(Value::Null, Value::Bigint),
            ),
            (heap::OPAQUE_BOUNDS, Value::Bigints(&new.opaque_bounds)),
        ],
    );
    remember(&Edit {
        relation: key.relation,
        old: Some(old),
        new: Some(new),
        replica: false,
    });
    Ok(())
}
