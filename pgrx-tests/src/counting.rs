//! Cost of a call in instructions, counted by callgrind: the only measure of performance that is
//! independent of noise.

use std::fs;
use std::time::Duration;

use crate::checks::wait_until;
use crate::programs::{new_dir, valgrind};
use crate::server::Server;

/// Calls not counted: the first ones set up state for later ones.
const WARM_UP: u32 = 5_000;
/// Calls counted.
const CALLS: u32 = 20_000;

impl Server {
    /// A server with leaf_id whose sessions count the instructions of these C functions, including
    /// callees. About fifty times slower. `None` if valgrind is not available.
    #[must_use]
    pub fn counting(functions: &[&str], conf: &[(&str, &str)]) -> Option<Self> {
        valgrind()?;
        let dir = new_dir();
        fs::write(dir.join("counted"), functions.join("\n")).unwrap();
        let server = Self::start_in_new(dir, 0, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        Some(server)
    }

    /// Instructions per call of the counted functions. `statement` must make the given number of
    /// calls. The first calls of a session are not counted.
    #[must_use]
    pub fn instructions_per_call(&self, statement: impl Fn(u32) -> String) -> f64 {
        let [few, many] = [WARM_UP, WARM_UP + CALLS].map(|calls| {
            let mut session = self.session();
            let pid = session.pid();
            // Under valgrind with assertions, on a busy machine; the runner has a watchdog.
            session.run("SET statement_timeout = 0");
            session.run(&statement(calls));
            drop(session);
            self.counted(pid)
        });
        f64::from(u32::try_from(many - few).unwrap()) / f64::from(CALLS)
    }

    /// Instructions counted in a process. The count is written when the process exits.
    fn counted(&self, pid: i32) -> u64 {
        let file = self.dir().join(format!("callgrind.{pid}"));
        let mut total = None;
        wait_until(Duration::from_secs(60), "the count of instructions", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // The last line, which is complete if it ends with a newline.
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
