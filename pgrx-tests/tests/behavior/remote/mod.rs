//! Tags whose ids come from a central server.

mod central;
mod leaf_claim;
mod sourced_tags;
