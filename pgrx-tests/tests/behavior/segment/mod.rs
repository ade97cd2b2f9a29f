//! Segment ids: results, waits and cost of calls, in all SQL contexts.

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
