//! Shared code of the seeded tests.

/// The seed of this run: `LEAF_ID_SEED` if set, to repeat a failure, otherwise a random one.
/// Printed.
#[allow(
    dead_code,
    clippy::disallowed_methods,
    reason = "each test file is a crate, and not all are seeded; without memory, a test may abort"
)]
pub fn seed() -> u64 {
    let seed = match std::env::var("LEAF_ID_SEED") {
        Ok(text) => text.parse().expect("LEAF_ID_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("LEAF_ID_SEED={seed}");
    seed
}

/// Number of rounds of a simulation; the second argument applies if `LEAF_ID_LONG` is set.
#[allow(dead_code, reason = "each test file is a crate, and not all simulate")]
pub fn rounds(usual: u64, long: u64) -> u64 {
    if std::env::var_os("LEAF_ID_LONG").is_some() {
        long
    } else {
        usual
    }
}
