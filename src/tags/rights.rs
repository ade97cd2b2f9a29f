//! Rights per tag: the roles that may issue its ids.
//!
//! A role may if the tag is granted to it, or if it may insert into a column whose default issues
//! the ids of the tag, as with an identity column. Such a default gives away what its owner has:
//! the owner of the table, and that of the column's domain, must have the grant. Managers of tags,
//! who could grant it to themselves, and superusers have it for all tags.
//!
//! A row lists the roles with a grant in `granted_to`; a list with `public` means everybody. A
//! session reads the row, and if necessary the columns, and caches the result per version of the
//! slot's buffer. An edit of the list ends the version when it commits (see
//! [`super::transaction`]), so a REVOKE takes effect at once in all sessions. Columns take effect as
//! PostgreSQL's own privileges do: with the next statement after the change has committed, and in
//! an open transaction no later than with its end ([`pg::Caller`]).
//!
//! A tag issuable by everybody costs nothing on the hot path: the slot's [`Access`] says so once an
//! allocator has read the row for a claim, and only then does a session cache the slot without its
//! user. The access cannot be stale: it is written by a publication under the slot's lock, and a
//! publication is refused if the row was edited since; every invalidation resets it before it ends
//! the version. So a process that reads the version, then the access, never gets the access of an
//! earlier version.

use std::collections::BTreeMap;

use crate::error::Failure;
use crate::pg::{self, Caller, Name};
use crate::shmem::{Access, Key};

/// The pseudo-role for everybody.
const PUBLIC: &[u8] = b"public";

impl Access {
    /// Access for a list of roles.
    pub fn of(granted_to: &[Name]) -> Self {
        if names_public(granted_to) {
            Self::Everybody
        } else {
            Self::Restricted
        }
    }
}

fn names_public(roles: &[Name]) -> bool {
    let is_public = |role: &Name| role.as_c_str().to_bytes() == PUBLIC;
    roles.iter().any(is_public)
}

fn is_granted(role: u32, key: &Key, granted_to: &[Name]) -> bool {
    names_public(granted_to)
        || pg::role_is_one_of(role, granted_to, key.relation)
        || pg::role_may_update(role, key.relation)
}

/// Checks that the caller may claim ids of a tag with this list for another server. Columns do not
/// count, since nothing is inserted here.
///
/// # Errors
/// It may not.
pub fn check_claim(key: &Key, granted_to: &[Name]) -> Result<(), Failure> {
    let user = pg::user();
    if is_granted(user, key, granted_to) {
        Ok(())
    } else {
        Err(forbidden(key, user))
    }
}

/// Checks that the caller may issue ids of a tag with this list.
///
/// # Errors
/// It may not.
pub fn check_issue(key: &Key, granted_to: &[Name]) -> Result<(), Failure> {
    let user = pg::user();
    if is_granted(user, key, granted_to) {
        return Ok(());
    }
    let without = |owners: &[u32]| {
        let mut owners = owners.iter().copied();
        owners.find(|owner| !is_granted(*owner, key, granted_to))
    };
    let caller = Caller::to_check();
    let place = (key.relation, key.tag.bytes().into());
    let known = GIVEN.with(|given| given.get(&place).cloned());
    if let Some((checked, owners)) = known
        && checked == caller
        && without(&owners).is_none()
    {
        return Ok(());
    }
    let mut lacking = None;
    let mut found = Vec::new();
    let is_given = pg::has_default(
        &issuers(),
        key.tag.bytes(),
        |relation| pg::may_insert(user, relation),
        |owners| {
            let without = without(owners);
            lacking = lacking.or(without);
            found = owners.to_vec();
            without.is_none()
        },
    );
    if is_given {
        GIVEN.with_mut(|given| {
            if given.len() >= MAX_GIVEN {
                given.clear();
            }
            given.insert(place, (caller, found));
        });
        return Ok(());
    }
    // With the owner's grant, the column would be enough.
    Err(forbidden(key, lacking.unwrap_or(user)))
}

/// Max remembered columns.
const MAX_GIVEN: usize = 10_000;

/// Per table of tags and tag, the caller who was last found to have a right by a column, and those
/// whose grant it rests on.
type Given = BTreeMap<(u32, Box<[u8]>), (Caller, Vec<u32>)>;

/// A session checks more than once before it caches a slot.
static GIVEN: pg::BackendLocal<Given> = pg::BackendLocal::new(BTreeMap::new());

fn forbidden(key: &Key, role: u32) -> Failure {
    Failure::TagForbidden {
        tag: key.tag.name(),
        role: pg::role_name(role),
    }
}

/// The functions that issue ids in a default.
fn issuers() -> Vec<u32> {
    let Some(schema) = pg::extension_schema() else {
        return Vec::new();
    };
    [c"leaf_segment_next", c"leaf_opaque_next"]
        .into_iter()
        .filter_map(|name| pg::find_function_in(schema, name, &[pg::Type::Text.oid()]))
        .map(|function| function.oid)
        .collect()
}
