//! The worker registry of this database. [`leaf_id_core::registry`] decides; this file reads, locks
//! and writes the tables row by row, by oid (I9). No SQL, no triggers, rules or policies, no change
//! of user. So callers need only EXECUTE on the functions.

use core::ffi::CStr;

use leaf_id_core::layout::Layout;
use leaf_id_core::registry::{
    Bounds, Decision, Here, Hold, Holder, LAST_MS, LeaseRequest, Next, Place, Registry, Reply,
    Requester, Row, Tables, decide,
};

use crate::error::{Failure, RegistryError};
use crate::guc::{self, WorkerId};
use crate::pg::{
    self, Access, Client, INTERNAL_SCHEMA, LockedAtOnce, Privilege, Shape, Table, Type, Value,
};
use crate::remote::serve;
use crate::shmem;
use crate::tags::transaction;

static WORKER: Shape = Shape::new(
    c"leaf_worker",
    &[
        (c"worker_id", Type::Integer),
        (c"system_identifier", Type::Bigint),
        (c"node_name", Type::Text),
        (c"role_name", Type::Text),
        (c"token", Type::Bigint),
        (c"leased_at", Type::Timestamp),
        (c"renewed_at", Type::Timestamp),
        (c"reserved_until_ms", Type::Bigint),
        (c"floor_ms", Type::Bigint),
        (c"clock_offset_ms", Type::Bigint),
        (c"retired", Type::Boolean),
        (c"address", Type::Text),
        (c"host", Type::Boolean),
    ],
    &[
        c"leaf_worker_id_range",
        c"leaf_worker_node_name_length",
        c"leaf_worker_role_name_length",
        c"leaf_worker_reserved_range",
        c"leaf_worker_floor_range",
        c"leaf_worker_holder",
    ],
)
.without_row_triggers();

static REGISTRY: Shape = Shape::new(
    c"leaf_registry",
    &[
        (c"one", Type::Boolean),
        (c"system_identifier", Type::Bigint),
        (c"timeline", Type::Integer),
        (c"database", Type::Oid),
        (c"relation", Type::Oid),
        (c"epoch_ms", Type::Bigint),
        (c"layout", Type::Text),
        (c"moved_at", Type::Timestamp),
        (c"moved_floor_ms", Type::Bigint),
        (c"max_skew_ms", Type::Integer),
        (c"grant_ahead_ms", Type::Integer),
        (c"max_ids_per_role", Type::Integer),
    ],
    &[
        c"leaf_registry_one_row",
        c"leaf_registry_layout_valid",
        c"leaf_registry_moved_floor_range",
        c"leaf_registry_max_skew_range",
        c"leaf_registry_grant_ahead_range",
        c"leaf_registry_max_ids_range",
    ],
)
.without_row_triggers();

/// Key of a single-row table.
const ONE: Value<'static> = Value::Boolean(true);

/// Lock timeout for rows; the requester retries.
const LOCK_TIMEOUT: &CStr = c"1s";

/// True if this database has a registry.
pub fn is_here() -> bool {
    pg::find_table(&REGISTRY).is_some()
}

/// Answers a request, in a transaction of its own: the answer may be sent once that is committed
/// and acknowledged. A refusal is an answer, not an error, so that the requester sees the
/// registry's clock. Nothing that an error rolls back has been disclosed. `host`: this server is
/// the requester.
///
/// # Errors
/// The request is invalid, or the tables are not the extension's.
pub fn ask(
    host: bool,
    read: impl FnOnce() -> Result<LeaseRequest, Failure>,
) -> Result<Reply, Failure> {
    // The requester acts on the answer at once.
    serve::begin(c"leaf_worker_lease()", LOCK_TIMEOUT)?;
    // Read the clock before any wait.
    let arrived_ms = pg::now_ms();
    let request = read()?;
    // It comes in ASCII, with escapes, so that PostgreSQL has not seen its bytes.
    if !request.is_valid() || !pg::is_text(&request.node_name) {
        return Err(Failure::Registry(RegistryError::LeaseTerms));
    }
    let client = pg::client();
    let mut tables = Opened::new()?;
    loop {
        let here = Here {
            place: tables.here,
            epoch_ms: guc::epoch_ms(),
            layout: guc::layout(),
            arrived_ms,
            worker_id: match guc::worker_id() {
                WorkerId::Fixed(worker_id) => Some(worker_id),
                WorkerId::Unset | WorkerId::Auto => None,
            },
            now_ms: pg::now_ms(),
            max_lead_ms: max_lead_ms(),
            format_ms: pg::format_ms,
        };
        let requester = Requester {
            host,
            ..requester(&client)
        };
        match decide(tables.known(), &request, &requester, &here) {
            Next::LockRegistry => tables.lock_registry()?,
            Next::LockRow { worker_id, wait } => tables.lock_row(worker_id, wait),
            Next::StartOver { worker_id } => {
                return Err(Failure::Registry(RegistryError::RowChanged { worker_id }));
            }
            Next::Done(decision) => {
                tables.write(&decision);
                log(&decision);
                pg::limit_hold();
                return Ok(decision.reply);
            }
        }
    }
}

