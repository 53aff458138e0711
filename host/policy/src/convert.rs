//! From core's types to the generated ones (borrowing), and back (owned).

use wipam_core::policy as core;

use crate::{
    bindings::{
        allocator::exports::wipam::policy::allocation as alloc, sizer::exports::wipam::policy::sizing as size, types,
    },
    fault::{Fault, FaultClass},
};

pub(crate) fn pairs(pairs: &[(String, String)]) -> Vec<types::PairParam<'_>> {
    pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

pub(crate) fn settings(settings: &[core::Setting]) -> Vec<types::Setting<'_>> {
    let value = |value| match value {
        &core::SettingValue::Boolean(b) => types::SettingValueParam::Boolean(b),
        &core::SettingValue::Integer(i) => types::SettingValueParam::Integer(i),
        core::SettingValue::Text(t) => types::SettingValueParam::Text(t),
    };
    settings.iter().map(|s| types::Setting { name: &s.name, value: value(&s.value) }).collect()
}

pub(crate) fn given<'a>(
    given: &core::Given,
    settings: &'a [types::Setting<'a>],
    extra: &'a [types::PairParam<'a>],
) -> types::Given<'a> {
    types::Given { now_ms: given.now_ms, seed: given.seed, settings, extra }
}

/// Labels and annotations.
pub(crate) fn pod_pairs(pod: &core::Pod) -> (Vec<types::PairParam<'_>>, Vec<types::PairParam<'_>>) {
    (pairs(&pod.labels), pairs(&pod.annotations))
}

fn pod<'a>(
    pod: &'a core::Pod,
    labels: &'a [types::PairParam<'a>],
    annotations: &'a [types::PairParam<'a>],
) -> types::Pod<'a> {
    types::Pod {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
        key: pod.key,
        facts_known: pod.facts_known,
        owner_kind: &pod.owner_kind,
        owner_name: &pod.owner_name,
        labels,
        annotations,
    }
}

pub(crate) fn request<'a>(
    request: &'a core::Request,
    labels: &'a [types::PairParam<'a>],
    annotations: &'a [types::PairParam<'a>],
) -> alloc::Request<'a> {
    alloc::Request {
        sandbox: request.sandbox,
        ifname: &request.ifname,
        index: request.index,
        pod: pod(&request.pod, labels, annotations),
        attempt: request.attempt,
        deadline_ms: request.deadline_ms,
    }
}

pub(crate) fn lease<'a>(
    lease: &'a core::EndedLease,
    labels: &'a [types::PairParam<'a>],
    annotations: &'a [types::PairParam<'a>],
) -> alloc::Lease<'a> {
    alloc::Lease {
        sandbox: lease.sandbox,
        ifname: &lease.ifname,
        index: lease.index,
        pod: pod(&lease.pod, labels, annotations),
        address_hi: lease.address_hi,
        address_lo: lease.address_lo,
        assigned_at_ms: lease.assigned_at_ms,
        cause: &lease.cause,
    }
}

pub(crate) fn pool_info(pool: &core::PoolInfo) -> types::PoolInfo<'_> {
    types::PoolInfo {
        network: &pool.network,
        kind: &pool.kind,
        family: pool.family,
        card: pool.card,
        unit_length: pool.unit_length,
        may_grow: pool.may_grow,
        cooldown_ms: pool.cooldown_ms,
    }
}

pub(crate) fn limits(limits: &core::Limits) -> types::Limits<'_> {
    types::Limits {
        instance_type: &limits.instance_type,
        max_enis: limits.max_enis,
        slots_per_eni: limits.slots_per_eni,
        max_pods: limits.max_pods,
    }
}

pub(crate) fn counts(c: &core::Counts) -> types::Counts {
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

pub(crate) fn enis(enis: &[core::EniView]) -> Vec<types::Eni<'_>> {
    fn eni(e: &core::EniView) -> types::Eni<'_> {
        types::Eni {
            id: &e.id,
            device_index: e.device_index,
            card: e.card,
            subnet: e.subnet,
            marks: e.marks,
            slots: e.slots,
            slots_used: e.slots_used,
            slots_moving: e.slots_moving,
            assigned: e.assigned,
            free: e.free,
            cooling: e.cooling,
            reserved: e.reserved,
            held: e.held,
            attached_at_ms: e.attached_at_ms,
        }
    }
    enis.iter().map(eni).collect()
}

pub(crate) fn snapshot<'a>(pool: &'a core::Snapshot, enis: &'a [types::Eni<'a>]) -> types::Snapshot<'a> {
    let (b, r) = (&pool.blocks, &pool.rows);
    types::Snapshot {
        pool: pool_info(&pool.pool),
        limits: limits(&pool.limits),
        counts: counts(&pool.counts),
        enis,
        blocks: types::BlockSet {
            eni: &b.eni,
            length: &b.length,
            base_hi: &b.base_hi,
            base_lo: &b.base_lo,
            assigned: &b.assigned,
            cooling: &b.cooling,
            reserved: &b.reserved,
            held: &b.held,
            untouched: &b.untouched,
            marks: &b.marks,
        },
        rows: types::RowSet {
            address_hi: &r.address_hi,
            address_lo: &r.address_lo,
            eni: &r.eni,
            block: &r.block,
            marks: &r.marks,
            free_since_ms: &r.free_since_ms,
            until_ms: &r.until_ms,
            last_pod_key: &r.last_pod_key,
        },
        rows_left_out: pool.rows_left_out,
    }
}

