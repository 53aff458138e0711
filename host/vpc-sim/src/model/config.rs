//! What a simulated VPC starts from. All of it is serde (kebab-case), so that a scenario file in YAML or JSON can hold it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::fault::FaultRule;
use crate::instance_types::InstanceType;

/// A VPC with its subnets, the instances that exist at time 0, and how EC2 behaves in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct VpcConfig {
    /// Seed of everything random: ids, address placement, latency jitter, faults by probability.
    pub seed: u64,
    /// For example `eu-central-1`.
    pub region: String,
    /// The account that owns everything: twelve digits.
    pub account: String,
    /// The VPC's id.
    pub vpc_id: String,
    /// The VPC's ranges, the first is the primary one.
    pub cidrs: Vec<Ipv4Net>,
    /// The subnets; each lies in one of `cidrs` and overlaps no other.
    pub subnets: Vec<SubnetConfig>,
    /// Instances that run from time 0.
    pub instances: Vec<InstanceConfig>,
    /// Instance types that the built-in table lacks or that shall differ from it.
    pub instance_types: Vec<InstanceType>,
    /// Where public addresses of primary interfaces come from.
    pub public_pool: Ipv4Net,
    /// How many interfaces the account may have in the region.
    pub max_network_interfaces: usize,
    /// How EC2 picks addresses and prefixes in a subnet.
    pub placement: Placement,
    /// How long things take.
    pub timing: Timing,
    /// Rate limits by action pattern. The exact name wins, then the longest pattern that ends in `*`. Actions that
    /// match the same pattern share its bucket. No match: no limit.
    pub throttles: BTreeMap<String, Bucket>,
    /// Faults that hold from the start.
    pub faults: Vec<FaultRule>,
}

impl Default for VpcConfig {
    /// One /16 with one /24 in zone `a`, no instance, instant answers, no throttling.
    fn default() -> Self {
        Self {
            seed: 1,
            region: "eu-central-1".into(),
            account: "123456789012".into(),
            vpc_id: "vpc-0123456789abcdef0".into(),
            cidrs: vec![Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16)],
            subnets: vec![SubnetConfig {
                id: "subnet-0000000000000000a".into(),
                cidr: Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 24),
                ..SubnetConfig::default()
            }],
            instances: Vec::new(),
            instance_types: Vec::new(),
            public_pool: Ipv4Net::new_assert(Ipv4Addr::new(203, 0, 113, 0), 24),
            max_network_interfaces: 5000,
            placement: Placement::default(),
            timing: Timing::default(),
            throttles: BTreeMap::new(),
            faults: Vec::new(),
        }
    }
}

/// One subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SubnetConfig {
    /// The subnet's id.
    pub id: String,
    /// Its range, /8 to /28.
    pub cidr: Ipv4Net,
    /// The letter of its availability zone, appended to the region.
    pub zone: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Ranges that others already use.
    pub occupied: Vec<Ipv4Net>,
    /// So many further addresses, at random places, that others already use.
    pub occupied_random: u32,
    /// One address used in each aligned /28, so that no prefix can be had though addresses are free.
    pub fragmented: bool,
}

impl Default for SubnetConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            cidr: Ipv4Net::default(),
            zone: "a".into(),
            tags: BTreeMap::new(),
            occupied: Vec::new(),
            occupied_random: 0,
            fragmented: false,
        }
    }
}

/// One instance with its primary interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct InstanceConfig {
    /// The instance's id; empty: one is made.
    pub id: String,
    /// For example `m5.large`.
    pub instance_type: String,
    /// Where its primary interface lies.
    pub subnet: String,
    /// The primary address; absent: EC2 picks.
    pub private_ip: Option<Ipv4Addr>,
    /// Whether the primary address has a public one in front.
    pub public_ip: bool,
    /// Groups of the primary interface; empty: the VPC's default group.
    pub security_groups: Vec<String>,
    /// Tags of the instance.
    pub tags: BTreeMap<String, String>,
    /// Secondary addresses that the primary interface has from the start.
    pub secondary_addresses: u32,
    /// /28 prefixes that the primary interface has from the start.
    pub prefixes: u32,
    /// The role whose (dummy) credentials the metadata service hands out.
    pub role: String,
}

