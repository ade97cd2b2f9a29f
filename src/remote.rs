//! Other servers: connections to them, requests to them, and requests from them.
//!
//! * [`connection`]: a nonblocking connection to leaf_id on another server.
//! * [`foreign_server`]: address of a server, as defined by CREATE SERVER.
//! * [`libpq`]: libpq's asynchronous calls.
//! * [`message`]: messages between servers.
//! * [`central`]: source servers of a database's tags.
//! * [`serve`]: rules for calls from other servers.

pub mod central;
pub mod connection;
pub mod foreign_server;
mod libpq;
pub mod message;
pub mod serve;

pub use libpq::{RemoteError, Rows};
