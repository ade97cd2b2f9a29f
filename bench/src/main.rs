//! Compares leaf_id with other generators of ids in PostgreSQL, on private servers.
//!
//! `leaf_id_bench [SECTION...]`; see [`options`] for the environment. Progress is written to
//! standard error, the report to standard output and to a directory. The bench fails on an error in
//! a statement, or if a check finds an id twice; measurements up to then remain in that directory.

mod clients;
mod contender;
mod figures;
mod options;
mod plot;
mod report;
mod sections;
mod servers;
mod table;
mod targets;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use options::Options;
use report::{Report, Section};

/// Directory of the last complete run with each major version of PostgreSQL.
const PUBLISHED: &str = "bench/results";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::read(&sections::ALL.map(|(name, ..)| name))?;
    let start = Instant::now();
    let (major, circumstances) = servers::circumstances();
    let mut report = Report::new(&options, circumstances);
    for (name, title, measure) in sections::ALL {
        if !options.sections.iter().any(|chosen| chosen == name) {
            continue;
        }
        eprintln!("==> {title} ({} s so far)", start.elapsed().as_secs());
        let mut section = Section::new(name, title);
        measure(&options, &mut section);
        report.sections.push(section);
        report.write(&options.results)?;
    }
    print!("{}", report.markdown());
    if options.publish {
        report.write(&Path::new(PUBLISHED).join(major.to_string()))?;
    }
    eprintln!("==> Done after {} s", start.elapsed().as_secs());
    Ok(())
}
