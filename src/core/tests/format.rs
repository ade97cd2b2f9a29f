//! Formatted ids: texts and UUIDs.
//!
//! Would catch: an id with the text of another id, or parsed as another one; a truncated id; a text
//! accepted despite a wrong digit; a pattern accepted despite ambiguous texts; and any panic.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use leaf_id_core::format::{BadPattern, Pattern, Unparsed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const SYMBOLS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ*~$=U";

fn format(id: i64, pattern: &str) -> Option<String> {
    let formatted = Pattern::new(pattern.as_bytes()).unwrap().format(id)?;
    let mut text = vec![0; formatted.len()];
    formatted.write(&mut text);
    Some(String::from_utf8(text).unwrap())
}

fn parse(text: &str, pattern: &str) -> Result<i64, Unparsed> {
    Pattern::new(pattern.as_bytes())
        .unwrap()
        .parse(text.as_bytes())
}

#[test]
fn texts_are_as_documented() {
    for (id, pattern, text) in [
        (42, "{N}", "42"),
        (0, "{N}", "0"),
        (i64::MAX, "{N}", "9223372036854775807"),
        (42, "A-{N:6}!", "A-000042!"),
        (2_026_000_123, "INV-{YYYY}-{N:6}", "INV-2026-000123"),
        (2_026_000_123, "{N:6}/{YYYY}", "000123/2026"),
        (202_611_000_123, "{YYYY}-{MM}/{N:6}", "2026-11/000123"),
        (
            20_261_122_000_123,
            "{DD}.{MM}.{YYYY}.{N:6}",
            "22.11.2026.000123",
        ),
        (42, "A-{N:4+}", "A-0042"),
        (12_345, "A-{N:4+}", "A-12345"),
        (1234, "{BASE32:4+}", "016J"),
        (i64::MAX, "{N:4+}{CHECK}", "92233720368547758075"),
        (1234, "ord_{BASE32}{CHECK}", "ord_16JD"),
        (1234, "{BASE32:13}", "000000000016J"),
        (i64::MAX, "{BASE32}", "7ZZZZZZZZZZZZ"),
        // Symbols valid only as check symbols.
        (32, "{N}{CHECK}", "32*"),
        (36, "{N}{CHECK}", "36U"),
        (7, "Ünï{N}", "Ünï7"),
    ] {
        assert_eq!(format(id, pattern).as_deref(), Some(text), "{id} {pattern}");
        assert_eq!(parse(text, pattern), Ok(id), "{text} {pattern}");
    }
}

#[test]
fn what_a_pattern_cannot_hold_is_refused_and_not_cut() {
    for (id, pattern) in [
        (-1, "{N}"),
        (i64::MIN, "{BASE32:13}"),
        (1_000_000, "{N:6}"),
        (1024, "{BASE32:2}"),
        // Invalid year, month, day.
        (123, "{YYYY}{N:6}"),
        (10_000_000_000, "{YYYY}{N:6}"),
        (202_600_000_123, "{YYYY}{MM}{N:6}"),
        (202_613_000_123, "{YYYY}{MM}{N:6}"),
        (20_261_100_000_123, "{YYYY}{MM}{DD}{N:6}"),
        (20_261_132_000_123, "{YYYY}{MM}{DD}{N:6}"),
    ] {
        assert_eq!(format(id, pattern), None, "{id} {pattern}");
    }
    assert_eq!(format(999_999, "{N:6}").as_deref(), Some("999999"));
    assert_eq!(format(1023, "{BASE32:2}").as_deref(), Some("ZZ"));
}

#[test]
fn other_texts_are_refused() {
    use Unparsed::{Check, Digit, Length, Literal, Period, TooLarge, Zero};
    for (text, pattern, why) in [
        ("", "{N}", Length),
        ("A-", "A-{N}", Length),
        ("A-1", "A-{N:2}", Length),
        ("A-123", "A-{N:2}", Length),
        ("B-12", "A-{N:2}", Literal),
        ("a-12", "A-{N:2}", Literal),
        ("A-12 ", "A-{N}", Digit),
        ("-1", "{N}", Digit),
        ("+1", "{N}", Digit),
        ("1U", "{BASE32}", Digit),
        ("1*", "{BASE32}", Digit),
        ("O1", "{N}", Digit),
        ("\u{661}", "{N}", Digit),
        ("01", "{N}", Zero),
        ("00", "{N}", Zero),
        ("O1", "{BASE32}", Zero),
        ("A-042", "A-{N:4+}", Length),
        ("A-00042", "A-{N:4+}", Zero),
        ("0000000123", "{YYYY}{N:6}", Period),
        ("202600000123", "{YYYY}{MM}{N:6}", Period),
        ("20261132000123", "{YYYY}{MM}{DD}{N:6}", Period),
        ("9223372036854775808", "{N}", TooLarge),
        ("99999999999999999999", "{N}", TooLarge),
        ("8000000000000", "{BASE32}", TooLarge),
        ("ZZZZZZZZZZZZZ", "{BASE32:13}", TooLarge),
        ("9999999999999999999", "{YYYY}{N:15}", TooLarge),
        ("ord_16JC", "ord_{BASE32}{CHECK}", Check),
        ("ord_16J#", "ord_{BASE32}{CHECK}", Check),
    ] {
        assert_eq!(parse(text, pattern), Err(why), "{text} {pattern}");
        assert!(why.sentence().ends_with('.'));
    }
}

