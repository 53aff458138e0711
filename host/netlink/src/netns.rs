//! Network namespaces: entering one without leaving traces in the caller, and telling one from its successor.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Error;
use crate::rt::Rt;

/// `NSFS_MAGIC`: the file system of namespace handles.
const NSFS: i64 = 0x6e73_6673;

/// A network namespace that was seen once: a path alone may later name another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetnsRef {
    /// Where its handle is mounted.
    pub path: PathBuf,
    /// The handle's inode number, unique while the namespace exists and until the next boot.
    pub inode: u64,
}

/// What stands at the path of a [`NetnsRef`].
pub(crate) enum Found {
    /// The very namespace, opened.
    Same(File),
    /// Another namespace, or nothing: the recorded one is gone.
    Gone,
}

impl NetnsRef {
    /// Opens the namespace if it is still the recorded one. An error means that it cannot be told.
    pub(crate) fn find(&self) -> Result<Found, Error> {
        let file = match open(&self.path) {
            Ok(file) => file,
            Err(Error::Netns { errno, .. }) if errno.kind() == io::ErrorKind::NotFound && self.absence_counts() => {
                return Ok(Found::Gone);
            }
            Err(error) => return Err(error),
        };
        Ok(if inode(&file, &self.path)? == self.inode { Found::Same(file) } else { Found::Gone })
    }

    /// Whether a missing file says something: its directory must be there (else a mount is missing here), or it is the
    /// directory of a process that ended.
    fn absence_counts(&self) -> bool {
        if self.path.starts_with("/proc") {
            return Path::new("/proc/self").exists();
        }
        self.path.parent().is_some_and(Path::exists)
    }
}

/// Opens a namespace handle and makes sure that it is one.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    let file = File::open(path).map_err(|errno| Error::Netns { path: path.to_owned(), action: "open", errno })?;
    let kind = rustix::fs::fstatfs(&file).map_err(|errno| Error::Netns {
        path: path.to_owned(),
        action: "fstatfs",
        errno: errno.into(),
    })?;
    if kind.f_type != NSFS {
        return Err(Error::NotANetns(path.to_owned()));
    }
    Ok(file)
}

fn inode(file: &File, path: &Path) -> Result<u64, Error> {
    let metadata = file.metadata().map_err(|errno| Error::Netns { path: path.to_owned(), action: "stat", errno })?;
    Ok(metadata.ino())
}

/// Notes which namespace stands at `path` now.
///
/// # Errors
/// When the path cannot be opened or is no namespace.
pub fn identify(path: &Path) -> Result<NetnsRef, Error> {
    Ok(NetnsRef { path: path.to_owned(), inode: inode(&open(path)?, path)? })
}

/// Runs `work` inside the namespace at `path`, on a thread of its own that ends afterwards, so the caller's namespace
/// never changes.
///
/// # Errors
/// When the namespace cannot be opened or entered (`work` has then not run).
pub fn in_netns<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    inside(&open(path)?, path, work)
}

/// As [`in_netns`], with a handle already open.
pub(crate) fn inside<T: Send>(handle: &File, path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let fail = |action, errno| Error::Netns { path: path.to_owned(), action, errno };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("wipam-netns".into())
            .spawn_scoped(scope, || {
                move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            })
            .map_err(|errno| fail("start a thread", errno))?;
        match thread.join() {
            Ok(result) => result.map_err(|errno: rustix::io::Errno| fail("setns", errno.into())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A route socket of another namespace; it stays there whichever thread uses it.
pub(crate) fn route_socket(handle: &File, path: &Path) -> Result<Rt, Error> {
    inside(handle, path, Rt::open)?
}

/// Whether the recorded namespace still exists and has `addr` on one of its links.
///
/// # Errors
/// When it cannot be told (no permission, no descriptors left, its mount is missing): not the same as *no*.
pub fn has_address(netns: &NetnsRef, addr: IpAddr) -> Result<bool, Error> {
    match netns.find()? {
        Found::Gone => Ok(false),
        Found::Same(file) => {
            let addresses = route_socket(&file, &netns.path)?.addresses()?;
            Ok(addresses.iter().any(|a| a.net.addr() == addr))
        }
    }
}
