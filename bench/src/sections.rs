//! The sections of the report.

mod bulk;
mod latency;
mod one_row;
mod one_session;
mod sessions;
mod snowflake;
mod start_up;

use crate::context::Context;
use crate::report::Section;

/// A section, before it has run.
pub struct Kind {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Measures, and fills the section.
    pub run: fn(&Context, &mut Section),
}

/// In the order of the report.
pub const ALL: [Kind; 7] = [
    Kind {
        name: "one-session",
        title: "One session, many ids in a statement",
        run: one_session::run,
    },
    Kind {
        name: "one-row",
        title: "One row in a statement",
        run: one_row::run,
    },
    Kind {
        name: "bulk",
        title: "Many rows: INSERT ... SELECT, COPY, CREATE TABLE AS",
        run: bulk::run,
    },
    Kind {
        name: "sessions",
        title: "Many sessions at once",
        run: sessions::run,
    },
    Kind {
        name: "snowflake",
        title: "Snowflake ids and their ceiling",
        run: snowflake::run,
    },
    Kind {
        name: "latency",
        title: "Latency, with slow claims",
        run: latency::run,
    },
    Kind {
        name: "start-up",
        title: "Start-up and memory",
        run: start_up::run,
    },
];
