//! Operations at EC2: one mutating call per interface and one attach at a time, an intent in the checkpoint before each
//! call, calls without an answer settled by describes, back-off by operation, subnet and kind of error; and what EC2
//! and instance metadata say about the interfaces, taken as evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::Node;
use super::commit::Ack;
use crate::addr::{self, Addr};
use crate::cloud::{AttachState, Call, CloudError, EniFacts, EniKind, ErrorKind, Reply, SubnetFacts};
use crate::event::{Effect, Ms, Note};
use crate::guard;
use crate::ids;
use crate::pool::{BlockNo, EniNo, Stage, State};

/// Two describes that do not show a change must lie so far apart to count as two.
pub(super) const EVIDENCE: Ms = 30_000;
/// Polls of a describe while an interface attaches or detaches.
const POLL: Ms = 1_000;
const POLL_MAX: Ms = 10_000;
/// After so many polls an attach is given up.
const POLLS: u32 = 30;
/// Tries of a call that may safely be repeated.
const TRIES: u32 = 5;

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Create, attach, keep-until-termination, wait, set up.
    Attach { subnet: String, addresses: u16, prefixes: u16 },
    /// AssignPrivateIpAddresses.
    Grow { addresses: u16, prefixes: u16 },
    /// UnassignPrivateIpAddresses.
    Release { addresses: Vec<Addr>, blocks: Vec<BlockNo> },
    /// Detach, wait, delete.
    Detach { deleting: bool },
    /// Offer nothing new, or offer again.
    Drain { on: bool },
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Accepted, not begun; the next plan may replace it.
    Queued,
    /// Its intent waits for the checkpoint.
    Intent,
    /// At EC2.
    Calling,
    /// No answer came; describes tell.
    Unclear { first: Option<Ms>, seen: u8 },
    /// The same call again at this time.
    Again { at: Ms },
    /// Waits for a state that describes show.
    Polling { at: Ms, polls: u32 },
    /// The host's side is being set up.
    SettingUp,
}

/// Which call of an attach is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachCall {
    Create,
    Attach,
    Keep,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) eni: Option<EniNo>,
    pub(super) step: Step,
    pub(super) since: Ms,
    pub(super) attach: AttachCall,
    pub(super) token: String,
    tries: u32,
    /// Why it is tried again.
    trouble: Option<ErrorKind>,
    /// States to put back when a release fails.
    before: Vec<Option<State>>,
}

impl Op {
    pub(super) fn new(now: Ms, kind: Kind, eni: Option<EniNo>) -> Op {
        Op {
            kind,
            eni,
            step: Step::Queued,
            since: now,
            attach: AttachCall::Create,
            token: String::new(),
            tries: 0,
            trouble: None,
            before: Vec::new(),
        }
    }

    /// The WIT's name.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Attach { .. } => "attach",
            Kind::Grow { .. } => "grow",
            Kind::Release { .. } => "release",
            Kind::Detach { .. } => "detach",
            Kind::Drain { .. } => "drain",
        }
    }

    /// Units asked for: addresses or blocks, or 1.
    pub(super) fn units(&self) -> u32 {
        match &self.kind {
            Kind::Attach { addresses, prefixes, .. } | Kind::Grow { addresses, prefixes } => {
                u32::from(*addresses) + u32::from(*prefixes)
            }
            Kind::Release { addresses, blocks } => (addresses.len() + blocks.len()) as u32,
            Kind::Detach { .. } | Kind::Drain { .. } => 1,
        }
    }

    /// Addresses it is to bring.
    fn arriving(&self) -> u64 {
        match &self.kind {
            Kind::Attach { addresses, prefixes, .. } | Kind::Grow { addresses, prefixes } => {
                u64::from(*addresses) + 16 * u64::from(*prefixes)
            }
            _ => 0,
        }
    }

    /// An attach whose interface is not known yet.
    pub(super) fn creating(&self) -> bool {
        matches!(self.kind, Kind::Attach { .. }) && self.eni.is_none() && self.step != Step::Queued
    }

    /// For a release that is taken up again after a restart.
    pub(super) fn set_before(&mut self, before: Vec<Option<State>>) {
        self.before = before;
    }

    fn shrinks(&self) -> bool {
        matches!(self.kind, Kind::Release { .. } | Kind::Detach { .. } | Kind::Drain { on: true })
    }
}

/// Back-off of one operation in one subnet.
#[derive(Clone, Debug)]
pub(super) struct Barrier {
    pub(super) code: &'static str,
    pub(super) until: Ms,
    failures: u32,
    open: bool,
}

