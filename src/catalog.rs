//! The only place with SQL against `leaf_alloc` and the worker registry.
//!
//! There is one way to claim, [`advance`], which [`claim`] goes for this server and
//! [`claim_for_member`] for another one; what such a claim there has brought here is
//! written down by [`receive`]. All run as the table's owner in a security-restricted
//! context, with everything qualified, and mark themselves so that the edit trigger lets
//! them pass. They are called in a transaction of their own, the allocator's or the other
//! server's, never in a session's that goes on: its rollback would return the range to the
//! table while somebody hands it out (I2).

use std::sync::atomic::{AtomicBool, Ordering};

use leaf_id_core::step::{self, Decay, Limits, Pace};
use pgrx::Spi;
use pgrx::datum::DatumWithOid;
use pgrx::spi::{SpiClient, SpiTupleTable};

use crate::guc;
use crate::pg::{self, Name};
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
    /// When a segment was first asked for, in Unix milliseconds ...
    pub asked_ms: i64,
    /// ... and the clock.
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
    /// Another server is to be asked.
    Fed(Feed),
}

/// What the row of a tag holds that another server feeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Feed {
    /// That foreign server.
    pub server: Name,
    /// `life` of the row here ...
    pub row_life: i64,
    /// ... and of the one there that the last segment came from; 0 for none.
    pub server_life: i64,
    /// One past the highest id that came from there.
    pub max_id: i64,
    /// No id may be above it.
    pub max_value: i64,
    /// What may be asked for at once.
    pub limits: Limits,
}

/// What a claim gives another server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The lowest id.
    pub first: i64,
    /// How many ids.
    pub len: u32,
    /// `life` of the row that they came from.
    pub life: i64,
    /// Its `max_step`.
    pub max_step: u32,
    /// Its `max_value`.
    pub max_value: i64,
    /// Ids left out before the first one, because of a failover.
    pub skipped: u64,
    /// It is shorter than was asked for, only because claims grow step by step.
    pub climbing: bool,
}

impl Answer {
    /// One past the last id.
    pub fn end(&self) -> i64 {
        self.first + i64::from(self.len)
    }
}

struct Row {
    max_id: i64,
    max_value: i64,
    life: i64,
    limits: Limits,
    memory: Memory,
    server: Option<Name>,
    server_life: i64,
}

impl Row {
    fn feed(&self) -> Option<Feed> {
        self.server.map(|server| Feed {
            server,
            row_life: self.life,
            server_life: self.server_life,
            max_id: self.max_id,
            max_value: self.max_value,
            limits: self.limits,
        })
    }

    fn longest_claim(&self) -> u32 {
        step::longest_claim(self.memory.largest_recent(self.limits), self.limits)
    }
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
    // Every column that is read this way is NOT NULL.
    nullable(table, number).unwrap_or_else(|| pgrx::error!("column {number} of leaf_alloc is null"))
}

fn nullable<T: pgrx::FromDatum + pgrx::IntoDatum>(
    table: &SpiTupleTable<'_>,
    number: usize,
) -> Option<T> {
    match table.get(number) {
        Ok(value) => value,
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
    with_row(key, |statements, row| {
        if let Some(feed) = row.feed() {
            return Err(ClaimProblem::Fed(feed));
        }
        if row.life == ask.row_life && row.max_id < ask.high {
            return Err(ClaimProblem::MaxIdBackwards {
                published: ask.high,
                found: row.max_id,
            });
        }
        // Another row of this tag: how the last one was used says nothing.
        let pace = if row.life == ask.row_life {
            ask.pace
        } else {
            Pace::default()
        };
        let step = pace.next(ask.asked_ms, ask.hungry, row.limits);
        let step = step.min(row.longest_claim());
        let wanted = if ask.continues {
            ask.wish
        } else {
            row.limits.clamp(step.max(ask.wish))
        };
        let piece = advance(statements, row, wanted, Decay::Alone)?;
        Ok(Claimed {
            first: piece.first,
            len: piece.len,
            row_life: row.life,
            pace: pace.claimed(ask.asked_ms, ask.now_ms, step, row.limits),
            max_step: row.limits.max_step,
            skipped: piece.skipped,
            climbing: piece.climbing,
        })
    })
}

/// Claims ids for another server, in the open transaction: at most `n`, and for 0 the row's
/// `step`. They may be given out once the transaction is durable (I1).
///
/// # Errors
/// See [`ClaimProblem`]; the transaction is then to be rolled back.
pub fn claim_for_member(key: &Key, n: u32) -> Result<Answer, ClaimProblem> {
    let claim = || {
        with_row(key, |statements, row| {
            // No chains of servers, and no loops.
            if let Some(feed) = row.feed() {
                return Err(ClaimProblem::Fed(feed));
            }
            let wanted = if n == 0 { row.limits.step } else { n };
            let wanted = wanted.min(row.limits.max_step);
            let piece = advance(statements, row, wanted, Decay::Fleet)?;
            Ok(Answer {
                first: piece.first,
                len: piece.len,
                life: row.life,
                max_step: row.limits.max_step,
                max_value: row.max_value,
                skipped: piece.skipped,
                climbing: piece.climbing && piece.len < wanted,
            })
        })
    };
    match claim() {
        // It may have been replaced while we waited for its lock.
        Err(ClaimProblem::NoSuchTag) => claim(),
        result => result,
    }
}

/// What the allocator knows of a tag when an answer has come from the server that feeds it.
pub struct Arrival {
    /// The row as it was when that server was asked.
    pub feed: Feed,
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
    /// `life` of the row that was published from, 0 for none ...
    pub row_life: i64,
    /// ... and one past the last id that was.
    pub high: i64,
}

/// Why what another server has answered is not used: it is a gap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ArrivalProblem {
    /// The row is not the one any more for which that server was asked.
    Replaced,
    /// The row's own `max_value` has passed.
    EndOfTag { max_value: i64 },
    /// The same life of the row there, with ids below those that came before.
    ServerBehind { received: i64, answered: i64 },
}

