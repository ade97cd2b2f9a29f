//! Expressions as the planner sees them, for the support functions of functions.

use core::mem::size_of;
use core::ptr;

use pgrx::pg_sys::{self, NodeTag};

use super::datum::RawDatum;
use super::expression::{as_node, cells};

/// A call in an expression that is planned by itself, outside of a query: a column's default in
/// COPY or ALTER TABLE, a CHECK constraint, an argument of EXECUTE. Or the planner estimates the
/// value of an expression of a query, for which it asks the same, and forgets the answer.
#[derive(Clone, Copy)]
pub struct LoneCall<'a>(&'a pg_sys::FuncExpr);

impl LoneCall<'_> {
    /// The one that a support function is asked to simplify. `None`: it is asked something
    /// else, or the call is part of a query.
    ///
    /// # Safety
    /// PostgreSQL has called a STRICT support function with this, which does not return before
    /// the result is dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: as the caller says. The only argument is then a request, whose type tells what is
        // asked; a request of this type has a call.
        unsafe {
            let request: *const pg_sys::Node = (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr();
            if (*request).type_ != NodeTag::T_SupportRequestSimplify {
                return None;
            }
            let request = &*request.cast::<pg_sys::SupportRequestSimplify>();
            request.root.is_null().then(|| Self(&*request.fcall))
        }
    }

    /// The function that is called.
    pub fn function(self) -> u32 {
        self.0.funcid.to_u32()
    }

    /// The types of its arguments, if all of them are constants and none is NULL.
    pub fn constant_types(self) -> Option<Vec<pg_sys::Oid>> {
        let constant_type = |cell: &pg_sys::ListCell| {
            // SAFETY: a node, whose type says what it is.
            let constant: &pg_sys::Const =
                unsafe { as_node(cell.ptr_value.cast(), NodeTag::T_Const)? };
            (!constant.constisnull).then_some(constant.consttype)
        };
        // SAFETY: a list of nodes, null if it is empty.
        let arguments = unsafe { cells(self.0.args) };
        arguments.iter().map(constant_type).collect()
    }

    /// `COALESCE(twin(arguments, function, case value), nextval)`, for a twin that is not called
    /// volatile and never returns NULL.
    ///
    /// COPY inserts in bulk where nothing in a default is volatile but `nextval`, which is what the
    /// second argument is to it. That is never evaluated. Whoever else asks, because one value
    /// would do for all rows, learns from it that the expression is volatile.
    ///
    /// The twin's last argument means nothing. It is there because it is no constant: the planner
    /// calls a stable function to estimate with its value if all of its arguments are. To read a
    /// case value where there is no CASE is allowed, and gives NULL.
    pub fn with_twin(self, twin: u32) -> RawDatum {
        let call = self.0;
        // SAFETY: nodes of their own types in the memory of the planner; the arguments are those of
        // the call, in another list. An oid is a value of 4 bytes.
        unsafe {
            let function = pg_sys::makeConst(
                pg_sys::OIDOID,
                -1,
                pg_sys::InvalidOid,
                4,
                pg_sys::Datum::from(call.funcid),
                false,
                true,
            );
            let case_value = make_node::<pg_sys::CaseTestExpr>(NodeTag::T_CaseTestExpr);
            (*case_value).typeId = pg_sys::INTERNALOID;
            (*case_value).typeMod = -1;
            let arguments = pg_sys::lappend(pg_sys::list_copy(call.args), function.cast());
            let arguments = pg_sys::lappend(arguments, case_value.cast());
            let id = pg_sys::makeFuncExpr(
                twin.into(),
                call.funcresulttype,
                arguments,
                call.funccollid,
                call.inputcollid,
                call.funcformat,
            );
            (*id).location = call.location;
            // Of no sequence: an error, if it were evaluated.
            let nextval = make_node::<pg_sys::NextValueExpr>(NodeTag::T_NextValueExpr);
            (*nextval).typeId = call.funcresulttype;
            let coalesce = make_node::<pg_sys::CoalesceExpr>(NodeTag::T_CoalesceExpr);
            (*coalesce).coalescetype = call.funcresulttype;
            (*coalesce).args =
                pg_sys::lappend(pg_sys::lappend(ptr::null_mut(), id.cast()), nextval.cast());
            (*coalesce).location = call.location;
            RawDatum(pg_sys::Datum::from(coalesce))
        }
    }
}

/// A node with nothing in it but its type.
///
/// # Safety
/// The tag is that of the type.
unsafe fn make_node<T>(tag: NodeTag) -> *mut T {
    // SAFETY: as the caller says; every node begins with its tag.
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>());
        node.cast::<NodeTag>().write(tag);
        node.cast()
    }
}
