//! Kernel parameters of the calling thread's network namespace.

use std::io;
use std::path::PathBuf;

use crate::error::Error;

fn write_at(path: PathBuf, value: &str) -> Result<(), Error> {
    std::fs::write(&path, value).map_err(|errno| Error::Sysctl { path, value: value.to_owned(), errno })
}

/// Sets `net/<name>`; a value that already stands is not written, so a read-only `/proc/sys` with the right values is
/// good enough.
pub(crate) fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = PathBuf::from("/proc/sys/net").join(name);
    if std::fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    write_at(path, value)
}

/// As [`set`], without reading first; a parameter this kernel does not have (IPv6 off) is fine.
pub(crate) fn set_if_present(name: &str, value: &str) -> Result<(), Error> {
    match write_at(PathBuf::from("/proc/sys/net").join(name), value) {
        Err(Error::Sysctl { errno, .. }) if errno.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
