//! Links libpq, with which leaf_id talks to other servers: that of the PostgreSQL it is built
//! for, where it lies in a directory that the linker does not look at by itself.

use pgrx_pg_config::Pgrx;

fn main() {
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    println!("cargo::rerun-if-env-changed=PGRX_HOME");
    let versions = ["pg15", "pg16", "pg17", "pg18"];
    let version = versions.into_iter().find(|version| {
        std::env::var_os(format!("CARGO_FEATURE_{}", version.to_uppercase())).is_some()
    });
    // Without an answer the linker's own directories have to do; pgrx itself complains
    // where there is no PostgreSQL at all.
    let directory = version
        .and_then(|version| Pgrx::from_config().ok()?.get(version).ok())
        .and_then(|pg_config| pg_config.lib_dir().ok());
    if let Some(directory) = directory.filter(|directory| directory.join("libpq.so").exists()) {
        println!("cargo::rustc-link-search=native={}", directory.display());
    }
    println!("cargo::rustc-link-lib=pq");
}
