//! Measurements; nothing else runs at the same time.

mod gapless;
mod ordered;
mod scale;
mod tenants;
