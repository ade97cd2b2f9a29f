//! The messages between servers: one JSON object each way, with the version of its form.
//!
//! A change of what is in one is another [`VERSION`]: messages of another version are refused, by
//! whichever server reads one. The text has the encoding of a database, as tags and names of nodes
//! have, which [`leaf_id_core::message`] keeps byte by byte.

use leaf_id_core::message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// The version of all messages.
const VERSION: u32 = 1;
/// The longest message that is read, in bytes.
const LONGEST: usize = 16_384;

/// The request of `leaf_claim`; the answer is [`crate::tags::claim::ClaimAnswer`].
#[derive(Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The tag.
    #[serde(with = "message")]
    pub tag: Vec<u8>,
    /// How many ids it asks for at most; 0 for the tag's step.
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

/// The text of a message.
pub fn write<T: Serialize>(content: &T) -> Vec<u8> {
    let version = VERSION;
    // Nothing in a message can fail to be written.
    let text = serde_json::to_string(&Message { version, content }).unwrap_or_default();
    let bytes = text
        .chars()
        .filter_map(|character| u8::try_from(character).ok());
    bytes.collect()
}

/// The content of a message.
///
/// # Errors
/// It is of another version, or no such message.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let malformed = |error: serde_json::Error| Failure::BadMessage {
        detail: error.to_string(),
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
