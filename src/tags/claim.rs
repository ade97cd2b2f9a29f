//! Claims: the only place that takes ids out of `leaf_alloc`.
//!
//! There is one way to claim, [`advance`], which [`claim`] goes for this server and
//! [`claim_for_member`] for another one; what such a claim there has brought here is
//! written down by [`super::receive`]. All write rows by oid (I9). Claims are made in a transaction
//! of their own, the allocator's or the other server's, never in a session's that goes on:
//! its rollback would return the range to the table while somebody hands it out (I2).

use leaf_id_core::row as rules;
use leaf_id_core::step::{self, Decay, Limits, Pace};
use serde::{Deserialize, Serialize};

use super::heap::{self, AllocRow, LastClaim};
use super::rights;
use super::{mark, opaque};
use crate::error::{Failure, RefillError};
use crate::guc;
use crate::pg::{self, Caught, Name, Table, Value};
use crate::shmem::{Access, Claimed, Key, Slot, Tag};

/// What the allocator knows of a tag when it claims.
pub struct Ask {
    /// How fast it was used so far.
    pub pace: Pace,
    /// When a segment was first asked for, in Unix milliseconds ...
    pub asked_ms: i64,
    /// ... and the clock.
    pub now_ms: i64,
    /// Sessions found both buffers empty.
    pub starved: bool,
    /// The longest range that a session waits for; 0 for none.
    pub range_len: u32,
    /// `incarnation` of the row that was published from, 0 for none ...
    pub row_incarnation: i64,
    /// ... and one past the last id that was.
    pub high: i64,
    /// Who may take from the slot, as far as that is known.
    pub access: Access,
}

/// Why the allocator has no ids of a claim.
pub enum Unclaimed {
    /// The tag gives no ids. Where it has no row, that may have been replaced while the claim
    /// waited for it.
    Tag(RefillError),
    /// Another server is to be asked.
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

/// What the row of a tag holds that is sourced from another server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagSource {
    /// That foreign server.
    pub server: Name,
    /// `incarnation` of the row here ...
    pub row_incarnation: i64,
    /// ... and of the one there that the last segment came from; 0 for none.
    pub server_incarnation: i64,
    /// One past the highest id that came from there.
    pub max_id: i64,
    /// No id may be above it.
    pub max_value: i64,
    /// What may be asked for at once.
    pub limits: Limits,
}

/// What a claim gives another server: the answer of `leaf_claim`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimAnswer {
    /// The lowest id.
    pub first: i64,
    /// How many ids.
    pub len: u32,
    /// `incarnation` of the row that they came from.
    pub incarnation: i64,
    /// Its `max_step`.
    pub max_step: u32,
    /// Its `max_value`.
    pub max_value: i64,
    /// Ids left out before the first one, because of a failover.
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

    /// Who may take of it, as a slot remembers that. `known`: what the slot says of a row of this
    /// incarnation, and so whether the name has a key: none is made for a tag that there is.
    pub(super) fn access(&self, tag: &Tag, incarnation: i64, known: Access) -> Access {
        let is_opaque = match known {
            Access::Everybody | Access::Restricted if self.incarnation == incarnation => false,
            Access::Opaque if self.incarnation == incarnation => true,
            _ => raised(opaque::has_key(tag)),
        };
        if is_opaque {
            Access::Opaque
        } else {
            Access::of(self.granted_to.as_deref())
        }
    }

    fn longest_claim(&self) -> u32 {
        step::longest_claim(self.last_claim.largest_recent(self.limits), self.limits)
    }

    /// Of a stored row, where it is never NULL.
    pub(super) fn max_id(&self) -> i64 {
        self.max_id.unwrap_or(i64::MAX)
    }

    /// Of a stored row, where it is never NULL.
    pub(super) fn max_value(&self) -> i64 {
        self.max_value.unwrap_or(0)
    }
}

impl LastClaim {
    fn largest_recent(&self, limits: Limits) -> u32 {
        match u32::try_from(self.largest_claim) {
            // 0 only where the triggers were disabled.
            Ok(0) | Err(_) => limits.step,
            Ok(largest_claim) => largest_claim,
        }
    }

    /// Whether it was made in this database system, and not before a dump or an upgrade.
    fn is_ours(&self) -> bool {
        self.system_identifier == pg::system_identifier().cast_signed()
    }

    /// Promotions since, each of which may have lost claims.
    pub fn promotions(&self) -> u32 {
        rules::promotions(
            self.timeline.cast_unsigned(),
            pg::timeline(),
            self.is_ours(),
        )
    }

    /// The most ids that claims lost in one promotion can have taken.
    fn most_missing(&self, limits: Limits) -> u64 {
        let claims = u32::try_from(guc::FAILOVER_SKIP.get()).unwrap_or(0);
        step::most_taken(claims, self.largest_recent(limits), limits)
    }

    /// The ids to leave out before the next claim, because [`guc::FAILOVER_SKIP`] claims may have been lost
    /// in each promotion.
    pub fn skip(&self, limits: Limits) -> u64 {
        rules::skip(self.promotions(), self.most_missing(limits))
    }
}

/// Tells of a skip.
pub fn log_skip(tag: &Tag, skip: u64) {
    if skip > 0 {
        let tag = tag.name();
        pgrx::log!(
            "leaf_id: skipped {skip} ids of tag \"{tag}\": its last claim was made on another timeline (leaf_id.failover_skip)"
        );
    }
}

