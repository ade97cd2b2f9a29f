//! Edits of `leaf_alloc` by the open transaction, ids issued from tags that it created, and the
//! callbacks that publish the edits when it commits.
//!
//! Shared memory has the committed state. A transaction that has changed a tag's row must not get
//! an id from the old row, and would wait forever for its own lock if it requested one from the new
//! row. So it gets an error (55000) until it commits. The exception is a tag created in the same
//! transaction: no other session can see it, so its ids are counted here and written to the row and
//! to the mark of the name before the commit. The counter is not subject to subtransactions:
//! ROLLBACK TO SAVEPOINT does not make an id available again. The exception does not apply to a tag
//! that existed before and was dropped, renamed or reset.
//!
//! The callbacks after commit and abort must not fail, which would be a PANIC. They allocate
//! nothing; the trigger has prepared what they need.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use leaf_id_core::row::{self, Edited};
use parking_lot::Mutex;

use crate::error::{EditError, Failure, RefillError};
use crate::pg::{self, SubtransactionEvent, TransactionCallbacks, TransactionEvent};
use crate::shmem::SlotAccess;
use crate::shmem::{self, Area, Key};
use crate::tags::claim;
use crate::tags::heap::{AllocRow, Edit};
use crate::tags::opaque;

/// Max edits recorded individually; beyond that, all tags of the database are invalidated.
const MAX_EDITS: usize = 100_000;

/// Status of a tag in the open transaction.
pub enum Standing {
    /// Not edited; shared memory is valid.
    Untouched,
    /// Edited; no ids until the transaction commits.
    Changed,
    /// Created here, under a name this transaction had not touched before; ids are issued here, to
    /// those who have access.
    Created(SlotAccess),
}

/// What is known of a tag that was created here.
#[derive(Clone, Copy)]
struct Created {
    /// Next id. The row is at or above the mark of its name: see `trigger::meet_mark`.
    next: i64,
    max_value: i64,
    max_step: u32,
    /// The tag is sourced from another server, so no ids are issued here. Ids issued before the
    /// row named that server still count.
    sourced: bool,
    access: SlotAccess,
}

type Kind = Edited<Created>;

struct Entry {
    order: u64,
    kind: Kind,
}

/// An undo record for subtransaction abort.
enum Step {
    Entry(Key),
    Truncate,
}

#[derive(Default)]
struct Edits {
    /// Edits per tag, newest last.
    entries: HashMap<Key, Vec<Entry>>,
    /// Truncated tables, with the order of the TRUNCATE.
    truncated: Vec<(u32, u64)>,
    /// Undo log: all edits in order, with their subtransaction.
    log: Vec<(u32, Step)>,
    order: u64,
    /// Too many edits: all tags of the database count as changed.
    overflow: bool,
    /// One past the last id issued here, per tag. Survives subtransaction abort.
    issued: HashMap<Key, i64>,
}

static EDITS: LazyLock<Mutex<Edits>> = LazyLock::new(Mutex::default);
/// True if `EDITS` is not empty; for the hot path.
static OPEN: AtomicBool = AtomicBool::new(false);
/// This transaction has written to `leaf_alloc`, forgotten a name, or edited the worker registry.
static WRITTEN: AtomicBool = AtomicBool::new(false);
/// The issued ids have been written to the rows; no more can be issued before the commit.
static ISSUED_WRITTEN: AtomicBool = AtomicBool::new(false);

/// True if this transaction has edited any tag.
#[inline]
pub fn open() -> bool {
    OPEN.load(Ordering::Relaxed)
}

impl Edits {
    fn add(&mut self, key: Key, kind: Kind) {
        if self.log.len() >= MAX_EDITS {
            self.overflow = true;
            return;
        }
        self.order += 1;
        let order = self.order;
        self.entries
            .entry(key)
            .or_default()
            .push(Entry { order, kind });
        self.log.push((pg::subtransaction(), Step::Entry(key)));
    }

    fn kind(&self, key: &Key) -> Option<Kind> {
        // Later edits were not recorded.
        if self.overflow {
            return Some(Edited::Changed);
        }
        let truncated = self
            .truncated
            .iter()
            .rev()
            .find(|(relation, _)| *relation == key.relation);
        let truncated = truncated.map_or(0, |(_, order)| *order);
        match self.entries.get(key).and_then(|entries| entries.last()) {
            Some(entry) if entry.order > truncated => Some(entry.kind),
            _ => (truncated > 0).then_some(Edited::Changed),
        }
    }

    /// Ids issued here from tags whose creation has not been rolled back. This transaction has locked
    /// their rows and marks.
    fn issued(&self) -> Vec<(Key, i64)> {
        let issued = self.issued.iter();
        let stands = issued.filter(|(key, _)| self.entries.contains_key(key));
        stands.map(|(key, high)| (*key, *high)).collect()
    }

    fn is_truncated(&self, relation: u32) -> bool {
        self.truncated.iter().any(|(of, _)| *of == relation)
    }

