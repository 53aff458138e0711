//! The sizing loop: when a plan is due, what the policy is shown, what the guard lets through, and how accepted
//! actions queue as operations.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use super::cloud::{Kind, Op, Step};
use crate::addr::{self, Addr};
use crate::event::{AddError, Ms, Note};
use crate::guard::{self, Breach};
use crate::ids;
use crate::policy::{
    Action, Barrier as BarrierView, CloudView, Demand, Given, NO_ENI, OutcomeView, PlanCall, PlanDecision, Policies,
    RowSet, SkippedAction, Slot, SubnetView, Verdict,
};
use crate::pool::{EniNo, Offer, Stage, State};

/// An urgent plan that changed nothing is not repeated sooner.
const URGENT_AGAIN: Ms = 1_000;
/// How long an ADD may wait uncovered before the native plan answers (guard 15).
const STARVED: Ms = 2_000;

/// When to plan, and what became of the last plan.
#[derive(Debug)]
pub(super) struct Sizing {
    first: Option<Ms>,
    last: Option<Ms>,
    tick_at: Ms,
    recheck_at: Option<Ms>,
    urgent: Option<(u64, u64, Ms)>,
    /// Counts what an urgent plan could depend on: operations that ended, back-off that ended.
    pub(super) turn: u64,
    /// Outcomes of the last plan's actions, in order.
    pub(super) outcomes: Vec<Outcome>,
    /// Plans asked for.
    pub(super) plans: u64,
}

/// What became of an action; the interface by number, since indices move.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) op: &'static str,
    pub(super) eni: Option<EniNo>,
    pub(super) asked: u32,
    pub(super) applied: u32,
    pub(super) code: String,
    pub(super) at: Ms,
    /// The operation that will end it.
    pub(super) number: Option<u64>,
}

impl Sizing {
    pub(super) fn new(now: Ms, tick: Ms) -> Sizing {
        Sizing {
            first: None,
            last: None,
            tick_at: now + tick,
            recheck_at: None,
            urgent: None,
            turn: 0,
            outcomes: Vec::new(),
            plans: 0,
        }
    }

    /// Something changed that a plan may depend on.
    pub(super) fn touch(&mut self, now: Ms) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }
}

/// What the policy was shown: rows, and the address behind each.
struct Shown<'a> {
    addrs: Vec<Addr>,
    rows: &'a RowSet,
}

/// A plan on its way through the guard: what earlier actions of it already took.
#[derive(Default)]
struct Draft {
    skipped: Vec<SkippedAction>,
    ops: Vec<Op>,
    outcomes: Vec<Outcome>,
    barred: BTreeSet<EniNo>,
    slots: BTreeMap<EniNo, u16>,
    enis: u16,
    grown: u64,
    released: u64,
    subnet: BTreeMap<String, u64>,
    /// When guard 10 would let pass what it refused.
    flap_ends: Option<Ms>,
}

impl Draft {
    /// Guard 10, and when it is worth asking again.
    fn no_flap(&mut self, now: Ms, opposite_at: Option<Ms>, waiting: bool) -> guard::Checked {
        let checked = guard::g10_flap(now, opposite_at, waiting);
        if let (Err(_), Some(at)) = (&checked, opposite_at) {
            let end = at + guard::FLAP;
            self.flap_ends = Some(self.flap_ends.map_or(end, |e| e.min(end)));
        }
        checked
    }
}

impl Node {
    // ---- when ----

    /// ADDs for which neither a free address nor one on its way (or in the queue of the last plan) is there.
    fn uncovered(&self) -> u64 {
        let (waiting, _) = self.waits.vpc_demand();
        waiting.saturating_sub(self.pools[0].assignable() + self.planned())
    }

    pub(super) fn plan_at(&self, _now: Ms) -> Option<Ms> {
        if !self.started {
            return None;
        }
        let settled = match (self.sizing.first, self.sizing.last) {
            (Some(first), Some(last)) => Some((last + self.cfg.settle).min(first + self.cfg.settle_max)),
            _ => None,
        };
        let urgent = (self.uncovered() > 0).then(|| match self.sizing.urgent {
            Some((turn, waiting, at)) if (turn, waiting) == (self.sizing.turn, self.uncovered()) => at + URGENT_AGAIN,
            _ => 0,
        });
        [settled, urgent, self.sizing.recheck_at, Some(self.sizing.tick_at)].into_iter().flatten().min()
    }

