//! Cleans up the servers of a test process that was killed.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::{env, io, process, thread};

use parking_lot::Mutex;

/// Waits until the test process has ended, for whatever reason, which closes its standard input. Then
/// it ends what still runs in one of the directories, and removes the directory. The servers of a
/// test that failed have ended by themselves: their directories stay. It keeps standard output open,
/// so that the runner waits for it, too.
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
    // The runner holds the other end of our standard input while it lives.
    if env::var_os("LEAF_ID_RUNNER").is_some() {
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            process::exit(1);
        });
    }
    // In a session of its own: it outlives the test's process group.
    let guard = Command::new("setsid")
        .args(["sh", "-c", GUARD])
        .stdin(Stdio::piped())
        .spawn();
    Mutex::new(guard.unwrap().stdin.take().unwrap())
});

/// Registers a directory whose servers end with this process.
pub(crate) fn guard(dir: &Path) {
    writeln!(GUARD_INPUT.lock(), "{}", dir.display()).unwrap();
}
