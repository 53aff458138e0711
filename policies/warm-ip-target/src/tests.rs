//! Each rule of `warm-ip-target`, natively: single plans on built snapshots, and whole runs on a node in virtual time.

use wipam_policy_sdk::testing::*;

use super::*;

fn settings(warm: i64) -> Vec<Setting> {
    let mut all = describe().defaults();
    all[0] = knob::set_integer(WARM, warm);
    all
}

fn with(mut all: Vec<Setting>, setting: Setting) -> Vec<Setting> {
    all.retain(|s| s.name != setting.name);
    all.push(setting);
    all
}

fn compatible(warm: i64, minimum: i64) -> Vec<Setting> {
    with(with(settings(warm), knob::set_boolean(COMPATIBLE, true)), knob::set_integer(MINIMUM, minimum))
}

fn actions(settings: Vec<Setting>, pool: &Snapshot, demand: Demand) -> Vec<Action> {
    plan(&given(settings), pool, &demand, &Cloud::default(), &[]).unwrap().actions
}

fn rest(settings: Vec<Setting>, pool: &Snapshot) -> Vec<Action> {
    actions(settings, pool, Demand::default())
}

fn grow(eni: u8, count: u16) -> Action {
    Action::Grow(Growth { eni, length: 32, count })
}

fn attach(count: u16) -> Action {
    Action::Attach(Attachment { subnet: 255, length: 32, count })
}

fn drain(eni: u8) -> Action {
    Action::Drain(DrainMark { eni, on: true })
}

// ---- single plans ----

#[test]
fn grows_by_exactly_what_is_short() {
    assert_eq!(rest(settings(1), &PoolBuilder::lone(3, 5).eni(2, 0).build()), [grow(0, 1)]);
    assert_eq!(rest(settings(1), &PoolBuilder::lone(3, 5).eni(5, 0).build()), [attach(1)]);
    assert_eq!(rest(settings(5), &PoolBuilder::lone(3, 5).eni(3, 1).build()), [grow(0, 1), attach(3)]);
    assert_eq!(rest(settings(5), &PoolBuilder::lone(3, 5).eni(3, 2).build()), [attach(3)]);
    assert_eq!(rest(settings(1), &PoolBuilder::lone(3, 5).eni(2, 1).build()), []);
}

#[test]
fn minimum_is_a_floor_and_no_ceiling() {
    let with_minimum = |n| with(settings(0), knob::set_integer(MINIMUM, n));
    assert_eq!(rest(with_minimum(4), &PoolBuilder::lone(3, 5).eni(1, 0).build()), [grow(0, 3)]);
    let waiting = Demand { waiting: 1, adds_1m: 1, ..Demand::default() };
    assert_eq!(actions(with_minimum(4), &PoolBuilder::lone(3, 5).eni(4, 0).build(), waiting), [grow(0, 1)]);
}

#[test]
fn an_add_that_waits_is_demand_even_with_warm_0() {
    let pool = PoolBuilder::lone(3, 5).eni(5, 0).build();
    assert_eq!(rest(settings(0), &pool), []);
    let waiting = |n| Demand { waiting: n, adds_1m: n, ..Demand::default() };
    assert_eq!(actions(settings(0), &pool, waiting(2)), [attach(2)]);
    assert_eq!(actions(settings(1), &pool, waiting(6)), [attach(5), attach(2)]);
}

#[test]
fn cooling_is_not_free_unless_compatible() {
    let pool = PoolBuilder::lone(3, 5).eni(2, 0).cooling(1).build();
    assert_eq!(rest(settings(1), &pool), [grow(0, 1)]);
    assert_eq!(rest(compatible(1, 0), &pool), []);
    let waiting = Demand { waiting: 1, adds_1m: 1, ..Demand::default() };
    assert_eq!(actions(compatible(0, 0), &pool, waiting), [grow(0, 1)], "but an ADD that waits cannot use it");
}