#[test]
fn what_people_mistake_in_base_32_is_understood() {
    assert_eq!(parse("ord_i6jd", "ord_{BASE32}{CHECK}"), Ok(1234));
    assert_eq!(parse("oL6j", "{BASE32:4}"), Ok(1234));
    assert_eq!(parse("36u", "{N}{CHECK}"), Ok(36));
}

#[test]
fn other_patterns_are_refused() {
    use BadPattern::{Brace, Digits, Field, NoNumber, Period, PeriodWidth, Twice, Width};
    for (pattern, why) in [
        ("", NoNumber),
        ("INV", NoNumber),
        ("{CHECK}", NoNumber),
        ("{YYYY}", NoNumber),
        ("{N", Brace),
        ("N}", Brace),
        ("{N}}", Brace),
        ("{{N}", Brace),
        ("{{N}}", Brace),
        ("{}", Field),
        ("{n}", Field),
        ("{ N}", Field),
        ("{YY}{N:6}", Field),
        ("{YYYY:4}{N:6}", Field),
        ("{CHECK:1}{N}", Field),
        ("{N:}", Width),
        ("{N:0}", Width),
        ("{N:06}", Width),
        ("{N:+6}", Width),
        ("{N:20}", Width),
        ("{N:6:7}", Width),
        ("{N:99999999999999999999999}", Width),
        ("{N:+}", Width),
        ("{N:4++}", Width),
        ("{N:20+}", Width),
        ("{YYYY:4+}{N:6}", Field),
        ("{BASE32:14}", Width),
        ("{N}{N}", Twice),
        ("{N:6}{BASE32}", Twice),
        ("{YYYY}{YYYY}{N:6}", Twice),
        ("{CHECK}{N}{CHECK}", Twice),
        ("{MM}{N:6}", Period),
        ("{YYYY}{DD}{N:6}", Period),
        ("{YYYY}{N}", PeriodWidth),
        ("{YYYY}{N:6+}", PeriodWidth),
        ("{YYYY}{BASE32:6}", PeriodWidth),
        ("{YYYY}{N:16}", Digits),
        ("{YYYY}{MM}{DD}{N:12}", Digits),
    ] {
        assert_eq!(
            Pattern::new(pattern.as_bytes()).map(|_| ()),
            Err(why),
            "{pattern}"
        );
        assert!(why.sentence().ends_with('.'));
    }
}

/// A pattern with fields in random order, separated by literals that resemble digits.
fn random_pattern(random: &mut StdRng) -> String {
    const LITERALS: [&str; 8] = ["", "-", "0", "A1", "ord_", "/", "é", "ZZ"];
    let mut fields = Vec::new();
    let period = random.random_range(0..4);
    if period > 0 {
        fields.extend(
            ["{YYYY}", "{MM}", "{DD}"][..period]
                .iter()
                .map(|field| (*field).to_string()),
        );
        fields.push(format!(
            "{{N:{}}}",
            random.random_range(1..=15 - 2 * (period - 1))
        ));
    } else {
        let plus = ["", "+"].choose(random).unwrap();
        fields.push(match random.random_range(0..4) {
            0 => "{N}".into(),
            1 => "{BASE32}".into(),
            2 => format!("{{N:{}{plus}}}", random.random_range(1..=19)),
            _ => format!("{{BASE32:{}{plus}}}", random.random_range(1..=13)),
        });
    }
    if random.random() {
        fields.push("{CHECK}".into());
    }
    for place in (1..fields.len()).rev() {
        fields.swap(place, random.random_range(0..=place));
    }
    let mut pattern = String::new();
    for field in fields {
        pattern += LITERALS.choose(random).unwrap();
        pattern += &field;
    }
    pattern + LITERALS.choose(random).unwrap()
}

