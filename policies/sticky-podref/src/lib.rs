//! `sticky-podref`: a pod that comes back under the same name gets its own address again.
//!
//! The asker's own row goes first (held, reserved, cooling, or remembered as last had by it), then the row that is
//! least likely to be missed by anybody else. After a pod's end its address is kept for it for `keep-for` when it is
//! the kind of pod that comes back: one of a StatefulSet, or, while the API server's facts are not known, one whose
//! name ends in an ordinal. With `all-pods` every pod's is.
#![forbid(unsafe_code)]

use wipam_policy_sdk::{Allocator, Policy, Row, Settings, allocation::*, export_allocator, knob, types::*};

const KEEP_FOR: &str = "keep-for";
const ALL_PODS: &str = "all-pods";
const DEFAULT_KEEP_FOR_MS: i64 = 600_000;
const DAY_MS: i64 = 86_400_000;

/// Name, version and knobs.
pub fn describe() -> Metadata {
    knob::metadata("sticky-podref", env!("CARGO_PKG_VERSION"), "a pod that comes back gets its own address again")
        .with(knob::duration_ms(
            KEEP_FOR,
            DEFAULT_KEEP_FOR_MS,
            7 * DAY_MS,
            "how long an address stays its pod's after the cool-down",
        ))
        .with(knob::boolean(ALL_PODS, false, "keep addresses for all pods, not only for those of StatefulSets"))
}

/// Every combination of settings that passes the knobs' bounds is good.
///
/// # Errors
/// None.
pub fn check(_settings: &[Setting]) -> Result<(), Vec<Issue>> {
    Ok(())
}

/// Chooses the asker's own row, else the one least likely to be missed.
///
/// # Errors
/// None: an empty pool is answered with a hold.
pub fn allocate(request: &Request, _given: &Given, pool: &Snapshot) -> Result<Decision, String> {
    Ok(match pool.rows.best(request.attempt, |row| rank(row, request.pod.key)) {
        Some(row) => Decision::assign(row.index, reason(&row, &request.pod)),
        None => Decision::hold(1_000, "no address is free"),
    })
}

/// Smaller is better: (class, who would miss it, who asked longest ago, address).
fn rank(row: &Row, asker: u64) -> (u8, bool, u64, u32) {
    (class(row, asker), row.last_pod_key != 0, row.free_since_ms, row.index)
}

fn class(row: &Row, asker: u64) -> u8 {
    if row.is_reserved_for_another() {
        7
    } else if row.is_asked_for() {
        0
    } else if row.is_own_held() {
        1
    } else if row.is_own_reserved() {
        2
    } else if row.is_own_cooling() {
        3
    } else if asker != 0 && row.last_pod_key == asker {
        4
    } else {
        5
    }
}

fn reason(row: &Row, pod: &Pod) -> String {
    match class(row, pod.key) {
        0 => "asked for by the runtime".into(),
        1..=4 => format!("own address of {}/{}", pod.namespace, pod.name),
        5 if row.last_pod_key == 0 => "no pod ever had it".into(),
        5 => "longest free".into(),
        _ => "reserved for another pod, but nothing else is left".into(),
    }
}

/// Says how long the address stays its pod's.
///
/// # Errors
/// None.
pub fn release(
    lease: &Lease,
    given: &Given,
    _pool: &PoolInfo,
    _limits: &Limits,
    _counts: &Counts,
) -> Result<Retention, String> {
    if lease.cause == "superseded" {
        return Ok(Retention::none("its pod already has another address"));
    }
    let Some(why) = comes_back(&lease.pod, given.settings()) else {
        return Ok(Retention::none("not of a StatefulSet"));
    };
    let keep_for = given.settings().integer(KEEP_FOR, DEFAULT_KEEP_FOR_MS);
    Ok(Retention::keep(u64::try_from(keep_for).unwrap_or(0), why))
}

fn comes_back(pod: &Pod, settings: Settings<'_>) -> Option<&'static str> {
    if settings.boolean(ALL_PODS, false) {
        Some("all-pods is on")
    } else if pod.facts_known {
        (pod.owner_kind == "StatefulSet").then_some("of a StatefulSet")
    } else {
        ends_in_ordinal(&pod.name).then_some("facts unknown, but the name ends in an ordinal")
    }
}

/// `web-0`, but not `web-7d4b9` nor `-0`.
fn ends_in_ordinal(name: &str) -> bool {
    match name.rsplit_once('-') {
        Some((stem, ordinal)) => !stem.is_empty() && !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit()),
        None => false,
    }
}

/// The policy as a type, which is what the export macro takes.
pub struct StickyPodref;

impl Policy for StickyPodref {
    fn describe() -> Metadata {
        describe()
    }
    fn check(settings: &[Setting]) -> Result<(), Vec<Issue>> {
        check(settings)
    }
}

impl Allocator for StickyPodref {
    fn allocate(request: &Request, given: &Given, pool: &Snapshot) -> Result<Decision, String> {
        allocate(request, given, pool)
    }
    fn release(
        lease: &Lease,
        given: &Given,
        pool: &PoolInfo,
        limits: &Limits,
        counts: &Counts,
    ) -> Result<Retention, String> {
        release(lease, given, pool, limits, counts)
    }
}

export_allocator!(StickyPodref);

#[cfg(test)]
mod tests;
