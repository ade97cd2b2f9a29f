//! Expressions stored in the catalogs: defaults of columns and domains. Read as trees, with
//! functions and types by oid, since the deparsed text depends on settings and names.

use core::ffi::{CStr, c_void};

use pgrx::pg_sys::{self, NodeTag};

use super::datum::{Text, oid_value};

/// Length of the longest tag, in bytes.
const LONGEST_NAME: usize = 128;

/// An expression read from a catalog.
pub struct Expression(*mut pg_sys::Node);

impl Expression {
    /// Parses a stored expression; the tree is in the current memory context. `None` if it has more
    /// than `longest` bytes: it could use up the stack or the memory of the caller.
    ///
    /// # Safety
    /// The datum is a `pg_node_tree`, which only PostgreSQL can create, and not null. The result is
    /// dropped before the memory context is reset.
    pub unsafe fn from_value(datum: pg_sys::Datum, longest: usize) -> Option<Self> {
        // SAFETY: guaranteed by the caller: a text written by PostgreSQL for stringToNode. Its size is
        // known without reading it.
        unsafe {
            if pg_sys::toast_raw_datum_size(datum) > longest {
                return None;
            }
            let text = pg_sys::text_to_cstring(datum.cast_mut_ptr());
            Some(Self(pg_sys::stringToNode(text).cast()))
        }
    }

    /// The text argument of a call to `function`, if the expression is just that call, apart from
    /// casts, and the text is its only argument.
    pub fn text_given_to(&self, function: u32) -> Option<Text> {
        // SAFETY: a constant of the expression.
        unsafe { text_of(self.constant_given_to(function)?) }
    }

    /// The sequence of a call to `nextval`, under the same conditions.
    pub fn sequence(&self) -> Option<u32> {
        let constant = self.constant_given_to(pg_sys::F_NEXTVAL)?;
        // SAFETY: a constant of the expression; a regclass is an oid.
        unsafe {
            ((*constant).consttype == pg_sys::REGCLASSOID && !(*constant).constisnull)
                .then(|| oid_value((*constant).constvalue))
        }
    }

    /// All text constants in the expression.
    pub fn texts(&self) -> Vec<Text> {
        // SAFETY: the nodes live as long as the tree, and are constants.
        unsafe {
            let constants = self.nodes(NodeTag::T_Const).into_iter();
            constants.filter_map(|node| text_of(node.cast())).collect()
        }
    }

    /// The texts that are given as constants to calls of these functions, anywhere in the expression.
    pub fn texts_given_to(&self, functions: &[u32]) -> Vec<Text> {
        // SAFETY: the nodes live as long as the tree, and are calls of functions.
        unsafe {
            let calls = self.nodes(NodeTag::T_FuncExpr).into_iter();
            let calls = calls.map(|node| &*node.cast::<pg_sys::FuncExpr>());
            calls
                .filter(|call| functions.contains(&call.funcid.to_u32()))
                .filter_map(|call| text_of(first_constant(call)?))
                .collect()
        }
    }

    /// All nodes with this tag.
    fn nodes(&self, tag: NodeTag) -> Vec<*const pg_sys::Node> {
        let mut found = Found {
            tag,
            nodes: Vec::new(),
        };
        // SAFETY: a tree, and what `collect` expects, which outlives the walk.
        unsafe { collect(self.0, (&raw mut found).cast()) };
        found.nodes
    }

    fn constant_given_to(&self, function: u32) -> Option<*const pg_sys::Const> {
        // SAFETY: a tree; the tags determine the types of its nodes.
        unsafe {
            let mut node = self.0;
            while let Some(inner) = under_cast(node, Of::Result) {
                node = inner;
            }
            let call = as_node::<pg_sys::FuncExpr>(node, NodeTag::T_FuncExpr)?;
            if call.funcid.to_u32() != function {
                return None;
            }
            (cells(call.args).len() == 1)
                .then(|| first_constant(call))
                .flatten()
        }
    }
}

/// The first argument of a call, if it is a constant, apart from casts.
///
/// # Safety
/// The call is part of a tree, which outlives the result.
unsafe fn first_constant(call: &pg_sys::FuncExpr) -> Option<*const pg_sys::Const> {
    // SAFETY: guaranteed by the caller; the tags determine the types of its nodes.
    unsafe {
        let mut node = cells(call.args).first()?.ptr_value.cast();
        while let Some(inner) = under_cast(node, Of::Argument) {
            node = inner;
        }
        as_node::<pg_sys::Const>(node, NodeTag::T_Const).map(core::ptr::from_ref)
    }
}

