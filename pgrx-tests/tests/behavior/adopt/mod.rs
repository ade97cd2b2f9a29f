//! Moving columns from a sequence to a tag and back.

mod application;
mod hostile;
mod locks;
mod new_columns;
mod others;
mod release;

use leaf_id_tests::Server;

/// A server with the extension that logs notices.
pub(crate) fn server() -> Server {
    Server::with_leaf_id(&[("log_min_messages", "notice")])
}

/// True if a notice with this text was sent so far.
fn told(server: &Server, text: &str) -> bool {
    let log = server.log();
    log.lines()
        .any(|line| line.contains("NOTICE:") && line.contains(text))
}

#[track_caller]
fn assert_told(server: &Server, text: &str) {
    assert!(told(server, text), "no notice says {text:?}");
}
