//! Each invariant of the guard against a plain statement of what it must refuse, over generated cases. That the node
//! asks them is shown by `basics.rs` and `histories.rs`; the counters by `a_breach_is_counted_under_its_number`.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::collections::BTreeSet;

use proptest::prelude::*;
use wipam_core::cloud::{AttachState, EniFacts, EniKind};
use wipam_core::event::PodRef;
use wipam_core::guard::*;
use wipam_core::policy::{NO_BLOCK, RowSet, row_marks};
use wipam_core::pool::{Owner, Pool, Stage, State, Tally};

fn owner(n: u8) -> Owner {
    Owner {
        pod: PodRef { namespace: "ns".into(), name: format!("pod-{n}"), uid: String::new() },
        ifname: "eth0".into(),
    }
}

fn state() -> impl Strategy<Value = Option<State>> {
    prop_oneof![
        Just(None),
        Just(Some(State::Fresh)),
        Just(Some(State::Free { since: 1, last: 2 })),
        (0..3u8, any::<bool>(), any::<bool>()).prop_map(|(n, linked, shut)| Some(State::Cooling {
            since: 1,
            until: 2,
            owner: owner(n),
            keep: 0,
            linked,
            shut
        })),
        (0..3u8).prop_map(|n| Some(State::Reserved { since: 1, until: 2, owner: owner(n) })),
        (0..3u64).prop_map(|no| Some(State::Leased(no))),
        (0..3u64).prop_map(|no| Some(State::Held(no))),
        Just(Some(State::Releasing)),
    ]
}

fn number(checked: Checked) -> Option<u8> {
    checked.err().map(|b| b.guard)
}

fn eni(slots: u16, stage: Stage, kind: EniKind, device: u8, unmanaged: bool, draining: bool, used: u16) -> Pool {
    let mut pool = Pool::new("n", 0, false, 4);
    let facts = EniFacts {
        id: "eni-1".into(),
        mac: String::new(),
        subnet: "s".into(),
        subnet_cidr: None,
        primary: std::net::Ipv4Addr::LOCALHOST,
        addresses: vec![],
        prefixes: vec![],
        device: Some(device),
        card: 0,
        attachment: None,
        state: AttachState::Attached,
        kind,
        tags: std::collections::BTreeMap::new(),
        delete_on_termination: true,
    };
    let no = pool.add_eni(facts, stage, slots, unmanaged, 0);
    for a in 0..used {
        pool.add_lone(no, u128::from(a) + 10);
    }
    pool.eni_mut(no).unwrap().draining = draining;
    pool
}

