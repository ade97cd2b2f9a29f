//! The only place with SQL against `leaf_alloc`.
//!
//! Every claim is [`claim`]. It runs as the table's owner in a security-restricted
//! context, with everything qualified, and marks itself so that the edit trigger lets it
//! pass. It is called in the allocator's own transaction, never in a session's: a
//! session's rollback would return the range to the table while shared memory hands it
//! out (I2).

use std::sync::atomic::{AtomicBool, Ordering};

use leaf_id_core::step::{self, Limits, Pace};
use pgrx::Spi;
use pgrx::datum::DatumWithOid;
use pgrx::spi::{SpiClient, SpiTupleTable};

use crate::guc;
use crate::pg;
use crate::shmem::{Claimed, Key, Tag, Trouble};

/// True while our own statement changes a row: no edit of a user's.
static CLAIMING: AtomicBool = AtomicBool::new(false);

/// Whether the edit trigger was fired by a claim.
pub fn is_claiming() -> bool {
    CLAIMING.load(Ordering::Relaxed)
}

struct Claiming;

impl Claiming {
    fn begin() -> Self {
        CLAIMING.store(true, Ordering::Relaxed);
        Self
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        CLAIMING.store(false, Ordering::Relaxed);
    }
}

/// What the allocator knows of a tag when it claims.
pub struct Ask {
    /// How fast it was used so far.
    pub pace: Pace,
    /// The clock, in Unix milliseconds.
    pub now_ms: i64,
    /// Sessions found both buffers empty.
    pub hungry: bool,
    /// The longest range that a session waits for, or what is missing of it; 0 for none.
    pub wish: u32,
    /// This is to continue such a range: no more than is missing.
    pub continues: bool,
    /// `life` of the row that was published from, 0 for none ...
    pub row_life: i64,
    /// ... and one past the last id that was.
    pub high: i64,
}

/// Why a claim was not made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ClaimProblem {
    /// No row was found; it may have been replaced while the claim waited for it.
    NoSuchTag,
    /// `max_id` has passed `max_value`, or would with the ids that are to be left out.
    EndOfTag { max_value: i64, skip: u64 },
    /// The same life of the row, with a `max_id` below what was published.
    MaxIdBackwards { published: i64, found: i64 },
}

struct Row {
    max_id: i64,
    max_value: i64,
    life: i64,
    limits: Limits,
    memory: Memory,
}

/// What a row remembers of its last claim.
#[derive(Clone, Copy)]
pub struct Memory {
    /// The database cluster.
    pub system_identifier: i64,
    /// The WAL timeline.
    pub timeline: i32,
    /// The largest of the recent claims, in ids.
    pub claimed_step: i32,
}

impl Memory {
    fn largest_recent(&self, limits: Limits) -> u32 {
        match u32::try_from(self.claimed_step) {
            // 0 only where the triggers were disabled.
            Ok(0) | Err(_) => limits.step,
            Ok(claimed_step) => claimed_step,
        }
    }

    /// How many ids are to be left out before the next claim, because claims of before a
    /// failover, or a recovery to a point in time, may be missing here: as many as
    /// [`guc::FAILOVER_SKIP`] of them can have taken at most. Once for each timeline in
    /// between: its server has left out as many, and may have claimed after that. A row of
    /// another system was dumped and restored, or upgraded: nothing is missing.
    pub fn skip(&self, limits: Limits) -> u64 {
        let timelines = pg::timeline().saturating_sub(self.timeline.cast_unsigned());
        let ours = self.system_identifier == pg::system_identifier().cast_signed();
        if !ours || self.timeline == pg::timeline().cast_signed() {
            return 0;
        }
        let claims = u32::try_from(guc::FAILOVER_SKIP.get()).unwrap_or(0);
        step::most_taken(claims, self.largest_recent(limits), limits)
            .saturating_mul(u64::from(timelines.max(1)))
    }
}

/// `max_id` after a skip.
pub fn skipped(max_id: i64, skip: u64) -> i64 {
    i64::try_from(skip).map_or(i64::MAX, |skip| max_id.saturating_add(skip))
}

/// Tells of a skip.
pub fn log_skip(tag: &Tag, skip: u64) {
    if skip > 0 {
        let tag = tag.name();
        pgrx::log!(
            "leaf_id: skipped {skip} ids of tag \"{tag}\": its last claim was made on another timeline"
        );
    }
}

