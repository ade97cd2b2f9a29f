//! Rights per tag: the roles that may issue its ids.
//!
//! A row lists the roles in `granted_to`: at first the one that created the tag. A list with
//! `public` means all roles. Roles that manage tags, who could grant it to themselves, and
//! superusers may issue ids of all. A session reads the row and caches the result per version of
//! the slot's buffer. An edit of the list ends the version when it commits (see
//! [`super::transaction`]), so a REVOKE takes effect at once in all sessions.
//!
//! A tag issuable by all roles costs nothing on the hot path: the slot's [`SlotAccess`] says so once an
//! allocator has read the row for a claim, and only then does a session cache the slot without its
//! user. The access cannot be stale: it is written by a publication under the slot's lock, and a
//! publication is refused if the row was edited since; every invalidation resets it before it ends
//! the version. So a process that reads the version, then the access, never gets the access of an
//! earlier version.

use super::heap;
use crate::error::{EditError, Failure};
use crate::pg::{self, Name, Privilege};
use crate::shmem::SlotAccess;

/// The pseudo-role for all roles.
const PUBLIC: &[u8] = b"public";

impl SlotAccess {
    /// Access for a list of roles.
    pub fn of(granted_to: &[Name]) -> Self {
        if names_public(granted_to) {
            Self::Public
        } else {
            Self::Restricted
        }
    }
}

fn names_public(roles: &[Name]) -> bool {
    let is_public = |role: &Name| role.as_c_str().to_bytes() == PUBLIC;
    roles.iter().any(is_public)
}

/// True if the caller may issue ids of a tag of `relation` with this list.
pub fn caller_may_issue(relation: u32, granted_to: &[Name]) -> bool {
    names_public(granted_to)
        || pg::caller_is_one_of(granted_to, relation)
        || pg::caller_may_update(relation)
}

/// Checks that the caller has these privileges on `leaf_alloc`, before PostgreSQL does: its error
/// names a table, not what to grant. Until the end of the transaction, the extension stays: by the lock
/// of a view, since any role can have it, and a claim, which waits for all locks of `leaf_alloc`, needs
/// no view.
///
/// # Errors
/// One is missing, or there is no table.
pub fn require(privileges: &[Privilege]) -> Result<(), Failure> {
    if !pg::hold(c"tags") {
        return Err(Failure::missing(&heap::ALLOC));
    }
    let relation = heap::relation()?;
    let has = |privilege: &Privilege| pg::caller_has(relation, *privilege);
    if privileges.iter().all(has) {
        return Ok(());
    }
    let role = pg::user_identifier();
    Err(Failure::Edit(match privileges {
        [Privilege::Select] => EditError::NotReader { role },
        _ => EditError::NotManager { role },
    }))
}
