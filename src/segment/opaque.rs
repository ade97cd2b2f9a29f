//! Opaque ids: numbers of a tag, encrypted with its key.

use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::sometimes;

use super::issue;
use super::lookup;
use super::slot_cache::SLOT_CACHE;
use crate::deadline::{Deadline, ready_on_standby};
use crate::error::{Failure, OpaqueError, RefillError};
use crate::pg;
use crate::tags::opaque::FoundKey;

/// The next opaque id of a tag.
///
/// # Errors
/// The tag has no key, or its numbers are beyond the key's domain. See also [`Failure`].
pub fn next(tag: &[u8]) -> Result<i64, Failure> {
    let mut key = permutation(tag)?;
    loop {
        let number = next_number(tag, &key.permutation)?;
        if !key.is_ours && !is_cached(&key.permutation) {
            sometimes!("opaque: the cache of keys is cleared while a number comes");
            let current = permutation(tag)?;
            // With another key, the number may be of another row. It becomes a gap.
            if current.permutation != key.permutation {
                key = current;
                continue;
            }
        }
        let id = key.permutation.encode(number);
        return id.ok_or_else(|| end(pg::shown(tag), &key.permutation));
    }
}

/// The next number of a tag with this key.
fn next_number(tag: &[u8], permutation: &Permutation) -> Result<i64, Failure> {
    issue::next_number(tag).map_err(|failure| match failure {
        Failure::Refill {
            tag,
            error: RefillError::NoSuchTag,
            ..
        } => Failure::Opaque(OpaqueError::NoSuchTag { tag }),
        Failure::Refill {
            tag,
            error: RefillError::EndOfTag { max_value, skip: 0 },
            ..
        } if max_value >= permutation.last() => end(tag, permutation),
        failure => failure,
    })
}

/// True unless the cache, which this is from, has been cleared.
fn is_cached(permutation: &Rc<Permutation>) -> bool {
    Rc::strong_count(permutation) > 1 && !pg::relation_changed()
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
    let FoundKey { permutation, .. } = permutation(tag)?;
    lookup::check_rights(&lookup::key(tag)?, &Deadline::new())?;
    map(&permutation, value).ok_or_else(|| {
        Failure::Opaque(OpaqueError::OutOfRange {
            tag: pg::shown(tag),
            value,
            last: permutation.last(),
        })
    })
}

/// The permutation of a tag. Cached, unless the open transaction has created the key and may still
/// roll back.
fn permutation(tag: &[u8]) -> Result<FoundKey, Failure> {
    // Clears the cache if leaf_alloc has been replaced, whose keys belong to another table then, or a
    // key was.
    lookup::relation()?;
    if let Some(permutation) = SLOT_CACHE.with(|cache| cache.permutation(tag)) {
        return Ok(FoundKey {
            permutation,
            is_ours: false,
        });
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
    Ok(found)
}
