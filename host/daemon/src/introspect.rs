//! HTTP for `wipam`, for people and for Prometheus. On a unix socket everything; on a TCP address nothing that changes
//! anything, since any process of the node can open that.

use std::future::Future;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::actor::{Gone, Handle};
use crate::gauges;
use crate::metrics::Metrics;
use crate::peers::{BindError, Peers};
use crate::server::Phase;
use crate::settings::Listen;

/// What the pages are made from.
#[derive(Clone)]
pub struct Pages {
    /// How far the daemon is.
    pub phase: watch::Receiver<Phase>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What is known from the start: version, node, warnings.
    pub about: Arc<Value>,
}

/// The daemon does not serve; says why.
struct NotServing(String);

impl IntoResponse for NotServing {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": self.0 }))).into_response()
    }
}

impl From<Gone> for NotServing {
    fn from(gone: Gone) -> NotServing {
        NotServing(gone.to_string())
    }
}

impl Pages {
    fn handle(&self) -> Result<Handle, NotServing> {
        match &*self.phase.borrow() {
            Phase::Serving(handle) => Ok(handle.clone()),
            Phase::Starting(what) => Err(NotServing(format!("ipamd is starting: {what}"))),
            Phase::Stopping => Err(Gone.into()),
        }
    }
}

/// Pages that change nothing.
const PAGES: [&str; 6] = ["/v1/status", "/v1/enis", "/v1/policies", "/v1/decisions", "/v1/record", "/metrics"];

/// The pages; `all` with those that change something.
pub fn router(pages: Pages, all: bool, metrics: bool) -> Router {
    let mut router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/enis", get(enis))
        .route("/v1/policies", get(policies))
        .route("/v1/decisions", get(decisions))
        .route("/v1/record", get(record))
        .fallback(|| async { (StatusCode::NOT_FOUND, Json(json!({ "AvailableCommands": PAGES }))) });
    if all {
        router = router.route("/v1/policies/reset", post(reset));
    }
    if metrics {
        router = router.route("/metrics", get(metrics_page));
    }
    router.with_state(pages)
}

/// Only `/metrics`, for an address that others may read.
pub fn metrics_router(pages: Pages) -> Router {
    Router::new().route("/metrics", get(metrics_page)).with_state(pages)
}

async fn status(State(pages): State<Pages>) -> Result<Json<Value>, NotServing> {
    let mut body = (*pages.about).clone();
    let phase = pages.phase.borrow().clone();
    let (name, more) = match phase {
        Phase::Starting(what) => ("starting", json!({ "waiting-for": what })),
        Phase::Stopping => ("stopping", json!({})),
        Phase::Serving(handle) => {
            let node = handle.status().await?;
            let ready = handle.ready().borrow().clone();
            let policies = handle.policies().await?;
            let node = serde_json::to_value(node).map_err(|e| NotServing(e.to_string()))?;
            let more = json!({
                "ready": ready.is_ok(), "not-ready-because": ready.err(), "node": node, "policies": policies,
                "now": handle.clock().rfc3339(handle.clock().now()), "now-ms": handle.clock().now(),
            });
            ("serving", more)
        }
    };
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.insert("phase".into(), name.into());
        body.extend(more);
    }
    Ok(Json(body))
}

async fn enis(State(pages): State<Pages>) -> Result<Json<Value>, NotServing> {
    let status = pages.handle()?.status().await?;
    Ok(Json(gauges::aws_enis(&status)))
}

async fn policies(State(pages): State<Pages>) -> Result<Json<Value>, NotServing> {
    Ok(Json(pages.handle()?.policies().await?))
}

#[derive(Deserialize)]
struct Last {
    n: Option<usize>,
}

async fn decisions(State(pages): State<Pages>, Query(last): Query<Last>) -> Result<Json<Value>, NotServing> {
    Ok(Json(pages.handle()?.decisions(last.n.unwrap_or(50)).await?))
}

async fn record(State(pages): State<Pages>) -> Result<Response, NotServing> {
    let bytes = pages.handle()?.record().await?.map_err(|e| NotServing(e.to_string()))?;
    if bytes.is_empty() {
        return Err(NotServing("the flight recorder is off (record-bytes is 0)".into()));
    }
    Ok(([(header::CONTENT_TYPE, "application/zstd")], bytes).into_response())
}

async fn reset(State(pages): State<Pages>) -> Result<Json<Value>, NotServing> {
    let handle = pages.handle()?;
    handle.reset_policies().await?;
    Ok(Json(handle.policies().await?))
}

async fn metrics_page(State(pages): State<Pages>) -> Response {
    if let Ok(handle) = pages.handle()
        && let Ok(status) = handle.status().await
    {
        gauges::set(&pages.metrics, &status);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], pages.metrics.render()).into_response()
}

/// A listener of either kind, bound.
pub enum Bound {
    /// A unix socket.
    Unix(Peers),
    /// A TCP address.
    Tcp(TcpListener),
}

/// Binds where `listen` says.
///
/// # Errors
/// Path or address, and errno.
pub async fn bind(listen: &Listen, metrics: &Arc<Metrics>) -> Result<Bound, BindError> {
    match listen {
        Listen::Unix(path) => Peers::bind(path, metrics.clone()).map(Bound::Unix),
        Listen::Tcp(address) => match TcpListener::bind(address).await {
            Ok(listener) => Ok(Bound::Tcp(listener)),
            Err(source) => Err(BindError { path: address.to_string().into(), source }),
        },
    }
}

/// Serves until `shutdown`.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    bound: Bound,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    match bound {
        Bound::Unix(peers) => axum::serve(peers, router).with_graceful_shutdown(shutdown).await,
        Bound::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(shutdown).await,
    }
}
