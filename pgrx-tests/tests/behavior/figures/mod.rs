//! Measurements; nothing else runs at the same time.

mod gapless;
mod scale;
mod tenants;
