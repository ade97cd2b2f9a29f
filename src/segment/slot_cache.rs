//! The session's cache of slots and keys.

use std::collections::BTreeMap;
use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::tag_table::{Known, TagTable};

use super::take::Wanted;
use crate::pg::{self, Caller};
use crate::shmem::{self, SlotAccess, SlotRef, Tag};

/// Max entries per table of a session's cache: about 20 MB of backend memory.
const MAX_CACHED: usize = 250_000;

/// In place of the number of a caller: all roles may issue ids of the tag.
const PUBLIC: u8 = 0;

/// Per-session cache: the oid of `leaf_alloc`, the slots used so far, and keys. Used where a call
/// site is empty, as in every one-row INSERT.
pub struct SlotCache {
    /// Oid of `leaf_alloc`.
    pub relation: u32,
    /// Tags with plain ids.
    slots: TagTable,
    /// Opaque tags.
    opaque: TagTable,
    /// Callers that are remembered with a tag; number n is at n - 1.
    callers: Vec<Caller>,
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
            opaque: TagTable::new(seeds),
            callers: Vec::new(),
            permutations: BTreeMap::new(),
        }
    }

    /// The slot of a tag with plain ids, if the last take was by this caller, who is returned, or
    /// all roles may take from it. Cannot panic.
    #[inline(always)]
    pub fn find(&self, tag: &[u8]) -> Option<(SlotRef, Option<Caller>)> {
        self.find_in(&self.slots, tag)
    }

    /// The slot of a tag, likewise.
    pub fn slot(&self, tag: &[u8], wanted: Wanted) -> Option<SlotRef> {
        let slots = match wanted {
            Wanted::Ids => &self.slots,
            Wanted::Numbers => &self.opaque,
        };
        Some(self.find_in(slots, tag)?.0)
    }

    #[inline(always)]
    fn find_in(&self, slots: &TagTable, tag: &[u8]) -> Option<(SlotRef, Option<Caller>)> {
        let known = slots.get(tag)?;
        let caller = match known.caller {
            PUBLIC => None,
            number => Some(self.caller_if_now(number)?),
        };
        let slot_ref = shmem::area()?.slot_ref(known.link, known.version)?;
        Some((slot_ref, caller))
    }

    /// The caller with this number, if it is the current one.
    #[inline(always)]
    fn caller_if_now(&self, number: u8) -> Option<Caller> {
        let caller = *self.callers.get(usize::from(number).wrapping_sub(1))?;
        (caller == Caller::now()).then_some(caller)
    }

    /// The number of a caller. If there are too many, all slots are forgotten.
    fn number(&mut self, caller: Caller) -> u8 {
        let known = self.callers.iter().position(|other| *other == caller);
        if known.is_none() && self.callers.len() >= usize::from(u8::MAX) {
            self.callers.clear();
            self.slots.clear();
            self.opaque.clear();
        }
        let place = known.unwrap_or_else(|| {
            self.callers.push(caller);
            self.callers.len() - 1
        });
        place as u8 + 1
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
        access: SlotAccess,
        caller: Caller,
        capacity: usize,
    ) {
        let number = match access {
            // Set by the first publication in this version.
            SlotAccess::Unknown => return,
            SlotAccess::Public => PUBLIC,
            SlotAccess::Restricted | SlotAccess::Opaque => self.number(caller),
        };
        let slots = match access {
            SlotAccess::Opaque => &mut self.opaque,
            _ => &mut self.slots,
        };
        let Some(area) = shmem::area() else { return };
        // More entries than slots: most of them are stale.
        if slots.len() >= capacity.min(MAX_CACHED) && slots.get(tag.bytes()).is_none() {
            slots.clear();
        }
        let known = Known {
            link: area.link(slot_ref.slot),
            version: slot_ref.version,
            caller: number,
        };
        slots.insert(tag.bytes(), known);
    }
}

/// The cache of this session. Not behind a mutex, whose two locked instructions were a fifth of the
/// cost of an id whose tag comes from a column.
pub static SLOT_CACHE: pg::BackendLocal<SlotCache> =
    pg::BackendLocal::new(SlotCache::with_seeds(0, [0; 2]));
