//! `wipam.v1.Node` and `grpc.health.v1` on the daemon's socket.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use wipam_core::event::{Add, Key, Reply};
use wipam_rpc::queue::Queue;
use wipam_rpc::v1::node_server::{Node, NodeServer};
use wipam_rpc::{Cause, v1};

use crate::actor::{Gone, Handle};
use crate::links::Links;
use crate::peers::Peers;
use crate::requests::{addresses, invalid, key, patience, pod, range_sets, ranges, refusal, requested};

/// How far the daemon is.
#[derive(Clone)]
pub enum Phase {
    /// Not there yet; the text says what it waits for.
    Starting(String),
    /// Serving.
    Serving(Handle),
    /// Draining; nothing new begins.
    Stopping,
}

/// The service.
#[derive(Clone)]
pub struct Service {
    /// How far the daemon is.
    pub phase: watch::Receiver<Phase>,
    /// To identify namespaces and name veths.
    pub links: Arc<dyn Links>,
    /// Releases on disk: an ADD takes out the one of its own attachment.
    pub queue: Queue,
    /// Name of the VPC's network.
    pub network: String,
    /// Patience with a caller who brings no deadline.
    pub add_timeout: Duration,
}

fn stopping(_: Gone) -> Status {
    Cause::Stopping.status("ipamd is stopping; the runtime will try again")
}

fn unexpected(reply: &Reply) -> Status {
    Cause::Internal.status(format!("ipamd gave an answer of another kind: {reply:?}; please report this"))
}

impl Service {
    fn now(&self) -> Result<Handle, Status> {
        match &*self.phase.borrow() {
            Phase::Serving(handle) => Ok(handle.clone()),
            Phase::Starting(what) => Err(Cause::Starting.status(format!("ipamd is starting: {what}"))),
            Phase::Stopping => Err(stopping(Gone)),
        }
    }

    /// Waits for the daemon to serve, not longer than `patience`.
    async fn serving(&self, patience: Duration) -> Result<Handle, Status> {
        let mut phase = self.phase.clone();
        let wait = phase.wait_for(|phase| !matches!(phase, Phase::Starting(_)));
        // Whether it came in time or not, the phase says what to answer.
        let _ = tokio::time::timeout(patience, wait).await;
        self.now()
    }

