//! Rows of `leaf_alloc`, as stored and as seen by triggers.

use leaf_id_core::row::{LastClaim, TagRow};
use leaf_id_core::step::Limits;

use crate::error::Failure;
use crate::pg::{self, Access, Locker, Name, Obstacle, Place, Shape, Table, Type, Value};
use crate::shmem::{self, Key, Tag};

/// Shape of `leaf_alloc`, as created by sql/schema.sql.
pub static ALLOC: Shape = Shape::new(
    c"leaf_alloc",
    &[
        (c"biz_tag", Type::Text),
        (c"max_id", Type::Bigint),
        (c"step", Type::Integer),
        (c"description", Type::Text),
        (c"update_time", Type::Timestamp),
        (c"max_step", Type::Integer),
        (c"max_value", Type::Bigint),
        (c"incarnation", Type::Bigint),
        (c"system_identifier", Type::Bigint),
        (c"timeline", Type::Integer),
        (c"largest_claim", Type::Integer),
        (c"server", Type::Name),
        (c"server_incarnation", Type::Bigint),
        (c"granted_to", Type::Names),
    ],
    &[
        c"leaf_alloc_biz_tag_length",
        c"leaf_alloc_max_id_positive",
        c"leaf_alloc_step_positive",
        c"leaf_alloc_max_value_range",
        c"leaf_alloc_max_step_not_below_step",
        c"leaf_alloc_server_incarnation_of_server",
        c"leaf_alloc_granted_to_length",
    ],
);

/// Column `biz_tag`.
pub const BIZ_TAG: usize = 1;
/// Column `max_id`.
pub const MAX_ID: usize = 2;
const STEP: usize = 3;
const UPDATE_TIME: usize = 5;
const MAX_STEP: usize = 6;
/// Column `max_value`.
pub const MAX_VALUE: usize = 7;
const INCARNATION: usize = 8;
const SYSTEM_IDENTIFIER: usize = 9;
const TIMELINE: usize = 10;
const LARGEST_CLAIM: usize = 11;
const SERVER: usize = 12;
const SERVER_INCARNATION: usize = 13;
const GRANTED_TO: usize = 14;
/// Oid of this database's `leaf_alloc`.
///
/// # Errors
/// There is no such table.
pub fn relation() -> Result<u32, Failure> {
    pg::find_table(&ALLOC).ok_or_else(|| Failure::missing(&ALLOC))
}

/// Index key of a tag's row.
pub fn key(tag: &Tag) -> Value<'_> {
    Value::Text(tag.bytes())
}

/// A row of `leaf_alloc`.
#[derive(Clone)]
pub struct AllocRow {
    /// The tag.
    pub tag: Tag,
    /// What says which ids it gives.
    pub row: TagRow<Name>,
    /// The roles that may issue its ids; see [`super::rights`].
    pub granted_to: Vec<Name>,
}

/// The event a trigger was fired for.
pub struct Edit {
    /// Oid of `leaf_alloc`.
    pub relation: u32,
    /// Old row; `None` for INSERT.
    pub old: Option<AllocRow>,
    /// New row; `None` for DELETE, and for a row that the constraints will reject.
    pub new: Option<AllocRow>,
    /// `session_replication_role` is `replica`: the edit must not be refused.
    pub replica: bool,
}

impl AllocRow {
    /// Decodes a row of the table. `None` for a name or a NULL that the constraints reject.
    pub fn of(row: &pg::Row) -> Option<Self> {
        let number = |column| u32::try_from(row.integer(column).unwrap_or(0)).unwrap_or(0);
        let bigint = |column| row.bigint(column).unwrap_or(0);
        Some(Self {
            tag: row.text(BIZ_TAG).and_then(|bytes| Tag::new(&bytes))?,
            row: TagRow {
                max_id: row.bigint(MAX_ID)?,
                max_value: row.bigint(MAX_VALUE)?,
                limits: Limits {
                    step: number(STEP),
                    max_step: number(MAX_STEP),
                },
                incarnation: bigint(INCARNATION),
                last_claim: LastClaim {
                    system: bigint(SYSTEM_IDENTIFIER).cast_unsigned(),
                    timeline: row.integer(TIMELINE).unwrap_or(0).cast_unsigned(),
                    largest: number(LARGEST_CLAIM),
                },
                server: row.name(SERVER),
                server_incarnation: bigint(SERVER_INCARNATION),
            },
            granted_to: row.names(GRANTED_TO).unwrap_or_default(),
        })
    }
}

