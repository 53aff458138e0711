//! How a pod gets its address: known sandbox → same answer; else offer, policy, guard, fence if it is a take-over,
//! commit, reply. What cannot be served now waits until its deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;

use super::commit::Ack;
use super::{Node, end::Purpose};
use crate::addr::{self, Addr};
use crate::cloud::ErrorKind;
use crate::event::{Add, AddError, CallId, Effect, GivenAddress, Key, Ms, Note, Range, RangeSets, Reply};
use crate::guard::{self, Breach};
use crate::ids;
use crate::lease::{Lease, LeasedAddress, Phase, Tombstone};
use crate::policy::{AllocateCall, Choice, Given, Pod, Policies, Request, RowSet, Slot, Snapshot, Verdict, row_marks};
use crate::pool::{Asker, LeaseNo, Offer, Place, State, owner_hash};

/// Answers of one policy call that the guard may refuse before the ADD waits for a change.
const MAX_ATTEMPTS: u32 = 3;

/// Where a waiting ADD is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Asks whenever something changed.
    Asking,
    /// Waits to hear whether the old sandbox of its pod lives.
    Liveness(LeaseNo),
    /// Waits for a fence.
    Fence(u64),
}

/// One ADD without an answer.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    calls: Vec<CallId>,
    add: Add,
    since: Ms,
    stage: Stage,
    attempt: u32,
    refused: BTreeSet<Addr>,
    hold_until: Option<Ms>,
    said: Option<String>,
    fence_error: Option<String>,
    alive: BTreeMap<LeaseNo, bool>,
    tried_at: Option<u64>,
}

/// All ADDs without an answer, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Waits {
    all: BTreeMap<u64, Wait>,
    by_key: HashMap<Key, u64>,
    next: u64,
}

impl Waits {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
    pub(super) fn remove(&mut self, id: u64) -> Option<Wait> {
        let wait = self.all.remove(&id)?;
        self.by_key.remove(&wait.add.key);
        Some(wait)
    }
    pub(super) fn remove_key(&mut self, key: &Key) -> Option<Vec<CallId>> {
        let id = self.by_key.get(key).copied()?;
        self.remove(id).map(|w| w.calls)
    }
    pub(super) fn next_wake(&self) -> Option<Ms> {
        self.all.values().map(|w| w.hold_until.unwrap_or(Ms::MAX).min(w.add.deadline)).min()
    }
    /// ADDs that want an address of the VPC's pool, and since when the oldest does.
    pub(super) fn vpc_demand(&self) -> (u64, Option<Ms>) {
        let mut asking = self.all.values().filter(|w| w.add.ranges.is_none() && w.stage == Stage::Asking);
        let first = asking.next().map(|w| w.since);
        (asking.count() as u64 + u64::from(first.is_some()), first)
    }
}

/// What one set of an ADD is to get.
struct Pick {
    pool: usize,
    set: u8,
    addr: Addr,
    held: Option<LeaseNo>,
}

/// How one question to the policy ended.
enum Asked {
    Picked(Pick),
    /// Nothing suits now.
    Wait,
    /// The ADD is answered.
    Over,
}

impl Node {
    pub(super) fn on_add(&mut self, now: Ms, call: CallId, add: Add) {
        if let Some(tomb) = self.tombs.get(&add.key) {
            let error = AddError::Superseded { by: tomb.by.clone() };
            return self.refuse(now, &[call], &error);
        }
        if let Some(no) = self.leases.find(&add.key).map(|l| l.no) {
            return self.repeat(now, call, &add, no);
        }
        if let Some(wait) = self.waits.by_key.get(&add.key).and_then(|id| self.waits.all.get_mut(id)) {
            wait.calls.push(call);
            wait.add.deadline = wait.add.deadline.max(add.deadline);
            return;
        }
        if let Err(why) = self.accept_ranges(&add) {
            return self.refuse(now, &[call], &AddError::Invalid { why });
        }
        self.window.adds.push_back(now);
        self.sizing.touch(now);
        self.waits.next += 1;
        let id = self.waits.next;
        self.waits.by_key.insert(add.key.clone(), id);
        self.waits.all.insert(
            id,
            Wait {
                calls: vec![call],
                add,
                since: now,
                stage: Stage::Asking,
                attempt: 0,
                refused: BTreeSet::new(),
                hold_until: None,
                said: None,
                fence_error: None,
                alive: BTreeMap::new(),
                tried_at: None,
            },
        );
    }

