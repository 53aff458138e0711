//! The policies document (`policies.yaml`): which policy fills which slot, with which settings.
//!
//! ```yaml
//! policy: default                # short for both slots
//! sizer:                         # a slot named beside it wins
//!   name: warm-ip-target
//!   settings: { warm: 5 }
//! allocator:
//!   file: mine.wasm              # beside this document; may be gzipped
//!   sha256: 0f3a…                # refuse anything else
//! shadow:                        # asked on the same inputs, never used
//!   allocator: sticky-podref
//! ```

use std::collections::BTreeMap;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use wipam_core::policy::{SettingValue, Slot};

use crate::{digest::Digest, settings::Written};

/// Name of the document in a directory or ConfigMap.
pub const DOCUMENT: &str = "policies.yaml";

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRef {
    /// `name.wasm` beside the document if there is one, else what the host embeds under that name.
    Name(String),
    /// What the host embeds, as component.
    Embedded(String),
    /// What the host embeds, as its native twin: no Wasm runs.
    Native(String),
    /// A file beside the document.
    File(String),
}

/// A policy with settings, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    /// Where from.
    pub policy: PolicyRef,
    /// SHA-256 it must have.
    pub sha256: Option<Digest>,
    /// Settings by knob.
    pub settings: Written,
}

impl PolicySpec {
    /// A policy by name, with defaults.
    pub fn named(name: &str) -> PolicySpec {
        PolicySpec { policy: PolicyRef::Name(name.into()), sha256: None, settings: Written::new() }
    }
}

/// Policies by slot, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The allocator.
    pub allocator: Option<PolicySpec>,
    /// The sizer.
    pub sizer: Option<PolicySpec>,
}

impl Slots {
    /// What is written for a slot.
    pub fn get(&self, slot: Slot) -> Option<&PolicySpec> {
        match slot {
            Slot::Allocator => self.allocator.as_ref(),
            Slot::Sizer => self.sizer.as_ref(),
        }
    }
}

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// In charge.
    pub active: Slots,
    /// Shadows.
    pub shadow: Slots,
}

impl Document {
    /// Reads YAML (or JSON, which is YAML). An empty text is an empty document.
    ///
    /// # Errors
    /// A sentence with the field and, unless that is one of the four at the top, the line.
    pub fn parse(text: &str) -> Result<Document, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Document::default());
        }
        let raw: RawDocument = serde_yaml_ng::from_str(text).map_err(|e| e.to_string())?;
        let slots = RawSlots { policy: raw.policy, allocator: raw.allocator, sizer: raw.sizer };
        Ok(Document { active: slots.into(), shadow: raw.shadow.map(Slots::from).unwrap_or_default() })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDocument {
    policy: Option<PolicySpec>,
    allocator: Option<PolicySpec>,
    sizer: Option<PolicySpec>,
    shadow: Option<RawSlots>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlots {
    policy: Option<PolicySpec>,
    allocator: Option<PolicySpec>,
    sizer: Option<PolicySpec>,
}

impl From<RawSlots> for Slots {
    fn from(raw: RawSlots) -> Slots {
        Slots { allocator: raw.allocator.or_else(|| raw.policy.clone()), sizer: raw.sizer.or(raw.policy) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    name: Option<String>,
    embedded: Option<String>,
    native: Option<String>,
    file: Option<String>,
    sha256: Option<String>,
    #[serde(default)]
    settings: UniqueSettings,
}

impl RawSpec {
    fn spec(self) -> Result<PolicySpec, &'static str> {
        let all = [
            self.name.map(PolicyRef::Name),
            self.embedded.map(PolicyRef::Embedded),
            self.native.map(PolicyRef::Native),
            self.file.map(PolicyRef::File),
        ];
        let mut given = all.into_iter().flatten();
        let (Some(policy), None) = (given.next(), given.next()) else {
            return Err("a policy is given by exactly one of name, embedded, native and file");
        };
        match &policy {
            PolicyRef::Native(_) if self.sha256.is_some() => {
                return Err("a native policy is part of the host and has no sha256");
            }
            PolicyRef::File(file) if !plain(file) => {
                return Err("file is the name of a file beside the document, without a path");
            }
            _ => {}
        }
        let sha256 = match self.sha256.as_deref().map(Digest::parse) {
            Some(None) => return Err("sha256 is not a SHA-256 (64 hex digits)"),
            parsed => parsed.flatten(),
        };
        Ok(PolicySpec { policy, sha256, settings: self.settings.0 })
    }
}

fn plain(file: &str) -> bool {
    !file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\\', '\0'])
}

/// Text (a name) or a map. Not an untagged enum, whose errors would have no line.
impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = PolicySpec;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a policy, or a map with name, embedded, native or file")
            }
            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<PolicySpec, E> {
                Ok(PolicySpec::named(name))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PolicySpec, A::Error> {
                RawSpec::deserialize(MapAccessDeserializer::new(map))?.spec().map_err(A::Error::custom)
            }
        }
        from.deserialize_any(Either)
    }
}

