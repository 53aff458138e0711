//! `wipam policy try`: what a policy would answer to one pod on a recorded state.
//!
//! The node is the real one: core is built from the file, told of interfaces that carry the recorded addresses, and gets
//! an ADD. So the rows offered, the guard and the take-over of an old sandbox are those of a node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use wipam_core::cloud::{self, AttachState, Call, EniFacts, EniKind};
use wipam_core::config::Config;
use wipam_core::event::{Add, Effect, Event, Key, Ms, PodRef, Reply};
use wipam_core::node::Node;
use wipam_core::policy::{
    AllocDecision, AllocateCall, Answer, Memo, PlanCall, PlanDecision, Policies, ReleaseCall, Retention, Slot, Verdict,
};
use wipam_core::saved::Saved;
use wipam_policy::{Candidate, Decision, Environment, HostOptions, PolicyHost};
use wipam_vpc_sim::instance_types;

use super::state::StateFile;
use super::{Failure, OK, Outcome};
use crate::pick::{self, Source, Vetter};
use crate::say;
use crate::text::{Wall, plain, utc_ns};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wipam policy try sticky-podref --state /var/lib/wipam/state.json --pod default/web-0
  wipam policy try my-policy.wasm --state ipam.json --pod default/web-0 --instance-type m5.large --free 3
  wipam policy try warm-ip-target --state state.json --pod default/new --set warm=5

A state file does not list the addresses that were never used; --free N adds some. Nothing is changed anywhere.")]
pub struct Try {
    /// A .wasm file (may be gzipped), or the name of a policy that comes with wipam.
    policy: String,
    /// state.json, or an AWS daemon's ipam.json.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// The pod that asks, as namespace/name.
    #[arg(long, value_name = "NS/NAME")]
    pod: String,
    /// Its UID; without one it is unknown, and an old sandbox of the pod counts as another's.
    #[arg(long, default_value = "")]
    uid: String,
    /// The instance's type, for its limits; without one they are what the file holds.
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// So many addresses more that were never used.
    #[arg(long, value_name = "N", default_value_t = 0)]
    free: u16,
    /// A setting of the policy; may be repeated.
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    set: Vec<String>,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

/// How long the sizer has to be asked, ms.
const PATIENCE: Ms = 10_000;
/// Most steps until then; a node that wants more turns in circles.
const STEPS: usize = 1_000;

pub fn run(args: &Try, out: &mut dyn Write) -> Outcome {
    let (namespace, name) = args
        .pod
        .split_once('/')
        .filter(|(ns, name)| !ns.is_empty() && !name.is_empty())
        .ok_or_else(|| Failure::new(format!("--pod {:?} is not namespace/name, e.g. default/web-0", args.pod)))?;
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: args.uid.clone() };
    let source = Source::find(&args.policy)?;
    let settings = pick::settings(&args.set)?;
    let scene = Scene::of(StateFile::read(&args.state)?, args)?;
    let candidate = Vetter::new(false)?.without_canary().candidate(&source, &settings)?;
    let host = PolicyHost::new(&candidate, HostOptions::default());
    let fills = source.fills();
    let label = format!(
        "{} {}",
        candidate.get(fills.first().copied().unwrap_or(Slot::Allocator)).metadata().name,
        candidate.get(fills.first().copied().unwrap_or(Slot::Allocator)).metadata().version
    );
    let asked = ask(&scene, &pod, host);
    let report = Report { scene: &scene, pod: &pod, label, fills, asked: &asked, twin: Twin::new()? };
    if args.json { report.json(out) } else { report.text(out) }
}

// ---- the node ----

/// A recorded node.
struct Scene {
    config: Config,
    saved: Saved,
    aws: Option<wipam_core::aws::AwsFile>,
    enis: Vec<EniFacts>,
    now: Ms,
    wall: Wall,
    about: String,
    notes: Vec<String>,
}

