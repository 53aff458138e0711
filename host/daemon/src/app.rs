//! The life of the daemon: take the node, open the sockets, find out where it is, serve, drain.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use wipam_core::cloud::{EniFacts, InstanceFacts};
use wipam_core::event::{Event, PodRef};
use wipam_core::node::Node;
use wipam_ec2::Facts;
use wipam_rpc::queue::Queue;

use crate::actor::{Actor, Handle, Parts};
use crate::checkpoint::{self, Store};
use crate::clock::{self, Clock};
use crate::conflist;
use crate::deciders::Watch;
use crate::introspect::{self, Pages};
use crate::links::Links;
use crate::lock::{self, Lock};
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::recorder::Recorder;
use crate::server::{self, Phase, Service};
use crate::settings::{Listen, Loaded, Settings};
use crate::tasks::{self, Tasks};
use crate::world::{Connected, World, chain, core_config};

/// Between attempts to reach what a start needs: the first and the longest pause.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A daemon that holds its node and has its sockets open, and has not begun.
pub struct Daemon {
    loaded: Loaded,
    world: Arc<dyn World>,
    metrics: Arc<Metrics>,
    peers: Peers,
    pages: Vec<(introspect::Bound, axum::Router)>,
    service: Service,
    phase: watch::Sender<Phase>,
    node_name: String,
    /// Held until the end.
    _lock: Lock,
}

impl Daemon {
    /// Takes the lock, refuses beside another daemon, and opens every socket. Needs a tokio runtime.
    ///
    /// # Errors
    /// Somebody else serves this node, or a socket cannot be opened: all named by path, pid, errno.
    pub async fn open(loaded: Loaded, world: Arc<dyn World>) -> anyhow::Result<Daemon> {
        let settings = &loaded.settings;
        let lock = lock::take(&settings.paths.state_dir)?;
        lock::no_aws_daemon(&settings.paths.aws_socket)?;
        let metrics = Arc::new(Metrics::default());
        metrics.set("awscni_build_info", &[("version", env!("CARGO_PKG_VERSION")), ("goversion", "")], 1);
        let (phase, phase_rx) = watch::channel(Phase::Starting("reading instance metadata".into()));
        let peers = Peers::bind(&settings.paths.socket, metrics.clone())?;
        let service = Service {
            phase: phase_rx.clone(),
            links: world.links(settings),
            queue: Queue::new(settings.paths.queue_dir.clone()),
            network: settings.pool.network.clone(),
            add_timeout: settings.pool.add_timeout,
        };
        let node_name = node_name(&settings.log.node_name);
        let about = json!({
            "version": env!("CARGO_PKG_VERSION"), "node-name": node_name, "pid": std::process::id(),
            "warnings": loaded.warnings,
        });
        let pages = Pages { phase: phase_rx, metrics: metrics.clone(), about: Arc::new(about) };
        let pages = open_pages(settings, pages, &metrics).await?;
        tracing::info!(socket = %settings.paths.socket.display(), "listening");
        Ok(Daemon { loaded, world, metrics, peers, pages, service, phase, node_name, _lock: lock })
    }

    /// Serves until `shutdown`, then drains: calls under way are answered, the last checkpoint is written.
    ///
    /// # Errors
    /// A server failed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Daemon { loaded, world, metrics, peers, pages, service, phase, node_name, _lock } = self;
        let settings = loaded.settings;
        let stop = CancellationToken::new();
        let mut servers = vec![tokio::spawn({
            let (service, stop) = (service.clone(), stop.clone().cancelled_owned());
            async move { server::serve(peers, service, stop).await.map_err(anyhow::Error::from) }
        })];
        for (bound, router) in pages {
            let stop = stop.clone().cancelled_owned();
            servers.push(tokio::spawn(async move { Ok(introspect::serve(bound, router, stop).await?) }));
        }
        let starter = Starter { settings: &settings, world, metrics, links: service.links, phase: &phase, node_name };
        tokio::pin!(shutdown);
        let started = tokio::select! {
            started = starter.start() => Some(started),
            () = &mut shutdown => None,
        };
        if let Some(started) = started {
            let handle = started.handle.clone();
            let tasks = Tasks {
                settings: settings.clone(),
                handle: handle.clone(),
                links: starter.links.clone(),
                facts: started.facts,
                queue: service.queue,
            };
            let background = tasks.spawn(started.instance, started.watch, &stop);
            phase.send_replace(Phase::Serving(handle.clone()));
            handle.event(Event::Serving);
            tracing::info!("serving");
            shutdown.await;
            tracing::info!("stopping: calls under way are answered, nothing new begins");
            phase.send_replace(Phase::Stopping);
            take_conflist_away(&settings);
            handle.drain(settings.pool.drain).await;
            stop.cancel();
            for task in background {
                let _ = task.await;
            }
        }
        phase.send_replace(Phase::Stopping);
        stop.cancel();
        close(servers, settings.pool.drain).await
    }
}

/// Waits for the servers, but not for a client that never hangs up.
async fn close(servers: Vec<JoinHandle<anyhow::Result<()>>>, patience: Duration) -> anyhow::Result<()> {
    let all = async {
        for server in servers {
            server.await??;
        }
        Ok(())
    };
    tokio::time::timeout(patience, all).await.unwrap_or(Ok(()))
}

fn take_conflist_away(settings: &Settings) {
    if settings.paths.conflist_remove
        && let Err(error) = conflist::remove(settings)
    {
        tracing::warn!(%error, "the conflist stays");
    }
}

