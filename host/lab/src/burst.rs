//! Many pods on an empty node: what they cost in EC2 calls, under our sizers and under the AWS daemon's arithmetic, in
//! the same simulated VPC.

use std::collections::BTreeMap;

use wipam_core::event::{Event, Ms};
use wipam_core::record::Line;
use wipam_policy::load::NoFiles;
use wipam_policy::{
    Candidate, Document, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyHost, Refusal, WasmEngine,
};
use wipam_vpc_sim::instance_types;
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Timing, Vpc, VpcConfig};

use crate::awsd::{Awsd, Target};
use crate::replay::{Collector, in_charge};
use crate::sim::{BEGIN, NodeSim, Tape};

const NODE: &str = "i-0000000000000000a";

/// Before the first pod: the pool has come to rest.
const START: Ms = 60_000;

/// After the last pod: long enough for a burst's surplus to be given back.
const REST: Ms = 120_000;

/// Longest wait for the last pod of a daemon that grows by one address in a pass, ms.
const MOST: Ms = 6 * 3_600_000;

/// Who sizes the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizer {
    /// `warm-ip-target` with so many.
    WarmIpTarget(u32),
    /// `default`.
    Default,
    /// The AWS daemon.
    Aws(Target),
}

impl Sizer {
    /// For a table.
    pub fn label(self) -> String {
        match self {
            Sizer::WarmIpTarget(n) => format!("warm-ip-target, warm {n}"),
            Sizer::Default => "default".into(),
            Sizer::Aws(Target::WarmIp(n)) => format!("AWS daemon, WARM_IP_TARGET={n}"),
            Sizer::Aws(Target::WarmEni(n)) => format!("AWS daemon, WARM_ENI_TARGET={n}"),
        }
    }
}

/// What a burst cost.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// EC2 calls by action, from the start of the daemon.
    pub calls: BTreeMap<&'static str, u32>,
    /// How long each served pod waited, ms, sorted.
    pub waits: Vec<Ms>,
    /// Pods that got none.
    pub failed: usize,
    /// Free addresses at the end.
    pub free: u64,
}

impl Cost {
    /// CreateNetworkInterface and AssignPrivateIpAddresses.
    pub fn address_calls(&self) -> u32 {
        self.count("CreateNetworkInterface") + self.count("AssignPrivateIpAddresses")
    }
    /// Calls of one action.
    pub fn count(&self, action: &str) -> u32 {
        self.calls.get(action).copied().unwrap_or(0)
    }
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum BurstError {
    /// Not in the table.
    #[error("instance type {0} is not in the table; write it as EC2 does, e.g. m5.large")]
    Type(String),
    /// A policy.
    #[error(transparent)]
    Policy(#[from] Refusal),
    /// The document or the VPC.
    #[error("the simulation cannot be set up: {0}")]
    Setup(String),
}

fn vpc(instance_type: &str) -> Result<Vpc, BurstError> {
    if instance_types::lookup(instance_type).is_none() {
        return Err(BurstError::Type(instance_type.into()));
    }
    let config = VpcConfig {
        subnets: vec![SubnetConfig {
            id: "subnet-a".into(),
            cidr: ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 0, 0, 0), 18),
            ..SubnetConfig::default()
        }],
        instances: vec![InstanceConfig {
            id: NODE.into(),
            instance_type: instance_type.into(),
            subnet: "subnet-a".into(),
            ..InstanceConfig::default()
        }],
        timing: Timing::typical(),
        ..VpcConfig::default()
    };
    Vpc::new(config).map_err(|e| BurstError::Setup(e.to_string()))
}

/// Runs one burst: `pods` pods, `gap` ms between two.
///
/// # Errors
/// [`BurstError`].
pub fn burst(instance_type: &str, sizer: Sizer, pods: u32, gap: Ms) -> Result<Cost, BurstError> {
    let vpc = vpc(instance_type)?;
    match sizer {
        Sizer::Aws(target) => aws(vpc, target, pods, gap),
        Sizer::Default => ours(vpc, "sizer: default", pods, gap),
        Sizer::WarmIpTarget(n) => {
            ours(vpc, &format!("sizer: {{name: warm-ip-target, settings: {{warm: {n}}}}}"), pods, gap)
        }
    }
}