impl Scene {
    fn of(file: StateFile, args: &Try) -> Result<Scene, Failure> {
        let (saved, aws, about) = match file {
            StateFile::Ours(saved) => {
                let about = format!("state.json of {}, written {}", saved.instance, utc_ns(saved.clock.wall_ns.into()));
                (*saved, None, about)
            }
            StateFile::Aws(file) => (Saved::default(), Some(file), "ipam.json of an AWS daemon".to_owned()),
        };
        let mut notes = Vec::new();
        let limits = match &args.instance_type {
            Some(name) => {
                let kind = instance_types::lookup(name).ok_or_else(|| {
                    Failure::new(format!(
                        "instance type {name} is not in the table; write it as EC2 does, e.g. m5.large"
                    ))
                })?;
                Some((kind.cards.first().copied().unwrap_or(1) as u16, kind.ipv4_per_eni as u16 - 1))
            }
            None => {
                notes.push("the instance's limits are unknown, so the pool cannot grow; give --instance-type".into());
                None
            }
        };
        let enis = interfaces(&saved, aws.as_ref(), args.free, limits.map(|(_, slots)| slots));
        let (max_enis, slots) = limits.unwrap_or_else(|| {
            let most = enis.iter().map(|e| e.addresses.len() as u16).max().unwrap_or(0);
            (enis.len() as u16, most)
        });
        let kind = args.instance_type.as_deref().unwrap_or("unknown");
        let mut config = Config::new(kind, max_enis, slots + 1, SUBNET);
        if let Some(lease) = saved.leases.iter().find(|l| !saved.networks.contains_key(&l.key.network)) {
            config.network = lease.key.network.clone();
        }
        let now = saved.clock.pool_ms.max(1);
        let wall = Wall { pool_ms: now, wall_ns: saved.clock.wall_ns.into() };
        Ok(Scene { config, saved, aws, enis, now, wall, about, notes })
    }

    fn node(&self) -> Node {
        let mut node = Node::new(self.config.clone(), self.now, Some(self.saved.clone()));
        if let Some(file) = &self.aws {
            node.merge_aws(self.now, file, &|pod| format!("veth of {pod}"));
        }
        node
    }
}

const SUBNET: &str = "subnet-recorded";

/// Interfaces that carry what the file records. An address whose interface the file does not name goes where there is
/// room.
fn interfaces(saved: &Saved, aws: Option<&wipam_core::aws::AwsFile>, free: u16, slots: Option<u16>) -> Vec<EniFacts> {
    let mut by_eni: BTreeMap<(u8, String), BTreeSet<Ipv4Addr>> = BTreeMap::new();
    let mut homeless: BTreeSet<Ipv4Addr> = BTreeSet::new();
    for lease in saved.leases.iter().filter(|l| !saved.networks.contains_key(&l.key.network)) {
        for a in &lease.addresses {
            let IpAddr::V4(ip) = a.given.address.addr() else { continue };
            match a.given.eni.as_str() {
                "" => _ = homeless.insert(ip),
                id => _ = by_eni.entry((a.given.device, id.to_owned())).or_default().insert(ip),
            }
        }
    }
    let v4 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    homeless.extend(saved.addresses.iter().filter(|a| a.network.is_empty()).filter_map(|a| v4(a.address)));
    homeless.extend(aws.into_iter().flat_map(|f| &f.allocations).filter_map(|a| a.ipv4));
    let known = || by_eni.values().flatten().chain(&homeless);
    let last = known().max().copied().unwrap_or(Ipv4Addr::new(10, 0, 0, 9));
    homeless.extend((1..=u32::from(free)).map(|n| Ipv4Addr::from(u32::from(last).saturating_add(n))));
    let room = slots.map_or(usize::MAX, usize::from);
    for ip in homeless {
        let device = by_eni.keys().map(|(d, _)| d + 1).max().unwrap_or(0);
        match by_eni.values_mut().find(|all| all.len() < room) {
            Some(all) => _ = all.insert(ip),
            None => _ = by_eni.entry((device, format!("eni-recorded-{device}"))).or_default().insert(ip),
        }
    }
    if by_eni.is_empty() {
        by_eni.insert((0, "eni-recorded-0".into()), BTreeSet::new());
    }
    by_eni.into_iter().map(|((device, id), all)| facts(device, &id, all.into_iter().collect())).collect()
}