fn random_id(random: &mut StdRng) -> i64 {
    let id = random.random::<i64>() >> random.random_range(0..64);
    match random.random_range(0..3) {
        0 => id,
        // Likely to have a period in front.
        1 => {
            let year = random.random_range(1..=9999_i64);
            let month = random.random_range(1..=12);
            let day = random.random_range(1..=31);
            let digits = random.random_range(1..=10);
            let period = match random.random_range(0..3) {
                0 => year,
                1 => year * 100 + month,
                _ => year * 10_000 + month * 100 + day,
            };
            period * 10_i64.pow(digits) + random.random_range(0..10_i64.pow(digits))
        }
        _ => id.saturating_abs(),
    }
}

#[test]
fn a_text_is_read_back_as_its_id_and_no_other() {
    let mut random = StdRng::seed_from_u64(support::seed());
    let mut held = 0;
    for _ in 0..support::rounds(100_000, 10_000_000) {
        let pattern = random_pattern(&mut random);
        let id = random_id(&mut random);
        let Some(text) = format(id, &pattern) else {
            continue;
        };
        held += 1;
        assert_eq!(parse(&text, &pattern), Ok(id), "{text} {pattern}");
        let other = random_id(&mut random);
        if other != id {
            assert_ne!(
                format(other, &pattern),
                Some(text),
                "{id} {other} {pattern}"
            );
        }
    }
    assert!(held > 10_000, "{held}");
}

