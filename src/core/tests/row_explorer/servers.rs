//! Histories that `slow::explored` of pgrx-tests repeats on servers.

use std::fs;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::search::{self, Histories, Repeated};
use super::{failover, gapless, savepoints};
use crate::support;

/// Writes one history a line to the file that `LEAF_ID_HISTORIES` names, if it does: a tenth of them about
/// failovers, which take seconds each, and as many about savepoints as about gapless series. Most of
/// them begin with a history that shows why a rule is needed, and all go on at random.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "without memory, a test may abort"
)]
fn histories_for_servers() {
    let mut random = StdRng::seed_from_u64(support::seed());
    let mut failovers =
        Kind::<failover::World<1>>::new(&failover::RULES, failover::steps_for_servers(), 6);
    failovers.broken.extend(failover::broken_after_unload());
    let gapless = Kind::<gapless::World>::new(&gapless::RULES, gapless::steps_for_servers(), 8);
    let rules = savepoints::RULES;
    let savepoints = Kind::<savepoints::World>::new(&rules, savepoints::steps_for_servers(), 8);
    let mut text = String::new();
    for number in 0..support::rounds(100, 1_000) {
        text += &match number % 20 {
            0 | 10 => failovers.history(20, &mut random),
            1..10 => gapless.history(40, &mut random),
            _ => savepoints.history(40, &mut random),
        };
        text.push('\n');
    }
    assert!(text.contains("=refused"), "no step is refused");
    if let Some(file) = std::env::var_os("LEAF_ID_HISTORIES") {
        fs::write(file, text).expect("the histories can be written");
    }
}

struct Kind<W: Repeated> {
    steps: Vec<W::Step>,
    /// Histories that break a promise without some rule.
    broken: Vec<Vec<W::Step>>,
}

impl<W: Repeated> Kind<W> {
    /// `depth`: of the histories that show why a rule is needed.
    fn new(rules: &[W::Rule], steps: Vec<W::Step>, depth: u64) -> Self {
        let histories = Histories {
            begin: &[],
            steps: &steps,
            depth,
        };
        let broken = search::broken::<W>(rules, histories);
        println!("{}: {} of {} rules", W::NAME, broken.len(), rules.len());
        Self { steps, broken }
    }

    fn history(&self, len: u64, random: &mut StdRng) -> String {
        let histories = Histories {
            begin: &[],
            steps: &self.steps,
            depth: len,
        };
        let begin = self.broken.choose(random).map_or(&[][..], |steps| steps);
        search::history::<W>(begin, histories, random)
    }
}
