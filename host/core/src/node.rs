//! The state machine: `handle(now, event, policies) -> effects`.
//!
//! One code path for the daemon, the lab and the tests. The parts: `add` (how a pod gets its address), `end` (how a
//! lease ends), `sizing` (plans and how they become operations), `cloud` (operations at EC2 and what EC2 says),
//! `commit` (what waits for the checkpoint), `restore` (from and to the saved state).

mod add;
mod cloud;
mod commit;
mod end;
mod restore;
mod sizing;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use crate::config::Config;
use crate::event::{AddError, CallId, Effect, Event, GivenAddress, Key, Ms, NetTarget, Note, RangeSets, Reply};
use crate::guard::{Breach, Counters};
use crate::lease::{Leases, Phase, Tombstone};
use crate::policy::{Counts, Limits, Memo, Policies, PoolInfo};
use crate::pool::{LeaseNo, Pool};

pub use status::Status;

/// The node.
pub struct Node {
    cfg: Config,
    /// The VPC's pool is the first.
    pools: Vec<Pool>,
    ranges: BTreeMap<String, RangeSets>,
    leases: Leases,
    tombs: BTreeMap<Key, Tombstone>,
    waits: add::Waits,
    fences: BTreeMap<u64, end::FenceJob>,
    tearing: BTreeMap<u64, end::Tearing>,
    collecting: Vec<end::Collecting>,
    next_ticket: u64,
    commit: commit::Commit,
    sizing: sizing::Sizing,
    cloud: cloud::Cloud,
    parked: restore::Parked,
    memo: Memo,
    guard: Counters,
    /// Addresses that the host's own links, routes and rules carry.
    carried: BTreeSet<IpAddr>,
    started: bool,
    said_ready: bool,
    serving_since: Option<Ms>,
    kubelet_since: Option<Ms>,
    schedulable: bool,
    stopping: bool,
    window: Window,
    /// Counts whatever could let a waiting ADD go on.
    supply: u64,
    tombs_checked: Ms,
    out: Vec<Effect>,
}

/// ADDs, DELs and failures of the last minute.
#[derive(Clone, Debug, Default)]
struct Window {
    adds: VecDeque<Ms>,
    dels: VecDeque<Ms>,
    failed: VecDeque<Ms>,
}

impl Window {
    fn trim(&mut self, now: Ms) {
        for queue in [&mut self.adds, &mut self.dels, &mut self.failed] {
            while queue.front().is_some_and(|at| at + 60_000 <= now) {
                queue.pop_front();
            }
        }
    }
    fn adds_since(&self, from: Ms) -> u32 {
        self.adds.iter().rev().take_while(|at| **at > from).count() as u32
    }
}

impl Node {
    /// A node with nothing but its settings. [`Node::new`] gives it a saved state as well.
    pub fn empty(cfg: Config, now: Ms) -> Node {
        let pool = Pool::new(&cfg.network, 0, false, 4);
        Node {
            pools: vec![pool],
            ranges: BTreeMap::new(),
            leases: Leases::default(),
            tombs: BTreeMap::new(),
            waits: add::Waits::default(),
            fences: BTreeMap::new(),
            tearing: BTreeMap::new(),
            collecting: Vec::new(),
            next_ticket: 0,
            commit: commit::Commit::default(),
            sizing: sizing::Sizing::new(now, cfg.tick),
            cloud: cloud::Cloud::new(now),
            parked: restore::Parked::default(),
            memo: Memo::default(),
            guard: Counters::default(),
            carried: BTreeSet::new(),
            started: false,
            said_ready: false,
            serving_since: None,
            kubelet_since: None,
            schedulable: true,
            stopping: false,
            window: Window::default(),
            supply: 0,
            tombs_checked: now,
            out: Vec::new(),
            cfg,
        }
    }