fn requester(client: &Client) -> Requester<'_> {
    Requester {
        role: &client.role,
        trusted: client.owns_extension,
        address: client.address.as_deref(),
        host: false,
    }
}

/// How far ids of another server with this server's worker id may lead this clock: the max lead,
/// plus the max difference of their clocks.
fn max_lead_ms() -> i64 {
    i64::from(guc::MAX_CLOCK_LEAD.get()) + i64::from(guc::TIMESTAMP_RESERVATION.get())
}

/// Retires a worker id, or puts it back into service.
///
/// # Errors
/// There is no such worker id, or it belongs to another role.
pub fn retire(worker_id: Option<i32>, retired: Option<bool>) -> Result<(), Failure> {
    let (Some(worker_id), Some(retired)) = (worker_id, retired) else {
        return Err(Failure::Registry(RegistryError::Null {
            function: "leaf_worker_retire",
        }));
    };
    pg::prevent_if_read_only(c"leaf_worker_retire()");
    change(worker_id, |_, row| {
        Ok(if retired || !row.retired {
            Row { retired, ..row }
        } else {
            row.back_in_service(pg::now_ms() + max_lead_ms())
        })
    })
}

/// Retires an unused worker id, for ids that are composed with timestamps up to `until`, a
/// TimestampTz.
///
/// # Errors
/// There is no such worker id, or it may have been used; or the timestamp is not one of an id.
pub fn set_aside(worker_id: Option<i32>, until: Option<i64>) -> Result<(), Failure> {
    let (Some(worker_id), Some(until)) = (worker_id, until) else {
        return Err(Failure::Registry(RegistryError::Null {
            function: "leaf_worker_set_aside",
        }));
    };
    pg::prevent_if_read_only(c"leaf_worker_set_aside()");
    let until_ms = to_ms(until);
    let used = Failure::Registry(RegistryError::WorkerIdNotFresh { worker_id });
    change(worker_id, |registry, row| {
        // A reservation is never lowered, so an absurd one would last.
        let epoch_ms = registry.epoch_ms.unwrap_or_else(guc::epoch_ms);
        let layout = registry.layout.unwrap_or_else(guc::layout);
        let last_ms = epoch_ms.saturating_add(layout.max_ms());
        if !(epoch_ms.max(1)..=last_ms.min(LAST_MS)).contains(&until_ms) {
            return Err(Failure::Registry(RegistryError::SetAsideOutOfRange {
                first: pg::format_ms(epoch_ms),
                last: pg::format_ms(last_ms),
            }));
        }
        let is_this_servers = guc::worker_id() == WorkerId::Fixed(row.worker_id);
        let row = row.set_aside(until_ms);
        row.filter(|_| !is_this_servers).ok_or(used)
    })
}

/// A worker id as the views show it.
pub struct Lease {
    /// Its row.
    pub row: Row,
    /// When its holder got it, a TimestampTz.
    pub leased_at: Option<i64>,
    /// When it was last renewed, a TimestampTz.
    pub renewed_at: Option<i64>,
    /// How far the clock of a holder may be off.
    pub max_skew_ms: i64,
}

/// All worker ids of the registry, for pg_monitor and for roles that may read the table; none for
/// others.
///
/// # Errors
/// The tables are not the extension's.
pub fn leases() -> Result<Vec<Lease>, Failure> {
    if !pg::caller_is_monitor() && !pg::caller_has(oid(&WORKER)?, Privilege::Select) {
        return Ok(Vec::new());
    }
    let registry = open(&REGISTRY, Access::Read)?;
    let max_skew_ms = registry_row(registry.get(&ONE).as_ref(), None)
        .bounds
        .max_skew_ms;
    let stored = open(&WORKER, Access::Read)?.rows();
    let lease = |stored: &pg::Row| Lease {
        row: worker_row(stored),
        leased_at: stored.timestamp(6),
        renewed_at: stored.timestamp(7),
        max_skew_ms,
    };
    Ok(stored.iter().map(lease).collect())
}

