//! What the runtime says by environment variables, validated as libcni validates it and a little harder: everything
//! here comes from outside and ends in names of links, aliases and requests.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::error::CniError;

/// Longest container id, in bytes: with an interface name it must fit a link's alias (255).
pub const MAX_CONTAINER_ID: usize = 200;
/// Longest name of a network configuration, in bytes.
pub const MAX_NETWORK: usize = 255;
/// Longest interface name the kernel takes, in bytes.
const MAX_IFNAME: usize = 15;
/// Longest CNI_ARGS, in bytes.
const MAX_ARGS: usize = 64 * 1024;
/// Longest path the kernel takes, in bytes.
const MAX_PATH: usize = 4095;

/// What the runtime wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach a pod.
    Add,
    /// Detach it.
    Del,
    /// Compare with what ADD said.
    Check,
    /// Could an ADD succeed?
    Status,
    /// Detach what is not in the list.
    Gc,
    /// Which versions are spoken?
    Version,
}

impl Verb {
    /// As it stands in CNI_COMMAND.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
            Verb::Version => "VERSION",
        }
    }
}

/// The pod, as CNI_ARGS name it; empty texts where they do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// K8S_POD_NAMESPACE
    pub pod_namespace: String,
    /// K8S_POD_NAME
    pub pod_name: String,
    /// K8S_POD_UID
    pub pod_uid: String,
    /// IP, split at commas: addresses the runtime asks for, not yet parsed.
    pub ips: Vec<String>,
}

/// One attachment: container id and interface, of the network that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// CNI_CONTAINERID
    pub container_id: String,
    /// CNI_IFNAME
    pub ifname: String,
    /// CNI_NETNS; none only for DEL.
    pub netns: Option<PathBuf>,
    /// CNI_ARGS
    pub args: Args,
}

/// Looks one variable up; the environment of the process in production, a table in tests.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A variable's text; `None` when unset or empty (CNI does not tell these apart).
fn var(env: Lookup, name: &str, most: usize) -> Result<Option<String>, CniError> {
    let Some(value) = env(name).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let value = value
        .into_string()
        .map_err(|_| CniError::environment(format!("{name} is not UTF-8"), "the runtime must set it to plain text"))?;
    if value.len() > most {
        let msg = format!("{name} is {} bytes long", value.len());
        return Err(CniError::environment(msg, format!("at most {most} are possible")));
    }
    Ok(Some(value))
}

/// Reads CNI_COMMAND.
pub fn verb(env: Lookup) -> Result<Verb, CniError> {
    const VERBS: [Verb; 6] = [Verb::Add, Verb::Del, Verb::Check, Verb::Status, Verb::Gc, Verb::Version];
    const MEND: &str = "it must be ADD, DEL, CHECK, STATUS, GC or VERSION; `wipam-cni --help` tells more";
    match var(env, "CNI_COMMAND", MAX_PATH)? {
        None => Err(CniError::environment("CNI_COMMAND is not set", MEND)),
        Some(text) => VERBS
            .into_iter()
            .find(|v| v.as_str() == text)
            .ok_or_else(|| CniError::environment(format!("CNI_COMMAND {:?} is unknown", cut(&text)), MEND)),
    }
}

/// Reads the variables of the verbs that concern one attachment.
///
/// DEL is lenient where an ADD with the same values cannot have succeeded or where nothing depends on it: it must not
/// keep a pod from going away.
pub fn target(env: Lookup, verb: Verb) -> Result<Target, CniError> {
    let missing: Vec<_> = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]
        .into_iter()
        .filter(|name| !(*name == "CNI_NETNS" && verb == Verb::Del) && env(name).is_none_or(|v| v.is_empty()))
        .collect();
    if !missing.is_empty() {
        let msg = format!("{} must be set for {}", missing.join(", "), verb.as_str());
        return Err(CniError::environment(
            msg,
            "the container runtime sets these variables; `cnitool` does it by hand",
        ));
    }
    let container_id = var(env, "CNI_CONTAINERID", MAX_CONTAINER_ID)?.unwrap_or_default();
    check_name("CNI_CONTAINERID", &container_id).map_err(|(m, d)| CniError::environment(m, d))?;
    let ifname = var(env, "CNI_IFNAME", MAX_IFNAME)?.unwrap_or_default();
    check_ifname(&ifname)?;
    let netns = netns(env);
    let args = var(env, "CNI_ARGS", MAX_ARGS).and_then(|text| parse_args(text.as_deref().unwrap_or_default()));
    let (netns, args) = match verb {
        Verb::Del => (netns.unwrap_or(None), args.unwrap_or_default()),
        _ => (netns?, args?),
    };
    Ok(Target { container_id, ifname, netns, args })
}

