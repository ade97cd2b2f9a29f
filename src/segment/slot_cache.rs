//! The session's cache of slots and keys.

use std::collections::BTreeMap;
use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::tag_table::TagTable;

use super::take::Wanted;
use crate::pg::{self, Caller};
use crate::shmem::{self, Access, SlotRef, Tag};

/// Max entries per table of a session's cache: about 20 MB of backend memory.
const MAX_CACHED: usize = 250_000;

/// Per-session cache: the oid of `leaf_alloc`, the slots used so far, and keys. Used where a call
/// site is empty, as in every one-row INSERT.
pub struct SlotCache {
    /// Oid of `leaf_alloc`.
    pub relation: u32,
    /// Version per tag issuable by everybody; no check is needed before a take.
    slots: TagTable<u64>,
    /// Version and caller of the last take, per tag restricted to some roles.
    restricted: TagTable<(u64, Caller)>,
    /// Version and caller of the last take, per opaque tag.
    opaque: TagTable<(u64, Caller)>,
    /// Permutation per opaque tag.
    permutations: BTreeMap<Box<[u8]>, Rc<Permutation>>,
}

/// Max cached permutations, less than a kilobyte each.
const MAX_PERMUTATIONS: usize = 10_000;

impl SlotCache {
    /// An empty cache. Raises an error if the system has no random numbers.
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

    /// The slot of a tag issuable by everybody.
    #[inline(always)]
    pub fn everybodys(&self, tag: &[u8]) -> Option<SlotRef> {
        let (link, version) = self.slots.get(tag)?;
        shmem::area()?.slot_ref(link, version)
    }

    /// The slot of any other tag with plain ids, if the last take was by the same caller, who is
    /// returned, too.
    pub fn callers(&self, tag: &[u8]) -> Option<(SlotRef, Caller)> {
        callers(&self.restricted, tag)
    }

    /// The slot of a tag, if the caller may take from it as far as is known.
    #[inline]
    pub fn find(&self, tag: &[u8], wanted: Wanted) -> Option<SlotRef> {
        let slots = match wanted {
            Wanted::Ids => &self.restricted,
            Wanted::Numbers => &self.opaque,
        };
        let everybodys = (wanted == Wanted::Ids).then(|| self.everybodys(tag));
        everybodys
            .flatten()
            .or_else(|| callers(slots, tag).map(|(slot_ref, _)| slot_ref))
    }

    /// The cached permutation of an opaque tag.
    pub fn permutation(&self, tag: &[u8]) -> Option<Rc<Permutation>> {
        self.permutations.get(tag).map(Rc::clone)
    }

    /// Caches the permutation of an opaque tag.
    pub fn remember_permutation(&mut self, tag: &[u8], permutation: &Rc<Permutation>) {
        if self.permutations.len() >= MAX_PERMUTATIONS {
            self.permutations.clear();
        }
        self.permutations.insert(tag.into(), Rc::clone(permutation));
    }

    /// Caches a slot that `caller` may take from; at most `capacity` slots per table.
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
            // Set by the first publication in this version.
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

/// The cached slot of a restricted or opaque tag, if the last take was by the same caller.
#[inline(never)]
fn callers(slots: &TagTable<(u64, Caller)>, tag: &[u8]) -> Option<(SlotRef, Caller)> {
    let (link, (version, caller)) = slots.get(tag)?;
    if caller != Caller::now() {
        return None;
    }
    Some((shmem::area()?.slot_ref(link, version)?, caller))
}

fn remember<V: Copy>(
    slots: &mut TagTable<V>,
    limit: usize,
    tag: &Tag,
    slot_ref: SlotRef,
    value: V,
) {
    let Some(area) = shmem::area() else { return };
    // More entries than slots: most of them are stale.
    if slots.len() >= limit && slots.get(tag.bytes()).is_none() {
        slots.clear();
    }
    slots.insert(tag.bytes(), area.link(slot_ref.slot), value);
}

/// The cache of this session. Not behind a mutex, whose two locked instructions were a fifth of the
/// cost of an id whose tag comes from a column.
pub static SLOT_CACHE: pg::BackendLocal<SlotCache> =
    pg::BackendLocal::new(SlotCache::with_seeds(0, [0; 2]));
