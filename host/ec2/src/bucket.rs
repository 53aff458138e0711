//! The token bucket that all EC2 calls of the node share.
//!
//! EC2 throttles by account and region: a node that asks as fast as it can takes from its neighbours. Turns are given
//! in the order of asking, each call knows at once how long it will wait, and a wait past the bound is refused before
//! it begins rather than after.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket; shared by reference.
#[derive(Debug)]
pub struct Bucket {
    /// Time between two tokens.
    interval: Duration,
    /// Tokens a full bucket holds.
    burst: u32,
    /// When the bucket would be full again if nobody asked any more. In the past = full.
    full_at: Mutex<Instant>,
}

/// The wait would be longer than the caller allows; no token was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all calls together are over their rate: this one's turn would come in {needed:?}")]
pub struct TooLong {
    /// How long the wait would have been.
    pub needed: Duration,
}

impl Bucket {
    /// A full bucket of `burst` tokens (at least 1) that gains `rate` tokens a second (at least one in an hour).
    pub fn new(rate: f64, burst: u32) -> Bucket {
        let rate = rate.max(1.0 / 3600.0);
        Bucket {
            interval: Duration::from_secs_f64(1.0 / rate),
            burst: burst.max(1),
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Takes a token, waiting up to `max_wait` for it. Returns how long it waited.
    ///
    /// A future dropped while it waits has still spent its token.
    pub async fn take(&self, max_wait: Duration) -> Result<Duration, TooLong> {
        let wait = self.reserve(Instant::now(), max_wait)?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(wait)
    }

    /// Empties the bucket: EC2 itself has said that we are too fast, so what follows is spaced at the plain rate.
    pub fn drain(&self) {
        let empty = Instant::now() + self.interval * self.burst;
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        *full_at = (*full_at).max(empty);
    }

    fn reserve(&self, now: Instant, max_wait: Duration) -> Result<Duration, TooLong> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let after = (*full_at).max(now) + self.interval;
        // With one more token missing than the bucket holds, the caller waits until one has come.
        let wait = (after - now).saturating_sub(self.interval * self.burst);
        if wait > max_wait {
            return Err(TooLong { needed: wait });
        }
        *full_at = after;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn burst_is_free_then_the_rate_holds() {
        let bucket = Bucket::new(2.0, 3);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(bucket.take(LONG).await.unwrap().as_millis());
        }
        assert_eq!(waits, [0, 0, 0, 500, 500, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_fills_up_to_the_burst_and_no_further() {
        let bucket = Bucket::new(10.0, 2);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        for _ in 0..4 {
            bucket.take(LONG).await.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_get_turns_one_interval_apart() {
        let bucket = std::sync::Arc::new(Bucket::new(1.0, 1));
        let start = Instant::now();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let bucket = bucket.clone();
                tokio::spawn(async move { bucket.take(LONG).await.map(|_| start.elapsed().as_secs()) })
            })
            .collect();
        let mut turns = Vec::new();
        for task in tasks {
            turns.push(task.await.unwrap().unwrap());
        }
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_past_the_bound_is_refused_at_once_and_takes_nothing() {
        let bucket = Bucket::new(0.1, 1);
        bucket.take(LONG).await.unwrap();
        let start = Instant::now();
        for _ in 0..3 {
            let refused = bucket.take(Duration::from_secs(5)).await.unwrap_err();
            assert_eq!(refused.needed, Duration::from_secs(10));
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(bucket.take(LONG).await.unwrap(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn drained_it_gives_at_the_plain_rate() {
        let bucket = Bucket::new(1.0, 10);
        bucket.drain();
        assert_eq!(bucket.take(LONG).await.unwrap(), Duration::from_secs(1));
        assert_eq!(bucket.take(LONG).await.unwrap(), Duration::from_secs(1));
    }

    #[test]
    fn nonsense_rates_are_bounded() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE] {
            let bucket = Bucket::new(rate, 0);
            assert!(bucket.interval <= Duration::from_secs(3600) && bucket.burst == 1, "{rate}");
        }
    }
}
