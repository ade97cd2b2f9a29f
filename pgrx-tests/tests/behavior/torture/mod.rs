//! Random concurrent events. `make torture` runs the long ones.

mod branches;
mod driver;
mod event;
mod fleet;
mod server;
mod sqlsmith;
mod stalls;
