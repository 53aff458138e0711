//! To the saved state and back.
//!
//! What has a history but no source yet (interfaces come with the first inventory) is parked, and takes its place when
//! its interface, prefix or range appears. A lease without a source is an orphan: kept while it lives, and shown.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::Node;
use super::cloud::{AttachCall, Kind, Op, Step};
use super::commit::Ack;
use super::end::{MIGRATED_NETWORK, Tearing};
use crate::addr;
use crate::aws::{Allocation, AllocationMetadata, AwsFile, encode_allocation, encode_file};
use crate::cloud::{AttachState, EniFacts};
use crate::config::Config;
use crate::event::{GivenAddress, Key, Ms, Note, PodRef};
use crate::lease::{Lease, LeasedAddress, Phase};
use crate::pool::{LeaseNo, Owner, Stage, State};
use crate::saved::{
    Encoded, SCHEMA, Saved, SavedAddress, SavedHeld, SavedIntent, SavedLease, SavedState, SavedTearing, Stamp,
};

/// What waits for its source, and what a newer version wrote.
#[derive(Debug, Default)]
pub(super) struct Parked {
    addresses: Vec<SavedAddress>,
    intents: Vec<SavedIntent>,
    /// Leases with an address outside every source.
    loose: bool,
    other: serde_json::Map<String, serde_json::Value>,
    /// Encoded leases.
    encoded: BTreeMap<LeaseNo, EncodedLease>,
}

/// *Held* since when it was encoded, bytes for state.json, bytes for ipam.json.
type EncodedLease = (Option<Ms>, Vec<u8>, Vec<u8>);

impl Node {
    /// A node that goes on from a saved state; without one, a fresh node.
    pub fn new(cfg: Config, now: Ms, saved: Option<Saved>) -> Node {
        let mut node = Node::empty(cfg, now);
        if let Some(saved) = saved {
            node.restore(now, saved);
        }
        node
    }

    /// Whether it began without any saved state and nothing happened since: a record of it begins with none either.
    pub fn pristine(&self) -> bool {
        self.nothing_to_write() && self.leases.is_empty()
    }

    fn restore(&mut self, now: Ms, saved: Saved) {
        self.parked.other = saved.other;
        self.memo = saved.memo;
        for (network, sets) in &saved.networks {
            self.put_ranges(network, sets);
        }
        for lease in saved.leases {
            self.restore_lease(lease);
        }
        for tomb in saved.tombstones {
            self.tombs.insert(tomb.key.clone(), tomb);
        }
        for t in saved.tearing {
            let ticket = self.ticket();
            let addresses =
                t.target.addresses.iter().zip(&t.sets).map(|(a, s)| (*s, addr::number(a.address.addr()))).collect();
            self.tearing.insert(ticket, Tearing { target: t.target, addresses, again_at: Some(now) });
        }
        for intent in &saved.intents {
            let number = match intent {
                SavedIntent::Create { number, .. }
                | SavedIntent::Attach { number, .. }
                | SavedIntent::Grow { number, .. }
                | SavedIntent::Release { number, .. }
                | SavedIntent::Detach { number, .. } => *number,
            };
            self.cloud.skip_numbers(number);
        }
        self.parked.intents = saved.intents;
        self.parked.addresses = saved.addresses;
        self.parked.loose = true;
        for pool in 0..self.pools.len() {
            self.unpark(pool);
        }
        self.dirty();
    }

    fn restore_lease(&mut self, saved: SavedLease) {
        let no = self.leases.number();
        let phase = match saved.held {
            Some(h) => Phase::Held { since: h.since, replaced: h.replaced },
            None => Phase::Active,
        };
        self.leases.insert(Lease {
            no,
            migrated: saved.migrated,
            key: saved.key,
            pod: saved.pod,
            netns: saved.netns,
            host_ifname: saved.host_ifname,
            addresses: saved.addresses,
            assigned_at: saved.assigned_at,
            wall_ns: saved.wall_ns,
            phase,
            fencing: None,
            fence_after: 0,
            unlisted: 0,
            orphan: false,
        });
    }

