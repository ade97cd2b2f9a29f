//! The hot path: find the slot, take, ask for a refill, wait. No SQL is reached from here.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::{DoubleBuffer, Miss, Obstacle, Taken};
use leaf_id_core::snowflake::{START_SPREAD, Stall};
use rand::RngExt;

use crate::error::Failure;
use crate::guc::{self, WorkerId};
use crate::pg::{self, Caller, LockHolder, WaitEvent};
use crate::shmem::{
    self, Access, Area, Key, LeaseStatus, MAX_TAG, RELATIONS, RefillError, SlotRef, SnowflakeState,
    Tag,
};
use crate::tags::heap::{self, SeenRow, TableLocked};
use crate::tags::rights;
use crate::tags::transaction::{self as edits, Standing};

use super::slot_cache::{ByTag, SLOT_CACHE, SlotCache, TagBytes};

/// Tags that one session remembers the slots of, everybody's and others each: some 16 MB, in
/// the memory of its own.
const MAX_CACHED: usize = 250_000;
/// How long one sleep lasts at most before the state is looked at again, in milliseconds:
/// the safety net under the broadcasts.
const SLEEP_MS: i64 = 200;
/// How often a look that may not block is tried again, in milliseconds.
pub const RETRY_MS: i64 = 10;
/// How long a session waits for the launcher to renew the reservation before it does so
/// itself, in milliseconds: many times what an fsync takes.
const LATE_MS: i64 = 50;
/// Full milliseconds after which a call stays awake for the start of the next one, though
/// another session does: it would come too late each time.
const PATIENT_ROUNDS: u32 = 3;
/// How long a reload may take to reach the launcher, in milliseconds.
pub const RELOAD_GRACE_MS: i64 = SLEEP_MS;

/// What one call site remembers between its calls (PostgreSQL's `fn_extra`): where the ids
/// of its tag come from, if the tag is a constant of the query. Other tags are found anew
/// in each call, by what the session knows.
#[derive(Clone, Copy)]
pub struct CallSite {
    is_constant: bool,
    slot_ref: Option<SlotRef>,
}

impl CallSite {
    /// One that has not been called. Whether its tag is a constant is the caller's to know.
    pub const fn new(is_constant: bool) -> Self {
        Self {
            is_constant,
            slot_ref: None,
        }
    }

    /// Whether the tag is a constant of the query.
    #[inline]
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    fn note(&mut self, slot_ref: &SlotRef) {
        if self.is_constant {
            self.slot_ref = Some(*slot_ref);
        }
    }
}

/// How many ids a call takes at once.
#[derive(Clone, Copy)]
enum Amount {
    One,
    UpTo(u32),
    Range(u32),
}

impl Amount {
    #[inline]
    fn take(self, buffer: &DoubleBuffer, version: u64) -> Result<Taken, Miss> {
        match self {
            Self::One => buffer.take(version),
            Self::UpTo(n) => buffer.take_up_to(version, n),
            Self::Range(n) => buffer.take_range(version, n),
        }
    }

    fn want(self, buffer: &DoubleBuffer) -> bool {
        match self {
            Self::One | Self::UpTo(_) => buffer.want(),
            Self::Range(n) => buffer.want_range(n),
        }
    }

    /// Ids of a tag that lives in the open transaction alone come in any number.
    fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::UpTo(n) | Self::Range(n) => n,
        }
    }
}

/// Takes an id of the tag that a call site always names: a few loads and one atomic
/// addition, and nothing that can fail or panic. `None` if it names no such tag, or not yet,
/// or if the open transaction has edited tags.
#[inline]
pub fn try_constant(site: &CallSite) -> Option<Result<Taken, Obstacle>> {
    let slot_ref = site.slot_ref.as_ref()?;
    (!edits::open()).then(|| slot_ref.buffer.try_take(slot_ref.version))
}

/// What becomes of an attempt of [`try_constant`]: an id, and where it was taken from.
/// Nothing here can fail or panic either. `None` says nothing but that [`next`] must be
/// asked.
pub fn finish_constant(
    site: &CallSite,
    attempt: Result<Taken, Obstacle>,
) -> Option<(SlotRef, Taken)> {
    let slot_ref = site.slot_ref?;
    let taken = match attempt {
        Ok(taken) => taken,
        Err(obstacle) => slot_ref
            .buffer
            .take_again(slot_ref.version, obstacle)
            .ok()?,
    };
    Some((slot_ref, taken))
}

