//! What becomes of a row, where the worlds of `row_explorer` are too small to tell.
//!
//! Would catch: ids of a sourced tag skipped or raised as if they came from its row; an answer recorded
//! for a row that was replaced; a claim or a saved range beyond `max_value`.

#![cfg(not(leaf_id_loom))]

use leaf_id_core::row::{ClaimAnswer, Discarded, Here, LastClaim, Row, Update};
use leaf_id_core::step::{Decay, Limits};

const HERE: Here = Here {
    system: 1,
    timeline: 3,
    lost_claims: 2,
};

/// A row that was last claimed from before two promotions.
const ROW: Row<u8> = Row {
    max_id: 100,
    max_value: 1_000,
    limits: Limits {
        step: 10,
        max_step: 50,
    },
    incarnation: 7,
    last_claim: LastClaim {
        system: 1,
        timeline: 1,
        largest: 10,
    },
    server: None,
    server_incarnation: 0,
};
const SOURCED: Row<u8> = Row {
    server: Some(1),
    server_incarnation: 5,
    ..ROW
};
const ANSWER: ClaimAnswer = ClaimAnswer {
    first: 200,
    len: 10,
    incarnation: 5,
    max_step: 50,
    max_value: 1_000,
    skipped: 0,
};

#[test]
fn the_server_of_a_sourced_tag_knows_which_ids_are_taken() {
    assert_eq!(ROW.skip(&HERE), 2 * 50 * 3);
    assert_eq!(SOURCED.skip(&HERE), 0);
    assert_eq!(ROW.merged(200).map(|row| row.max_id), Some(200));
    assert_eq!(SOURCED.merged(200), None);
}

#[test]
fn a_row_that_comes_from_elsewhere_accepts_any_row_there() {
    for (is_renamed, server, expected) in [(false, 1, 5), (true, 1, 0), (false, 2, 0)] {
        let new = Row {
            server: Some(server),
            ..SOURCED
        };
        let update = Update {
            is_renamed,
            ..Update::default()
        };
        let row = new.updated(&SOURCED, &HERE, &update);
        assert_eq!(row.map(|row| row.server_incarnation), Some(expected));
    }
}

#[test]
fn a_larger_step_may_be_claimed_at_once_and_what_was_claimed_is_remembered() {
    for (step, longest) in [(20, 160), (1, 80)] {
        let limits = Limits {
            step,
            max_step: 1_000,
        };
        let new = Row { limits, ..ROW };
        let row = new.updated(&ROW, &HERE, &Update::default());
        assert_eq!(row.map(|row| row.longest_claim()), Some(longest));
    }
}

#[test]
fn max_id_is_lowered_by_no_edit_and_raised_by_one_that_is_replicated() {
    let new = Row { max_id: 50, ..ROW };
    let mut update = Update::default();
    assert_eq!(new.updated(&ROW, &HERE, &update), None);
    update.is_replicated = true;
    assert_eq!(new.updated(&ROW, &HERE, &update), Some(ROW));
}

#[test]
fn an_answer_is_recorded_in_the_row_that_asked_alone() {
    let received = |asked: &Row<u8>| SOURCED.received(asked, &ANSWER, &HERE, 9);
    let claim = received(&SOURCED).map(|claim| (claim.row.max_id, claim.row.incarnation));
    assert_eq!(claim, Ok((210, 7)));
    let mut others = [SOURCED; 3];
    others[0].incarnation = 8;
    others[1].server = Some(2);
    others[2].server_incarnation = 6;
    for other in others {
        assert_eq!(received(&other).map(drop), Err(Discarded::Replaced));
    }
}

#[test]
fn nothing_is_beyond_max_value() {
    let at_end = Row { max_id: 996, ..ROW };
    let claim = at_end.claim(0, 0, &HERE, 10, Decay::Alone);
    assert_eq!(claim.map(|claim| (claim.first, claim.len)), Some((996, 5)));
    assert!(at_end.claim(0, 5, &HERE, 10, Decay::Alone).is_none());
    assert!(at_end.fits(7, 996, 1_000));
    assert!(!at_end.fits(7, 996, 1_001));
}

#[test]
fn what_was_saved_is_of_the_same_row_without_a_claim_since() {
    assert!(ROW.fits(7, 100, 99));
    assert!(!ROW.fits(8, 100, 99));
    assert!(!ROW.fits(7, 99, 99));
}
