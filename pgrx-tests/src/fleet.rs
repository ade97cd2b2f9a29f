//! Several servers that source their ids from a central one, set up by the commands in
//! docs/fleet-and-failover.md. They connect through each other's socket directories.

use std::path::Path;

use crate::history::{History, Window};
use crate::server::Server;
use crate::session::Session;

/// Name of the foreign server for the central server, on members.
pub const CENTRAL: &str = "leaf_central";
/// Role of members on the central server.
const MEMBER: &str = "leaf_member";
const PASSWORD: &str = "secret";

/// A central server and its members, each with its own system identifier and leaf_id in database
/// postgres.
pub struct Fleet {
    /// Claims ids of tags.
    pub central: Server,
    /// Issue ids.
    pub members: Vec<Server>,
}

impl Fleet {
    /// A central server with default settings, and members with `conf`.
    #[must_use]
    pub fn new(members: usize, conf: &[(&str, &str)]) -> Self {
        let central = Server::with_leaf_id(&[]);
        central.admit_members();
        let members = (1..=members).map(|number| {
            let member = Server::start_unrelated(number, conf);
            member.source_from(&[central.dir()]);
            member
        });
        Self {
            members: members.collect(),
            central,
        }
    }

    /// As [`Fleet::new`], with members that lease their worker ids from the central server, as
    /// nodes m1, m2 and so on.
    #[must_use]
    pub fn leasing(members: usize, conf: &[(&str, &str)]) -> Self {
        let fleet = Self::new(members, conf);
        fleet.central.lease_worker_ids();
        for (number, member) in (1..).zip(&fleet.members) {
            member.lease_as(&format!("m{number}"));
        }
        fleet
    }

    /// Creates a tag on the central server and on all members.
    pub fn create_tag(&self, tag: &str, step: i32, max_step: i32) {
        create_tag(&mut self.central.session(), tag, step, max_step, "NULL");
        for member in &self.members {
            member.session().create_sourced_tag(tag, step, max_step);
        }
    }

    /// A session on each member.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.members.iter().map(Server::session).collect()
    }

    /// Checks the calls since the last settlement; see [`History::settle_fleet`].
    #[track_caller]
    pub fn settle(&self, history: &History) -> Vec<Window> {
        history.settle_fleet(&mut self.sessions(), &mut self.central.session())
    }
}

impl Server {
    /// Creates the role for members' claims. It may claim ids of all tags that are created later.
    pub fn admit_members(&self) {
        self.session().run(&format!(
            "CREATE ROLE {MEMBER} LOGIN PASSWORD '{PASSWORD}';
             GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO {MEMBER};
             GRANT USAGE ON SCHEMA leaf_id TO {MEMBER};
             ALTER TABLE leaf_id.leaf_alloc ALTER granted_to SET DEFAULT ARRAY['{MEMBER}']::name[]"
        ));
    }

    /// Allows members to lease worker ids.
    pub fn lease_worker_ids(&self) {
        self.session().run(&format!(
            "GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO {MEMBER}"
        ));
    }

    /// Creates the extension, and the foreign server that local tags are sourced from: the first
    /// writable one of `hosts`.
    pub fn source_from(&self, hosts: &[&Path]) {
        let mut session = self.session();
        session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
        session.create_foreign_server(CENTRAL, hosts);
    }
}

impl Session {
    /// Creates a foreign server with a user mapping for the session's user. Requires the extension
    /// dblink.
    #[track_caller]
    pub fn create_foreign_server(&mut self, name: &str, hosts: &[&Path]) {
        let hosts: Vec<_> = hosts.iter().map(|dir| dir.to_str().unwrap()).collect();
        self.run(&format!(
            "CREATE SERVER {name} FOREIGN DATA WRAPPER dblink_fdw OPTIONS (
                 host '{}', dbname 'postgres', target_session_attrs 'read-write',
                 connect_timeout '3', tcp_user_timeout '5000');
             CREATE USER MAPPING FOR CURRENT_USER SERVER {name}
                 OPTIONS (user '{MEMBER}', password '{PASSWORD}')",
            hosts.join(",")
        ));
    }

    /// Creates a tag sourced from [`CENTRAL`], where it must exist.
    #[track_caller]
    pub fn create_sourced_tag(&mut self, tag: &str, step: i32, max_step: i32) {
        create_tag(self, tag, step, max_step, &format!("'{CENTRAL}'"));
    }
}

fn create_tag(session: &mut Session, tag: &str, step: i32, max_step: i32, server: &str) {
    session.run(&format!(
        "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step},
             server => {server})"
    ));
}
