//! How a lease ends: DEL, GC, *held* and its end, fences, tear-downs, cool-downs, reservations, tombstones.

use super::Node;
use super::add::policy_pod;
use super::commit::Ack;
use crate::addr::{Addr, halves};
use crate::event::{AddError, CallId, Effect, Key, Ms, NetTarget, Note, PodRef, Reply};
use crate::ids;
use crate::lease::{Lease, Phase, Tombstone};
use crate::policy::{EndedLease, Given, Policies, ReleaseCall, Slot, Verdict};
use crate::pool::{LeaseNo, State};

/// Network and interface name of entries that came from the runtime migration of the AWS daemon (vpc-cni §3.3).
pub(crate) const MIGRATED_NETWORK: &str = "_migrated-from-cri";
pub(crate) const MIGRATED_IFNAME: &str = "unknown";
/// A fence or tear-down that failed is tried again so late.
const AGAIN: Ms = 10_000;

/// What follows a fence.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The lease moves to this waiting ADD.
    TakeOver {
        /// Its number.
        wait: u64,
    },
    /// The lease ends and its address cools.
    End {
        /// "gc", "gone", "superseded".
        cause: &'static str,
        /// The sandbox that supersedes it; its key becomes a tombstone.
        by: Option<String>,
        /// The GC it counts for.
        gc: Option<u64>,
    },
}

/// A fence under way.
#[derive(Debug)]
pub(super) struct FenceJob {
    lease: LeaseNo,
    addresses: Vec<Addr>,
    purpose: Purpose,
}

/// Links, routes and rules that are to go before the addresses may be used again.
#[derive(Clone, Debug)]
pub(super) struct Tearing {
    pub(super) target: NetTarget,
    /// Set and number of each address.
    pub(super) addresses: Vec<(u8, Addr)>,
    pub(super) again_at: Option<Ms>,
}

/// A GC that waits for its fences.
#[derive(Debug)]
pub(super) struct Collecting {
    id: u64,
    call: CallId,
    open: usize,
    released: u32,
}

impl Node {
    // ---- DEL ----

    pub(super) fn on_del(
        &mut self,
        now: Ms,
        call: CallId,
        key: &Key,
        cause: &str,
        network_removed: bool,
        policies: &mut dyn Policies,
    ) {
        self.window.dels.push_back(now);
        let nothing = Reply::Deleted { addresses: Vec::new(), host_ifname: String::new() };
        if self.tombs.remove(key).is_some() {
            // The sandbox was superseded; what it had belongs to another one.
            self.dirty();
            return self.reply(call, nothing);
        }
        if let Some(calls) = self.waits.remove_key(key) {
            self.refuse(now, &calls, &AddError::Withdrawn);
            return self.reply(call, nothing);
        }
        let Some(no) = self.find_for_del(key) else { return self.reply(call, nothing) };
        if matches!(self.leases.get(no).map(|l| &l.phase), Some(Phase::Committing { .. })) {
            let calls = self.undo_lease(no);
            self.refuse(now, &calls, &AddError::Withdrawn);
            return self.after_commit(Ack::Ended(call, nothing));
        }
        let cause = if cause.is_empty() { "del" } else { cause };
        let Some(lease) = self.end_lease(now, no, cause, false, network_removed, policies) else { return };
        let reply = Reply::Deleted { addresses: lease.given(), host_ifname: lease.host_ifname.clone() };
        self.after_commit(Ack::Ended(call, reply));
    }

    /// The lease a DEL means; entries of the runtime migration were recorded under placeholder names.
    fn find_for_del(&self, key: &Key) -> Option<LeaseNo> {
        if let Some(lease) = self.leases.find(key) {
            return Some(lease.no);
        }
        let placeholder = Key {
            network: MIGRATED_NETWORK.into(),
            container_id: key.container_id.clone(),
            ifname: MIGRATED_IFNAME.into(),
        };
        self.leases.find(&placeholder).map(|l| l.no)
    }

    /// Ends a lease: its addresses cool, and its network is torn down once that is recorded. `clean`: nothing of it is
    /// left on the host.
    pub(super) fn end_lease(
        &mut self,
        now: Ms,
        no: LeaseNo,
        cause: &str,
        shut: bool,
        clean: bool,
        policies: &mut dyn Policies,
    ) -> Option<Lease> {
        let lease = self.leases.remove(no)?;
        let linked = !clean && !lease.host_ifname.is_empty();
        for (i, a) in lease.addresses.iter().enumerate() {
            let keep = if shut || self.stopping { 0 } else { self.ask_retention(now, &lease, i, cause, policies) };
            let state =
                State::Cooling { since: now, until: now + self.cfg.cooldown, owner: lease.owner(), keep, linked, shut };
            self.lease_set_state(&lease.key.network, a.set, a.addr(), Some(state));
        }
        if linked {
            let ticket = self.ticket();
            let addresses = lease.addresses.iter().map(|a| (a.set, a.addr())).collect();
            self.tearing.insert(ticket, Tearing { target: lease.target(), addresses, again_at: None });
            self.after_commit(Ack::TearDown(ticket));
        }
        self.sizing.touch(now);
        self.dirty();
        Some(lease)
    }