#[test]
fn what_is_coming_is_not_asked_for_twice() {
    let pool = PoolBuilder::lone(3, 5).eni(2, 0).assigning(1).build();
    assert_eq!(rest(settings(1), &pool), []);
    assert_eq!(rest(settings(3), &pool), [], "the interface is busy and has room for the rest");
    let waiting = |oldest_wait_ms| Demand { waiting: 3, oldest_wait_ms, adds_1m: 3, ..Demand::default() };
    assert_eq!(actions(settings(0), &pool, waiting(100)), []);
    assert_eq!(actions(settings(0), &pool, waiting(1_500)), [grow(0, 2)], "before anybody waits 2 s");
}

#[test]
fn marks_barriers_and_subnets_are_respected() {
    use wipam_policy_sdk::marks::eni::*;
    for mark in [NOT_FILLABLE, UNMANAGED, TRUNK, EFA, SUSPECT, DETACHING, NOT_ALLOCATABLE] {
        let pool = PoolBuilder::lone(3, 5).eni(2, 0).change(|e| e.marks |= mark).build();
        assert_eq!(rest(settings(1), &pool), [attach(1)], "mark {mark:#x}");
    }
    let pool = PoolBuilder::lone(3, 5).eni(5, 0).build();
    let barrier =
        |op: &str, subnet| Barrier { op: op.into(), subnet, code: "throttled".into(), until_ms: NOW_MS + 700 };
    let cloud = |cloud: Cloud| plan(&given(settings(1)), &pool, &Demand::default(), &cloud, &[]).unwrap();
    let barred = cloud(Cloud { barriers: vec![barrier("attach", 255)], ..Cloud::default() });
    assert_eq!((barred.actions.len(), barred.recheck_ms), (0, Some(700)));
    let subnet = |free, usable_after_ms| Subnet { id: "s".into(), free, usable_after_ms, blocks_after_ms: 0 };
    let full = |s| cloud(Cloud { subnets: vec![s], ..Cloud::default() }).actions;
    assert_eq!(full(subnet(Some(1), 0)), [], "the interface takes one for itself");
    assert_eq!(full(subnet(Some(2), 0)), [attach(1)]);
    assert_eq!(full(subnet(None, NOW_MS + 1)), []);
    let frozen = Snapshot { pool: PoolInfo { may_grow: false, ..pool.pool.clone() }, ..pool.clone() };
    assert_eq!(rest(settings(1), &frozen), []);
    let range = Snapshot { pool: PoolInfo { kind: "range".into(), ..pool.pool.clone() }, ..pool.clone() };
    assert_eq!(rest(settings(1), &range), []);
}

#[test]
fn limits_are_never_passed() {
    assert_eq!(rest(settings(1), &PoolBuilder::lone(2, 5).eni(5, 0).eni(5, 0).build()), []);
    let mut pool = PoolBuilder::lone(3, 5).eni(3, 0).build();
    pool.limits.max_pods = 4;
    assert_eq!(rest(settings(5), &pool), [grow(0, 1)], "no more than the node may run pods");
    let leaving = Demand { schedulable: false, ..Demand::default() };
    assert_eq!(actions(settings(1), &PoolBuilder::lone(3, 5).eni(2, 0).build(), leaving), []);
}

#[test]
fn surplus_goes_back_from_the_emptiest_interface() {
    let pool = PoolBuilder::lone(3, 5).eni(4, 1).eni(3, 2).eni(1, 3).build();
    let answer = rest(settings(1), &pool);
    let [Action::ReleaseRows(of_last), Action::ReleaseRows(of_second)] = &answer[..] else { panic!("{answer:?}") };
    let enis = |rows: &[u32]| rows.iter().map(|r| pool.rows.eni[*r as usize]).collect::<Vec<_>>();
    assert_eq!((enis(of_last), enis(of_second)), (vec![2, 2, 2], vec![1, 1]));
}

