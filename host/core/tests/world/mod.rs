//! A small world around the node for property tests: virtual time, a disk that can fail and a cloud that can throttle,
//! answer in part or lose its answer. Deterministic: every choice comes from the seed.
// Shared by several test programs; clippy takes it for code beside tests.
#![allow(dead_code, clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};

use wipam_core::cloud::{
    AttachState, Call, CloudError, EniFacts, EniKind, ErrorKind, Reply as CloudReply, SubnetFacts,
};
use wipam_core::config::Config;
use wipam_core::event::{Add, CallId, Effect, Event, Key, Ms, Netns, PodRef, Reply};
use wipam_core::node::Node;
use wipam_core::policy::*;
use wipam_core::saved::{self, Clock, Stamp};

/// Xorshift: enough for tests, and the same everywhere.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How the allocator of the world behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    /// Own row first, else the first.
    Kind,
    /// Any row.
    Random,
    /// Nonsense every time; the native answer is kind.
    Hostile,
    /// Holds for ever; the native answer is kind.
    Holding,
}

/// Policies of the world: an allocator of some temper, and a sizer that keeps `warm` free.
pub struct Deciders {
    pub temper: Temper,
    pub warm: i64,
    pub keep: Ms,
    pub rng: Rng,
    pub next: u64,
    pub faults: u64,
    pub asked: u64,
    pub plans: Vec<PlanCall>,
}

impl Deciders {
    pub fn new(temper: Temper, warm: i64, seed: u64) -> Deciders {
        Deciders { temper, warm, keep: 0, rng: Rng(seed | 1), next: 0, faults: 0, asked: 0, plans: Vec::new() }
    }
    fn answer<T>(&mut self, by: AnsweredBy, answer: T) -> Answer<T> {
        self.next += 1;
        Answer { decision: self.next, by, answer }
    }
}

fn kind_row(rows: &RowSet) -> u32 {
    let own = row_marks::HELD_OWN | row_marks::COOLING_OWN | row_marks::RESERVED_OWN;
    (0..rows.len()).find(|i| rows.marks[*i] & own != 0).unwrap_or(0) as u32
}

impl Policies for Deciders {
    fn allocate(&mut self, call: &AllocateCall, native: bool) -> Answer<AllocDecision> {
        self.asked += 1;
        let n = call.pool.rows.len() as u64;
        let choice = match self.temper {
            _ if native => Choice::Assign(kind_row(&call.pool.rows)),
            Temper::Kind => Choice::Assign(kind_row(&call.pool.rows)),
            Temper::Random => Choice::Assign(self.rng.below(n) as u32),
            Temper::Hostile => match self.rng.below(3) {
                0 => Choice::Assign(n as u32 + 7),
                1 => Choice::Reject,
                _ => Choice::Assign(u32::MAX),
            },
            Temper::Holding => Choice::Hold(60_000),
        };
        let by = if native { AnsweredBy::Native } else { AnsweredBy::Policy };
        self.answer(by, AllocDecision { choice, reason: "test".into(), facts: vec![] })
    }
    fn release(&mut self, _: &ReleaseCall) -> Answer<Retention> {
        let keep_for_ms = self.keep;
        self.answer(AnsweredBy::Policy, Retention { keep_for_ms, reason: String::new(), facts: vec![] })
    }
    fn plan(&mut self, call: &PlanCall, native: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        self.plans.push(call.clone());
        let actions = if self.temper == Temper::Hostile && !native {
            hostile_plan(&mut self.rng)
        } else {
            warm_plan(call, self.warm)
        };
        self.answer(AnsweredBy::Policy, (PlanDecision { actions, ..PlanDecision::default() }, None))
    }
    fn verdict(&mut self, _: Slot, _: u64, verdict: Verdict) {
        if matches!(verdict, Verdict::Refused { .. }) {
            self.faults += 1;
        }
    }
    fn fault(&mut self, _: Slot, _: u64, _: &str) {
        self.faults += 1;
    }
}

fn hostile_plan(rng: &mut Rng) -> Vec<Action> {
    (0..rng.below(12))
        .map(|_| {
            let small = rng.below(6) as u8;
            match rng.below(6) {
                0 => Action::Attach {
                    subnet: small,
                    length: [32, 28, 7][rng.below(3) as usize],
                    count: rng.below(99) as u16,
                },
                1 => Action::Grow { eni: small, length: 32, count: rng.below(99) as u16 },
                2 => Action::ReleaseRows((0..rng.below(5)).map(|_| rng.below(40) as u32).collect()),
                3 => Action::ReleaseBlock(small.into()),
                4 => Action::Drain { eni: small, on: rng.chance(50) },
                _ => Action::Detach(small),
            }
        })
        .collect()
}

