//! Per-session hash table of tags and their slots, optimized for successful lookups.
//!
//! With many tags, a lookup costs its cache misses, especially dependent ones. So the table is two
//! arrays in which a tag has the same position:
//!
//! | array | contents | purpose |
//! | --- | --- | --- |
//! | buckets: a cache line for eight tags | per tag: mark (8 bits of the hash), length, caller, link | find candidates |
//! | entries: half a cache line each | the tag's bytes, the version | confirm the match |
//!
//! The buckets of a hundred thousand tags take about 1 MB. With the link from the bucket, the
//! processor prefetches its target while it still waits for the entry that confirms the match.
//!
//! A tag is in one of [`WINDOW`] consecutive buckets, starting at the one selected by its hash. If
//! all are full, the table grows; if the table is mostly empty, one of their tags is evicted
//! instead. So colliding tags cause neither long searches nor unbounded memory. The hash is seeded
//! to make deliberate collisions a matter of luck.
//!
//! An entry stores up to [`INLINE`] bytes of a tag as the words that are hashed. The words overlap
//! if the length is not a multiple of theirs, but together with the length they are unique.

/// Tags per bucket: one for each byte of a word.
const WAYS: usize = 8;
/// Buckets that may contain a given tag.
const WINDOW: usize = 8;
/// Max bytes of a tag stored in its entry.
const INLINE: usize = 24;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    marks: [u8; WAYS],
    /// 0 if unused.
    lens: [u8; WAYS],
    links: [u32; WAYS],
    callers: [u8; WAYS],
    /// A tag was stored in a later bucket because this one was full.
    passed: bool,
}

impl Bucket {
    const EMPTY: Self = Self {
        marks: [0; WAYS],
        lens: [0; WAYS],
        links: [0; WAYS],
        callers: [0; WAYS],
        passed: false,
    };

    /// The ways with this mark and length.
    #[inline(always)]
    fn having(&self, mark: u8, len: u8) -> Ways {
        let differing = |bytes: [u8; WAYS], byte: u8| u64::from_le_bytes(bytes) ^ every(byte);
        Ways::zero(differing(self.marks, mark) | differing(self.lens, len))
    }

    /// The unused ways.
    fn free(&self) -> Ways {
        Ways::zero(u64::from_le_bytes(self.lens))
    }
}

/// A word of eight equal bytes.
#[inline(always)]
fn every(byte: u8) -> u64 {
    u64::from(byte) * (u64::MAX / 0xFF)
}

/// A set of ways: the top bit of the corresponding byte.
struct Ways(u64);

impl Ways {
    /// The zero bytes of a word.
    #[inline(always)]
    fn zero(word: u64) -> Self {
        // The addition carries into a byte's top bit if any other bit of it is set.
        let low = every(0x7F);
        Self(!(((word & low) + low) | word | low))
    }
}

impl Iterator for Ways {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let way = self.0.trailing_zeros() / 8;
        self.0 &= self.0 - 1;
        Some(way as usize)
    }
}

/// Aligned to never span two cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Entry {
    /// The tag's words; for a longer tag, its number in `long`.
    words: [u64; 3],
    version: u64,
}

const _: () = assert!(size_of::<Bucket>() == 64 && size_of::<Entry>() == 32);

/// What is known of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Link of its slot.
    pub link: u32,
    /// Version of the slot.
    pub version: u64,
    /// Number of the caller who may take from it.
    pub caller: u8,
}

/// A tag prepared for lookup.
struct Key<'a> {
    tag: &'a [u8],
    len: u8,
    words: [u64; 3],
    hash: u64,
}

impl<'a> Key<'a> {
    /// `None` if the tag is empty or longer than 255 bytes.
    #[inline(always)]
    fn new(tag: &'a [u8], seeds: [u64; 2]) -> Option<Self> {
        let len = u8::try_from(tag.len()).ok()?;
        let words = words(tag)?;
        let hash = if tag.len() > INLINE {
            hash_long(tag, seeds)?
        } else {
            hash(words, len, seeds)
        };
        Some(Self {
            tag,
            len,
            words,
            hash,
        })
    }
}

