//! `warm-ip-target`
#![forbid(unsafe_code)]
use wipam_policy_sdk::{Policy, Sizer, export_sizer, knob, sizing::*, types::*};

/// Name, version and knobs.
pub fn describe() -> Metadata {
    knob::metadata("warm-ip-target", env!("CARGO_PKG_VERSION"), "keeps exactly so many free addresses at rest")
        .with(knob::integer("warm", 1, 0, 4096, "free addresses to keep at rest"))
        .with(knob::integer("minimum", 0, 0, 65_535, "never fewer addresses than this in all"))
        .with(knob::integer("burst-threshold", 8, 0, 10_000, "ADDs in the last minute that make a burst; 0 for never"))
        .with(knob::boolean("compatible", false, "count as the AWS VPC CNI does: cooling is free, no bursts"))
}
/// Rules across settings.
///
/// # Errors
/// None.
pub fn check(_settings: &[Setting]) -> Result<(), Vec<Issue>> {
    Ok(())
}
/// Plans.
///
/// # Errors
/// None.
pub fn plan(_g: &Given, _p: &Snapshot, _d: &Demand, _c: &Cloud, _m: &[u8]) -> Result<Decision, String> {
    Ok(Decision::new(Vec::new(), "nothing"))
}
/// The policy as a type, which is what the export macro takes.
pub struct WarmIpTarget;
impl Policy for WarmIpTarget {
    fn describe() -> Metadata {
        describe()
    }
    fn check(settings: &[Setting]) -> Result<(), Vec<Issue>> {
        check(settings)
    }
}
impl Sizer for WarmIpTarget {
    fn plan(given: &Given, pool: &Snapshot, demand: &Demand, cloud: &Cloud, memo: &[u8]) -> Result<Decision, String> {
        plan(given, pool, demand, cloud, memo)
    }
}
export_sizer!(WarmIpTarget);