/// Keeps `warm` free: grows by what is short, gives back what is over.
fn warm_plan(call: &PlanCall, warm: i64) -> Vec<Action> {
    let c = &call.pool.counts;
    let usable = (c.free + c.assigning) as i64 - i64::from(call.demand.waiting);
    let mut short = warm - usable;
    let mut actions = Vec::new();
    for (i, e) in call.pool.enis.iter().enumerate() {
        if e.marks & eni_marks::DRAINING != 0 && e.marks & eni_marks::DETACHING == 0 {
            let empty = e.assigned + e.cooling + e.reserved + e.held == 0;
            actions.push(if empty { Action::Detach(i as u8) } else { Action::Drain { eni: i as u8, on: false } });
        }
    }
    if short > 0 {
        for (i, e) in call.pool.enis.iter().enumerate() {
            let room = i64::from(e.slots.saturating_sub(e.slots_used + e.slots_moving));
            if e.marks & eni_marks::NOT_FILLABLE == 0 && room > 0 && short > 0 {
                let n = short.min(room);
                actions.push(Action::Grow { eni: i as u8, length: 32, count: n as u16 });
                short -= n;
            }
        }
        if short > 0 {
            let count = short.min(call.pool.limits.slots_per_eni.into()) as u16;
            actions.push(Action::Attach { subnet: 255, length: 32, count });
        }
    } else if short < 0 && call.demand.adds_1m == 0 {
        let last = call.pool.enis.iter().enumerate().rev().find(|(_, e)| {
            e.free > 0 && e.marks & (eni_marks::NOT_ALLOCATABLE | eni_marks::DRAINING | eni_marks::PRIMARY) == 0
        });
        if let Some((i, e)) = last {
            let empty = e.assigned + e.cooling + e.reserved + e.held == 0;
            if empty && i64::from(e.free) <= -short {
                actions.push(Action::Drain { eni: i as u8, on: true });
            } else {
                let rows: Vec<u32> = (0..call.pool.rows.len())
                    .filter(|r| usize::from(call.pool.rows.eni[*r]) == i && call.pool.rows.block[*r] == NO_BLOCK)
                    .take(-short as usize)
                    .map(|r| r as u32)
                    .collect();
                if !rows.is_empty() {
                    actions.push(Action::ReleaseRows(rows));
                }
            }
        }
    }
    actions
}

/// EC2, as small as the property needs it.
pub struct FakeEc2 {
    pub enis: BTreeMap<String, EniFacts>,
    pub slots: u16,
    pub max_enis: usize,
    pub tokens: BTreeMap<String, String>,
    pub next_ip: u32,
    pub next_eni: u32,
    pub fault_percent: u64,
    pub calls: BTreeMap<&'static str, u32>,
}

impl FakeEc2 {
    pub fn new(slots: u16, max_enis: usize) -> FakeEc2 {
        let mut ec2 = FakeEc2 {
            enis: BTreeMap::new(),
            slots,
            max_enis,
            tokens: BTreeMap::new(),
            next_ip: 0x0a00_0004,
            next_eni: 0,
            fault_percent: 0,
            calls: BTreeMap::new(),
        };
        let id = ec2.create(0);
        let eni = ec2.enis.get_mut(&id).unwrap();
        (eni.device, eni.state, eni.delete_on_termination) = (Some(0), AttachState::Attached, true);
        eni.attachment = Some("eni-attach-primary".into());
        ec2
    }

    fn ip(&mut self) -> Ipv4Addr {
        self.next_ip += 1;
        Ipv4Addr::from(self.next_ip)
    }

    fn create(&mut self, addresses: u16) -> String {
        self.next_eni += 1;
        let id = format!("eni-{:04}", self.next_eni);
        let primary = self.ip();
        let addresses = (0..addresses).map(|_| self.ip()).collect();
        self.enis.insert(
            id.clone(),
            EniFacts {
                id: id.clone(),
                mac: format!("0a:00:00:00:00:{:02x}", self.next_eni),
                subnet: "subnet-1".into(),
                subnet_cidr: None,
                primary,
                addresses,
                prefixes: vec![],
                device: None,
                card: 0,
                attachment: None,
                state: AttachState::Detached,
                kind: EniKind::Interface,
                tags: BTreeMap::new(),
                delete_on_termination: false,
            },
        );
        id
    }

