//! Bit layout of a snowflake id. From the sign bit down: milliseconds since the epoch, worker id,
//! sequence within the millisecond.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The parts of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Milliseconds since the epoch, 0 to [`Layout::max_ms`].
    pub ms: i64,
    /// Worker id, 0 to [`Layout::max_worker_id`].
    pub worker_id: u16,
    /// Sequence, 0 to [`Layout::max_sequence`].
    pub sequence: u16,
}

/// Number of bits per part. If they add up to less than 63, the top bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layout {
    time_bits: u8,
    worker_bits: u8,
    sequence_bits: u8,
}

impl Layout {
    /// Leaf's and Twitter's layout: 41 bits of time, 10 of worker id, 12 of sequence.
    pub const DEFAULT: Self = Self {
        time_bits: 41,
        worker_bits: 10,
        sequence_bits: 12,
    };
    /// Largest worker id in any layout.
    pub const MAX_WORKER_ID: u16 = (1 << 15) - 1;
    /// The valid layouts, as a sentence for DETAIL.
    pub const ALLOWED: &'static str = "A layout is three numbers of bits: 38 to 46 of milliseconds, 0 to 15 of the worker id, 1 to 16 of the sequence, and at most 63 together; 41/10/12, for example.";
    /// Fewer bits of time last less than nine years; more reach beyond the year 4000.
    const TIME_BITS: core::ops::RangeInclusive<u8> = 38..=46;
    const WORKER_BITS: core::ops::RangeInclusive<u8> = 0..=15;
    const SEQUENCE_BITS: core::ops::RangeInclusive<u8> = 1..=16;

    /// A layout with 38 to 46 bits of time, 0 to 15 of worker id and 1 to 16 of sequence, at most
    /// 63 together. `None` if out of range.
    #[must_use]
    pub fn new(time_bits: u8, worker_bits: u8, sequence_bits: u8) -> Option<Self> {
        let layout = Self {
            time_bits,
            worker_bits,
            sequence_bits,
        };
        let fits = Self::TIME_BITS.contains(&time_bits)
            && Self::WORKER_BITS.contains(&worker_bits)
            && Self::SEQUENCE_BITS.contains(&sequence_bits)
            && time_bits + worker_bits + sequence_bits <= 63;
        fits.then_some(layout)
    }

    /// Parses a setting such as `41/10/12`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // Accept only the form that Display prints: no signs, no leading zeros.
        let bits = |part: &str| {
            let plain = part == "0" || !part.starts_with(['+', '0']);
            part.parse::<u8>().ok().filter(|_| plain)
        };
        let mut parts = text.split('/').map(bits);
        let layout = Self::new(parts.next()??, parts.next()??, parts.next()??);
        layout.filter(|_| parts.next().is_none())
    }

    /// Encodes the layout for shared memory; never 0.
    #[must_use]
    pub fn pack(self) -> u32 {
        u32::from_be_bytes([0, self.time_bits, self.worker_bits, self.sequence_bits])
    }

    /// Decodes [`Layout::pack`]; `None` if invalid.
    #[must_use]
    pub fn unpack(packed: u32) -> Option<Self> {
        let [_, time_bits, worker_bits, sequence_bits] = packed.to_be_bytes();
        Self::new(time_bits, worker_bits, sequence_bits).filter(|layout| layout.pack() == packed)
    }

    /// Decodes [`Layout::pack`] without validation. 0 yields parts without bits.
    #[inline]
    pub(crate) fn of_packed(packed: u32) -> Self {
        let [_, time_bits, worker_bits, sequence_bits] = packed.to_be_bytes();
        Self {
            time_bits,
            worker_bits,
            sequence_bits,
        }
    }

    /// Last millisecond since the epoch.
    #[must_use]
    pub fn max_ms(self) -> i64 {
        (1 << self.time_bits) - 1
    }

    /// Largest worker id.
    #[must_use]
    #[inline]
    pub fn max_worker_id(self) -> u16 {
        (1 << self.worker_bits) - 1
    }

    /// Largest sequence.
    #[must_use]
    #[inline]
    pub fn max_sequence(self) -> u16 {
        ((1_u32 << self.sequence_bits) - 1) as u16
    }

    /// Largest id.
    #[must_use]
    pub fn max_id(self) -> i64 {
        i64::MAX >> (63 - self.time_bits - self.worker_bits - self.sequence_bits)
    }

    /// The id with these parts, each of which must be in range.
    #[must_use]
    #[inline]
    pub fn compose(self, parts: Parts) -> i64 {
        debug_assert!((0..=self.max_ms()).contains(&parts.ms));
        debug_assert!(parts.worker_id <= self.max_worker_id());
        debug_assert!(parts.sequence <= self.max_sequence());
        (parts.ms << (self.worker_bits + self.sequence_bits))
            | (i64::from(parts.worker_id) << self.sequence_bits)
            | i64::from(parts.sequence)
    }

    /// The parts of an id; `None` if it is negative or has more bits than the layout.
    #[must_use]
    #[inline]
    pub fn decompose(self, id: i64) -> Option<Parts> {
        let word = u64::try_from(id).ok()?;
        let parts = self.parts(word);
        (parts.ms <= self.max_ms()).then_some(parts)
    }

    /// The parts of a word of 63 bits.
    #[inline]
    pub(crate) fn parts(self, word: u64) -> Parts {
        Parts {
            ms: (word >> (self.worker_bits + self.sequence_bits)).cast_signed(),
            worker_id: (word >> self.sequence_bits) as u16 & self.max_worker_id(),
            sequence: word as u16 & self.max_sequence(),
        }
    }
}

