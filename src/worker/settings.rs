//! Settings of a worker connected to a database.

use crate::pg;

/// Overrides settings from ALTER DATABASE or ALTER ROLE that could prevent claims.
pub fn pin() {
    for (name, value) in [
        (c"role", c"none"),
        (c"session_replication_role", c"origin"),
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"statement_timeout", c"0"),
        (c"transaction_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"idle_session_timeout", c"0"),
        // Short, so that no tag delays others.
        (c"lock_timeout", c"100ms"),
        (c"jit", c"off"),
        (c"exit_on_error", c"off"),
    ] {
        pg::pin_setting(name, value);
    }
}