proptest! {
    #[test]
    fn g1_a_row_is_inside_the_offer(row in any::<u32>(), n in 0..50usize) {
        let offered: Vec<u128> = (0..n as u128).collect();
        let got = g1_offered(row, &offered);
        prop_assert_eq!(got.is_ok(), (row as usize) < n);
        if let Ok(a) = got {
            prop_assert_eq!(a, u128::from(row));
        }
    }

    #[test]
    fn g1_what_is_leased_given_back_or_still_linked_is_not_assignable(s in state(), inside: bool, taken: bool) {
        let bad = !inside || match &s {
            Some(State::Leased(_) | State::Releasing) => true,
            Some(State::Held(_)) => !taken,
            Some(State::Cooling { linked, .. }) => *linked,
            _ => false,
        };
        prop_assert_eq!(number(g1_assignable(s.as_ref(), inside, taken)), bad.then_some(1));
    }

    #[test]
    fn g2_one_address_one_sandbox(s in state(), mine in prop::option::of(0..3u64)) {
        let bad = matches!(&s, Some(State::Leased(no) | State::Held(no)) if Some(*no) != mine);
        prop_assert_eq!(number(g2_single(s.as_ref(), mine)), bad.then_some(2));
    }

    #[test]
    fn g3_what_rests_or_is_kept_goes_to_its_own_pod(s in state(), asker in 0..3u8, reuse: bool, held: bool, other: bool) {
        let marks = if other { row_marks::RESERVED_OTHER } else { 0 };
        let own = |o: &Owner| o.hash() == owner(asker).hash();
        let bad = match &s {
            Some(State::Cooling { owner, shut, .. }) => !own(owner) || *shut || !reuse,
            Some(State::Reserved { owner, .. }) => !own(owner) && !other,
            Some(State::Held(_)) => !held,
            _ => false,
        };
        prop_assert_eq!(number(g3_own(s.as_ref(), marks, owner(asker).hash(), reuse, held)), bad.then_some(3));
    }

    #[test]
    fn g4_sources_that_offer_nothing_give_only_what_is_held(offers: bool, held: bool) {
        prop_assert_eq!(number(g4_source(offers, held)), (!offers && !held).then_some(4));
    }

    #[test]
    fn g5_releases_name_free_lone_rows_of_one_interface(
        rows in prop::collection::vec(0..8u32, 0..5),
        enis in prop::collection::vec(0..2u8, 6), marks in prop::collection::vec(prop_oneof![4 => Just(0u16), 2 => Just(16u16), 1 => 0..64u16], 6),
        blocks in prop::collection::vec(prop_oneof![4 => Just(NO_BLOCK), 1 => Just(3u16)], 6), carried in 0..12usize,
    ) {
        let set = RowSet {
            address_hi: vec![0; 6], address_lo: (0..6).collect(), eni: enis.clone(), block: blocks.clone(),
            marks: marks.clone(), free_since_ms: vec![0; 6], until_ms: vec![0; 6], last_pod_key: vec![0; 6],
        };
        let good = !rows.is_empty()
            && rows.iter().collect::<BTreeSet<_>>().len() == rows.len()
            && rows.iter().all(|r| {
                let i = *r as usize;
                i < 6 && blocks[i] == NO_BLOCK && enis[i] == enis[rows[0] as usize] && marks[i] & !16 == 0 && i != carried
            });
        prop_assert_eq!(number(g5_release_rows(&rows, &set, &|i| i == carried)), (!good).then_some(5));
    }

    #[test]
    fn g5_again_only_what_is_still_free(s in state()) {
        let bad = !matches!(s, Some(State::Fresh | State::Free { .. }));
        prop_assert_eq!(number(g5_still_free(s.as_ref())), bad.then_some(5));
    }

    #[test]
    fn g6_nothing_in_use_goes(assigned in 0..2u32, cooling in 0..2u32, reserved in 0..2u32, held in 0..2u32, releasing in 0..2u32, free in 0..9u32, carried: bool) {
        let tally = Tally { assigned, free, cooling, reserved, held, suspect: 0, releasing };
        let bad = assigned + cooling + reserved + held + releasing > 0 || carried;
        prop_assert_eq!(number(g6_idle(&tally, carried)), bad.then_some(6));
    }

    #[test]
    fn g6_primary_trunk_and_foreign_interfaces_stay(device in 0..3u8, unmanaged: bool, trunk: bool, ready: bool) {
        let kind = if trunk { EniKind::Trunk } else { EniKind::Interface };
        let stage = if ready { Stage::Ready } else { Stage::Attaching };
        let pool = eni(4, stage, kind, device, unmanaged, false, 0);
        let bad = device == 0 || unmanaged || trunk || !ready;
        prop_assert_eq!(number(g6_removable(pool.enis().next().unwrap().1)), bad.then_some(6));
    }

    #[test]
    fn g7_slots_are_kept(slots in 0..8u16, used in 0..8u16, units in 0..10u16, draining: bool, ready: bool) {
        let used = used.min(slots);
        let stage = if ready { Stage::Ready } else { Stage::Detaching };
        let pool = eni(slots, stage, EniKind::Interface, 1, false, draining, used);
        let good = units > 0 && units <= slots - used && ready && !draining;
        prop_assert_eq!(number(g7_slots(pool.enis().next().unwrap().1, units)), (!good).then_some(7));
    }

    #[test]
    fn g7_interfaces_and_the_cap_are_kept(present in 0..6u16, max in 0..6u16, units in 0..9u16, slots in 0..9u16, would in 0..400u64, pods in 0..200u64, rest in 0..50u64, full in 0..50u64) {
        prop_assert_eq!(number(g7_enis(present, max, units, slots)), (present >= max || units > slots).then_some(7));
        prop_assert_eq!(number(g7_cap(would, pods, rest, full)), (would > pods + rest + full).then_some(7));
    }

    #[test]
    fn g8_subnet_back_off_and_floor(units in 0..20u64, free in prop::option::of(0..20u64), barred: bool, total in 0..20u64, assigned in 0..20u64) {
        let bad = barred || free.is_some_and(|f| units > f);
        prop_assert_eq!(number(g8_growth(units, free, barred.then_some(("throttled", 9)))), bad.then_some(8));
        prop_assert_eq!(number(g8_floor(total, assigned)), (total < assigned).then_some(8));
    }

    #[test]
    fn g9_eight_actions(index in 0..100usize) {
        prop_assert_eq!(number(g9_actions(index)), (index >= 8).then_some(9));
    }

    #[test]
    fn g10_no_flapping_but_never_while_an_add_waits(now in 60_000..200_000u64, at in prop::option::of(0..200_000u64), waiting: bool) {
        let bad = !waiting && at.is_some_and(|at| now < at + 60_000);
        prop_assert_eq!(number(g10_flap(now, at, waiting)), bad.then_some(10));
    }

    #[test]
    fn g14_a_reply_leaves_after_its_commit(needed in 0..9u64, committed in 0..9u64) {
        prop_assert_eq!(number(g14_committed(needed, committed)), (committed < needed).then_some(14));
    }

    #[test]
    fn g15_nobody_starves(wait in 0..5_000u64, possible: bool, covered in 0..9u64, waiting in 0..9u64, deadline in 0..100_000u64, at in 0..100_000u64) {
        let bad = wait > 2_000 && possible && covered < waiting;
        prop_assert_eq!(number(g15_covered(wait, possible, covered, waiting)), bad.then_some(15));
        prop_assert_eq!(number(g15_hold(at, 0, deadline)), (at >= deadline / 2).then_some(15));
    }

    #[test]
    fn a_breach_is_counted_under_its_number(guards in prop::collection::vec(0..=20u8, 0..50)) {
        let mut counters = Counters::default();
        for g in &guards {
            counters.count(*g);
        }
        for g in 0..=INVARIANTS as u8 {
            prop_assert_eq!(counters.of(g), guards.iter().filter(|x| **x == g).count() as u64);
        }
    }
}
