//! The policy host behind the daemon's seam.

use std::sync::Arc;

use serde_json::{Value, json};
use wipam_core::policy::{
    Action, AllocDecision, AllocateCall, Answer, AnsweredBy, Choice, Memo, PlanCall, PlanDecision, Policies,
    ReleaseCall, Retention, Slot, Verdict,
};
use wipam_core::record::{Decision, RecordedPolicy};

use crate::deciders::Deciders;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Interim.
pub struct Host(u64);

/// Interim.
pub fn open(_: &Settings, _: Arc<Metrics>) -> Result<Host, String> {
    Ok(Host(0))
}

impl Host {
    fn answer<T>(&mut self, answer: T) -> Answer<T> {
        self.0 += 1;
        Answer { decision: self.0, by: AnsweredBy::Native, answer }
    }
}

impl Policies for Host {
    fn allocate(&mut self, call: &AllocateCall, _: bool) -> Answer<AllocDecision> {
        let choice = if call.pool.rows.is_empty() { Choice::Hold(1000) } else { Choice::Assign(0) };
        self.answer(AllocDecision { choice, reason: "first".into(), facts: Vec::new() })
    }
    fn release(&mut self, _: &ReleaseCall) -> Answer<Retention> {
        self.answer(Retention { keep_for_ms: 0, reason: String::new(), facts: Vec::new() })
    }
    fn plan(&mut self, call: &PlanCall, _: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        let want = u64::from(call.demand.waiting) + 2;
        let have = call.pool.counts.free + call.pool.counts.assigning;
        let mut actions = Vec::new();
        let need = u16::try_from(want.saturating_sub(have)).unwrap_or(0);
        if need > 0 {
            let room = call.pool.enis.iter().position(|e| e.slots > e.slots_used + e.slots_moving);
            match room {
                Some(i) => {
                    let e = &call.pool.enis[i];
                    let count = need.min(e.slots - e.slots_used - e.slots_moving);
                    actions.push(Action::Grow { eni: i as u8, length: 32, count });
                }
                None => actions.push(Action::Attach {
                    subnet: 255,
                    length: 32,
                    count: need.min(call.pool.limits.slots_per_eni),
                }),
            }
        }
        self.answer((PlanDecision { actions, ..PlanDecision::default() }, None))
    }
    fn verdict(&mut self, _: Slot, _: u64, _: Verdict) {}
    fn fault(&mut self, _: Slot, _: u64, _: &str) {}
}

impl Deciders for Host {
    fn policies(&mut self) -> &mut dyn Policies {
        self
    }
    fn take_decisions(&mut self) -> Vec<Decision> {
        Vec::new()
    }
    fn recorded(&self) -> Vec<RecordedPolicy> {
        Vec::new()
    }
    fn status(&self) -> Value {
        json!({})
    }
    fn decisions(&self, _: usize) -> Value {
        json!([])
    }
    fn reset(&mut self) {}
    fn swapped(&mut self) -> bool {
        false
    }
}
