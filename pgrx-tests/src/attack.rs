//! An untrusted role, its privileges, and the code it makes the server run.
//!
//! Each attack runs the same statements, whatever leaf_id permits. A refusal does not fail the
//! test, which checks what the attacker has achieved in the end.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::checks::wait_until;
use crate::server::Server;
use crate::session::{Failure, Session};

/// The attacking role.
pub const MALLORY: &str = "mallory";
/// The database under attack.
pub const SHOP: &str = "shop";
/// Schema of the attacker's code.
pub const HERS: &str = "hers";

const LIMIT: Duration = Duration::from_secs(30);

/// Log prefix written by the code of [`MALLORY`] wherever it runs, followed by the current role.
const RAN: &str = "mallory has her code run as";

/// Privileges of the attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attacker {
    /// Owns the database; a superuser has created the extension.
    Owner,
    /// Owns the database, and has created the extension.
    Installer,
    /// Has all privileges on leaf_id's tables.
    Grantee,
    /// Can connect, and has a schema for its code.
    Stranger,
}

/// All attackers.
pub const ATTACKERS: [Attacker; 4] = [
    Attacker::Owner,
    Attacker::Installer,
    Attacker::Grantee,
    Attacker::Stranger,
];

/// Tries each case, regardless of failures of the others.
///
/// # Panics
/// If a case panics.
#[track_caller]
pub fn each<T: Debug>(cases: impl IntoIterator<Item = T>, attempt: impl Fn(&T)) {
    let mut failed = Vec::new();
    for case in cases {
        println!("---- {case:?}");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| attempt(&case))) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            failed.push(format!("{case:?}: {}", text.unwrap_or_default()));
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// A server with database [`SHOP`] and role [`MALLORY`].
pub struct Attack {
    /// The server.
    pub server: Server,
    /// Privileges of the attacker.
    pub by: Attacker,
}

impl Attack {
    /// With the extension installed, but not used yet.
    #[must_use]
    pub fn on_installed(by: Attacker, conf: &[(&str, &str)]) -> Self {
        let attack = Self::before_install(by, conf);
        attack.install();
        attack
    }

    /// Before the extension is installed. The attacker's code exists: `hers.run(text)`, which makes
    /// her a superuser wherever that is possible, and the trigger function `hers.fire()`.
    #[must_use]
    pub fn before_install(by: Attacker, conf: &[(&str, &str)]) -> Self {
        let server = Server::start(conf);
        let mut admin = server.session();
        admin.run(&format!(
            "CREATE ROLE {MALLORY} LOGIN; CREATE ROLE alice LOGIN"
        ));
        admin.run(&format!("CREATE DATABASE {SHOP}"));
        let mut admin = server.session_in(SHOP);
        if matches!(by, Attacker::Owner | Attacker::Installer) {
            admin.run(&format!("ALTER DATABASE {SHOP} OWNER TO {MALLORY}"));
        }
        admin.run(&format!(
            "CREATE SCHEMA {HERS} AUTHORIZATION {MALLORY}; GRANT USAGE ON SCHEMA {HERS} TO PUBLIC"
        ));
        let attack = Self { server, by };
        attack.mallory().run(&format!(
            "CREATE FUNCTION {HERS}.run(what text) RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
                 IF current_user <> '{MALLORY}' THEN
                     RAISE LOG '{RAN} %: %', current_user, what;
                     ALTER ROLE {MALLORY} SUPERUSER;
                 END IF;
                 RETURN true;
             EXCEPTION WHEN insufficient_privilege THEN
                 RETURN true;
             END $$;
             CREATE FUNCTION {HERS}.fire() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM {HERS}.run(format('trigger on %s of %s', tg_op, tg_table_name));
                 RETURN coalesce(NEW, OLD);
             END $$;
             CREATE FUNCTION {HERS}.ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM {HERS}.run('event trigger');
             END $$"
        ));
        attack
    }

