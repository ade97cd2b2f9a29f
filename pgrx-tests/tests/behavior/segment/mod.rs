//! Segment ids: what a call returns, waits for and costs, wherever SQL may call it.

mod bad_input;
mod batch_and_range;
mod cost;
mod errors;
mod every_kind_of_statement;
mod parallel_query;
mod rollback;
mod sessions_share_ids;
mod slot_array;
mod sql_contexts;
pub(crate) mod waits;
