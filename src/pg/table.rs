//! Tables of the extension's own, row by row: by oid, through the table access method.
//!
//! What leaf_id does with more rights than its caller has, it does here (I9). There is no
//! parser and no executor, so no name is looked up, no user is changed, and no trigger,
//! rule, policy or constraint expression of anybody takes part. Logical decoding, standbys
//! and the table's ordinary indexes see such a write as any other.
//!
//! In return the table must be as the extension's script has made it: see [`Shape`].
//!
//! A snapshot is taken after the table is locked, and anew for each look: one from before
//! would miss the rows of a table that was rewritten meanwhile.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

use super::{Name, check_for_interrupts, primary_key, text_datum};

/// The schema of the extension's tables.
pub const SCHEMA: &CStr = c"leaf_id";

/// Types of columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `boolean`
    Boolean,
    /// `integer`
    Integer,
    /// `bigint`
    Bigint,
    /// `text`
    Text,
    /// `name`
    Name,
    /// `name[]`
    Names,
    /// `oid`
    Oid,
    /// `timestamp with time zone`
    Timestamp,
}

impl Type {
    fn oid(self) -> pg_sys::Oid {
        match self {
            Self::Boolean => pg_sys::BOOLOID,
            Self::Integer => pg_sys::INT4OID,
            Self::Bigint => pg_sys::INT8OID,
            Self::Text => pg_sys::TEXTOID,
            Self::Name => pg_sys::NAMEOID,
            Self::Names => pg_sys::NAMEARRAYOID,
            Self::Oid => pg_sys::OIDOID,
            Self::Timestamp => pg_sys::TIMESTAMPTZOID,
        }
    }
}

/// A table as the extension's script makes it. Before it is written or read it is compared
/// with what there is: `CatalogTupleUpdate` crashes on an index over an expression, enters
/// wrong rows into a partial one, and looks at no constraint and no generated column; and a
/// value of another type is a wild pointer.
pub struct Shape {
    /// Its name, in [`SCHEMA`].
    pub name: &'static CStr,
    /// Its columns in order. Others may follow, which are then left as they are.
    pub columns: &'static [(&'static CStr, Type)],
    /// Its CHECK constraints. What is written here keeps them.
    pub checks: &'static [&'static CStr],
    /// The table that was found to be so, and after how many relcache invalidations.
    checked: AtomicU64,
}

impl Shape {
    /// The primary key is the first column.
    pub const fn new(
        name: &'static CStr,
        columns: &'static [(&'static CStr, Type)],
        checks: &'static [&'static CStr],
    ) -> Self {
        Self {
            name,
            columns,
            checks,
            checked: AtomicU64::new(0),
        }
    }
}

/// In what a table differs from its [`Shape`], as a sentence.
#[derive(Debug)]
pub struct Misshapen {
    /// The table.
    pub table: &'static CStr,
    /// In what.
    pub detail: String,
}

/// The oid of one of the extension's tables; `None` if there is none of this name.
pub fn find_table(shape: &Shape) -> Option<u32> {
    // SAFETY: syscache look-ups inside a transaction.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        pg_sys::get_relname_relid(shape.name.as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then(|| oid.to_u32())
}

/// How many relcache invalidations this process has seen, for what [`Shape`] remembers.
static RELCACHE_CHANGES: AtomicU32 = AtomicU32::new(1);

unsafe extern "C-unwind" fn relcache_changed(_arg: pg_sys::Datum, _relation: pg_sys::Oid) {
    // Called from anywhere that looks at the catalogs: nothing but a counter.
    RELCACHE_CHANGES.fetch_add(1, Ordering::Relaxed);
}

fn watch_relcache() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: a callback that lives as long as the process and cannot fail.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relcache_changed), pg_sys::Datum::null());
        }
    }
}

/// Why a table was not opened.
pub enum Obstacle {
    /// It or an index of it is locked by somebody else, and was not to be waited for.
    Locked,
    /// See [`Misshapen`].
    Misshapen(Misshapen),
}

