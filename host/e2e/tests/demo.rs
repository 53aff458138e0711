//! The demo as a process: it holds what it claims, and it cleans up when it is interrupted. Needs root.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const DEMO: &str = env!("CARGO_BIN_EXE_wipam-demo");

/// Namespaces, mounts and directories of the process `pid`'s run.
fn left(pid: u32) -> Vec<String> {
    let prefix = format!("wipam-e2e-{pid}-");
    let names = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let temp = std::env::temp_dir();
    let mut left = names(temp.to_str().unwrap());
    left.extend(std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().map(str::to_owned));
    left.retain(|name| name.contains(&prefix));
    left
}

#[test]
fn it_holds_what_it_claims() {
    if !common::root("it_holds_what_it_claims") {
        return;
    }
    let child = Command::new(DEMO).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("steps verified"), "{text}");
    assert_eq!(left(pid), Vec::<String>::new());
}

#[test]
fn interrupted_it_leaves_nothing() {
    if !common::root("interrupted_it_leaves_nothing") {
        return;
    }
    let mut child = Command::new(DEMO).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Pods exist, and more are being made.
    let reached = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with(" 3. "));
    assert!(reached, "the demo ended before its third step");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    // Its output is read to the end, so that it is not stopped by a full pipe.
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left(child.id()), Vec::<String>::new());
}