/// What parked rests are compared with.
pub struct Seen {
    /// The row's `life`.
    pub life: i64,
    /// Its `max_id`.
    pub max_id: i64,
    /// Its `max_value`.
    pub max_value: i64,
}

/// A tag's row as it is now, whoever has locked it; `None` if there is none.
pub fn look(key: &Key) -> Option<Seen> {
    let table = pg::quoted_name(key.relation)?;
    let sql = format!(
        "SELECT life, max_id, max_value FROM {table} \
         WHERE biz_tag OPERATOR(pg_catalog.=) $1"
    );
    pg::as_owner_of(key.relation, || {
        Spi::connect_mut(|client| {
            let found = run(client, &sql, &[pg::text_argument(key.tag.bytes())]);
            (!found.is_empty()).then(|| Seen {
                life: column(&found, 1),
                max_id: column(&found, 2),
                max_value: column(&found, 3),
            })
        })
    })
}

fn column<T: pgrx::FromDatum + pgrx::IntoDatum>(table: &SpiTupleTable<'_>, number: usize) -> T {
    match table.get(number) {
        Ok(Some(value)) => value,
        // Every column we read is NOT NULL.
        Ok(None) => pgrx::error!("column {number} of leaf_alloc is null"),
        Err(error) => pgrx::error!("could not read leaf_alloc: {error}"),
    }
}

fn run<'client>(
    client: &mut SpiClient<'client>,
    sql: &str,
    arguments: &[DatumWithOid<'_>],
) -> SpiTupleTable<'client> {
    match client.update(sql, None, arguments) {
        Ok(table) => table.first(),
        Err(error) => pgrx::error!("could not run SQL on leaf_alloc: {error}"),
    }
}

/// Claims ids for a tag, in the open transaction: they may be used once it is durable (I1).
///
/// # Errors
/// See [`ClaimProblem`]; the transaction is then to be rolled back.
pub fn claim(key: &Key, ask: &Ask) -> Result<Claimed, ClaimProblem> {
    let table = pg::quoted_name(key.relation).ok_or(ClaimProblem::NoSuchTag)?;
    let _claiming = Claiming::begin();
    pg::as_owner_of(key.relation, || {
        Spi::connect_mut(|client| {
            let row = lock_row(client, &table, key)?;
            if row.life == ask.row_life && row.max_id < ask.high {
                return Err(ClaimProblem::MaxIdBackwards {
                    published: ask.high,
                    found: row.max_id,
                });
            }
            let skip = row.memory.skip(row.limits);
            let first = skipped(row.max_id, skip);
            let left = row.max_value.saturating_sub(first).saturating_add(1);
            if left < 1 {
                return Err(ClaimProblem::EndOfTag {
                    max_value: row.max_value,
                    skip,
                });
            }
            // Another row of this tag: how the last one was used says nothing.
            let pace = if row.life == ask.row_life {
                ask.pace
            } else {
                Pace::default()
            };
            let largest_recent = row.memory.largest_recent(row.limits);
            let longest = step::longest_claim(largest_recent, row.limits);
            let step = pace.next(ask.now_ms, ask.hungry, row.limits).min(longest);
            let wanted = if ask.continues {
                ask.wish.min(longest)
            } else {
                row.limits.clamp(step.max(ask.wish)).min(longest)
            };
            // The last segment before the limit is cut to fit.
            let len = u32::try_from(left).map_or(wanted, |left| wanted.min(left));
            let largest_recent = step::largest_recent(largest_recent, len);
            advance(client, &table, key, first + i64::from(len), largest_recent);
            Ok(Claimed {
                first,
                len,
                row_life: row.life,
                pace: pace.claimed(ask.now_ms, step, row.limits),
                max_step: row.limits.max_step,
                skipped: skip,
                climbing: len == longest,
            })
        })
    })
}

fn lock_row(client: &mut SpiClient<'_>, table: &str, key: &Key) -> Result<Row, ClaimProblem> {
    let sql = format!(
        "SELECT max_id, step, max_step, max_value, life, system_identifier, timeline, \
         claimed_step FROM {table} \
         WHERE biz_tag OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE"
    );
    let found = run(client, &sql, &[pg::text_argument(key.tag.bytes())]);
    if found.is_empty() {
        return Err(ClaimProblem::NoSuchTag);
    }
    let ids = |number| u32::try_from(column::<i32>(&found, number)).unwrap_or(1);
    Ok(Row {
        max_id: column(&found, 1),
        limits: Limits {
            step: ids(2),
            max_step: ids(3),
        },
        max_value: column(&found, 4),
        life: column(&found, 5),
        memory: Memory {
            system_identifier: column(&found, 6),
            timeline: column(&found, 7),
            claimed_step: column(&found, 8),
        },
    })
}