/// The words of a tag of up to [`INLINE`] bytes; of a longer tag, only some.
#[inline(always)]
fn words(tag: &[u8]) -> Option<[u64; 3]> {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    if let (Some(first), Some(last)) = (tag.first_chunk(), tag.last_chunk()) {
        let middle = tag.get(8..16).and_then(|rest| rest.first_chunk());
        return Some([word(first), word(last), middle.map_or(0, word)]);
    }
    if let (Some(first), Some(last)) = (tag.first_chunk(), tag.last_chunk()) {
        return Some([half(first), half(last), 0]);
    }
    let (first, middle, last) = (tag.first()?, tag.get(tag.len() / 2)?, tag.last()?);
    Some([first, last, middle].map(|byte| u64::from(*byte)))
}

#[inline(always)]
fn hash(words: [u64; 3], len: u8, seeds: [u64; 2]) -> u64 {
    let [first, last, middle] = words;
    let hash = fold(first ^ seeds[0], last ^ seeds[1]);
    fold(hash ^ middle, seeds[1] ^ u64::from(len))
}

#[cold]
#[inline(never)]
fn hash_long(tag: &[u8], seeds: [u64; 2]) -> Option<u64> {
    tag.chunks(INLINE).try_fold(seeds[0], |seed, chunk| {
        let len = u8::try_from(chunk.len()).ok()?;
        Some(hash(words(chunk)?, len, [seed, seeds[1]]))
    })
}

/// Xor of both halves of the product.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Map from tags to what is known of them. Empty tags and tags longer than 255 bytes are ignored.
pub struct TagTable {
    seeds: [u64; 2],
    buckets: Vec<Bucket>,
    /// [`WAYS`] per bucket; arbitrary contents if unused.
    entries: Vec<Entry>,
    /// Tags longer than [`INLINE`] bytes, by number.
    long: Vec<Box<[u8]>>,
    /// Unused numbers in `long`.
    free: Vec<u64>,
    len: usize,
}

/// Result of a lookup.
struct Found {
    position: usize,
    known: Known,
}

