//! One node in virtual time: core, policies and the simulated VPC, with nothing in between that sleeps.
//!
//! The daemon's loop without its I/O: effects become events after the time they take on a host (disk, fence,
//! tear-down, set-up of an interface) or at EC2 (the model's latency). Deterministic: the same calls give the same run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::sync::Arc;

use wipam_core::cloud::{Call, InstanceFacts};
use wipam_core::config::Config;
use wipam_core::event::{Add, CallId, Effect, Event, Key, Ms, Netns, Note, PodRef, RangeSets, Reply};
use wipam_core::node::Node;
use wipam_core::policy::Policies;
use wipam_core::record::{self, Header, Line, RecordedPolicy};
use wipam_core::saved::{self, Clock, Saved, Stamp};
use wipam_vpc_sim::model::Vpc;

use crate::ec2model;
use crate::replay::{self, Collector};

/// How long the host takes for things, milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct HostTimes {
    /// One checkpoint.
    pub persist: Ms,
    /// One fence.
    pub fence: Ms,
    /// One batch of tear-downs.
    pub tear_down: Ms,
    /// Setting an interface up.
    pub set_up: Ms,
    /// A check whether a sandbox lives.
    pub check: Ms,
}

impl Default for HostTimes {
    fn default() -> HostTimes {
        HostTimes { persist: 2, fence: 25, tear_down: 30, set_up: 50, check: 1 }
    }
}

/// Figures of the pool after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Ms,
    /// Addresses in the pool.
    pub total: u64,
    /// Leased.
    pub assigned: u64,
    /// Free.
    pub free: u64,
    /// Asked for and not here yet.
    pub assigning: u64,
    /// ADDs of the last minute.
    pub adds_1m: u64,
    /// Interfaces.
    pub enis: usize,
}

/// What the run left behind.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// One for each change of the figures.
    pub samples: Vec<Sample>,
    /// EC2 calls by action.
    pub calls: BTreeMap<&'static str, u32>,
    /// Failed EC2 calls by code.
    pub errors: BTreeMap<String, u32>,
    /// Unassign calls by interface.
    pub releases: BTreeMap<String, u32>,
    /// How long each served ADD waited.
    pub waits: Vec<Ms>,
    /// ADDs that failed, with the text.
    pub failed: Vec<String>,
    /// Notes.
    pub notes: Vec<(Ms, Note)>,
    /// Mutating EC2 calls in order.
    pub log: Vec<(Ms, Call)>,
    /// Answered calls in order, with how long an ADD had waited.
    pub answered: Vec<(CallId, Ms)>,
}

impl Trace {
    /// CreateNetworkInterface and AssignPrivateIpAddresses together.
    pub fn address_calls(&self) -> u32 {
        self.count("CreateNetworkInterface") + self.count("AssignPrivateIpAddresses")
    }
    /// Calls of one action.
    pub fn count(&self, action: &str) -> u32 {
        self.calls.get(action).copied().unwrap_or(0)
    }
}

/// A record of the run, made as ipamd's flight recorder makes it.
pub struct Tape {
    /// The lines so far.
    pub lines: Vec<Line>,
    /// Hears the decisions; the sink of the run's policy host.
    pub seen: Arc<Collector>,
}