    /// A repeated ADD of a known sandbox: the same answer, and no policy asked.
    fn repeat(&mut self, now: Ms, call: CallId, add: &Add, no: LeaseNo) {
        let Some(lease) = self.leases.get_mut(no) else { return };
        let reply = Reply::Added { addresses: lease.given(), host_ifname: lease.host_ifname.clone() };
        match &mut lease.phase {
            Phase::Committing { calls, .. } => calls.push(call),
            Phase::Active => self.reply(call, reply),
            Phase::Held { .. } if lease.fencing.is_some() => {
                let error = AddError::Growing { what: "this sandbox is being fenced".into() };
                self.refuse(now, &[call], &error);
            }
            Phase::Held { .. } => {
                // The sandbox that was taken for dead asks for itself again: it is its own.
                lease.phase = Phase::Active;
                if add.netns.is_some() {
                    lease.netns = add.netns.clone();
                }
                self.set_lease_state(no);
                self.after_commit(Ack::Add(call, reply));
            }
        }
    }

    pub(super) fn on_cancel(&mut self, now: Ms, call: CallId) {
        if let Some(id) = self.waits.all.iter().find(|(_, w)| w.calls.contains(&call)).map(|(id, _)| *id) {
            let empty = self.waits.all.get_mut(&id).is_some_and(|w| {
                w.calls.retain(|c| *c != call);
                w.calls.is_empty()
            });
            if empty {
                self.waits.remove(id);
            }
            return;
        }
        let committing = self.leases.iter().find_map(|l| match &l.phase {
            Phase::Committing { calls, .. } if calls.contains(&call) => Some((l.no, calls.len())),
            _ => None,
        });
        match committing {
            Some((no, 1)) => {
                self.undo_lease(no);
                self.sizing.touch(now);
            }
            Some((no, _)) => {
                if let Some(Phase::Committing { calls, .. }) = self.leases.get_mut(no).map(|l| &mut l.phase) {
                    calls.retain(|c| *c != call);
                }
            }
            None => {}
        }
    }

    /// Makes or changes the pools of a range network as its configuration says now.
    fn accept_ranges(&mut self, add: &Add) -> Result<(), String> {
        let Some(sets) = &add.ranges else { return Ok(()) };
        if add.key.network == self.cfg.network {
            return Err(format!("network {} is the VPC's; a network with ranges needs another name", add.key.network));
        }
        if sets.is_empty() || sets.len() > 255 || sets.iter().any(Vec::is_empty) {
            return Err("ranges needs at least one range in each set".into());
        }
        if self.ranges.get(&add.key.network) != Some(sets) {
            check_sets(sets)?;
            self.put_ranges(&add.key.network, sets);
            self.dirty();
        }
        let all: Vec<&Range> = sets.iter().flatten().collect();
        for asked in &add.requested {
            if !all
                .iter()
                .any(|r| r.start <= *asked && *asked <= r.end && addr::family(r.start) == addr::family(*asked))
            {
                return Err(format!("the requested address {asked} is in no range of network {}", add.key.network));
            }
        }
        Ok(())
    }

