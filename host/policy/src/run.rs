//! A policy with its settings, ready to be asked: a component or a native function, with the same answers cut to the
//! same caps.

use std::sync::Arc;

use wipam_core::policy::{
    AllocDecision, AllocateCall, CloudView, Memo, Metadata, PlanCall, PlanDecision, ReleaseCall, Retention, Setting,
};

use crate::{
    caps,
    engine::{Called, Guest},
    fault::Fault,
    golden,
    native::{NativePolicy, NativeSettings},
};

/// What runs.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    Component(Arc<Guest>),
    Native(NativePolicy),
}

/// Something that can be asked.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) metadata: Metadata,
    pub(crate) run: Run,
    pub(crate) settings: Vec<Setting>,
    native_settings: NativeSettings,
}

impl Runner {
    pub(crate) fn new(metadata: Metadata, run: Run, settings: Vec<Setting>) -> Runner {
        let native_settings = NativeSettings::from(&*settings);
        Runner { metadata, run, settings, native_settings }
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self.run, Run::Native(_))
    }

    pub(crate) fn allocate(&self, call: &AllocateCall) -> Called<AllocDecision> {
        let called = match &self.run {
            Run::Component(guest) => guest.allocate(call, &self.settings),
            Run::Native(policy) => native(policy.allocate(call, &self.native_settings)),
        };
        called.and_then(|decision| {
            caps::cut_allocation(decision);
            golden::allocation_shape(&call.pool, decision)
        })
    }

    pub(crate) fn release(&self, call: &ReleaseCall) -> Called<Retention> {
        let called = match &self.run {
            Run::Component(guest) => guest.release(call, &self.settings),
            Run::Native(policy) => native(policy.release(call, &self.native_settings)),
        };
        called.and_then(|retention| {
            caps::cut_retention(retention);
            Ok(())
        })
    }

    /// A plan; `cloud` and `memo` stand apart from the call since a shadow is shown others.
    pub(crate) fn plan(&self, call: &PlanCall, cloud: &CloudView, memo: &Memo) -> Called<PlanDecision> {
        let memo = self.memo(memo);
        let called = match &self.run {
            Run::Component(guest) => guest.plan(call, cloud, memo, &self.settings),
            Run::Native(policy) => native(policy.plan(call, cloud, memo, &self.native_settings)),
        };
        called.and_then(|plan| {
            if self.metadata.memo_schema == 0 {
                plan.memo = None;
            }
            caps::cut_plan(plan, call.pool.rows.len())
        })
    }

    /// The bytes of a memo that is this policy's own; nothing of another policy's or another layout.
    pub(crate) fn memo<'a>(&self, memo: &'a Memo) -> &'a [u8] {
        let own = memo.policy == self.metadata.name && memo.schema == self.metadata.memo_schema && memo.schema != 0;
        if own { &memo.bytes } else { &[] }
    }

    /// Marks a returned memo with its owner.
    pub(crate) fn own(&self, plan: &PlanDecision) -> Option<Memo> {
        let bytes = plan.memo.clone()?;
        Some(Memo { policy: self.metadata.name.clone(), schema: self.metadata.memo_schema, bytes })
    }
}

fn native<T>(answer: Result<T, Fault>) -> Called<T> {
    Called { answer, fuel: None }
}
