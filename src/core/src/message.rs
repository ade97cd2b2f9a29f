//! Texts in messages between servers. They are bytes in a database encoding, not necessarily UTF-8,
//! but JSON must be UTF-8. So each byte is sent as the character with its number.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Serializes bytes as text.
///
/// # Errors
/// Errors of the serializer.
pub fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    let text: String = bytes.as_ref().iter().copied().map(char::from).collect();
    serializer.serialize_str(&text)
}

/// Deserializes bytes from text.
///
/// # Errors
/// Not a text, or a text with characters above U+00FF.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = text.chars().map(u8::try_from).collect::<Result<_, _>>();
    bytes.map_err(D::Error::custom)
}

/// Deserializes text for display; see [`shown`].
///
/// # Errors
/// As [`deserialize`].
pub fn deserialize_shown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserialize(deserializer).map(|bytes| shown(&bytes))
}

/// Longest text that is shown, in bytes. What users give may have any length, and is copied more
/// than once into an error.
const LONGEST_SHOWN: usize = 500;

/// Converts bytes in any ASCII-compatible encoding to text for display. Invalid UTF-8 and control
/// characters, which may come from another server, become question marks, and the end of a long text
/// an ellipsis.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let is_hidden = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    let text = |bytes| String::from_utf8_lossy(bytes).replace(is_hidden, "?");
    if bytes.len() <= LONGEST_SHOWN {
        return text(bytes);
    }
    // Not within a character of UTF-8, whose further bytes begin with 10.
    let is_first = |end: &usize| bytes.get(*end).is_none_or(|byte| byte & 0xC0 != 0x80);
    let end = (0..=LONGEST_SHOWN).rev().find(is_first).unwrap_or(0);
    text(bytes.get(..end).unwrap_or_default()) + "..."
}
