//! Texts in messages between servers. They are bytes in the encoding of a database, and need not be
//! UTF-8, as JSON has to be: a message has the character with the number of each byte.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes bytes as text.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    let text: String = bytes.as_ref().iter().copied().map(char::from).collect();
    serializer.serialize_str(&text)
}

/// Reads bytes from text.
///
/// # Errors
/// It is no text, or has characters that stand for no byte.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = text.chars().map(u8::try_from).collect::<Result<_, _>>();
    bytes.map_err(D::Error::custom)
}

/// Reads text for people, see [`shown`].
///
/// # Errors
/// As [`deserialize`].
pub fn deserialize_shown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserialize(deserializer).map(|bytes| shown(&bytes))
}

/// Text for people, from bytes in any encoding that contains ASCII. What is no UTF-8 becomes a
/// question mark.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::REPLACEMENT_CHARACTER, "?")
}
