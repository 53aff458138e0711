//! What the tests share: one engine, built-in calls with another clock or pod, and random but consistent pools.

use std::sync::{Arc, OnceLock};

use wipam_core::{
    ids::pod_key,
    policy::{
        AllocateCall, Barrier, BlockSet, CloudView, Counts, Demand, EniView, Memo, NO_BLOCK, NO_ENI, OutcomeView,
        PlanCall, Pod, ReleaseCall, RowSet, SettingValue, Slot, Snapshot, SubnetView, eni_marks, row_marks,
    },
};
use wipam_policy::{
    Document, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyHost, Vetted, WasmEngine, embedded, golden,
    load::NoFiles, settings::Written,
};
use wipam_policy_fixtures::{Expect, Fixture, hostile};

pub fn engine() -> Arc<WasmEngine> {
    static ENGINE: OnceLock<Arc<WasmEngine>> = OnceLock::new();
    ENGINE.get_or_init(|| WasmEngine::new(EngineLimits::default()).expect("address space")).clone()
}

/// A gatekeeper over the shared engine. What most tests use is kept compiled: a debug build takes half a second each.
pub fn gatekeeper() -> Gatekeeper {
    static KEPT: OnceLock<Vec<Arc<Vetted>>> = OnceLock::new();
    let keeper = Gatekeeper::new(engine(), Environment::default());
    KEPT.get_or_init(|| {
        let keeper = keeper.clone().without_canary();
        let vet = |slot, bytes: &[u8]| keeper.vet_bytes(slot, "kept", bytes, &Written::new()).expect("vets");
        let mut kept = vec![vet(Slot::Allocator, &hostile("none", "", Expect::Legal).bytes)];
        for shipped in embedded::all() {
            let slot = if shipped.native.fills(Slot::Sizer) { Slot::Sizer } else { Slot::Allocator };
            kept.push(vet(slot, shipped.component));
        }
        kept
    });
    keeper
}

pub fn document(yaml: &str) -> Document {
    Document::parse(yaml).expect("a good document")
}

pub fn wasm(yaml: &str) -> PolicyHost {
    gatekeeper();
    PolicyHost::wasm(engine(), &document(yaml), &NoFiles, Environment::default(), HostOptions::default())
        .expect("loads")
}

pub fn written(fixture: &Fixture) -> Written {
    fixture.settings.iter().map(|(k, v)| ((*k).to_owned(), SettingValue::Text((*v).to_owned()))).collect()
}

/// The question of pod `name` to a pool with free lone addresses, at `now_ms`.
pub fn allocate(name: &str, now_ms: u64) -> AllocateCall {
    let mut call = golden::all().remove(1).allocate;
    call.request.pod.name = name.into();
    call.request.pod.key = pod_key("default", name);
    call.given.now_ms = now_ms;
    call
}

pub fn release(now_ms: u64) -> ReleaseCall {
    let mut call = golden::all().remove(1).release;
    call.given.now_ms = now_ms;
    call
}

/// `waiting` makes the hostile sizer misbehave.
pub fn plan(waiting: u32, now_ms: u64) -> PlanCall {
    let mut call = golden::all().remove(1).plan;
    call.demand.waiting = waiting;
    call.given.now_ms = now_ms;
    call
}

/// A small generator of numbers (SplitMix64): the cases come from proptest's seed, so they can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

const NOW: u64 = 1_800_000_000_000;

pub struct World {
    pub allocate: AllocateCall,
    pub release: ReleaseCall,
    pub plan: PlanCall,
}

/// A random pool of any kind, with questions about it.
pub fn random(random: &mut Random) -> World {
    let mut golden = golden::all().remove(1);
    let pool = snapshot(random);
    let pod = pod(random);
    golden.allocate.request.pod = pod.clone();
    golden.allocate.request.attempt = random.below(3) as u32;
    golden.allocate.given.seed = random.next();
    golden.release.lease.pod = pod;
    golden.release.lease.cause = random.pick(&["del", "gc", "gone", "superseded"]).into();
    golden.release.counts = pool.counts;
    golden.plan.cloud = cloud(random, &pool);
    golden.plan.demand = demand(random);
    golden.plan.memo = Memo::default();
    golden.plan.pool = pool.clone();
    golden.allocate.pool = pool;
    World { allocate: golden.allocate, release: golden.release, plan: golden.plan }
}

