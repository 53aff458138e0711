//! Leases: which sandbox has which addresses, and what remains of those that were taken over.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::addr::{self, Addr};
use crate::event::{CallId, GivenAddress, Key, Ms, NetTarget, Netns, PodRef};
use crate::pool::{LeaseNo, Owner, State, owner_hash};

/// One address of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedAddress {
    /// What the plugin was told.
    #[serde(flatten)]
    pub given: GivenAddress,
    /// Which pool: 0 the VPC's, else the set of ranges less one. Not the same as `index` for a single-range network.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub set: u8,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &u8) -> bool {
    *n == 0
}

impl LeasedAddress {
    /// The address as a number.
    pub fn addr(&self) -> Addr {
        addr::number(self.given.address.addr())
    }
}

/// How far a lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not in a good checkpoint yet; nobody was told.
    Committing {
        /// The checkpoint that will hold it.
        seq: u64,
        /// Calls that wait for it.
        calls: Vec<CallId>,
        /// What its addresses were before, to undo.
        before: Vec<Option<State>>,
        /// The lease it takes over, to undo.
        from: Option<Box<Lease>>,
    },
    /// In a checkpoint, its sandbox lives as far as is known.
    Active,
    /// Its sandbox is gone without a DEL, or its own pod is replacing it.
    Held {
        /// Since when.
        since: Ms,
        /// Its own pod is replacing it: a sandbox that still lives does not make it active again.
        replaced: bool,
    },
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number.
    pub no: LeaseNo,
    /// Its key.
    pub key: Key,
    /// Its pod.
    pub pod: PodRef,
    /// Namespace of the sandbox; none for imported ones.
    pub netns: Option<Netns>,
    /// Host end of the veth.
    pub host_ifname: String,
    /// Addresses in order of index.
    pub addresses: Vec<LeasedAddress>,
    /// When it was assigned.
    pub assigned_at: Ms,
    /// Wall time of that, nanoseconds since 1970, for the AWS daemon's file; 0 when unknown.
    pub wall_ns: i64,
    /// How far it is.
    pub phase: Phase,
    /// Ticket of a fence under way.
    pub fencing: Option<u64>,
    /// No fence is tried before (after one that failed).
    pub fence_after: Ms,
    /// Reads of the API server in a row that did not list its pod.
    pub unlisted: u8,
    /// Outside every known source; kept while it lives.
    pub orphan: bool,
    /// Names were placeholders of the runtime migration.
    pub migrated: bool,
}

impl Lease {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner { pod: self.pod.clone(), ifname: self.key.ifname.clone() }
    }
    /// Whether it is held.
    pub fn held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }
    /// For fences and tear-downs.
    pub fn target(&self) -> NetTarget {
        NetTarget {
            key: self.key.clone(),
            host_ifname: self.host_ifname.clone(),
            addresses: self.given(),
            netns: self.netns.clone(),
        }
    }
    /// What the plugin is told.
    pub fn given(&self) -> Vec<GivenAddress> {
        self.addresses.iter().map(|a| a.given.clone()).collect()
    }
}

/// What remains of a lease that was taken over: its late DEL changes nothing, its late ADD fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The key it had.
    pub key: Key,
    /// Container id of the sandbox that took over.
    pub by: String,
    /// When.
    pub since: Ms,
    /// Its namespace: the tombstone stays while that exists.
    pub netns: Option<Netns>,
}

/// All leases, by number, key and pod.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    all: BTreeMap<LeaseNo, Lease>,
    by_key: HashMap<Key, LeaseNo>,
    by_owner: BTreeMap<(u64, u64), BTreeSet<LeaseNo>>,
    next: LeaseNo,
}

impl Leases {
    fn owner_key(network: &str, pod: &PodRef, ifname: &str) -> (u64, u64) {
        (crate::ids::fnv64(&[network.as_bytes()]), owner_hash(pod, ifname))
    }

    /// A number for a new lease.
    pub fn number(&mut self) -> LeaseNo {
        self.next += 1;
        self.next
    }

    /// Adds a lease under its number.
    pub fn insert(&mut self, lease: Lease) {
        self.next = self.next.max(lease.no);
        self.by_key.insert(lease.key.clone(), lease.no);
        let owner = Self::owner_key(&lease.key.network, &lease.pod, &lease.key.ifname);
        self.by_owner.entry(owner).or_default().insert(lease.no);
        self.all.insert(lease.no, lease);
    }

    /// Takes a lease out.
    pub fn remove(&mut self, no: LeaseNo) -> Option<Lease> {
        let lease = self.all.remove(&no)?;
        if self.by_key.get(&lease.key) == Some(&no) {
            self.by_key.remove(&lease.key);
        }
        let owner = Self::owner_key(&lease.key.network, &lease.pod, &lease.key.ifname);
        if let Some(set) = self.by_owner.get_mut(&owner) {
            set.remove(&no);
            if set.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        Some(lease)
    }

    /// A lease by number.
    pub fn get(&self, no: LeaseNo) -> Option<&Lease> {
        self.all.get(&no)
    }
    /// A lease by number, to change what no index depends on.
    pub fn get_mut(&mut self, no: LeaseNo) -> Option<&mut Lease> {
        self.all.get_mut(&no)
    }
    /// A lease by key.
    pub fn find(&self, key: &Key) -> Option<&Lease> {
        self.by_key.get(key).and_then(|no| self.all.get(no))
    }
    /// Leases of the same pod by name, on the same network and interface name.
    pub fn of_pod(&self, network: &str, pod: &PodRef, ifname: &str) -> Vec<LeaseNo> {
        let owner = Self::owner_key(network, pod, ifname);
        self.by_owner
            .get(&owner)
            .into_iter()
            .flatten()
            .copied()
            .filter(|no| self.all.get(no).is_some_and(|l| l.key.network == network && l.pod.same_name(pod)))
            .collect()
    }
    /// All in order of number.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.all.values()
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.all.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
