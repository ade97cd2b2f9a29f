//! Holders of locks that a process has waited for in vain.

use core::ffi::c_int;

use pgrx::pg_sys;

use super::process::database;
use super::table::row::Locker;

/// Holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum LockHolder {
    /// None any more, or unknown.
    Unknown,
    /// A process, by pid.
    Process(i32),
    /// A prepared transaction.
    Prepared,
}

/// Holder of a row lock. In a transaction with a snapshot.
pub fn row_holder(locker: Locker) -> LockHolder {
    let holders = match locker {
        Locker::None => return LockHolder::Unknown,
        Locker::Transaction(xid) => vec![transaction_holder(xid)],
        Locker::Multi(multi) => members(multi).into_iter().map(transaction_holder).collect(),
    };
    let holds = |holder: &LockHolder| *holder != LockHolder::Unknown;
    holders
        .into_iter()
        .find(holds)
        .unwrap_or(LockHolder::Unknown)
}

fn transaction_holder(xid: u32) -> LockHolder {
    #[allow(
        clippy::useless_conversion,
        reason = "the type differs between versions"
    )]
    let xid: pg_sys::TransactionId = xid.into();
    // SAFETY: in a transaction; accepts any xid. Only a running transaction is looked up in
    // pg_subtrans: older entries may be truncated, which would be an error.
    unsafe {
        if pg_sys::TransactionIdIsCurrentTransactionId(xid)
            || !pg_sys::TransactionIdIsInProgress(xid)
        {
            return LockHolder::Unknown;
        }
        let top = pg_sys::SubTransGetTopmostTransaction(xid);
        match pg_sys::BackendXidGetPid(top) {
            0 if pg_sys::TransactionIdIsInProgress(top) => LockHolder::Prepared,
            0 => LockHolder::Unknown,
            pid => LockHolder::Process(pid),
        }
    }
}

/// Member transactions of a multixact.
fn members(multi: u32) -> Vec<u32> {
    let mut members = core::ptr::null_mut();
    // SAFETY: in a transaction; a multixact read from a row. `members` is set to a palloc'ed array
    // of the returned length; -1 means none.
    unsafe {
        #[allow(
            clippy::useless_conversion,
            reason = "the type differs between versions"
        )]
        let count = pg_sys::GetMultiXactIdMembers(multi.into(), &raw mut members, false, false);
        (0..usize::try_from(count).unwrap_or(0))
            .map(|position| {
                #[allow(
                    clippy::useless_conversion,
                    reason = "the type differs between versions"
                )]
                let xid: u32 = (*members.add(position)).xid.into();
                xid
            })
            .collect()
    }
}

/// Lock tag of a relation in this database.
fn relation_tag(relation: u32) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        locktag_field1: database(),
        locktag_field2: relation,
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: u8::try_from(pg_sys::LockTagType::LOCKTAG_RELATION).unwrap_or(0),
        locktag_lockmethodid: u8::try_from(pg_sys::DEFAULT_LOCKMETHOD).unwrap_or(1),
    }
}

/// True if this session holds an ACCESS EXCLUSIVE lock on a relation of this database.
pub(super) fn is_locked_by_me(relation: u32) -> bool {
    let tag = relation_tag(relation);
    let mode = pg_sys::AccessExclusiveLock.cast_signed();
    // SAFETY: a complete tag and a mode of its lock method.
    unsafe {
        #[cfg(not(since_17))]
        let held = pg_sys::LockHeldByMe(&raw const tag, mode);
        #[cfg(since_17)]
        let held = pg_sys::LockHeldByMe(&raw const tag, mode, false);
        held
    }
}

/// Holder of a lock that prevents writes to a table of this database.
pub fn table_holder(relation: u32) -> LockHolder {
    let tag = relation_tag(relation);
    let mut count: c_int = 0;
    // SAFETY: a complete tag and a mode of its lock method. The result is a palloc'ed array of
    // `count` elements, plus a terminator.
    unsafe {
        let mode = pg_sys::RowExclusiveLock.cast_signed();
        let held = pg_sys::GetLockConflicts(&raw const tag, mode, &raw mut count);
        if count < 1 {
            return LockHolder::Unknown;
        }
        match virtual_transaction_pid(&*held) {
            0 => LockHolder::Prepared,
            pid => LockHolder::Process(pid),
        }
    }
}

#[cfg(not(since_17))]
fn virtual_transaction_pid(held: &pg_sys::VirtualTransactionId) -> c_int {
    // SAFETY: accepts any number, and returns null or a PGPROC, which stays in shared memory as
    // long as the server runs. It may have been reused; hence the comparison below.
    let process = unsafe { pg_sys::BackendIdGetProc(held.backendId).as_ref() };
    // A prepared transaction keeps the number of a backend that has moved on.
    let holds = |process: &&pg_sys::PGPROC| process.lxid == held.localTransactionId;
    process.filter(holds).map_or(0, |process| process.pid)
}

#[cfg(since_17)]
fn virtual_transaction_pid(held: &pg_sys::VirtualTransactionId) -> c_int {
    // SAFETY: accepts any number, and returns null or a PGPROC, which stays in shared memory as
    // long as the server runs. It may have been reused; hence the comparison below.
    let process = unsafe { pg_sys::ProcNumberGetProc(held.procNumber).as_ref() };
    // A prepared transaction keeps the number of a backend that has moved on.
    let holds = |process: &&pg_sys::PGPROC| process.vxid.lxid == held.localTransactionId;
    process.filter(holds).map_or(0, |process| process.pid)
}
