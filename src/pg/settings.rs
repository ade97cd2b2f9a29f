//! Defining and changing settings.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::borrow::Cow;
use std::ffi::CString;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PgSqlErrorCode};

use super::expression::cells;
use leaf_id_core::message::shown;

/// Validation of a string setting.
pub trait Check {
    /// DETAIL of the error for an invalid value.
    fn detail() -> Cow<'static, str>;
    /// True if `value` is valid. An unset value is empty. `from_file`: it is the configuration file's.
    fn allows(value: &CStr, from_file: bool) -> bool;
}

/// An invalid value in the server's configuration.
pub struct InvalidSetting {
    /// Name of the setting.
    pub name: String,
    /// The invalid value.
    pub value: String,
    /// DETAIL: the valid values.
    pub detail: Cow<'static, str>,
}

/// Value of a setting, or of a placeholder for one.
fn value(name: &CStr) -> Option<CString> {
    // SAFETY: a null-terminated string; the result is null or such a string, and is copied at once.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).into())
    }
}

/// The names in `shared_preload_libraries`; `None` if the caller may not read the setting, or it is
/// malformed.
pub fn preloaded_libraries() -> Option<Vec<String>> {
    const NAME: &CStr = c"shared_preload_libraries";
    let mut names = core::ptr::null_mut();
    // SAFETY: in a transaction; null-terminated strings. The list, which is set also on failure, and
    // its strings are palloc'ed, and a copy of the value is split in place.
    unsafe {
        let user = pg_sys::GetUserId();
        let reader = pg_sys::Oid::from(pg_sys::ROLE_PG_READ_ALL_SETTINGS);
        if !pg_sys::has_privs_of_role(user, reader) {
            return None;
        }
        let value = pg_sys::pstrdup(value(NAME)?.as_ptr());
        let is_list =
            pg_sys::SplitDirectoriesString(value, c_char::try_from(b',').ok()?, &raw mut names);
        is_list.then(|| {
            cells(names)
                .iter()
                .map(|cell| shown(CStr::from_ptr(cell.ptr_value.cast()).to_bytes()))
                .collect()
        })
    }
}

/// Defines a string setting with a check hook.
///
/// # Errors
/// The configuration has an invalid value, which a reload cannot fix. PostgreSQL itself only warns,
/// and uses the default.
pub fn define_checked_string<C: Check>(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<CString>>,
    context: GucContext,
) -> Result<(), InvalidSetting> {
    let configured = match context {
        GucContext::Postmaster => value(name),
        _ => None,
    };
    // SAFETY: `check_hook` has the required signature and does not modify the value.
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
        Some(refused) if value(name).as_ref() != Some(&refused) => Err(InvalidSetting {
            name: name.to_string_lossy().into_owned(),
            value: refused.to_string_lossy().into_owned(),
            detail: C::detail(),
        }),
        _ => Ok(()),
    }
}

/// Guarded without `pg_guard`, which does not support generic functions.
unsafe extern "C-unwind" fn check_hook<C: Check>(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: PostgreSQL passes a pointer to a null-terminated string, or to null. The assignments
    // are those of the macro GUC_check_errdetail; PostgreSQL frees the copy.
    unsafe {
        pgrx_extern_c_guard(|| {
            let text = match *value {
                text if text.is_null() => c"",
                text => CStr::from_ptr(text),
            };
            let allowed = C::allows(text, source == pg_sys::GucSource::PGC_S_FILE);
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

/// Rejects all other settings with this prefix.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: a null-terminated string, and is copied.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Sets a setting for this worker's session, overriding the database's and the role's. Settings
/// unknown to this version of PostgreSQL are skipped.
pub fn pin_setting(name: &CStr, value: &CStr) {
    // SAFETY: null-terminated strings, which are copied. The result of GetConfigOption is only
    // compared with null.
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

/// SET LOCAL, for a setting that any user may set.
pub fn set_local(name: &CStr, value: &CStr) {
    // SAFETY: null-terminated strings, which are copied; in a transaction, whose end reverts it.
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
