//! Columns by their defaults.

use core::ffi::c_int;

use pgrx::pg_sys;

use super::datum::oid_value;
use super::expression::Expression;

/// Catalogs that pgrx has no declarations of, their indexes by what is looked up, and columns.
const DEPEND: u32 = 2608;
const DEPEND_BY_REFERENCED: u32 = 2674;
const DEPEND_CLASSID: c_int = 1;
const DEPEND_OBJID: c_int = 2;
const DEPEND_REFCLASSID: i16 = 4;
const DEPEND_REFOBJID: i16 = 5;
const ATTRDEF: u32 = 2604;
const ATTRDEF_BY_OID: u32 = 2657;
const ATTRDEF_OID: i16 = 1;
const ATTRDEF_ADBIN: c_int = 4;

/// Defaults that are read at most.
const MOST: usize = 10_000;

/// True if a column's default is a call of `function` with this text alone. Locks no table.
pub fn is_default(function: u32, text: &[u8]) -> bool {
    let keys = [
        (DEPEND_REFCLASSID, pg_sys::ProcedureRelationId.to_u32()),
        (DEPEND_REFOBJID, function),
    ];
    let mut left = MOST;
    let mut found = false;
    scan(DEPEND, DEPEND_BY_REFERENCED, &keys, |column| {
        if oid_value(column(DEPEND_CLASSID)) == ATTRDEF {
            left -= 1;
            found = has_text(oid_value(column(DEPEND_OBJID)), function, text);
        }
        !found && left > 0
    });
    found
}

/// True if the default with this oid is a call of `function` with this text alone.
fn has_text(default: u32, function: u32, text: &[u8]) -> bool {
    let keys = [(ATTRDEF_OID, default)];
    let mut found = false;
    scan(ATTRDEF, ATTRDEF_BY_OID, &keys, |column| {
        // SAFETY: a pg_node_tree, which is never null.
        let expression = unsafe { Expression::from_value(column(ATTRDEF_ADBIN)) };
        let given = expression.and_then(|expression| expression.text_given_to(function));
        found = given.is_some_and(|given| given.bytes() == text);
        false
    });
    found
}

/// Runs `see` on the rows of a catalog whose first columns of an index have these values, until it
/// returns false. It gets a function that reads a column.
fn scan(
    catalog: u32,
    index: u32,
    keys: &[(i16, u32)],
    mut see: impl FnMut(&dyn Fn(c_int) -> pg_sys::Datum) -> bool,
) {
    let lock = pg_sys::AccessShareLock.cast_signed();
    let mut scan_keys = [pg_sys::ScanKeyData::default(); 2];
    // SAFETY: in a transaction; the columns are oids, and as many keys as are initialized are
    // passed. A tuple is valid until the next one is fetched.
    unsafe {
        for (key, (column, value)) in scan_keys.iter_mut().zip(keys) {
            pg_sys::ScanKeyInit(
                key,
                *column,
                u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
                pg_sys::F_OIDEQ.into(),
                pg_sys::Datum::from(*value),
            );
        }
        let catalog = pg_sys::table_open(catalog.into(), lock);
        let scan = pg_sys::systable_beginscan(
            catalog,
            index.into(),
            true,
            core::ptr::null_mut(),
            c_int::try_from(keys.len()).unwrap_or(0),
            scan_keys.as_mut_ptr(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            let descriptor = (*catalog).rd_att;
            let column = |number| {
                let mut null = false;
                pg_sys::heap_getattr(tuple, number, descriptor, &mut null)
            };
            if tuple.is_null() || !see(&column) {
                break;
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
}
