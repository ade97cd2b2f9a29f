//! What a session remembers of the tags it has used.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::pg::{self, Caller};
use crate::shmem::{Access, SlotRef, Tag};

/// Tags that one session remembers the slots of, everybody's and others each: some 16 MB, in
/// the memory of its own.
const MAX_CACHED: usize = 250_000;

/// What a session knows of its database: where `leaf_alloc` is, and the slots it has used.
/// A one-row INSERT starts with an empty call site each time; this stands behind it.
#[derive(Default)]
pub struct SlotCache {
    /// Oid of `leaf_alloc`.
    pub relation: u32,
    /// By tag, those that are everybody's: nothing is asked before ids are taken.
    slots: ByTag<SlotRef>,
    /// By tag, the others that were taken from, and who took.
    restricted: ByTag<(SlotRef, Caller)>,
}

impl SlotCache {
    /// What is known of a database: nothing but where `leaf_alloc` is.
    pub fn of(relation: u32) -> Self {
        Self {
            relation,
            ..Self::default()
        }
    }

    /// Where ids of a tag that is everybody's were taken last.
    #[inline]
    pub fn everybodys(&self, tag: &[u8]) -> Option<SlotRef> {
        self.slots.get(tag).copied()
    }

    /// Where ids of a tag were taken last, if that is everybody's or the caller took them.
    #[inline]
    pub fn find(&self, tag: &[u8]) -> Option<SlotRef> {
        self.everybodys(tag).or_else(|| self.callers(tag))
    }

    /// Where the caller took ids of a tag last that is not everybody's.
    #[inline(never)]
    fn callers(&self, tag: &[u8]) -> Option<SlotRef> {
        let (slot_ref, caller) = self.restricted.get(tag)?;
        (*caller == Caller::now()).then_some(*slot_ref)
    }

    /// Remembers the slot that a caller may take from, of at most so many tags.
    pub fn remember(
        &mut self,
        tag: &Tag,
        slot_ref: SlotRef,
        access: Access,
        caller: Caller,
        capacity: usize,
    ) {
        let limit = capacity.min(MAX_CACHED);
        match access {
            // It is known with the first segment of this version.
            Access::Unknown => {}
            Access::Everybody => remember(&mut self.slots, limit, tag, slot_ref),
            Access::Restricted => {
                self.slots.remove(tag.bytes());
                remember(&mut self.restricted, limit, tag, (slot_ref, caller));
            }
        }
    }
}

fn remember<T>(slots: &mut ByTag<T>, limit: usize, tag: &Tag, slot_ref: T) {
    // More than there are slots: most of them are of slots that were given away.
    if slots.len() >= limit && !slots.contains_key(tag.bytes()) {
        slots.clear();
    }
    slots.insert(TagBytes::new(tag.bytes()), slot_ref);
}

/// What is remembered of tags.
type ByTag<T> = HashMap<TagBytes, T, BuildHasherDefault<TagHasher>>;

/// A tag's bytes, in as little memory as most tags need: a session that uses a hundred
/// thousand of them finds each through one cache line less.
#[derive(PartialEq, Eq)]
enum TagBytes {
    /// Most of them.
    Short { len: u8, bytes: [u8; 22] },
    /// The others.
    Long(Box<[u8]>),
}

impl TagBytes {
    fn new(tag: &[u8]) -> Self {
        let mut bytes = [0; 22];
        match (u8::try_from(tag.len()), bytes.get_mut(..tag.len())) {
            (Ok(len), Some(room)) => {
                room.copy_from_slice(tag);
                Self::Short { len, bytes }
            }
            _ => Self::Long(tag.into()),
        }
    }
}

impl Borrow<[u8]> for TagBytes {
    #[inline]
    fn borrow(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl Hash for TagBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bytes: &[u8] = self.borrow();
        bytes.hash(state);
    }
}

/// PostgreSQL's own hash of bytes: half the cost of the standard one, which withstands
/// names that are made to collide. These are names that the owner of `leaf_alloc` gave.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = pg::hash(bytes);
    }

    /// The length of the slice, which the hash of its bytes covers.
    #[inline]
    fn write_usize(&mut self, _len: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// This session's. Not behind a mutex: its two locked instructions were a fifth of what an id
/// costs whose tag comes from a column.
pub static SLOT_CACHE: pg::BackendLocal<SlotCache> = pg::BackendLocal::new(SlotCache {
    relation: 0,
    slots: HashMap::with_hasher(BuildHasherDefault::new()),
    restricted: HashMap::with_hasher(BuildHasherDefault::new()),
});
