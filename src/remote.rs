//! Other servers: connections to them, requests to them, and requests from them.

pub mod central;
pub mod connection;
pub mod foreign_server;
mod libpq;
pub mod message;
pub mod serve;

pub use libpq::{RemoteError, Rows};
