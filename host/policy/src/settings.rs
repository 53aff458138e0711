//! From what an operator wrote to typed settings: document, then environment, then the knob's default.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use wipam_core::policy::{Issue, Knob, KnobKind, Metadata, Setting, SettingValue, Slot};

/// Settings as written, by knob.
pub type Written = BTreeMap<String, SettingValue>;

/// Where the value of a setting came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    /// The policies document.
    Document,
    /// An environment variable, by name.
    Environment(String),
    /// The knob's default.
    Default,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Name of the knob.
    pub name: String,
    /// Value.
    pub value: SettingValue,
    /// Where it came from.
    pub source: SettingSource,
}

/// Environment variables that are the AWS daemon's way to say a knob's value: variable, policy, knob. All belong to
/// the sizer. `compatible` is not among them: who changes the daemon should not have to live with its arithmetic.
pub const ENVIRONMENT_KNOBS: [(&str, &str, &str); 4] = [
    ("WARM_ENI_TARGET", "default", "warm-enis"),
    ("WARM_PREFIX_TARGET", "default", "warm-prefixes"),
    ("WARM_IP_TARGET", "warm-ip-target", "warm"),
    ("MINIMUM_IP_TARGET", "warm-ip-target", "minimum"),
];

/// The environment, as far as it speaks of policies. Read once, at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    values: BTreeMap<String, String>,
}

impl Environment {
    /// From pairs of name and value; all but the mapped variables, and empty ones, are left out.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Environment {
        let values = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(name, value)| {
                ENVIRONMENT_KNOBS.iter().any(|(variable, ..)| variable == name) && !value.trim().is_empty()
            })
            .collect();
        Environment { values }
    }

    /// From the process.
    pub fn from_process() -> Environment {
        Environment::from_pairs(
            ENVIRONMENT_KNOBS.iter().filter_map(|(name, ..)| Some((*name, std::env::var(name).ok()?))),
        )
    }

    fn text(&self, variable: &str) -> Option<&str> {
        self.values.get(variable).map(|value| value.trim())
    }

    fn integer(&self, variable: &str) -> Option<i64> {
        self.text(variable)?.parse().ok()
    }

    /// Policy that an unnamed slot runs.
    pub fn unnamed(&self, slot: Slot) -> &'static str {
        let asked = |variable| self.integer(variable).is_some_and(|value| value != 0);
        match slot {
            Slot::Sizer if asked("WARM_IP_TARGET") || asked("MINIMUM_IP_TARGET") => "warm-ip-target",
            _ => "default",
        }
    }

    /// Value of a policy's knob, with the variable it comes from, or a warning if the value is unusable.
    fn knob(&self, policy: &str, knob: &Knob) -> Option<Result<(String, SettingValue), String>> {
        let (variable, ..) = ENVIRONMENT_KNOBS.iter().find(|(_, p, k)| *p == policy && *k == knob.name)?;
        let text = self.text(variable)?;
        let parsed = match text.parse() {
            Ok(number) => typed(knob, &SettingValue::Integer(number)),
            Err(_) => Err("is not a whole number".into()),
        };
        Some(match parsed {
            Ok(value) => Ok(((*variable).into(), value)),
            Err(why) => Err(format!("{variable}={text} {why}; it is ignored")),
        })
    }

    /// Variables that are set and change nothing, given the sizer and the settings it got.
    pub(crate) fn without_effect(&self, sizer: &str, in_force: &[InForce]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (variable, policy, knob) in ENVIRONMENT_KNOBS {
            let Some(value) = self.text(variable) else { continue };
            let setting = in_force.iter().find(|s| s.name == knob);
            let why = match setting {
                _ if sizer != policy => format!("it is for the policy {policy}, and the sizer is {sizer}"),
                Some(InForce { source: SettingSource::Document, .. }) => {
                    format!("the document sets sizer.settings.{knob}")
                }
                None => format!("this version of {policy} has no knob {knob}"),
                Some(_) => continue,
            };
            warnings.push(format!("{variable}={value} has no effect: {why}"));
        }
        warnings
    }
}

