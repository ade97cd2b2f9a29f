//! The files that leaf_id writes: damaged, copied, gone or not writable.

mod reservation_file;
mod saved_ranges_file;
