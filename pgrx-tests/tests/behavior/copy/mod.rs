//! COPY in bulk: if a default issues ids, COPY inserts as for a serial column, without any other
//! visible effect.

mod as_before;
mod in_bulk;
mod replication;
mod unseen;

use std::io::Write;
use std::path::PathBuf;

use leaf_id_tests::{Failure, Server, Session};

/// A server with both generators and tag a, and a session.
fn server_and_session() -> (Server, Session) {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1"), ("autovacuum", "off")]);
    let mut session = server.session();
    session.create_tag("a");
    (server, session)
}

/// A file for COPY with the numbers from 1.
fn file_of_rows(server: &Server, rows: u32) -> PathBuf {
    let file = server.dir().join(format!("rows_{rows}"));
    std::fs::write(&file, lines(rows)).unwrap();
    file
}

fn lines(rows: u32) -> String {
    (1..=rows).map(|row| format!("{row}\n")).collect()
}

/// Sends the numbers from 1 from the client.
fn copy_in(session: &mut Session, statement: &str, rows: u32) -> Result<u64, Failure> {
    let sent = session.copy_in(statement).and_then(|mut writer| {
        // A refusal by the server is returned by finish().
        let _ = writer.write_all(lines(rows).as_bytes());
        writer.finish()
    });
    sent.map_err(|error| Failure::from(&error))
}