/// Settings of one policy, with warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// One for each knob, in the knobs' order.
    pub in_force: Vec<InForce>,
    /// About unusable environment variables.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// As a policy gets them.
    pub fn settings(&self) -> Vec<Setting> {
        self.in_force.iter().map(|s| Setting { name: s.name.clone(), value: s.value.clone() }).collect()
    }
}

/// Fills every knob.
///
/// # Errors
/// One issue for each written setting that names no knob, or whose value does not fit its knob.
pub fn resolve(metadata: &Metadata, written: &Written, environment: &Environment) -> Result<Resolved, Vec<Issue>> {
    let mut issues = unknown(metadata, written);
    let mut resolved = Resolved::default();
    for knob in &metadata.knobs {
        let (value, source) = match written.get(&knob.name) {
            Some(value) => match typed(knob, value) {
                Ok(value) => (value, SettingSource::Document),
                Err(why) => {
                    let message = format!("{} {why}", show(value));
                    issues.push(Issue { setting: Some(knob.name.clone()), message });
                    continue;
                }
            },
            None => match environment.knob(&metadata.name, knob) {
                Some(Ok((variable, value))) => (value, SettingSource::Environment(variable)),
                Some(Err(warning)) => {
                    resolved.warnings.push(warning);
                    (knob.default.clone(), SettingSource::Default)
                }
                None => (knob.default.clone(), SettingSource::Default),
            },
        };
        resolved.in_force.push(InForce { name: knob.name.clone(), value, source });
    }
    if issues.is_empty() { Ok(resolved) } else { Err(issues) }
}

fn unknown(metadata: &Metadata, written: &Written) -> Vec<Issue> {
    let known: Vec<_> = metadata.knobs.iter().map(|k| k.name.as_str()).collect();
    let knobs = if known.is_empty() { "it has no knobs".into() } else { format!("its knobs: {}", known.join(", ")) };
    written
        .keys()
        .filter(|name| !known.contains(&name.as_str()))
        .map(|name| Issue {
            setting: Some(name.clone()),
            message: format!("{} has no such knob; {knobs}", metadata.name),
        })
        .collect()
}

fn show(value: &SettingValue) -> String {
    match value {
        SettingValue::Boolean(b) => b.to_string(),
        SettingValue::Integer(i) => i.to_string(),
        SettingValue::Text(t) => format!("{t:?}"),
    }
}

/// A written value in the knob's type.
fn typed(knob: &Knob, value: &SettingValue) -> Result<SettingValue, String> {
    use SettingValue::{Boolean, Integer, Text};
    match (knob.kind, value) {
        (KnobKind::Boolean, Boolean(_)) | (KnobKind::Text, Text(_)) => Ok(value.clone()),
        (KnobKind::Boolean, _) => Err("is not true or false".into()),
        (KnobKind::Text, _) => Err("is not a text; put it in quotes".into()),
        (KnobKind::Choice, Text(text)) if knob.choices.contains(text) => Ok(value.clone()),
        (KnobKind::Choice, _) => Err(format!("is none of {}", knob.choices.join(", "))),
        (KnobKind::Integer | KnobKind::Percent | KnobKind::DurationMs, Integer(number)) => bounded(knob, *number),
        (KnobKind::DurationMs, Text(text)) => match duration_ms(text) {
            Some(ms) => bounded(knob, ms),
            None => Err("is not a duration; write milliseconds, or a number with ms, s, m, h or d".into()),
        },
        (KnobKind::Integer | KnobKind::Percent | KnobKind::DurationMs, _) => Err("is not a whole number".into()),
    }
}

fn bounded(knob: &Knob, number: i64) -> Result<SettingValue, String> {
    let (min, max) = bounds(knob);
    if number < min {
        return Err(format!("is below {min}"));
    }
    if number > max {
        return Err(format!("is above {max}"));
    }
    Ok(SettingValue::Integer(number))
}

