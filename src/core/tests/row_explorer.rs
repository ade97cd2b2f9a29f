//! Explores every history, up to a depth, of small worlds of tags whose rows are set back by edits,
//! tools and failovers, and random ones far beyond that depth.
//!
//! Would catch: an id of a name issued twice (I3) because a rule for the mark of the name is
//! missing. In each world, each rule is left out once, and the shortest history that shows why the
//! rule is needed is printed. A rule that no history needs fails the test. The same holds for each
//! assumption of a promise: without it, the shortest history that breaks the promise is printed.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

mod row_explorer {
    //! The search, and one world per subject.

    mod chains;
    mod failover;
    mod fleet;
    mod gapless;
    mod replication;
    mod report;
    mod rows;
    mod savepoints;
    #[expect(dead_code, reason = "shared with lease_explorer")]
    mod search;
    mod servers;
    mod systems;
}
