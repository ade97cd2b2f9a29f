//! Distinguishes a client's own statement from everything that runs inside of one.

use core::ffi::CStr;

use pgrx::pg_sys::{self, NodeTag};

/// Raises an error unless the current call is that of a parser by `ts_parse`, which alone is the FROM
/// clause of a SELECT that the client has sent: not in a function, trigger, index, view, policy or DO
/// block, nor in a utility statement. Call it in the memory context of `ts_parse`.
pub fn require_clients_statement(function: &CStr) {
    if !is_clients_statement() {
        // SAFETY: a null-terminated string. Raises an error, since the call is not at top level.
        unsafe { pg_sys::PreventInTransactionBlock(false, function.as_ptr()) };
    }
}

fn is_clients_statement() -> bool {
    // SAFETY: the active portal is null or valid, with its source text. What it has of a query
    // lives until the portal ends; an executing one has a plan and a state. The query string is
    // null or null-terminated.
    unsafe {
        let Some(portal) = pg_sys::ActivePortal.as_ref() else {
            return false;
        };
        let Some(query) = portal.queryDesc.as_ref() else {
            return false;
        };
        let sent = pg_sys::debug_query_string;
        // Cursors in functions, and EXECUTE, have a source text of their own.
        let is_clients = portal.strategy == pg_sys::PortalStrategy::PORTAL_ONE_SELECT
            && !sent.is_null()
            && CStr::from_ptr(portal.sourceText) == CStr::from_ptr(sent);
        // What a function executes has a state of its own.
        let context = pg_sys::MemoryContextGetParent(pg_sys::CurrentMemoryContext);
        let is_direct = !query.estate.is_null() && (*query.estate).es_query_cxt == context;
        // A view, or a function that was inlined, would have an entry, too.
        let plan = &*query.plannedstmt;
        let is_alone = plan
            .rtable
            .as_ref()
            .is_some_and(|entries| entries.length == 1);
        is_clients && is_direct && is_alone && scans_ts_parse(plan.planTree)
    }
}

/// True if all that a plan does is to scan `ts_parse`. A scan of a table calls a parser for
/// `to_tsvector` in a policy or a generated column of its owner's.
///
/// # Safety
/// The plan is null or valid.
unsafe fn scans_ts_parse(plan: *const pg_sys::Plan) -> bool {
    // SAFETY: guaranteed by the caller; a node begins with its tag. The list is of RangeTblFunction,
    // and not empty.
    unsafe {
        let is_a = |node: *const pg_sys::Node, tag| !node.is_null() && (*node).type_ == tag;
        if !is_a(plan.cast(), NodeTag::T_FunctionScan) {
            return false;
        }
        let functions = (*plan.cast::<pg_sys::FunctionScan>()).functions;
        let first = (*(*functions).elements).ptr_value;
        let call = (*first.cast::<pg_sys::RangeTblFunction>()).funcexpr;
        (*functions).length == 1
            && is_a(call, NodeTag::T_FuncExpr)
            && [pg_sys::F_TS_PARSE_OID_TEXT, pg_sys::F_TS_PARSE_TEXT_TEXT]
                .contains(&(*call.cast::<pg_sys::FuncExpr>()).funcid.to_u32())
    }
}