    pub(super) fn plan_if_due(&mut self, now: Ms, policies: &mut dyn Policies) {
        self.end_barriers(now);
        if self.uncovered() > 0 {
            self.lift_drains(now);
            if !self.growth_possible(now) {
                self.refresh_subnets(now);
            }
        }
        if self.plan_at(now).is_some_and(|at| at <= now) {
            self.plan(now, policies);
        }
    }

    /// An ADD that waits lifts every drain whose detach has not started (design §3).
    fn lift_drains(&mut self, now: Ms) {
        let draining: Vec<EniNo> =
            self.pools[0].enis().filter(|(_, e)| e.draining && e.stage == Stage::Ready).map(|(no, _)| no).collect();
        for no in draining {
            if let Some(eni) = self.pools[0].eni_mut(no) {
                eni.draining = false;
                self.supply += 1;
                self.sizing.touch(now);
            }
        }
    }

    // ---- the question ----

    fn plan(&mut self, now: Ms, policies: &mut dyn Policies) {
        let s = &mut self.sizing;
        s.first = None;
        s.last = None;
        s.recheck_at = None;
        s.tick_at = now + self.cfg.tick;
        s.plans += 1;
        let uncovered = self.uncovered();
        self.sizing.urgent = (uncovered > 0).then_some((self.sizing.turn, uncovered, now));
        let mut offer = self.pools[0].offer(None);
        let call = self.plan_call(now, &mut offer);
        let offer = Shown { addrs: offer.addrs, rows: &call.pool.rows };
        let answer = policies.plan(&call, false);
        let (decision, memo) = answer.answer;
        let mut draft = self.check_plan(now, &decision, &offer);
        let verdict = verdict_of(&draft);
        policies.verdict(Slot::Sizer, answer.decision, verdict);
        let mut chosen = (decision, memo);
        if let Err(breach) = self.starves(now, &draft) {
            self.breach(&breach);
            policies.fault(Slot::Sizer, answer.decision, &breach.why);
            let native = policies.plan(&call, true);
            draft = self.check_plan(now, &native.answer.0, &offer);
            policies.verdict(Slot::Sizer, native.decision, verdict_of(&draft));
            chosen = native.answer;
        }
        for skipped in &draft.skipped {
            self.guard.count(skipped.guard);
            self.note(Note::Guard { guard: skipped.guard, why: skipped.why.clone() });
        }
        if let Some(memo) = chosen.1
            && memo != self.memo
        {
            self.memo = memo;
            self.dirty();
        }
        let asked = chosen.0.recheck_ms.map(|ms| now + Ms::from(ms.max(100)));
        self.sizing.recheck_at = [asked, draft.flap_ends].into_iter().flatten().min();
        self.adopt_plan(now, draft);
    }

    fn starves(&self, now: Ms, draft: &Draft) -> guard::Checked {
        let (waiting, since) = self.waits.vpc_demand();
        let wait = since.map_or(0, |at| now.saturating_sub(at));
        // A wait that began before anything could be asked for says nothing about the policy.
        if wait <= STARVED {
            return Ok(());
        }
        let covered = self.pools[0].assignable() + self.assigning() + draft.grown;
        guard::g15_covered(wait, self.growth_possible(now), covered, waiting.min(covered + self.growth_room(now)))
    }

    fn plan_call(&self, now: Ms, offer: &mut Offer) -> PlanCall {
        let (waiting, since) = self.waits.vpc_demand();
        PlanCall {
            given: Given {
                now_ms: now,
                seed: ids::fnv64(&[b"plan", &self.sizing.plans.to_le_bytes()]),
                ..Given::default()
            },
            pool: self.snapshot(now, 0, offer),
            demand: Demand {
                waiting: waiting as u32,
                oldest_wait_ms: since.map_or(0, |at| now.saturating_sub(at)),
                adds_10s: self.window.adds_since(now.saturating_sub(10_000)),
                adds_1m: self.window.adds.len() as u32,
                dels_1m: self.window.dels.len() as u32,
                failed_1m: self.window.failed.len() as u32,
                pending_pods: None,
                schedulable: self.schedulable,
                stopping: self.stopping,
            },
            cloud: self.cloud_view(now),
            memo: self.memo.clone(),
        }
    }