impl TryFrom<String> for Layout {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(Self::ALLOWED)
    }
}

impl From<Layout> for String {
    fn from(layout: Layout) -> Self {
        layout.to_string()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            time_bits,
            worker_bits,
            sequence_bits,
        } = self;
        write!(f, "{time_bits}/{worker_bits}/{sequence_bits}")
    }
}

#[cfg(test)]
mod tests {
    //! Would catch: a layout whose text and bits disagree, ids that do not fit in it, or are not in
    //! the order of their parts.

    #![allow(clippy::unwrap_used, reason = "a test that panics fails")]

    use super::*;

    /// Any numbers of bits, up to 64 of each part, and their layout.
    fn all() -> impl Iterator<Item = ([u8; 3], Option<Layout>)> {
        let bits = 0..=64;
        let pairs = bits
            .clone()
            .flat_map(move |a| bits.clone().map(move |b| (a, b)));
        pairs
            .flat_map(|(a, b)| (0..=64).map(move |c| [a, b, c]))
            .map(|[a, b, c]| ([a, b, c], Layout::new(a, b, c)))
    }

    #[test]
    fn each_layout_is_read_as_it_is_shown_and_packed() {
        let mut valid = 0;
        for (bits, layout) in all() {
            let text = bits.map(|bits| bits.to_string()).join("/");
            assert_eq!(Layout::parse(&text), layout, "{text}");
            let packed = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
            assert_eq!(Layout::unpack(packed), layout, "{text}");
            assert_eq!(Layout::unpack(packed | 1 << 24), None, "{text}");
            if let Some(layout) = layout {
                assert_eq!(layout.to_string(), text);
                assert_eq!(layout.pack(), packed);
                assert_eq!(Layout::of_packed(packed), layout);
                valid += 1;
            }
        }
        // With 38, 39 ... 46 bits of time.
        let by_time = [235, 228, 220, 211, 201, 190, 178, 165, 151];
        assert_eq!(valid, by_time.iter().sum::<u32>());
    }

    #[test]
    fn other_texts_are_no_layouts() {
        let bad = "/41/10 41/10/12/ +41/10/12 41/010/12 41/10/ 41//12 41/10/-1 257/10/12";
        for text in bad
            .split(' ')
            .chain(["", "41/00/12", " 41/10/12", "41/10/12 "])
        {
            assert_eq!(Layout::parse(text), None, "{text}");
        }
        assert_eq!(Layout::unpack(u32::MAX), None);
    }

    /// Each layout, with each part at its ends and in the middle.
    #[test]
    fn an_id_has_its_parts_and_their_order() {
        for layout in all().filter_map(|(_, layout)| layout) {
            let values = |max: i64| {
                let mut values = vec![0, 1, max / 2, max - 1, max];
                values.retain(|value| (0..=max).contains(value));
                values.sort_unstable();
                values.dedup();
                values
            };
            let mut last = None;
            for ms in values(layout.max_ms()) {
                for worker_id in values(layout.max_worker_id().into()) {
                    for sequence in values(layout.max_sequence().into()) {
                        let parts = Parts {
                            ms,
                            worker_id: worker_id.try_into().unwrap(),
                            sequence: sequence.try_into().unwrap(),
                        };
                        let id = layout.compose(parts);
                        assert_eq!(layout.decompose(id), Some(parts), "{layout}");
                        assert!(Some(id) > last, "{layout}");
                        last = Some(id);
                    }
                }
            }
            assert_eq!(last, Some(layout.max_id()), "{layout}");
            let beyond = layout.max_id().wrapping_add(1);
            assert_eq!(layout.decompose(beyond), None, "{layout}");
            assert_eq!(layout.decompose(-1), None);
        }
    }

    #[test]
    fn ids_of_41_6_6_are_exact_in_javascript() {
        assert_eq!(Layout::parse("41/6/6").unwrap().max_id(), (1 << 53) - 1);
    }
}
