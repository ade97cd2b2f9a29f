//! Compiles the libraries that servers preload in tests, with the C compiler that Rust links with.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, io};

const LIBRARIES: [&str; 3] = ["clock", "disk", "memory"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=preload.h");
    for name in LIBRARIES {
        let source = format!("{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let library = Path::new(&env::var("OUT_DIR")?).join(format!("{name}.so"));
        let status = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-o"])
            .arg(library)
            .arg(&source)
            .status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{source} does not compile")).into());
        }
    }
    Ok(())
}