    fn cloud_view(&self, now: Ms) -> CloudView {
        let index = |o: &Outcome| o.eni.and_then(|no| self.pools[0].index_of(no)).unwrap_or(NO_ENI);
        let view = |o: &Outcome| OutcomeView {
            op: o.op.into(),
            eni: index(o),
            asked: o.asked,
            applied: o.applied,
            code: o.code.clone(),
            at_ms: o.at,
        };
        let subnets = self
            .cfg
            .subnets
            .iter()
            .map(|id| SubnetView {
                id: id.clone(),
                free: self.cloud.subnet_free.get(id).copied(),
                usable_after_ms: self.usable_after(id, now),
                blocks_after_ms: self.barrier(now, "blocks", id).map_or(0, |b| b.until),
            })
            .collect();
        CloudView {
            subnets,
            barriers: self
                .barriers(now)
                .map(|(op, subnet, b)| BarrierView {
                    op: if op == "blocks" { "grow" } else { op }.into(),
                    subnet: self.cfg.subnets.iter().position(|s| s == subnet).map_or(255, |i| i as u8),
                    code: b.code.into(),
                    until_ms: b.until,
                })
                .collect(),
            in_flight: self
                .cloud
                .ops
                .values()
                .filter(|op| op.step != Step::Queued)
                .map(|op| OutcomeView {
                    op: op.name().into(),
                    eni: op.eni.and_then(|no| self.pools[0].index_of(no)).unwrap_or(NO_ENI),
                    asked: op.units(),
                    applied: 0,
                    code: String::new(),
                    at_ms: op.since,
                })
                .collect(),
            last: self.sizing.outcomes.iter().map(view).collect(),
        }
    }

    // ---- the guard ----

    fn check_plan(&self, now: Ms, decision: &PlanDecision, offer: &Shown<'_>) -> Draft {
        let mut draft = Draft { enis: self.enis_taken(), ..Draft::default() };
        for (i, action) in decision.actions.iter().enumerate() {
            let (op, eni, asked) = self.describe_action(action, offer);
            let checked = guard::g9_actions(i).and_then(|()| self.check_action(now, action, offer, &mut draft));
            let mut outcome = Outcome { op, eni, asked, applied: 0, code: String::new(), at: now, number: None };
            match checked {
                Ok(ops) => {
                    outcome.number = Some(draft.ops.len() as u64);
                    draft.ops.extend(ops);
                }
                Err(breach) => {
                    outcome.code = format!("guard-{}", breach.guard);
                    draft.skipped.push(SkippedAction { action: i as u32, guard: breach.guard, why: breach.why });
                    draft.barred.extend(eni);
                }
            }
            // A hostile plan of thousands of actions must not become thousands of outcomes.
            if i < guard::MAX_ACTIONS {
                draft.outcomes.push(outcome);
            } else {
                break;
            }
        }
        draft
    }

    fn describe_action(&self, action: &Action, offer: &Shown<'_>) -> (&'static str, Option<EniNo>, u32) {
        let pool = &self.pools[0];
        match action {
            Action::Attach { count, .. } => ("attach", None, u32::from(*count)),
            Action::Grow { eni, count, .. } => ("grow", pool.eni_at(usize::from(*eni)), u32::from(*count)),
            Action::ReleaseRows(rows) => {
                let eni = rows.first().and_then(|r| offer.addrs.get(*r as usize)).and_then(|a| pool.place(*a));
                ("release", eni.and_then(|pl| pool.eni_of(pl)), rows.len() as u32)
            }
            Action::ReleaseBlock(b) => {
                let eni = pool.block_at_index(usize::from(*b)).and_then(|no| pool.block(no)).and_then(|b| b.eni);
                ("release", eni, 1)
            }
            Action::Drain { eni, .. } => ("drain", pool.eni_at(usize::from(*eni)), 1),
            Action::Detach(eni) => ("detach", pool.eni_at(usize::from(*eni)), 1),
        }
    }

