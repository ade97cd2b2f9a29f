//! Opaque ids compared with crate fpe, exhaustively in a small domain, and encoded and decoded in
//! others.
//!
//! Would catch: a cipher other than FF1, two numbers with the same id, a walk that leaves the
//! domain.

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
use leaf_id_core::opaque::{KEY_BYTES, MIN_VALUES, Permutation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const LARGEST: i64 = i64::MAX - 1;

fn key(rng: &mut StdRng) -> [u8; KEY_BYTES] {
    rng.random()
}

fn permutation(key: &[u8; KEY_BYTES], last: i64) -> Permutation {
    Permutation::new(key, last).expect("a domain")
}

/// Encrypts a number with fpe, in the same radix.
fn by_fpe(key: &[u8; KEY_BYTES], last: i64, number: i64) -> i64 {
    let values = last as u64;
    let radix = (1..).find(|radix: &u64| radix.pow(4) >= values).unwrap();
    let ff1 = FF1::<aes::Aes256>::new(key, radix as u32).unwrap();
    let mut place = (number - 1) as u64;
    loop {
        let digits: Vec<u16> = (0..4)
            .rev()
            .map(|at| (place / radix.pow(at) % radix) as u16)
            .collect();
        let numerals = FlexibleNumeralString::from(digits);
        let digits: Vec<u16> = ff1.encrypt(b"", &numerals).unwrap().into();
        place = digits
            .into_iter()
            .fold(0, |value, digit| value * radix + u64::from(digit));
        if place < values {
            return place as i64 + 1;
        }
    }
}

#[test]
fn it_is_ff1() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    for last in [
        MIN_VALUES,
        i64::from(i32::MAX),
        (1 << 53) - 1,
        LARGEST,
        3_000_000_000_000,
        // Just above a fourth power, where most results are walked over.
        40_i64.pow(4) + 1,
    ] {
        let key = key(&mut rng);
        let permutation = permutation(&key, last);
        let random: Vec<i64> = (0..300).map(|_| rng.random_range(1..=last)).collect();
        for number in random.into_iter().chain([1, 2, last - 1, last]) {
            let id = permutation.encode(number).unwrap();
            assert_eq!(id, by_fpe(&key, last, number), "{number} of {last}");
            assert!((1..=last).contains(&id));
            assert_eq!(permutation.decode(id), Some(number));
        }
        for outside in [i64::MIN, -1, 0, last + 1, i64::MAX] {
            assert_eq!(permutation.encode(outside), None);
            assert_eq!(permutation.decode(outside), None);
        }
    }
}

#[test]
fn every_value_of_a_small_domain_comes_once() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    let permutation = permutation(&key(&mut rng), MIN_VALUES);
    let mut seen = vec![false; MIN_VALUES as usize];
    let mut in_order = 0;
    for number in 1..=MIN_VALUES {
        let id = permutation.encode(number).unwrap();
        assert!(!core::mem::replace(&mut seen[(id - 1) as usize], true));
        in_order += u32::from(id == number);
    }
    // One fixed point is expected.
    assert!(in_order < 20);
}

#[test]
fn what_is_no_domain_is_refused() {
    for last in [i64::MIN, 0, MIN_VALUES - 1, i64::MAX] {
        assert!(Permutation::new(&[7; KEY_BYTES], last).is_none());
    }
}

/// Prints the cost, with a generous bound only, since it depends on the machine.
#[test]
fn what_an_id_costs() {
    for last in [MIN_VALUES, i64::from(i32::MAX), (1 << 53) - 1, LARGEST] {
        let permutation = permutation(&[3; KEY_BYTES], last);
        let started = Instant::now();
        for number in 1..=100_000 {
            black_box(permutation.encode(black_box(number)));
        }
        let ns = started.elapsed().as_nanos() / 100_000;
        println!("{ns} ns an id up to {last}");
    }
}
