//! The decision log: what was asked, who answered what and why, what it cost, and what the guard said.

use std::{collections::VecDeque, sync::Arc};

use serde::{Deserialize, Serialize};
use wipam_core::policy::{Action, AnsweredBy, Choice, Fact, Slot, Verdict};

use crate::{digest::Digest, fault::Fault, ladder::Step};

/// Which function of a policy was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// Which address.
    Allocate,
    /// How long to keep it.
    Release,
    /// How many to hold.
    Plan,
}

/// Who a policy is, as far as a log line needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyId {
    /// Name that it gives itself.
    pub name: String,
    /// Version that it gives itself.
    pub version: String,
    /// SHA-256 of the component (unzipped); none for a native policy.
    pub digest: Option<Digest>,
    /// Grows with each swap of this host.
    pub generation: u64,
}

/// What was answered, without the words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// Answer of `allocate`.
    Allocate(Choice),
    /// Answer of `release`, ms.
    Release(u64),
    /// Answer of `plan`.
    Plan {
        /// Proposals.
        actions: Vec<Action>,
        /// Ask again after, ms.
        recheck_ms: Option<u32>,
    },
}

/// What the shadow answered on the same inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowAnswer {
    /// Who it is.
    pub policy: Arc<PolicyId>,
    /// Its answer; none after a fault.
    pub answer: Option<Answered>,
    /// Its words.
    pub reason: String,
    /// Whether it answered as the policy in charge did.
    pub agrees: bool,
    /// Fuel it used.
    pub fuel: Option<u64>,
    /// What went wrong.
    pub fault: Option<Fault>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Counts up from 1 over both slots.
    pub number: u64,
    /// Pool clock, ms.
    pub at_ms: u64,
    /// Name of the network.
    pub network: String,
    /// Slot.
    pub slot: Slot,
    /// Function.
    pub call: CallKind,
    /// Digest of what the policy was shown (layout: module `digest`); none if the host was made without.
    pub inputs: Option<Digest>,
    /// Who answered. After a fault: the twin.
    pub policy: Arc<PolicyId>,
    /// Rung of the ladder that answered.
    pub by: AnsweredBy,
    /// Whether core asked for the native answer.
    pub asked_native: bool,
    /// The answer.
    pub answer: Answered,
    /// One sentence.
    pub reason: String,
    /// Numbers.
    pub facts: Vec<Fact>,
    /// Fuel used by the component that was asked, also when it failed; none if none was asked.
    pub fuel: Option<u64>,
    /// Time from question to answer, ns; includes a failed component's time, not the shadow's.
    pub duration_ns: u64,
    /// What the policy that was asked did wrong. For [`FaultClass::Refused`](crate::fault::FaultClass::Refused) and
    /// `Starves` set later.
    pub fault: Option<Fault>,
    /// The guard's word, once it has spoken.
    pub verdict: Option<Verdict>,
    /// The shadow's answer.
    pub shadow: Option<ShadowAnswer>,
}

/// Hears of decisions as they happen. All methods are called on the deciding thread and must not block.
pub trait DecisionSink: Send + Sync {
    /// A decision was made; its verdict comes later.
    fn decided(&self, _decision: &Decision) {}
    /// The guard spoke.
    fn judged(&self, _slot: Slot, _number: u64, _verdict: &Verdict) {}
    /// A fault, of whatever origin.
    fn faulted(&self, _slot: Slot, _number: u64, _fault: &Fault) {}
    /// The ladder of a slot stepped down.
    fn stepped(&self, _slot: Slot, _step: &Step) {}
}

/// The last decisions.
#[derive(Debug)]
pub(crate) struct Ring {
    capacity: usize,
    entries: VecDeque<Decision>,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Ring {
        Ring { capacity, entries: VecDeque::with_capacity(capacity.min(1024)) }
    }

    pub(crate) fn push(&mut self, decision: Decision) {
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back(decision);
    }

    /// The entry with this number. Numbers grow, but not every number needs to be here.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Decision> {
        let at = self.entries.binary_search_by_key(&number, |d| d.number).ok()?;
        self.entries.get_mut(at)
    }

    /// The last `n`, oldest first.
    pub(crate) fn last(&self, n: usize) -> Vec<Decision> {
        self.entries.iter().skip(self.entries.len().saturating_sub(n)).cloned().collect()
    }
}