/// The record of a day on a simulated node, with components: `pods` pods come, a tenth of them go and others come
/// again and again (`churn` times one goes and comes), the sizer is swapped in the midst, and ipamd is killed once.
///
/// # Errors
/// [`BurstError`].
pub fn day(instance_type: &str, pods: u32, churn: u32) -> Result<Vec<Line>, BurstError> {
    let engine = WasmEngine::new(EngineLimits::default()).map_err(|e| BurstError::Setup(format!("{e:#}")))?;
    // The canary has a wall-clock limit that a busy machine may break; what runs here is shipped.
    let gatekeeper = Gatekeeper::new(engine, Environment::default()).without_canary();
    let vet = |text: &str| -> Result<Candidate, BurstError> {
        let document = Document::parse(text).map_err(BurstError::Setup)?;
        Ok(gatekeeper.vet_document(&document, &NoFiles)?)
    };
    let first = vet("allocator: sticky-podref\nsizer: {name: warm-ip-target, settings: {warm: 2}}")?;
    let second = vet("allocator: sticky-podref\nsizer: {name: warm-ip-target, settings: {warm: 4}}")?;
    let seen = Collector::new(true);
    let host = |candidate: &Candidate| {
        PolicyHost::new(candidate, HostOptions { sink: Some(seen.clone()), ..HostOptions::quiet() })
    };
    let mut policies = host(&first);
    let mut sim = NodeSim::new(vpc(instance_type)?, NODE, |_| ());
    sim.tape = Some(Tape { lines: Vec::new(), seen: seen.clone() });
    sim.mark(in_charge(&policies), true);
    sim.serve(&mut policies);
    sim.run(&mut policies, START);
    let mut day = Day { sim, pods: Vec::new(), sandboxes: 0 };
    for i in 0..pods {
        day.come(&mut policies, i);
        day.sim.run(&mut policies, 250);
    }
    day.churn(&mut policies, churn / 2);
    policies.control().swap(&second);
    day.sim.mark(in_charge(&policies), false);
    day.sim.feed(&mut policies, Event::PolicySwapped);
    day.churn(&mut policies, churn - churn / 2);
    // kill -9 and a new start from the disk, on the policies that are in charge then.
    day.sim.begin_again();
    policies = host(&second);
    day.sim.mark(in_charge(&policies), true);
    day.sim.serve(&mut policies);
    day.sim.run(&mut policies, START);
    day.churn(&mut policies, pods / 10);
    Ok(day.sim.tape.take().map(|tape| tape.lines).unwrap_or_default())
}

/// Pods that come and go.
struct Day {
    sim: NodeSim,
    /// Number and sandbox of each pod that is there.
    pods: Vec<(u32, String)>,
    sandboxes: u32,
}

impl Day {
    fn come(&mut self, policies: &mut PolicyHost, pod: u32) {
        self.sandboxes += 1;
        let sandbox = format!("sandbox-{}", self.sandboxes);
        self.sim.add(policies, &sandbox, &format!("pod-{pod}"), &format!("uid-{pod}"));
        self.pods.push((pod, sandbox));
    }

    /// The oldest goes and comes again under its name; every third time another pod comes in its place.
    fn churn(&mut self, policies: &mut PolicyHost, times: u32) {
        for i in 0..times {
            if self.pods.is_empty() {
                return;
            }
            let (pod, sandbox) = self.pods.remove(0);
            self.sim.del(policies, &sandbox);
            self.sim.run(policies, 700);
            self.come(policies, if i % 3 == 2 { pod + 10_000 } else { pod });
            self.sim.run(policies, 300);
        }
        self.sim.run(policies, REST);
    }
}

fn ours(vpc: Vpc, document: &str, pods: u32, gap: Ms) -> Result<Cost, BurstError> {
    let document = Document::parse(document).map_err(BurstError::Setup)?;
    let mut policies = PolicyHost::native(&document, Environment::default(), HostOptions::quiet())?;
    let mut sim = NodeSim::new(vpc, NODE, |_| ());
    sim.keep_disk = false;
    sim.serve(&mut policies);
    sim.run_until(&mut policies, BEGIN + START);
    for i in 0..pods {
        sim.run_until(&mut policies, BEGIN + START + Ms::from(i) * gap);
        sim.add(&mut policies, &format!("c{i}"), &format!("pod-{i}"), "uid");
    }
    sim.run(&mut policies, REST);
    let mut waits = std::mem::take(&mut sim.trace.waits);
    waits.sort_unstable();
    Ok(Cost {
        calls: std::mem::take(&mut sim.trace.calls),
        failed: pods as usize - waits.len(),
        waits,
        free: sim.node.pool().counts().free,
    })
}

fn aws(vpc: Vpc, target: Target, pods: u32, gap: Ms) -> Result<Cost, BurstError> {
    let mut daemon = Awsd::start(vpc, NODE, target).map_err(BurstError::Setup)?;
    for i in 0..pods {
        daemon.run_until(START + Ms::from(i) * gap);
        daemon.add();
    }
    let last = START + Ms::from(pods) * gap;
    let mut at = last;
    while daemon.unserved() > 0 && at < last + MOST {
        at += 60_000;
        daemon.run_until(at);
    }
    daemon.run_until(at + REST);
    let mut waits = std::mem::take(&mut daemon.waits);
    waits.sort_unstable();
    Ok(Cost {
        calls: std::mem::take(&mut daemon.calls),
        failed: daemon.unserved(),
        waits,
        free: daemon.available().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aws_daemon_takes_a_call_for_each_pod_with_warm_1_and_one_for_each_interface_by_default() {
        let warm = burst("m4.4xlarge", Sizer::Aws(Target::WarmIp(1)), 232, 30_000).unwrap();
        assert_eq!((warm.waits.len(), warm.failed), (232, 0));
        assert_eq!(warm.address_calls(), 232, "{:?}", warm.calls);
        assert_eq!(warm.count("CreateNetworkInterface"), 7);
        let default = burst("m4.4xlarge", Sizer::Aws(Target::WarmEni(1)), 232, 30_000).unwrap();
        assert_eq!(default.address_calls(), 8, "{:?}", default.calls);
        assert_eq!(default.waits.len(), 232);
    }

    #[test]
    fn an_unknown_type_is_told() {
        let error = burst("m5.tiny", Sizer::Default, 1, 0).unwrap_err().to_string();
        assert!(error.contains("m5.tiny"), "{error}");
    }
}