/// An id of a tag that this session has used before, and where it was taken from. Nothing
/// here can fail or panic either. `None` says nothing but that [`next`] must be asked.
#[inline]
pub fn take_cached(tag: &[u8]) -> Option<(SlotRef, Taken)> {
    let slot_ref = cached_slot(tag)?;
    let taken = slot_ref.buffer.take(slot_ref.version).ok()?;
    Some((slot_ref, taken))
}

/// Where this session took ids of a tag last, if that is everybody's.
#[inline]
fn cached_slot(tag: &[u8]) -> Option<SlotRef> {
    if edits::open() || pg::relation_changed() {
        return None;
    }
    SLOT_CACHE.with(|cache| cache.slots.get(tag).copied())
}

/// Where this session took ids of a tag last that is not everybody's, if the caller has.
fn cached_restricted_slot(tag: &[u8]) -> Option<SlotRef> {
    if edits::open() || pg::relation_changed() {
        return None;
    }
    SLOT_CACHE.with(|cache| {
        let (slot_ref, caller) = cache.restricted.get(tag)?;
        (*caller == Caller::now()).then_some(*slot_ref)
    })
}

fn take_restricted(tag: &[u8]) -> Option<(SlotRef, Taken)> {
    let slot_ref = cached_restricted_slot(tag)?;
    let taken = slot_ref.buffer.take(slot_ref.version).ok()?;
    Some((slot_ref, taken))
}

/// The next id of a tag.
///
/// # Errors
/// See [`Failure`].
pub fn next(site: &mut CallSite, tag: &[u8]) -> Result<i64, Failure> {
    let known = match take_cached(tag) {
        Some((slot_ref, taken)) => {
            site.note(&slot_ref);
            Some((slot_ref, taken))
        }
        None => take_restricted(tag),
    };
    let taken = match known {
        Some((slot_ref, taken)) => {
            if taken.leaves_work() {
                after_take(&slot_ref, &taken);
            }
            taken
        }
        None => obtain(tag, Amount::One)?,
    };
    Ok(taken.first)
}

/// `n` contiguous ids of a tag, as the first and the last; `n` is at least 1.
///
/// # Errors
/// See [`Failure`].
pub fn next_range(tag: &[u8], n: u32) -> Result<(i64, i64), Failure> {
    let amount = Amount::Range(n);
    let taken = match take_range_cached(tag, amount) {
        Some(taken) => taken,
        None => obtain(tag, amount)?,
    };
    Ok((taken.first, taken.first + i64::from(n) - 1))
}

/// A range that is there for the taking, of a tag that this session has used before.
fn take_range_cached(tag: &[u8], amount: Amount) -> Option<Taken> {
    let slot_ref = cached_slot(tag).or_else(|| cached_restricted_slot(tag))?;
    let taken = take_ready(shmem::area()?, &slot_ref, amount).ok()??;
    if taken.leaves_work() {
        after_take(&slot_ref, &taken);
    }
    Some(taken)
}

/// The ids of one batch call, taken as they are read, in as few runs as the segments allow.
pub struct Batch {
    tag: Vec<u8>,
    left: u32,
    next: i64,
    in_run: u32,
}

impl Batch {
    /// `n` ids of a tag.
    pub fn new(tag: &[u8], n: u32) -> Self {
        Self {
            tag: tag.to_vec(),
            left: n,
            next: 0,
            in_run: 0,
        }
    }
}

impl Iterator for Batch {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        if self.left == 0 {
            return None;
        }
        if self.in_run == 0 {
            pg::check_for_interrupts();
            let run = Amount::UpTo(self.left);
            match obtain(&self.tag, run) {
                Ok(taken) => (self.next, self.in_run) = (taken.first, taken.count),
                Err(failure) => failure.raise(),
            }
        }
        let id = self.next;
        self.next += 1;
        self.in_run -= 1;
        self.left -= 1;
        Some(id)
    }
}

/// The shared area, where ids can be issued at all.
///
/// # Errors
/// The library is not preloaded; the server is a standby, or one of a single process.
pub fn ready() -> Result<&'static Area, Failure> {
    let area = ready_on_standby()?;
    if pg::in_recovery() {
        return Err(Failure::Standby);
    }
    Ok(area)
}

