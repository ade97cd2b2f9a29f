//! Errors of decoding, parsing and composing ids.

use leaf_id_core::layout::Layout;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::error;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// An id is negative, or has more bits than its layout.
    NoSnowflake { id: i64, layout: Layout },
    /// An invalid layout argument.
    BadLayout { layout: String },
    /// A sequence number exceeds its bits in the layout.
    SequenceOutOfRange { sequence: i64, max: u16 },
    /// A time before the first or after the last one of an id.
    TimeOutOfRange { first: String, last: String },
    /// An epoch argument outside the range of timestamps.
    BadEpoch { epoch_ms: i64 },
    /// An invalid pattern.
    BadPattern {
        pattern: String,
        detail: &'static str,
    },
    /// An id that does not fit a pattern.
    DoesNotFit { id: i64, pattern: String },
    /// A text that does not match a pattern.
    Unparsed {
        text: String,
        pattern: String,
        detail: &'static str,
    },
}

impl FormatError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let invalid = Code::ERRCODE_INVALID_PARAMETER_VALUE;
        match self {
            Self::NoSnowflake { id, layout } => {
                error(invalid, format!("invalid snowflake id: {id}")).set_detail(format!(
                    "Ids of layout {layout} are 0 to {}.",
                    layout.max_id()
                ))
            }
            Self::BadLayout { layout } => {
                error(invalid, format!("invalid snowflake layout: \"{layout}\""))
                    .set_detail(Layout::ALLOWED)
            }
            Self::SequenceOutOfRange { sequence, max } => {
                error(invalid, format!("sequence is out of range: {sequence}"))
                    .set_detail(format!(
                        "Sequences are 0 to {max}: a worker id has {} ids in a millisecond.",
                        u32::from(max) + 1
                    ))
                    .set_hint(
                        "Give further rows of this millisecond another worker id, set aside for them, or a later time that no row has.",
                    )
            }
            Self::TimeOutOfRange { first, last } => {
                error(invalid, "snowflake ids cannot carry this time").set_detail(format!(
                    "With this epoch and layout they carry times from {first} to {last}."
                ))
            }
            Self::BadEpoch { epoch_ms } => {
                error(invalid, format!("epoch is out of range: {epoch_ms}"))
            }
            Self::BadPattern { pattern, detail } => {
                error(invalid, format!("invalid id pattern: \"{pattern}\"")).set_detail(detail)
            }
            Self::DoesNotFit { id, pattern } => error(
                Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("pattern \"{pattern}\" cannot hold id {id}"),
            )
            .set_detail(
                "It is negative, has too many digits, or does not begin with a period that exists.",
            ),
            Self::Unparsed {
                text,
                pattern,
                detail,
            } => error(
                Code::ERRCODE_INVALID_TEXT_REPRESENTATION,
                format!("\"{text}\" does not match id pattern \"{pattern}\""),
            )
            .set_detail(detail),
        }
    }
}
