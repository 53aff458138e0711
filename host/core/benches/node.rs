//! Inner loops of core: an ADD with a warm pool, the offer at several pool sizes, and the checkpoint's bytes.
//!
//! Run with `cargo bench -p wipam-core`. Absolute times mean little on shared machines; the ratios between the rows do.

#[path = "../tests/world/mod.rs"]
mod world;

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use wipam_core::pool::{Asker, Pool, State};
use wipam_core::saved::{Clock, Stamp};
use world::{Deciders, Temper, World};

/// A node with `pods` pods and a pool of 735 addresses (15 interfaces of 49).
fn node(pods: usize) -> World {
    let mut w = World::new(15, 49, Deciders::new(Temper::Kind, 735 - pods as i64, 3), 3);
    w.run(60_000);
    for i in 0..pods {
        w.add(&format!("container-{i}"), &format!("pod-{i}"), "5d9d8f1e-6a4b-4c7e-9a53-1a2b3c4d5e6f", 100_000);
    }
    w.run(120_000);
    w.deciders.plans.clear();
    w
}

fn add_and_del(c: &mut Criterion) {
    let mut group = c.benchmark_group("add and del in core");
    for pods in [10, 500, 700] {
        group.bench_function(BenchmarkId::from_parameter(pods), |b| {
            let mut w = node(pods);
            w.cfg.cooldown = 0;
            let mut n = 0u64;
            b.iter(|| {
                n += 1;
                let name = format!("bench-{n}");
                let call = w.add(&name, "bench-pod", "uid", 100_000);
                w.run(3);
                black_box(w.address(call));
                w.del(&name);
                w.run(31_000);
            });
        });
    }
    group.finish();
}

fn offer(c: &mut Criterion) {
    let mut group = c.benchmark_group("offer, 200 leases");
    for length in [22u8, 16, 10] {
        let mut pool = Pool::new("n", 0, true, 4);
        let base = 0x6440_0000u128;
        let last = base + (1u128 << (32 - length)) - 2;
        pool.add_block(None, base, length, base + 1, last, vec![], None);
        for i in 0..200 {
            pool.set(base + 1 + i, Some(State::Leased(i as u64)));
        }
        group.bench_function(BenchmarkId::from_parameter(format!("/{length}")), |b| {
            b.iter(|| black_box(pool.offer(Some(&Asker::default()))).addrs.len());
        });
    }
    group.finish();
}

fn encode(c: &mut Criterion) {
    let mut w = node(500);
    let stamp = Stamp {
        instance: "i-0123456789abcdef0".into(),
        boot: "boot".into(),
        clock: Clock { pool_ms: w.now, wall_ns: 1, boottime_ms: 1 },
        previous_ipam: None,
    };
    let digest = |b: &[u8]| b.len().to_string();
    w.node.encode(&stamp, &digest);
    c.bench_function("checkpoint, 500 leases, one new", |b| {
        let mut n = 0;
        b.iter_batched(
            || {
                n += 1;
                let name = format!("enc-{n}");
                let key = World::key("aws-cni", &name);
                w.add(&name, "enc", "uid", 100_000);
                let bytes = w.node.encode(&stamp, &digest).state.len();
                w.del_key(key);
                w.run(31_000);
                bytes
            },
            |_| (),
            BatchSize::PerIteration,
        );
    });
    c.bench_function("checkpoint, 500 leases, bytes only", |b| {
        b.iter(|| black_box(w.node.encode(&stamp, &digest)).state.len());
    });
}

criterion_group!(benches, add_and_del, offer, encode);
criterion_main!(benches);
