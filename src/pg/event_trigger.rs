//! Event triggers at the end of CREATE TABLE and ALTER TABLE.

use core::ffi::CStr;

use pgrx::pg_sys;

use super::expression::cells;

/// A call of an event trigger function.
pub struct EventTriggerCall<'a>(&'a pg_sys::EventTriggerData);

impl<'a> EventTriggerCall<'a> {
    /// `None` if the function was not called as an event trigger.
    ///
    /// # Safety
    /// `fcinfo` is the argument of a function called by PostgreSQL, which does not return before
    /// the result is dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: guaranteed by the caller. The context of a call is null or a node, and a node
        // with this tag is an EventTriggerData, as in CALLED_AS_EVENT_TRIGGER.
        unsafe {
            let context = (*fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_EventTriggerData)
                .then(|| Self(&*context.cast()))
        }
    }

    /// Names of the columns added by an ALTER TABLE; an empty list, meaning all columns, for a
    /// CREATE TABLE; `None` if the command adds no columns.
    pub fn new_columns(&self) -> Option<Vec<&'a CStr>> {
        let tree = self.0.parsetree;
        // SAFETY: the parse tree of the command, alive during the call; null for a login event. The
        // tag determines the type of a node: ALTER TABLE has a list of commands, and one that adds
        // a column has its definition, with a name.
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
}
