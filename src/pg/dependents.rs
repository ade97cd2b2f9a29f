//! What depends on an object: the defaults that call a function, and the views and rules through
//! which a table is written.

use core::ffi::c_char;
use core::ops::ControlFlow;
use std::collections::BTreeSet;

use pgrx::{PgMemoryContexts, pg_sys};

use super::caller::{note_relation, note_type};
use super::catalog::{key, relation_owner, visit_rows};
use super::datum::oid_value;
use super::expression::Expression;
use super::roles::role_may_insert;

/// Catalogs that pgrx does not bind: their oids, those of an index, and the numbers of columns, the
/// same since PostgreSQL 12.
const PG_DEPEND: pg_sys::Oid = pg_sys::Oid::from_u32(2608);
const PG_DEPEND_REFERENCE_INDEX: pg_sys::Oid = pg_sys::Oid::from_u32(2674);
const PG_ATTRDEF: pg_sys::Oid = pg_sys::Oid::from_u32(2604);
const PG_REWRITE: pg_sys::Oid = pg_sys::Oid::from_u32(2618);
const PG_REWRITE_OID_INDEX: pg_sys::Oid = pg_sys::Oid::from_u32(2692);

/// An object that depends on another one.
struct Dependent {
    class: pg_sys::Oid,
    object: u32,
    /// Number of the column; 0 for the whole object.
    column: i16,
}

fn dependents(class: pg_sys::Oid, object: u32) -> Vec<Dependent> {
    let (classid, objid, objsubid, refclassid, refobjid) = (1, 2, 3, 4, 5);
    let mut found = Vec::new();
    let keys = [key(refclassid, class), key(refobjid, object.into())];
    // SAFETY: in a transaction; the index begins with these columns, both oids.
    unsafe {
        visit_rows(PG_DEPEND, PG_DEPEND_REFERENCE_INDEX, &keys, |row| {
            found.push(Dependent {
                class: oid_value(row.column(classid)).into(),
                object: oid_value(row.column(objid)),
                column: i16::try_from(row.column(objsubid).value()).unwrap_or(0),
            });
            ControlFlow::<()>::Continue(())
        });
    }
    found
}

/// True if there is a column whose default, or that of its domain, calls one of these functions
/// with this constant text as its first argument, in a table that `may_matter`, and if it `counts`:
/// by the owners of what decides about the default, which are the table and the domain.
///
/// Defaults are not found by what they depend on, but by the text, which is in few of them: with
/// thousands of columns, a look at each is most of the time.
pub fn has_default(
    functions: &[u32],
    text: &[u8],
    may_matter: impl Fn(u32) -> bool,
    mut counts: impl FnMut(&[u32]) -> bool,
) -> bool {
    let stored = stored_form(text);
    let calls = |tree| {
        // SAFETY: the default of a column or a domain, not null. The tree does not outlive its
        // memory.
        unsafe {
            contains(tree, &stored)
                && PgMemoryContexts::new("leaf_id default")
                    .switch_to(|_| Expression::from_value(tree).calls(functions, text))
        }
    };
    let mut counts = |relation: u32, domain_owner: Option<u32>| {
        let owners = relation_owner(relation).into_iter().chain(domain_owner);
        may_matter(relation) && counts(&owners.collect::<Vec<_>>())
    };
    has_column_default(|relation, tree| calls(tree) && counts(relation, None))
        || functions
            .iter()
            .flat_map(|function| dependents(pg_sys::ProcedureRelationId, *function))
            .filter(|caller| caller.class == pg_sys::TypeRelationId)
            .any(|domain| {
                domain_default(domain.object, calls).is_some_and(|owner| {
                    dependents(pg_sys::TypeRelationId, domain.object)
                        .into_iter()
                        .filter(|column| column.class == pg_sys::RelationRelationId)
                        .filter(|column| has_no_default(column.object, column.column))
                        .any(|column| counts(column.object, Some(owner)))
                })
            })
}

/// The bytes of a constant as PostgreSQL stores it in an expression: decimal numbers.
fn stored_form(text: &[u8]) -> Vec<u8> {
    let mut stored = vec![b' '];
    for byte in text {
        // A char, which is signed on some platforms.
        let number = c_char::from_ne_bytes([*byte]);
        stored.extend(format!("{number} ").bytes());
    }
    stored
}

