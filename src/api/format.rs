//! Ids as people read them: `leaf_id_core::format` does what these say.

use leaf_id_core::format::{Pattern, of_uuid, to_uuid};
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text};
use crate::error::Failure;
use crate::pg::{self, RawDatum};

fn pattern(pattern: &[u8]) -> Result<Pattern<'_>, Failure> {
    Pattern::new(pattern).map_err(|bad| Failure::BadPattern {
        pattern: pg::shown(pattern),
        detail: bad.sentence(),
    })
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_format(id bigint, pattern text) RETURNS text
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_format(bigint, text) IS
    'An id by a pattern like INV-{YYYY}-{N:6} or ord_{BASE32}{CHECK}';
"#)]
fn leaf_format(id: i64, fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function above.
    let given = unsafe { text(fcinfo, 1) };
    let formatted = finish(pattern(given)).format(id);
    let formatted = finish(formatted.ok_or_else(|| Failure::DoesNotFit {
        id,
        pattern: pg::shown(given),
    }));
    RawDatum::text(formatted.len(), |out| formatted.write(out))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_parse(formatted text, pattern text) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_parse(text, text) IS
    'The id that leaf_format() has made this text of';
"#)]
fn leaf_parse(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function above.
    let (formatted, given) = unsafe { (text(fcinfo, 0), text(fcinfo, 1)) };
    let parsed = finish(pattern(given)).parse(formatted);
    finish(parsed.map_err(|unparsed| Failure::Unparsed {
        text: pg::shown(formatted),
        pattern: pg::shown(given),
        detail: unparsed.sentence(),
    }))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_format_uuid(id bigint) RETURNS uuid
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_format_uuid(bigint) IS
    'A UUID of version 8 that holds an id: in the same order, and as easy to guess';
"#)]
fn leaf_format_uuid(id: i64) -> pgrx::Uuid {
    let uuid = to_uuid(id).ok_or(Failure::NegativeUuid { id });
    pgrx::Uuid::from_bytes(finish(uuid))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_parse_uuid(uuid uuid) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_parse_uuid(uuid) IS
    'The id that leaf_format_uuid() has made this UUID of';
"#)]
fn leaf_parse_uuid(uuid: pgrx::Uuid) -> i64 {
    let id = of_uuid(*uuid.as_bytes());
    finish(id.ok_or_else(|| Failure::OtherUuid {
        uuid: uuid.to_string(),
    }))
}