/// An event in the queue; events of one instant keep their order of arrival.
struct Queued(Event);
impl PartialEq for Queued {
    fn eq(&self, _: &Queued) -> bool {
        true
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, _: &Queued) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// One node of a simulated VPC.
pub struct NodeSim {
    /// The state machine.
    pub node: Node,
    /// The VPC.
    pub vpc: Vpc,
    /// This node's instance.
    pub facts: InstanceFacts,
    /// Pool clock; model time is this less `begin`.
    pub now: Ms,
    /// Answers by call.
    pub replies: BTreeMap<CallId, Reply>,
    /// What happened.
    pub trace: Trace,
    /// Sandboxes that are gone.
    pub dead: BTreeSet<String>,
    /// Whether fences fail.
    pub fences_fail: bool,
    /// What is on disk.
    pub disk: Option<Vec<u8>>,
    /// Whether each checkpoint is written; without, only [`NodeSim::save`] writes, and long runs are faster.
    pub keep_disk: bool,
    /// The recorder, if it runs.
    pub tape: Option<Tape>,
    times: HostTimes,
    begin: Ms,
    queue: BinaryHeap<Reverse<(Ms, u64, Queued)>>,
    order: u64,
    next_call: CallId,
    asked: BTreeMap<CallId, Ms>,
    config: Config,
    boot: u32,
    adds: std::collections::VecDeque<Ms>,
}

/// The pool's clock of a simulation begins here: 2023-11-14 22:13:20 UTC.
pub const BEGIN: Ms = 1_700_000_000_000;

/// Most steps of one [`NodeSim::run_until`]; a run that needs more does not come to rest.
const MAX_STEPS: u64 = 50_000_000;

impl NodeSim {
    /// A node on an instance of the VPC, with core's defaults changed by `tune`.
    ///
    /// # Panics
    /// When the VPC has no such instance.
    pub fn new(mut vpc: Vpc, instance: &str, tune: impl FnOnce(&mut Config)) -> NodeSim {
        let facts = ec2model::instance_facts(&mut vpc, 0, instance).unwrap_or_else(|| {
            panic!("the VPC has no instance {instance} of a known type");
        });
        let subnet =
            vpc.enis(0).iter().find(|e| e.mac == facts.primary_mac).map(|e| e.subnet_id.clone()).unwrap_or_default();
        let mut config = Config::new(&facts.instance_type, facts.max_enis, facts.ipv4_per_eni, &subnet);
        tune(&mut config);
        NodeSim::resumed(vpc, facts, config, (BEGIN, BEGIN), None)
    }

    /// A node that goes on from a saved state at `now` of the pool's clock; the model's time began at `begin`.
    pub fn resumed(
        vpc: Vpc,
        facts: InstanceFacts,
        config: Config,
        (now, begin): (Ms, Ms),
        saved: Option<Saved>,
    ) -> NodeSim {
        NodeSim {
            node: Node::new(config.clone(), now, saved),
            vpc,
            facts,
            now,
            replies: BTreeMap::new(),
            trace: Trace::default(),
            dead: BTreeSet::new(),
            fences_fail: false,
            disk: None,
            keep_disk: true,
            tape: None,
            times: HostTimes::default(),
            begin,
            queue: BinaryHeap::new(),
            order: 0,
            next_call: 0,
            asked: BTreeMap::new(),
            config,
            boot: 0,
            adds: std::collections::VecDeque::new(),
        }
    }

    fn later(&mut self, ms: Ms, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((self.now + ms, self.order, Queued(event))));
    }

