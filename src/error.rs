//! Every error a user can see: SQLSTATE, message, detail and hint, in PostgreSQL's style.

use std::borrow::Cow;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use crate::guc;
use crate::pg::{Refused, ServerProblem};

mod format;
mod refill;
mod refusal;
mod registry;
mod snowflake;

pub use format::FormatError;
pub use refill::{RefillError, for_monitors};
pub use registry::RegistryError;
pub use snowflake::SnowflakeError;

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
    /// There is no `leaf_alloc`.
    NoTable,
    /// One of the extension's tables is not as its script has made it.
    TableAltered { table: String, detail: String },
    /// The same, and the extension of this database is another version than the library.
    OtherVersion {
        installed: String,
        table: String,
        detail: String,
    },
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
    /// No segment was published in time; `detail` is the allocator's last report, if any.
    NoSegment {
        tag: String,
        timeout_ms: i64,
        detail: String,
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
    /// UPDATE of `max_id` downwards.
    MaxIdLowered { tag: String, from: i64, to: i64 },
    /// A trigger function called by hand.
    NotATrigger { function: &'static str },
    /// TRUNCATE of the table of tags, without `leaf_id.allow_truncate`.
    TruncateNotAllowed,
    /// Two-phase commit of an edit.
    PreparedEdit,
    /// A foreign server that cannot be used.
    Server {
        server: String,
        problem: ServerProblem,
    },
    /// A tag would be sourced from elsewhere.
    SourceIsFinal { tag: String, server: String },
    /// A claim for another server, of a tag that is itself sourced from one.
    SourcedElsewhere { tag: String, server: String },
    /// There is no `leaf_gapless`.
    NoGaplessTable,
    /// There is no such gapless series.
    NoSeries { series: String },
    /// A gapless series has reached its end.
    EndOfSeries { series: String },
    /// A gapless number in a transaction with one snapshot.
    GaplessIsolation,
    /// Two-phase commit of a gapless number.
    GaplessPrepared,
    /// There is no table of marks.
    NoMarkTable { table: String },
    /// A reset of a tag whose ids come from another server.
    ResetSourced { tag: String, server: String },
    /// There is no `leaf_opaque_key`.
    NoKeyTable,
    /// The numbers that opaque ids are to be made of.
    OpaqueDomain { tag: String, last: i64 },
    /// A key that is none.
    NoKeyText,
    /// A key for a name that has a tag, or had one.
    KeyTooLate { tag: String },
    /// A second key for a name.
    KeyExists { tag: String },
    /// Another name of a tag that has a key, or for one.
    OpaqueRename { tag: String },
    /// A row for a name that has a key, or another server for it, by a role that may not make keys.
    OpaqueForbidden { tag: String },
    /// A number of a tag as an id whose ids are opaque.
    Opaque { tag: String },
    /// A tag whose ids are not opaque, to be encoded or decoded.
    NotOpaque { tag: String },
    /// A number or an id outside of the tag's domain.
    OpaqueOutOfRange { tag: String, value: i64, last: i64 },
    /// Why a snowflake id cannot be issued, or the generator not be reset.
    Snowflake(SnowflakeError),
    /// A refusal by the worker registry.
    Registry(RegistryError),
    /// An id cannot be decoded, parsed or composed.
    Format(FormatError),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        let Refused {
            name,
            value,
            detail,
        } = refused;
        Self::BadSetting {
            name,
            value,
            detail,
        }
    }
}

/// Tells that a tag goes on at `next`, where it was to begin at `wanted`.
pub fn tell_raised(tag: &str, wanted: i64, next: i64) {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        format!("tag \"{tag}\" goes on at {next}, above the ids that were issued under this name"),
        "leaf_id",
    )
    .set_hint(format!(
        "To start anew: SELECT leaf_tag_reset('{}', {wanted});",
        tag.replace('\'', "''")
    ))
    .report(PgLogLevel::NOTICE);
}

