//! Measurements; nothing else runs at the same time.

mod gapless;
mod tenants;
