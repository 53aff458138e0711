//! Policies as ordinary functions: the native twins of what is shipped, and the conversions to their types.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wipam_core::policy as core;
use wipam_core::policy::{
    AllocDecision, AllocateCall, Issue, Metadata, PlanCall, PlanDecision, ReleaseCall, Retention,
};
use wipam_policy_sdk::{Allocator, Sizer, allocation, sizing, types};

use crate::fault::{Fault, FaultClass};

type AllocateFn = fn(&allocation::Request, &types::Given, &types::Snapshot) -> Result<allocation::Decision, String>;
type ReleaseFn = fn(
    &allocation::Lease,
    &types::Given,
    &types::PoolInfo,
    &types::Limits,
    &types::Counts,
) -> Result<allocation::Retention, String>;
type PlanFn =
    fn(&types::Given, &types::Snapshot, &sizing::Demand, &sizing::Cloud, &[u8]) -> Result<sizing::Decision, String>;

/// A policy compiled into the host. It uses the SDK's types, so the function is the same as the component's.
#[derive(Clone, Copy)]
pub struct NativePolicy {
    describe: fn() -> types::Metadata,
    check: fn(&[types::Setting]) -> Result<(), Vec<types::Issue>>,
    allocation: Option<(AllocateFn, ReleaseFn)>,
    plan: Option<PlanFn>,
}

impl std::fmt::Debug for NativePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativePolicy").field("name", &(self.describe)().name).finish_non_exhaustive()
    }
}

impl NativePolicy {
    /// From a policy that allocates.
    pub fn allocator<P: Allocator>() -> NativePolicy {
        NativePolicy { describe: P::describe, check: P::check, allocation: Some((P::allocate, P::release)), plan: None }
    }

    /// From a policy that sizes.
    pub fn sizer<P: Sizer>() -> NativePolicy {
        NativePolicy { describe: P::describe, check: P::check, allocation: None, plan: Some(P::plan) }
    }

    /// From a policy that does both.
    pub fn combined<P: Allocator + Sizer>() -> NativePolicy {
        NativePolicy { plan: Some(P::plan), ..NativePolicy::allocator::<P>() }
    }

    /// Whether it can fill the slot.
    pub fn fills(&self, slot: core::Slot) -> bool {
        match slot {
            core::Slot::Allocator => self.allocation.is_some(),
            core::Slot::Sizer => self.plan.is_some(),
        }
    }

    /// What it says about itself.
    pub fn metadata(&self) -> Metadata {
        let m = (self.describe)();
        Metadata {
            name: m.name,
            version: m.version,
            summary: m.summary,
            knobs: m.knobs.into_iter().map(knob).collect(),
            memo_schema: m.memo_schema,
            extra: m.extra,
        }
    }

    /// Its rules across settings.
    pub fn check(&self, settings: &NativeSettings) -> Result<(), Vec<Issue>> {
        (self.check)(&settings.0)
            .map_err(|issues| issues.into_iter().map(|i| Issue { setting: i.setting, message: i.message }).collect())
    }

    pub(crate) fn allocate(&self, call: &AllocateCall, settings: &NativeSettings) -> Result<AllocDecision, Fault> {
        let (allocate, _) = self.allocation.ok_or_else(|| wrong_slot("allocate"))?;
        let answer =
            guarded(|| allocate(&request(&call.request), &given(&call.given, settings), &snapshot(&call.pool)))?;
        Ok(AllocDecision {
            choice: match answer.choice {
                allocation::Choice::Assign(row) => core::Choice::Assign(row),
                allocation::Choice::Hold(ms) => core::Choice::Hold(ms),
                allocation::Choice::Reject => core::Choice::Reject,
            },
            reason: answer.reason,
            facts: facts(answer.facts),
        })
    }

    pub(crate) fn release(&self, call: &ReleaseCall, settings: &NativeSettings) -> Result<Retention, Fault> {
        let (_, release) = self.allocation.ok_or_else(|| wrong_slot("release"))?;
        let answer = guarded(|| {
            release(
                &lease(&call.lease),
                &given(&call.given, settings),
                &pool_info(&call.pool),
                &limits(&call.limits),
                &counts(&call.counts),
            )
        })?;
        Ok(Retention { keep_for_ms: answer.keep_for_ms, reason: answer.reason, facts: facts(answer.facts) })
    }

