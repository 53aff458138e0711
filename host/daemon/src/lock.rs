//! One daemon per node: a lock on the state directory, and a look whether the AWS daemon serves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why this daemon must not serve.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another ipamd holds the directory.
    #[error("another ipamd ({holder}) serves this node: it holds {}; stop it first", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// "pid 123", or what else is known.
        holder: String,
    },
    /// The AWS daemon serves.
    #[error(
        "another process ({holder}) answers on {}: two daemons must not give out the same addresses; stop it first \
         (remove the aws-node pod of this node), or set aws-socket to another path",
        socket.display()
    )]
    AwsDaemon {
        /// Its socket.
        socket: PathBuf,
        /// "pid 123", or what else is known.
        holder: String,
    },
    /// The directory cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Held for the life of the process; the kernel lets go of it however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes the lock of `dir`, making the directory if needed.
///
/// # Errors
/// When somebody holds it (named by pid), or the directory cannot be made or written.
pub fn take(dir: &Path) -> Result<Lock, LockError> {
    let io_error = |what, path: &Path, source| LockError::Io { what, path: path.to_owned(), source };
    fs::create_dir_all(dir).map_err(|e| io_error("create", dir, e))?;
    let path = dir.join("ipamd.lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(&path)
        .map_err(|e| io_error("open", &path, e))?;
    if let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if errno != rustix::io::Errno::WOULDBLOCK {
            return Err(io_error("lock", &path, errno.into()));
        }
        let mut pid = String::new();
        let known = file.read_to_string(&mut pid).is_ok() && pid.trim().parse::<u32>().is_ok();
        let holder = if known { format!("pid {}", pid.trim()) } else { "pid unknown".into() };
        return Err(LockError::Held { path, holder });
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    // The pid is for people; the lock holds without it (on a full disk, say).
    if let Err(error) = write(&mut file) {
        tracing::warn!(path = %path.display(), %error, "the pid could not be written into the lock file");
    }
    Ok(Lock { _file: file })
}

/// Refuses while somebody answers on the AWS daemon's socket. A socket file that nobody listens on is nobody.
///
/// # Errors
/// When somebody does, named by pid.
pub fn no_aws_daemon(socket: &Path) -> Result<(), LockError> {
    match UnixStream::connect(socket) {
        Ok(stream) => {
            let holder = rustix::net::sockopt::socket_peercred(&stream)
                .map_or_else(|_| "pid unknown".into(), |cred| format!("pid {}", cred.pid.as_raw_nonzero()));
            Err(LockError::AwsDaemon { socket: socket.to_owned(), holder })
        }
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&e.kind()) => Ok(()),
        // Somebody is there, too busy to accept: EAGAIN. Or it may not be opened: then it cannot be told apart.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Err(LockError::AwsDaemon { socket: socket.to_owned(), holder: "pid unknown, busy".into() })
        }
        Err(source) => Err(LockError::Io { what: "look at", path: socket.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_told_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = take(&state).unwrap();
        let error = take(&state).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        take(&state).unwrap();
    }

    #[test]
    fn a_listener_on_the_aws_socket_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("ipamd.sock");
        no_aws_daemon(&socket).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = no_aws_daemon(&socket).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(listener);
        no_aws_daemon(&socket).unwrap();
    }
}
