//! Records played again: proven equal to what happened, and compared with what other policies would have done.

pub mod played;
pub mod proof;
pub mod reading;
pub mod vpc;
pub mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wipam_core::policy::{AnsweredBy, Setting, Slot, Verdict};
use wipam_core::record::{self, RecordedPolicy};
use wipam_policy::fault::Fault;
use wipam_policy::log::{Answered, CallKind};
use wipam_policy::settings::{InForce, Written};
use wipam_policy::{Candidate, Decision, DecisionSink, PolicyHost, Vetted, embedded};

use crate::pick::{PickError, Source, Vetter};

/// How far a run is, and whether it is to end early.
pub struct Watch<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Hears how many lines of the record are done, every few hundred.
    pub progress: &'a dyn Fn(u64),
}

/// Lines between two looks at the clock and the stop flag.
const LOOK: usize = 256;

impl Watch<'_> {
    /// Says whether to go on after `done` lines.
    pub fn go_on(&self, done: usize) -> bool {
        if done.is_multiple_of(LOOK) {
            (self.progress)(done as u64);
            return !self.stop.load(Ordering::Relaxed);
        }
        true
    }
}

/// Takes decisions from a policy host.
#[derive(Debug, Default)]
pub struct Collector {
    taken: Mutex<Vec<Decision>>,
    faults: AtomicU64,
    fuel: AtomicU64,
    decisions: AtomicU64,
    /// Whether the decisions themselves are kept, or only counted.
    keep: bool,
}

impl Collector {
    /// Keeps decisions until they are taken, or only counts.
    pub fn new(keep: bool) -> Arc<Collector> {
        Arc::new(Collector { keep, ..Collector::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Decision>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decisions since the last call, oldest first.
    pub fn take(&self) -> Vec<Decision> {
        std::mem::take(&mut self.lock())
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Fuel so far.
    pub fn fuel(&self) -> u64 {
        self.fuel.load(Ordering::Relaxed)
    }

    /// Decisions so far.
    pub fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }
}

impl DecisionSink for Collector {
    fn decided(&self, decision: &Decision) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.fuel.fetch_add(decision.fuel.unwrap_or(0), Ordering::Relaxed);
        if self.keep {
            self.lock().push(decision.clone());
        }
    }
    fn judged(&self, slot: Slot, number: u64, verdict: &Verdict) {
        if self.keep
            && let Some(d) = self.lock().iter_mut().rev().find(|d| d.number == number && d.slot == slot)
        {
            d.verdict = Some(verdict.clone());
        }
    }
    fn faulted(&self, _slot: Slot, _number: u64, _fault: &Fault) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }
}

/// A decision of a policy host as a record has it.
pub fn recorded(d: &Decision) -> record::Decision {
    let answer = match &d.answer {
        Answered::Allocate(choice) => serde_json::to_value(choice),
        Answered::Release(keep) => serde_json::to_value(keep),
        Answered::Plan { actions, .. } => serde_json::to_value(actions),
    };
    let call = match d.call {
        CallKind::Allocate => "allocate",
        CallKind::Release => "release",
        CallKind::Plan => "plan",
    };
    record::Decision {
        number: d.number,
        slot: d.slot,
        call: call.into(),
        by: d.by,
        inputs: d.inputs.map(|i| i.to_string()).unwrap_or_default(),
        policy: format!("{} {}", d.policy.name, d.policy.version),
        digest: d.policy.digest.map(|i| i.to_string()).unwrap_or_default(),
        answer: answer.unwrap_or_default(),
        reason: d.reason.clone(),
        fuel: d.fuel,
        verdict: d.verdict.clone(),
    }
}

/// The policies in charge of a host, for a header.
pub fn in_charge(host: &PolicyHost) -> Vec<RecordedPolicy> {
    let status = host.status();
    let setting = |s: InForce| Setting { name: s.name, value: s.value };
    [status.allocator, status.sizer]
        .into_iter()
        .map(|slot| RecordedPolicy {
            slot: slot.slot,
            name: slot.name,
            version: slot.version,
            digest: slot.digest.map(|d| d.to_string()).unwrap_or_default(),
            settings: slot.settings.into_iter().map(setting).collect(),
        })
        .collect()
}

/// Which rung answered, for a screen.
pub fn rung(by: AnsweredBy) -> &'static str {
    match by {
        AnsweredBy::Policy => "policy",
        AnsweredBy::LastGood => "last good",
        AnsweredBy::Native => "native twin",
    }
}

