//! Runs the tests of `tests/behavior`: the folders of a tier of `pgrx-tests/tiers`, or tests named by
//! the beginning of their names.
//!
//! `runner PROGRAM TIMES TIER|NAME...`, where PROGRAM is the compiled `behavior`, and TIMES a file that
//! keeps how long each test has taken, so that the next run begins with the longest.
//!
//! A few tests of one file at a time share a process, which shares its servers among them (see
//! `leaf_id_tests::idle`). Most of the time tests wait, so there are more processes than processors.
//! Whatever ends this process ends them, and their servers. A test that hangs is killed.
//!
//! Environment: `LEAF_ID_JOBS` (processes at once; otherwise three for each processor),
//! `LEAF_ID_PARTITION` (`2/3`: the second third of the files).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "without what it needs no test can run"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use parking_lot::Mutex;

/// The table of what runs where.
const TIERS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tiers"));
/// The tiers, each of which contains those before it.
const NAMES: [&str; 3] = ["check", "test", "all"];
/// Tests of one file that share a process: as many as this, or as take this long.
const SHARE: usize = 12;
const SHARE_TIME: Duration = Duration::from_secs(20);
/// Assumed of a test that has not run yet.
const UNKNOWN: Duration = Duration::from_secs(2);
/// A test that says nothing for so long hangs. (The harness kills its server after ten minutes, and
/// knows of tests that may take longer.)
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A row of the table.
struct Folder {
    tier: usize,
    /// Its tests measure: they have the machine to themselves, one after the other, at the end.
    alone: bool,
}

/// Tests that share a process, and how long they took the last time.
struct Job {
    tests: Vec<String>,
    expected: Duration,
    alone: bool,
}

