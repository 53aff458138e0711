//! Where values come from: environment over file over default, and how each kind is read.
//!
//! Two manners. Variables that the AWS daemon knows are read as it reads them: a value it would ignore is ignored here
//! too, with a warning. Everything of our own (and everything in the file) is refused when it is wrong, since nobody
//! relies on it being ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

/// Reads one environment variable. The process's own is [`Process`]; tests have a map.
pub trait Env {
    /// The value, if the variable is set; not UTF-8 counts as not set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Env for Process {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

impl Env for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        BTreeMap::get(self, name).cloned()
    }
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file of `--config`.
    File,
    /// The environment.
    Environment,
}

/// One setting as `--print-config` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Key in the file.
    pub key: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// The value in force, as YAML.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
    /// What it does.
    pub doc: &'static str,
}

/// Settings that cannot be used; each line says which, why, and what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be opened.
    #[error("the configuration {path} cannot be read: {cause}")]
    File {
        /// Path of the file.
        path: String,
        /// Why.
        cause: String,
    },
    /// The file is no YAML mapping.
    #[error("the configuration {path} is not a YAML mapping of settings: {cause}")]
    Yaml {
        /// Path of the file.
        path: String,
        /// Why, with line and column.
        cause: String,
    },
    /// Values that make no sense, or keys that do not exist.
    #[error("{}", .0.join("\n"))]
    Values(Vec<String>),
}

/// One setting's names.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// Key in the file.
    pub key: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Reads settings one by one and remembers what was found.
pub struct Reader<'a> {
    env: &'a dyn Env,
    file: BTreeMap<String, Value>,
    /// Every setting asked for so far.
    pub shown: Vec<Shown>,
    /// Values that have no effect.
    pub warnings: Vec<String>,
    /// Values that are refused.
    pub errors: Vec<String>,
}

/// How a text becomes a value: the value, or what it must be instead.
pub type Parse<T> = fn(&str) -> Result<T, String>;

impl<'a> Reader<'a> {
    /// Reads from `env` and the parsed `file` (an empty map for none).
    pub fn new(env: &'a dyn Env, file: BTreeMap<String, Value>) -> Reader<'a> {
        Reader { env, file, shown: Vec::new(), warnings: Vec::new(), errors: Vec::new() }
    }

    /// A setting of our own: a wrong value is an error wherever it stands.
    pub fn strict<T>(&mut self, name: Name, default: T, parse: Parse<T>, show: impl Fn(&T) -> String) -> T {
        let (value, origin) = self.pick(name, default, parse, Manner::Refuse);
        self.show(name, show(&value), origin);
        value
    }

    /// A variable of the AWS daemon: a wrong value in the environment is ignored with a warning (in the file it is an
    /// error).
    pub fn lenient<T>(&mut self, name: Name, default: T, parse: Parse<T>, show: impl Fn(&T) -> String) -> T {
        let (value, origin) = self.pick(name, default, parse, Manner::Ignore);
        self.show(name, show(&value), origin);
        value
    }

    /// As [`Reader::lenient`]; in addition an empty variable is as good as none, without a warning.
    pub fn lenient_empty<T>(&mut self, name: Name, default: T, parse: Parse<T>, show: impl Fn(&T) -> String) -> T {
        let (value, origin) = self.pick(name, default, parse, Manner::IgnoreEmpty);
        self.show(name, show(&value), origin);
        value
    }

    fn pick<T>(&mut self, name: Name, default: T, parse: Parse<T>, manner: Manner) -> (T, Origin) {
        let from_file = self.file.remove(name.key);
        if let Some(text) = self.env.get(name.env).filter(|t| !(manner == Manner::IgnoreEmpty && t.is_empty())) {
            match parse(&text) {
                Ok(value) => return (value, Origin::Environment),
                Err(must) if manner == Manner::Refuse => {
                    self.errors.push(format!("{}={text:?}: must be {must}", name.env));
                    return (default, Origin::Environment);
                }
                Err(must) => self.warnings.push(format!("{}={text:?} is ignored: must be {must}", name.env)),
            }
        }
        let Some(value) = from_file else { return (default, Origin::Default) };
        let parsed = scalar(&value).and_then(|text| parse(&text));
        match parsed {
            Ok(value) => (value, Origin::File),
            Err(must) => {
                self.errors.push(format!("{}: {value}: must be {must}", name.key));
                (default, Origin::File)
            }
        }
    }

    fn show(&mut self, name: Name, value: String, origin: Origin) {
        self.shown.push(Shown { key: name.key, env: name.env, value, origin, doc: name.doc });
    }

    /// Ends the reading: keys that nobody asked for are errors, with the nearest known one.
    pub fn finish(mut self) -> Result<(Vec<Shown>, Vec<String>), SettingsError> {
        for key in self.file.keys() {
            let near = self.shown.iter().map(|s| s.key).min_by_key(|known| distance(known, key));
            let hint = near.filter(|n| distance(n, key) <= 3).map(|n| format!("; did you mean {n}?"));
            self.errors.push(format!(
                "{key}: there is no such setting{}",
                hint.unwrap_or_else(|| "; `ipamd --print-config` lists them all".into())
            ));
        }
        match self.errors.is_empty() {
            true => Ok((self.shown, self.warnings)),
            false => Err(SettingsError::Values(self.errors)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Refuse,
    Ignore,
    IgnoreEmpty,
}

/// A scalar of the file as the text that stands in the environment; lists and mappings as JSON.
fn scalar(value: &Value) -> Result<String, String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    })
}

/// Edit distance, for hints.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Go's `ParseBool`: what the AWS daemon accepts.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("true or false (also 1, t, T, True, TRUE, 0, f, F, False, FALSE)".into()),
    }
}

