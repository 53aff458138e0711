//! `vpc-sim`: the simulated VPC as a process: EC2 API, instance metadata and, as root, the wire.

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Vpc, VpcConfig};
use wipam_vpc_sim::wire::{self, Wire, WireSpec};
use wipam_vpc_sim::{ImdsOptions, Sim, serve_api, serve_imds};

/// How often the wire looks whether the model has changed: a comparison of two numbers.
const FOLLOW_EVERY: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Examples:
  vpc-sim example-config > vpc.yaml             a VPC with two nodes, to start from
  vpc-sim serve --config vpc.yaml               the EC2 API on http://127.0.0.1:4566
  vpc-sim serve --config vpc.yaml --wire demo   and, as root, a namespace for each node; the API is at
                                                http://198.18.255.1, metadata at http://169.254.169.254
  vpc-sim sweep demo                            remove what a killed `--wire demo` left behind

`serve` prints one line of JSON when everything is up:
  {\"event\":\"ready\",\"wire\":\"demo4711\",\"endpoint\":…,\"instances\":[{\"id\":…,\"netns\":…,\"private_ip\":…}],…}
It ends with SIGINT or SIGTERM and removes everything it made.

Exit codes: 0 ended as asked, 1 failed (the reason is on standard error), 2 wrong arguments.";

/// A simulated VPC: EC2 API, instance metadata, and a network of namespaces that behaves like EC2's.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the VPC until SIGINT or SIGTERM.
    Serve(Serve),
    /// Remove namespaces of runs of `serve --wire PREFIX` whose process is gone; prints their names.
    Sweep {
        /// The PREFIX they were started with.
        prefix: String,
    },
    /// Print a configuration with two nodes.
    ExampleConfig,
}

#[derive(Args)]
struct Serve {
    /// The VPC: YAML (or JSON), see `vpc-sim example-config`.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Make the wire; its names start with PREFIX (lower-case letters) and this process's id. Needs root, ip and nft.
    #[arg(long, value_name = "PREFIX")]
    wire: Option<String>,
    /// Where this machine reaches the EC2 API; port 0 picks one. Nodes of a wire have it at 198.18.255.1:80 anyway.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4566")]
    api_listen: SocketAddr,
    /// Serve metadata of one instance on this machine, for tests without a wire; may be given many times.
    #[arg(long, value_name = "INSTANCE=ADDR", value_parser = imds_at)]
    imds: Vec<ImdsAt>,
    /// The hop limit of metadata answers on the wire: 1 keeps them from pods, as EC2's default does.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    imds_hop_limit: u8,
    /// End also when standard input closes, for a parent that may be killed.
    #[arg(long)]
    until_stdin_closes: bool,
}

/// Where one instance's metadata is served.
#[derive(Clone)]
struct ImdsAt {
    instance: String,
    addr: SocketAddr,
}

fn imds_at(text: &str) -> Result<ImdsAt, String> {
    let (instance, addr) = text.split_once('=').ok_or("INSTANCE=ADDR is wanted, such as i-a=127.0.0.1:1338")?;
    let addr = addr.parse().map_err(|_| format!("{addr:?} is not an address with a port"))?;
    Ok(ImdsAt { instance: instance.to_owned(), addr })
}

/// The line that says everything is up.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    wire: Option<String>,
    /// For processes of this machine.
    endpoint: String,
    /// For processes in a node's namespace.
    node_endpoint: Option<String>,
    imds: Option<String>,
    vpc_netns: Option<String>,
    inet_netns: Option<String>,
    internet_host: Option<Ipv4Addr>,
    instances: Vec<ReadyInstance>,
}

#[derive(Serialize)]
struct ReadyInstance {
    id: String,
    netns: Option<String>,
    private_ip: Option<Ipv4Addr>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
    let outcome = match cli.command {
        Verb::Serve(args) => run(args),
        Verb::Sweep { prefix } => sweep(&prefix),
        Verb::ExampleConfig => example_config(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vpc-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to standard output")
}

fn sweep(prefix: &str) -> Result<()> {
    wire::sweep(prefix)?.iter().try_for_each(|name| say(name))
}

fn example_config() -> Result<()> {
    let mut config = VpcConfig::default();
    let first = config.subnets[0].id.clone();
    let second = SubnetConfig {
        id: "subnet-0000000000000000b".into(),
        cidr: ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 1, 0), 24),
        ..SubnetConfig::default()
    };
    config.instances = [("i-a", &first), ("i-b", &second.id)]
        .map(|(id, subnet)| InstanceConfig {
            id: id.into(),
            subnet: subnet.clone(),
            public_ip: true,
            ..InstanceConfig::default()
        })
        .into();
    config.subnets.push(second);
    say(serde_yaml_ng::to_string(&config)?.trim_end())
}

fn load(path: &Path) -> Result<Vpc> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: VpcConfig = serde_yaml_ng::from_str(&text)
        .with_context(|| format!("{} is not a VPC; `vpc-sim example-config` shows one", path.display()))?;
    Vpc::new(config).with_context(|| format!("{} cannot be", path.display()))
}

fn run(args: Serve) -> Result<()> {
    let vpc = load(&args.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(args, vpc))
}

/// The model's generation and the wire it asks for.
fn wanted(sim: &Sim, name: &str) -> (u64, WireSpec) {
    sim.with(|vpc, now_ms| (vpc.generation(now_ms), WireSpec::of_vpc(name, vpc, now_ms)))
}

