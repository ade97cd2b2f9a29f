//! Compiles the clock that tests set (clock.c), with the C compiler that Rust links with.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, io};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=clock.c");
    let library = Path::new(&env::var("OUT_DIR")?).join("clock.so");
    let status = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-o"])
        .arg(library)
        .arg("clock.c")
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("clock.c does not compile").into())
    }
}
