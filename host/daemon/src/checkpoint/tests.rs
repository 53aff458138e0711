//! Every file that cannot be used, and random histories over a disk that fails, is killed or loses power at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use wipam_core::cloud::{AttachState, Call, EniFacts, EniKind, Reply as CloudReply};
use wipam_core::config::Config;
use wipam_core::event::{Add, CallId, Effect, Event, Key, PodRef, Reply};
use wipam_core::policy::{
    AllocDecision, AllocateCall, Answer, AnsweredBy, Choice, Memo, PlanCall, PlanDecision, Policies, ReleaseCall,
    Retention, Slot, Verdict,
};

use super::*;
use crate::clock::testing::ByHand;
use crate::files::disk::testing::{Fault, Model};

const STATE: &str = "/lib/state.json";
const IPAM: &str = "/run/ipam.json";
const INSTANCE: &str = "i-1";

/// The first row, no plan.
struct First(u64);

impl First {
    fn answer<T>(&mut self, answer: T) -> Answer<T> {
        self.0 += 1;
        Answer { decision: self.0, by: AnsweredBy::Native, answer }
    }
}

impl Policies for First {
    fn allocate(&mut self, call: &AllocateCall, _: bool) -> Answer<AllocDecision> {
        let choice = if call.pool.rows.is_empty() { Choice::Hold(1_000) } else { Choice::Assign(0) };
        self.answer(AllocDecision { choice, reason: String::new(), facts: Vec::new() })
    }
    fn release(&mut self, _: &ReleaseCall) -> Answer<Retention> {
        self.answer(Retention { keep_for_ms: 0, reason: String::new(), facts: Vec::new() })
    }
    fn plan(&mut self, _: &PlanCall, _: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        self.answer((PlanDecision::default(), None))
    }
    fn verdict(&mut self, _: Slot, _: u64, _: Verdict) {}
    fn fault(&mut self, _: Slot, _: u64, _: &str) {}
}

fn enis() -> Vec<EniFacts> {
    vec![EniFacts {
        id: "eni-1".into(),
        mac: "02:00:00:00:00:01".into(),
        subnet: "subnet-1".into(),
        subnet_cidr: Some("10.0.0.0/24".parse().unwrap()),
        primary: Ipv4Addr::new(10, 0, 0, 4),
        addresses: (5..34).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect(),
        prefixes: Vec::new(),
        device: Some(0),
        card: 0,
        attachment: Some("eni-attach-1".into()),
        state: AttachState::Attached,
        kind: EniKind::Interface,
        tags: BTreeMap::new(),
        delete_on_termination: true,
    }]
}

fn key(n: u64) -> Key {
    Key { network: "aws-cni".into(), container_id: format!("c{n}"), ifname: "eth0".into() }
}

/// A node over the model of a disk, with what it has told its callers.
struct World {
    model: Arc<Model>,
    source: Arc<ByHand>,
    node: Node,
    store: Store,
    clock: Clock,
    policies: First,
    next_call: CallId,
    calls: BTreeMap<CallId, Key>,
    /// Leases whose ADD was answered and whose DEL was not asked for.
    given: BTreeMap<Key, IpAddr>,
    /// Leases whose DEL was answered after a good write.
    ended: BTreeSet<Key>,
    doubtful: bool,
    problems: Vec<Problem>,
    from_aws: bool,
    dead: bool,
}

impl World {
    fn new() -> World {
        let source = Arc::new(ByHand::default());
        source.wall_ns.store(1_764_489_394_000_000_000, Ordering::Relaxed);
        World::on(Arc::new(Model::default()), source)
    }

    fn on(model: Arc<Model>, source: Arc<ByHand>) -> World {
        let mut store = Store::new(model.clone(), STATE.into(), IPAM.into());
        let found = store.load(INSTANCE, 1_764_489_394_000_000_000);
        let clock = Clock::new(source.clone(), "boot".into(), found.saved.as_ref());
        let config = Config { cooldown: 0, ..Config::new("m5.4xlarge", 1, 30, "subnet-1") };
        let from_aws = found.aws.is_some();
        let mut node = Node::new(config, clock.now(), found.saved);
        if let Some(file) = &found.aws {
            node.merge_aws(clock.now(), file, &|_| "eni0".into());
        }
        let mut world = World {
            model,
            source,
            node,
            store,
            clock,
            policies: First(0),
            next_call: 0,
            calls: BTreeMap::new(),
            given: BTreeMap::new(),
            ended: BTreeSet::new(),
            doubtful: false,
            problems: found.problems,
            from_aws,
            dead: false,
        };
        world.event(Event::Metadata { enis: enis() });
        world
    }

    /// The process ended; the next one begins on the same disk.
    fn restart(self) -> World {
        self.model.restart();
        let mut next = World::on(self.model, self.source);
        next.given = self.given;
        next.ended = self.ended;
        next
    }