/// The shared area, where ids can be issued that no table is needed for.
fn ready_on_standby() -> Result<&'static Area, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    if pg::single_user() {
        return Err(Failure::SingleUser);
    }
    Ok(area)
}

/// What a take leaves to do: to ask for the spare, and to count what was lost.
#[cold]
#[inline(never)]
pub fn after_take(slot_ref: &SlotRef, taken: &Taken) {
    let Some(area) = shmem::area() else { return };
    if taken.spare_due && slot_ref.buffer.want() {
        area.queues().post(pg::database(), slot_ref.slot);
    }
    count_lost(area, slot_ref, taken.lost);
}

fn relation() -> Result<u32, Failure> {
    if !pg::relation_changed() {
        return Ok(SLOT_CACHE.with(|cache| cache.relation));
    }
    let relation = heap::relation()?;
    pg::watch_relation(relation);
    SLOT_CACHE.with_mut(|cache| {
        *cache = SlotCache {
            relation,
            ..SlotCache::default()
        };
    });
    Ok(relation)
}

fn tag(bytes: &[u8]) -> Result<Tag, Failure> {
    match Tag::new(bytes) {
        Some(tag) if bytes.len() <= MAX_TAG => Ok(tag),
        _ => Err(Failure::TagLength { bytes: bytes.len() }),
    }
}

/// A tag that another server asks for.
///
/// # Errors
/// It is none; or this very transaction has edited it, and may have issued ids of it.
pub fn untouched(bytes: &[u8]) -> Result<Key, Failure> {
    let key = Key {
        database: pg::database(),
        relation: relation()?,
        tag: tag(bytes)?,
    };
    if edits::open() && !matches!(edits::standing(&key), Standing::Untouched) {
        return Err(changed(&key));
    }
    Ok(key)
}

#[cold]
#[inline(never)]
fn obtain(bytes: &[u8], amount: Amount) -> Result<Taken, Failure> {
    let area = ready()?;
    let tag = tag(bytes)?;
    let deadline = Deadline::new();
    loop {
        let key = Key {
            database: pg::database(),
            relation: relation()?,
            tag,
        };
        if edits::open() {
            match edits::standing(&key) {
                Standing::Untouched => {}
                Standing::Created if !pg::in_parallel_mode() => {
                    check_local(&key, &deadline)?;
                    let is_range = matches!(amount, Amount::Range(_));
                    let first = edits::issue_local(&key, amount.count(), is_range)?;
                    return Ok(Taken {
                        first,
                        count: amount.count(),
                        spare_due: false,
                        lost: 0,
                    });
                }
                Standing::Created | Standing::Changed => return Err(changed(&key)),
            }
        }
        let known = SLOT_CACHE.with(|cache| {
            let everybodys = cache.slots.get(bytes).copied();
            everybodys.or_else(|| {
                let (slot_ref, caller) = cache.restricted.get(bytes)?;
                (*caller == Caller::now()).then_some(*slot_ref)
            })
        });
        let slot_ref = match known {
            Some(slot_ref) if slot_ref.buffer.version() == slot_ref.version => slot_ref,
            _ => find_slot(area, &key, &deadline)?,
        };
        if let Some(taken) = take(area, &slot_ref, &key, amount, &deadline)? {
            after_take(&slot_ref, &taken);
            return Ok(taken);
        }
        // Also where edits or evictions follow one another so fast that none of them is
        // waited for (I5).
        pg::check_for_interrupts();
        if deadline.left_ms().is_none() {
            return Err(Failure::NoSegment {
                tag: name(&key),
                timeout_ms: deadline.timeout_ms(),
                detail: "What was cached of the tag was dropped time and again: by edits of its row, or because \"leaf_id.max_tags\" is too small.".into(),
            });
        }
    }
}

fn count_lost(area: &Area, slot_ref: &SlotRef, lost: u32) {
    if lost > 0 {
        area.with_state(slot_ref.slot, |state| state.lost += u64::from(lost));
    }
}

