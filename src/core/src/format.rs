//! Ids as people read them: a text by a pattern, or a UUID of version 8; and back.
//!
//! A pattern is literal text with fields in braces. What the fields show are the parts of one
//! number, so a text stands for one id, and an id that the fields cannot hold has no text:
//!
//! | field | shows |
//! | --- | --- |
//! | `{N}`, `{N:6}` | decimal digits; with a width, exactly as many |
//! | `{BASE32}`, `{BASE32:13}` | the same in Crockford's base 32 |
//! | `{YYYY}`, `{MM}`, `{DD}` | the period that stands in front of the number in an id by period |
//! | `{CHECK}` | Crockford's check symbol: the id modulo 37 |
//!
//! There is one number in a pattern. Where it has no width, it is as long as what the rest
//! leaves of a text, so nothing is ambiguous, whatever stands beside it.

/// Why a text is no pattern, as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPattern {
    /// A brace without its other half.
    Brace,
    /// A field that does not exist.
    Field,
    /// A width that is none.
    Width,
    /// A field that stands there twice.
    Twice,
    /// No number.
    NoNumber,
    /// A month without a year, or a day without a month.
    Period,
    /// A period in front of a number whose digits are not known.
    PeriodWidth,
    /// More digits than an id has.
    Digits,
}

impl BadPattern {
    /// For people.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Brace => "A brace opens or closes a field, and cannot stand for itself.",
            Self::Field => {
                "Fields are {N}, {BASE32}, {YYYY}, {MM}, {DD} and {CHECK}; {N:6} and {BASE32:13} have a width."
            }
            Self::Width => "A width is 1 to 19 for {N}, and 1 to 13 for {BASE32}.",
            Self::Twice => "A field, {N} or {BASE32} too, can stand there only once.",
            Self::NoNumber => "Without {N} or {BASE32} a text would stand for many ids.",
            Self::Period => "{MM} needs {YYYY}, and {DD} needs {MM}.",
            Self::PeriodWidth => {
                "With a period the number is {N} with a width: the digits of the tag."
            }
            Self::Digits => "Period and number have at most 19 digits together.",
        }
    }
}

/// Why a text does not stand for an id, as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparsed {
    /// Too long or too short.
    Length,
    /// What is not a field is different.
    Literal,
    /// A character that is no digit.
    Digit,
    /// A zero in front of a number without a width.
    Zero,
    /// No year, month or day.
    Period,
    /// Beyond the last id.
    TooLarge,
    /// Another check symbol.
    Check,
}

impl Unparsed {
    /// For people.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Length => "Its length is not that of the pattern.",
            Self::Literal => "It has other text between the fields.",
            Self::Digit => "It has a character that is no digit of its field.",
            Self::Zero => "Its number begins with a zero, and the pattern gives it no width.",
            Self::Period => "It has a year, month or day that does not exist.",
            Self::TooLarge => "Its number is larger than any id.",
            Self::Check => "Its check symbol is wrong.",
        }
    }
}

/// Crockford's digits, and what else may be read as one of them. Its check symbols go on
/// after them.
const SYMBOLS: &[u8; 37] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ*~$=U";

/// What a character counts as in base 32, or as a check symbol; [`NO_DIGIT`] for none.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < SYMBOLS.len() {
        values[SYMBOLS[value] as usize] = value as u8;
        values[SYMBOLS[value].to_ascii_lowercase() as usize] = value as u8;
        value += 1;
    }
    let mut alias = 0;
    while alias < ALIASES.len() {
        values[ALIASES[alias].0 as usize] = ALIASES[alias].1;
        alias += 1;
    }
    values
};
const NO_DIGIT: u8 = u8::MAX;
const ALIASES: [(u8, u8); 6] = [
    (b'O', 0),
    (b'o', 0),
    (b'I', 1),
    (b'i', 1),
    (b'L', 1),
    (b'l', 1),
];
const CHECKS: u64 = 37;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Radix {
    Decimal,
    Base32,
}

