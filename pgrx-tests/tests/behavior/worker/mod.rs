//! Background workers: when they start and end, and what happens where there are none.

mod workers;
mod workers_under_load;
