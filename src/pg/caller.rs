//! The caller of a function, and whether what was found about its rights still holds.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pgrx::pg_sys;

unsafe extern "C" {
    // Declared here to avoid pgrx's guard: called for every id of a restricted tag.
    #[link_name = "GetUserId"]
    fn raw_user() -> pg_sys::Oid;
}

/// The effective user, and the number of invalidations that this process has received of roles,
/// memberships, and what was noted. A cached privilege check is valid while both are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    user: u32,
    changes: u32,
}

impl Caller {
    /// The current caller, before its rights are checked.
    pub fn to_check() -> Self {
        watch();
        Self::now()
    }

    /// The current caller, to be compared with one that was checked. Cannot fail or panic. SET ROLE
    /// and SECURITY DEFINER functions change it.
    #[inline]
    pub fn now() -> Self {
        Self {
            user: user(),
            changes: CHANGES.load(Ordering::Relaxed),
        }
    }
}

/// The effective user.
#[inline]
pub fn user() -> u32 {
    // SAFETY: no arguments; reads a global and cannot raise an error, so no guard is needed.
    unsafe { raw_user() }.to_u32()
}

static CHANGES: AtomicU32 = AtomicU32::new(0);

fn changed() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// A set of hashes that may contain more than was put in: a bit for each of their upper bits. The
/// callbacks read it during any catalog access, where nothing may be allocated.
static NOTED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn bit(hash: u32) -> (&'static AtomicU64, u64) {
    let bit = hash.wrapping_mul(0x9E37_79B1) >> 20;
    (&NOTED[(bit / 64) as usize], 1 << (bit % 64))
}

fn note(hash: u32) {
    let (word, bit) = bit(hash);
    word.fetch_or(bit, Ordering::Relaxed);
}

fn is_noted(hash: u32) -> bool {
    let (word, bit) = bit(hash);
    hash == 0 || word.load(Ordering::Relaxed) & bit != 0
}

/// Has changes of a relation count as changes of the caller's rights: its privileges, its owner,
/// and the defaults of its columns.
pub fn note_relation(relation: u32) {
    note(relation);
}

/// As [`note_relation`], for a domain.
pub fn note_type(domain: u32) {
    let cache = pg_sys::SysCacheIdentifier::TYPEOID.cast_signed();
    let none = pg_sys::Datum::null();
    // SAFETY: in a transaction; the cache is keyed by one oid.
    note(unsafe {
        pg_sys::GetSysCacheHashValue(cache, pg_sys::Datum::from(domain), none, none, none)
    });
}

unsafe extern "C-unwind" fn role_changed(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    changed();
}

unsafe extern "C-unwind" fn type_changed(_arg: pg_sys::Datum, _cache: c_int, hash: u32) {
    if is_noted(hash) {
        changed();
    }
}

unsafe extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    if is_noted(relation.to_u32()) {
        changed();
    }
}

fn watch() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if WATCHING.load(Ordering::Relaxed) || WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    // The caches that PostgreSQL's membership cache depends on, and the schema's grants.
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID, TYPEOID};
    let none = pg_sys::Datum::null();
    // SAFETY: the callbacks only touch atomics, and the library is never unloaded.
    unsafe {
        for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache.cast_signed(), Some(role_changed), none);
        }
        pg_sys::CacheRegisterSyscacheCallback(TYPEOID.cast_signed(), Some(type_changed), none);
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), none);
    }
}
