//! Drives real PostgreSQL servers with leaf_id from outside, through Unix sockets.
//!
//! - [`attack`]: a role that is not trusted, and what it achieves.
//! - [`server`]: a server of its own for each test, made in a fraction of a second.
//! - `guard`: cleans up after a test process that was killed.
//! - [`programs`]: PostgreSQL's programs, as whom and how they are run.
//! - [`installation`]: a PostgreSQL of a test's own, with other scripts of the extension.
//! - [`catalog`]: all that the catalogs of a database hold, to be compared.
//! - [`processes`]: processes of a server, stopped where they are and killed.
//! - [`cluster`]: standbys, backups, and servers restored from them.
//! - [`fleet`]: several servers that take their ids from one.
//! - [`leases`]: several servers that take their worker ids from one.
//! - [`proxy`]: the network between them, and its failures.
//! - [`clock`]: a clock that the test sets.
//! - [`counting`]: what a call costs in instructions.
//! - [`damage`]: ways in which a file can be spoilt.
//! - [`session`]: connections to it, and the errors it answers with.
//! - [`status`]: what they see of the generators.
//! - [`checks`]: many sessions at once, and what must be true of the ids they got.
//! - [`waiting`]: a session that waits, and what ends that.
//! - [`history`]: all that many sessions got while their server is badly treated.
//! - [`load`]: many sessions that take ids in every way there is.
//!
//! `src/bin/runner.rs` runs the tests, several at a time.
//!
//! Environment: `LEAF_ID_PG_BIN` (the programs to run; otherwise `pg_config --bindir`),
//! `LEAF_ID_SERVER_USER` (who runs them when we are root; otherwise postgres),
//! `LEAF_ID_SEED` (repeats a randomized test), `LEAF_ID_TORTURE_SECONDS` (how long the
//! torture takes at least), `LEAF_ID_SMITH_SECONDS` (how long random statements go on for each of
//! two roles; otherwise 60), `LEAF_ID_ROWS` (how long the table is that is adopted under load;
//! otherwise 200000 rows), `LEAF_ID_TENANTS` (how many tenants have a tag in that figure), `LEAF_ID_RUNNER` (set by the runner: end with standard input), `LEAF_ID_PGXS` (another place of
//! pg_regress: what `pg_config --pgxs` prints), `LEAF_ID_EXPECTED` (`write`: take the
//! output of the SQL tests as expected).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test a failure is a panic"
)]

pub mod attack;
pub mod catalog;
pub mod checks;
pub mod clock;
pub mod cluster;
pub mod counting;
pub mod damage;
pub mod fleet;
mod guard;
pub mod history;
pub mod installation;
pub mod leases;
pub mod load;
pub mod messages;
pub mod processes;
pub mod programs;
pub mod proxy;
pub mod server;
pub mod session;
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
pub use fleet::{CENTRAL, Fleet};
pub use history::{Caller, Cut, History, IdRange, Source, Window};
pub use leases::{
    Asking, First, Holder, OTHER_BOOT, Refusal, Registry, assert_apart, default_node_name,
    edit_json, lease_conf, now_ms, time_of, worker_of,
};
pub use load::{Haste, Load, Part, Plan};
pub use messages::{lease_message, lease_query};
pub use processes::{Frozen, Paused};
pub use proxy::{Mode, Proxy};
pub use server::{Server, Stop};
pub use session::{Failure, Session};
pub use waiting::{Disturbed, disturb_waiting};
