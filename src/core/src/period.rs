//! Tags whose numbers begin at 1 in each day, month or year: the arithmetic of their ids, where
//! a period ends, and where a claim begins.
//!
//! An id is the period followed by the number: 20261122000123 is number 123 of 22 November 2026,
//! with six digits. So ids of later periods are larger, and a period tag is a tag whose `max_id`
//! jumps. Only who claims looks at a calendar; a session looks at the [`End`] of the segment.
//!
//! The rules, each of which repeats ids or lets them go back if it is broken:
//! * First the jump to the present period, only then what is left out because of a failover: the
//!   other way round the jump would go over it.
//! * A segment is cut at the end of its own period, which is that of `max_id` and not the clock's:
//!   a clock that was set back has no say.
//! * A period that begins with, or soon after, the first claim on a new timeline may have begun on
//!   the old primary already, by claims that are missing here: see [`Numbering::begin`].

/// How often the numbers begin at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Every day.
    Day,
    /// Every month.
    Month,
    /// Every year.
    Year,
}

/// A date of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// From 1.
    pub day: i64,
}

/// When a segment ends. Two clocks: who claims for itself has the end of the period, a member of
/// a fleet was told how long that is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By the clock, in Unix microseconds.
    Wall(i64),
    /// By one that is never set and begins with the machine, in microseconds.
    Boot(i64),
}

impl End {
    /// As it is kept in one word, in which 0 is none. A time before 1970 ends at its beginning.
    #[must_use]
    pub fn to_word(self) -> i64 {
        match self {
            Self::Wall(us) => us.max(1),
            Self::Boot(us) => -us.max(1),
        }
    }

    /// What such a word says.
    #[must_use]
    pub fn from_word(word: i64) -> Option<Self> {
        match word {
            0 => None,
            1.. => Some(Self::Wall(word)),
            _ => Some(Self::Boot(word.saturating_neg())),
        }
    }
}

/// How the ids of a tag are made of periods and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    unit: Unit,
    /// One more than the largest number: 10 to the power of the digits.
    numbers: i64,
}

/// Where a claim begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The period it is in.
    pub period: i64,
    /// The lowest id.
    pub first: i64,
    /// The last id of the period: the claim must not go beyond it.
    pub last: i64,
    /// Ids left out before the first one, because of a failover.
    pub skipped: u64,
    /// The period begins with it, and has certainly not begun on another timeline.
    pub in_peace: bool,
}

/// What other timelines may have claimed that is missing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// Ids to leave out in any case: this is the first claim on a timeline.
    pub skip: u64,
    /// The most ids that missing claims can have taken on one timeline ...
    pub per_timeline: u64,
    /// ... and on how many timelines, where a period that begins now may have begun already. 0:
    /// it cannot.
    pub timelines: u32,
}

impl Numbering {
    /// `None` if there is no such unit, or the ids would not fit into a bigint.
    #[must_use]
    pub fn new(unit: &[u8], digits: i32) -> Option<Self> {
        let (unit, most) = match unit {
            b"day" => (Unit::Day, 10),
            b"month" => (Unit::Month, 12),
            b"year" => (Unit::Year, 14),
            _ => return None,
        };
        let digits = u32::try_from(digits).ok()?;
        (1..=most).contains(&digits).then(|| Self {
            unit,
            numbers: 10_i64.pow(digits),
        })
    }

    /// The period that a date is in.
    #[must_use]
    pub fn on(self, date: Date) -> i64 {
        let Date { year, month, day } = date;
        match self.unit {
            Unit::Day => (year * 100 + month) * 100 + day,
            Unit::Month => year * 100 + month,
            Unit::Year => year,
        }
    }

    /// The period of the id before this one. A period that is used up has the next one's
    /// number 0 as `max_id`, which is no id: the next one has not begun.
    #[must_use]
    pub fn before(self, max_id: i64) -> i64 {
        max_id.saturating_sub(1).div_euclid(self.numbers)
    }

    /// The first id of a period.
    #[must_use]
    pub fn first(self, period: i64) -> i64 {
        period.saturating_mul(self.numbers).saturating_add(1)
    }

    /// The last id of a period.
    #[must_use]
    pub fn last(self, period: i64) -> i64 {
        self.first(period).saturating_add(self.numbers - 2)
    }

    /// When the first period after this one begins, as seconds that local clocks show since
    /// 1970. The period may be none that there is, such as the 31st of a short month: an id
    /// that somebody has entered may have it.
    #[must_use]
    pub fn next_begins(self, period: i64) -> i64 {
        let (year, month, day) = match self.unit {
            Unit::Day => (period / 10_000, period / 100 % 100, period % 100),
            Unit::Month => (period / 100, period % 100, 31),
            Unit::Year => (period, 12, 31),
        };
        let (year, month, day) = match (month, day) {
            (..1, _) => (year, 1, 1),
            (13.., _) => (year + 1, 1, 1),
            (_, day) if day < days_in(year, month) => (year, month, day + 1),
            (12, _) => (year + 1, 1, 1),
            _ => (year, month + 1, 1),
        };
        days_since_1970(year, month, day).saturating_mul(SECONDS_A_DAY)
    }

    /// Where the next claim begins, with this `max_id`, in this period by the clock.
    ///
    /// A period that begins while claims of another timeline may be missing: the old primary
    /// may have begun it too, and each server that was promoted since. Each of them has
    /// issued no more than what it left out itself and as much again.
    #[must_use]
    pub fn begin(self, max_id: i64, now: i64, missing: Missing) -> Begin {
        let begins = self.first(now) > max_id;
        let (period, floor, skipped) = if begins {
            let each = missing.per_timeline.saturating_mul(2);
            (
                now,
                self.first(now),
                each.saturating_mul(missing.timelines.into()),
            )
        } else {
            (self.before(max_id), max_id, missing.skip)
        };
        let skip = i64::try_from(skipped).unwrap_or(i64::MAX);
        Begin {
            period,
            first: floor.saturating_add(skip),
            last: self.last(period),
            skipped,
            in_peace: begins && missing.timelines == 0,
        }
    }
}

const SECONDS_A_DAY: i64 = 86_400;

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Years that begin with March have the leap day at their end, and months of 31, 30, 31, 30, 31
/// days in a row: 153 days.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From 1 March of the year 0 to 1970.
    // A row may say any year.
    year.saturating_mul(365)
        .saturating_add(leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468)
}

/// What a time zone does from one instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// Seconds that local clocks are ahead of UTC ...
    pub ahead: i64,
    /// ... until this instant, in Unix seconds; `None`: for ever.
    pub until: Option<i64>,
}

/// The first instant, in Unix seconds, at which local clocks show this time or a later one. Where
/// they are put forward over it, that is when they are; where they are put back over it, the
/// first of the two times.
///
/// Nothing shorter is right: midnight may not exist, the day may not, and midnight of the
/// next day may come twice.
pub fn first_instant(local: i64, offset_at: impl Fn(i64) -> Offset) -> i64 {
    // No zone is a week ahead of UTC.
    let mut from = local - 7 * SECONDS_A_DAY;
    loop {
        let Offset { ahead, until } = offset_at(from);
        let at = (local - ahead).max(from);
        match until {
            Some(until) if until <= at && until > from => from = until,
            _ => return at,
        }
    }
}
