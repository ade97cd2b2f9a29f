//! Opaque tags: what their rows say, and their keys.
//!
//! A row of `leaf_alloc` names its key by a number, and has the domain that is permuted. The key
//! itself is in a table of its own, which managers of tags cannot read. Both are final: a number
//! stands for one key for ever, and a domain only grows. So nothing that a session remembers of
//! them can be wrong, and a row can never meet a key that is not its own: one that was restored
//! without its key issues nothing (55000), and none is made for it.
//!
//! | statement | what becomes of the key |
//! | --- | --- |
//! | INSERT of a row with number 0 | the row gets a number, and its key is written with it |
//! | INSERT with another number | the key of that number is the row's, if there is one; one that was deleted in this transaction comes back: `leaf_tag_reset` |
//! | UPDATE | it stays, under another name of the tag too |
//! | DELETE, TRUNCATE | it is deleted |

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use leaf_id_core::opaque::{Domain, KEY_BYTES, NoDomain, Permutation};

use super::heap::AllocRow;
use crate::error::{Failure, TagError};
use crate::pg::{self, Access, BackendLocal, Obstacle, Shape, Table, Type, Value};
use crate::shmem::Tag;

/// `leaf_opaque_key` as sql/schema.sql makes it.
static KEYS: Shape = Shape::new(
    c"leaf_opaque_key",
    &[(c"id", Type::Bigint), (c"key", Type::Bytes)],
    &[c"leaf_opaque_key_length"],
);
const ID: usize = 1;
const KEY: usize = 2;

/// A key's number is to be found for a row that is inserted with this one.
const NEW: i64 = 0;
/// Permutations that a session remembers.
const MAX_REMEMBERED: usize = 1_000;

/// What a row says of its opaque ids.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opaque {
    /// The number of its key.
    pub key: i64,
    /// What is permuted.
    pub domain: Domain,
}

impl AllocRow {
    /// `None` if its ids are not opaque.
    ///
    /// # Errors
    /// They are, and it does not say a domain: nothing that the triggers let through.
    pub fn opaque(&self) -> Result<Option<Opaque>, TagError> {
        let Some(key) = self.opaque_key else {
            return Ok(None);
        };
        match Domain::of(&self.opaque_bounds) {
            Ok(domain) => Ok(Some(Opaque { key, domain })),
            Err(_) => Err(TagError::NoKey),
        }
    }
}

type Key = [u8; KEY_BYTES];

/// What another server is handed with the numbers of an opaque tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// What its row says.
    pub opaque: Opaque,
    /// Its key.
    pub key: Key,
}