    /// Brings the pools of a network in line with its ranges; what is in use in ranges that went is kept, not offered.
    pub(super) fn put_ranges(&mut self, network: &str, sets: &RangeSets) {
        self.ranges.insert(network.into(), sets.clone());
        for (i, ranges) in sets.iter().enumerate() {
            let family = ranges.first().map_or(4, |r| addr::family(r.start));
            let pool = self.pool_index(network, i as u8, true, family);
            let wanted: BTreeSet<(Addr, Addr)> =
                ranges.iter().map(|r| (addr::number(r.start), addr::number(r.end))).collect();
            let stale: Vec<_> = self.pools[pool]
                .blocks()
                .filter(|(_, b)| !wanted.contains(&(b.first, b.last)))
                .map(|(no, b)| (no, b.tally.idle()))
                .collect();
            for (no, idle) in stale {
                if idle {
                    self.pools[pool].remove_block(no);
                } else if let Some(block) = self.pools[pool].block_mut(no) {
                    block.draining = true;
                }
            }
            for r in ranges {
                let gateway = r.gateway.map(addr::number);
                self.pools[pool].add_block(
                    None,
                    addr::number(r.subnet.network()),
                    r.subnet.prefix_len(),
                    addr::number(r.start),
                    addr::number(r.end),
                    gateway.into_iter().collect(),
                    gateway,
                );
            }
            self.unpark(pool);
        }
        self.supply += 1;
    }

    /// Tries every waiting ADD for which something may have changed.
    pub(super) fn serve_waiting(&mut self, now: Ms, policies: &mut dyn Policies) {
        let ids: Vec<u64> = self.waits.all.keys().copied().collect();
        for id in ids {
            let supply = self.supply;
            let Some(wait) = self.waits.all.get_mut(&id) else { continue };
            let held_back = wait.hold_until.is_some_and(|at| now < at) && wait.tried_at == Some(supply);
            let nothing_new = wait.hold_until.is_none() && wait.tried_at == Some(supply);
            if wait.stage != Stage::Asking || held_back || nothing_new {
                continue;
            }
            wait.tried_at = Some(supply);
            wait.hold_until = None;
            self.try_assign(now, id, policies);
        }
    }

    fn try_assign(&mut self, now: Ms, id: u64, policies: &mut dyn Policies) {
        let Some(wait) = self.waits.all.get(&id).cloned() else { return };
        if wait.add.ranges.is_none() && !self.started {
            return;
        }
        let Some(held) = self.settle_older(now, id, &wait) else { return };
        let sets = wait.add.ranges.as_ref().map_or(1, Vec::len);
        let mut picks: Vec<Pick> = Vec::with_capacity(sets);
        for set in 0..sets as u8 {
            let Some(pool) = self.find_pool(&wait.add.key.network, set, wait.add.ranges.is_some()) else { return };
            match self.ask(now, id, &wait, pool, set, &held, policies) {
                Asked::Picked(pick) => picks.push(pick),
                Asked::Wait | Asked::Over => return,
            }
        }
        self.finish_picks(now, id, &wait, picks, &held);
    }

    /// Deals with other leases of the same pod and interface (design §2, take-over). `None`: the ADD has to wait for
    /// an answer first. Else the held leases it may take over.
    fn settle_older(&mut self, now: Ms, id: u64, wait: &Wait) -> Option<BTreeSet<LeaseNo>> {
        let mut held = BTreeSet::new();
        for no in self.leases.of_pod(&wait.add.key.network, &wait.add.pod, &wait.add.key.ifname) {
            let Some(lease) = self.leases.get(no) else { continue };
            if lease.fencing.is_some() || matches!(lease.phase, Phase::Committing { .. }) {
                // Its end, or its commit, changes the supply and brings us back.
                return None;
            }
            if lease.held() {
                held.insert(no);
            } else if lease.pod.same_uid(&wait.add.pod) {
                self.make_held(now, no, true);
                held.insert(no);
            } else {
                match wait.alive.get(&no) {
                    None => {
                        let target = lease.target();
                        self.set_stage(id, Stage::Liveness(no));
                        self.out.push(Effect::CheckAlive { targets: vec![target] });
                        return None;
                    }
                    Some(false) => {
                        self.make_held(now, no, false);
                        held.insert(no);
                    }
                    Some(true) => {
                        let by = wait.add.key.container_id.clone();
                        let ticket = self.start_fence(no, Purpose::End { cause: "superseded", by: Some(by), gc: None });
                        self.set_stage(id, Stage::Fence(ticket));
                        return None;
                    }
                }
            }
        }
        Some(held)
    }

