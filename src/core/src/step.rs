//! The adaptive step of Leaf: a segment should last about a quarter of an hour.
//!
//! Leaf's own code has four defects that this does not repeat: its doubling
//! overflows an int (a step of 2^30 issues ids again), it stops below its cap
//! instead of at it, a changed `step` of a busy tag is ignored until a restart, and it
//! takes the time in which one segment was used for that of the next one, which may be
//! half or twice as long: then the step never settles, and goes from 8 minutes to 32
//! and back at any rate of use.

/// How long a segment should last, in milliseconds (Leaf's `SEGMENT_DURATION`).
pub const SEGMENT_DURATION_MS: i64 = 15 * 60 * 1000;

/// How much a starved tag grows per claim: sessions waited, doubling is too slow. And the
/// most that any claim may be longer than the recent ones, for whatever reason: so a
/// server that takes over knows how many ids a claim that it never saw can have taken.
const GROWTH: u64 = 8;

/// What the tag's row allows, in ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The row's `step`: the first and the smallest segment.
    pub step: u32,
    /// The row's `max_step`: the longest segment, at least `step`.
    pub max_step: u32,
}

impl Limits {
    /// The wanted length within what the row allows.
    #[must_use]
    pub fn clamp(&self, wanted: u32) -> u32 {
        wanted.max(self.step).min(self.max_step)
    }
}

/// Who claims from a row: how soon a long claim is forgotten over shorter ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// One server. Half, as the adaptive step does.
    Alone,
    /// Several servers, of which a slow one must not cut short what a fast one claims
    /// next: the 64th part. Less than 64 ids are kept.
    Fleet,
}

/// The largest of the recent claims after one more, in ids: what a row remembers of them.
/// It shrinks with each shorter claim.
#[must_use]
pub fn largest_recent(before: u32, claimed: u32, decay: Decay) -> u32 {
    let rest = match decay {
        Decay::Alone => before / 2,
        Decay::Fleet => before - before / 64,
    };
    claimed.max(rest)
}

/// The longest that a claim may be when this was the largest of the recent ones, in ids.
#[must_use]
pub fn longest_claim(largest_recent: u32, limits: Limits) -> u32 {
    let grown = u64::from(largest_recent.max(1)) * GROWTH;
    u32::try_from(grown).map_or(limits.max_step, |grown| grown.min(limits.max_step))
}

/// The most ids that this many claims can have taken after those that are known: each as
/// long as [`longest_claim`] allows after the one before.
#[must_use]
pub fn most_taken(claims: u32, largest_recent: u32, limits: Limits) -> u64 {
    let longest = |recent: &u32| Some(longest_claim(*recent, limits));
    core::iter::successors(longest(&largest_recent), longest)
        .take(claims as usize)
        .map(u64::from)
        .sum()
}

/// How fast a tag was used up so far. All zeroes is a tag that has claimed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The row's `step` at the last claim, in ids; 0 before the first.
    pub base: u32,
    /// The length of the last claim, in ids.
    pub step: u32,
    /// The length of the claim before it, in ids; 0 where the pace was (re)started since.
    pub before: u32,
    /// When the last claim was asked for, in milliseconds of any clock.
    pub claimed_at_ms: i64,
    /// Claims since the pace was (re)started; the time between the first two says
    /// nothing, as the spare is claimed at 10 % of the first (Leaf skips it too).
    pub claims: u32,
}

impl Pace {
    /// The length the next claim should have, before [`Limits::clamp`] by the row. `now_ms`
    /// is when it is first asked for, however long it then takes.
    ///
    /// A segment that lasts under 15 minutes is doubled, under 30 kept, longer halved
    /// (Leaf's rule). `starved`: sessions found both buffers empty; then it grows
    /// faster. A clock that went back keeps the step.
    #[must_use]
    pub fn wanted(&self, now_ms: i64, starved: bool) -> u32 {
        let last = u64::from(self.step);
        let since_ms = now_ms.saturating_sub(self.claimed_at_ms);
        let lasted_ms = self.lasts_ms(since_ms);
        let wanted = if self.claims == 0 || since_ms < 0 {
            last
        } else if lasted_ms < SEGMENT_DURATION_MS && starved {
            last * GROWTH
        } else if self.claims == 1 {
            last
        } else if lasted_ms < SEGMENT_DURATION_MS {
            last * 2
        } else if lasted_ms < 2 * SEGMENT_DURATION_MS {
            last
        } else {
            last / 2
        };
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }

    /// How long a segment as long as the last claim lasts, when the next one is asked for
    /// this long after it was. Each is asked for when a tenth of the one in use is taken: in
    /// that time a tenth of it was used, and nine tenths of the one before it.
    fn lasts_ms(&self, since_ms: i64) -> i64 {
        let used = u128::from(self.step) + 9 * u128::from(self.before);
        let since_ms = u128::try_from(since_ms).unwrap_or(0);
        let lasts_ms = since_ms * 10 * u128::from(self.step) / used.max(1);
        i64::try_from(lasts_ms).unwrap_or(i64::MAX)
    }

    /// The length of the next claim under the row's limits. A `step` that was changed
    /// since the last claim starts the pace anew: the DBA meant it.
    #[must_use]
    pub fn next(&self, now_ms: i64, starved: bool, limits: Limits) -> u32 {
        if self.base == limits.step {
            limits.clamp(self.wanted(now_ms, starved))
        } else {
            limits.clamp(limits.step)
        }
    }

    /// Remembers a claim of `step` ids, which was asked for at one time and came at another:
    /// between the two no segment lasted, so a long wait starts the measuring anew.
    #[must_use]
    pub fn claimed(&self, asked_ms: i64, now_ms: i64, step: u32, limits: Limits) -> Self {
        let late = now_ms.saturating_sub(asked_ms) >= SEGMENT_DURATION_MS;
        let restarted = late || self.base != limits.step;
        Self {
            base: limits.step,
            step,
            before: if restarted { 0 } else { self.step },
            claimed_at_ms: if late { now_ms } else { asked_ms },
            claims: if restarted {
                1
            } else {
                self.claims.saturating_add(1)
            },
        }
    }
}
