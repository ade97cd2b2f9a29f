//! Behavior of leaf_id on real servers: one file per behavior, in folders by feature; `slow`,
//! `torture` and `figures` take long. A single program, to link once; the runner
//! (`pgrx-tests/src/bin/runner.rs`) starts it for each test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "in a test a failure is a panic, and its name says what it is for"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "they are banned in the server alone"
)]

mod adopt;
mod copy;
mod docs;
mod figures;
mod files;
mod gapless;
mod harness;
mod lease;
mod opaque;
mod operations;
mod ordered;
mod remote;
mod security;
mod segment;
mod slow;
mod snowflake;
mod sql;
mod survival;
mod tags;
mod torture;
mod worker;
