//! NIST's samples for FF1 within the range of [`Ff1`]: AES-256, equal halves below 2^32, a tweak
//! that fits in one block. These are samples 7 and 8. Samples 1 to 6 have smaller keys, and sample
//! 9 has 19 digits in radix 36. tests/opaque.rs compares with crate fpe, which passes all of them.

#![allow(clippy::unwrap_used, reason = "a test that panics fails")]

use super::*;

const KEY: [u8; KEY_BYTES] = [
    0x2B, 0x7E, 0x15, 0x16, 0x28, 0xAE, 0xD2, 0xA6, 0xAB, 0xF7, 0x15, 0x88, 0x09, 0xCF, 0x4F, 0x3C,
    0xEF, 0x43, 0x59, 0xD8, 0xD5, 0x80, 0xAA, 0x4F, 0x7F, 0x03, 0x6D, 0x6F, 0x04, 0xFC, 0x6A, 0x94,
];

#[test]
fn ff1_gives_what_nist_says() {
    let cipher = Aes256Enc::new(&KEY.into());
    let samples: [(&[u8], u64); 2] = [(b"", 6_657_667_009), (b"9876543210", 1_001_623_463)];
    for (tweak, encrypted) in samples {
        let ff1 = Ff1::new(&cipher, 10, 5, tweak);
        assert_eq!(ff1.encrypt(&cipher, 123_456_789), encrypted);
        assert_eq!(ff1.decrypt(&cipher, encrypted), 123_456_789);
    }
}

/// As for the domains that are allowed, each of which is too large to go through.
#[test]
fn each_small_domain_is_permuted() {
    let powers = (2..=8_u64).flat_map(|radix| radix.pow(4) - 1..=radix.pow(4) + 1);
    for last in (1..=300).chain(powers) {
        let cipher = Aes256Enc::new(&KEY.into());
        let radix = ceil_sqrt(ceil_sqrt(last)).max(2);
        let permutation = Permutation {
            key: KEY,
            ff1: Ff1::new(&cipher, radix, HALF_DIGITS, b""),
            cipher,
            last: last.cast_signed(),
        };
        let mut seen = vec![false; last as usize];
        for number in 1..=permutation.last {
            let id = permutation.encode(number).unwrap();
            assert_eq!(permutation.decode(id), Some(number));
            assert!(!core::mem::replace(&mut seen[id as usize - 1], true));
        }
    }
}

#[test]
fn a_key_and_a_domain_are_one_permutation() {
    let [one, same, other, longer] = [
        (KEY, 1_000_000),
        (KEY, 1_000_000),
        ([7; KEY_BYTES], 1_000_000),
        (KEY, 1_000_001),
    ]
    .map(|(key, last)| Permutation::new(&key, last).unwrap());
    assert!(one == same && one != other && one != longer);
}

#[test]
fn the_radix_is_the_smallest_that_has_enough_numerals() {
    for n in [
        1,
        2,
        15,
        16,
        17,
        1_000_000,
        (1 << 53) - 1,
        i64::MAX as u64 - 1,
    ] {
        let radix = ceil_sqrt(ceil_sqrt(n));
        assert!(radix.pow(4) >= n && (radix - 1).pow(4) < n);
        assert!(radix <= 1 << 16);
    }
}