impl Handed {
    /// The key as it is sent, whatever `bytea_output` says.
    pub fn hex(&self) -> String {
        self.key.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A key as it was sent.
pub fn key_of_hex(hex: &str) -> Option<Key> {
    let mut key = Key::default();
    if !hex.is_ascii() || hex.len() != 2 * KEY_BYTES {
        return None;
    }
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(key)
}

/// What is to be handed to another server.
///
/// # Errors
/// The caller may not have the key, or there is none.
pub fn hand_over(tag: &Tag, opaque: &Opaque) -> Result<Handed, Failure> {
    let right = pg::find_function(pg::SCHEMA, c"leaf_key_of", &[Type::Text.oid()]);
    if !right.is_some_and(|function| pg::caller_may_execute(function.oid)) {
        return Err(Failure::KeyForbidden { tag: tag.name() });
    }
    let row = open(Access::Read)?.get(&Value::Bigint(opaque.key));
    let key = row.as_ref().and_then(key);
    let key = key.ok_or_else(|| Failure::tag(tag.name(), TagError::NoKey))?;
    let opaque = *opaque;
    Ok(Handed { opaque, key })
}

/// Writes what another server has handed over. `before` was handed over earlier.
///
/// # Errors
/// As [`settle`].
pub fn take_over(handed: &Handed, before: Option<i64>) -> Result<(), Failure> {
    if let Some(before) = before.filter(|before| *before != handed.opaque.key) {
        remove(before)?;
    }
    write(handed.opaque.key, &handed.key)
}

/// A key that this transaction may write, and the domain of its row.
struct Kept {
    key: Key,
    domain: Domain,
}

/// Those that were made for rows that are about to be inserted, and those of rows that were
/// deleted, by number. Outlives subtransactions.
static KEPT: BackendLocal<Option<HashMap<i64, Kept>>> = BackendLocal::new(None);

fn keep(number: i64, kept: Kept) {
    KEPT.with_mut(|all| all.get_or_insert_default().insert(number, kept));
}

/// The transaction has ended.
pub fn forget_kept() {
    KEPT.with_mut(|all| *all = None);
}

/// What a row is written with: the number of its key, and its domain. A tag that another server is
/// the source of has neither from here: both come with its first ids.
#[derive(Clone, Copy)]
pub struct Columns {
    /// See [`Opaque::key`]; `None` if its ids are not opaque.
    pub key: Option<i64>,
    domain: Option<Domain>,
}

impl Columns {
    /// Those of a row whose ids are not opaque.
    const NONE: Self = Self {
        key: None,
        domain: None,
    };

    /// The last id that they allow; `None` where that is not known.
    pub fn last(&self) -> Option<i64> {
        self.domain.as_ref().map(Domain::last)
    }

    /// Column `opaque_bounds`; `None` with the key.
    pub fn bounds(&self) -> Option<&[i64]> {
        self.key?;
        Some(self.domain.as_ref().map_or(&[], Domain::bounds))
    }
}

impl From<Opaque> for Columns {
    fn from(Opaque { key, domain }: Opaque) -> Self {
        Self {
            key: Some(key),
            domain: Some(domain),
        }
    }
}

/// What a row is to be written with that is inserted; `None` where that is as it is.
///
/// # Errors
/// Its ids cannot be opaque as it says.
pub fn inserted(new: &AllocRow, replica: bool) -> Result<Option<Columns>, Failure> {
    let Some(number) = new.opaque_key else {
        return Ok(None);
    };
    let tag = || new.tag.unwrap_or(Tag::EMPTY).name();
    // What is replicated is as it was there, and of a sourced tag the truth is there.
    if number != NEW && (replica || new.server.is_some()) {
        return Ok(None);
    }
    // NULL is for the table's constraints to refuse.
    let (Some(next), Some(max_value)) = (new.max_id, new.max_value) else {
        return Ok(None);
    };
    if number == NEW {
        let (number, key) = random_key();
        if new.server.is_some() {
            return Ok(Some(Columns {
                key: Some(number),
                domain: None,
            }));
        }
        let domain = Domain::new(next, max_value).map_err(|_| Failure::OpaqueTooFew {
            tag: tag(),
            first: next,
            last: max_value,
        })?;
        keep(number, Kept { key, domain });
        let key = number;
        return Ok(Some(Opaque { key, domain }.into()));
    }
    let domain = Domain::of(&new.opaque_bounds).map_err(|_| Failure::OpaqueFinal { tag: tag() })?;
    let was = KEPT.with(|all| all.as_ref()?.get(&number).map(|kept| kept.domain));
    if was.is_some_and(|was| was != domain) {
        return Err(Failure::OpaqueFinal { tag: tag() });
    }
    // One that comes back from a dump may have been raised beyond its end, and only has no ids.
    let comes_back = new.incarnation != 0;
    let (first, last) = (domain.first(), domain.last());
    if next < first || next > last + 1 && !comes_back {
        return Err(Failure::OpaqueStart {
            tag: tag(),
            next,
            first,
            last,
        });
    }
    let domain = extended(tag, domain, max_value)?;
    let key = number;
    Ok(Some(Opaque { key, domain }.into()))
}

/// The same of a row that is updated.
///
/// # Errors
/// What is final would change, or `max_value` goes where it cannot.
pub fn updated(old: &AllocRow, new: &AllocRow, replica: bool) -> Result<Option<Columns>, Failure> {
    let tag = || old.tag.unwrap_or(Tag::EMPTY).name();
    let same = (old.opaque_key, &old.opaque_bounds) == (new.opaque_key, &new.opaque_bounds)
        && (old.opaque_key.is_none() || old.server.is_some() == new.server.is_some());
    if !same && !replica {
        return Err(Failure::OpaqueFinal { tag: tag() });
    }
    if old.opaque_key.is_none() {
        // Its numbers were ids already, whatever they are where it is replicated from.
        return Ok((!same).then_some(Columns::NONE));
    }
    let (Ok(Some(opaque)), Some(max_value)) = (old.opaque(), new.max_value) else {
        return Ok(None);
    };
    if old.server.is_some() {
        return Ok(Some(opaque.into()));
    }
    if let Some(domain) = arriving(opaque, new) {
        return Ok(Some(Opaque { domain, ..opaque }.into()));
    }
    if replica {
        return Ok(Some(opaque.into()));
    }
    let domain = extended(tag, opaque.domain, max_value)?;
    Ok(Some(Opaque { domain, ..opaque }.into()))
}

/// The domain of a replicated row with the same key, if it is the one that is here with more behind
/// it: how a domain was extended step by step is a part of what the ids are.
pub fn arriving(here: Opaque, new: &AllocRow) -> Option<Domain> {
    let domain = Domain::of(&new.opaque_bounds).ok()?;
    let longer = new.opaque_bounds.len() > here.domain.bounds().len()
        && domain.bounds().starts_with(here.domain.bounds());
    (new.opaque_key == Some(here.key) && longer).then_some(domain)
}

/// A domain that ends where `max_value` does.
fn extended(tag: impl Fn() -> String, domain: Domain, max_value: i64) -> Result<Domain, Failure> {
    let last = domain.last();
    if max_value == last {
        return Ok(domain);
    }
    if max_value < last {
        return Err(Failure::OpaqueLowered {
            tag: tag(),
            from: last,
            to: max_value,
        });
    }
    domain.extended(max_value).map_err(|problem| match problem {
        NoDomain::TooSmall => Failure::OpaqueRaisedLittle {
            tag: tag(),
            from: last,
            to: max_value,
        },
        NoDomain::TooManyRanges => Failure::OpaqueRaisedOften { tag: tag() },
    })
}

/// Writes or deletes the key of a row that was inserted or deleted.
///
/// # Errors
/// The table of keys is gone or was altered. The row has the key of one that the same statement has
/// deleted, and another domain.
pub fn settle(old: Option<&AllocRow>, new: Option<&AllocRow>) -> Result<(), Failure> {
    let number = |row: &AllocRow| row.opaque_key;
    match (old, new, old.or(new).and_then(number)) {
        (None, Some(row), Some(number)) => {
            let kept = KEPT.with(|all| {
                let Kept { key, domain } = all.as_ref()?.get(&number)?;
                Some((*key, *domain))
            });
            let Some((key, domain)) = kept else {
                return Ok(());
            };
            if !row.opaque_bounds.starts_with(domain.bounds()) {
                let tag = row.tag.unwrap_or(Tag::EMPTY).name();
                return Err(Failure::OpaqueFinal { tag });
            }
            write(number, &key)
        }
        (Some(row), None, Some(number)) => {
            if let Some(key) = remove(number)?
                && let Ok(Some(Opaque { domain, .. })) = row.opaque()
            {
                keep(number, Kept { key, domain });
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Deletes all keys.
///
/// # Errors
/// As [`settle`].
pub fn remove_all() -> Result<(), Failure> {
    let table = open(Access::Write)?;
    for row in table.rows() {
        table.delete(&row);
    }
    Ok(())
}

fn open(access: Access) -> Result<Table, Failure> {
    let relation = pg::find_table(&KEYS).ok_or(Failure::NoKeyTable)?;
    Table::open(relation, &KEYS, access)?.ok_or(Failure::NoKeyTable)
}

fn write(number: i64, key: &Key) -> Result<(), Failure> {
    // The same statement may have deleted it.
    pg::see_own_changes();
    let table = open(Access::Write)?;
    if table.get(&Value::Bigint(number)).is_none() {
        table.insert(&[(ID, Value::Bigint(number)), (KEY, Value::Bytes(key))]);
    }
    Ok(())
}

fn remove(number: i64) -> Result<Option<Key>, Failure> {
    let table = open(Access::Write)?;
    let Some(row) = table.lock(&Value::Bigint(number)) else {
        return Ok(None);
    };
    table.delete(&row);
    Ok(key(&row))
}

fn key(row: &pg::Row) -> Option<Key> {
    row.bytes(KEY)?.try_into().ok()
}

/// Whether there is a key of this number, as the allocator has to know before it claims.
///
/// # Errors
/// As [`settle`].
pub fn has_key(number: i64) -> Result<bool, Failure> {
    let row = open(Access::Read)?.get(&Value::Bigint(number));
    Ok(row.as_ref().and_then(key).is_some())
}

/// The number of a key that is yet to come from another server.
pub fn random_number() -> i64 {
    random_key().0
}

/// A key, and a number that no other has.
fn random_key() -> (i64, Key) {
    let mut key = Key::default();
    for part in key.chunks_mut(size_of::<u64>()) {
        part.copy_from_slice(&pg::strong_random().to_ne_bytes());
    }
    // Positive, and never NEW.
    ((pg::strong_random() >> 1 | 1).cast_signed(), key)
}

/// Permutations by the numbers of their keys, with their domains.
type Remembered = BTreeMap<i64, (Domain, Rc<Permutation>)>;

/// Those of this session. The key of a number is always the same one.
static REMEMBERED: BackendLocal<Remembered> = BackendLocal::new(Remembered::new());

/// The table of keys is locked by somebody else.
pub struct KeysLocked;

/// What a row's numbers are permuted with. No privilege is needed, and no lock is waited for.
///
/// # Errors
/// [`KeysLocked`]; inside, that there is no key.
pub fn permutation(opaque: &Opaque) -> Result<Result<Rc<Permutation>, TagError>, KeysLocked> {
    let known = REMEMBERED.with(|all| {
        let (domain, permutation) = all.get(&opaque.key)?;
        (*domain == opaque.domain).then(|| Rc::clone(permutation))
    });
    if let Some(permutation) = known {
        return Ok(Ok(permutation));
    }
    let opened = pg::find_table(&KEYS).map(|relation| Table::open_at_once(relation, &KEYS));
    let row = match opened {
        Some(Err(Obstacle::Locked)) => return Err(KeysLocked),
        Some(Ok(Some(table))) => table
            .get(&Value::Bigint(opaque.key))
            .and_then(|row| key(&row)),
        Some(Ok(None) | Err(Obstacle::Misshapen(_))) | None => None,
    };
    let Some(key) = row else {
        return Ok(Err(TagError::NoKey));
    };
    let permutation = Rc::new(Permutation::new(&key, &opaque.domain));
    REMEMBERED.with_mut(|all| {
        if all.len() >= MAX_REMEMBERED {
            all.clear();
        }
        all.insert(opaque.key, (opaque.domain, Rc::clone(&permutation)));
    });
    Ok(Ok(permutation))
}
