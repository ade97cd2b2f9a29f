//! Who may issue the ids of a tag.
//!
//! A row names the roles in `granted_to`; NULL is everybody, and so is a list with `public`.
//! A session looks at the row, and remembers what it found for as long as the slot's buffer
//! versions: an edit of the list ends that version when it commits (see `edits`), so that a REVOKE
//! holds at once, in every session.
//!
//! A tag that is everybody's costs nothing on the hot path: a slot says so, in its
//! [`Access`], once an allocator has read the row for a claim. Only then does a session
//! remember the slot as one that it may take from without a look at its user. Why the slot
//! cannot say it too long: the access is written under the slot's lock by a publication,
//! which is refused where the row was edited since, and every invalidation makes it unknown
//! before it ends the version. So whoever has read a version and then the access has not read that
//! of an earlier version.

use crate::pg::{self, Name};
use crate::shmem::Access;

/// The role that is everybody.
const PUBLIC: &[u8] = b"public";

impl Access {
    /// That of a row with this list.
    pub fn of(granted_to: Option<&[Name]>) -> Self {
        match granted_to {
            Some(roles) if !names_public(roles) => Self::Restricted,
            _ => Self::Everybody,
        }
    }
}

fn names_public(roles: &[Name]) -> bool {
    let is_public = |role: &Name| role.as_c_str().to_bytes() == PUBLIC;
    roles.iter().any(is_public)
}

/// Whether the caller may issue ids of a tag whose row has this list.
pub fn caller_may_issue(granted_to: Option<&[Name]>) -> bool {
    match granted_to {
        Some(roles) => names_public(roles) || pg::caller_is_one_of(roles),
        None => true,
    }
}