fn facts(device: u8, id: &str, addresses: Vec<Ipv4Addr>) -> EniFacts {
    EniFacts {
        id: id.into(),
        mac: format!("02:00:00:00:00:{device:02x}"),
        subnet: SUBNET.into(),
        subnet_cidr: None,
        // The file does not know it, and no pod may have it.
        primary: Ipv4Addr::new(169, 254, 255, device),
        addresses,
        prefixes: Vec::new(),
        device: Some(device),
        card: 0,
        attachment: Some(format!("eni-attach-{device}")),
        state: AttachState::Attached,
        kind: EniKind::Interface,
        tags: BTreeMap::new(),
        delete_on_termination: true,
    }
}

// ---- the question ----

/// What happened to the ADD.
struct Asked {
    allocate: Option<(AllocateCall, Decision)>,
    plan: Option<(PlanCall, Decision)>,
    reply: Option<Reply>,
    /// Growth that EC2 would have been asked for.
    growth: Vec<&'static str>,
    counts: wipam_core::policy::Counts,
}

/// Keeps the first question of each kind.
struct Tap {
    host: PolicyHost,
    allocate: Option<(AllocateCall, u64)>,
    plan: Option<(PlanCall, u64)>,
    armed: bool,
}

impl Policies for Tap {
    fn allocate(&mut self, call: &AllocateCall, native: bool) -> Answer<AllocDecision> {
        let answer = self.host.allocate(call, native);
        if self.armed && self.allocate.is_none() {
            self.allocate = Some((call.clone(), answer.decision));
        }
        answer
    }
    fn release(&mut self, call: &ReleaseCall) -> Answer<Retention> {
        self.host.release(call)
    }
    fn plan(&mut self, call: &PlanCall, native: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        let answer = self.host.plan(call, native);
        if self.armed && self.plan.is_none() {
            self.plan = Some((call.clone(), answer.decision));
        }
        answer
    }
    fn verdict(&mut self, slot: Slot, decision: u64, verdict: Verdict) {
        self.host.verdict(slot, decision, verdict);
    }
    fn fault(&mut self, slot: Slot, decision: u64, why: &str) {
        self.host.fault(slot, decision, why);
    }
}

fn ask(scene: &Scene, pod: &PodRef, host: PolicyHost) -> Asked {
    let mut tap = Tap { host, allocate: None, plan: None, armed: false };
    let mut table =
        Bench { node: scene.node(), now: scene.now, enis: &scene.enis, pod, reply: None, growth: Vec::new() };
    table.feed(&mut tap, Event::Metadata { enis: scene.enis.clone() });
    let counts = table.node.pool().counts();
    let key = Key { network: scene.config.network.clone(), container_id: "tried".into(), ifname: "eth0".into() };
    let add = Add {
        key,
        pod: pod.clone(),
        netns: None,
        host_ifname: "tried".into(),
        requested: Vec::new(),
        deadline: scene.now + 100_000,
        ranges: None,
    };
    tap.armed = true;
    table.growth.clear();
    table.feed(&mut tap, Event::Add { call: 1, add: Box::new(add) });
    for _ in 0..STEPS {
        table.now = table.node.wake_at(table.now).max(table.now + 1);
        if table.now > scene.now + PATIENCE || (tap.plan.is_some() && table.reply.is_some()) {
            break;
        }
        table.feed(&mut tap, Event::Tick);
    }
    let decisions = tap.host.control().decisions(usize::MAX);
    let find = |number: u64| decisions.iter().find(|d| d.number == number).cloned();
    Asked {
        allocate: tap.allocate.and_then(|(call, n)| Some((call, find(n)?))),
        plan: tap.plan.and_then(|(call, n)| Some((call, find(n)?))),
        reply: table.reply,
        growth: table.growth,
        counts,
    }
}

/// The node on the bench: everything but growth is done at once.
struct Bench<'a> {
    node: Node,
    now: Ms,
    enis: &'a [EniFacts],
    pod: &'a PodRef,
    reply: Option<Reply>,
    growth: Vec<&'static str>,
}

