//! A decision through Wasm beside its native twin, at 50, 735 and 4000 rows; log and digest included, as in the daemon.
//!
//! `cargo bench -p wipam-policy` prints criterion's medians and, after them, percentiles of single decisions.

use std::{hint::black_box, sync::Arc, time::Instant};

use criterion::{BenchmarkId, Criterion};
use wipam_core::policy::{AllocateCall, Memo, NO_BLOCK, PlanCall, Policies, RowSet, row_marks};
use wipam_policy::{Document, EngineLimits, Environment, HostOptions, PolicyHost, WasmEngine, golden, load::NoFiles};

const ROWS: [usize; 3] = [50, 735, 4000];

/// The built-in large pool with so many rows, in fifteen interfaces.
fn calls(rows: usize) -> (AllocateCall, PlanCall) {
    let golden = golden::all().into_iter().find(|g| g.name == "large").unwrap_or_else(|| golden::all().remove(1));
    let mut set = RowSet::default();
    for n in 0..rows as u64 {
        set.address_hi.push(0);
        set.address_lo.push(0x0a00_0000 + n);
        set.eni.push((n as usize * 15 / rows) as u8);
        set.block.push(NO_BLOCK);
        set.marks.push(if n % 3 == 0 { row_marks::NEVER_USED } else { 0 });
        set.free_since_ms.push(if n % 3 == 0 { 0 } else { 1_799_999_000_000 + n * 7919 % 100_000 });
        set.until_ms.push(0);
        set.last_pod_key.push(if n % 3 == 0 { 0 } else { (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) });
    }
    let (mut allocate, mut plan) = (golden.allocate, golden.plan);
    allocate.pool.rows = set.clone();
    allocate.pool.counts.free = rows as u64;
    plan.pool.rows = set;
    plan.pool.counts.free = rows as u64;
    plan.memo = Memo::default();
    (allocate, plan)
}

fn hosts(yaml: &str) -> Result<[(&'static str, PolicyHost); 3], Box<dyn std::error::Error>> {
    let engine: Arc<WasmEngine> = WasmEngine::new(EngineLimits::default())?;
    let env = Environment::default;
    let document = Document::parse(yaml)?;
    let wasm = |options| PolicyHost::wasm(engine.clone(), &document, &NoFiles, env(), options);
    let native = PolicyHost::native(&document, env(), HostOptions::quiet())?;
    Ok([("wasm", wasm(HostOptions::default())?), ("wasm-quiet", wasm(HostOptions::quiet())?), ("native", native)])
}

fn percentiles(name: &str, mut call: impl FnMut()) {
    const CALLS: usize = 20_000;
    for _ in 0..500 {
        call();
    }
    let mut times: Vec<_> = (0..CALLS)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((CALLS - 1) as f64 * part) as usize];
    println!("{name:<40} median {:>7.1} µs   p99 {:>7.1} µs   p99.9 {:>7.1} µs", at(0.5), at(0.99), at(0.999));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let policies = "allocator: sticky-podref\nsizer: warm-ip-target\n";
    let mut group = criterion.benchmark_group("decision");
    for (kind, mut host) in hosts(policies)? {
        for rows in ROWS {
            let (allocate, plan) = calls(rows);
            group.bench_function(BenchmarkId::new(format!("allocate/{kind}"), rows), |b| {
                b.iter(|| black_box(host.allocate(black_box(&allocate), false)));
            });
            group.bench_function(BenchmarkId::new(format!("plan/{kind}"), rows), |b| {
                b.iter(|| black_box(host.plan(black_box(&plan), false)));
            });
        }
    }
    group.finish();
    for (kind, mut host) in hosts(policies)? {
        for rows in ROWS {
            let (allocate, plan) = calls(rows);
            percentiles(&format!("allocate {kind} {rows} rows"), || drop(black_box(host.allocate(&allocate, false))));
            percentiles(&format!("plan {kind} {rows} rows"), || drop(black_box(host.plan(&plan, false))));
            host.allocate(&allocate, false);
            host.plan(&plan, false);
            // The same on every machine, unlike the times.
            let fuel: Vec<_> = host.control().decisions(2).into_iter().filter_map(|d| d.fuel).collect();
            if !fuel.is_empty() {
                println!("fuel of these two {kind} decisions: {fuel:?}");
            }
        }
    }
    criterion.final_summary();
    Ok(())
}
