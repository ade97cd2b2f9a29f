//! Event triggers, at the end of CREATE TABLE and ALTER TABLE.

use core::ffi::{CStr, c_int};

use pgrx::pg_sys;

use super::datum::{RawDatum, text_datum};

/// The first column of `pg_proc`.
const OID_OF_FUNCTION: pg_sys::AttrNumber = 1;
/// How the elements of a `text[]` are aligned.
const TYPALIGN_INT: core::ffi::c_char = core::ffi::c_char::from_ne_bytes(*b"i");

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
                    let commands = (*tree.cast::<pg_sys::AlterTableStmt>()).cmds.as_ref()?;
                    let length = usize::try_from(commands.length).unwrap_or(0);
                    let mut names = Vec::new();
                    for i in 0..length {
                        let command = (*commands.elements.add(i)).ptr_value;
                        let command = command.cast::<pg_sys::AlterTableCmd>();
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
    let mut texts: Vec<_> = names
        .iter()
        .map(|name| text_datum(name.to_bytes()))
        .collect();
    // SAFETY: in a transaction; a cache with these three keys, whose rows begin with an oid. The
    // array is made of as many texts as there are.
    unsafe {
        let namespace = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        let arguments = pg_sys::buildoidvector([pg_sys::TEXTARRAYOID].as_ptr(), 1);
        let function = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP.cast_signed(),
            OID_OF_FUNCTION,
            pg_sys::Datum::from(function.as_ptr()),
            pg_sys::Datum::from(arguments),
            pg_sys::Datum::from(namespace),
            pg_sys::Datum::null(),
        );
        if function == pg_sys::InvalidOid {
            return;
        }
        let array = pg_sys::construct_array(
            texts.as_mut_ptr(),
            c_int::try_from(texts.len()).unwrap_or(0),
            pg_sys::TEXTOID,
            -1,
            false,
            TYPALIGN_INT,
        );
        pg_sys::OidFunctionCall1Coll(function, pg_sys::InvalidOid, pg_sys::Datum::from(array));
    }
}
