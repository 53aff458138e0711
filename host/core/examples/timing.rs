//! Prints how long one ADD takes inside core, without disk: percentiles over many, for the budget table.
#[path = "../tests/world/mod.rs"]
mod world;
use std::time::Instant;
use wipam_core::event::{Add, Event, PodRef};
use wipam_core::saved::{Clock, Stamp};
use world::{Deciders, Temper, World};

fn main() {
    for pods in [10usize, 300, 500, 700] {
        let mut w = World::new(15, 49, Deciders::new(Temper::Kind, 735 - pods as i64, 3), 3);
        w.run(60_000);
        for i in 0..pods {
            w.add(&format!("container-{i}"), &format!("pod-{i}"), "uid", 100_000);
        }
        w.run(120_000);
        let mut times = Vec::new();
        let mut enc = Vec::new();
        for n in 0..300u64 {
            let key = World::key("aws-cni", &format!("bench-{n}"));
            let add = Add {
                key: key.clone(),
                pod: PodRef { namespace: "default".into(), name: "bench".into(), uid: format!("u{n}") },
                netns: None,
                host_ifname: "enibench".into(),
                requested: vec![],
                deadline: w.now + 100_000,
                ranges: None,
            };
            let at = Instant::now();
            let effects = w.node.handle(w.now, Event::Add { call: 1_000_000 + n, add: Box::new(add) }, &mut w.deciders);
            times.push(at.elapsed().as_nanos() as u64);
            let stamp = Stamp { clock: Clock { pool_ms: w.now, ..Clock::default() }, ..Stamp::default() };
            let at = Instant::now();
            let bytes = w.node.encode(&stamp, &|b| b.len().to_string());
            enc.push(at.elapsed().as_nanos() as u64);
            drop(bytes);
            for e in effects {
                if let wipam_core::event::Effect::Persist { seq } = e {
                    w.feed(Event::Persisted { seq, error: None });
                }
            }
            w.del_key(key);
            w.run(40_000);
            w.deciders.plans.clear();
        }
        times.sort_unstable();
        enc.sort_unstable();
        let q = |v: &[u64], p: usize| v[(v.len() - 1) * p / 100] as f64 / 1000.0;
        println!(
            "{pods} pods of 735: ADD p50 {:.1} µs p99 {:.1} µs; encode p50 {:.1} µs p99 {:.1} µs",
            q(&times, 50),
            q(&times, 99),
            q(&enc, 50),
            q(&enc, 99)
        );
    }
}
