//! Compares leaf_id with what PostgreSQL has, on private servers that it stops at its end.
//!
//! `leaf_id_bench [SECTION...]`; see [`options`] for the environment. Progress goes to
//! standard error; the report to standard output and, with the figures and the charts, into
//! a directory. The bench fails when leaf_id does: if one of its functions raises an error, or
//! where a check finds an id twice. The report says what could not be measured.

mod chart;
mod clients;
mod contender;
mod context;
mod figures;
mod fixture;
mod interrupt;
mod options;
mod report;
mod sections;
mod table;
mod targets;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, io};

use context::Context;
use interrupt::Running;
use options::Options;
use report::{Report, Section};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where the last complete run is kept.
const PUBLISHED: &str = "bench/results";

/// False if a section has failed.
fn run() -> Result<bool, Box<dyn Error>> {
    let known = sections::ALL.map(|section| section.name);
    let options = Options::read(&known)?;
    let running = Running::watch()?;
    let began = Instant::now();
    empty(&options.results)?;
    let mut report = Report::new(&options, fixture::settings(&running));
    let context = Context {
        options: &options,
        running: &running,
    };
    let chosen = |name: &&str| sections::ALL.iter().find(|section| section.name == *name);
    for kind in options.sections.iter().filter_map(chosen) {
        eprintln!(
            "==> {} ({} s so far)",
            kind.title,
            began.elapsed().as_secs()
        );
        let mut section = Section::new(kind.name, kind.title);
        // The harness panics where a statement fails. What was measured until then is kept.
        let outcome = catch_unwind(AssertUnwindSafe(|| (kind.run)(&context, &mut section)));
        if let Err(panic) = outcome {
            section.fail(message_of(panic.as_ref()));
        }
        report.sections.push(section);
        // After each section, so that an interrupted run leaves a report too.
        report.write(&options.results)?;
    }
    print!("{}", report.text());
    let mut written = options.results.as_path();
    if options.publish && !report.failed() && report.is_complete() {
        written = Path::new(PUBLISHED);
        empty(written)?;
        report.write(written)?;
    }
    eprintln!(
        "==> Written to {}, after {} s",
        written.display(),
        began.elapsed().as_secs()
    );
    Ok(!report.failed())
}

/// Removes what an earlier run wrote.
fn empty(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
        .to_owned()
}