/// Starts everything, says so, follows the model until asked to end, removes everything.
async fn serve(args: Serve, vpc: Vpc) -> Result<()> {
    // Before anything is made, so that a signal during the start ends it in order, too.
    let end = end_requested(args.until_stdin_closes)?;
    let sim = Arc::new(Sim::new(vpc));
    let mut wire = match &args.wire {
        Some(prefix) => Some(Follower::up(prefix, Arc::clone(&sim)).await?),
        None => None,
    };
    let outcome = serve_and_follow(&args, &sim, &mut wire, end).await;
    if let Some(follower) = wire {
        tokio::task::spawn_blocking(|| follower.wire.down()).await??;
    }
    outcome
}

async fn serve_and_follow(
    args: &Serve,
    sim: &Arc<Sim>,
    wire: &mut Option<Follower>,
    end: impl Future<Output = ()>,
) -> Result<()> {
    // Servers end when this is dropped.
    let mut servers = JoinSet::new();
    let endpoint = start_servers(args, sim, wire.as_ref().map(|follower| &follower.wire), &mut servers).await?;
    say(&serde_json::to_string(&ready(endpoint, sim, wire.as_ref().map(|follower| &follower.wire)))?)?;
    let follow = async {
        match wire {
            Some(follower) => follower.follow().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end => Ok(()),
        () = follow => Ok(()),
        Some(ended) = servers.join_next() => Ok(ended?.context("a server failed")?),
    }
}

/// Starts the servers; answers where this machine reaches the API.
async fn start_servers(
    args: &Serve,
    sim: &Arc<Sim>,
    wire: Option<&Wire>,
    servers: &mut JoinSet<std::io::Result<()>>,
) -> Result<String> {
    let bind =
        async |addr: SocketAddr| TcpListener::bind(addr).await.with_context(|| format!("cannot listen on {addr}"));
    let forever = std::future::pending::<()>;
    let api = bind(args.api_listen).await?;
    let endpoint = format!("http://{}", api.local_addr()?);
    servers.spawn(serve_api(api, Arc::clone(sim), forever()));
    for ImdsAt { instance, addr } in &args.imds {
        let options = ImdsOptions { instance: Some(instance.clone()), hop_limit: None };
        servers.spawn(serve_imds(bind(*addr).await?, Arc::clone(sim), options, forever()));
    }
    if let Some(wire) = wire {
        let inside =
            |addr| anyhow::Ok(TcpListener::from_std(wire::listen(&wire.vpc_netns(), SocketAddr::from((addr, 80)))?)?);
        servers.spawn(serve_api(inside(wire::API)?, Arc::clone(sim), forever()));
        let options = ImdsOptions { instance: None, hop_limit: Some(u32::from(args.imds_hop_limit)) };
        servers.spawn(serve_imds(inside(wire::IMDS)?, Arc::clone(sim), options, forever()));
    }
    Ok(endpoint)
}

/// Keeps a wire as the model wants it.
struct Follower {
    wire: Wire,
    sim: Arc<Sim>,
    /// The generation that was last applied; `None` after a failure.
    applied: Option<u64>,
}

impl Follower {
    async fn up(prefix: &str, sim: Arc<Sim>) -> Result<Self> {
        let swept = wire::sweep(prefix)?;
        if !swept.is_empty() {
            tracing::info!(?swept, "removed what a dead run had left");
        }
        let name = wire::name_for_this_process(prefix);
        let up = move || {
            let (generation, spec) = wanted(&sim, &name);
            Ok(Self { wire: Wire::up(&spec)?, sim, applied: Some(generation) })
        };
        tokio::task::spawn_blocking(up).await?
    }

    async fn follow(&mut self) {
        let mut ticks = tokio::time::interval(FOLLOW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.catch_up();
        }
    }

    fn catch_up(&mut self) {
        if self.applied == Some(self.sim.with(|vpc, now_ms| vpc.generation(now_ms))) {
            return;
        }
        let (generation, spec) = wanted(&self.sim, self.wire.name());
        // Servers run on the other threads meanwhile.
        match tokio::task::block_in_place(|| self.wire.apply(&spec)) {
            Ok(changes) => {
                if !changes.is_empty() {
                    tracing::info!(changes = %serde_json::json!(changes), "the wire follows");
                }
                self.applied = Some(generation);
            }
            Err(error) => {
                if self.applied.take().is_some() {
                    tracing::error!(%error, "the wire cannot follow; trying again");
                }
            }
        }
    }
}

/// Ends when the process is asked to end.
fn end_requested(until_stdin_closes: bool) -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (closed_tx, closed) = oneshot::channel();
    if until_stdin_closes {
        // A thread of its own: the runtime would wait for a read that may never end.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            let _ = closed_tx.send(());
        });
    }
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => tracing::info!("ending: SIGINT"),
            _ = terminate.recv() => tracing::info!("ending: SIGTERM"),
            _ = closed, if until_stdin_closes => tracing::info!("ending: standard input was closed"),
        }
    })
}

fn ready(endpoint: String, sim: &Sim, wire: Option<&Wire>) -> Ready {
    let name = wire.map(|wire| wire.name().to_owned());
    let (_, spec) = wanted(sim, name.as_deref().unwrap_or("none"));
    let primary = |id: &str| spec.enis.iter().find(|eni| eni.instance == id && eni.device_index == 0);
    let instance = |node: &wire::NodeSpec| ReadyInstance {
        id: node.instance.clone(),
        netns: name.as_ref().map(|_| node.netns.clone()),
        private_ip: primary(&node.instance).map(|eni| eni.primary),
    };
    Ready {
        event: "ready",
        endpoint,
        node_endpoint: wire.map(|_| format!("http://{}", wire::API)),
        imds: wire.map(|_| format!("http://{}", wire::IMDS)),
        vpc_netns: wire.map(Wire::vpc_netns),
        inet_netns: wire.map(Wire::inet_netns),
        internet_host: wire.map(|_| wire::INTERNET_HOST),
        instances: spec.nodes.iter().map(instance).collect(),
        wire: name,
    }
}
