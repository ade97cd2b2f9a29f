//! Expressions as the catalogs keep them: the defaults of columns and domains. They are read as trees,
//! by the oids of functions and types: how PostgreSQL writes them depends on settings and names.

use core::ffi::{CStr, c_void};

use pgrx::pg_sys::{self, NodeTag};

use super::datum::{Text, oid_value};

/// An expression that was read from a catalog.
pub struct Expression(*mut pg_sys::Node);

impl Expression {
    /// The tree lies in the current memory context.
    ///
    /// # Safety
    /// The datum is a `pg_node_tree`, and not null (nobody can make one but PostgreSQL); and the result
    /// is dropped before that context is reset.
    pub unsafe fn from_value(datum: pg_sys::Datum) -> Self {
        // SAFETY: as the caller says: a text that PostgreSQL has written for this function.
        unsafe {
            let text = pg_sys::text_to_cstring(datum.cast_mut_ptr());
            Self(pg_sys::stringToNode(text).cast())
        }
    }

    /// The text that is the only argument of a function, where the expression is that call and
    /// nothing else but casts.
    pub fn text_given_to(&self, function: u32) -> Option<Text> {
        // SAFETY: a constant of the expression's.
        unsafe { text_of(self.constant_given_to(function)?) }
    }

    /// The sequence that is the only argument of `nextval`, likewise.
    pub fn sequence(&self) -> Option<u32> {
        let constant = self.constant_given_to(pg_sys::F_NEXTVAL)?;
        // SAFETY: a constant of the expression's; a regclass is an oid.
        unsafe {
            ((*constant).consttype == pg_sys::REGCLASSOID && !(*constant).constisnull)
                .then(|| oid_value((*constant).constvalue))
        }
    }

    /// All texts in the expression.
    pub fn texts(&self) -> Vec<Text> {
        let mut constants: Vec<*const pg_sys::Const> = Vec::new();
        // SAFETY: a tree, and the list that `collect` expects, which outlives the walk; the constants
        // live as long as the tree.
        unsafe {
            collect(self.0, (&raw mut constants).cast());
            constants.into_iter().filter_map(|c| text_of(c)).collect()
        }
    }

    fn constant_given_to(&self, function: u32) -> Option<*const pg_sys::Const> {
        // SAFETY: a tree, whose nodes are what their tags say.
        unsafe {
            let mut node = self.0;
            while let Some(inner) = under_cast(node, Of::Result) {
                node = inner;
            }
            let call = as_node::<pg_sys::FuncExpr>(node, NodeTag::T_FuncExpr)?;
            if call.funcid.to_u32() != function {
                return None;
            }
            let &[argument] = cells(call.args) else {
                return None;
            };
            node = argument.ptr_value.cast();
            while let Some(inner) = under_cast(node, Of::Argument) {
                node = inner;
            }
            as_node::<pg_sys::Const>(node, NodeTag::T_Const).map(core::ptr::from_ref)
        }
    }
}

/// Which part of a call a cast stands around.
#[derive(Clone, Copy)]
enum Of {
    Result,
    Argument,
}

/// The elements of a list; null is an empty one.
///
/// # Safety
/// A valid list, or null, which outlives the result.
pub unsafe fn cells<'a>(list: *const pg_sys::List) -> &'a [pg_sys::ListCell] {
    // SAFETY: as the caller says: it has as many elements as it says.
    unsafe {
        list.as_ref().map_or(&[], |list| {
            let count = usize::try_from(list.length).unwrap_or(0);
            core::slice::from_raw_parts(list.elements, count)
        })
    }
}

/// A node, if it is of this type.
///
/// # Safety
/// A node or null, which outlives the result; and the type is that of the tag.
pub unsafe fn as_node<'a, T>(node: *const pg_sys::Node, tag: NodeTag) -> Option<&'a T> {
    // SAFETY: as the caller says.
    unsafe { (node.as_ref()?.type_ == tag).then(|| &*node.cast::<T>()) }
}

/// What a cast is applied to; `None` if the node is no cast that is to be passed over.
///
/// # Safety
/// A node or null.
unsafe fn under_cast(node: *mut pg_sys::Node, of: Of) -> Option<*mut pg_sys::Node> {
    // SAFETY: as the caller says; a node is what its tag says.
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

/// Of the result: what PostgreSQL adds to get the type of the column, and casts to a shorter integer. A
/// cast that somebody else has made leads to no integer. Of the argument: those that change no text.
fn is_cast(call: &pg_sys::FuncExpr, of: Of) -> bool {
    match of {
        Of::Result => {
            call.funcformat == pg_sys::CoercionForm::COERCE_IMPLICIT_CAST
                || [pg_sys::F_INT4_INT8, pg_sys::F_INT2_INT8].contains(&call.funcid.to_u32())
        }
        Of::Argument => call.funcid.to_u32() == pg_sys::F_TEXT_NAME,
    }
}

/// The text of a constant; `None` if it is NULL, or of another type.
///
/// # Safety
/// A constant that lives.
unsafe fn text_of(constant: *const pg_sys::Const) -> Option<Text> {
    // SAFETY: as the caller says; a value is of its type, and a name ends with a null.
    unsafe {
        let constant = &*constant;
        if constant.constisnull {
            return None;
        }
        let datum = constant.constvalue;
        match constant.consttype {
            pg_sys::TEXTOID | pg_sys::VARCHAROID => {
                let text = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
                Some(Text::new(pgrx::varlena_to_byte_slice(text)))
            }
            pg_sys::NAMEOID => Some(Text::new(CStr::from_ptr(datum.cast_mut_ptr()).to_bytes())),
            _ => None,
        }
    }
}

/// Adds the constants of a tree to a list of them, and never ends the walk.
///
/// # Safety
/// A node or null, and a `Vec<*const Const>`.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn collect(node: *mut pg_sys::Node, list: *mut c_void) -> bool {
    // SAFETY: as the caller says, who passes on what it was given.
    unsafe {
        if node.is_null() {
            return false;
        }
        if let Some(constant) = as_node::<pg_sys::Const>(node, NodeTag::T_Const) {
            (*list.cast::<Vec<*const pg_sys::Const>>()).push(constant);
        }
        pg_sys::expression_tree_walker(node, Some(collect), list)
    }
}
