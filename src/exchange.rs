//! What a server does for another one: it claims ids for it, or leases it a worker id.
//!
//! Such a call is a transaction of its own. The other server uses what it is told at once,
//! so it must be told nothing that could yet be undone (I1): not inside a transaction that
//! may roll back, not with a commit that is not flushed, and not after a wait for a standby
//! that was cancelled.

use crate::error::Failure;
use crate::guc::CLAIM_SYNCHRONOUS_COMMIT;
use crate::{issue, pg};

/// How long the call may wait for a lock: the caller asks again.
const LOCK_TIMEOUT: &core::ffi::CStr = c"1s";

/// Begins an exchange, in the transaction of the call.
///
/// # Errors
/// This server cannot claim; the call is part of a larger transaction.
pub fn begin(function: &'static str) -> Result<(), Failure> {
    issue::ready()?;
    if pg::in_transaction_block() {
        return Err(Failure::InTransactionBlock { function });
    }
    pg::set_local(c"lock_timeout", LOCK_TIMEOUT);
    pg::only_when_acknowledged(CLAIM_SYNCHRONOUS_COMMIT.get().setting());
    Ok(())
}