    /// Marks the tags of a table that were edited before its TRUNCATE, which was rolled back.
    fn mark_again(&self, relation: u32, area: &Area) {
        for (key, entries) in &self.entries {
            let is_edited = |entry: &Entry| !matches!(entry.kind, Edited::Regranted);
            if key.relation == relation && entries.iter().any(is_edited) {
                area.directory().mark_edited(key, true);
            }
        }
    }

    fn take_back(&mut self, subtransaction: u32, area: Option<&Area>) {
        // Subtransaction ids ascend: those started within this one have higher ids.
        while self
            .log
            .last()
            .is_some_and(|(number, _)| *number >= subtransaction)
        {
            match self.log.pop() {
                Some((_, Step::Entry(key))) => {
                    let left = self.entries.get_mut(&key).map_or(0, |entries| {
                        entries.pop();
                        entries.len()
                    });
                    if left == 0 {
                        self.entries.remove(&key);
                        if let Some(area) = area
                            && !self.overflow
                            && !self.is_truncated(key.relation)
                        {
                            area.directory().mark_edited(&key, false);
                        }
                    }
                }
                Some((_, Step::Truncate)) => {
                    if let (Some((relation, _)), Some(area)) = (self.truncated.pop(), area)
                        && !self.overflow
                        && !self.is_truncated(relation)
                    {
                        area.directory()
                            .mark_all_edited(pg::database(), Some(relation), false);
                        self.mark_again(relation, area);
                    }
                }
                None => {}
            }
        }
    }
}

/// Status of a tag in the open transaction.
pub fn standing(key: &Key) -> Standing {
    let kind = EDITS.lock().kind(key);
    match kind {
        None | Some(Edited::Regranted) => Standing::Untouched,
        Some(Edited::Created(tag)) if !tag.sourced => Standing::Created(tag.access),
        Some(_) => Standing::Changed,
    }
}

/// The next id of a tag that this transaction has created or issued; 0 of any other.
pub fn next_here(key: &Key) -> i64 {
    let edits = EDITS.lock();
    let next = match edits.kind(key) {
        Some(Edited::Created(tag)) => tag.next,
        _ => 0,
    };
    edits
        .issued
        .get(key)
        .map_or(next, |issued| next.max(*issued))
}

/// True if this transaction has issued ids of a tag that it had created, even if that was rolled back.
pub fn has_issued(key: &Key) -> bool {
    EDITS.lock().issued.contains_key(key)
}

/// Issues `n` contiguous ids from a tag created in this transaction. `is_range`: `max_step` limits
/// `n`.
///
/// # Errors
/// The tag's limits, or the tag was not created in this transaction.
pub fn issue_local(key: &Key, n: u32, is_range: bool) -> Result<i64, Failure> {
    let name = || key.tag.name();
    if ISSUED_WRITTEN.load(Ordering::Relaxed) {
        return Err(Failure::Committing { tag: name() });
    }
    let mut edits = EDITS.lock();
    let Some(Edited::Created(Created {
        next,
        max_value,
        max_step,
        sourced: false,
        ..
    })) = edits.kind(key)
    else {
        return Err(Failure::TagChanged {
            tag: name(),
            parallel: false,
        });
    };
    if is_range && n > max_step {
        return Err(Failure::RangeTooLong {
            tag: name(),
            n: i32::try_from(n).unwrap_or(i32::MAX),
            max_step,
        });
    }
    let first = edits
        .issued
        .get(key)
        .map_or(next, |issued| next.max(*issued));
    let left = max_value.saturating_sub(first).saturating_add(1);
    if is_range && (1..i64::from(n)).contains(&left) {
        let tag = name();
        return Err(Failure::RangeAtEnd { tag, n, max_value });
    }
    if left < i64::from(n) {
        return Err(Failure::tag(
            name(),
            RefillError::EndOfTag { max_value, skip: 0 },
        ));
    }
    edits.issued.insert(*key, first + i64::from(n));
    Ok(first)
}

/// Records an edit, after the row was written.
pub fn remember(edit: &Edit) {
    // Also where nothing is cached: a subscriber of this server could not prepare it either.
    watch();
    if shmem::area().is_some() {
        remember_rows(edit.relation, edit.old.as_ref(), edit.new.as_ref());
    }
}

/// Access to the ids of an inserted row.
fn access_of(row: &AllocRow) -> SlotAccess {
    match opaque::has_key(&row.tag) {
        Ok(true) => SlotAccess::Opaque,
        _ => SlotAccess::of(&row.granted_to),
    }
}