/// Changes the row of a worker id, inserting it if needed. It and the registry's stay locked, so the
/// transaction cannot be prepared.
fn change(
    worker_id: i32,
    change: impl FnOnce(&Registry, Row) -> Result<Row, Failure>,
) -> Result<(), Failure> {
    // By the settings of this server, which are defined where the library is preloaded.
    shmem::area().ok_or(Failure::NotPreloaded)?;
    transaction::watch();
    let client = pg::client();
    // Exclude claims that look for a worker id without a row.
    let mut opened = Opened::new()?;
    opened.lock_registry()?;
    let largest = opened.layout().max_worker_id();
    let number = u16::try_from(worker_id).ok();
    let Some(number) = number.filter(|number| *number <= largest) else {
        return Err(Failure::Registry(RegistryError::NoSuchWorkerId {
            worker_id,
            largest,
        }));
    };
    let table = open(&WORKER, Access::Write)?;
    let stored = table.lock(&Value::Integer(worker_id));
    let row = stored.as_ref().map_or_else(
        || Row {
            worker_id: number,
            ..Row::default()
        },
        worker_row,
    );
    if !row.admits(&requester(&client)) {
        return Err(Failure::Registry(RegistryError::OtherRolesWorkerId {
            worker_id,
        }));
    }
    write_worker(&table, stored.as_ref(), &change(&opened.registry, row)?);
    Ok(())
}

fn oid(shape: &'static Shape) -> Result<u32, Failure> {
    pg::find_table(shape).ok_or(Failure::Registry(RegistryError::NoRegistryTable))
}

fn open(shape: &'static Shape, access: Access) -> Result<Table, Failure> {
    Table::open(oid(shape)?, shape, access)?
        .ok_or(Failure::Registry(RegistryError::NoRegistryTable))
}

/// The tables and their contents.
struct Opened {
    here: Place,
    origin: Option<Place>,
    registry: Registry,
    /// Table and row of the registry, once locked.
    locked: Option<(Table, pg::Row)>,
    worker: Table,
    rows: Vec<(Row, Hold)>,
    /// The tuples of `rows`, in the same order.
    stored: Vec<pg::Row>,
}

impl Opened {
    fn new() -> Result<Self, Failure> {
        // A statement may send several requests.
        pg::see_own_changes();
        let here = Place {
            system_identifier: pg::system_identifier().cast_signed(),
            timeline: pg::timeline().cast_signed(),
            database: pg::database(),
            relation: oid(&REGISTRY)?,
        };
        // Before the terms are read: see leaf_await_renewals().
        let worker = open(&WORKER, Access::Write)?;
        let origin = origin();
        let registry = open(&REGISTRY, Access::Read)?;
        let registry = registry_row(registry.get(&ONE).as_ref(), origin);
        let mut opened = Self {
            here,
            origin,
            registry,
            locked: None,
            worker,
            rows: Vec::new(),
            stored: Vec::new(),
        };
        opened.read();
        Ok(opened)
    }

    fn read(&mut self) {
        self.stored = self.worker.rows();
        let rows = self.stored.iter().map(worker_row);
        self.rows = rows.map(|row| (row, Hold::Seen)).collect();
    }

    /// The layout of all members' ids.
    fn layout(&self) -> Layout {
        self.registry.layout.unwrap_or_else(guc::layout)
    }

