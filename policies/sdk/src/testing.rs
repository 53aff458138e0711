//! Builders for native tests: snapshots with columns and counts that agree with each other.
//!
//! ```
//! use wipam_policy_sdk::testing::PoolBuilder;
//! // A t2.medium's primary interface: 5 slots, two pods, two free addresses.
//! let pool = PoolBuilder::lone(3, 5).eni(2, 2).build();
//! assert_eq!((pool.counts.total, pool.rows.len()), (4, 2));
//! ```

mod node;

use std::net::IpAddr;

use crate::{
    allocation::{Lease, Request},
    marks::{NO_BLOCK, eni, row},
    sizing::{Cloud, Demand},
    types::*,
};

pub use node::{Node, Plan, Tally};

/// When the builders' interfaces were attached; a `given.now_ms` of [`NOW_MS`] finds them old enough for anything.
pub const ATTACHED_MS: u64 = 1_000;
/// A time well after [`ATTACHED_MS`].
pub const NOW_MS: u64 = 1_000_000;

/// Builds a snapshot interface by interface.
#[derive(Clone, Debug)]
pub struct PoolBuilder {
    pool: Snapshot,
}

impl PoolBuilder {
    /// An IPv4 pool of lone addresses on an instance with so many interfaces and (pod) slots on each.
    pub fn lone(max_enis: u16, slots: u16) -> Self {
        Self::new(max_enis, slots, 32)
    }

    /// An IPv4 pool of /28 prefixes.
    pub fn prefixes(max_enis: u16, slots: u16) -> Self {
        Self::new(max_enis, slots, 28)
    }

    fn new(max_enis: u16, slots: u16, unit_length: u8) -> Self {
        let size = if unit_length == 32 { 1 } else { 16 };
        let limits = Limits {
            instance_type: "test".into(),
            max_enis,
            slots_per_eni: slots,
            max_pods: u32::from(max_enis) * u32::from(slots) * size + 2,
        };
        let pool = PoolInfo {
            network: "vpc".into(),
            kind: "eni".into(),
            family: 4,
            card: 0,
            unit_length,
            may_grow: true,
            cooldown_ms: 30_000,
        };
        let (counts, blocks, rows) = (Counts::default(), BlockSet::default(), RowSet::default());
        Self { pool: Snapshot { pool, limits, counts, enis: Vec::new(), blocks, rows, rows_left_out: 0 } }
    }

    /// Adds an interface (the first is the primary) with so many assigned and so many free, never used lone addresses.
    #[must_use]
    pub fn eni(mut self, assigned: u32, free: u32) -> Self {
        let index = self.pool.enis.len() as u8;
        let used = u16::try_from(assigned + free).unwrap_or(u16::MAX);
        self.pool.enis.push(Eni {
            id: format!("eni-{index}"),
            device_index: index,
            card: 0,
            subnet: 0,
            marks: if index == 0 { eni::PRIMARY } else { 0 },
            slots: self.pool.limits.slots_per_eni,
            slots_used: used,
            slots_moving: 0,
            assigned,
            free,
            cooling: 0,
            reserved: 0,
            held: 0,
            attached_at_ms: ATTACHED_MS,
        });
        for i in 0..free {
            let address = u64::from(0x0a00_0000_u32) + u64::from(index) * 256 + u64::from(assigned + i);
            self.push_row(address, index, NO_BLOCK, row::NEVER_USED, 0, 0);
        }
        self
    }

    /// Adds a /28 to the last interface, so many of its addresses assigned and the others free.
    #[must_use]
    pub fn block(mut self, assigned: u32) -> Self {
        let index = self.pool.blocks.len();
        let base = 0x0a01_0000_u64 + index as u64 * 16;
        let last = self.pool.enis.len() - 1;
        let set = &mut self.pool.blocks;
        set.eni.push(last as u8);
        set.length.push(28);
        set.base_hi.push(0);
        set.base_lo.push(base);
        set.assigned.push(assigned);
        set.cooling.push(0);
        set.reserved.push(0);
        set.held.push(0);
        set.untouched.push(u64::from(16 - assigned));
        set.marks.push(0);
        let eni = &mut self.pool.enis[last];
        eni.slots_used += 1;
        eni.assigned += assigned;
        eni.free += 16 - assigned;
        for i in assigned..16 {
            self.push_row(base + u64::from(i), last as u8, index as u16, row::NEVER_USED, 0, 0);
        }
        self
    }

    /// Changes the last interface; the counts follow from what stands there.
    #[must_use]
    pub fn change(mut self, change: impl FnOnce(&mut Eni)) -> Self {
        if let Some(eni) = self.pool.enis.last_mut() {
            change(eni);
        }
        self
    }

    /// Adds `n` cooling addresses to the last interface.
    #[must_use]
    pub fn cooling(self, n: u32) -> Self {
        self.change(|e| {
            e.cooling += n;
            e.slots_used += n as u16;
        })
    }

    /// Adds `n` addresses that are being asked for on the last interface.
    #[must_use]
    pub fn assigning(mut self, n: u16) -> Self {
        self.pool.counts.assigning += u64::from(n) * self.pool.pool.unit_size();
        self.change(|e| e.slots_moving += n)
    }

    /// Adds one row to interface `eni` (which must exist) and counts it there as free.
    #[must_use]
    pub fn row(mut self, address: &str, eni: u8, marks: u16, free_since_ms: u64, last_pod_key: u64) -> Self {
        self.pool.enis[usize::from(eni)].free += 1;
        self.pool.enis[usize::from(eni)].slots_used += 1;
        self.push_row(number(address), eni, NO_BLOCK, marks, free_since_ms, last_pod_key);
        self
    }

