//! What is to be measured, how thoroughly, and where the results go.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

/// The least number of rounds for results to be published.
const PUBLISHED_ROUNDS: usize = 7;

/// What the arguments and the environment ask for.
pub struct Options {
    /// Names of the sections, in the order in which they run.
    pub sections: Vec<&'static str>,
    /// Few rounds of short runs: shows that everything works; the figures are rough.
    pub quick: bool,
    /// Rounds that count; each section runs one more, to warm up.
    pub rounds: usize,
    /// Where the report, the figures and the charts go.
    pub results: PathBuf,
    /// Whether to publish them, if nothing fails.
    pub publish: bool,
    /// The command that repeats this run.
    pub command: String,
}

impl Options {
    /// Reads the arguments (some of the known sections; none for all of them) and the
    /// environment: `LEAF_ID_BENCH` (`quick` or `full`), `LEAF_ID_BENCH_ROUNDS` (odd).
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn read(known: &[&'static str]) -> Result<Self, String> {
        let var = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let quick = match var("LEAF_ID_BENCH").as_deref() {
            None | Some("full") => false,
            Some("quick") => true,
            Some(other) => return Err(format!("LEAF_ID_BENCH is quick or full, not {other:?}")),
        };
        let usual_rounds = if quick { 3 } else { PUBLISHED_ROUNDS };
        let rounds = match var("LEAF_ID_BENCH_ROUNDS") {
            None => usual_rounds,
            Some(text) => text
                .parse()
                .ok()
                .filter(|rounds| rounds % 2 == 1 && *rounds < 100)
                .ok_or_else(|| {
                    format!("LEAF_ID_BENCH_ROUNDS is an odd number below 100, not {text:?}")
                })?,
        };
        let asked: Vec<String> = env::args().skip(1).collect();
        let is_asked = |name: &&str| asked.iter().any(|asked| asked == *name);
        if let Some(unknown) = asked.iter().find(|asked| !known.contains(&asked.as_str())) {
            return Err(format!(
                "no such section: {unknown} (there are: {})",
                known.join(" ")
            ));
        }
        let all = asked.is_empty() || known.iter().all(is_asked);
        let sections = known
            .iter()
            .copied()
            .filter(|name| all || is_asked(name))
            .collect();

        let mut command = String::new();
        if quick {
            command += "LEAF_ID_BENCH=quick ";
        }
        if rounds != usual_rounds {
            command += &format!("LEAF_ID_BENCH_ROUNDS={rounds} ");
        }
        command += "make bench";
        if !all {
            command += &format!(" SECTIONS=\"{}\"", asked.join(" "));
        }

        let results = var("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from("target"), PathBuf::from)
            .join("bench");
        Ok(Self {
            sections,
            quick,
            rounds,
            results,
            publish: all && !quick && rounds >= PUBLISHED_ROUNDS,
            command,
        })
    }

    /// A size or a time for a quick run, or for a full one.
    #[must_use]
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// As [`Options::pick`], in milliseconds.
    #[must_use]
    pub fn pick_ms(&self, quick: u64, full: u64) -> Duration {
        Duration::from_millis(self.pick(quick, full))
    }
}