/// Everything about EC2.
#[derive(Debug)]
pub(super) struct Cloud {
    pub(super) ops: BTreeMap<u64, Op>,
    barriers: BTreeMap<(&'static str, String), Barrier>,
    pub(super) subnet_free: BTreeMap<String, u64>,
    subnet_cidrs: BTreeMap<String, Ipv4Net>,
    subnets_at: Option<Ms>,
    subnets_op: Option<u64>,
    describe_op: Option<u64>,
    pub(super) describe_at: Option<Ms>,
    describe_failures: u32,
    absent: BTreeMap<String, (Ms, u8)>,
    pub(super) detached_at: Option<Ms>,
    next: u64,
}

impl Cloud {
    pub(super) fn new(now: Ms) -> Cloud {
        Cloud {
            ops: BTreeMap::new(),
            barriers: BTreeMap::new(),
            subnet_free: BTreeMap::new(),
            subnet_cidrs: BTreeMap::new(),
            subnets_at: None,
            subnets_op: None,
            describe_op: None,
            describe_at: Some(now),
            describe_failures: 0,
            absent: BTreeMap::new(),
            detached_at: None,
            next: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Numbers go on where a saved state stopped.
    pub(super) fn skip_numbers(&mut self, to: u64) {
        self.next = self.next.max(to);
    }
}

impl Node {
    pub(super) fn queue_op(&mut self, op: Op) -> u64 {
        let number = self.cloud.number();
        self.cloud.ops.insert(number, op);
        number
    }

    /// Addresses being asked for. What only queues is not among them: the next plan replaces it.
    pub(super) fn assigning(&self) -> u64 {
        self.cloud.ops.values().filter(|op| op.step != Step::Queued).map(Op::arriving).sum()
    }

    /// Addresses being asked for, those in the queue included.
    pub(super) fn planned(&self) -> u64 {
        self.cloud.ops.values().map(Op::arriving).sum()
    }

    /// Growth that EC2 has refused so far and that is being tried again: what, why and until when it rests.
    pub(super) fn growth_in_trouble(&self) -> Option<(&'static str, ErrorKind, Ms)> {
        let mut growing = self.cloud.ops.values().filter(|op| op.arriving() > 0 && op.step != Step::Queued);
        let first = growing.next()?;
        if growing.next().is_some() {
            return None;
        }
        match (&first.step, first.trouble) {
            (Step::Again { at }, Some(kind)) => Some((first.name(), kind, *at)),
            (Step::Intent | Step::Calling, Some(kind)) => Some((first.name(), kind, first.since)),
            _ => None,
        }
    }

    // ---- back-off ----

    pub(super) fn barrier(&self, now: Ms, op: &str, subnet: &str) -> Option<&Barrier> {
        self.barriers(now).find(|(o, s, _)| *o == op && *s == subnet).map(|(_, _, b)| b)
    }

    pub(super) fn barriers(&self, now: Ms) -> impl Iterator<Item = (&'static str, &str, &Barrier)> {
        self.cloud
            .barriers
            .iter()
            .filter(move |(_, b)| !b.open && b.until > now)
            .map(|((op, subnet), b)| (*op, subnet.as_str(), b))
    }

    /// Back-off of growth since the last success, over or not.
    pub(super) fn growth_failures(&self) -> impl Iterator<Item = (&'static str, &str, &Barrier)> {
        self.cloud
            .barriers
            .iter()
            .filter(|((op, _), _)| matches!(*op, "attach" | "grow" | "blocks"))
            .map(|((op, subnet), b)| (*op, subnet.as_str(), b))
    }

    pub(super) fn usable_after(&self, subnet: &str, now: Ms) -> Ms {
        let of = |op| self.barrier(now, op, subnet).filter(|b| b.code == "subnet-exhausted").map_or(0, |b| b.until);
        of("grow").max(of("attach"))
    }

    /// Back-off that has ended lets plans go on; its count of failures stays until a success.
    pub(super) fn end_barriers(&mut self, now: Ms) {
        let mut ended = false;
        for b in self.cloud.barriers.values_mut().filter(|b| !b.open && b.until <= now) {
            b.open = true;
            ended = true;
        }
        if ended {
            self.sizing.turn += 1;
            self.sizing.touch(now);
        }
    }

    fn back_off(&mut self, now: Ms, op: &'static str, subnet: &str, kind: ErrorKind) {
        let op = if kind == ErrorKind::NoCidrBlock { "blocks" } else { op };
        let key = (op, subnet.to_string());
        let failures = self.cloud.barriers.get(&key).map_or(0, |b| b.failures) + 1;
        let seed = ids::fnv64(&[op.as_bytes(), subnet.as_bytes(), &now.to_le_bytes()]);
        let until = now + delay(kind, failures, seed);
        self.cloud.barriers.insert(key, Barrier { code: kind.code(), until, failures, open: false });
        self.note(Note::BackOff { op: op.into(), subnet: subnet.into(), code: kind.code().into(), until });
    }

    fn no_back_off(&mut self, op: &'static str, subnet: &str) {
        self.cloud.barriers.remove(&(op, subnet.to_string()));
    }

    fn subnet_of(&self, op: &Op) -> String {
        match &op.kind {
            Kind::Attach { subnet, .. } => subnet.clone(),
            _ => op.eni.and_then(|no| self.pools[0].eni(no)).map(|e| e.facts.subnet.clone()).unwrap_or_default(),
        }
    }

    // ---- driving ----

    pub(super) fn next_op_wake(&self) -> Option<Ms> {
        let steps = self.cloud.ops.values().filter_map(|op| match op.step {
            Step::Again { at } => Some(at),
            _ => None,
        });
        let describe = self.cloud.describe_at.filter(|_| self.cloud.describe_op.is_none());
        let barriers = self.cloud.barriers.values().filter(|b| !b.open).map(|b| b.until);
        steps.chain(describe).chain(barriers).min()
    }

    fn want_describe(&mut self, at: Ms) {
        let at = self.cloud.describe_at.map_or(at, |old| old.min(at));
        self.cloud.describe_at = Some(at);
    }

    /// Begins what may begin, repeats what is due, asks for a describe when one is wanted.
    pub(super) fn drive_ops(&mut self, now: Ms) {
        let again: Vec<u64> = self
            .cloud
            .ops
            .iter()
            .filter(|(_, op)| matches!(op.step, Step::Again { at } if at <= now))
            .map(|(n, _)| *n)
            .collect();
        for number in again {
            self.write_intent(number);
        }
        self.begin_ops(now);
        if self.cloud.describe_op.is_none() && self.cloud.describe_at.is_some_and(|at| at <= now) {
            let op = self.cloud.number();
            self.cloud.describe_op = Some(op);
            self.cloud.describe_at = None;
            self.out.push(Effect::Ec2 { op, call: Call::DescribeEnis });
        }
    }

    /// Growth before shrink; a shrink that has not begun is dropped while an ADD waits.
    fn begin_ops(&mut self, now: Ms) {
        let (waiting, _) = self.waits.vpc_demand();
        let uncovered = waiting > self.pools[0].assignable() + self.assigning();
        let mut queued: Vec<(bool, u64)> =
            self.cloud.ops.iter().filter(|(_, op)| op.step == Step::Queued).map(|(n, op)| (op.shrinks(), *n)).collect();
        queued.sort_unstable();
        let mut growth_left = false;
        for (shrink, number) in queued {
            if shrink && uncovered {
                self.cloud.ops.remove(&number);
                self.op_outcome(now, number, 0, "superseded");
                continue;
            }
            if shrink && growth_left {
                continue;
            }
            if !self.begin_op(now, number) && self.cloud.ops.contains_key(&number) {
                growth_left |= !shrink;
            }
        }
    }

    /// Begins one queued operation if nothing stands in its way now; the guard looks once more. Says whether it began.
    fn begin_op(&mut self, now: Ms, number: u64) -> bool {
        let Some(op) = self.cloud.ops.get(&number).cloned() else { return false };
        let busy = self.cloud.ops.iter().any(|(n, o)| {
            *n != number
                && o.step != Step::Queued
                && match op.kind {
                    Kind::Attach { .. } => matches!(o.kind, Kind::Attach { .. }),
                    _ => o.eni == op.eni,
                }
        });
        if busy {
            return false;
        }
        if let Err(breach) = self.guard_again(now, &op) {
            self.cloud.ops.remove(&number);
            let code = format!("guard-{}", breach.guard);
            self.breach(&breach);
            self.op_outcome(now, number, 0, &code);
            return false;
        }
        if let Kind::Drain { on } = op.kind {
            self.cloud.ops.remove(&number);
            if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                eni.draining = on;
            }
            self.supply += 1;
            self.op_outcome(now, number, 1, "");
            return true;
        }
        self.take_resources(number, &op);
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.since = now;
            op.token = format!("wipam-{:016x}", ids::fnv64(&[&now.to_le_bytes(), &number.to_le_bytes()]));
        }
        self.write_intent(number);
        true
    }

