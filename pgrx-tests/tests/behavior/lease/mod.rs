//! Leases of worker ids: the registry, and the servers that hold leases.

pub(crate) mod asking;
mod one_configuration;
mod registry;
mod registry_bounds;
mod registry_callers;
mod registry_members;
