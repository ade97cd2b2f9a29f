//! Tables of leaf_id whose contents a tool replaces by older ones, past all triggers.

use crate::session::Session;

impl Session {
    /// Runs statements in a transaction in which a table of leaf_id has no triggers.
    #[track_caller]
    pub fn run_unseen(&mut self, table: &str, statements: &str) {
        let triggers = format!(
            "FROM pg_trigger WHERE tgrelid = 'leaf_id.{table}'::regclass AND NOT tgisinternal"
        );
        // Each in the mode that it had.
        let again: Option<String> = self.value(&format!(
            "SELECT string_agg(format('ENABLE %s TRIGGER %I',
                 CASE tgenabled WHEN 'A' THEN 'ALWAYS' WHEN 'R' THEN 'REPLICA' END, tgname), ', ')
             {triggers}"
        ));
        let again = again.map(|again| format!("ALTER TABLE leaf_id.{table} {again};"));
        self.run(&format!(
            "BEGIN; ALTER TABLE leaf_id.{table} DISABLE TRIGGER USER; {statements}; {} COMMIT",
            again.unwrap_or_default()
        ));
    }

    /// Copies a table of leaf_id, for [`Session::set_back`].
    #[track_caller]
    pub fn keep_copy(&mut self, table: &str) {
        self.run(&format!(
            "CREATE TABLE copy_of_{table} AS TABLE leaf_id.{table}"
        ));
    }

    /// Sets a table back to its copy, which goes.
    #[track_caller]
    pub fn set_back(&mut self, table: &str) {
        self.run_unseen(
            table,
            &format!(
                "DELETE FROM leaf_id.{table}; INSERT INTO leaf_id.{table} TABLE copy_of_{table};
                 DROP TABLE copy_of_{table}"
            ),
        );
    }
}
