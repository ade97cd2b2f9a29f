//! Opaque ids: numbers of a tag, encrypted with its key.

use std::rc::Rc;

use leaf_id_core::opaque::Permutation;

use super::issue;
use super::lookup;
use super::slot_cache::SLOT_CACHE;
use crate::deadline::{Deadline, ready_on_standby};
use crate::error::{Failure, OpaqueError, RefillError};
use crate::pg;

/// The next opaque id of a tag.
///
/// # Errors
/// The tag has no key, or its numbers are beyond the key's domain. See also [`Failure`].
pub fn next(tag: &[u8]) -> Result<i64, Failure> {
    let permutation = permutation(tag)?;
    let number = issue::next_number(tag).map_err(|failure| match failure {
        Failure::Refill {
            tag,
            error: RefillError::NoSuchTag,
            ..
        } => Failure::Opaque(OpaqueError::NoSuchTag { tag }),
        Failure::Refill {
            tag,
            error: RefillError::EndOfTag { max_value, skip: 0 },
            ..
        } if max_value >= permutation.last() => end(tag, &permutation),
        failure => failure,
    })?;
    permutation
        .encode(number)
        .ok_or_else(|| end(pg::shown(tag), &permutation))
}

fn end(tag: String, permutation: &Permutation) -> Failure {
    Failure::Opaque(OpaqueError::End {
        tag,
        last: permutation.last(),
    })
}

/// Maps a number to its id, or an id to its number. Works on a standby, too.
///
/// # Errors
/// The tag has no key, the caller may not issue its ids, or the value is out of range.
pub fn map(
    tag: &[u8],
    value: i64,
    map: impl FnOnce(&Permutation, i64) -> Option<i64>,
) -> Result<i64, Failure> {
    ready_on_standby()?;
    let permutation = permutation(tag)?;
    lookup::check_rights(&lookup::key(tag)?, &Deadline::new())?;
    map(&permutation, value).ok_or_else(|| {
        Failure::Opaque(OpaqueError::OutOfRange {
            tag: pg::shown(tag),
            value,
            last: permutation.last(),
        })
    })
}

/// The permutation of a tag. Cached, as a key never changes, unless the open transaction has
/// created it and may still roll back.
fn permutation(tag: &[u8]) -> Result<Rc<Permutation>, Failure> {
    // Clears the cache if leaf_alloc has been replaced: its keys belong to another table then.
    lookup::relation()?;
    if let Some(permutation) = SLOT_CACHE.with(|cache| cache.permutation(tag)) {
        return Ok(permutation);
    }
    let key = lookup::key(tag)?;
    let found = lookup::find_key(&key, &Deadline::new())?;
    let found = found.ok_or_else(|| {
        Failure::Opaque(OpaqueError::NoKey {
            tag: key.tag.name(),
        })
    })?;
    if !found.is_ours {
        SLOT_CACHE.with_mut(|cache| cache.remember_permutation(tag, &found.permutation));
    }
    Ok(found.permutation)
}
