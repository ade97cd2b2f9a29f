//! A connection to a server, and the errors it returns.

use std::fmt;
use std::ops::{Deref, DerefMut};

use postgres::types::FromSqlOwned;
use postgres::{Client, Statement};

use crate::checks::PATIENCE;

/// Error of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// SQLSTATE; empty if the connection was lost without one.
    pub state: String,
    /// Primary message.
    pub message: String,
    /// DETAIL, or empty.
    pub detail: String,
    /// HINT, or empty.
    pub hint: String,
}

impl Failure {
    /// Checks the SQLSTATE.
    #[track_caller]
    pub fn is(&self, state: &str) -> &Self {
        assert_eq!(self.state, state, "{self}");
        self
    }

    /// Checks that the session was terminated. The client may see the end of the connection before
    /// the message, so the SQLSTATE may be missing; the server log has it.
    #[track_caller]
    pub fn is_termination(&self) -> &Self {
        assert!(["57P01", ""].contains(&&*self.state), "{self}");
        self
    }

    /// Checks that the message contains `text`.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.message.contains(text),
            "no {text:?} in the message of {self}"
        );
        self
    }

    /// Checks that DETAIL contains `text`.
    #[track_caller]
    pub fn details(&self, text: &str) -> &Self {
        assert!(
            self.detail.contains(text),
            "no {text:?} in the detail of {self}"
        );
        self
    }

    /// Checks that HINT contains `text`.
    #[track_caller]
    pub fn hints(&self, text: &str) -> &Self {
        assert!(
            self.hint.contains(text),
            "no {text:?} in the hint of {self}"
        );
        self
    }
}

impl From<&postgres::Error> for Failure {
    fn from(error: &postgres::Error) -> Self {
        error.as_db_error().map_or_else(
            || Self {
                state: String::new(),
                message: error.to_string(),
                detail: String::new(),
                hint: String::new(),
            },
            |db| {
                for (name, text) in [("DETAIL", db.detail()), ("HINT", db.hint())] {
                    assert_ne!(text, Some(""), "a blank {name} of: {}", db.message());
                }
                Self {
                    state: db.code().code().into(),
                    message: db.message().into(),
                    detail: db.detail().unwrap_or_default().into(),
                    hint: db.hint().unwrap_or_default().into(),
                }
            },
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.state, self.message)?;
        for (name, text) in [("DETAIL", &self.detail), ("HINT", &self.hint)] {
            if !text.is_empty() {
                write!(f, "\n{name}: {text}")?;
            }
        }
        Ok(())
    }
}

/// A session. Methods not named `try` or `fails` must succeed.
pub struct Session {
    client: Client,
    /// `leaf_segment_next($1)` for `$2` rows.
    take: Option<Statement>,
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, take: None }
    }

    /// Runs one or more statements.
    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        self.try_run(sql)
            .unwrap_or_else(|failure| panic!("{sql}\n{failure}"));
    }

    /// Runs one or more statements.
    ///
    /// # Errors
    /// The server's error.
    pub fn try_run(&mut self, sql: &str) -> Result<(), Failure> {
        self.client
            .batch_execute(sql)
            .map_err(|error| Failure::from(&error))
    }

    /// Error of a statement, which must fail.
    #[track_caller]
    pub fn fails(&mut self, sql: &str) -> Failure {
        match self.try_run(sql) {
            Ok(()) => panic!("should fail: {sql}"),
            Err(failure) => failure,
        }
    }

    /// The first column of all rows.
    #[track_caller]
    pub fn column<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        self.try_column(sql)
            .unwrap_or_else(|failure| panic!("{sql}\n{failure}"))
    }

    /// The first column of all rows.
    ///
    /// # Errors
    /// The server's error.
    pub fn try_column<T: FromSqlOwned>(&mut self, sql: &str) -> Result<Vec<T>, Failure> {
        let rows = self
            .client
            .query(sql, &[])
            .map_err(|error| Failure::from(&error))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The first column of the only row.
    #[track_caller]
    pub fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        let mut values = self.column(sql);
        assert_eq!(values.len(), 1, "one row from {sql}");
        values.remove(0)
    }

    /// A column of ids.
    #[track_caller]
    pub fn ids(&mut self, sql: &str) -> Vec<i64> {
        self.column(sql)
    }

    /// The next id of a tag.
    #[track_caller]
    pub fn next(&mut self, tag: &str) -> i64 {
        self.try_next(tag)
            .unwrap_or_else(|failure| panic!("next id of {tag}: {failure}"))
    }

    /// The next id of a tag.
    ///
    /// # Errors
    /// The server's error.
    pub fn try_next(&mut self, tag: &str) -> Result<i64, Failure> {
        self.client
            .query_one("SELECT leaf_segment_next($1)", &[&tag])
            .map(|row| row.get(0))
            .map_err(|error| Failure::from(&error))
    }

    /// `count` ids of a tag, by as many calls.
    #[track_caller]
    pub fn take(&mut self, tag: &str, count: i32) -> Vec<i64> {
        self.try_take(tag, count)
            .unwrap_or_else(|failure| panic!("{count} ids of {tag}: {failure}"))
    }

    /// `count` ids of a tag, by as many calls.
    ///
    /// # Errors
    /// The server's error.
    pub fn try_take(&mut self, tag: &str, count: i32) -> Result<Vec<i64>, Failure> {
        if self.take.is_none() {
            // The aggregate keeps the order of rows, and a single value is fast to read.
            let sql = "SELECT array_agg(leaf_segment_next($1)) FROM generate_series(1, $2::int)";
            self.take = Some(
                self.client
                    .prepare(sql)
                    .map_err(|error| Failure::from(&error))?,
            );
        }
        let Self {
            client,
            take: Some(take),
        } = self
        else {
            unreachable!("just prepared")
        };
        client
            .query_one(&*take, &[&tag, &count])
            .map(|row| row.get(0))
            .map_err(|error| Failure::from(&error))
    }

    /// Creates a tag with the defaults.
    #[track_caller]
    pub fn create_tag(&mut self, tag: &str) {
        self.run(&format!("SELECT leaf_tag_create('{tag}')"));
    }

    /// Creates a tag with segments of constant length.
    #[track_caller]
    pub fn create_steady_tag(&mut self, tag: &str, step: i32) {
        self.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {step})"
        ));
    }

    /// Lets calls wait for ids up to [`PATIENCE`].
    #[track_caller]
    pub fn be_patient(&mut self) {
        let ms = PATIENCE.as_millis();
        self.run(&format!("SET leaf_id.refill_timeout = {ms}"));
    }

    /// Process id of the session's backend.
    #[track_caller]
    pub fn pid(&mut self) -> i32 {
        self.value("SELECT pg_backend_pid()")
    }

    /// Process id of a worker of leaf_id, if it is running: "launcher", or "allocator" for the one
    /// of this database.
    #[track_caller]
    pub fn worker(&mut self, name: &str) -> Option<i32> {
        self.column(&format!(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id {name}'
                 AND coalesce(datname, current_database()) = current_database()"
        ))
        .pop()
    }

    /// The major version of the server.
    #[track_caller]
    pub fn major(&mut self) -> i32 {
        self.value("SELECT current_setting('server_version_num')::int / 10000")
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
