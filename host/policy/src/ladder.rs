//! The fault ladder of one slot: active policy, last good policy, native twin.
//!
//! Time is the `now-ms` of the faulty decision, so that a replay steps down at the same decisions.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use wipam_core::policy::AnsweredBy;

use crate::fault::Fault;

/// When to step down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LadderLimits {
    /// So many faults …
    pub faults: usize,
    /// … in so many milliseconds.
    pub window_ms: u64,
}

impl Default for LadderLimits {
    fn default() -> Self {
        LadderLimits { faults: 3, window_ms: 60_000 }
    }
}

/// A step down the ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// From where.
    pub from: AnsweredBy,
    /// To where.
    pub to: AnsweredBy,
    /// Pool clock, ms.
    pub at_ms: u64,
    /// The fault that filled the window.
    pub fault: Fault,
}

/// State of one slot's ladder.
#[derive(Clone, Debug)]
pub struct Ladder {
    limits: LadderLimits,
    /// Generation the rest is about; faults of an older one say nothing about this one.
    generation: u64,
    rung: AnsweredBy,
    recent: VecDeque<u64>,
    total: u64,
    last: Option<(u64, Fault)>,
    step: Option<Step>,
}

impl Ladder {
    /// A ladder on its first rung.
    pub fn new(limits: LadderLimits, generation: u64) -> Ladder {
        Ladder {
            limits,
            generation,
            rung: AnsweredBy::Policy,
            recent: VecDeque::new(),
            total: 0,
            last: None,
            step: None,
        }
    }

    /// Who is to answer for this generation.
    pub fn rung(&self, generation: u64) -> AnsweredBy {
        if generation == self.generation { self.rung } else { AnsweredBy::Policy }
    }

    /// Counts a fault of whoever answered as `by` at `now_ms`. Answers of another generation, or of a rung that was
    /// left meanwhile, are ignored. Returns the step if this was the one too many.
    pub fn fault(
        &mut self,
        generation: u64,
        by: AnsweredBy,
        now_ms: u64,
        has_last_good: bool,
        fault: &Fault,
    ) -> Option<Step> {
        if generation != self.generation || by != self.rung || by == AnsweredBy::Native {
            return None;
        }
        self.total += 1;
        self.last = Some((now_ms, fault.clone()));
        self.recent.push_back(now_ms);
        while self.recent.front().is_some_and(|at| now_ms.saturating_sub(*at) >= self.limits.window_ms) {
            self.recent.pop_front();
        }
        if self.recent.len() < self.limits.faults.max(1) {
            return None;
        }
        let to = match self.rung {
            AnsweredBy::Policy if has_last_good => AnsweredBy::LastGood,
            _ => AnsweredBy::Native,
        };
        let step = Step { from: self.rung, to, at_ms: now_ms, fault: fault.clone() };
        self.rung = to;
        self.recent.clear();
        self.step = Some(step.clone());
        Some(step)
    }

    /// Back to the first rung: an operator acted. The total is kept if the generation is.
    pub fn reset(&mut self, generation: u64) {
        let total = if generation == self.generation { self.total } else { 0 };
        *self = Ladder { total, ..Ladder::new(self.limits, generation) };
    }

    /// Faults of this generation.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Faults in the window that ends at the last one.
    pub fn in_window(&self) -> usize {
        self.recent.len()
    }

    /// The last fault and its time.
    pub fn last(&self) -> Option<&(u64, Fault)> {
        self.last.as_ref()
    }

    /// The last step down.
    pub fn step(&self) -> Option<&Step> {
        self.step.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultClass;

    fn fault() -> Fault {
        Fault::new(FaultClass::Panic, "x")
    }

    #[test]
    fn three_in_a_minute_step_down_and_slower_ones_never_do() {
        let mut ladder = Ladder::new(LadderLimits::default(), 1);
        for n in 0..100 {
            assert_eq!(ladder.fault(1, AnsweredBy::Policy, n * 30_000, false, &fault()), None, "two in any minute");
        }
        let start = 10_000_000;
        ladder.fault(1, AnsweredBy::Policy, start, false, &fault());
        ladder.fault(1, AnsweredBy::Policy, start + 1, false, &fault());
        let step = ladder.fault(1, AnsweredBy::Policy, start + 59_999, false, &fault()).unwrap();
        assert_eq!((step.from, step.to), (AnsweredBy::Policy, AnsweredBy::Native));
        assert_eq!(ladder.rung(1), AnsweredBy::Native);
        assert_eq!(ladder.total(), 103);
    }

    #[test]
    fn the_window_is_open_at_its_end() {
        let mut ladder = Ladder::new(LadderLimits::default(), 1);
        for at in [0, 1, 60_000] {
            assert_eq!(ladder.fault(1, AnsweredBy::Policy, at, true, &fault()), None);
        }
        assert!(ladder.fault(1, AnsweredBy::Policy, 60_000, true, &fault()).is_some());
    }

    #[test]
    fn last_good_first_then_native_and_only_a_reset_leads_back() {
        let mut ladder = Ladder::new(LadderLimits::default(), 1);
        let mut run = |by| (0..3).filter_map(|at| ladder.fault(1, by, at, true, &fault())).map(|s| s.to).next_back();
        assert_eq!(run(AnsweredBy::Policy), Some(AnsweredBy::LastGood));
        assert_eq!(run(AnsweredBy::Policy), None, "late faults of the rung that was left");
        assert_eq!(run(AnsweredBy::LastGood), Some(AnsweredBy::Native));
        assert_eq!(run(AnsweredBy::Native), None);
        assert_eq!(ladder.rung(2), AnsweredBy::Policy, "another generation begins at the top");
        ladder.reset(1);
        assert_eq!((ladder.rung(1), ladder.total(), ladder.step()), (AnsweredBy::Policy, 6, None));
    }
}
