//! Tags whose ids come from a central server.

mod central;
mod central_answers;
mod central_failover;
mod central_network;
mod leaf_claim;
mod outage;
mod sourced_tags;