/// A whole number, without spaces or suffix.
pub fn unsigned(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    match digits.bytes().all(|b| b.is_ascii_digit()) {
        true => digits.parse().map_err(|_| "a whole number, 0 or more".into()),
        false => Err("a whole number, 0 or more".into()),
    }
}

/// `250ms`, `30s`, `10m`, `24h`, or a plain number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let must = || "a time such as 250ms, 30s, 10m, 24h, or a whole number of seconds".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| must())?;
    let unit_ms: u64 = match &text[end..] {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(must()),
    };
    // A hundred years: far from any overflow of the pool's clock.
    number.checked_mul(unit_ms).filter(|ms| *ms < 3_153_600_000_000).map(Duration::from_millis).ok_or_else(must)
}

/// As [`duration`] reads it.
pub fn show_duration(value: &Duration) -> String {
    let ms = value.as_millis();
    match ms {
        0 => "0s".into(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

/// A text as a YAML scalar.
pub fn quoted(value: &impl AsRef<str>) -> String {
    let text = value.as_ref();
    let plain = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b))
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'/')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    match plain {
        true => text.to_owned(),
        // A JSON string is a YAML string.
        false => serde_json::Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_gos() {
        for (text, expected) in [("1", Some(true)), ("T", Some(true)), ("True", Some(true)), ("F", Some(false))] {
            assert_eq!(boolean(text).ok(), expected);
        }
        for bad in ["TrUe", "", "yes", " true", "2"] {
            assert!(boolean(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_and_numbers_say_what_they_must_be() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("30", 30_000), ("10m", 600_000), ("24h", 86_400_000)] {
            let value = duration(text).unwrap();
            assert_eq!(value.as_millis(), ms, "{text}");
            assert_eq!(duration(&show_duration(&value)).unwrap(), value);
        }
        for bad in ["", "-1s", "1d", "s", "1.5s", "99999999999999999999s", "9999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        for bad in ["", "-1", "2O", " 1", "1s", "99999999999999999999"] {
            assert!(unsigned(bad).is_err() || bad.is_empty(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_is_yaml() {
        for text in ["", "eni", "true", "/run/x.sock", "a: b", "10.0.0.0/8", "0x80", "\"", "no", "{}"] {
            let yaml = format!("k: {}", quoted(&text));
            let back: BTreeMap<String, String> = serde_yaml_ng::from_str(&yaml).unwrap();
            assert_eq!(back["k"], text, "{yaml}");
        }
    }
}
