//! Leases of worker ids: the registry, and the servers that hold a lease.

mod asking;
mod one_configuration;
mod registry;
mod registry_away;
mod registry_bounds;
mod registry_callers;
mod registry_clock;
mod registry_failover;
mod registry_fencing;
mod registry_members;
