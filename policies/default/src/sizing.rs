//! The sizer half: whole interfaces, or whole prefixes.

use wipam_policy_sdk::{
    pool::{Grow, Sizing},
    sizing::*,
    types::*,
};

use crate::{COMPATIBLE, WARM_ENIS, WARM_PREFIXES};

/// When to look again at what waits for a minute without an ADD.
const RECHECK_MS: u32 = 5_000;

/// Plans the steps from what is there to `warm-enis` interfaces' worth of free addresses, or to `warm-prefixes`
/// wholly free prefixes.
///
/// # Errors
/// None.
pub fn plan(given: &Given, pool: &Snapshot, demand: &Demand, cloud: &Cloud, _memo: &[u8]) -> Result<Decision, String> {
    let mut s = Sizing::new(given, pool, demand, cloud);
    if !s.is_elastic() {
        return Ok(s.decide("this pool does not grow or shrink"));
    }
    let compatible = given.settings().boolean(COMPATIBLE, false);
    let target = Target::read(given, pool, &s, compatible);
    let expects_pods = demand.schedulable && !demand.stopping;
    let wish = if expects_pods && s.pods_left() > 0 { target.short(&s) } else { 0 };
    let urgent = (s.uncovered() + s.unit - 1) / s.unit;
    let short = wish.max(urgent);
    if short > 0 {
        s.grow(Grow { units: short, cover: short, fill: s.unit == 1 });
        return Ok(s.decide("fewer free than the target").fact("short", short));
    }
    if s.waiting > 0 || s.is_growing() {
        return Ok(s.decide("what is on its way suffices"));
    }
    s.finish_drains();
    let over = target.over(&s);
    if !compatible && demand.adds_1m > 0 {
        // A pod that comes and goes must not cost an interface each time.
        if over > 0 {
            s.recheck(RECHECK_MS);
        }
        return Ok(s.decide("nothing is given back before a minute without an ADD").fact("over", over));
    }
    s.shrink(over, false);
    if s.unit > 1 {
        let left = over - s.released;
        s.shrink_blocks(left);
    }
    let reason = if s.actions.is_empty() { "on target" } else { "more than the target" };
    Ok(s.decide(reason).fact("over", over))
}

/// What to hold: addresses for an address pool, blocks for a prefix pool.
struct Target {
    units: i64,
    available: i64,
    compatible: bool,
}

impl Target {
    fn read(given: &Given, pool: &Snapshot, s: &Sizing<'_>, compatible: bool) -> Self {
        let settings = given.settings();
        let units = if s.unit == 1 {
            settings.integer(WARM_ENIS, 1).max(0) * i64::from(pool.limits.slots_per_eni)
        } else {
            settings.integer(WARM_PREFIXES, 1).max(0)
        };
        // The AWS daemon counts every address that is not in use.
        let available = s.available() + if compatible { s.set_aside } else { 0 };
        Self { units, available, compatible }
    }

    /// Blocks that are wholly free once everybody who waits has an address.
    fn spare_blocks(s: &Sizing<'_>) -> i64 {
        let partly_free = (s.free - s.free_blocks * s.unit).max(0);
        let taken = ((s.waiting - partly_free).max(0) + s.unit - 1) / s.unit;
        s.free_blocks + s.coming / s.unit - taken
    }

    /// Units to grow by.
    fn short(&self, s: &Sizing<'_>) -> i64 {
        let spare = Self::spare_blocks(s);
        if self.compatible {
            // AWS: too low when fewer are available than the target, or, with target 0, when none is.
            let low = self.available < self.units * s.unit || (self.units == 0 && self.available <= 0);
            let step = if s.unit == 1 { (self.units - self.available).max(1) } else { (self.units - spare).max(1) };
            return if low { step } else { 0 };
        }
        let have = if s.unit == 1 { self.available } else { spare };
        (self.units - have).max(0)
    }

    /// Addresses to give back.
    fn over(&self, s: &Sizing<'_>) -> i64 {
        let over =
            if s.unit == 1 { self.available - self.units } else { (Self::spare_blocks(s) - self.units) * s.unit };
        over.clamp(0, s.free)
    }
}