/// How a table is used.
#[derive(Clone, Copy)]
pub enum Access {
    /// Rows are read.
    Read,
    /// Rows are locked or written.
    Write,
}

/// One of the extension's tables, open and locked until the transaction ends (or, for
/// [`Access::Read`], until it is dropped).
pub struct Table {
    relation: pg_sys::Relation,
    key_index: pg_sys::Oid,
    /// The lock of the table that is released on drop ...
    lock: pg_sys::LOCKMODE,
    /// ... and of the index of its key.
    index_lock: pg_sys::LOCKMODE,
}

impl Drop for Table {
    fn drop(&mut self) {
        // An error may have been raised in the middle of anything: the end of the transaction
        // closes what is open.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: opened and locked once.
        unsafe {
            if self.index_lock != pg_sys::NoLock.cast_signed() {
                pg_sys::UnlockRelationOid(self.key_index, self.index_lock);
            }
            pg_sys::relation_close(self.relation, self.lock);
        }
    }
}

impl Table {
    /// Opens a table by its oid, and waits for its lock as `lock_timeout` allows; `None` if
    /// it is gone.
    ///
    /// # Errors
    /// [`Misshapen`].
    pub fn open(
        oid: u32,
        shape: &'static Shape,
        access: Access,
    ) -> Result<Option<Self>, Misshapen> {
        let (lock, released) = match access {
            Access::Read => (pg_sys::AccessShareLock, pg_sys::AccessShareLock),
            Access::Write => (pg_sys::RowExclusiveLock, pg_sys::NoLock),
        };
        // SAFETY: inside a transaction.
        let relation =
            unsafe { pg_sys::try_relation_open(pg_sys::Oid::from(oid), lock.cast_signed()) };
        match Self::opened(relation, shape, released, true) {
            Ok(table) => Ok(table),
            Err(Obstacle::Misshapen(misshapen)) => Err(misshapen),
            Err(Obstacle::Locked) => Ok(None),
        }
    }

