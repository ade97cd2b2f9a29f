//! Formatted ids: a text by a pattern, and the reverse.
//!
//! A pattern is literal text with fields in braces. The fields show the parts of one number, so
//! each text maps to one id. An id that does not fit the fields has no text.
//!
//! | field | shows |
//! | --- | --- |
//! | `{N}`, `{N:6}`, `{N:4+}` | decimal digits; with a width, exactly or at least that many |
//! | `{BASE32}`, `{BASE32:13}` | the same in Crockford's base 32 |
//! | `{UUID}` | the same in a UUID of version 8 |
//! | `{YYYY}`, `{MM}`, `{DD}` | the period in front of the number, in an id by period |
//! | `{CHECK}` | Crockford's check symbol: the id modulo 37 |
//!
//! A pattern has exactly one number. Without an exact width, the number takes what the other pieces
//! leave of a text, so parsing is never ambiguous.

/// Reason for rejecting a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPattern {
    /// A brace without its counterpart.
    Brace,
    /// An unknown field.
    Field,
    /// An invalid width.
    Width,
    /// A duplicate field.
    Twice,
    /// No number field.
    NoNumber,
    /// A month without a year, or a day without a month.
    Period,
    /// A period, but no number with a fixed width.
    PeriodWidth,
    /// More digits than a bigint has.
    Digits,
}

impl BadPattern {
    /// A sentence for DETAIL.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Brace => "A brace opens or closes a field, and cannot stand for itself.",
            Self::Field => {
                "Fields are {N}, {BASE32}, {UUID}, {YYYY}, {MM}, {DD} and {CHECK}; {N:6} and {BASE32:13} have a width, {N:4+} a least one."
            }
            Self::Width => {
                "A width is 1 to 19 for {N}, and 1 to 13 for {BASE32}; with a + behind it, it is the least one."
            }
            Self::Twice => {
                "A field can stand there only once, and of {N}, {BASE32} and {UUID} only one."
            }
            Self::NoNumber => "Without {N}, {BASE32} or {UUID} a text would stand for many ids.",
            Self::Period => "{MM} needs {YYYY}, and {DD} needs {MM}.",
            Self::PeriodWidth => "With a period the number is {N} with an exact width.",
            Self::Digits => "Period and number have at most 19 digits together.",
        }
    }
}

/// Reason why a text maps to no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparsed {
    /// Length does not match the pattern.
    Length,
    /// Literal text differs.
    Literal,
    /// A character that is not a digit of its field.
    Digit,
    /// A leading zero in a number that is longer than its least width.
    Zero,
    /// Invalid year, month or day.
    Period,
    /// Larger than any id.
    TooLarge,
    /// Wrong check symbol.
    Check,
    /// A UUID that holds no id.
    Uuid,
}

impl Unparsed {
    /// A sentence for DETAIL.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Length => "Its length is not that of the pattern.",
            Self::Literal => "It has other text between the fields.",
            Self::Digit => "It has a character that is no digit of its field.",
            Self::Zero => "Its number begins with more zeros than the pattern gives it.",
            Self::Period => "It has a year, month or day that does not exist.",
            Self::TooLarge => "Its number is larger than any id.",
            Self::Check => "Its check symbol is wrong.",
            Self::Uuid => "It is a UUID that holds no id.",
        }
    }
}

/// Crockford's 32 digits, followed by the other check symbols.
const SYMBOLS: &[u8; 37] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ*~$=U";

/// Value of a character as a base 32 digit or check symbol; [`NO_DIGIT`] if it has none.
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

/// Version 8 and variant bits of RFC 9562. The id is in the low bits, and all others are zero, so
/// UUIDs sort like their ids.
const UUID_FRAME: u128 = (8 << 76) | (0b10 << 62);
/// Number of bits behind the variant. Bit 62 of an id goes in front of it.
const UUID_LOW: u32 = 62;
const UUID_LEN: usize = 36;

fn is_dash(place: usize) -> bool {
    matches!(place, 8 | 13 | 18 | 23)
}

