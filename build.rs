//! Links libpq, with which leaf_id talks to other servers, as PGXS does: that of the PostgreSQL
//! that it is built for. Where the linker does not look for that by itself, it is given the
//! directory, and the library gets it as its run path: whichever libpq the postmaster loads
//! first serves dblink, postgres_fdw and the WAL receiver too.

use pgrx_pg_config::{PgConfig, Pgrx};

fn main() {
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    println!("cargo::rerun-if-env-changed=PGRX_HOME");
    // The feature that is on, of those that Cargo.toml has for the versions.
    let version = std::env::vars().find_map(|(name, _)| {
        let version = name.strip_prefix("CARGO_FEATURE_PG")?;
        version.parse::<u16>().ok()
    });
    // since_16 to the version: conditions on a version must hold for later ones, too.
    for since in 16..=version.unwrap_or(0) {
        println!("cargo::rustc-cfg=since_{since}");
    }
    // Without an answer the linker's own directories have to do; pgrx itself complains
    // where there is no PostgreSQL at all.
    if let Some(postgresql) =
        version.and_then(|version| Pgrx::from_config().ok()?.get(&format!("pg{version}")).ok())
    {
        look_in_its_directory(&postgresql);
    }
    println!("cargo::rustc-link-lib=pq");
    // See src/pg/memory.rs.
    println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap=CopyErrorData");
}

fn look_in_its_directory(postgresql: &PgConfig) {
    let Ok(directory) = postgresql.lib_dir() else {
        return;
    };
    if !directory.join("libpq.so").exists() {
        return;
    }
    println!("cargo::rustc-link-search=native={}", directory.display());
    // Distributions whose servers are in the system's directories forbid run paths.
    let has_run_path = postgresql
        .configure()
        .is_ok_and(|options| !options.contains_key("--disable-rpath"));
    if has_run_path {
        println!(
            "cargo::rustc-link-arg-cdylib=-Wl,-rpath,{}",
            directory.display()
        );
    }
}
