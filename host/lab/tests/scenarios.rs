//! The seed scenarios, in virtual time, against the simulated VPC and the shipped policies: each through the native
//! twins, and the figures of the sizers through the components as well.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::collections::BTreeMap;

use wipam_core::event::{Event, Ms};
use wipam_lab::sim::{BEGIN, NodeSim, Trace};
use wipam_policy::load::NoFiles;
use wipam_policy::{Document, EngineLimits, Environment, HostOptions, PolicyHost, WasmEngine};
use wipam_vpc_sim::model::{FaultEffect, FaultRule, InstanceConfig, SubnetConfig, Timing, Vpc, VpcConfig};

const NODE: &str = "i-0000000000000000a";

fn vpc(instance_type: &str, tune: impl FnOnce(&mut VpcConfig)) -> Vpc {
    let mut config = VpcConfig {
        subnets: vec![SubnetConfig {
            id: "subnet-a".into(),
            cidr: "10.0.0.0/20".parse().unwrap(),
            ..SubnetConfig::default()
        }],
        instances: vec![InstanceConfig {
            id: NODE.into(),
            instance_type: instance_type.into(),
            subnet: "subnet-a".into(),
            ..InstanceConfig::default()
        }],
        timing: Timing::typical(),
        ..VpcConfig::default()
    };
    tune(&mut config);
    Vpc::new(config).unwrap()
}

fn native(document: &str, env: &[(&str, &str)]) -> PolicyHost {
    let document = Document::parse(document).unwrap();
    PolicyHost::native(&document, Environment::from_pairs(env.iter().copied()), HostOptions::quiet()).unwrap()
}

fn wasm(document: &str, env: &[(&str, &str)]) -> PolicyHost {
    let document = Document::parse(document).unwrap();
    let engine = WasmEngine::new(EngineLimits::default()).unwrap();
    let environment = Environment::from_pairs(env.iter().copied());
    PolicyHost::wasm(engine, &document, &NoFiles, environment, HostOptions::quiet()).unwrap()
}

fn start(instance_type: &str, policies: &mut PolicyHost) -> NodeSim {
    let mut sim = NodeSim::new(vpc(instance_type, |_| ()), NODE, |_| ());
    sim.serve(policies);
    sim.run(policies, 60_000);
    sim
}

// ---- sticky after restart ----

/// Three addresses in the whole pool, three pods on them.
fn three_pods(policies: &mut PolicyHost) -> (NodeSim, Vec<std::net::IpAddr>) {
    // A t3.small carries 3 addresses on each interface; one interface only.
    let mut sim = NodeSim::new(vpc("t3.small", |_| ()), NODE, |c| c.max_enis = 1);
    sim.serve(policies);
    sim.run(policies, 60_000);
    let calls: Vec<_> =
        (0..3).map(|i| sim.add(policies, &format!("old-{i}"), &format!("web-{i}"), &format!("uid-{i}"))).collect();
    sim.run(policies, 60_000);
    let addresses = calls.iter().map(|c| sim.address(*c).expect("an address")).collect();
    (sim, addresses)
}

fn sticky() -> PolicyHost {
    native("allocator: sticky-podref", &[("WARM_IP_TARGET", "1")])
}

#[test]
fn sticky_after_restart() {
    let mut p = sticky();
    let (mut sim, before) = three_pods(&mut p);
    // The kubelet restarts: new container ids come by ADD, and no DEL came.
    let again: Vec<_> =
        (0..3).map(|i| sim.add(&mut p, &format!("new-{i}"), &format!("web-{i}"), &format!("uid-{i}"))).collect();
    sim.run(&mut p, 10_000);
    let after: Vec<_> = again.iter().map(|c| sim.address(*c).expect("no ADD fails")).collect();
    assert_eq!(before, after, "every pod gets its own address back");
    assert!(sim.trace.failed.is_empty());
    // The late DEL of a superseded sandbox changes nothing.
    sim.del(&mut p, "old-1");
    sim.run(&mut p, 60_000);
    let key = sim.key("new-1");
    assert_eq!(sim.node.check(&key).map(|(a, _)| a[0].address.addr()), Some(before[1]));
}