    fn set_stage(&mut self, id: u64, stage: Stage) {
        if let Some(wait) = self.waits.all.get_mut(&id) {
            wait.stage = stage;
        }
    }

    /// A check of an old sandbox came back.
    pub(super) fn wait_heard(&mut self, no: LeaseNo, alive: bool) {
        for wait in self.waits.all.values_mut().filter(|w| w.stage == Stage::Liveness(no)) {
            wait.alive.insert(no, alive);
            wait.stage = Stage::Asking;
            wait.tried_at = None;
        }
    }

    /// A fence came back: ADDs that waited for it go on.
    pub(super) fn wait_fenced(&mut self, now: Ms, ticket: u64, addresses: &[Addr], error: Option<&str>) {
        for wait in self.waits.all.values_mut().filter(|w| w.stage == Stage::Fence(ticket)) {
            wait.stage = Stage::Asking;
            wait.tried_at = None;
            if let Some(why) = error {
                wait.attempt += 1;
                wait.refused.extend(addresses);
                wait.fence_error = Some(why.into());
                wait.hold_until = Some(now + 1_000);
                wait.tried_at = Some(self.supply);
                wait.alive.clear();
            }
        }
    }

    // ---- the question ----

    #[allow(clippy::too_many_arguments)]
    fn ask(
        &mut self,
        now: Ms,
        id: u64,
        wait: &Wait,
        pool: usize,
        set: u8,
        held: &BTreeSet<LeaseNo>,
        policies: &mut dyn Policies,
    ) -> Asked {
        let asker = self.asker(now, wait, pool, held);
        if !self.pools[pool].could_serve(&asker) {
            return Asked::Wait;
        }
        let mut offer = self.offer_to(pool, set, &asker);
        if offer.addrs.is_empty() {
            return Asked::Wait;
        }
        let mut call = self.allocate_call(now, wait, pool, set, &mut offer);
        let mut native = false;
        for _ in 0..MAX_ATTEMPTS {
            call.request.attempt = self.waits.all.get(&id).map_or(0, |w| w.attempt);
            let answer = policies.allocate(&call, native);
            match self.judge(now, wait, pool, set, &asker, (&offer.addrs, &call.pool.rows), &answer.answer.choice) {
                Ok(Judged::Assign(pick)) => {
                    policies.verdict(Slot::Allocator, answer.decision, Verdict::Accepted);
                    return Asked::Picked(pick);
                }
                Ok(Judged::Hold(ms)) => {
                    policies.verdict(Slot::Allocator, answer.decision, Verdict::Accepted);
                    if let Some(w) = self.waits.all.get_mut(&id) {
                        w.hold_until = Some(now + ms);
                        w.said = Some(answer.answer.reason);
                    }
                    return Asked::Wait;
                }
                Ok(Judged::Reject) => {
                    policies.verdict(Slot::Allocator, answer.decision, Verdict::Accepted);
                    let error = AddError::PolicyRejected { reason: answer.answer.reason };
                    if let Some(w) = self.waits.remove(id) {
                        self.refuse(now, &w.calls, &error);
                    }
                    return Asked::Over;
                }
                Err(breach) => {
                    self.breach(&breach);
                    let refused = Verdict::Refused { guard: breach.guard, why: breach.why.clone() };
                    policies.verdict(Slot::Allocator, answer.decision, refused);
                    if let Some(w) = self.waits.all.get_mut(&id) {
                        w.attempt += 1;
                        w.said = Some(breach.why);
                    }
                    native = true;
                }
            }
        }
        Asked::Wait
    }

