//! A node in virtual time, to try a sizer on: pods come and go, calls take time, and what they cost is counted.
//!
//! It knows lone addresses, one call per interface and one attach at a time, as the host does. It is no simulation of
//! EC2 (no faults, no throttling); it shows in milliseconds what a rule does when a hundred pods come.

use std::collections::VecDeque;

use super::{PoolBuilder, given};
use crate::{
    marks::{NONE_U8, eni},
    sizing::*,
    types::*,
};

/// A sizer's `plan`.
pub type Plan = fn(&Given, &Snapshot, &Demand, &Cloud, &[u8]) -> Result<Decision, String>;

const STEP_MS: u64 = 100;
const START_MS: u64 = 1_000_000;

#[derive(Clone, Debug, Default)]
struct Interface {
    assigned: u32,
    free: u32,
    moving: u16,
    attaching: bool,
    draining: bool,
    detaching: bool,
    attached_at_ms: u64,
}

#[derive(Clone, Debug)]
struct Call {
    done_ms: u64,
    op: &'static str,
    eni: usize,
    count: u32,
}

/// What the run has cost and shown so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Interfaces asked for (each comes with its addresses in the same call).
    pub attaches: u32,
    /// Calls that ask for addresses on an interface that is there.
    pub grows: u32,
    /// Calls that give addresses back, by interface.
    pub releases: Vec<u32>,
    /// Interfaces given back.
    pub detaches: u32,
    /// Actions that the node could not take (a busy interface, no room).
    pub refused: u32,
    /// Most free addresses beyond `warm` + the last minute's ADDs, ever, while pods came.
    pub most_above: i64,
}

impl Tally {
    /// Calls that ask for addresses.
    pub fn address_calls(&self) -> u32 {
        self.attaches + self.grows
    }
}

/// The node.
#[derive(Clone, Debug)]
pub struct Node {
    plan: Plan,
    settings: Vec<Setting>,
    max_enis: u16,
    slots: u16,
    now: u64,
    enis: Vec<Interface>,
    calls: Vec<Call>,
    queue: VecDeque<u32>,
    adds: VecDeque<u64>,
    waits: VecDeque<u64>,
    changed: Option<(u64, u64)>,
    recheck_at: u64,
    /// Costs so far.
    pub tally: Tally,
}

impl Node {
    /// A node with an empty primary interface, `max_enis` interfaces of `slots` pod addresses each.
    pub fn new(plan: Plan, settings: Vec<Setting>, max_enis: u16, slots: u16) -> Self {
        let tally = Tally { most_above: i64::MIN, ..Tally::default() };
        Self {
            plan,
            settings,
            max_enis,
            slots,
            now: START_MS,
            enis: vec![Interface::default()],
            calls: Vec::new(),
            queue: VecDeque::new(),
            adds: VecDeque::new(),
            waits: VecDeque::new(),
            changed: Some((START_MS, START_MS)),
            recheck_at: u64::MAX,
            tally,
        }
    }

    /// Free addresses on interfaces that can give them out.
    pub fn free(&self) -> u32 {
        self.enis.iter().filter(|e| !e.attaching && !e.draining).map(|e| e.free).sum()
    }
    /// Addresses of all interfaces.
    pub fn total(&self) -> u32 {
        self.enis.iter().map(|e| e.free + e.assigned).sum()
    }
    /// Pods that have an address.
    pub fn pods(&self) -> u32 {
        self.enis.iter().map(|e| e.assigned).sum()
    }
    /// Addresses (used, free) of each interface.
    pub fn interfaces(&self) -> Vec<(u32, u32)> {
        self.enis.iter().map(|e| (e.assigned, e.free)).collect()
    }

    /// `n` pods come at once.
    pub fn add(&mut self, n: u32) {
        for _ in 0..n {
            self.adds.push_back(self.now);
            self.waits.push_back(self.now);
        }
        self.serve();
        self.touch();
        let warm = crate::Settings(&self.settings).integer("warm", 1);
        let above = i64::from(self.free()) - warm - i64::from(self.adds_within(60_000));
        self.tally.most_above = self.tally.most_above.max(above);
    }

    /// `n` pods go, from the last interface on; no cool-down.
    pub fn del(&mut self, n: u32) {
        for _ in 0..n {
            if let Some(e) = self.enis.iter_mut().rev().find(|e| e.assigned > 0) {
                e.assigned -= 1;
                e.free += 1;
            }
        }
        self.touch();
    }