    fn check_action(&self, now: Ms, action: &Action, offer: &Shown<'_>, d: &mut Draft) -> Result<Option<Op>, Breach> {
        let (_, eni, _) = self.describe_action(action, offer);
        if let Some(no) = eni.filter(|no| d.barred.contains(no)) {
            let id = self.pools[0].eni(no).map(|e| e.facts.id.clone()).unwrap_or_default();
            return Err(Breach { guard: 9, why: format!("an earlier action on {id} was refused") });
        }
        match action {
            Action::Attach { subnet, length, count } => self.check_attach(now, *subnet, *length, *count, d),
            Action::Grow { length, count, .. } => self.check_grow(now, eni, *length, *count, d),
            Action::ReleaseRows(rows) => self.check_release_rows(now, eni, rows, offer, d),
            Action::ReleaseBlock(b) => self.check_release_block(now, eni, usize::from(*b), d),
            Action::Drain { on, .. } => {
                let no = known(eni, 4)?;
                if let Some(e) = self.pools[0].eni(no).filter(|_| *on) {
                    guard::g6_removable(e)?;
                }
                Ok(Some(Op::new(now, Kind::Drain { on: *on }, Some(no))))
            }
            Action::Detach(_) => {
                let no = known(eni, 6)?;
                if let Some(e) = self.pools[0].eni(no) {
                    guard::g6_removable(e)?;
                    guard::g6_idle(&self.pools[0].eni_tally(no), self.eni_carried(no))?;
                    d.no_flap(now, e.grown_at, false)?;
                }
                d.released += u64::from(self.pools[0].eni_tally(no).free);
                let c = self.counts(0);
                guard::g8_floor(c.total.saturating_sub(d.released), c.assigned)?;
                Ok(Some(Op::new(now, Kind::Detach { deleting: false }, Some(no))))
            }
        }
    }

    fn unit_size(&self, length: u8) -> Result<u64, Breach> {
        match length {
            32 => Ok(1),
            28 => Ok(16),
            other => Err(Breach { guard: 7, why: format!("EC2 gives no unit of length {other}") }),
        }
    }

    fn check_cap(&self, units: u64, d: &Draft) -> guard::Checked {
        let c = self.counts(0);
        let full = u64::from(self.cfg.slots_per_eni) * if self.cfg.prefix_mode { 16 } else { 1 };
        let would_be = c.total + c.assigning + d.grown + units;
        guard::g7_cap(would_be, u64::from(self.cfg.max_pods), c.cooling + c.reserved + c.held, full)
    }

    fn check_attach(&self, now: Ms, subnet: u8, length: u8, count: u16, d: &mut Draft) -> Result<Option<Op>, Breach> {
        let size = self.unit_size(length)?;
        guard::g7_enis(d.enis, self.max_enis(), count, self.cfg.slots_per_eni)?;
        let units = u64::from(count) * size;
        self.check_cap(units, d)?;
        let subnet = match self.cfg.subnets.get(usize::from(subnet)) {
            Some(id) => id.clone(),
            None if subnet == 255 => self.pick_subnet(now, length, units + 1, d),
            None => return Err(Breach { guard: 8, why: format!("subnet {subnet} is not in the list") }),
        };
        self.check_subnet(now, "attach", &subnet, length, units + 1, d)?;
        d.no_flap(now, self.cloud.detached_at, self.uncovered() > 0)?;
        d.enis += 1;
        d.grown += units;
        *d.subnet.entry(subnet.clone()).or_default() += units + 1;
        let (addresses, prefixes) = if length == 28 { (0, count) } else { (count, 0) };
        Ok(Some(Op::new(now, Kind::Attach { subnet, addresses, prefixes }, None)))
    }

    /// The first subnet that is not known to be full or resting.
    fn pick_subnet(&self, now: Ms, length: u8, need: u64, d: &Draft) -> String {
        let fits = |id: &&String| self.check_subnet(now, "attach", id, length, need, d).is_ok();
        self.cfg.subnets.iter().find(fits).or(self.cfg.subnets.first()).cloned().unwrap_or_default()
    }

    fn check_subnet(&self, now: Ms, op: &str, subnet: &str, length: u8, need: u64, d: &Draft) -> guard::Checked {
        let mut barrier = self.barrier(now, op, subnet);
        if barrier.is_none() && length == 28 {
            barrier = self.barrier(now, "blocks", subnet);
        }
        let taken = d.subnet.get(subnet).copied().unwrap_or(0);
        let free = self.cloud.subnet_free.get(subnet).copied();
        guard::g8_growth(need + taken, free, barrier.map(|b| (b.code, b.until)))
    }

