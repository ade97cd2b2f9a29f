//! The SQL functions: check, call, convert. And the script that creates them.
//!
//! * [`call`]: how a call brings its arguments, and how it is answered.
//! * [`segment`], [`snowflake`]: the functions that issue ids.
//! * [`fmgr`]: their fast entries, without pgrx's guard.
//! * [`support`]: what the planner asks of them, for COPY in bulk.
//! * [`adopt`]: the event trigger that gives new columns a tag.
//! * [`opaque`]: opaque ids, there and back.
//! * [`tags`]: the triggers of the table of tags.
//! * [`registry`]: the worker registry.
//! * [`gapless`]: gapless numbers. [`format`](mod@format): ids as people read them.
//! * [`status`]: what the views show.
//! * [`sync`]: what `leaf_sync` reads.

#![allow(unsafe_code)]

mod adopt;
mod call;
mod fmgr;
mod format;
mod gapless;
mod opaque;
mod registry;
mod segment;
mod snowflake;
mod status;
mod support;
mod sync;
mod tags;

pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!(
    "../sql/tags.sql",
    name = "tags",
    requires = [
        "schema",
        leaf_alloc_stamp,
        leaf_alloc_edit,
        leaf_alloc_truncate
    ]
);
pgrx::extension_sql_file!(
    "../sql/workers.sql",
    name = "workers",
    requires = ["schema"]
);
pgrx::extension_sql_file!(
    "../sql/gapless.sql",
    name = "gapless",
    requires = ["schema"]
);
pgrx::extension_sql_file!("../sql/rights.sql", name = "rights", requires = ["tags"]);
pgrx::extension_sql_file!(
    "../sql/sync.sql",
    name = "sync",
    requires = ["tags", leaf_column_max, leaf_tag_next]
);
pgrx::extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = ["tags", "sync", leaf_segment_slots, leaf_snowflake_state]
);
pgrx::extension_sql_file!(
    "../sql/adopt.sql",
    name = "adopt",
    requires = [
        "tags",
        "rights",
        "views",
        "workers",
        leaf_segment_next,
        leaf_adopt_new_columns
    ]
);
pgrx::extension_sql_file!("../sql/privileges.sql", name = "privileges", finalize);
