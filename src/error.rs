//! Every error a user can see: SQLSTATE, message, detail and hint, in PostgreSQL's style.

use std::borrow::Cow;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use crate::guc;
use crate::pg::{self, InvalidSetting, Misshapen, Shape};

mod edit;
mod format;
mod gapless;
mod opaque;
mod ordered;
mod refill;
mod refusal;
mod registry;
mod report;
mod reset;
mod snowflake;
mod table;

pub use edit::EditError;
pub use format::FormatError;
pub use gapless::GaplessError;
pub use opaque::OpaqueError;
pub use ordered::OrderedError;
pub use refill::{Advice, Locked, RefillClass, RefillError, for_monitors, reason_for_monitors};
pub use registry::RegistryError;
pub use reset::ResetError;
pub use snowflake::SnowflakeError;
pub use table::TableError;

use refill::raise_end;
use report::{error, function, literal, restart_at};

/// Reason why a call fails. Tags as the user wrote them, times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The library was not loaded at server start.
    NotPreloaded,
    /// A setting has an invalid value at server start.
    BadSetting {
        name: String,
        value: String,
        detail: Cow<'static, str>,
    },
    /// Single-user mode has no background workers.
    SingleUser,
    /// A hot standby cannot claim.
    Standby,
    /// Ids of a tag that the transaction has created, asked for while it commits.
    Committing { tag: String },
    /// The tag has no ids. With its source server, and the error's text.
    Refill {
        tag: String,
        error: RefillError,
        server: String,
        text: String,
    },
    /// The caller may not issue ids of the tag.
    TagForbidden { tag: String },
    /// The tag is empty or longer than 128 bytes.
    TagLength { bytes: usize },
    /// n < 0.
    NegativeCount { n: i32 },
    /// A range exceeds the tag's `max_step`.
    RangeTooLong { tag: String, n: i32, max_step: u32 },
    /// A range exceeds what is left of the tag.
    RangeAtEnd { tag: String, n: u32, max_value: i64 },
    /// No segment was published in time; `detail` is the allocator's last report, if any.
    NoSegment {
        tag: String,
        timeout_ms: i64,
        detail: String,
        advice: Advice,
    },
    /// The transaction has changed the tag's row, and has not committed.
    TagChanged { tag: String, parallel: bool },
    /// All slots are busy.
    NoFreeSlot,
    /// A call of a function reserved for expressions created by the planner.
    CalledDirectly { function: &'static str },
    /// The function is restricted to superusers.
    NotSuperuser { function: &'static str },
    /// A message has another version.
    OtherMessage { version: u32, expected: u32 },
    /// A message is malformed.
    BadMessage { detail: String },
    /// A trigger function called by hand.
    NotATrigger { function: &'static str },
    /// A claim for another server, of a tag that is itself sourced from one.
    SourcedElsewhere { tag: String, server: String },
    /// A problem of one of the extension's tables.
    Table(TableError),
    /// A refused edit of a tag.
    Edit(EditError),
    /// A problem of opaque ids.
    Opaque(OpaqueError),
    /// A problem of ordered ids.
    Ordered(OrderedError),
    /// A problem of gapless series.
    Gapless(GaplessError),
    /// A refused `leaf_snowflake_reset`.
    Reset(ResetError),
    /// A snowflake id cannot be issued.
    Snowflake(SnowflakeError),
    /// A refusal by the worker registry.
    Registry(RegistryError),
    /// An id cannot be decoded, parsed or composed.
    Format(FormatError),
}

impl From<InvalidSetting> for Failure {
    fn from(invalid: InvalidSetting) -> Self {
        let InvalidSetting {
            name,
            value,
            detail,
        } = invalid;
        Self::BadSetting {
            name,
            value,
            detail,
        }
    }
}

impl From<Misshapen> for Failure {
    fn from(misshapen: Misshapen) -> Self {
        Self::Table(misshapen.into())
    }
}

/// NOTICE: the tag goes on at `next` instead of `wanted`.
pub fn tell_raised(tag: &str, wanted: i64, next: i64) {
    error(
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        format!("tag \"{tag}\" goes on at {next}, above the ids that were issued under this name"),
    )
    .set_hint(restart_at(tag, wanted))
    .report(PgLogLevel::NOTICE);
}

/// WARNING: a reset has retired a worker id.
pub fn tell_retired(worker_id: u16, until: &str) {
    error(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!("worker id {worker_id} is retired until {until}"),
    )
    .set_detail("Only this server knows. Standbys and earlier backups would issue its ids again.")
    .set_hint(
        "Where they have this \"leaf_id.worker_id\", change it before one is promoted or restored.",
    )
    .report(PgLogLevel::WARNING);
}

/// HINT: add the library to `shared_preload_libraries`, whose present value a superuser may see.
fn preload() -> String {
    let Some(names) = pg::preloaded_libraries().filter(|_| pg::is_superuser()) else {
        return "A superuser can add leaf_id to \"shared_preload_libraries\", and restart the server."
            .into();
    };
    let names = names.iter().map(String::as_str).chain(["leaf_id"]);
    let names: Vec<_> = names.map(literal).collect();
    format!(
        "Run this, and restart the server: ALTER SYSTEM SET shared_preload_libraries = {};",
        names.join(", ")
    )
}

impl Failure {
    /// The error for a table that was not found.
    pub fn missing(shape: &Shape) -> Self {
        let table = shape.name.to_string_lossy().into_owned();
        Self::Table(TableError::Missing { table })
    }

    /// The error of a tag, where no source server has to do with it.
    pub fn tag(tag: String, error: RefillError) -> Self {
        Self::Refill {
            tag,
            error,
            server: String::new(),
            text: String::new(),
        }
    }

    /// The report, to be raised or returned by an SQL function.
    pub fn report(self) -> ErrorReport {
        use PgSqlErrorCode as Code;
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let invalid = Code::ERRCODE_INVALID_PARAMETER_VALUE;
        match self {
            Self::NotPreloaded => error(
                not_ready,
                "leaf_id must be loaded via \"shared_preload_libraries\"",
            )
            .set_hint(preload()),
            Self::BadSetting { name, value, detail } => error(
                invalid,
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
            .set_detail(detail),
            Self::SingleUser => {
                error(not_ready, "cannot issue ids in single-user mode")
            }
            Self::Standby => error(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                "cannot issue ids during recovery",
            )
            .set_hint("Connect to the primary."),
            Self::Committing { tag } => error(
                not_ready,
                format!("cannot issue ids of tag \"{tag}\" while the transaction that created it commits"),
            ),
            Self::TagForbidden { tag } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for tag \"{tag}\""),
            )
            .set_hint(format!(
                "A role that manages tags can grant it: SELECT {}({}, {});",
                function("leaf_tag_grant"),
                literal(&tag),
                literal(&pg::user_name())
            )),
            Self::Refill { tag, error, server, text } => {
                error.report(&tag, &server, &text).unwrap_or_else(|| {
                    let detail = error.sentence(&server, &for_monitors(text)).unwrap_or_default();
                    let timeout_ms = guc::REFILL_TIMEOUT.get().into();
                    Self::NoSegment { tag, timeout_ms, detail, advice: error.advice() }.report()
                })
            }
            Self::TagLength { bytes } => {
                error(invalid, "a tag must be 1 to 128 bytes long")
                    .set_detail(format!("This one has {bytes} bytes."))
            }
            Self::NegativeCount { n } => {
                error(invalid, format!("number of ids must not be negative: {n}"))
            }
            Self::RangeTooLong { tag, n, max_step } => error(
                invalid,
                format!("cannot issue a range of {n} ids of tag \"{tag}\""),
            )
            .set_detail(format!(
                "A range fits in one segment, and \"max_step\" of this tag is {max_step}."
            ))
            .set_hint(format!(
                "Ask for a shorter range, or raise it: UPDATE leaf_id.leaf_alloc SET max_step = {n} WHERE biz_tag = {};",
                literal(&tag)
            )),
            Self::RangeAtEnd { tag, n, max_value } => error(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                format!("cannot issue a range of {n} ids of tag \"{tag}\""),
            )
            .set_detail(format!("Fewer are left up to its maximum value ({max_value})."))
            .set_hint(if max_value == i64::MAX - 1 {
                "Ask for a shorter range.".into()
            } else {
                raise_end("Ask for a shorter range, or raise it", &tag, max_value, 0)
            }),
            Self::NoSegment { tag, timeout_ms, detail, advice } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not get ids for tag \"{tag}\" within {timeout_ms} ms"),
            )
            .set_detail(detail)
            .set_hint(advice.hint(&tag)),
            Self::TagChanged { tag, parallel: false } => error(
                not_ready,
                format!("tag \"{tag}\" was changed in this transaction"),
            )
            .set_hint("Commit first; then its ids can be used."),
            Self::TagChanged { tag, parallel: true } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("cannot issue ids of tag \"{tag}\", which this transaction changed, in a parallel query"),
            )
            .set_hint("Commit first, or set \"max_parallel_workers_per_gather\" to 0."),
            Self::NoFreeSlot => error(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, "no free slot for another tag")
                .set_hint("Increase \"leaf_id.max_tags\" and restart the server."),
            Self::CalledDirectly { function } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("cannot call {function}() directly"),
            ),
            Self::NotSuperuser { function } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be superuser to call {function}()"),
            ),
            // Where the other server shows it, a few words of the message are all that is left of it.
            Self::OtherMessage { version, expected } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!(
                    "message version {version}, not {expected}: {} is older",
                    if version > expected { "receiver" } else { "sender" }
                ),
            )
            .set_hint("Update leaf_id there."),
            Self::BadMessage { detail } => error(invalid, format!("cannot read the message: {detail}")),
            Self::NotATrigger { function } => error(
                Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                format!("function \"{function}\" was not called by trigger manager"),
            ),
            Self::SourcedElsewhere { tag, server } => error(
                not_ready,
                format!("tag \"{tag}\" is sourced from another server"),
            )
            .set_detail(format!("Its ids come from server \"{server}\"."))
            .set_hint("Claim them there."),
            Self::Table(error) => error.report(),
            Self::Edit(error) => error.report(),
            Self::Opaque(error) => error.report(),
            Self::Ordered(error) => error.report(),
            Self::Gapless(error) => error.report(),
            Self::Reset(error) => error.report(),
            Self::Snowflake(error) => error.report(),
            Self::Registry(error) => error.report(),
            Self::Format(error) => error.report(),
        }
    }

    /// Raises it as an ERROR.
    pub fn raise(self) -> ! {
        self.report().report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }
}
