//! Arguments and environment of a run.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

/// Minimum number of rounds of a published run.
const PUBLISHED_ROUNDS: usize = 7;

/// The options of a run.
pub struct Options {
    /// Names of the sections to measure.
    pub sections: Vec<String>,
    /// Short run that tests whether everything works, with rough figures.
    pub quick: bool,
    /// Rounds that count, after one for warm-up.
    pub rounds: usize,
    /// Directory of the report.
    pub results: PathBuf,
    /// Replace the published results.
    pub publish: bool,
    /// Command that repeats this run.
    pub command: String,
}

impl Options {
    /// Reads the arguments (names of sections; none for all of them), `LEAF_ID_BENCH` (`quick`
    /// or `full`) and `LEAF_ID_BENCH_ROUNDS`.
    pub fn read(known: &[&str]) -> Result<Self, String> {
        let var = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let quick = match var("LEAF_ID_BENCH").as_deref() {
            None | Some("full") => false,
            Some("quick") => true,
            Some(other) => return Err(format!("LEAF_ID_BENCH is quick or full, not {other:?}")),
        };
        let usual_rounds = if quick { 3 } else { PUBLISHED_ROUNDS };
        let rounds = var("LEAF_ID_BENCH_ROUNDS").map_or(Ok(usual_rounds), |text| {
            let rounds = text.parse().ok().filter(|rounds| (1..100).contains(rounds));
            rounds.ok_or(format!("LEAF_ID_BENCH_ROUNDS is 1 to 99, not {text:?}"))
        })?;
        let mut sections: Vec<String> = env::args().skip(1).collect();
        if let Some(unknown) = sections.iter().find(|name| !known.contains(&name.as_str())) {
            let known = known.join(" ");
            return Err(format!("no such section: {unknown} (there are: {known})"));
        }

        let mut command = String::new();
        if quick {
            command += "LEAF_ID_BENCH=quick ";
        }
        if rounds != usual_rounds {
            command += &format!("LEAF_ID_BENCH_ROUNDS={rounds} ");
        }
        command += "make bench";
        let all = sections.is_empty();
        if all {
            sections = known.iter().map(|&name| name.into()).collect();
        } else {
            command += &format!(" SECTIONS=\"{}\"", sections.join(" "));
        }

        let target = var("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Ok(Self {
            sections,
            quick,
            rounds,
            results: PathBuf::from(target).join("bench"),
            publish: all && !quick && rounds >= PUBLISHED_ROUNDS,
            command,
        })
    }

    /// A size, depending on the kind of run.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A duration, depending on the kind of run.
    pub fn pick_ms(&self, quick: u64, full: u64) -> Duration {
        Duration::from_millis(self.pick(quick, full))
    }
}
