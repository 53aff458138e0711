//! What the daemon is built from: the real world, or parts of it exchanged by a test.

use std::sync::Arc;
use std::time::Duration;

use wipam_core::cloud::InstanceFacts;
use wipam_core::config::Config;
use wipam_ec2::{Cloud, Ec2, Facts, Observer, Report};

use crate::clock;
use crate::deciders::{Deciders, Watch};
use crate::files::{self, Disk};
use crate::kernel::Kernel;
use crate::links::Links;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// EC2 and metadata, connected.
#[derive(Clone)]
pub struct Connected {
    /// To call EC2.
    pub cloud: Arc<dyn Cloud>,
    /// To read metadata.
    pub facts: Arc<dyn Facts>,
}

/// Who decides, and what may bring others.
pub type Deciding = (Box<dyn Deciders>, Box<dyn Watch>);

/// Makes the parts that touch the world outside.
#[tonic::async_trait]
pub trait World: Send + Sync + 'static {
    /// Learns who this instance is.
    ///
    /// # Errors
    /// What it waits for, for people; it is tried again.
    async fn connect(&self, settings: &Settings, metrics: Arc<Metrics>) -> Result<Connected, String>;

    /// The host's network.
    fn links(&self, settings: &Settings) -> Arc<dyn Links>;

    /// Who decides.
    ///
    /// # Errors
    /// The policy host cannot be set up; tried again, so that a node without room for Wasm says why it does not serve.
    fn deciders(&self, settings: &Settings, metrics: Arc<Metrics>) -> Result<Deciding, String>;

    /// The disk of the checkpoints.
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(files::Kernel)
    }

    /// The clocks.
    fn clocks(&self) -> Arc<dyn clock::Source> {
        Arc::new(clock::Kernel)
    }
}

/// AWS, netlink, Wasm.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

#[tonic::async_trait]
impl World for Real {
    async fn connect(&self, settings: &Settings, metrics: Arc<Metrics>) -> Result<Connected, String> {
        let ec2 = Ec2::connect(ec2_settings(settings), Arc::new(Calls(metrics))).await;
        let ec2 = Arc::new(ec2.map_err(|e| chain(&e))?);
        Ok(Connected { cloud: ec2.clone(), facts: ec2 })
    }

    fn links(&self, settings: &Settings) -> Arc<dyn Links> {
        Arc::new(Kernel::new(settings.host.clone(), clock::boot_id().unwrap_or_default()))
    }

    fn deciders(&self, settings: &Settings, metrics: Arc<Metrics>) -> Result<Deciding, String> {
        let (host, watch) = crate::policies::open(settings, metrics)?;
        Ok((Box::new(host), Box::new(watch)))
    }
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

fn ec2_settings(settings: &Settings) -> wipam_ec2::Settings {
    let cloud = &settings.cloud;
    let rate = cloud.rate as f64;
    wipam_ec2::Settings {
        ec2_endpoint: cloud.ec2_endpoint.clone(),
        imds_endpoint: cloud.imds_endpoint.clone(),
        timeout: cloud.http_timeout,
        rate,
        burst: u32::try_from(cloud.burst).unwrap_or(u32::MAX),
        cluster: cloud.cluster.clone(),
        tags: cloud.tags.clone(),
        limits: cloud.limits.map(|l| wipam_ec2::Limits {
            max_enis: l.enis,
            ipv4_per_eni: l.ipv4,
            prefix_capable: settings.pool.prefix_mode,
        }),
        ..wipam_ec2::Settings::default()
    }
}

/// Counts every request to EC2.
struct Calls(Arc<Metrics>);

impl Observer for Calls {
    fn observed(&self, report: &Report<'_>) {
        let (metrics, action) = (&self.0, report.action);
        let failed = report.outcome != "ok";
        metrics.count("awscni_ec2api_req_count", &[("fn", action)]);
        let status = if failed { report.outcome } else { "200" };
        let labels = [("api", action), ("error", if failed { "true" } else { "false" }), ("status", status)];
        metrics.observe("awscni_aws_api_latency_ms", &labels, report.latency.as_secs_f64() * 1e3);
        if failed {
            metrics.count("awscni_ec2api_error_count", &[("fn", action)]);
            metrics.count("awscni_aws_api_error_count", &[("api", action), ("error", report.outcome)]);
        }
    }
}

/// The settings of the state machine on this instance. `subnet` is the primary interface's.
pub fn core_config(settings: &Settings, facts: &InstanceFacts, subnet: &str) -> Config {
    let pool = &settings.pool;
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 4);
    let max_enis = settings.cloud.max_enis.map_or(facts.max_enis, |n| n.min(facts.max_enis));
    let base = Config::new(&facts.instance_type, max_enis, facts.ipv4_per_eni, subnet);
    if pool.prefix_mode && !facts.prefix_capable {
        tracing::warn!(
            instance_type = facts.instance_type,
            "this instance type takes no prefixes: lone addresses are used"
        );
    }
    let subnets = match settings.cloud.subnets.is_empty() {
        true => base.subnets.clone(),
        false => settings.cloud.subnets.clone(),
    };
    Config {
        network: pool.network.clone(),
        max_pods: pool.max_pods.unwrap_or(base.max_pods),
        subnets,
        prefix_mode: pool.prefix_mode && facts.prefix_capable,
        cooldown: ms(pool.cooldown),
        held_for: ms(pool.held_for),
        kubelet: pool.kubelet_health.is_some(),
        reuse_own_cooling: pool.reuse_own_cooling,
        allow_reject: pool.allow_reject,
        offer_reserved: pool.offer_reserved,
        max_keep_for: ms(pool.max_keep_for),
        max_reserved_percent: pool.max_reserved_percent,
        settle: ms(pool.settle),
        settle_max: ms(pool.settle_max),
        tick: ms(pool.tick),
        tombstone: ms(pool.tombstone),
        ..base
    }
}
