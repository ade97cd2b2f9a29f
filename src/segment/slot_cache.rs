//! What a session remembers of the tags it has used.

use std::collections::BTreeMap;
use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::tag_table::TagTable;

use crate::pg::{self, Caller};
use crate::shmem::{self, Access, SlotRef, Tag};

/// Tags that one session remembers the slots of, everybody's and others each: some 20 MB, in
/// the memory of its own.
const MAX_CACHED: usize = 250_000;

/// What a session knows of its database: where `leaf_alloc` is, and the slots it has used.
/// A one-row INSERT starts with an empty call site each time; this stands behind it.
pub struct SlotCache {
    /// Oid of `leaf_alloc`.
    pub relation: u32,
    /// By tag, those that are everybody's, with the version: nothing is asked before ids are
    /// taken.
    slots: TagTable<u64>,
    /// By tag, the others that were taken from, with the version, and who took.
    restricted: TagTable<(u64, Caller)>,
    /// By tag, those with opaque ids.
    opaque: BTreeMap<Box<[u8]>, OpaqueSlot>,
}

/// Opaque tags that one session remembers the slots of: less than a kilobyte each.
const MAX_OPAQUE: usize = 10_000;

/// Where a caller took numbers of an opaque tag, and what makes ids of them.
struct OpaqueSlot {
    link: u32,
    version: u64,
    caller: Caller,
    permutation: Rc<Permutation>,
}

/// Where ids are taken, and how what is taken becomes ids.
pub struct Source {
    /// The slot.
    pub slot_ref: SlotRef,
    /// `None`: it is ids already.
    pub permutation: Option<Rc<Permutation>>,
}

impl SlotCache {
    /// What is known of a database: nothing but where `leaf_alloc` is. Raises an error where
    /// the system has no random numbers.
    pub fn of(relation: u32) -> Self {
        let seeds = [pg::strong_random(), pg::strong_random()];
        Self::with_seeds(relation, seeds)
    }

    const fn with_seeds(relation: u32, seeds: [u64; 2]) -> Self {
        Self {
            relation,
            slots: TagTable::new(seeds),
            restricted: TagTable::new(seeds),
            opaque: BTreeMap::new(),
        }
    }

    /// Where ids of a tag that is everybody's were taken last.
    #[inline(always)]
    pub fn everybodys(&self, tag: &[u8]) -> Option<SlotRef> {
        let (link, version) = self.slots.get(tag)?;
        shmem::area()?.slot_ref(link, version)
    }

    /// Where ids of a tag were taken last, if that is everybody's or the caller took them.
    #[inline]
    pub fn find(&self, tag: &[u8]) -> Option<Source> {
        let plain = self.everybodys(tag).or_else(|| self.callers(tag));
        match plain {
            Some(slot_ref) => Some(Source {
                slot_ref,
                permutation: None,
            }),
            None => self.opaque(tag),
        }
    }

    #[inline(never)]
    fn opaque(&self, tag: &[u8]) -> Option<Source> {
        let slot = self.opaque.get(tag)?;
        let slot_ref = shmem::area()?.slot_ref(slot.link, slot.version);
        let slot_ref = slot_ref.filter(|_| slot.caller == Caller::now())?;
        Some(Source {
            slot_ref,
            permutation: Some(Rc::clone(&slot.permutation)),
        })
    }

    /// Remembers the slot of an opaque tag that a caller may take from.
    pub fn remember_opaque(
        &mut self,
        tag: &Tag,
        slot_ref: SlotRef,
        permutation: &Rc<Permutation>,
        caller: Caller,
    ) {
        let Some(area) = shmem::area() else { return };
        self.forget(tag);
        if self.opaque.len() >= MAX_OPAQUE {
            self.opaque.clear();
        }
        let slot = OpaqueSlot {
            link: area.link(slot_ref.slot),
            version: slot_ref.version,
            caller,
            permutation: Rc::clone(permutation),
        };
        self.opaque.insert(tag.bytes().into(), slot);
    }

    /// Forgets what was remembered of a tag that was plain or opaque before.
    fn forget(&mut self, tag: &Tag) {
        self.slots.remove(tag.bytes());
        self.restricted.remove(tag.bytes());
        self.opaque.remove(tag.bytes());
    }

    /// Where the caller took ids of a tag last that is not everybody's.
    #[inline(never)]
    fn callers(&self, tag: &[u8]) -> Option<SlotRef> {
        let (link, (version, caller)) = self.restricted.get(tag)?;
        let slot_ref = shmem::area()?.slot_ref(link, version);
        slot_ref.filter(|_| caller == Caller::now())
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
            // It is known with the first segment of this version; what goes with opaque ids, to
            // `remember_opaque`.
            Access::Unknown | Access::Opaque => {}
            Access::Everybody => remember(&mut self.slots, limit, tag, slot_ref, slot_ref.version),
            Access::Restricted => {
                self.slots.remove(tag.bytes());
                let value = (slot_ref.version, caller);
                remember(&mut self.restricted, limit, tag, slot_ref, value);
            }
        }
    }
}

fn remember<V: Copy>(
    slots: &mut TagTable<V>,
    limit: usize,
    tag: &Tag,
    slot_ref: SlotRef,
    value: V,
) {
    let Some(area) = shmem::area() else { return };
    // More than there are slots: most of them are of slots that were given away.
    if slots.len() >= limit && slots.get(tag.bytes()).is_none() {
        slots.clear();
    }
    slots.insert(tag.bytes(), area.link(slot_ref.slot), value);
}

/// This session's. Not behind a mutex: its two locked instructions were a fifth of what an id
/// costs whose tag comes from a column.
pub static SLOT_CACHE: pg::BackendLocal<SlotCache> =
    pg::BackendLocal::new(SlotCache::with_seeds(0, [0; 2]));
