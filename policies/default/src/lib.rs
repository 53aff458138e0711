//! `default`: packs pods onto few interfaces, and keeps whole interfaces (or prefixes) of free addresses warm.
//!
//! As allocator it chooses the fullest interface and block first, so that others can empty out, and there the address
//! that was free longest. As sizer it fills what is there, attaches whole interfaces, and gives whole idle ones back.
#![forbid(unsafe_code)]

mod packing;
mod sizing;

use wipam_policy_sdk::{Allocator, Policy, Sizer, allocation, export_combined, knob, sizing as plans, types::*};

pub use packing::{allocate, release};
pub use sizing::plan;

pub(crate) const WARM_ENIS: &str = "warm-enis";
pub(crate) const WARM_PREFIXES: &str = "warm-prefixes";
pub(crate) const COMPATIBLE: &str = "compatible";

/// Name, version and knobs.
pub fn describe() -> Metadata {
    knob::metadata("default", env!("CARGO_PKG_VERSION"), "packs pods, keeps whole interfaces or prefixes warm")
        .with(knob::integer(WARM_ENIS, 1, 0, 64, "interfaces' worth of free addresses to keep (lone addresses)"))
        .with(knob::integer(WARM_PREFIXES, 1, 0, 1024, "wholly free prefixes to keep (prefix delegation)"))
        .with(knob::boolean(COMPATIBLE, false, "count as the AWS VPC CNI does: cooling addresses are available"))
}

/// Every combination of settings that passes the knobs' bounds is good.
///
/// # Errors
/// None.
pub fn check(_settings: &[Setting]) -> Result<(), Vec<Issue>> {
    Ok(())
}

/// The policy as a type, which is what the export macro takes.
pub struct Default;

impl Policy for Default {
    fn describe() -> Metadata {
        describe()
    }
    fn check(settings: &[Setting]) -> Result<(), Vec<Issue>> {
        check(settings)
    }
}

impl Allocator for Default {
    fn allocate(request: &allocation::Request, given: &Given, pool: &Snapshot) -> Result<allocation::Decision, String> {
        allocate(request, given, pool)
    }
    fn release(
        lease: &allocation::Lease,
        given: &Given,
        pool: &PoolInfo,
        limits: &Limits,
        counts: &Counts,
    ) -> Result<allocation::Retention, String> {
        release(lease, given, pool, limits, counts)
    }
}

impl Sizer for Default {
    fn plan(
        given: &Given,
        pool: &Snapshot,
        demand: &plans::Demand,
        cloud: &plans::Cloud,
        memo: &[u8],
    ) -> Result<plans::Decision, String> {
        plan(given, pool, demand, cloud, memo)
    }
}

export_combined!(Default);

#[cfg(test)]
mod tests;