pub(crate) fn demand(d: &core::Demand) -> size::Demand {
    size::Demand {
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

fn outcome(o: &core::OutcomeView) -> size::Outcome<'_> {
    size::Outcome { op: &o.op, eni: o.eni, asked: o.asked, applied: o.applied, code: &o.code, at_ms: o.at_ms }
}

/// The lists that a borrowed cloud points to.
pub(crate) struct CloudParts<'a> {
    subnets: Vec<size::Subnet<'a>>,
    barriers: Vec<size::Barrier<'a>>,
    in_flight: Vec<size::Outcome<'a>>,
    last: Vec<size::Outcome<'a>>,
}

impl<'a> CloudParts<'a> {
    pub(crate) fn of(cloud: &'a core::CloudView) -> CloudParts<'a> {
        let subnet = |s: &'a core::SubnetView| size::Subnet {
            id: &s.id,
            free: s.free,
            usable_after_ms: s.usable_after_ms,
            blocks_after_ms: s.blocks_after_ms,
        };
        let barrier =
            |b: &'a core::Barrier| size::Barrier { op: &b.op, subnet: b.subnet, code: &b.code, until_ms: b.until_ms };
        CloudParts {
            subnets: cloud.subnets.iter().map(subnet).collect(),
            barriers: cloud.barriers.iter().map(barrier).collect(),
            in_flight: cloud.in_flight.iter().map(outcome).collect(),
            last: cloud.last.iter().map(outcome).collect(),
        }
    }

    pub(crate) fn cloud(&'a self) -> size::Cloud<'a> {
        size::Cloud { subnets: &self.subnets, barriers: &self.barriers, in_flight: &self.in_flight, last: &self.last }
    }
}

// ---- back ----

fn value(value: types::SettingValueResult) -> core::SettingValue {
    match value {
        types::SettingValueResult::Boolean(b) => core::SettingValue::Boolean(b),
        types::SettingValueResult::Integer(i) => core::SettingValue::Integer(i),
        types::SettingValueResult::Text(t) => core::SettingValue::Text(t),
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
        default: value(knob.default),
        min: knob.min,
        max: knob.max,
        choices: knob.choices,
        help: knob.help,
    }
}

pub(crate) fn metadata(m: types::Metadata) -> core::Metadata {
    core::Metadata {
        name: m.name,
        version: m.version,
        summary: m.summary,
        knobs: m.knobs.into_iter().map(knob).collect(),
        memo_schema: m.memo_schema,
        extra: m.extra,
    }
}

pub(crate) fn issues(issues: Vec<types::Issue>) -> Vec<core::Issue> {
    issues.into_iter().map(|i| core::Issue { setting: i.setting, message: i.message }).collect()
}

fn facts(facts: Vec<types::Fact>) -> Vec<core::Fact> {
    facts.into_iter().map(|f| core::Fact { key: f.key, value: f.value }).collect()
}

fn declined(text: String) -> Fault {
    Fault::new(FaultClass::Declined, &text)
}

pub(crate) fn allocation(said: Result<alloc::Decision, String>) -> Result<core::AllocDecision, Fault> {
    let said = said.map_err(declined)?;
    Ok(core::AllocDecision {
        choice: match said.choice {
            alloc::Choice::Assign(row) => core::Choice::Assign(row),
            alloc::Choice::Hold(ms) => core::Choice::Hold(ms),
            alloc::Choice::Reject => core::Choice::Reject,
        },
        reason: said.reason,
        facts: facts(said.facts),
    })
}

pub(crate) fn retention(said: Result<alloc::Retention, String>) -> Result<core::Retention, Fault> {
    let said = said.map_err(declined)?;
    Ok(core::Retention { keep_for_ms: said.keep_for_ms, reason: said.reason, facts: facts(said.facts) })
}

pub(crate) fn plan(said: Result<size::Decision, String>) -> Result<core::PlanDecision, Fault> {
    let said = said.map_err(declined)?;
    let action = |action| match action {
        size::Action::Attach(a) => core::Action::Attach { subnet: a.subnet, length: a.length, count: a.count },
        size::Action::Grow(g) => core::Action::Grow { eni: g.eni, length: g.length, count: g.count },
        size::Action::ReleaseRows(rows) => core::Action::ReleaseRows(rows),
        size::Action::ReleaseBlock(block) => core::Action::ReleaseBlock(block),
        size::Action::Drain(d) => core::Action::Drain { eni: d.eni, on: d.on },
        size::Action::Detach(eni) => core::Action::Detach(eni),
    };
    Ok(core::PlanDecision {
        actions: said.actions.into_iter().map(action).collect(),
        recheck_ms: said.recheck_ms,
        memo: said.memo,
        reason: said.reason,
        facts: facts(said.facts),
    })
}