#[test]
fn sticky_after_restart_a_fourth_pod_is_told_for_whom_the_address_is_held() {
    let mut p = sticky();
    let (mut sim, _) = three_pods(&mut p);
    sim.dead.insert("old-0".into());
    let key = sim.key("old-0");
    sim.feed(&mut p, Event::Liveness { key, alive: false });
    let held_since = sim.now;
    let fourth = sim.add(&mut p, "c4", "web-9", "uid-9");
    sim.run(&mut p, 101_000);
    let why = sim.refusal(fourth).expect("a full pool");
    assert!(why.contains("held"), "{why}");
    assert!(why.contains("default/web-0"), "{why}");
    assert!(why.contains(&(held_since + 600_000).to_string()), "{why}");
}

#[test]
fn sticky_after_restart_with_another_uid_the_old_sandbox_is_fenced_and_the_address_cools() {
    let mut p = sticky();
    let (mut sim, before) = three_pods(&mut p);
    let begun = sim.now;
    let call = sim.add(&mut p, "new-0", "web-0", "another-uid");
    sim.run(&mut p, 5_000);
    assert!(sim.dead.contains("old-0"), "the old sandbox is fenced first");
    assert_eq!(sim.node.pool().counts().cooling, 1);
    assert!(!sim.replies.contains_key(&call), "on a full pool the ADD waits for the cool-down");
    sim.run(&mut p, 40_000);
    assert_eq!(sim.address(call), Some(before[0]));
    assert!(sim.now >= begun + 30_000);
}

#[test]
fn sticky_after_restart_a_pod_deleted_while_the_node_was_down_gives_its_address_back_after_held_for() {
    let mut p = sticky();
    let (mut sim, before) = three_pods(&mut p);
    sim.dead.insert("old-2".into());
    sim.restart(&mut p);
    sim.run(&mut p, 590_000);
    assert_eq!(sim.node.pool().counts().held, 1);
    let call = sim.add(&mut p, "c4", "web-9", "uid-9");
    sim.run(&mut p, 80_000);
    assert_eq!(sim.address(call), Some(before[2]), "{:?}", sim.refusal(call));
}

#[test]
fn sticky_after_restart_the_same_after_a_reboot() {
    let mut p = sticky();
    let (mut sim, before) = three_pods(&mut p);
    sim.reboot(&mut p);
    sim.run(&mut p, 5_000);
    let again: Vec<_> =
        (0..3).map(|i| sim.add(&mut p, &format!("new-{i}"), &format!("web-{i}"), &format!("uid-{i}"))).collect();
    sim.run(&mut p, 10_000);
    let after: Vec<_> = again.iter().map(|c| sim.address(*c).expect("no ADD fails")).collect();
    assert_eq!(before, after);
}

// ---- warm target on a t2.medium ----

