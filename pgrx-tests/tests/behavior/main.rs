//! What leaf_id must do, tried on real servers: one file for each behavior, in folders by feature;
//! `slow`, `torture` and `figures` are for what takes long. One program for all, which links once; the
//! runner (`pgrx-tests/src/bin/runner.rs`) starts it for each test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "in a test a failure is a panic, and its name says what it is for"
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
