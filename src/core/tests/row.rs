//! What becomes of a row, where the worlds of `row_explorer` are too small to tell.
//!
//! Would catch: ids of a sourced tag skipped or raised as if they came from its row; an answer recorded
//! for a row that was replaced; a claim or a saved range beyond `max_value`.

#![cfg(not(leaf_id_loom))]

use leaf_id_core::row::{ClaimAnswer, Discarded, Here, LastClaim, TagRow, Update};
use leaf_id_core::step::{Decay, Limits};

const HERE: Here = Here {
    system: 1,
    timeline: 3,
    lost_claims: 2,
};

/// A row that was last claimed from before two promotions.
const ROW: TagRow<u8> = TagRow {
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
const SOURCED: TagRow<u8> = TagRow {
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
        let new = TagRow {
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
        let new = TagRow { limits, ..ROW };
        let row = new.updated(&ROW, &HERE, &Update::default());
        assert_eq!(row.map(|row| row.longest_claim()), Some(longest));
    }
}

#[test]
fn max_id_is_lowered_by_no_edit_and_raised_by_one_that_is_replicated() {
    let new = TagRow { max_id: 50, ..ROW };
    let mut update = Update::default();
    assert_eq!(new.updated(&ROW, &HERE, &update), None);
    update.is_replicated = true;
    assert_eq!(new.updated(&ROW, &HERE, &update), Some(ROW));
}

#[test]
fn an_answer_is_recorded_in_the_row_that_asked_alone() {
    let received = |asked: &TagRow<u8>| SOURCED.received(asked, &ANSWER, &HERE, 9);
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

/// The last ids of a tag, and of all numbers. The largest `max_value` is 2^63 - 2.
#[test]
fn each_id_up_to_max_value_is_claimed_and_none_beyond() {
    const LARGEST: i64 = i64::MAX - 1;
    let limits = Limits {
        step: 1,
        max_step: i32::MAX.unsigned_abs(),
    };
    for max_value in [1, 2, 100, LARGEST - 20, LARGEST - 1, LARGEST] {
        for max_id in (max_value - 100).max(1)..=max_value.saturating_add(2) {
            for mark in [
                0,
                max_id - 1,
                max_id + i64::from(max_id < i64::MAX),
                i64::MAX,
            ] {
                for skip in [0, 1, 50, u64::MAX] {
                    let row = TagRow {
                        max_id,
                        max_value,
                        limits,
                        ..ROW
                    };
                    let first = max_id.max(mark).saturating_add_unsigned(skip);
                    claim_all(row, mark, skip, first);
                    let answer = ClaimAnswer { first, ..ANSWER };
                    let received = row.received(&row, &answer, &HERE, 9);
                    let len = received.ok().map(|claim| i64::from(claim.len));
                    let left = (first <= max_value).then(|| max_value - first + 1);
                    assert_eq!(len, left.map(|left| left.min(10)));
                }
            }
        }
    }
}

fn claim_all(mut row: TagRow<u8>, mark: i64, mut skip: u64, first: i64) {
    let mut next = first;
    for wanted in [1, 7, u32::MAX, u32::MAX, u32::MAX, u32::MAX] {
        let claim = row.claim(mark, skip, &HERE, wanted, Decay::Alone);
        let Some(claim) = claim else {
            break;
        };
        let len = i64::from(claim.len);
        assert!(claim.first == next && (1..=i64::from(wanted)).contains(&len));
        next += len;
        assert_eq!(claim.row.max_id, next);
        (row, skip) = (claim.row, 0);
    }
    let end = first.max(row.max_value.saturating_add(1));
    assert_eq!(next, end, "{row:?}");
}

/// More promotions, and more claims that each may have lost, skip no fewer ids.
#[test]
fn the_skip_grows_with_what_may_be_lost() {
    for (step, max_step) in [
        (1, 1),
        (1, 1_000),
        (10, 50),
        (1_000, i32::MAX.unsigned_abs()),
    ] {
        for largest in [0, 1, 9, 800, i32::MAX.unsigned_abs()] {
            let skip = |timeline, lost_claims| {
                let row = TagRow {
                    limits: Limits { step, max_step },
                    last_claim: LastClaim {
                        largest,
                        ..ROW.last_claim
                    },
                    ..ROW
                };
                row.skip(&Here {
                    timeline,
                    lost_claims,
                    ..HERE
                })
            };
            for timeline in (1..20).chain([u32::MAX - 1]) {
                for lost_claims in (0..20).chain([1_000]) {
                    let least = skip(timeline, lost_claims);
                    assert!(least <= skip(timeline + 1, lost_claims));
                    assert!(least <= skip(timeline, lost_claims + 1));
                }
            }
        }
    }
}

#[test]
fn what_is_saved_is_not_beyond_max_value() {
    assert!(ROW.fits(7, 100, 1_000));
    assert!(!ROW.fits(7, 100, 1_001));
}

#[test]
fn what_was_saved_is_of_the_same_row_without_a_claim_since() {
    assert!(ROW.fits(7, 100, 99));
    assert!(!ROW.fits(8, 100, 99));
    assert!(!ROW.fits(7, 99, 99));
}