    fn asker(&self, now: Ms, wait: &Wait, pool: usize, held: &BTreeSet<LeaseNo>) -> Asker {
        let family = self.pools[pool].family;
        let range = self.pools[pool].range;
        Asker {
            owner: owner_hash(&wait.add.pod, &wait.add.key.ifname),
            requested: wait
                .add
                .requested
                .iter()
                .filter(|ip| addr::family(**ip) == family)
                .map(|ip| addr::number(*ip))
                .filter(|a| !range || self.pools[pool].place(*a).is_some())
                .collect(),
            refused: wait.refused.clone(),
            reserved_of_others: self.cfg.offer_reserved && (range || !self.growth_possible(now)),
            own_cooling: self.cfg.reuse_own_cooling,
            held: held.clone(),
        }
    }

    fn offer_to(&mut self, pool: usize, set: u8, asker: &Asker) -> Offer {
        let mut offer = self.pools[pool].offer(Some(asker));
        let rows: Vec<(Addr, Ms, Ms, u64)> = asker
            .held
            .iter()
            .filter_map(|no| self.leases.get(*no))
            .flat_map(|l| {
                let until = self.held_until(l);
                let key = l.owner().pod_key();
                l.addresses.iter().filter(move |a| a.set == set).map(move |a| (a.addr(), l.assigned_at, until, key))
            })
            .filter(|row| !asker.refused.contains(&row.0))
            .collect();
        self.pools[pool].offer_held(&mut offer, &rows);
        if !self.carried.is_empty() {
            self.drop_carried(pool, &mut offer);
        }
        offer
    }

    /// Free addresses that the host's own links, routes or rules carry belong to somebody we do not know: not offered.
    fn drop_carried(&self, pool: usize, offer: &mut Offer) {
        let family = self.pools[pool].family;
        let keep: Vec<bool> = (0..offer.addrs.len())
            .map(|i| {
                let own = row_marks::HELD_OWN | row_marks::COOLING_OWN | row_marks::RESERVED_OWN;
                offer.rows.marks[i] & own != 0 || !self.carried.contains(&addr::ip(family, offer.addrs[i]))
            })
            .collect();
        if keep.iter().all(|k| *k) {
            return;
        }
        fn sift<T: Clone>(column: &mut Vec<T>, keep: &[bool]) {
            *column = column.iter().zip(keep).filter(|(_, k)| **k).map(|(v, _)| v.clone()).collect();
        }
        let rows = &mut offer.rows;
        sift(&mut rows.address_hi, &keep);
        sift(&mut rows.address_lo, &keep);
        sift(&mut rows.eni, &keep);
        sift(&mut rows.block, &keep);
        sift(&mut rows.marks, &keep);
        sift(&mut rows.free_since_ms, &keep);
        sift(&mut rows.until_ms, &keep);
        sift(&mut rows.last_pod_key, &keep);
        sift(&mut offer.addrs, &keep);
    }

    /// The pool as a policy sees it. The offer's columns move into it; their addresses stay with the offer.
    pub(super) fn snapshot(&self, now: Ms, pool: usize, offer: &mut Offer) -> Snapshot {
        Snapshot {
            pool: self.pool_info(pool, now),
            limits: self.limits(),
            counts: self.counts(pool),
            enis: self.pools[pool].eni_views(&self.cfg.subnets),
            blocks: self.pools[pool].block_views(),
            rows: std::mem::take(&mut offer.rows),
            rows_left_out: offer.left_out,
        }
    }

    fn allocate_call(&self, now: Ms, wait: &Wait, pool: usize, set: u8, offer: &mut Offer) -> AllocateCall {
        let add = &wait.add;
        let sandbox = ids::sandbox_number(&add.key.network, &add.key.container_id);
        AllocateCall {
            request: Request {
                sandbox,
                ifname: add.key.ifname.clone(),
                index: set,
                pod: policy_pod(&add.pod),
                attempt: wait.attempt,
                deadline_ms: add.deadline,
            },
            given: Given {
                now_ms: now,
                seed: ids::fnv64(&[&sandbox.to_le_bytes(), add.key.ifname.as_bytes(), &[set]]),
                ..Given::default()
            },
            pool: self.snapshot(now, pool, offer),
        }
    }

