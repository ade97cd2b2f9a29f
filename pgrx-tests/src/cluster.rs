//! Servers created from another server: standbys, copies, and servers restored from a backup.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checks::wait_until;
use crate::clock::Clock;
use crate::programs::{bin_dir, copy_dir, new_dir};
use crate::server::Server;

const LIMIT: Duration = Duration::from_secs(60);

/// `application_name` of standbys, for `synchronous_standby_names`.
pub const STANDBY: &str = "standby";

/// Settings of a server that archives its WAL next to its data directory.
pub const ARCHIVING: [(&str, &str); 2] = [
    ("archive_mode", "on"),
    (
        "archive_command",
        "mkdir -p ../archive && cp %p ../archive/%f",
    ),
];

/// A base backup, in the directory of the future server.
#[must_use]
pub struct Backup {
    dir: PathBuf,
}

impl Backup {
    /// Gives the server its own clock, ahead of the machine's by this many milliseconds.
    pub fn with_clock(self, ahead_ms: i64) -> Self {
        Clock::make(&self.dir, ahead_ms);
        self
    }

    /// Another copy of the backup.
    pub fn again(&self) -> Self {
        let dir = new_dir();
        copy_dir(&self.data_dir(), &dir.join("data"));
        Self { dir }
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Starts an independent server.
    pub fn start(self, conf: &[(&str, &str)]) -> Server {
        Server::start_in(self.dir, conf)
    }

    /// Starts a streaming standby with the primary's settings, unless overridden by `conf`.
    pub fn start_standby(self, primary: &Server, conf: &[(&str, &str)]) -> Server {
        let from = format!("{} application_name={STANDBY}", primary.conninfo());
        self.start_with("standby.signal", &[("primary_conninfo", &*from)], conf)
    }

    /// Starts a server that recovers from the archive of another one up to a target, for example
    /// `("recovery_target_name", "here")`, and is then promoted.
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

    /// Puts the backup in the place of a server that was stopped or killed, and recovers all of its
    /// WAL there, on a new timeline.
    pub fn restore(self, server: &Server) {
        let replaced = take_place(&self.dir, server);
        let wal = replaced.join("pg_wal");
        server.append("restore_command", &format!("cp {}/%f %p", wal.display()));
        server.signal("recovery.signal");
        server.launch();
        server.wait_for_end_of_recovery();
        for dir in [replaced, self.dir] {
            fs::remove_dir_all(dir).unwrap();
        }
    }

    fn start_with(self, signal: &str, more: &[(&str, &str)], conf: &[(&str, &str)]) -> Server {
        fs::write(self.data_dir().join(signal), "").unwrap();
        Server::start_in(self.dir, &[more, conf].concat())
    }
}

/// Moves the data directory in `dir` to the place of the server's, and returns the new one of that.
fn take_place(dir: &Path, server: &Server) -> PathBuf {
    let replaced = server.dir().join("replaced");
    fs::rename(server.data_dir(), &replaced).unwrap();
    fs::rename(dir.join("data"), server.data_dir()).unwrap();
    server.append("unix_socket_directories", server.dir().to_str().unwrap());
    replaced
}

impl Server {
    /// Takes a base backup of this server while it runs.
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

    /// A base backup made by a shell command, which finds the new data directory in PGDATA.
    #[track_caller]
    pub fn backup_by(&self, command: &str) -> Backup {
        let dir = new_dir();
        let path = std::env::var("PATH").unwrap_or_default();
        let status = self
            .program("/bin/sh")
            .args(["-euxc", command])
            .env("PATH", format!("{}:{path}", bin_dir().display()))
            .env("PGDATA", dir.join("data"))
            .status()
            .unwrap();
        assert!(status.success(), "{command}: {status}");
        Backup { dir }
    }

    /// Copies this server, which is stopped, file by file.
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

    /// Waits until this standby has replayed all WAL flushed by the primary.
    #[track_caller]
    pub fn replay_all_of(&self, primary: &Self) {
        self.reach(primary, "pg_last_wal_replay_lsn");
    }

