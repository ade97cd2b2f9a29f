//! What a call costs in instructions, counted by callgrind: the one measure of speed that
//! no noise of the machine changes.

use std::fs;
use std::time::Duration;

use crate::checks::wait_until;
use crate::programs::{new_dir, valgrind};
use crate::server::Server;

/// Calls that are left out, since the first ones prepare what the others use.
const WARM_UP: u32 = 5_000;
/// Calls that are counted.
const CALLS: u32 = 20_000;

impl Server {
    /// A server with leaf_id whose sessions count the instructions that these C functions
    /// take, what they call included. It is some fifty times slower. `None` without
    /// valgrind.
    #[must_use]
    pub fn counting(functions: &[&str], conf: &[(&str, &str)]) -> Option<Self> {
        valgrind()?;
        let dir = new_dir();
        fs::write(dir.join("counted"), functions.join("\n")).unwrap();
        let server = Self::start_in_new(dir, 0, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        Some(server)
    }

    /// Instructions in one call of the counted functions, by a statement that makes a
    /// given number of calls. The first calls of the session do not count.
    #[must_use]
    pub fn instructions_per_call(&self, statement: impl Fn(u32) -> String) -> f64 {
        let [few, many] = [WARM_UP, WARM_UP + CALLS].map(|calls| {
            let mut session = self.session();
            let pid = session.pid();
            session.run(&statement(calls));
            drop(session);
            self.counted(pid)
        });
        f64::from(u32::try_from(many - few).unwrap()) / f64::from(CALLS)
    }

    /// What a process has counted. It is written when the process ends.
    fn counted(&self, pid: i32) -> u64 {
        let file = self.dir().join(format!("callgrind.{pid}"));
        let mut total = None;
        wait_until(Duration::from_secs(60), "the count of instructions", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // It is the last line, whole only with its end.
            let whole = text.ends_with('\n').then_some(text);
            total = whole
                .unwrap_or_default()
                .lines()
                .find_map(|line| line.strip_prefix("totals: "))
                .map(|n| n.trim().parse().unwrap());
            total.is_some()
        });
        total.unwrap()
    }
}