/// libcni's rule for container ids and network names: a letter or digit, then letters, digits, `_`, `.`, `-`.
/// Gives message and mend.
pub fn check_name(what: &str, name: &str) -> Result<(), (String, String)> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(legal) {
        return Ok(());
    }
    Err((
        format!("{what} {:?} is not a valid name", cut(name)),
        "it must start with a letter or digit and may go on with letters, digits, '_', '.' and '-'".into(),
    ))
}

/// The kernel's rule for interface names, and libcni's.
pub fn check_ifname(name: &str) -> Result<(), CniError> {
    let illegal = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_IFNAME || name == "." || name == ".." || name.chars().any(illegal) {
        return Err(CniError::environment(
            format!("CNI_IFNAME {:?} is not a valid interface name", cut(name)),
            "it must have 1 to 15 bytes without '/', ':' and white space, and not be '.' or '..'",
        ));
    }
    Ok(())
}

fn netns(env: Lookup) -> Result<Option<PathBuf>, CniError> {
    let Some(text) = var(env, "CNI_NETNS", MAX_PATH)? else {
        return Ok(None);
    };
    let path = Path::new(&text);
    let plain = path.is_absolute() && !path.components().any(|c| c == Component::ParentDir);
    if !plain || text.chars().any(char::is_control) {
        return Err(CniError::environment(
            format!("CNI_NETNS {:?} is not a path of a network namespace", cut(&text)),
            "it must be absolute and without '..', such as /run/netns/NAME or /proc/PID/ns/net",
        ));
    }
    Ok(Some(path.to_owned()))
}

/// Reads `KEY=VALUE;KEY=VALUE`. Unknown keys are refused unless `IgnoreUnknown` is true, as libcni does.
fn parse_args(text: &str) -> Result<Args, CniError> {
    const MEND: &str = "CNI_ARGS must read KEY=VALUE;KEY=VALUE";
    let mut args = Args::default();
    let mut unknown = None;
    let mut ignore = false;
    for pair in text.split(';').filter(|p| !p.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| CniError::environment(format!("CNI_ARGS has {:?} without '='", cut(pair)), MEND))?;
        if value.len() > 1024 || value.chars().any(char::is_control) {
            return Err(CniError::environment(format!("CNI_ARGS has no sensible value for {:?}", cut(key)), MEND));
        }
        match key {
            "K8S_POD_NAMESPACE" => args.pod_namespace = value.to_owned(),
            "K8S_POD_NAME" => args.pod_name = value.to_owned(),
            "K8S_POD_UID" => args.pod_uid = value.to_owned(),
            "K8S_POD_INFRA_CONTAINER_ID" => {}
            "IP" => args.ips = value.split(',').filter(|v| !v.is_empty()).map(|v| v.trim().to_owned()).collect(),
            "IgnoreUnknown" => {
                ignore = match value.to_ascii_lowercase().as_str() {
                    "1" | "true" => true,
                    "0" | "false" => false,
                    _ => {
                        let msg = format!("CNI_ARGS has IgnoreUnknown={:?}", cut(value));
                        return Err(CniError::environment(msg, "it must be 1, true, 0 or false"));
                    }
                }
            }
            other => unknown = unknown.or_else(|| Some(cut(other))),
        }
    }
    match unknown {
        Some(key) if !ignore => Err(CniError::environment(
            format!("CNI_ARGS has the unknown key {key:?}"),
            "take it away or add IgnoreUnknown=1",
        )),
        _ => Ok(args),
    }
}

