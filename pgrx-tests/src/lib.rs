//! Drives real PostgreSQL servers with leaf_id from outside, through Unix sockets.
//!
//! - [`server`]: a server of its own for each test, made in a fraction of a second.
//! - [`session`]: connections to it, and the errors it answers with.
//! - [`checks`]: many sessions at once, and what must be true of the ids they got.
//!
//! Environment: `LEAF_ID_PG_BIN` (the programs to run; otherwise `pg_config --bindir`),
//! `LEAF_ID_SERVER_USER` (who runs them when we are root; otherwise postgres),
//! `LEAF_ID_SEED` (repeats a randomised test), `LEAF_ID_PGXS` (another place of
//! pg_regress: what `pg_config --pgxs` prints), `LEAF_ID_EXPECTED` (`write`: take the
//! output of the SQL tests as expected).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test a failure is a panic"
)]

pub mod checks;
pub mod server;
pub mod session;

pub use checks::{
    Call, Disturbed, assert_in_order, assert_issued_once, becomes, disturb_waiting, in_threads,
    in_threads_until, random, timed, wait_until, while_repeating,
};
pub use server::{Paused, Server, Stop};
pub use session::{Failure, Session};
