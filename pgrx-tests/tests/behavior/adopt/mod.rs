//! Moving columns from a sequence to a tag and back.

mod application;
mod hostile;
mod locks;
mod others;
mod release;

use leaf_id_tests::Server;

/// A server with the extension that logs notices.
pub(crate) fn server() -> Server {
    Server::with_leaf_id(&[("log_min_messages", "notice")])
}
