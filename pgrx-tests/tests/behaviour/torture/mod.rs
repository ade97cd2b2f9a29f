//! Many things at a time, at random. `make torture` runs the long ones.

mod fleet_torture;
mod server;
mod sqlsmith;
