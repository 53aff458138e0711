//! What must always hold, told as small stories.

mod world;

use wipam_core::event::{Event, Reply};
use wipam_core::policy::AnsweredBy;
use world::*;

#[allow(unused)]
fn by(_: AnsweredBy) {}

fn world() -> World {
    World::new(3, 5, Deciders::new(Temper::Kind, 1, 7), 7)
}

#[test]
fn a_pod_gets_an_address_and_a_repeated_add_gets_the_same() {
    let mut w = world();
    w.run(5_000);
    let one = w.add("c1", "p1", "u1", 100_000);
    w.run(1_000);
    let first = w.address(one).expect("an address");
    let asked = w.deciders.asked;
    let again = w.add("c1", "p1", "u1", 100_000);
    w.run(10);
    assert_eq!(w.address(again), Some(first));
    assert_eq!(w.deciders.asked, asked, "no policy is asked for a known sandbox");
}

#[test]
fn an_add_before_the_first_inventory_waits_and_is_served_then() {
    let mut w = world();
    let early = w.add("c1", "p1", "u1", 100_000);
    w.run(10_000);
    assert!(w.address(early).is_some());
}

#[test]
fn warm_zero_still_grows_on_an_unmet_add() {
    let mut w = World::new(3, 5, Deciders::new(Temper::Kind, 0, 7), 7);
    w.run(5_000);
    let one = w.add("c1", "p1", "u1", 100_000);
    w.run(5_000);
    assert!(w.address(one).is_some());
}

#[test]
fn del_of_the_unknown_succeeds() {
    let mut w = world();
    w.run(2_000);
    let call = w.del("nobody");
    assert!(matches!(w.replies.get(&call), Some(Reply::Deleted { addresses, .. }) if addresses.is_empty()));
}

#[test]
fn a_late_del_of_a_superseded_sandbox_changes_nothing() {
    let mut w = world();
    w.run(5_000);
    let one = w.add("c1", "p1", "u1", 100_000);
    w.run(2_000);
    let two = w.add("c2", "p1", "u1", 100_000);
    w.run(2_000);
    assert_eq!(w.address(one), w.address(two), "the pod keeps its address over a new sandbox");
    assert_eq!(w.fenced, vec![World::key("aws-cni", "c1")]);
    w.del("c1");
    w.run(2_000);
    w.nothing_lost();
    let late = w.add("c1", "p1", "u1", 1_000);
    w.run(2_000);
    assert!(w.refusal(late).is_none() || w.refusal(late).unwrap().contains("superseded"));
}

#[test]
fn a_late_add_of_a_superseded_sandbox_is_told_by_whom() {
    let mut w = world();
    w.run(5_000);
    w.add("c1", "p1", "u1", 100_000);
    w.run(2_000);
    w.add("c2", "p1", "u1", 100_000);
    w.run(2_000);
    let late = w.add("c1", "p1", "u1", 1_000);
    assert_eq!(w.refusal(late).as_deref(), Some("superseded by sandbox c2"));
}

#[test]
fn another_uid_fences_a_living_sandbox_first_and_its_address_cools() {
    let mut w = world();
    w.run(5_000);
    let one = w.add("c1", "p1", "u1", 100_000);
    w.run(2_000);
    let two = w.add("c2", "p1", "u2", 100_000);
    w.run(5_000);
    assert_eq!(w.fenced, vec![World::key("aws-cni", "c1")]);
    assert!(w.address(two).is_some());
    assert_ne!(w.address(one), w.address(two));
    assert_eq!(w.node.pool().counts().cooling, 1);
}

#[test]
fn a_failing_disk_fails_adds_by_name_and_keeps_dels() {
    let mut w = world();
    w.run(5_000);
    let one = w.add("c1", "p1", "u1", 100_000);
    w.run(2_000);
    let had = w.address(one).unwrap();
    w.disk_fails = true;
    let failed = w.add("c2", "p2", "u2", 100_000);
    w.run(100);
    assert!(w.refusal(failed).unwrap().contains("/state: ENOSPC"));
    let del = w.del("c1");
    w.run(100);
    assert!(matches!(w.replies.get(&del), Some(Reply::Deleted { .. })), "a DEL succeeds");
    assert!(w.torn.is_empty(), "nothing is torn down before its end is recorded");
    w.run(60_000);
    w.disk_fails = false;
    w.run(5_000);
    assert_eq!(w.torn, vec![World::key("aws-cni", "c1")]);
    let _ = had;
}

#[test]
fn a_hostile_allocator_costs_no_add() {
    let mut w = World::new(3, 5, Deciders::new(Temper::Hostile, 1, 7), 7);
    w.run(5_000);
    for i in 0..10 {
        let call = w.add(&format!("c{i}"), &format!("p{i}"), "u", 100_000);
        w.run(20_000);
        assert!(w.address(call).is_some(), "pod {i}: {:?}", w.refusal(call));
    }
    assert!(w.deciders.faults > 0);
}

#[test]
fn a_policy_that_holds_is_overruled_at_half_the_deadline() {
    let mut w = World::new(3, 5, Deciders::new(Temper::Holding, 1, 7), 7);
    w.run(5_000);
    let call = w.add("c1", "p1", "u1", 10_000);
    w.run(4_000);
    assert!(!w.replies.contains_key(&call));
    w.run(2_000);
    assert!(w.address(call).is_some());
    assert_eq!(w.node.guard_counts().of(15), 1);
}