fn pod(random: &mut Random) -> Pod {
    let name = format!("{}-{}", random.pick(&["web", "db", "job-x7k2p"]), random.below(4));
    Pod {
        namespace: "default".into(),
        key: pod_key("default", &name),
        name,
        facts_known: random.chance(60),
        owner_kind: random.pick(&["StatefulSet", "ReplicaSet", ""]).into(),
        ..Pod::default()
    }
}

fn demand(random: &mut Random) -> Demand {
    let adds_10s = random.below(12) as u32;
    Demand {
        waiting: if random.chance(40) { random.below(6) as u32 } else { 0 },
        oldest_wait_ms: random.below(5_000),
        adds_10s,
        adds_1m: adds_10s + random.below(20) as u32,
        dels_1m: random.below(20) as u32,
        failed_1m: random.below(3) as u32,
        pending_pods: random.chance(30).then(|| random.below(9) as u32),
        schedulable: random.chance(90),
        stopping: random.chance(5),
    }
}

fn cloud(random: &mut Random, pool: &Snapshot) -> CloudView {
    let barrier = Barrier {
        op: random.pick(&["attach", "grow", "release", "detach"]).into(),
        subnet: random.pick(&[0, 255]),
        code: "throttled".into(),
        until_ms: NOW + random.below(10_000),
    };
    let outcome = OutcomeView {
        op: random.pick(&["attach", "grow", "release", "detach", "drain"]).into(),
        eni: random.below(pool.enis.len() as u64 + 1) as u8,
        asked: 3,
        applied: random.below(4) as u32,
        code: random.pick(&["", "throttled", "guard-10"]).into(),
        at_ms: NOW - random.below(90_000),
    };
    CloudView {
        subnets: (0..random.below(3))
            .map(|n| SubnetView {
                id: format!("subnet-{n}"),
                free: random.chance(80).then(|| random.below(300)),
                ..SubnetView::default()
            })
            .collect(),
        barriers: if random.chance(20) { vec![barrier] } else { vec![] },
        in_flight: if random.chance(20) { vec![outcome.clone()] } else { vec![] },
        last: if random.chance(50) { vec![outcome] } else { vec![] },
    }
}

fn push(rows: &mut RowSet, address: u64, eni: u8, block: u16, marks: u16, since: u64, key: u64) {
    rows.address_hi.push(0);
    rows.address_lo.push(address);
    rows.eni.push(eni);
    rows.block.push(block);
    rows.marks.push(marks);
    rows.free_since_ms.push(since);
    rows.until_ms.push(if marks & 15 == 0 { 0 } else { NOW + 30_000 });
    rows.last_pod_key.push(key);
}

/// Interfaces with lone addresses, or with prefixes, or a range without interfaces.
fn snapshot(random: &mut Random) -> Snapshot {
    let mut pool = golden::all().remove(0).plan.pool;
    pool.pool.may_grow = random.chance(90);
    pool.pool.unit_length = random.pick(&[32, 28]);
    pool.pool.cooldown_ms = random.pick(&[0, 30_000]);
    pool.limits.max_enis = 1 + random.below(8) as u16;
    pool.limits.slots_per_eni = 1 + random.below(14) as u16;
    pool.limits.max_pods = 1 + random.below(120) as u32;
    pool.enis.clear();
    pool.rows = RowSet::default();
    if random.chance(15) {
        range(random, &mut pool);
        return pool;
    }
    for n in 0..=random.below(u64::from(pool.limits.max_enis)) as u8 {
        eni(random, &mut pool, n);
    }
    sums(&mut pool);
    pool
}

fn eni(random: &mut Random, pool: &mut Snapshot, n: u8) {
    let slots = pool.limits.slots_per_eni;
    let used = random.below(u64::from(slots) + 1) as u16;
    let odd =
        [0, 0, 0, 0, eni_marks::DRAINING, eni_marks::ATTACHING, eni_marks::NOT_FILLABLE, eni_marks::NOT_REMOVABLE];
    let mut view = EniView {
        id: format!("eni-{n:017x}"),
        device_index: n,
        marks: if n == 0 { eni_marks::PRIMARY } else { random.pick(&odd) },
        slots,
        slots_used: used,
        slots_moving: random.below(u64::from(slots - used) + 1) as u16 * u16::from(random.chance(20)),
        attached_at_ms: NOW - random.below(200_000),
        ..EniView::default()
    };
    let base = 0x0a00_0000 + u64::from(n) * 65_536;
    for slot in 0..u64::from(used) {
        if pool.pool.unit_length == 28 {
            block(random, pool, &mut view, n, base + slot * 16);
        } else {
            address(random, pool, &mut view, n, NO_BLOCK, base + slot);
        }
    }
    pool.enis.push(view);
}