fn write_uuid(number: u64, out: &mut [u8]) {
    let number = u128::from(number);
    let low = number & ((1 << UUID_LOW) - 1);
    let mut bits = UUID_FRAME | (number >> UUID_LOW << 64) | low;
    for (place, out) in out.iter_mut().enumerate().rev() {
        if is_dash(place) {
            *out = b'-';
        } else {
            *out = b"0123456789abcdef"[(bits % 16) as usize];
            bits /= 16;
        }
    }
}

fn read_uuid(text: &[u8]) -> Result<u64, Unparsed> {
    let mut bits = 0_u128;
    for (place, &symbol) in text.iter().enumerate() {
        if is_dash(place) {
            if symbol != b'-' {
                return Err(Unparsed::Digit);
            }
        } else {
            let digit = char::from(symbol).to_digit(16).ok_or(Unparsed::Digit)?;
            bits = bits << 4 | u128::from(digit);
        }
    }
    let high = bits >> 64 & 1;
    let low = bits & ((1 << UUID_LOW) - 1);
    let number = high << UUID_LOW | low;
    if bits != UUID_FRAME | high << 64 | low {
        return Err(Unparsed::Uuid);
    }
    u64::try_from(number).map_err(|_| Unparsed::TooLarge)
}

/// Notation of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Decimal,
    Base32,
    Uuid,
}

impl Notation {
    /// Number of digits of the largest id.
    fn most(self) -> usize {
        match self {
            Self::Decimal => 19,
            Self::Base32 => 13,
            Self::Uuid => UUID_LEN,
        }
    }

    /// Number of digits of `number`, without leading zeros.
    fn len(self, number: u64) -> usize {
        let log = match self {
            Self::Decimal => number.checked_ilog10(),
            Self::Base32 => number.checked_ilog2().map(|log| log / 5),
            Self::Uuid => return UUID_LEN,
        };
        log.unwrap_or(0) as usize + 1
    }

    /// Fills `out`, padding with zeros.
    fn write(self, number: u64, out: &mut [u8]) {
        match self {
            Self::Decimal => write_digits(number, 10, out),
            Self::Base32 => write_digits(number, 32, out),
            Self::Uuid => write_uuid(number, out),
        }
    }

    fn read(self, text: &[u8]) -> Result<u64, Unparsed> {
        match self {
            Self::Decimal => read_digits(text, 10, |symbol| match symbol {
                b'0'..=b'9' => symbol - b'0',
                _ => NO_DIGIT,
            }),
            Self::Base32 => read_digits(text, 32, |symbol| VALUES[usize::from(symbol)]),
            Self::Uuid => read_uuid(text),
        }
    }
}

fn write_digits(mut number: u64, base: u64, out: &mut [u8]) {
    for place in out.iter_mut().rev() {
        *place = SYMBOLS[(number % base) as usize];
        number /= base;
    }
}

