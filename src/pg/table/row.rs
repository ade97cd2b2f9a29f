//! Rows read from a table.

use core::ffi::{c_char, c_int};

use pgrx::pg_sys;

use super::place::Place;
use super::shape::Type;
use super::value::Value;
use crate::pg::catalog::attribute;
use crate::pg::name::Name;

/// A row of a table whose [`super::shape::Shape`] was checked. Valid while its table is open and
/// the memory context in which it was read lives.
///
/// Columns are numbered from 1. A column of another type than requested reads as NULL; the types
/// are known from the shape.
pub struct Row {
    pub(super) tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
}

/// Transaction that has locked a row, or written it and not committed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locker {
    /// None.
    None,
    /// A transaction, by xid.
    Transaction(u32),
    /// Several transactions, by multixact id.
    Multi(u32),
}

impl Row {
    /// # Safety
    /// `tuple` is valid and matches `descriptor`; both outlive the result. The shape of the table
    /// was checked.
    pub unsafe fn new(tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc) -> Self {
        Self { tuple, descriptor }
    }

    /// A copy of the tuple with some columns (numbered from 1) replaced.
    ///
    /// # Safety
    /// The columns have the types of the values.
    pub unsafe fn with(&self, changes: &[(usize, Value<'_>)]) -> pg_sys::HeapTuple {
        let mut columns: Vec<c_int> = (changes.iter())
            .map(|(number, _)| c_int::try_from(*number).unwrap_or(0))
            .collect();
        let datums: Vec<_> = changes.iter().map(|(_, value)| value.datum()).collect();
        let mut nulls: Vec<_> = datums.iter().map(Option::is_none).collect();
        let mut values: Vec<_> = (datums.into_iter())
            .map(|datum| datum.unwrap_or(pg_sys::Datum::null()))
            .collect();
        // SAFETY: a tuple with its descriptor; guaranteed by the caller; columns, values and nulls
        // have the same length.
        unsafe {
            pg_sys::heap_modify_tuple_by_cols(
                self.tuple,
                self.descriptor,
                c_int::try_from(columns.len()).unwrap_or(0),
                columns.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            )
        }
    }

    /// Where this version is.
    pub fn place(&self) -> Place {
        // SAFETY: a tuple that was read from its table.
        Place::of(unsafe { (*self.tuple).t_self })
    }

    fn column(&self, number: usize, expected: Type) -> Option<pg_sys::Datum> {
        let number = c_int::try_from(number).ok()?;
        let mut null = false;
        // SAFETY: a tuple of the table with this descriptor, valid while the table is open; the
        // column exists.
        unsafe {
            if number < 1 || number > (*self.descriptor).natts {
                return None;
            }
            if (*attribute(self.descriptor, number - 1)).atttypid != expected.oid() {
                return None;
            }
            let value = pg_sys::heap_getattr(self.tuple, number, self.descriptor, &mut null);
            (!null).then_some(value)
        }
    }

    /// A boolean column.
    pub fn boolean(&self, number: usize) -> Option<bool> {
        self.column(number, Type::Boolean)
            .map(|value| value.value() != 0)
    }

    /// An integer column.
    pub fn integer(&self, number: usize) -> Option<i32> {
        #[expect(clippy::cast_possible_truncation, reason = "the datum's low half")]
        self.column(number, Type::Integer)
            .map(|value| value.value() as i32)
    }

    /// A bigint column.
    pub fn bigint(&self, number: usize) -> Option<i64> {
        self.column(number, Type::Bigint)
            .map(|value| value.value() as i64)
    }

    /// An oid column.
    pub fn oid(&self, number: usize) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "the datum's low half")]
        self.column(number, Type::Oid)
            .map(|value| value.value() as u32)
    }

    /// A timestamptz column: microseconds since 2000.
    pub fn timestamp(&self, number: usize) -> Option<i64> {
        self.column(number, Type::Timestamp)
            .map(|value| value.value() as i64)
    }

    /// A text column, in the encoding of the database.
    pub fn text(&self, number: usize) -> Option<Vec<u8>> {
        self.varlena(number, Type::Text)
    }

    /// A bytea column.
    pub fn bytes(&self, number: usize) -> Option<Vec<u8>> {
        self.varlena(number, Type::Bytes)
    }

    fn varlena(&self, number: usize, expected: Type) -> Option<Vec<u8>> {
        let value = self.column(number, expected)?;
        // SAFETY: the column is a text or a bytea, see `column`, and is copied before it can be
        // freed.
        unsafe {
            let text = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
            Some(pgrx::varlena_to_byte_slice(text).to_vec())
        }
    }

    /// A name column.
    pub fn name(&self, number: usize) -> Option<Name> {
        let value = self.column(number, Type::Name)?;
        // SAFETY: the column is a name, see `column`, and not null.
        Some(unsafe { Name::from_value(value) })
    }

    /// A `name[]` column, without NULL elements.
    pub fn names(&self, number: usize) -> Option<Vec<Name>> {
        let value = self.column(number, Type::Names)?;
        let mut elements = core::ptr::null_mut();
        let mut nulls = core::ptr::null_mut();
        let mut count = 0;
        // SAFETY: the column is an array of names, see `column`; the arguments describe type name.
        // Both results have `count` elements.
        unsafe {
            let array = pg_sys::pg_detoast_datum(value.cast_mut_ptr());
            pg_sys::deconstruct_array(
                array.cast(),
                pg_sys::NAMEOID,
                pg_sys::NAMEDATALEN.cast_signed(),
                false,
                b'c' as c_char,
                &raw mut elements,
                &raw mut nulls,
                &raw mut count,
            );
            let count = usize::try_from(count).unwrap_or(0);
            let present = (0..count).filter(|position| !*nulls.add(*position));
            Some(
                present
                    .map(|position| Name::from_value(*elements.add(position)))
                    .collect(),
            )
        }
    }

    /// True if the row's key equals `key`.
    pub(super) fn has(&self, key: &Value<'_>) -> bool {
        match key {
            Value::Text(bytes) => self.text(1).is_some_and(|found| found == *bytes),
            Value::Integer(number) => self.integer(1) == Some(*number),
            Value::Bigint(number) => self.bigint(1) == Some(*number),
            Value::Boolean(value) => self.boolean(1) == Some(*value),
            _ => false,
        }
    }

    /// True if the row was written by the open transaction, or by a parallel worker's leader.
    pub fn is_ours(&self) -> bool {
        // SAFETY: a tuple read from a table, so its header has the fields of a heap tuple, not of a
        // datum.
        unsafe {
            let xmin = (*(*self.tuple).t_data).t_choice.t_heap.t_xmin;
            pg_sys::TransactionIdIsCurrentTransactionId(xmin)
        }
    }

    /// The last locker or updater of the row.
    pub fn locker(&self) -> Locker {
        // SAFETY: a tuple read from a table, so its header has the fields of a heap tuple, not of a
        // datum.
        let (info, xmax) = unsafe {
            let header = &*(*self.tuple).t_data;
            (u32::from(header.t_infomask), header.t_choice.t_heap.t_xmax)
        };
        #[allow(
            clippy::useless_conversion,
            reason = "the type differs between versions"
        )]
        let number: u32 = xmax.into();
        if info & pg_sys::HEAP_XMAX_INVALID != 0 || number == 0 {
            Locker::None
        } else if info & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
            Locker::Multi(number)
        } else {
            Locker::Transaction(number)
        }
    }
}