/// The columns that claims and edits set, including the time of that.
pub fn changes(row: &TagRow<Name>) -> [(usize, Value<'static>); 7] {
    let LastClaim {
        system,
        timeline,
        largest,
    } = row.last_claim;
    [
        (MAX_ID, Value::Bigint(row.max_id)),
        (INCARNATION, Value::Bigint(row.incarnation)),
        (SYSTEM_IDENTIFIER, Value::Bigint(system.cast_signed())),
        (TIMELINE, Value::Integer(timeline.cast_signed())),
        (LARGEST_CLAIM, Value::Integer(largest.cast_signed())),
        (SERVER_INCARNATION, Value::Bigint(row.server_incarnation)),
        (UPDATE_TIME, Value::Timestamp(pg::now_timestamp())),
    ]
}

/// Opens `leaf_alloc`; `None` if it was dropped.
///
/// # Errors
/// The table was altered.
pub fn open(relation: u32, access: Access) -> Result<Option<Table>, Failure> {
    Ok(Table::open(relation, &ALLOC, access)?)
}

/// `max_id` of a tag as committed now, or as modified by this transaction; `None` if there is no
/// such tag.
///
/// # Errors
/// The table was dropped or altered.
pub fn max_id(key: &Key) -> Result<Option<i64>, Failure> {
    let table = open(key.relation, Access::Read)?.ok_or_else(|| Failure::missing(&ALLOC))?;
    let row = table.get(&self::key(&key.tag));
    Ok(row.and_then(|row| row.bigint(MAX_ID)))
}

/// A tag's row, as read by a session before it requests a slot.
pub struct SeenRow {
    /// Contents of the row.
    pub alloc: AllocRow,
    /// Written by the open transaction, or by a parallel worker's leader.
    pub ours: bool,
    /// The last locker or updater of the row.
    pub locker: Locker,
}

/// A look at a row that waits for no lock.
pub enum Look<T> {
    /// It is there.
    Row(T),
    /// There is none.
    Nothing,
    /// The table or its index is locked by another session.
    Locked,
}

/// The place near a tag's row that its slot has.
fn place(key: &Key) -> Option<Place> {
    let area = shmem::area()?;
    let slot_ref = area.directory().find(key)?;
    Place::at(area.with_state(slot_ref.slot, |state| state.place))
}

/// Gives a tag's slot the place of its row, for those who read it.
pub fn show_place(key: &Key, row: &pg::Row) {
    let Some(area) = shmem::area() else { return };
    let slot_ref = area.directory().find(key);
    if let Some(slot_ref) = slot_ref {
        let place = row.place().number();
        area.with_state(slot_ref.slot, |state| state.place = place);
    }
}

/// Reads the current version of a tag's row, even if committed after the transaction's snapshot.
/// Requires no privilege, assigns no xid, and waits for no lock.
///
/// # Errors
/// The table was altered.
pub fn see(key: &Key) -> Result<Look<SeenRow>, Failure> {
    let table = match Table::open_at_once(key.relation, &ALLOC) {
        Ok(Some(table)) => table,
        Ok(None) => return Ok(Look::Nothing),
        Err(Obstacle::Locked) => return Ok(Look::Locked),
        Err(Obstacle::Misshapen(misshapen)) => return Err(misshapen.into()),
    };
    let row = table.get_near(place(key), &self::key(&key.tag));
    let seen = row.and_then(|row| {
        Some(SeenRow {
            alloc: AllocRow::of(&row)?,
            ours: row.is_ours(),
            locker: row.locker(),
        })
    });
    Ok(seen.map_or(Look::Nothing, Look::Row))
}