impl Radix {
    fn base(self) -> u64 {
        match self {
            Self::Decimal => 10,
            Self::Base32 => 32,
        }
    }

    /// How many digits the largest id has.
    fn most(self) -> usize {
        match self {
            Self::Decimal => 19,
            Self::Base32 => 13,
        }
    }

    /// How many digits a number has without zeros in front.
    fn len(self, number: u64) -> usize {
        let log = match self {
            Self::Decimal => number.checked_ilog10(),
            Self::Base32 => number.checked_ilog2().map(|log| log / 5),
        };
        log.unwrap_or(0) as usize + 1
    }

    /// Fills all of it, with zeros in front.
    fn write(self, mut number: u64, out: &mut [u8]) {
        for place in out.iter_mut().rev() {
            *place = SYMBOLS[(number % self.base()) as usize];
            number /= self.base();
        }
    }

    fn read(self, text: &[u8]) -> Result<u64, Unparsed> {
        text.iter().try_fold(0_u64, |number, &symbol| {
            let value = match self {
                Self::Decimal if !symbol.is_ascii_digit() => NO_DIGIT,
                _ => VALUES[usize::from(symbol)],
            };
            if u64::from(value) >= self.base() {
                return Err(Unparsed::Digit);
            }
            let more = number.checked_mul(self.base());
            let more = more.and_then(|more| more.checked_add(value.into()));
            more.ok_or(Unparsed::TooLarge)
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    radix: Radix,
    width: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Number(Number),
    Year,
    Month,
    Day,
    Check,
}

impl Field {
    fn of(name: &[u8]) -> Result<Self, BadPattern> {
        let mut parts = name.splitn(2, |byte| *byte == b':');
        let (name, width) = (parts.next().unwrap_or_default(), parts.next());
        let number = |radix: Radix| {
            let width = width.map(|width| {
                let plain = width.iter().all(u8::is_ascii_digit) && !width.starts_with(b"0");
                let width = str::from_utf8(width).ok().filter(|_| plain);
                let width = width.and_then(|width| width.parse().ok());
                let fits = |width: &usize| *width <= radix.most();
                width.filter(fits).ok_or(BadPattern::Width)
            });
            let width = width.transpose()?;
            Ok(Self::Number(Number { radix, width }))
        };
        match name {
            b"N" => number(Radix::Decimal),
            b"BASE32" => number(Radix::Base32),
            b"YYYY" if width.is_none() => Ok(Self::Year),
            b"MM" if width.is_none() => Ok(Self::Month),
            b"DD" if width.is_none() => Ok(Self::Day),
            b"CHECK" if width.is_none() => Ok(Self::Check),
            _ => Err(BadPattern::Field),
        }
    }

    /// How many characters it has, unless that depends on the id.
    fn width(self) -> Option<usize> {
        match self {
            Self::Number(number) => number.width,
            Self::Year => Some(4),
            Self::Month | Self::Day => Some(2),
            Self::Check => Some(1),
        }
    }
}

enum Piece<'a> {
    Literal(&'a [u8]),
    Field(Field),
}

/// The pieces of a pattern, one after the other.
struct Pieces<'a>(&'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, BadPattern>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.0;
        let is_brace = |byte: &u8| matches!(byte, b'{' | b'}');
        let (piece, rest) = match text.first()? {
            b'}' => return Some(Err(BadPattern::Brace)),
            b'{' => {
                let Some(len) = text[1..].iter().position(is_brace) else {
                    return Some(Err(BadPattern::Brace));
                };
                let (name, rest) = text[1..].split_at(len);
                match rest.split_first() {
                    Some((b'}', rest)) => (Field::of(name).map(Piece::Field), rest),
                    _ => return Some(Err(BadPattern::Brace)),
                }
            }
            _ => {
                let len = text.iter().position(is_brace).unwrap_or(text.len());
                let (literal, rest) = text.split_at(len);
                (Ok(Piece::Literal(literal)), rest)
            }
        };
        self.0 = rest;
        Some(piece)
    }
}

/// What a text shows of an id.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    year: u64,
    month: u64,
    day: u64,
    number: u64,
}

