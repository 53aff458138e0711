//! The programs a cluster is made of: the system's, and our own where cargo puts them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Programs of the system, with the Debian package that has them.
const SYSTEM: [(&str, &str); 8] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    (crate::image::BUSYBOX, "busybox-static"),
    ("/usr/lib/cni/loopback", "containernetworking-plugins"),
];

/// Where Debian has the plugins that a runtime and the tests use beside ours.
pub const SYSTEM_PLUGINS: &str = "/usr/lib/cni";

fn found(program: &str) -> bool {
    if program.starts_with('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
}

/// Debian packages that are missing on this machine, each once; empty: all is there.
pub fn missing() -> Vec<&'static str> {
    let mut packages: Vec<_> = SYSTEM.iter().filter(|(program, _)| !found(program)).map(|(_, p)| *p).collect();
    packages.dedup();
    packages
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where cargo puts the binaries beside which this one was built; `WIPAM_BIN_DIR` names another place.
pub fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("WIPAM_BIN_DIR") {
        return dir.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    let dir = own.parent().unwrap_or(Path::new("/"));
    // Tests are one directory below the binaries.
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    dir.to_owned()
}

/// One of our binaries.
///
/// # Errors
/// It has not been built; says how to.
pub fn ours(name: &str) -> Result<PathBuf> {
    let path = bin_dir().join(name);
    if !path.is_file() {
        bail!("{} is not there: cargo build --workspace --bins", path.display());
    }
    Ok(path)
}