struct Outcome {
    test: String,
    took: Duration,
    /// What a failed test said.
    failure: Option<String>,
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (program, times) = (arguments.next().unwrap(), arguments.next().unwrap());
    let wanted: Vec<_> = arguments.collect();
    let last_times = read_times(Path::new(&times));
    let tests = chosen(&program, &wanted);
    if tests.is_empty() {
        eprintln!("no test is called {}", wanted.join(" or "));
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let run = Run::new(program, tests.len());
    let (alone, together) = jobs(&tests, &last_times).partition(|job| job.alone);
    run.work(together, processes());
    run.work(alone, 1);
    run.report(Path::new(&times), last_times, began.elapsed())
}

fn processes() -> usize {
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

/// The folder of a test, as the table names it.
fn folder_of(test: &str) -> &str {
    test.split("::").next().unwrap()
}

/// The tests that are wanted, of this partition. Those that are marked as ignored are for other
/// commands, and for who gives their whole name.
fn chosen(program: &str, wanted: &[String]) -> Vec<String> {
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
    for test in &tests {
        assert!(
            folders.contains_key(folder_of(test)),
            "{} is not in pgrx-tests/tiers",
            folder_of(test)
        );
    }
    match NAMES.iter().position(|name| wanted == [*name]) {
        Some(tier) => {
            tests.retain(|test| folders[folder_of(test)].tier <= tier && !ignored.contains(test));
        }
        None => tests.retain(|test| {
            wanted.contains(test)
                || !ignored.contains(test) && wanted.iter().any(|name| test.starts_with(name))
        }),
    }
    if let Ok(partition) = env::var("LEAF_ID_PARTITION") {
        let (part, of) = partition
            .split_once('/')
            .expect("LEAF_ID_PARTITION is like 1/2");
        let (part, of): (usize, usize) = (part.parse().unwrap(), of.parse().unwrap());
        let mut files: Vec<_> = tests.iter().map(|test| file_of(test).to_owned()).collect();
        files.dedup();
        tests.retain(|test| {
            let place = files.iter().position(|file| file == file_of(test)).unwrap();
            place % of == part - 1
        });
    }
    tests
}

fn file_of(test: &str) -> &str {
    test.rsplit_once("::").unwrap().0
}

/// The longest first, or nobody has anything to do beside the last one.
fn jobs(tests: &[String], times: &HashMap<String, Duration>) -> impl Iterator<Item = Job> {
    let folders = folders();
    let mut jobs: Vec<Job> = Vec::new();
    for test in tests {
        let expected = times.get(test).copied().unwrap_or(UNKNOWN);
        let fits = |job: &&mut Job| {
            file_of(&job.tests[0]) == file_of(test)
                && job.tests.len() < SHARE
                && job.expected + expected <= SHARE_TIME
        };
        if let Some(job) = jobs.iter_mut().find(fits) {
            job.tests.push(test.clone());
            job.expected += expected;
        } else {
            jobs.push(Job {
                tests: vec![test.clone()],
                expected,
                alone: folders[folder_of(test)].alone,
            });
        }
    }
    jobs.sort_by_key(|job| job.expected);
    jobs.into_iter().rev()
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
    fn new(program: String, count: usize) -> Self {
        Self {
            program,
            count,
            outcomes: Mutex::default(),
        }
    }

    /// Works a list of jobs off, in as many processes at once.
    fn work(&self, jobs: Vec<Job>, processes: usize) {
        let jobs = Mutex::new(jobs.into_iter());
        thread::scope(|scope| {
            for _ in 0..processes {
                scope.spawn(|| {
                    loop {
                        let next = jobs.lock().next();
                        let Some(job) = next else { break };
                        let mut tests = job.tests;
                        // A process that was killed leaves some behind.
                        while !tests.is_empty() {
                            tests = self.run(&tests);
                        }
                    }
                });
            }
        });
    }

    /// Runs tests in one process; those that it has not come to are returned.
    fn run(&self, tests: &[String]) -> Vec<String> {
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 2>&1", &self.program])
            .args(["--exact", "--include-ignored", "--test-threads=1"])
            .args(tests)
            .env("LEAF_ID_RUNNER", "yes")
            // Ends when this process does.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let watched = Watched::new(child);
        let mut left: Vec<_> = tests.to_vec();
        let mut done: Vec<(String, Duration, bool)> = Vec::new();
        let mut said = String::new();
        let mut line = Vec::new();
        let mut since = Instant::now();
        let mut started: Option<String> = None;
        while output.read_until(b'\n', &mut line).unwrap() > 0 {
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            watched.alive();
            // Between a test's name and its result there may be lines that were not captured: figures.
            let (name, rest) = match text
                .strip_prefix("test ")
                .and_then(|rest| rest.split_once(" ..."))
            {
                Some((name, rest)) if left.iter().any(|test| test == name) => (Some(name), rest),
                _ => (None, &*text),
            };
            if let Some(name) = name {
                started = Some(name.to_owned());
            }
            match (rest.trim(), started.take()) {
                (result @ ("ok" | "FAILED"), Some(test)) => {
                    let (took, ok) = (since.elapsed(), result == "ok");
                    since = Instant::now();
                    left.retain(|name| *name != test);
                    self.tell(&test, took, ok);
                    done.push((test, took, ok));
                }
                (_, going_on) => {
                    started = going_on;
                    if started.is_some() && !rest.trim().is_empty() {
                        println!("             {}", rest.trim());
                    }
                    said += rest;
                }
            }
        }
        let status = watched.wait();
        if let Some(test) = started.or_else(|| left.first().cloned().filter(|_| done.is_empty())) {
            // It ended in the middle of this one.
            said += &format!("\nthe process of the tests ended with {status}\n");
            left.retain(|name| *name != test);
            self.tell(&test, since.elapsed(), false);
            done.push((test, since.elapsed(), false));
        }
        let mut outcomes = self.outcomes.lock();
        for (test, took, ok) in done {
            let failure = (!ok).then(|| section(&said, &test));
            outcomes.push(Outcome {
                test,
                took,
                failure,
            });
        }
        left
    }

    fn tell(&self, test: &str, took: Duration, ok: bool) {
        let number = {
            let mut told = TOLD.lock();
            *told += 1;
            *told
        };
        let verdict = if ok { "ok    " } else { "FAILED" };
        println!(
            "{number:4}/{} {verdict} {:6.1} s  {test}",
            self.count,
            took.as_secs_f64()
        );
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
            println!("\n{failure}");
        }
        let count = failed.len();
        let (verdict, code) = if count == 0 {
            ("ok", ExitCode::SUCCESS)
        } else {
            ("FAILED", ExitCode::FAILURE)
        };
        println!(
            "\ntest result: {verdict}. {} passed; {count} failed; 0 ignored; finished in {:.0} s",
            outcomes.len() - count,
            took.as_secs_f64()
        );
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

/// How many tests have ended.
static TOLD: Mutex<usize> = Mutex::new(0);

/// What is said of one test, of all that its process said: all of it, if the process was killed.
fn section(said: &str, test: &str) -> String {
    let head = format!("---- {test} stdout ----");
    said.split_once(&head).map_or_else(
        || format!("---- {test}: all that its process said ----\n{said}"),
        |(_, after)| {
            let end = after
                .find("\n---- ")
                .or_else(|| after.find("\nfailures:\n"));
            format!("{head}{}", after[..end.unwrap_or(after.len())].trim_end())
        },
    )
}

/// A process that is killed when it says nothing for too long.
struct Watched {
    child: Arc<Mutex<Child>>,
    heard: Arc<Mutex<Instant>>,
}

impl Watched {
    fn new(child: Child) -> Self {
        let watched = Self {
            child: Arc::new(Mutex::new(child)),
            heard: Arc::new(Mutex::new(Instant::now())),
        };
        let (child, heard) = (Arc::downgrade(&watched.child), Arc::clone(&watched.heard));
        thread::spawn(move || {
            while let Some(child) = child.upgrade() {
                if heard.lock().elapsed() > LIMIT {
                    let _ = child.lock().kill();
                }
                drop(child);
                thread::sleep(Duration::from_secs(1));
            }
        });
        watched
    }

    fn alive(&self) {
        *self.heard.lock() = Instant::now();
    }

    fn wait(self) -> std::process::ExitStatus {
        // Its output has ended, so it ends, too.
        self.child.lock().wait().unwrap()
    }
}
