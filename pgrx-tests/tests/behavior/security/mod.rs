//! Attacks by untrusted roles: the threat model, line by line. Each test notes the result of the
//! attack before its mend ("Before").
//!
//! The attackers are real roles (see `Attack`): the owner of the database, the role that has
//! installed the extension, one with `GRANT ALL` on its tables, and one that can only connect.

mod beside_strangers;
mod code_as_superuser;
mod effects;
mod floods;
mod ids_twice;
mod memory;
mod other_servers;
mod planted_names;
mod swapped_schemas;
mod what_is_shown;
mod whose_object_counts;