    /// Takes one event and says what is to be done. `now` never goes back. Effects are carried out in order.
    pub fn handle(&mut self, now: Ms, event: Event, policies: &mut dyn Policies) -> Vec<Effect> {
        self.window.trim(now);
        match event {
            Event::Add { call, add } => self.on_add(now, call, *add),
            Event::Cancel { call } => self.on_cancel(now, call),
            Event::Del { call, key, cause, network_removed } => {
                self.on_del(now, call, &key, &cause, network_removed, policies);
            }
            Event::Gc { call, network, valid } => self.on_gc(now, call, &network, &valid),
            Event::Tick => {}
            Event::PolicySwapped => {
                self.supply += 1;
                self.sizing.touch(now);
            }
            Event::Persisted { seq, error } => self.on_persisted(now, seq, error),
            Event::Ec2 { op, result } => self.on_ec2(now, op, result),
            Event::Metadata { enis } => self.on_metadata(now, &enis),
            Event::HostObserved { addresses } => self.on_host(addresses),
            Event::Liveness { key, alive } => self.on_liveness(now, &key, alive),
            Event::Fenced { ticket, error } => self.on_fenced(now, ticket, error, policies),
            Event::TornDown { ticket, error } => self.on_torn_down(now, ticket, error),
            Event::EniReady { eni, error } => self.on_eni_ready(now, &eni, error),
            Event::Serving => self.on_serving(now),
            Event::KubeletAnswered => {
                self.kubelet_since.get_or_insert(now);
            }
            Event::PodsRead { pods } => self.on_pods(now, &pods),
            Event::NodeState { schedulable, stopping } => self.on_node_state(now, schedulable, stopping),
        }
        self.settle(now, policies);
        std::mem::take(&mut self.out)
    }

    /// ipamd serves: `held-for` may begin to count, and what died meanwhile is found.
    fn on_serving(&mut self, now: Ms) {
        self.serving_since.get_or_insert(now);
        let targets: Vec<NetTarget> =
            self.leases.iter().filter(|l| l.phase == Phase::Active).map(|l| l.target()).collect();
        if !targets.is_empty() {
            self.out.push(Effect::CheckAlive { targets });
        }
    }

    /// What follows from any event: ends, waiting ADDs, plans, operations, and one checkpoint for all of it.
    fn settle(&mut self, now: Ms, policies: &mut dyn Policies) {
        self.end_rests(now);
        self.end_held(now);
        self.end_tombs(now);
        self.tear_again(now);
        self.serve_waiting(now, policies);
        self.expire_waiting(now);
        self.plan_if_due(now, policies);
        self.drive_ops(now);
        if !self.said_ready && self.ready(now).is_ok() {
            self.said_ready = true;
            self.out.push(Effect::Note(Note::Ready));
        }
        self.issue_commit(now);
    }

    /// When [`Event::Tick`] is wanted next, if nothing happens before.
    pub fn wake_at(&self, now: Ms) -> Ms {
        let mut at = now + self.cfg.tick;
        let mut sooner = |t: Option<Ms>| {
            if let Some(t) = t {
                at = at.min(t.max(now));
            }
        };
        for pool in &self.pools {
            sooner(pool.next_end().map(|(t, _)| t));
        }
        sooner(self.waits.next_wake());
        sooner(self.next_held_end());
        sooner(self.tearing.values().filter_map(|t| t.again_at).min());
        sooner(self.commit.retry_at);
        sooner(self.plan_at(now));
        sooner(self.next_op_wake());
        at
    }

    /// Whether an address could be given to a new pod, now or after growth that is known to be possible.
    ///
    /// # Errors
    /// What is missing, for a person.
    pub fn ready(&self, now: Ms) -> Result<(), String> {
        if !self.started {
            return Err("waiting for EC2 or instance metadata to list this instance's interfaces".into());
        }
        if self.pools[0].assignable() > 0 || self.leases.iter().any(|l| l.held()) {
            return Ok(());
        }
        if self.growth_possible(now) {
            // An ADD would wait for growth. That is good enough for a node that has given addresses before, but a new
            // one does not announce itself on a promise.
            if self.said_ready {
                return Ok(());
            }
            return Err("waiting for EC2 to give addresses to this instance".into());
        }
        Err(self.explain_shortage(now).to_string())
    }

    /// What an attachment has, for CHECK.
    pub fn check(&self, key: &Key) -> Option<(Vec<GivenAddress>, String)> {
        let lease = self.leases.find(key)?;
        (!matches!(lease.phase, Phase::Committing { .. })).then(|| (lease.given(), lease.host_ifname.clone()))
    }

    /// Every lease that is committed, for repairs and liveness checks.
    pub fn targets(&self) -> Vec<NetTarget> {
        self.leases.iter().filter(|l| !matches!(l.phase, Phase::Committing { .. })).map(|l| l.target()).collect()
    }

    /// Breaches of the guard so far, by number.
    pub fn guard_counts(&self) -> Counters {
        self.guard
    }

    /// Settings in force.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// The VPC's pool.
    pub fn pool(&self) -> &Pool {
        &self.pools[0]
    }

    /// Number of ADDs that wait.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// All leases.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    // ---- small things that several parts use ----

    fn reply(&mut self, call: CallId, reply: Reply) {
        self.out.push(Effect::Reply { call, reply });
    }

