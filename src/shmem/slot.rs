//! What is remembered about a slot's tag.

use leaf_id_core::segment::{MAX_LEN, Remainder, Remainders};
use leaf_id_core::step::Pace;
use serde::{Deserialize, Serialize};

use super::Area;
use crate::error::RefillError;

/// What is kept of an allocator's last error, in bytes.
const ERROR_TEXT: usize = 47;
/// What both buffers hold at most, and so what can be saved of one tag.
pub const SAVED_RANGES: usize = 2;

/// Contiguous ids; none where `len` is 0. Packed: a slot's state holds two.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, packed(4))]
pub struct IdRange {
    /// The lowest id.
    pub first: i64,
    /// How many ids.
    pub len: u32,
}

impl IdRange {
    /// No ids.
    pub const NONE: Self = Self { first: 0, len: 0 };

    /// One past the last id.
    pub fn end(&self) -> i64 {
        self.first.saturating_add(i64::from(self.len))
    }
}

impl From<Remainder> for IdRange {
    fn from(remainder: Remainder) -> Self {
        Self {
            first: remainder.first,
            // Never more than a segment has.
            len: u32::try_from(remainder.count()).unwrap_or(0),
        }
    }
}

/// The remainders of one tag while no launcher runs, and the row that they may be used with.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct SavedRanges {
    /// The row's `incarnation`.
    pub incarnation: i64,
    /// The row's `max_id`: later claims would make the remainders come out of order (I4).
    pub max_id: i64,
    /// In order.
    pub ranges: [IdRange; SAVED_RANGES],
}

impl SavedRanges {
    /// What was in the buffers, and after it what waited to be given back. Together that
    /// is never more than two buffers hold: no claim is made while something waits.
    pub(super) fn of(state: &SlotState, remainders: &Remainders) -> Option<Self> {
        let mut ranges = [IdRange::NONE; SAVED_RANGES];
        let mut used = 0_usize;
        let buffers = [remainders.current, remainders.spare]
            .map(|remainder| remainder.map_or(IdRange::NONE, IdRange::from));
        let all = buffers.into_iter().chain(state.saved);
        for range in all.filter(|range| range.len > 0) {
            let before = used.checked_sub(1).and_then(|last| ranges.get_mut(last));
            if let Some(before) = before
                && before.end() == range.first
                && before.len <= MAX_LEN - range.len
            {
                before.len += range.len;
            } else if let Some(free) = ranges.get_mut(used) {
                *free = range;
                used += 1;
            }
        }
        (used > 0).then_some(Self {
            incarnation: state.row_incarnation,
            max_id: state.max_id,
            ranges,
        })
    }

    /// Whether these can be remainders at all: anybody may have edited the file.
    pub fn is_sound(&self) -> bool {
        let mut floor = 1;
        self.ranges.iter().all(|range| {
            let sound = range.len == 0
                || (range.first >= floor && range.len <= MAX_LEN && range.end() <= self.max_id);
            floor = floor.max(range.end());
            sound
        })
    }
}

/// What is remembered about a slot's tag. Protected by the slot's lock.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SlotState {
    /// The adaptive step.
    pub pace: Pace,
    /// `incarnation` of the row that the published segments came from; 0 for none.
    pub row_incarnation: i64,
    /// The row's `max_id` after the last claim that has committed, published or not.
    pub max_id: i64,
    /// Remainders of before the launcher's last end, not yet given back; in order.
    pub saved: [IdRange; SAVED_RANGES],
    /// Ids published since the slot was given to the tag.
    pub published: u64,
    /// Ids of them that were dropped: invalidated, or given up for a range.
    pub lost: u64,
    /// Ids that claims have left out because of a failover.
    pub skipped: u64,
    /// Microseconds since 2000 (TimestampTz); 0 for never.
    pub last_refill: i64,
    /// From the request to the publication, in microseconds.
    pub last_refill_us: u32,
    /// Segments published.
    pub refills: u32,
    /// Ids issued up to the last refill ...
    pub issued_at_refill: u64,
    /// ... and between it and the one before, in microseconds.
    pub paced_ids: u64,
    /// See `paced_ids`.
    pub paced_us: u64,
    /// The last failure since the last refill, and the buffer's version it is about.
    pub refill_error: Option<RefillError>,
    /// See `refill_error`.
    pub error_version: u64,
    /// When, in microseconds since 2000.
    pub error_at: i64,
    /// What goes with `refill_error`, where that says so.
    pub text: Text<ERROR_TEXT>,
}

