//! What a server does for another one: it claims ids for it, or leases it a worker id.
//!
//! Such a call is a transaction of its own. The other server uses what it is told at once,
//! so it must be told nothing that could yet be undone (I1): not inside a transaction that
//! may roll back, not with a commit that is not flushed, and not after a wait for a standby
//! that was canceled.

use core::ffi::CStr;

use crate::error::Failure;
use crate::guc::CLAIM_SYNCHRONOUS_COMMIT;
use crate::{deadline, pg};

/// Begins a remote call, in the transaction of the call to a function, which waits for no lock
/// longer than that: the caller asks again. PostgreSQL raises its own error where the call is
/// part of a larger transaction, and commits at its end, before it is answered.
///
/// # Errors
/// This server cannot claim.
pub fn begin(function: &CStr, lock_timeout: &CStr) -> Result<(), Failure> {
    deadline::ready()?;
    pg::prevent_in_transaction_block(function);
    pg::prevent_if_read_only(function);
    pg::set_local(c"lock_timeout", lock_timeout);
    pg::only_when_acknowledged(CLAIM_SYNCHRONOUS_COMMIT.get().setting());
    Ok(())
}