    fn refuse(&mut self, now: Ms, calls: &[CallId], error: &AddError) {
        self.window.failed.push_back(now);
        for call in calls {
            self.reply(*call, Reply::Refused(error.clone()));
        }
    }

    fn note(&mut self, note: Note) {
        self.out.push(Effect::Note(note));
    }

    fn breach(&mut self, breach: &Breach) {
        self.guard.count(breach.guard);
        self.note(Note::Guard { guard: breach.guard, why: breach.why.clone() });
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Index of the pool of a network's set, made when first used.
    fn pool_index(&mut self, network: &str, set: u8, range: bool, family: u8) -> usize {
        if !range {
            return 0;
        }
        if let Some(i) = self.find_pool(network, set, true) {
            return i;
        }
        self.pools.push(Pool::new(network, set, true, family));
        self.pools.len() - 1
    }

    fn find_pool(&self, network: &str, set: u8, range: bool) -> Option<usize> {
        if !range {
            return Some(0);
        }
        self.pools.iter().position(|p| p.range && p.network == network && p.set == set)
    }

    /// Pool of one address of a lease.
    fn pool_of(&self, network: &str, set: u8) -> Option<usize> {
        self.find_pool(network, set, self.ranges.contains_key(network))
    }

    fn pool_info(&self, i: usize, now: Ms) -> PoolInfo {
        let pool = &self.pools[i];
        let unit_length = match (pool.range, pool.family, self.cfg.prefix_mode) {
            (false, _, true) => 28,
            (false, _, false) => 32,
            (true, 4, _) => 32,
            (true, ..) => 128,
        };
        PoolInfo {
            network: pool.network.clone(),
            kind: if pool.range { "range" } else { "eni" }.into(),
            family: pool.family,
            card: 0,
            unit_length,
            may_grow: !pool.range && self.started && !self.stopping && self.growth_possible(now),
            cooldown_ms: self.cfg.cooldown,
        }
    }

    /// What of the instance's limits is ours: unmanaged interfaces and trunks are taken off.
    fn max_enis(&self) -> u16 {
        let others = self.pools[0].enis().filter(|(_, e)| e.unmanaged || !plain(e)).count() as u16;
        self.cfg.max_enis.saturating_sub(others)
    }

    fn limits(&self) -> Limits {
        Limits {
            instance_type: self.cfg.instance_type.clone(),
            max_enis: self.max_enis(),
            slots_per_eni: self.cfg.slots_per_eni,
            max_pods: self.cfg.max_pods,
        }
    }

    fn counts(&self, i: usize) -> Counts {
        let mut counts = self.pools[i].counts();
        if i == 0 {
            counts.assigning = self.assigning();
        }
        counts
    }

    fn lease_set_state(&mut self, network: &str, set: u8, addr: crate::addr::Addr, state: Option<crate::pool::State>) {
        if let Some(i) = self.pool_of(network, set) {
            self.pools[i].set(addr, state);
            self.supply += 1;
        }
    }

    fn held_leases(&self) -> impl Iterator<Item = (LeaseNo, Ms)> + '_ {
        self.leases.iter().filter_map(|l| match l.phase {
            Phase::Held { since, .. } => Some((l.no, since)),
            _ => None,
        })
    }

    /// Recomputes what is kept incrementally, and checks what must always hold. For tests.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn audit(&self) -> Result<(), String> {
        for pool in &self.pools {
            pool.audit()?;
        }
        let mut seen: HashMap<(String, IpAddr), Key> = HashMap::new();
        for lease in self.leases.iter() {
            for a in &lease.addresses {
                let ip = a.given.address.addr();
                if let Some(other) = seen.insert((lease.key.network.clone(), ip), lease.key.clone()) {
                    return Err(format!("{ip} is leased to {other} and to {}", lease.key));
                }
                if let Some(i) = self.pool_of(&lease.key.network, a.set)
                    && let Some(state) = self.pools[i].state(a.addr())
                    && !matches!(state, crate::pool::State::Leased(no) | crate::pool::State::Held(no) if *no == lease.no)
                {
                    return Err(format!("{ip} of {} is {state:?} in the pool", lease.key));
                }
            }
        }
        for pool in &self.pools {
            for (addr, entry) in pool.entries() {
                if let crate::pool::State::Leased(no) | crate::pool::State::Held(no) = &entry.state
                    && self.leases.get(*no).is_none()
                {
                    return Err(format!("{} belongs to lease {no}, which is gone", crate::addr::ip(pool.family, addr)));
                }
            }
        }
        Ok(())
    }
}

fn plain(eni: &crate::pool::Eni) -> bool {
    eni.facts.kind == crate::cloud::EniKind::Interface
}
