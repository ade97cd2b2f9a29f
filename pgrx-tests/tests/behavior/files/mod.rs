//! Files written by leaf_id: corrupt, copied, missing or not writable.

mod durable;
mod reservation_file;
mod saved_ranges_file;
