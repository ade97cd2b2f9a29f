//! Every history of small worlds, of tags whose rows people, tools and failovers set back: in any order
//! of steps up to a depth.
//!
//! Would catch: an id of a name that is issued twice (I3), for want of a rule about the mark beside
//! the row. In each world, each rule is left out once, and the shortest history that shows why it is
//! needed is printed; a rule whose absence no history shows fails the test. So does each assumption that
//! a promise rests on: without it, the shortest history that breaks the promise.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

mod row_explorer {
    //! The search, and a world for each of what happens to rows.

    mod chains;
    mod failover;
    mod fleet;
    mod gapless;
    mod replication;
    mod savepoints;
    mod search;
    mod systems;
}
