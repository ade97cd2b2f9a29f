//! Tags as rows of a table: edits of them, and who may do what.

mod altered_table;
mod edits_under_load;
mod locked_tag_row;
mod privileges;
mod rights;
mod rights_matrix;
mod tag_edits;
