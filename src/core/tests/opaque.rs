//! Opaque ids against crate fpe, exhaustively in a small domain, and there and back in others.
//!
//! Would catch: another cipher than FF1, a value that two numbers are mapped to, a walk that leaves
//! the range, a range that changes when another one follows it.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use std::hint::black_box;
use std::time::Instant;

use fpe::ff1::{FF1, FlexibleNumeralString};
use leaf_id_core::opaque::{Domain, KEY_BYTES, MAX_RANGES, MIN_VALUES, NoDomain, Permutation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const LARGEST: i64 = i64::MAX - 1;

fn key(rng: &mut StdRng) -> [u8; KEY_BYTES] {
    rng.random()
}

fn domain(first: i64, last: i64) -> Domain {
    Domain::new(first, last).expect("a domain")
}

/// What fpe makes of a value of a range, with the same radix and tweak.
fn by_fpe(key: &[u8; KEY_BYTES], first: i64, last: i64, number: i64) -> i64 {
    let values = (last - first) as u64 + 1;
    let radix = (1..).find(|radix: &u64| radix.pow(4) >= values).unwrap();
    let ff1 = FF1::<aes::Aes256>::new(key, radix as u32).unwrap();
    let mut place = (number - first) as u64;
    loop {
        let digits: Vec<u16> = (0..4)
            .rev()
            .map(|at| (place / radix.pow(at) % radix) as u16)
            .collect();
        let numerals = FlexibleNumeralString::from(digits);
        let digits: Vec<u16> = ff1.encrypt(&first.to_be_bytes(), &numerals).unwrap().into();
        place = digits
            .into_iter()
            .fold(0, |value, digit| value * radix + u64::from(digit));
        if place < values {
            return first + place as i64;
        }
    }
}

#[test]
fn it_is_ff1() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    let domains = [
        (1, 1_000_000),
        (1, i64::from(i32::MAX)),
        (1, (1 << 53) - 1),
        (1, LARGEST),
        (1_000, 3_000_000_000_000),
        // Just above a fourth power, where most is walked over.
        (1, 40_i64.pow(4) + 1),
    ];
    for (first, last) in domains {
        let key = key(&mut rng);
        let permutation = Permutation::new(&key, &domain(first, last));
        let random: Vec<i64> = (0..300).map(|_| rng.random_range(first..=last)).collect();
        for number in random.into_iter().chain([first, first + 1, last - 1, last]) {
            let id = permutation.encode(number).unwrap();
            assert_eq!(
                id,
                by_fpe(&key, first, last, number),
                "{number} in {first}..={last}"
            );
            assert!((first..=last).contains(&id));
            assert_eq!(permutation.decode(id), Some(number));
        }
    }
}

#[test]
fn every_value_of_a_small_domain_comes_once() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    let (first, last) = (7, 1_000_006);
    let permutation = Permutation::new(&key(&mut rng), &domain(first, last));
    let mut seen = vec![false; 1_000_000];
    let mut in_order = 0;
    for number in first..=last {
        let id = permutation.encode(number).unwrap();
        assert!(!core::mem::replace(&mut seen[(id - first) as usize], true));
        in_order += u32::from(id == number);
    }
    // One is expected to stay where it is.
    assert!(in_order < 20);
}

#[test]
fn a_further_range_leaves_those_before_as_they_are() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    let key = key(&mut rng);
    let small = domain(1, 2_000_000);
    let large = small.extended(1 << 40).unwrap();
    assert_eq!((large.first(), large.last()), (1, 1 << 40));
    assert_eq!(Domain::of(large.bounds()), Ok(large));
    let (before, after) = (
        Permutation::new(&key, &small),
        Permutation::new(&key, &large),
    );
    for number in (1..=2_000_000).step_by(997) {
        assert_eq!(before.encode(number), after.encode(number));
    }
    for _ in 0..1_000 {
        let number = rng.random_range(2_000_001..=1 << 40);
        let id = after.encode(number).unwrap();
        assert!((2_000_001..=1 << 40).contains(&id));
        assert_eq!(after.decode(id), Some(number));
        assert_eq!(before.encode(number), None);
        assert_eq!((before.holds(number), after.holds(number)), (false, true));
    }
    for outside in [i64::MIN, -1, 0, (1 << 40) + 1, i64::MAX] {
        assert_eq!((after.encode(outside), after.decode(outside)), (None, None));
        assert!(!after.holds(outside));
    }
}

#[test]
fn ranges_of_one_key_are_permuted_differently() {
    let key = [7; KEY_BYTES];
    let values = MIN_VALUES as i64;
    let both = domain(1, values).extended(2 * values).unwrap();
    let permutation = Permutation::new(&key, &both);
    let same = |number: &i64| {
        permutation.encode(number + values) == permutation.encode(*number).map(|id| id + values)
    };
    assert!((1..=1_000).filter(same).count() < 5);
}

#[test]
fn what_is_no_domain_is_refused() {
    assert_eq!(Domain::new(1, 999_999), Err(NoDomain::TooSmall));
    assert_eq!(Domain::new(0, 1_000_000), Err(NoDomain::TooSmall));
    assert_eq!(Domain::new(i64::MIN, LARGEST), Err(NoDomain::TooSmall));
    assert_eq!(Domain::new(1, i64::MAX), Err(NoDomain::TooSmall));
    assert_eq!(Domain::of(&[]), Err(NoDomain::TooSmall));
    assert_eq!(Domain::of(&[1]), Err(NoDomain::TooSmall));
    let smallest = domain(1, 1_000_000);
    assert_eq!(smallest.extended(1_999_999), Err(NoDomain::TooSmall));
    assert_eq!(smallest.extended(5), Err(NoDomain::TooSmall));
    assert_eq!(smallest.extended(i64::MIN), Err(NoDomain::TooSmall));
    let mut full = smallest;
    for range in 2..=MAX_RANGES as i64 {
        full = full.extended(range * 1_000_000).unwrap();
    }
    assert_eq!(full.extended(LARGEST), Err(NoDomain::TooManyRanges));
}

/// Printed and hardly bounded: what an id costs depends on the machine.
#[test]
fn what_an_id_costs() {
    for (first, last) in [
        (1, 1_000_000),
        (1, i64::from(i32::MAX)),
        (1, (1 << 53) - 1),
        (1, LARGEST),
    ] {
        let permutation = Permutation::new(&[3; KEY_BYTES], &domain(first, last));
        let started = Instant::now();
        for number in 1..=100_000 {
            black_box(permutation.encode(black_box(number)));
        }
        let ns = started.elapsed().as_nanos() / 100_000;
        println!("{ns} ns an id up to {last}");
    }
}