/// Enough of a hostile text to recognise it.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::os::unix::ffi::OsStringExt;

    fn target_of(verb: Verb, vars: &[(&str, &str)]) -> Result<Target, CniError> {
        let vars: HashMap<String, OsString> = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        target(&|name: &str| vars.get(name).cloned(), verb)
    }

    const GOOD: [(&str, &str); 3] = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/run/netns/x"), ("CNI_IFNAME", "eth0")];

    fn with(name: &str, value: &str) -> Result<Target, CniError> {
        let mut vars = GOOD.to_vec();
        vars.retain(|(k, _)| *k != name);
        vars.push((name, value));
        target_of(Verb::Add, &vars)
    }

    #[test]
    fn what_kubelet_sets_is_read() {
        let target = with(
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u;X=y;IP=10.0.0.7,fd00::7",
        )
        .unwrap();
        assert_eq!(target.container_id, "c1");
        assert_eq!(target.netns.as_deref(), Some(Path::new("/run/netns/x")));
        assert_eq!((target.args.pod_namespace.as_str(), target.args.pod_name.as_str()), ("ns", "web-0"));
        assert_eq!(target.args.pod_uid, "u");
        assert_eq!(target.args.ips, ["10.0.0.7", "fd00::7"]);
    }

    #[test]
    fn missing_variables_are_all_named() {
        let text = target_of(Verb::Add, &[]).unwrap_err().msg;
        assert!(text.contains("CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"), "{text}");
        let text = target_of(Verb::Del, &[("CNI_CONTAINERID", "c")]).unwrap_err().msg;
        assert!(text.contains("CNI_IFNAME") && !text.contains("CNI_NETNS"), "{text}");
        assert!(target_of(Verb::Del, &[GOOD[0], GOOD[2]]).is_ok());
    }

    #[test]
    fn hostile_values_are_refused() {
        for (name, value) in [
            ("CNI_CONTAINERID", "../../etc/passwd"),
            ("CNI_CONTAINERID", "-rf"),
            ("CNI_CONTAINERID", "a b"),
            ("CNI_CONTAINERID", "a\nb"),
            ("CNI_CONTAINERID", &"a".repeat(201)),
            ("CNI_IFNAME", "0123456789abcdef"),
            ("CNI_IFNAME", ".."),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "a:b"),
            ("CNI_IFNAME", "a b"),
            ("CNI_NETNS", "relative"),
            ("CNI_NETNS", "/run/netns/../../x"),
            ("CNI_NETNS", "/a\nb"),
            ("CNI_NETNS", &"/a".repeat(3000)),
            ("CNI_ARGS", "novalue"),
            ("CNI_ARGS", "Unknown=1"),
            ("CNI_ARGS", "IgnoreUnknown=maybe"),
            ("CNI_ARGS", "K8S_POD_NAME=a\u{1}b"),
            ("CNI_ARGS", &"A=b;".repeat(20_000)),
        ] {
            let error = with(name, value).unwrap_err();
            assert_eq!(error.code, crate::error::INVALID_ENVIRONMENT, "{name}={value}");
            assert!(error.msg.contains(name) && error.msg.len() < 300 && !error.details.is_empty(), "{error}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let bad = |name: &str| {
            (name == "CNI_COMMAND" || name.starts_with("CNI_")).then(|| OsString::from_vec(vec![0xff, 0xfe]))
        };
        assert!(verb(&bad).unwrap_err().msg.contains("not UTF-8"));
        assert!(target(&bad, Verb::Add).unwrap_err().msg.contains("not UTF-8"));
    }

    #[test]
    fn a_del_is_lenient_about_what_it_does_not_need() {
        let target = target_of(Verb::Del, &[GOOD[0], GOOD[2], ("CNI_NETNS", "gone"), ("CNI_ARGS", "broken")]).unwrap();
        assert_eq!((target.netns, target.args), (None, Args::default()));
    }

    #[test]
    fn verbs_are_read_exactly() {
        for (text, expected) in [("ADD", Some(Verb::Add)), ("add", None), ("GC", Some(Verb::Gc)), ("ADD ", None)] {
            assert_eq!(verb(&|_: &str| Some(text.into())).ok(), expected);
        }
        assert!(verb(&|_: &str| None).is_err());
    }
}