    pub fn call(&mut self, call: &Call, rng: &mut Rng) -> Result<CloudReply, CloudError> {
        *self.calls.entry(call.action()).or_default() += 1;
        let fail = |kind: ErrorKind| Err(CloudError { kind, code: format!("{kind:?}"), message: "test".into() });
        let faulty = rng.chance(self.fault_percent);
        if faulty && rng.chance(40) {
            return fail(ErrorKind::Throttled);
        }
        if faulty && rng.chance(30) {
            return fail(ErrorKind::NoAnswer);
        }
        let partial = faulty && rng.chance(50);
        let answer = self.apply(call, partial);
        // The change happened, the answer got lost.
        if faulty && !partial && call.mutates() { fail(ErrorKind::NoAnswer) } else { answer }
    }

    fn apply(&mut self, call: &Call, partial: bool) -> Result<CloudReply, CloudError> {
        let fail = |kind: ErrorKind| Err(CloudError { kind, code: format!("{kind:?}"), message: "test".into() });
        match call {
            Call::CreateEni { addresses, token, .. } => {
                let id = match self.tokens.get(token) {
                    Some(id) => id.clone(),
                    None => {
                        let id = self.create((*addresses).min(self.slots));
                        self.tokens.insert(token.clone(), id.clone());
                        id
                    }
                };
                match self.enis.get(&id) {
                    Some(facts) => Ok(CloudReply::Created(Box::new(facts.clone()))),
                    None => fail(ErrorKind::NotFound),
                }
            }
            Call::AttachEni { eni, device, .. } => {
                let attached = self.enis.values().filter(|e| e.state == AttachState::Attached).count();
                let Some(e) = self.enis.get_mut(eni) else { return fail(ErrorKind::NotFound) };
                if attached >= self.max_enis {
                    return fail(ErrorKind::EniLimit);
                }
                if e.state == AttachState::Attached {
                    return fail(ErrorKind::InUse);
                }
                (e.device, e.state) = (Some(*device), AttachState::Attached);
                e.attachment = Some(format!("attach-{eni}"));
                Ok(CloudReply::Attached { attachment: format!("attach-{eni}") })
            }
            Call::DeleteOnTermination { eni, .. } => match self.enis.get_mut(eni) {
                Some(e) => {
                    e.delete_on_termination = true;
                    Ok(CloudReply::Done)
                }
                None => fail(ErrorKind::NotFound),
            },
            Call::Assign { eni, addresses, .. } => {
                let slots = self.slots;
                let n = if partial { (*addresses).div_ceil(2) } else { *addresses };
                let new: Vec<Ipv4Addr> = (0..n).map(|_| self.ip()).collect();
                let Some(e) = self.enis.get_mut(eni) else { return fail(ErrorKind::NotFound) };
                if e.addresses.len() + new.len() > slots.into() {
                    return fail(ErrorKind::AddressLimit);
                }
                e.addresses.extend(&new);
                Ok(CloudReply::Assigned { addresses: new, prefixes: vec![] })
            }
            Call::Unassign { eni, addresses, .. } => {
                let Some(e) = self.enis.get_mut(eni) else { return fail(ErrorKind::NotFound) };
                e.addresses.retain(|a| !addresses.contains(a));
                Ok(CloudReply::Done)
            }
            Call::DetachEni { eni, .. } => match self.enis.get_mut(eni) {
                Some(e) => {
                    (e.state, e.device, e.attachment) = (AttachState::Detached, None, None);
                    Ok(CloudReply::Done)
                }
                None => fail(ErrorKind::NotFound),
            },
            Call::DeleteEni { eni } => match self.enis.remove(eni) {
                Some(_) => Ok(CloudReply::Done),
                None => fail(ErrorKind::NotFound),
            },
            Call::DescribeEnis => Ok(CloudReply::Enis(self.enis.values().cloned().collect())),
            Call::DescribeSubnets { ids } => Ok(CloudReply::Subnets(
                ids.iter()
                    .map(|id| SubnetFacts {
                        id: id.clone(),
                        cidr: "10.0.0.0/16".parse().unwrap(),
                        free: 60_000,
                        zone: "a".into(),
                        tags: BTreeMap::new(),
                    })
                    .collect(),
            )),
        }
    }

