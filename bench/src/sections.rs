//! The sections of the report.

mod bulk;
mod latency;
mod one_row;
mod one_session;
mod sessions;
mod start_up;

use crate::options::Options;
use crate::report::Section;

/// Name on the command line, title, and the measuring function.
type Kind = (&'static str, &'static str, fn(&Options, &mut Section));

/// All sections, in the order of the report.
pub const ALL: [Kind; 6] = [
    (
        "one-session",
        "One session, many ids in a statement",
        one_session::measure,
    ),
    ("one-row", "One row in a statement", one_row::measure),
    (
        "bulk",
        "Many rows in a statement: INSERT ... SELECT and COPY",
        bulk::measure,
    ),
    (
        "sessions",
        "Many sessions, and the ceiling of snowflake ids",
        sessions::measure,
    ),
    ("latency", "Latency, with slow claims", latency::measure),
    ("start-up", "Start-up and first ids", start_up::measure),
];