/// One address in a random state; offered if its state and its interface allow.
fn address(random: &mut Random, pool: &mut Snapshot, view: &mut EniView, eni: u8, block: u16, address: u64) {
    let (keys, own) = ([0, pod_key("default", "web-0"), pod_key("default", "db-1"), 77], pod_key("default", "web-0"));
    let offered = view.marks & (eni_marks::ATTACHING | eni_marks::DRAINING) == 0;
    let since = NOW - random.below(300_000);
    let column = |pool: &mut Snapshot, of: fn(&mut BlockSet) -> &mut Vec<u32>| {
        if let Some(count) = of(&mut pool.blocks).get_mut(usize::from(block)) {
            *count += 1;
        }
    };
    match random.below(10) {
        0..4 => {
            view.assigned += 1;
            column(pool, |b| &mut b.assigned);
        }
        4 => {
            view.cooling += 1;
            column(pool, |b| &mut b.cooling);
            if random.chance(30) {
                push(&mut pool.rows, address, eni, block, row_marks::COOLING_OWN, since, own);
            }
        }
        5 => {
            view.reserved += 1;
            column(pool, |b| &mut b.reserved);
            let mark = random.pick(&[row_marks::RESERVED_OWN, row_marks::RESERVED_OTHER]);
            push(
                &mut pool.rows,
                address,
                eni,
                block,
                mark,
                since,
                if mark == row_marks::RESERVED_OWN { own } else { 9 },
            );
        }
        6 => {
            view.held += 1;
            column(pool, |b| &mut b.held);
        }
        _ => {
            view.free += 1;
            let never = random.chance(40);
            if never && let Some(untouched) = pool.blocks.untouched.get_mut(usize::from(block)) {
                *untouched += 1;
            }
            if offered {
                let (marks, since, key) =
                    if never { (row_marks::NEVER_USED, 0, 0) } else { (0, since, random.pick(&keys)) };
                push(&mut pool.rows, address, eni, block, marks, since, key);
            }
        }
    }
}

fn block(random: &mut Random, pool: &mut Snapshot, view: &mut EniView, eni: u8, base: u64) {
    let blocks = &mut pool.blocks;
    let index = blocks.len() as u16;
    blocks.eni.push(eni);
    blocks.length.push(28);
    blocks.base_hi.push(0);
    blocks.base_lo.push(base);
    for column in [&mut blocks.assigned, &mut blocks.cooling, &mut blocks.reserved, &mut blocks.held] {
        column.push(0);
    }
    blocks.untouched.push(0);
    blocks.marks.push(u16::from(random.chance(10)));
    let idle = random.chance(30);
    for offset in 0..16 {
        if idle {
            view.free += 1;
            pool.blocks.untouched[usize::from(index)] += 1;
            push(&mut pool.rows, base + offset, eni, index, row_marks::NEVER_USED, 0, 0);
        } else {
            address(random, pool, view, eni, index, base + offset);
        }
    }
}

fn range(random: &mut Random, pool: &mut Snapshot) {
    pool.pool.kind = "range".into();
    pool.pool.unit_length = 24;
    let mut view = EniView::default();
    block(random, pool, &mut view, NO_ENI, 0x0a63_0000);
    pool.blocks.length[0] = 24;
    pool.enis = vec![view];
    sums(pool);
    pool.enis.clear();
    pool.blocks.untouched[0] += 200;
    pool.counts.free += 200;
    pool.counts.total += 200;
    pool.rows_left_out = 200;
}

fn sums(pool: &mut Snapshot) {
    let sum = |of: fn(&EniView) -> u32| pool.enis.iter().map(|e| u64::from(of(e))).sum::<u64>();
    let (assigned, free, cooling) = (sum(|e| e.assigned), sum(|e| e.free), sum(|e| e.cooling));
    let (reserved, held) = (sum(|e| e.reserved), sum(|e| e.held));
    let moving = pool.enis.iter().map(|e| u64::from(e.slots_moving)).sum();
    let total = assigned + free + cooling + reserved + held;
    pool.counts = Counts { total, assigned, free, cooling, reserved, held, assigning: moving, ..Counts::default() };
}