/// Where the policies of a record are taken from.
pub struct Shelf {
    vetter: Vetter,
    native: bool,
    files: Vec<Source>,
    known: Mutex<BTreeMap<String, Arc<Vetted>>>,
}

/// A recorded policy is not at hand.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// No file with that digest.
    #[error(
        "the recorded policy {name} {version} (sha256 {digest}) is none that comes with this wipam; give its file with --with FILE"
    )]
    Missing {
        /// Name.
        name: String,
        /// Version.
        version: String,
        /// Digest.
        digest: String,
    },
    /// It was recorded natively, and this version has no such twin.
    #[error("the recorded native policy {0} does not come with this wipam; use the version that made the record")]
    NoTwin(String),
    /// Its settings, or the component, do not pass any more.
    #[error(transparent)]
    Pick(#[from] PickError),
    /// The header names no policy for a slot.
    #[error("the record's header names no {0}; it was made by a daemon without policies")]
    NoSlot(&'static str),
}

impl Shelf {
    /// With further files.
    ///
    /// # Errors
    /// The engine cannot be started.
    pub fn new(native: bool, files: Vec<Source>) -> Result<Shelf, PickError> {
        // The policies were let in once; the canary's word cost time and could only be the same.
        let vetter = Vetter::new(native)?.without_canary();
        Ok(Shelf { vetter, native, files, known: Mutex::default() })
    }

    /// What vets.
    pub fn vetter(&self) -> &Vetter {
        &self.vetter
    }

    /// The policies of a header, perhaps with other settings where a policy has the knob.
    ///
    /// # Errors
    /// [`ShelfError`]: one is not at hand.
    pub fn candidate(&self, policies: &[RecordedPolicy], changed: &Written) -> Result<Candidate, ShelfError> {
        let slot = |slot: Slot| {
            let policy = policies.iter().find(|p| p.slot == slot).ok_or(ShelfError::NoSlot(slot.as_str()))?;
            self.vetted(policy, changed)
        };
        Ok(Candidate::of(slot(Slot::Allocator)?, slot(Slot::Sizer)?))
    }

    fn vetted(&self, policy: &RecordedPolicy, changed: &Written) -> Result<Arc<Vetted>, ShelfError> {
        let mut written: Written = policy.settings.iter().map(|s| (s.name.clone(), s.value.clone())).collect();
        for (name, value) in changed {
            if let Some(old) = written.get_mut(name) {
                *old = value.clone();
            }
        }
        // Compiling takes a quarter of a second; a record with many swaps names few policies.
        let key = format!("{:?} {} {} {written:?}", policy.slot, policy.digest, policy.name);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&key) {
            return Ok(found.clone());
        }
        let vetted = self.make(policy, &written)?;
        known.insert(key, vetted.clone());
        Ok(vetted)
    }

    fn make(&self, policy: &RecordedPolicy, written: &Written) -> Result<Arc<Vetted>, ShelfError> {
        if policy.digest.is_empty() {
            let twin = embedded::named(&policy.name).ok_or_else(|| ShelfError::NoTwin(policy.name.clone()))?;
            return Ok(self.vetter.vet_twin(policy.slot, &twin, written)?);
        }
        let shipped = embedded::all().into_iter().map(Source::Embedded);
        let found = shipped.chain(self.files.iter().cloned()).find(|s| s.digest().to_string() == policy.digest);
        match found {
            Some(source) => Ok(self.vetter.vet(policy.slot, &source, written)?),
            // A twin of the same name has the same logic unless versions differ, and natively was asked for.
            None if self.native && embedded::named(&policy.name).is_some() => {
                let source = Source::find(&policy.name)?;
                Ok(self.vetter.vet(policy.slot, &source, written)?)
            }
            None => Err(ShelfError::Missing {
                name: policy.name.clone(),
                version: policy.version.clone(),
                digest: policy.digest.clone(),
            }),
        }
    }
}
