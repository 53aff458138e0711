//! Each rule of `default`, natively: choices on built snapshots, plans, and runs on a node in virtual time.

use wipam_policy_sdk::{
    allocation::{Choice, Request},
    marks::row,
    sizing::*,
    testing::*,
};

use super::*;

fn pick(pool: &Snapshot, attempt: u32) -> Choice {
    let request = Request { attempt, ..request("default", "web") };
    allocate(&request, &Given::default(), pool).unwrap().choice
}

// ---- which address ----

#[test]
fn packs_onto_the_fullest_interface() {
    // Rows by address: 0 on the primary (1 pod), 1 and 2 on the second (3 pods), 3 on the third (none).
    let pool = PoolBuilder::lone(3, 5).eni(1, 1).eni(3, 2).eni(0, 1).build();
    let order: Vec<_> = (0..5).map(|attempt| pick(&pool, attempt)).collect();
    assert_eq!(order, [1, 2, 0, 3, 1].map(Choice::Assign));
}

#[test]
fn equally_full_interfaces_by_device_then_longest_free_then_address() {
    let pool = PoolBuilder::lone(2, 9)
        .eni(0, 0)
        .eni(0, 0)
        .row("10.0.0.1", 1, 0, 5, 1)
        .row("10.0.0.2", 0, 0, 900, 1)
        .row("10.0.0.3", 0, 0, 100, 1)
        .row("10.0.0.4", 0, row::NEVER_USED, 0, 0)
        .row("10.0.0.5", 0, row::NEVER_USED, 0, 0)
        .build();
    let order: Vec<_> = (0..5).map(|attempt| pick(&pool, attempt)).collect();
    assert_eq!(order, [3, 4, 2, 1, 0].map(Choice::Assign));
}

#[test]
fn packs_into_the_fullest_prefix() {
    let pool = PoolBuilder::prefixes(1, 3).eni(0, 0).block(0).block(7).block(3).build();
    let Choice::Assign(row) = pick(&pool, 0) else { panic!("no row") };
    assert_eq!(pool.rows.get(row as usize).unwrap().block, Some(1));
}

#[test]
fn resting_and_reserved_rows_come_last_and_held_ones_first() {
    let pool = PoolBuilder::lone(1, 9)
        .eni(0, 0)
        .row("10.0.0.1", 0, row::RESERVED_OTHER, 1, 8)
        .row("10.0.0.2", 0, row::COOLING_OWN, 1, 9)
        .row("10.0.0.3", 0, 0, 1, 9)
        .row("10.0.0.4", 0, row::HELD_OWN, 1, 9)
        .row("10.0.0.5", 0, row::ASKED_FOR, 1, 9)
        .build();
    let order: Vec<_> = (0..5).map(|attempt| pick(&pool, attempt)).collect();
    assert_eq!(order, [4, 3, 2, 1, 0].map(Choice::Assign));
    assert_eq!(pick(&lone_pool(&[]), 0), Choice::Hold(1_000));
}

#[test]
fn keeps_nothing() {
    let pool = lone_pool(&[]);
    let kept = release(&lease("db", "pg-0"), &Given::default(), &pool.pool, &pool.limits, &pool.counts).unwrap();
    assert_eq!(kept.keep_for_ms, 0);
}

// ---- how many ----

fn settings(changes: &[Setting]) -> Vec<Setting> {
    let mut all = describe().defaults();
    all.retain(|s| changes.iter().all(|c| c.name != s.name));
    all.extend_from_slice(changes);
    all
}

fn rest(changes: &[Setting], pool: &Snapshot) -> Vec<Action> {
    asked(changes, pool, Demand::default())
}

fn asked(changes: &[Setting], pool: &Snapshot, demand: Demand) -> Vec<Action> {
    plan(&given(settings(changes)), pool, &demand, &Cloud::default(), &[]).unwrap().actions
}

fn grow(eni: u8, length: u8, count: u16) -> Action {
    Action::Grow(Growth { eni, length, count })
}

fn attach(length: u8, count: u16) -> Action {
    Action::Attach(Attachment { subnet: 255, length, count })
}