/// What can be taken without waiting; `Ok(None)`: the slot's version has changed.
fn take_ready(area: &Area, slot_ref: &SlotRef, amount: Amount) -> Result<Option<Taken>, Exhausted> {
    loop {
        return match amount.take(slot_ref.buffer, slot_ref.version) {
            Ok(taken) => Ok(Some(taken)),
            Err(Miss::Changed) => Ok(None),
            Err(Miss::Empty) => Err(Exhausted),
            Err(Miss::Short { lost }) => {
                count_lost(area, slot_ref, lost);
                continue;
            }
        };
    }
}

/// Both buffers are used up.
struct Exhausted;

fn name(key: &Key) -> String {
    key.tag.name()
}

fn changed(key: &Key) -> Failure {
    Failure::TagChanged {
        tag: name(key),
        parallel: pg::in_parallel_mode(),
    }
}

/// How long a call may still wait, by `leaf_id.refill_timeout`.
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Of a call that begins now.
    pub fn new() -> Self {
        let ms = u64::try_from(guc::REFILL_TIMEOUT.get()).unwrap_or(1);
        Self {
            started: Instant::now(),
            timeout: Duration::from_millis(ms),
        }
    }

    /// `leaf_id.refill_timeout`, in milliseconds.
    pub fn timeout_ms(&self) -> i64 {
        i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)
    }

    /// How long the call has taken so far, in milliseconds.
    pub fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// What is left, in milliseconds, rounded up; `None` when nothing is.
    pub fn left_ms(&self) -> Option<i64> {
        let left = self.timeout.checked_sub(self.started.elapsed())?;
        i64::try_from(left.as_millis() + 1).ok()
    }
}

/// The slot of a tag that exists. An unknown tag gets none: asking for names at random
/// must not fill the array.
fn find_slot(area: &'static Area, key: &Key, deadline: &Deadline) -> Result<SlotRef, Failure> {
    let found = area.directory().find(key);
    let slot_ref = match found {
        Some(slot_ref) => slot_ref,
        None => create_slot(area, key, deadline)?,
    };
    // A parallel worker does not have its leader's list of edits.
    if let Some(leader) = pg::leader_pid()
        && slot_ref.slot.edited_by.load(Ordering::Relaxed) == leader
    {
        return Err(changed(key));
    }
    // After the version, which the slot reference has.
    let access = slot_ref.slot.access();
    // Before the look: what is heard of meanwhile counts as news.
    let caller = Caller::now();
    if access != Access::Everybody {
        let row = see_row(key, deadline)?.row;
        if !rights::caller_may_issue(row.granted_to.as_deref()) {
            return Err(Failure::TagForbidden { tag: name(key) });
        }
    }
    let limit = area.capacity().min(MAX_CACHED);
    SLOT_CACHE.with_mut(|cache| match access {
        // It is known with the first segment of this version.
        Access::Unknown => {}
        Access::Everybody => remember(&mut cache.slots, limit, &key.tag, slot_ref),
        Access::Restricted => {
            cache.slots.remove(key.tag.bytes());
            remember(&mut cache.restricted, limit, &key.tag, (slot_ref, caller));
        }
    });
    Ok(slot_ref)
}

fn remember<T>(slots: &mut ByTag<T>, limit: usize, tag: &Tag, slot_ref: T) {
    // More than there are slots: most of them are of slots that were given away.
    if slots.len() >= limit && !slots.contains_key(tag.bytes()) {
        slots.clear();
    }
    slots.insert(TagBytes::new(tag.bytes()), slot_ref);
}

/// Whether the caller may issue ids of a tag that this transaction has created. Its row is
/// not looked at if the list is NULL, as it nearly always is.
fn check_local(key: &Key, deadline: &Deadline) -> Result<(), Failure> {
    if edits::is_restricted(key) {
        let row = see_row(key, deadline)?.row;
        if !rights::caller_may_issue(row.granted_to.as_deref()) {
            return Err(Failure::TagForbidden { tag: name(key) });
        }
    }
    Ok(())
}

fn create_slot(area: &'static Area, key: &Key, deadline: &Deadline) -> Result<SlotRef, Failure> {
    let row = see_row(key, deadline)?;
    // Written by the open transaction (the leader's, in a parallel worker): no allocator
    // can see it, and it would wait for our lock.
    if row.ours {
        return Err(changed(key));
    }
    // Before anybody else's slot makes room.
    if !rights::caller_may_issue(row.row.granted_to.as_deref()) {
        return Err(Failure::TagForbidden { tag: name(key) });
    }
    loop {
        if area.may_sweep() {
            sweep(area);
        }
        let created = area.directory_mut().find_or_create(key);
        if let Ok(slot_ref) = created {
            slot_ref
                .slot
                .max_step
                .store(row.row.limits.max_step, Ordering::Relaxed);
            return Ok(slot_ref);
        }
        if deadline.left_ms().is_none() {
            return Err(Failure::NoFreeSlot);
        }
        pg::wait_latch(Some(RETRY_MS), WaitEvent::Segment);
    }
}