/// A pattern that was found to be one.
#[derive(Debug, Clone, Copy)]
pub struct Pattern<'a> {
    text: &'a [u8],
    number: Number,
    has_year: bool,
    has_month: bool,
    has_day: bool,
    /// How long a text is, but for a number without a width.
    rest: usize,
}

impl<'a> Pattern<'a> {
    /// Reads a pattern.
    ///
    /// # Errors
    /// It is none.
    pub fn new(text: &'a [u8]) -> Result<Self, BadPattern> {
        let mut number = None;
        let (mut has_year, mut has_month, mut has_day, mut has_check) = Default::default();
        let mut rest = 0;
        for piece in Pieces(text) {
            let field = match piece? {
                Piece::Literal(literal) => {
                    rest += literal.len();
                    continue;
                }
                Piece::Field(field) => field,
            };
            rest += field.width().unwrap_or(0);
            let before = match field {
                Field::Number(found) => number.replace(found).is_some(),
                Field::Year => core::mem::replace(&mut has_year, true),
                Field::Month => core::mem::replace(&mut has_month, true),
                Field::Day => core::mem::replace(&mut has_day, true),
                Field::Check => core::mem::replace(&mut has_check, true),
            };
            if before {
                return Err(BadPattern::Twice);
            }
        }
        let number = number.ok_or(BadPattern::NoNumber)?;
        if has_month && !has_year || has_day && !has_month {
            return Err(BadPattern::Period);
        }
        if has_year {
            let width = match number.radix {
                Radix::Decimal => number.width,
                Radix::Base32 => None,
            };
            let width = width.ok_or(BadPattern::PeriodWidth)?;
            if 4 + 2 * usize::from(has_month) + 2 * usize::from(has_day) + width > 19 {
                return Err(BadPattern::Digits);
            }
        }
        Ok(Self {
            text,
            number,
            has_year,
            has_month,
            has_day,
            rest,
        })
    }

    /// The text of an id; `None` if it has no such text.
    #[must_use]
    pub fn format(&self, id: i64) -> Option<Formatted<'a>> {
        let id = u64::try_from(id).ok()?;
        let parts = self.split(id)?;
        let len = self.number.radix.len(parts.number);
        if self.number.width.is_some_and(|width| len > width) {
            return None;
        }
        Some(Formatted {
            pattern: *self,
            parts,
            check: SYMBOLS[(id % CHECKS) as usize],
            number_len: self.number.width.unwrap_or(len),
            len: self.rest + self.number.width.map_or(len, |_| 0),
        })
    }

    /// The id that a text stands for.
    ///
    /// # Errors
    /// It stands for none.
    pub fn parse(&self, text: &[u8]) -> Result<i64, Unparsed> {
        let free = text.len().checked_sub(self.rest).ok_or(Unparsed::Length)?;
        let fits = match self.number.width {
            Some(_) => free == 0,
            None => free >= 1,
        };
        if !fits {
            return Err(Unparsed::Length);
        }
        let mut parts = Parts::default();
        let mut check = None;
        let mut left = text;
        // A text is as long as its pieces together, and they were read before.
        for piece in Pieces(self.text).flatten() {
            match piece {
                Piece::Literal(literal) => {
                    left = left.strip_prefix(literal).ok_or(Unparsed::Literal)?;
                }
                Piece::Field(field) => {
                    let (digits, after) = left.split_at(field.width().unwrap_or(free));
                    left = after;
                    match field {
                        Field::Number(Number { radix, width }) => {
                            parts.number = radix.read(digits)?;
                            if width.is_none() && digits.len() != radix.len(parts.number) {
                                return Err(Unparsed::Zero);
                            }
                        }
                        Field::Year => parts.year = Radix::Decimal.read(digits)?,
                        Field::Month => parts.month = Radix::Decimal.read(digits)?,
                        Field::Day => parts.day = Radix::Decimal.read(digits)?,
                        Field::Check => check = digits.first().copied(),
                    }
                }
            }
        }
        if !self.is_period(&parts) {
            return Err(Unparsed::Period);
        }
        let id = self.join(&parts).ok_or(Unparsed::TooLarge)?;
        if check.is_some_and(|check| u64::from(VALUES[usize::from(check)]) != id % CHECKS) {
            return Err(Unparsed::Check);
        }
        i64::try_from(id).map_err(|_| Unparsed::TooLarge)
    }

    /// 10 to the power of how many digits the number has behind a period.
    fn scale(&self) -> u64 {
        let width = self
            .number
            .width
            .and_then(|width| u32::try_from(width).ok());
        10_u64.pow(width.unwrap_or(0))
    }

    fn split(&self, id: u64) -> Option<Parts> {
        let mut parts = Parts {
            number: id,
            ..Parts::default()
        };
        if self.has_year {
            parts.number = id % self.scale();
            parts.year = id / self.scale();
            if self.has_day {
                parts.day = parts.year % 100;
                parts.year /= 100;
            }
            if self.has_month {
                parts.month = parts.year % 100;
                parts.year /= 100;
            }
        }
        self.is_period(&parts).then_some(parts)
    }

    fn join(&self, parts: &Parts) -> Option<u64> {
        if !self.has_year {
            return Some(parts.number);
        }
        let mut period = parts.year;
        if self.has_month {
            period = period * 100 + parts.month;
        }
        if self.has_day {
            period = period * 100 + parts.day;
        }
        period.checked_mul(self.scale())?.checked_add(parts.number)
    }

    fn is_period(&self, parts: &Parts) -> bool {
        (!self.has_year || (1..=9999).contains(&parts.year))
            && (!self.has_month || (1..=12).contains(&parts.month))
            && (!self.has_day || (1..=31).contains(&parts.day))
    }
}

