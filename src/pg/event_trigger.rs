//! Event triggers, at the end of CREATE TABLE and ALTER TABLE.

use core::ffi::CStr;

use pgrx::pg_sys;

use super::datum::{RawDatum, texts_datum};
use super::expression::cells;
use super::function::find_function;

/// A call of an event trigger function.
pub struct EventTriggerCall<'a>(&'a pg_sys::EventTriggerData);

impl<'a> EventTriggerCall<'a> {
    /// `None` if the function was not called as an event trigger.
    ///
    /// # Safety
    /// PostgreSQL has called a function with this, which does not return before the result is
    /// dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: as the caller says. The context of a call is null or a node, and one of this
        // type is an EventTriggerData: what the macro CALLED_AS_EVENT_TRIGGER looks at.
        unsafe {
            let context = (*fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_EventTriggerData)
                .then(|| Self(&*context.cast()))
        }
    }

    /// The columns that the command has created: those that ALTER TABLE has added, by their
    /// names; an empty list for all of a new table; `None` if there are none.
    pub fn new_columns(&self) -> Option<Vec<&'a CStr>> {
        let tree = self.0.parsetree;
        // SAFETY: the parse tree of the command, which lives as long as the call; a login has
        // none. The type of a node says what it is: ALTER TABLE has a list of commands, as many as
        // it says, and one that adds a column has its definition, with its name.
        unsafe {
            match tree.as_ref()?.type_ {
                pg_sys::NodeTag::T_CreateStmt => Some(Vec::new()),
                pg_sys::NodeTag::T_AlterTableStmt => {
                    let mut names = Vec::new();
                    for command in cells((*tree.cast::<pg_sys::AlterTableStmt>()).cmds) {
                        let command = command.ptr_value.cast::<pg_sys::AlterTableCmd>();
                        if (*command).subtype == pg_sys::AlterTableType::AT_AddColumn {
                            let column = (*command).def.cast::<pg_sys::ColumnDef>();
                            names.push(CStr::from_ptr((*column).colname));
                        }
                    }
                    (!names.is_empty()).then_some(names)
                }
                _ => None,
            }
        }
    }

    /// What an event trigger returns.
    pub fn done(&self) -> RawDatum {
        RawDatum(pg_sys::Datum::null())
    }
}

/// Calls a function that takes a `text[]` and returns void, if there is one of that name.
///
/// # Safety
/// Nobody but a superuser can have created a function in that schema.
pub unsafe fn call_with_names(schema: &CStr, function: &CStr, names: &[&CStr]) {
    let Some(function) = find_function(schema, function, &[pg_sys::TEXTARRAYOID]) else {
        return;
    };
    let names = texts_datum(names.iter().map(|name| name.to_bytes()));
    // SAFETY: in a transaction; a function with one argument of this type.
    unsafe {
        pg_sys::OidFunctionCall1Coll(function.oid.into(), pg_sys::InvalidOid, names);
    }
}