    /// The AWS daemon wrote its file since we last did: its allocations win (design §6). Ours that it lacks are judged
    /// by whether they live; held, cooling and reserved stay. `host_ifname` names the veth of a pod.
    pub fn merge_aws(&mut self, now: Ms, file: &AwsFile, host_ifname: &dyn Fn(&PodRef) -> String) {
        for a in &file.allocations {
            let Some(ip) = a.address() else { continue };
            let key =
                Key { network: a.network.clone(), container_id: a.container_id.clone(), ifname: a.ifname.clone() };
            let same = self.leases.find(&key).map(|l| (l.no, l.addresses.first().map(|x| x.given.address.addr())));
            match same {
                Some((no, Some(old))) if old == ip => {
                    if let Some(l) = self.leases.get_mut(no) {
                        l.phase = Phase::Active;
                    }
                    continue;
                }
                Some((no, _)) => self.drop_lease(no),
                None => {}
            }
            let other = self
                .leases
                .iter()
                .find(|l| {
                    self.pool_of(&l.key.network, 0) == Some(0)
                        && l.addresses.iter().any(|x| x.given.address.addr() == ip)
                })
                .map(|l| l.no);
            if let Some(no) = other {
                self.drop_lease(no);
            }
            self.parked.addresses.retain(|p| !(p.network.is_empty() && p.address == ip));
            let pod =
                PodRef { namespace: a.metadata.namespace.clone(), name: a.metadata.name.clone(), uid: String::new() };
            self.import(now, key, pod, ip, a.timestamp, host_ifname);
        }
        self.parked.loose = true;
        self.unpark(0);
        self.dirty();
    }

    fn import(
        &mut self,
        now: Ms,
        key: Key,
        pod: PodRef,
        ip: IpAddr,
        wall_ns: i64,
        host_ifname: &dyn Fn(&PodRef) -> String,
    ) {
        let no = self.leases.number();
        let host_ifname = if pod.name.is_empty() { String::new() } else { host_ifname(&pod) };
        self.leases.insert(Lease {
            no,
            migrated: key.network == MIGRATED_NETWORK,
            key,
            pod,
            netns: None,
            host_ifname,
            addresses: vec![LeasedAddress {
                given: GivenAddress {
                    address: IpNet::from(ip),
                    index: 0,
                    eni: String::new(),
                    device: 0,
                    table: 254,
                    gateway: None,
                },
                set: 0,
            }],
            assigned_at: now,
            wall_ns,
            phase: Phase::Active,
            fencing: None,
            fence_after: 0,
            unlisted: 0,
            orphan: false,
        });
    }

    fn drop_lease(&mut self, no: LeaseNo) {
        if let Some(lease) = self.leases.remove(no) {
            for a in &lease.addresses {
                self.lease_set_state(&lease.key.network, a.set, a.addr(), None);
            }
        }
    }

    /// Gives what was parked its place in a pool that has (again) a source for it.
    pub(super) fn unpark(&mut self, pool: usize) {
        if !self.parked.loose {
            return;
        }
        let mut left = Vec::new();
        for saved in std::mem::take(&mut self.parked.addresses) {
            let a = addr::number(saved.address);
            let home = if saved.network.is_empty() { Some(0) } else { self.find_pool(&saved.network, saved.set, true) };
            let unused = matches!(self.pools[pool].state(a), None | Some(State::Fresh));
            if home == Some(pool) && self.pools[pool].place(a).is_some() {
                if unused {
                    self.pools[pool].set(a, Some(from_saved(saved.state)));
                }
            } else {
                left.push(saved);
            }
        }
        self.parked.addresses = left;
        let mut loose = false;
        let nos: Vec<LeaseNo> = self.leases.iter().map(|l| l.no).collect();
        for no in nos {
            loose |= !self.place_lease(no, pool);
        }
        self.parked.loose = loose || !self.parked.addresses.is_empty();
    }

