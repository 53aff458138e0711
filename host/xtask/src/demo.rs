//! `cargo xtask demo`: what the demo needs, then the demo.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::packages;
use crate::run::{cargo, is_root, run};

/// Packages without which the demo has no nodes. Tests need some more.
const NEEDED: [&str; 7] =
    ["busybox-static", "containerd", "containernetworking-plugins", "iproute2", "iputils-ping", "nftables", "runc"];

/// `cargo xtask demo [--keep] [--once]`.
///
/// # Errors
/// A package cannot be installed, a build failed, or the demo cannot be started. A demo that failed ends this process
/// with its own exit code.
pub fn demo(args: &[String]) -> Result<(), String> {
    let missing: Vec<_> = packages::missing().into_iter().filter(|package| NEEDED.contains(package)).collect();
    match (missing.is_empty(), is_root()) {
        (true, _) => {}
        (false, true) => packages::install(&missing)?,
        // It runs what can be run without, and says what it skips.
        (false, false) => println!("missing: apt-get install -y --no-install-recommends {}", missing.join(" ")),
    }
    // All binaries of the workspace, as the tests build them: another selection would choose other features and compile
    // the EC2 SDK again. A development build is there sooner and quick enough.
    println!("Building (the first time takes minutes) …");
    run("build", cargo().args(["build", "--quiet", "--workspace", "--bins"]))?;
    let here = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let mut demo = Command::new(here.with_file_name("wipam-demo"));
    demo.args(args);
    // In this process's place, so that a Ctrl-C reaches the demo alone and the shell waits until it has cleaned up.
    Err(format!("wipam-demo: {}", demo.exec()))
}
