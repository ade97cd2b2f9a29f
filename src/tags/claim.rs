//! Claims: the only place that takes ids out of `leaf_alloc`.
//!
//! All claims go through [`advance`]: [`claim`] for this server, [`claim_for_member`] for another
//! one. What a claim on another server has returned is recorded by [`super::receive`]. All of them
//! write rows by oid (I9). A claim runs in a separate transaction, the allocator's or the other
//! server's, never in that of a session that continues: its rollback would return the range to the
//! table while ids from it are issued (I2).

use leaf_id_core::row::{self, ClaimAnswer, Here, TagRow};
use leaf_id_core::sometimes;
use leaf_id_core::step::{Decay, Pace};

use super::heap::{self, AllocRow};
use super::rights;
use super::{mark, opaque};
use crate::error::{Failure, OpaqueError, RefillError};
use crate::guc;
use crate::pg::{self, Caught, Name, Table, Value};
use crate::shmem::{Claimed, Key, Slot, SlotAccess, Tag};

/// The allocator's knowledge of a tag when it claims, or records another server's claim.
pub struct Ask {
    /// Pace of the tag so far.
    pub pace: Pace,
    /// Time of the first request for a segment, in Unix milliseconds.
    pub asked_ms: i64,
    /// Current time, in Unix milliseconds.
    pub now_ms: i64,
    /// Sessions found both buffers empty.
    pub starved: bool,
    /// The longest range a session is waiting for, in ids; 0 if none.
    pub range_len: u32,
    /// `incarnation` of the row last published from; 0 if none.
    pub row_incarnation: i64,
    /// Access of the slot, if known.
    pub access: SlotAccess,
}

impl Ask {
    /// Pace of the tag with this row. That of a row that it has replaced does not apply.
    pub(super) fn pace_of<S>(&self, row: &TagRow<S>) -> Pace {
        if row.incarnation == self.row_incarnation {
            self.pace
        } else {
            Pace::default()
        }
    }
}

/// Reason why the allocator made no claim.
pub enum Unclaimed {
    /// The tag gives no ids. If it has no row, the row may have been replaced while the claim
    /// waited for its lock.
    Tag(RefillError),
    /// The ids come from another server.
    Sourced(Box<TagSource>),
    /// A synchronous standby has not acknowledged the claim.
    Unacknowledged(Claimed),
    /// PostgreSQL has raised an error.
    Raised(Caught),
}

impl From<Caught> for Unclaimed {
    fn from(error: Caught) -> Self {
        Self::Raised(error)
    }
}

impl From<RefillError> for Unclaimed {
    fn from(error: RefillError) -> Self {
        Self::Tag(error)
    }
}

/// Source of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagSource {
    /// Foreign server.
    pub server: Name,
    /// The row that names it.
    pub row: TagRow<Name>,
}

impl AllocRow {
    fn source(&self) -> Option<TagSource> {
        let row = self.row;
        row.server.map(|server| TagSource { server, row })
    }

    /// Access to store in the slot. `known`: the slot's access, valid for the row with
    /// `incarnation`; it tells whether the name has a key, since no key is created for an existing
    /// tag.
    pub(super) fn access(&self, tag: &Tag, incarnation: i64, known: SlotAccess) -> SlotAccess {
        let is_opaque = match known {
            SlotAccess::Public | SlotAccess::Restricted if self.row.incarnation == incarnation => {
                false
            }
            SlotAccess::Opaque if self.row.incarnation == incarnation => true,
            _ => raised(opaque::has_key(tag)),
        };
        if is_opaque {
            SlotAccess::Opaque
        } else {
            SlotAccess::of(&self.granted_to)
        }
    }
}

/// This server.
pub fn here() -> Here {
    Here {
        system: pg::system_identifier(),
        timeline: pg::timeline(),
        lost_claims: u32::try_from(guc::FAILOVER_SKIP.get()).unwrap_or(0),
    }
}

/// Logs a skip.
pub fn log_skip(tag: &Tag, skip: u64) {
    if skip > 0 {
        let tag = tag.name();
        pgrx::log!(
            "leaf_id: skipped {skip} ids of tag \"{tag}\": its last claim was made on another timeline (leaf_id.failover_skip)"
        );
    }
}

/// The current version of a tag's row and its access, without regard to locks; `None` if there is
/// none. For `incarnation` and `known`, see [`AllocRow::access`].
pub fn look(key: &Key, incarnation: i64, known: SlotAccess) -> Option<(TagRow<Name>, SlotAccess)> {
    let table = raised(heap::open(key.relation, pg::Access::Read))?;
    let row = AllocRow::of(&table.get(&heap::key(&key.tag))?)?;
    Some((row.row, row.access(&key.tag, incarnation, known)))
}

/// The value, or raises an ERROR.
pub(super) fn raised<T>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => failure.raise(),
    }
}

/// Time of the first request since the last segment arrived, in Unix milliseconds.
pub fn asked_ms(slot: &Slot) -> i64 {
    (slot.wanted_since() + pg::TIMESTAMP_EPOCH_US) / 1000
}