impl Default for InstanceConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            instance_type: "m5.large".into(),
            subnet: String::new(),
            private_ip: None,
            public_ip: false,
            security_groups: Vec::new(),
            tags: BTreeMap::new(),
            secondary_addresses: 0,
            prefixes: 0,
            role: "node".into(),
        }
    }
}

/// How EC2 picks addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The lowest free one: easy to read in tests.
    #[default]
    Lowest,
    /// From a random point of the subnet onwards, which fragments it, as the real service does.
    Scattered,
}

/// How long things take, all in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Timing {
    /// How far Describe* calls lag behind for interfaces.
    pub describe_lag_ms: u64,
    /// How far instance metadata lags behind.
    pub metadata_lag_ms: u64,
    /// How long a new interface is `pending`.
    pub create_ms: u64,
    /// From AttachNetworkInterface to `attached`.
    pub attach_ms: u64,
    /// From DetachNetworkInterface to `available`.
    pub detach_ms: u64,
    /// How long an answer takes, by action pattern (matched as throttles are). No match: at once.
    pub latency: BTreeMap<String, Latency>,
}

impl Timing {
    /// Figures of the order that users of the real service see on a good day.
    pub fn typical() -> Self {
        let latency = [
            ("Describe*", 80, 60),
            ("*", 250, 150),
            ("CreateNetworkInterface", 500, 400),
            ("AttachNetworkInterface", 700, 500),
            ("AssignPrivateIpAddresses", 350, 300),
        ];
        Self {
            describe_lag_ms: 1_000,
            metadata_lag_ms: 2_000,
            create_ms: 500,
            attach_ms: 1_500,
            detach_ms: 5_000,
            latency: latency
                .into_iter()
                .map(|(action, base_ms, jitter_ms)| (action.to_owned(), Latency { base_ms, jitter_ms }))
                .collect(),
        }
    }
}

/// How long an answer takes: `base_ms` and up to `jitter_ms` more, evenly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Latency {
    /// Milliseconds at least.
    pub base_ms: u64,
    /// At most so many milliseconds more.
    pub jitter_ms: u64,
}

/// A token bucket. One call takes one token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Bucket {
    /// Most tokens it holds; it starts full.
    pub capacity: u32,
    /// Tokens that come back in a second.
    pub refill_per_s: f64,
}

impl Bucket {
    /// The classes that EC2's documentation gives for an account by default: 100 and 20/s for Describe*, 50 and 5/s
    /// for each mutating action.
    pub fn documented() -> BTreeMap<String, Self> {
        let mutating = Self { capacity: 50, refill_per_s: 5.0 };
        super::request::ACTIONS
            .iter()
            .map(|action| match action.starts_with("Describe") {
                true => ((*action).to_owned(), Self { capacity: 100, refill_per_s: 20.0 }),
                false => ((*action).to_owned(), mutating),
            })
            .collect()
    }
}

/// The value whose pattern matches `action`: the exact name, else the longest pattern that ends in `*`.
pub(crate) fn by_pattern<'a, T>(map: &'a BTreeMap<String, T>, action: &str) -> Option<(&'a str, &'a T)> {
    if let Some((name, value)) = map.get_key_value(action) {
        return Some((name, value));
    }
    map.iter()
        .filter(|(pattern, _)| pattern_matches(pattern, action))
        .max_by_key(|(pattern, _)| pattern.len())
        .map(|(pattern, value)| (pattern.as_str(), value))
}

/// Whether `pattern` (a name, or a beginning followed by `*`) matches `text`.
pub(crate) fn pattern_matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}