fn see_row(key: &Key, deadline: &Deadline) -> Result<SeenRow, Failure> {
    loop {
        match heap::see(key) {
            Ok(Ok(Some(row))) => return Ok(row),
            Ok(Err(altered)) => return Err(altered),
            Ok(Ok(None)) => return Err(Failure::NoSuchTag { tag: name(key) }),
            Err(TableLocked) if deadline.left_ms().is_none() => {
                return Err(Failure::NoSegment {
                    tag: name(key),
                    timeout_ms: deadline.timeout_ms(),
                    detail: "Table leaf_id.leaf_alloc is locked.".into(),
                });
            }
            Err(TableLocked) => pg::wait_latch(Some(RETRY_MS), WaitEvent::Segment),
        }
    }
}

/// Frees slots of this database's former tables.
fn sweep(area: &Area) {
    let database = pg::database();
    let mut relations = Vec::with_capacity(RELATIONS);
    area.directory().relations_of(database, &mut relations);
    for relation in relations {
        if !pg::relation_exists(relation) {
            area.sweep(database, relation);
        }
    }
}

/// Takes, and waits for a segment where need be. `None`: the slot's version has changed, look
/// the tag up again.
fn take(
    area: &'static Area,
    slot_ref: &SlotRef,
    key: &Key,
    amount: Amount,
    deadline: &Deadline,
) -> Result<Option<Taken>, Failure> {
    if let Ok(taken) = take_ready(area, slot_ref, amount) {
        return Ok(taken);
    }
    let started = Instant::now();
    let result = wait(area, slot_ref, key, amount, deadline);
    let us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    slot_ref.slot.waits.fetch_add(1, Ordering::Relaxed);
    slot_ref.slot.waited_us.fetch_add(us, Ordering::Relaxed);
    result
}

fn wait(
    area: &'static Area,
    slot_ref: &SlotRef,
    key: &Key,
    amount: Amount,
    deadline: &Deadline,
) -> Result<Option<Taken>, Failure> {
    let buffer = slot_ref.buffer;
    let began = pg::now_timestamp();
    let waiting = slot_ref.slot.waiters().join();
    slot_ref.slot.starved.store(1, Ordering::Relaxed);
    loop {
        if let Ok(taken) = take_ready(area, slot_ref, amount) {
            return Ok(taken);
        }
        if let Amount::Range(n) = amount {
            check_range(slot_ref, key, n, deadline)?;
        }
        // Before the final error, which may be of before a setting was changed: the next call
        // finds a new one.
        if amount.want(buffer) {
            area.queues().post(key.database, slot_ref.slot);
        }
        if let Some(failure) = final_error(area, slot_ref, key, began) {
            return Err(failure);
        }
        match deadline.left_ms() {
            Some(left) => {
                if area.launcher().is_missing() {
                    pg::nudge_postmaster();
                }
                waiting.sleep(left.min(SLEEP_MS), WaitEvent::Segment);
            }
            None => return Err(timed_out(area, slot_ref, key, deadline)),
        }
    }
}

/// A range longer than `max_step` never comes. What the slot knows of it may be old.
fn check_range(slot_ref: &SlotRef, key: &Key, n: u32, deadline: &Deadline) -> Result<(), Failure> {
    if n <= slot_ref.slot.max_step.load(Ordering::Relaxed) {
        return Ok(());
    }
    let row = see_row(key, deadline)?.row.limits.max_step;
    let max_step = match slot_ref.slot.server_max_step.load(Ordering::Relaxed) {
        0 => row,
        there => row.min(there),
    };
    slot_ref.slot.max_step.store(max_step, Ordering::Relaxed);
    if n <= max_step {
        return Ok(());
    }
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    Err(Failure::RangeTooLong {
        tag: name(key),
        n,
        max_step,
    })
}