impl Bench<'_> {
    fn feed(&mut self, policies: &mut dyn Policies, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            for effect in self.node.handle(self.now, event, policies) {
                self.carry_out(effect, &mut queue);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect, queue: &mut VecDeque<Event>) {
        match effect {
            Effect::Reply { reply, .. } => self.reply = Some(reply),
            Effect::Persist { seq } => queue.push_back(Event::Persisted { seq, error: None }),
            Effect::Ec2 { op, call: Call::DescribeEnis } => {
                queue.push_back(Event::Ec2 { op, result: Ok(cloud::Reply::Enis(self.enis.to_vec())) });
            }
            Effect::Ec2 { op, call: Call::DescribeSubnets { .. } } => {
                queue.push_back(Event::Ec2 { op, result: Ok(cloud::Reply::Subnets(Vec::new())) });
            }
            // What is asked for does not come: the question is what the policy wants, not what EC2 has.
            Effect::Ec2 { call, .. } => self.growth.push(call.action()),
            Effect::Fence { ticket, .. } => queue.push_back(Event::Fenced { ticket, error: None }),
            Effect::TearDown { ticket, .. } => queue.push_back(Event::TornDown { ticket, error: None }),
            Effect::CheckAlive { targets } => {
                let own: Vec<Key> =
                    self.node.leases().iter().filter(|l| l.pod.same_name(self.pod)).map(|l| l.key.clone()).collect();
                // A pod that asks again has lost its old sandbox; all others live.
                queue.extend(targets.into_iter().map(|t| Event::Liveness { alive: !own.contains(&t.key), key: t.key }));
            }
            Effect::SetUpEni { eni, .. } => queue.push_back(Event::EniReady { eni: eni.id, error: None }),
            Effect::RemoveEni { .. } | Effect::Note(_) => {}
        }
    }
}

// ---- the twin beside it ----

/// The shipped default policy, natively.
struct Twin(PolicyHost);

impl Twin {
    fn new() -> Result<Twin, Failure> {
        let gatekeeper = wipam_policy::Gatekeeper::native(Environment::default());
        let candidate: Candidate = gatekeeper.vet_unnamed()?;
        Ok(Twin(PolicyHost::new(&candidate, HostOptions::default())))
    }
}

// ---- the report ----

struct Report<'a> {
    scene: &'a Scene,
    pod: &'a PodRef,
    label: String,
    fills: Vec<Slot>,
    asked: &'a Asked,
    twin: Twin,
}

