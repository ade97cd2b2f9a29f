//! What leaf_id must do, tried on real servers: one file for each behavior, one folder for
//! each feature. One program for all, so that it links once and two threads always have
//! something to do.

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
mod period;
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