    fn push_row(&mut self, address: u64, eni: u8, block: u16, marks: u16, free_since_ms: u64, last_pod_key: u64) {
        let rows = &mut self.pool.rows;
        let at = rows.address_lo.partition_point(|a| *a < address);
        rows.address_hi.insert(at, 0);
        rows.address_lo.insert(at, address);
        rows.eni.insert(at, eni);
        rows.block.insert(at, block);
        rows.marks.insert(at, marks);
        rows.free_since_ms.insert(at, free_since_ms);
        rows.until_ms.insert(at, 0);
        rows.last_pod_key.insert(at, last_pod_key);
    }

    /// The snapshot, with counts that are the sums over the interfaces.
    pub fn build(mut self) -> Snapshot {
        let sum = |f: fn(&Eni) -> u32| self.pool.enis.iter().map(|e| u64::from(f(e))).sum::<u64>();
        let counts = &mut self.pool.counts;
        counts.assigned = sum(|e| e.assigned);
        counts.free = sum(|e| e.free);
        counts.cooling = sum(|e| e.cooling);
        counts.reserved = sum(|e| e.reserved);
        counts.held = sum(|e| e.held);
        counts.total = counts.assigned + counts.free + counts.cooling + counts.reserved + counts.held;
        self.pool
    }
}

/// One interface with the given free addresses and the last pod's key of each (0: never used).
///
/// # Panics
/// When a text is no IPv4 address.
pub fn lone_pool(addresses: &[(&str, u64)]) -> Snapshot {
    let slots = u16::try_from(addresses.len()).unwrap_or(u16::MAX);
    let mut pool = PoolBuilder::lone(1, slots).eni(0, 0);
    for (address, key) in addresses {
        let marks = if *key == 0 { row::NEVER_USED } else { 0 };
        pool = pool.row(address, 0, marks, if *key == 0 { 0 } else { ATTACHED_MS }, *key);
    }
    pool.build()
}

fn number(address: &str) -> u64 {
    match address.parse() {
        Ok(IpAddr::V4(a)) => u64::from(u32::from(a)),
        _ => panic!("{address} is no IPv4 address"),
    }
}

/// A pod about which the API server told nothing.
pub fn pod(namespace: &str, name: &str) -> Pod {
    Pod {
        namespace: namespace.into(),
        name: name.into(),
        uid: "uid-1".into(),
        key: key(namespace, name),
        facts_known: false,
        owner_kind: String::new(),
        owner_name: String::new(),
        labels: Vec::new(),
        annotations: Vec::new(),
    }
}

/// A key for tests: stable, and never 0. The host has its own hash; a policy only compares keys.
pub fn key(namespace: &str, name: &str) -> u64 {
    let bytes = namespace.bytes().chain([b'/']).chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)) | 1
}

/// A first request of that pod for `eth0`.
pub fn request(namespace: &str, name: &str) -> Request {
    let pod = pod(namespace, name);
    Request { sandbox: 1, ifname: "eth0".into(), index: 0, pod, attempt: 0, deadline_ms: NOW_MS + 100_000 }
}

/// The end of that pod's lease by a DEL.
pub fn lease(namespace: &str, name: &str) -> Lease {
    Lease {
        sandbox: 1,
        ifname: "eth0".into(),
        index: 0,
        pod: pod(namespace, name),
        address_hi: 0,
        address_lo: number("10.0.0.1"),
        assigned_at_ms: ATTACHED_MS,
        cause: "del".into(),
    }
}

/// [`NOW_MS`] and these settings.
pub fn given(settings: Vec<Setting>) -> Given {
    Given { now_ms: NOW_MS, seed: 7, settings, extra: Vec::new() }
}

impl Default for Given {
    /// [`NOW_MS`], no settings.
    fn default() -> Self {
        given(Vec::new())
    }
}

impl Default for Counts {
    /// Nothing anywhere.
    fn default() -> Self {
        Self {
            total: 0,
            assigned: 0,
            free: 0,
            cooling: 0,
            reserved: 0,
            held: 0,
            suspect: 0,
            assigning: 0,
            releasing: 0,
        }
    }
}

impl Default for BlockSet {
    /// No block.
    fn default() -> Self {
        Self {
            eni: Vec::new(),
            length: Vec::new(),
            base_hi: Vec::new(),
            base_lo: Vec::new(),
            assigned: Vec::new(),
            cooling: Vec::new(),
            reserved: Vec::new(),
            held: Vec::new(),
            untouched: Vec::new(),
            marks: Vec::new(),
        }
    }
}

impl Default for RowSet {
    /// No row.
    fn default() -> Self {
        Self {
            address_hi: Vec::new(),
            address_lo: Vec::new(),
            eni: Vec::new(),
            block: Vec::new(),
            marks: Vec::new(),
            free_since_ms: Vec::new(),
            until_ms: Vec::new(),
            last_pod_key: Vec::new(),
        }
    }
}

impl Default for Demand {
    /// A node at rest.
    fn default() -> Self {
        Self {
            waiting: 0,
            oldest_wait_ms: 0,
            adds_10s: 0,
            adds_1m: 0,
            dels_1m: 0,
            failed_1m: 0,
            pending_pods: None,
            schedulable: true,
            stopping: false,
        }
    }
}

impl Default for Cloud {
    /// Nothing known, nothing in flight, nothing forbidden.
    fn default() -> Self {
        Self { subnets: Vec::new(), barriers: Vec::new(), in_flight: Vec::new(), last: Vec::new() }
    }
}
