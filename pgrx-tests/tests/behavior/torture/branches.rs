//! Would catch: a rare branch of the library that no test reaches any more, or never did.

use std::collections::BTreeSet;

use leaf_id_core::sometimes::counter;
use leaf_id_tests::sometimes::{branches, reached};

/// Prints how often each branch was reached, by this test and by those before it.
pub(super) fn print() {
    let Some(reached) = reached() else { return };
    println!("branches:");
    for (name, times) in reached {
        println!("  {name:60} {times:>12}");
    }
}

#[test]
fn each_branch_has_a_name_and_a_counter_of_its_own() {
    let names = branches();
    assert!(names.len() > 30, "{names:?}");
    let counters: BTreeSet<_> = names.iter().map(|name| counter(name)).collect();
    assert_eq!(counters.len(), names.len(), "{names:?}");
}

/// Run by `make night`, after all else.
#[test]
#[ignore = "after hours of torture"]
fn each_branch_was_reached() {
    let reached = reached().expect("LEAF_ID_SOMETIMES");
    print();
    let never: Vec<_> = reached.iter().filter(|(_, times)| **times == 0).collect();
    assert!(never.is_empty(), "never reached: {never:#?}");
}
