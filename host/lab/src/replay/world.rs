//! The recorded events from outside (pods, the kubelet, the API server) into a world of its own: core, a policy of
//! choice, and the simulated VPC for everything that answers. What EC2 and the host answered in the record is left out,
//! since another policy asks for other things; so is what EC2 refused then.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use wipam_core::cloud::Call;
use wipam_core::event::{Event, Ms, Reply};
use wipam_core::ids::sandbox_number;
use wipam_core::policy::{
    AllocDecision, AllocateCall, Answer, Memo, PlanCall, PlanDecision, Policies, ReleaseCall, Retention, Slot, Verdict,
};
use wipam_core::record::{Header, Line, RecordedPolicy};
use wipam_policy::{Candidate, HostOptions, PolicyHost};

use super::played::{AddNo, Given, Played, Step};
use super::reading::Recording;
use super::{Collector, ShelfError, Watch, vpc};
use crate::sim::{NodeSim, Sample};

/// Which policies a run uses: the same from beginning to end, or those that each header names.
pub enum Choice<'a> {
    /// These throughout.
    Fixed(Box<Candidate>),
    /// As each header says.
    Recorded(&'a dyn Fn(&[RecordedPolicy]) -> Result<Candidate, ShelfError>),
}

/// Why a run is not possible.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A recorded policy is not at hand.
    #[error(transparent)]
    Shelf(#[from] ShelfError),
    /// The VPC cannot be built.
    #[error("{0}")]
    Vpc(String),
    /// The record has no header.
    #[error("the record has no header")]
    NoHeader,
}

/// Hears reasons as core asks; core does not keep them.
struct Tap {
    host: PolicyHost,
    reasons: HashMap<(u64, String), String>,
    /// The last plan that proposed anything.
    plan: String,
}

impl Policies for Tap {
    fn allocate(&mut self, call: &AllocateCall, native: bool) -> Answer<AllocDecision> {
        let answer = self.host.allocate(call, native);
        let who = (call.request.sandbox, call.request.ifname.clone());
        self.reasons.insert(who, answer.answer.reason.clone());
        answer
    }
    fn release(&mut self, call: &ReleaseCall) -> Answer<Retention> {
        self.host.release(call)
    }
    fn plan(&mut self, call: &PlanCall, native: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        let answer = self.host.plan(call, native);
        if !answer.answer.0.actions.is_empty() {
            self.plan.clone_from(&answer.answer.0.reason);
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

struct World<'a> {
    choice: &'a Choice<'a>,
    sim: NodeSim,
    tap: Tap,
    seen: Arc<Collector>,
    run: u32,
    played: Played,
    /// Last address of a pod on a network.
    homes: HashMap<(String, String), Vec<IpAddr>>,
    open: BTreeMap<AddNo, Open>,
    last: Option<Sample>,
    guard_before: u64,
}

/// An ADD on its way.
struct Open {
    network: String,
    ifname: String,
    sandbox: u64,
    given: Given,
}

impl Choice<'_> {
    fn candidate(&self, header: &Header) -> Result<Candidate, ShelfError> {
        match self {
            Choice::Fixed(candidate) => Ok((**candidate).clone()),
            Choice::Recorded(shelf) => shelf(&header.policies),
        }
    }
}

fn host(candidate: &Candidate, seen: &Arc<Collector>, fuel: bool) -> PolicyHost {
    let mut options = HostOptions::quiet();
    if fuel {
        options.sink = Some(seen.clone());
    }
    PolicyHost::new(candidate, options)
}

impl World<'_> {
    /// The daemon ended and begins again: its own checkpoint, all its answers under way lost, the policy host fresh.
    fn restart(&mut self, header: &Header, fuel: bool) -> Result<(), ShelfError> {
        self.sim.run_until(&mut self.tap, header.t);
        self.observe();
        self.guard_before = self.guard();
        self.count_host();
        self.tap.host = host(&self.choice.candidate(header)?, &self.seen, fuel);
        self.run += 1;
        self.sim.save();
        self.sim.begin_again();
        Ok(())
    }

    /// Adds what the policy host has counted; it ends with the daemon's run.
    fn count_host(&mut self) {
        let status = self.tap.host.status();
        self.played.faults += status.faults.values().sum::<u64>();
        self.played.decisions += status.allocator.decisions + status.sizer.decisions;
    }

    fn guard(&self) -> u64 {
        self.guard_before + self.sim.node.guard_counts().0.iter().sum::<u64>()
    }

    fn event(&mut self, t: Ms, event: &Event) {
        self.sim.run_until(&mut self.tap, t);
        self.observe();
        self.played.events += 1;
        match event {
            Event::Add { call, add } => {
                self.played.pod_events += 1;
                let given = Given {
                    at: t,
                    pod: add.pod.to_string(),
                    addresses: Vec::new(),
                    waited: None,
                    error: None,
                    reason: String::new(),
                };
                let open = Open {
                    network: add.key.network.clone(),
                    ifname: add.key.ifname.clone(),
                    sandbox: sandbox_number(&add.key.network, &add.key.container_id),
                    given,
                };
                self.open.insert((self.run, *call), open);
            }
            Event::Del { .. } => self.played.pod_events += 1,
            _ => {}
        }
        self.sim.replay(&mut self.tap, event.clone());
        self.observe();
    }

