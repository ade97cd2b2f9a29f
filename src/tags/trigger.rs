//! The BEFORE trigger of `leaf_alloc`: checks an edit and sets columns of the new row.

use leaf_id_core::row;

use super::heap::{self, AllocRow, Edit, LastClaim};
use super::{claim, mark, opaque, rights, transaction};
use crate::error::{self, EditError, Failure, OpaqueError};
use crate::guc;
use crate::pg::{self, Access, Privilege, Value};
use crate::shmem::Tag;

/// Columns that the trigger sets in the new row.
#[derive(Default)]
pub struct Stamp {
    /// New incarnation.
    pub incarnation: Option<i64>,
    /// New `max_id`.
    pub max_id: Option<i64>,
    /// New record of the last claim.
    pub last_claim: Option<LastClaim>,
    /// New `server_incarnation`.
    pub server_incarnation: Option<i64>,
}

impl Stamp {
    /// The columns to write, including the time of the edit.
    pub fn changes(&self) -> Vec<(usize, Value<'_>)> {
        let mut changes = vec![(heap::UPDATE_TIME, Value::Timestamp(pg::now_timestamp()))];
        let bigints = [
            (heap::INCARNATION, self.incarnation),
            (heap::MAX_ID, self.max_id),
            (heap::SERVER_INCARNATION, self.server_incarnation),
        ];
        let changed = bigints.into_iter();
        changes.extend(changed.filter_map(|(column, value)| Some((column, Value::Bigint(value?)))));
        if let Some(last_claim) = self.last_claim {
            changes.extend([
                (
                    heap::SYSTEM_IDENTIFIER,
                    Value::Bigint(last_claim.system_identifier),
                ),
                (heap::TIMELINE, Value::Integer(last_claim.timeline)),
                (
                    heap::LARGEST_CLAIM,
                    Value::Integer(last_claim.largest_claim),
                ),
            ]);
        }
        changes
    }
}

/// Checks an edit before the row is written: refuses it, or sets columns. Records nothing, since
/// the row may not be written after all (ON CONFLICT, another trigger).
///
/// # Errors
/// An UPDATE that would lower `max_id` (see `leaf_tag_reset`), a foreign server that cannot be
/// used, an attempt to stop sourcing a tag from its server, or an edit that the key of the name
/// forbids.
pub fn stamp(edit: &Edit) -> Result<Stamp, Failure> {
    let Some(new) = &edit.new else {
        return Ok(Stamp::default());
    };
    check_server(edit, edit.old.as_ref(), new)?;
    check_key(edit, edit.old.as_ref(), new)?;
    match &edit.old {
        None => insert(edit, new),
        Some(old) if new.incarnation == 0 && old.incarnation != 0 && !edit.replica => {
            reset(old, new)
        }
        Some(old) => update(edit, old, new),
    }
}

/// The record of a claim made here, of as many ids as the row's step.
fn claim_here(row: &AllocRow) -> LastClaim {
    LastClaim {
        system_identifier: pg::system_identifier().cast_signed(),
        timeline: pg::timeline().cast_signed(),
        largest_claim: i32::try_from(row.limits.step).unwrap_or(0),
    }
}

fn insert(edit: &Edit, new: &AllocRow) -> Result<Stamp, Failure> {
    Ok(Stamp {
        // A row restored from a dump keeps its incarnation: servers sourcing from it must not take
        // it for a reset. Otherwise never 0, which means none.
        incarnation: Some(match new.incarnation {
            0 => claim::new_incarnation(),
            incarnation => incarnation,
        }),
        max_id: at_mark(edit, new)?,
        last_claim: Some(claim_here(new)),
        server_incarnation: Some(0),
    })
}