fn is_caller(holder: LockHolder) -> bool {
    match holder {
        LockHolder::Process(pid) => pid == pg::pid() || pg::leader_pid() == Some(pid),
        LockHolder::Nobody | LockHolder::Prepared => false,
    }
}

/// What the allocator has found out that makes waiting useless. It speaks of one version of
/// the row: an edit that could help begins another.
fn final_error(area: &Area, slot_ref: &SlotRef, key: &Key, began: i64) -> Option<Failure> {
    let (state, _) = area.look(slot_ref.slot);
    if state.error_version != slot_ref.version {
        return None;
    }
    let tag = name(key);
    match state.refill_error {
        RefillError::NoSuchTag => Some(Failure::NoSuchTag { tag }),
        RefillError::EndOfTag { max_value, skip } => {
            Some(Failure::end_of_tag(tag, max_value, skip))
        }
        RefillError::MaxIdBackwards { published, found } => Some(Failure::MaxIdBackwards {
            tag,
            published,
            found,
        }),
        RefillError::There { link, sqlstate } => {
            let server = server_name(area, link);
            match &sqlstate {
                b"42704" => Some(Failure::NoSuchTagThere { tag, server }),
                b"2200H" => Some(Failure::EndOfTagThere {
                    tag,
                    server,
                    detail: for_monitors(state.text.get()),
                }),
                _ => None,
            }
        }
        RefillError::ServerBehind { received, answered } => Some(Failure::ServerBehind {
            tag,
            server: state.text.get(),
            received,
            answered,
        }),
        // Not one that is left from an earlier wait.
        RefillError::RowLocked { by } | RefillError::TableLocked { by }
            if is_caller(by) && state.error_at >= began =>
        {
            Some(Failure::LockedByCaller { tag })
        }
        _ => None,
    }
}

fn server_name(area: &Area, link: u32) -> String {
    let link = area.remote_servers().find(link);
    link.map_or_else(String::new, |link| link.server().text())
}

/// What another server or PostgreSQL has said may name hosts, roles and nodes.
fn for_monitors(said: String) -> String {
    if pg::caller_is_monitor() {
        said
    } else {
        "(shown to roles with the privileges of pg_monitor)".into()
    }
}

fn reason_for_monitors(sentence: String) -> String {
    if pg::caller_is_monitor() {
        sentence
    } else {
        "The reason is shown to roles with the privileges of pg_monitor.".into()
    }
}

fn timed_out(area: &Area, slot_ref: &SlotRef, key: &Key, deadline: &Deadline) -> Failure {
    let (state, _) = area.look(slot_ref.slot);
    let tag = name(key);
    if state.refill_error == RefillError::NoWorkerSlot {
        return Failure::NoWorkerSlot { tag };
    }
    let explained = match state.refill_error {
        RefillError::Server { link } => area
            .remote_servers()
            .find(link)
            .map(|link| reason_for_monitors(link.explain())),
        RefillError::There { .. } | RefillError::Failed => {
            state.explain(area).map(reason_for_monitors)
        }
        _ => state.explain(area),
    };
    let detail = explained.unwrap_or_else(|| silence(area).into());
    Failure::NoSegment {
        tag,
        timeout_ms: deadline.timeout_ms(),
        detail,
    }
}

/// Why nobody has answered.
pub fn silence(area: &Area) -> &'static str {
    if area.launcher().is_missing() {
        "The launcher of leaf_id is not running. If it never does, \"max_worker_processes\" leaves no room for it."
    } else {
        "No allocator has answered; see the server's log."
    }
}

// ---- Snowflake ---------------------------------------------------------------------

/// The next snowflake id, where most of them come from: the millisecond of the last one.
/// Nothing here can fail or panic. `None` says nothing but that [`next_snowflake`] must be
/// asked.
#[inline]
pub fn next_snowflake_at_once() -> Option<i64> {
    let snowflake = &shmem::area()?.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let id = snowflake
        .generator
        .next_at_once(|| pg::now_ms() - epoch_ms)?;
    snowflake.issued.fetch_add(1, Ordering::Relaxed);
    Some(id)
}

/// The next snowflake id.
///
/// # Errors
/// See [`Failure`].
#[inline]
pub fn next_snowflake() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    match try_snowflake(area) {
        Ok(id) => Ok(id),
        Err(stall) => wait_snowflake(area, stall),
    }
}

