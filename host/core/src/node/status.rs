//! What the node shows of itself: for `wipam status`, metrics and tests.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Node;
use crate::event::{Key, Ms, PodRef};
use crate::guard::Counters;
use crate::lease::{Phase, Tombstone};
use crate::policy::{Counts, EniView, Limits, OutcomeView};

/// The whole of it. Times are milliseconds on the pool's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Now.
    pub now_ms: Ms,
    /// Whether an address can be given; else why not.
    pub ready: Result<(), String>,
    /// Limits in force.
    pub limits: Limits,
    /// Pools; the VPC's first.
    pub pools: Vec<PoolStatus>,
    /// Leases in order of age.
    pub leases: Vec<LeaseStatus>,
    /// Keys that were taken over and whose late DEL changes nothing.
    pub tombstones: Vec<Tombstone>,
    /// ADDs without an answer.
    pub waiting: usize,
    /// Operations at EC2.
    pub operations: Vec<OutcomeView>,
    /// Back-off: operation, subnet, code, until.
    pub back_off: Vec<(String, String, String, Ms)>,
    /// Breaches of the guard by number.
    pub guard: Counters,
    /// Good checkpoints, and what they served together.
    pub commits: (u64, u64),
    /// Why the last checkpoint failed.
    pub storage_error: Option<String>,
    /// Addresses on the host's links, routes or rules that no lease has.
    pub carried: Vec<IpAddr>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Network.
    pub network: String,
    /// Set of a range network.
    pub set: u8,
    /// "eni" or "range".
    pub kind: String,
    /// Addresses by state.
    pub counts: Counts,
    /// Interfaces.
    pub enis: Vec<EniView>,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Key.
    pub key: Key,
    /// Pod.
    pub pod: PodRef,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Interface id of the first.
    pub eni: String,
    /// Since when.
    pub assigned_at: Ms,
    /// "committing", "active", "held".
    pub phase: String,
    /// When *held* ends.
    pub held_until: Option<Ms>,
    /// Outside every known source.
    pub orphan: bool,
}

impl Node {
    /// The node as it is now.
    pub fn status(&self, now: Ms) -> Status {
        Status {
            now_ms: now,
            ready: self.ready(now),
            limits: self.limits(),
            pools: self.pool_status(),
            leases: self.lease_status(),
            tombstones: self.tombs.values().cloned().collect(),
            waiting: self.waits.len(),
            operations: self
                .cloud
                .ops
                .values()
                .map(|op| OutcomeView {
                    op: op.name().into(),
                    eni: op.eni.and_then(|no| self.pools[0].index_of(no)).unwrap_or(crate::policy::NO_ENI),
                    asked: op.units(),
                    applied: 0,
                    code: format!("{:?}", op.step).to_lowercase(),
                    at_ms: op.since,
                })
                .collect(),
            back_off: self
                .barriers(now)
                .map(|(op, subnet, b)| (op.to_string(), subnet.to_string(), b.code.to_string(), b.until))
                .collect(),
            guard: self.guard,
            commits: (self.commit.writes, self.commit.served),
            storage_error: self.commit.failing.clone(),
            carried: self.carried.iter().copied().collect(),
        }
    }

    fn pool_status(&self) -> Vec<PoolStatus> {
        self.pools
            .iter()
            .enumerate()
            .map(|(i, p)| PoolStatus {
                network: p.network.clone(),
                set: p.set,
                kind: if p.range { "range" } else { "eni" }.into(),
                counts: self.counts(i),
                enis: p.eni_views(&self.cfg.subnets),
            })
            .collect()
    }

    fn lease_status(&self) -> Vec<LeaseStatus> {
        self.leases
            .iter()
            .map(|l| LeaseStatus {
                key: l.key.clone(),
                pod: l.pod.clone(),
                addresses: l.addresses.iter().map(|a| a.given.address.addr()).collect(),
                eni: l.addresses.first().map(|a| a.given.eni.clone()).unwrap_or_default(),
                assigned_at: l.assigned_at,
                phase: match l.phase {
                    Phase::Committing { .. } => "committing",
                    Phase::Active => "active",
                    Phase::Held { .. } => "held",
                }
                .into(),
                held_until: l.held().then(|| self.held_until(l)),
                orphan: l.orphan,
            })
            .collect()
    }
}