    /// One event now; its effects are carried out.
    pub fn feed(&mut self, policies: &mut dyn Policies, event: Event) {
        if let Some(tape) = &mut self.tape {
            tape.lines.push(Line::Event { t: self.now, e: record::opaque(&event) });
        }
        let effects = self.node.handle(self.now, event, policies);
        if let Some(tape) = &mut self.tape {
            let t = self.now;
            let seen = tape.seen.take();
            tape.lines.extend(seen.iter().map(|d| Line::Decision { t, d: Box::new(replay::recorded(d)) }));
        }
        for effect in effects {
            self.carry_out(effect);
        }
        self.sample();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { call, reply } => self.on_reply(call, reply),
            Effect::Persist { seq } => {
                if self.keep_disk {
                    self.save();
                }
                self.later(self.times.persist, Event::Persisted { seq, error: None });
            }
            Effect::Ec2 { op, call } => {
                *self.trace.calls.entry(call.action()).or_default() += 1;
                if call.mutates() {
                    self.trace.log.push((self.now, call.clone()));
                }
                if let Call::Unassign { eni, .. } = &call {
                    *self.trace.releases.entry(eni.clone()).or_default() += 1;
                }
                let instance = self.facts.instance.clone();
                let (latency, result) = ec2model::call(&mut self.vpc, self.now - self.begin, &instance, &call);
                if let Err(e) = &result {
                    *self.trace.errors.entry(e.code.clone()).or_default() += 1;
                }
                self.later(latency.max(1), Event::Ec2 { op, result });
            }
            Effect::Fence { ticket, target } => {
                let error = self.fences_fail.then(|| "EBUSY: the veth does not go".to_string());
                if error.is_none() {
                    self.dead.insert(target.key.container_id);
                }
                self.later(self.times.fence, Event::Fenced { ticket, error });
            }
            Effect::TearDown { ticket, .. } => {
                self.later(self.times.tear_down, Event::TornDown { ticket, error: None })
            }
            Effect::CheckAlive { targets } => {
                for t in targets {
                    let alive = !self.dead.contains(&t.key.container_id);
                    self.later(self.times.check, Event::Liveness { key: t.key, alive });
                }
            }
            Effect::SetUpEni { eni, .. } => self.later(self.times.set_up, Event::EniReady { eni: eni.id, error: None }),
            Effect::RemoveEni { .. } => {}
            Effect::Note(note) => self.trace.notes.push((self.now, note)),
        }
    }

    /// A header for the tape: the daemon begins (`complete`), or goes on with these policies.
    pub fn mark(&mut self, policies: Vec<RecordedPolicy>, complete: bool) {
        let (stamp, pristine) = (self.stamp(), self.node.pristine());
        let state = self.node.encode(&stamp, &|b| b.len().to_string()).state;
        let header = Header {
            format: record::FORMAT.into(),
            host: "simulated".into(),
            instance: self.facts.instance.clone(),
            daemon: env!("CARGO_PKG_VERSION").into(),
            wit: "wipam:policy@0.1.0".into(),
            t: self.now,
            wall_ns: stamp.clock.wall_ns,
            config: self.config.clone(),
            policies,
            complete,
            state: saved::decode(&state).ok().filter(|_| !pristine).map(record::opaque_state).map(Box::new),
        };
        if let Some(tape) = &mut self.tape {
            tape.lines.push(Line::Header(Box::new(header)));
        }
    }

    /// Writes the checkpoint as the node is now.
    pub fn save(&mut self) {
        let stamp = self.stamp();
        self.disk = Some(self.node.encode(&stamp, &|b| b.len().to_string()).state);
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            instance: self.facts.instance.clone(),
            boot: self.boot_id(),
            clock: Clock {
                pool_ms: self.now,
                wall_ns: i64::try_from(self.now).unwrap_or(0) * 1_000_000,
                boottime_ms: self.now - self.begin,
            },
            previous_ipam: None,
        }
    }

    fn on_reply(&mut self, call: CallId, reply: Reply) {
        let asked = self.asked.remove(&call);
        self.trace.answered.push((call, asked.map_or(0, |at| self.now - at)));
        if let Some(at) = asked {
            match &reply {
                Reply::Added { .. } => self.trace.waits.push(self.now - at),
                Reply::Refused(error) => self.trace.failed.push(error.to_string()),
                _ => {}
            }
        }
        self.replies.insert(call, reply);
    }

    fn sample(&mut self) {
        while self.adds.front().is_some_and(|at| at + 60_000 <= self.now) {
            self.adds.pop_front();
        }
        let c = self.node.pool().counts();
        let assigning = 0;
        let sample = Sample {
            at: self.now,
            total: c.total,
            assigned: c.assigned,
            free: c.free,
            assigning,
            adds_1m: self.adds.len() as u64,
            enis: self.node.pool().enis().count(),
        };
        if self.trace.samples.last().is_none_or(|s| Sample { at: sample.at, ..*s } != sample) {
            self.trace.samples.push(sample);
        }
    }

    /// Runs until an instant of the pool's clock.
    ///
    /// # Panics
    /// When the node does not come to rest within fifty million steps.
    pub fn run_until(&mut self, policies: &mut dyn Policies, until: Ms) {
        for _ in 0..MAX_STEPS {
            let event_at = self.queue.peek().map(|Reverse((at, ..))| *at);
            let wake = self.node.wake_at(self.now).max(self.now + 1);
            let at = event_at.map_or(wake, |e| e.min(wake));
            if at > until {
                self.now = self.now.max(until);
                return;
            }
            self.now = self.now.max(at);
            if event_at.is_some_and(|e| e <= at) {
                let Some(Reverse((_, _, Queued(event)))) = self.queue.pop() else { return };
                self.feed(policies, event);
            } else {
                self.feed(policies, Event::Tick);
            }
        }
        panic!("the node does not come to rest");
    }

    /// Runs for so many milliseconds.
    pub fn run(&mut self, policies: &mut dyn Policies, ms: Ms) {
        self.run_until(policies, self.now + ms);
    }

    /// ipamd serves.
    pub fn serve(&mut self, policies: &mut dyn Policies) {
        self.feed(policies, Event::Serving);
    }

    /// An event that happened elsewhere, now. ADDs bring their own call numbers and deadlines.
    pub fn replay(&mut self, policies: &mut dyn Policies, event: Event) {
        match &event {
            Event::Add { call, .. } => {
                self.asked.insert(*call, self.now);
                self.adds.push_back(self.now);
            }
            Event::Del { key, .. } => _ = self.dead.insert(key.container_id.clone()),
            Event::Liveness { key, alive: false } => _ = self.dead.insert(key.container_id.clone()),
            Event::Liveness { key, alive: true } => _ = self.dead.remove(&key.container_id),
            _ => {}
        }
        self.feed(policies, event);
    }

    /// The key of a container's eth0 on the VPC's network.
    pub fn key(&self, container: &str) -> Key {
        Key { network: self.config.network.clone(), container_id: container.into(), ifname: "eth0".into() }
    }

    /// An ADD of a pod (namespace `default`) with the usual deadline of 100 s.
    pub fn add(&mut self, policies: &mut dyn Policies, container: &str, pod: &str, uid: &str) -> CallId {
        let key = self.key(container);
        self.add_key(policies, key, pod, uid, None)
    }

    /// An ADD with a key and ranges of one's own.
    pub fn add_key(
        &mut self,
        policies: &mut dyn Policies,
        key: Key,
        pod: &str,
        uid: &str,
        ranges: Option<RangeSets>,
    ) -> CallId {
        self.next_call += 1;
        let call = self.next_call;
        self.asked.insert(call, self.now);
        self.adds.push_back(self.now);
        let add = Add {
            netns: Some(Netns { path: format!("/run/netns/{}", key.container_id), inode: 1, boot: self.boot_id() }),
            host_ifname: if ranges.is_some() { String::new() } else { format!("eni-{pod}") },
            pod: PodRef { namespace: "default".into(), name: pod.into(), uid: uid.into() },
            requested: Vec::new(),
            deadline: self.now + 100_000,
            key,
            ranges,
        };
        self.feed(policies, Event::Add { call, add: Box::new(add) });
        call
    }

    /// A DEL.
    pub fn del(&mut self, policies: &mut dyn Policies, container: &str) -> CallId {
        self.next_call += 1;
        let (call, key) = (self.next_call, self.key(container));
        self.feed(policies, Event::Del { call, key, cause: String::new(), network_removed: false });
        self.dead.insert(container.into());
        call
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// kill -9 of ipamd and a new start from the disk; sandboxes live on.
    ///
    /// # Panics
    /// When what the node itself wrote cannot be read.
    pub fn restart(&mut self, policies: &mut dyn Policies) {
        self.begin_again();
        self.serve(policies);
    }

    /// The same, before ipamd serves.
    ///
    /// # Panics
    /// As [`NodeSim::restart`].
    pub fn begin_again(&mut self) {
        self.queue.clear();
        let saved = self.disk.as_deref().map(|bytes| match saved::decode(bytes) {
            Ok(saved) => saved,
            Err(e) => panic!("the node's own state cannot be read: {e}"),
        });
        self.node = Node::new(self.config.clone(), self.now, saved);
    }

    /// The node reboots: every sandbox is gone, the disk stays.
    pub fn reboot(&mut self, policies: &mut dyn Policies) {
        self.boot += 1;
        let all: Vec<String> = self.node.leases().iter().map(|l| l.key.container_id.clone()).collect();
        self.dead.extend(all);
        self.restart(policies);
    }

    /// The address an ADD got.
    pub fn address(&self, call: CallId) -> Option<IpAddr> {
        match self.replies.get(&call) {
            Some(Reply::Added { addresses, .. }) => addresses.first().map(|a| a.address.addr()),
            _ => None,
        }
    }

    /// Why an ADD failed.
    pub fn refusal(&self, call: CallId) -> Option<String> {
        match self.replies.get(&call) {
            Some(Reply::Refused(error)) => Some(error.to_string()),
            _ => None,
        }
    }
}