/// Claims ids for a tag in the open transaction. They may be used once it is durable (I1).
///
/// # Errors
/// See [`Unclaimed`]; the caller must roll back.
pub fn claim(key: &Key, ask: &Ask) -> Result<Claimed, Unclaimed> {
    with_row(key, |locked, alloc| {
        if let Some(source) = alloc.source() {
            return Err(Unclaimed::Sourced(Box::new(source)));
        }
        let row = &alloc.row;
        let pace = ask.pace_of(row);
        let step = pace.next(ask.asked_ms, ask.starved, row.limits);
        let step = step.min(row.longest_claim());
        let wanted = row.limits.clamp(step.max(ask.range_len));
        let (claim, skipped) = advance(key, locked, row, wanted, Decay::Alone)?;
        Ok(Claimed {
            first: claim.first,
            len: claim.len,
            row_incarnation: row.incarnation,
            pace: pace.claimed(ask.asked_ms, ask.now_ms, step, row.limits),
            max_step: row.limits.max_step,
            skipped,
            access: alloc.access(&key.tag, ask.row_incarnation, ask.access),
        })
    })
}

/// Claims at most `n` ids for another server in the open transaction; the row's `step` if `n` is 0.
/// They may be sent once the transaction is durable (I1).
///
/// # Errors
/// The tag gives no ids, not to this caller, or not from this server; the caller must roll back.
pub fn claim_for_member(key: &Key, n: u32) -> Result<ClaimAnswer, Failure> {
    let tag = || key.tag.name();
    let refuse = |failure: Failure| failure.raise();
    let claim = || {
        with_row(key, |locked, alloc| {
            if !rights::caller_may_issue(key.relation, &alloc.granted_to) {
                refuse(Failure::TagForbidden { tag: tag() });
            }
            // No chains of source servers, and no loops.
            if let Some(source) = alloc.source() {
                let server = source.server.text();
                refuse(Failure::SourcedElsewhere { tag: tag(), server });
            }
            if raised(opaque::has_key(&key.tag)) {
                refuse(Failure::Opaque(OpaqueError::Required { tag: tag() }));
            }
            let row = &alloc.row;
            let wanted = if n == 0 { row.limits.step } else { n };
            let wanted = wanted.min(row.limits.max_step);
            let (claim, skipped) = advance(key, locked, row, wanted, Decay::Fleet)?;
            Ok(ClaimAnswer {
                first: claim.first,
                len: claim.len,
                incarnation: row.incarnation,
                max_step: row.limits.max_step,
                max_value: row.max_value,
                skipped,
            })
        })
    };
    let claimed = match claim() {
        // The row may have been replaced during the wait for its lock.
        Err(RefillError::NoSuchTag) => claim(),
        result => result,
    };
    claimed.map_err(|error| Failure::tag(tag(), error))
}

/// A random `incarnation`; never 0.
pub fn new_incarnation() -> i64 {
    pg::strong_random().cast_signed() | 1
}

/// The locked row of a tag.
pub(super) struct LockedRow {
    /// `leaf_alloc`.
    pub table: Table,
    stored: pg::Row,
}

/// Locks the row of a tag and runs `claim` on it.
pub(super) fn with_row<T, E: From<RefillError>>(
    key: &Key,
    claim: impl FnOnce(&LockedRow, &AllocRow) -> Result<T, E>,
) -> Result<T, E> {
    let table =
        raised(heap::open(key.relation, pg::Access::Write)).ok_or(RefillError::NoSuchTag)?;
    let stored = table
        .lock(&heap::key(&key.tag))
        .ok_or(RefillError::NoSuchTag)?;
    let row = AllocRow::of(&stored).ok_or(RefillError::NoSuchTag)?;
    heap::show_place(key, &stored);
    claim(&LockedRow { table, stored }, &row)
}

impl LockedRow {
    /// Writes a claim to the row.
    pub fn write(&self, row: &TagRow<Name>) {
        self.table.update(&self.stored, &heap::changes(row));
    }
}

/// Takes the next ids from a row: as many as wanted, up to the max length of a claim. Updates the
/// row and the mark of its name. Also returns the number of ids skipped.
fn advance(
    key: &Key,
    locked: &LockedRow,
    row: &TagRow<Name>,
    wanted: u32,
    decay: Decay,
) -> Result<(row::Claim<Name>, u64), RefillError> {
    let mark = raised(mark::lock(&key.tag));
    let here = here();
    let skip = row.skip(&here);
    let claim = row.claim(mark.high(), skip, &here, wanted, decay);
    let claim = claim.ok_or(RefillError::EndOfTag {
        max_value: row.max_value,
        skip,
    })?;
    sometimes!(
        "claim: the row is behind its mark",
        mark.high() > row.max_id
    );
    sometimes!("claim: skips what may be lost", skip > 0);
    sometimes!(
        "claim: the last one of a tag",
        claim.row.max_id > row.max_value
    );
    locked.write(&claim.row);
    mark.raise(heap::key(&key.tag), claim.row.max_id);
    Ok((claim, skip))
}

/// Records the ids that a transaction has issued from a tag it created, before it commits: in the
/// mark of the name, and in the row if that still exists.
///
/// # Errors
/// A table was altered.
pub fn note_issued(key: &Key, high: i64) -> Result<(), Failure> {
    // Make the last statement's changes visible.
    pg::see_own_changes();
    let Some(table) = heap::open(key.relation, pg::Access::Write)? else {
        // The extension was dropped, along with its tags.
        return Ok(());
    };
    if let Some(stored) = table.lock(&heap::key(&key.tag))
        && stored.bigint(heap::MAX_ID) < Some(high)
    {
        table.update(&stored, &[(heap::MAX_ID, Value::Bigint(high))]);
    }
    mark::lock(&key.tag)?.raise(heap::key(&key.tag), high);
    Ok(())
}
