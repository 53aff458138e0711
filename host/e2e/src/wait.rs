//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until `look` gives something, at most `patience`.
///
/// # Errors
/// It never did: says what was waited for, and what `look` said last.
pub fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + patience;
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() >= end => bail!("waited {patience:?} for {what}: {error:#}"),
            Err(_) => std::thread::park_timeout(LOOK_EVERY),
        }
    }
}