    /// The guard's word on an allocation answer.
    #[allow(clippy::too_many_arguments)]
    fn judge(
        &self,
        now: Ms,
        wait: &Wait,
        pool: usize,
        set: u8,
        asker: &Asker,
        (addrs, rows): (&[Addr], &RowSet),
        choice: &Choice,
    ) -> Result<Judged, Breach> {
        let row = match choice {
            Choice::Assign(row) => *row,
            Choice::Hold(ms) => {
                guard::g15_hold(now, wait.since, wait.add.deadline)?;
                let left = wait.add.deadline.saturating_sub(now).max(1);
                let half = (wait.since + (wait.add.deadline.saturating_sub(wait.since)) / 2).saturating_sub(now);
                return Ok(Judged::Hold(Ms::from(*ms).clamp(1, left).min(half.max(1))));
            }
            Choice::Reject if self.cfg.allow_reject => return Ok(Judged::Reject),
            Choice::Reject => {
                return Err(Breach { guard: 15, why: "reject is not allowed on this node".into() });
            }
        };
        let chosen = guard::g1_offered(row, addrs)?;
        let p = &self.pools[pool];
        let (state, place) = (p.state(chosen), p.place(chosen));
        let held = match state {
            Some(State::Held(no)) if asker.held.contains(no) => Some(*no),
            _ => None,
        };
        guard::g1_assignable(state, place.is_some(), held.is_some())?;
        guard::g2_single(state, held)?;
        let marks = rows.marks[row as usize];
        guard::g3_own(state, marks, asker.owner, self.cfg.reuse_own_cooling, held.is_some())?;
        guard::g4_source(place.is_some_and(|pl: Place| p.offers(pl)), held.is_some())?;
        Ok(Judged::Assign(Pick { pool, set, addr: chosen, held }))
    }

    // ---- what follows a pick ----

    fn finish_picks(&mut self, now: Ms, id: u64, wait: &Wait, picks: Vec<Pick>, held: &BTreeSet<LeaseNo>) {
        let mut from: BTreeSet<Option<LeaseNo>> = picks.iter().map(|p| p.held).collect();
        if from.len() == 1
            && let Some(Some(no)) = from.pop_first()
        {
            let whole = self.leases.get(no).is_some_and(|l| l.addresses.len() == picks.len());
            if whole {
                let ticket = self.start_fence(no, Purpose::TakeOver { wait: id });
                return self.set_stage(id, Stage::Fence(ticket));
            }
        }
        if picks.iter().any(|p| p.held.is_some()) {
            // Part of a held lease only: addresses of one key move together, so it ends and the ADD asks again.
            if let Some(w) = self.waits.all.get_mut(&id) {
                w.refused.extend(picks.iter().filter(|p| p.held.is_some()).map(|p| p.addr));
                w.tried_at = None;
                w.hold_until = Some(now + 1);
            }
        }
        // The policy passed over what was held for the pod: that ends like a DEL, after its fence.
        for no in held {
            self.start_fence(
                *no,
                Purpose::End { cause: "superseded", by: Some(wait.add.key.container_id.clone()), gc: None },
            );
        }
        if picks.iter().all(|p| p.held.is_none()) {
            self.make_lease(now, id, wait, &picks);
        }
    }

    fn make_lease(&mut self, now: Ms, id: u64, wait: &Wait, picks: &[Pick]) {
        let Some(wait_now) = self.waits.remove(id) else { return };
        let no = self.leases.number();
        let before = picks.iter().map(|p| self.pools[p.pool].state(p.addr).cloned()).collect();
        let addresses = picks.iter().map(|p| self.leased_address(p.pool, p.set, p.addr)).collect();
        for p in picks {
            self.pools[p.pool].set(p.addr, Some(State::Leased(no)));
        }
        self.add_lease(now, no, &wait.add, addresses, wait_now.calls, before, None);
    }

