//! What the worker registry needs of the server. The registry itself is SQL: sql/workers.sql.

use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::{finish, kept};
use crate::exchange;
use crate::pg::{self, Raw, RowType};

pgrx::extension_sql_file!(
    "../../sql/workers.sql",
    name = "workers",
    requires = ["schema", leaf_registry_begin]
);

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_registry_begin(
    renewing boolean, OUT system_identifier bigint, OUT timeline integer, OUT boot_ms bigint)
    STRICT VOLATILE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_registry_begin(boolean) IS
    'Part of leaf_worker_claim() and leaf_worker_renew(): what server this is, and a clock that nobody sets';
"#)]
fn leaf_registry_begin(renewing: bool, fcinfo: pg_sys::FunctionCallInfo) -> Raw {
    let function = if renewing {
        c"leaf_worker_renew()"
    } else {
        c"leaf_worker_claim()"
    };
    finish(exchange::begin(function, c"1s"));
    kept(fcinfo, || RowType::of(fcinfo)).form([
        pg::system_identifier().cast_signed().into_datum(),
        pg::timeline().cast_signed().into_datum(),
        pg::boot_ms().into_datum(),
    ])
}
