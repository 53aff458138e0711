//! What a run left behind, so that runs can be laid side by side.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use wipam_core::event::{CallId, Ms};

/// Which ADD: the run of the daemon (counted from 0), and its call in it.
pub type AddNo = (u32, CallId);

/// What became of one ADD, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Given {
    /// When it was asked for, pool clock.
    pub at: Ms,
    /// Namespace and name of the pod.
    pub pod: String,
    /// Its addresses; none if it failed, or was still waiting at the end.
    pub addresses: Vec<IpAddr>,
    /// How long it waited, ms; `None` without an answer.
    pub waited: Option<Ms>,
    /// Why it failed.
    pub error: Option<String>,
    /// The policy's reason.
    pub reason: String,
}

/// One mutating EC2 call and the plan behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// When, pool clock.
    pub at: Ms,
    /// What.
    pub call: String,
    /// The reason of the last plan that proposed anything.
    pub reason: String,
}

/// Figures of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Played {
    /// How the column is called.
    pub label: String,
    /// EC2 calls by action.
    pub calls: BTreeMap<&'static str, u32>,
    /// Failed EC2 calls by code.
    pub errors: BTreeMap<String, u32>,
    /// How long each served ADD waited, ms, sorted.
    #[serde(skip)]
    pub waits: Vec<Ms>,
    /// ADDs that failed.
    pub failed: u32,
    /// ADDs without an answer at the end.
    pub unanswered: u32,
    /// Milliseconds that addresses were in the pool and nobody's, summed over addresses.
    pub idle_ms: u128,
    /// The same of all addresses in the pool.
    pub held_ms: u128,
    /// ADDs of a pod that had had an address before.
    pub returns: u32,
    /// Of them those that got the same one.
    pub sticky: u32,
    /// Proposals that the guard refused.
    pub guard: u64,
    /// Faults of policies.
    pub faults: u64,
    /// Decisions.
    pub decisions: u64,
    /// Fuel of all decisions; 0 for native twins.
    pub fuel: u64,
    /// Events fed from the record.
    pub events: u64,
    /// Of them ADDs and DELs.
    pub pod_events: u64,
    /// What became of each ADD.
    #[serde(skip)]
    pub given: BTreeMap<AddNo, Given>,
    /// Mutating EC2 calls in order.
    #[serde(skip)]
    pub steps: Vec<Step>,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// How long the run took.
    #[serde(skip)]
    pub took: Duration,
}

impl Played {
    /// CreateNetworkInterface and AssignPrivateIpAddresses together.
    pub fn address_calls(&self) -> u32 {
        ["CreateNetworkInterface", "AssignPrivateIpAddresses"].iter().filter_map(|a| self.calls.get(a)).sum()
    }

    /// The wait below which so many of a hundred served ADDs stayed, ms; 0 without any.
    pub fn wait(&self, percent: usize) -> Ms {
        let n = self.waits.len();
        if n == 0 {
            return 0;
        }
        // The nearest rank, counted from 1.
        let rank = (n * percent).div_ceil(100).clamp(1, n);
        self.waits.get(rank - 1).copied().unwrap_or(0)
    }

    /// Idle address-hours, in thousandths.
    pub fn idle_milli_hours(&self) -> u128 {
        self.idle_ms / 3_600
    }
}

/// Where two runs first part, at most `most` of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parting {
    /// ADDs with another outcome in the second run.
    pub adds: Vec<(Given, Option<Given>)>,
    /// How many there are in all.
    pub adds_in_all: usize,
    /// EC2 calls by place in the order of calls.
    pub steps: Vec<(usize, Option<Step>, Option<Step>)>,
    /// How many there are in all.
    pub steps_in_all: usize,
}

/// Compares two runs of one record.
pub fn parting(a: &Played, b: &Played, most: usize) -> Parting {
    let mut out = Parting::default();
    for (no, first) in &a.given {
        let second = b.given.get(no);
        if second.is_some_and(|s| s.addresses == first.addresses && s.error.is_some() == first.error.is_some()) {
            continue;
        }
        out.adds_in_all += 1;
        if out.adds.len() < most {
            out.adds.push((first.clone(), second.cloned()));
        }
    }
    for i in 0..a.steps.len().max(b.steps.len()) {
        let (x, y) = (a.steps.get(i), b.steps.get(i));
        if x.map(|s| &s.call) == y.map(|s| &s.call) {
            continue;
        }
        out.steps_in_all += 1;
        if out.steps.len() < most {
            out.steps.push((i + 1, x.cloned(), y.cloned()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let played = Played { waits: (1..=100).collect(), ..Played::default() };
        assert_eq!((played.wait(50), played.wait(99), played.wait(100)), (50, 99, 100));
        let one = Played { waits: vec![7], ..Played::default() };
        assert_eq!((one.wait(50), one.wait(99)), (7, 7));
        assert_eq!(Played::default().wait(99), 0);
    }
}
