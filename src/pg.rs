//! Thin safe wrappers over PostgreSQL, and all differences between its versions. Independent of the
//! rest of leaf_id.
//!
//! All functions are called from the single thread of a PostgreSQL process. Functions that access
//! catalogs or tables, directly or through a cache, require a transaction and must not be called
//! from a signal handler; "in a transaction" in a comment means that. Otherwise PostgreSQL would
//! crash or leak a lock. A PostgreSQL ERROR unwinds like a panic.

#![allow(unsafe_code)]

mod backend_local;
mod cached;
mod catalog;
mod client;
mod clock;
mod column;
mod condition;
mod databases;
mod datum;
mod expression;
mod foreign;
mod function;
mod holder;
mod latch;
mod memory;
mod name;
mod numbers;
mod planner;
mod portal;
mod process;
mod roles;
mod server;
mod settings;
mod signals;
pub mod sqlstate;
mod syncrep;
mod table;
mod transaction;
mod trigger;
mod user_lock;
mod wait;

pub use backend_local::BackendLocal;
pub use cached::cache_id;
pub use catalog::{
    function_name, lock_relation, relation_changed, relation_exists, touch_relation, watch_relation,
};
pub use client::{Client, client};
pub use clock::{TIMESTAMP_EPOCH_US, boot_ms, clocks, format_ms, now_ms, now_timestamp};
pub use column::{Unread, largest_value};
pub use condition::Waiters;
pub use databases::{
    CatalogLocked, belong_to_owner, connect, database_is_free, find_database, is_free,
    watch_databases,
};
pub use datum::{RawDatum, RowType, Text, oid_value, texts_datum};
pub use expression::{Expression, cells};
pub use foreign::{ServerProblem, check_foreign_server};
pub use function::{
    caller_may_execute, check_call, check_execute, find_function, function, function_source,
    is_nonatomic_call, public_may_execute,
};
pub use holder::{LockHolder, row_holder, table_holder};
pub use latch::{Readiness, my_latch, set_latch, wait_for, wait_latch};
pub use leaf_id_core::message::shown;
pub use memory::{data_size, touch};
pub use name::{Name, is_text};
pub use numbers::{hash, strong_random};
pub use planner::{DefaultOfCopy, is_beside_tables};
pub use portal::require_clients_statement;
pub use process::{
    check_for_interrupts, database, exit, leader_pid, max_worker_processes, on_exit, pid,
    registered_workers, report_activity,
};
pub use roles::{
    Caller, Privilege, caller_has, caller_is_monitor, caller_is_one_of, caller_may_update,
    is_superuser, user_identifier, user_name,
};
pub use server::{
    binary_upgrade, has_synchronous_standbys, host_name, in_recovery, is_pristine,
    nudge_postmaster, port, preloading, single_user, system_identifier, terminate, timeline,
};
pub use settings::{
    Check, InvalidSetting, define_checked_string, pin_setting, preloaded_libraries, reserve_prefix,
    set_local,
};
pub use signals::{
    asked_to_stop, handle_signals_in_loop, handle_signals_in_transactions, reload, reload_if_asked,
    reload_is_asked, take_canceled,
};
pub use syncrep::{commit_synchronously, limit_hold, only_when_acknowledged};
pub use table::check::Obstacle;
pub use table::open::{Access, Table};
pub use table::place::Place;
pub use table::row::{Locker, Row};
pub use table::shape::{INTERNAL_SCHEMA, Misshapen, SCHEMA, Shape, Type, find_table, hold};
pub use table::value::Value;
pub use table::write::{LockedAtOnce, lock_against_writers};
pub use transaction::{
    Caught, SubtransactionEvent, TransactionCallbacks, TransactionEvent, in_parallel_mode,
    is_read_committed, local_transaction, prevent_if_read_only, prevent_in_transaction_block,
    see_own_changes, subtransaction, transaction, watch_transactions,
};
pub use trigger::{TriggerCall, replica_role};
pub use user_lock::{share_user_lock, user_locks};
pub use wait::{WaitEvent, sleep_until, sleep_us, while_waiting};