/// Bounds of a number, with what its kind implies.
fn bounds(knob: &Knob) -> (i64, i64) {
    let (least, most) = match knob.kind {
        KnobKind::Percent => (0, 100),
        KnobKind::DurationMs => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    (knob.min.unwrap_or(least).max(least), knob.max.unwrap_or(most).min(most))
}

fn duration_ms(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: i64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// Most knobs of a policy.
const KNOBS: usize = 64;
/// Most bytes of a name.
const NAME_BYTES: usize = 64;
/// Most bytes of other words.
const TEXT_BYTES: usize = 1024;

/// What is wrong with what a policy says about itself; empty if nothing.
pub(crate) fn problems_of(metadata: &Metadata) -> Vec<String> {
    let mut problems = Vec::new();
    let mut name = |what: &str, name: &str| {
        if !kebab(name) {
            problems
                .push(format!("{what} {:?} is not kebab-case of at most {NAME_BYTES} bytes", crate::caps::clean(name)));
        }
    };
    name("the policy's name", &metadata.name);
    metadata.knobs.iter().take(KNOBS).for_each(|knob| name("the knob's name", &knob.name));
    if metadata.version.is_empty() || metadata.version.len() > NAME_BYTES {
        problems.push(format!("the version is empty or longer than {NAME_BYTES} bytes"));
    }
    if metadata.version.chars().chain(metadata.summary.chars()).any(char::is_control) {
        problems.push("version or summary holds control characters".into());
    }
    if metadata.summary.len() > TEXT_BYTES {
        problems.push(format!("the summary is longer than {TEXT_BYTES} bytes"));
    }
    if metadata.knobs.len() > KNOBS {
        problems.push(format!("{} knobs; at most {KNOBS} are allowed", metadata.knobs.len()));
    }
    let mut seen = HashSet::new();
    for knob in metadata.knobs.iter().take(KNOBS) {
        if !seen.insert(&knob.name) {
            problems.push(format!("the knob {} is there twice", knob.name));
        }
        problems.extend(knob_problem(knob).map(|why| format!("the knob {}: {why}", crate::caps::clean(&knob.name))));
    }
    problems
}

fn knob_problem(knob: &Knob) -> Option<String> {
    let (min, max) = bounds(knob);
    if min > max {
        return Some(format!("no number is at least {min} and at most {max}"));
    }
    if knob.help.len() > TEXT_BYTES || knob.choices.iter().any(|c| c.len() > TEXT_BYTES) {
        return Some(format!("help or a choice is longer than {TEXT_BYTES} bytes"));
    }
    if knob.kind != KnobKind::Choice && !knob.choices.is_empty() {
        return Some("only a knob of kind choice has choices".into());
    }
    if knob.kind == KnobKind::DurationMs && matches!(knob.default, SettingValue::Text(_)) {
        return Some("the default of a duration is a number of milliseconds".into());
    }
    typed(knob, &knob.default).err().map(|why| format!("its default {} {why}", show(&knob.default)))
}

/// Lower-case words of letters and digits with single dashes between, the first of them beginning with a letter.
fn kebab(name: &str) -> bool {
    name.len() <= NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .split('-')
            .all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(name: &str, kind: KnobKind, default: SettingValue) -> Knob {
        let choices = if kind == KnobKind::Choice { vec!["a".into(), "b".into()] } else { vec![] };
        Knob { name: name.into(), kind, default, min: None, max: None, choices, help: String::new() }
    }

    fn sizer() -> Metadata {
        let warm = Knob { min: Some(0), max: Some(100), ..knob("warm", KnobKind::Integer, SettingValue::Integer(1)) };
        Metadata {
            name: "warm-ip-target".into(),
            version: "1".into(),
            summary: String::new(),
            knobs: vec![
                warm,
                knob("minimum", KnobKind::Integer, SettingValue::Integer(0)),
                knob("rest", KnobKind::DurationMs, SettingValue::Integer(60_000)),
                knob("compatible", KnobKind::Boolean, SettingValue::Boolean(false)),
                knob("order", KnobKind::Choice, SettingValue::Text("a".into())),
            ],
            memo_schema: 0,
            extra: vec![],
        }
    }

    fn written(pairs: &[(&str, SettingValue)]) -> Written {
        pairs.iter().map(|(k, v)| ((*k).into(), v.clone())).collect()
    }

    #[test]
    fn the_document_wins_over_the_environment_and_that_over_the_default() {
        let env = Environment::from_pairs([("WARM_IP_TARGET", "5"), ("MINIMUM_IP_TARGET", "7"), ("PATH", "/bin")]);
        let text = |s: &str| SettingValue::Text(s.into());
        let resolved =
            resolve(&sizer(), &written(&[("warm", SettingValue::Integer(9)), ("rest", text("5m"))]), &env).unwrap();
        let of = |name: &str| resolved.in_force.iter().find(|s| s.name == name).unwrap().clone();
        assert_eq!((of("warm").value, of("warm").source), (SettingValue::Integer(9), SettingSource::Document));
        assert_eq!(of("minimum").source, SettingSource::Environment("MINIMUM_IP_TARGET".into()));
        assert_eq!(of("minimum").value, SettingValue::Integer(7));
        assert_eq!(of("rest").value, SettingValue::Integer(300_000));
        assert_eq!(of("compatible").source, SettingSource::Default);
        assert_eq!(
            env.without_effect("warm-ip-target", &resolved.in_force),
            ["WARM_IP_TARGET=5 has no effect: the document sets sizer.settings.warm"]
        );
        assert_eq!(
            env.without_effect("default", &[]),
            [
                "WARM_IP_TARGET=5 has no effect: it is for the policy warm-ip-target, and the sizer is default",
                "MINIMUM_IP_TARGET=7 has no effect: it is for the policy warm-ip-target, and the sizer is default"
            ]
        );
    }

    #[test]
    fn unusable_variables_are_ignored_with_a_warning() {
        for bad in ["five", "-1", "101", "1.5"] {
            let env = Environment::from_pairs([("WARM_IP_TARGET", bad)]);
            let resolved = resolve(&sizer(), &Written::new(), &env).unwrap();
            assert_eq!(resolved.in_force[0].source, SettingSource::Default, "{bad}");
            assert!(resolved.warnings[0].starts_with(&format!("WARM_IP_TARGET={bad} is ")), "{:?}", resolved.warnings);
        }
    }

    #[test]
    fn wrong_settings_name_the_knob_the_value_and_what_would_do() {
        let all = [
            ("warm", SettingValue::Integer(101), "101 is above 100"),
            ("warm", SettingValue::Text("5".into()), "\"5\" is not a whole number"),
            ("compatible", SettingValue::Integer(1), "1 is not true or false"),
            ("order", SettingValue::Text("c".into()), "\"c\" is none of a, b"),
            ("rest", SettingValue::Integer(-1), "-1 is below 0"),
            (
                "rest",
                SettingValue::Text("5 parsecs".into()),
                "\"5 parsecs\" is not a duration; write milliseconds, or a number with ms, s, m, h or d",
            ),
            (
                "warn",
                SettingValue::Integer(1),
                "warm-ip-target has no such knob; its knobs: warm, minimum, rest, compatible, order",
            ),
        ];
        for (name, value, message) in all {
            let issues = resolve(&sizer(), &written(&[(name, value)]), &Environment::default()).unwrap_err();
            assert_eq!((issues[0].setting.as_deref(), issues[0].message.as_str()), (Some(name), message));
        }
    }

    #[test]
    fn the_unnamed_sizer_follows_the_targets() {
        let unnamed = |pairs: &[(&str, &str)]| Environment::from_pairs(pairs.iter().copied()).unnamed(Slot::Sizer);
        assert_eq!(unnamed(&[]), "default");
        assert_eq!(unnamed(&[("WARM_ENI_TARGET", "1"), ("WARM_IP_TARGET", "0")]), "default");
        assert_eq!(unnamed(&[("WARM_IP_TARGET", "5")]), "warm-ip-target");
        assert_eq!(unnamed(&[("MINIMUM_IP_TARGET", "5")]), "warm-ip-target");
        assert_eq!(Environment::from_pairs([("WARM_IP_TARGET", "5")]).unnamed(Slot::Allocator), "default");
    }

    #[test]
    fn metadata_must_make_sense() {
        assert_eq!(problems_of(&sizer()), Vec::<String>::new());
        let mut bad = sizer();
        bad.name = "Warm_IP".into();
        bad.knobs[0].default = SettingValue::Integer(1000);
        bad.knobs[1].name = "warm".into();
        bad.knobs[4].default = SettingValue::Text("z".into());
        let problems = problems_of(&bad);
        assert_eq!(problems.len(), 4, "{problems:?}");
    }
}
