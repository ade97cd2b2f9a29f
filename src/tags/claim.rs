//! Claims: the only place that takes ids out of `leaf_alloc`.
//!
//! All claims go through [`advance`]: [`claim`] for this server, [`claim_for_member`] for another
//! one. What a claim on another server has returned is recorded by [`super::receive`]. All of them
//! write rows by oid (I9). A claim runs in a separate transaction, the allocator's or the other
//! server's, never in that of a session that continues: its rollback would return the range to the
//! table while ids from it are issued (I2).

use leaf_id_core::row as rules;
use leaf_id_core::step::{self, Decay, Limits, Pace};
use serde::{Deserialize, Serialize};

use super::heap::{self, AllocRow, LastClaim};
use super::rights;
use super::{mark, opaque};
use crate::error::{Failure, OpaqueError, RefillError};
use crate::guc;
use crate::pg::{self, Caught, Name, Table, Value};
use crate::random;
use crate::shmem::{Access, Claimed, Key, Slot, Tag};

/// The allocator's knowledge of a tag when it claims.
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
    pub access: Access,
}

/// Reason why the allocator made no claim.
pub enum Unclaimed {
    /// The tag gives no ids. If it has no row, the row may have been replaced while the claim
    /// waited for its lock.
    Tag(RefillError),
    /// The ids come from another server.
    Sourced(TagSource),
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

/// Row of a sourced tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagSource {
    /// Foreign server.
    pub server: Name,
    /// `incarnation` of the local row.
    pub row_incarnation: i64,
    /// `incarnation` of the source server's row that the last segment came from; 0 if none.
    pub server_incarnation: i64,
    /// One past the highest id received from there.
    pub max_id: i64,
    /// Largest valid id.
    pub max_value: i64,
    /// Limits for one request.
    pub limits: Limits,
}

/// A claim made for another server.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl AllocRow {
    fn source(&self) -> Option<TagSource> {
        self.server.map(|server| TagSource {
            server,
            row_incarnation: self.incarnation,
            server_incarnation: self.server_incarnation,
            max_id: self.max_id(),
            max_value: self.max_value(),
            limits: self.limits,
        })
    }

    /// Access to store in the slot. `known`: the slot's access, valid for the row with
    /// `incarnation`; it tells whether the name has a key, since no key is created for an existing
    /// tag.
    pub(super) fn access(&self, tag: &Tag, incarnation: i64, known: Access) -> Access {
        let is_opaque = match known {
            Access::Everybody | Access::Restricted if self.incarnation == incarnation => false,
            Access::Opaque if self.incarnation == incarnation => true,
            _ => raised(opaque::has_key(tag)),
        };
        if is_opaque {
            Access::Opaque
        } else {
            Access::of(&self.granted_to)
        }
    }

    fn longest_claim(&self) -> u32 {
        step::longest_claim(self.last_claim.largest_recent(self.limits), self.limits)
    }

    /// `max_id`, which is never NULL in a stored row.
    pub(super) fn max_id(&self) -> i64 {
        self.max_id.unwrap_or(i64::MAX)
    }

    /// `max_value`, which is never NULL in a stored row.
    pub(super) fn max_value(&self) -> i64 {
        self.max_value.unwrap_or(0)
    }
}

impl LastClaim {
    fn largest_recent(&self, limits: Limits) -> u32 {
        match u32::try_from(self.largest_claim) {
            // 0 only if triggers were disabled.
            Ok(0) | Err(_) => limits.step,
            Ok(largest_claim) => largest_claim,
        }
    }

    /// True if the claim was made in this database system, not before a dump or an upgrade.
    fn is_ours(&self) -> bool {
        self.system_identifier == pg::system_identifier().cast_signed()
    }

    /// Number of promotions since, each of which may have lost claims.
    pub fn promotions(&self) -> u32 {
        rules::promotions(
            self.timeline.cast_unsigned(),
            pg::timeline(),
            self.is_ours(),
        )
    }