    /// The same for reading, if that takes no wait.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn open_at_once(oid: u32, shape: &'static Shape) -> Result<Option<Self>, Obstacle> {
        let oid = pg_sys::Oid::from(oid);
        let share = pg_sys::AccessShareLock.cast_signed();
        // SAFETY: the relation is locked before it is opened, and checked to exist.
        let relation = unsafe {
            if !pg_sys::ConditionalLockRelationOid(oid, share) {
                return Err(Obstacle::Locked);
            }
            let relation = pg_sys::try_relation_open(oid, pg_sys::NoLock.cast_signed());
            if relation.is_null() {
                pg_sys::UnlockRelationOid(oid, share);
            }
            relation
        };
        let table = Self::opened(relation, shape, pg_sys::AccessShareLock, false)?;
        let Some(mut table) = table else {
            return Ok(None);
        };
        // SAFETY: REINDEX locks the index alone, and a scan would wait for it.
        if unsafe { !pg_sys::ConditionalLockRelationOid(table.key_index, share) } {
            return Err(Obstacle::Locked);
        }
        table.index_lock = share;
        Ok(Some(table))
    }

    /// Whether an open table is of a shape: for one that is somebody else's to close.
    ///
    /// # Errors
    /// [`Misshapen`].
    ///
    /// # Safety
    /// An open relation.
    pub(super) unsafe fn check_open(
        relation: pg_sys::Relation,
        shape: &'static Shape,
    ) -> Result<(), Misshapen> {
        let table = core::mem::ManuallyDrop::new(Self {
            relation,
            key_index: pg_sys::InvalidOid,
            lock: pg_sys::NoLock.cast_signed(),
            index_lock: pg_sys::NoLock.cast_signed(),
        });
        match table.check_once(shape, true) {
            Err(Obstacle::Misshapen(misshapen)) => Err(misshapen),
            Err(Obstacle::Locked) | Ok(()) => Ok(()),
        }
    }

    fn opened(
        relation: pg_sys::Relation,
        shape: &'static Shape,
        lock: u32,
        waits: bool,
    ) -> Result<Option<Self>, Obstacle> {
        if relation.is_null() {
            return Ok(None);
        }
        let mut table = Self {
            relation,
            key_index: pg_sys::InvalidOid,
            lock: lock.cast_signed(),
            index_lock: pg_sys::NoLock.cast_signed(),
        };
        table.check_once(shape, waits)?;
        // SAFETY: an open relation.
        table.key_index = unsafe { primary_key(relation) };
        Ok(Some(table))
    }

    /// Compares it with its shape, once for each change of it that this process hears of.
    fn check_once(&self, shape: &'static Shape, waits: bool) -> Result<(), Obstacle> {
        watch_relcache();
        let changes = RELCACHE_CHANGES.load(Ordering::Relaxed);
        let state = (u64::from(changes) << 32) | u64::from(self.oid());
        if shape.checked.load(Ordering::Relaxed) == state {
            return Ok(());
        }
        let found = self.check(shape).and_then(|()| self.check_indexes(waits));
        match found {
            Ok(Looked::Fits) => {
                shape.checked.store(state, Ordering::Relaxed);
                Ok(())
            }
            Ok(Looked::Locked) => Err(Obstacle::Locked),
            Err(detail) => Err(Obstacle::Misshapen(Misshapen {
                table: shape.name,
                detail,
            })),
        }
    }

    fn check(&self, shape: &Shape) -> Result<(), String> {
        // SAFETY: an open relation, whose parts live as long as it is open.
        unsafe {
            let class = &*(*self.relation).rd_rel;
            if class.relkind.cast_unsigned() != pg_sys::RELKIND_RELATION
                || class.relam != pg_sys::HEAP_TABLE_AM_OID
                || class.relpersistence.cast_unsigned() != pg_sys::RELPERSISTENCE_PERMANENT
            {
                return Err("It is no ordinary, logged heap table.".into());
            }
            // Its schema cannot be renamed, nor anything be made in it, but by its owner.
            let extension = pg_sys::get_extension_oid(c"leaf_id".as_ptr(), true);
            let is_member = |class, object| {
                extension != pg_sys::InvalidOid
                    && pg_sys::getExtensionOfObject(class, object) == extension
            };
            if !is_member(pg_sys::RelationRelationId, (*self.relation).rd_id)
                || !is_member(pg_sys::NamespaceRelationId, class.relnamespace)
            {
                return Err("It does not belong to extension leaf_id.".into());
            }
        }
        self.check_columns(shape)?;
        self.check_constraints(shape)
    }

    fn check_columns(&self, shape: &Shape) -> Result<(), String> {
        // SAFETY: an open relation; a column is looked at only if there are as many.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            for (number, (name, kind)) in (0..).zip(shape.columns) {
                let said = name.to_string_lossy();
                if number >= (*descriptor).natts {
                    return Err(format!("Column \"{said}\" is missing."));
                }
                let column = &*attribute(descriptor, number);
                let found = CStr::from_ptr(column.attname.data.as_ptr());
                if column.attisdropped || found != *name {
                    return Err(format!("Column \"{said}\" was renamed or dropped."));
                }
                if column.atttypid != kind.oid() {
                    return Err(format!("Column \"{said}\" has another type."));
                }
            }
            for number in 0..(*descriptor).natts {
                let column = &*attribute(descriptor, number);
                if !column.attisdropped && column.attgenerated != 0 {
                    let name = CStr::from_ptr(column.attname.data.as_ptr()).to_string_lossy();
                    return Err(format!("Column \"{name}\" is a generated one."));
                }
            }
        }
        Ok(())
    }

    fn check_constraints(&self, shape: &Shape) -> Result<(), String> {
        // SAFETY: an open relation; as many constraints as are said.
        unsafe {
            let Some(constraints) = (*(*self.relation).rd_att).constr.as_ref() else {
                return Ok(());
            };
            for number in 0..usize::from(constraints.num_check) {
                let name = CStr::from_ptr((*constraints.check.add(number)).ccname);
                if !shape.checks.contains(&name) {
                    let name = name.to_string_lossy();
                    return Err(format!("It has CHECK constraint \"{name}\"."));
                }
            }
        }
        Ok(())
    }

    /// The primary key must be the first column alone, and no index may need more than the
    /// values of columns.
    fn check_indexes(&self, waits: bool) -> Result<Looked, String> {
        // SAFETY: an open relation; indexes are locked while they are looked at.
        unsafe {
            let key = primary_key(self.relation);
            if key == pg_sys::InvalidOid {
                return Err("It has no valid primary key.".into());
            }
            let lock = pg_sys::AccessShareLock.cast_signed();
            let list = pg_sys::RelationGetIndexList(self.relation);
            let count = list.as_ref().map_or(0, |list| list.length);
            for position in 0..usize::try_from(count).unwrap_or(0) {
                let oid = (*(*list).elements.add(position)).oid_value;
                if !waits && !pg_sys::ConditionalLockRelationOid(oid, lock) {
                    return Ok(Looked::Locked);
                }
                let taken = if waits {
                    lock
                } else {
                    pg_sys::NoLock.cast_signed()
                };
                let index = pg_sys::index_open(oid, taken);
                let problem = index_problem(index, oid == key);
                let name = CStr::from_ptr((*(*index).rd_rel).relname.data.as_ptr());
                let name = name.to_string_lossy().into_owned();
                pg_sys::index_close(index, lock);
                if let Some(problem) = problem {
                    return Err(format!("Index \"{name}\" {problem}."));
                }
            }
            pg_sys::list_free(list);
        }
        Ok(Looked::Fits)
    }

    /// Its oid.
    pub fn oid(&self) -> u32 {
        // SAFETY: an open relation.
        unsafe { (*self.relation).rd_id }.to_u32()
    }

    /// A copy of a row, which lives as long as the memory context.
    ///
    /// # Safety
    /// A tuple of this table.
    unsafe fn row(&self, tuple: pg_sys::HeapTuple) -> Row {
        // SAFETY: as the caller says; an open relation.
        unsafe {
            Row {
                tuple: pg_sys::heap_copytuple(tuple),
                descriptor: (*self.relation).rd_att,
            }
        }
    }

    /// The row with this key as it is committed now, or as this transaction has made it,
    /// whoever has locked it.
    pub fn get(&self, key: &Value<'_>) -> Option<Row> {
        self.with_latest_snapshot(|snapshot| {
            let mut found = None;
            self.scan(Some(key), snapshot, |tuple| {
                // SAFETY: a tuple of the scan.
                found = Some(unsafe { self.row(tuple) });
            });
            found
        })
    }

    /// All rows, in no order.
    pub fn rows(&self) -> Vec<Row> {
        self.with_latest_snapshot(|snapshot| {
            let mut found = Vec::new();
            self.scan(None, snapshot, |tuple| {
                // SAFETY: a tuple of the scan.
                found.push(unsafe { self.row(tuple) });
            });
            found
        })
    }

    /// Runs a closure with a snapshot of this very moment, registered and active: fetching a
    /// value that is stored out of line needs both. The one for catalogs, as PostgreSQL takes
    /// no other in a parallel query; of a table that is no catalog it is always a new one.
    fn with_latest_snapshot<T>(&self, body: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
        // SAFETY: inside a transaction; an error ends it, and the snapshot with it.
        unsafe {
            let relation = (*self.relation).rd_id;
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(relation));
            pg_sys::PushActiveSnapshot(snapshot);
            let result = body(snapshot);
            pg_sys::PopActiveSnapshot();
            pg_sys::UnregisterSnapshot(snapshot);
            result
        }
    }

    fn scan(
        &self,
        key: Option<&Value<'_>>,
        snapshot: pg_sys::Snapshot,
        mut see: impl FnMut(pg_sys::HeapTuple),
    ) {
        let mut scan_key = pg_sys::ScanKeyData::default();
        // SAFETY: the scan ends here; an error ends the transaction and the scan with it. A
        // tuple is valid until the next one is fetched.
        unsafe {
            if let Some(key) = key {
                let (procedure, collation) = key.equality();
                pg_sys::ScanKeyEntryInitialize(
                    &raw mut scan_key,
                    0,
                    1,
                    u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
                    pg_sys::InvalidOid,
                    collation,
                    pg_sys::Oid::from(procedure),
                    key.datum().unwrap_or(pg_sys::Datum::null()),
                );
            }
            let scan = pg_sys::systable_beginscan(
                self.relation,
                self.key_index,
                key.is_some(),
                snapshot,
                c_int::from(key.is_some()),
                &raw mut scan_key,
            );
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                see(tuple);
            }
            pg_sys::systable_endscan(scan);
        }
    }

    /// Locks the row with this key, in its last version, as `SELECT ... FOR NO KEY UPDATE`
    /// does: others that write it, or lock it so, are waited for as `lock_timeout` allows.
    /// `None` if there is none.
    pub fn lock(&self, key: &Value<'_>) -> Option<Row> {
        loop {
            match self.try_lock(key, pg_sys::LockWaitPolicy::LockWaitBlock) {
                Locked::Row(row) => return Some(row),
                Locked::None => return None,
                // Deleted or renamed while it was waited for: another one may have come.
                Locked::Gone | Locked::Busy => check_for_interrupts(),
            }
        }
    }

    /// The same, if that takes no wait.
    pub fn lock_at_once(&self, key: &Value<'_>) -> LockedAtOnce {
        loop {
            match self.try_lock(key, pg_sys::LockWaitPolicy::LockWaitSkip) {
                Locked::Row(row) => return LockedAtOnce::Row(row),
                Locked::None => return LockedAtOnce::None,
                Locked::Busy => return LockedAtOnce::Busy,
                Locked::Gone => check_for_interrupts(),
            }
        }
    }

    fn try_lock(&self, key: &Value<'_>, wait: pg_sys::LockWaitPolicy::Type) -> Locked {
        self.with_latest_snapshot(|snapshot| {
            let mut place = None;
            self.scan(Some(key), snapshot, |tuple| {
                // SAFETY: a tuple of the scan.
                place = Some(unsafe { (*tuple).t_self });
            });
            let Some(mut place) = place else {
                return Locked::None;
            };
            let mut failure = pg_sys::TM_FailureData::default();
            // SAFETY: the slot is dropped here; what it holds is copied before.
            unsafe {
                let slot = pg_sys::table_slot_create(self.relation, core::ptr::null_mut());
                let result = pg_sys::table_tuple_lock(
                    self.relation,
                    &raw mut place,
                    snapshot,
                    slot,
                    pg_sys::GetCurrentCommandId(false),
                    pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
                    wait,
                    u8::try_from(pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION).unwrap_or(0),
                    &raw mut failure,
                );
                let locked = match result {
                    pg_sys::TM_Result::TM_Ok => {
                        let mut free = false;
                        let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, true, &raw mut free);
                        let row = self.row(tuple);
                        // The last version may have another key by now.
                        if row.has(key) {
                            Locked::Row(row)
                        } else {
                            Locked::Gone
                        }
                    }
                    pg_sys::TM_Result::TM_WouldBlock => Locked::Busy,
                    pg_sys::TM_Result::TM_Deleted | pg_sys::TM_Result::TM_Updated => Locked::Gone,
                    _ => {
                        pg_sys::panic::ErrorReport::new(
                            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                            "cannot lock a row that the same statement has changed",
                            "leaf_id",
                        )
                        .report(PgLogLevel::ERROR);
                        unreachable!("an ERROR does not return")
                    }
                };
                pg_sys::ExecDropSingleTupleTableSlot(slot);
                locked
            }
        })
    }

    /// Writes columns, by number from 1, of a row that [`Table::lock`] has returned, or that
    /// this transaction has written. The key stays.
    pub fn update(&self, row: &Row, changes: &[(usize, Value<'_>)]) {
        // With a snapshot, which a commit callback has none of: a value may be out of line.
        self.with_latest_snapshot(|_| {
            // SAFETY: the row is locked, or this transaction's own; a tuple of this table.
            unsafe {
                // Otherwise a subscriber could never apply it.
                pg_sys::CheckCmdReplicaIdentity(self.relation, pg_sys::CmdType::CMD_UPDATE);
                let new = modified(row.tuple, row.descriptor, changes);
                pg_sys::CatalogTupleUpdate(self.relation, &raw mut (*row.tuple).t_self, new);
            }
        });
    }

    /// Writes a new row. Columns that are not given are NULL.
    pub fn insert(&self, columns: &[(usize, Value<'_>)]) {
        // SAFETY: as many values and nulls as the table has columns.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            let count = usize::try_from((*descriptor).natts).unwrap_or(0);
            let mut values = vec![pg_sys::Datum::null(); count];
            let mut nulls = vec![true; count];
            for (number, value) in columns {
                let position = number.wrapping_sub(1);
                if let (Some(datum), Some(to), Some(null)) = (
                    value.datum(),
                    values.get_mut(position),
                    nulls.get_mut(position),
                ) {
                    *to = datum;
                    *null = false;
                }
            }
            let tuple =
                pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            self.with_latest_snapshot(|_| pg_sys::CatalogTupleInsert(self.relation, tuple));
        }
    }
}

/// What a look at the indexes came to.
enum Looked {
    Fits,
    Locked,
}

enum Locked {
    Row(Row),
    None,
    Gone,
    Busy,
}

/// What [`Table::lock_at_once`] has found.
pub enum LockedAtOnce {
    /// The row, which is locked now.
    Row(Row),
    /// No row with this key.
    None,
    /// A row that somebody else has locked.
    Busy,
}

/// Has nobody else write a table, by its oid, until the transaction ends.
pub fn lock_against_writers(relation: u32) {
    let lock = pg_sys::ShareRowExclusiveLock.cast_signed();
    // SAFETY: a lock that the end of the transaction releases.
    unsafe { pg_sys::LockRelationOid(pg_sys::Oid::from(relation), lock) };
}

/// Has what follows see what this transaction has written so far.
pub fn see_own_changes() {
    // SAFETY: inside a transaction.
    unsafe { pg_sys::CommandCounterIncrement() };
}

/// What an index has that `CatalogTupleUpdate` cannot do.
unsafe fn index_problem(index: pg_sys::Relation, is_key: bool) -> Option<&'static str> {
    // SAFETY: an open index. Its catalog row is looked at and not its expressions, which
    // PostgreSQL would fold, and so run functions in them.
    unsafe {
        let form = &*(*index).rd_index;
        let is_null = |column: u32| {
            pg_sys::heap_attisnull(
                (*index).rd_indextuple,
                column.cast_signed(),
                core::ptr::null_mut(),
            )
        };
        if !is_null(pg_sys::Anum_pg_index_indexprs) {
            return Some("is over an expression");
        }
        if !is_null(pg_sys::Anum_pg_index_indpred) {
            return Some("is a partial one");
        }
        if form.indisexclusion {
            return Some("is an exclusion constraint's");
        }
        if !form.indimmediate {
            return Some("is of a deferrable constraint");
        }
        let first = form.indkey.values.as_slice(1).first().copied();
        let collation = *(*index).rd_indcollation;
        if is_key
            && (form.indnkeyatts != 1
                || first != Some(1)
                || !form.indisvalid
                || ![pg_sys::InvalidOid, pg_sys::C_COLLATION_OID].contains(&collation))
        {
            return Some("is another primary key than the extension has made");
        }
    }
    None
}

#[cfg(not(feature = "pg18"))]
unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    position: c_int,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: the caller has compared with the number of columns.
    unsafe {
        let columns = usize::try_from((*descriptor).natts).unwrap_or(0);
        let position = usize::try_from(position).unwrap_or(0);
        (*descriptor).attrs.as_slice(columns).as_ptr().add(position)
    }
}

