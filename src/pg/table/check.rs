//! Verification that a table has its [`Shape`].

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::shape::{Misshapen, Shape};
use crate::pg::catalog::{attribute, extension_version, primary_key};
use crate::pg::expression::cells;

/// Relcache invalidations seen by this process, to cache the result in [`Shape`].
static RELCACHE_CHANGES: AtomicU32 = AtomicU32::new(1);

unsafe extern "C-unwind" fn relcache_changed(_arg: pg_sys::Datum, _relation: pg_sys::Oid) {
    // Called during any catalog access, so it only increments a counter.
    RELCACHE_CHANGES.fetch_add(1, Ordering::Relaxed);
}

fn watch_relcache() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback only touches an atomic, and the library is never unloaded.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relcache_changed), pg_sys::Datum::null());
        }
    }
}

/// Reason why a table was not opened.
pub enum Obstacle {
    /// The table or an index of it is locked by another session, and waiting was not allowed.
    Locked,
    /// See [`Misshapen`].
    Misshapen(Misshapen),
}

/// Checks that an open table has a shape. Waits for locks of its indexes.
///
/// # Errors
/// [`Misshapen`].
///
/// # Safety
/// The relation is open and locked.
pub unsafe fn check_open(
    relation: pg_sys::Relation,
    shape: &'static Shape,
) -> Result<(), Misshapen> {
    // SAFETY: guaranteed by the caller.
    match unsafe { check_once(relation, shape, true) } {
        Err(Obstacle::Misshapen(misshapen)) => Err(misshapen),
        Err(Obstacle::Locked) | Ok(()) => Ok(()),
    }
}

