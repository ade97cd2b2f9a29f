//! Reading rows in the order in which they become visible: what a lock says, and how far a reader may go.
//!
//! Ids follow the order of calls (I4), rows become visible in the order of commits. So a reader that goes on
//! behind the largest id it has seen passes rows whose transactions are still open. The watermark of a tag is
//! an id below which none is undecided: its transaction has ended.
//!
//! * A transaction takes one id of the tag as its *low*, then holds a lock that says so, then takes its ids.
//!   The lock is released when the transaction has ended for all who look, and not before.
//! * The reader takes an id of its own (*here*), then looks at the locks of the tag. The watermark is the least
//!   low that is held, or *here*. Then, with a new snapshot, it reads the rows below the watermark.
//!
//! If an id below the watermark were undecided, its call would have begun before *here* was returned (I4), so
//! its lock was taken before the locks were read. Was it held then, the watermark is not above its low, which is
//! smaller; was it released, its transaction had ended. `tests/ordered.rs` leaves out each rule.

/// The highest low that a lock can carry.
pub const LAST_LOW: i64 = (1 << 47) - 1;
/// Set in the second number of each lock. PostgreSQL's own user locks, and those known of other extensions,
/// have small numbers there.
const OURS: u16 = 1 << 15;

/// The two numbers of the lock with this low; `None` if it is above [`LAST_LOW`].
#[must_use]
pub fn numbers(low: i64) -> Option<(u32, u16)> {
    let high = u16::try_from(low >> 32).ok()?;
    (high < OURS).then_some((low as u32, high | OURS))
}

/// The low of a lock with these numbers; `None` if it is none of ours.
#[must_use]
pub fn low(numbers: (u32, u16)) -> Option<i64> {
    let (number, high) = numbers;
    (high >= OURS).then_some(i64::from(high & !OURS) << 32 | i64::from(number))
}

/// No id below this one is undecided. `lows`: read after `here` was taken.
#[must_use]
pub fn watermark(here: i64, lows: impl IntoIterator<Item = i64>) -> i64 {
    lows.into_iter().fold(here, i64::min)
}
