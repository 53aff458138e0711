//! Typed reading of settings.

use crate::types::{Given, Setting, SettingValue};

/// Settings by name. The host fills in the defaults of the knobs, so a setting is missing only in a native test
/// that left it out; the fallback given to a getter is for that case.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a>(pub &'a [Setting]);

impl<'a> Settings<'a> {
    fn find(self, name: &str) -> Option<&'a SettingValue> {
        self.0.iter().find(|s| s.name == name).map(|s| &s.value)
    }

    /// An integer, percent or duration (ms).
    pub fn integer(self, name: &str, otherwise: i64) -> i64 {
        match self.find(name) {
            Some(SettingValue::Integer(value)) => *value,
            _ => otherwise,
        }
    }

    /// A boolean.
    pub fn boolean(self, name: &str, otherwise: bool) -> bool {
        match self.find(name) {
            Some(SettingValue::Boolean(value)) => *value,
            _ => otherwise,
        }
    }

    /// A text or choice.
    pub fn text(self, name: &str, otherwise: &'a str) -> &'a str {
        match self.find(name) {
            Some(SettingValue::Text(value)) => value,
            _ => otherwise,
        }
    }
}

impl Given {
    /// The settings in force, for typed reading.
    pub fn settings(&self) -> Settings<'_> {
        Settings(&self.settings)
    }
}