#[test]
fn nothing_goes_back_while_pods_come() {
    let pool = PoolBuilder::lone(3, 5).eni(2, 3).build();
    let busy = Demand { adds_1m: 1, ..Demand::default() };
    let answer = plan(&given(settings(1)), &pool, &busy, &Cloud::default(), &[]).unwrap();
    assert_eq!((answer.actions.len(), answer.recheck_ms), (0, Some(SURPLUS_RECHECK_MS)));
    let no_bursts = with(settings(1), knob::set_integer(BURST, 0));
    assert_eq!(actions(no_bursts, &pool, busy).len(), 1);
}

#[test]
fn idle_interfaces_leave_whole_by_drain_then_detach() {
    let pool = PoolBuilder::lone(3, 5).eni(4, 1).eni(0, 4);
    assert_eq!(rest(settings(1), &pool.clone().build()), [drain(1)]);
    let young = pool.clone().change(|e| e.attached_at_ms = NOW_MS - 59_999).build();
    assert_eq!(rest(settings(1), &young), [], "and not its rows either, which would cost one call more");
    let drains = pool.clone().change(|e| e.marks |= wipam_policy_sdk::marks::eni::DRAINING);
    assert_eq!(rest(settings(1), &drains.clone().build()), [Action::Detach(1)]);
    assert_eq!(rest(settings(1), &drains.clone().cooling(1).build()), [], "not before the last one has rested");
    assert_eq!(rest(settings(2), &drains.build()), [Action::Drain(DrainMark { eni: 1, on: false })]);
    let not_removable = pool.change(|e| e.marks |= wipam_policy_sdk::marks::eni::NOT_REMOVABLE).build();
    assert!(matches!(rest(settings(1), &not_removable)[..], [Action::ReleaseRows(_)]));
}

#[test]
fn prefixes_are_held_whole() {
    let grow = |eni, count| Action::Grow(Growth { eni, length: 28, count });
    let pool = PoolBuilder::prefixes(3, 3).eni(0, 0);
    assert_eq!(rest(settings(5), &pool.clone().build()), [grow(0, 1)]);
    assert_eq!(rest(settings(16), &pool.clone().block(1).build()), [grow(0, 1)]);
    assert_eq!(rest(settings(5), &pool.clone().block(0).block(0).build()), [Action::ReleaseBlock(0)]);
    assert_eq!(rest(settings(15), &pool.clone().block(1).block(1).block(1).build()), [], "fragmented: nothing whole");
    assert_eq!(rest(settings(16), &pool.block(1).block(0).build()), []);
}

/// (total, assigned, warm, minimum, short, over), as the AWS daemon reckons.
#[test]
fn compatible_arithmetic_is_that_of_the_aws_daemon() {
    let cases = [
        (0, 0, 5, 0, 5, 0),
        (2, 0, 5, 0, 3, 0),
        (10, 7, 5, 10, 2, 0),
        (12, 7, 5, 10, 0, 0),
        (30, 10, 5, 0, 0, 15),
        (30, 10, 5, 25, 0, 5),
        (4, 2, 1, 0, 0, 1),
        (23, 22, 2, 23, 1, 0),
        (23, 21, 2, 23, 0, 0),
        (24, 20, 2, 23, 0, 1),
        (25, 25, 0, 25, 0, 0),
    ];
    for (total, assigned, warm, minimum, short, over) in cases {
        let pool = PoolBuilder::lone(2, 40).eni(assigned, total - assigned).build();
        let answer = rest(compatible(warm, minimum), &pool);
        let got = match &answer[..] {
            [] => (0, 0),
            [Action::Grow(g)] => (g.count, 0),
            [Action::ReleaseRows(rows)] => (0, rows.len()),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, (short, over), "total {total}, assigned {assigned}, warm {warm}, minimum {minimum}");
    }
}

// ---- runs ----

/// m4.4xlarge: 8 interfaces of 29 pod addresses.
fn m4(warm: i64) -> Node {
    let mut node = Node::new(plan, settings(warm), 8, 29);
    node.run(10_000);
    assert_eq!(node.total() as i64, warm);
    node
}

#[test]
fn t2_medium_with_warm_1() {
    let mut node = Node::new(plan, settings(1), 3, 5);
    node.run(5_000);
    node.add(2);
    node.run(10_000);
    assert_eq!((node.pods(), node.free()), (2, 1));
    node.add(3);
    node.run(10_000);
    assert_eq!(node.interfaces(), [(5, 0), (0, 1)]);
}

