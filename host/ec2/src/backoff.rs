//! How long to stay away after a failed call: a pure function of the kind of failure, how often, and a seed.

use std::time::Duration;

use wipam_core::cloud::ErrorKind;

/// Exponential back-off with jitter: the `n`-th failure in a row waits between half of and the whole of
/// `first × 2ⁿ⁻¹`, at most `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before jitter, after the first failure.
    pub first: Duration,
    /// Before jitter, at most.
    pub cap: Duration,
}

impl Backoff {
    /// The back-off of a kind of failure.
    ///
    /// What heals by itself in seconds starts low (a lost answer, a busy interface); what needs another actor (a full
    /// subnet, a missing permission, a quota) starts where asking costs nothing worth mentioning.
    pub fn of(kind: ErrorKind) -> Backoff {
        let (first_ms, cap_s) = match kind {
            ErrorKind::NoAnswer | ErrorKind::ServerError => (500, 60),
            ErrorKind::Throttled => (1_000, 60),
            ErrorKind::InUse | ErrorKind::NotFound => (1_000, 30),
            // Our picture was wrong; it is read anew before the next call, which may then follow soon.
            ErrorKind::AddressLimit => (2_000, 60),
            ErrorKind::Refused => (5_000, 300),
            ErrorKind::SubnetFull | ErrorKind::NoCidrBlock | ErrorKind::EniLimit => (30_000, 120),
            ErrorKind::NotAuthorised => (30_000, 300),
        };
        Backoff { first: Duration::from_millis(first_ms), cap: Duration::from_secs(cap_s) }
    }

    /// How long to wait after the `failures`-th failure in a row (0 waits not at all). The same arguments give the
    /// same answer; different nodes pass different seeds.
    pub fn delay(self, failures: u32, seed: u64) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        let whole = self.first.saturating_mul(1 << (failures - 1).min(20)).min(self.cap);
        let half_ns = u64::try_from(whole.as_nanos() / 2).unwrap_or(u64::MAX);
        whole / 2 + Duration::from_nanos(scale(half_ns, mix(seed ^ u64::from(failures))))
    }
}

/// `value × fraction`, the fraction being `random / 2⁶⁴`.
fn scale(value: u64, random: u64) -> u64 {
    // The product of two u64 shifted by 64 fits a u64.
    ((u128::from(value) * u128::from(random)) >> 64) as u64
}

/// SplitMix64's finaliser: neighbouring seeds give unrelated values.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ErrorKind; 11] = [
        ErrorKind::Throttled,
        ErrorKind::SubnetFull,
        ErrorKind::NoCidrBlock,
        ErrorKind::AddressLimit,
        ErrorKind::EniLimit,
        ErrorKind::NotAuthorised,
        ErrorKind::NotFound,
        ErrorKind::InUse,
        ErrorKind::NoAnswer,
        ErrorKind::ServerError,
        ErrorKind::Refused,
    ];

    #[test]
    fn delay_stays_between_half_and_whole_and_never_passes_the_cap() {
        for kind in KINDS {
            let backoff = Backoff::of(kind);
            for failures in [1, 2, 3, 7, 40, u32::MAX] {
                let whole = backoff.first.saturating_mul(1 << (failures - 1).min(20)).min(backoff.cap);
                for seed in 0..200 {
                    let delay = backoff.delay(failures, seed);
                    assert!(delay >= whole / 2 && delay <= whole, "{kind:?} {failures} {seed}: {delay:?}");
                    assert_eq!(delay, backoff.delay(failures, seed));
                }
            }
        }
    }

    #[test]
    fn no_failure_no_wait() {
        assert_eq!(Backoff::of(ErrorKind::Throttled).delay(0, 1), Duration::ZERO);
    }

    #[test]
    fn neighbouring_seeds_spread_over_the_whole_range() {
        let backoff = Backoff::of(ErrorKind::Throttled);
        let mut quarters = [0; 4];
        for seed in 0..1000 {
            let over_half = backoff.delay(1, seed) - backoff.first / 2;
            quarters[(over_half.as_millis() / 125).min(3) as usize] += 1;
        }
        assert!(quarters.iter().all(|&n| n > 180), "{quarters:?}");
    }
}