    fn event(&mut self, event: Event) {
        let mut queue = std::collections::VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            let effects = self.node.handle(self.clock.now(), event, &mut self.policies);
            for effect in effects {
                if self.dead {
                    return;
                }
                queue.extend(self.carry_out(effect));
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Persist { seq } => {
                let result = self.store.prepare(&mut self.node, &self.clock).run();
                // A process that died in the write hears nothing more.
                self.dead = result.is_err() && self.model.is_dead();
                let error = result.err().map(|e| e.to_string());
                // A write that failed late may still have reached the disk, with what was undone since.
                self.doubtful = error.is_some();
                Some(Event::Persisted { seq, error })
            }
            Effect::Reply { call, reply } => {
                self.heard(call, reply);
                None
            }
            Effect::Ec2 { op, call: Call::DescribeEnis } => {
                Some(Event::Ec2 { op, result: Ok(CloudReply::Enis(enis())) })
            }
            Effect::Ec2 { .. } | Effect::SetUpEni { .. } | Effect::RemoveEni { .. } | Effect::Note(_) => None,
            Effect::Fence { ticket, .. } => Some(Event::Fenced { ticket, error: None }),
            Effect::TearDown { ticket, .. } => Some(Event::TornDown { ticket, error: None }),
            Effect::CheckAlive { targets } => {
                targets.into_iter().next().map(|t| Event::Liveness { key: t.key, alive: true })
            }
        }
    }

    fn heard(&mut self, call: CallId, reply: Reply) {
        let Some(key) = self.calls.remove(&call) else { return };
        match reply {
            Reply::Added { addresses, .. } => {
                self.given.insert(key, addresses[0].address.addr());
            }
            Reply::Deleted { .. } if !self.doubtful => {
                self.ended.insert(key);
            }
            _ => {}
        }
    }

    fn add(&mut self, n: u64) -> Option<IpAddr> {
        self.next_call += 1;
        let call = self.next_call;
        self.calls.insert(call, key(n));
        self.ended.remove(&key(n));
        let add = Add {
            key: key(n),
            pod: PodRef { namespace: "default".into(), name: format!("p{n}"), uid: String::new() },
            netns: None,
            host_ifname: format!("eni{n}"),
            requested: Vec::new(),
            deadline: self.clock.now() + 1,
            ranges: None,
        };
        self.event(Event::Add { call, add: Box::new(add) });
        self.given.get(&key(n)).copied()
    }

    fn add_three(&mut self) {
        for n in 1..=3 {
            self.add(n).unwrap();
        }
    }

    fn del(&mut self, n: u64) {
        self.next_call += 1;
        self.calls.insert(self.next_call, key(n));
        self.given.remove(&key(n));
        let (call, key) = (self.next_call, key(n));
        self.event(Event::Del { call, key, cause: "del".into(), network_removed: true });
    }

    /// What was acknowledged holds, and nobody shares an address.
    fn verify(&self) -> Result<(), String> {
        self.node.audit()?;
        for (key, address) in &self.given {
            let found = self.node.check(key).ok_or_else(|| format!("{key} lost its lease of {address}"))?;
            if found.0[0].address.addr() != *address {
                return Err(format!("{key} had {address} and now has {:?}", found.0));
            }
        }
        match self.ended.iter().find(|key| self.node.check(key).is_some()) {
            Some(key) => Err(format!("{key} was released and is back")),
            None => Ok(()),
        }
    }

    fn file(&self, path: &str) -> Vec<u8> {
        self.model.read(std::path::Path::new(path)).unwrap()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let file = self.model.create(std::path::Path::new(path));
        file.unwrap().write(bytes).unwrap();
    }
}

#[test]
fn a_restart_finds_what_was_given_and_ignores_its_own_ipam_json() {
    let mut world = World::new();
    let address = world.add(1).unwrap();
    world.add(2).unwrap();
    world.del(2);
    let world = world.restart();
    world.verify().unwrap();
    assert!(world.problems.is_empty() && !world.from_aws, "{:?}", world.problems);
    let ipam: serde_json::Value = serde_json::from_slice(&world.file(IPAM)).unwrap();
    assert_eq!(ipam["version"], "vpc-cni-ipam/1");
    assert_eq!(ipam["allocations"][0]["ipv4"], address.to_string());
    assert_eq!(ipam["allocations"].as_array().unwrap().len(), 1);
}

#[test]
fn every_bad_state_file_is_set_aside_and_the_previous_copy_serves() {
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let edit = |bytes: &[u8], change: fn(&mut serde_json::Value)| {
        let mut value = serde_json::from_slice(bytes).unwrap();
        change(&mut value);
        serde_json::to_vec(&value).unwrap()
    };
    let cases: [(&str, Vec<u8>); 6] = {
        let mut world = World::new();
        world.add_three();
        let good = world.file(STATE);
        [
            ("malformed", cut(&good)),
            ("empty", Vec::new()),
            ("malformed", b"not json".to_vec()),
            ("version", edit(&good, |v| v["schema"] = 0.into())),
            ("duplicate", edit(&good, |v| v["leases"][1]["addresses"] = v["leases"][0]["addresses"].clone())),
            ("instance", edit(&good, |v| v["instance"] = "i-other".into())),
        ]
    };
    for (reason, bytes) in cases {
        let mut world = World::new();
        world.add_three();
        world.put(STATE, &bytes);
        let mut world = world.restart();
        assert_eq!(world.problems.len(), 1, "{reason}: {:?}", world.problems);
        assert_eq!(world.problems[0].reason, reason, "{:?}", world.problems);
        assert!(world.problems[0].text.contains("set aside as /lib/state.json.bad-2025"), "{:?}", world.problems);
        // The previous copy lacks the third; the AWS daemon's file, written in the same commit, has it.
        world.verify().unwrap();
        world.add(4).unwrap();
        world.restart().verify().unwrap();
    }
}

