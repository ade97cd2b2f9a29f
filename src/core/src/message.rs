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

/// Converts bytes in any ASCII-compatible encoding to text for display. Invalid UTF-8 becomes
/// question marks.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::REPLACEMENT_CHARACTER, "?")
}