impl TagTable {
    /// An empty table. The seeds must be secret, or tags can be chosen to collide.
    #[must_use]
    pub const fn new(seeds: [u64; 2]) -> Self {
        Self {
            seeds,
            buckets: Vec::new(),
            entries: Vec::new(),
            long: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    /// Number of tags.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no tags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is known of a tag. Cannot panic.
    #[inline(always)]
    pub fn get(&self, tag: &[u8]) -> Option<Known> {
        let found = match self.find_short(tag) {
            Some(found) => found,
            None => self.find(tag)?,
        };
        Some(found.known)
    }

    /// Inserts a tag, or replaces what is known of it.
    pub fn insert(&mut self, tag: &[u8], known: Known) {
        self.remove(tag);
        let Some(key) = Key::new(tag, self.seeds) else {
            return;
        };
        let entry = Entry {
            words: self.words_to_keep(&key),
            version: known.version,
        };
        // With a good hash, a window fills up only above 70 % usage.
        if self.is_full(key.hash) && self.len * 2 >= self.entries.len() {
            self.grow(entry);
        }
        self.put(key.hash, key.len, known.link, known.caller, entry);
    }

    /// Removes a tag.
    pub fn remove(&mut self, tag: &[u8]) {
        if let Some(found) = self.find(tag) {
            self.forget(found.position);
        }
    }

    /// Removes all tags.
    pub fn clear(&mut self) {
        *self = Self::new(self.seeds);
    }

    /// First bucket of a tag's window, from hash bits that are not part of the mark.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The buckets of a window.
    fn window(&self, home: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.buckets.len();
        let wrap = move |number| {
            if number < count {
                number
            } else {
                number - count
            }
        };
        (home..home + WINDOW).map(wrap)
    }

    /// Fast path for most tags: stored inline, in the first bucket.
    #[inline(always)]
    fn find_short(&self, tag: &[u8]) -> Option<Found> {
        if tag.len() > INLINE {
            return None;
        }
        let key = Key::new(tag, self.seeds)?;
        self.find_in(self.home(key.hash), &key)
    }

    #[cold]
    #[inline(never)]
    fn find(&self, tag: &[u8]) -> Option<Found> {
        let key = Key::new(tag, self.seeds)?;
        for number in self.window(self.home(key.hash)) {
            let found = self.find_in(number, &key);
            if found.is_some() || !self.buckets.get(number)?.passed {
                return found;
            }
        }
        None
    }

    #[inline(always)]
    fn find_in(&self, number: usize, key: &Key<'_>) -> Option<Found> {
        let bucket = self.buckets.get(number)?;
        for way in bucket.having(mark(key.hash), key.len) {
            let position = number * WAYS + way;
            let entry = self.entries.get(position)?;
            if self.holds(entry, key) {
                return Some(Found {
                    position,
                    known: Known {
                        link: *bucket.links.get(way)?,
                        version: entry.version,
                        caller: *bucket.callers.get(way)?,
                    },
                });
            }
        }
        None
    }

    /// Compares an entry's tag with a key of the same length.
    #[inline(always)]
    fn holds(&self, entry: &Entry, key: &Key<'_>) -> bool {
        if key.tag.len() > INLINE {
            return self.long(entry.words) == Some(key.tag);
        }
        // Not compared as arrays, which would spill a key in registers to memory.
        let ([a, b, c], [d, e, f]) = (entry.words, key.words);
        (a ^ d) | (b ^ e) | (c ^ f) == 0
    }

    fn long(&self, words: [u64; 3]) -> Option<&[u8]> {
        Some(self.long.get(usize::try_from(words[0]).ok()?)?)
    }

    fn words_to_keep(&mut self, key: &Key<'_>) -> [u64; 3] {
        if key.tag.len() <= INLINE {
            return key.words;
        }
        let number = self.free.pop().unwrap_or(self.long.len() as u64);
        match self.long.get_mut(number as usize) {
            Some(place) => *place = key.tag.into(),
            None => self.long.push(key.tag.into()),
        }
        [number, 0, 0]
    }

    /// True if all buckets of the window are full.
    fn is_full(&self, hash: u64) -> bool {
        let mut window = self.window(self.home(hash));
        window.all(|number| {
            self.buckets
                .get(number)
                .is_none_or(|bucket| bucket.free().0 == 0)
        })
    }

    fn put(&mut self, hash: u64, len: u8, link: u32, caller: u8, entry: Entry) {
        let home = self.home(hash);
        if self.is_full(hash) {
            self.forget(home * WAYS);
        }
        for number in self.window(home) {
            let bucket = &mut self.buckets[number];
            let Some(way) = bucket.free().next() else {
                bucket.passed = true;
                continue;
            };
            bucket.marks[way] = mark(hash);
            bucket.lens[way] = len;
            bucket.links[way] = link;
            bucket.callers[way] = caller;
            self.entries[number * WAYS + way] = entry;
            self.len += 1;
            return;
        }
    }

    fn forget(&mut self, position: usize) {
        let len = &mut self.buckets[position / WAYS].lens[position % WAYS];
        if usize::from(*len) > INLINE {
            let number = self.entries[position].words[0];
            self.long[number as usize] = Box::default();
            self.free.push(number);
        }
        *len = 0;
        self.len -= 1;
    }

    /// Grows by half.
    #[cold]
    fn grow(&mut self, any: Entry) {
        let count = (self.buckets.len() * 3 / 2).max(WINDOW);
        let buckets = core::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; count]);
        let entries = core::mem::replace(&mut self.entries, vec![any; count * WAYS]);
        self.len = 0;
        for (bucket, entries) in buckets.iter().zip(entries.chunks_exact(WAYS)) {
            let tags = bucket.lens.iter().zip(bucket.links).zip(bucket.callers);
            for (((len, link), caller), entry) in tags.zip(entries) {
                let hash = match usize::from(*len) {
                    0 => None,
                    1..=INLINE => Some(hash(entry.words, *len, self.seeds)),
                    _ => self
                        .long(entry.words)
                        .and_then(|tag| hash_long(tag, self.seeds)),
                };
                if let Some(hash) = hash {
                    self.put(hash, *len, link, caller, *entry);
                }
            }
        }
    }
}

fn mark(hash: u64) -> u8 {
    hash as u8
}
