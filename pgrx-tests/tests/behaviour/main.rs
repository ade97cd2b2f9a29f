//! What leaf_id must do, tried on real servers: one file for each behaviour. One program
//! for all, so that it links once and two threads always have something to do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "in a test a failure is a panic, and its name says what it is for"
)]

mod altered_table;
mod asynchronous_commit;
mod backup;
mod bad_input;
mod batch_and_range;
mod central;
mod central_failover;
mod central_network;
mod clock;
mod cost;
mod database_lifecycle;
mod dump_restore;
mod edits_under_load;
mod errors;
mod every_kind_of_statement;
mod failover;
mod fed_tags;
mod fleet_torture;
mod full_disk;
mod harness;
mod history;
mod hostile_settings;
mod late_launcher;
mod leaf_claim;
mod locked_tag_row;
mod operations;
mod outage;
mod parallel_query;
mod parked_file;
mod privileges;
mod recovery;
mod registry;
mod registry_away;
mod registry_bounds;
mod registry_clock;
mod registry_fencing;
mod registry_members;
mod regress;
mod reservation_file;
mod reserve_worker;
mod restarts;
mod rights;
mod rights_matrix;
mod rollback;
mod security;
mod sessions_share_ids;
mod settings;
mod slot_array;
mod slot_eviction;
mod snowflake;
mod sql_contexts;
mod sqlsmith;
mod standby;
mod synchronous;
mod tag_edits;
mod torture;
mod trusted;
mod waits;
mod workers;
mod workers_under_load;
