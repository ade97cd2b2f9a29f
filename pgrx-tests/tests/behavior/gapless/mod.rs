//! Gapless numbers: 1 to n for the committed calls, and no number twice once reported as committed.

mod carried;
mod durable;
mod numbers;
mod rights;

use leaf_id_tests::{Server, Session};

const NEXT: &str = "SELECT leaf_id.leaf_gapless_next('s')";

/// A server with series `s`, and a session.
fn server_and_session(conf: &[(&str, &str)]) -> (Server, Session) {
    let server = Server::with_leaf_id(conf);
    let mut session = server.session();
    session.run("SELECT leaf_id.leaf_gapless_create('s')");
    (server, session)
}

fn next(session: &mut Session) -> i64 {
    session.value(NEXT)
}

pub(crate) fn last(session: &mut Session) -> i64 {
    session.value("SELECT last_number FROM leaf_id.leaf_gapless WHERE series = 's'")
}
