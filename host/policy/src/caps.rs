//! Guard 11: how long the parts of an answer may be. What is only for people is cut; what carries meaning is a fault.

use wipam_core::policy::{AllocDecision, Fact, PlanDecision, Retention};

use crate::fault::{Fault, FaultClass};

/// Bytes of a reason.
pub const REASON_BYTES: usize = 256;
/// Facts of an answer.
pub const FACTS: usize = 16;
/// Bytes of a fact's key.
pub const FACT_KEY_BYTES: usize = 48;
/// Bytes of a memo.
pub const MEMO_BYTES: usize = 4096;
/// Actions of a plan. The guard applies fewer; this one only keeps nonsense out of the log.
pub const ACTIONS: usize = 64;

/// Cuts `text` to [`REASON_BYTES`] at a character boundary and drops control characters (a reason ends up in logs,
/// terminals and Kubernetes events).
pub fn clean(text: &str) -> String {
    clean_to(text, REASON_BYTES)
}

fn clean_to(text: &str, bytes: usize) -> String {
    let mut out = String::with_capacity(text.len().min(bytes));
    for character in text.chars().filter(|c| !unwanted(*c)) {
        if out.len() + character.len_utf8() > bytes {
            break;
        }
        out.push(character);
    }
    out
}

/// Control characters, and those that turn the reading direction or hide: a log line must show what it holds.
fn unwanted(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn cut_words(reason: &mut String, facts: &mut Vec<Fact>) {
    if reason.len() > REASON_BYTES || reason.chars().any(unwanted) {
        *reason = clean(reason);
    }
    facts.truncate(FACTS);
    for fact in facts {
        if fact.key.len() > FACT_KEY_BYTES || fact.key.chars().any(unwanted) {
            fact.key = clean_to(&fact.key, FACT_KEY_BYTES);
        }
    }
}

/// Cuts an allocation answer.
pub(crate) fn cut_allocation(decision: &mut AllocDecision) {
    cut_words(&mut decision.reason, &mut decision.facts);
}

/// Cuts a retention.
pub(crate) fn cut_retention(retention: &mut Retention) {
    cut_words(&mut retention.reason, &mut retention.facts);
}

/// Cuts a plan. Half a memo would be a broken one, and half a list of actions another plan: those are faults.
pub(crate) fn cut_plan(plan: &mut PlanDecision, rows_offered: usize) -> Result<(), Fault> {
    cut_words(&mut plan.reason, &mut plan.facts);
    let over = |what: &str, has: usize, most: usize| {
        Err(Fault::new(FaultClass::Caps, &format!("{what}: {has}, at most {most} are allowed")))
    };
    if plan.actions.len() > ACTIONS {
        return over("actions in a plan", plan.actions.len(), ACTIONS);
    }
    for action in &plan.actions {
        if let wipam_core::policy::Action::ReleaseRows(rows) = action
            && rows.len() > rows_offered
        {
            return over("rows in one release", rows.len(), rows_offered);
        }
    }
    match &plan.memo {
        Some(memo) if memo.len() > MEMO_BYTES => over("bytes of memo", memo.len(), MEMO_BYTES),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wipam_core::policy::Action;

    #[test]
    fn words_are_cut_at_character_boundaries_and_freed_of_controls() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{202e}d"), "a[31mbcd");
        let long = "ä".repeat(1000);
        assert_eq!(clean(&long).len(), 256);
        assert_eq!(clean(&format!("x{long}")).len(), 255);
    }

    #[test]
    fn a_plan_too_long_is_a_fault_and_facts_are_cut() {
        let fact = Fact { key: "k".repeat(100), value: 1 };
        let mut plan = PlanDecision { facts: vec![fact; 40], ..PlanDecision::default() };
        cut_plan(&mut plan, 0).unwrap();
        assert_eq!((plan.facts.len(), plan.facts[0].key.len()), (16, 48));
        plan.memo = Some(vec![0; 4097]);
        assert_eq!(cut_plan(&mut plan, 0).unwrap_err().class, FaultClass::Caps);
        plan.memo = None;
        plan.actions = vec![Action::ReleaseRows(vec![0, 1])];
        assert_eq!(cut_plan(&mut plan, 1).unwrap_err().class, FaultClass::Caps);
        plan.actions = vec![Action::Detach(1); 65];
        assert_eq!(cut_plan(&mut plan, 1).unwrap_err().class, FaultClass::Caps);
    }
}
