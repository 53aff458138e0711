//! Opens `wipam.v1.Node` over ipamd's unix socket. Knows nothing of what either side does with it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::v1::node_client::NodeClient;

/// Nobody could be reached behind the socket. The cause is in `source`.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket is missing, refuses, or may not be opened.
    #[error("ipamd does not answer on {}", socket.display())]
    Socket {
        /// Path of the socket.
        socket: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Something listens, but does not speak HTTP/2.
    #[error("what listens on {} is not ipamd", socket.display())]
    Protocol {
        /// Path of the socket.
        socket: PathBuf,
        /// What the transport said.
        #[source]
        source: tonic::transport::Error,
    },
}

/// Connects to the daemon behind `socket`.
///
/// The socket is opened before this returns, so that a daemon that is not there is told apart from a call that failed.
/// A connection that breaks later is opened anew by the next call. No deadline is set: give each call its own with
/// [`tonic::Request::set_timeout`] and keep a timer beside it, since a daemon that hangs keeps no deadline.
pub async fn connect(socket: &Path) -> Result<NodeClient<Channel>, ConnectError> {
    let first = open(socket).await.map_err(|source| ConnectError::Socket { socket: socket.to_owned(), source })?;
    let first = Arc::new(Mutex::new(Some(first)));
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let path = path.clone();
        async move {
            let stream = match first {
                Some(stream) => stream,
                None => open(&path).await?,
            };
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    // The name never leaves this process: it only fills HTTP/2's :authority.
    let channel = Endpoint::from_static("http://ipamd")
        .connect_with_connector(connector)
        .await
        .map_err(|source| ConnectError::Protocol { socket: socket.to_owned(), source })?;
    Ok(NodeClient::new(channel))
}

/// How long a full backlog is waited for: the daemon lives, but has not come round to accept.
const BACKLOG_PATIENCE: u32 = 200;

/// Connects, waiting up to two seconds while the listener's backlog is full (a storm of plugins; for unix sockets the
/// kernel says EAGAIN instead of queueing).
async fn open(socket: &Path) -> io::Result<UnixStream> {
    for _ in 0..BACKLOG_PATIENCE {
        match UnixStream::connect(socket).await {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(Duration::from_millis(10)).await,
            other => return other,
        }
    }
    UnixStream::connect(socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_socket_is_told_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("none.sock");
        let error = connect(&socket).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Socket { source, .. } if source.kind() == io::ErrorKind::NotFound));
        assert!(error.to_string().contains("none.sock"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_without_listener_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("stale.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = connect(&socket).await.unwrap_err();
        assert!(
            matches!(&error, ConnectError::Socket { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
        );
    }

    #[tokio::test]
    async fn a_full_backlog_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("busy.sock");
        let listener = tokio::net::UnixSocket::new_stream().unwrap();
        listener.bind(&socket).unwrap();
        let listener = listener.listen(0).unwrap();
        let held = UnixStream::connect(&socket).await.unwrap();
        let second = tokio::spawn({
            let socket = socket.clone();
            async move { open(&socket).await }
        });
        // The second sits in its wait until the first has been accepted.
        tokio::task::yield_now().await;
        let (_first, _) = listener.accept().await.unwrap();
        second.await.unwrap().unwrap();
        drop(held);
    }
}