/// Settings in which a knob that is written twice is an error; the last one would win silently otherwise.
#[derive(Default)]
struct UniqueSettings(Written);

impl<'de> Deserialize<'de> for UniqueSettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Settings;
        impl<'de> Visitor<'de> for Settings {
            type Value = UniqueSettings;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from knobs to true, false, whole numbers or texts")
            }
            fn visit_unit<E>(self) -> Result<UniqueSettings, E> {
                Ok(UniqueSettings::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueSettings, A::Error> {
                let mut settings = BTreeMap::new();
                while let Some(knob) = map.next_key::<String>()? {
                    let Value(value) = map.next_value()?;
                    if settings.insert(knob.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("settings.{knob} is written twice")));
                    }
                }
                Ok(UniqueSettings(settings))
            }
        }
        from.deserialize_any(Settings)
    }
}

struct Value(SettingValue);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct One;
        impl Visitor<'_> for One {
            type Value = Value;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false, a whole number or a text")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value(SettingValue::Boolean(value)))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value(SettingValue::Integer(value)))
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
                let value = i64::try_from(value).map_err(|_| E::custom("the number is too large"))?;
                Ok(Value(SettingValue::Integer(value)))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value(SettingValue::Text(value.into())))
            }
        }
        from.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms() {
        assert_eq!(Document::parse("# nothing\n\n").unwrap(), Document::default());
        let both = Document::parse("policy: default\nallocator: sticky-podref\n").unwrap();
        assert_eq!(both.active.allocator, Some(PolicySpec::named("sticky-podref")));
        assert_eq!(both.active.sizer, Some(PolicySpec::named("default")));
        let digest = "ab".repeat(32);
        let long = Document::parse(&format!(
            "sizer:\n  file: mine.wasm\n  sha256: {digest}\n  settings: {{ warm: 5, compatible: true, rest: 5m }}\nshadow:\n  sizer: {{ native: default }}\n"
        ))
        .unwrap();
        let sizer = long.active.sizer.unwrap();
        assert_eq!(sizer.policy, PolicyRef::File("mine.wasm".into()));
        assert_eq!(sizer.sha256, Digest::parse(&digest));
        assert_eq!(sizer.settings["rest"], SettingValue::Text("5m".into()));
        assert_eq!(long.active.allocator, None);
        assert_eq!(long.shadow.sizer.unwrap().policy, PolicyRef::Native("default".into()));
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let cases = [
            ("polcy: default\n", "unknown field `polcy`", ""),
            ("sizer:\n  name: a\n  file: b.wasm\n", "exactly one of", "line 2"),
            ("sizer:\n  settings: {}\n", "exactly one of", "line 2"),
            ("sizer:\n  name: a\n  settings:\n    warm: 1.5\n", "settings.warm", "line 4"),
            ("sizer:\n  name: a\n  settings:\n    warm: 1\n    warm: 2\n", "settings.warm is written twice", "line 4"),
            ("sizer:\n  file: ../etc/x.wasm\n", "without a path", "line 2"),
            ("sizer:\n  name: a\n  sha256: zz\n", "sha256 is not", "line 2"),
            ("sizer: [a]\n", "the name of a policy", "line 1"),
            ("policy: a\npolicy: b\n", "duplicate field `policy`", ""),
            ("policy: [\n", "", "line"),
        ];
        for (text, what, line) in cases {
            let error = Document::parse(text).unwrap_err();
            assert!(error.contains(what) && error.contains(line), "{text:?} gives {error:?}");
        }
    }
}
