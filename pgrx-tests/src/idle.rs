//! Servers with default settings, which a test leaves to the next one of the same process.
//!
//! A test that has neither stopped nor configured its server, nor looked at its files, leaves one
//! behind that differs from a new one in its databases and roles alone. Those are dropped, and the
//! next test finds a new database `postgres`, which takes a third of the time that a server takes.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::processes::Postmaster;
use crate::session::{Failure, Session, connect};

/// A server that runs, and that nobody uses.
pub(crate) struct Idle {
    pub dir: PathBuf,
    pub port: u16,
    pub postmaster: Arc<Postmaster>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// What a test may have left that concerns a whole server.
const LEFT: &str = "SELECT (SELECT count(*) FROM pg_prepared_xacts)
    + (SELECT count(*) FROM pg_replication_slots)
    + (SELECT count(*) FROM pg_subscription)
    + (SELECT count(*) FROM pg_tablespace WHERE oid >= 16384)
    + (SELECT count(*) FROM pg_db_role_setting)
    + (SELECT count(*) FROM pg_parameter_acl)
    + (SELECT count(*) FROM pg_file_settings WHERE sourcefile LIKE '%postgresql.auto.conf')
    + (SELECT count(*) FROM pg_class WHERE oid >= 16384)";

impl Idle {
    fn session(&self, database: &str) -> Result<Session, Failure> {
        connect(&self.dir, self.port, "postgres", database)
    }

    /// Makes it as good as new; false if it cannot be.
    fn renew(&self) -> Result<bool, Failure> {
        let mut session = self.session("template1")?;
        let databases = session.try_column::<String>(
            "SELECT quote_ident(datname) FROM pg_database WHERE datname NOT IN ('template0', 'template1')",
        )?;
        for database in databases {
            session.try_run(&format!("DROP DATABASE {database} WITH (FORCE)"))?;
        }
        if session.try_column::<i64>(LEFT)? != [0] {
            return Ok(false);
        }
        let roles = session
            .try_column::<String>("SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384")?;
        for role in roles {
            session.try_run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))?;
        }
        session.try_run("CREATE DATABASE postgres")?;
        drop(session);
        self.session("postgres")?
            .try_run("CREATE EXTENSION leaf_id")?;
        Ok(true)
    }
}

/// Leaves a server to the next test.
pub(crate) fn leave(server: Idle) {
    IDLE.lock().push(server);
}

/// A server that was left, and whether it is as good as new, with the extension in its database
/// postgres.
pub(crate) fn take() -> Option<(Idle, bool)> {
    let server = IDLE.lock().pop()?;
    let renewed = server.renew().unwrap_or(false);
    Some((server, renewed))
}
