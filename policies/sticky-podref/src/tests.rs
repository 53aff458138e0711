//! Each rule of `sticky-podref`, natively.

use wipam_policy_sdk::{marks::row, testing::*};

use super::*;

fn pick(pool: &Snapshot, attempt: u32) -> Choice {
    let request = Request { attempt, ..request("db", "pg-0") };
    allocate(&request, &Given::default(), pool).unwrap().choice
}

fn own() -> u64 {
    key("db", "pg-0")
}

#[test]
fn an_address_last_had_by_the_asker_goes_before_a_fresh_one() {
    let pool = lone_pool(&[("10.0.0.1", 0), ("10.0.0.2", 99), ("10.0.0.3", own())]);
    assert_eq!(pick(&pool, 0), Choice::Assign(2));
}

#[test]
fn own_rows_by_how_firmly_they_are_its_own() {
    let pool = PoolBuilder::lone(1, 10)
        .eni(0, 0)
        .row("10.0.0.1", 0, row::COOLING_OWN, 5, own())
        .row("10.0.0.2", 0, row::RESERVED_OWN, 5, own())
        .row("10.0.0.3", 0, row::HELD_OWN, 5, own())
        .row("10.0.0.4", 0, row::ASKED_FOR, 5, 0)
        .row("10.0.0.5", 0, row::RESERVED_OTHER | row::ASKED_FOR, 5, 8)
        .build();
    let order: Vec<_> = (0..6).map(|attempt| pick(&pool, attempt)).collect();
    assert_eq!(
        order,
        [3, 2, 1, 0, 4, 3].map(Choice::Assign),
        "asked for, held, reserved, cooling, another's, and round"
    );
}

#[test]
fn else_the_row_least_likely_to_be_missed() {
    let pool = PoolBuilder::lone(1, 10)
        .eni(0, 0)
        .row("10.0.0.1", 0, 0, 900, 8)
        .row("10.0.0.2", 0, 0, 100, 9)
        .row("10.0.0.3", 0, row::NEVER_USED, 950, 0)
        .build();
    let order: Vec<_> = (0..3).map(|attempt| pick(&pool, attempt)).collect();
    assert_eq!(order, [2, 1, 0].map(Choice::Assign), "never used, then longest free");
}

#[test]
fn nothing_free_holds() {
    assert_eq!(pick(&lone_pool(&[]), 0), Choice::Hold(1_000));
}

fn kept(pod: Pod, settings: Vec<Setting>, cause: &str) -> u64 {
    let pool = lone_pool(&[]);
    let lease = Lease { pod, cause: cause.into(), ..lease("db", "pg-0") };
    release(&lease, &given(settings), &pool.pool, &pool.limits, &pool.counts).unwrap().keep_for_ms
}

#[test]
fn addresses_of_stateful_sets_are_kept() {
    let of = |kind: &str, name: &str| Pod { facts_known: true, owner_kind: kind.into(), ..pod("db", name) };
    assert_eq!(kept(of("StatefulSet", "pg-0"), describe().defaults(), "del"), 600_000);
    assert_eq!(kept(of("StatefulSet", "pg-0"), vec![knob::set_integer(KEEP_FOR, 5)], "gone"), 5);
    assert_eq!(kept(of("ReplicaSet", "pg-0"), describe().defaults(), "del"), 0, "facts go before the name");
    assert_eq!(kept(of("ReplicaSet", "web-abc"), vec![knob::set_boolean(ALL_PODS, true)], "del"), 600_000);
    assert_eq!(kept(of("StatefulSet", "pg-0"), describe().defaults(), "superseded"), 0);
}

#[test]
fn without_facts_the_name_tells() {
    for (name, keep) in [("pg-0", true), ("pg-12", true), ("pg-x1", false), ("pg-", false), ("-1", false), ("7", false)]
    {
        assert_eq!(kept(pod("db", name), describe().defaults(), "del") > 0, keep, "{name}");
    }
}