    fn ask_retention(&mut self, now: Ms, lease: &Lease, i: usize, cause: &str, policies: &mut dyn Policies) -> Ms {
        let a = &lease.addresses[i];
        let Some(pool) = self.pool_of(&lease.key.network, a.set) else { return 0 };
        let sandbox = ids::sandbox_number(&lease.key.network, &lease.key.container_id);
        let (address_hi, address_lo) = halves(a.addr());
        let call = ReleaseCall {
            lease: EndedLease {
                sandbox,
                ifname: lease.key.ifname.clone(),
                index: a.given.index,
                pod: policy_pod(&lease.pod),
                address_hi,
                address_lo,
                assigned_at_ms: lease.assigned_at,
                cause: match cause {
                    "gc" | "gone" | "superseded" => cause.into(),
                    _ => "del".into(),
                },
            },
            given: Given {
                now_ms: now,
                seed: ids::fnv64(&[&sandbox.to_le_bytes(), &now.to_le_bytes()]),
                ..Given::default()
            },
            pool: self.pool_info(pool, now),
            limits: self.limits(),
            counts: self.counts(pool),
        };
        let answer = policies.release(&call);
        policies.verdict(Slot::Allocator, answer.decision, Verdict::Accepted);
        answer.answer.keep_for_ms.min(self.cfg.max_keep_for)
    }

    // ---- tear-downs ----

    pub(super) fn tear_now(&mut self, _now: Ms, ticket: u64) {
        if let Some(tearing) = self.tearing.get_mut(&ticket) {
            tearing.again_at = None;
            let target = tearing.target.clone();
            self.out.push(Effect::TearDown { ticket, target });
        }
    }

    pub(super) fn tear_again(&mut self, now: Ms) {
        let due: Vec<u64> =
            self.tearing.iter().filter(|(_, t)| t.again_at.is_some_and(|at| at <= now)).map(|(n, _)| *n).collect();
        for ticket in due {
            self.tear_now(now, ticket);
        }
    }

    pub(super) fn on_torn_down(&mut self, now: Ms, ticket: u64, error: Option<String>) {
        if let Some(why) = error {
            if let Some(tearing) = self.tearing.get_mut(&ticket) {
                tearing.again_at = Some(now + AGAIN);
                let key = tearing.target.key.clone();
                self.note(Note::Network { key, why });
            }
            return;
        }
        let Some(tearing) = self.tearing.remove(&ticket) else { return };
        for (set, addr) in tearing.addresses {
            let Some(i) = self.pool_of(&tearing.target.key.network, set) else { continue };
            if let Some(State::Cooling { since, until, owner, keep, linked: true, shut }) =
                self.pools[i].state(addr).cloned()
            {
                self.pools[i].set(addr, Some(State::Cooling { since, until, owner, keep, linked: false, shut }));
                self.supply += 1;
            }
        }
        self.dirty();
    }

    // ---- cool-downs and reservations ----

    pub(super) fn end_rests(&mut self, now: Ms) {
        for i in 0..self.pools.len() {
            let ended = self.pools[i].ended(now);
            if ended.is_empty() {
                continue;
            }
            for addr in ended {
                self.end_rest(now, i, addr);
            }
            self.pools[i].forget_surplus();
            self.supply += 1;
            self.sizing.touch(now);
            self.dirty();
        }
    }

    fn end_rest(&mut self, now: Ms, i: usize, addr: Addr) {
        let Some(state) = self.pools[i].state(addr).cloned() else { return };
        let next = match state {
            State::Cooling { owner, keep, .. } if keep > 0 && self.may_reserve(i) => {
                State::Reserved { since: now, until: now + keep, owner }
            }
            State::Cooling { owner, .. } | State::Reserved { owner, .. } => {
                State::Free { since: now, last: owner.pod_key() }
            }
            other => other,
        };
        self.pools[i].set(addr, Some(next));
    }

    /// All reservations together stay under their share of the pool.
    fn may_reserve(&self, i: usize) -> bool {
        let total = self.pools[i].counts().total;
        let cap = total * u64::from(self.cfg.max_reserved_percent) / 100;
        !self.stopping && self.pools[i].reserved_count() < cap
    }

