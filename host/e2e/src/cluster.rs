//! Everything together: the VPC and its nodes, up and down.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, VpcConfig};

use crate::node::{Node, Plan};
use crate::programs::{is_root, missing, ours};
use crate::sim::{Sim, Vpc};
use crate::site::Site;
use crate::{image, site};

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes, each in a subnet of its own (at most 16).
    pub nodes: usize,
    /// Their instance type.
    pub instance_type: String,
    /// Settings of each ipamd beside the harness's own.
    pub env: Vec<(String, String)>,
    /// Further networks of each node: name of the file in the configuration directory, and the list. `@SOCKET@` and
    /// `@QUEUE@` in it stand for those of the node's ipamd.
    pub networks: Vec<(String, Value)>,
    /// A policies document to start with; none: the shipped policies.
    pub policies: Option<String>,
    /// How long EC2 takes, see [`wipam_vpc_sim::model::Timing`].
    pub timing: wipam_vpc_sim::model::Timing,
    /// Whether to start ipamd, and wait until pods can run.
    pub start_ipamd: bool,
    /// Where the pods' image is kept between runs; none: it is made anew.
    pub cache: Option<PathBuf>,
}

impl Default for Options {
    /// Two nodes that take 3 interfaces of 6 addresses each, answers at once.
    fn default() -> Self {
        Self {
            nodes: 2,
            instance_type: "t3.medium".into(),
            env: Vec::new(),
            networks: Vec::new(),
            policies: None,
            timing: wipam_vpc_sim::model::Timing::default(),
            start_ipamd: true,
            cache: None,
        }
    }
}

/// A running cluster. Dropping it takes everything away.
pub struct Cluster {
    nodes: Vec<Node>,
    vpc: Vpc,
    site: Arc<Site>,
    archive: PathBuf,
    /// Last: connections are closed by its threads.
    _runtime: Arc<Runtime>,
}

impl Cluster {
    /// Starts everything and waits until pods can run. While it lives, SIGINT and SIGTERM take it away and end the
    /// process with 130.
    ///
    /// # Errors
    /// Not root, missing programs, or what did not come up and why; nothing is left then.
    pub fn up(options: &Options) -> Result<Cluster> {
        if !is_root() {
            bail!("namespaces and containers need root");
        }
        if let packages @ [_, ..] = &missing()[..] {
            bail!("missing: apt-get install -y --no-install-recommends {}", packages.join(" "));
        }
        site::sweep().context("what an earlier run left cannot be removed")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let runtime = Arc::new(runtime);
        let site = Arc::new(Site::new()?);
        go_on_signal(&runtime, &site)?;
        let mut vpc = None;
        site.keep_sim(|| {
            let (sim, ready) = Sim::start(&ours("vpc-sim")?, &vpc_config(options), site.dir())?;
            vpc = Some(ready);
            Ok(sim)
        })?;
        let vpc = vpc.context("the VPC is up")?;
        let nodes = vpc.instances.iter().map(|(id, netns, ip)| {
            let policies = site.dir().join(id).join("policies");
            Node::new(Plan {
                site: site.clone(),
                runtime: runtime.clone(),
                id: id.clone(),
                netns: netns.clone(),
                ip: *ip,
                ec2_endpoint: vpc.node_endpoint.clone(),
                env: options.env.clone(),
                networks: options.networks.clone(),
                policies,
            })
        });
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let archive = archive(options, site.dir())?;
        let cluster = Cluster { nodes, vpc, site, archive, _runtime: runtime };
        cluster.start(options)?;
        Ok(cluster)
    }

    /// Starts the nodes side by side.
    fn start(&self, options: &Options) -> Result<()> {
        let start = |node: &Node| {
            if let Some(document) = &options.policies {
                node.write_policies(document, &[])?;
            }
            // ipamd talks to EC2 while containerd starts.
            if options.start_ipamd {
                node.start_ipamd()?;
            }
            node.start_containerd(&self.archive)?;
            if options.start_ipamd {
                node.wait_for_network()?;
            }
            node.write_networks()?;
            node.wait_for_networks()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.nodes.iter().map(|node| scope.spawn(move || start(node))).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The archive with the pods' image.
    pub fn archive(&self) -> &Path {
        &self.archive
    }

    /// The simulated VPC.
    pub fn vpc(&self) -> &Vpc {
        &self.vpc
    }

    /// The working directory, with all logs.
    pub fn dir(&self) -> &Path {
        self.site.dir()
    }

    /// Takes everything away, as dropping does, and says what could not be.
    ///
    /// # Errors
    /// What is left.
    pub fn down(self) -> Result<()> {
        self.site.down()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("--- ipamd of {}:\n{}", node.id(), node.ipamd_log(40));
            }
        }
        if let Err(error) = self.site.down() {
            eprintln!("something is left: {error:#}");
        }
    }
}

/// On SIGINT or SIGTERM takes everything away and ends the process.
fn go_on_signal(runtime: &Runtime, site: &Arc<Site>) -> Result<()> {
    let _inside = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let site = Arc::downgrade(site);
    runtime.spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        eprintln!("\ninterrupted: taking everything away");
        let down = tokio::task::spawn_blocking(move || site.upgrade().map_or(Ok(()), |site| site.down()));
        if let Ok(Err(error)) = down.await {
            eprintln!("something is left: {error:#}");
        }
        std::process::exit(130);
    });
    Ok(())
}

fn archive(options: &Options, dir: &Path) -> Result<PathBuf> {
    let Some(cache) = &options.cache else {
        let path = dir.join("image.tar");
        image::write(&path)?;
        return Ok(path);
    };
    std::fs::create_dir_all(cache)?;
    let path = cache.join("image.tar");
    if !path.is_file() {
        let temp = cache.join(format!("image.tar.{}", std::process::id()));
        image::write(&temp)?;
        std::fs::rename(&temp, &path)?;
    }
    Ok(path)
}

/// One /16 with a /24 for each node; each node has a public address in front.
fn vpc_config(options: &Options) -> VpcConfig {
    let letters = ('a'..='p').take(options.nodes);
    let subnets: Vec<_> = letters
        .clone()
        .enumerate()
        .map(|(index, letter)| SubnetConfig {
            id: format!("subnet-0000000000000000{letter}"),
            cidr: ipnet_24(u8::try_from(index).unwrap_or(u8::MAX)),
            ..SubnetConfig::default()
        })
        .collect();
    let instances = letters.zip(&subnets).map(|(letter, subnet)| InstanceConfig {
        id: format!("i-{letter}"),
        instance_type: options.instance_type.clone(),
        subnet: subnet.id.clone(),
        public_ip: true,
        ..InstanceConfig::default()
    });
    let instances = instances.collect();
    VpcConfig { subnets, instances, timing: options.timing.clone(), ..VpcConfig::default() }
}

fn ipnet_24(index: u8) -> ipnet::Ipv4Net {
    ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 0, index, 0), 24)
}
