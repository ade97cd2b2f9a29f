//! Settings: to define them, and to set them.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::borrow::Cow;
use std::ffi::CString;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PgSqlErrorCode};

/// What a string setting may be.
pub trait Check {
    /// The DETAIL of the error for a value that it may not be.
    fn detail() -> Cow<'static, str>;
    /// Whether it may be this. An unset one is empty.
    fn allows(value: &CStr) -> bool;
}

/// The server is to start with a value that a setting may not have.
pub struct Refused {
    /// The setting.
    pub name: String,
    /// What it may not be.
    pub value: String,
    /// What it may be.
    pub detail: Cow<'static, str>,
}

/// The value of a setting, or of what may become one.
fn value(name: &CStr) -> Option<CString> {
    // SAFETY: a string that ends with null; what is returned is null or such a string, and is
    // copied at once.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).into())
    }
}

/// Defines a string setting whose values are checked.
///
/// # Errors
/// The configuration has a value that it may not have, and no reload can mend that. PostgreSQL
/// itself only warns, and goes on with the default.
pub fn define_checked_string<C: Check>(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<CString>>,
    context: GucContext,
) -> Result<(), Refused> {
    let configured = match context {
        GucContext::Postmaster => value(name),
        _ => None,
    };
    // SAFETY: `check_hook` is a check hook as PostgreSQL calls it, and leaves the value as it is.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            GucFlags::default(),
            Some(check_hook::<C>),
            None,
            None,
        );
    }
    match configured {
        Some(refused) if value(name).as_ref() != Some(&refused) => Err(Refused {
            name: name.to_string_lossy().into_owned(),
            value: refused.to_string_lossy().into_owned(),
            detail: C::detail(),
        }),
        _ => Ok(()),
    }
}

/// Not by `pg_guard`, which knows no generic functions.
unsafe extern "C-unwind" fn check_hook<C: Check>(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: PostgreSQL calls this with a pointer to a string that ends with null, or to null.
    // GUC_check_errcode and the rest are what the macro GUC_check_errdetail does; PostgreSQL
    // frees the copy.
    unsafe {
        pgrx_extern_c_guard(|| {
            let text = match *value {
                text if text.is_null() => c"",
                text => CStr::from_ptr(text),
            };
            let allowed = C::allows(text);
            if !allowed {
                let code = PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE;
                pg_sys::GUC_check_errcode(code as c_int);
                let detail = CString::new(C::detail().as_bytes()).unwrap_or_default();
                pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(detail.as_ptr());
            }
            allowed
        })
    }
}

/// Makes any other setting of this prefix an error.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: a string that ends with null, and is copied.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Sets a setting of this worker's session, over what the database or the role says. One
/// that this version of PostgreSQL does not know is passed over.
pub fn pin_setting(name: &CStr, value: &CStr) {
    // SAFETY: strings that end with null, and are copied. What GetConfigOption returns is not
    // looked at.
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
    // SAFETY: strings that end with null, and are copied; in a transaction, whose end takes it
    // back.
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
