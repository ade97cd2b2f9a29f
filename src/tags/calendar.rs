//! The calendar of a tag whose numbers begin anew with each period. Only who claims looks at it:
//! servers and sessions that do not agree on the time do not get ids of two periods at once.

use std::ffi::CString;

use leaf_id_core::period::{End, Missing, Numbering, first_instant};

use super::heap::{LastClaim, PeriodColumns};
use crate::error::Failure;
use crate::guc;
use crate::pg::{self, TimeZone};
use crate::shmem::Period;

/// How the ids of a tag are made, and where.
#[derive(Clone, Copy)]
pub struct Calendar {
    /// The arithmetic of its ids.
    pub numbering: Numbering,
    zone: TimeZone,
}

/// The time zone of a tag.
///
/// # Errors
/// PostgreSQL knows none of this name.
pub fn time_zone(columns: &PeriodColumns) -> Result<TimeZone, Failure> {
    let name = CString::new(&*columns.time_zone).ok();
    let zone = name.and_then(|name| TimeZone::find(&name));
    zone.ok_or_else(|| Failure::UnknownTimeZone {
        name: pg::shown(&columns.time_zone),
    })
}

impl Calendar {
    /// That of a stored row.
    ///
    /// # Errors
    /// Its time zone is not known here; or the table's constraints were dropped for a while.
    pub fn of(columns: &PeriodColumns) -> Result<Self, Failure> {
        let numbering = Numbering::new(&columns.unit, columns.digits);
        Ok(Self {
            numbering: numbering.ok_or_else(|| Failure::TableAltered {
                table: "leaf_alloc".into(),
                detail: "A row has a period that its constraints do not allow.".into(),
            })?,
            zone: time_zone(columns)?,
        })
    }

    /// The period by the clock.
    pub fn present(&self) -> i64 {
        let seconds = pg::now_us().div_euclid(1_000_000);
        self.numbering.on(self.zone.date(seconds))
    }

    /// When a period ends: the first instant with a later date, in Unix microseconds.
    fn end(&self, period: i64) -> i64 {
        let begins = self.numbering.next_begins(period);
        first_instant(begins, |at| self.zone.offset(at)).saturating_mul(1_000_000)
    }

    /// What a segment is to know of its period.
    pub fn period(&self, period: i64) -> Period {
        Period {
            first: self.numbering.first(period),
            end: End::Wall(self.end(period)),
        }
    }

    /// What may be missing of a tag: ids of this timeline's predecessors; and where the present
    /// period may have begun there, all that they have issued of it.
    ///
    /// It may have if this is the first claim on the timeline, and also if it began soon after that
    /// one, or before it: clocks of servers that follow one another differ by at most a
    /// `leaf_id.timestamp_reservation`.
    pub fn missing(&self, present: i64, last_claim: &LastClaim, per_timeline: u64) -> Missing {
        let timelines = last_claim.timelines();
        let began = self.end(present - 1) - pg::TIMESTAMP_EPOCH_US;
        let differ = i64::from(guc::TIMESTAMP_RESERVATION.get()) * 1000;
        let is_early = |since: i64| began <= since.saturating_add(differ);
        let may_have_begun = timelines > 0
            || last_claim.is_ours() && last_claim.timeline_since.is_some_and(is_early);
        Missing {
            skip: per_timeline.saturating_mul(timelines.into()),
            per_timeline,
            timelines: if may_have_begun {
                let since = last_claim.period_timeline.cast_unsigned();
                pg::timeline().saturating_sub(since).max(1)
            } else {
                0
            },
        }
    }
}
