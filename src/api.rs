//! The SQL functions: argument checks, calls and conversions. And the script that creates them.

#![allow(unsafe_code)]

mod call;
mod fmgr;
mod format;
mod gapless;
mod opaque;
mod ordered;
mod registry;
mod segment;
mod servers;
mod snowflake;
mod status;
mod support;
mod sync;
mod tags;

// The script, in this order: scripts/lib.sh parses the list. (The macros are for `cargo pgrx
// install`, which is not used here.) Each function below has a CREATE FUNCTION in these files; a
// test compares them.
pgrx::extension_sql_file!("../sql/schema.sql", name = "schema");
pgrx::extension_sql_file!("../sql/tags.sql", name = "tags", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/segment.sql", name = "segment", requires = ["tags"]);
pgrx::extension_sql_file!(
    "../sql/snowflake.sql",
    name = "snowflake",
    requires = ["segment"]
);
pgrx::extension_sql_file!(
    "../sql/gapless.sql",
    name = "gapless",
    requires = ["snowflake"]
);
pgrx::extension_sql_file!("../sql/opaque.sql", name = "opaque", requires = ["gapless"]);
pgrx::extension_sql_file!(
    "../sql/ordered.sql",
    name = "ordered",
    requires = ["opaque"]
);
pgrx::extension_sql_file!("../sql/format.sql", name = "format", requires = ["ordered"]);
pgrx::extension_sql_file!(
    "../sql/workers.sql",
    name = "workers",
    requires = ["format"]
);
pgrx::extension_sql_file!(
    "../sql/servers.sql",
    name = "servers",
    requires = ["workers"]
);
pgrx::extension_sql_file!("../sql/rights.sql", name = "rights", requires = ["servers"]);
pgrx::extension_sql_file!("../sql/sync.sql", name = "sync", requires = ["rights"]);
pgrx::extension_sql_file!("../sql/views.sql", name = "views", requires = ["sync"]);
pgrx::extension_sql_file!("../sql/adopt.sql", name = "adopt", requires = ["views"]);
pgrx::extension_sql_file!(
    "../sql/privileges.sql",
    name = "privileges",
    requires = ["adopt"]
);