impl Failure {
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
        let exhausted = Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED;
        let full = Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED;
        let error = |code, message: String| ErrorReport::new(code, message, "leaf_id");
        match self {
            Self::NotPreloaded => error(
                not_ready,
                "leaf_id must be loaded via \"shared_preload_libraries\"".into(),
            )
            .set_hint(
                "Run: ALTER SYSTEM SET shared_preload_libraries = 'leaf_id'; (add it to what is there already) and restart the server.",
            ),
            Self::BadSetting { name, value, detail } => error(
                invalid,
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
            .set_detail(detail),
            Self::SingleUser => {
                error(not_ready, "cannot issue ids in single-user mode".into())
            }
            Self::Standby => error(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                "cannot issue ids during recovery".into(),
            ),
            Self::NoTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "table \"leaf_id.leaf_alloc\" is missing".into(),
            ),
            Self::TableAltered { table, detail } => error(
                Code::ERRCODE_DATATYPE_MISMATCH,
                format!("table \"leaf_id.{table}\" is not as extension leaf_id has made it"),
            )
            .set_detail(detail)
            .set_hint("Undo the change to the table."),
            Self::OtherVersion { installed, table, detail } => error(
                not_ready,
                format!(
                    "extension leaf_id of this database is version {installed}, but the library is version {}",
                    env!("CARGO_PKG_VERSION")
                ),
            )
            .set_detail(format!("Table \"leaf_id.{table}\" is not as this version needs it: {detail}"))
            .set_hint("Run: ALTER EXTENSION leaf_id UPDATE; or, where the library is the older one, restart the server."),
            Self::Committing { tag } => error(
                not_ready,
                format!("cannot issue ids of tag \"{tag}\" while the transaction that created it commits"),
            ),
            Self::TagForbidden { tag } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for tag \"{tag}\""),
            )
            .set_hint(format!(
                "Whoever manages tags can grant it: SELECT leaf_tag_grant('{}', '...');",
                tag.replace('\'', "''")
            )),
            Self::Refill { tag, error, server, text } => {
                error.report(&tag, &server, &text).unwrap_or_else(|| {
                    let detail = error.sentence(&server, &for_monitors(text)).unwrap_or_default();
                    let timeout_ms = guc::REFILL_TIMEOUT.get().into();
                    Self::NoSegment { tag, timeout_ms, detail }.report()
                })
            }
            Self::TagLength { bytes } => {
                error(invalid, "a tag must be 1 to 128 bytes long".into())
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
            .set_hint("Raise \"max_step\" in leaf_id.leaf_alloc, or ask for a shorter range."),
            Self::NoSegment { tag, timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not get ids for tag \"{tag}\" within {timeout_ms} ms"),
            )
            .set_detail(detail)
            .set_hint("Try again, look at leaf_segment_status, or increase \"leaf_id.refill_timeout\"."),
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
            Self::NoFreeSlot => error(full, "no free slot for another tag".into())
                .set_hint("Increase \"leaf_id.max_tags\" and restart the server."),
            Self::CalledDirectly { function } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("cannot call {function}() directly"),
            ),
            Self::NotSuperuser { function } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be superuser to call {function}()"),
            ),
            Self::OtherMessage { version, expected } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("message is of version {version}, not {expected}"),
            )
            .set_hint("Install the same version of leaf_id on both servers."),
            Self::BadMessage { detail } => error(invalid, format!("cannot read the message: {detail}")),
            Self::MaxIdLowered { tag, from, to } => error(
                not_ready,
                format!("cannot lower \"max_id\" of tag \"{tag}\" from {from} to {to}"),
            )
            .set_detail("Ids below it may already be in use.")
            .set_hint(format!(
                "To start the tag anew: SELECT leaf_tag_reset('{}', {to});",
                tag.replace('\'', "''")
            )),
            Self::NotATrigger { function } => error(
                Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                format!("function \"{function}\" was not called by trigger manager"),
            ),
            Self::TruncateNotAllowed => error(
                not_ready,
                "TRUNCATE of leaf_id.leaf_alloc would drop all tags of this database".into(),
            )
            .set_detail("The defaults that issue their ids would fail.")
            .set_hint("Leave the table out. If you mean it: BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; COMMIT;"),
            Self::PreparedEdit => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has changed leaf_id.leaf_alloc".into(),
            )
            .set_hint("Change tags in a separate transaction, and COMMIT that."),
            Self::Server { server, problem: ServerProblem::Missing } => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("server \"{server}\" does not exist"),
            )
            .set_hint("Create it: CREATE SERVER ... FOREIGN DATA WRAPPER dblink_fdw OPTIONS (...);"),
            Self::Server { server, problem: ServerProblem::Forbidden } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for foreign server {server}"),
            ),
            Self::SourceIsFinal { tag, server } => error(
                not_ready,
                format!("cannot take tag \"{tag}\" away from server \"{server}\""),
            )
            .set_detail("Other servers may have issued ids above its \"max_id\" here.")
            .set_hint("Drop the tag, and create it anew with a start above all ids that are in use."),
            Self::SourcedElsewhere { tag, server } => error(
                not_ready,
                format!("tag \"{tag}\" is sourced from another server"),
            )
            .set_detail(format!("Its ids come from server \"{server}\"."))
            .set_hint("Claim them there."),
            Self::NoGaplessTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "table \"leaf_id.leaf_gapless\" is missing".into(),
            ),
            Self::NoSeries { series } => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("gapless series \"{series}\" does not exist"),
            )
            .set_hint(format!(
                "Whoever manages the series can create it: SELECT leaf_gapless_create('{}');",
                series.replace('\'', "''")
            )),
            Self::EndOfSeries { series } => error(
                exhausted,
                format!("gapless series \"{series}\" has reached the end of bigint"),
            ),
            Self::GaplessIsolation => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "numbers of a gapless series can be taken only in a READ COMMITTED transaction".into(),
            )
            .set_detail("With one snapshot for all, a transaction would not see the row that has the number before."),
            Self::GaplessPrepared => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has taken a number of a gapless series".into(),
            )
            .set_detail("It would keep the series locked until it is committed, over restarts too."),
            Self::NoMarkTable { table } => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                format!("table \"leaf_id.{table}\" is missing"),
            ),
            Self::ResetSourced { tag, server } => error(
                not_ready,
                format!("tag \"{tag}\" is sourced from server \"{server}\""),
            )
            .set_hint("Reset it there: this server then begins a new incarnation of it with its next segment."),
            Self::NoKeyTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "table \"leaf_id.leaf_opaque_key\" is missing".into(),
            ),
            Self::OpaqueDomain { tag, last } => error(
                invalid,
                format!("cannot make opaque ids of tag \"{tag}\" of the numbers up to {last}"),
            )
            .set_detail("There must be at least 1000000, and at most 9223372036854775806."),
            Self::NoKeyText => error(invalid, "not a key of opaque ids".into())
                .set_detail("A key has 64 hexadecimal digits: leaf_opaque_key() shows it."),
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
            .set_detail("A key is never replaced: ids of another one would come twice.")
            .set_hint(format!(
                "To go on with it, create the tag alone: SELECT leaf_tag_create('{}');",
                tag.replace('\'', "''")
            )),
            Self::OpaqueRename { tag } => error(
                not_ready,
                format!("cannot rename to or from \"{tag}\", whose ids are opaque"),
            )
            .set_detail("Their key belongs to the name."),
            Self::OpaqueForbidden { tag } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied to create or reset tag \"{tag}\", whose ids are opaque"),
            )
            .set_detail("Its numbers could come again, and tell which ids they have.")
            .set_hint("It takes EXECUTE on leaf_id.leaf_make_key(), as leaf_opaque_create() does."),
            Self::Opaque { tag } => error(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("the ids of tag \"{tag}\" are opaque"),
            )
            .set_hint("Use leaf_opaque_next()."),
            Self::NotOpaque { tag } => error(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("tag \"{tag}\" has no key of opaque ids"),
            )
            .set_hint("Such a tag is created by leaf_opaque_create()."),
            Self::OpaqueOutOfRange { tag, value, last } => error(
                Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("{value} is out of range for the opaque ids of tag \"{tag}\""),
            )
            .set_detail(format!("Its numbers and ids are 1 to {last}.")),
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