    /// Puts a lease's addresses into the pool's states. Says whether all of them have a source.
    fn place_lease(&mut self, no: LeaseNo, pool: usize) -> bool {
        let Some(lease) = self.leases.get(no) else { return true };
        let held = lease.held();
        let network = lease.key.network.clone();
        let addresses: Vec<(u8, addr::Addr)> = lease.addresses.iter().map(|a| (a.set, a.addr())).collect();
        let mut all = true;
        for (i, (set, a)) in addresses.into_iter().enumerate() {
            let home = self.pool_of(&network, set);
            let Some(place) = home.and_then(|h| self.pools[h].place(a)) else {
                all = false;
                continue;
            };
            if home != Some(pool) {
                continue;
            }
            if !matches!(self.pools[pool].state(a), Some(State::Leased(n) | State::Held(n)) if *n == no) {
                self.pools[pool].set(a, Some(if held { State::Held(no) } else { State::Leased(no) }));
            }
            let eni = self.pools[pool].eni_of(place).and_then(|n| self.pools[pool].eni(n));
            let known = eni.map(|e| (e.facts.id.clone(), e.facts.device.unwrap_or(0), e.table()));
            if let (Some((id, device, table)), Some(lease)) = (known, self.leases.get_mut(no)) {
                let given = &mut lease.addresses[i].given;
                (given.eni, given.device, given.table) = (id, device, table);
                lease.orphan = false;
            }
        }
        all
    }

    /// After EC2 listed everything: leases without a source are orphans, and what was in flight is settled.
    pub(super) fn mark_orphans(&mut self) {
        for intent in std::mem::take(&mut self.parked.intents) {
            self.resume(intent);
        }
        if !self.parked.loose {
            return;
        }
        let mut notes = Vec::new();
        let orphans: Vec<(LeaseNo, Key, IpAddr)> = self
            .leases
            .iter()
            .filter(|l| !l.orphan)
            .filter_map(|l| {
                let a = l.addresses.iter().find(|a| {
                    self.pool_of(&l.key.network, a.set).is_none_or(|i| self.pools[i].place(a.addr()).is_none())
                })?;
                Some((l.no, l.key.clone(), a.given.address.addr()))
            })
            .collect();
        for (no, key, address) in orphans {
            if let Some(lease) = self.leases.get_mut(no) {
                lease.orphan = true;
            }
            notes.push(Note::Orphan { key, address });
        }
        for note in notes {
            self.note(note);
        }
    }

    /// Takes an intent of the last run up again.
    fn resume(&mut self, intent: SavedIntent) {
        match intent {
            SavedIntent::Create { number, subnet, addresses, prefixes, token } => {
                // The token makes the repeated call return the interface that may exist already.
                let mut op = Op::new(0, Kind::Attach { subnet, addresses, prefixes }, None);
                op.token = token;
                op.step = Step::Intent;
                self.cloud.ops.insert(number, op);
                self.after_commit(Ack::Intent(number));
            }
            SavedIntent::Attach { number, eni, subnet, addresses, prefixes } => {
                self.resume_attach(number, &eni, subnet, addresses, prefixes);
            }
            SavedIntent::Grow { number, eni, addresses, prefixes } => {
                let Some(no) = self.pools[0].eni_by_id(&eni) else { return };
                if let Some(e) = self.pools[0].eni_mut(no) {
                    e.asking += addresses + prefixes;
                }
                let mut op = Op::new(Ms::MAX, Kind::Grow { addresses, prefixes }, Some(no));
                op.step = Step::Unclear { first: None, seen: 0 };
                self.cloud.ops.insert(number, op);
            }
            SavedIntent::Release { number, eni, addresses, prefixes } => {
                self.resume_release(number, &eni, &addresses, &prefixes);
            }
            SavedIntent::Detach { number, eni } => {
                let Some(no) = self.pools[0].eni_by_id(&eni) else { return };
                let idle = self.pools[0].eni_tally(no).idle();
                let busy = self.cloud.ops.values().any(|o| o.eni == Some(no));
                let Some(e) = self.pools[0].eni_mut(no).filter(|e| idle && !busy && !e.primary()) else { return };
                e.stage = Stage::Detaching;
                let mut op = Op::new(0, Kind::Detach { deleting: e.facts.state == AttachState::Detached }, Some(no));
                op.step = Step::Intent;
                self.cloud.ops.insert(number, op);
                self.after_commit(Ack::Intent(number));
            }
        }
    }