    #[allow(clippy::too_many_arguments)]
    fn add_lease(
        &mut self,
        now: Ms,
        no: LeaseNo,
        add: &Add,
        addresses: Vec<LeasedAddress>,
        calls: Vec<CallId>,
        before: Vec<Option<State>>,
        from: Option<Box<Lease>>,
    ) {
        let seq = self.commit_seq();
        self.leases.insert(Lease {
            no,
            key: add.key.clone(),
            pod: add.pod.clone(),
            netns: add.netns.clone(),
            host_ifname: add.host_ifname.clone(),
            addresses,
            assigned_at: now,
            wall_ns: 0,
            phase: Phase::Committing { seq, calls, before, from },
            fencing: None,
            fence_after: 0,
            unlisted: 0,
            orphan: false,
            migrated: false,
        });
        self.sizing.touch(now);
        self.after_commit(Ack::Lease(no));
    }

    fn leased_address(&self, pool: usize, set: u8, chosen: Addr) -> LeasedAddress {
        let p = &self.pools[pool];
        let ip = addr::ip(p.family, chosen);
        let place = p.place(chosen);
        let eni = place.and_then(|pl| p.eni_of(pl)).and_then(|no| p.eni(no));
        let block = match place {
            Some(Place::Block(no)) if p.range => p.block(no),
            _ => None,
        };
        let full = if p.family == 4 { 32 } else { 128 };
        let length = block.map_or(full, |b| b.length);
        LeasedAddress {
            given: GivenAddress {
                address: IpNet::new(ip, length).unwrap_or_else(|_| IpNet::from(ip)),
                index: set,
                eni: eni.map(|e| e.facts.id.clone()).unwrap_or_default(),
                device: eni.and_then(|e| e.facts.device).unwrap_or(0),
                table: eni.map_or(254, |e| e.table()),
                gateway: block.and_then(|b| b.gateway).map(|g| addr::ip(p.family, g)),
            },
            set,
        }
    }

    /// The fence of a take-over is done: the lease moves in one checkpoint, and the old key becomes a tombstone.
    pub(super) fn take_over(&mut self, now: Ms, no: LeaseNo, wait_id: u64) {
        let Some(wait) = self.waits.all.get(&wait_id).cloned() else { return };
        let Some(old) = self.leases.remove(no) else { return };
        let new = self.leases.number();
        self.waits.remove(wait_id);
        let network = old.key.network.clone();
        let mut before = Vec::new();
        for a in &old.addresses {
            before.push(self.pool_of(&network, a.set).and_then(|i| self.pools[i].state(a.addr()).cloned()));
            self.lease_set_state(&network, a.set, a.addr(), Some(State::Leased(new)));
        }
        self.tombs.insert(
            old.key.clone(),
            Tombstone {
                key: old.key.clone(),
                by: wait.add.key.container_id.clone(),
                since: now,
                netns: old.netns.clone(),
            },
        );
        let addresses = old.addresses.clone();
        self.add_lease(now, new, &wait.add, addresses, wait.calls, before, Some(Box::new(old)));
    }

    // ---- what does not get one ----

    pub(super) fn expire_waiting(&mut self, now: Ms) {
        let over: Vec<u64> = self.waits.all.iter().filter(|(_, w)| w.add.deadline <= now).map(|(id, _)| *id).collect();
        for id in over {
            let Some(wait) = self.waits.remove(id) else { continue };
            let error = self.explain(now, &wait);
            self.refuse(now, &wait.calls, &error);
            self.sizing.touch(now);
        }
    }

