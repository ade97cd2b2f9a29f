//! Many things at a time, at random. `make torture` runs the long ones.

mod driver;
mod fleet;
mod server;
mod sqlsmith;