    fn resume_attach(&mut self, number: u64, id: &str, subnet: String, addresses: u16, prefixes: u16) {
        let Some(no) = self.pools[0].eni_by_id(id) else { return };
        let Some(e) = self.pools[0].eni_mut(no) else { return };
        let attached = e.facts.state == AttachState::Attached;
        if !attached || e.facts.delete_on_termination {
            // Not attached: the inventory is giving it back already. All done: it was adopted like any other.
            return;
        }
        e.stage = Stage::Attaching;
        e.asking += addresses + prefixes;
        let mut op = Op::new(0, Kind::Attach { subnet, addresses, prefixes }, Some(no));
        op.attach = AttachCall::Keep;
        op.step = Step::Intent;
        self.cloud.ops.insert(number, op);
        self.after_commit(Ack::Intent(number));
    }

    fn resume_release(&mut self, number: u64, eni: &str, addresses: &[IpAddr], prefixes: &[Ipv4Net]) {
        let Some(no) = self.pools[0].eni_by_id(eni) else { return };
        let free = |a: &addr::Addr| matches!(self.pools[0].state(*a), Some(State::Fresh | State::Free { .. }));
        let rows: Vec<addr::Addr> = addresses.iter().map(|a| addr::number(*a)).filter(free).collect();
        let blocks: Vec<_> = prefixes
            .iter()
            .filter_map(|p| self.pools[0].block_at(addr::number(IpAddr::V4(p.network()))))
            .filter(|b| self.pools[0].block(*b).is_some_and(|b| b.tally.idle()))
            .collect();
        if rows.is_empty() && blocks.is_empty() {
            return;
        }
        let units = (rows.len() + blocks.len()) as u16;
        let mut op = Op::new(0, Kind::Release { addresses: rows.clone(), blocks: blocks.clone() }, Some(no));
        op.set_before(self.states(&rows));
        op.step = Step::Unclear { first: None, seen: 0 };
        for a in &rows {
            self.pools[0].set(*a, Some(State::Releasing));
        }
        for b in &blocks {
            if let Some(block) = self.pools[0].block_mut(*b) {
                block.releasing = true;
            }
        }
        if let Some(e) = self.pools[0].eni_mut(no) {
            e.leaving += units;
        }
        self.cloud.ops.insert(number, op);
    }

    // ---- encode ----

    /// The two files as the state is now. Called when [`crate::event::Effect::Persist`] is carried out, before the next
    /// event. `digest` hashes the bytes of `ipam.json` (any stable text).
    pub fn encode(&mut self, stamp: &Stamp, digest: &dyn Fn(&[u8]) -> String) -> Encoded {
        self.encode_leases(stamp);
        let leases = &self.parked.encoded;
        let ipam = encode_file(leases.values().map(|(_, _, ipam)| ipam.as_slice()).filter(|bytes| !bytes.is_empty()));
        let ipam_digest = digest(&ipam);
        let rest = Saved {
            schema: SCHEMA,
            instance: stamp.instance.clone(),
            boot: stamp.boot.clone(),
            clock: stamp.clock.clone(),
            ipam: std::iter::once(ipam_digest.clone()).chain(stamp.previous_ipam.clone()).collect(),
            networks: self.ranges.clone(),
            leases: Vec::new(),
            addresses: self.saved_addresses(),
            tombstones: self.tombs.values().cloned().collect(),
            tearing: self.saved_tearing(),
            intents: self.saved_intents(),
            memo: self.memo.clone(),
            other: self.parked.other.clone(),
        };
        let rest = serde_json::to_vec(&rest).unwrap_or_default();
        let state = splice_leases(&rest, self.parked.encoded.values().map(|(_, state, _)| state.as_slice()));
        Encoded { state, ipam, ipam_digest }
    }