    fn known(&self) -> Tables<'_> {
        Tables {
            registry: &self.registry,
            registry_locked: self.locked.is_some(),
            rows: &self.rows,
        }
    }

    /// Locks the registry's row until the end of the transaction. If there is none, inserts it,
    /// with the table locked against concurrent inserts.
    fn lock_registry(&mut self) -> Result<(), Failure> {
        let relation = self.here.relation;
        let is_there = open(&REGISTRY, Access::Read)?.get(&ONE).is_some();
        if !is_there {
            pg::lock_against_writers(relation);
        }
        let table = open(&REGISTRY, Access::Write)?;
        let row = match table.lock(&ONE) {
            Some(row) => row,
            None => {
                let new = registry_row(None, self.origin);
                table.insert(&registry_columns(&new, None));
                pg::see_own_changes();
                table
                    .lock(&ONE)
                    .ok_or(Failure::Registry(RegistryError::NoRegistryTable))?
            }
        };
        self.registry = registry_row(Some(&row), self.origin);
        self.locked = Some((table, row));
        // Claims that were waited for have changed the rows.
        self.read();
        Ok(())
    }

    fn lock_row(&mut self, worker_id: u16, wait: bool) {
        let key = Value::Integer(worker_id.into());
        let found = if wait {
            self.worker.lock(&key)
        } else {
            match self.worker.lock_at_once(&key) {
                LockedAtOnce::Row(row) => Some(row),
                LockedAtOnce::None => None,
                LockedAtOnce::Busy => {
                    for (row, hold) in &mut self.rows {
                        if row.worker_id == worker_id {
                            *hold = Hold::Busy;
                        }
                    }
                    return;
                }
            }
        };
        let position = (self.rows.iter()).position(|(row, _)| row.worker_id == worker_id);
        if let Some(position) = position {
            self.rows.swap_remove(position);
            self.stored.swap_remove(position);
        }
        if let Some(stored) = found {
            self.rows.push((worker_row(&stored), Hold::Locked));
            self.stored.push(stored);
        }
    }

    fn write(&self, decision: &Decision) {
        if let (Some(registry), Some((table, row))) = (&decision.registry, &self.locked) {
            let layout = registry.layout.map(|layout| layout.to_string());
            let [_, columns @ ..] = registry_columns(registry, layout.as_deref());
            table.update(row, &columns);
        }
        if let Some(row) = &decision.row {
            let is_its = |(found, _): &(Row, Hold)| found.worker_id == row.worker_id;
            let position = self.rows.iter().position(is_its);
            let stored = position.and_then(|position| self.stored.get(position));
            write_worker(&self.worker, stored, row);
        }
    }
}

fn log(decision: &Decision) {
    if let Some(registry) = decision.registry.as_ref().filter(|_| decision.is_moved) {
        let until_ms = registry.moved_floor_ms.unwrap_or(0) + registry.bounds.max_skew_ms;
        let until = pg::format_ms(until_ms);
        pgrx::log!(
            "leaf_id: the worker registry was promoted or restored and may have forgotten leases: it only renews until {until}"
        );
    }
    let new = decision.row.as_ref().filter(|_| decision.is_new);
    if let Some((row, holder)) = new.and_then(|row| Some((row, row.holder.as_ref()?))) {
        let worker_id = row.worker_id;
        let node = pg::shown(&holder.node_name);
        let system = holder.system_identifier;
        pgrx::log!(
            "leaf_id: worker id {worker_id} is leased to node \"{node}\" of system {system}"
        );
    }
}

// ---- Rows --------------------------------------------------------------------------

/// Converts PostgreSQL microseconds to Unix milliseconds, rounding up: a time must not become
/// earlier.
fn to_ms(us: i64) -> i64 {
    match us {
        i64::MIN | i64::MAX => us,
        _ => -(-us.saturating_add(pg::TIMESTAMP_EPOCH_US)).div_euclid(1000),
    }
}

fn from_ms(ms: Option<i64>) -> Value<'static> {
    match ms {
        None => Value::Null,
        Some(ms @ (i64::MIN | i64::MAX)) => Value::Timestamp(ms),
        Some(ms) => Value::Timestamp(ms.saturating_mul(1000) - pg::TIMESTAMP_EPOCH_US),
    }
}

fn optional(number: Option<i64>) -> Value<'static> {
    number.map_or(Value::Null, Value::Bigint)
}

fn integer(number: i64) -> Value<'static> {
    Value::Integer(i32::try_from(number).unwrap_or(i32::MAX))
}

fn text(bytes: Option<&[u8]>) -> Value<'_> {
    bytes.map_or(Value::Null, Value::Text)
}

/// The place where the registry was created.
fn origin() -> Option<Place> {
    let source = pg::function_source(INTERNAL_SCHEMA, c"leaf_registry_origin")?;
    let mut numbers = source.split(['{', '}']).nth(1)?.split(", ");
    Some(Place {
        system_identifier: numbers.next()?.parse().ok()?,
        timeline: numbers.next()?.parse().ok()?,
        database: numbers.next()?.parse().ok()?,
        relation: numbers.next()?.parse().ok()?,
    })
}

