//! The one place that reads clocks.
//!
//! The pool's clock ([`Ms`]) begins at wall time when the state is made. Within one boot it follows CLOCK_BOOTTIME,
//! which also counts while the machine sleeps and is not set by anybody; over a reboot it goes on by what the wall
//! clock says has passed, and never goes back.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use wipam_core::event::Ms;
use wipam_core::saved::{self, Saved};

/// The raw clocks; the test has its own.
pub trait Source: Send + Sync {
    /// Milliseconds since boot, sleep included.
    fn boottime_ms(&self) -> u64;
    /// Wall time, ns since 1970 UTC.
    fn wall_ns(&self) -> i64;
}

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Source for Kernel {
    fn boottime_ms(&self) -> u64 {
        let t = clock_gettime(ClockId::Boottime);
        let (secs, nanos) = (u64::try_from(t.tv_sec).unwrap_or(0), u64::try_from(t.tv_nsec).unwrap_or(0));
        secs * 1_000 + nanos / 1_000_000
    }

    fn wall_ns(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// The pool's clock of this process.
#[derive(Clone)]
pub struct Clock {
    source: std::sync::Arc<dyn Source>,
    boot: String,
    /// Pool clock and CLOCK_BOOTTIME of one moment; the rest follows.
    base: (Ms, u64),
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("boot", &self.boot).field("base", &self.base).finish_non_exhaustive()
    }
}

impl Clock {
    /// Goes on from a saved state, or begins at wall time. `boot` is this boot's id ([`boot_id`]).
    pub fn new(source: std::sync::Arc<dyn Source>, boot: String, saved: Option<&Saved>) -> Clock {
        let boottime_ms = source.boottime_ms();
        let wall_ns = source.wall_ns();
        let now = match saved {
            Some(saved) => saved.pool_now(&boot, &saved::Clock { pool_ms: 0, wall_ns, boottime_ms }),
            None => u64::try_from(wall_ns).unwrap_or(0) / 1_000_000,
        };
        Clock { source, boot, base: (now, boottime_ms) }
    }

    /// The pool's time now.
    pub fn now(&self) -> Ms {
        self.base.0 + self.source.boottime_ms().saturating_sub(self.base.1)
    }

    /// The clocks as a checkpoint written now must have them.
    pub fn stamp(&self) -> saved::Clock {
        let boottime_ms = self.source.boottime_ms();
        let pool_ms = self.base.0 + boottime_ms.saturating_sub(self.base.1);
        saved::Clock { pool_ms, wall_ns: self.source.wall_ns(), boottime_ms }
    }

    /// Wall time now, ns since 1970 UTC.
    pub fn wall_ns(&self) -> i64 {
        self.source.wall_ns()
    }

    /// Id of this boot.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// The wall time of an instant of the pool's clock, as RFC 3339 UTC with `Z`, whole seconds: what people read.
    pub fn rfc3339(&self, at: Ms) -> String {
        let delta = i128::from(at) - i128::from(self.now());
        rfc3339(i128::from(self.source.wall_ns()) / 1_000_000 + delta)
    }
}

/// Milliseconds since 1970 as RFC 3339 UTC with `Z`, whole seconds.
pub fn rfc3339(unix_ms: i128) -> String {
    use time::format_description::well_known::Rfc3339;
    i64::try_from(unix_ms.div_euclid(1_000))
        .ok()
        .and_then(|s| time::OffsetDateTime::from_unix_timestamp(s).ok())
        .and_then(|t| t.format(&Rfc3339).ok())
        .unwrap_or_else(|| "an unknown time".into())
}

/// Measures how long something took.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The kernel's id of this boot.
pub fn boot_id() -> io::Result<String> {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).map(|s| s.trim().to_owned())
}

/// How long until `at`, for a timer.
pub fn until(clock: &Clock, at: Ms) -> Duration {
    Duration::from_millis(at.saturating_sub(clock.now()))
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    /// A clock that is set by hand.
    #[derive(Default)]
    pub struct ByHand {
        pub boottime_ms: AtomicU64,
        pub wall_ns: AtomicI64,
    }

    impl super::Source for ByHand {
        fn boottime_ms(&self) -> u64 {
            self.boottime_ms.load(Ordering::Relaxed)
        }
        fn wall_ns(&self) -> i64 {
            self.wall_ns.load(Ordering::Relaxed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::ByHand;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    const SECOND_NS: i64 = 1_000_000_000;

    fn at(boottime_ms: u64, wall_s: i64) -> Arc<ByHand> {
        let by_hand = ByHand::default();
        by_hand.boottime_ms.store(boottime_ms, Relaxed);
        by_hand.wall_ns.store(wall_s * SECOND_NS, Relaxed);
        Arc::new(by_hand)
    }

    fn saved() -> Saved {
        let clock = saved::Clock { boottime_ms: 5_000, wall_ns: 100 * SECOND_NS, pool_ms: 77_000 };
        Saved { boot: "a".into(), clock, ..Saved::default() }
    }

    #[test]
    fn a_new_pool_begins_at_wall_time_and_follows_boottime() {
        let source = at(5_000, 1_000);
        let clock = Clock::new(source.clone(), "a".into(), None);
        assert_eq!(clock.now(), 1_000_000);
        source.boottime_ms.store(6_500, Relaxed);
        source.wall_ns.store(0, Relaxed);
        assert_eq!(clock.now(), 1_001_500);
    }

    #[test]
    fn the_same_boot_goes_on_by_boottime_whatever_the_wall_clock_does() {
        let clock = Clock::new(at(8_000, 1), "a".into(), Some(&saved()));
        assert_eq!(clock.now(), 80_000);
    }

    #[test]
    fn another_boot_goes_on_by_wall_time_and_never_back() {
        assert_eq!(Clock::new(at(10, 160), "b".into(), Some(&saved())).now(), 137_000);
        assert_eq!(Clock::new(at(10, 50), "b".into(), Some(&saved())).now(), 77_000);
    }

    #[test]
    fn screens_see_utc() {
        let clock = Clock::new(at(0, 1_764_489_394), "a".into(), Some(&saved()));
        let now = clock.now();
        assert_eq!(clock.rfc3339(now), "2025-11-30T07:56:34Z");
        assert_eq!(clock.rfc3339(now + 60_000), "2025-11-30T07:57:34Z");
    }

    #[test]
    fn the_kernel_has_these_clocks() {
        let clock = Clock::new(Arc::new(Kernel), boot_id().unwrap(), None);
        let first = clock.now();
        assert!(first > 1_600_000_000_000 && clock.now() >= first && clock.boot().len() == 36);
    }
}
