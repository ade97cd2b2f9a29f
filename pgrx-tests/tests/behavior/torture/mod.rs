//! Random concurrent events. `make torture` runs the long ones.

mod driver;
mod fleet;
mod server;
mod sqlsmith;
mod stalls;