#[inline]
fn try_snowflake(area: &Area) -> Result<i64, Stall> {
    let snowflake = &area.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let id = snowflake.generator.next(
        || pg::now_ms() - epoch_ms,
        || {
            let start = || rand::rng().random_range(0..START_SPREAD);
            snowflake.may_issue().then(start)
        },
    )?;
    snowflake.issued.fetch_add(1, Ordering::Relaxed);
    Ok(id)
}

#[cold]
#[inline(never)]
fn wait_snowflake(area: &'static Area, first: Stall) -> Result<i64, Failure> {
    ready_on_standby()?;
    if pg::in_recovery() && guc::worker_id() != WorkerId::Auto {
        return Err(Failure::StandbyWithoutLease);
    }
    let snowflake = &area.snowflake;
    let deadline = Deadline::new();
    let waiting = snowflake.waiters().join();
    if !matches!(first, Stall::Full(_)) {
        snowflake.waits.fetch_add(1, Ordering::Relaxed);
    }
    let mut seen_back = false;
    let mut full_rounds = 0;
    let mut stall = first;
    loop {
        match stall {
            Stall::Full(ms) => {
                pg::check_for_interrupts();
                if deadline.left_ms().is_none() {
                    return Err(Failure::SnowflakeTimeout {
                        timeout_ms: deadline.timeout_ms(),
                        detail: "Other sessions have used every millisecond up.".into(),
                    });
                }
                full_rounds += 1;
                let unix_ms = ms + snowflake.epoch_ms.load(Ordering::Relaxed);
                let exactly = snowflake.watch(unix_ms) || full_rounds > PATIENT_ROUNDS;
                pg::sleep_until((unix_ms + 1) * 1000, exactly, WaitEvent::Snowflake);
            }
            Stall::ClockBack(by_ms) => {
                if !seen_back {
                    seen_back = true;
                    snowflake.rollbacks.fetch_add(1, Ordering::Relaxed);
                }
                let left = deadline.left_ms();
                match left.filter(|_| by_ms <= i64::from(guc::MAX_CLOCK_BACKWARD.get())) {
                    Some(left) => waiting.sleep(by_ms.min(left), WaitEvent::Snowflake),
                    None => {
                        let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
                        let last = pg::format_ms(snowflake.generator.last().ms + epoch_ms);
                        return Err(Failure::ClockBack { by_ms, last });
                    }
                }
            }
            Stall::EndOfTime => return Err(Failure::EndOfTime),
            Stall::Closed | Stall::Unreserved | Stall::Unleased => {
                refused(area, &deadline)?;
                let Some(left) = deadline.left_ms().or_else(|| almost_over(snowflake)) else {
                    // Also where the launcher was not there to close the generator.
                    let ended = snowflake.generator.is_open() && !snowflake.may_issue();
                    return Err(if ended {
                        lease_ended(&area.registry().lease_status())
                    } else {
                        snowflake_timeout(area, &deadline)
                    });
                };
                let late = deadline.elapsed_ms() >= LATE_MS;
                let renewed = stall == Stall::Unreserved
                    && late
                    && crate::snowflake::keeper::renew_late(snowflake)?;
                if !renewed {
                    snowflake.reservation_wanted.store(1, Ordering::Release);
                    area.launcher().wake();
                    let patience = if late { SLEEP_MS } else { LATE_MS };
                    waiting.sleep(left.min(patience), WaitEvent::Snowflake);
                }
            }
        }
        match try_snowflake(area) {
            Ok(id) => return Ok(id),
            Err(next) => stall = next,
        }
    }
}

/// What is left to wait out, in milliseconds, if that is hardly more than nothing. A call
/// right after a crash waits as long as one reservation, and a reservation is as long as
/// the timeout, by default: the few milliseconds between the start and the call must not
/// make it fail.
fn almost_over(snowflake: &shmem::Snowflake) -> Option<i64> {
    let (state, detail) = snowflake.status();
    let left = detail - pg::now_ms() + 1;
    // Long over means that nobody is there to open it.
    let almost = (-SLEEP_MS..2 * SLEEP_MS).contains(&left);
    (state == SnowflakeState::WaitingOut && almost).then_some(left.max(1))
}

