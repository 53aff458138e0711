//! Is a sandbox still there? A question that cannot be answered counts as yes.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::netns::{self, Found, NetnsRef};
use crate::rt::Rt;

/// Where namespaces of pods have their handles; processes' own come from `/proc`.
const HANDLES: [&str; 2] = ["/run/netns", "/run/docker/netns"];

/// Which sandbox is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivenessQuery {
    /// Its addresses; the sandbox is alive while one of them is.
    pub addresses: Vec<IpAddr>,
    /// Its namespace as recorded at its ADD *in this boot*; none for a lease taken over from another daemon.
    pub netns: Option<NetnsRef>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// It is there and has an address.
    Alive,
    /// It certainly is not.
    Gone,
    /// It cannot be told, and why.
    Unknown(String),
}

impl Liveness {
    /// True unless the sandbox is certainly gone.
    pub fn counts_as_alive(&self) -> bool {
        *self != Liveness::Gone
    }
}

/// Looks whether a sandbox lives: its recorded namespace (path and inode) exists and still has an address of it; without
/// a record, a link stands behind the route to an address, or any namespace on this host has one.
pub fn alive(query: &LivenessQuery) -> Liveness {
    let found = match &query.netns {
        Some(netns) => in_recorded(netns, &query.addresses),
        None => anywhere(&query.addresses),
    };
    match found {
        Ok(true) => Liveness::Alive,
        Ok(false) => Liveness::Gone,
        Err(error) => Liveness::Unknown(error.to_string()),
    }
}

fn in_recorded(netns: &NetnsRef, addresses: &[IpAddr]) -> Result<bool, Error> {
    let Found::Same(handle) = netns.find()? else { return Ok(false) };
    has_any(&mut netns::route_socket(&handle, &netns.path)?, addresses)
}

fn has_any(rt: &mut Rt, addresses: &[IpAddr]) -> Result<bool, Error> {
    Ok(rt.addresses()?.iter().any(|found| addresses.contains(&found.net.addr())))
}

fn anywhere(addresses: &[IpAddr]) -> Result<bool, Error> {
    let mut host = Rt::open()?;
    for addr in addresses {
        if let Some(route) = host.host_route(*addr)?
            && host.link_by_index(route.link)?.is_some()
        {
            return Ok(true);
        }
    }
    if has_any(&mut host, addresses)? {
        return Ok(true);
    }
    let mut untold = None;
    for path in namespaces()? {
        match netns::open(&path).and_then(|handle| netns::route_socket(&handle, &path)) {
            Ok(mut rt) => {
                if has_any(&mut rt, addresses)? {
                    return Ok(true);
                }
            }
            // A process or namespace that ended while we looked, or an empty file left in the directory of handles.
            Err(Error::NotANetns(_)) => {}
            Err(Error::Netns { errno, .. }) if errno.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => untold = Some(error),
        }
    }
    untold.map_or(Ok(false), Err)
}

/// One path for each network namespace that can be seen, other than the caller's.
fn namespaces() -> Result<Vec<PathBuf>, Error> {
    let mut seen: HashSet<u64> = fs::metadata("/proc/thread-self/ns/net").map(|m| m.ino()).into_iter().collect();
    let mut paths = Vec::new();
    let handles = HANDLES.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
    let processes = fs::read_dir("/proc")
        .map_err(|errno| Error::Netns { path: "/proc".into(), action: "list", errno })?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_process(path))
        .map(|path| path.join("ns/net"));
    for path in handles.chain(processes) {
        // A process that ended has no namespace.
        if let Ok(metadata) = fs::metadata(&path)
            && seen.insert(metadata.ino())
        {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn is_process(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
}
