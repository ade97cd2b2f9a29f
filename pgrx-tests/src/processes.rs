//! Finds, stops and kills processes of servers.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::checks::wait_until;

/// Time limit for a process to stop or to end.
const LIMIT: Duration = Duration::from_secs(60);

/// A stopped process; dropping this continues it, also if the test fails.
pub struct Paused(pub(crate) u32);

impl Drop for Paused {
    fn drop(&mut self) {
        signal("CONT", &[self.0]);
    }
}

/// A stopped server; dropping this continues it, also if the test fails.
pub struct Frozen(pub(crate) Vec<u32>);

impl Drop for Frozen {
    fn drop(&mut self) {
        // One by one: some may have been killed since then.
        for &pid in &self.0 {
            signal("CONT", &[pid]);
        }
    }
}

/// False if a process does not exist: it may have just ended, which is no failure.
pub(crate) fn signal(name: &str, pids: &[u32]) -> bool {
    let pids = pids.iter().map(u32::to_string);
    Command::new("kill")
        .args(["-s", name])
        .args(pids)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Stops a process (SIGSTOP), and waits until it is stopped.
pub(crate) fn stop_process(pid: u32) {
    signal("STOP", &[pid]);
    wait_until(LIMIT, "the process to stop", || {
        state_and_parent(pid).is_none_or(|(state, _)| matches!(state, 'T' | 'Z'))
    });
}

/// Kills a postmaster and its children, and waits for the children to exit: they would keep the
/// shared memory attached, so the server could not be restarted.
pub(crate) fn kill_family(postmaster: u32) {
    // A stopped postmaster cannot fork further children.
    signal("STOP", &[postmaster]);
    let children = children_of(postmaster);
    signal("KILL", &[&[postmaster][..], &children[..]].concat());
    let ended = |pid: &u32| matches!(state_and_parent(*pid), None | Some(('Z', _)));
    wait_until(LIMIT, "the server's processes to end", || {
        children.iter().all(ended)
    });
}

pub(crate) fn all_processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    all_processes()
        .filter(|pid| state_and_parent(*pid).is_some_and(|(_, its)| its == parent))
        .collect()
}

pub(crate) fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The preceding name is in parentheses, and may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
