//! Gapless numbers: `gapless` does what this says.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text};
use crate::gapless;

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_gapless_next(series text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_gapless_next(text) IS
    'The next number of a gapless series, which is locked until the transaction ends';
"#)]
fn leaf_gapless_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function above.
    finish(gapless::next(unsafe { text(fcinfo, 0) }))
}
