//! Builders for what a policy says about itself.
//!
//! ```
//! use wipam_policy_sdk::knob;
//! let about = knob::metadata("mine", "0.1.0", "what it does in one sentence")
//!     .with(knob::integer("warm", 1, 0, 4096, "free addresses at rest"))
//!     .with(knob::boolean("eager", false, "grow early"));
//! assert_eq!(about.knobs.len(), 2);
//! ```

use crate::types::{Issue, Knob, KnobKind, Metadata, Setting, SettingValue};

/// Metadata without knobs. `name` and the names of knobs are kebab-case.
pub fn metadata(name: &str, version: &str, summary: &str) -> Metadata {
    Metadata {
        name: name.into(),
        version: version.into(),
        summary: summary.into(),
        knobs: Vec::new(),
        memo_schema: 0,
        extra: Vec::new(),
    }
}

impl Metadata {
    /// Adds a knob.
    #[must_use]
    pub fn with(mut self, knob: Knob) -> Self {
        self.knobs.push(knob);
        self
    }

    /// The knobs' defaults as settings, which is what the host passes when nobody set anything.
    pub fn defaults(&self) -> Vec<Setting> {
        self.knobs.iter().map(|k| Setting { name: k.name.clone(), value: k.default.clone() }).collect()
    }
}

fn numeric(name: &str, kind: KnobKind, default: i64, min: i64, max: i64, help: &str) -> Knob {
    Knob {
        name: name.into(),
        kind,
        default: SettingValue::Integer(default),
        min: Some(min),
        max: Some(max),
        choices: Vec::new(),
        help: help.into(),
    }
}

/// A whole number within bounds.
pub fn integer(name: &str, default: i64, min: i64, max: i64, help: &str) -> Knob {
    numeric(name, KnobKind::Integer, default, min, max, help)
}

/// 0 to 100.
pub fn percent(name: &str, default: i64, help: &str) -> Knob {
    numeric(name, KnobKind::Percent, default, 0, 100, help)
}

/// A duration in milliseconds, from 0 to `max`.
pub fn duration_ms(name: &str, default: i64, max: i64, help: &str) -> Knob {
    numeric(name, KnobKind::DurationMs, default, 0, max, help)
}

/// On or off.
pub fn boolean(name: &str, default: bool, help: &str) -> Knob {
    Knob {
        name: name.into(),
        kind: KnobKind::Boolean,
        default: SettingValue::Boolean(default),
        min: None,
        max: None,
        choices: Vec::new(),
        help: help.into(),
    }
}

/// Any text.
pub fn text(name: &str, default: &str, help: &str) -> Knob {
    Knob {
        name: name.into(),
        kind: KnobKind::Text,
        default: SettingValue::Text(default.into()),
        min: None,
        max: None,
        choices: Vec::new(),
        help: help.into(),
    }
}

/// One of several texts.
pub fn choice(name: &str, default: &str, choices: &[&str], help: &str) -> Knob {
    Knob { kind: KnobKind::Choice, choices: choices.iter().map(|c| (*c).into()).collect(), ..text(name, default, help) }
}

/// A setting that is on or off.
pub fn set_boolean(name: &str, value: bool) -> Setting {
    Setting { name: name.into(), value: SettingValue::Boolean(value) }
}

/// A setting that is a number (integer, percent, milliseconds).
pub fn set_integer(name: &str, value: i64) -> Setting {
    Setting { name: name.into(), value: SettingValue::Integer(value) }
}

/// A setting that is a text or a choice.
pub fn set_text(name: &str, value: &str) -> Setting {
    Setting { name: name.into(), value: SettingValue::Text(value.into()) }
}

/// Something an operator must mend; `setting` where one is to blame.
pub fn issue(setting: Option<&str>, message: impl Into<String>) -> Issue {
    Issue { setting: setting.map(Into::into), message: message.into() }
}