/// True if a stored expression contains these bytes.
///
/// # Safety
/// The datum is a `pg_node_tree`, and not null.
unsafe fn contains(tree: pg_sys::Datum, bytes: &[u8]) -> bool {
    // SAFETY: guaranteed by the caller; both slices are as long as stated.
    unsafe {
        let text = pg_sys::pg_detoast_datum_packed(tree.cast_mut_ptr());
        let text = pgrx::varlena_to_byte_slice(text);
        let found = libc::memmem(
            text.as_ptr().cast(),
            text.len(),
            bytes.as_ptr().cast(),
            bytes.len(),
        );
        !found.is_null()
    }
}

/// True if a default of some table's column `is_wanted`.
fn has_column_default(mut is_wanted: impl FnMut(u32, pg_sys::Datum) -> bool) -> bool {
    let (adrelid, adbin) = (2, 4);
    // SAFETY: in a transaction; a scan of the whole catalog, in which no column is ever null.
    unsafe {
        visit_rows(PG_ATTRDEF, pg_sys::InvalidOid, &[], |row| {
            if is_wanted(oid_value(row.column(adrelid)), row.column(adbin)) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }
    .is_some()
}

/// The owner of a domain, if its default `is_wanted`.
fn domain_default(domain: u32, is_wanted: impl Fn(pg_sys::Datum) -> bool) -> Option<u32> {
    note_type(domain);
    let cache = pg_sys::SysCacheIdentifier::TYPEOID.cast_signed();
    // SAFETY: in a transaction; the cache is keyed by one oid; the row is released after its last
    // use.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(domain));
        if row.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_type>();
        let mut null = false;
        let number = i16::try_from(pg_sys::Anum_pg_type_typdefaultbin).unwrap_or(0);
        let tree = pg_sys::SysCacheGetAttr(cache, row, number, &raw mut null);
        let owner = (!null && is_wanted(tree)).then(|| (*form).typowner.to_u32());
        pg_sys::ReleaseSysCache(row);
        owner
    }
}

/// True if a column exists, and takes the default of its domain.
fn has_no_default(relation: u32, number: i16) -> bool {
    let cache = pg_sys::SysCacheIdentifier::ATTNUM.cast_signed();
    // SAFETY: in a transaction; the cache is keyed by an oid and a smallint, and the fixed part of
    // the row is read before it is released.
    unsafe {
        let row = pg_sys::SearchSysCache2(
            cache,
            pg_sys::Datum::from(relation),
            pg_sys::Datum::from(number),
        );
        if row.is_null() {
            return false;
        }
        let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_attribute>();
        let plain = !form.attisdropped && !form.atthasdef;
        pg_sys::ReleaseSysCache(row);
        plain
    }
}

/// True if a role may insert into a relation: itself, or through a view or a rule whose owner may.
/// That owner decides who writes the relation through it, as with a SECURITY DEFINER function.
pub fn may_insert(role: u32, relation: u32) -> bool {
    may_insert_through(role, relation, &mut BTreeSet::new())
}

fn may_insert_through(role: u32, relation: u32, seen: &mut BTreeSet<u32>) -> bool {
    if !seen.insert(relation) {
        return false;
    }
    if role_may_insert(role, relation) {
        return true;
    }
    let views: BTreeSet<u32> = dependents(pg_sys::RelationRelationId, relation)
        .into_iter()
        .filter(|dependent| dependent.class == PG_REWRITE)
        .filter_map(|rule| relation_of_rule(rule.object))
        .collect();
    views.into_iter().any(|view| {
        note_relation(view);
        relation_owner(view).is_some_and(|owner| role_may_insert(owner, relation))
            && may_insert_through(role, view, seen)
    })
}

/// The view or table of a rule.
fn relation_of_rule(rule: u32) -> Option<u32> {
    let (oid, ev_class) = (1, 3);
    // SAFETY: in a transaction; the index is on the oid.
    unsafe {
        visit_rows(
            PG_REWRITE,
            PG_REWRITE_OID_INDEX,
            &[key(oid, rule.into())],
            |row| ControlFlow::Break(oid_value(row.column(ev_class))),
        )
    }
}
