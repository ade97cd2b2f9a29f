//! Leaf's adaptive step: a segment should last about a quarter of an hour.
//!
//! Four defects of Leaf's own code are avoided: its doubling overflows an int (a step of 2^30
//! issues ids again); it stops below its cap instead of at it; a changed `step` of a busy tag is
//! ignored until a restart; and it takes the time in which one segment was used for that of the
//! next, which may be half or twice as long. So its step never settles, and alternates between 8
//! and 32 minutes at any rate of use.

/// Target duration of a segment, in milliseconds (Leaf's `SEGMENT_DURATION`).
pub const SEGMENT_DURATION_MS: i64 = 15 * 60 * 1000;

/// Growth factor per claim of a starved tag: sessions had to wait, and doubling is too slow. Also
/// the max growth of any claim over the recent ones, so that a server that takes over can bound the
/// size of a claim it never saw.
const GROWTH: u64 = 8;

/// Limits from the tag's row, in ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// `step`: the length of the first segment, and the minimum.
    pub step: u32,
    /// `max_step`: the maximum, at least `step`.
    pub max_step: u32,
}

impl Limits {
    /// `wanted`, clamped to the limits.
    #[must_use]
    pub fn clamp(&self, wanted: u32) -> u32 {
        wanted.max(self.step).min(self.max_step)
    }
}

/// Decay of the largest recent claim after shorter ones; depends on the servers that claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// One server: halved per claim, like the adaptive step.
    Alone,
    /// Several servers: reduced by 1/64 per claim, so that a slow server does not limit the next
    /// claim of a fast one. Values below 64 ids are kept.
    Fleet,
}

/// Largest recent claim after one more claim, in ids, as stored in the row. Decays with each
/// shorter claim.
#[must_use]
pub fn largest_recent(before: u32, claimed: u32, decay: Decay) -> u32 {
    let rest = match decay {
        Decay::Alone => before / 2,
        Decay::Fleet => before - before / 64,
    };
    claimed.max(rest)
}

/// Max length of the next claim, in ids, given the largest recent one.
#[must_use]
pub fn longest_claim(largest_recent: u32, limits: Limits) -> u32 {
    let grown = u64::from(largest_recent.max(1)) * GROWTH;
    u32::try_from(grown).map_or(limits.max_step, |grown| grown.min(limits.max_step))
}

/// Upper bound for the ids taken by `claims` unknown claims after the known ones, each as long as
/// [`longest_claim`] allows after the previous.
#[must_use]
pub fn most_taken(claims: u32, largest_recent: u32, limits: Limits) -> u64 {
    let longest = |recent: &u32| Some(longest_claim(*recent, limits));
    core::iter::successors(longest(&largest_recent), longest)
        .take(claims as usize)
        .map(u64::from)
        .sum()
}

/// Consumption rate of a tag so far. All zeroes is a tag without claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The row's `step` at the last claim, in ids; 0 before the first.
    pub base: u32,
    /// Length of the last claim, in ids.
    pub step: u32,
    /// Length of the claim before it, in ids; 0 if the pace was (re)started since.
    pub before: u32,
    /// Time when the last claim was requested, in milliseconds of any clock.
    pub claimed_at_ms: i64,
    /// Claims since the pace was (re)started. The time between the first two is meaningless, as the
    /// spare is claimed at 10 % of the first (Leaf skips it, too).
    pub claims: u32,
}

impl Pace {
    /// Length of the next claim, before [`Limits::clamp`]. `now_ms` is the time of the request,
    /// however long the claim then takes.
    ///
    /// Leaf's rule: doubled if a segment lasts less than 15 minutes, kept if less than 30, halved
    /// otherwise. `starved`: sessions found both buffers empty, so it grows faster. Kept if the
    /// clock went back.
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

    /// Duration of a segment as long as the last claim, if the next claim is requested `since_ms`
    /// after it. Each claim is requested once a tenth of the current segment is taken: in
    /// `since_ms`, a tenth of the last claim and nine tenths of the one before were used.
    fn lasts_ms(&self, since_ms: i64) -> i64 {
        let used = u128::from(self.step) + 9 * u128::from(self.before);
        let since_ms = u128::try_from(since_ms).unwrap_or(0);
        let lasts_ms = since_ms * 10 * u128::from(self.step) / used.max(1);
        i64::try_from(lasts_ms).unwrap_or(i64::MAX)
    }

    /// Length of the next claim within the row's limits. A `step` changed since the last claim
    /// restarts the pace.
    #[must_use]
    pub fn next(&self, now_ms: i64, starved: bool, limits: Limits) -> u32 {
        if self.base == limits.step {
            limits.clamp(self.wanted(now_ms, starved))
        } else {
            limits.clamp(limits.step)
        }
    }

    /// Records a claim of `step` ids, requested at `asked_ms` and completed at `now_ms`. A long
    /// wait in between restarts the measurement, since no segment was in use then.
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