fn place(row: &pg::Row) -> Option<Place> {
    Some(Place {
        system_identifier: row.bigint(2)?,
        timeline: row.integer(3)?,
        database: row.oid(4)?,
        relation: row.oid(5)?,
    })
}

fn registry_row(row: Option<&pg::Row>, origin: Option<Place>) -> Registry {
    let Some(row) = row else {
        return Registry {
            place: origin,
            epoch_ms: None,
            layout: None,
            moved_at_ms: None,
            moved_floor_ms: None,
            bounds: Bounds::DEFAULT,
        };
    };
    let bound = |number, default| row.integer(number).map_or(default, i64::from);
    Registry {
        place: place(row).or(origin),
        epoch_ms: row.bigint(6),
        layout: (row.text(7)).and_then(|text| Layout::parse(&String::from_utf8(text).ok()?)),
        moved_at_ms: row.timestamp(8).map(to_ms),
        moved_floor_ms: row.bigint(9),
        bounds: Bounds {
            max_skew_ms: bound(10, Bounds::DEFAULT.max_skew_ms),
            grant_ahead_ms: bound(11, Bounds::DEFAULT.grant_ahead_ms),
            max_ids_per_role: row.integer(12).map(i64::from),
        },
    }
}

/// The columns of a registry's row. `layout` is passed as text.
fn registry_columns<'a>(registry: &Registry, layout: Option<&'a str>) -> [(usize, Value<'a>); 12] {
    let Registry {
        place,
        epoch_ms,
        layout: _,
        moved_at_ms,
        moved_floor_ms,
        bounds,
    } = registry;
    let oid = |oid: fn(&Place) -> u32| place.as_ref().map_or(Value::Null, |at| Value::Oid(oid(at)));
    [
        (1, ONE),
        (2, optional(place.map(|at| at.system_identifier))),
        (
            3,
            place.map_or(Value::Null, |at| Value::Integer(at.timeline)),
        ),
        (4, oid(|at| at.database)),
        (5, oid(|at| at.relation)),
        (6, optional(*epoch_ms)),
        (7, text(layout.map(str::as_bytes))),
        (8, from_ms(*moved_at_ms)),
        (9, optional(*moved_floor_ms)),
        (10, integer(bounds.max_skew_ms)),
        (11, integer(bounds.grant_ahead_ms)),
        (12, bounds.max_ids_per_role.map_or(Value::Null, integer)),
    ]
}

fn worker_row(row: &pg::Row) -> Row {
    let holder = row.bigint(2).zip(row.text(3));
    Row {
        worker_id: row
            .integer(1)
            .and_then(|id| u16::try_from(id).ok())
            .unwrap_or(u16::MAX),
        holder: holder.map(|(system_identifier, node_name)| Holder {
            system_identifier,
            node_name,
        }),
        role: row.text(4),
        token: row.bigint(5).unwrap_or(0),
        leased_at_ms: row.timestamp(6).map(to_ms),
        renewed_at_ms: row.timestamp(7).map(to_ms),
        reserved_until_ms: row.bigint(8).unwrap_or(0),
        floor_ms: row.bigint(9).unwrap_or(0),
        clock_offset_ms: row.bigint(10),
        retired: row.boolean(11).unwrap_or(false),
        address: row.text(12),
        host: row.boolean(13).unwrap_or(false),
    }
}

fn write_worker(table: &Table, stored: Option<&pg::Row>, row: &Row) {
    let holder = row.holder.as_ref();
    let columns = [
        (1, Value::Integer(row.worker_id.into())),
        (2, optional(holder.map(|holder| holder.system_identifier))),
        (3, text(holder.map(|holder| &*holder.node_name))),
        (4, text(row.role.as_deref())),
        (5, Value::Bigint(row.token)),
        (6, from_ms(row.leased_at_ms)),
        (7, from_ms(row.renewed_at_ms)),
        (8, Value::Bigint(row.reserved_until_ms)),
        (9, Value::Bigint(row.floor_ms)),
        (10, optional(row.clock_offset_ms)),
        (11, Value::Boolean(row.retired)),
        (12, text(row.address.as_deref())),
        (13, Value::Boolean(row.host)),
    ];
    match (stored, &columns) {
        (Some(stored), [_, changes @ ..]) => table.update(stored, changes),
        (None, columns) => table.insert(columns),
    }
}
