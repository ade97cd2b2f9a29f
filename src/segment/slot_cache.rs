//! What a session remembers of the tags it has used.

use std::collections::BTreeMap;
use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::tag_table::TagTable;

use super::take::Wanted;
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
    /// By tag, those whose ids are opaque: as above.
    opaque: TagTable<(u64, Caller)>,
    /// What makes ids of their numbers, by name.
    permutations: BTreeMap<Box<[u8]>, Rc<Permutation>>,
}

/// Permutations that one session remembers: less than a kilobyte each.
const MAX_PERMUTATIONS: usize = 10_000;

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
            opaque: TagTable::new(seeds),
            permutations: BTreeMap::new(),
        }
    }

    /// Where ids of a tag that is everybody's were taken last.
    #[inline(always)]
    pub fn everybodys(&self, tag: &[u8]) -> Option<SlotRef> {
        let (link, version) = self.slots.get(tag)?;
        shmem::area()?.slot_ref(link, version)
    }

    /// Where this was taken last of a tag, if that is everybody's or the caller took it.
    #[inline]
    pub fn find(&self, tag: &[u8], wanted: Wanted) -> Option<SlotRef> {
        match wanted {
            Wanted::Ids => self
                .everybodys(tag)
                .or_else(|| callers(&self.restricted, tag)),
            Wanted::Numbers => callers(&self.opaque, tag),
        }
    }

    /// What makes ids of the numbers of a tag.
    pub fn permutation(&self, tag: &[u8]) -> Option<Rc<Permutation>> {
        self.permutations.get(tag).map(Rc::clone)
    }

    /// Remembers that.
    pub fn remember_permutation(&mut self, tag: &[u8], permutation: &Rc<Permutation>) {
        if self.permutations.len() >= MAX_PERMUTATIONS {
            self.permutations.clear();
        }
        self.permutations.insert(tag.into(), Rc::clone(permutation));
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
            Access::Everybody => remember(&mut self.slots, limit, tag, slot_ref, slot_ref.version),
            Access::Restricted => {
                self.slots.remove(tag.bytes());
                let value = (slot_ref.version, caller);
                remember(&mut self.restricted, limit, tag, slot_ref, value);
            }
            Access::Opaque => {
                let value = (slot_ref.version, caller);
                remember(&mut self.opaque, limit, tag, slot_ref, value);
            }
        }
    }
}

/// Where the caller took of a tag last that is not everybody's.
#[inline(never)]
fn callers(slots: &TagTable<(u64, Caller)>, tag: &[u8]) -> Option<SlotRef> {
    let (link, (version, caller)) = slots.get(tag)?;
    let slot_ref = shmem::area()?.slot_ref(link, version);
    slot_ref.filter(|_| caller == Caller::now())
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