fn advance(client: &mut SpiClient<'_>, table: &str, key: &Key, max_id: i64, largest_recent: u32) {
    let sql = format!(
        "UPDATE {table} SET max_id = $2, claimed_step = $3, system_identifier = $4, \
         timeline = $5, update_time = pg_catalog.clock_timestamp() \
         WHERE biz_tag OPERATOR(pg_catalog.=) $1 RETURNING max_id"
    );
    let written = run(
        client,
        &sql,
        &[
            pg::text_argument(key.tag.bytes()),
            max_id.into(),
            largest_recent.cast_signed().into(),
            pg::system_identifier().cast_signed().into(),
            pg::timeline().cast_signed().into(),
        ],
    );
    // A trigger or a rule of somebody's may have kept it from being written.
    if written.is_empty() || column::<i64>(&written, 1) != max_id {
        pgrx::error!("the claim of ids was not written to leaf_alloc");
    }
}

/// Raises a row's `max_id` to what its own transaction has issued of it, before it
/// commits. A row of another life is left alone. `any_tag`: the row may have another tag.
pub fn raise_max_id(key: &Key, life: i64, max_id: i64, any_tag: bool) {
    let Some(table) = pg::quoted_name(key.relation) else {
        return;
    };
    let _claiming = Claiming::begin();
    let tag = if any_tag {
        "biz_tag IS NOT NULL"
    } else {
        "biz_tag OPERATOR(pg_catalog.=) $1"
    };
    let sql = format!(
        "UPDATE {table} SET max_id = GREATEST(max_id, $2) \
         WHERE {tag} AND life OPERATOR(pg_catalog.=) $3"
    );
    pg::with_writable_snapshot(|| {
        pg::as_owner_of(key.relation, || {
            Spi::connect_mut(|client| {
                let arguments = [
                    pg::text_argument(key.tag.bytes()),
                    max_id.into(),
                    life.into(),
                ];
                run(client, &sql, &arguments);
            });
        });
    });
}

/// Who keeps the allocator from a tag's row, asked after it gave up waiting.
pub fn blocker(key: &Key) -> Trouble {
    let holds_xid = "SELECT l.pid FROM pg_catalog.pg_locks l \
         WHERE l.locktype OPERATOR(pg_catalog.=) 'transactionid' AND l.granted \
         AND l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock' AND l.transactionid";
    let row = |condition: &str, number: u32| {
        let sql = format!("{holds_xid} {condition} LIMIT 1");
        let pid = first_pid(&sql, &[number.to_string().into()]);
        Trouble::RowLocked {
            pid: pid.unwrap_or(0),
        }
    };
    match pg::see_row(key.relation, key.tag.bytes()).map(|row| row.map(|row| row.locker)) {
        Ok(Some(pg::Locker::Transaction(xid))) => {
            row("OPERATOR(pg_catalog.=) $1::pg_catalog.xid", xid)
        }
        Ok(Some(pg::Locker::Multi(multi))) => row(
            "OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT m.xid FROM \
             pg_catalog.pg_get_multixact_members($1::pg_catalog.xid) m))",
            multi,
        ),
        Ok(_) | Err(pg::TableLocked) => {
            let sql = "SELECT l.pid FROM pg_catalog.pg_locks l \
                 WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.granted \
                 AND l.mode OPERATOR(pg_catalog.=) ANY ('{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}') \
                 AND l.relation OPERATOR(pg_catalog.=) $1::pg_catalog.oid \
                 AND l.database OPERATOR(pg_catalog.=) $2::pg_catalog.oid LIMIT 1";
            let arguments = [
                key.relation.to_string().into(),
                key.database.to_string().into(),
            ];
            match first_pid(sql, &arguments) {
                Some(pid) => Trouble::TableLocked { pid },
                None => Trouble::RowLocked { pid: 0 },
            }
        }
    }
}

fn first_pid(sql: &str, arguments: &[DatumWithOid<'_>]) -> Option<i32> {
    Spi::connect_mut(|client| {
        let found = run(client, sql, arguments);
        (!found.is_empty()).then(|| column(&found, 1))
    })
}
