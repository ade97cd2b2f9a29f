//! What an edit of `leaf_alloc` may do, and what it writes beside: the part of the trigger
//! before the row is written.

use leaf_id_core::row;

use super::heap::{self, AllocRow, Edit, LastClaim};
use super::{claim, mark, opaque, transaction};
use crate::error::{self, Failure};
use crate::guc;
use crate::pg::{self, Access, Value};
use crate::shmem::Tag;

/// What the trigger changes in the row that is about to be written.
#[derive(Default)]
pub struct Stamp {
    /// A new incarnation.
    pub incarnation: Option<i64>,
    /// Another `max_id`.
    pub max_id: Option<i64>,
    /// What the row remembers now.
    pub last_claim: Option<LastClaim>,
    /// Another `server_incarnation`.
    pub server_incarnation: Option<i64>,
}

impl Stamp {
    /// The columns to write, with the time of the edit.
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

/// Decides about a row edit, before the row is written: refuses it, or stamps the row. The
/// row may yet not be written (ON CONFLICT, another trigger): nothing is remembered here.
///
/// # Errors
/// An UPDATE that would lower `max_id`, which is what `leaf_tag_reset` is for. A foreign
/// server that cannot be used, or that would no longer source the tag. What a name with a key does not
/// allow.
pub fn stamp(edit: &Edit) -> Result<Stamp, Failure> {
    let (old, Some(new)) = (&edit.old, &edit.new) else {
        return Ok(Stamp::default());
    };
    check_server(edit, old.as_ref(), new)?;
    check_key(edit, old.as_ref(), new)?;
    let step = i32::try_from(new.limits.step).unwrap_or(0);
    let here = LastClaim {
        system_identifier: pg::system_identifier().cast_signed(),
        timeline: pg::timeline().cast_signed(),
        largest_claim: step,
    };
    let Some(old) = old else {
        return Ok(Stamp {
            // A row that comes back from a dump is the one that it was: servers that it is the source of
            // must not take it for one that was reset. Otherwise never 0, which means none.
            incarnation: Some(match new.incarnation {
                0 => claim::new_incarnation(),
                incarnation => incarnation,
            }),
            max_id: at_mark(edit, new)?,
            last_claim: Some(here),
            server_incarnation: Some(0),
        });
    };
    if new.incarnation == 0 && old.incarnation != 0 && !edit.replica {
        return reset(old, new, here);
    }
    let mut max_id = None;
    if let (Some(from), Some(to)) = (old.max_id, new.max_id)
        && to < from
    {
        if !edit.replica {
            let tag = old.tag.unwrap_or(Tag::EMPTY).name();
            return Err(Failure::MaxIdLowered { tag, from, to });
        }
        max_id = Some(from);
    }
    // What the row remembers is not for users to change. A larger step may be claimed at
    // once.
    let mut last_claim = LastClaim {
        largest_claim: old.last_claim.largest_claim.max(step),
        ..old.last_claim
    };
    // What is left out after a failover goes by the limits that the missing claims had: an
    // edit that changes them leaves it out now. The ids of a tag's source server are
    // not in this table, and no claim of them can be missing here.
    let skip = match old.server {
        None => old.last_claim.skip(old.limits),
        Some(_) => 0,
    };
    if skip > 0 {
        let tag = old.tag.unwrap_or(Tag::EMPTY).name();
        pgrx::log!(
            "leaf_id: an edit of tag \"{tag}\" skips {skip} ids: its last claim was made on another timeline (leaf_id.failover_skip)"
        );
        // Also beyond the end: the old primary may have raised that, and used it.
        let mark = old.tag.map_or(Ok(0), |tag| mark::get(&tag))?;
        let from = old.max_id.map(|from| row::leaving(from, mark, skip));
        // NULL is for the table's constraint to refuse.
        max_id = new.max_id.and_then(|to| from.map(|from| from.max(to)));
        last_claim = LastClaim {
            largest_claim: last_claim.largest_claim,
            ..here
        };
    }
    if old.tag != new.tag {
        // With what this very transaction has issued of it, which the row does not have yet.
        let issued = old
            .tag
            .map_or(0, |tag| transaction::next_here(&edit.key(tag)));
        let moved = AllocRow {
            max_id: max_id.or(new.max_id).map(|max_id| max_id.max(issued)),
            ..new.clone()
        };
        max_id = moved.max_id.max(at_mark(edit, &moved)?);
    }
    // Under another name the ids come from another row there, or that one was renamed too:
    // 0 is any, as long as it stands above max_id.
    let same_row = (old.server, old.tag) == (new.server, new.tag);
    Ok(Stamp {
        incarnation: Some(old.incarnation),
        max_id,
        last_claim: Some(last_claim),
        server_incarnation: Some(if same_row { old.server_incarnation } else { 0 }),
    })
}

/// A new incarnation, which begins where it says: how `leaf_tag_reset` is written.
///
/// # Errors
/// The ids come from another server; or they are opaque, and whoever takes the numbers that he likes
/// once more learns which ids they have.
fn reset(old: &AllocRow, new: &AllocRow, here: LastClaim) -> Result<Stamp, Failure> {
    let tag = old.tag.unwrap_or(Tag::EMPTY);
    if let Some(server) = old.server.or(new.server) {
        return Err(Failure::ResetSourced {
            tag: tag.name(),
            server: server.text(),
        });
    }
    if !opaque::caller_may_renumber(&tag)? {
        return Err(Failure::OpaqueForbidden { tag: tag.name() });
    }
    Ok(Stamp {
        incarnation: Some(claim::new_incarnation()),
        max_id: None,
        last_claim: Some(here),
        server_incarnation: Some(0),
    })
}

/// The `max_id` of a row that comes to a name under which higher ids were claimed.
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

/// Whether there is a row of this name: another one is about to be refused, or left out.
fn exists(relation: u32, tag: &Tag) -> Result<bool, Failure> {
    let table = heap::open(relation, Access::Read)?;
    Ok(table.is_some_and(|table| table.get(&heap::key(tag)).is_some()))
}

/// What has become of a replicated INSERT, or of an UPDATE of a row's name.
pub enum Merged {
    /// The row is to be written: there is none of this name.
    No,
    /// The row that is here stays as it is.
    Kept,
    /// The row that is here was raised: to be remembered as any edit.
    Raised(Box<Edit>),
}

/// A row that logical replication brings, or gives the name, of a tag that this server has already:
/// the row that is here stays, with the greater `max_id`, and that one is not to be written: a row that
/// is renamed keeps its old name. A duplicate key would stop the initial copy, or the apply worker, for
/// good.
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
    // Whoever sets session_replication_role, and may not UPDATE, gets the error.
    let (Some(tag), true) = (new.tag, pg::caller_may_update(edit.relation)) else {
        return Ok(Merged::No);
    };
    let Some(table) = heap::open(edit.relation, Access::Write)? else {
        return Ok(Merged::No);
    };
    // The rows of an initial copy come in one command, and one may rename what the next one meets.
    pg::see_own_changes();
    let Some(stored) = table.lock(&heap::key(&tag)) else {
        return Ok(Merged::No);
    };
    let old = AllocRow::of(&stored);
    // Which ids of a sourced tag are in use is known where they come from.
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

/// Forgets the mark of a name that no tag has, for a role that may reset tags. True if there was one.
///
/// # Errors
/// The name has a key, and the caller may not make keys. A table was altered, or is gone. PostgreSQL's own
/// where the caller may not.
pub fn forget(tag: &Tag) -> Result<bool, Failure> {
    let relation = heap::relation()?;
    pg::require_update(relation, c"leaf_alloc");
    if !opaque::caller_may_renumber(tag)? {
        return Err(Failure::OpaqueForbidden { tag: tag.name() });
    }
    pg::see_own_changes();
    let mark = mark::lock(tag)?;
    // The mark first: who creates the tag meanwhile has read it, and begins there.
    Ok(!exists(relation, tag)? && mark.forget())
}

/// Whether every tag may be dropped at once. A replicated TRUNCATE is applied: its owner was asked
/// where it comes from, and an apply worker is never stopped.
///
/// # Errors
/// `leaf_id.allow_truncate` is off.
pub fn check_truncate() -> Result<(), Failure> {
    if pg::replica_role() || guc::ALLOW_TRUNCATE.get() {
        Ok(())
    } else {
        Err(Failure::TruncateNotAllowed)
    }
}

/// The source server of a tag must exist and be the editor's to use, and stays so: which ids
/// other members of its fleet have, this table does not know.
fn check_server(edit: &Edit, old: Option<&AllocRow>, new: &AllocRow) -> Result<(), Failure> {
    let before = old.and_then(|row| row.server);
    if before == new.server {
        return Ok(());
    }
    if let Some(server) = before {
        let tag = new.tag.unwrap_or(Tag::EMPTY).name();
        let server = server.text();
        if !edit.replica {
            return Err(Failure::SourceIsFinal { tag, server });
        }
        pgrx::log!("leaf_id: tag \"{tag}\" is no longer sourced from server \"{server}\"");
    }
    match new.server {
        // An apply worker is never stopped; whoever claims will find out.
        Some(name) if !edit.replica => {
            pg::foreign_server(&name)
                .map(drop)
                .map_err(|problem| Failure::Server {
                    server: name.text(),
                    problem,
                })
        }
        _ => Ok(()),
    }
}

/// A key belongs to a name: under another one the same numbers would be other ids, or ids themselves. And
/// who has numbers come again, from here or from another server, learns which ids they have.
fn check_key(edit: &Edit, old: Option<&AllocRow>, new: &AllocRow) -> Result<(), Failure> {
    if edit.replica {
        return Ok(());
    }
    let name = |tag: Tag| tag.name();
    match (old, new.tag) {
        (Some(old), _) if old.tag != new.tag => {
            for tag in [old.tag, new.tag].into_iter().flatten() {
                if opaque::has_key(&tag)? {
                    return Err(Failure::OpaqueRename { tag: name(tag) });
                }
            }
            Ok(())
        }
        (Some(old), _) if old.server == new.server => Ok(()),
        (_, Some(tag)) if !opaque::caller_may_renumber(&tag)? => {
            Err(Failure::OpaqueForbidden { tag: name(tag) })
        }
        _ => Ok(()),
    }
}