/// Writes down what another server has answered, in the open transaction: the ids may be
/// used once that is durable. The truth is there, and no id depends on this; but it is how
/// a server that has lost claims is noticed.
///
/// Another life of the row there is a new life of the row here: the ids may be lower.
///
/// # Errors
/// See [`ArrivalProblem`]; the transaction is then to be rolled back.
pub fn receive(key: &Key, arrival: &Arrival) -> Result<Claimed, ArrivalProblem> {
    let Arrival { feed, answer, .. } = arrival;
    let received = with_row(key, |statements, row| {
        let is_same = row.life == feed.row_life
            && row.server == Some(feed.server)
            && row.server_life == feed.server_life;
        if !is_same {
            return Ok(Err(ArrivalProblem::Replaced));
        }
        let reset = row.server_life != 0 && row.server_life != answer.life;
        let published = if row.life == arrival.row_life {
            arrival.high
        } else {
            0
        };
        let received = row.max_id.max(published);
        if !reset && answer.first < received {
            return Ok(Err(ArrivalProblem::ServerBehind {
                received,
                answered: answer.first,
            }));
        }
        let left = row.max_value.saturating_sub(answer.first).saturating_add(1);
        if left < 1 {
            return Ok(Err(ArrivalProblem::EndOfTag {
                max_value: row.max_value,
            }));
        }
        let len = u32::try_from(left).map_or(answer.len, |left| answer.len.min(left));
        let life = if reset { new_life() } else { row.life };
        let pace = if row.life == arrival.row_life {
            arrival.pace
        } else {
            Pace::default()
        };
        // As much as that server gives at once, where that is less.
        let step = arrival.step.min(answer.len);
        let claimed = Claimed {
            first: answer.first,
            len,
            row_life: life,
            pace: pace.claimed(arrival.asked_ms, arrival.now_ms, step, row.limits),
            max_step: row.limits.max_step.min(answer.max_step),
            skipped: answer.skipped,
            climbing: answer.climbing,
        };
        statements.write(&Written {
            max_id: claimed.end(),
            largest_recent: len,
            life,
            server_life: answer.life,
        });
        Ok(Ok(claimed))
    });
    received.unwrap_or(Err(ArrivalProblem::Replaced))
}

/// A `life` that no row had before.
pub fn new_life() -> i64 {
    rand::random::<i64>() | 1
}

/// What may be run on the row of one tag.
struct Statements<'a, 'client> {
    client: &'a mut SpiClient<'client>,
    table: &'a str,
    key: &'a Key,
}

/// Runs a claim on the row of a tag, which is locked.
fn with_row<T>(
    key: &Key,
    claim: impl FnOnce(&mut Statements<'_, '_>, &Row) -> Result<T, ClaimProblem>,
) -> Result<T, ClaimProblem> {
    let table = pg::quoted_name(key.relation).ok_or(ClaimProblem::NoSuchTag)?;
    let _claiming = Claiming::begin();
    pg::as_owner_of(key.relation, || {
        Spi::connect_mut(|client| {
            let mut statements = Statements {
                client,
                table: &table,
                key,
            };
            let row = statements.lock_row()?;
            claim(&mut statements, &row)
        })
    })
}

/// What a claim leaves in a row.
struct Written {
    max_id: i64,
    largest_recent: u32,
    life: i64,
    server_life: i64,
}

/// Ids that were cut off a row.
struct Piece {
    first: i64,
    len: u32,
    skipped: u64,
    climbing: bool,
}