    /// Each lease is encoded once and again only when its phase changes: a commit mostly concatenates.
    fn encode_leases(&mut self, stamp: &Stamp) {
        let now = stamp.clock.pool_ms;
        let live: Vec<(LeaseNo, Option<Ms>)> = self
            .leases
            .iter()
            .map(|l| match l.phase {
                Phase::Held { since, .. } => (l.no, Some(since)),
                _ => (l.no, None),
            })
            .collect();
        let leases = &self.leases;
        self.parked.encoded.retain(|no, _| leases.get(*no).is_some());
        for (no, held) in live {
            if self.parked.encoded.get(&no).is_some_and(|(phase, ..)| *phase == held) {
                continue;
            }
            let vpc = self.leases.get(no).is_some_and(|l| !self.ranges.contains_key(&l.key.network));
            let Some(lease) = self.leases.get_mut(no) else { continue };
            if lease.wall_ns == 0 && !lease.migrated {
                let age = i64::try_from(now.saturating_sub(lease.assigned_at)).unwrap_or(0);
                lease.wall_ns = stamp.clock.wall_ns - age * 1_000_000;
            }
            let saved = saved_lease(lease);
            let state = serde_json::to_vec(&saved).unwrap_or_default();
            let ipam = if vpc { encode_allocation(&allocation(lease)) } else { Vec::new() };
            self.parked.encoded.insert(no, (held, state, ipam));
        }
    }

    fn saved_addresses(&self) -> Vec<SavedAddress> {
        let mut out: Vec<SavedAddress> = self.parked.addresses.clone();
        for pool in &self.pools {
            let network = if pool.range { pool.network.clone() } else { String::new() };
            for (a, entry) in pool.entries() {
                let Some(state) = to_saved(&entry.state) else { continue };
                out.push(SavedAddress {
                    network: network.clone(),
                    set: pool.set,
                    address: addr::ip(pool.family, a),
                    state,
                });
            }
        }
        out
    }

    fn saved_tearing(&self) -> Vec<SavedTearing> {
        self.tearing
            .values()
            .map(|t| SavedTearing { target: t.target.clone(), sets: t.addresses.iter().map(|(s, _)| *s).collect() })
            .collect()
    }

    fn saved_intents(&self) -> Vec<SavedIntent> {
        let mut out = self.parked.intents.clone();
        for (number, op) in self.cloud.ops.iter().filter(|(_, op)| op.step != Step::Queued) {
            let eni = op.eni.and_then(|no| self.pools[0].eni(no)).map(|e| e.facts.id.clone());
            let number = *number;
            out.extend(match (&op.kind, eni) {
                (Kind::Attach { subnet, addresses, prefixes }, None) => Some(SavedIntent::Create {
                    number,
                    subnet: subnet.clone(),
                    addresses: *addresses,
                    prefixes: *prefixes,
                    token: op.token.clone(),
                }),
                (Kind::Attach { subnet, addresses, prefixes }, Some(eni)) => Some(SavedIntent::Attach {
                    number,
                    eni,
                    subnet: subnet.clone(),
                    addresses: *addresses,
                    prefixes: *prefixes,
                }),
                (Kind::Grow { addresses, prefixes }, Some(eni)) => {
                    Some(SavedIntent::Grow { number, eni, addresses: *addresses, prefixes: *prefixes })
                }
                (Kind::Release { addresses, blocks }, Some(eni)) => Some(SavedIntent::Release {
                    number,
                    eni,
                    addresses: addresses.iter().map(|a| addr::ip(4, *a)).collect(),
                    prefixes: self.block_nets(blocks),
                }),
                (Kind::Detach { .. }, Some(eni)) => Some(SavedIntent::Detach { number, eni }),
                (_, _) => None,
            });
        }
        out
    }