/// Whether the launcher has found that waiting is useless.
fn refused(area: &Area, deadline: &Deadline) -> Result<(), Failure> {
    let (state, detail) = area.snowflake.status();
    let said = || for_monitors(area.registry().lease_status().last_error.get());
    match state {
        // Set a moment ago, perhaps, and the launcher has not read it yet.
        SnowflakeState::NoWorkerId
        | SnowflakeState::NoRegistrySet
        | SnowflakeState::OtherEpoch
        | SnowflakeState::Standby
            if deadline.elapsed_ms() < RELOAD_GRACE_MS =>
        {
            Ok(())
        }
        SnowflakeState::NoWorkerId => Err(Failure::WorkerIdUnset),
        SnowflakeState::ReservationAhead => {
            let by_ms = detail - pg::now_ms();
            // No longer, or within what this call waits for anyhow.
            if deadline.left_ms().is_some_and(|left| by_ms <= left) {
                return Ok(());
            }
            Err(Failure::ReservationAhead {
                by_ms,
                until: pg::format_ms(detail),
            })
        }
        SnowflakeState::WorkerIdRetired => Err(Failure::WorkerIdRetired {
            until: pg::format_ms(detail),
        }),
        SnowflakeState::EpochMovedLater => Err(Failure::EpochMovedLater { stored_ms: detail }),
        SnowflakeState::FileProblem => Err(Failure::ReservationFile {
            reason: "the reason is in the server's log.".into(),
        }),
        SnowflakeState::NoRegistrySet => Err(Failure::RegistryUnset),
        SnowflakeState::HeldByOther => Err(Failure::HeldByOther { said: said() }),
        SnowflakeState::NoFreeWorkerId => Err(Failure::NoFreeWorkerId { said: said() }),
        SnowflakeState::ClockSkew => Err(Failure::ClockSkew {
            by_ms: detail,
            said: said(),
        }),
        SnowflakeState::OtherEpoch => Err(Failure::OtherEpoch { said: said() }),
        SnowflakeState::OtherRole => Err(Failure::OtherRole { said: said() }),
        SnowflakeState::Standby => Err(Failure::StandbyWithoutLease),
        SnowflakeState::LeaseEnded => {
            let status = area.registry().lease_status();
            // Otherwise it is being renewed just now.
            match status.away_since_ms {
                Some(_) => Err(lease_ended(&status)),
                None => Ok(()),
            }
        }
        // The registry may answer yet.
        SnowflakeState::NoRegistry
        | SnowflakeState::RegistryGrace
        | SnowflakeState::WorkerIdLost
        | SnowflakeState::Starting
        | SnowflakeState::WaitingOut
        | SnowflakeState::Open => Ok(()),
    }
}

fn lease_ended(status: &LeaseStatus) -> Failure {
    Failure::LeaseEnded {
        worker_id: status.worker_id,
        registry: status.registry.get(),
        away_since: status.away_since_ms.map(pg::format_ms),
        said: for_monitors(status.last_error.get()),
    }
}

fn snowflake_timeout(area: &Area, deadline: &Deadline) -> Failure {
    let (state, detail) = area.snowflake.status();
    let status = area.registry().lease_status();
    let registry = status.registry.get();
    let detail = match state {
        _ if area.launcher().is_missing() => silence(area).into(),
        SnowflakeState::WaitingOut => format!(
            "Timestamps that an earlier run or another server had reserved are being waited out, until {}.",
            pg::format_ms(detail)
        ),
        SnowflakeState::LeaseEnded => return lease_ended(&status),
        SnowflakeState::NoRegistry | SnowflakeState::Starting if !registry.is_empty() => {
            match status.away_since_ms {
                Some(since) => format!(
                    "Worker registry \"{registry}\" has not answered since {}: {}.",
                    pg::format_ms(since),
                    for_monitors(status.last_error.get())
                ),
                None => format!("Worker registry \"{registry}\" has not answered yet."),
            }
        }
        SnowflakeState::RegistryGrace | SnowflakeState::WorkerIdLost => format!(
            "Worker registry \"{registry}\" grants no worker id: {}.",
            for_monitors(status.last_error.get())
        ),
        SnowflakeState::Open => "The reservation of timestamps was not renewed.".into(),
        _ => "The launcher has not started the generator.".into(),
    };
    Failure::SnowflakeTimeout {
        timeout_ms: deadline.timeout_ms(),
        detail,
    }
}
