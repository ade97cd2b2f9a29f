//! What the seeded tests share.

/// The seed of this run: `LEAF_ID_SEED` if it is set, to repeat a failure, otherwise a
/// new one. Printed, so that a failure can be repeated.
#[allow(
    dead_code,
    reason = "each test file is a crate, and not all are seeded"
)]
pub fn seed() -> u64 {
    let seed = match std::env::var("LEAF_ID_SEED") {
        Ok(text) => text.parse().expect("LEAF_ID_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("LEAF_ID_SEED={seed}");
    seed
}

/// How many rounds a simulation has: so many, or with `LEAF_ID_LONG` set the other number.
#[allow(dead_code, reason = "each test file is a crate, and not all simulate")]
pub fn rounds(usual: u64, long: u64) -> u64 {
    if std::env::var_os("LEAF_ID_LONG").is_some() {
        long
    } else {
        usual
    }
}
