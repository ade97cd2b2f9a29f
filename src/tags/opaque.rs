//! Keys of opaque ids.
//!
//! A key belongs to a name: it permutes the numbers counted by the tag of this name. It is created
//! for a name that has no tag and never had one, and no function changes or deletes it. (Who may do so
//! by hand ends what sessions have cached: see [`key_changed`].) The tag may be dropped and created again, and continues with
//! the same permutation. It cannot be renamed, and its numbers are never issued as ids, since a
//! number may equal the id of another number.

use std::rc::Rc;

use leaf_id_core::opaque::{KEY_BYTES, MIN_VALUES, Permutation};

use super::heap::{self, Look};
use super::mark;
use crate::error::{Failure, OpaqueError};
use crate::pg::{self, Access, Obstacle, Shape, Table, Type, Value};
use crate::shmem::Tag;

/// Shape of `leaf_opaque_key`, as created by sql/schema.sql.
static KEYS: Shape = Shape::new(
    c"leaf_opaque_key",
    &[
        (c"tag", Type::Text),
        (c"last", Type::Bigint),
        (c"key", Type::Bytes),
    ],
    &[
        c"leaf_opaque_key_tag_length",
        c"leaf_opaque_key_last_range",
        c"leaf_opaque_key_length",
    ],
);
const TAG: usize = 1;
const LAST: usize = 2;
const KEY: usize = 3;

type KeyBytes = [u8; KEY_BYTES];

fn open(access: Access) -> Result<Table, Failure> {
    let relation = pg::find_table(&KEYS).ok_or_else(|| Failure::missing(&KEYS))?;
    Table::open(relation, &KEYS, access)?.ok_or_else(|| Failure::missing(&KEYS))
}

/// True if a name has a key.
///
/// # Errors
/// The table of keys was dropped or altered.
pub fn has_key(tag: &Tag) -> Result<bool, Failure> {
    Ok(open(Access::Read)?.get(&heap::key(tag)).is_some())
}

/// True if a name has a key that this transaction has made.
///
/// # Errors
/// As [`has_key`].
pub fn has_key_of_ours(tag: &Tag) -> Result<bool, Failure> {
    let row = open(Access::Read)?.get(&heap::key(tag));
    Ok(row.is_some_and(|row| row.is_ours()))
}

/// True if the caller may set the position of a tag of this name. With a key, that reveals the ids
/// of chosen numbers, so it requires that the name has no key, that this transaction has created
/// it, or that the caller may encode numbers.
///
/// # Errors
/// As [`has_key`].
pub fn caller_may_renumber(tag: &Tag) -> Result<bool, Failure> {
    if !has_key(tag)? || has_key_of_ours(tag)? {
        return Ok(true);
    }
    let arguments = [Type::Text.oid(), Type::Bigint.oid()];
    let right = pg::find_function(pg::SCHEMA, c"leaf_opaque_encode", &arguments);
    Ok(right.is_some_and(|function| pg::caller_may_execute(function.oid)))
}

/// Creates the key of a name for the numbers 1 to `last`: a random one, or another server's in
/// hexadecimal.
///
/// # Errors
/// The name has a key or had a tag, `last` is too small, or `key` is not valid.
pub fn create(tag: &Tag, last: i64, key: Option<&[u8]>) -> Result<(), Failure> {
    let name = || tag.name();
    if !(MIN_VALUES..i64::MAX).contains(&last) {
        return Err(Failure::Opaque(OpaqueError::Domain { tag: name(), last }));
    }
    let key = match key {
        Some(hex) => from_hex(hex).ok_or(Failure::Opaque(OpaqueError::NoKeyText))?,
        None => random_key(),
    };
    let keys = open(Access::Write)?;
    if keys.get(&heap::key(tag)).is_some() {
        return Err(Failure::Opaque(OpaqueError::KeyExists { tag: name() }));
    }
    let mark = mark::lock(tag)?;
    let tags = heap::open(heap::relation()?, Access::Read)?
        .ok_or_else(|| Failure::missing(&heap::ALLOC))?;
    // Or it had one, and was not forgotten.
    if tags.get(&heap::key(tag)).is_some() || mark.high() > 0 {
        return Err(Failure::Opaque(OpaqueError::KeyTooLate { tag: name() }));
    }
    keys.insert(&[
        (TAG, heap::key(tag)),
        (LAST, Value::Bigint(last)),
        (KEY, Value::Bytes(&key)),
    ]);
    // A tag of this name that is created concurrently inserts the same mark: one of the two waits and
    // fails, or both wait, and the deadlock is detected.
    mark.raise(heap::key(tag), 1);
    Ok(())
}

/// The key of a name in hexadecimal.
///
/// # Errors
/// The name has no key.
pub fn hex(tag: &Tag) -> Result<String, Failure> {
    let table = open(Access::Read)?;
    let row = table.get(&heap::key(tag));
    let key = row.as_ref().and_then(key);
    let key = key.ok_or_else(|| Failure::Opaque(OpaqueError::NoKey { tag: tag.name() }))?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A key was changed, or deleted: sessions that have cached it, with the slots of tags, forget it.
pub fn key_changed() {
    // Without tags, no session has cached a key.
    if let Ok(relation) = heap::relation() {
        pg::touch_relation(relation);
    }
}

/// The permutation of a name.
pub struct FoundKey {
    /// The permutation.
    pub permutation: Rc<Permutation>,
    /// Written by the open transaction, which may roll back.
    pub is_ours: bool,
}

/// Looks a key up. No privilege is needed, and no lock is waited for.
///
/// # Errors
/// The table of keys is gone or was altered.
pub fn find(tag: &Tag) -> Result<Look<FoundKey>, Failure> {
    let relation = pg::find_table(&KEYS).ok_or_else(|| Failure::missing(&KEYS))?;
    let table = match Table::open_at_once(relation, &KEYS) {
        Ok(Some(table)) => table,
        Ok(None) => return Err(Failure::missing(&KEYS)),
        Err(Obstacle::Locked) => return Ok(Look::Locked),
        Err(Obstacle::Misshapen(misshapen)) => return Err(misshapen.into()),
    };
    let found = table.get(&heap::key(tag)).and_then(|row| {
        let permutation = Permutation::new(&key(&row)?, row.bigint(LAST)?)?;
        Some(FoundKey {
            permutation: Rc::new(permutation),
            is_ours: row.is_ours(),
        })
    });
    Ok(found.map_or(Look::Nothing, Look::Row))
}

fn key(row: &pg::Row) -> Option<KeyBytes> {
    row.bytes(KEY)?.try_into().ok()
}

fn from_hex(hex: &[u8]) -> Option<KeyBytes> {
    let mut key = KeyBytes::default();
    if !hex.is_ascii() || hex.len() != 2 * KEY_BYTES {
        return None;
    }
    let hex = str::from_utf8(hex).ok()?;
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(key)
}

fn random_key() -> KeyBytes {
    let mut key = KeyBytes::default();
    for part in key.chunks_mut(size_of::<u64>()) {
        part.copy_from_slice(&pg::strong_random().to_ne_bytes());
    }
    key
}
