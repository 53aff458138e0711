//! What the demo prints: numbered steps, what each found, and how long it took.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Counts steps and time.
pub struct Screen {
    began: Instant,
    steps: u32,
}

impl Screen {
    /// Prints the first line.
    pub fn new(title: &str) -> Screen {
        println!("{title}\n");
        Screen { began: Instant::now(), steps: 0 }
    }

    /// One step: its title, what `work` says, and its time. A step is done only when `work` has verified it.
    ///
    /// # Errors
    /// What went wrong, with the step's title.
    pub fn step<T>(&mut self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.steps += 1;
        println!("{:>2}. {title}", self.steps);
        let began = Instant::now();
        match work() {
            Ok(value) => {
                println!("    ok, {}\n", seconds(began.elapsed()));
                Ok(value)
            }
            Err(error) => {
                println!("    FAILED after {}\n", seconds(began.elapsed()));
                Err(error).with_context(|| format!("step {}, {title}", self.steps))
            }
        }
    }

    /// The last line.
    pub fn end(&self) {
        println!("All {} steps verified in {}.", self.steps, seconds(self.began.elapsed()));
    }
}

/// One thing that a step found.
pub fn say(text: impl AsRef<str>) {
    for line in text.as_ref().lines() {
        println!("      {line}");
    }
}

/// A time for people.
pub fn seconds(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