#[test]
fn with_both_copies_bad_the_aws_file_still_names_the_pods() {
    let mut world = World::new();
    world.add_three();
    world.put(STATE, b"");
    world.put("/lib/state.json.prev", b"{");
    let world = world.restart();
    assert_eq!(world.problems.len(), 2);
    assert!(world.from_aws);
    world.verify().unwrap();
}

#[test]
fn a_bad_ipam_json_is_set_aside_and_our_state_serves() {
    for (reason, bytes) in [
        ("empty", b"".as_slice()),
        ("malformed", b"{\"version\":\"vpc-cni-ipam/1\",\"allocations\":[{"),
        ("version", b"{\"version\":\"vpc-cni-ipam/2\",\"allocations\":[]}"),
        (
            "duplicate",
            br#"{"version":"vpc-cni-ipam/1","allocations":[{"containerID":"a","ipv4":"10.0.0.9"},
               {"containerID":"b","ipv4":"10.0.0.9"}]}"#,
        ),
    ] {
        let mut world = World::new();
        world.add_three();
        world.put(IPAM, bytes);
        let world = world.restart();
        assert_eq!(world.problems[0].reason, reason, "{:?}", world.problems);
        world.verify().unwrap();
    }
}

#[test]
fn what_the_aws_daemon_wrote_since_is_taken_over() {
    let mut world = World::new();
    let taken = world.add(1).unwrap();
    let text = format!(
        r#"{{"version":"vpc-cni-ipam/1","allocations":[{{"networkName":"aws-cni","containerID":"theirs",
        "ifName":"eth0","ipv4":"{taken}","allocationTimestamp":1,"metadata":{{"k8sPodName":"x"}}}}]}}"#
    );
    world.put(IPAM, text.as_bytes());
    let world = world.restart();
    assert!(world.from_aws && world.problems.is_empty());
    let theirs = Key { network: "aws-cni".into(), container_id: "theirs".into(), ifname: "eth0".into() };
    assert_eq!(world.node.check(&theirs).unwrap().0[0].address.addr(), taken);
    assert!(world.node.check(&key(1)).is_none());
}

#[test]
fn links_of_ours_become_leases_that_the_file_lacks() {
    let link = |container: &str, address: &str| OwnLink {
        name: "eni1".into(),
        container_id: container.into(),
        ifname: "eth0".into(),
        addresses: vec![address.parse().unwrap()],
    };
    let own = [link("a", "10.0.0.5"), link("b", "10.0.0.6")];
    let all = from_links(&own, "aws-cni", None);
    assert_eq!(all.allocations.len(), 2);
    let rest = from_links(&own[1..], "aws-cni", Some(&all));
    assert!(rest.allocations.is_empty());
}

#[test]
fn a_full_disk_fails_adds_by_name_keeps_dels_and_mends() {
    let mut world = World::new();
    world.add(1).unwrap();
    world.model.fill(true);
    assert_eq!(world.add(2), None);
    world.del(1);
    world.model.fill(false);
    let retry = world.clock.now() + 2_000;
    world.source.boottime_ms.store(2_000, Ordering::Relaxed);
    assert!(world.clock.now() >= retry);
    world.event(Event::Tick);
    world.add(3).unwrap();
    let world = world.restart();
    world.verify().unwrap();
    assert!(world.node.check(&key(1)).is_none() && world.node.check(&key(2)).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64),
    Del(u64),
    Fault(u32, Fault),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![Just(Fault::Kill), Just(Fault::PowerCut), Just(Fault::Refuse)];
    prop_oneof![
        6 => (0u64..12).prop_map(Step::Add),
        3 => (0u64..12).prop_map(Step::Del),
        3 => (0u32..14, fault).prop_map(|(at, fault)| Step::Fault(at, fault)),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever step of a write is the last of a process, no address is lost or given twice.
    #[test]
    fn no_address_is_lost_or_doubled(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Add(n) => {
                    world.add(n);
                }
                Step::Del(n) => world.del(n),
                Step::Fault(at, fault) => world.model.arm(at, fault),
                Step::Restart => world = world.restart(),
            }
            if world.dead {
                world = world.restart();
            }
            let verdict = world.verify();
            prop_assert!(verdict.is_ok(), "{verdict:?}");
        }
        let verdict = world.restart().verify();
        prop_assert!(verdict.is_ok(), "{verdict:?}");
    }
}
