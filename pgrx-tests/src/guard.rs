//! Cleans up the servers of a test process that was killed.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::{env, io, process, thread};

use parking_lot::Mutex;

/// Waits until the test process has exited for any reason, which closes its standard input. Then
/// kills processes still running in one of the directories, and removes the directory. Servers of a
/// failed test have exited by themselves, so their directories remain. Keeps standard output open,
/// so that the runner waits for the guard, too.
const GUARD: &str = r#"
trap '' INT TERM HUP
processes_in() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd")" != "$1/data" ] || echo "${process#/proc/}"
    done 2>/dev/null
}
all=
while read -r dir; do all="$all $dir"; done
for dir in $all; do
    [ -d "$dir/data" ] || continue
    left=$(processes_in "$dir")
    [ -n "$left" ] || continue
    postmaster=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null)
    for pid in $left; do
        kill -CONT "$pid"
        [ "$pid" != "$postmaster" ] || kill -QUIT "$pid"
    done 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(processes_in "$dir")" ] || break
        sleep 0.1
    done
    left=$(processes_in "$dir")
    [ -z "$left" ] || kill -KILL $left 2>/dev/null
    rm -rf "$dir"
done
"#;

static GUARD_INPUT: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    // The runner holds the other end of standard input while it is alive.
    if env::var_os("LEAF_ID_RUNNER").is_some() {
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            process::exit(1);
        });
    }
    // In a separate session, to survive the test's process group.
    let guard = Command::new("setsid")
        .args(["sh", "-c", GUARD])
        .stdin(Stdio::piped())
        .spawn();
    Mutex::new(guard.unwrap().stdin.take().unwrap())
});

/// Registers a directory. Its servers are killed when this process exits.
pub(crate) fn guard(dir: &Path) {
    writeln!(GUARD_INPUT.lock(), "{}", dir.display()).unwrap();
}
