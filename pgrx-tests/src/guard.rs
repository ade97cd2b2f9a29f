//! What ends servers that nobody stops: those that are idle when the last test of a process has
//! ended, and all of a process that was killed.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::{env, io, process, thread};

use parking_lot::Mutex;

/// Waits until the process of the tests has ended, however that came, which closes its standard
/// input. What then still runs in one of the directories, it stops, and removes the directory.
/// That of a test that failed has no server any more, and stays. It keeps standard output open, so
/// that the runner waits for it, too.
const GUARD: &str = r#"
trap '' INT TERM HUP
here() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd")" != "$1/data" ] || echo "${process#/proc/}"
    done 2>/dev/null
}
all=
while read -r dir; do all="$all $dir"; done
for dir in $all; do
    [ -d "$dir/data" ] && [ -n "$(here "$dir")" ] || continue
    postmaster=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null)
    for pid in $(here "$dir"); do
        kill -CONT "$pid"
        [ "$pid" != "$postmaster" ] || kill -QUIT "$pid"
    done 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(here "$dir")" ] || break
        sleep 0.1
    done
    # shellcheck disable=SC2046  # a list
    kill -KILL $(here "$dir") 2>/dev/null
    rm -rf "$dir"
done
"#;

static GUARDED: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    // The runner holds the other end of our standard input while it lives.
    if env::var_os("LEAF_ID_RUNNER").is_some() {
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            process::exit(1);
        });
    }
    let guard = Command::new("sh")
        .args(["-c", GUARD])
        .stdin(Stdio::piped())
        .spawn();
    Mutex::new(guard.unwrap().stdin.take().unwrap())
});

/// Has the servers in a directory of ours ended with this process.
pub(crate) fn guard(dir: &Path) {
    writeln!(GUARDED.lock(), "{}", dir.display()).unwrap();
}
