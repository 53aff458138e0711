//! What `wipam status` shows of policies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wipam_core::policy::{AnsweredBy, Slot};

use crate::{
    active::{ActiveSlot, Placed},
    digest::Digest,
    fault::Fault,
    gate::Refusal,
    ladder::{Ladder, Step},
    log::{PolicyId, ShadowAnswer},
    settings::InForce,
};

/// Both slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoliciesStatus {
    /// Swaps so far, plus one.
    pub generation: u64,
    /// The allocator.
    pub allocator: SlotStatus,
    /// The sizer.
    pub sizer: SlotStatus,
    /// Faults since start by `slot/class`.
    pub faults: BTreeMap<String, u64>,
    /// Environment variables without effect, and the like.
    pub warnings: Vec<String>,
    /// Candidates refused since start.
    pub refusals: u64,
    /// The last candidate that was refused, until another is let in.
    pub last_refusal: Option<Refusal>,
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Which slot.
    pub slot: Slot,
    /// Name of the policy.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its sentence.
    pub summary: String,
    /// Where it came from: `embedded default`, `file mine.wasm`, `native default`.
    pub source: String,
    /// SHA-256 of the component; none if native.
    pub digest: Option<Digest>,
    /// Bytes of the file; 0 if native.
    pub bytes: usize,
    /// Generation of policy and settings.
    pub generation: u64,
    /// Settings in force, with where each came from.
    pub settings: Vec<InForce>,
    /// Rung of the ladder.
    pub rung: AnsweredBy,
    /// Who answers on the lowest rung.
    pub native_twin: String,
    /// Who answers on the middle rung.
    pub last_good: Option<PolicyId>,
    /// Faults of this generation.
    pub faults: u64,
    /// Faults that count towards the next step down.
    pub faults_in_window: usize,
    /// The last fault, with its time (pool clock, ms).
    pub last_fault: Option<(u64, Fault)>,
    /// The last step down.
    pub step: Option<Step>,
    /// Decisions of this slot since start.
    pub decisions: u64,
    /// The shadow.
    pub shadow: Option<ShadowStatus>,
}

impl SlotStatus {
    pub(crate) fn of(
        slot: Slot,
        active: &ActiveSlot,
        ladder: &Ladder,
        decisions: u64,
        shadow: &ShadowCounts,
    ) -> SlotStatus {
        let vetted = &active.current.vetted;
        let metadata = vetted.metadata();
        let id = |placed: &Placed| (*placed.id).clone();
        SlotStatus {
            slot,
            name: metadata.name.clone(),
            version: metadata.version.clone(),
            summary: metadata.summary.clone(),
            source: vetted.source.clone(),
            digest: vetted.digest,
            bytes: vetted.bytes,
            generation: active.generation,
            settings: vetted.in_force.clone(),
            rung: ladder.rung(active.generation),
            native_twin: active.current.twin().1.name.clone(),
            last_good: active.last_good.as_ref().map(id),
            faults: ladder.total(),
            faults_in_window: ladder.in_window(),
            last_fault: ladder.last().cloned(),
            step: ladder.step().cloned(),
            decisions,
            shadow: active.shadow.as_ref().map(|placed| ShadowStatus { policy: id(placed), counts: *shadow }),
        }
    }
}

/// A shadow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowStatus {
    /// Who it is.
    pub policy: PolicyId,
    /// How it did.
    pub counts: ShadowCounts,
}

/// How a shadow did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowCounts {
    /// Questions it was asked.
    pub asked: u64,
    /// Answers with the same effect as the answer that was used.
    pub agreed: u64,
    /// Other answers.
    pub differed: u64,
    /// Faults.
    pub faults: u64,
}

impl ShadowCounts {
    pub(crate) fn count(&mut self, said: &ShadowAnswer) {
        self.asked += 1;
        match (&said.fault, said.agrees) {
            (Some(_), _) => self.faults += 1,
            (None, true) => self.agreed += 1,
            (None, false) => self.differed += 1,
        }
    }
}