    /// Waits until this standby has received all WAL flushed by the primary.
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

    /// Pauses this standby's replay. It continues to receive WAL, and replays it when promoted.
    #[track_caller]
    pub fn pause_replay(&self) {
        let mut session = self.session();
        session.run("SELECT pg_wal_replay_pause()");
        wait_until(LIMIT, "the replay to pause", || {
            session.value("SELECT pg_get_wal_replay_pause_state() = 'paused'")
        });
    }

    /// Resumes this standby's replay.
    #[track_caller]
    pub fn resume_replay(&self) {
        self.session().run("SELECT pg_wal_replay_resume()");
    }

    /// Disconnects this standby from its primary: it receives no further WAL.
    #[track_caller]
    pub fn cut_off(&self) {
        self.configure("primary_conninfo", "");
        let mut session = self.session();
        wait_until(LIMIT, "the end of the WAL receiver", || {
            session.value("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
        });
    }

    /// Promotes this standby.
    #[track_caller]
    pub fn promote(&self) {
        self.session().run("SELECT pg_promote()");
        self.wait_for_end_of_recovery();
    }

    /// Promotes this standby, which is stopped, in the place of its primary, which was killed.
    pub fn replace(self, primary: &Self) {
        let replaced = take_place(self.dir(), primary);
        primary.append("primary_conninfo", "");
        primary.launch();
        primary.promote();
        fs::remove_dir_all(replaced).unwrap();
    }

    /// Gives this standby the history files of another server, as a shared archive would, so that
    /// its own promotion begins a later timeline. To stay on its timeline until then, it needs
    /// `recovery_target_timeline = 'current'`.
    pub fn learn_timelines_of(&self, other: &Self) {
        for entry in fs::read_dir(other.data_dir().join("pg_wal")).unwrap() {
            let history = entry.unwrap().path();
            if history.extension().is_some_and(|is| is == "history") {
                let here = self.data_dir().join("pg_wal");
                let here = here.join(history.file_name().unwrap());
                fs::copy(&history, &here).unwrap();
                self.give(&here);
            }
        }
    }

    /// Archives the server's WAL up to now.
    #[track_caller]
    pub fn archive_wal(&self) {
        let mut session = self.session();
        let file: String = session.value("SELECT pg_walfile_name(pg_switch_wal())");
        let archived = format!("SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver");
        wait_until(LIMIT, "the archiver", || {
            session.value::<Option<bool>>(&archived) == Some(true)
        });
    }

    /// Turns this stopped or killed server into a standby of one promoted in its place, after
    /// removing changes that the new primary does not have.
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
        // pg_rewind has copied the other server's settings.
        self.append("unix_socket_directories", self.dir().to_str().unwrap());
        self.append("port", &self.port().to_string());
        self.follow(primary);
    }

    /// Turns this stopped server into a standby of one promoted in its place, which has all its
    /// changes.
    #[track_caller]
    pub fn follow(&self, primary: &Self) {
        self.append("primary_conninfo", &primary.conninfo());
        self.launch_as_standby();
    }

    /// Launches this stopped server as a standby, by default without a primary.
    #[track_caller]
    pub fn launch_as_standby(&self) {
        self.signal("standby.signal");
        self.launch();
    }

    fn signal(&self, name: &str) {
        let signal = self.data_dir().join(name);
        fs::write(&signal, "").unwrap();
        self.give(&signal);
    }

    /// As [`Server::set`], but in postgresql.conf, so that base backups contain the setting; start
    /// settings of their servers override it.
    #[track_caller]
    pub fn configure(&self, name: &str, value: &str) {
        self.append(name, value);
        self.reload();
    }

    /// Removes all lines with a setting from postgresql.conf, and reloads it.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[track_caller]
    pub fn remove_lines(&self, name: &str) {
        let file = self.data_dir().join("postgresql.conf");
        let before = fs::read_to_string(&file).unwrap();
        let left = before.lines().filter(|line| !line.starts_with(name));
        let left: String = left.flat_map(|line| [line, "\n"]).collect();
        fs::write(&file, left).unwrap();
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