    pub(super) fn on_node_state(&mut self, now: Ms, schedulable: bool, stopping: bool) {
        self.schedulable = schedulable;
        let begins = stopping && !self.stopping;
        self.stopping = stopping;
        if begins {
            for i in 0..self.pools.len() {
                for addr in self.pools[i].reserved() {
                    if let Some(State::Reserved { owner, .. }) = self.pools[i].state(addr).cloned() {
                        self.pools[i].set(addr, Some(State::Free { since: now, last: owner.pod_key() }));
                    }
                }
            }
            self.dirty();
        }
        self.sizing.touch(now);
    }

    // ---- held ----

    /// The pool's state of a lease's addresses follows its phase.
    pub(super) fn set_lease_state(&mut self, no: LeaseNo) {
        let Some(lease) = self.leases.get(no) else { return };
        let held = lease.held();
        let network = lease.key.network.clone();
        let addresses: Vec<(u8, Addr)> = lease.addresses.iter().map(|a| (a.set, a.addr())).collect();
        for (set, addr) in addresses {
            let state = if held { State::Held(no) } else { State::Leased(no) };
            self.lease_set_state(&network, set, addr, Some(state));
        }
    }

    pub(super) fn make_held(&mut self, now: Ms, no: LeaseNo, replaced: bool) {
        if let Some(lease) = self.leases.get_mut(no)
            && lease.phase == Phase::Active
        {
            lease.phase = Phase::Held { since: now, replaced };
            self.set_lease_state(no);
            self.note_held(no);
            self.dirty();
        }
    }

    pub(super) fn on_liveness(&mut self, now: Ms, key: &Key, alive: bool) {
        if let Some(tomb) = self.tombs.get(key)
            && !alive
            && now >= tomb.since + self.cfg.tombstone
        {
            self.tombs.remove(key);
            self.dirty();
            return;
        }
        let Some(lease) = self.leases.find(key) else { return };
        let (no, phase) = (lease.no, lease.phase.clone());
        self.wait_heard(no, alive);
        match phase {
            Phase::Active if !alive => self.make_held(now, no, false),
            Phase::Held { replaced: false, .. } if alive => {
                if let Some(lease) = self.leases.get_mut(no)
                    && lease.fencing.is_none()
                {
                    lease.phase = Phase::Active;
                    self.set_lease_state(no);
                    self.dirty();
                }
            }
            _ => {}
        }
    }

    /// When *held* ends by itself: `held-for` after the latest of: it became held, ipamd serves, the kubelet answered.
    fn held_end(&self, since: Ms) -> Option<Ms> {
        let serving = self.serving_since?;
        let kubelet = if self.cfg.kubelet { self.kubelet_since? } else { 0 };
        Some(since.max(serving).max(kubelet) + self.cfg.held_for)
    }

    /// The same for people: what is not known yet counts from now on at the earliest.
    pub(super) fn held_until(&self, lease: &Lease) -> Ms {
        match lease.phase {
            Phase::Held { since, .. } => self.held_end(since).unwrap_or(since + self.cfg.held_for),
            _ => 0,
        }
    }

    pub(super) fn next_held_end(&self) -> Option<Ms> {
        self.held_leases()
            .filter_map(|(no, since)| {
                let lease = self.leases.get(no).filter(|l| l.fencing.is_none())?;
                self.held_end(since).map(|t| t.max(lease.fence_after))
            })
            .min()
    }

    pub(super) fn end_held(&mut self, now: Ms) {
        let due: Vec<LeaseNo> = self
            .held_leases()
            .filter(|(no, since)| {
                self.held_end(*since).is_some_and(|t| t <= now)
                    && self.leases.get(*no).is_some_and(|l| l.fencing.is_none() && l.fence_after <= now)
            })
            .map(|(no, _)| no)
            .collect();
        for no in due {
            self.start_fence(no, Purpose::End { cause: "gone", by: None, gc: None });
        }
    }

    /// One read of the API server: a held lease whose pod is missing twice in a row ends.
    pub(super) fn on_pods(&mut self, now: Ms, pods: &[PodRef]) {
        let held: Vec<LeaseNo> = self.held_leases().map(|(no, _)| no).collect();
        for no in held {
            let Some(lease) = self.leases.get_mut(no) else { continue };
            let listed = pods.iter().any(|p| {
                p.same_name(&lease.pod) && (p.uid.is_empty() || lease.pod.uid.is_empty() || p.uid == lease.pod.uid)
            });
            lease.unlisted = if listed { 0 } else { lease.unlisted.saturating_add(1) };
            if lease.unlisted >= 2 && lease.fencing.is_none() && lease.fence_after <= now {
                self.start_fence(no, Purpose::End { cause: "gone", by: None, gc: None });
            }
        }
    }

