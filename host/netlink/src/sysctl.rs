//! Kernel parameters of the calling thread's network namespace.

use std::io;
use std::path::PathBuf;

use crate::error::Error;

/// Sets `net/<name>`; a value that already stands is not written: a read-only `/proc/sys` with the right values is good
/// enough, and some writes wait for a lock that the whole kernel shares.
pub(crate) fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = PathBuf::from("/proc/sys/net").join(name);
    if std::fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    std::fs::write(&path, value).map_err(|errno| Error::Sysctl { path, value: value.to_owned(), errno })
}

/// As [`set`]; a parameter this kernel does not have (IPv6 off) is fine.
pub(crate) fn set_if_present(name: &str, value: &str) -> Result<(), Error> {
    match set(name, value) {
        Err(Error::Sysctl { errno, .. }) if errno.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