fn remember_rows(relation: u32, old: Option<&AllocRow>, new: Option<&AllocRow>) {
    let old_key = old.map(|old| Key::here(relation, old.tag));
    let new_key = new.map(|new| Key::here(relation, new.tag));
    // Before locking EDITS: these read tables.
    let access = new.map_or(SlotAccess::Unknown, access_of);
    let mut edits = EDITS.lock();
    let known = new_key.and_then(|key| edits.kind(&key));
    let created = new.map(|new| {
        let row = &new.row;
        let created = Created {
            next: row.max_id,
            max_value: row.max_value,
            max_step: row.limits.max_step,
            sourced: row.server.is_some(),
            access,
        };
        (row, created)
    });
    let is_regranted = old.map(|old| &old.granted_to) != new.map(|new| &new.granted_to);
    let [of_old, of_new] = row::edited(
        known.as_ref(),
        old.map(|old| &old.row),
        created,
        old_key != new_key,
        is_regranted,
    );
    let mut touched = [None, None];
    for ((key, kind), touched) in [(old_key, of_old), (new_key, of_new)]
        .into_iter()
        .zip(&mut touched)
    {
        if let (Some(key), Some(kind)) = (key, kind) {
            edits.add(key, kind);
            *touched = (!matches!(kind, Edited::Regranted)).then_some(key);
        }
    }
    let any = !edits.log.is_empty();
    drop(edits);
    if any {
        OPEN.store(true, Ordering::Relaxed);
    }
    if let Some(area) = shmem::area() {
        for key in touched.iter().flatten() {
            area.directory().mark_edited(key, true);
        }
    }
}

/// Records a TRUNCATE.
pub fn note_truncate(relation: u32) {
    watch();
    let Some(area) = shmem::area() else { return };
    let mut edits = EDITS.lock();
    edits.order += 1;
    let order = edits.order;
    edits.truncated.push((relation, order));
    edits.log.push((pg::subtransaction(), Step::Truncate));
    drop(edits);
    OPEN.store(true, Ordering::Relaxed);
    area.directory()
        .mark_all_edited(pg::database(), Some(relation), true);
}

/// Registers the transaction callbacks; called before writes to `leaf_alloc`, before a name is
/// forgotten, and at edits of the worker registry. The transaction cannot be prepared.
pub fn watch() {
    static CALLBACKS: TransactionCallbacks = TransactionCallbacks {
        transaction: on_transaction,
        subtransaction: on_subtransaction,
    };
    static WATCHING: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    WRITTEN.store(true, Ordering::Relaxed);
    pg::watch_transactions(&CALLBACKS, &WATCHING);
}

fn on_transaction(event: TransactionEvent) {
    match event {
        TransactionEvent::PreCommit if open() => write_issued(),
        TransactionEvent::PrePrepare if WRITTEN.load(Ordering::Relaxed) => {
            Failure::Edit(EditError::Prepared).raise()
        }
        TransactionEvent::PreCommit | TransactionEvent::PrePrepare => {}
        TransactionEvent::Commit => finish(true),
        TransactionEvent::Abort => finish(false),
    }
}

/// Claims the ids issued from tags created here, in this transaction.
fn write_issued() {
    ISSUED_WRITTEN.store(true, Ordering::Relaxed);
    let issued = EDITS.lock().issued();
    // If a crash takes back the creation of a tag, its name starts over, below ids that a caller
    // may have passed on.
    if !issued.is_empty() {
        pg::commit_synchronously();
    }
    for (key, high) in issued {
        if let Err(failure) = claim::note_issued(&key, high) {
            failure.raise();
        }
    }
}

fn finish(committed: bool) {
    WRITTEN.store(false, Ordering::Relaxed);
    ISSUED_WRITTEN.store(false, Ordering::Relaxed);
    if !open() {
        return;
    }
    // Release the lock before touching shared memory. Locked: this process ends as it had no memory
    // for another edit, and they are not asked for any more.
    let Some(mut edits) = EDITS.try_lock() else {
        return;
    };
    let edits = core::mem::take(&mut *edits);
    OPEN.store(false, Ordering::Relaxed);
    let Some(area) = shmem::area() else { return };
    for key in edits.entries.keys() {
        if committed {
            area.directory().retire(key);
        } else {
            area.directory().mark_edited(key, false);
        }
    }
    let truncated = edits.truncated.iter().map(|(relation, _)| Some(*relation));
    for relation in truncated.chain(edits.overflow.then_some(None)) {
        if committed {
            area.directory().retire_all(pg::database(), relation);
        } else {
            area.directory()
                .mark_all_edited(pg::database(), relation, false);
        }
    }
}

fn on_subtransaction(number: u32, event: SubtransactionEvent) {
    if !open() {
        return;
    }
    // Locked: see `finish`.
    let Some(mut edits) = EDITS.try_lock() else {
        return;
    };
    match event {
        SubtransactionEvent::Abort => {
            edits.take_back(number, shmem::area());
            let none = edits.log.is_empty() && edits.issued.is_empty() && !edits.overflow;
            OPEN.store(!none, Ordering::Relaxed);
        }
        SubtransactionEvent::Commit { parent } => {
            for (owner, _) in edits
                .log
                .iter_mut()
                .rev()
                .take_while(|(owner, _)| *owner >= number)
            {
                *owner = parent;
            }
        }
    }
}
