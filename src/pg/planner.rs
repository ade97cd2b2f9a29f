//! Expressions as seen by planner support functions: for COPY in bulk (`api/support` has the benefit and
//! the cost), and to refuse a call beside a table.

use core::ffi::CStr;
use core::mem::size_of;
use core::{iter, ptr};

use pgrx::pg_sys::{self, NodeTag};

use super::datum::RawDatum;
use super::expression::{as_node, cells};

/// A call in a column default that COPY FROM plans.
///
/// Expressions are planned outside of a query by ALTER TABLE, EXECUTE and CHECK constraints, too, and
/// by extensions, which may evaluate parts of the result (Citus does). So only COPY gets what
/// [`DefaultOfCopy::with_twin`] returns: it alone plans defaults in the memory context of this name,
/// which it creates. Should a later version give it another name, COPY inserts row by row.
#[derive(Clone, Copy)]
pub struct DefaultOfCopy<'a>(&'a pg_sys::FuncExpr);

impl DefaultOfCopy<'_> {
    /// The call that a support function is asked to simplify. `None` for other requests, or if the
    /// call is not in such a default.
    ///
    /// # Safety
    /// `fcinfo` is the argument of a STRICT support function called by PostgreSQL, which does not
    /// return before the result is dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: guaranteed by the caller. The only argument is a request, whose tag determines
        // its type; a request of this type has a call. A context has a name.
        unsafe {
            let request: *const pg_sys::Node = (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr();
            if (*request).type_ != NodeTag::T_SupportRequestSimplify {
                return None;
            }
            let request = &*request.cast::<pg_sys::SupportRequestSimplify>();
            let context = CStr::from_ptr((*pg_sys::CurrentMemoryContext).name);
            let is_default = request.root.is_null() && context == c"COPY";
            is_default.then(|| Self(&*request.fcall))
        }
    }

    /// Oid of the called function.
    pub fn function(self) -> u32 {
        self.0.funcid.to_u32()
    }

    /// Types of the arguments, if all are non-null constants.
    pub fn constant_types(self) -> Option<Vec<pg_sys::Oid>> {
        let constant_type = |cell: &pg_sys::ListCell| {
            // SAFETY: a node, whose tag determines its type.
            let constant: &pg_sys::Const =
                unsafe { as_node(cell.ptr_value.cast(), NodeTag::T_Const)? };
            (!constant.constisnull).then_some(constant.consttype)
        };
        // SAFETY: a list of nodes; null if empty.
        let arguments = unsafe { cells(self.0.args) };
        arguments.iter().map(constant_type).collect()
    }

    /// `COALESCE(twin(arguments, function, case value), nextval)`, for a twin that is not volatile
    /// and never returns NULL.
    ///
    /// COPY inserts in bulk if a default contains no volatile function except `nextval`, which is
    /// what the second argument looks like to it. That argument is never evaluated.
    ///
    /// The twin's last argument is unused, but not a constant: if all arguments of a stable
    /// function are constants, the planner calls it for estimation. Reading a case value outside of
    /// CASE is allowed, and yields NULL.
    pub fn with_twin(self, twin: u32) -> RawDatum {
        let call = self.0;
        // SAFETY: nodes of their own types, in the planner's memory; the arguments are those of the
        // call, in a copied list. An oid is passed by value, with 4 bytes.
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
            // Without a sequence: evaluating it would be an error.
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

/// True if a support function is asked to simplify a call in a statement that names a table, wherever.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT support function called by PostgreSQL.
pub unsafe fn is_beside_tables(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: guaranteed by the caller; as in `DefaultOfCopy::new`. The planner's state of a query level is null
    // outside of one; it has the query, and what has been planned of the statement.
    unsafe {
        let request: *const pg_sys::Node = (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr();
        if (*request).type_ != NodeTag::T_SupportRequestSimplify {
            return false;
        }
        let request = request.cast::<pg_sys::SupportRequestSimplify>();
        let Some(mut root) = (*request).root.as_ref() else {
            return false;
        };
        while let Some(parent) = root.parent_root.as_ref() {
            root = parent;
        }
        // Subqueries of expressions that are planned already have left the tree.
        let planned = root
            .glob
            .as_ref()
            .map_or(ptr::null_mut(), |glob| glob.subroots);
        let planned = cells(planned)
            .iter()
            .map(|cell| (*cell.ptr_value.cast::<pg_sys::PlannerInfo>()).parse);
        iter::once(root.parse)
            .chain(planned)
            .any(|query| names_table(query.cast(), ptr::null_mut()))
    }
}

/// True if a node is or contains a table of a query.
///
/// # Safety
/// `node` is null or a node of a query tree. Called by PostgreSQL, too, which walks the tree.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn names_table(
    node: *mut pg_sys::Node,
    context: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: guaranteed by the caller; the tag determines the type.
    unsafe {
        match node.as_ref().map(|node| node.type_) {
            None => false,
            Some(NodeTag::T_RangeTblEntry) => {
                let entry = node.cast::<pg_sys::RangeTblEntry>();
                (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION
            }
            Some(NodeTag::T_Query) => {
                let flags = pg_sys::QTW_EXAMINE_RTES_BEFORE.cast_signed();
                pg_sys::query_tree_walker(node.cast(), Some(names_table), context, flags)
            }
            Some(_) => pg_sys::expression_tree_walker(node, Some(names_table), context),
        }
    }
}

/// A node with only its tag set.
///
/// # Safety
/// `tag` is the tag of `T`.
unsafe fn make_node<T>(tag: NodeTag) -> *mut T {
    // SAFETY: guaranteed by the caller; every node begins with its tag.
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>());
        node.cast::<NodeTag>().write(tag);
        node.cast()
    }
}
