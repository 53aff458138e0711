//! The arithmetic that every sizing policy needs: what is free, what is coming, where there is room, what may go.
//!
//! A [`Sizing`] reads the inputs of `plan` once and gathers actions. It knows the rules that do not depend on a
//! policy's opinion: interfaces that are busy, draining or not ours; barriers and full subnets; slots, interfaces and
//! pods per instance; that addresses on their way count, and that an interface leaves by drain, then detach.
//!
//! ```
//! use wipam_policy_sdk::{pool::{Grow, Sizing}, sizing::*, testing::*, types::*};
//! // A t2.medium with five pods on its full primary interface: one more address needs another interface.
//! let pool = PoolBuilder::lone(3, 5).eni(5, 0).build();
//! let (given, demand, cloud) = (Given::default(), Demand::default(), Cloud::default());
//! let mut sizing = Sizing::new(&given, &pool, &demand, &cloud);
//! sizing.grow(Grow::exactly(1));
//! assert_eq!(sizing.actions, [Action::Attach(Attachment { subnet: 255, length: 32, count: 1 })]);
//! ```

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    marks::NONE_U8,
    sizing::{Action, Attachment, Cloud, Decision, Demand, DrainMark, Growth},
    types::{Eni, Given, Snapshot},
};

/// The host takes no more actions than this from one plan.
pub const MAX_ACTIONS: usize = 8;
/// An interface younger than this is not given back.
pub const MIN_ENI_AGE_MS: u64 = 60_000;
/// An ADD that waits longer than this no longer waits for a running call to free its interface for the next one.
const URGENT_MS: u64 = 1_500;
/// When to look again at what could not be done now.
const RECHECK_MS: u32 = 5_000;
/// "Endless", with room to add to it.
const MANY: i64 = 1 << 40;

/// How much to grow, in units (lone addresses or blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grow {
    /// Units wanted.
    pub units: i64,
    /// Stop after the first interface that, filled, covers this many units; 0 stops after the first one anyhow.
    pub cover: i64,
    /// Fill each interface that is touched to its last slot.
    pub fill: bool,
}

impl Grow {
    /// So many units, wherever they fit.
    pub fn exactly(units: i64) -> Self {
        Self { units, cover: units, fill: false }
    }
}

/// The inputs of a plan, read once, and the plan itself while it grows.
#[derive(Clone, Debug)]
pub struct Sizing<'a> {
    given: &'a Given,
    pool: &'a Snapshot,
    demand: &'a Demand,
    cloud: &'a Cloud,
    /// Free addresses that a new pod can get now: those of usable interfaces and blocks.
    pub free: i64,
    /// Addresses being asked for, and free ones on interfaces that are still attaching.
    pub coming: i64,
    /// ADDs that wait for an address.
    pub waiting: i64,
    /// Addresses of usable interfaces, whatever their state, without those that are coming.
    pub total: i64,
    /// Addresses in use by pods.
    pub assigned: i64,
    /// Cooling, reserved and held ones on usable interfaces: neither free nor in use.
    pub set_aside: i64,
    /// Addresses in one unit of growth.
    pub unit: i64,
    /// Usable blocks in which nothing is assigned, cooling, reserved or held.
    pub free_blocks: i64,
    /// The plan so far.
    pub actions: Vec<Action>,
    /// Addresses that the plan so far gives back.
    pub released: i64,
    /// When to be asked again even if nothing changes.
    pub recheck_ms: Option<u32>,
    /// Why something wanted was not planned; empty if all was.
    pub blocked: &'static str,
}

impl<'a> Sizing<'a> {
    /// Reads the inputs.
    pub fn new(given: &'a Given, pool: &'a Snapshot, demand: &'a Demand, cloud: &'a Cloud) -> Self {
        let mut s = Self {
            given,
            pool,
            demand,
            cloud,
            free: 0,
            coming: clamp(pool.counts.assigning),
            waiting: i64::from(demand.waiting),
            total: 0,
            assigned: clamp(pool.counts.assigned),
            set_aside: 0,
            unit: clamp(pool.pool.unit_size()),
            free_blocks: 0,
            actions: Vec::new(),
            released: 0,
            recheck_ms: None,
            blocked: "",
        };
        for eni in &pool.enis {
            if eni.is_usable() {
                s.free += i64::from(eni.free);
                s.set_aside += i64::from(eni.cooling) + i64::from(eni.reserved) + i64::from(eni.held);
                s.total += i64::from(eni.assigned) + i64::from(eni.free);
            } else if eni.is_attaching() {
                s.coming += i64::from(eni.free);
            }
        }
        s.total += s.set_aside;
        for block in pool.blocks.iter() {
            let usable = block.eni.and_then(|e| pool.enis.get(usize::from(e))).is_some_and(Eni::is_usable);
            if usable && !block.is_usable() {
                s.free -= clamp(block.free(pool.pool.family)).min(s.free);
            } else if usable && block.is_idle() {
                s.free_blocks += 1;
            }
        }
        s
    }

