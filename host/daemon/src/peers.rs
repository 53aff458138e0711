//! Unix sockets that only root (or whoever runs the daemon) may use: mode 0600, and the peer's credentials looked at,
//! since a mode can be changed and a descriptor be handed on.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};

use crate::metrics::Metrics;

/// A listener that turns foreign users away.
pub struct Peers {
    listener: UnixListener,
    path: PathBuf,
    metrics: Arc<Metrics>,
    own_uid: u32,
}

/// A socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {}: {source}", path.display())]
pub struct BindError {
    /// Path of the socket.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl Peers {
    /// Binds `path` with mode 0600 and its directory (made if missing) with 0755. A socket file that is left from a
    /// process that ended is replaced; anything else at the path is not.
    ///
    /// # Errors
    /// Path and errno. The caller holds the lock that makes a left-over socket ours.
    pub fn bind(path: &Path, metrics: Arc<Metrics>) -> Result<Peers, BindError> {
        let listener = bind(path).map_err(|source| BindError { path: path.to_owned(), source })?;
        Ok(Peers { listener, path: path.to_owned(), metrics, own_uid: rustix::process::geteuid().as_raw() })
    }

    /// The next connection of somebody who may connect.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if self.may(&stream) => return stream,
                Ok(_) => self.metrics.count("wipam_rejected_peers_total", &[]),
                Err(error) => {
                    // Out of descriptors, say: those in use must be given back first.
                    tracing::warn!(%error, socket = %self.path.display(), "a connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn may(&self, stream: &UnixStream) -> bool {
        match stream.peer_cred() {
            Ok(cred) if cred.uid() == 0 || cred.uid() == self.own_uid => true,
            Ok(cred) => {
                tracing::warn!(uid = cred.uid(), pid = cred.pid(), socket = %self.path.display(), "a foreign user was turned away");
                false
            }
            Err(error) => {
                tracing::warn!(%error, socket = %self.path.display(), "a peer without credentials was turned away");
                false
            }
        }
    }
}

impl Drop for Peers {
    /// A socket without listener makes the plugin ask a dead path; its absence says the same, sooner.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl axum::serve::Listener for Peers {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        (Peers::accept(self).await, ())
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is not a socket is there")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    // Bound under another name first, so that the path never leads to a socket with a wider mode.
    let temp = path.with_extension("new");
    let _ = fs::remove_file(&temp);
    let socket = tokio::net::UnixSocket::new_stream()?;
    socket.bind(&temp)?;
    fs::set_permissions(&temp, Permissions::from_mode(0o600))?;
    // A storm of plugins: the kernel caps this at net.core.somaxconn.
    let listener = socket.listen(4096)?;
    fs::rename(&temp, path)?;
    Ok(listener)
}