    fn block_nets(&self, blocks: &[u32]) -> Vec<Ipv4Net> {
        blocks
            .iter()
            .filter_map(|b| self.pools[0].block(*b))
            .filter_map(|b| Ipv4Net::new(std::net::Ipv4Addr::from(b.base as u32), b.length).ok())
            .collect()
    }

    /// Interfaces as they are known, for a record's start.
    pub fn known_enis(&self) -> Vec<EniFacts> {
        self.pools[0].enis().map(|(_, e)| e.facts.clone()).collect()
    }
}

/// Puts the leases' bytes where the empty list is; the rest was encoded with it.
fn splice_leases<'a>(rest: &[u8], leases: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    const EMPTY: &[u8] = b"\"leases\":[]";
    let Some(at) = rest.windows(EMPTY.len()).position(|w| w == EMPTY) else { return rest.to_vec() };
    let leases: Vec<&[u8]> = leases.collect();
    let mut out = Vec::with_capacity(rest.len() + leases.iter().map(|l| l.len() + 1).sum::<usize>());
    out.extend_from_slice(&rest[..at + EMPTY.len() - 1]);
    for (i, lease) in leases.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(lease);
    }
    out.extend_from_slice(&rest[at + EMPTY.len() - 1..]);
    out
}

fn saved_lease(lease: &Lease) -> SavedLease {
    SavedLease {
        key: lease.key.clone(),
        pod: lease.pod.clone(),
        netns: lease.netns.clone(),
        host_ifname: lease.host_ifname.clone(),
        addresses: lease.addresses.clone(),
        assigned_at: lease.assigned_at,
        wall_ns: lease.wall_ns,
        held: match lease.phase {
            Phase::Held { since, replaced } => Some(SavedHeld { since, replaced }),
            _ => None,
        },
        migrated: lease.migrated,
    }
}

fn allocation(lease: &Lease) -> Allocation {
    let ip = lease.addresses.first().map(|a| a.given.address.addr());
    Allocation {
        network: lease.key.network.clone(),
        container_id: lease.key.container_id.clone(),
        ifname: lease.key.ifname.clone(),
        ipv4: match ip {
            Some(IpAddr::V4(v4)) => Some(v4),
            _ => None,
        },
        ipv6: match ip {
            Some(IpAddr::V6(v6)) => Some(v6),
            _ => None,
        },
        timestamp: lease.wall_ns,
        metadata: AllocationMetadata { namespace: lease.pod.namespace.clone(), name: lease.pod.name.clone() },
    }
}

fn from_saved(state: SavedState) -> State {
    match state {
        SavedState::Cooling { since, until, pod, ifname, keep, linked, shut } => {
            State::Cooling { since, until, owner: Owner { pod, ifname }, keep, linked, shut }
        }
        SavedState::Reserved { since, until, pod, ifname } => {
            State::Reserved { since, until, owner: Owner { pod, ifname } }
        }
        SavedState::Free { since, last } => State::Free { since, last },
    }
}

fn to_saved(state: &State) -> Option<SavedState> {
    Some(match state {
        State::Cooling { since, until, owner, keep, linked, shut } => SavedState::Cooling {
            since: *since,
            until: *until,
            pod: owner.pod.clone(),
            ifname: owner.ifname.clone(),
            keep: *keep,
            linked: *linked,
            shut: *shut,
        },
        State::Reserved { since, until, owner } => {
            SavedState::Reserved { since: *since, until: *until, pod: owner.pod.clone(), ifname: owner.ifname.clone() }
        }
        State::Free { since, last } => SavedState::Free { since: *since, last: *last },
        _ => return None,
    })
}
