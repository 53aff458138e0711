//! The system packages that tests and demo need.

use std::path::Path;
use std::process::Command;

use crate::run::{have, is_root, run};

/// A program or file, the Debian package that brings it, and what needs it.
const NEEDED: &[(&str, &str, &str)] = &[
    ("ip", "iproute2", "tests look at links, routes and rules with an independent witness"),
    ("nft", "nftables", "tests look at our nf_tables rules"),
    ("conntrack", "conntrack", "tests look at connection tracking"),
    ("ping", "iputils-ping", "pods ping each other"),
    ("containerd", "containerd", "the demo's container runtime"),
    ("runc", "runc", "containerd starts sandboxes with it"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins", "peers in benchmarks, and main plugins over our IPAM"),
    ("/bin/busybox", "busybox-static", "the pods' image"),
    ("gcc", "gcc", "the pods' pause program and the netlink floor of the benchmarks"),
    ("python3", "python3", "boto3 drives the simulated EC2"),
    ("/usr/lib/python3/dist-packages/ensurepip", "python3-venv", "boto3 lives in a virtual environment"),
];

fn present(what: &str) -> bool {
    if what.ends_with("ensurepip") {
        // Debian splits it off; other Pythons carry it.
        return Command::new("python3").args(["-c", "import ensurepip"]).status().is_ok_and(|s| s.success());
    }
    if what.starts_with('/') { Path::new(what).exists() } else { have(what) }
}

/// Packages that are missing here.
pub fn missing() -> Vec<&'static str> {
    NEEDED.iter().filter(|(what, ..)| !present(what)).map(|(_, package, _)| *package).collect()
}

/// `cargo xtask packages [--install]`.
///
/// # Errors
/// When something is missing and was not to be, or could not be, installed.
pub fn packages(args: &[String]) -> Result<(), String> {
    let missing = missing();
    for (what, package, why) in NEEDED {
        let state = if missing.contains(package) { "missing" } else { "present" };
        println!("{state}  {package:<28} {what}: {why}");
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !args.iter().any(|a| a == "--install") {
        return Err(format!("missing: apt-get install -y --no-install-recommends {}", missing.join(" ")));
    }
    install(&missing)
}

/// Asks apt for packages; only root can.
///
/// # Errors
/// The command to type, when we are not root or apt fails.
pub fn install(missing: &[&str]) -> Result<(), String> {
    let by_hand = format!("as root: apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !is_root() {
        return Err(by_hand);
    }
    run("packages", Command::new("apt-get").args(["update", "-qq"])).map_err(|e| format!("{e}; {by_hand}"))?;
    let mut command = Command::new("apt-get");
    command.args(["install", "-y", "--no-install-recommends"]).args(missing).env("DEBIAN_FRONTEND", "noninteractive");
    run("packages", &mut command).map_err(|e| format!("{e}; {by_hand}"))
}
