//! Time zones, as PostgreSQL knows them.

use core::ffi::{CStr, c_int, c_long};
use core::ptr::NonNull;

use leaf_id_core::period::{Date, Offset};
use pgrx::pg_sys;

/// A time zone.
#[derive(Clone, Copy)]
pub struct TimeZone(NonNull<pg_sys::pg_tz>);

impl TimeZone {
    /// `None` if there is none of this name that PostgreSQL accepts.
    pub fn find(name: &CStr) -> Option<Self> {
        // SAFETY: a string that ends with null. What is returned, if anything, lives as long as the
        // process: PostgreSQL keeps all zones that were asked for.
        unsafe {
            let zone = NonNull::new(pg_sys::pg_tzset(name.as_ptr()))?;
            pg_sys::pg_tz_acceptable(zone.as_ptr()).then_some(Self(zone))
        }
    }

    /// The date there at this instant, in Unix seconds.
    pub fn date(self, seconds: i64) -> Date {
        // SAFETY: a zone; what is returned is a static of PostgreSQL's, null where the year is no
        // int, and is read before the next call.
        let local = unsafe { pg_sys::pg_localtime(&raw const seconds, self.0.as_ptr()).as_ref() };
        local.map_or(
            Date {
                year: 9999,
                month: 12,
                day: 31,
            },
            |local| Date {
                year: i64::from(local.tm_year) + 1900,
                month: i64::from(local.tm_mon) + 1,
                day: local.tm_mday.into(),
            },
        )
    }

    /// How far clocks there are ahead of UTC at this instant, and until when.
    pub fn offset(self, seconds: i64) -> Offset {
        let (mut before, mut after): (c_long, c_long) = (0, 0);
        let (mut before_dst, mut after_dst): (c_int, c_int) = (0, 0);
        let mut boundary = 0;
        // SAFETY: a zone; writes to what is ours. It returns 1 where it has found a boundary, which
        // lies after this instant. Otherwise what holds for ever is in `before`, or nothing where
        // it has failed.
        let found = unsafe {
            pg_sys::pg_next_dst_boundary(
                &raw const seconds,
                &raw mut before,
                &raw mut before_dst,
                &raw mut boundary,
                &raw mut after,
                &raw mut after_dst,
                self.0.as_ptr(),
            )
        };
        #[allow(
            clippy::useless_conversion,
            reason = "a long is not 64 bits everywhere"
        )]
        Offset {
            ahead: before.into(),
            until: (found == 1).then_some(boundary),
        }
    }
}
