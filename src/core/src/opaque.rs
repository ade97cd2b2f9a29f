//! Opaque ids: a keyed permutation of the numbers that a tag counts.
//!
//! A tag counts as ever, and each number is encrypted on its way to the caller: with FF1 of NIST
//! SP 800-38G over AES-256, which maps a domain onto itself. So an id is unique because its number
//! is, and tells nothing of how many there are.
//!
//! A domain is never changed, as ids of another one would collide with those of before; but it can
//! grow by a further range. A range is permuted by itself: its first number is FF1's tweak.
//!
//! FF1 works on numerals. A range of N values is taken as numerals of four digits, in the smallest
//! radix that has as many: 2^16 at most, as the standard demands. Two digits are a half, and a
//! half is a number below 2^32; so what the standard says of strings of digits is arithmetic on
//! `u64` here, and each of its ten rounds is one block of AES. What lies above N is encrypted
//! again, until it does not (cycle walking): rarely, as the radix is the smallest.

use aes::Aes256Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// The length of a key.
pub const KEY_BYTES: usize = 32;
/// The fewest values that a range may have: the standard demands as many.
pub const MIN_VALUES: u64 = 1_000_000;
/// The most ranges that a domain may have.
pub const MAX_RANGES: usize = 8;

const ROUNDS: u8 = 10;
/// Digits of a half.
const HALF_DIGITS: u8 = 2;

/// The ranges of a domain, which follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The first number, and the last one of each range.
    bounds: [i64; MAX_RANGES + 1],
    ranges: usize,
}

/// Why there is no such domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDomain {
    /// A range has less than [`MIN_VALUES`], or is not one of positive numbers.
    TooSmall,
    /// It would have more than [`MAX_RANGES`].
    TooManyRanges,
}

impl Domain {
    /// One range.
    ///
    /// # Errors
    /// See [`NoDomain`].
    pub fn new(first: i64, last: i64) -> Result<Self, NoDomain> {
        if first < 1 || last == i64::MAX {
            return Err(NoDomain::TooSmall);
        }
        let mut bounds = [0; MAX_RANGES + 1];
        bounds[0] = first;
        // Its end is before its beginning.
        bounds[1] = first - 1;
        let mut domain = Self { bounds, ranges: 0 };
        domain.push(last)?;
        Ok(domain)
    }

    /// As it was stored: see [`Domain::bounds`].
    ///
    /// # Errors
    /// See [`NoDomain`].
    pub fn of(bounds: &[i64]) -> Result<Self, NoDomain> {
        let [first, last, more @ ..] = bounds else {
            return Err(NoDomain::TooSmall);
        };
        let mut domain = Self::new(*first, *last)?;
        for last in more {
            domain = domain.extended(*last)?;
        }
        Ok(domain)
    }

    /// The same with one more range, up to this number.
    ///
    /// # Errors
    /// See [`NoDomain`].
    pub fn extended(mut self, last: i64) -> Result<Self, NoDomain> {
        self.push(last)?;
        Ok(self)
    }

    fn push(&mut self, last: i64) -> Result<(), NoDomain> {
        let end = if self.ranges == 0 {
            self.first() - 1
        } else {
            self.last()
        };
        let values = last.checked_sub(end).and_then(|n| u64::try_from(n).ok());
        if last == i64::MAX || values.is_none_or(|values| values < MIN_VALUES) {
            return Err(NoDomain::TooSmall);
        }
        let place = self.bounds.get_mut(self.ranges + 1);
        *place.ok_or(NoDomain::TooManyRanges)? = last;
        self.ranges += 1;
        Ok(())
    }

    /// The first number.
    #[must_use]
    pub fn first(&self) -> i64 {
        self.bounds[0]
    }

    /// The last number.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.bounds().last().copied().unwrap_or(0)
    }

    /// The first number, and the last one of each range.
    #[must_use]
    pub fn bounds(&self) -> &[i64] {
        self.bounds.get(..=self.ranges).unwrap_or_default()
    }

    /// The first and the last number of each range.
    fn ranges(&self) -> impl Iterator<Item = (i64, i64)> {
        let firsts = (0..).zip(self.bounds());
        let firsts = firsts.map(|(number, bound)| bound + i64::from(number > 0));
        firsts.zip(self.bounds().iter().skip(1).copied())
    }
}

/// The permutation of a domain that a key selects.
pub struct Permutation {
    cipher: Aes256Enc,
    ranges: Vec<Range>,
}

struct Range {
    first: i64,
    values: u64,
    ff1: Ff1,
}

impl Permutation {
    /// That of a key and a domain.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES], domain: &Domain) -> Self {
        let cipher = Aes256Enc::new(key.into());
        let range = |(first, last): (i64, i64)| {
            let values = (last - first).cast_unsigned() + 1;
            // The fourth root, rounded up.
            let radix = ceil_sqrt(ceil_sqrt(values));
            Range {
                first,
                values,
                ff1: Ff1::new(&cipher, radix, HALF_DIGITS, &first.to_be_bytes()),
            }
        };
        let ranges = domain.ranges().map(range).collect();
        Self { cipher, ranges }
    }

    /// Whether a number is in the domain.
    #[must_use]
    pub fn holds(&self, number: i64) -> bool {
        self.place(number).is_some()
    }

    fn place(&self, number: i64) -> Option<(&Range, u64)> {
        self.ranges.iter().find_map(|range| {
            let place = u64::try_from(number.checked_sub(range.first)?).ok()?;
            (place < range.values).then_some((range, place))
        })
    }

    /// The id of a number; `None` if that is not in the domain.
    #[must_use]
    pub fn encode(&self, number: i64) -> Option<i64> {
        self.walk(number, Ff1::encrypt)
    }

    /// The number of an id; `None` if that is not in the domain.
    #[must_use]
    pub fn decode(&self, id: i64) -> Option<i64> {
        self.walk(id, Ff1::decrypt)
    }

    /// Maps within a range: what leaves it is mapped again, and comes back at the latest as what it
    /// was.
    fn walk(&self, from: i64, map: impl Fn(&Ff1, &Aes256Enc, u64) -> u64) -> Option<i64> {
        let (range, mut place) = self.place(from)?;
        loop {
            place = map(&range.ff1, &self.cipher, place);
            if place < range.values {
                return Some(range.first + place.cast_signed());
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
    /// How many values a half has: radix^v.
    half: u64,
    /// The block of a round without its number and its half: P, encrypted, and the tweak.
    block: u128,
    /// How far to the left of the half the round's number stands, in bits.
    round_shift: u32,
}

impl Ff1 {
    /// The tweak and a half fit in one block, with a byte between them.
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

    /// What a round adds to one half, as the other half is.
    #[inline]
    fn round(&self, cipher: &Aes256Enc, number: u8, half: u64) -> u64 {
        let round = u128::from(number) << self.round_shift;
        let block = encrypted(cipher, self.block ^ round ^ u128::from(half));
        // The standard's d: its first 8 bytes, for a half of 4 bytes or less.
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

    /// Of what is below twice a half.
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