    /// Ids to skip before the next claim, since each promotion may have lost [`guc::FAILOVER_SKIP`]
    /// claims.
    pub fn skip(&self, limits: Limits) -> u64 {
        let claims = u32::try_from(guc::FAILOVER_SKIP.get()).unwrap_or(0);
        rules::missing(
            self.promotions(),
            claims,
            self.largest_recent(limits),
            limits,
        )
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

/// Row data for comparison with saved ranges.
pub struct Seen {
    /// The row's `incarnation`.
    pub incarnation: i64,
    /// Its `max_id`.
    pub max_id: i64,
    /// Its `max_value`.
    pub max_value: i64,
    /// Access of the row.
    pub access: Access,
}

/// The current version of a tag's row, without regard to locks; `None` if there is none. For
/// `incarnation` and `known`, see [`AllocRow::access`].
pub fn look(key: &Key, incarnation: i64, known: Access) -> Option<Seen> {
    let table = raised(heap::open(key.relation, pg::Access::Read))?;
    let row = AllocRow::of(&table.get(&heap::key(&key.tag))?);
    Some(Seen {
        incarnation: row.incarnation,
        max_id: row.max_id(),
        max_value: row.max_value(),
        access: row.access(&key.tag, incarnation, known),
    })
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
    with_row(key, |locked, row| {
        if let Some(source) = row.source() {
            return Err(Unclaimed::Sourced(source));
        }
        // A new row: the pace of the previous one does not apply.
        let pace = if row.incarnation == ask.row_incarnation {
            ask.pace
        } else {
            Pace::default()
        };
        let step = pace.next(ask.asked_ms, ask.starved, row.limits);
        let step = step.min(row.longest_claim());
        let wanted = row.limits.clamp(step.max(ask.range_len));
        let piece = advance(key, locked, row, wanted, Decay::Alone)?;
        Ok(Claimed {
            first: piece.first,
            len: piece.len,
            row_incarnation: row.incarnation,
            pace: pace.claimed(ask.asked_ms, ask.now_ms, step, row.limits),
            max_step: row.limits.max_step,
            skipped: piece.skipped,
            access: row.access(&key.tag, ask.row_incarnation, ask.access),
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
        with_row(key, |locked, row| {
            if !rights::caller_may_issue(key.relation, &row.granted_to) {
                refuse(Failure::TagForbidden { tag: tag() });
            }
            // No chains of source servers, and no loops.
            if let Some(source) = row.source() {
                let server = source.server.text();
                refuse(Failure::SourcedElsewhere { tag: tag(), server });
            }
            if raised(opaque::has_key(&key.tag)) {
                refuse(Failure::Opaque(OpaqueError::Required { tag: tag() }));
            }
            let wanted = if n == 0 { row.limits.step } else { n };
            let wanted = wanted.min(row.limits.max_step);
            let piece = advance(key, locked, row, wanted, Decay::Fleet)?;
            Ok(ClaimAnswer {
                first: piece.first,
                len: piece.len,
                incarnation: row.incarnation,
                max_step: row.limits.max_step,
                max_value: row.max_value(),
                skipped: piece.skipped,
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
    random::bits() | 1
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
    let row = AllocRow::of(&stored);
    claim(&LockedRow { table, stored }, &row)
}

/// Columns that a claim updates.
pub(super) struct Written {
    pub max_id: i64,
    pub largest_recent: u32,
    pub incarnation: i64,
    pub server_incarnation: i64,
}

/// Ids taken from a row.
struct Piece {
    first: i64,
    len: u32,
    skipped: u64,
}

/// Takes the next ids from a row: as many as wanted, up to the max length of a claim. Updates the
/// row and the mark of its name.
fn advance(
    key: &Key,
    locked: &LockedRow,
    row: &AllocRow,
    wanted: u32,
    decay: Decay,
) -> Result<Piece, RefillError> {
    let mark = raised(mark::lock(&key.tag));
    let skip = row.last_claim.skip(row.limits);
    let first = rules::first(row.max_id(), mark.high(), skip);
    let max_value = row.max_value();
    if first > max_value {
        return Err(RefillError::EndOfTag { max_value, skip });
    }
    let left = max_value.saturating_sub(first).saturating_add(1);
    let longest = row.longest_claim();
    let wanted = wanted.min(longest);
    // The last segment before the limit is truncated.
    let len = u32::try_from(left).map_or(wanted, |left| wanted.min(left));
    let before = row.last_claim.largest_recent(row.limits);
    let largest_recent = step::largest_recent(before, len, decay);
    let end = first + i64::from(len);
    locked.write(&Written {
        max_id: end,
        largest_recent,
        incarnation: row.incarnation,
        server_incarnation: row.server_incarnation,
    });
    mark.raise(heap::key(&key.tag), end);
    Ok(Piece {
        first,
        len,
        skipped: skip,
    })
}

impl LockedRow {
    /// Writes the columns of a claim to the row.
    pub fn write(&self, row: &Written) {
        let columns = [
            (heap::MAX_ID, Value::Bigint(row.max_id)),
            (
                heap::LARGEST_CLAIM,
                Value::Integer(row.largest_recent.cast_signed()),
            ),
            (
                heap::SYSTEM_IDENTIFIER,
                Value::Bigint(pg::system_identifier().cast_signed()),
            ),
            (heap::TIMELINE, Value::Integer(pg::timeline().cast_signed())),
            (heap::INCARNATION, Value::Bigint(row.incarnation)),
            (
                heap::SERVER_INCARNATION,
                Value::Bigint(row.server_incarnation),
            ),
            (heap::UPDATE_TIME, Value::Timestamp(pg::now_timestamp())),
        ];
        self.table.update(&self.stored, &columns);
    }
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