/// Compares an open table with its shape; the result is cached until the next relcache
/// invalidation.
///
/// # Errors
/// [`Obstacle`]; without `waits`, also for a locked index.
///
/// # Safety
/// The relation is open and locked.
pub unsafe fn check_once(
    relation: pg_sys::Relation,
    shape: &'static Shape,
    waits: bool,
) -> Result<(), Obstacle> {
    watch_relcache();
    let changes = RELCACHE_CHANGES.load(Ordering::Relaxed);
    // SAFETY: guaranteed by the caller.
    let oid = unsafe { (*relation).rd_id }.to_u32();
    let state = (u64::from(changes) << 32) | u64::from(oid);
    if shape.checked.load(Ordering::Relaxed) == state {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let found =
        unsafe { check(relation, shape).and_then(|()| check_indexes(relation, shape, waits)) };
    match found {
        Ok(Looked::Fits) => {
            shape.checked.store(state, Ordering::Relaxed);
            Ok(())
        }
        Ok(Looked::Locked) => Err(Obstacle::Locked),
        Err(detail) => Err(Obstacle::Misshapen(Misshapen {
            table: shape.name,
            detail,
            installed: extension_version().filter(|version| version != env!("CARGO_PKG_VERSION")),
        })),
    }
}

/// # Safety
/// The relation is open and locked.
unsafe fn check(relation: pg_sys::Relation, shape: &Shape) -> Result<(), String> {
    // Only its owner can rename the schema or create objects in it.
    // SAFETY: a name of the catalog.
    let extension = unsafe { pg_sys::get_extension_oid(c"leaf_id".as_ptr(), true) };
    // SAFETY: guaranteed by the caller; the class of an open relation stays where it is.
    unsafe {
        let class = &*(*relation).rd_rel;
        // char is signed on some platforms, and unsigned on arm64.
        if class.relkind as u8 != pg_sys::RELKIND_RELATION
            || class.relam != pg_sys::HEAP_TABLE_AM_OID
            || class.relpersistence as u8 != pg_sys::RELPERSISTENCE_PERMANENT
        {
            return Err("It is no ordinary, logged heap table.".into());
        }
        let is_member = |class, object| {
            extension != pg_sys::InvalidOid
                && pg_sys::getExtensionOfObject(class, object) == extension
        };
        if !is_member(pg_sys::RelationRelationId, (*relation).rd_id)
            || !is_member(pg_sys::NamespaceRelationId, class.relnamespace)
        {
            return Err("It does not belong to extension leaf_id.".into());
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        check_columns(relation, shape)?;
        check_constraints(relation, shape)?;
        check_triggers(relation, shape, extension)
    }
}

/// # Safety
/// The relation is open and locked.
unsafe fn check_columns(relation: pg_sys::Relation, shape: &Shape) -> Result<(), String> {
    // SAFETY: guaranteed by the caller; a column is accessed only if it exists. A name is
    // null-terminated.
    unsafe {
        let descriptor = (*relation).rd_att;
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

/// # Safety
/// The relation is open and locked.
unsafe fn check_constraints(relation: pg_sys::Relation, shape: &Shape) -> Result<(), String> {
    // SAFETY: guaranteed by the caller; num_check is the number of constraints.
    unsafe {
        let Some(constraints) = (*(*relation).rd_att).constr.as_ref() else {
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

/// # Safety
/// The relation is open and locked.
unsafe fn check_triggers(
    relation: pg_sys::Relation,
    shape: &Shape,
    extension: pg_sys::Oid,
) -> Result<(), String> {
    if !shape.without_row_triggers {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller. The triggers are copied before the first catalog lookup.
    unsafe {
        for (function, name) in row_triggers(relation) {
            let owner = pg_sys::getExtensionOfObject(pg_sys::ProcedureRelationId, function);
            if owner != extension {
                return Err(format!(
                    "It has row trigger \"{name}\", and leases are renewed without firing triggers."
                ));
            }
        }
    }
    Ok(())
}

/// Functions and names of the row triggers that are enabled. Copies, because PostgreSQL frees the
/// triggers of an open relation too when it processes an invalidation, in any catalog lookup.
///
/// # Safety
/// The relation is open and locked.
unsafe fn row_triggers(relation: pg_sys::Relation) -> Vec<(pg_sys::Oid, String)> {
    // SAFETY: guaranteed by the caller; trigdesc has numtriggers elements, with null-terminated
    // names, and no catalog is read in this block.
    unsafe {
        let Some(triggers) = (*relation).trigdesc.as_ref() else {
            return Vec::new();
        };
        (0..usize::try_from(triggers.numtriggers).unwrap_or(0))
            .map(|number| &*triggers.triggers.add(number))
            .filter(|trigger| {
                u32::from(trigger.tgtype.cast_unsigned()) & pg_sys::TRIGGER_TYPE_ROW != 0
                    // A char has a sign on some processors only.
                    && trigger.tgenabled.to_ne_bytes() != [pg_sys::TRIGGER_DISABLED]
                    && !trigger.tgisinternal
            })
            .map(|trigger| {
                let name = CStr::from_ptr(trigger.tgname).to_string_lossy();
                (trigger.tgfoid, name.into_owned())
            })
            .collect()
    }
}

/// Checks that the primary key is the first column alone, and that no index needs more than column
/// values.
///
/// # Safety
/// The relation is open and locked.
unsafe fn check_indexes(
    relation: pg_sys::Relation,
    shape: &Shape,
    waits: bool,
) -> Result<Looked, String> {
    // SAFETY: guaranteed by the caller. An index is
    // locked before it is opened with NoLock, and closed before the next one.
    unsafe {
        let key = primary_key(relation);
        if key == pg_sys::InvalidOid {
            return Err("It has no valid primary key.".into());
        }
        let lock = pg_sys::AccessShareLock.cast_signed();
        let list = pg_sys::RelationGetIndexList(relation);
        for index in cells(list) {
            let oid = index.oid_value;
            if !waits && !pg_sys::ConditionalLockRelationOid(oid, lock) {
                return Ok(Looked::Locked);
            }
            let taken = if waits {
                lock
            } else {
                pg_sys::NoLock.cast_signed()
            };
            let index = pg_sys::index_open(oid, taken);
            let problem = index_problem(index, shape, oid == key);
            let name = CStr::from_ptr((*(*index).rd_rel).relname.data.as_ptr());
            let name = name.to_string_lossy().into_owned();
            pg_sys::index_close(index, lock);
            if let Some(problem) = problem {
                // Before the index was locked, REINDEX CONCURRENTLY had replaced the key.
                if primary_key(relation) != key {
                    return check_indexes(relation, shape, waits);
                }
                return Err(format!("Index \"{name}\" {problem}."));
            }
        }
        pg_sys::list_free(list);
    }
    Ok(Looked::Fits)
}

/// Result of checking the indexes.
enum Looked {
    Fits,
    Locked,
}

/// Property of an index that a row cannot be entered into without running a function of another role's.
///
/// # Safety
/// The index is open.
pub unsafe fn index_problem(
    index: pg_sys::Relation,
    shape: &Shape,
    is_key: bool,
) -> Option<&'static str> {
    // SAFETY: guaranteed by the caller; an index has a column, and so a first key and its
    // collation. Expressions are only tested for NULL in the catalog row: reading them would let
    // PostgreSQL fold them, and so run functions in them.
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
        // Any role can create a range type, whose functions GiST calls. Operator classes are a superuser's.
        let columns = usize::try_from(form.indnatts).unwrap_or(0);
        let of_others =
            |column: &i16| usize::try_from(*column).map_or(true, |n| n > shape.columns.len());
        if (*(*index).rd_rel).relam != pg_sys::BTREE_AM_OID
            && form.indkey.values.as_slice(columns).iter().any(of_others)
        {
            return Some("is over a column that the extension has not made, and is no B-tree");
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
