//! The guard: what may happen, whatever a policy says. One pure function for each invariant, numbered as in the design
//! (§4); the number is the label of its counter and of `guard-<n>` outcomes.
//!
//! | n | invariant |
//! |---|---|
//! | 1 | the row is offered and its address still assignable |
//! | 2 | one address, one sandbox per network |
//! | 3 | a cooling, held or reserved row only to its own pod (reserved of others where it was offered so) |
//! | 4 | no new address from an interface or block that is attaching, draining, detaching, suspect or not allocatable |
//! | 5 | release-rows names free lone rows, all on one interface |
//! | 6 | detach and release-block need nothing assigned, cooling, reserved or held |
//! | 7 | interfaces, slots and the pool's cap are kept, what is in flight included |
//! | 8 | no growth past the subnet or against back-off; no shrink below what is assigned |
//! | 9 | at most 8 actions; one mutating call per interface and one attach at a time |
//! | 10 | no flapping inside 60 s, but never while an ADD waits |
//! | 11 | reason, facts, memo and lists within caps |
//! | 12 | fuel, memory, wall clock (the policy host) |
//! | 13 | a swap happens between decisions (the policy host) |
//! | 14 | the checkpoint is written before the reply |
//! | 15 | no policy starves pods |

use serde::{Deserialize, Serialize};

use crate::addr::Addr;
use crate::event::Ms;
use crate::policy::{RowSet, row_marks};
use crate::pool::{Eni, Stage, State, Tally};

/// Invariants are numbered 1 to this.
pub const INVARIANTS: usize = 15;
/// Actions of a plan that are looked at.
pub const MAX_ACTIONS: usize = 8;
/// Guard 10: what came is not given back, and the reverse, for so long.
pub const FLAP: Ms = 60_000;

/// A breach: which invariant, and what was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Number of the invariant.
    pub guard: u8,
    /// What was wrong.
    pub why: String,
}

/// The outcome of a check.
pub type Checked = Result<(), Breach>;

fn ensure(guard: u8, ok: bool, why: impl FnOnce() -> String) -> Checked {
    if ok { Ok(()) } else { Err(Breach { guard, why: why() }) }
}

/// How often each invariant was breached; index 0 is unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters(pub [u64; INVARIANTS + 1]);

impl Counters {
    /// Counts a breach.
    pub fn count(&mut self, guard: u8) {
        if let Some(n) = self.0.get_mut(usize::from(guard)) {
            *n += 1;
        }
    }
    /// Breaches of one invariant.
    pub fn of(&self, guard: u8) -> u64 {
        self.0.get(usize::from(guard)).copied().unwrap_or(0)
    }
}

/// 1: the row is inside the offer.
pub fn g1_offered(row: u32, offered: &[Addr]) -> Result<Addr, Breach> {
    offered
        .get(row as usize)
        .copied()
        .ok_or_else(|| Breach { guard: 1, why: format!("row {row} was answered, {} were offered", offered.len()) })
}

/// 1: the address behind an offered row is still assignable now. `state` is its state in the live pool (`None`: never
/// used, in a block), `taken_over` whether a held lease is being moved to the asker.
pub fn g1_assignable(state: Option<&State>, in_pool: bool, taken_over: bool) -> Checked {
    let ok = in_pool
        && match state {
            None | Some(State::Fresh | State::Free { .. } | State::Reserved { .. }) => true,
            Some(State::Cooling { linked, .. }) => !linked,
            Some(State::Held(_)) => taken_over,
            Some(State::Leased(_) | State::Releasing) => false,
        };
    ensure(1, ok, || "the address is not assignable any more".into())
}

/// 2: no other lease has the address on this network.
pub fn g2_single(state: Option<&State>, mine: Option<u64>) -> Checked {
    let other = match state {
        Some(State::Leased(no)) => Some(*no) != mine,
        Some(State::Held(no)) => Some(*no) != mine,
        _ => false,
    };
    ensure(2, !other, || "another sandbox has the address".into())
}

/// 3: cooling and held rows go to their own pod alone; reserved ones too unless the row was offered as reserved for
/// another.
pub fn g3_own(state: Option<&State>, marks: u16, asker: u64, reuse_own_cooling: bool, own_held: bool) -> Checked {
    let ok = match state {
        Some(State::Cooling { owner, shut, .. }) => reuse_own_cooling && !shut && owner.hash() == asker,
        Some(State::Reserved { owner, .. }) => owner.hash() == asker || marks & row_marks::RESERVED_OTHER != 0,
        Some(State::Held(_)) => own_held,
        _ => true,
    };
    ensure(3, ok, || "the address rests, or is kept for another pod".into())
}

/// 4: the address's interface or block gives addresses now (`offers`), or the row is held for the asker.
pub fn g4_source(offers: bool, held_own: bool) -> Checked {
    ensure(4, offers || held_own, || {
        "its interface or block is attaching, draining, detaching, suspect or not for pods".into()
    })
}