fn both(document: &str, env: &[(&str, &str)]) -> [(&'static str, PolicyHost); 2] {
    [("native", native(document, env)), ("wasm", wasm(document, env))]
}

fn pods(sim: &mut NodeSim, p: &mut PolicyHost, from: usize, to: usize) {
    for i in from..to {
        sim.add(p, &format!("c{i}"), &format!("pod-{i}"), "uid");
    }
    sim.run(p, 60_000);
}

#[test]
fn warm_target_on_a_t2_medium() {
    for (kind, mut p) in both("", &[("WARM_IP_TARGET", "1")]) {
        let mut sim = start("t2.medium", &mut p);
        pods(&mut sim, &mut p, 0, 2);
        let c = sim.node.pool().counts();
        assert_eq!((c.assigned, c.free), (2, 1), "{kind}: 2 pods, exactly 1 more address free");
        pods(&mut sim, &mut p, 2, 5);
        let c = sim.node.pool().counts();
        assert_eq!((c.assigned, c.free), (5, 1), "{kind}");
        let enis: Vec<u16> = sim.node.pool().enis().map(|(_, e)| e.lone_count).collect();
        assert_eq!(enis, [5, 1], "{kind}: one further interface with exactly 1 address");
    }
}

#[test]
fn warm_five_on_a_t2_medium() {
    for (kind, mut p) in both("", &[("WARM_IP_TARGET", "5")]) {
        let mut sim = start("t2.medium", &mut p);
        assert_eq!(sim.node.pool().counts().free, 5, "{kind}: 5 free at the start");
        let before = sim.trace.address_calls();
        pods(&mut sim, &mut p, 0, 3);
        assert_eq!(sim.node.pool().counts().free, 5, "{kind}");
        assert_eq!(sim.trace.address_calls() - before, 1, "{kind}: 3 more are asked for in one call");
    }
}

#[test]
fn the_default_policy_on_a_t2_medium() {
    for (kind, mut p) in both("", &[]) {
        let mut sim = start("t2.medium", &mut p);
        pods(&mut sim, &mut p, 0, 2);
        assert_eq!(sim.node.pool().enis().count(), 2, "{kind}: one extra interface");
        assert_eq!(sim.node.pool().counts().total, 10, "{kind}: 10 addresses in all");
    }
}

// ---- 0 to 232 pods on an m4.4xlarge ----

/// Pods at a steady pace; `gap` is milliseconds between two. Says when the last came.
fn burst(p: &mut PolicyHost, count: usize, gap: Ms) -> (NodeSim, Ms) {
    let mut sim = start("m4.4xlarge", p);
    let begin = sim.now;
    for i in 0..count {
        sim.run_until(p, begin + i as Ms * gap);
        sim.add(p, &format!("c{i}"), &format!("pod-{i}"), "uid");
    }
    let last = sim.now;
    (sim, last)
}

/// Until the last ADD unassigned addresses never exceed warm and the last minute's ADDs; after it they never rise,
/// except by calls already in flight.
fn bounded(kind: &str, trace: &Trace, warm: u64, last: Ms) {
    for s in &trace.samples {
        if s.at <= last {
            assert!(
                s.total - s.assigned <= warm + s.adds_1m,
                "{kind}: at {} ms {} unassigned, {} ADDs in the last minute",
                s.at - BEGIN,
                s.total - s.assigned,
                s.adds_1m
            );
        }
    }
    let mut lowest = None;
    for s in trace.samples.iter().filter(|s| s.at > last + 20_000) {
        let unassigned = s.total - s.assigned;
        let low = *lowest.get_or_insert(unassigned);
        assert!(unassigned <= low, "{kind}: {unassigned} unassigned at {}, {low} before", s.at - last);
        lowest = Some(low.min(unassigned));
    }
}

#[test]
fn from_0_to_232_pods_on_an_m4_4xlarge() {
    let paces: [(&str, Ms); 4] = [("all at once", 0), ("10/s", 100), ("4/s", 250), ("1/s", 1_000)];
    for (pace, gap) in paces {
        for (kind, mut p) in both("", &[("WARM_IP_TARGET", "1")]) {
            let (mut sim, last) = burst(&mut p, 232, gap);
            sim.run(&mut p, 120_000);
            let name = format!("{pace}, {kind}");
            assert!(sim.trace.failed.is_empty(), "{name}: {:?}", sim.trace.failed);
            assert_eq!(sim.node.pool().counts().assigned, 232, "{name}");
            let calls = sim.trace.address_calls();
            println!("{name}: {calls} address calls; all calls {:?}", sim.trace.calls);
            assert!(calls <= 20, "{name}: {calls} address calls, {:?}", sim.trace.calls);
            bounded(&name, &sim.trace, 1, last);
        }
    }
}

#[test]
fn one_pod_every_30_s_on_an_m4_4xlarge() {
    for (kind, mut p) in both("", &[("WARM_IP_TARGET", "1")]) {
        let mut sim = start("m4.4xlarge", &mut p);
        assert_eq!(sim.node.pool().counts().free, 1, "{kind}");
        for i in 0..40 {
            let before = sim.trace.address_calls();
            sim.add(&mut p, &format!("c{i}"), &format!("pod-{i}"), "uid");
            sim.run(&mut p, 30_000);
            assert_eq!(sim.node.pool().counts().free, 1, "{kind}: exactly 1 free at rest after pod {i}");
            assert!(sim.trace.address_calls() - before <= 1, "{kind}: at most one address call per pod");
        }
    }
}

#[test]
fn a_burst_that_stops_at_120_pods_comes_to_rest() {
    for gap in [0, 100, 250, 1_000] {
        for (kind, mut p) in both("", &[("WARM_IP_TARGET", "1")]) {
            let (mut sim, last) = burst(&mut p, 120, gap);
            let before: BTreeMap<String, u32> = sim.trace.releases.clone();
            sim.run_until(&mut p, last + 90_000);
            let c = sim.node.pool().counts();
            assert_eq!((c.assigned, c.free), (120, 1), "{kind}, gap {gap}: exactly 1 free 90 s after the last ADD");
            for (eni, n) in &sim.trace.releases {
                let here = n - before.get(eni).copied().unwrap_or(0);
                assert!(here <= 1, "{kind}, gap {gap}: {here} release calls on {eni}");
            }
            bounded(&format!("{kind}, gap {gap}"), &sim.trace, 1, last);
        }
    }
}

// ---- what else the issue names ----

#[test]
fn a_partial_answer_is_completed_by_later_plans() {
    let mut p = native("", &[("WARM_IP_TARGET", "3")]);
    let rule = FaultRule::nth("AssignPrivateIpAddresses", 1, FaultEffect::Partial { addresses: 2 });
    let mut sim = NodeSim::new(vpc("t2.medium", |c| c.faults.push(rule)), NODE, |_| ());
    sim.serve(&mut p);
    sim.run(&mut p, 120_000);
    assert_eq!(sim.node.pool().counts().free, 3);
    assert_eq!(sim.trace.count("AssignPrivateIpAddresses"), 2, "2 of 3, then the third");
}

#[test]
fn cooling_addresses_are_not_free() {
    let mut p = native("", &[("WARM_IP_TARGET", "2")]);
    let mut sim = start("m5.large", &mut p);
    pods(&mut sim, &mut p, 0, 3);
    for i in 0..3 {
        sim.del(&mut p, &format!("c{i}"));
    }
    sim.run(&mut p, 10_000);
    let c = sim.node.pool().counts();
    assert_eq!((c.cooling, c.free), (3, 2), "the target is kept from what is usable");
}

#[test]
fn nothing_is_released_that_the_next_plan_would_ask_for_again() {
    let mut p = native("", &[("WARM_IP_TARGET", "2")]);
    let mut sim = start("m5.large", &mut p);
    pods(&mut sim, &mut p, 0, 6);
    for i in 0..4 {
        sim.del(&mut p, &format!("c{i}"));
    }
    sim.run(&mut p, 1_200_000);
    assert_eq!(sim.node.pool().counts().free, 2);
    let calls = (sim.trace.address_calls(), sim.trace.count("UnassignPrivateIpAddresses"));
    sim.run(&mut p, 3_600_000);
    let later = (sim.trace.address_calls(), sim.trace.count("UnassignPrivateIpAddresses"));
    assert_eq!(calls, later, "a node at rest makes no address calls");
}

#[test]
fn warm_zero_still_grows_on_an_unmet_add() {
    for (kind, mut p) in both("sizer:\n  name: warm-ip-target\n  settings: {warm: 0}\n", &[]) {
        let mut sim = start("m5.large", &mut p);
        let call = sim.add(&mut p, "c0", "pod-0", "uid");
        sim.run(&mut p, 10_000);
        assert!(sim.address(call).is_some(), "{kind}: {:?}", sim.refusal(call));
    }
}

#[test]
fn errors_tell_throttled_subnet_full_and_exhausted_apart() {
    let cases: [(&str, &str); 2] =
        [("RequestLimitExceeded", "throttles"), ("InsufficientFreeAddressesInSubnet", "subnet")];
    for (code, word) in cases {
        let mut p = native("", &[("WARM_IP_TARGET", "1")]);
        let fault = |action: &str| {
            FaultRule::every(action, FaultEffect::Error { code: code.into(), message: None, http_status: None })
        };
        let faults = vec![fault("AssignPrivateIpAddresses"), fault("CreateNetworkInterface")];
        let mut sim = NodeSim::new(vpc("m5.large", |c| c.faults = faults), NODE, |_| ());
        sim.serve(&mut p);
        let call = sim.add(&mut p, "c0", "pod-0", "uid");
        sim.run(&mut p, 101_000);
        let why = sim.refusal(call).unwrap_or_default();
        assert!(why.contains(word), "{code}: {why}");
    }
    let mut p = native("", &[("WARM_IP_TARGET", "1")]);
    let mut sim = NodeSim::new(vpc("t3.nano", |_| ()), NODE, |c| c.max_enis = 1);
    sim.serve(&mut p);
    sim.run(&mut p, 30_000);
    sim.add(&mut p, "c0", "pod-0", "uid");
    let call = sim.add(&mut p, "c1", "pod-1", "uid");
    sim.run(&mut p, 101_000);
    let why = sim.refusal(call).unwrap_or_default();
    assert!(why.contains("t3.nano"), "{why}");
}
