//! Errors for the states in which the snowflake generator is closed.

use leaf_id_core::layout::Layout;
use leaf_id_core::state::Refusal;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report;

/// The error to raise; `None` if the state may end soon, or has an error of its own. `said`: last
/// answer of the worker registry.
pub(super) fn report(refusal: Refusal, said: &str) -> Option<ErrorReport> {
    let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
    let detail = format!("The worker registry says: {said}.");
    let error = |code, message: String| report::error(code, message).set_detail(detail.clone());
    Some(match refusal {
        Refusal::EpochMovedLater { stored_ms } => error(not_ready, "cannot issue snowflake ids: \"leaf_id.epoch\" was moved later".into())
            .set_detail(format!("Earlier ids were issued with the epoch {stored_ms}."))
            .set_hint(format!("Run this, and restart the server: ALTER SYSTEM SET leaf_id.epoch = '{stored_ms}';")),
        Refusal::LayoutChanged { stored } => {
            let stored = u32::try_from(stored).ok().and_then(Layout::unpack);
            let hint = stored.map_or_else(
                || "Restore \"leaf_id.snowflake_layout\", and restart the server.".into(),
                |layout| format!("Run this, and restart the server: ALTER SYSTEM SET leaf_id.snowflake_layout = '{layout}';"),
            );
            let stored = stored.map_or_else(|| "unknown".into(), |layout| layout.to_string());
            error(not_ready, "cannot issue snowflake ids: with this \"leaf_id.snowflake_layout\" they would be smaller than earlier ones".into())
                .set_detail(format!("Earlier ids were issued with the layout {stored}."))
                .set_hint(hint)
        }
        Refusal::NoRegistrySet => error(not_ready, "\"leaf_id.worker_registry\" is not set".into())
            .set_detail("\"leaf_id.worker_id\" is auto: a worker id is to be leased.")
            .set_hint("Set it to a database of this server, or to \"database/server\" with a foreign server of that database."),
        Refusal::NoFreeWorkerId => error(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, "cannot issue snowflake ids: the worker registry has no free worker id".into())
            .set_hint("Wait until a lease in leaf_id.fleet there has expired, give each copy of a server a \"leaf_id.node_name\" of its own, or raise \"max_ids_per_role\" in leaf_id.leaf_registry there."),
        Refusal::ClockSkew { by_ms } => {
            let ahead = if by_ms > 0 { "ahead" } else { "behind" };
            let by_ms = by_ms.unsigned_abs();
            error(not_ready, format!("cannot issue snowflake ids: the clock is {by_ms} ms {ahead}"))
                .set_hint("Correct the clock, or raise \"max_skew_ms\" in leaf_id.leaf_registry of the registry; this is tried again every second.")
        }
        Refusal::OtherEpoch => error(not_ready, "cannot issue snowflake ids: \"leaf_id.epoch\" is not that of the worker registry".into())
            .set_hint("All servers of a registry have one epoch: set \"leaf_id.epoch\" and restart the server."),
        Refusal::OtherLayout => error(not_ready, "cannot issue snowflake ids: \"leaf_id.snowflake_layout\" is not that of the worker registry".into())
            .set_hint("All servers of a registry have one layout: set \"leaf_id.snowflake_layout\" and restart the server."),
        Refusal::FileProblem
        | Refusal::TimeUsedUp
        | Refusal::NoAnswer
        | Refusal::RegistryMoved
        | Refusal::WorkerIdRetired { .. } => return None,
    })
}