#[test]
fn a_dead_sandbox_is_held_then_cools() {
    let mut w = world();
    w.run(5_000);
    w.add("c1", "p1", "u1", 100_000);
    w.run(2_000);
    w.dead.insert("c1".into());
    w.feed(Event::Liveness { key: World::key("aws-cni", "c1"), alive: false });
    assert_eq!(w.node.pool().counts().held, 1);
    w.run(590_000);
    assert_eq!(w.node.pool().counts().held, 1);
    w.run(20_000);
    assert_eq!(w.node.pool().counts().held, 0);
    assert_eq!(w.fenced.len(), 1, "whoever ends a held lease fences first");
}

#[test]
fn gc_ends_what_it_does_not_name_on_its_own_network_only() {
    let mut w = world();
    w.run(5_000);
    w.add("c1", "p1", "u1", 100_000);
    w.add("c2", "p2", "u2", 100_000);
    w.run(5_000);
    w.feed(Event::Gc { call: 900, network: "other".into(), valid: vec![] });
    w.run(100);
    assert!(matches!(w.replies.get(&900), Some(Reply::Collected { released: 0 })));
    w.acked.remove(&World::key("aws-cni", "c2"));
    w.feed(Event::Gc { call: 901, network: "aws-cni".into(), valid: vec![World::key("aws-cni", "c1")] });
    w.run(100);
    assert!(matches!(w.replies.get(&901), Some(Reply::Collected { released: 1 })));
    w.nothing_lost();
}

#[test]
fn a_cancelled_add_leaves_no_trace() {
    let mut w = world();
    w.run(5_000);
    let free = w.node.pool().counts().free;
    let call = w.add("c1", "p1", "u1", 100_000);
    w.feed(Event::Cancel { call });
    w.run(3_000);
    assert_eq!(w.node.pool().counts().free, free);
    assert!(w.node.leases().is_empty());
    assert!(!w.replies.contains_key(&call));
}

#[test]
fn ranges_give_the_lowest_and_never_a_gateway() {
    use wipam_core::event::Range;
    let mut w = world();
    let range = Range {
        subnet: "192.168.0.0/29".parse().unwrap(),
        start: "192.168.0.1".parse().unwrap(),
        end: "192.168.0.6".parse().unwrap(),
        gateway: Some("192.168.0.1".parse().unwrap()),
    };
    let mut got = vec![];
    for i in 0..6 {
        let key = World::key("net2", &format!("c{i}"));
        let call = w.add_with(key, &format!("p{i}"), "u", 2_000, Some(vec![vec![range.clone()]]));
        w.run(3_000);
        match w.address(call) {
            Some(ip) => got.push(ip.to_string()),
            None => assert!(w.refusal(call).unwrap().contains("no address"), "{:?}", w.refusal(call)),
        }
    }
    assert_eq!(got, ["192.168.0.2", "192.168.0.3", "192.168.0.4", "192.168.0.5", "192.168.0.6"]);
}

#[test]
fn an_address_that_is_being_given_back_is_given_to_nobody() {
    let mut w = World::new(3, 5, Deciders::new(Temper::Kind, 1, 11), 11);
    w.run(5_000);
    for i in 0..8 {
        w.add(&format!("c{i}"), &format!("p{i}"), "u", 100_000);
    }
    w.run(30_000);
    for i in 5..7 {
        w.del(&format!("c{i}"));
    }
    // Step finely until the surplus is on its way back to EC2, then ask for everything that is left at once.
    let mut asked = 0;
    for step in 0..40_000 {
        w.run(10);
        if w.node.pool().counts().releasing > 0 && asked == 0 {
            for i in 0..6 {
                w.add(&format!("late-{i}"), &format!("late-{i}"), "u", 100_000);
            }
            asked = step;
        }
    }
    assert!(asked > 0, "nothing was ever given back");
    // `World` has checked at each reply that EC2 still gives the address to this instance.
    assert_eq!(w.acked.len(), 6 + 6);
}

#[test]
fn the_subnets_cidr_reaches_the_set_up_of_an_interface_that_ec2_describes_without_it() {
    let mut w = world();
    w.run(5_000);
    for i in 0..6 {
        w.add(&format!("c{i}"), &format!("p{i}"), "u", 100_000);
    }
    w.run(30_000);
    assert!(!w.set_up.is_empty(), "a second interface was attached");
    assert!(w.set_up.iter().all(|f| f.subnet_cidr == Some("10.0.0.0/16".parse().unwrap())), "{:?}", w.set_up);
}

#[test]
fn a_node_is_ready_once_it_has_an_address_and_stays_so_while_it_can_grow() {
    let mut w = world();
    assert!(w.node.ready(w.now).unwrap_err().contains("EC2"), "nothing is known yet");
    w.run(10_000);
    assert_eq!(w.node.ready(w.now), Ok(()));
    w.add("c0", "p0", "u", 100_000);
    assert_eq!(w.node.pool().assignable(), 0, "the warm address is taken");
    assert_eq!(w.node.ready(w.now), Ok(()), "an ADD would be served after growth");
    for i in 1..15 {
        w.add(&format!("c{i}"), &format!("p{i}"), "u", 100_000);
        w.run(20_000);
    }
    assert!(w.node.ready(w.now).unwrap_err().contains("no address"), "{:?}", w.node.ready(w.now));
}