fn node_name(given: &str) -> String {
    match given {
        "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        name => name.to_owned(),
    }
}

async fn open_pages(
    settings: &Settings,
    pages: Pages,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Vec<(introspect::Bound, axum::Router)>> {
    let http = &settings.http;
    let mut open = Vec::new();
    if !http.introspection_off {
        let all = matches!(http.introspection, Listen::Unix(_));
        let router = introspect::router(pages.clone(), all, !http.metrics_off);
        open.push((introspect::bind(&http.introspection, metrics).await?, router));
        tracing::info!(address = %http.introspection, "introspection");
    }
    if let Some(address) = http.metrics.as_ref().filter(|_| !http.metrics_off) {
        open.push((introspect::bind(address, metrics).await?, introspect::metrics_router(pages)));
        tracing::info!(%address, "metrics");
    }
    Ok(open)
}

/// What a start needs.
struct Starter<'a> {
    settings: &'a Settings,
    world: Arc<dyn World>,
    metrics: Arc<Metrics>,
    links: Arc<dyn Links>,
    phase: &'a watch::Sender<Phase>,
    node_name: String,
}

/// A node that is up.
struct Started {
    handle: Handle,
    facts: Arc<dyn Facts>,
    instance: InstanceFacts,
    watch: Box<dyn Watch>,
}

impl Starter<'_> {
    /// Waits for EC2, metadata and the kernel, whatever it takes, and starts the state machine.
    async fn start(&self) -> Started {
        let connect = || self.world.connect(self.settings, self.metrics.clone());
        let Connected { facts, .. } = self.insist("instance metadata", connect).await;
        let instance =
            self.insist("what EC2 says of this instance", async || facts.instance().await.map_err(|e| chain(&e))).await;
        let attached =
            self.insist("the list of interfaces", async || facts.attached().await.map_err(|e| chain(&e))).await;
        self.insist("the host's network", async || {
            let (links, instance) = (self.links.clone(), instance.clone());
            spawn_blocking(move || links.set_up_node(&instance)).await.map_err(|e| e.to_string())?
        })
        .await;
        // Source NAT begins with the step above and changes the ports of connections that are already open: the first
        // call over one of them would get no answer.
        let Connected { cloud, facts } = self.insist("instance metadata", connect).await;
        let (deciders, watch) =
            self.insist("the policy host", async || self.world.deciders(self.settings, self.metrics.clone())).await;
        let (node, store, clock) = self.restore(&instance, &attached).await;
        let parts = Parts {
            node,
            deciders,
            clock,
            store,
            cloud,
            links: self.links.clone(),
            metrics: self.metrics.clone(),
            recorder: Recorder::new(self.settings.http.record_bytes),
            names: (self.node_name.clone(), instance.instance.clone()),
        };
        let handle = Actor::spawn(parts, tasks::net_info(self.settings, &instance));
        handle.event(Event::Metadata { enis: attached });
        Started { handle, facts, instance, watch }
    }

    /// Tries until it works; meanwhile status, ADDs and the log say what is waited for.
    async fn insist<T, F>(&self, what: &str, mut attempt: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, String>>,
    {
        let mut pause = RETRY.0;
        let mut said = String::new();
        loop {
            match attempt().await {
                Ok(value) => return value,
                Err(why) => {
                    let text = format!("waiting for {what}: {why}");
                    if text != said {
                        tracing::warn!("{text}; trying again");
                    }
                    self.phase.send_replace(Phase::Starting(text.clone()));
                    said = text;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// The node as it was, from the files, or from what the host itself shows.
    async fn restore(&self, instance: &InstanceFacts, attached: &[EniFacts]) -> (Node, Store, Clock) {
        let paths = &self.settings.paths;
        let mut store = Store::new(self.world.disk(), paths.state_dir.join("state.json"), paths.aws_file.clone());
        let source = self.world.clocks();
        let found = store.load(&instance.instance, source.wall_ns());
        checkpoint::report(&found, &self.metrics);
        let clock = Clock::new(source, clock::boot_id().unwrap_or_default(), found.saved.as_ref());
        let primary = attached.iter().find(|eni| eni.mac == instance.primary_mac);
        let subnet = primary.map(|eni| eni.subnet.clone()).unwrap_or_default();
        let config = core_config(self.settings, instance, &subnet);
        let rebuild = found.saved.is_none();
        let (now, veth) = (clock.now(), |pod: &PodRef| self.links.host_veth(&pod.namespace, &pod.name, "eth0"));
        let mut node = Node::new(config, now, found.saved);
        if let Some(file) = &found.aws {
            tracing::info!(allocations = file.allocations.len(), "the AWS daemon's checkpoint is taken over");
            node.merge_aws(now, file, &veth);
        }
        if rebuild {
            let links = self.links.clone();
            let own = match spawn_blocking(move || links.observe()).await {
                Ok(Ok(observed)) => observed.own,
                _ => Vec::new(),
            };
            let file = checkpoint::from_links(&own, &self.settings.pool.network, found.aws.as_ref());
            if !file.allocations.is_empty() {
                tracing::warn!(leases = file.allocations.len(), "leases were rebuilt from the host's own links");
                node.merge_aws(now, &file, &veth);
            }
        }
        tracing::info!(leases = node.leases().len(), now = clock.rfc3339(now), "state restored");
        (node, store, clock)
    }
}
