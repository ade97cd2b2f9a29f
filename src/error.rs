//! Every error a user can see: SQLSTATE, message, detail and hint, in PostgreSQL's style.

use std::borrow::Cow;

use leaf_id_core::layout::Layout;
use leaf_id_core::state::Refusal;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use crate::guc;
use crate::pg::{Refused, ServerProblem};

mod refill;
mod refusal;

pub use refill::{RefillError, for_monitors};

/// Why a call fails. Tags as the user wrote them, times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The library was not loaded at server start.
    NotPreloaded,
    /// The server is to start with a value that a setting may not have.
    BadSetting {
        name: String,
        value: String,
        detail: Cow<'static, str>,
    },
    /// There are no workers in single-user mode.
    SingleUser,
    /// A hot standby claims nothing.
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
    /// The tag gives no ids; its source server, and the text of the error.
    Refill {
        tag: String,
        error: RefillError,
        server: String,
        text: String,
    },
    /// The tag's ids are for other roles.
    TagForbidden { tag: String },
    /// The tag is empty or over 128 bytes.
    TagLength { bytes: usize },
    /// n < 0.
    NegativeCount { n: i32 },
    /// A range longer than a segment may become.
    RangeTooLong { tag: String, n: i32, max_step: u32 },
    /// Nothing was published in time; what the allocator last said, if anything.
    NoSegment {
        tag: String,
        timeout_ms: i64,
        detail: String,
    },
    /// The transaction changed the tag's row and has not committed.
    TagChanged { tag: String, parallel: bool },
    /// All slots are busy.
    NoFreeSlot,
    /// `leaf_id.worker_id` is empty.
    WorkerIdUnset,
    /// The clock is too far behind the last id.
    ClockBack {
        by_ms: i64,
        last: String,
        max_lead_ms: i64,
    },
    /// The milliseconds of the layout are used up.
    EndOfTime,
    /// What an earlier run or another server may have issued lies too far ahead.
    TooFarAhead { by_ms: i64, until: String },
    /// The generator is closed; the last answer of the worker registry.
    Refusal { refusal: Refusal, said: String },
    /// The reservation could not be written or read.
    ReservationFile { reason: String },
    /// `leaf_snowflake_reset` below what was reserved for the same worker id.
    WorkerIdUsed { worker_id: u16, until: String },
    /// `leaf_snowflake_reset` found no launcher, or a busy one.
    ResetTimeout {
        timeout_ms: i64,
        detail: &'static str,
    },
    /// `leaf_snowflake_reset` to a time that no id can carry.
    ResetOutOfRange,
    /// A function that only the planner puts into expressions.
    CalledDirectly { function: &'static str },
    /// Only a superuser may.
    NotSuperuser { function: &'static str },
    /// The generator did not open in time.
    SnowflakeTimeout { timeout_ms: i64, detail: String },
    /// A fixed worker id on a standby.
    StandbyWithoutLease,
    /// The lease of the worker id has ended; since when the registry is away, and what it or
    /// the way to it has said last.
    LeaseEnded {
        worker_id: u16,
        registry: String,
        away_since: Option<String>,
        said: String,
    },
    /// The tables of the worker registry are missing.
    NoRegistryTable,
    /// A message of another version.
    OtherMessage { version: u32, expected: u32 },
    /// A message that is none.
    BadMessage { detail: String },
    /// A question to the worker registry that makes no sense.
    LeaseTerms,
    /// `leaf_worker_release` of a worker id that nobody has.
    NotLeased { worker_id: Option<i32> },
    /// The worker id of another role's server.
    OtherRolesWorkerId { worker_id: i32 },
    /// Not one of the registry's layout.
    NoSuchWorkerId { worker_id: i32, largest: u16 },
    /// `leaf_worker_retire` with a time, of a worker id that may have been used.
    WorkerIdNotFresh { worker_id: i32 },
    /// `leaf_worker_retire` with a time that no id has.
    RetireOutOfRange { first: String, last: String },
    /// `leaf_worker_retire` of NULL.
    RetireNull,
    /// `leaf_snowflake_reset` with a leased worker id.
    ResetLeased,
    /// An id has the bits of its layout, and is not negative.
    NoSnowflake { id: i64, layout: Layout },
    /// A layout argument that is none.
    BadLayout { layout: String },
    /// An id of this time has no such sequence.
    SequenceOutOfRange { sequence: i64, max: u16 },
    /// An id cannot be composed of a time before the first or after the last.
    TimeOutOfRange { first: String, last: String },
    /// An epoch argument outside what a timestamp holds.
    BadEpoch { epoch_ms: i64 },
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
    /// A text that is no pattern.
    BadPattern {
        pattern: String,
        detail: &'static str,
    },
    /// An id that a pattern cannot hold.
    DoesNotFit { id: i64, pattern: String },
    /// A text that is not one of a pattern.
    Unparsed {
        text: String,
        pattern: String,
        detail: &'static str,
    },
    /// A UUID of a negative id.
    NegativeUuid { id: i64 },
    /// A UUID that holds no id.
    OtherUuid { uuid: String },
    /// There is no `leaf_high_mark`.
    NoMarkTable,
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

    /// The error of a closed generator that no registry has to do with.
    pub fn refusal(refusal: Refusal) -> Self {
        let said = String::new();
        Self::Refusal { refusal, said }
    }

    /// The report to raise, or to return from an SQL function.
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
            Self::Refusal { refusal, said } => {
                refusal::report(refusal, &said).unwrap_or_else(|| {
                    let timeout_ms = guc::REFILL_TIMEOUT.get().into();
                    Self::SnowflakeTimeout { timeout_ms, detail: said }.report()
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
            Self::WorkerIdUnset => error(not_ready, "\"leaf_id.worker_id\" is not set".into())
                .set_hint(
                    "Give every server a number of its own: ALTER SYSTEM SET leaf_id.worker_id = '1'; SELECT pg_reload_conf();",
                ),
            Self::ClockBack {
                by_ms,
                last,
                max_lead_ms,
            } => error(
                not_ready,
                "could not issue a snowflake id: the clock went back".into(),
            )
            .set_detail(format!(
                "The clock is {by_ms} ms behind the last id, which carries the time {last}; ids may lead it by {max_lead_ms} ms."
            ))
            .set_hint("Calls succeed again once the clock is within \"leaf_id.max_clock_lead\" of the last id. If the clock was wrong then and is right now, and that is too long: set \"leaf_id.worker_id\" to one that was never used before, reload, and SELECT leaf_snowflake_reset(now());"),
            Self::EndOfTime => error(
                exhausted,
                "snowflake ids have reached the end of their time".into(),
            ),
            Self::TooFarAhead { by_ms, until } => error(
                not_ready,
                "cannot issue snowflake ids: earlier ones may carry times too far ahead of the clock".into(),
            )
            .set_detail(format!("They can be issued again at {until}, in {by_ms} ms, when the lead is within \"leaf_id.max_clock_lead\"."))
            .set_hint("Set the clock right, or raise \"leaf_id.max_clock_lead\". If the clock is right now, and the worker id is not leased: set \"leaf_id.worker_id\" to one that was never used before, reload, and SELECT leaf_snowflake_reset(now());"),
            Self::ReservationFile { reason } => error(
                Code::ERRCODE_IO_ERROR,
                "could not reserve snowflake timestamps".into(),
            )
            .set_detail(format!("The file leaf_id_reservation.json in the data directory could not be read or written: {reason}"))
            .set_hint("Make the file readable and the disk writable; the launcher tries again every second. If the file is damaged, and the clock was never ahead: SELECT leaf_snowflake_reset(now());"),
            Self::WorkerIdUsed { worker_id, until } => error(
                not_ready,
                format!("worker id {worker_id} may have issued snowflake ids with later times"),
            )
            .set_detail(format!("Its timestamps are reserved until {until}."))
            .set_hint("Set \"leaf_id.worker_id\" to one that was never used before: ALTER SYSTEM SET leaf_id.worker_id = '...'; SELECT pg_reload_conf(); and call this again."),
            Self::ResetTimeout { timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not reset snowflake ids within {timeout_ms} ms"),
            )
            .set_detail(detail.to_string()),
            Self::ResetOutOfRange => error(
                invalid,
                "snowflake ids cannot carry this time".into(),
            )
            .set_hint("To issue ids from now on: SELECT leaf_snowflake_reset(now());"),
            Self::CalledDirectly { function } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("cannot call {function}() directly"),
            ),
            Self::NotSuperuser { function } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be superuser to call {function}()"),
            ),
            Self::SnowflakeTimeout { timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not get a snowflake id within {timeout_ms} ms"),
            )
            .set_detail(detail)
            .set_hint("Try again, look at leaf_snowflake_status, or increase \"leaf_id.refill_timeout\"."),
            Self::StandbyWithoutLease => error(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                "cannot issue snowflake ids during recovery".into(),
            )
            .set_detail("The worker id is in the configuration, or from a registry on this server itself, and may be that of the primary.")
            .set_hint("A standby can have one of its own: set \"leaf_id.worker_registry\" to one on another server, and \"leaf_id.worker_id\" to auto."),
            Self::LeaseEnded { worker_id, registry, away_since, said } => error(
                not_ready,
                format!("cannot issue snowflake ids: the lease of worker id {worker_id} has ended"),
            )
            .set_detail(match away_since {
                Some(since) => format!("Worker registry \"{registry}\" has not answered since {since}: {said}."),
                None => format!("Worker registry \"{registry}\" has not renewed it yet."),
            })
            .set_hint("Calls succeed again as soon as the registry renews it; leaf_snowflake_status tells more."),
            Self::NoRegistryTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "the tables of the worker registry in schema leaf_id are missing".into(),
            ),
            Self::OtherMessage { version, expected } => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("message is of version {version}, not {expected}"),
            )
            .set_hint("Install the same version of leaf_id on both servers."),
            Self::BadMessage { detail } => error(invalid, format!("cannot read the message: {detail}")),
            Self::LeaseTerms => error(
                invalid,
                "a worker id cannot be leased on these terms".into(),
            )
            .set_detail("Expected are a worker id that the layout has, a node name of at most 63 printable bytes, a next_token that is neither 0 nor token, a clock between 1970 and 9999, a lease of at most a day, and a clock skew and a lead of at most an hour."),
            Self::NotLeased { worker_id } => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                match worker_id {
                    Some(worker_id) => format!("worker id {worker_id} is not leased"),
                    None => "worker id null is not leased".into(),
                },
            ),
            Self::OtherRolesWorkerId { worker_id } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for worker id {worker_id}"),
            )
            .set_detail("It is leased to a server of another role.")
            .set_hint("That role can do this, and the owner of extension leaf_id."),
            Self::NoSuchWorkerId { worker_id, largest } => error(
                invalid,
                format!("worker id is out of range: {worker_id}"),
            )
            .set_detail(format!("Worker ids are 0 to {largest}.")),
            Self::WorkerIdNotFresh { worker_id } => error(
                not_ready,
                format!("worker id {worker_id} may have been used before"),
            )
            .set_detail("It was leased once, is retired already, or is \"leaf_id.worker_id\" of this server.")
            .set_hint("Choose one that leaf_worker_status does not show, and that no server is set to."),
            Self::RetireOutOfRange { first, last } => error(
                invalid,
                "cannot retire a worker id until a time that no id can carry".into(),
            )
            .set_detail(format!("Ids of this registry carry times from {first} to {last}.")),
            Self::RetireNull => error(
                Code::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                "leaf_worker_retire() takes no null".into(),
            ),
            Self::ResetLeased => error(
                not_ready,
                "cannot reset snowflake ids while \"leaf_id.worker_id\" is auto".into(),
            )
            .set_detail("No id carries a later time than the worker registry has recorded, so there is nothing to go back from."),
            Self::NoSnowflake { id, layout } => {
                error(invalid, format!("not a snowflake id: {id}"))
                    .set_detail(format!("Ids of layout {layout} are 0 to {}.", layout.max_id()))
            }
            Self::BadLayout { layout } => error(
                invalid,
                format!("not a layout of snowflake ids: \"{layout}\""),
            )
            .set_detail(Layout::ALLOWED),
            Self::SequenceOutOfRange { sequence, max } => error(
                invalid,
                format!("sequence is out of range: {sequence}"),
            )
            .set_detail(format!(
                "Sequences are 0 to {max}: a worker id has {} ids in a millisecond.",
                u32::from(max) + 1
            ))
            .set_hint("Give further rows of this millisecond a later time, or another worker id."),
            Self::TimeOutOfRange { first, last } => error(
                invalid,
                "snowflake ids cannot carry this time".into(),
            )
            .set_detail(format!("With this epoch and layout they carry times from {first} to {last}.")),
            Self::BadEpoch { epoch_ms } => {
                error(invalid, format!("epoch is out of range: {epoch_ms}"))
            }
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
            Self::BadPattern { pattern, detail } => error(
                invalid,
                format!("not a pattern of ids: \"{pattern}\""),
            )
            .set_detail(detail),
            Self::DoesNotFit { id, pattern } => error(
                Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("pattern \"{pattern}\" cannot hold id {id}"),
            )
            .set_detail("It is negative, has too many digits, or does not begin with a period that exists."),
            Self::Unparsed { text, pattern, detail } => error(
                Code::ERRCODE_INVALID_TEXT_REPRESENTATION,
                format!("not an id in pattern \"{pattern}\": \"{text}\""),
            )
            .set_detail(detail),
            Self::NegativeUuid { id } => error(
                Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("a UUID cannot hold a negative id: {id}"),
            ),
            Self::OtherUuid { uuid } => error(
                Code::ERRCODE_INVALID_TEXT_REPRESENTATION,
                format!("not a UUID that holds an id: \"{uuid}\""),
            )
            .set_hint("Such a UUID comes from leaf_format_uuid()."),
            Self::NoMarkTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "table \"leaf_id.leaf_high_mark\" is missing".into(),
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
        }
    }

    /// Raises it as an ERROR.
    pub fn raise(self) -> ! {
        self.report().report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }
}