    /// Addresses left for new pods once everybody who waits has one; below 0 when they do not suffice.
    pub fn available(&self) -> i64 {
        self.free + self.coming - self.waiting
    }

    /// Waiting ADDs for which nothing is there or on its way.
    pub fn uncovered(&self) -> i64 {
        (-self.available()).max(0)
    }

    /// Addresses that may still come before the node has one for every pod that it may run.
    pub fn pods_left(&self) -> i64 {
        if self.pool.limits.max_pods == 0 {
            return MANY;
        }
        i64::from(self.pool.limits.max_pods) + self.set_aside - self.total - self.coming
    }

    /// Whether the pool may grow and shrink at all.
    pub fn is_elastic(&self) -> bool {
        self.pool.pool.may_grow && self.pool.pool.kind != "range"
    }

    /// Whether growth is under way: then nothing is given back yet.
    pub fn is_growing(&self) -> bool {
        self.coming > 0 || self.cloud.in_flight.iter().any(|o| o.op == "attach" || o.op == "grow")
    }

    // ---- growth ----

    /// Plans growth: interfaces that drain are taken back, those with room are filled, then new ones are attached.
    /// Returns the units that were planned. What cannot be is told in [`Sizing::blocked`].
    pub fn grow(&mut self, want: Grow) -> i64 {
        if want.units <= 0 {
            return 0;
        }
        let urgent = self.demand.oldest_wait_ms >= URGENT_MS && self.uncovered() > 0;
        let mut got = self.undrain(want.units);
        // Room that a running call will leave, or that an attaching interface has: no reason to attach another one.
        let mut soon = self.room_of_attaching();
        for i in self.enis_by_fill() {
            let eni = &self.pool.enis[i];
            let room = i64::from(eni.room()).min(self.subnet_room(eni.subnet));
            if room <= 0 || self.is_done(want, got) {
                continue;
            }
            if self.is_barred("grow", eni.subnet) {
                self.blocked = "growth is barred for now";
            } else if self.is_busy(i) && !urgent {
                soon += room;
            } else {
                let count = if want.fill { room } else { room.min(want.units - got) };
                got += count;
                let (length, count) = (self.pool.pool.unit_length, count as u16);
                self.push(Action::Grow(Growth { eni: i as u8, length, count }));
            }
        }
        if urgent {
            soon = 0;
        }
        self.attach(want, got, soon)
    }

    fn attach(&mut self, want: Grow, mut got: i64, soon: i64) -> i64 {
        let slots = i64::from(self.pool.limits.slots_per_eni);
        let mut left = i64::from(self.pool.limits.max_enis) - self.eni_count();
        let mut soon = soon;
        while !self.is_done(want, got) && slots > 0 {
            if soon > 0 && want.cover.max(1) - got <= soon {
                self.recheck(1_000);
                break;
            }
            // Needs beyond that room cannot wait for it; they alone go to new interfaces.
            got += soon;
            soon = 0;
            let room = self.best_subnet();
            if left <= 0 || room <= 0 || self.actions.len() >= MAX_ACTIONS {
                self.blocked = if left <= 0 { "no interface more on this instance" } else { "no subnet has room now" };
                break;
            }
            let full = slots.min(room);
            let count = if want.fill { full } else { full.min(want.units - got) };
            got += count;
            left -= 1;
            let (length, count) = (self.pool.pool.unit_length, count as u16);
            self.push(Action::Attach(Attachment { subnet: NONE_U8, length, count }));
        }
        got
    }

    fn is_done(&self, want: Grow, got: i64) -> bool {
        got >= want.units || (got > 0 && got >= want.cover) || self.actions.len() >= MAX_ACTIONS
    }

    /// An interface that drains is nearer than a new one.
    fn undrain(&mut self, units: i64) -> i64 {
        let mut got = 0;
        for (i, eni) in self.pool.enis.iter().enumerate() {
            let mine = eni.is_draining() && !eni.is_detaching() && !self.is_busy(i);
            if mine && eni.free > 0 && got < units {
                got += i64::from(eni.free) / self.unit;
                self.push(Action::Drain(DrainMark { eni: i as u8, on: false }));
            }
        }
        got
    }

