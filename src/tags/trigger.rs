//! The BEFORE trigger of `leaf_alloc`: checks an edit and sets columns of the new row.

use leaf_id_core::row::{Here, TagRow, Update};
use leaf_id_core::sometimes;

use super::heap::{self, AllocRow, Edit};
use super::{claim, mark, opaque, rights, transaction};
use crate::error::{self, EditError, Failure, OpaqueError};
use crate::guc;
use crate::pg::{self, Access, Name, Privilege, Value};
use crate::shmem::{self, Key, Tag};

/// Checks an edit before the row is written: refuses it, or returns the row to write; `None` for
/// one that the constraints will reject. Records nothing, since the row may not be written after all
/// (ON CONFLICT, another trigger).
///
/// # Errors
/// An UPDATE that would lower `max_id` (see `leaf_tag_reset`), a foreign server that cannot be
/// used, an attempt to stop sourcing a tag from its server, or an edit that the key of the name
/// forbids.
pub fn stamp(edit: &Edit) -> Result<Option<TagRow<Name>>, Failure> {
    let Some(new) = &edit.new else {
        return Ok(None);
    };
    check_server(edit, edit.old.as_ref(), new)?;
    check_key(edit, edit.old.as_ref(), new)?;
    let begun = || new.row.begun(&claim::here(), claim::new_incarnation());
    match &edit.old {
        None => at_mark(edit, new, begun()),
        Some(old) if new.row.incarnation == 0 && old.row.incarnation != 0 && !edit.replica => {
            check_reset(old, new)?;
            Ok(begun())
        }
        Some(old) => update(edit, old, new),
    }
    .map(Some)
}

fn update(edit: &Edit, old: &AllocRow, new: &AllocRow) -> Result<TagRow<Name>, Failure> {
    let here = claim::here();
    let update = Update {
        is_renamed: old.tag != new.tag,
        is_replicated: edit.replica,
        skip: old.row.skip(&here),
        mark: mark::get(&old.tag)?,
        issued: transaction::next_here(&Key::here(edit.relation, old.tag)),
    };
    require_library(&old.row, &here)?;
    let lowered = || {
        Failure::Edit(EditError::MaxIdLowered {
            tag: old.tag.name(),
            from: old.row.max_id,
            to: new.row.max_id,
        })
    };
    let row = new.row.updated(&old.row, &here, &update);
    let row = row.ok_or_else(lowered)?;
    sometimes!(
        "edit: a row that is behind its mark leaves",
        update.is_renamed && old.row.max_id < update.mark
    );
    if update.skip > 0 {
        sometimes!("edit: skips what may be lost");
        let (tag, skip) = (old.tag.name(), update.skip);
        pgrx::log!(
            "leaf_id: an edit of tag \"{tag}\" skips {skip} ids: its last claim was made on another timeline (leaf_id.failover_skip)"
        );
    }
    if new.row.arrives(&old.row, update.is_renamed) {
        at_mark(edit, new, row)
    } else {
        Ok(row)
    }
}

/// Checks that what a promotion may have lost of a row can be settled: by `leaf_id.failover_skip` of the configuration,
/// which is known for sure only where the library is preloaded. Elsewhere a value that a session brings along keeps
/// that of the file away. (An apply worker, whose sessions bring none, must not stop.)
///
/// # Errors
/// A promotion may have lost claims, and there is no shared memory.
pub fn require_library<S: Copy + PartialEq>(row: &TagRow<S>, here: &Here) -> Result<(), Failure> {
    let is_settled = row.server.is_some() || row.last_claim.promotions(here) == 0;
    if is_settled || shmem::area().is_some() || pg::binary_upgrade() || pg::replica_role() {
        Ok(())
    } else {
        Err(Failure::NotPreloaded)
    }
}

/// Checks a reset of a tag.
///
/// # Errors
/// The tag is sourced; or it is opaque, and issuing chosen numbers again would reveal their ids.
fn check_reset(old: &AllocRow, new: &AllocRow) -> Result<(), Failure> {
    let tag = old.tag.name();
    if let Some(server) = old.row.server.or(new.row.server) {
        let server = server.text();
        return Err(Failure::Edit(EditError::ResetSourced { tag, server }));
    }
    if !opaque::caller_may_renumber(&old.tag)? {
        return Err(Failure::Opaque(OpaqueError::Forbidden { tag }));
    }
    Ok(())
}

/// A row that comes under a name, raised to the mark of that.
fn at_mark(edit: &Edit, new: &AllocRow, row: TagRow<Name>) -> Result<TagRow<Name>, Failure> {
    let raised = row.raised_to(mark::get(&new.tag)?);
    sometimes!(
        "edit: the row goes on at the mark of its name",
        raised != row
    );
    if raised != row && !edit.replica && !exists(edit.relation, &new.tag)? {
        error::tell_raised(&new.tag.name(), row.max_id, raised.max_id);
    }
    Ok(raised)
}

