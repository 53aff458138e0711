//! Random histories with faults: no address is lost or doubled, whatever comes in whatever order, over kill -9 and
//! restart, a failing disk, throttled, partial and lost EC2 answers, and policies of every temper.
//!
//! `World` audits every count and index after each event and checks every reply against EC2 and all earlier replies.

mod world;

use proptest::prelude::*;
use wipam_core::event::Event;
use wipam_core::policy::Slot;
use world::*;

#[derive(Clone, Debug)]
enum Op {
    Add { container: u8, pod: u8, uid: u8 },
    Del { container: u8 },
    Cancel { back: u8 },
    Die { container: u8 },
    Run { ms: u32 },
    Crash,
    Disk { fails: bool },
    Fence { fails: bool },
    Ec2Faults { percent: u8 },
    Gc { keep: u8 },
    Stop { on: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..24u8, 0..12u8, 0..3u8).prop_map(|(container, pod, uid)| Op::Add { container, pod, uid }),
        8 => (0..24u8).prop_map(|container| Op::Del { container }),
        1 => (0..4u8).prop_map(|back| Op::Cancel { back }),
        2 => (0..24u8).prop_map(|container| Op::Die { container }),
        8 => (1..60_000u32).prop_map(|ms| Op::Run { ms }),
        6 => (1..300u32).prop_map(|ms| Op::Run { ms }),
        2 => Just(Op::Crash),
        1 => any::<bool>().prop_map(|fails| Op::Disk { fails }),
        1 => any::<bool>().prop_map(|fails| Op::Fence { fails }),
        1 => (0..60u8).prop_map(|percent| Op::Ec2Faults { percent }),
        1 => (0..24u8).prop_map(|keep| Op::Gc { keep }),
        1 => any::<bool>().prop_map(|on| Op::Stop { on }),
    ]
}

fn temper() -> impl Strategy<Value = Temper> {
    prop_oneof![Just(Temper::Kind), Just(Temper::Random), Just(Temper::Hostile), Just(Temper::Holding)]
}

/// A container id is a sandbox: it never comes back after its end, and it belongs to one pod.
fn play(ops: &[Op], temper: Temper, warm: i64, keep: u64, seed: u64) -> World {
    let mut w = World::new(3, 4, Deciders::new(temper, warm, seed), seed);
    w.deciders.keep = keep;
    let mut made: std::collections::BTreeMap<String, (u8, u8)> = std::collections::BTreeMap::new();
    for (step, op) in ops.iter().enumerate() {
        match op {
            Op::Add { container, pod, uid } => {
                let name = format!("c{container}");
                let (pod, uid) = *made.entry(name.clone()).or_insert((*pod, *uid));
                if !w.dead.contains(&name) {
                    w.add(&name, &format!("p{pod}"), &format!("u{uid}"), 20_000);
                }
            }
            Op::Del { container } => {
                let name = format!("c{container}");
                w.del(&name);
                w.dead.insert(name);
            }
            Op::Cancel { back } => {
                let call = w.next_call.saturating_sub(u64::from(*back));
                // A caller that is gone hears nothing more; what it was told before it keeps.
                w.feed(Event::Cancel { call });
            }
            Op::Die { container } => {
                let name = format!("c{container}");
                w.dead.insert(name.clone());
                w.feed(Event::Liveness { key: World::key("aws-cni", &name), alive: false });
            }
            Op::Run { ms } => w.run(u64::from(*ms)),
            Op::Crash => w.restart(),
            Op::Disk { fails } => w.disk_fails = *fails,
            Op::Fence { fails } => w.fence_fails = *fails,
            Op::Ec2Faults { percent } => w.ec2.fault_percent = u64::from(*percent),
            Op::Gc { keep } => {
                let valid = w.acked.keys().filter(|k| k.container_id != format!("c{keep}")).cloned().collect();
                w.dead.insert(format!("c{keep}"));
                w.acked.remove(&World::key("aws-cni", &format!("c{keep}")));
                w.feed(Event::Gc { call: 1_000_000 + step as u64, network: "aws-cni".into(), valid });
            }
            Op::Stop { on } => w.feed(Event::NodeState { schedulable: true, stopping: *on }),
        }
        w.nothing_lost();
    }
    w
}

/// After the storm: faults stop, and a new pod gets an address once what rests has rested.
fn calm(mut w: World) {
    (w.disk_fails, w.fence_fails, w.ec2.fault_percent) = (false, false, 0);
    w.feed(Event::NodeState { schedulable: true, stopping: false });
    w.run(1_500_000);
    w.nothing_lost();
    let alive = w.acked.keys().filter(|k| !w.dead.contains(&k.container_id)).count();
    if alive < 12 {
        let call = w.add("fresh", "fresh-pod", "fresh", 100_000);
        w.run(110_000);
        assert!(w.address(call).is_some(), "{:?}; {:#?}", w.refusal(call), w.node.status(w.now));
    }
    let _ = Slot::Sizer;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_address_is_lost_or_doubled(
        ops in prop::collection::vec(op(), 1..120), temper in temper(), warm in 0..6i64,
        keep in prop_oneof![Just(0u64), Just(45_000u64)], seed in any::<u64>(),
    ) {
        calm(play(&ops, temper, warm, keep, seed));
    }
}