    /// Takes what the simulator did since the last look.
    fn observe(&mut self) {
        for sample in std::mem::take(&mut self.sim.trace.samples) {
            if let Some(last) = self.last.replace(sample) {
                let ms = u128::from(sample.at - last.at);
                self.played.held_ms += u128::from(last.total) * ms;
                self.played.idle_ms += u128::from(last.total - last.assigned) * ms;
            }
        }
        for (at, call) in std::mem::take(&mut self.sim.trace.log) {
            self.played.steps.push(Step { at, call: describe(&call), reason: self.tap.plan.clone() });
        }
        for (call, waited) in std::mem::take(&mut self.sim.trace.answered) {
            let Some(reply) = self.sim.replies.remove(&call) else { continue };
            if let Some(open) = self.open.remove(&(self.run, call)) {
                self.answered((self.run, call), open, waited, &reply);
            }
        }
        self.sim.trace.notes.clear();
    }

    fn answered(&mut self, no: AddNo, open: Open, waited: Ms, reply: &Reply) {
        let mut given = open.given;
        given.waited = Some(waited);
        given.reason = self.tap.reasons.remove(&(open.sandbox, open.ifname)).unwrap_or_default();
        match reply {
            Reply::Added { addresses, .. } => {
                given.addresses = addresses.iter().map(|a| a.address.addr()).collect();
                self.played.waits.push(waited);
                let home = self.homes.insert((open.network, given.pod.clone()), given.addresses.clone());
                if let Some(home) = home {
                    self.played.returns += 1;
                    self.played.sticky += u32::from(home == given.addresses);
                }
            }
            Reply::Refused(error) => {
                self.played.failed += 1;
                given.error = Some(error.to_string());
            }
            _ => {}
        }
        self.played.given.insert(no, given);
    }

    fn end(mut self, until: Ms, begun: Instant) -> Played {
        self.sim.run_until(&mut self.tap, until);
        self.observe();
        if let Some(last) = self.last {
            let ms = u128::from(until.saturating_sub(last.at));
            self.played.held_ms += u128::from(last.total) * ms;
            self.played.idle_ms += u128::from(last.total - last.assigned) * ms;
        }
        let guard = self.guard();
        self.count_host();
        let mut played = self.played;
        played.unanswered = self.open.len() as u32;
        for (no, open) in self.open {
            played.given.insert(no, open.given);
        }
        played.waits.sort_unstable();
        played.calls = self.sim.trace.calls.clone();
        played.errors = self.sim.trace.errors.clone();
        played.guard = guard;
        played.fuel = self.seen.fuel();
        played.took = begun.elapsed();
        played
    }
}

/// An EC2 call with its figures, without ids that no two worlds share.
fn describe(call: &Call) -> String {
    let units = |addresses: u16, prefixes: u16| match (addresses, prefixes) {
        (n, 0) => format!("{n} addresses"),
        (0, n) => format!("{n} prefixes"),
        (n, m) => format!("{n} addresses, {m} prefixes"),
    };
    let what = match call {
        Call::CreateEni { addresses, prefixes, .. } | Call::Assign { addresses, prefixes, .. } => {
            units(*addresses, *prefixes)
        }
        Call::Unassign { addresses, prefixes, .. } => units(addresses.len() as u16, prefixes.len() as u16),
        Call::AttachEni { device, .. } => format!("device {device}"),
        _ => return call.action().into(),
    };
    format!("{} ({what})", call.action())
}

/// Events that come from outside, whatever policy runs.
fn from_outside(event: &Event) -> bool {
    match event {
        Event::Add { .. }
        | Event::Cancel { .. }
        | Event::Del { .. }
        | Event::Gc { .. }
        | Event::Liveness { .. }
        | Event::Serving
        | Event::KubeletAnswered
        | Event::PodsRead { .. }
        | Event::NodeState { .. } => true,
        Event::Tick
        | Event::PolicySwapped
        | Event::Persisted { .. }
        | Event::Ec2 { .. }
        | Event::Metadata { .. }
        | Event::HostObserved { .. }
        | Event::Fenced { .. }
        | Event::TornDown { .. }
        | Event::EniReady { .. } => false,
    }
}

/// Plays the record in a world of its own. With `fuel` every decision is counted, which costs the digest of its inputs.
///
/// # Errors
/// [`WorldError`].
pub fn play(
    recording: &Recording,
    label: &str,
    choice: &Choice<'_>,
    fuel: bool,
    watch: &Watch<'_>,
) -> Result<Played, WorldError> {
    let begun = Instant::now();
    let header = recording.header().ok_or(WorldError::NoHeader)?;
    let scene = vpc::scene(recording, header).map_err(WorldError::Vpc)?;
    let seen = Collector::new(false);
    let tap = Tap { host: host(&choice.candidate(header)?, &seen, fuel), reasons: HashMap::new(), plan: String::new() };
    let state = header.state.as_deref().cloned();
    let mut sim = NodeSim::resumed(scene.vpc, scene.facts, header.config.clone(), (header.t, scene.begin), state);
    sim.keep_disk = false;
    let played = Played { label: label.into(), ..Played::default() };
    let mut world = World {
        choice,
        sim,
        tap,
        seen,
        run: 0,
        played,
        homes: HashMap::new(),
        open: BTreeMap::new(),
        last: None,
        guard_before: 0,
    };
    let mut until = header.t;
    for (at, line) in recording.lines.iter().enumerate().skip(1) {
        if !watch.go_on(at) {
            world.played.interrupted = true;
            break;
        }
        match line {
            Line::Header(h) if h.complete => world.restart(h, fuel)?,
            Line::Header(h) => {
                if let Choice::Recorded(_) = choice {
                    world.sim.run_until(&mut world.tap, h.t);
                    let candidate = choice.candidate(h)?;
                    if !world.tap.host.control().swap(&candidate).changed.is_empty() {
                        world.sim.replay(&mut world.tap, Event::PolicySwapped);
                    }
                }
            }
            Line::Event { t, e } if from_outside(e) => {
                until = *t;
                world.event(*t, e);
            }
            Line::Event { t, .. } => until = *t,
            Line::Decision { .. } => {}
        }
    }
    Ok(world.end(until, begun))
}