    pub(crate) fn plan(
        &self,
        call: &PlanCall,
        cloud: &core::CloudView,
        memo: &[u8],
        settings: &NativeSettings,
    ) -> Result<PlanDecision, Fault> {
        let plan = self.plan.ok_or_else(|| wrong_slot("plan"))?;
        let answer = guarded(|| {
            let given = given(&call.given, settings);
            plan(&given, &snapshot(&call.pool), &demand(&call.demand), &cloud_view(cloud), memo)
        })?;
        Ok(PlanDecision {
            actions: answer.actions.into_iter().map(action).collect(),
            recheck_ms: answer.recheck_ms,
            memo: answer.memo,
            reason: answer.reason,
            facts: facts(answer.facts),
        })
    }
}

/// Settings in the SDK's types, converted once at load.
#[derive(Clone, Debug, Default)]
pub struct NativeSettings(Vec<types::Setting>);

impl From<&[core::Setting]> for NativeSettings {
    fn from(settings: &[core::Setting]) -> Self {
        NativeSettings(
            settings.iter().map(|s| types::Setting { name: s.name.clone(), value: value(&s.value) }).collect(),
        )
    }
}

/// A panic of a twin is a fault like any other: the daemon owns addresses and must go on.
fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(text)) => Err(Fault::new(FaultClass::Declined, &text)),
        Err(_) => Err(Fault::new(FaultClass::NativePanic, "the native policy panicked")),
    }
}

fn wrong_slot(function: &str) -> Fault {
    Fault::new(FaultClass::Declined, &format!("this policy has no `{function}`"))
}

// ---- from core's types to the SDK's ----

fn value(value: &core::SettingValue) -> types::SettingValue {
    match value {
        core::SettingValue::Boolean(b) => types::SettingValue::Boolean(*b),
        core::SettingValue::Integer(i) => types::SettingValue::Integer(*i),
        core::SettingValue::Text(t) => types::SettingValue::Text(t.clone()),
    }
}

fn given(given: &core::Given, settings: &NativeSettings) -> types::Given {
    types::Given { now_ms: given.now_ms, seed: given.seed, settings: settings.0.clone(), extra: given.extra.clone() }
}

fn pod(pod: &core::Pod) -> types::Pod {
    types::Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        key: pod.key,
        facts_known: pod.facts_known,
        owner_kind: pod.owner_kind.clone(),
        owner_name: pod.owner_name.clone(),
        labels: pod.labels.clone(),
        annotations: pod.annotations.clone(),
    }
}

fn request(request: &core::Request) -> allocation::Request {
    allocation::Request {
        sandbox: request.sandbox,
        ifname: request.ifname.clone(),
        index: request.index,
        pod: pod(&request.pod),
        attempt: request.attempt,
        deadline_ms: request.deadline_ms,
    }
}

fn lease(lease: &core::EndedLease) -> allocation::Lease {
    allocation::Lease {
        sandbox: lease.sandbox,
        ifname: lease.ifname.clone(),
        index: lease.index,
        pod: pod(&lease.pod),
        address_hi: lease.address_hi,
        address_lo: lease.address_lo,
        assigned_at_ms: lease.assigned_at_ms,
        cause: lease.cause.clone(),
    }
}

fn pool_info(pool: &core::PoolInfo) -> types::PoolInfo {
    types::PoolInfo {
        network: pool.network.clone(),
        kind: pool.kind.clone(),
        family: pool.family,
        card: pool.card,
        unit_length: pool.unit_length,
        may_grow: pool.may_grow,
        cooldown_ms: pool.cooldown_ms,
    }
}

fn limits(limits: &core::Limits) -> types::Limits {
    types::Limits {
        instance_type: limits.instance_type.clone(),
        max_enis: limits.max_enis,
        slots_per_eni: limits.slots_per_eni,
        max_pods: limits.max_pods,
    }
}

fn counts(c: &core::Counts) -> types::Counts {
    types::Counts {
        total: c.total,
        assigned: c.assigned,
        free: c.free,
        cooling: c.cooling,
        reserved: c.reserved,
        held: c.held,
        suspect: c.suspect,
        assigning: c.assigning,
        releasing: c.releasing,
    }
}

fn eni(eni: &core::EniView) -> types::Eni {
    types::Eni {
        id: eni.id.clone(),
        device_index: eni.device_index,
        card: eni.card,
        subnet: eni.subnet,
        marks: eni.marks,
        slots: eni.slots,
        slots_used: eni.slots_used,
        slots_moving: eni.slots_moving,
        assigned: eni.assigned,
        free: eni.free,
        cooling: eni.cooling,
        reserved: eni.reserved,
        held: eni.held,
        attached_at_ms: eni.attached_at_ms,
    }
}

