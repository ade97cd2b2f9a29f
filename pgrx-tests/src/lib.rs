//! Drives real PostgreSQL servers with leaf_id from outside.