    // ---- GC ----

    pub(super) fn on_gc(&mut self, now: Ms, call: CallId, network: &str, valid: &[Key]) {
        let valid: std::collections::BTreeSet<&Key> = valid.iter().collect();
        let before = self.tombs.len();
        self.tombs.retain(|key, _| key.network != network || valid.contains(key));
        if self.tombs.len() != before {
            self.dirty();
        }
        let id = self.ticket();
        let gone: Vec<LeaseNo> = self
            .leases
            .iter()
            .filter(|l| l.key.network == network && !valid.contains(&l.key) && l.fencing.is_none())
            .filter(|l| !matches!(l.phase, Phase::Committing { .. }))
            .map(|l| l.no)
            .collect();
        self.collecting.push(Collecting { id, call, open: gone.len(), released: 0 });
        for no in gone {
            self.start_fence(no, Purpose::End { cause: "gc", by: None, gc: Some(id) });
        }
        self.finish_gc(now, id);
    }

    fn finish_gc(&mut self, _now: Ms, id: u64) {
        let Some(i) = self.collecting.iter().position(|c| c.id == id && c.open == 0) else { return };
        let done = self.collecting.remove(i);
        self.after_commit(Ack::Ended(done.call, Reply::Collected { released: done.released }));
    }

    // ---- fences ----

    pub(super) fn start_fence(&mut self, no: LeaseNo, purpose: Purpose) -> u64 {
        let ticket = self.ticket();
        if let Some(lease) = self.leases.get_mut(no) {
            lease.fencing = Some(ticket);
            let addresses = lease.addresses.iter().map(|a| a.addr()).collect();
            let target = lease.target();
            self.fences.insert(ticket, FenceJob { lease: no, addresses, purpose });
            self.out.push(Effect::Fence { ticket, target });
        }
        ticket
    }

    pub(super) fn on_fenced(&mut self, now: Ms, ticket: u64, error: Option<String>, policies: &mut dyn Policies) {
        let Some(job) = self.fences.remove(&ticket) else { return };
        self.supply += 1;
        let present = match self.leases.get_mut(job.lease) {
            Some(lease) => {
                lease.fencing = None;
                if error.is_some() {
                    lease.fence_after = now + AGAIN;
                }
                Some(lease.key.clone())
            }
            None => None,
        };
        if let (Some(why), Some(key)) = (&error, &present) {
            let note = Note::Network { key: key.clone(), why: format!("fence: {why}") };
            self.note(note);
        }
        let done = error.is_none() && present.is_some();
        match job.purpose {
            Purpose::TakeOver { wait } if done => self.take_over(now, job.lease, wait),
            Purpose::TakeOver { .. } => {}
            Purpose::End { cause, by, gc } => {
                if done {
                    self.end_fenced(now, job.lease, cause, by, policies);
                }
                if let Some(c) = self.collecting.iter_mut().find(|c| Some(c.id) == gc) {
                    c.open -= 1;
                    c.released += u32::from(done);
                }
                if let Some(id) = gc {
                    self.finish_gc(now, id);
                }
            }
        }
        self.wait_fenced(now, ticket, &job.addresses, error.as_deref());
    }

    fn end_fenced(&mut self, now: Ms, no: LeaseNo, cause: &str, by: Option<String>, policies: &mut dyn Policies) {
        let superseded = by.is_some();
        let Some(lease) = self.end_lease(now, no, cause, superseded, true, policies) else { return };
        if let Some(by) = by {
            let tomb = Tombstone { key: lease.key.clone(), by, since: now, netns: lease.netns.clone() };
            self.tombs.insert(lease.key, tomb);
        }
    }

    // ---- tombstones ----

    /// A tombstone of more than a day is asked after once an hour; it goes when its namespace is gone.
    pub(super) fn end_tombs(&mut self, now: Ms) {
        if now < self.tombs_checked + 3_600_000 {
            return;
        }
        self.tombs_checked = now;
        let targets: Vec<NetTarget> = self
            .tombs
            .values()
            .filter(|t| now >= t.since + self.cfg.tombstone)
            .map(|t| NetTarget {
                key: t.key.clone(),
                host_ifname: String::new(),
                addresses: Vec::new(),
                netns: t.netns.clone(),
            })
            .collect();
        if !targets.is_empty() {
            self.out.push(Effect::CheckAlive { targets });
        }
    }
}
