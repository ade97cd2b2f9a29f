//! Random histories, to be repeated on servers by `slow::explored` of pgrx-tests.

use std::fs;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::search::{self, Histories, Repeated};
use super::{failover, gapless, savepoints};
use crate::support;

/// Writes one history a line to the file that `LEAF_ID_HISTORIES` names: a tenth of them about
/// failovers, which take seconds each, and as many about savepoints as about gapless series.
#[test]
#[ignore = "for servers"]
#[allow(
    clippy::disallowed_methods,
    reason = "without memory, a test may abort"
)]
fn histories_for_servers() {
    let file = std::env::var_os("LEAF_ID_HISTORIES").expect("LEAF_ID_HISTORIES names a file");
    let mut random = StdRng::seed_from_u64(support::seed());
    let mut text = String::new();
    for number in 0..support::rounds(100, 1_000) {
        text += &match number % 20 {
            0 | 10 => {
                history::<failover::World<1>>(&failover::steps_for_servers(), 20, &mut random)
            }
            1..10 => history::<gapless::World>(&gapless::steps_for_servers(), 40, &mut random),
            _ => history::<savepoints::World>(&savepoints::steps_for_servers(), 40, &mut random),
        };
        text.push('\n');
    }
    fs::write(file, text).expect("the histories can be written");
}

fn history<W: Repeated>(steps: &[W::Step], len: u64, random: &mut StdRng) -> String {
    let histories = Histories {
        begin: &[],
        steps,
        depth: len,
    };
    search::random_history::<W>(histories, random)
}
