//! The policy host behind the daemon's seam: Wasm where there is room for it, the watched directory, and what metrics
//! and the flight recorder hear of each decision.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use wipam_core::policy::{AnsweredBy, Policies, Slot, Verdict};
use wipam_core::record::{self, RecordedPolicy};
use wipam_policy::fault::Fault;
use wipam_policy::ladder::Step;
use wipam_policy::log::{Answered, CallKind};
use wipam_policy::{
    Decision, DecisionSink, DirLoader, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyControl, PolicyHost,
    WasmEngine,
};

use crate::deciders::{Deciders, Watch};
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::world::chain;

/// Decisions a single event may leave before the recorder takes them; more are lost to the record, not to the log.
const WAITING: usize = 4096;

/// The host in charge.
pub struct Host {
    host: PolicyHost,
    control: PolicyControl,
    sink: Arc<Sink>,
}

/// Looks at the policy directory.
pub struct DirWatch {
    loader: DirLoader,
    control: PolicyControl,
}

/// Sets the policy host up with what the directory says now. A directory that is refused leaves the defaults in charge,
/// and says so in the status.
///
/// # Errors
/// Not even the shipped policies can be loaded, for instance since there is no address space for Wasm.
pub fn open(settings: &Settings, metrics: Arc<Metrics>) -> Result<(Host, DirWatch), String> {
    let engine = WasmEngine::new(EngineLimits::default()).map_err(|e| chain(&e))?;
    let gatekeeper = Gatekeeper::new(engine, Environment::from_pairs(settings.warm.clone()));
    let mut loader = DirLoader::new(settings.paths.policy_dir.clone(), gatekeeper);
    let (candidate, refusal) = match loader.load() {
        Ok(candidate) => (candidate, None),
        Err(refusal) => {
            let default = wipam_policy::Document::default();
            let fallback = loader.gatekeeper().vet_document(&default, &wipam_policy::load::NoFiles);
            (fallback.map_err(|r| chain(&r))?, Some(refusal))
        }
    };
    let sink = Arc::new(Sink { metrics, waiting: Mutex::default() });
    let options = HostOptions { sink: Some(sink.clone()), ..HostOptions::default() };
    let host = PolicyHost::new(&candidate, options);
    let control = host.control();
    if let Some(refusal) = refusal {
        tracing::error!(error = chain(&refusal), "the policies were refused; the shipped ones are in charge");
        control.refused(refusal);
    }
    Ok((Host { host, control: control.clone(), sink }, DirWatch { loader, control }))
}

impl Watch for DirWatch {
    fn poll(&mut self) -> bool {
        match self.loader.poll().map(|loaded| self.control.apply(loaded)) {
            None => false,
            Some(Ok(swapped)) => !swapped.changed.is_empty(),
            Some(Err(refusal)) => {
                tracing::error!(error = chain(&refusal), "new policies were refused; those in charge stay");
                false
            }
        }
    }
}

impl Deciders for Host {
    fn policies(&mut self) -> &mut dyn Policies {
        &mut self.host
    }

    fn take_decisions(&mut self) -> Vec<record::Decision> {
        self.sink.waiting().drain(..).map(|d| recorded(&d)).collect()
    }

    fn recorded(&self) -> Vec<RecordedPolicy> {
        let status = self.control.status();
        [status.allocator, status.sizer]
            .into_iter()
            .map(|slot| RecordedPolicy {
                slot: slot.slot,
                name: slot.name,
                version: slot.version,
                digest: slot.digest.map(|d| d.to_string()).unwrap_or_default(),
                settings: slot
                    .settings
                    .into_iter()
                    .map(|s| wipam_core::policy::Setting { name: s.name, value: s.value })
                    .collect(),
            })
            .collect()
    }

    fn status(&self) -> Value {
        serde_json::to_value(self.control.status()).unwrap_or_default()
    }

    fn decisions(&self, n: usize) -> Value {
        serde_json::to_value(self.control.decisions(n)).unwrap_or_default()
    }

    fn reset(&mut self) {
        self.control.reset(Slot::Allocator);
        self.control.reset(Slot::Sizer);
    }
}

fn call_name(call: CallKind) -> &'static str {
    match call {
        CallKind::Allocate => "allocate",
        CallKind::Release => "release",
        CallKind::Plan => "plan",
    }
}

fn rung(by: AnsweredBy) -> &'static str {
    match by {
        AnsweredBy::Policy => "policy",
        AnsweredBy::LastGood => "last-good",
        AnsweredBy::Native => "native",
    }
}

fn recorded(d: &Decision) -> record::Decision {
    let answer = match &d.answer {
        Answered::Allocate(choice) => serde_json::to_value(choice),
        Answered::Release(keep) => serde_json::to_value(keep),
        Answered::Plan { actions, .. } => serde_json::to_value(actions),
    };
    record::Decision {
        number: d.number,
        slot: d.slot,
        call: call_name(d.call).into(),
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

/// Counts, and keeps decisions until the event they belong to is done.
struct Sink {
    metrics: Arc<Metrics>,
    waiting: Mutex<VecDeque<Decision>>,
}

impl Sink {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Decision>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DecisionSink for Sink {
    fn decided(&self, d: &Decision) {
        let slot = d.slot.as_str();
        let labels = [("slot", slot), ("call", call_name(d.call)), ("by", rung(d.by))];
        self.metrics.count("wipam_decisions_total", &labels);
        self.metrics.observe("wipam_decision_seconds", &[("slot", slot)], d.duration_ns as f64 / 1e9);
        if let Some(fuel) = d.fuel {
            self.metrics.observe("wipam_decision_fuel", &[("slot", slot)], fuel as f64);
        }
        if let Some(shadow) = &d.shadow {
            let agrees = if shadow.agrees { "true" } else { "false" };
            self.metrics.count("wipam_shadow_total", &[("slot", slot), ("agrees", agrees)]);
        }
        let mut waiting = self.waiting();
        if waiting.len() == WAITING {
            waiting.pop_front();
        }
        waiting.push_back(d.clone());
    }

    fn judged(&self, _: Slot, number: u64, verdict: &Verdict) {
        if let Some(d) = self.waiting().iter_mut().rev().find(|d| d.number == number) {
            d.verdict = Some(verdict.clone());
        }
    }

    fn faulted(&self, slot: Slot, number: u64, fault: &Fault) {
        self.metrics.count("wipam_policy_faults_total", &[("slot", slot.as_str()), ("class", fault.class.as_str())]);
        tracing::warn!(slot = slot.as_str(), decision = number, %fault, "a policy failed; its native twin answered");
    }

    fn stepped(&self, slot: Slot, step: &Step) {
        let to = rung(step.to);
        self.metrics.count("wipam_ladder_steps_total", &[("slot", slot.as_str()), ("to", to)]);
        tracing::error!(slot = slot.as_str(), to, fault = %step.fault, "the ladder stepped down");
    }
}