#[cfg(feature = "pg18")]
unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    position: c_int,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: the caller has compared with the number of columns.
    unsafe { pg_sys::TupleDescAttr(descriptor, position) }
}

// ---- Values ------------------------------------------------------------------------

/// A value of a column.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// NULL
    Null,
    /// `boolean`
    Boolean(bool),
    /// `integer`
    Integer(i32),
    /// `bigint`
    Bigint(i64),
    /// `oid`
    Oid(u32),
    /// `timestamp with time zone`: microseconds since 2000.
    Timestamp(i64),
    /// `text`, in the encoding of the database.
    Text(&'a [u8]),
}

impl Value<'_> {
    /// `None` for NULL.
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(match self {
            Self::Null => return None,
            Self::Boolean(value) => pg_sys::Datum::from(*value),
            Self::Integer(value) => pg_sys::Datum::from(*value),
            Self::Bigint(value) | Self::Timestamp(value) => pg_sys::Datum::from(*value),
            Self::Oid(value) => pg_sys::Datum::from(*value),
            // SAFETY: palloc'ed in the current context.
            Self::Text(bytes) => unsafe { text_datum(bytes) },
        })
    }

    /// The function of `=` for a key of this type, and its collation.
    fn equality(&self) -> (u32, pg_sys::Oid) {
        match self {
            Self::Text(_) => (pg_sys::F_TEXTEQ, pg_sys::C_COLLATION_OID),
            Self::Boolean(_) => (pg_sys::F_BOOLEQ, pg_sys::InvalidOid),
            Self::Bigint(_) => (pg_sys::F_INT8EQ, pg_sys::InvalidOid),
            _ => (pg_sys::F_INT4EQ, pg_sys::InvalidOid),
        }
    }
}