fn update(edit: &Edit, old: &AllocRow, new: &AllocRow) -> Result<Stamp, Failure> {
    // The skip after a failover depends on the limits of the lost claims, so an edit that may
    // change the limits applies the skip now. Ids of a sourced tag are not claimed from this table,
    // so no claim can have been lost.
    let skip = match old.server {
        None => old.last_claim.skip(old.limits),
        Some(_) => 0,
    };
    let is_renamed = old.tag != new.tag;
    let mut max_id = not_lowered(edit, old, new)?;
    if skip > 0 || is_renamed {
        max_id = after_leaving(old, new, skip)?;
    }
    let last_claim = keep_last_claim(old, new, skip);
    if is_renamed || old.server != new.server {
        // From now on the source server's ids are compared with max_id alone. Include ids issued by
        // this transaction, which are not in the row yet.
        let issued = old
            .tag
            .map_or(0, |tag| transaction::next_here(&edit.key(tag)));
        let moved = AllocRow {
            max_id: max_id.or(new.max_id).map(|max_id| max_id.max(issued)),
            ..new.clone()
        };
        max_id = moved.max_id.max(at_mark(edit, &moved)?);
    }
    // Under another name, the ids come from another row of the source server, or its row was
    // renamed, too. 0 accepts any source row whose ids are above max_id.
    let same_row = (old.server, old.tag) == (new.server, new.tag);
    Ok(Stamp {
        incarnation: Some(old.incarnation),
        max_id,
        last_claim: Some(last_claim),
        server_incarnation: Some(if same_row { old.server_incarnation } else { 0 }),
    })
}

/// The old `max_id`, if a replicated edit would lower it.
///
/// # Errors
/// Any other edit would lower it.
fn not_lowered(edit: &Edit, old: &AllocRow, new: &AllocRow) -> Result<Option<i64>, Failure> {
    match (old.max_id, new.max_id) {
        (Some(from), Some(to)) if to < from && edit.replica => Ok(Some(from)),
        (Some(from), Some(to)) if to < from => {
            let tag = old.tag.unwrap_or(Tag::EMPTY).name();
            Err(Failure::Edit(EditError::MaxIdLowered { tag, from, to }))
        }
        _ => Ok(None),
    }
}

/// A `max_id` above all ids that may have been claimed under the old name: a tool may have taken
/// some back from the row. Even beyond `max_value`: the old primary may have raised and used that.
fn after_leaving(old: &AllocRow, new: &AllocRow, skip: u64) -> Result<Option<i64>, Failure> {
    let mark = old.tag.map_or(Ok(0), |tag| mark::get(&tag))?;
    let from = old.max_id.map(|from| row::leaving(from, mark, skip));
    // NULL is rejected by the table's constraint.
    Ok(new.max_id.and_then(|to| from.map(|from| from.max(to))))
}

/// The record of the last claim, which users cannot change. An applied skip makes it one made here.
fn keep_last_claim(old: &AllocRow, new: &AllocRow, skip: u64) -> LastClaim {
    let here = claim_here(new);
    // A larger step may be claimed at once.
    let largest_claim = old.last_claim.largest_claim.max(here.largest_claim);
    let made_at = if skip > 0 {
        let tag = old.tag.unwrap_or(Tag::EMPTY).name();
        pgrx::log!(
            "leaf_id: an edit of tag \"{tag}\" skips {skip} ids: its last claim was made on another timeline (leaf_id.failover_skip)"
        );
        here
    } else {
        old.last_claim
    };
    LastClaim {
        largest_claim,
        ..made_at
    }
}

/// Starts a new incarnation at `max_id`, for `leaf_tag_reset`.
///
/// # Errors
/// The tag is sourced; or it is opaque, and issuing chosen numbers again would reveal their ids.
fn reset(old: &AllocRow, new: &AllocRow) -> Result<Stamp, Failure> {
    let tag = old.tag.unwrap_or(Tag::EMPTY);
    if let Some(server) = old.server.or(new.server) {
        return Err(Failure::Edit(EditError::ResetSourced {
            tag: tag.name(),
            server: server.text(),
        }));
    }
    if !opaque::caller_may_renumber(&tag)? {
        return Err(Failure::Opaque(OpaqueError::Forbidden { tag: tag.name() }));
    }
    Ok(Stamp {
        incarnation: Some(claim::new_incarnation()),
        max_id: None,
        last_claim: Some(claim_here(new)),
        server_incarnation: Some(0),
    })
}