    fn guard_again(&self, now: Ms, op: &Op) -> guard::Checked {
        let subnet = self.subnet_of(op);
        let barrier = self.barrier(now, op.name(), &subnet).map(|b| (b.code, b.until));
        let eni = op.eni.and_then(|no| self.pools[0].eni(no));
        match (&op.kind, eni) {
            (Kind::Attach { .. }, _) => guard::g8_growth(0, None, barrier),
            (Kind::Grow { addresses, prefixes }, Some(e)) => {
                guard::g8_growth(0, None, barrier)?;
                guard::g7_slots(e, addresses + prefixes)
            }
            (Kind::Release { addresses, blocks }, Some(_)) => {
                guard::g8_growth(0, None, barrier)?;
                self.still_free(addresses)?;
                for b in blocks {
                    if let Some(block) = self.pools[0].block(*b) {
                        guard::g6_idle(&block.tally, self.block_carried(*b))?;
                    }
                }
                Ok(())
            }
            (Kind::Detach { .. }, Some(e)) => {
                guard::g8_growth(0, None, barrier)?;
                guard::g6_removable(e)?;
                guard::g6_idle(&self.pools[0].eni_tally(op.eni.unwrap_or_default()), false)
            }
            (Kind::Drain { on: true }, Some(e)) => guard::g6_removable(e),
            (Kind::Drain { .. }, Some(_)) => Ok(()),
            (_, None) => Err(guard::Breach { guard: 4, why: "the interface is gone".into() }),
        }
    }