/// A text that parses is the text of its id, except for letters read as digits.
#[test]
fn a_text_that_was_changed_is_refused_or_that_of_another_id() {
    let mut random = StdRng::seed_from_u64(support::seed());
    let alphabet: Vec<char> = (SYMBOLS.to_string() + "-/_ilouézx").chars().collect();
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..support::rounds(100_000, 10_000_000) {
        let pattern = random_pattern(&mut random);
        let Some(text) = format(random_id(&mut random), &pattern) else {
            continue;
        };
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..random.random_range(1..3) {
            let place = random.random_range(0..=chars.len());
            match random.random_range(0..3) {
                0 => chars.insert(place, *alphabet.choose(&mut random).unwrap()),
                1 if place < chars.len() => {
                    chars.remove(place);
                }
                _ if place < chars.len() => chars[place] = *alphabet.choose(&mut random).unwrap(),
                _ => {}
            }
        }
        let changed: String = chars.into_iter().collect();
        match parse(&changed, &pattern) {
            Err(_) => refused += 1,
            Ok(id) => {
                taken += 1;
                let plain = |text: &str| {
                    let lower = text.to_lowercase();
                    lower.replace('o', "0").replace(['i', 'l'], "1")
                };
                let own = format(id, &pattern).expect("its text");
                assert_eq!(plain(&own), plain(&changed), "{pattern}");
            }
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} {taken}");
}

/// Crockford's guarantee for the check symbol: all single errors and all transpositions of
/// neighbors.
#[test]
fn the_check_symbol_finds_each_wrong_digit_and_each_swap() {
    let mut random = StdRng::seed_from_u64(support::seed());
    for _ in 0..50 {
        for pattern in ["{BASE32:13}{CHECK}", "{N:19}{CHECK}"] {
            let text = format(random_id(&mut random).saturating_abs(), pattern).unwrap();
            for place in 0..text.len() - 1 {
                let mut swapped = text.clone().into_bytes();
                swapped.swap(place, place + 1);
                if place + 2 < text.len() && swapped != text.as_bytes() {
                    let swapped = String::from_utf8(swapped).unwrap();
                    assert!(parse(&swapped, pattern).is_err(), "{text} {swapped}");
                }
                for symbol in SYMBOLS.chars() {
                    let wrong = format!("{}{symbol}{}", &text[..place], &text[place + 1..]);
                    if wrong != text {
                        assert!(parse(&wrong, pattern).is_err(), "{text} {wrong}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = StdRng::seed_from_u64(support::seed());
    let pieces = [
        "{",
        "}",
        "N",
        ":",
        "6",
        "+",
        "{N}",
        "{BASE32:13}",
        "{YYYY}",
        "{MM}",
        "{DD}",
        "{CHECK}",
        "0",
        "\u{0}",
        "ü",
        "{N:18446744073709551616}",
    ];
    let mut patterns = 0;
    for _ in 0..support::rounds(100_000, 10_000_000) {
        let mut pattern: Vec<u8> = (0..random.random_range(0..7))
            .flat_map(|_| pieces.choose(&mut random).unwrap().bytes())
            .collect();
        if random.random_range(0..4) == 0 {
            pattern.push(random.random());
        }
        let Ok(found) = Pattern::new(&pattern) else {
            continue;
        };
        patterns += 1;
        let text: Vec<u8> = (0..random.random_range(0..30))
            .map(|_| random.random())
            .collect();
        let _ = found.parse(&text);
        if let Some(formatted) = found.format(random_id(&mut random)) {
            let mut text = vec![0; formatted.len()];
            formatted.write(&mut text);
            assert!(found.parse(&text).is_ok(), "{pattern:?}");
        }
    }
    assert!(patterns > 1000, "{patterns}");
}

#[test]
fn base_32_of_one_width_is_in_the_order_of_ids() {
    let mut random = StdRng::seed_from_u64(support::seed());
    let mut ids: Vec<i64> = (0..10_000)
        .map(|_| random_id(&mut random).saturating_abs())
        .collect();
    ids.sort_unstable();
    let texts = |pattern| ids.iter().map(move |id| format(*id, pattern).unwrap());
    assert!(texts("{BASE32:13}").is_sorted());
    assert!(texts("{UUID}").is_sorted());
}

#[test]
fn a_uuid_holds_an_id() {
    let text = |id| format(id, "{UUID}").unwrap();
    assert_eq!(text(0), "00000000-0000-8000-8000-000000000000");
    assert_eq!(
        text(0x1234_5678_9abc),
        "00000000-0000-8000-8000-123456789abc"
    );
    assert_eq!(text(i64::MAX), "00000000-0000-8001-bfff-ffffffffffff");
    assert_eq!(format(-1, "{UUID}"), None);
    let mut random = StdRng::seed_from_u64(support::seed());
    for _ in 0..100_000 {
        let id = random_id(&mut random).saturating_abs();
        let uuid = text(id);
        assert_eq!(parse(&uuid, "{UUID}"), Ok(id));
        assert_eq!(parse(&uuid.to_uppercase(), "{UUID}"), Ok(id));
        // Changing any digit yields another id, or none.
        let place = random.random_range(0..uuid.len());
        let digit = ["0", "5", "8", "c", "-"][random.random_range(0..5)];
        let mut other = uuid.clone();
        other.replace_range(place..=place, digit);
        assert_eq!(parse(&other, "{UUID}") == Ok(id), other == uuid);
    }
    for (other, reason) in [
        ("00000000-0000-0000-0000-000000000000", Unparsed::Uuid),
        ("ffffffff-ffff-ffff-ffff-ffffffffffff", Unparsed::Uuid),
        ("00000000-0000-4000-8000-000000000001", Unparsed::Uuid),
        ("00000000-0000-8000-8000-00000000000g", Unparsed::Digit),
        ("00000000_0000-8000-8000-000000000001", Unparsed::Digit),
        ("00000000000080008000000000000001", Unparsed::Length),
    ] {
        assert_eq!(parse(other, "{UUID}"), Err(reason), "{other}");
    }
    for (pattern, reason) in [
        ("{UUID:36}", BadPattern::Field),
        ("{UUID}{N}", BadPattern::Twice),
        ("{YYYY}{UUID}", BadPattern::PeriodWidth),
    ] {
        assert_eq!(Pattern::new(pattern.as_bytes()).err(), Some(reason));
    }
}

#[test]
#[ignore = "a figure, with --release: cargo test -p leaf_id_core --release --test format -- --ignored --nocapture"]
fn how_long_it_takes() {
    for pattern in ["INV-{YYYY}-{N:6}", "ord_{BASE32}{CHECK}", "{N}"] {
        let rounds = 2_000_000;
        let mut text = [0; 32];
        let start = std::time::Instant::now();
        for round in 0..rounds {
            let id = 2_026_000_000 + round % 1_000_000;
            let formatted = Pattern::new(pattern.as_bytes())
                .unwrap()
                .format(id)
                .unwrap();
            formatted.write(std::hint::black_box(&mut text[..formatted.len()]));
        }
        let formatting = start.elapsed() / rounds as u32;
        let len = Pattern::new(pattern.as_bytes())
            .unwrap()
            .format(2_026_000_123)
            .unwrap()
            .len();
        let text = &format(2_026_000_123, pattern);
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            let text = std::hint::black_box(text.as_ref().unwrap());
            std::hint::black_box(parse(text, pattern)).unwrap();
        }
        let parse = start.elapsed() / rounds as u32;
        println!("{pattern} ({len} bytes): format {formatting:?}, parse {parse:?}");
    }
}