/// Makes a row that has come under its name and the mark of that equal, and locks both until the
/// transaction ends: at its commit, where no timeout works any more, nothing is left to wait for. The
/// mark may have risen since [`stamp`], while the row waited for another one of its name to go:
/// claims begin above both, but a dump has the row alone. The mark of the name that a row leaves may
/// have risen, too, by one that arrived from a dump or a publisher. By oid, so that no trigger of
/// others is fired twice.
///
/// # Errors
/// A table was altered.
pub fn meet_mark(edit: &mut Edit) -> Result<(), Failure> {
    let old_tag = edit.old.as_ref().map(|old| old.tag);
    let Some(new) = &mut edit.new else {
        return Ok(());
    };
    // A row that was here may have come after ids of its name were issued here, and a rollback.
    if Some(new.tag) == old_tag && !transaction::has_issued(&Key::here(edit.relation, new.tag)) {
        return Ok(());
    }
    pg::see_own_changes();
    let mark = mark::lock(&new.tag)?;
    let left = match old_tag {
        Some(old) if old != new.tag => mark::lock(&old)?.high(),
        _ => 0,
    };
    let raised = new.row.raised_to(mark.high().max(left));
    mark.raise(heap::key(&new.tag), raised.max_id);
    if raised == new.row {
        return Ok(());
    }
    let Some(table) = heap::open(edit.relation, Access::Write)? else {
        return Ok(());
    };
    if let Some(stored) = table.lock(&heap::key(&new.tag)) {
        table.update(&stored, &[(heap::MAX_ID, Value::Bigint(raised.max_id))]);
        new.row = raised;
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
    if !pg::caller_may_update(edit.relation) {
        return Ok(Merged::No);
    }
    let Some(table) = heap::open(edit.relation, Access::Write)? else {
        return Ok(Merged::No);
    };
    // An initial copy inserts all rows in one command, and a rename may affect the next row.
    pg::see_own_changes();
    let Some(stored) = table.lock(&heap::key(&new.tag)) else {
        return Ok(Merged::No);
    };
    let Some(old) = AllocRow::of(&stored) else {
        return Ok(Merged::Kept);
    };
    let Some(row) = old.row.merged(new.row.max_id) else {
        return Ok(Merged::Kept);
    };
    let mut raised = AllocRow { row, ..old.clone() };
    raised.row = update(edit, &old, &raised)?;
    table.update(&stored, &heap::changes(&raised.row));
    // A tool that copies the table does not see that.
    mark::lock(&new.tag)?.raise(heap::key(&new.tag), raised.row.max_id);
    Ok(Merged::Raised(Box::new(Edit {
        relation: edit.relation,
        old: Some(old),
        new: Some(raised),
        replica: true,
    })))
}

/// Deletes the mark of a name without a tag, for a role that may reset tags. True if it existed.
///
/// # Errors
/// The caller may not update `leaf_alloc`, or the name has a key and the caller may not encode numbers,
/// or a table was altered or dropped.
pub fn forget(tag: &Tag) -> Result<bool, Failure> {
    rights::require(&[Privilege::Select, Privilege::Update])?;
    let relation = heap::relation()?;
    // The right to set a column is none to set ids back.
    if !pg::caller_may_update(relation) {
        let role = pg::user_identifier();
        return Err(Failure::Edit(EditError::NotManager { role }));
    }
    if !opaque::caller_may_renumber(tag)? {
        return Err(Failure::Opaque(OpaqueError::Forbidden { tag: tag.name() }));
    }
    transaction::watch();
    pg::see_own_changes();
    // Lock the mark first: a concurrent creation of the tag has locked it, and starts there.
    let mark = mark::lock(tag)?;
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
    let before = old.and_then(|old| old.row.server);
    let same_name = old.is_some_and(|old| old.tag == new.tag);
    if before == new.row.server && (same_name || before.is_none()) {
        return Ok(());
    }
    if let Some(server) = before.filter(|_| before != new.row.server) {
        let tag = new.tag.name();
        let server = server.text();
        if !edit.replica || !pg::is_superuser() {
            return Err(Failure::Edit(EditError::SourceIsFinal { tag, server }));
        }
        pgrx::log!("leaf_id: tag \"{tag}\" is no longer sourced from server \"{server}\"");
    }
    match new.row.server {
        // An apply worker must not stop; the next claim reports the problem. One that writes with the
        // rights of a subscription's owner is not that role's way around the check.
        Some(name) if !edit.replica || !pg::is_superuser() => pg::check_foreign_server(&name)
            .map_err(|problem| {
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
    if edit.replica && pg::is_superuser() {
        return Ok(());
    }
    match old {
        Some(old) if old.tag != new.tag => {
            for tag in [old.tag, new.tag] {
                if opaque::has_key(&tag)? {
                    return Err(Failure::Opaque(OpaqueError::Rename { tag: tag.name() }));
                }
            }
            Ok(())
        }
        Some(old) if old.row.server == new.row.server => Ok(()),
        _ if !opaque::caller_may_renumber(&new.tag)? => {
            let tag = new.tag.name();
            Err(Failure::Opaque(OpaqueError::Forbidden { tag }))
        }
        _ => Ok(()),
    }
}