    /// Lets so much time pass.
    pub fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.settle();
            self.now += STEP_MS;
            self.finish_calls();
            self.serve();
        }
        self.settle();
    }

    fn touch(&mut self) {
        let first = self.changed.map_or(self.now, |(first, _)| first);
        self.changed = Some((first, self.now));
    }

    fn adds_within(&self, ms: u64) -> u32 {
        self.adds.iter().filter(|t| **t + ms > self.now).count() as u32
    }

    /// Pods that wait get what is free, on the fullest interface.
    fn serve(&mut self) {
        while !self.waits.is_empty() {
            let usable = self.enis.iter_mut().filter(|e| e.free > 0 && !e.attaching && !e.draining);
            let Some(e) = usable.max_by_key(|e| e.assigned) else { return };
            e.free -= 1;
            e.assigned += 1;
            self.waits.pop_front();
            self.touch();
        }
    }

    /// Plans when the host would: at once for an ADD that waits, else 1 s after the last change or 5 s after the first.
    fn settle(&mut self) {
        let due = self.changed.is_some_and(|(first, last)| {
            !self.waits.is_empty() || self.now >= last + 1_000 || self.now >= first + 5_000
        });
        let urgent = self.waits.front().is_some_and(|t| (self.now - t).is_multiple_of(1_000));
        if !due && !urgent && self.now < self.recheck_at {
            return;
        }
        (self.changed, self.recheck_at) = (None, u64::MAX);
        let (snapshot, demand, cloud) = self.inputs();
        let given = Given { now_ms: self.now, ..given(self.settings.clone()) };
        let answer = (self.plan)(&given, &snapshot, &demand, &cloud, &[]).unwrap_or_else(|e| panic!("{e}"));
        if let Some(ms) = answer.recheck_ms {
            self.recheck_at = self.now + u64::from(ms);
        }
        assert!(answer.actions.len() <= crate::pool::MAX_ACTIONS);
        for action in answer.actions {
            self.act(&snapshot, action);
        }
        self.drop_detached();
    }

    /// Takes the detached interfaces out of the list, after all of the plan's indices have been used.
    fn drop_detached(&mut self) {
        while let Some(gone) = self.enis.iter().position(|e| e.detaching) {
            self.enis.remove(gone);
            self.tally.detaches += 1;
            for call in self.calls.iter_mut().filter(|c| c.eni > gone) {
                call.eni -= 1;
            }
        }
    }

    fn inputs(&self) -> (Snapshot, Demand, Cloud) {
        let mut pool = PoolBuilder::lone(self.max_enis, self.slots);
        for e in &self.enis {
            let attaching = if e.attaching { eni::ATTACHING } else { 0 };
            let marks = attaching | if e.draining { eni::DRAINING } else { 0 };
            pool = pool.eni(e.assigned, e.free).change(|to| {
                to.marks |= marks;
                to.slots_moving = e.moving;
                to.attached_at_ms = e.attached_at_ms;
            });
        }
        let mut pool = pool.build();
        pool.counts.assigning =
            self.calls.iter().filter(|c| c.op != "release").map(|c| u64::from(c.count)).sum::<u64>()
                + self.queue.iter().map(|n| u64::from(*n)).sum::<u64>();
        let outcome = |op: &str, eni: u8, asked: u32| Outcome {
            op: op.into(),
            eni,
            asked,
            applied: 0,
            code: String::new(),
            at_ms: self.now,
        };
        let running = self.calls.iter().map(|c| outcome(c.op, c.eni as u8, c.count));
        let queued = self.queue.iter().map(|n| outcome("attach", NONE_U8, *n));
        let cloud = Cloud { in_flight: running.chain(queued).collect(), ..Cloud::default() };
        let demand = Demand {
            waiting: self.waits.len() as u32,
            oldest_wait_ms: self.waits.front().map_or(0, |t| self.now - t),
            adds_10s: self.adds_within(10_000),
            adds_1m: self.adds_within(60_000),
            ..Demand::default()
        };
        (pool, demand, cloud)
    }

    fn act(&mut self, pool: &Snapshot, action: Action) {
        let busy = |node: &Self, i: usize| node.calls.iter().any(|c| c.eni == i);
        match action {
            Action::Attach(a) => {
                assert!(a.count >= 1 && a.count <= self.slots, "a new interface has {} slots", self.slots);
                assert!(self.enis.len() + self.queue.len() < usize::from(self.max_enis), "one interface too many");
                self.tally.attaches += 1;
                self.queue.push_back(u32::from(a.count));
                self.start_attach();
            }
            Action::Grow(g) if busy(self, usize::from(g.eni)) => self.tally.refused += 1,
            Action::Grow(g) => {
                let i = usize::from(g.eni);
                let e = &mut self.enis[i];
                assert!(e.assigned + e.free + u32::from(g.count) <= u32::from(self.slots), "no room on {i}");
                e.moving = g.count;
                self.tally.grows += 1;
                self.call("grow", i, u32::from(g.count), 400);
            }
            Action::ReleaseRows(rows) => {
                let i = usize::from(pool.rows.eni[rows[0] as usize]);
                assert!(rows.iter().all(|r| usize::from(pool.rows.eni[*r as usize]) == i), "all on one interface");
                assert!(!busy(self, i), "interface {i} is busy");
                let n = rows.len() as u32;
                self.enis[i].free -= n;
                self.enis[i].moving = n as u16;
                self.tally.releases.resize(usize::from(self.max_enis), 0);
                self.tally.releases[i] += 1;
                self.call("release", i, n, 400);
            }
            Action::Drain(d) => self.enis[usize::from(d.eni)].draining = d.on,
            Action::Detach(i) => {
                let e = &mut self.enis[usize::from(i)];
                assert!(i > 0 && e.draining && e.assigned == 0, "interface {i} is not empty");
                (e.detaching, e.free) = (true, 0);
            }
            Action::ReleaseBlock(_) => panic!("there are no blocks here"),
        }
        self.touch();
    }

    fn call(&mut self, op: &'static str, eni: usize, count: u32, ms: u64) {
        self.calls.push(Call { done_ms: self.now + ms, op, eni, count });
    }

    fn start_attach(&mut self) {
        if self.calls.iter().any(|c| c.op == "attach") {
            return;
        }
        if let Some(n) = self.queue.pop_front() {
            self.enis.push(Interface { attaching: true, moving: n as u16, ..Interface::default() });
            self.call("attach", self.enis.len() - 1, n, 3_000);
        }
    }

    fn finish_calls(&mut self) {
        let now = self.now;
        let (done, open): (Vec<Call>, Vec<Call>) = self.calls.drain(..).partition(|c| c.done_ms <= now);
        self.calls = open;
        for call in done {
            let e = &mut self.enis[call.eni];
            e.moving = 0;
            if call.op != "release" {
                e.free += call.count;
            }
            if call.op == "attach" {
                (e.attaching, e.attached_at_ms) = (false, self.now);
            }
            self.touch();
        }
        self.start_attach();
    }
}
