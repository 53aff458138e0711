//! The allocator half: fullest interface and block first, then longest free.

use std::cmp::Reverse;

use wipam_policy_sdk::{Row, allocation::*, types::*};

/// Chooses a row so that interfaces and blocks that are nearly empty can become empty.
///
/// # Errors
/// None: an empty pool is answered with a hold.
pub fn allocate(request: &Request, _given: &Given, pool: &Snapshot) -> Result<Decision, String> {
    Ok(match pool.rows.best(request.attempt, |row| rank(row, pool)) {
        Some(row) => Decision::assign(row.index, reason(&row)),
        None => Decision::hold(1_000, "no address is free"),
    })
}

/// Smaller is better: (class, fuller interface, lower device, fuller block, longer free, address).
fn rank(row: &Row, pool: &Snapshot) -> (u8, Reverse<u32>, u8, Reverse<u32>, u64, u32) {
    let eni = row.eni.and_then(|e| pool.enis.get(usize::from(e)));
    let block = row.block.and_then(|b| pool.blocks.assigned.get(usize::from(b)));
    (
        class(row),
        Reverse(eni.map_or(0, |e| e.assigned)),
        eni.map_or(u8::MAX, |e| e.device_index),
        Reverse(block.copied().unwrap_or(0)),
        row.free_since_ms,
        row.index,
    )
}

fn class(row: &Row) -> u8 {
    if row.is_reserved_for_another() {
        4
    } else if row.is_asked_for() {
        0
    } else if row.is_own_held() {
        // Its pod is coming back: any other choice would fence it here, let it cool and use up one more.
        1
    } else if row.is_own_cooling() {
        // Still resting: packets of the old pod may be on their way.
        3
    } else {
        2
    }
}

fn reason(row: &Row) -> &'static str {
    match class(row) {
        0 => "asked for by the runtime",
        1 => "held for this pod",
        2 if row.is_never_used() => "fullest interface, never used",
        2 => "fullest interface, longest free",
        3 => "own cooling address, nothing else is left",
        _ => "reserved for another pod, but nothing else is left",
    }
}

/// Keeps no address for its pod.
///
/// # Errors
/// None.
pub fn release(
    _lease: &Lease,
    _given: &Given,
    _pool: &PoolInfo,
    _limits: &Limits,
    _counts: &Counts,
) -> Result<Retention, String> {
    Ok(Retention::none("this policy keeps no addresses"))
}
