//! A VPC that several servers share, in real time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::Vpc;

/// Where the servers' time comes from.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    model_at_start_ms: u64,
    unix_at_start_ms: u64,
}

impl Clock {
    /// Real time; the model's time is `model_ms` now.
    pub fn real_from(model_ms: u64) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: Instant::now(),
            model_at_start_ms: model_ms,
            unix_at_start_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The model's time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.model_at_start_ms + self.elapsed_ms()
    }

    /// Unix time in milliseconds.
    pub fn unix_ms(&self) -> u64 {
        self.unix_at_start_ms + self.elapsed_ms()
    }

    /// The Unix time, in milliseconds, of a moment of the model.
    pub fn unix_of(&self, model_ms: u64) -> u64 {
        (self.unix_at_start_ms + model_ms).saturating_sub(self.model_at_start_ms)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A VPC behind a lock, with its clock.
#[derive(Debug)]
pub struct Sim {
    vpc: Mutex<Vpc>,
    clock: Clock,
}

impl Sim {
    /// Shares `vpc`, whose time is 0 now.
    pub fn new(vpc: Vpc) -> Self {
        Self::with_clock(vpc, Clock::real_from(0))
    }

    /// Shares `vpc` under a clock that also others use.
    pub fn with_clock(vpc: Vpc, clock: Clock) -> Self {
        Self { vpc: Mutex::new(vpc), clock }
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The model's time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The model, locked. Never hold it across an await.
    pub fn lock(&self) -> MutexGuard<'_, Vpc> {
        // A panic in a test's thread must not hide its message behind poisoned locks; every change is made whole.
        self.vpc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model and its time: `sim.with(|vpc, now_ms| vpc.enis(now_ms))`.
    pub fn with<T>(&self, look: impl FnOnce(&mut Vpc, u64) -> T) -> T {
        let mut vpc = self.lock();
        let now_ms = self.now_ms();
        look(&mut vpc, now_ms)
    }
}

/// A moment as AWS writes it, to the second.
pub(crate) fn timestamp(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(0);
    let moment = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    moment.format(&Rfc3339).unwrap_or_default()
}
