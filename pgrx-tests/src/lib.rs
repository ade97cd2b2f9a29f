//! Drives real PostgreSQL servers with leaf_id from outside, through Unix sockets.
//!
//! - [`attack`]: an untrusted role, and what it achieves.
//! - [`server`]: a server for a single test, created in a fraction of a second.
//! - `guard`: cleans up after a test process that was killed.
//! - [`messages`]: the messages between servers, as SQL.
//! - [`programs`]: PostgreSQL programs, and the user that runs them.
//! - [`installation`]: a PostgreSQL installation for a single test, with other scripts of the
//!   extension.
//! - [`catalog`]: complete catalog contents of a database, to compare.
//! - [`processes`]: finds, stops and kills processes of a server.
//! - [`cluster`]: standbys, backups, and servers restored from them.
//! - [`fleet`]: several servers that source their ids from a central one.
//! - [`leases`]: several servers that lease their worker ids from one.
//! - [`proxy`]: the network between servers, and its failures.
//! - [`clock`]: a clock that the test sets.
//! - [`counting`]: cost of a call in instructions.
//! - [`damage`]: ways to damage a file.
//! - `set_back`: tables whose contents a tool replaces by older ones.
//! - [`session`]: connections to a server, and errors.
//! - [`sometimes`]: rare branches of the library, and how often they were reached.
//! - [`status`]: state of the generators as seen by a session.
//! - [`checks`]: concurrent sessions, and checks of their ids.
//! - [`waiting`]: a session that waits, and interruptions of the wait.
//! - [`history`]: ids of many sessions under faults of their server.
//! - [`load`]: many sessions that take ids in all possible ways.
//!
//! `src/bin/runner.rs` runs the tests, several at a time.
//!
//! Environment:
//! - `LEAF_ID_PG_BIN`: directory of PostgreSQL programs; default: `pg_config --bindir`
//! - `LEAF_ID_PGXS`: another location of pg_regress, in the format of `pg_config --pgxs`
//! - `LEAF_ID_SERVER_USER`: user that runs servers if the tests run as root; default: postgres
//! - `LEAF_ID_SEED`: repeats a randomized test
//! - `LEAF_ID_LONG`: let every allocation fail in `slow::memory`, not every tenth; 2,000 sequences for
//!   each role in `security::effects`, not 60; a thousand
//!   histories of the explorer in `slow::explored`, not a hundred
//! - `LEAF_ID_TORTURE_SECONDS`: min duration of the torture test
//! - `LEAF_ID_SMITH_SECONDS`: duration of random statements for each of two roles; default: 60
//! - `LEAF_ID_ROWS`: length of the table adopted under load; default: 200000 rows
//! - `LEAF_ID_TENANTS`: number of tenants with a tag in `figures::tenants`
//! - `LEAF_ID_CLAIMS`: number of claims in `figures::scale::ten_million_claims`
//! - `LEAF_ID_SOMETIMES`: a file of zeroes in which the library counts its rare branches; the scripts
//!   build another library for it
//! - `LEAF_ID_HISTORIES`: a file with histories of the explorer of rows, in place of random ones
//! - `LEAF_ID_MEMCHECK`: run servers under memcheck, with the suppressions in this file
//! - `LEAF_ID_RUNNER`: set by the runner; exit at the end of standard input
//! - `LEAF_ID_EXPECTED`: if `write`, accept the output of the SQL tests as expected

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test a failure is a panic"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "they are banned in the server alone"
)]

pub mod attack;
pub mod catalog;
pub mod checks;
pub mod clock;
pub mod cluster;
pub mod counting;
pub mod damage;
pub mod disk;
pub mod fleet;
mod guard;
pub mod history;
pub mod installation;
pub mod leases;
pub mod load;
pub mod memory;
pub mod messages;
mod preload;
pub mod processes;
pub mod programs;
pub mod proxy;
pub mod server;
pub mod session;
mod set_back;
pub mod sometimes;
pub mod status;
pub mod waiting;

pub use attack::{ATTACKERS, Attack, Attacker, HERS, MALLORY, SHOP, each};
pub use checks::{
    Call, PATIENCE, PROMPTLY, assert_in_order, assert_issued_once, becomes, in_threads,
    in_threads_until, promptly, random, tell, timed, wait_until, while_repeating,
};
pub use clock::Clock;
pub use cluster::{ARCHIVING, Backup, STANDBY};
pub use damage::{DAMAGES, Damage};
pub use disk::Disk;
pub use fleet::{CENTRAL, Fleet};
pub use history::{Caller, Cut, History, IdRange, Source, Timed, Window};
pub use leases::{
    Asking, First, Holder, OTHER_BOOT, Refusal, Registry, assert_apart, default_node_name,
    edit_json, lease_conf, now_ms, time_of, worker_of,
};
pub use load::{Haste, Load, Part, Plan};
pub use memory::{Memory, Starved};
pub use messages::{call, impersonate, lease_message, lease_query};
pub use processes::{Frozen, Paused};
pub use proxy::{Flood, Mode, Proxy};
pub use server::{Server, Stop};
pub use session::{Failure, Session};
pub use waiting::{Disturbed, disturb_waiting};