#[test]
fn t2_medium_with_warm_5() {
    let mut node = Node::new(plan, settings(5), 3, 5);
    node.run(5_000);
    assert_eq!(node.free(), 5);
    let before = node.tally.address_calls();
    node.add(3);
    node.run(10_000);
    assert_eq!((node.free(), node.tally.address_calls() - before), (5, 1));
}

#[test]
fn from_0_to_232_pods_costs_at_most_20_address_calls() {
    for (name, batch, every_ms) in [("at once", 232, 100), ("10/s", 1, 100), ("4/s", 1, 250), ("1/s", 1, 1_000)] {
        let mut node = m4(1);
        let mut due = 0;
        for pod in 0..232 / batch {
            node.add(batch);
            due += every_ms;
            // The node moves in steps of 100 ms.
            let step = due / 100 * 100 - (due - every_ms) / 100 * 100;
            node.run(step);
            assert!(pod < 232);
        }
        node.run(60_000);
        println!("{name}: {:?}", node.tally);
        assert_eq!(node.pods(), 232, "{name}");
        assert!(node.tally.address_calls() <= 20, "{name}: {:?}", node.tally);
        assert!(node.tally.most_above <= 0, "{name}: {:?}", node.tally);
        assert_eq!(node.tally.refused, 0, "{name}");
    }
}

#[test]
fn slow_pods_cost_one_call_each_and_leave_one_free() {
    let mut node = m4(1);
    for _ in 0..231 {
        node.add(1);
        node.run(30_000);
        assert_eq!(node.free(), 1);
    }
    assert!(node.tally.address_calls() <= 232, "{:?}", node.tally);
}

#[test]
fn runs_that_stop_at_120_come_to_rest_in_90_s() {
    for (name, batch, every_ms) in [("at once", 120, 100), ("10/s", 1, 100), ("1/s", 1, 1_000)] {
        let mut node = m4(1);
        for i in 0..120 / batch {
            node.add(batch);
            if i + 1 < 120 / batch {
                node.run(every_ms);
            }
        }
        node.run(90_000);
        println!("{name}: {:?} {:?}", node.tally, node.interfaces());
        assert_eq!((node.pods(), node.free()), (120, 1), "{name}");
        assert!(node.tally.releases.iter().all(|n| *n <= 1), "{name}: {:?}", node.tally);
        let calls = node.tally.clone();
        node.run(600_000);
        assert_eq!(node.tally, calls, "at rest nothing moves");
    }
}

#[test]
fn pods_that_go_give_interfaces_back() {
    let mut node = m4(1);
    node.add(120);
    node.run(120_000);
    node.del(110);
    node.run(120_000);
    assert_eq!((node.pods(), node.free(), node.interfaces().len()), (10, 1, 1), "{:?}", node.tally);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// Whatever came and went: in the end every pod has an address, exactly `warm` are free as far as there is room,
    /// and nothing moves any more.
    #[test]
    fn any_history_comes_to_rest_on_target(
        warm in 0_i64..12,
        steps in proptest::collection::vec((0_u32..30, 0_u32..30, 0_u64..40_000), 1..12),
    ) {
        let (enis, slots) = (4, 9);
        let mut node = Node::new(plan, settings(warm), enis, slots);
        node.run(5_000);
        for (adds, dels, ms) in steps {
            // No more than fit: the pods there are, and those that wait.
            node.add(adds.min(36 - node.pods()));
            node.run(ms + 20_000);
            node.del(dels);
            node.run(ms);
        }
        node.run(400_000);
        let room = i64::from(enis * slots) - i64::from(node.pods());
        proptest::prop_assert_eq!(i64::from(node.free()), warm.min(room), "{:?}", node.interfaces());
        let tally = node.tally.clone();
        node.run(400_000);
        proptest::prop_assert_eq!(&node.tally, &tally);
    }
}