    /// Creates the extension as the appropriate role, and grants the attacker's privileges.
    pub fn install(&self) {
        let mut admin = self.admin();
        if self.by == Attacker::Installer {
            self.server.install_as(MALLORY, SHOP);
        } else {
            admin.run("CREATE EXTENSION leaf_id");
        }
        // So that a role with no other rights may use what is attacked.
        admin.run("ALTER TABLE leaf_id.leaf_alloc ALTER granted_to SET DEFAULT '{public}'");
        if self.by == Attacker::Grantee {
            admin.grant_tables("ALL", MALLORY);
        }
    }

    /// A session of the superuser.
    #[must_use]
    #[track_caller]
    pub fn admin(&self) -> Session {
        self.server.session_in(SHOP)
    }

    /// A session of the attacker.
    #[must_use]
    #[track_caller]
    pub fn mallory(&self) -> Session {
        self.server.connect_as(MALLORY, SHOP)
    }

    /// A session of another, ordinary role.
    #[must_use]
    #[track_caller]
    pub fn alice(&self) -> Session {
        self.server.connect_as("alice", SHOP)
    }

    /// Runs each statement as the attacker, ignoring errors. Returns the number of statements that
    /// succeeded.
    pub fn mallory_tries(&self, statements: &[impl AsRef<str>]) -> usize {
        let mut mallory = self.mallory();
        let statements = statements.iter().map(AsRef::as_ref);
        statements
            .filter(|statement| match mallory.try_run(statement) {
                Ok(()) => true,
                Err(failure) => {
                    println!(
                        "refused: {statement}: {} {}",
                        failure.state, failure.message
                    );
                    let _ = mallory.try_run("ROLLBACK");
                    false
                }
            })
            .count()
    }

    /// A statement that creates a look-alike of one of leaf_id's tables in another schema.
    #[track_caller]
    pub fn imitation(&self, table: &str, schema: &str) -> String {
        let mut admin = self.admin();
        let original = admin.table(table);
        let columns: String = admin.catalog_value(&format!(
            "SELECT string_agg(format('%I %s%s', attname, format_type(atttypid, atttypmod),
                 CASE WHEN atttypid IN ('int4'::regtype, 'int8'::regtype) THEN ' DEFAULT 0' END),
                 ', ' ORDER BY attnum)
             FROM pg_attribute
             WHERE attrelid = '{original}'::regclass AND attnum > 0 AND NOT attisdropped"
        ));
        format!("CREATE TABLE {schema}.{table} ({columns})")
    }

    /// True if the attacker has become a superuser.
    #[must_use]
    #[track_caller]
    pub fn has_won(&self) -> bool {
        let sql = format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{MALLORY}'");
        self.server.session().value(&sql)
    }

    /// I9: the attacker's code has not run with rights that she does not have.
    #[track_caller]
    pub fn assert_her_code_did_not_run(&self) {
        let log = self.server.log();
        if let Some(line) = log.lines().find(|line| line.contains(RAN)) {
            panic!("{line}");
        }
        assert!(!self.has_won(), "{MALLORY} is a superuser");
    }

    /// Takes this many ids of a tag as another role, in all possible ways. The count exceeds the
    /// length of the tag's segments. May fail.
    pub fn let_alice_take(&self, tag: &str, count: i32) -> Result<Vec<i64>, Failure> {
        let mut alice = self.alice();
        alice.run("SET leaf_id.refill_timeout = '2s'");
        alice.try_take(tag, count)
    }
}

impl Server {
    /// Creates the extension as this role. If only a superuser may, a superuser creates it, and
    /// grants the role the privileges that it would have as the installer.
    pub fn install_as(&self, role: &str, database: &str) {
        let Err(failure) = self
            .connect_as(role, database)
            .try_run("CREATE EXTENSION leaf_id")
        else {
            return;
        };
        failure.is("42501");
        let mut admin = self.session_in(database);
        admin.run("CREATE EXTENSION leaf_id");
        admin.grant_tables("SELECT, INSERT, UPDATE, DELETE", role);
        let functions: String = admin.catalog_value(
            "SELECT string_agg(objid::regprocedure::text, ', ') FROM pg_depend
             WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
                 AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaf_id')
                 AND objid::regprocedure::text ~ 'leaf_tag'",
        );
        admin.run(&format!(
            "GRANT EXECUTE ON FUNCTION {functions} TO {role} WITH GRANT OPTION"
        ));
    }
}

