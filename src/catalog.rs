//! The only place with SQL against the worker registry.

use pgrx::Spi;
use pgrx::datum::DatumWithOid;
use pgrx::spi::{SpiClient, SpiTupleTable};

use crate::pg;

fn column<T: pgrx::FromDatum + pgrx::IntoDatum>(table: &SpiTupleTable<'_>, number: usize) -> T {
    match table.get(number) {
        Ok(Some(value)) => value,
        Ok(None) => pgrx::error!("column {number} is null"),
        Err(error) => pgrx::error!("could not read a row: {error}"),
    }
}

fn run<'client>(
    client: &mut SpiClient<'client>,
    sql: &str,
    arguments: &[DatumWithOid<'_>],
) -> SpiTupleTable<'client> {
    match client.update(sql, None, arguments) {
        Ok(table) => table.first(),
        Err(error) => pgrx::error!("could not run SQL: {error}"),
    }
}

// ---- The worker registry ------------------------------------------------------------

/// Where leaf_id is in this database.
pub struct Extension {
    /// Its schema, quoted.
    pub schema: String,
    /// The owner of leaf_id.leaf_alloc, who acts for it.
    pub owner: u32,
}

/// Where leaf_id is in this database; `None` if it is not.
pub fn extension() -> Option<Extension> {
    let sql = "SELECT pg_catalog.quote_ident(n.nspname), c.relowner::pg_catalog.int8 \
         FROM pg_catalog.pg_extension e \
         JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace \
         JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) (SELECT l.oid FROM pg_catalog.pg_namespace l WHERE l.nspname OPERATOR(pg_catalog.=) 'leaf_id') \
         AND c.relname OPERATOR(pg_catalog.=) 'leaf_alloc' \
         WHERE e.extname OPERATOR(pg_catalog.=) 'leaf_id'";
    // Not as what writes: that cannot run on a standby.
    Spi::connect(|client| {
        let found = match client.select(sql, None, &[]) {
            Ok(table) => table.first(),
            Err(error) => pgrx::error!("could not look for leaf_id: {error}"),
        };
        (!found.is_empty()).then(|| Extension {
            schema: column(&found, 1),
            owner: u32::try_from(column::<i64>(&found, 2)).unwrap_or(0),
        })
    })
}

/// A function of the worker registry.
pub struct RegistryFunction {
    /// Its name.
    pub name: &'static str,
    /// The types of its arguments.
    pub types: &'static [&'static str],
}

/// What the worker registry answers, column by column.
pub const REGISTRY_COLUMNS: [&str; 8] = [
    "status",
    "worker_id",
    "floor_ms",
    "reserved_until_ms",
    "registry_ms",
    "peers",
    "peers_offset_ms",
    "detail",
];

/// Asks the worker registry of this database, in the open transaction: its answer may be used
/// once that is durable. All values are text.
pub fn ask_registry(
    schema: &str,
    function: &RegistryFunction,
    arguments: &[Option<String>],
) -> Vec<Option<String>> {
    let list = |parts: Vec<String>| parts.join(", ");
    let types = function.types.iter().enumerate();
    let placeholders = types.map(|(index, name)| format!("${}::pg_catalog.{name}", index + 1));
    let columns = REGISTRY_COLUMNS.map(|name| format!("a.{name}::pg_catalog.text"));
    let sql = format!(
        "SELECT {} FROM {schema}.{}({}) a",
        list(columns.to_vec()),
        function.name,
        list(placeholders.collect()),
    );
    let arguments: Vec<_> = arguments.iter().map(pg::optional_text_argument).collect();
    Spi::connect_mut(|client| {
        let found = run(client, &sql, &arguments);
        let text = |number| match found.get::<String>(number) {
            Ok(value) => value,
            Err(error) => pgrx::error!("could not read the answer of the worker registry: {error}"),
        };
        (1..=REGISTRY_COLUMNS.len()).map(text).collect()
    })
}