/// An id in a pattern, before it is written down.
pub struct Formatted<'a> {
    pattern: Pattern<'a>,
    parts: Parts,
    check: u8,
    number_len: usize,
    len: usize,
}

impl Formatted<'_> {
    /// How many bytes it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes it.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn write(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "the length of the text");
        let mut left = out;
        for piece in Pieces(self.pattern.text).flatten() {
            match piece {
                Piece::Literal(literal) => {
                    let (place, after) = left.split_at_mut(literal.len());
                    place.copy_from_slice(literal);
                    left = after;
                }
                Piece::Field(field) => {
                    let width = field.width().unwrap_or(self.number_len);
                    let (place, after) = left.split_at_mut(width);
                    match field {
                        Field::Number(number) => number.radix.write(self.parts.number, place),
                        Field::Year => Radix::Decimal.write(self.parts.year, place),
                        Field::Month => Radix::Decimal.write(self.parts.month, place),
                        Field::Day => Radix::Decimal.write(self.parts.day, place),
                        Field::Check => place.fill(self.check),
                    }
                    left = after;
                }
            }
        }
    }
}

/// Version 8 and the variant of RFC 9562.
const UUID_FRAME: u128 = (8 << 76) | (0b10 << 62);
/// The bits of a UUID behind its variant.
const UUID_LOW: u32 = 62;

/// An id as a UUID: all zeros, but for version, variant and the id, in the order of ids. `None`
/// for a negative one.
#[must_use]
pub fn to_uuid(id: i64) -> Option<[u8; 16]> {
    let id = u128::try_from(id).ok()?;
    let low = id & ((1 << UUID_LOW) - 1);
    // The last bit of an id that is above them goes in front of the variant.
    Some((UUID_FRAME | (id >> UUID_LOW << 64) | low).to_be_bytes())
}

/// The id that [`to_uuid`] has made this of; `None` if it is another UUID.
#[must_use]
pub fn of_uuid(uuid: [u8; 16]) -> Option<i64> {
    let bits = u128::from_be_bytes(uuid);
    let id = (bits & ((1 << UUID_LOW) - 1)) | (bits >> 64 & 1) << UUID_LOW;
    let id = i64::try_from(id).ok()?;
    (to_uuid(id) == Some(uuid)).then_some(id)
}