    fn check_grow(
        &self,
        now: Ms,
        eni: Option<EniNo>,
        length: u8,
        count: u16,
        d: &mut Draft,
    ) -> Result<Option<Op>, Breach> {
        let no = known(eni, 4)?;
        let size = self.unit_size(length)?;
        let Some(e) = self.pools[0].eni(no) else { return Err(unknown_eni(4)) };
        let taken = d.slots.get(&no).copied().unwrap_or(0);
        guard::g7_slots(e, count.saturating_add(taken))?;
        let units = u64::from(count) * size;
        self.check_cap(units, d)?;
        self.check_subnet(now, "grow", &e.facts.subnet, length, units, d)?;
        d.no_flap(now, e.shrunk_at, self.uncovered() > 0)?;
        *d.slots.entry(no).or_default() += count;
        d.grown += units;
        *d.subnet.entry(e.facts.subnet.clone()).or_default() += units;
        let (addresses, prefixes) = if length == 28 { (0, count) } else { (count, 0) };
        Ok(Some(Op::new(now, Kind::Grow { addresses, prefixes }, Some(no))))
    }

    fn check_release_rows(
        &self,
        now: Ms,
        eni: Option<EniNo>,
        rows: &[u32],
        offer: &Shown<'_>,
        d: &mut Draft,
    ) -> Result<Option<Op>, Breach> {
        let carried = |i: usize| self.carried.contains(&addr::ip(4, offer.addrs[i]));
        guard::g5_release_rows(rows, offer.rows, &carried)?;
        let no = known(eni, 5)?;
        let Some(e) = self.pools[0].eni(no) else { return Err(unknown_eni(5)) };
        if e.unmanaged {
            return Err(Breach { guard: 5, why: format!("{} is not ours", e.facts.id) });
        }
        d.no_flap(now, e.grown_at, false)?;
        d.released += rows.len() as u64;
        let c = self.counts(0);
        guard::g8_floor(c.total.saturating_sub(d.released), c.assigned)?;
        let addresses: Vec<Addr> = rows.iter().map(|r| offer.addrs[*r as usize]).collect();
        Ok(Some(Op::new(now, Kind::Release { addresses, blocks: Vec::new() }, Some(no))))
    }

    fn check_release_block(
        &self,
        now: Ms,
        eni: Option<EniNo>,
        index: usize,
        d: &mut Draft,
    ) -> Result<Option<Op>, Breach> {
        let no = known(eni, 6)?;
        let block_no = self.pools[0].block_at_index(index).ok_or_else(|| unknown_eni(6))?;
        let Some(b) = self.pools[0].block(block_no) else { return Err(unknown_eni(6)) };
        guard::g6_idle(&b.tally, self.block_carried(block_no))?;
        if b.releasing {
            return Err(Breach { guard: 6, why: "the block is being given back already".into() });
        }
        d.no_flap(now, self.pools[0].eni(no).and_then(|e| e.grown_at), false)?;
        d.released += u64::from(b.tally.free) + b.untouched();
        let c = self.counts(0);
        guard::g8_floor(c.total.saturating_sub(d.released), c.assigned)?;
        Ok(Some(Op::new(now, Kind::Release { addresses: Vec::new(), blocks: vec![block_no] }, Some(no))))
    }

    pub(super) fn block_carried(&self, no: u32) -> bool {
        let Some(b) = self.pools[0].block(no) else { return false };
        self.carried.range(addr::ip(4, b.first)..=addr::ip(4, b.last)).next().is_some()
    }

    pub(super) fn eni_carried(&self, no: EniNo) -> bool {
        if self.carried.is_empty() {
            return false;
        }
        let Some(e) = self.pools[0].eni(no) else { return false };
        e.blocks.iter().any(|b| self.block_carried(*b))
            || self.pools[0].lone_of(no).iter().any(|a| self.carried.contains(&addr::ip(4, *a)))
    }

    // ---- acceptance ----

