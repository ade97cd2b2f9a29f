//! Figures: nothing else runs beside them.

mod gapless;
mod tenants;
