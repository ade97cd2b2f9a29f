//! Tags as rows of a table: edits and privileges.

mod altered_table;
mod by_period;
mod create;
mod defaults;
mod dumps;
mod edits_under_load;
mod locked_tag_row;
mod marks;
mod old_snapshot;
mod privileges;
mod publications;
mod repack;
mod rights;
mod rights_matrix;
pub mod sync;
mod sync_rights;
mod tag_edits;