/// The part of a call that a cast is applied to.
#[derive(Clone, Copy)]
enum Of {
    Result,
    Argument,
}

/// Elements of a list; a null list is empty.
///
/// # Safety
/// `list` is valid or null, and outlives the result.
pub unsafe fn cells<'a>(list: *const pg_sys::List) -> &'a [pg_sys::ListCell] {
    // SAFETY: guaranteed by the caller; `length` is the number of elements.
    unsafe {
        list.as_ref().map_or(&[], |list| {
            let count = usize::try_from(list.length).unwrap_or(0);
            core::slice::from_raw_parts(list.elements, count)
        })
    }
}

/// The node, if it has this tag.
///
/// # Safety
/// `node` is a node or null, and outlives the result; `T` is the type of the tag.
pub unsafe fn as_node<'a, T>(node: *const pg_sys::Node, tag: NodeTag) -> Option<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { (node.as_ref()?.type_ == tag).then(|| &*node.cast::<T>()) }
}

/// The argument of a cast; `None` if the node is not a cast to be skipped.
///
/// # Safety
/// `node` is a node or null.
unsafe fn under_cast(node: *mut pg_sys::Node, of: Of) -> Option<*mut pg_sys::Node> {
    // SAFETY: guaranteed by the caller; the tag determines the type of a node.
    unsafe {
        let inner = match (node.as_ref()?.type_, of) {
            (NodeTag::T_RelabelType, _) => (*node.cast::<pg_sys::RelabelType>()).arg.cast(),
            (NodeTag::T_CoerceToDomain, _) => (*node.cast::<pg_sys::CoerceToDomain>()).arg.cast(),
            (NodeTag::T_CollateExpr, _) => (*node.cast::<pg_sys::CollateExpr>()).arg.cast(),
            (NodeTag::T_CoerceViaIO, Of::Result) => {
                (*node.cast::<pg_sys::CoerceViaIO>()).arg.cast()
            }
            (NodeTag::T_FuncExpr, _) => {
                let call = &*node.cast::<pg_sys::FuncExpr>();
                if !is_cast(call, of) {
                    return None;
                }
                cells(call.args).first()?.ptr_value.cast()
            }
            _ => return None,
        };
        Some(inner)
    }
}

/// For a result: casts that PostgreSQL adds for the type of the column, and casts to a shorter
/// integer. A user-defined cast never yields an integer here. For an argument: casts that do not
/// change the text.
fn is_cast(call: &pg_sys::FuncExpr, of: Of) -> bool {
    match of {
        Of::Result => {
            call.funcformat == pg_sys::CoercionForm::COERCE_IMPLICIT_CAST
                || [pg_sys::F_INT4_INT8, pg_sys::F_INT2_INT8].contains(&call.funcid.to_u32())
        }
        Of::Argument => call.funcid.to_u32() == pg_sys::F_TEXT_NAME,
    }
}

/// The text of a constant; `None` if it is NULL, longer than a tag, or of another type.
///
/// # Safety
/// `constant` is valid.
unsafe fn text_of(constant: *const pg_sys::Const) -> Option<Text> {
    // SAFETY: guaranteed by the caller; the value has the constant's type, and a name is
    // null-terminated.
    unsafe {
        let constant = &*constant;
        if constant.constisnull {
            return None;
        }
        let datum = constant.constvalue;
        match constant.consttype {
            pg_sys::TEXTOID | pg_sys::VARCHAROID => {
                let text = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
                let text = pgrx::varlena_to_byte_slice(text);
                (text.len() <= LONGEST_NAME).then(|| Text::new(text))
            }
            pg_sys::NAMEOID => Some(Text::new(CStr::from_ptr(datum.cast_mut_ptr()).to_bytes())),
            _ => None,
        }
    }
}

/// Nodes of a tree that have a tag.
struct Found {
    tag: NodeTag,
    nodes: Vec<*const pg_sys::Node>,
}

/// Tree walker that collects nodes; never stops the walk.
///
/// # Safety
/// `node` is a node or null, and `found` points to a [`Found`].
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn collect(node: *mut pg_sys::Node, found: *mut c_void) -> bool {
    // SAFETY: guaranteed by the caller, and passed on unchanged.
    unsafe {
        if node.is_null() {
            return false;
        }
        let list = &mut *found.cast::<Found>();
        if (*node).type_ == list.tag {
            list.nodes.push(node);
        }
        pg_sys::expression_tree_walker(node, Some(collect), found)
    }
}