impl SlotState {
    pub(super) const NEW: Self = Self {
        pace: Pace {
            base: 0,
            step: 0,
            before: 0,
            claimed_at_ms: 0,
            claims: 0,
        },
        row_incarnation: 0,
        max_id: 0,
        saved: [IdRange::NONE; SAVED_RANGES],
        published: 0,
        lost: 0,
        skipped: 0,
        refills: 0,
        last_refill: 0,
        last_refill_us: 0,
        issued_at_refill: 0,
        paced_ids: 0,
        paced_us: 0,
        refill_error: None,
        error_version: 0,
        error_at: 0,
        text: Text::EMPTY,
    };

    /// The next remainder to give back.
    pub fn next_saved(&self) -> Option<IdRange> {
        self.saved.iter().find(|range| range.len > 0).copied()
    }

    /// How many ids are saved.
    pub fn saved_ids(&self) -> u64 {
        self.saved.iter().map(|range| u64::from(range.len)).sum()
    }

    /// Gives up what is saved: a gap (I6).
    pub fn drop_saved(&mut self) {
        let ids = self.saved_ids();
        self.saved = [IdRange::NONE; SAVED_RANGES];
        self.published += ids;
        self.lost += ids;
    }

    /// Ids that were handed out, when the buffers hold `remainders`.
    pub fn issued(&self, remainders: &Remainders) -> u64 {
        self.published
            .saturating_sub(self.lost + remainders.count())
    }

    /// How fast ids are used: over the last two refills and the time since.
    pub fn ids_per_second(&self, issued: u64, now: i64) -> f64 {
        let since_us = u64::try_from(now.saturating_sub(self.last_refill)).unwrap_or(0);
        let us = self.paced_us + if self.last_refill > 0 { since_us } else { 0 };
        let ids = self.paced_ids + issued.saturating_sub(self.issued_at_refill);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (ids, seconds) = (ids as f64, us as f64 / 1e6);
        if us == 0 { 0.0 } else { ids / seconds }
    }

    /// The last failure as a sentence, if there was one since the last refill.
    pub fn explain(&self, area: &Area) -> Option<String> {
        let error = self.refill_error?;
        let server = match error {
            RefillError::Asked { server } | RefillError::Refused { server, .. } => {
                area.remote_server(server)
            }
            _ => None,
        };
        let name = server.map_or_else(String::new, |server| server.server().text());
        error.sentence(&name, &self.text.get()).or_else(|| {
            // No failure yet, unless it is away.
            let server = server?;
            server.last_error()?;
            Some(server.explain())
        })
    }
}

/// A short text of at most N bytes, shortened to fit. N is at most 255.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Text<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; N],
    };

    /// Leaves out the middle of a long one: what went wrong often stands at the end.
    pub fn new(text: &str) -> Self {
        const GAP: &[u8] = b"...";
        let mut bytes = [0; N];
        let (head, gap, tail) = if text.len() <= N {
            (text, &[][..], "")
        } else {
            let half = (N - GAP.len()) / 2;
            let (mut head, mut tail) = (half, text.len() - half);
            while !text.is_char_boundary(head) {
                head -= 1;
            }
            while !text.is_char_boundary(tail) {
                tail += 1;
            }
            let part = |range: core::ops::Range<usize>| text.get(range).unwrap_or_default();
            (part(0..head), GAP, part(tail..text.len()))
        };
        let all = [head.as_bytes(), gap, tail.as_bytes()];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(all.into_iter().flatten()) {
            *to = *from;
            len += 1;
        }
        Self { len, bytes }
    }

    /// The text.
    pub fn get(&self) -> String {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}
