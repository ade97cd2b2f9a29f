//! Background workers: when they start and exit, and what happens without them.

mod workers;
mod workers_under_load;