    pub fn owns(&self, ip: Ipv4Addr) -> bool {
        self.enis.values().any(|e| e.state == AttachState::Attached && e.addresses.contains(&ip))
    }
}

/// The world.
pub struct World {
    pub now: Ms,
    pub node: Node,
    pub ec2: FakeEc2,
    pub deciders: Deciders,
    pub rng: Rng,
    queue: BinaryHeap<Reverse<(Ms, u64, QueuedEvent)>>,
    order: u64,
    pub disk: Option<Vec<u8>>,
    pub disk_fails: bool,
    pub fence_fails: bool,
    pub next_call: CallId,
    pub replies: BTreeMap<CallId, Reply>,
    pub dead: BTreeSet<String>,
    /// What callers were told they have.
    pub acked: BTreeMap<Key, Vec<IpAddr>>,
    pub calls: BTreeMap<CallId, Key>,
    pub cfg: Config,
    pub fenced: Vec<Key>,
    pub torn: Vec<Key>,
    pub set_up: Vec<EniFacts>,
}

/// Wrapper that orders events of one instant by arrival alone.
struct QueuedEvent(Event);
impl PartialEq for QueuedEvent {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for QueuedEvent {}
impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedEvent {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

pub const START: Ms = 1_700_000_000_000;

impl World {
    pub fn new(max_enis: u16, slots: u16, deciders: Deciders, seed: u64) -> World {
        let cfg = Config::new("test.large", max_enis, slots + 1, "subnet-1");
        let mut world = World {
            now: START,
            node: Node::new(cfg.clone(), START, None),
            ec2: FakeEc2::new(slots, max_enis.into()),
            deciders,
            rng: Rng(seed | 1),
            queue: BinaryHeap::new(),
            order: 0,
            disk: None,
            disk_fails: false,
            fence_fails: false,
            next_call: 0,
            replies: BTreeMap::new(),
            dead: BTreeSet::new(),
            acked: BTreeMap::new(),
            calls: BTreeMap::new(),
            cfg,
            fenced: Vec::new(),
            torn: Vec::new(),
            set_up: Vec::new(),
        };
        world.feed(Event::Serving);
        world
    }

    pub fn later(&mut self, ms: Ms, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((self.now + ms, self.order, QueuedEvent(event))));
    }

    /// One event now, and its effects.
    pub fn feed(&mut self, event: Event) {
        let effects = self.node.handle(self.now, event, &mut self.deciders);
        for effect in effects {
            self.carry_out(effect);
        }
        self.node.audit().unwrap_or_else(|why| panic!("at {}: {why}", self.now));
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            instance: "i-1".into(),
            boot: "boot".into(),
            clock: Clock { pool_ms: self.now, wall_ns: self.now as i64 * 1_000_000, boottime_ms: self.now - START },
            previous_ipam: None,
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { call, reply } => self.on_reply(call, reply),
            Effect::Persist { seq } => {
                let encoded = self.node.encode(&self.stamp(), &|b| b.len().to_string());
                let error = self.disk_fails.then(|| "/state: ENOSPC".to_string());
                if error.is_none() {
                    saved::decode(&encoded.state).unwrap();
                    wipam_core::aws::decode(&encoded.ipam).unwrap();
                    // Written when the answer comes: a crash before loses it.
                    self.disk = Some(encoded.state);
                }
                self.later(1, Event::Persisted { seq, error });
            }
            Effect::Ec2 { op, call } => {
                let result = self.ec2.call(&call, &mut self.rng);
                let latency = 50 + self.rng.below(400);
                self.later(latency, Event::Ec2 { op, result });
            }
            Effect::Fence { ticket, target } => {
                let error = self.fence_fails.then(|| "EBUSY".to_string());
                if error.is_none() {
                    self.dead.insert(target.key.container_id.clone());
                    self.fenced.push(target.key);
                }
                self.later(2, Event::Fenced { ticket, error });
            }
            Effect::TearDown { ticket, target } => {
                self.torn.push(target.key);
                self.later(30, Event::TornDown { ticket, error: None });
            }
            Effect::CheckAlive { targets } => {
                for t in targets {
                    let alive = !self.dead.contains(&t.key.container_id);
                    self.later(1, Event::Liveness { key: t.key, alive });
                }
            }
            Effect::SetUpEni { eni, .. } => {
                self.set_up.push(eni.clone());
                self.later(20, Event::EniReady { eni: eni.id, error: None });
            }
            Effect::RemoveEni { .. } | Effect::Note(_) => {}
        }
    }

