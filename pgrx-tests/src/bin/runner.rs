//! Runs tests of `tests/behavior`: a tier of `pgrx-tests/tiers`, or tests selected by name prefix.
//!
//! `runner PROGRAM TIMES TIER|NAME...`. PROGRAM is the compiled `behavior`. TIMES is a file that
//! keeps the duration of each test, so that the next run can start with the longest.
//!
//! Each test runs in its own process. Tests mostly wait, so more of them run concurrently than
//! there are processors. However the runner exits, its tests and their servers are terminated. A
//! hanging test is killed.
//!
//! Environment:
//! - `LEAF_ID_JOBS`: concurrent tests; default: three per processor
//! - `LEAF_ID_PARTITION`: `2/3` for the second third of the files

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "without what it needs no test can run"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use parking_lot::Mutex;

/// Tier of each folder.
const TIERS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tiers"));
/// Tiers, each of which includes the previous ones.
const NAMES: [&str; 3] = ["check", "test", "all"];
/// Assumed duration of a test that has not run yet.
const UNKNOWN: Duration = Duration::from_secs(5);
/// Time limit of a test. (The harness kills its servers after ten minutes, unless the test requests
/// more.)
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// A row of `TIERS`.
struct Folder {
    tier: usize,
    /// Its tests measure performance, so they run one at a time, after all others.
    alone: bool,
}

struct Outcome {
    test: String,
    took: Duration,
    /// It has said that something it needs is not here ("SKIPPED: ...").
    is_skipped: bool,
    /// Output of a failed test.
    failure: Option<String>,
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (program, times) = (arguments.next().unwrap(), arguments.next().unwrap());
    let wanted: Vec<_> = arguments.collect();
    let last_times = read_times(Path::new(&times));
    let mut tests = match chosen(&program, &wanted) {
        Ok(tests) => tests,
        Err(complaint) => {
            eprintln!("error: {complaint}");
            return ExitCode::FAILURE;
        }
    };
    // Longest first, so that no long test runs alone at the end.
    tests.sort_by_key(|test| last_times.get(test).copied().unwrap_or(UNKNOWN));
    tests.reverse();
    let folders = folders();
    let (alone, together): (Vec<_>, Vec<_>) = tests
        .into_iter()
        .partition(|test| folders[folder_of(test)].alone);
    let began = Instant::now();
    let run = Run {
        program,
        count: alone.len() + together.len(),
        outcomes: Mutex::default(),
    };
    run.all(together, at_once(), false);
    run.all(alone, 1, true);
    run.report(Path::new(&times), last_times, began.elapsed())
}

fn at_once() -> usize {
    env::var("LEAF_ID_JOBS").map_or_else(
        |_| 3 * thread::available_parallelism().unwrap().get(),
        |jobs| jobs.parse().expect("LEAF_ID_JOBS is a number"),
    )
}

fn folders() -> BTreeMap<&'static str, Folder> {
    let rows = TIERS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let words: Vec<_> = row.split_whitespace().collect();
        let tier = NAMES.iter().position(|name| *name == words[1]);
        let folder = Folder {
            tier: tier.unwrap_or_else(|| panic!("no such tier: {row}")),
            alone: words.get(2) == Some(&"alone"),
        };
        (words[0], folder)
    })
    .collect()
}

/// Folder of a test, as in `TIERS`.
fn folder_of(test: &str) -> &str {
    test.split("::").next().unwrap()
}

/// File of a test.
fn file_of(test: &str) -> &str {
    test.rsplit_once("::").unwrap().0
}

/// Selected tests of this partition. Ignored tests run only if named in full.
fn chosen(program: &str, wanted: &[String]) -> Result<Vec<String>, String> {
    let list = |more: &[&str]| {
        let listed = Command::new(program)
            .args(["--list", "--format", "terse"])
            .args(more)
            .output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut tests, ignored) = (list(&[]), list(&["--ignored"]));
    let folders = folders();
    if let Some(test) = tests
        .iter()
        .find(|test| !folders.contains_key(folder_of(test)))
    {
        return Err(format!("{} is not in pgrx-tests/tiers", folder_of(test)));
    }
    let named = |test: &String, name: &String| {
        test == name || test.starts_with(name) && !ignored.contains(test)
    };
    match NAMES.iter().position(|name| wanted == [*name]) {
        Some(tier) => {
            tests.retain(|test| folders[folder_of(test)].tier <= tier && !ignored.contains(test));
        }
        None => {
            if let Some(name) = wanted
                .iter()
                .find(|name| !tests.iter().any(|test| named(test, name)))
            {
                return Err(format!("no test's name begins with {name}"));
            }
            tests.retain(|test| wanted.iter().any(|name| named(test, name)));
        }
    }
    if let Ok(partition) = env::var("LEAF_ID_PARTITION") {
        let numbers = partition.split_once('/').and_then(|(part, of)| {
            let (part, of): (usize, usize) = (part.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&part).then_some((part, of))
        });
        let (part, of) = numbers.ok_or("LEAF_ID_PARTITION is like 1/2")?;
        let mut files: Vec<_> = tests.iter().map(|test| file_of(test).to_owned()).collect();
        files.dedup();
        tests.retain(|test| {
            let place = files.iter().position(|file| file == file_of(test)).unwrap();
            place % of == part - 1
        });
    }
    if tests.is_empty() {
        Err("no test is left to run".into())
    } else {
        Ok(tests)
    }
}