    fn explain(&self, now: Ms, wait: &Wait) -> AddError {
        if wait.add.ranges.is_none() && !self.started {
            return AddError::Starting { what: "EC2 has not listed this instance's interfaces yet".into() };
        }
        if let Some(why) = &wait.fence_error {
            return AddError::NotFenced { pod: wait.add.pod.clone(), why: why.clone() };
        }
        if let Some(reason) = wait.said.as_ref().filter(|_| wait.hold_until.is_some()) {
            return AddError::PolicyRejected { reason: reason.clone() };
        }
        if let Some(ip) = wait.add.requested.first() {
            return AddError::Invalid { why: format!("the requested address {ip} is not free on this node") };
        }
        match &wait.add.ranges {
            None => self.explain_shortage(now),
            Some(sets) => {
                let empty = (0..sets.len() as u8)
                    .filter_map(|set| self.find_pool(&wait.add.key.network, set, true))
                    .find(|i| self.pools[*i].assignable() == 0);
                self.explain_pool(empty.unwrap_or(0))
            }
        }
    }

    /// Why the VPC's pool has nothing to give, the most useful reason first.
    pub(super) fn explain_shortage(&self, now: Ms) -> AddError {
        if let Some((op, kind, until)) = self.growth_in_trouble() {
            return match kind {
                ErrorKind::Throttled => AddError::Throttled { op: op.into(), until },
                kind => AddError::Cloud { op: op.into(), code: kind.code().into(), until },
            };
        }
        if self.assigning() == 0
            && let Some(error) = self.barrier_error()
        {
            return error;
        }
        if self.growth_possible(now) {
            let (waiting, _) = self.waits.vpc_demand();
            let what = format!("{} addresses are being asked for from EC2, {waiting} pods wait", self.assigning());
            return AddError::Growing { what };
        }
        self.explain_pool(0)
    }

    fn explain_pool(&self, i: usize) -> AddError {
        let pool = &self.pools[i];
        let counts = pool.counts();
        let of_pool = |l: &&Lease| l.addresses.iter().any(|a| self.pool_of(&l.key.network, a.set) == Some(i));
        let first_held = self.leases.iter().filter(|l| l.held()).filter(of_pool).min_by_key(|l| self.held_until(l));
        if let Some(lease) = first_held {
            return AddError::Held { count: counts.held, pod: lease.pod.clone(), until: self.held_until(lease) };
        }
        if let Some(until) = pool.first_cooling_end() {
            return AddError::Cooling { count: counts.cooling, until };
        }
        let limit = if pool.range {
            format!("the ranges of network {}", pool.network)
        } else {
            format!(
                "{} ({} interfaces, {} addresses each)",
                self.cfg.instance_type, self.cfg.max_enis, self.cfg.slots_per_eni
            )
        };
        AddError::Exhausted { total: counts.total, limit }
    }

    pub(super) fn note_held(&mut self, no: LeaseNo) {
        if let Some(lease) = self.leases.get(no) {
            let note = Note::Held { key: lease.key.clone(), pod: lease.pod.clone() };
            self.note(note);
        }
    }
}

enum Judged {
    Assign(Pick),
    Hold(Ms),
    Reject,
}

/// A pod as a policy sees it when the API server told us nothing.
pub(super) fn policy_pod(pod: &crate::event::PodRef) -> Pod {
    Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        key: ids::pod_key(&pod.namespace, &pod.name),
        ..Pod::default()
    }
}

/// Ranges of one network must not overlap, and a set is of one family.
fn check_sets(sets: &RangeSets) -> Result<(), String> {
    let mut all: Vec<(u8, Addr, Addr)> = Vec::new();
    for set in sets {
        for r in set {
            let (f, start, end) = (addr::family(r.start), addr::number(r.start), addr::number(r.end));
            if f != addr::family(r.end) || f != addr::family(set[0].start) {
                return Err("a set of ranges must be of one address family".into());
            }
            if end < start || !r.subnet.contains(&r.start) || !r.subnet.contains(&r.end) {
                return Err(format!("range {}-{} is empty or not inside {}", r.start, r.end, r.subnet));
            }
            if let Some(other) = all.iter().find(|o| o.0 == f && o.1 <= end && start <= o.2) {
                return Err(format!("ranges overlap at {}", addr::ip(f, other.1.max(start))));
            }
            all.push((f, start, end));
        }
    }
    Ok(())
}