/// The `max_id` of a row inserted under, or renamed to, a name with a higher mark.
fn at_mark(edit: &Edit, new: &AllocRow) -> Result<Option<i64>, Failure> {
    let (Some(tag), Some(max_id)) = (new.tag, new.max_id) else {
        return Ok(None);
    };
    let mark = mark::get(&tag)?;
    if mark == 0 || mark <= max_id {
        return Ok(None);
    }
    if !edit.replica && !exists(edit.relation, &tag)? {
        error::tell_raised(&tag.name(), max_id, mark);
    }
    Ok(Some(row::arriving(max_id, mark)))
}

/// Raises a row that has come under its name to the mark, where that has risen since [`stamp`]: the
/// row has waited for another one of its name to go. Claims begin above both, but a dump has the
/// row alone. By oid, so that no trigger of others is fired twice.
///
/// # Errors
/// A table was altered.
pub fn raise_to_mark(edit: &mut Edit) -> Result<(), Failure> {
    let old_tag = edit.old.as_ref().and_then(|old| old.tag);
    let Some(new) = edit.new.as_mut().filter(|new| new.tag != old_tag) else {
        return Ok(());
    };
    let Some(tag) = new.tag else {
        return Ok(());
    };
    let mark = mark::get(&tag)?;
    if Some(mark) <= new.max_id {
        return Ok(());
    }
    let Some(table) = heap::open(edit.relation, Access::Write)? else {
        return Ok(());
    };
    pg::see_own_changes();
    if let Some(stored) = table.lock(&heap::key(&tag)) {
        table.update(&stored, &[(heap::MAX_ID, Value::Bigint(mark))]);
        new.max_id = Some(mark);
    }
    Ok(())
}

/// True if there is a row of this name, so that another one will be refused or skipped.
fn exists(relation: u32, tag: &Tag) -> Result<bool, Failure> {
    let table = heap::open(relation, Access::Read)?;
    Ok(table.is_some_and(|table| table.get(&heap::key(tag)).is_some()))
}

/// Outcome of a replicated INSERT or rename.
pub enum Merged {
    /// The row is to be written; there is no row of this name.
    No,
    /// The existing row is unchanged.
    Kept,
    /// The existing row was raised; the edit must be recorded.
    Raised(Box<Edit>),
}

/// Handles a replicated INSERT of, or rename to, a tag that exists here. The existing row is kept,
/// with the greater `max_id`, and the replicated row is not written; a renamed row keeps its old
/// name. A duplicate key would stop the initial copy or the apply worker permanently.
///
/// # Errors
/// The table was altered.
pub fn merge_replicated(edit: &Edit) -> Result<Merged, Failure> {
    let (true, Some(new)) = (edit.replica, &edit.new) else {
        return Ok(Merged::No);
    };
    if edit.old.as_ref().is_some_and(|old| old.tag == new.tag) {
        return Ok(Merged::No);
    }
    // A role that sets session_replication_role without the UPDATE privilege gets the normal error.
    let (Some(tag), true) = (new.tag, pg::caller_may_update(edit.relation)) else {
        return Ok(Merged::No);
    };
    let Some(table) = heap::open(edit.relation, Access::Write)? else {
        return Ok(Merged::No);
    };
    // An initial copy inserts all rows in one command, and a rename may affect the next row.
    pg::see_own_changes();
    let Some(stored) = table.lock(&heap::key(&tag)) else {
        return Ok(Merged::No);
    };
    let old = AllocRow::of(&stored);
    // The source server knows which ids of a sourced tag are in use.
    if old.server.is_some() || new.max_id <= old.max_id {
        return Ok(Merged::Kept);
    }
    let raised = AllocRow {
        tag: new.tag,
        max_id: new.max_id.max(old.max_id),
        ..old.clone()
    };
    let max_id = raised.max_id;
    let mut edit = Edit {
        relation: edit.relation,
        old: Some(old),
        new: Some(raised),
        replica: true,
    };
    let mut stamp = stamp(&edit)?;
    stamp.max_id = stamp.max_id.max(max_id);
    table.update(&stored, &stamp.changes());
    if let Some(raised) = &mut edit.new {
        raised.max_id = stamp.max_id;
    }
    Ok(Merged::Raised(Box::new(edit)))
}