fn read_digits(text: &[u8], base: u64, value: impl Fn(u8) -> u8) -> Result<u64, Unparsed> {
    text.iter().try_fold(0_u64, |number, &symbol| {
        let value = u64::from(value(symbol));
        if value >= base {
            return Err(Unparsed::Digit);
        }
        let more = number.checked_mul(base);
        let more = more.and_then(|more| more.checked_add(value));
        more.ok_or(Unparsed::TooLarge)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    notation: Notation,
    /// Least number of digits.
    least: usize,
    /// No more digits than that.
    exact: bool,
}

impl Number {
    /// Number of digits shown; `None` if the number does not fit.
    fn len(self, number: u64) -> Option<usize> {
        let len = self.notation.len(number);
        (len <= self.least || !self.exact).then_some(len.max(self.least))
    }

    /// Length in characters; `None` if it depends on the id.
    fn width(self) -> Option<usize> {
        self.exact.then_some(self.least)
    }
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
        let number = |notation: Notation| {
            let Some(width) = width else {
                return Ok(Self::Number(Number {
                    notation,
                    least: 1,
                    exact: false,
                }));
            };
            let digits = width.strip_suffix(b"+").unwrap_or(width);
            let plain = digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0");
            let least = str::from_utf8(digits).ok().filter(|_| plain);
            let least = least.and_then(|digits| digits.parse().ok());
            let fits = |width: &usize| *width <= notation.most();
            Ok(Self::Number(Number {
                notation,
                least: least.filter(fits).ok_or(BadPattern::Width)?,
                exact: digits == width,
            }))
        };
        match name {
            b"N" => number(Notation::Decimal),
            b"BASE32" => number(Notation::Base32),
            b"UUID" if width.is_none() => Ok(Self::Number(Number {
                notation: Notation::Uuid,
                least: UUID_LEN,
                exact: true,
            })),
            b"YYYY" if width.is_none() => Ok(Self::Year),
            b"MM" if width.is_none() => Ok(Self::Month),
            b"DD" if width.is_none() => Ok(Self::Day),
            b"CHECK" if width.is_none() => Ok(Self::Check),
            _ => Err(BadPattern::Field),
        }
    }

    /// Length in characters; `None` if it depends on the id.
    fn width(self) -> Option<usize> {
        match self {
            Self::Number(number) => number.width(),
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

/// Iterator over the pieces of a pattern.
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

/// The parts of an id that fields show.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    year: u64,
    month: u64,
    day: u64,
    number: u64,
}

/// A valid pattern.
#[derive(Debug, Clone, Copy)]
pub struct Pattern<'a> {
    text: &'a [u8],
    number: Number,
    has_year: bool,
    has_month: bool,
    has_day: bool,
    /// Length of a text, without the number.
    rest: usize,
}

impl<'a> Pattern<'a> {
    /// Parses a pattern.
    ///
    /// # Errors
    /// See [`BadPattern`].
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
            if !matches!(field, Field::Number(_)) {
                rest += field.width().unwrap_or(0);
            }
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
            let width = match number.notation {
                Notation::Decimal => number.width(),
                Notation::Base32 | Notation::Uuid => None,
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

    /// The text of an id; `None` if the id does not fit the fields.
    #[must_use]
    pub fn format(&self, id: i64) -> Option<Formatted<'a>> {
        let id = u64::try_from(id).ok()?;
        let parts = self.split(id)?;
        let number_len = self.number.len(parts.number)?;
        Some(Formatted {
            pattern: *self,
            parts,
            check: SYMBOLS[(id % CHECKS) as usize],
            number_len,
            len: self.rest + number_len,
        })
    }

    /// Parses a text to its id.
    ///
    /// # Errors
    /// See [`Unparsed`].
    pub fn parse(&self, text: &[u8]) -> Result<i64, Unparsed> {
        let free = text.len().checked_sub(self.rest).ok_or(Unparsed::Length)?;
        if free < self.number.least || self.number.exact && free > self.number.least {
            return Err(Unparsed::Length);
        }
        let mut parts = Parts::default();
        let mut check = None;
        let mut left = text;
        // The length was checked, and `new` has parsed the pieces before.
        for piece in Pieces(self.text).flatten() {
            match piece {
                Piece::Literal(literal) => {
                    left = left.strip_prefix(literal).ok_or(Unparsed::Literal)?;
                }
                Piece::Field(field) => {
                    let (digits, after) = left.split_at(field.width().unwrap_or(free));
                    left = after;
                    match field {
                        Field::Number(number) => {
                            parts.number = number.notation.read(digits)?;
                            if number.len(parts.number) != Some(digits.len()) {
                                return Err(Unparsed::Zero);
                            }
                        }
                        Field::Year => parts.year = Notation::Decimal.read(digits)?,
                        Field::Month => parts.month = Notation::Decimal.read(digits)?,
                        Field::Day => parts.day = Notation::Decimal.read(digits)?,
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

    /// 10 to the power of the width of the number behind a period.
    fn scale(&self) -> u64 {
        let width = self
            .number
            .width()
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

/// An id and its pattern, ready to be written.
pub struct Formatted<'a> {
    pattern: Pattern<'a>,
    parts: Parts,
    check: u8,
    number_len: usize,
    len: usize,
}

impl Formatted<'_> {
    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes the text to `out`.
    ///
    /// # Panics
    /// If the length of `out` is not [`Self::len`].
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
                        Field::Number(number) => number.notation.write(self.parts.number, place),
                        Field::Year => Notation::Decimal.write(self.parts.year, place),
                        Field::Month => Notation::Decimal.write(self.parts.month, place),
                        Field::Day => Notation::Decimal.write(self.parts.day, place),
                        Field::Check => place.fill(self.check),
                    }
                    left = after;
                }
            }
        }
    }
}
