//! `warm-ip-target`: at rest exactly `warm` free addresses, and never fewer than `minimum` in all.
//!
//! Lone addresses are asked for one by one; with prefixes it holds the fewest whole ones that give at least `warm`.
//! While at least `burst-threshold` ADDs came in the last minute it grows only when the pool falls below `warm`, and
//! then by `warm` + the last minute's ADDs, as far as one interface has room: so that a storm of pods costs a call for
//! each interface instead of one for each pod. What is too much then goes back after a minute without an ADD.
#![forbid(unsafe_code)]

use wipam_policy_sdk::{
    Policy, Sizer, export_sizer, knob,
    pool::{Grow, Sizing},
    sizing::*,
    types::*,
};

const WARM: &str = "warm";
const MINIMUM: &str = "minimum";
const BURST: &str = "burst-threshold";
const COMPATIBLE: &str = "compatible";
/// How often to look whether the minute without an ADD is over.
const SURPLUS_RECHECK_MS: u32 = 5_000;

/// Name, version and knobs.
pub fn describe() -> Metadata {
    knob::metadata("warm-ip-target", env!("CARGO_PKG_VERSION"), "keeps exactly so many free addresses at rest")
        .with(knob::integer(WARM, 1, 0, 4096, "free addresses to keep at rest"))
        .with(knob::integer(MINIMUM, 0, 0, 65_535, "never fewer addresses than this in all"))
        .with(knob::integer(BURST, 8, 0, 100_000, "ADDs in the last minute that make a burst; 0: never"))
        .with(knob::boolean(COMPATIBLE, false, "count as the AWS VPC CNI: cooling is available, no bursts"))
}

/// Every combination of settings that passes the knobs' bounds is good: `warm` 0 and `minimum` 0 still grow for an ADD
/// that waits.
///
/// # Errors
/// None.
pub fn check(_settings: &[Setting]) -> Result<(), Vec<Issue>> {
    Ok(())
}

/// The settings, and what they make of the figures.
struct Targets {
    warm: i64,
    minimum: i64,
    /// The last minute's ADDs when they are a burst, else 0.
    burst: i64,
    compatible: bool,
    bursts_on: bool,
}

impl Targets {
    fn read(given: &Given, demand: &Demand) -> Self {
        let settings = given.settings();
        let compatible = settings.boolean(COMPATIBLE, false);
        let threshold = if compatible { 0 } else { settings.integer(BURST, 8) };
        let adds = i64::from(demand.adds_1m);
        Self {
            warm: settings.integer(WARM, 1).max(0),
            minimum: settings.integer(MINIMUM, 0).max(0),
            burst: if threshold > 0 && adds >= threshold { adds } else { 0 },
            compatible,
            bursts_on: threshold > 0,
        }
    }

    /// Addresses that count as there for new pods. The AWS daemon counts all that are not in use.
    fn available(&self, s: &Sizing<'_>) -> i64 {
        s.available() + if self.compatible { s.set_aside } else { 0 }
    }

    /// Addresses to grow by, and how many of them cannot wait.
    fn short(&self, s: &Sizing<'_>) -> (i64, i64) {
        let available = self.available(s);
        // Addresses that rest are no use to an ADD that waits, whatever the arithmetic says.
        let urgent = s.uncovered();
        let floor = self.minimum - s.total - s.coming;
        let below = self.warm - available;
        let wish = if below > 0 { below + self.burst } else { 0 };
        let wish = wish.max(floor).min(s.pods_left());
        let cover = if self.burst > 0 { urgent.max(floor.min(wish)) } else { wish.max(urgent) };
        (wish.max(urgent), cover)
    }

    /// Addresses to give back.
    fn over(&self, s: &Sizing<'_>) -> i64 {
        (self.available(s) - self.warm).min(s.total - self.minimum).min(s.free).max(0)
    }
}

/// Plans the steps from what is there to the targets.
///
/// # Errors
/// None.
pub fn plan(given: &Given, pool: &Snapshot, demand: &Demand, cloud: &Cloud, _memo: &[u8]) -> Result<Decision, String> {
    let mut s = Sizing::new(given, pool, demand, cloud);
    if !s.is_elastic() {
        return Ok(s.decide("this pool does not grow or shrink"));
    }
    let targets = Targets::read(given, demand);
    let (mut short, mut cover) = targets.short(&s);
    if demand.stopping || !demand.schedulable {
        // No pod will come but those that wait already.
        (short, cover) = (s.uncovered(), s.uncovered());
    }
    if short > 0 {
        let units = |addresses: i64| (addresses + s.unit - 1).div_euclid(s.unit);
        let want = Grow { units: units(short), cover: units(cover.max(0)), fill: false };
        s.grow(want);
        let reason = if targets.burst > 0 { "short, in a burst" } else { "short" };
        return Ok(s.decide(reason).fact("short", short));
    }
    if s.waiting > 0 || s.is_growing() {
        return Ok(s.decide("what is on its way suffices"));
    }
    s.finish_drains();
    let over = targets.over(&s);
    if targets.bursts_on && demand.adds_1m > 0 {
        if over > 0 {
            s.recheck(SURPLUS_RECHECK_MS);
        }
        return Ok(s.decide("nothing is given back before a minute without an ADD").fact("over", over));
    }
    s.shrink(over, true);
    if s.released < over {
        s.recheck(SURPLUS_RECHECK_MS);
    }
    let reason = if s.actions.is_empty() { "on target" } else { "more than the target" };
    Ok(s.decide(reason).fact("over", over))
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

#[cfg(test)]
mod tests;