    /// A new plan replaces what the last one had not begun.
    fn adopt_plan(&mut self, now: Ms, draft: Draft) {
        self.cloud.ops.retain(|_, op| op.step != Step::Queued);
        let mut numbers = Vec::with_capacity(draft.ops.len());
        for op in draft.ops {
            numbers.push(self.queue_op(op));
        }
        self.sizing.outcomes = draft.outcomes;
        for outcome in &mut self.sizing.outcomes {
            outcome.number = outcome.number.and_then(|i| numbers.get(i as usize).copied());
            outcome.at = now;
        }
    }

    /// An operation ended: the last plan hears what became of its action.
    pub(super) fn op_outcome(&mut self, now: Ms, number: u64, applied: u32, code: &str) {
        self.sizing.turn += 1;
        self.sizing.touch(now);
        if let Some(o) = self.sizing.outcomes.iter_mut().find(|o| o.number == Some(number)) {
            o.applied = applied;
            o.code = code.into();
            o.at = now;
        }
    }

    // ---- what growth is possible ----

    /// Whether EC2 could be asked for more now: limits, cap, subnets and back-off allow it.
    pub(super) fn growth_possible(&self, now: Ms) -> bool {
        self.started && (self.assigning() > 0 || self.growth_room(now) > 0)
    }

    /// Addresses that could be asked for now.
    fn growth_room(&self, now: Ms) -> u64 {
        let length = if self.cfg.prefix_mode { 28 } else { 32 };
        let size = if length == 28 { 16 } else { 1 };
        let d = Draft::default();
        if self.check_cap(1, &d).is_err() {
            return 0;
        }
        let on_enis: u64 = self.pools[0]
            .enis()
            .filter(|(_, e)| e.fillable() && self.check_subnet(now, "grow", &e.facts.subnet, length, size, &d).is_ok())
            .map(|(_, e)| u64::from(e.room()) * size)
            .sum();
        let new = u64::from(self.max_enis().saturating_sub(self.enis_taken()));
        let attach = self.cfg.subnets.iter().any(|s| self.check_subnet(now, "attach", s, length, size + 1, &d).is_ok());
        on_enis + if attach { new * u64::from(self.cfg.slots_per_eni) * size } else { 0 }
    }

    /// Interfaces of ours that are there or on their way.
    fn enis_taken(&self) -> u16 {
        let present = self.pools[0].enis().filter(|(_, e)| !e.unmanaged && super::plain(e)).count();
        let creating = self.cloud.ops.values().filter(|o| o.creating()).count();
        (present + creating) as u16
    }

    /// The most telling reason why growth rests, as an ADD's error.
    ///
    /// Back-off that has just ended counts as long as no call succeeded: the next one will most likely fail as well.
    pub(super) fn barrier_error(&self) -> Option<AddError> {
        let c = self.counts(0);
        let full = self.check_cap(1, &Draft::default()).is_err()
            || (self.enis_taken() >= self.max_enis()
                && self.pools[0].enis().all(|(_, e)| !e.fillable() || e.room() == 0));
        if full && c.assigning == 0 {
            return None;
        }
        let (op, subnet, b) = self.growth_failures().max_by_key(|(.., b)| b.until)?;
        let (op, subnet, until) = (op.to_string(), subnet.to_string(), b.until);
        Some(match b.code {
            "throttled" => AddError::Throttled { op, until },
            code @ ("subnet-exhausted" | "no-cidr-block") => AddError::SubnetFull { subnet, code: code.into(), until },
            code => AddError::Cloud { op, code: code.into(), until },
        })
    }

    /// Whether rows of a release are all still free, just before the call.
    pub(super) fn still_free(&self, addresses: &[Addr]) -> guard::Checked {
        addresses.iter().try_for_each(|a| guard::g5_still_free(self.pools[0].state(*a)))
    }

    /// States of these addresses, to put back when a release fails.
    pub(super) fn states(&self, addresses: &[Addr]) -> Vec<Option<State>> {
        addresses.iter().map(|a| self.pools[0].state(*a).cloned()).collect()
    }
}

fn verdict_of(draft: &Draft) -> Verdict {
    if draft.skipped.is_empty() { Verdict::Accepted } else { Verdict::Partly(draft.skipped.clone()) }
}

fn known(eni: Option<EniNo>, guard: u8) -> Result<EniNo, Breach> {
    eni.ok_or_else(|| unknown_eni(guard))
}

fn unknown_eni(guard: u8) -> Breach {
    Breach { guard, why: "the action names an interface or block that was not shown".into() }
}
