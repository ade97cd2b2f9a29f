//! Formatted ids; implemented by `leaf_id_core::format`.

use leaf_id_core::format::Pattern;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text};
use crate::error::{Failure, FormatError};
use crate::pg::{self, RawDatum};

fn pattern(pattern: &[u8]) -> Result<Pattern<'_>, Failure> {
    Pattern::new(pattern).map_err(|bad| {
        Failure::Format(FormatError::BadPattern {
            pattern: pg::shown(pattern),
            detail: bad.sentence(),
        })
    })
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_format(id: i64, fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let given = unsafe { text(fcinfo, 1) };
    let formatted = finish(pattern(given)).format(id);
    let formatted = finish(formatted.ok_or_else(|| {
        Failure::Format(FormatError::DoesNotFit {
            id,
            pattern: pg::shown(given),
        })
    }));
    RawDatum::text(formatted.len(), |out| formatted.write(out))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_parse(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    let (formatted, given) = unsafe { (text(fcinfo, 0), text(fcinfo, 1)) };
    let parsed = finish(pattern(given)).parse(formatted);
    finish(parsed.map_err(|unparsed| {
        Failure::Format(FormatError::Unparsed {
            text: pg::shown(formatted),
            pattern: pg::shown(given),
            detail: unparsed.sentence(),
        })
    }))
}