    /// Fillable interfaces, the fullest first: one is filled before the next is touched.
    fn enis_by_fill(&self) -> Vec<usize> {
        let mut order: Vec<usize> = Vec::new();
        for (i, eni) in self.pool.enis.iter().enumerate() {
            if eni.is_fillable() {
                let at = order.iter().position(|o| self.pool.enis[*o].slots_used < eni.slots_used);
                order.insert(at.unwrap_or(order.len()), i);
            }
        }
        order
    }

    fn room_of_attaching(&self) -> i64 {
        let listed = self.pool.enis.iter().filter(|e| e.is_attaching() && !e.is_detaching() && e.is_counted());
        let listed: i64 = listed.map(|e| i64::from(e.room())).sum();
        let slots = i64::from(self.pool.limits.slots_per_eni);
        listed + self.unlisted_attaches().map(|asked| (slots - i64::from(asked)).max(0)).sum::<i64>()
    }

    /// What was asked for with interfaces that are not in the list yet.
    fn unlisted_attaches(&self) -> impl Iterator<Item = u32> + '_ {
        self.cloud.in_flight.iter().filter(|o| o.op == "attach" && o.eni == NONE_U8).map(|o| o.asked)
    }

    fn eni_count(&self) -> i64 {
        (self.pool.enis.iter().filter(|e| e.is_counted()).count() + self.unlisted_attaches().count()) as i64
    }

    /// Units that a subnet still has room for.
    fn subnet_room(&self, subnet: u8) -> i64 {
        match self.cloud.subnets.get(usize::from(subnet)) {
            Some(s) if self.subnet_waits(s.usable_after_ms, s.blocks_after_ms) => 0,
            Some(s) => s.free.map_or(MANY, |free| clamp(free) / self.unit),
            None => MANY,
        }
    }

    fn subnet_waits(&self, usable_after: u64, blocks_after: u64) -> bool {
        let until = if self.unit > 1 { usable_after.max(blocks_after) } else { usable_after };
        until > self.given.now_ms
    }

    /// Units that a new interface could bring, in the best subnet; it takes one address for itself.
    fn best_subnet(&mut self) -> i64 {
        if self.is_barred("attach", NONE_U8) {
            return 0;
        }
        if self.cloud.subnets.is_empty() {
            return MANY;
        }
        let mut best = 0;
        for (i, s) in self.cloud.subnets.iter().enumerate() {
            if !self.is_barred("attach", i as u8) && !self.subnet_waits(s.usable_after_ms, s.blocks_after_ms) {
                best = best.max(s.free.map_or(MANY, |free| (clamp(free) - 1) / self.unit));
            }
        }
        best
    }

    /// Whether an operation must not be asked for yet; looks again when it may.
    fn is_barred(&mut self, op: &str, subnet: u8) -> bool {
        let now = self.given.now_ms;
        let hit =
            |b: &&crate::sizing::Barrier| b.op == op && b.until_ms > now && (b.subnet == subnet || b.subnet == NONE_U8);
        let until = self.cloud.barriers.iter().filter(hit).map(|b| b.until_ms).max();
        if let Some(until) = until {
            self.recheck(u32::try_from(until - now).unwrap_or(u32::MAX));
        }
        until.is_some()
    }

    /// Whether a call changes this interface now; EC2 takes one at a time.
    fn is_busy(&self, i: usize) -> bool {
        let moving = self.pool.enis.get(i).is_some_and(|e| e.slots_moving > 0);
        moving || self.cloud.in_flight.iter().any(|o| usize::from(o.eni) == i && o.op != "drain")
    }

    // ---- shrinking ----

    /// Plans the detach of interfaces that drain and are empty.
    pub fn finish_drains(&mut self) {
        for (i, eni) in self.pool.enis.iter().enumerate() {
            let ready = eni.is_draining() && eni.is_removable() && eni.is_idle();
            if ready && !self.is_busy(i) && !self.is_barred("detach", eni.subnet) {
                self.push(Action::Detach(i as u8));
            }
        }
    }

    /// Plans to give back at most `surplus` addresses: idle interfaces whole, and, with `parts`, wholly free blocks
    /// and lone addresses of others, from the emptiest interface on and from the primary one last.
    pub fn shrink(&mut self, surplus: i64, parts: bool) {
        let mut left = surplus;
        for i in self.enis_by_emptiness() {
            let eni = &self.pool.enis[i];
            if self.is_busy(i) {
                continue;
            }
            let leaves = eni.is_removable() && eni.is_idle() && i64::from(eni.free) <= left;
            if leaves && !self.is_barred("detach", eni.subnet) {
                left -= i64::from(eni.free);
                if eni.attached_at_ms.saturating_add(MIN_ENI_AGE_MS) > self.given.now_ms {
                    self.recheck(RECHECK_MS);
                } else {
                    self.released += i64::from(eni.free);
                    self.push(Action::Drain(DrainMark { eni: i as u8, on: true }));
                }
            } else if parts && left > 0 && eni.free > 0 && !self.is_barred("release", eni.subnet) {
                left = self.release_blocks(i, left);
                left = self.release_rows(i, left);
            }
        }
    }

    fn enis_by_emptiness(&self) -> Vec<usize> {
        let rank = |e: &Eni| (e.is_primary(), e.assigned + e.held + e.reserved + e.cooling, 255 - e.device_index);
        let mut order: Vec<usize> = Vec::new();
        for (i, eni) in self.pool.enis.iter().enumerate() {
            if eni.is_usable() {
                let at = order.iter().position(|o| rank(&self.pool.enis[*o]) > rank(eni));
                order.insert(at.unwrap_or(order.len()), i);
            }
        }
        order
    }

    /// Plans to give back wholly free blocks, at most `surplus` addresses, of interfaces that stay.
    pub fn shrink_blocks(&mut self, surplus: i64) {
        let mut left = surplus;
        for i in self.enis_by_emptiness() {
            let (leaves, subnet) = (self.is_leaving(i), self.pool.enis[i].subnet);
            if !leaves && !self.is_busy(i) && !self.is_barred("release", subnet) {
                left = self.release_blocks(i, left);
            }
        }
    }

    fn is_leaving(&self, i: usize) -> bool {
        self.actions.iter().any(|a| matches!(a, Action::Drain(d) if d.on && usize::from(d.eni) == i))
    }

    /// Gives back wholly free blocks of interface `i`; returns what is left of the surplus.
    fn release_blocks(&mut self, i: usize, mut left: i64) -> i64 {
        let pool = self.pool;
        for block in pool.blocks.iter() {
            let size = clamp(block.size(pool.pool.family));
            let here = block.eni.map(usize::from) == Some(i) && block.is_usable() && block.is_idle();
            if here && size <= left && self.actions.len() < MAX_ACTIONS {
                left -= size;
                self.released += size;
                self.push(Action::ReleaseBlock(block.index));
            }
        }
        left
    }

    /// Gives back lone addresses of interface `i` in one call, those that nobody had first, then the longest free;
    /// returns what is left of the surplus.
    fn release_rows(&mut self, i: usize, left: i64) -> i64 {
        let mut rows: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        for row in self.pool.rows.iter() {
            if row.eni.map(usize::from) == Some(i) && row.is_releasable() {
                let age = if row.last_pod_key == 0 { 0 } else { row.free_since_ms };
                rows.push(Reverse((age, row.index)));
            }
        }
        // A heap, not a sort: a fifth of the code, and often only a few are taken.
        let mut taken: Vec<u32> = Vec::new();
        while (taken.len() as i64) < left
            && let Some(Reverse((_, index))) = rows.pop()
        {
            taken.push(index);
        }
        let n = taken.len() as i64;
        if n > 0 && self.actions.len() < MAX_ACTIONS {
            self.released += n;
            self.push(Action::ReleaseRows(taken));
        }
        left - n
    }

    /// Asks to be called again in at most so many ms, even if nothing changes.
    pub fn recheck(&mut self, ms: u32) {
        self.recheck_ms = Some(self.recheck_ms.map_or(ms, |old| old.min(ms)).max(1));
    }

    fn push(&mut self, action: Action) {
        if self.actions.len() < MAX_ACTIONS {
            self.actions.push(action);
        }
    }

    /// The answer: the plan with the figures that it rests on.
    pub fn decide(self, reason: &str) -> Decision {
        let mut text = String::from(reason);
        if !self.blocked.is_empty() {
            text.push_str("; ");
            text.push_str(self.blocked);
        }
        let figures = [("free", self.free), ("coming", self.coming), ("waiting", self.waiting), ("total", self.total)];
        let mut answer = Decision::new(self.actions, text);
        for (key, value) in figures {
            answer = answer.fact(key, value);
        }
        answer.recheck_ms = self.recheck_ms;
        answer
    }
}

fn clamp(n: u64) -> i64 {
    (n as i64).clamp(0, MANY)
}
