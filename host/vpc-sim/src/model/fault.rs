//! Faults by rule: which calls, when, and what goes wrong.

use serde::{Deserialize, Serialize};

use super::config::pattern_matches;
use super::random::Random;

/// One rule. It looks at every call that its patterns match; `after`, `count`, `probability` and the time window say
/// which of them it hits. Several rules may hit one call: latencies add up, the smallest partial counts, the first
/// error wins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FaultRule {
    /// Action name, or a beginning followed by `*`.
    #[serde(default = "any")]
    pub action: String,
    /// Caller (access key id), or a beginning followed by `*`.
    #[serde(default = "any")]
    pub caller: String,
    /// Spare the first so many matching calls.
    #[serde(default)]
    pub after: u64,
    /// Hit at most so many calls; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Hit a call with this probability, 0 to 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// Hit nothing before this time.
    #[serde(default)]
    pub from_ms: u64,
    /// Hit nothing from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// What goes wrong.
    pub effect: FaultEffect,
}

impl FaultRule {
    /// Every call of `action` fails with `effect`.
    pub fn every(action: &str, effect: FaultEffect) -> Self {
        Self {
            action: action.into(),
            caller: any(),
            after: 0,
            count: None,
            probability: 1.0,
            from_ms: 0,
            until_ms: None,
            effect,
        }
    }

    /// The `nth` call of `action` (1 is the next one) and no other.
    pub fn nth(action: &str, nth: u64, effect: FaultEffect) -> Self {
        Self { after: nth.saturating_sub(1), count: Some(1), ..Self::every(action, effect) }
    }
}

fn any() -> String {
    "*".into()
}

fn certain() -> f64 {
    1.0
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, tag = "kind")]
pub enum FaultEffect {
    /// The call changes nothing and fails with this EC2 code.
    Error {
        /// For example `UnauthorizedOperation`.
        code: String,
        /// The text; absent: a usual one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The HTTP status; absent: the one EC2 uses for the code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        http_status: Option<u16>,
    },
    /// The answer takes so much longer. The change itself happens when the call arrives.
    Latency {
        /// Milliseconds.
        ms: u64,
    },
    /// Of the addresses (or prefixes) that the call asks for, at most so many are assigned or unassigned.
    Partial {
        /// How many.
        addresses: usize,
    },
    /// The change happens, but the caller's connection breaks before the answer.
    LostReply,
}

/// A rule with its counters.
#[derive(Debug, Clone)]
pub(crate) struct ActiveRule {
    rule: FaultRule,
    seen: u64,
    hits: u64,
}

impl ActiveRule {
    pub(crate) fn new(rule: FaultRule) -> Self {
        Self { rule, seen: 0, hits: 0 }
    }

    pub(crate) fn rule(&self) -> &FaultRule {
        &self.rule
    }

    /// Whether this call is hit; counts it.
    fn hits(&mut self, now_ms: u64, action: &str, caller: &str, random: &mut Random) -> bool {
        let rule = &self.rule;
        let in_time = now_ms >= rule.from_ms && rule.until_ms.is_none_or(|until| now_ms < until);
        if !in_time || !pattern_matches(&rule.action, action) || !pattern_matches(&rule.caller, caller) {
            return false;
        }
        self.seen += 1;
        let spent = rule.count.is_some_and(|count| self.hits >= count);
        if self.seen <= rule.after || spent || (rule.probability < 1.0 && !random.chance(rule.probability)) {
            return false;
        }
        self.hits += 1;
        true
    }
}

/// All that goes wrong with one call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verdict {
    pub(crate) error: Option<(String, Option<String>, Option<u16>)>,
    pub(crate) extra_latency_ms: u64,
    pub(crate) partial: Option<usize>,
    pub(crate) lost_reply: bool,
}

/// Asks every rule about one call.
pub(crate) fn judge(rules: &mut [ActiveRule], now_ms: u64, action: &str, caller: &str, random: &mut Random) -> Verdict {
    let mut verdict = Verdict::default();
    for rule in rules {
        if !rule.hits(now_ms, action, caller, random) {
            continue;
        }
        match &rule.rule.effect {
            FaultEffect::Error { code, message, http_status } => {
                verdict.error.get_or_insert_with(|| (code.clone(), message.clone(), *http_status));
            }
            FaultEffect::Latency { ms } => verdict.extra_latency_ms += ms,
            FaultEffect::Partial { addresses } => {
                verdict.partial = Some(verdict.partial.map_or(*addresses, |least| least.min(*addresses)));
            }
            FaultEffect::LostReply => verdict.lost_reply = true,
        }
    }
    verdict
}