/// Deletes the mark of a name without a tag, for a role that may reset tags. True if it existed.
///
/// # Errors
/// The caller may not update `leaf_alloc`, or the name has a key and the caller may not encode numbers,
/// or a table was altered or dropped.
pub fn forget(tag: &Tag) -> Result<bool, Failure> {
    let relation = heap::relation()?;
    rights::require(&[Privilege::Select, Privilege::Update])?;
    if !opaque::caller_may_renumber(tag)? {
        return Err(Failure::Opaque(OpaqueError::Forbidden { tag: tag.name() }));
    }
    pg::see_own_changes();
    let mark = mark::lock(tag)?;
    // Lock the mark first: a concurrent creation of the tag has read it, and starts there.
    Ok(!exists(relation, tag)? && mark.forget())
}

/// Checks that all tags may be dropped at once. A replicated TRUNCATE is applied: it was checked on
/// the publisher, and an apply worker must not stop.
///
/// # Errors
/// `leaf_id.allow_truncate` is off.
pub fn check_truncate() -> Result<(), Failure> {
    if pg::replica_role() || guc::ALLOW_TRUNCATE.get() {
        Ok(())
    } else {
        Err(Failure::Edit(EditError::TruncateNotAllowed))
    }
}

/// Checks that a tag's source server exists and is the editor's, also when the tag is renamed: the
/// name says which tag is claimed there, with the owner's user mapping. The server cannot be
/// changed later: this table does not know which ids other members have.
fn check_server(edit: &Edit, old: Option<&AllocRow>, new: &AllocRow) -> Result<(), Failure> {
    let before = old.and_then(|row| row.server);
    let same_name = old.is_some_and(|row| row.tag == new.tag);
    if before == new.server && (same_name || before.is_none()) {
        return Ok(());
    }
    if let Some(server) = before.filter(|_| before != new.server) {
        let tag = new.tag.unwrap_or(Tag::EMPTY).name();
        let server = server.text();
        if !edit.replica {
            return Err(Failure::Edit(EditError::SourceIsFinal { tag, server }));
        }
        pgrx::log!("leaf_id: tag \"{tag}\" is no longer sourced from server \"{server}\"");
    }
    match new.server {
        // An apply worker must not stop; the next claim reports the problem.
        Some(name) if !edit.replica => pg::check_foreign_server(&name).map_err(|problem| {
            Failure::Edit(EditError::Server {
                server: name.text(),
                problem,
            })
        }),
        _ => Ok(()),
    }
}

/// Checks edits of opaque tags. A key belongs to a name: under another name the same numbers would
/// get other ids, or be issued as ids. Reissuing numbers, from here or from another server, reveals
/// their ids.
fn check_key(edit: &Edit, old: Option<&AllocRow>, new: &AllocRow) -> Result<(), Failure> {
    if edit.replica {
        return Ok(());
    }
    let name = |tag: Tag| tag.name();
    match (old, new.tag) {
        (Some(old), _) if old.tag != new.tag => {
            for tag in [old.tag, new.tag].into_iter().flatten() {
                if opaque::has_key(&tag)? {
                    return Err(Failure::Opaque(OpaqueError::Rename { tag: name(tag) }));
                }
            }
            Ok(())
        }
        (Some(old), _) if old.server == new.server => Ok(()),
        (_, Some(tag)) if !opaque::caller_may_renumber(&tag)? => {
            Err(Failure::Opaque(OpaqueError::Forbidden { tag: name(tag) }))
        }
        _ => Ok(()),
    }
}