    /// Slots and addresses that move are marked when the intent is written, so that nothing else counts on them.
    fn take_resources(&mut self, number: u64, op: &Op) {
        match &op.kind {
            Kind::Grow { addresses, prefixes } => {
                if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                    eni.asking += addresses + prefixes;
                }
            }
            Kind::Release { addresses, blocks } => {
                let before = self.states(addresses);
                for a in addresses {
                    self.pools[0].set(*a, Some(State::Releasing));
                }
                for b in blocks {
                    if let Some(block) = self.pools[0].block_mut(*b) {
                        block.releasing = true;
                    }
                }
                if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                    eni.leaving += (addresses.len() + blocks.len()) as u16;
                }
                if let Some(op) = self.cloud.ops.get_mut(&number) {
                    op.before = before;
                }
            }
            Kind::Detach { .. } => {
                if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                    eni.stage = Stage::Detaching;
                    let effect = Effect::RemoveEni { eni: eni.facts.clone(), table: eni.table() };
                    self.out.push(effect);
                }
            }
            Kind::Attach { .. } | Kind::Drain { .. } => {}
        }
    }

    fn write_intent(&mut self, number: u64) {
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::Intent;
            self.after_commit(Ack::Intent(number));
        }
    }

    /// The intent is on disk: the call may leave.
    pub(super) fn op_may_call(&mut self, now: Ms, number: u64) {
        let Some(op) = self.cloud.ops.get(&number) else { return };
        let Some(call) = self.call_of(op) else {
            self.finish_op(now, number, 0, "not-found");
            return;
        };
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::Calling;
        }
        self.out.push(Effect::Ec2 { op: number, call });
    }

    fn call_of(&self, op: &Op) -> Option<Call> {
        let eni = op.eni.and_then(|no| self.pools[0].eni(no));
        Some(match &op.kind {
            Kind::Attach { subnet, addresses, prefixes } => match op.attach {
                AttachCall::Create => Call::CreateEni {
                    subnet: subnet.clone(),
                    addresses: *addresses,
                    prefixes: *prefixes,
                    token: op.token.clone(),
                },
                AttachCall::Attach => {
                    let facts = &eni?.facts;
                    Call::AttachEni { eni: facts.id.clone(), device: facts.device?, card: facts.card }
                }
                AttachCall::Keep => {
                    Call::DeleteOnTermination { eni: eni?.facts.id.clone(), attachment: eni?.facts.attachment.clone()? }
                }
            },
            Kind::Grow { addresses, prefixes } => {
                Call::Assign { eni: eni?.facts.id.clone(), addresses: *addresses, prefixes: *prefixes }
            }
            Kind::Release { addresses, blocks } => Call::Unassign {
                eni: eni?.facts.id.clone(),
                addresses: addresses.iter().map(|a| Ipv4Addr::from(*a as u32)).collect(),
                prefixes: blocks.iter().filter_map(|b| self.block_net(*b)).collect(),
            },
            Kind::Detach { deleting: false } => {
                Call::DetachEni { eni: eni?.facts.id.clone(), attachment: eni?.facts.attachment.clone()? }
            }
            Kind::Detach { deleting: true } => Call::DeleteEni { eni: eni?.facts.id.clone() },
            Kind::Drain { .. } => return None,
        })
    }

    fn block_net(&self, no: BlockNo) -> Option<Ipv4Net> {
        let b = self.pools[0].block(no)?;
        Ipv4Net::new(Ipv4Addr::from(b.base as u32), b.length).ok()
    }

    // ---- answers ----

    pub(super) fn on_ec2(&mut self, now: Ms, number: u64, result: Result<Reply, CloudError>) {
        if self.cloud.describe_op == Some(number) {
            self.cloud.describe_op = None;
            return self.on_describe(now, result);
        }
        if self.cloud.subnets_op == Some(number) {
            self.cloud.subnets_op = None;
            if let Ok(Reply::Subnets(subnets)) = result {
                self.on_subnets(now, &subnets);
            }
            return;
        }
        let Some(op) = self.cloud.ops.get(&number).filter(|op| op.step == Step::Calling).cloned() else { return };
        self.dirty();
        match result {
            Ok(reply) => self.op_answered(now, number, &op, reply),
            Err(error) => self.op_failed(now, number, &op, &error),
        }
    }

    fn op_answered(&mut self, now: Ms, number: u64, op: &Op, reply: Reply) {
        let subnet = self.subnet_of(op);
        match (&op.kind, reply) {
            (Kind::Attach { .. }, Reply::Created(facts)) => self.attach_created(now, number, *facts),
            (Kind::Attach { .. }, Reply::Attached { attachment }) => {
                if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                    eni.facts.attachment = Some(attachment);
                    eni.facts.state = AttachState::Attaching;
                }
                self.next_attach_call(number, AttachCall::Keep);
            }
            (Kind::Attach { .. }, Reply::Done) => self.poll_op(now, number),
            (Kind::Grow { .. }, Reply::Assigned { addresses, prefixes }) => {
                self.no_back_off("grow", &subnet);
                let applied = self.grown(now, op, &addresses, &prefixes);
                self.finish_op(now, number, applied, "");
            }
            (Kind::Release { .. }, _) => {
                self.no_back_off("release", &subnet);
                self.released(now, op);
                self.finish_op(now, number, op.units(), "");
            }
            (Kind::Detach { deleting: false }, _) => self.poll_op(now, number),
            (Kind::Detach { deleting: true }, _) => self.detached(now, number, op),
            // An answer of another kind than the call's is an adapter's fault; a describe finds out what is so.
            (_, _) => self.unclear(now, number),
        }
    }

    fn attach_created(&mut self, now: Ms, number: u64, mut facts: EniFacts) {
        let device = self.free_device();
        facts.device = Some(device);
        facts.card = 0;
        let Some(op) = self.cloud.ops.get_mut(&number) else { return };
        let units = op.units() as u16;
        op.tries = 0;
        op.trouble = None;
        let slots = self.cfg.slots_per_eni;
        let no = self.pools[0].add_eni(facts, Stage::Attaching, slots, false, now);
        if let Some(eni) = self.pools[0].eni_mut(no) {
            eni.asking = units;
        }
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.eni = Some(no);
        }
        self.next_attach_call(number, AttachCall::Attach);
    }

    fn free_device(&self) -> u8 {
        let used: BTreeSet<u8> =
            self.pools[0].enis().filter(|(_, e)| e.facts.card == 0).filter_map(|(_, e)| e.facts.device).collect();
        (1..=254).find(|d| !used.contains(d)).unwrap_or(255)
    }

    fn next_attach_call(&mut self, number: u64, next: AttachCall) {
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.attach = next;
            op.tries = 0;
            op.trouble = None;
        }
        self.write_intent(number);
    }

    fn poll_op(&mut self, now: Ms, number: u64) {
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::Polling { at: now + POLL, polls: 0 };
        }
        self.want_describe(now + POLL);
    }

    fn grown(&mut self, now: Ms, op: &Op, addresses: &[Ipv4Addr], prefixes: &[Ipv4Net]) -> u32 {
        let Some(no) = op.eni else { return 0 };
        let applied = self.add_units(now, no, addresses, prefixes);
        if let Some(eni) = self.pools[0].eni_mut(no) {
            eni.grown_at = Some(now);
        }
        applied
    }

    /// Puts addresses and prefixes of an interface into the pool; present ones stay. Says how many were new.
    fn add_units(&mut self, _now: Ms, no: EniNo, addresses: &[Ipv4Addr], prefixes: &[Ipv4Net]) -> u32 {
        let mut new = 0;
        for a in addresses {
            new += u32::from(self.pools[0].add_lone(no, addr::number(IpAddr::V4(*a))));
        }
        for p in prefixes {
            let base = addr::number(IpAddr::V4(p.network()));
            if self.pools[0].block_at(base).is_none() {
                let last = addr::number(IpAddr::V4(p.broadcast()));
                self.pools[0].add_block(Some(no), base, p.prefix_len(), base, last, Vec::new(), None);
                new += 1;
            }
        }
        if new > 0 {
            self.unpark(0);
            self.supply += 1;
            self.dirty();
        }
        new
    }

    fn released(&mut self, now: Ms, op: &Op) {
        let Kind::Release { addresses, blocks } = &op.kind else { return };
        for a in addresses {
            self.pools[0].remove_lone(*a);
        }
        for b in blocks {
            self.pools[0].remove_block(*b);
        }
        if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
            eni.shrunk_at = Some(now);
        }
    }

    fn not_released(&mut self, op: &Op) {
        let Kind::Release { addresses, blocks } = &op.kind else { return };
        for (a, before) in addresses.iter().zip(&op.before) {
            if self.pools[0].state(*a) == Some(&State::Releasing) {
                self.pools[0].set(*a, before.clone());
            }
        }
        for b in blocks {
            if let Some(block) = self.pools[0].block_mut(*b) {
                block.releasing = false;
            }
        }
        self.supply += 1;
    }

    fn detached(&mut self, now: Ms, number: u64, op: &Op) {
        if let Some(no) = op.eni {
            self.pools[0].remove_eni(no);
            self.cloud.detached_at = Some(now);
        }
        self.finish_op(now, number, 1, "");
    }

    /// Ends an operation: what it took is given back to the counts, the plan hears the outcome.
    fn finish_op(&mut self, now: Ms, number: u64, applied: u32, code: &str) {
        let Some(op) = self.cloud.ops.remove(&number) else { return };
        if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
            match op.kind {
                Kind::Grow { .. } | Kind::Attach { .. } => eni.asking = eni.asking.saturating_sub(op.units() as u16),
                Kind::Release { .. } => eni.leaving = eni.leaving.saturating_sub(op.units() as u16),
                Kind::Detach { .. } | Kind::Drain { .. } => {}
            }
        }
        self.op_outcome(now, number, applied, code);
        self.dirty();
    }

    // ---- failures ----

    fn op_failed(&mut self, now: Ms, number: u64, op: &Op, error: &CloudError) {
        if error.kind.ambiguous() && !matches!(op.kind, Kind::Attach { .. } | Kind::Detach { .. }) {
            return self.unclear(now, number);
        }
        let subnet = self.subnet_of(op);
        match &op.kind {
            Kind::Attach { .. } => self.attach_failed(now, number, op, error, &subnet),
            Kind::Grow { .. } => {
                self.back_off(now, "grow", &subnet, error.kind);
                if matches!(error.kind, ErrorKind::AddressLimit | ErrorKind::NotFound) {
                    self.want_describe(now);
                }
                self.finish_op(now, number, 0, error.kind.code());
            }
            Kind::Release { .. } => {
                self.back_off(now, "release", &subnet, error.kind);
                self.not_released(op);
                self.want_describe(now);
                self.finish_op(now, number, 0, error.kind.code());
            }
            Kind::Detach { .. } => self.detach_failed(now, number, op, error, &subnet),
            Kind::Drain { .. } => {}
        }
    }

    /// Create may be repeated (its token makes it one), and so may keep-until-termination; an attach without an answer
    /// is settled by describes.
    fn attach_failed(&mut self, now: Ms, number: u64, op: &Op, error: &CloudError, subnet: &str) {
        let repeatable = error.kind.ambiguous() || error.kind == ErrorKind::Throttled;
        if op.attach != AttachCall::Attach && repeatable && op.tries < TRIES {
            return self.again(now, number, error.kind);
        }
        match op.attach {
            AttachCall::Create => {
                if error.kind.ambiguous() {
                    // An interface may have come of it: the describe finds and deletes it.
                    self.want_describe(now + POLL);
                }
                self.back_off(now, "attach", subnet, error.kind);
                self.finish_op(now, number, 0, error.kind.code());
            }
            AttachCall::Attach if error.kind.ambiguous() => self.poll_op(now, number),
            AttachCall::Attach if error.kind == ErrorKind::Throttled && op.tries < TRIES => {
                self.again(now, number, error.kind);
            }
            AttachCall::Attach => {
                self.back_off(now, "attach", subnet, error.kind);
                self.abandon(now, number, true, error.kind.code());
            }
            AttachCall::Keep => {
                // It would outlive its instance and leak: better no interface than a lost one.
                self.back_off(now, "attach", subnet, error.kind);
                self.abandon(now, number, false, error.kind.code());
            }
        }
    }

    /// Gives an interface up that is not in use yet: detach it unless it never was attached, then delete it.
    fn abandon(&mut self, now: Ms, number: u64, unattached: bool, code: &str) {
        let Some(no) = self.cloud.ops.get(&number).and_then(|op| op.eni) else { return };
        self.finish_op(now, number, 0, code);
        if let Some(eni) = self.pools[0].eni_mut(no) {
            eni.stage = Stage::Detaching;
            eni.asking = 0;
        }
        let mut op = Op::new(now, Kind::Detach { deleting: unattached }, Some(no));
        op.step = Step::Intent;
        let number = self.queue_op(op);
        self.after_commit(Ack::Intent(number));
    }

    fn detach_failed(&mut self, now: Ms, number: u64, op: &Op, error: &CloudError, subnet: &str) {
        let deleting = op.kind == Kind::Detach { deleting: true };
        match error.kind {
            ErrorKind::NotFound if deleting => self.detached(now, number, op),
            ErrorKind::NotFound => self.poll_op(now, number),
            _ if error.kind.ambiguous() && !deleting => self.poll_op(now, number),
            _ if deleting || (error.kind == ErrorKind::Throttled && op.tries < TRIES) => {
                self.again(now, number, error.kind);
            }
            _ => {
                self.back_off(now, "detach", subnet, error.kind);
                if let Some(eni) = op.eni.and_then(|no| self.pools[0].eni_mut(no)) {
                    eni.stage = Stage::Ready;
                    eni.draining = false;
                }
                if let Some(no) = op.eni {
                    self.set_up(no);
                }
                self.supply += 1;
                self.finish_op(now, number, 0, error.kind.code());
            }
        }
    }

    fn again(&mut self, now: Ms, number: u64, kind: ErrorKind) {
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.tries = op.tries.saturating_add(1);
            let at = now + delay(kind, op.tries, ids::fnv64(&[&number.to_le_bytes(), &now.to_le_bytes()]));
            op.trouble = Some(kind);
            op.step = Step::Again { at };
        }
    }

    fn unclear(&mut self, now: Ms, number: u64) {
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::Unclear { first: None, seen: 0 };
        }
        self.want_describe(now + POLL);
    }

    // ---- describes ----

    fn on_describe(&mut self, now: Ms, result: Result<Reply, CloudError>) {
        match result {
            Ok(Reply::Enis(enis)) => {
                self.cloud.describe_failures = 0;
                self.inventory(now, &enis);
                self.settle_ops(now, &enis);
            }
            Ok(_) | Err(_) => {
                self.cloud.describe_failures = self.cloud.describe_failures.saturating_add(1);
                let kind = result.err().map_or(ErrorKind::Refused, |e| e.kind);
                let wait = delay(kind, self.cloud.describe_failures, ids::fnv64(&[&now.to_le_bytes()]));
                if !self.started || self.ops_need_describe() {
                    self.want_describe(now + wait.min(60_000));
                }
            }
        }
    }

    fn ops_need_describe(&self) -> bool {
        self.cloud.ops.values().any(|op| matches!(op.step, Step::Unclear { .. } | Step::Polling { .. }))
    }

    /// Operations that wait for a describe read it.
    fn settle_ops(&mut self, now: Ms, enis: &[EniFacts]) {
        let numbers: Vec<u64> = self.cloud.ops.keys().copied().collect();
        for number in numbers {
            let Some(op) = self.cloud.ops.get(&number).cloned() else { continue };
            let facts =
                op.eni.and_then(|no| self.pools[0].eni(no)).and_then(|e| enis.iter().find(|f| f.id == e.facts.id));
            match op.step {
                Step::Polling { polls, .. } => self.poll_seen(now, number, &op, facts, polls),
                Step::Unclear { first, seen } => self.unclear_seen(now, number, &op, facts, first, seen),
                _ => {}
            }
        }
    }

    fn poll_seen(&mut self, now: Ms, number: u64, op: &Op, facts: Option<&EniFacts>, polls: u32) {
        let state = facts.map(|f| f.state);
        match &op.kind {
            Kind::Attach { .. } if state == Some(AttachState::Attached) => {
                let (Some(no), Some(facts)) = (op.eni, facts) else { return };
                self.attached(number, no, facts);
            }
            Kind::Attach { .. } if polls >= POLLS => self.abandon(now, number, state.is_none(), "unknown"),
            Kind::Detach { .. } if polls >= POLLS => {
                let error =
                    CloudError { kind: ErrorKind::Refused, code: "StillAttached".into(), message: String::new() };
                let subnet = self.subnet_of(op);
                self.detach_failed(now, number, op, &error, &subnet);
            }
            Kind::Detach { .. } if matches!(state, None | Some(AttachState::Detached)) => {
                if let Some(op) = self.cloud.ops.get_mut(&number) {
                    op.kind = Kind::Detach { deleting: true };
                    op.tries = 0;
                }
                self.write_intent(number);
            }
            _ => {
                let wait = (POLL << polls.min(4)).min(POLL_MAX);
                if let Some(op) = self.cloud.ops.get_mut(&number) {
                    op.step = Step::Polling { at: now + wait, polls: polls + 1 };
                }
                self.want_describe(now + wait);
            }
        }
    }

    /// EC2 shows the interface attached: the host's side is next.
    fn attached(&mut self, number: u64, no: EniNo, facts: &EniFacts) {
        let Some(eni) = self.pools[0].eni_mut(no) else { return };
        eni.facts = merge_facts(&eni.facts, facts);
        let keep = eni.facts.delete_on_termination;
        if !keep && self.cloud.ops.get(&number).is_some_and(|op| op.attach == AttachCall::Attach) {
            // The attach had no answer but happened; it must still go with its instance.
            return self.next_attach_call(number, AttachCall::Keep);
        }
        self.set_up(no);
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::SettingUp;
        }
    }

    fn unclear_seen(&mut self, now: Ms, number: u64, op: &Op, facts: Option<&EniFacts>, first: Option<Ms>, seen: u8) {
        let happened = match (&op.kind, facts) {
            // `inventory` ran before and added what was new.
            (Kind::Grow { .. }, Some(_)) => {
                op.eni.and_then(|no| self.pools[0].eni(no)).is_some_and(|e| e.grown_at.is_some_and(|at| at >= op.since))
            }
            (Kind::Release { addresses, blocks }, Some(f)) => {
                addresses.iter().all(|a| !f.addresses.iter().any(|x| u128::from(u32::from(*x)) == *a))
                    && blocks.iter().filter_map(|b| self.block_net(*b)).all(|p| !f.prefixes.contains(&p))
            }
            _ => false,
        };
        if happened {
            if matches!(op.kind, Kind::Release { .. }) {
                self.released(now, op);
            }
            return self.finish_op(now, number, op.units(), "");
        }
        let counts_as_next = first.is_none_or(|at| now >= at + EVIDENCE);
        let seen = seen + u8::from(counts_as_next);
        if seen >= 2 {
            self.not_released(op);
            return self.finish_op(now, number, 0, "unknown");
        }
        if let Some(op) = self.cloud.ops.get_mut(&number) {
            op.step = Step::Unclear { first: first.or(Some(now)), seen };
        }
        self.want_describe(first.map_or(now + EVIDENCE, |at| at + EVIDENCE).max(now + POLL));
    }

    pub(super) fn on_eni_ready(&mut self, now: Ms, id: &str, error: Option<String>) {
        let Some(no) = self.pools[0].eni_by_id(id) else { return };
        let number = self.cloud.ops.iter().find(|(_, op)| op.eni == Some(no)).map(|(n, _)| *n);
        let setting_up = number.and_then(|n| self.cloud.ops.get(&n)).map(|op| op.step.clone());
        let Some(eni) = self.pools[0].eni_mut(no) else { return };
        if error.is_some() {
            let why = format!("interface {id}: {}", error.unwrap_or_default());
            self.note(Note::Suspect { what: why });
            // A describe brings us back to it: adopted interfaces and attaches are set up again from there.
            self.want_describe(now + 5_000);
            if let (Some(number), Some(Step::SettingUp)) = (number, setting_up)
                && let Some(op) = self.cloud.ops.get_mut(&number)
            {
                op.tries += 1;
                op.step = Step::Polling { at: now + 5_000, polls: 0 };
                if op.tries >= TRIES {
                    self.abandon(now, number, false, "unknown");
                }
            }
            return;
        }
        if eni.stage == Stage::Attaching {
            eni.stage = Stage::Ready;
            eni.attached_at = now;
        }
        let facts = eni.facts.clone();
        let applied = self.add_units(now, no, &facts.addresses, &facts.prefixes);
        self.supply += 1;
        self.sizing.touch(now);
        if let (Some(number), Some(Step::SettingUp)) = (number, setting_up) {
            if let Some(eni) = self.pools[0].eni_mut(no) {
                eni.grown_at = Some(now);
            }
            self.no_back_off("attach", &facts.subnet);
            self.finish_op(now, number, applied, "");
        }
    }

    // ---- evidence ----

    /// What EC2 lists. New interfaces are adopted; what is missing twice leaves the pool unless a sandbox uses it.
    fn inventory(&mut self, now: Ms, enis: &[EniFacts]) {
        if !self.started {
            self.started = true;
            self.supply += 1;
            self.sizing.touch(now);
            self.want_subnets(now);
        }
        for facts in enis {
            match self.pools[0].eni_by_id(&facts.id) {
                Some(no) => self.known_eni(now, no, facts, true),
                None if facts.state == AttachState::Attached => self.adopt_eni(now, facts),
                None if facts.state == AttachState::Detached => self.adopt_stray(now, facts),
                None => {}
            }
        }
        let listed: BTreeSet<&str> = enis.iter().map(|f| f.id.as_str()).collect();
        let missing: Vec<EniNo> = self.pools[0]
            .enis()
            .filter(|(_, e)| !listed.contains(e.facts.id.as_str()) && e.stage == Stage::Ready)
            .map(|(no, _)| no)
            .collect();
        for no in missing {
            self.eni_missing(now, no);
        }
        self.mark_orphans();
        if self.cloud.absent.values().any(|(at, _)| now < at + 2 * EVIDENCE) {
            self.want_describe(now + EVIDENCE);
        }
    }

    fn adopt_eni(&mut self, now: Ms, facts: &EniFacts) {
        let unmanaged = facts.tags.get("node.k8s.amazonaws.com/no_manage").is_some_and(|v| v == "true");
        let slots = self.cfg.slots_per_eni;
        let primary = facts.device == Some(0) && facts.card == 0;
        let plain = facts.kind == EniKind::Interface && facts.card == 0;
        let ready = primary || unmanaged || !plain;
        let stage = if ready { Stage::Ready } else { Stage::Attaching };
        let no = self.pools[0].add_eni(facts.clone(), stage, slots, (unmanaged && !primary) || facts.card != 0, now);
        self.dirty();
        if !plain || unmanaged && !primary {
            return;
        }
        if primary {
            self.add_units(now, no, &facts.addresses, &facts.prefixes);
        } else {
            self.set_up(no);
        }
        self.sizing.touch(now);
    }

    /// An interface of ours that is attached to nothing: an attach that a crash cut off. It is deleted; the plan makes
    /// another when one is wanted.
    fn adopt_stray(&mut self, now: Ms, facts: &EniFacts) {
        if self.cloud.ops.values().any(Op::creating) {
            return;
        }
        let no = self.pools[0].add_eni(facts.clone(), Stage::Detaching, self.cfg.slots_per_eni, false, now);
        let mut op = Op::new(now, Kind::Detach { deleting: true }, Some(no));
        op.step = Step::Intent;
        let number = self.queue_op(op);
        self.after_commit(Ack::Intent(number));
    }

    /// A known interface against one reading. `certain`: EC2 says so; metadata alone only makes suspects.
    fn known_eni(&mut self, now: Ms, no: EniNo, facts: &EniFacts, certain: bool) {
        let Some(eni) = self.pools[0].eni_mut(no) else { return };
        let was_suspect = std::mem::take(&mut eni.suspect);
        if certain {
            eni.facts = merge_facts(&eni.facts, facts);
        } else {
            eni.facts.subnet_cidr = eni.facts.subnet_cidr.or(facts.subnet_cidr);
        }
        let id = facts.id.clone();
        if was_suspect {
            self.supply += 1;
        }
        self.cloud.absent.remove(&id);
        if certain && self.set_up_again(no) {
            return;
        }
        let stage = self.pools[0].eni(no).map(|e| (e.stage, e.unmanaged, e.facts.kind));
        if !matches!(stage, Some((Stage::Ready, false, EniKind::Interface))) {
            return;
        }
        let op_step = self.cloud.ops.values().find(|o| o.eni == Some(no) && o.step != Step::Queued).map(|o| &o.step);
        let unclear = matches!(op_step, Some(Step::Unclear { .. }));
        if op_step.is_some() && !unclear {
            // A call is on its way: a reading from before it says nothing.
            return;
        }
        let (gone, new) = self.differences(no, facts);
        if !certain {
            if !gone.is_empty() || new {
                self.want_describe(now);
            }
            return;
        }
        if new && self.add_units(now, no, &self.not_releasing(&facts.addresses), &facts.prefixes) > 0 {
            if let Some(eni) = self.pools[0].eni_mut(no).filter(|_| unclear) {
                eni.grown_at = Some(now);
            }
            self.sizing.touch(now);
        }
        if !unclear {
            self.judge_missing(now, no, gone, facts);
        }
    }

    /// Asks for the host's side of an interface. The subnet's CIDR, which EC2's description of an interface lacks, comes
    /// from metadata, from DescribeSubnets, or from another interface of the subnet.
    fn set_up(&mut self, no: EniNo) {
        let Some(eni) = self.pools[0].eni(no) else { return };
        let mut facts = eni.facts.clone();
        let of_subnet = || self.cloud.subnet_cidrs.get(&facts.subnet).copied();
        let of_neighbour = || {
            let same = |e: &&crate::pool::Eni| e.facts.subnet == facts.subnet && e.facts.subnet_cidr.is_some();
            self.pools[0].enis().map(|(_, e)| e).find(same).and_then(|e| e.facts.subnet_cidr)
        };
        facts.subnet_cidr = facts.subnet_cidr.or_else(of_subnet).or_else(of_neighbour);
        let effect = Effect::SetUpEni { table: eni.table(), eni: facts };
        self.out.push(effect);
    }

    /// An adopted interface whose set-up failed is tried again at the next reading.
    fn set_up_again(&mut self, no: EniNo) -> bool {
        let busy = self.cloud.ops.values().any(|o| o.eni == Some(no) && o.step != Step::Queued);
        let due = self.pools[0].eni(no).is_some_and(|e| e.stage == Stage::Attaching && !busy);
        if due {
            self.set_up(no);
        }
        due
    }

    fn not_releasing(&self, addresses: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
        let leaving = |a: &&Ipv4Addr| self.pools[0].state(addr::number(IpAddr::V4(**a))) != Some(&State::Releasing);
        addresses.iter().filter(leaving).copied().collect()
    }

    /// Lone addresses and blocks of ours that a reading lacks, and whether it has some that we lack.
    fn differences(&self, no: EniNo, facts: &EniFacts) -> (Vec<Missing>, bool) {
        let listed: BTreeSet<Addr> = facts.addresses.iter().map(|a| addr::number(IpAddr::V4(*a))).collect();
        let pool = &self.pools[0];
        let mut gone: Vec<Missing> =
            pool.lone_of(no).into_iter().filter(|a| !listed.contains(a)).map(Missing::Lone).collect();
        let blocks: BTreeSet<BlockNo> = pool.eni(no).map(|e| e.blocks.clone()).unwrap_or_default();
        for b in &blocks {
            if self.block_net(*b).is_some_and(|net| !facts.prefixes.contains(&net)) {
                gone.push(Missing::Block(*b));
            }
        }
        let new = listed.iter().any(|a| pool.entry(*a).is_none())
            || facts.prefixes.iter().any(|p| pool.block_at(addr::number(IpAddr::V4(p.network()))).is_none());
        (gone, new)
    }

    /// Missing once: suspect. Missing again at least 30 s later: out of the pool, unless a lease has it.
    fn judge_missing(&mut self, now: Ms, no: EniNo, gone: Vec<Missing>, facts: &EniFacts) {
        let lone: BTreeSet<Addr> = self.pools[0].lone_of(no).into_iter().collect();
        for a in lone.iter().filter(|a| !gone.contains(&Missing::Lone(**a))) {
            if self.pools[0].entry(*a).is_some_and(|e| e.suspect) {
                self.pools[0].set_suspect(*a, false);
                self.cloud.absent.remove(&addr::ip(4, *a).to_string());
                self.supply += 1;
            }
        }
        // Just after growth EC2's own reading may lag behind its answer.
        let settled = self.pools[0].eni(no).is_some_and(|e| e.grown_at.is_none_or(|at| now >= at + 2 * EVIDENCE));
        if !settled {
            return;
        }
        for missing in gone {
            let name = match missing {
                Missing::Lone(a) => addr::ip(4, a).to_string(),
                Missing::Block(b) => self.block_net(b).map(|n| n.to_string()).unwrap_or_default(),
            };
            let twice = self.count_absence(now, &name);
            if twice == 1 {
                self.note(Note::Suspect { what: format!("{name} of {}", facts.id) });
            }
            match missing {
                Missing::Lone(a) if twice < 2 => self.pools[0].set_suspect(a, true),
                Missing::Lone(a) => {
                    if !matches!(self.pools[0].state(a), Some(State::Leased(_) | State::Held(_))) {
                        self.pools[0].remove_lone(a);
                        self.cloud.absent.remove(&name);
                    }
                }
                Missing::Block(b) if twice < 2 => {
                    if let Some(block) = self.pools[0].block_mut(b) {
                        block.suspect = true;
                    }
                }
                Missing::Block(b) => {
                    if self.pools[0].block(b).is_some_and(|k| k.tally.assigned == 0 && k.tally.held == 0) {
                        self.pools[0].remove_block(b);
                        self.cloud.absent.remove(&name);
                    }
                }
            }
            self.dirty();
            self.sizing.touch(now);
        }
    }

    /// Readings in which something was missing; two count only 30 s apart.
    fn count_absence(&mut self, now: Ms, name: &str) -> u8 {
        let (at, seen) = self.cloud.absent.entry(name.to_string()).or_insert((now, 0));
        if *seen == 0 || now >= *at + EVIDENCE {
            *at = now;
            *seen = seen.saturating_add(1);
        }
        *seen
    }

    fn eni_missing(&mut self, now: Ms, no: EniNo) {
        let Some(id) = self.pools[0].eni(no).map(|e| e.facts.id.clone()) else { return };
        let seen = self.count_absence(now, &id);
        if seen == 1 {
            self.note(Note::Suspect { what: format!("interface {id}") });
        }
        let tally = self.pools[0].eni_tally(no);
        if seen >= 2 && tally.assigned == 0 && tally.held == 0 {
            if let Some(e) = self.pools[0].eni(no) {
                let effect = Effect::RemoveEni { eni: e.facts.clone(), table: e.table() };
                self.out.push(effect);
            }
            self.pools[0].remove_eni(no);
            self.cloud.absent.remove(&id);
            self.dirty();
        } else if let Some(eni) = self.pools[0].eni_mut(no) {
            eni.suspect = true;
        }
        self.sizing.touch(now);
    }

    /// Metadata is read often and lags; a difference is only a reason to ask EC2, and an interface it lacks is suspect.
    pub(super) fn on_metadata(&mut self, now: Ms, enis: &[EniFacts]) {
        if !self.started {
            // EC2 may be down; what metadata lists is attached, and pods can be served from it.
            self.inventory(now, enis);
            return self.want_describe(now);
        }
        for facts in enis {
            match self.pools[0].eni_by_id(&facts.id) {
                Some(no) => self.known_eni(now, no, facts, false),
                None => self.want_describe(now),
            }
        }
        let listed: BTreeSet<&str> = enis.iter().map(|f| f.id.as_str()).collect();
        let missing = self.pools[0].enis().any(|(_, e)| {
            e.stage == Stage::Ready && !listed.contains(e.facts.id.as_str()) && now >= e.attached_at + 2 * EVIDENCE
        });
        if missing {
            self.want_describe(now);
        }
        if self.cloud.subnets_at.is_none_or(|at| now >= at + 300_000) {
            self.want_subnets(now);
        }
    }

    /// Pods wait and nothing may grow: perhaps the subnet has room again.
    pub(super) fn refresh_subnets(&mut self, now: Ms) {
        if self.started && self.cloud.subnets_at.is_none_or(|at| now >= at + EVIDENCE) {
            self.want_subnets(now);
        }
    }

    fn want_subnets(&mut self, now: Ms) {
        if self.cloud.subnets_op.is_none() && !self.cfg.subnets.is_empty() {
            let op = self.cloud.number();
            self.cloud.subnets_op = Some(op);
            self.cloud.subnets_at = Some(now);
            let ids = self.cfg.subnets.clone();
            self.out.push(Effect::Ec2 { op, call: Call::DescribeSubnets { ids } });
        }
    }

    fn on_subnets(&mut self, now: Ms, subnets: &[SubnetFacts]) {
        for s in subnets {
            self.cloud.subnet_free.insert(s.id.clone(), s.free);
            self.cloud.subnet_cidrs.insert(s.id.clone(), s.cidr);
            // Other nodes use the subnet too: its figure is a hint that must not forbid growth for long. Only "nothing
            // left" is taken at its word, and only until EC2 itself says otherwise.
            if s.free == 0 {
                self.back_off(now, "grow", &s.id, ErrorKind::SubnetFull);
            }
        }
    }

    pub(super) fn on_host(&mut self, addresses: Vec<IpAddr>) {
        let leased: BTreeSet<IpAddr> = self
            .leases
            .iter()
            .flat_map(|l| l.addresses.iter().map(|a| a.given.address.addr()))
            .chain(self.tearing.values().flat_map(|t| t.target.addresses.iter().map(|a| a.address.addr())))
            .collect();
        let carried: BTreeSet<IpAddr> = addresses.into_iter().filter(|a| !leased.contains(a)).collect();
        if carried != self.carried {
            self.carried = carried;
            self.supply += 1;
        }
    }
}

