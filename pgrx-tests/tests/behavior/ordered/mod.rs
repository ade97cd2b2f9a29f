//! Ordered ids: a reader below the watermark passes no row.

mod delivered;
mod held_back;
mod refused;

use leaf_id_tests::{Server, Session};

pub(crate) const WATERMARK: &str = "SELECT leaf_ordered_watermark('events')";

/// A server with a table whose ids are ordered, and a session.
pub(crate) fn server_with_events(conf: &[(&str, &str)]) -> (Server, Session) {
    let mut conf = conf.to_vec();
    conf.push(("max_prepared_transactions", "100"));
    let server = Server::with_leaf_id(&conf);
    let mut session = server.session();
    session.create_tag("events");
    session.run(
        "CREATE TABLE events (
             id bigint PRIMARY KEY DEFAULT leaf_ordered_next('events'),
             item integer UNIQUE)",
    );
    (server, session)
}

/// How a reader goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Behind the largest id seen.
    All,
    /// The same, below the watermark.
    BelowWatermark,
}

/// What a reader has seen.
pub(crate) struct Reader {
    how: Reading,
    pub(crate) delivered: Vec<i64>,
}

impl Reader {
    pub(crate) fn new(how: Reading) -> Self {
        Self {
            how,
            delivered: Vec::new(),
        }
    }

    /// Reads what has come, and returns it.
    pub(crate) fn try_poll(
        &mut self,
        session: &mut Session,
    ) -> Result<&[i64], leaf_id_tests::Failure> {
        let below = match self.how {
            Reading::All => i64::MAX,
            Reading::BelowWatermark => session.try_column(WATERMARK)?[0],
        };
        let last = self.delivered.last().unwrap_or(&0);
        let sql = format!("SELECT id FROM events WHERE id > {last} AND id < {below} ORDER BY id");
        let begin = self.delivered.len();
        self.delivered.extend(session.try_column::<i64>(&sql)?);
        Ok(&self.delivered[begin..])
    }

    pub(crate) fn poll(&mut self, session: &mut Session) -> Vec<i64> {
        self.try_poll(session).unwrap().to_vec()
    }

    /// How many rows of the table it has never seen, once no transaction is open.
    pub(crate) fn lost(&self, session: &mut Session) -> usize {
        let all = session.ids("SELECT id FROM events ORDER BY id");
        let seen = |id: &i64| self.delivered.binary_search(id).is_ok();
        all.iter().filter(|id| !seen(id)).count()
    }
}
