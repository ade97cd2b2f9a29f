//! Distinguishes a client's own statement from everything that runs inside of one.

use core::ffi::CStr;

use pgrx::pg_sys;

/// Raises an error unless the current call is that of a set-returning function which alone is the
/// FROM clause of a SELECT that the client has sent: not in a function, trigger, index, view or DO
/// block, nor in a utility statement. Call it in the memory context of that function.
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
        let is_alone = (*query.plannedstmt)
            .rtable
            .as_ref()
            .is_some_and(|entries| entries.length == 1);
        is_clients && is_direct && is_alone
    }
}