    /// A DEL that waits on disk for this very attachment is older than this ADD, and must not end it later.
    async fn forget_queued(&self, key: &Key) {
        let (queue, key) = (self.queue.clone(), key.clone());
        let taken = spawn_blocking(move || queue.take(&key.network, &key.container_id, &key.ifname)).await;
        if let Ok(Err(error)) = taken {
            tracing::warn!(%error, "a queued release could not be looked at");
        }
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn add(&self, request: Request<v1::AddRequest>) -> Result<Response<v1::AddReply>, Status> {
        let since = crate::clock::Stopwatch::start();
        let patience = patience(request.metadata(), self.add_timeout);
        let request = request.into_inner();
        let key = key(request.attachment)?;
        let pod = pod(request.pod, &key)?;
        let config = ranges(&request.ipam_config, &key.network, &self.network)?;
        let requested = requested(&request.requested)?;
        let host_ifname = match &config {
            None => self.links.host_veth(&pod.namespace, &pod.name, &key.ifname),
            Some(_) => String::new(),
        };
        let handle = self.serving(patience).await?;
        handle.metrics().count("awscni_add_ip_req_count", &[]);
        self.forget_queued(&key).await;
        let (links, path) = (self.links.clone(), request.netns);
        let netns = match path.is_empty() {
            true => None,
            false => spawn_blocking(move || links.identify(&path)).await.ok(),
        };
        let left = patience.saturating_sub(since.elapsed());
        let deadline = handle.clock().now() + u64::try_from(left.as_millis()).unwrap_or(u64::MAX / 4);
        let ranges = config.as_ref().map(range_sets);
        let add = Add { key, pod, netns, host_ifname, requested, deadline, ranges };
        match handle.add(add).await.map_err(stopping)? {
            Reply::Added { addresses: given, host_ifname } => {
                let net = handle.net();
                Ok(Response::new(v1::AddReply {
                    addresses: addresses(given),
                    host_ifname,
                    mtu: net.mtu,
                    vpc_cidrs: net.vpc_cidrs,
                    external_snat: net.external_snat,
                    ipam_result: config.map(|c| c.ipam_result()).unwrap_or_default(),
                }))
            }
            Reply::Refused(error) => Err(refusal(&error, handle.clock())),
            other => Err(unexpected(&other)),
        }
    }

    async fn del(&self, request: Request<v1::DelRequest>) -> Result<Response<v1::DelReply>, Status> {
        let v1::DelRequest { attachment, network_removed, cause, .. } = request.into_inner();
        let key = key(attachment)?;
        // Not waited for: the plugin cleans up itself and leaves the release on disk.
        let handle = self.now()?;
        let reason = if cause == "setup-failed" { "SetupNSFailed" } else { "PodDeleted" };
        handle.metrics().count("awscni_del_ip_req_count", &[("reason", reason)]);
        let cause = if cause.is_empty() { "del".to_owned() } else { cause };
        handle.metrics().count("wipam_dels_total", &[("cause", if cause == "del" { "del" } else { reason })]);
        match handle.del(key, cause, network_removed).await.map_err(stopping)? {
            Reply::Deleted { addresses: given, host_ifname } => {
                Ok(Response::new(v1::DelReply { addresses: addresses(given), host_ifname }))
            }
            Reply::Refused(error) => Err(refusal(&error, handle.clock())),
            other => Err(unexpected(&other)),
        }
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckReply>, Status> {
        let v1::CheckRequest { attachment, addresses: believed } = request.into_inner();
        let key = key(attachment)?;
        let believed = requested(&believed)?;
        let found = self.now()?.check(key.clone()).await.map_err(stopping)?;
        let Some((given, host_ifname)) = found else {
            return Err(Status::not_found(format!("no address is recorded for {key}")));
        };
        if let Some(foreign) = believed.iter().find(|ip| !given.iter().any(|g| g.address.addr() == **ip)) {
            let ours: Vec<_> = given.iter().map(|g| g.address.addr().to_string()).collect();
            return Err(Status::failed_precondition(format!("{key} has {}, not {foreign}", ours.join(", "))));
        }
        Ok(Response::new(v1::CheckReply { addresses: addresses(given), host_ifname }))
    }

    async fn gc(&self, request: Request<v1::GcRequest>) -> Result<Response<v1::GcReply>, Status> {
        let v1::GcRequest { network, valid } = request.into_inner();
        if network.is_empty() {
            return Err(invalid("a GC names its network"));
        }
        let valid = valid
            .into_iter()
            .map(|attachment| match attachment.network.is_empty() {
                true => key(Some(v1::Attachment { network: network.clone(), ..attachment })),
                false => key(Some(attachment)),
            })
            .collect::<Result<_, _>>()?;
        let handle = self.now()?;
        match handle.gc(network, valid).await.map_err(stopping)? {
            Reply::Collected { released } => Ok(Response::new(v1::GcReply { released })),
            Reply::Refused(error) => Err(refusal(&error, handle.clock())),
            other => Err(unexpected(&other)),
        }
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let v1::StatusRequest { network, ipam_config } = request.into_inner();
        let not_ready = |reason: String| Ok(Response::new(v1::StatusReply { ready: false, reason }));
        let config = ranges(&ipam_config, &network, &self.network)?;
        let handle = match self.now() {
            Ok(handle) => handle,
            Err(status) => return not_ready(status.message().to_owned()),
        };
        // A range needs nothing but us.
        let ready = if config.is_some() { Ok(()) } else { handle.ready().borrow().clone() };
        match ready {
            Ok(()) => Ok(Response::new(v1::StatusReply { ready: true, reason: String::new() })),
            Err(reason) => not_ready(reason),
        }
    }
}

/// Serves until `shutdown`; then no new connection is taken and those under way are answered.
///
/// # Errors
/// The transport failed.
pub async fn serve(
    peers: Peers,
    service: Service,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut phase = service.phase.clone();
    let follow = async move {
        loop {
            let serving = matches!(*phase.borrow_and_update(), Phase::Serving(_));
            let status = match serving {
                true => tonic_health::ServingStatus::Serving,
                false => tonic_health::ServingStatus::NotServing,
            };
            for name in ["", "wipam.v1.Node"] {
                health.set_service_status(name, status).await;
            }
            if phase.changed().await.is_err() {
                return;
            }
        }
    };
    let serve = Server::builder()
        .add_service(health_service)
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(incoming(peers), shutdown);
    tokio::pin!(follow);
    tokio::pin!(serve);
    tokio::select! {
        result = &mut serve => result,
        () = &mut follow => serve.await,
    }
}

fn incoming(peers: Peers) -> impl Stream<Item = io::Result<UnixStream>> {
    stream::unfold(peers, |peers| async move {
        let next = peers.accept().await;
        Some((Ok(next), peers))
    })
}