/// A snapshot in the SDK's types.
pub fn snapshot(pool: &core::Snapshot) -> types::Snapshot {
    let (b, r) = (&pool.blocks, &pool.rows);
    types::Snapshot {
        pool: pool_info(&pool.pool),
        limits: limits(&pool.limits),
        counts: counts(&pool.counts),
        enis: pool.enis.iter().map(eni).collect(),
        blocks: types::BlockSet {
            eni: b.eni.clone(),
            length: b.length.clone(),
            base_hi: b.base_hi.clone(),
            base_lo: b.base_lo.clone(),
            assigned: b.assigned.clone(),
            cooling: b.cooling.clone(),
            reserved: b.reserved.clone(),
            held: b.held.clone(),
            untouched: b.untouched.clone(),
            marks: b.marks.clone(),
        },
        rows: types::RowSet {
            address_hi: r.address_hi.clone(),
            address_lo: r.address_lo.clone(),
            eni: r.eni.clone(),
            block: r.block.clone(),
            marks: r.marks.clone(),
            free_since_ms: r.free_since_ms.clone(),
            until_ms: r.until_ms.clone(),
            last_pod_key: r.last_pod_key.clone(),
        },
        rows_left_out: pool.rows_left_out,
    }
}

fn demand(d: &core::Demand) -> sizing::Demand {
    sizing::Demand {
        waiting: d.waiting,
        oldest_wait_ms: d.oldest_wait_ms,
        adds_10s: d.adds_10s,
        adds_1m: d.adds_1m,
        dels_1m: d.dels_1m,
        failed_1m: d.failed_1m,
        pending_pods: d.pending_pods,
        schedulable: d.schedulable,
        stopping: d.stopping,
    }
}

fn outcome(o: &core::OutcomeView) -> sizing::Outcome {
    sizing::Outcome {
        op: o.op.clone(),
        eni: o.eni,
        asked: o.asked,
        applied: o.applied,
        code: o.code.clone(),
        at_ms: o.at_ms,
    }
}

fn cloud_view(cloud: &core::CloudView) -> sizing::Cloud {
    let subnet = |s: &core::SubnetView| sizing::Subnet {
        id: s.id.clone(),
        free: s.free,
        usable_after_ms: s.usable_after_ms,
        blocks_after_ms: s.blocks_after_ms,
    };
    let barrier = |b: &core::Barrier| sizing::Barrier {
        op: b.op.clone(),
        subnet: b.subnet,
        code: b.code.clone(),
        until_ms: b.until_ms,
    };
    sizing::Cloud {
        subnets: cloud.subnets.iter().map(subnet).collect(),
        barriers: cloud.barriers.iter().map(barrier).collect(),
        in_flight: cloud.in_flight.iter().map(outcome).collect(),
        last: cloud.last.iter().map(outcome).collect(),
    }
}

// ---- from the SDK's types to core's ----

fn back(value: types::SettingValue) -> core::SettingValue {
    match value {
        types::SettingValue::Boolean(b) => core::SettingValue::Boolean(b),
        types::SettingValue::Integer(i) => core::SettingValue::Integer(i),
        types::SettingValue::Text(t) => core::SettingValue::Text(t),
    }
}

fn knob(knob: types::Knob) -> core::Knob {
    core::Knob {
        name: knob.name,
        kind: match knob.kind {
            types::KnobKind::Boolean => core::KnobKind::Boolean,
            types::KnobKind::Integer => core::KnobKind::Integer,
            types::KnobKind::Percent => core::KnobKind::Percent,
            types::KnobKind::DurationMs => core::KnobKind::DurationMs,
            types::KnobKind::Text => core::KnobKind::Text,
            types::KnobKind::Choice => core::KnobKind::Choice,
        },
        default: back(knob.default),
        min: knob.min,
        max: knob.max,
        choices: knob.choices,
        help: knob.help,
    }
}

fn facts(facts: Vec<types::Fact>) -> Vec<core::Fact> {
    facts.into_iter().map(|f| core::Fact { key: f.key, value: f.value }).collect()
}

fn action(action: sizing::Action) -> core::Action {
    match action {
        sizing::Action::Attach(a) => core::Action::Attach { subnet: a.subnet, length: a.length, count: a.count },
        sizing::Action::Grow(g) => core::Action::Grow { eni: g.eni, length: g.length, count: g.count },
        sizing::Action::ReleaseRows(rows) => core::Action::ReleaseRows(rows),
        sizing::Action::ReleaseBlock(block) => core::Action::ReleaseBlock(block),
        sizing::Action::Drain(d) => core::Action::Drain { eni: d.eni, on: d.on },
        sizing::Action::Detach(eni) => core::Action::Detach(eni),
    }
}
