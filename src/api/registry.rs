//! Functions of the worker registry; implemented by `lease::registry`.

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Kind, Question};
use leaf_id_core::registry::{Reply, Request};
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{finish, row_type};
use crate::error::Failure;
use crate::lease::registry;
use crate::pg::{RawDatum, Text};

/// Sequential access to the arguments of a call. Their types are declared in the function's SQL.
struct Arguments {
    fcinfo: pg_sys::FunctionCallInfo,
    next: usize,
}

impl Arguments {
    /// # Safety
    /// `fcinfo` is the argument of an SQL function called by PostgreSQL, which does not return
    /// before the result is dropped. The arguments are read in order, with their declared types.
    unsafe fn of(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo, next: 0 }
    }

    fn datum(&mut self) -> Option<pg_sys::Datum> {
        let number = self.next;
        self.next += 1;
        // SAFETY: a call by PostgreSQL, with `nargs` arguments.
        unsafe {
            if number >= usize::try_from((*self.fcinfo).nargs).unwrap_or(0) {
                return None;
            }
            let argument = &*(*self.fcinfo).args.as_ptr().add(number);
            (!argument.isnull).then_some(argument.value)
        }
    }

    fn bigint(&mut self) -> Option<i64> {
        self.datum().map(|value| value.value() as i64)
    }

    fn integer(&mut self) -> Option<i32> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "an integer is the datum's low half"
        )]
        self.datum().map(|value| value.value() as i32)
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let value = self.datum()?;
        // SAFETY: a text, as declared in the function's SQL; copied before it can be freed.
        unsafe {
            let text = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
            Some(pgrx::varlena_to_byte_slice(text).to_vec())
        }
    }
}

/// Validates a worker id from a caller.
fn worker_id(number: i32) -> Result<u16, Failure> {
    u16::try_from(number).map_err(|_| Failure::LeaseTerms)
}

/// Validates a layout from a caller.
fn layout(text: &[u8]) -> Result<Layout, Failure> {
    let layout = core::str::from_utf8(text).ok().and_then(Layout::parse);
    layout.ok_or(Failure::LeaseTerms)
}

fn ask(
    fcinfo: pg_sys::FunctionCallInfo,
    request: impl FnOnce(&mut Arguments) -> Result<Request, Failure>,
) -> RawDatum {
    // SAFETY: a call of one of the two SQL functions below.
    let (row, mut arguments) = unsafe { (row_type(fcinfo), Arguments::of(fcinfo)) };
    let request = finish(request(&mut arguments));
    let Reply {
        registry_ms,
        peers,
        max_skew_ms,
        outcome,
    } = finish(registry::ask(&request, false));
    let granted = outcome.as_ref().ok();
    let refusal = outcome.as_ref().err();
    let status = outcome.as_ref().map_or_else(
        |refusal| refusal.status,
        |_| leaf_id_core::lease::Status::Granted,
    );
    let columns = [
        Text::new(status.name().as_bytes()).into_datum(),
        granted.and_then(|granted| i32::from(granted.worker_id).into_datum()),
        granted.and_then(|granted| granted.floor_ms.into_datum()),
        granted.and_then(|granted| granted.reserved_until_ms.into_datum()),
        registry_ms.into_datum(),
        peers.votes.cast_signed().into_datum(),
        peers.offset_ms.into_datum(),
        refusal.and_then(|refusal| Text::new(refusal.detail.as_bytes()).into_datum()),
        granted.and_then(|granted| i32::try_from(granted.lease_ms).ok().into_datum()),
        i32::try_from(max_skew_ms).ok().into_datum(),
        granted.and_then(|granted| i32::try_from(granted.max_lead_ms).ok().into_datum()),
    ];
    // SAFETY: the OUT arguments of both functions.
    unsafe { row.form(columns) }
}

#[pg_extern(sql = false)]
fn leaf_worker_claim(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    ask(fcinfo, |arguments| {
        let system_identifier = arguments.bigint();
        let node_name = arguments.text();
        let token = arguments.bigint();
        let next_token = arguments.bigint();
        let held = arguments.integer().map(worker_id).transpose();
        let held_until_ms = arguments.bigint();
        let terms = Terms::of(arguments);
        let who = system_identifier.zip(node_name).zip(next_token);
        let (((system_identifier, node_name), next_token), terms) =
            who.zip(terms).ok_or(Failure::LeaseUnknown)?;
        let question = Question {
            kind: Kind::Claim,
            token: token.unwrap_or(0),
            next_token,
            held: held?.zip(held_until_ms),
            lease_ms: terms.lease_ms,
        };
        terms.request(question, system_identifier, node_name)
    })
}

#[pg_extern(sql = false)]
fn leaf_worker_renew(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    ask(fcinfo, |arguments| {
        let held = arguments.integer().map(worker_id).transpose();
        let system_identifier = arguments.bigint();
        let node_name = arguments.text();
        let token = arguments.bigint();
        let next_token = arguments.bigint();
        let terms = Terms::of(arguments);
        let who = system_identifier.zip(node_name).zip(next_token);
        let (((system_identifier, node_name), next_token), terms) =
            who.zip(terms).ok_or(Failure::LeaseUnknown)?;
        let held = held?.ok_or(Failure::LeaseUnknown)?;
        let question = Question {
            kind: Kind::Renew,
            token: token.unwrap_or(0),
            next_token,
            held: Some((held, 0)),
            lease_ms: terms.lease_ms,
        };
        terms.request(question, system_identifier, node_name)
    })
}

/// Arguments common to both functions.
struct Terms {
    now_ms: i64,
    reserve_until_ms: i64,
    lease_ms: i64,
    max_skew_ms: i64,
    max_lead_ms: i64,
    epoch_ms: i64,
    layout: Vec<u8>,
}

impl Terms {
    /// `None` if any of them is NULL.
    fn of(arguments: &mut Arguments) -> Option<Self> {
        let now_ms = arguments.bigint();
        let reserve_until_ms = arguments.bigint();
        let lease_ms = arguments.integer();
        let max_skew_ms = arguments.integer();
        let max_lead_ms = arguments.integer();
        let epoch_ms = arguments.bigint();
        let layout = arguments.text();
        Some(Self {
            now_ms: now_ms?,
            reserve_until_ms: reserve_until_ms?,
            lease_ms: lease_ms?.into(),
            max_skew_ms: max_skew_ms?.into(),
            max_lead_ms: max_lead_ms?.into(),
            epoch_ms: epoch_ms?,
            layout: layout?,
        })
    }

    fn request(
        self,
        question: Question,
        system_identifier: i64,
        node_name: Vec<u8>,
    ) -> Result<Request, Failure> {
        Ok(Request {
            question,
            system_identifier,
            node_name,
            now_ms: self.now_ms,
            reserve_until_ms: self.reserve_until_ms,
            max_skew_ms: self.max_skew_ms,
            max_lead_ms: self.max_lead_ms,
            epoch_ms: self.epoch_ms,
            layout: layout(&self.layout)?,
        })
    }
}

#[pg_extern(sql = false)]
fn leaf_worker_release(worker_id: Option<i32>) {
    finish(registry::release(worker_id));
}

#[pg_extern(sql = false)]
fn leaf_worker_retire(worker_id: Option<i32>, retired: Option<bool>) {
    finish(registry::retire(worker_id, retired));
}

#[pg_extern(sql = false)]
fn leaf_worker_retire_until(worker_id: Option<i32>, until: Option<TimestampWithTimeZone>) {
    finish(registry::set_aside(worker_id, until.map(Into::into)));
}