impl Session {
    /// First column of a query of system catalogs, with a search_path that excludes other roles'
    /// operators.
    #[track_caller]
    fn catalog<T: postgres::types::FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        let path: String = self.value("SELECT pg_catalog.current_setting('search_path')");
        self.run("SET search_path = pg_catalog");
        let found = self.column(sql);
        self.run(&format!("SET search_path = {path}"));
        found
    }

    /// First column of the only row of a query of system catalogs.
    #[track_caller]
    fn catalog_value<T: postgres::types::FromSqlOwned>(&mut self, sql: &str) -> T {
        let mut found = self.catalog(sql);
        assert_eq!(found.len(), 1, "one row from {sql}");
        found.remove(0)
    }

    /// Schema of the extension's functions, under its current name.
    #[track_caller]
    pub fn schema_of_functions(&mut self) -> String {
        self.catalog_value(
            "SELECT DISTINCT quote_ident(n.nspname)
             FROM pg_extension e
             JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                 AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
             JOIN pg_proc p ON p.oid = d.objid AND p.proname = 'leaf_segment_next'
             JOIN pg_namespace n ON n.oid = p.pronamespace
             WHERE e.extname = 'leaf_id'",
        )
    }

    /// Qualified name of the extension's table, under the current name of its schema; never a
    /// look-alike.
    #[track_caller]
    pub fn table(&mut self, name: &str) -> String {
        self.catalog_value(&format!(
            "SELECT format('%I.%I', n.nspname, c.relname)
             FROM pg_extension e
             JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                 AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
             JOIN pg_class c ON c.oid = d.objid AND c.relname = '{name}' AND c.relkind = 'r'
             JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE e.extname = 'leaf_id' AND c.relowner <>
                 coalesce((SELECT oid FROM pg_roles WHERE rolname = '{MALLORY}'), 0)"
        ))
    }

    /// Schemas that contain members of the extension.
    #[track_caller]
    pub fn schemas_of_leaf_id(&mut self) -> Vec<String> {
        self.catalog(
            "SELECT DISTINCT n.nspname::text
             FROM pg_extension e
             JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                 AND d.deptype = 'e'
             LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
             LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
             JOIN pg_namespace n ON n.oid = coalesce(c.relnamespace, p.pronamespace)
             WHERE e.extname = 'leaf_id'",
        )
    }

    /// A column of a tag's row.
    #[track_caller]
    pub fn row<T: postgres::types::FromSqlOwned>(&mut self, tag: &str, column: &str) -> T {
        let table = self.table("leaf_alloc");
        self.value(&format!(
            "SELECT {column} FROM {table} WHERE biz_tag = '{tag}'"
        ))
    }

    /// Grants privileges on all tables of leaf_id.
    #[track_caller]
    pub fn grant_tables(&mut self, privileges: &str, role: &str) {
        for table in ["leaf_alloc", "leaf_worker", "leaf_registry"] {
            let table = self.table(table);
            let (schema, _) = table.split_once('.').unwrap();
            self.run(&format!(
                "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT {privileges} ON {table} TO {role}"
            ));
        }
    }

    /// Waits until no other client is connected to the database, so that it can be dropped or
    /// copied.
    #[track_caller]
    pub fn wait_for_empty(&mut self, database: &str) {
        let sql = format!(
            "SELECT count(*) = 0 FROM pg_stat_activity
             WHERE datname = '{database}' AND backend_type = 'client backend'"
        );
        wait_until(LIMIT, "the sessions to leave", || self.value(&sql));
    }
}
