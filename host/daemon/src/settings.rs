//! Every setting of ipamd: its names, its default, what it does. Read once, before anything is opened.
//!
//! Precedence: environment, then the file of `--config` (YAML, one flat mapping), then the default. Where the AWS
//! daemon has a variable for the same thing, its name and its reading rules hold here. `ipamd --print-config` prints
//! the result as a file that `--config` would take, with the origin of each value.

pub mod groups;
pub mod source;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

pub use groups::{Cloud, Host, Http, Listen, Log, Paths, Pool, RandomPorts, StatedLimits};
pub use source::{Env, Origin, Process, SettingsError, Shown};
use source::{Reader, boolean};

/// Everything that can be set, by what it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Files, directories and sockets.
    pub paths: Paths,
    /// Logging.
    pub log: Log,
    /// Introspection and metrics.
    pub http: Http,
    /// EC2 and instance metadata.
    pub cloud: Cloud,
    /// The state machine.
    pub pool: Pool,
    /// The host's network.
    pub host: Host,
    /// The warm targets that were set, by the AWS daemon's variable names: they are settings of the policies.
    pub warm: BTreeMap<String, String>,
}

/// What was read, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Each with its origin.
    pub shown: Vec<Shown>,
    /// Values that have no effect, and why.
    pub warnings: Vec<String>,
}

/// Reads `file` (if one is given) and the environment.
///
/// # Errors
/// A file that cannot be read or is no mapping, keys that do not exist, values that make no sense: all of them at once.
pub fn load(file: Option<&Path>, env: &dyn Env) -> Result<Loaded, SettingsError> {
    let (path, text) = match file {
        None => (String::new(), String::new()),
        Some(path) => {
            let name = path.display().to_string();
            match std::fs::read_to_string(path) {
                Ok(text) => (name, text),
                Err(e) => return Err(SettingsError::File { path: name, cause: e.to_string() }),
            }
        }
    };
    from_text(&path, &text, env)
}

/// As [`load`], with the file's text.
///
/// # Errors
/// As [`load`].
pub fn from_text(path: &str, text: &str, env: &dyn Env) -> Result<Loaded, SettingsError> {
    let yaml = |e: serde_yaml_ng::Error| SettingsError::Yaml { path: path.to_owned(), cause: e.to_string() };
    let file: Option<BTreeMap<String, serde_json::Value>> = serde_yaml_ng::from_str(text).map_err(yaml)?;
    let mut r = Reader::new(env, file.unwrap_or_default());
    let settings = Settings {
        paths: Paths::read(&mut r),
        log: Log::read(&mut r),
        http: Http::read(&mut r),
        cloud: Cloud::read(&mut r),
        pool: Pool::read(&mut r),
        host: Host::read(&mut r),
        warm: groups::read_warm(&mut r),
    };
    unsupported(&mut r, env);
    let (shown, warnings) = r.finish()?;
    Ok(Loaded { settings, shown, warnings })
}

/// Features of the AWS daemon that are not here. One that would change which family pods get is refused; the others
/// are said to have no effect.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", "custom networking (ENIConfig)"),
    ("ENABLE_POD_ENI", "security groups for pods"),
    ("ENABLE_MULTI_NIC", "several network cards"),
    ("ENABLE_IMDS_ONLY_MODE", "running on instance metadata alone"),
    ("DISABLE_NETWORK_RESOURCE_PROVISIONING", "a pool that others fill"),
    ("ANNOTATE_POD_IP", "pod annotations"),
    ("ENABLE_V6_EGRESS", "IPv6 egress"),
    ("ENABLE_BANDWIDTH_PLUGIN", "the bandwidth plugin"),
];

fn unsupported(r: &mut Reader<'_>, env: &dyn Env) {
    let on = |name: &str| env.get(name).is_some_and(|text| boolean(&text) == Ok(true));
    for (name, what) in UNSUPPORTED.iter().filter(|(name, _)| on(name)) {
        r.warnings.push(format!("{name}=true has no effect: wipam does not have {what} yet"));
    }
    if on("ENABLE_IPv6") {
        r.errors.push("ENABLE_IPv6=true: wipam gives pods IPv4 addresses of the VPC only; unset it".into());
    }
}

/// The settings as a YAML file that `--config` takes, each with its meaning, variable and origin; warnings on top.
pub fn print(loaded: &Loaded) -> String {
    let mut out = String::from("# Settings of ipamd. The environment wins over a file, a file over the defaults.\n");
    for warning in &loaded.warnings {
        let _ = writeln!(out, "# WARNING: {warning}");
    }
    for shown in &loaded.shown {
        let origin = match shown.origin {
            Origin::Default => "default",
            Origin::File => "from the file",
            Origin::Environment => "from the environment",
        };
        let _ = write!(out, "\n# {}\n# {} ({origin})\n{}: {}\n", shown.doc, shown.env, shown.key, shown.value);
    }
    out
}

#[cfg(test)]
mod tests;