impl Report<'_> {
    fn outcome(&self) -> String {
        match &self.asked.reply {
            Some(Reply::Added { addresses, .. }) => {
                let all: Vec<String> = addresses.iter().map(|a| a.address.addr().to_string()).collect();
                format!("the pod gets {}", all.join(" and "))
            }
            Some(Reply::Refused(error)) => match error.until() {
                Some(until) => format!(
                    "the pod is refused: {}",
                    error.to_string().replace(&until.to_string(), &self.scene.wall.utc(until))
                ),
                None => format!("the pod is refused: {error}"),
            },
            _ if self.asked.growth.is_empty() => {
                "the pod waits: nothing is assignable, and nothing is asked of EC2".into()
            }
            _ => format!("the pod waits for EC2 ({})", self.asked.growth.join(", ")),
        }
    }

    fn text(mut self, out: &mut dyn Write) -> Outcome {
        let c = self.asked.counts;
        writeln!(out, "state    {}", self.scene.about)?;
        writeln!(
            out,
            "pool     {} addresses: {} assigned, {} held, {} cooling, {} reserved, {} free",
            c.total, c.assigned, c.held, c.cooling, c.reserved, c.free
        )?;
        let uid = if self.pod.uid.is_empty() { "UID unknown".to_owned() } else { format!("UID {}", self.pod.uid) };
        writeln!(out, "pod      {} ({})", plain(&self.pod.to_string()), plain(&uid))?;
        if self.fills.contains(&Slot::Allocator) {
            self.allocation(out)?;
        }
        if self.fills.contains(&Slot::Sizer) {
            self.sizing(out)?;
        }
        writeln!(out, "\noutcome  {}", self.outcome())?;
        for note in &self.scene.notes {
            writeln!(out, "note     {note}")?;
        }
        Ok(OK)
    }

    fn allocation(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let Some((call, decision)) = &self.asked.allocate else {
            writeln!(out, "\nallocate: not asked, since no address is assignable to this pod; --free N adds some")?;
            return Ok(());
        };
        writeln!(out, "\nallocate: {} rows offered, {} left out", call.pool.rows.len(), call.pool.rows_left_out)?;
        let wipam_policy::log::Answered::Allocate(choice) = decision.answer else { return Ok(()) };
        say_answer(out, &self.label, &say::choice(choice, &call.pool, &self.scene.wall), decision)?;
        let twin = self.twin.0.allocate(call, false).answer;
        say_twin(out, &say::choice(twin.choice, &call.pool, &self.scene.wall), &twin.reason)
    }

    fn sizing(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let Some((call, decision)) = &self.asked.plan else {
            writeln!(out, "\nplan: not asked within {} s", PATIENCE / 1_000)?;
            return Ok(());
        };
        writeln!(out, "\nplan: {} ADDs wait, {} free", call.demand.waiting, call.pool.counts.free)?;
        let wipam_policy::log::Answered::Plan { actions, .. } = &decision.answer else { return Ok(()) };
        say_answer(out, &self.label, &say::actions(actions, &call.pool), decision)?;
        let (twin, _) = self.twin.0.plan(call, false).answer;
        say_twin(out, &say::actions(&twin.actions, &call.pool), &twin.reason)
    }

    fn json(mut self, out: &mut dyn Write) -> Outcome {
        let mut body = json!({
            "state": self.scene.about, "pod": self.pod, "policy": self.label, "counts": self.asked.counts,
            "outcome": self.outcome(), "notes": self.scene.notes,
        });
        let wall = self.scene.wall;
        if let (Some((call, decision)), true) = (&self.asked.allocate, self.fills.contains(&Slot::Allocator)) {
            let twin = self.twin.0.allocate(call, false).answer;
            let words = match decision.answer {
                wipam_policy::log::Answered::Allocate(choice) => say::choice(choice, &call.pool, &wall),
                _ => String::new(),
            };
            body["allocate"] = json!({
                "rows": call.pool.rows.len(), "answer": words, "decision": decision,
                "default": { "answer": say::choice(twin.choice, &call.pool, &wall), "reason": twin.reason },
            });
        }
        if let (Some((call, decision)), true) = (&self.asked.plan, self.fills.contains(&Slot::Sizer)) {
            let (twin, _) = self.twin.0.plan(call, false).answer;
            body["plan"] = json!({
                "decision": decision,
                "default": { "answer": say::actions(&twin.actions, &call.pool), "reason": twin.reason },
            });
        }
        super::json(out, &body)
    }
}

fn say_answer(out: &mut dyn Write, label: &str, answer: &str, decision: &Decision) -> Result<(), Failure> {
    writeln!(out, "  {} {}", plain(label), plain(answer))?;
    if let Some(fault) = &decision.fault {
        writeln!(out, "    FAULT   {}; its native twin answered instead", plain(&fault.to_string()))?;
    }
    writeln!(out, "    reason  {}", plain(&decision.reason))?;
    if !decision.facts.is_empty() {
        writeln!(out, "    facts   {}", say::facts(&decision.facts))?;
    }
    if let Some(fuel) = decision.fuel {
        writeln!(out, "    fuel    {fuel}")?;
    }
    if let Some(verdict) = &decision.verdict {
        writeln!(out, "    guard   {}", plain(&say::verdict(verdict)))?;
    }
    Ok(())
}

fn say_twin(out: &mut dyn Write, answer: &str, reason: &str) -> Result<(), Failure> {
    writeln!(out, "  default (native twin) {answer}")?;
    writeln!(out, "    reason  {}", plain(reason))?;
    Ok(())
}