/// Cuts the next ids off a row, as many as wanted unless that is longer than a claim may be,
/// and writes it.
fn advance(
    statements: &mut Statements<'_, '_>,
    row: &Row,
    wanted: u32,
    decay: Decay,
) -> Result<Piece, ClaimProblem> {
    let skip = row.memory.skip(row.limits);
    let first = skipped(row.max_id, skip);
    let left = row.max_value.saturating_sub(first).saturating_add(1);
    if left < 1 {
        return Err(ClaimProblem::EndOfTag {
            max_value: row.max_value,
            skip,
        });
    }
    let longest = row.longest_claim();
    let wanted = wanted.min(longest);
    // The last segment before the limit is cut to fit.
    let len = u32::try_from(left).map_or(wanted, |left| wanted.min(left));
    let before = row.memory.largest_recent(row.limits);
    let largest_recent = step::largest_recent(before, len, decay);
    statements.write(&Written {
        max_id: first + i64::from(len),
        largest_recent,
        life: row.life,
        server_life: row.server_life,
    });
    Ok(Piece {
        first,
        len,
        skipped: skip,
        climbing: len == longest,
    })
}

impl Statements<'_, '_> {
    fn lock_row(&mut self) -> Result<Row, ClaimProblem> {
        let table = self.table;
        let sql = format!(
            "SELECT max_id, step, max_step, max_value, life, system_identifier, timeline, \
             claimed_step, server, server_life FROM {table} \
             WHERE biz_tag OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE"
        );
        let found = run(
            self.client,
            &sql,
            &[pg::text_argument(self.key.tag.bytes())],
        );
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
            server: nullable(&found, 9),
            server_life: column(&found, 10),
        })
    }

    fn write(&mut self, row: &Written) {
        let table = self.table;
        let sql = format!(
            "UPDATE {table} SET max_id = $2, claimed_step = $3, system_identifier = $4, \
             timeline = $5, life = $6, server_life = $7, \
             update_time = pg_catalog.clock_timestamp() \
             WHERE biz_tag OPERATOR(pg_catalog.=) $1 RETURNING max_id"
        );
        let written = run(
            self.client,
            &sql,
            &[
                pg::text_argument(self.key.tag.bytes()),
                row.max_id.into(),
                row.largest_recent.cast_signed().into(),
                pg::system_identifier().cast_signed().into(),
                pg::timeline().cast_signed().into(),
                row.life.into(),
                row.server_life.into(),
            ],
        );
        // A trigger or a rule of somebody's may have kept it from being written.
        if written.is_empty() || column::<i64>(&written, 1) != row.max_id {
            pgrx::error!("the claim of ids was not written to leaf_alloc");
        }
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

// ---- The worker registry ------------------------------------------------------------

/// Where leaf_id is in this database.
pub struct Extension {
    /// Its schema, quoted.
    pub schema: String,
    /// The owner of leaf_alloc, who acts for it.
    pub owner: u32,
}

/// Where leaf_id is in this database; `None` if it is not.
pub fn extension() -> Option<Extension> {
    let sql = "SELECT pg_catalog.quote_ident(n.nspname), c.relowner::pg_catalog.int8 \
         FROM pg_catalog.pg_extension e \
         JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace \
         JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid \
         AND c.relname OPERATOR(pg_catalog.=) 'leaf_alloc' \
         WHERE e.extname OPERATOR(pg_catalog.=) 'leaf_id'";
    // Not as what writes: that cannot run on a standby.
    Spi::connect(|client| {
        let found = match client.select(sql, None, &[]) {
            Ok(table) => table.first(),
            Err(error) => pgrx::error!("could not look for leaf_id: {error}"),
        };
        (!found.is_empty()).then(|| Extension {
            schema: column(&found, 1),
            owner: u32::try_from(column::<i64>(&found, 2)).unwrap_or(0),
        })
    })
}

/// A function of the worker registry.
pub struct RegistryFunction {
    /// Its name.
    pub name: &'static str,
    /// The types of its arguments.
    pub types: &'static [&'static str],
}

/// What the worker registry answers, column by column.
pub const REGISTRY_COLUMNS: [&str; 8] = [
    "status",
    "worker_id",
    "floor_ms",
    "reserved_until_ms",
    "registry_ms",
    "peers",
    "peers_offset_ms",
    "detail",
];

/// Asks the worker registry of this database, in the open transaction: its answer may be used
/// once that is durable. All values are text.
pub fn ask_registry(
    schema: &str,
    function: &RegistryFunction,
    arguments: &[Option<String>],
) -> Vec<Option<String>> {
    let list = |parts: Vec<String>| parts.join(", ");
    let types = function.types.iter().enumerate();
    let placeholders = types.map(|(index, name)| format!("${}::pg_catalog.{name}", index + 1));
    let columns = REGISTRY_COLUMNS.map(|name| format!("a.{name}::pg_catalog.text"));
    let sql = format!(
        "SELECT {} FROM {schema}.{}({}) a",
        list(columns.to_vec()),
        function.name,
        list(placeholders.collect()),
    );
    let arguments: Vec<_> = arguments.iter().map(pg::optional_text_argument).collect();
    Spi::connect_mut(|client| {
        let found = run(client, &sql, &arguments);
        let text = |number| match found.get::<String>(number) {
            Ok(value) => value,
            Err(error) => pgrx::error!("could not read the answer of the worker registry: {error}"),
        };
        (1..=REGISTRY_COLUMNS.len()).map(text).collect()
    })
}
