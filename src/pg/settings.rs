//! Settings: to define them, and to set them.

use core::ffi::{CStr, c_char, c_int, c_void};

use pgrx::pg_sys;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PgSqlErrorCode};

/// A check hook, as PostgreSQL calls it.
pub type CheckHook = unsafe extern "C-unwind" fn(
    *mut *mut c_char,
    *mut *mut c_void,
    pg_sys::GucSource::Type,
) -> bool;

/// Defines a string setting whose values are checked.
pub fn define_checked_string(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<std::ffi::CString>>,
    context: GucContext,
    hook: CheckHook,
) {
    // SAFETY: the hook neither fails nor changes the value.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            GucFlags::default(),
            Some(hook),
            None,
            None,
        );
    }
}

/// The value that a check hook is asked about.
pub fn with_setting(value: *mut *mut c_char, check: impl FnOnce(&CStr) -> bool) -> bool {
    // SAFETY: PostgreSQL passes a pointer to a string or to null.
    let text = unsafe {
        match value.as_ref() {
            Some(text) if !text.is_null() => CStr::from_ptr(*text),
            _ => c"",
        }
    };
    check(text)
}

/// Says in a check hook why a value is refused.
pub fn explain_check_failure(code: PgSqlErrorCode, detail: &CStr) {
    // SAFETY: what the GUC_check_errdetail macro does.
    unsafe {
        pg_sys::GUC_check_errcode(code as c_int);
        pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(detail.as_ptr());
    }
}

/// Makes any other setting of this prefix an error.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: after all definitions.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Sets a setting of this worker's session, over what the database or the role says. One
/// that this version of PostgreSQL does not know is passed over.
pub fn pin_setting(name: &CStr, value: &CStr) {
    // SAFETY: a worker that runs as superuser.
    unsafe {
        if pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() {
            return;
        }
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}

/// SET LOCAL, for a setting that anybody may set.
pub fn set_local(name: &CStr, value: &CStr) {
    // SAFETY: inside a transaction, whose end takes it back.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}