/// A tuple with some columns, by number from 1, changed.
pub(super) unsafe fn modified(
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    changes: &[(usize, Value<'_>)],
) -> pg_sys::HeapTuple {
    let mut columns: Vec<c_int> = (changes.iter())
        .map(|(number, _)| c_int::try_from(*number).unwrap_or(0))
        .collect();
    let datums: Vec<_> = changes.iter().map(|(_, value)| value.datum()).collect();
    let mut nulls: Vec<_> = datums.iter().map(Option::is_none).collect();
    let mut values: Vec<_> = (datums.into_iter())
        .map(|datum| datum.unwrap_or(pg_sys::Datum::null()))
        .collect();
    // SAFETY: as many columns, values and nulls as are said.
    unsafe {
        pg_sys::heap_modify_tuple_by_cols(
            tuple,
            descriptor,
            c_int::try_from(columns.len()).unwrap_or(0),
            columns.as_mut_ptr(),
            values.as_mut_ptr(),
            nulls.as_mut_ptr(),
        )
    }
}

// ---- Rows --------------------------------------------------------------------------

/// A row of a table whose [`Shape`] was checked. It lives as long as the memory context in
/// which it was read.
///
/// Columns are read by number from 1. One of another type than is asked for reads as NULL
/// there: the shape has named the types.
pub struct Row {
    pub(super) tuple: pg_sys::HeapTuple,
    pub(super) descriptor: pg_sys::TupleDesc,
}

/// Who has locked a row, or written it without having committed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locker {
    /// Nobody.
    None,
    /// A transaction.
    Transaction(u32),
    /// Several transactions.
    Multi(u32),
}

impl Row {
    fn column(&self, number: usize, expected: Type) -> Option<pg_sys::Datum> {
        let number = c_int::try_from(number).ok()?;
        let mut null = false;
        // SAFETY: a tuple of the relation with this descriptor, which has that many columns.
        unsafe {
            if number < 1 || number > (*self.descriptor).natts {
                return None;
            }
            if (*attribute(self.descriptor, number - 1)).atttypid != expected.oid() {
                return None;
            }
            let value = pg_sys::heap_getattr(self.tuple, number, self.descriptor, &mut null);
            (!null).then_some(value)
        }
    }

    /// A boolean column.
    pub fn boolean(&self, number: usize) -> Option<bool> {
        self.column(number, Type::Boolean)
            .map(|value| value.value() != 0)
    }

    /// An integer column.
    pub fn integer(&self, number: usize) -> Option<i32> {
        #[expect(clippy::cast_possible_truncation, reason = "the datum's low half")]
        self.column(number, Type::Integer)
            .map(|value| value.value() as i32)
    }

    /// A bigint column.
    pub fn bigint(&self, number: usize) -> Option<i64> {
        self.column(number, Type::Bigint)
            .map(|value| value.value() as i64)
    }

    /// An oid column.
    pub fn oid(&self, number: usize) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "the datum's low half")]
        self.column(number, Type::Oid)
            .map(|value| value.value() as u32)
    }

    /// A timestamptz column: microseconds since 2000.
    pub fn timestamp(&self, number: usize) -> Option<i64> {
        self.column(number, Type::Timestamp)
            .map(|value| value.value() as i64)
    }

    /// A text column, in the encoding of the database.
    pub fn text(&self, number: usize) -> Option<Vec<u8>> {
        let value = self.column(number, Type::Text)?;
        // SAFETY: a text, copied out before anything can free it.
        unsafe {
            let text = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
            Some(pgrx::varlena_to_byte_slice(text).to_vec())
        }
    }

    /// A name column.
    pub fn name(&self, number: usize) -> Option<Name> {
        let value = self.column(number, Type::Name)?;
        // SAFETY: a name, and not null.
        Some(unsafe { Name::from_value(value) })
    }

    /// A column of names; elements that are NULL are left out.
    pub fn names(&self, number: usize) -> Option<Vec<Name>> {
        let value = self.column(number, Type::Names)?;
        let mut elements = core::ptr::null_mut();
        let mut nulls = core::ptr::null_mut();
        let mut count = 0;
        // SAFETY: an array of names, detoasted; as many elements as are said.
        unsafe {
            let array = pg_sys::pg_detoast_datum(value.cast_mut_ptr());
            pg_sys::deconstruct_array(
                array.cast(),
                pg_sys::NAMEOID,
                pg_sys::NAMEDATALEN.cast_signed(),
                false,
                b'c'.cast_signed(),
                &raw mut elements,
                &raw mut nulls,
                &raw mut count,
            );
            let count = usize::try_from(count).unwrap_or(0);
            let present = (0..count).filter(|position| !*nulls.add(*position));
            Some(
                present
                    .map(|position| Name::from_value(*elements.add(position)))
                    .collect(),
            )
        }
    }

    fn has(&self, key: &Value<'_>) -> bool {
        match key {
            Value::Text(bytes) => self.text(1).is_some_and(|found| found == *bytes),
            Value::Integer(number) => self.integer(1) == Some(*number),
            Value::Bigint(number) => self.bigint(1) == Some(*number),
            Value::Boolean(value) => self.boolean(1) == Some(*value),
            _ => false,
        }
    }

    /// Whether it was written by the open transaction, or by a parallel worker's leader.
    pub fn is_ours(&self) -> bool {
        // SAFETY: a tuple that was read from a table.
        unsafe {
            let xmin = (*(*self.tuple).t_data).t_choice.t_heap.t_xmin;
            pg_sys::TransactionIdIsCurrentTransactionId(xmin)
        }
    }

    /// Who has locked or updated it last.
    pub fn locker(&self) -> Locker {
        // SAFETY: a tuple that was read from a table.
        let (info, xmax) = unsafe {
            let header = &*(*self.tuple).t_data;
            (u32::from(header.t_infomask), header.t_choice.t_heap.t_xmax)
        };
        #[allow(
            clippy::useless_conversion,
            reason = "the type differs between versions"
        )]
        let number: u32 = xmax.into();
        if info & pg_sys::HEAP_XMAX_INVALID != 0 || number == 0 {
            Locker::None
        } else if info & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
            Locker::Multi(number)
        } else {
            Locker::Transaction(number)
        }
    }
}
