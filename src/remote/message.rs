//! Messages between servers: one JSON object in each direction, with its format version.
//!
//! A change of the contents requires another [`VERSION`]; each server rejects messages of other
//! versions. Texts are in a database encoding, like tags and node names, and
//! [`leaf_id_core::message`] preserves their bytes.

use leaf_id_core::message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::pg::shown;

/// Format version of all messages.
const VERSION: u32 = 1;
/// Max length of a message, in bytes.
const LONGEST: usize = 16_384;

/// Request of `leaf_claim`; the answer is [`leaf_id_core::row::ClaimAnswer`].
#[derive(Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The tag.
    #[serde(with = "message")]
    pub tag: Vec<u8>,
    /// Max number of ids; 0 for the tag's step.
    pub n: u32,
}

#[derive(Serialize)]
struct Message<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
#[serde(expecting = "a message")]
struct Version {
    version: u32,
}

/// Encodes a message.
pub fn write<T: Serialize>(content: &T) -> Vec<u8> {
    let version = VERSION;
    // Serialization of these types cannot fail.
    let text = serde_json::to_string(&Message { version, content }).unwrap_or_default();
    let bytes = text
        .chars()
        .filter_map(|character| u8::try_from(character).ok());
    bytes.collect()
}

/// Decodes a message.
///
/// # Errors
/// Malformed, too long, or of another version.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let malformed = |error: serde_json::Error| Failure::BadMessage {
        detail: shown(error.to_string().as_bytes()),
    };
    if bytes.len() > LONGEST {
        let detail = format!("it is longer than {LONGEST} bytes");
        return Err(Failure::BadMessage { detail });
    }
    let text: String = bytes.iter().copied().map(char::from).collect();
    let Version { version } = serde_json::from_str(&text).map_err(malformed)?;
    if version != VERSION {
        let expected = VERSION;
        return Err(Failure::OtherMessage { version, expected });
    }
    serde_json::from_str(&text).map_err(malformed)
}
