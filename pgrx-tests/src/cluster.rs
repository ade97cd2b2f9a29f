//! Servers that come from another one: standbys, copies, and what is restored from a backup.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::checks::wait_until;
use crate::clock::Clock;
use crate::programs::{copy_dir, new_dir};
use crate::server::Server;

const LIMIT: Duration = Duration::from_secs(60);

/// The name by which standbys are found in `synchronous_standby_names`.
pub const STANDBY: &str = "standby";

/// Settings of a server that archives its WAL, beside its data directory.
pub const ARCHIVING: [(&str, &str); 2] = [
    ("archive_mode", "on"),
    (
        "archive_command",
        "mkdir -p ../archive && cp %p ../archive/%f",
    ),
];

/// A base backup, in the directory of the server that will be made of it.
#[must_use]
pub struct Backup {
    dir: PathBuf,
}

impl Backup {
    /// Gives the server a clock of its own, so many milliseconds ahead of the machine's.
    pub fn with_clock(self, ahead_ms: i64) -> Self {
        Clock::make(&self.dir, ahead_ms);
        self
    }

    /// The same backup once more.
    pub fn again(&self) -> Self {
        let dir = new_dir();
        copy_dir(&self.data_dir(), &dir.join("data"));
        Self { dir }
    }

    /// Where its data directory is.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Starts a server of its own.
    pub fn start(self, conf: &[(&str, &str)]) -> Server {
        Server::start_in(self.dir, conf)
    }

    /// Starts a streaming standby of a server; it has the settings that the server was
    /// started with, unless these say otherwise.
    pub fn start_standby(self, primary: &Server, conf: &[(&str, &str)]) -> Server {
        let from = format!("{} application_name={STANDBY}", primary.conninfo());
        self.start_with("standby.signal", &[("primary_conninfo", &*from)], conf)
    }

    /// Starts a server that recovers from the archive of another one until it reaches a
    /// target, as in `("recovery_target_name", "here")`, and goes on from there.
    pub fn recover(self, from: &Server, target: (&str, &str), conf: &[(&str, &str)]) -> Server {
        let restore = format!("cp {}/archive/%f %p", from.dir().display());
        let recovery = [
            ("restore_command", &*restore),
            target,
            ("recovery_target_action", "promote"),
        ];
        let server = self.start_with("recovery.signal", &recovery, conf);
        server.wait_for_end_of_recovery();
        server
    }

    fn start_with(self, signal: &str, more: &[(&str, &str)], conf: &[(&str, &str)]) -> Server {
        fs::write(self.data_dir().join(signal), "").unwrap();
        Server::start_in(self.dir, &[more, conf].concat())
    }
}

impl Server {
    /// A base backup of this server, while it runs.
    #[track_caller]
    pub fn backup(&self) -> Backup {
        let dir = new_dir();
        let data = dir.join("data");
        let data = data.to_str().unwrap();
        self.run(
            "pg_basebackup",
            &["--checkpoint=fast", "--no-sync", "-D", data],
        );
        Backup { dir }
    }

    /// A copy of this server, which is stopped, file by file.
    #[track_caller]
    pub fn copy(&self) -> Backup {
        let dir = new_dir();
        copy_dir(&self.data_dir(), &dir.join("data"));
        Backup { dir }
    }

    /// A streaming standby of this server; see [`Backup::start_standby`].
    #[must_use]
    #[track_caller]
    pub fn standby(&self, conf: &[(&str, &str)]) -> Self {
        self.backup().start_standby(self, conf)
    }

    /// Waits until this standby has replayed all that the other server has flushed.
    #[track_caller]
    pub fn replay_all_of(&self, primary: &Self) {
        self.reach(primary, "pg_last_wal_replay_lsn");
    }

    /// Waits until this standby has received all that the other server has flushed.
    #[track_caller]
    pub fn receive_all_of(&self, primary: &Self) {
        self.reach(primary, "pg_last_wal_receive_lsn");
    }

    #[track_caller]
    fn reach(&self, primary: &Self, reached: &str) {
        let lsn: String = primary
            .session()
            .value("SELECT pg_current_wal_flush_lsn()::text");
        let is_there = format!("SELECT {reached}() >= '{lsn}'");
        let mut session = self.session();
        wait_until(LIMIT, reached, || session.value(&is_there));
    }

    /// Holds this standby's replay. It goes on receiving, and replays that when promoted.
    #[track_caller]
    pub fn pause_replay(&self) {
        let mut session = self.session();
        session.run("SELECT pg_wal_replay_pause()");
        wait_until(LIMIT, "the replay to pause", || {
            session.value("SELECT pg_get_wal_replay_pause_state() = 'paused'")
        });
    }

    /// Lets this standby's replay go on.
    #[track_caller]
    pub fn resume_replay(&self) {
        self.session().run("SELECT pg_wal_replay_resume()");
    }

    /// Cuts this standby off: what its primary writes from now on it does not get.
    #[track_caller]
    pub fn cut_off(&self) {
        self.configure("primary_conninfo", "");
        let mut session = self.session();
        wait_until(LIMIT, "the end of the WAL receiver", || {
            session.value("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
        });
    }

    /// Makes a primary of this standby.
    #[track_caller]
    pub fn promote(&self) {
        self.session().run("SELECT pg_promote()");
        self.wait_for_end_of_recovery();
    }

    /// Has the server's WAL up to now archived.
    #[track_caller]
    pub fn archive_wal(&self) {
        let mut session = self.session();
        let file: String = session.value("SELECT pg_walfile_name(pg_switch_wal())");
        let archived = format!("SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver");
        wait_until(LIMIT, "the archiver", || {
            session.value::<Option<bool>>(&archived) == Some(true)
        });
    }

    /// Makes a standby of this server, which was stopped or killed: takes back what another
    /// one, which was promoted in its place, does not have, and follows that.
    #[track_caller]
    pub fn rewind_and_follow(&self, primary: &Self) {
        let data = self.data_dir();
        self.run(
            "pg_rewind",
            &[
                "--no-sync",
                "-D",
                data.to_str().unwrap(),
                "--source-server",
                &format!("{} dbname=postgres", primary.conninfo()),
            ],
        );
        // The other server's settings came along.
        self.append("unix_socket_directories", self.dir().to_str().unwrap());
        self.append("port", &self.port().to_string());
        self.follow(primary);
    }

    /// Makes a standby of this server, which was stopped: another one, which has all that it
    /// has, was promoted in its place.
    #[track_caller]
    pub fn follow(&self, primary: &Self) {
        self.append("primary_conninfo", &primary.conninfo());
        let signal = self.data_dir().join("standby.signal");
        fs::write(&signal, "").unwrap();
        self.give(&signal);
        self.launch();
    }

    /// As [`Server::set`], but in postgresql.conf: a server made of a base backup gets it
    /// too, and the settings that it is started with come after it and count.
    #[track_caller]
    pub fn configure(&self, name: &str, value: &str) {
        self.append(name, value);
        self.reload();
    }

    fn append(&self, name: &str, value: &str) {
        let file = self.data_dir().join("postgresql.conf");
        let mut file = fs::File::options().append(true).open(file).unwrap();
        writeln!(file, "{name} = '{value}'").unwrap();
    }

    fn wait_for_end_of_recovery(&self) {
        let mut session = self.session();
        wait_until(LIMIT, "the end of recovery", || {
            session.value("SELECT NOT pg_is_in_recovery()")
        });
    }
}