fn read_times(file: &Path) -> HashMap<String, Duration> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.split_once('\t'));
    rows.filter_map(|(test, ms)| Some((test.to_owned(), Duration::from_millis(ms.parse().ok()?))))
        .collect()
}

struct Run {
    program: String,
    count: usize,
    outcomes: Mutex<Vec<Outcome>>,
}

impl Run {
    /// Runs tests, up to `at_once` concurrently.
    fn all(&self, tests: Vec<String>, at_once: usize, show: bool) {
        let tests = Mutex::new(tests.into_iter());
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    loop {
                        let next = tests.lock().next();
                        let Some(test) = next else { break };
                        self.one(test, show);
                    }
                });
            }
        });
    }

    /// Runs a test. If `show`, prints its output even if it passes.
    fn one(&self, test: String, show: bool) {
        let began = Instant::now();
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec \"$0\" \"$@\" 2>&1",
                &self.program,
                "--exact",
                "--include-ignored",
                "--nocapture",
                &test,
            ])
            .env("LEAF_ID_RUNNER", "yes")
            // The test exits at the end of its standard input, so no later than this process.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // To be able to kill everything started by the test.
            .process_group(0)
            .spawn()
            .unwrap();
        let (ended, end) = mpsc::channel::<()>();
        let group = format!("-{}", child.id());
        let watchdog = thread::spawn(move || {
            if end.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            }
        });
        let mut output = Vec::new();
        // Until the end, which comes after the test's servers have exited.
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut output)
            .unwrap();
        let status = child.wait().unwrap();
        drop(ended);
        watchdog.join().unwrap();
        let output = String::from_utf8_lossy(&output);
        let took = began.elapsed();
        let ok = status.success() && output.contains("test result: ok. 1 passed;");
        let failure = (!ok).then(|| format!("---- {test} ---- ({status})\n{}", output.trim_end()));
        let is_skipped = ok && output.lines().any(|line| line.contains("SKIPPED: "));
        let number = {
            let mut outcomes = self.outcomes.lock();
            outcomes.push(Outcome {
                test: test.clone(),
                took,
                is_skipped,
                failure,
            });
            outcomes.len()
        };
        let verdict = match (ok, is_skipped) {
            (true, false) => "ok    ",
            (true, true) => "skip  ",
            _ => "FAILED",
        };
        println!(
            "{number:4}/{} {verdict} {:6.1} s  {test}",
            self.count,
            took.as_secs_f64()
        );
        if show && ok {
            println!("{output}");
        }
    }

    fn report(
        self,
        times: &Path,
        mut last_times: HashMap<String, Duration>,
        took: Duration,
    ) -> ExitCode {
        let mut outcomes = self.outcomes.into_inner();
        outcomes.sort_by_key(|outcome| outcome.took);
        last_times.extend(
            outcomes
                .iter()
                .map(|outcome| (outcome.test.clone(), outcome.took)),
        );
        let mut rows: Vec<_> = last_times
            .iter()
            .map(|(test, took)| format!("{test}\t{}\n", took.as_millis()))
            .collect();
        rows.sort();
        fs::write(times, rows.concat()).unwrap();
        let sum: Duration = outcomes.iter().map(|outcome| outcome.took).sum();
        println!(
            "\nThe slowest of {} tests, which took {} s together:",
            outcomes.len(),
            sum.as_secs()
        );
        for outcome in outcomes.iter().rev().take(10) {
            println!("    {:6.1} s  {}", outcome.took.as_secs_f64(), outcome.test);
        }
        let failed: Vec<_> = outcomes
            .iter()
            .filter_map(|outcome| Some((&outcome.test, outcome.failure.as_ref()?)))
            .collect();
        for (_, failure) in &failed {
            println!();
            // Without its own result, which would count as one more.
            for line in failure
                .lines()
                .filter(|line| !line.starts_with("test result: "))
            {
                println!("{line}");
            }
        }
        let count = failed.len();
        let (verdict, code) = if count == 0 {
            ("ok", ExitCode::SUCCESS)
        } else {
            ("FAILED", ExitCode::FAILURE)
        };
        let skipped: Vec<_> = outcomes
            .iter()
            .filter(|outcome| outcome.is_skipped)
            .map(|outcome| &outcome.test)
            .collect();
        println!(
            "\ntest result: {verdict}. {} passed; {count} failed; {} ignored; finished in {:.0} s",
            outcomes.len() - count - skipped.len(),
            skipped.len(),
            took.as_secs_f64()
        );
        for test in skipped {
            println!("SKIPPED  {test}");
        }
        // Failures last, since they need attention.
        for (test, failure) in failed {
            println!("FAILED  {test}");
            for kept in failure
                .lines()
                .filter_map(|line| line.trim().strip_prefix("(all of it is in "))
            {
                println!("        its server and log: {}", kept.trim_end_matches(')'));
            }
        }
        code
    }
}
