//! Stops the servers and removes their data directories when the bench is interrupted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long an immediate shutdown may take.
const LIMIT: Duration = Duration::from_secs(20);

/// The directories of the servers that are running.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Vec<PathBuf>>>);

impl Running {
    /// Starts to handle signals: from now on, one stops the servers that are listed.
    ///
    /// # Errors
    /// If signals cannot be handled.
    pub fn watch() -> io::Result<Self> {
        let running = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let watched = running.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                eprintln!("stopping the servers");
                // Kept locked, so that no server is added any more.
                for dir in watched.0.lock().iter() {
                    remove(dir);
                }
                exit(128 + signal);
            }
        });
        Ok(running)
    }

    /// A server runs in this directory.
    pub fn add(&self, dir: &Path) {
        self.0.lock().push(dir.to_owned());
    }

    /// Its owner has stopped it, or is about to.
    pub fn forget(&self, dir: &Path) {
        self.0.lock().retain(|known| known != dir);
    }
}

/// Stops the server in this directory, if it runs, and removes the directory.
fn remove(dir: &Path) {
    let pid_file = dir.join("data/postmaster.pid");
    if let Some(pid) = fs::read_to_string(&pid_file)
        .ok()
        .and_then(|text| text.lines().next().map(str::to_owned))
    {
        // SIGQUIT: without a checkpoint. It may have ended by itself.
        let _ = Command::new("kill").args(["-s", "QUIT", &pid]).status();
        let asked = Instant::now();
        while pid_file.exists() && asked.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(20));
        }
    }
    if let Err(error) = fs::remove_dir_all(dir) {
        eprintln!("{}: {error}", dir.display());
    }
}