/// 5: rows to release are free, lone, on one interface, carry no mark but "never used", and the host does not use them.
pub fn g5_release_rows(rows: &[u32], set: &RowSet, carried: &dyn Fn(usize) -> bool) -> Checked {
    let Some(first) = rows.first() else {
        return Err(Breach { guard: 5, why: "no row to release".into() });
    };
    let eni = set.eni.get(*first as usize).copied();
    let mut seen = std::collections::BTreeSet::new();
    for row in rows {
        let i = *row as usize;
        let inside = i < set.len();
        ensure(5, inside, || format!("row {row} was named, {} were shown", set.len()))?;
        ensure(5, seen.insert(*row), || format!("row {row} is named twice"))?;
        ensure(5, set.block[i] == crate::policy::NO_BLOCK, || format!("row {row} is inside a block"))?;
        ensure(5, Some(set.eni[i]) == eni, || "rows of several interfaces".into())?;
        ensure(5, set.marks[i] & !row_marks::NEVER_USED == 0, || format!("row {row} is not free"))?;
        ensure(5, !carried(i), || format!("a link, route or rule of the host still carries row {row}"))?;
    }
    Ok(())
}

/// 5, again just before the call: each is still free.
pub fn g5_still_free(state: Option<&State>) -> Checked {
    ensure(5, matches!(state, Some(State::Fresh | State::Free { .. })), || "an address is in use again".into())
}

/// 6: nothing in use on an interface or block that is to go, and the interface may go at all.
pub fn g6_idle(tally: &Tally, carried: bool) -> Checked {
    ensure(6, tally.idle() && tally.releasing == 0, || {
        format!(
            "{} assigned, {} cooling, {} reserved, {} held, {} being given back",
            tally.assigned, tally.cooling, tally.reserved, tally.held, tally.releasing
        )
    })?;
    ensure(6, !carried, || "a link, route or rule of the host still carries one of its addresses".into())
}

/// 6: the primary interface, trunks and what others attached are never detached.
pub fn g6_removable(eni: &Eni) -> Checked {
    let ok = !eni.primary() && !eni.unmanaged && eni.facts.kind == crate::cloud::EniKind::Interface;
    ensure(6, ok && eni.stage == Stage::Ready, || format!("interface {} may not be detached", eni.facts.id))
}

/// 7: the interface takes so many more units.
pub fn g7_slots(eni: &Eni, units: u16) -> Checked {
    ensure(7, eni.fillable(), || format!("interface {} takes no more addresses", eni.facts.id))?;
    ensure(7, units > 0 && units <= eni.room(), || {
        format!("{units} units asked for on {}, which has room for {}", eni.facts.id, eni.room())
    })
}

/// 7: one more interface is within the limit.
pub fn g7_enis(present: u16, max: u16, units: u16, slots: u16) -> Checked {
    ensure(7, present < max, || format!("{present} of {max} interfaces are attached or on their way"))?;
    ensure(7, units <= slots, || format!("{units} units asked for on an interface of {slots}"))
}

/// 7: the pool's cap, the same for every policy: max-pods + cooling + reserved + held + one full interface.
pub fn g7_cap(would_be: u64, max_pods: u64, resting: u64, full_eni: u64) -> Checked {
    let cap = max_pods + resting + full_eni;
    ensure(7, would_be <= cap, || format!("{would_be} addresses would pass the cap of {cap}"))
}

/// 8: the subnet has room and no back-off stands against the operation.
pub fn g8_growth(units: u64, subnet_free: Option<u64>, barrier: Option<(&str, Ms)>) -> Checked {
    if let Some((code, until)) = barrier {
        return Err(Breach { guard: 8, why: format!("back-off after {code} until {until}") });
    }
    ensure(8, subnet_free.is_none_or(|free| units <= free), || {
        format!("{units} addresses asked for, the subnet has {}", subnet_free.unwrap_or(0))
    })
}

/// 8: a shrink leaves at least what is assigned (the host's own floor is 0).
pub fn g8_floor(total_after: u64, assigned: u64) -> Checked {
    ensure(8, total_after >= assigned, || format!("{total_after} addresses would be left for {assigned} pods"))
}

/// 9: the plan's actions beyond the eighth are not looked at.
pub fn g9_actions(index: usize) -> Checked {
    ensure(9, index < MAX_ACTIONS, || format!("action {} of at most {MAX_ACTIONS}", index + 1))
}

/// 10: nothing is given back inside 60 s of growth, and nothing grows inside 60 s of giving back, unless an ADD waits.
pub fn g10_flap(now: Ms, opposite_at: Option<Ms>, waiting: bool) -> Checked {
    let fresh = opposite_at.is_some_and(|at| now < at + FLAP);
    ensure(10, waiting || !fresh, || "the opposite was done less than 60 s ago".into())
}

/// 14: a reply leaves after the commit that contains it.
pub fn g14_committed(needed: u64, committed: u64) -> Checked {
    ensure(14, committed >= needed, || format!("checkpoint {needed} is not on disk, {committed} is"))
}

/// 15: an ADD that waited longer than 2 s must be covered while growth is possible.
pub fn g15_covered(oldest_wait: Ms, growth_possible: bool, covered: u64, waiting: u64) -> Checked {
    ensure(15, oldest_wait <= 2_000 || !growth_possible || covered >= waiting, || {
        format!("{waiting} ADDs wait, the oldest for {oldest_wait} ms; {covered} addresses are on their way")
    })
}

/// 15: a policy that holds past half the deadline although rows are assignable is answered natively.
pub fn g15_hold(now: Ms, since: Ms, deadline: Ms) -> Checked {
    ensure(15, now < since + deadline.saturating_sub(since) / 2, || {
        "the policy holds past half the deadline although addresses are assignable".into()
    })
}
