//! Other servers: how one is reached, what is asked of it, and what it asks here.
//!
//! * [`connection`]: a connection to leaf_id on another server, which never waits.
//! * [`foreign_server`]: where that server is, as CREATE SERVER says.
//! * [`libpq`]: libpq's asynchronous calls.
//! * [`message`]: what servers ask one another, and answer.
//! * [`central`]: the servers that tags of a database are sourced from.
//! * [`serve`]: what a call from another server has to keep.

pub mod central;
pub mod connection;
pub mod foreign_server;
mod libpq;
pub mod message;
pub mod serve;

pub use libpq::{RemoteError, Rows};