    fn on_reply(&mut self, call: CallId, reply: Reply) {
        if let (Reply::Added { addresses, .. }, Some(key)) = (&reply, self.calls.get(&call)) {
            let ips: Vec<IpAddr> = addresses.iter().map(|a| a.address.addr()).collect();
            for ip in &ips {
                if let IpAddr::V4(v4) = ip
                    && key.network == "aws-cni"
                {
                    assert!(self.ec2.owns(*v4), "{v4} was given to {key}, but EC2 does not give it to this instance");
                }
                let twice = self.acked.iter().find(|(k, have)| {
                    *k != key && k.network == key.network && have.contains(ip) && !self.dead.contains(&k.container_id)
                });
                assert!(twice.is_none(), "{ip} was given to {key} while {:?} has it", twice.map(|t| t.0));
            }
            self.acked.insert(key.clone(), ips);
        }
        self.replies.insert(call, reply);
    }

    /// Runs until a time; everything due before it happens in order.
    pub fn run_until(&mut self, until: Ms) {
        for _ in 0..2_000_000 {
            let next_event = self.queue.peek().map(|Reverse((at, ..))| *at);
            let wake = self.node.wake_at(self.now).max(self.now + 1);
            let at = next_event.map_or(wake, |e| e.min(wake));
            if at > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(at);
            if next_event == Some(at) {
                let Some(Reverse((_, _, QueuedEvent(event)))) = self.queue.pop() else { return };
                self.feed(event);
            } else {
                self.feed(Event::Tick);
            }
        }
        panic!("the world does not come to rest");
    }

    pub fn run(&mut self, ms: Ms) {
        self.run_until(self.now + ms);
    }

    pub fn key(network: &str, container: &str) -> Key {
        Key { network: network.into(), container_id: container.into(), ifname: "eth0".into() }
    }

    pub fn add(&mut self, container: &str, pod: &str, uid: &str, timeout: Ms) -> CallId {
        let key = Self::key("aws-cni", container);
        self.add_with(key, pod, uid, timeout, None)
    }

    pub fn add_with(
        &mut self,
        key: Key,
        pod: &str,
        uid: &str,
        timeout: Ms,
        ranges: Option<wipam_core::event::RangeSets>,
    ) -> CallId {
        self.next_call += 1;
        let call = self.next_call;
        self.calls.insert(call, key.clone());
        let add = Add {
            netns: Some(Netns { path: format!("/ns/{}", key.container_id), inode: 1, boot: "boot".into() }),
            host_ifname: if ranges.is_some() { String::new() } else { format!("eni{pod}") },
            key,
            pod: PodRef { namespace: "default".into(), name: pod.into(), uid: uid.into() },
            requested: vec![],
            deadline: self.now + timeout,
            ranges,
        };
        self.feed(Event::Add { call, add: Box::new(add) });
        call
    }

    pub fn del(&mut self, container: &str) -> CallId {
        self.del_key(Self::key("aws-cni", container))
    }

    pub fn del_key(&mut self, key: Key) -> CallId {
        self.next_call += 1;
        let call = self.next_call;
        self.acked.remove(&key);
        self.feed(Event::Del { call, key, cause: String::new(), network_removed: false });
        call
    }

    /// kill -9 and a new start from what is on disk. Answers under way are lost; sandboxes live on.
    pub fn restart(&mut self) {
        self.queue.clear();
        let saved = self.disk.as_deref().map(|b| saved::decode(b).unwrap());
        self.node = Node::new(self.cfg.clone(), self.now, saved);
        self.feed(Event::Serving);
    }

    pub fn address(&self, call: CallId) -> Option<IpAddr> {
        match self.replies.get(&call) {
            Some(Reply::Added { addresses, .. }) => addresses.first().map(|a| a.address.addr()),
            _ => None,
        }
    }

    pub fn refusal(&self, call: CallId) -> Option<String> {
        match self.replies.get(&call) {
            Some(Reply::Refused(error)) => Some(error.to_string()),
            _ => None,
        }
    }

    /// Everybody who was told of an address and has not ended still has it in the node.
    pub fn nothing_lost(&self) {
        for (key, ips) in &self.acked {
            if self.dead.contains(&key.container_id) {
                continue;
            }
            let have = self.node.check(key).map(|(a, _)| a.iter().map(|x| x.address.addr()).collect::<Vec<_>>());
            assert_eq!(have.as_ref(), Some(ips), "{key} was told of {ips:?} and now has {have:?}");
        }
    }
}
