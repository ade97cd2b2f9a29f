//! The triggers of leaf_id.leaf_alloc, which detect edits of tags, and helpers of the functions that
//! edit them.

use leaf_id_core::row::{self, LastClaim, TagRow};
use leaf_id_core::step::Limits;
use pgrx::prelude::*;
use pgrx::{PgLogLevel, pg_sys};

use super::call::{finish, tag, text, trigger_call};
use crate::error::Failure;
use crate::pg::{self, Privilege, RawDatum, TriggerCall};
use crate::shmem::{self, Key, Tag};
use crate::tags::heap::{self, ALLOC, AllocRow, Edit};
use crate::tags::trigger::{self, Merged};
use crate::tags::{claim, rights, transaction};

/// True if the rows can be read. In an apply worker, a table that cannot be read counts as an edit
/// of every tag, since an error would stop replication of all its tables.
fn is_readable(call: &TriggerCall<'_>) -> bool {
    match call.check(&ALLOC) {
        Ok(()) => true,
        Err(misshapen) if pg::replica_role() => {
            let detail = misshapen.detail;
            pgrx::log!(
                "leaf_id: table leaf_id.leaf_alloc was altered, and replicated changes drop what is cached of all tags: {detail}"
            );
            transaction::note_truncate(call.relation());
            false
        }
        Err(misshapen) => Failure::from(misshapen).raise(),
    }
}

/// The edit that fired a row trigger.
fn edit(call: &TriggerCall<'_>) -> Edit {
    Edit {
        relation: call.relation(),
        old: call.old().as_ref().and_then(AllocRow::of),
        new: call.new_row().as_ref().and_then(AllocRow::of),
        replica: pg::replica_role(),
    }
}

#[pg_extern(sql = false)]
fn leaf_alloc_stamp(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_alloc_stamp") };
    if !is_readable(&call) {
        return call.unchanged();
    }
    let edit = edit(&call);
    match finish(trigger::merge_replicated(&edit)) {
        Merged::No => {}
        Merged::Kept => return RawDatum::none(),
        Merged::Raised(mut raised) => {
            finish(trigger::meet_mark(&mut raised));
            transaction::remember(&raised);
            return RawDatum::none();
        }
    }
    match finish(trigger::stamp(&edit)) {
        Some(row) => call.with(&heap::changes(&row)),
        None => call.unchanged(),
    }
}

#[pg_extern(sql = false)]
fn leaf_alloc_edit(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_alloc_edit") };
    if is_readable(&call) {
        let mut edit = edit(&call);
        finish(trigger::meet_mark(&mut edit));
        transaction::remember(&edit);
    }
    call.unchanged()
}

#[pg_extern(sql = false)]
fn leaf_alloc_truncate(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_alloc_truncate") };
    is_readable(&call);
    finish(trigger::check_truncate());
    transaction::note_truncate(call.relation());
    call.unchanged()
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_left(
    max_id: i64,
    step: i32,
    max_step: i32,
    system_identifier: i64,
    timeline: i32,
    largest_claim: i32,
    is_sourced: bool,
) -> i64 {
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let row = TagRow {
        max_id,
        max_value: 0,
        limits: Limits {
            step: number(step),
            max_step: number(max_step),
        },
        incarnation: 0,
        last_claim: LastClaim {
            system: system_identifier.cast_unsigned(),
            timeline: timeline.cast_unsigned(),
            largest: number(largest_claim),
        },
        server: is_sourced.then_some(()),
        server_incarnation: 0,
    };
    let here = claim::here();
    finish(trigger::require_library(&row, &here));
    row::next(max_id, 0, row.skip(&here))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_is_unsettled(system_identifier: i64, timeline: i32) -> bool {
    let last_claim = LastClaim {
        system: system_identifier.cast_unsigned(),
        timeline: timeline.cast_unsigned(),
        largest: 0,
    };
    last_claim.promotions(&claim::here()) > 0
}

#[pg_extern(strict, stable, parallel_restricted, sql = false)]
fn leaf_require(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name.
    let words = unsafe { text(fcinfo, 0) };
    let privileges: Vec<_> = words
        .split(|byte| b", ".contains(byte))
        .filter_map(|word| match word {
            b"SELECT" => Some(Privilege::Select),
            b"INSERT" => Some(Privilege::Insert),
            b"UPDATE" => Some(Privilege::Update),
            b"DELETE" => Some(Privilege::Delete),
            _ => None,
        })
        .collect();
    finish(rights::require(&privileges));
    true
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_function_name(function: &str) -> String {
    pg::function_name(function)
}

#[pg_extern(strict, sql = false)]
fn leaf_check_preloaded(is_error: bool) -> bool {
    use core::sync::atomic::{AtomicBool, Ordering};
    static SAID: AtomicBool = AtomicBool::new(false);
    if shmem::area().is_some() || pg::binary_upgrade() {
        return true;
    }
    if is_error {
        Failure::NotPreloaded.raise();
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        Failure::NotPreloaded.report().report(PgLogLevel::WARNING);
    }
    true
}

#[pg_extern(strict, sql = false)]
fn leaf_next_here(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    let name = unsafe { tag(fcinfo) };
    let relation = finish(heap::relation());
    Tag::new(name).map_or(0, |tag| transaction::next_here(&Key::here(relation, tag)))
}

#[pg_extern(strict, sql = false)]
fn leaf_forget(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name.
    let name = unsafe { tag(fcinfo) };
    Tag::new(name).is_some_and(|tag| finish(trigger::forget(&tag)))
}
