//! Calls from other servers: claims of ids, and leases of worker ids.
//!
//! Each call must be a transaction of its own. The other server uses the answer at once, so nothing
//! that may still be rolled back must be disclosed (I1): not in a larger transaction, not with an
//! unflushed commit, and not after a canceled wait for a standby.

use core::ffi::CStr;

use crate::error::Failure;
use crate::guc::CLAIM_SYNCHRONOUS_COMMIT;
use crate::{deadline, pg};

/// Starts a remote call in the current transaction. Waits for a lock are limited to `lock_timeout`,
/// since the caller retries. PostgreSQL raises its own error if the call is part of a larger
/// transaction, and commits before the answer is sent.
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
