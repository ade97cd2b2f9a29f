//! Functions for other servers, which call them as text search parsers.
//!
//! A parser is called by its oid, so a call names nothing but `pg_catalog.ts_parse`, and no role
//! can put another object in the place of a name. Only superusers create parsers. The message is
//! the text to parse, and the answer its only token.

use core::ffi::{CStr, c_char, c_int};

use pgrx::prelude::*;
use pgrx::{PgMemoryContexts, pg_sys};

use super::call::finish;
use crate::error::Failure;
use crate::lease::registry;
use crate::pg::{self, RawDatum};
use crate::remote::message::{self, ClaimRequest};
use crate::remote::serve;
use crate::segment::lookup;
use crate::tags::claim;

/// State of a call between the functions of its parser.
struct Answer {
    text: Vec<u8>,
    is_given: bool,
}

#[pg_extern(strict, sql = false)]
fn leaf_claim(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: the START function of a parser.
    unsafe { answer(fcinfo, c"leaf_claim()", claim) }
}

#[pg_extern(strict, sql = false)]
fn leaf_worker_lease(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: the START function of a parser.
    unsafe { answer(fcinfo, c"leaf_worker_lease()", lease) }
}

fn claim(request: &[u8]) -> Result<Vec<u8>, Failure> {
    // Short, as a locked row here holds up a member's other tags.
    serve::begin(c"leaf_claim()", c"300ms")?;
    let ClaimRequest { tag, n } = message::read(request)?;
    let key = lookup::untouched(&tag)?;
    let answer = claim::claim_for_member(&key, n)?;
    claim::log_skip(&key.tag, answer.skipped);
    pg::limit_hold();
    Ok(message::write(&answer))
}

fn lease(request: &[u8]) -> Result<Vec<u8>, Failure> {
    let reply = registry::ask(false, || message::read(request))?;
    Ok(message::write(&reply))
}

/// Answers a message, in the START function of a parser. PostgreSQL has checked no right, as it
/// never does for the functions of a parser.
///
/// # Safety
/// `fcinfo` is the argument of such a function, called by PostgreSQL, with a text and its length.
unsafe fn answer(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &CStr,
    serve: impl FnOnce(&[u8]) -> Result<Vec<u8>, Failure>,
) -> RawDatum {
    // SAFETY: guaranteed by the caller. The answer is in the memory context of the whole call.
    unsafe {
        let oid = (*(*fcinfo).flinfo).fn_oid.to_u32();
        pg::check_call(oid);
        pg::require_clients_statement(function);
        let [text, len] = [0, 1].map(|number| (*(*fcinfo).args.as_ptr().add(number)).value);
        let len = usize::try_from(len.value() as c_int).unwrap_or(0);
        let request = core::slice::from_raw_parts(text.cast_mut_ptr::<u8>(), len);
        let answer = Answer {
            text: finish(serve(request)),
            is_given: false,
        };
        let answer = PgMemoryContexts::CurrentMemoryContext.leak_and_drop_on_delete(answer);
        pg_sys::Datum::from(answer).into()
    }
}

#[pg_extern(strict, sql = false)]
fn leaf_next_token(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: the GETTOKEN function of a parser, called by PostgreSQL with what `answer` has
    // returned, and with pointers to where the token and its length belong.
    unsafe {
        let [answer, text, len] =
            [0, 1, 2].map(|number| (*(*fcinfo).args.as_ptr().add(number)).value);
        let answer = &mut *answer.cast_mut_ptr::<Answer>();
        *text.cast_mut_ptr::<*const c_char>() = answer.text.as_ptr().cast();
        *len.cast_mut_ptr::<c_int>() = c_int::try_from(answer.text.len()).unwrap_or(0);
        let is_token = !core::mem::replace(&mut answer.is_given, true);
        pg_sys::Datum::from(i32::from(is_token)).into()
    }
}

/// The end of a call, whose memory context drops the answer.
#[pg_extern(strict, sql = false)]
fn leaf_end_parse(_fcinfo: pg_sys::FunctionCallInfo) {}

/// The types of tokens, for `ts_token_type`: none has a name.
#[pg_extern(strict, sql = false)]
fn leaf_token_types(_fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    RawDatum::none()
}
