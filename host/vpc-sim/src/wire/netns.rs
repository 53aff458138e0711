//! Named network namespaces: made, entered, removed, and swept up after dead runs.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{WireError, tools};

/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

/// The group all links of a mapping service are in, so that one call removes them.
pub(super) const PORT_GROUP: u32 = 77;

fn path(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

/// Runs `work` on a thread of its own inside the namespace `name` and returns what it returned. Sockets made and
/// processes started by `work` are of that namespace, and sockets stay so when they leave the thread.
///
/// # Errors
/// [`WireError::Netns`] if there is no such namespace or it may not be entered; `work` did not run then.
///
/// # Panics
/// With the panic of `work`.
pub fn in_netns<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, WireError> {
    let fail = |what| move |source| WireError::Netns { name: name.to_owned(), what, source };
    let file = File::open(path(name)).map_err(fail("open it"))?;
    std::thread::scope(|scope| {
        let inside = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(std::io::Error::from)?;
            Ok(work())
        };
        let thread = std::thread::Builder::new().name("in-netns".into()).spawn_scoped(scope, inside);
        let joined = thread.map_err(fail("start a thread for it"))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(fail("enter it"))
    })
}

pub(super) fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Makes the namespace with its loopback up.
pub(super) fn add(name: &str) -> Result<(), WireError> {
    tools::run("ip", &["netns", "add", name], "")?;
    tools::ip_batch(name, "link set lo up\n")
}

/// Removes the namespaces `names` that exist, with the links between them. Goes on after a failure.
pub(super) fn remove(names: &[String]) -> Result<(), WireError> {
    let mut left = Vec::new();
    for name in names.iter().filter(|name| exists(name)) {
        // A namespace lives on while a process or a socket is in it, and its links would, too.
        if name.ends_with("-vpc")
            && let Err(error) = tools::ip_batch(name, &format!("link del group {PORT_GROUP}\n"))
            && !error.to_string().contains("Cannot find device")
        {
            left.push(format!("links of {name}: {error}"));
        }
        if let Err(error) = tools::run("ip", &["netns", "del", name], "") {
            left.push(format!("{name}: {error}"));
        }
    }
    if left.is_empty() { Ok(()) } else { Err(WireError::Left(left)) }
}

/// Removes what wires called `prefix` and a process id left behind whose process is gone, and returns the names of the
/// namespaces it removed. Wires of living processes are left alone.
///
/// # Errors
/// [`WireError::Netns`] if the names cannot be listed, [`WireError::Left`] if something could not be removed.
pub fn sweep(prefix: &str) -> Result<Vec<String>, WireError> {
    let names = match fs::read_dir(NAMES) {
        Ok(entries) => entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()),
        // Nobody has made a namespace since the machine started.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(WireError::Netns { name: NAMES.to_owned(), what: "list the names", source }),
    };
    let mut dead: Vec<String> = names.filter(|name| owner(prefix, name).is_some_and(|pid| !alive(pid))).collect();
    dead.sort();
    remove(&dead)?;
    Ok(dead)
}

/// The process id in `<prefix><pid>-<rest>`.
fn owner(prefix: &str, name: &str) -> Option<u32> {
    let (pid, _rest) = name.strip_prefix(prefix)?.split_once('-')?;
    if pid.bytes().all(|byte| byte.is_ascii_digit()) { pid.parse().ok() } else { None }
}

fn alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_read_from_names_of_that_prefix_alone() {
        assert_eq!(owner("w", "w12-vpc"), Some(12));
        assert_eq!(owner("w", "wt12-vpc"), None);
        assert_eq!(owner("wt", "w12-vpc"), None);
        assert_eq!(owner("w", "w12"), None);
        assert_eq!(owner("w", "w-vpc"), None);
        assert_eq!(owner("w", "w+1-vpc"), None);
    }

    #[test]
    fn this_process_is_alive() {
        assert!(alive(std::process::id()));
        assert!(!alive(u32::MAX));
    }
}
