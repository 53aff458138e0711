//! Token buckets, in whole micro-tokens so that virtual time gives the same answer everywhere.

use std::collections::BTreeMap;

use super::config::{Bucket, by_pattern};

const TOKEN: u64 = 1_000_000;

/// The buckets of a VPC, one for each pattern.
#[derive(Debug, Clone, Default)]
pub(crate) struct Throttles {
    buckets: BTreeMap<String, Level>,
}

#[derive(Debug, Clone)]
struct Level {
    bucket: Bucket,
    micro: u64,
    at_ms: u64,
}

impl Throttles {
    pub(crate) fn new(config: &BTreeMap<String, Bucket>) -> Self {
        let full = |bucket: &Bucket| Level { bucket: *bucket, micro: u64::from(bucket.capacity) * TOKEN, at_ms: 0 };
        Self { buckets: config.iter().map(|(pattern, bucket)| (pattern.clone(), full(bucket))).collect() }
    }

    /// Takes a token for `action`; false if its bucket is empty. A refused call costs nothing.
    pub(crate) fn take(&mut self, now_ms: u64, action: &str) -> bool {
        let Some(pattern) = by_pattern(&self.buckets, action).map(|(pattern, _)| pattern.to_owned()) else {
            return true;
        };
        let Some(level) = self.buckets.get_mut(&pattern) else { return true };
        let per_ms = (level.bucket.refill_per_s.max(0.0) * 1_000.0) as u64;
        let refill = now_ms.saturating_sub(level.at_ms).saturating_mul(per_ms);
        level.micro = level.micro.saturating_add(refill).min(u64::from(level.bucket.capacity) * TOKEN);
        level.at_ms = now_ms;
        let enough = level.micro >= TOKEN;
        if enough {
            level.micro -= TOKEN;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empties_and_refills() {
        let config = BTreeMap::from([("Assign*".to_owned(), Bucket { capacity: 2, refill_per_s: 0.5 })]);
        let mut throttles = Throttles::new(&config);
        assert!(throttles.take(0, "AssignPrivateIpAddresses") && throttles.take(0, "AssignIpv6Addresses"));
        assert!(!throttles.take(1_999, "AssignPrivateIpAddresses"));
        assert!(throttles.take(2_000, "AssignPrivateIpAddresses"));
        assert!(!throttles.take(2_000, "AssignPrivateIpAddresses"));
        assert!(throttles.take(2_000, "DescribeSubnets"), "no bucket, no limit");
        assert!(throttles.take(1_000_000, "AssignX") && throttles.take(1_000_000, "AssignX"));
        assert!(!throttles.take(1_000_000, "AssignX"), "never more than the capacity");
    }
}