/// What saved remainders are compared with.
pub struct Seen {
    /// The row's `incarnation`.
    pub incarnation: i64,
    /// Its `max_id`.
    pub max_id: i64,
    /// Its `max_value`.
    pub max_value: i64,
    /// Who may issue its ids.
    pub access: Access,
}

/// A tag's row as it is now, whoever has locked it; `None` if there is none. For the other two, see
/// [`AllocRow::access`].
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

/// The value, or an ERROR that ends the transaction.
pub(super) fn raised<T>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => failure.raise(),
    }
}

/// When a segment was first asked for since the last one came, in Unix milliseconds.
pub fn asked_ms(slot: &Slot) -> i64 {
    (slot.wanted_since() + pg::TIMESTAMP_EPOCH_US) / 1000
}

/// Claims ids for a tag, in the open transaction: they may be used once it is durable (I1).
///
/// # Errors
/// See [`Unclaimed`]; the transaction is then to be rolled back.
pub fn claim(key: &Key, ask: &Ask) -> Result<Claimed, Unclaimed> {
    with_row(key, |locked, row| {
        if let Some(source) = row.source() {
            return Err(Unclaimed::Sourced(source));
        }
        // Another row of this tag: how the last one was used says nothing.
        let pace = if row.incarnation == ask.row_incarnation {
            ask.pace
        } else {
            Pace::default()
        };
        let step = pace.next(ask.asked_ms, ask.starved, row.limits);
        let step = step.min(row.longest_claim());
        let wanted = row.limits.clamp(step.max(ask.range_len));
        let remembered = if row.incarnation == ask.row_incarnation {
            ask.high
        } else {
            0
        };
        let piece = advance(key, locked, row, remembered, wanted, Decay::Alone)?;
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

/// Claims ids for another server, in the open transaction: at most `n`, and for 0 the row's
/// `step`. They may be given out once the transaction is durable (I1).
///
/// # Errors
/// The tag gives none, not to this caller, or not from here; the transaction is then to be
/// rolled back.
pub fn claim_for_member(key: &Key, n: u32) -> Result<ClaimAnswer, Failure> {
    let tag = || key.tag.name();
    let refuse = |failure: Failure| failure.raise();
    let claim = || {
        with_row(key, |locked, row| {
            if !rights::caller_may_issue(row.granted_to.as_deref()) {
                refuse(Failure::TagForbidden { tag: tag() });
            }
            // No chains of servers, and no loops.
            if let Some(source) = row.source() {
                let server = source.server.text();
                refuse(Failure::SourcedElsewhere { tag: tag(), server });
            }
            if raised(opaque::has_key(&key.tag)) {
                refuse(Failure::Opaque { tag: tag() });
            }
            let wanted = if n == 0 { row.limits.step } else { n };
            let wanted = wanted.min(row.limits.max_step);
            let piece = advance(key, locked, row, 0, wanted, Decay::Fleet)?;
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
        // It may have been replaced while we waited for its lock.
        Err(RefillError::NoSuchTag) => claim(),
        result => result,
    };
    claimed.map_err(|error| Failure::tag(tag(), error))
}

/// An `incarnation` that no row had before.
pub fn new_incarnation() -> i64 {
    rand::random::<i64>() | 1
}

/// The row of a tag, locked.
pub(super) struct LockedRow {
    /// Where it is, and the others.
    pub table: Table,
    stored: pg::Row,
}

/// Runs a claim on the row of a tag, which is locked.
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

/// What a claim leaves in a row.
pub(super) struct Written {
    pub max_id: i64,
    pub largest_recent: u32,
    pub incarnation: i64,
    pub server_incarnation: i64,
}

/// Ids that were cut off a row.
struct Piece {
    first: i64,
    len: u32,
    skipped: u64,
}

/// Cuts the next ids off a row, as many as wanted unless that is longer than a claim may be,
/// and writes it, and the mark of its name.
fn advance(
    key: &Key,
    locked: &LockedRow,
    row: &AllocRow,
    remembered: i64,
    wanted: u32,
    decay: Decay,
) -> Result<Piece, RefillError> {
    let mark = raised(mark::lock(&key.tag));
    let skip = row.last_claim.skip(row.limits);
    let first = rules::first(row.max_id(), mark.high(), remembered, skip);
    let max_value = row.max_value();
    if first > max_value {
        return Err(RefillError::EndOfTag { max_value, skip });
    }
    let left = max_value.saturating_sub(first).saturating_add(1);
    let longest = row.longest_claim();
    let wanted = wanted.min(longest);
    // The last segment before the limit is cut to fit.
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
    mark.raise(&key.tag, end);
    Ok(Piece {
        first,
        len,
        skipped: skip,
    })
}

impl LockedRow {
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

/// Writes down what a transaction has issued of a tag that it created, before it commits: in the mark of
/// the name, and in the row, if that is there still.
///
/// # Errors
/// A table was altered.
pub fn note_issued(key: &Key, high: i64) -> Result<(), Failure> {
    // What the transaction's last statement has written is to be seen.
    pg::see_own_changes();
    let Some(table) = heap::open(key.relation, pg::Access::Write)? else {
        // The extension was dropped, and its tags with it.
        return Ok(());
    };
    if let Some(stored) = table.lock(&heap::key(&key.tag))
        && stored.bigint(heap::MAX_ID) < Some(high)
    {
        table.update(&stored, &[(heap::MAX_ID, Value::Bigint(high))]);
    }
    mark::lock(&key.tag)?.raise(&key.tag, high);
    Ok(())
}
