//! A small HTTP/1.1 server over hyper. Unlike a framework it can break a connection instead of answering, which is what
//! a lost reply is, and sets the TTL of what it sends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The largest request body; EC2's own forms are far smaller.
const MAX_BODY: usize = 1 << 20;

/// A request that was read wholly.
pub(crate) struct Asked {
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    /// A header's text, if it is there and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// What becomes of a request.
pub(crate) enum Reply {
    /// An answer.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// None: the connection breaks.
    Broken,
}

impl Reply {
    pub(crate) fn new(status: u16, content_type: &str, body: impl Into<String>) -> Self {
        Self::Answer { status, headers: vec![("content-type", content_type.to_owned())], body: body.into() }
    }
}

/// The connection shall break.
#[derive(Debug, thiserror::Error)]
#[error("the simulated reply is lost")]
struct BreakConnection;

/// Serves until `shutdown` is ready; connections that are open then are closed. `ttl` is set on every connection.
pub(crate) async fn serve<H, F>(
    listener: TcpListener,
    ttl: Option<u32>,
    shutdown: impl Future<Output = ()>,
    handler: H,
) -> io::Result<()>
where
    H: Fn(Asked) -> F + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return Ok(()),
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if let Some(ttl) = ttl {
                    stream.set_ttl(ttl)?;
                }
                connections.spawn(connection(stream, peer, Arc::clone(&handler)));
            }
            // The peer went away before we came; the listener is still good.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

async fn connection<H, F>(stream: TcpStream, peer: SocketAddr, handler: Arc<H>)
where
    H: Fn(Asked) -> F + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let handler = Arc::clone(&handler);
        async move {
            let (head, body) = request.into_parts();
            let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
                return Ok(answer(413, Vec::new(), "the request body is larger than 1 MiB".into()));
            };
            let asked = Asked {
                peer,
                method: head.method,
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                headers: head.headers,
                body: body.to_bytes(),
            };
            match handler(asked).await {
                Reply::Answer { status, headers, body } => Ok(answer(status, headers, body)),
                Reply::Broken => Err(BreakConnection),
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

fn answer(status: u16, headers: Vec<(&'static str, String)>, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}
