//! Random numbers of this process.
//!
//! `rand::rng()` would do, but its thread-local variable registers a destructor at the first use:
//! where there is no memory for that, the C library aborts the process, and with it the server.

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::pg::{self, BackendLocal};

/// `None` until the first use, which is never in the postmaster: its children would repeat its
/// numbers.
static RNG: BackendLocal<Option<StdRng>> = BackendLocal::new(None);

/// Runs `body` with the generator. Raises an error like [`pg::strong_random`], at the first use.
pub fn with<T>(body: impl FnOnce(&mut StdRng) -> T) -> T {
    RNG.with_mut(|rng| body(rng.get_or_insert_with(|| StdRng::seed_from_u64(pg::strong_random()))))
}
