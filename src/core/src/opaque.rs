//! Opaque ids: a keyed permutation of a tag's numbers.
//!
//! A number is encrypted with FF1 of NIST SP 800-38G over AES-256, a permutation of its domain. So
//! an id is as unique as its number, and does not reveal how many there are.
//!
//! FF1 works on numerals. A domain of N values is represented by numerals of four digits in the
//! smallest radix that suffices; it is at most 2^16, as the standard requires. A half is two
//! digits, a number below 2^32. So the standard's operations on strings are arithmetic on `u64`
//! here, and each of the ten rounds is one AES block. A result outside the domain is encrypted
//! again (cycle walking); this is rare, since the radix is the smallest.

use aes::Aes256Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Min size of the domain, required by the standard.
pub const MIN_VALUES: i64 = 1_000_000;

const ROUNDS: u8 = 10;
/// Digits per half.
const HALF_DIGITS: u8 = 2;

/// The permutation of 1 to `last` that a key selects.
pub struct Permutation {
    key: [u8; KEY_BYTES],
    cipher: Aes256Enc,
    last: i64,
    ff1: Ff1,
}

/// The rest follows from the key and the largest number.
impl PartialEq for Permutation {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.last) == (other.key, other.last)
    }
}

impl Permutation {
    /// `None` if `last` is below [`MIN_VALUES`] or is the largest `i64`.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES], last: i64) -> Option<Self> {
        if !(MIN_VALUES..i64::MAX).contains(&last) {
            return None;
        }
        let cipher = Aes256Enc::new(key.into());
        // The fourth root, rounded up.
        let radix = ceil_sqrt(ceil_sqrt(last.cast_unsigned()));
        let ff1 = Ff1::new(&cipher, radix, HALF_DIGITS, b"");
        Some(Self {
            key: *key,
            cipher,
            last,
            ff1,
        })
    }

    /// Largest number, and largest id.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// The id of a number; `None` if it is outside the domain.
    #[must_use]
    pub fn encode(&self, number: i64) -> Option<i64> {
        self.walk(number, Ff1::encrypt)
    }

    /// The number of an id; `None` if it is outside the domain.
    #[must_use]
    pub fn decode(&self, id: i64) -> Option<i64> {
        self.walk(id, Ff1::decrypt)
    }

    /// Applies `map` until the result is inside the domain. It terminates, since the cycle leads
    /// back to `from`.
    fn walk(&self, from: i64, map: impl Fn(&Ff1, &Aes256Enc, u64) -> u64) -> Option<i64> {
        if !(1..=self.last).contains(&from) {
            return None;
        }
        let mut place = (from - 1).cast_unsigned();
        loop {
            place = map(&self.ff1, &self.cipher, place);
            if place < self.last.cast_unsigned() {
                return Some(place.cast_signed() + 1);
            }
        }
    }
}

/// The square root, rounded up.
fn ceil_sqrt(n: u64) -> u64 {
    n.checked_sub(1).map_or(0, |n| n.isqrt() + 1)
}

/// FF1 for numerals of two equal halves, each a number below 2^32.
struct Ff1 {
    /// Number of values of a half: radix^v.
    half: u64,
    /// Input block of a round, without round number and half: P, encrypted, and the tweak.
    block: u128,
    /// Position of the round number to the left of the half, in bits.
    round_shift: u32,
}

impl Ff1 {
    /// The tweak and a half must fit in one block, with a byte between them.
    fn new(cipher: &Aes256Enc, radix: u64, half_digits: u8, tweak: &[u8]) -> Self {
        let half = radix.pow(half_digits.into());
        let half_bits = u64::BITS - (half - 1).leading_zeros();
        debug_assert!(half_bits <= 32, "a half has 4 bytes at most");
        let mut p = [0; 16];
        p[..3].copy_from_slice(&[1, 2, 1]);
        p[3..6].copy_from_slice(&radix.to_be_bytes()[5..]);
        p[6] = ROUNDS;
        p[7] = half_digits;
        p[11] = 2 * half_digits;
        p[12..].copy_from_slice(&(tweak.len() as u32).to_be_bytes());
        let mut q = [0; 16];
        q[..tweak.len()].copy_from_slice(tweak);
        Self {
            half,
            block: encrypted(cipher, u128::from_be_bytes(p)) ^ u128::from_be_bytes(q),
            round_shift: half_bits.next_multiple_of(8),
        }
    }

    /// The value that a round adds to one half, a function of the other half.
    #[inline]
    fn round(&self, cipher: &Aes256Enc, number: u8, half: u64) -> u64 {
        let round = u128::from(number) << self.round_shift;
        let block = encrypted(cipher, self.block ^ round ^ u128::from(half));
        // d in the standard: the first 8 bytes, for a half of at most 4 bytes.
        (block >> 64) as u64 % self.half
    }

    fn encrypt(&self, cipher: &Aes256Enc, value: u64) -> u64 {
        let (mut a, mut b) = (value / self.half, value % self.half);
        for number in 0..ROUNDS {
            let sum = a + self.round(cipher, number, b);
            (a, b) = (b, self.wrapped(sum));
        }
        a * self.half + b
    }

    fn decrypt(&self, cipher: &Aes256Enc, value: u64) -> u64 {
        let (mut a, mut b) = (value / self.half, value % self.half);
        for number in (0..ROUNDS).rev() {
            let sum = b + self.half - self.round(cipher, number, a);
            (a, b) = (self.wrapped(sum), a);
        }
        a * self.half + b
    }

    /// `sum` modulo `half`, for a sum below 2 * `half`.
    #[inline]
    fn wrapped(&self, sum: u64) -> u64 {
        if sum < self.half {
            sum
        } else {
            sum - self.half
        }
    }
}

#[inline]
fn encrypted(cipher: &Aes256Enc, block: u128) -> u128 {
    let mut block = block.to_be_bytes().into();
    cipher.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

#[cfg(test)]
mod tests;