/// Something of an interface that a reading lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Lone(Addr),
    Block(BlockNo),
}

/// Metadata and EC2 each know things the other does not.
fn merge_facts(old: &EniFacts, new: &EniFacts) -> EniFacts {
    let mut facts = new.clone();
    facts.subnet_cidr = new.subnet_cidr.or(old.subnet_cidr);
    facts.attachment = new.attachment.clone().or_else(|| old.attachment.clone());
    facts.device = new.device.or(old.device);
    if new.tags.is_empty() {
        facts.tags = old.tags.clone();
    }
    facts
}

/// How long to wait after so many failures of a kind; ± 25 % by the seed, so that nodes do not march in step.
fn delay(kind: ErrorKind, failures: u32, seed: u64) -> Ms {
    let (base, max): (Ms, Ms) = match kind {
        ErrorKind::Throttled => (1_000, 60_000),
        ErrorKind::NoAnswer | ErrorKind::ServerError | ErrorKind::InUse => (2_000, 60_000),
        ErrorKind::SubnetFull | ErrorKind::NoCidrBlock => (30_000, 120_000),
        ErrorKind::AddressLimit | ErrorKind::NotFound | ErrorKind::Refused => (5_000, 120_000),
        ErrorKind::EniLimit | ErrorKind::NotAuthorised => (60_000, 300_000),
    };
    let full = base.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(max);
    full * (75 + seed % 51) / 100
}
