//! Errors about opaque ids and their keys.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::refill::no_such_tag;
use super::report::{error, function, literal};

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpaqueError {
    /// An invalid last number of a domain.
    Domain { tag: String, last: i64 },
    /// A text that is not a key.
    NoKeyText,
    /// A key for a name that has or had a tag.
    KeyTooLate { tag: String },
    /// A second key for a name.
    KeyExists { tag: String },
    /// A rename from or to a name that has a key.
    Rename { tag: String },
    /// A new row or another source server for a name that has a key, by a role that may not create
    /// keys.
    Forbidden { tag: String },
    /// An ordinary id of a tag that has a key.
    Required { tag: String },
    /// An opaque id of a tag that does not exist, though its key does.
    NoSuchTag { tag: String },
    /// An opaque id of a tag that has no key.
    NoKey { tag: String },
    /// All numbers of the key's domain are issued.
    End { tag: String, last: i64 },
    /// A number or an id outside of the tag's domain.
    OutOfRange { tag: String, value: i64, last: i64 },
}

impl OpaqueError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let invalid = Code::ERRCODE_INVALID_PARAMETER_VALUE;
        match self {
            Self::Domain { tag, last } => error(
                invalid,
                format!("cannot make opaque ids of tag \"{tag}\" of the numbers up to {last}"),
            )
            .set_detail("There must be at least 1000000, and at most 9223372036854775806."),
            Self::NoKeyText => error(invalid, "invalid opaque id key")
                .set_detail("A key has 64 hexadecimal digits.")
                .set_hint("Give what leaf_id.leaf_opaque_key() shows on the other server."),
            Self::KeyTooLate { tag } => error(
                not_ready,
                format!("cannot make a key for \"{tag}\", which is or was the name of a tag"),
            )
            .set_detail("Its numbers may be in use as ids already.")
            .set_hint("Choose another name."),
            Self::KeyExists { tag } => error(
                Code::ERRCODE_DUPLICATE_OBJECT,
                format!("\"{tag}\" already has a key of opaque ids"),
            )
            .set_detail("A key is never replaced: ids of another one would be issued twice.")
            .set_hint(format!(
                "To go on with it, if no ids of it are in use, create the tag alone, with its server if it has one: SELECT {}({});",
                function("leaf_tag_create"),
                literal(&tag)
            )),
            Self::Rename { tag } => error(
                not_ready,
                format!("cannot rename to or from \"{tag}\", whose ids are opaque"),
            )
            .set_detail("Their key belongs to the name."),
            Self::Forbidden { tag } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied to create or reset tag \"{tag}\", whose ids are opaque"),
            )
            .set_detail("Its numbers could come again, and tell which ids they have.")
            .set_hint("It takes EXECUTE on leaf_id.leaf_opaque_encode(), which tells the same."),
            Self::Required { tag } => error(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("the ids of tag \"{tag}\" are opaque"),
            )
            .set_hint(format!("Use {}().", function("leaf_opaque_next"))),
            Self::NoSuchTag { tag } => no_such_tag(&tag).set_hint(format!(
                "Create it with {}(), with a start above the numbers of all ids that are in use, or with the server that its ids came from.",
                function("leaf_tag_create")
            )),
            Self::NoKey { tag } => error(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("tag \"{tag}\" has no key of opaque ids"),
            )
            .set_hint("Restore leaf_id.leaf_opaque_key if the tag had a key; a new tag gets one by leaf_id.leaf_opaque_create()."),
            Self::End { tag, last } => error(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                format!("opaque tag \"{tag}\" has issued all its ids (1 to {last})"),
            )
            .set_hint("Another tag, created by leaf_id.leaf_opaque_create(), would issue the same ids in another order, so use it for another column only."),
            Self::OutOfRange { tag, value, last } => error(
                Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("{value} is out of range for the opaque ids of tag \"{tag}\""),
            )
            .set_detail(format!("Its numbers and ids are 1 to {last}.")),
        }
    }
}