#[test]
fn whole_interfaces_are_filled_and_attached() {
    assert_eq!(rest(&[], &PoolBuilder::lone(3, 5).eni(0, 0).build()), [grow(0, 32, 5)]);
    assert_eq!(
        rest(&[], &PoolBuilder::lone(3, 5).eni(0, 3).build()),
        [grow(0, 32, 2)],
        "a partial answer is completed"
    );
    assert_eq!(rest(&[], &PoolBuilder::lone(3, 5).eni(2, 3).build()), [attach(32, 5)]);
    assert_eq!(rest(&[], &PoolBuilder::lone(3, 5).eni(5, 0).eni(0, 5).build()), []);
    let two = [knob::set_integer(WARM_ENIS, 2)];
    assert_eq!(rest(&two, &PoolBuilder::lone(3, 5).eni(0, 0).build()), [grow(0, 32, 5), attach(32, 5)]);
}

#[test]
fn warm_0_grows_only_for_an_add_that_waits() {
    let none = [knob::set_integer(WARM_ENIS, 0)];
    let pool = PoolBuilder::lone(3, 5).eni(5, 0).build();
    assert_eq!(rest(&none, &pool), []);
    let waiting = Demand { waiting: 1, adds_1m: 1, ..Demand::default() };
    assert_eq!(asked(&none, &pool, waiting), [attach(32, 5)]);
    let compatible = [knob::set_integer(WARM_ENIS, 0), knob::set_boolean(COMPATIBLE, true)];
    assert_eq!(rest(&compatible, &pool), [attach(32, 5)], "the AWS daemon attaches when none is available");
}

#[test]
fn cooling_counts_only_when_compatible() {
    let pool = PoolBuilder::lone(3, 5).eni(0, 3).cooling(2).build();
    assert_eq!(rest(&[], &pool), [attach(32, 5)]);
    assert_eq!(rest(&[knob::set_boolean(COMPATIBLE, true)], &pool), []);
}

#[test]
fn a_whole_idle_interface_goes_back_when_the_target_holds_without_it() {
    let drain = |eni| Action::Drain(DrainMark { eni, on: true });
    let pool = PoolBuilder::lone(3, 5).eni(0, 5).eni(0, 5).build();
    assert_eq!(rest(&[], &pool), [drain(1)]);
    assert_eq!(rest(&[], &PoolBuilder::lone(3, 5).eni(1, 4).eni(0, 5).build()), []);
    assert_eq!(asked(&[], &pool, Demand { adds_1m: 1, ..Demand::default() }), []);
}

#[test]
fn wholly_free_prefixes_are_kept() {
    let base = PoolBuilder::prefixes(3, 3).eni(0, 0);
    assert_eq!(rest(&[], &base.clone().build()), [grow(0, 28, 1)]);
    assert_eq!(rest(&[], &base.clone().block(5).build()), [grow(0, 28, 1)], "5 pods: 2 prefixes");
    assert_eq!(rest(&[], &base.clone().block(16).block(0).build()), []);
    assert_eq!(rest(&[], &base.clone().block(16).block(1).build()), [grow(0, 28, 1)], "17 pods: 3 prefixes");
    assert_eq!(rest(&[], &base.clone().block(3).block(0).block(0).build()), [Action::ReleaseBlock(1)]);
    let waiting = Demand { waiting: 20, adds_1m: 20, ..Demand::default() };
    assert_eq!(asked(&[], &base.clone().block(12).build(), waiting), [grow(0, 28, 2)], "16 wait for one, 1 is kept");
    let full = base.block(16).block(16).block(16).build();
    assert_eq!(rest(&[], &full), [attach(28, 1)]);
}

#[test]
fn t2_medium_with_two_pods_has_one_extra_interface_and_ten_addresses() {
    let mut node = Node::new(plan, settings(&[]), 3, 5);
    node.run(5_000);
    assert_eq!(node.interfaces(), [(0, 5)]);
    node.add(2);
    node.run(10_000);
    assert_eq!(node.interfaces(), [(2, 3), (0, 5)]);
    node.del(2);
    node.run(120_000);
    assert_eq!(node.interfaces(), [(0, 5)]);
}

#[test]
fn from_0_to_232_pods_costs_one_call_for_each_interface() {
    let mut node = Node::new(plan, settings(&[]), 8, 29);
    node.run(5_000);
    for _ in 0..232 {
        node.add(1);
        node.run(200);
    }
    node.run(60_000);
    assert_eq!((node.pods(), node.tally.address_calls(), node.tally.refused), (232, 8, 0));
}
