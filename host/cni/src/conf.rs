//! The network configuration from stdin: what it must say, what it may say, and as what we are called by it.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};
use wipam_rpc::range_config::RangeConfig;
use wipam_rpc::v1::Attachment;

use crate::env::{self, MAX_NETWORK};
use crate::error::{CniError, DECODING_FAILURE, IO_FAILURE};
use crate::result::CniResult;
use crate::version::Version;

/// The name of this plugin in configurations.
pub const PLUGIN: &str = "wipam-cni";
/// Longest configuration that is read, in bytes: a GC with tens of thousands of attachments fits.
pub const MAX_STDIN: u64 = 8 * 1024 * 1024;
/// How long an ADD waits for an address unless `addTimeout` says otherwise.
pub const ADD_TIMEOUT: Duration = Duration::from_secs(100);
/// How long a DEL (and CHECK, GC, STATUS) waits for ipamd unless `delTimeout` says otherwise.
pub const DEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Prefix of host veths unless `vethPrefix` says otherwise.
pub const VETH_PREFIX: &str = "eni";
/// MTU of pods unless `mtu` or ipamd says otherwise: EC2's jumbo frames.
pub const MTU: u32 = 9001;

/// As what the plugin is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The configuration's `type`: makes the pod's network.
    Main,
    /// The configuration's `ipam.type`: only says addresses; another plugin makes the network.
    Ipam,
}

/// A configuration that names a network and a version that is spoken. All else is read when asked for, so that a DEL
/// does not fail over a setting that only an ADD needs.
#[derive(Clone, Debug)]
pub struct Conf {
    /// `cniVersion`.
    pub version: Version,
    /// `name`.
    pub network: String,
    /// As what we are called.
    pub role: Role,
    /// As it came.
    pub raw: Vec<u8>,
    map: Map<String, Value>,
}

/// Reads stdin to its end, but no further than [`MAX_STDIN`].
pub fn read_stdin(stdin: &mut dyn Read) -> Result<Vec<u8>, CniError> {
    let mut raw = Vec::new();
    stdin.take(MAX_STDIN + 1).read_to_end(&mut raw).map_err(|e| {
        CniError::new(IO_FAILURE, format!("cannot read stdin: {e}"), "the runtime must pass the configuration")
    })?;
    if raw.len() as u64 > MAX_STDIN {
        let msg = format!("the configuration on stdin is longer than {MAX_STDIN} bytes");
        return Err(CniError::new(DECODING_FAILURE, msg, "no network configuration is that long"));
    }
    Ok(raw)
}

/// The configuration as JSON and its version; the first two things that can be wrong with it.
pub fn decode(raw: &[u8]) -> Result<(Version, Map<String, Value>), CniError> {
    const MEND: &str = "stdin must carry the network configuration as one JSON object";
    if raw.iter().all(u8::is_ascii_whitespace) {
        return Err(CniError::new(DECODING_FAILURE, "stdin is empty", MEND));
    }
    let map = match serde_json::from_slice(raw) {
        Ok(Value::Object(map)) => map,
        Ok(_) => return Err(CniError::new(DECODING_FAILURE, "the configuration on stdin is not a JSON object", MEND)),
        Err(e) => {
            return Err(CniError::new(DECODING_FAILURE, format!("the configuration on stdin is not JSON: {e}"), MEND));
        }
    };
    let version = match map.get("cniVersion") {
        None | Some(Value::Null) => Version::parse("")?,
        Some(Value::String(text)) => Version::parse(text)?,
        Some(_) => return Err(CniError::config("cniVersion is not a text", "write it in quotes, such as \"1.0.0\"")),
    };
    Ok((version, map))
}

impl Conf {
    /// Reads what every verb but VERSION needs. `program` is the name we were started under, which a configuration may
    /// use instead of [`PLUGIN`].
    pub fn new(raw: Vec<u8>, version: Version, map: Map<String, Value>, program: &str) -> Result<Conf, CniError> {
        let network = match map.get("name") {
            Some(Value::String(name)) if !name.is_empty() => name.clone(),
            None | Some(Value::Null | Value::String(_)) => {
                return Err(CniError::config("the configuration has no \"name\"", "name the network"));
            }
            Some(_) => {
                return Err(CniError::config("the configuration's \"name\" is not a text", "write it in quotes"));
            }
        };
        env::check_name("the network name", &network).map_err(|(m, d)| CniError::config(m, d))?;
        if network.len() > MAX_NETWORK {
            let msg = format!("the network name is {} bytes long", network.len());
            return Err(CniError::config(msg, format!("at most {MAX_NETWORK} are possible")));
        }
        let role = role(&map, program)?;
        Ok(Conf { version, network, role, raw, map })
    }

    /// The attachment that this network and `target` make.
    pub fn attachment(&self, target: &env::Target) -> Attachment {
        Attachment {
            network: self.network.clone(),
            container_id: target.container_id.clone(),
            ifname: target.ifname.clone(),
        }
    }

    /// The previous result, if there is one.
    pub fn prev_result(&self) -> Result<Option<CniResult>, CniError> {
        self.map.get("prevResult").filter(|v| !v.is_null()).map(CniResult::parse).transpose()
    }

    /// The ranges of an IPAM configuration, wholly validated.
    pub fn ranges(&self) -> Result<RangeConfig, CniError> {
        let ipam = self.map.get("ipam").unwrap_or(&Value::Null);
        let ranges = RangeConfig::from_ipam(ipam)
            .map_err(|e| CniError::config(format!("ipam of network {}: {e}", self.network), RANGES_MEND))?;
        let of_family = |v6| ranges.sets.iter().filter(|s| s.is_ipv6() == v6).count();
        if self.version < Version::V0_3_0 && (of_family(false) > 1 || of_family(true) > 1) {
            return Err(CniError::config(
                format!("cniVersion {} can say only one address of each family", self.version.as_str()),
                "say cniVersion 0.3.0 or newer, or use one range set for each family",
            ));
        }
        Ok(ranges)
    }

    /// Where ipamd listens (`socket`).
    pub fn socket(&self) -> Result<PathBuf, CniError> {
        self.path("socket", wipam_rpc::DEFAULT_SOCKET)
    }

    /// Where releases wait for ipamd (`queueDir`).
    pub fn queue_dir(&self) -> Result<PathBuf, CniError> {
        self.path("queueDir", wipam_rpc::queue::DEFAULT_DIR)
    }

    /// How long an ADD waits (`addTimeout`, seconds).
    pub fn add_timeout(&self) -> Result<Duration, CniError> {
        Ok(self.number("addTimeout", 1, 3600)?.map_or(ADD_TIMEOUT, |s| Duration::from_secs(s.into())))
    }

    /// How long anything else waits (`delTimeout`, seconds).
    pub fn del_timeout(&self) -> Result<Duration, CniError> {
        Ok(self.number("delTimeout", 1, 3600)?.map_or(DEL_TIMEOUT, |s| Duration::from_secs(s.into())))
    }

    /// `mtu`, if it is said.
    pub fn mtu(&self) -> Result<Option<u32>, CniError> {
        self.number("mtu", 576, 9001)
    }

    /// `vethPrefix`, if it is said.
    pub fn veth_prefix(&self) -> Result<Option<String>, CniError> {
        let Some(prefix) = self.text("vethPrefix")? else {
            return Ok(None);
        };
        let legal = prefix.len() <= 4 && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if !legal || prefix.is_empty() || ["eth", "lo", "vlan"].contains(&prefix) {
            return Err(CniError::config(
                format!("vethPrefix {prefix:?} cannot be used"),
                "it must be 1 to 4 letters, digits, '-' or '_', and not eth, lo or vlan",
            ));
        }
        Ok(Some(prefix.to_owned()))
    }

    /// Where to log (`logFile`, or the AWS plugin's `pluginLogFile`), if at all.
    pub fn log_file(&self) -> Result<Option<PathBuf>, CniError> {
        let Some(file) = self.text("logFile")?.or(self.text("pluginLogFile")?).filter(|f| !f.is_empty()) else {
            return Ok(None);
        };
        if file != "stderr" && !file.starts_with('/') {
            return Err(CniError::config(
                format!("logFile {file:?} cannot be used"),
                "give an absolute path or \"stderr\"; stdout carries the result",
            ));
        }
        Ok(Some(file.into()))
    }

    /// How much to log (`logLevel`, or the AWS plugin's `pluginLogLevel`).
    pub fn log_level(&self) -> Option<&str> {
        self.text("logLevel").ok().flatten().or(self.text("pluginLogLevel").ok().flatten())
    }

    /// Addresses the runtime asks for besides CNI_ARGS: `runtimeConfig.ips` and `args.cni.ips`.
    pub fn requested(&self, from_args: &[String]) -> Result<Vec<String>, CniError> {
        let mut wanted: Vec<String> = Vec::new();
        for (at, list) in [
            ("runtimeConfig.ips", self.map.get("runtimeConfig").and_then(|v| v.get("ips"))),
            ("args.cni.ips", self.map.get("args").and_then(|v| v.get("cni")).and_then(|v| v.get("ips"))),
        ] {
            let Some(list) = list.filter(|v| !v.is_null()) else {
                continue;
            };
            let texts: Option<Vec<_>> = list.as_array().and_then(|l| l.iter().map(Value::as_str).collect());
            let texts = texts.ok_or_else(|| CniError::config(format!("{at} is not a list of texts"), IPS_MEND))?;
            for text in texts {
                check_address(text).map_err(|shown| CniError::config(format!("{at} has {shown:?}"), IPS_MEND))?;
                wanted.push(text.to_owned());
            }
        }
        for text in from_args {
            check_address(text)
                .map_err(|shown| CniError::environment(format!("CNI_ARGS has IP={shown:?}"), IPS_MEND))?;
            wanted.push(text.clone());
        }
        let mut seen = std::collections::BTreeSet::new();
        wanted.retain(|ip| seen.insert(ip.clone()));
        if wanted.len() > MAX_REQUESTED {
            return Err(CniError::config(format!("{} addresses are asked for", wanted.len()), "ask for fewer"));
        }
        Ok(wanted)
    }

    /// The attachments that GC must keep. A missing list is refused: it would mean that nothing is valid.
    pub fn valid_attachments(&self) -> Result<Vec<Attachment>, CniError> {
        const KEY: &str = "cni.dev/valid-attachments";
        // libcni before 1.2 used the second name.
        let list = self.map.get(KEY).or_else(|| self.map.get("cni.dev/attachments")).ok_or_else(|| {
            CniError::config(
                format!("GC without {KEY}"),
                "the runtime must list what is to be kept; an empty list keeps nothing",
            )
        })?;
        let wrong = || {
            CniError::config(format!("{KEY} is not a list of {{containerID, ifname}}"), "see the specification of GC")
        };
        let list = match list {
            Value::Null => return Ok(Vec::new()),
            Value::Array(list) => list,
            _ => return Err(wrong()),
        };
        list.iter()
            .map(|entry| {
                let text = |key| entry.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned);
                let container_id = text("containerID").ok_or_else(wrong)?;
                let ifname = text("ifname").ok_or_else(wrong)?;
                Ok(Attachment { network: self.network.clone(), container_id, ifname })
            })
            .collect()
    }

    /// A setting of ours. Under another main plugin ours stand in `ipam`, and what is not there is looked for beside it.
    fn setting(&self, key: &str) -> Option<&Value> {
        let inner = match self.role {
            Role::Ipam => self.map.get("ipam").and_then(|i| i.get(key)),
            Role::Main => None,
        };
        inner.or_else(|| self.map.get(key)).filter(|v| !v.is_null())
    }

    fn text(&self, key: &str) -> Result<Option<&str>, CniError> {
        match self.setting(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(CniError::config(format!("{key} is not a text"), "write it in quotes")),
        }
    }

    /// A whole number between bounds; a text of digits will do, as in the AWS plugin's configuration.
    fn number(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>, CniError> {
        let value = match self.setting(key) {
            None => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::String(text)) => text.parse().ok(),
            Some(value) => value.as_u64().and_then(|n| u32::try_from(n).ok()),
        };
        value.filter(|n| (least..=most).contains(n)).map(Some).ok_or_else(|| {
            CniError::config(
                format!("{key} is not a number from {least} to {most}"),
                format!("correct or remove {key}"),
            )
        })
    }

    fn path(&self, key: &str, default: &str) -> Result<PathBuf, CniError> {
        match self.text(key)? {
            None | Some("") => Ok(default.into()),
            Some(path) if path.starts_with('/') && !path.contains('\0') => Ok(path.into()),
            Some(path) => Err(CniError::config(
                format!("{key} {path:?} is not an absolute path"),
                format!("correct or remove {key}"),
            )),
        }
    }
}

const RANGES_MEND: &str = "correct the \"ipam\" section; `wipam-cni --help` shows an example";
const IPS_MEND: &str = "give addresses such as 10.0.0.7 or 192.168.2.7/24";
const MAX_REQUESTED: usize = 64;

fn check_address(text: &str) -> Result<(), String> {
    if text.parse::<IpAddr>().is_ok() || text.parse::<IpNet>().is_ok() {
        return Ok(());
    }
    Err(text.chars().take(64).collect())
}

fn role(map: &Map<String, Value>, program: &str) -> Result<Role, CniError> {
    let ours = |name: Option<&Value>| {
        name.and_then(Value::as_str).is_some_and(|n| n == PLUGIN || (!program.is_empty() && n == program))
    };
    let ipam = map.get("ipam").filter(|v| !v.is_null());
    let ipam_is_ours = ours(ipam.and_then(|i| i.get("type")));
    match (ours(map.get("type")), ipam) {
        (false, _) if ipam_is_ours => Ok(Role::Ipam),
        (true, None) => Ok(Role::Main),
        (true, Some(Value::Object(section))) if section.is_empty() => Ok(Role::Main),
        (true, Some(_)) => Err(CniError::config(
            "type is wipam-cni, and there is an \"ipam\" section",
            "as main plugin wipam-cni gives out the addresses of the VPC and takes no ipam section; ranges work under \
             another main plugin: \"type\": \"bridge\", \"ipam\": {\"type\": \"wipam-cni\", …}",
        )),
        (false, _) => Err(CniError::config(
            "neither \"type\" nor \"ipam.type\" of the configuration is wipam-cni",
            "the runtime called the wrong plugin, or the plugin was renamed",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conf(value: Value) -> Result<Conf, CniError> {
        let raw = value.to_string().into_bytes();
        let (version, map) = decode(&raw)?;
        Conf::new(raw, version, map, "wipam-cni")
    }

    fn main_with(extra: Value) -> Conf {
        let mut value = json!({"cniVersion": "1.0.0", "name": "n", "type": "wipam-cni"});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        conf(value).unwrap()
    }

    #[test]
    fn roles_are_told_apart() {
        assert_eq!(main_with(json!({})).role, Role::Main);
        let ipam =
            conf(json!({"name": "n", "type": "bridge", "socket": "/a", "ipam": {"type": "wipam-cni", "socket": "/b"}}));
        let ipam = ipam.unwrap();
        assert_eq!((ipam.role, ipam.version), (Role::Ipam, Version::V0_1_0));
        assert_eq!(ipam.socket().unwrap(), PathBuf::from("/b"));
        for wrong in [
            json!({"name": "n", "type": "wipam-cni", "ipam": {"type": "host-local"}}),
            json!({"name": "n", "type": "wipam-cni", "ipam": {"type": "wipam-cni"}}),
            json!({"name": "n", "type": "bridge"}),
            json!({"name": "n"}),
        ] {
            assert_eq!(conf(wrong.clone()).unwrap_err().code, crate::error::INVALID_CONFIG, "{wrong}");
        }
        let raw = json!({"name": "n", "type": "aws-cni"}).to_string().into_bytes();
        let (version, map) = decode(&raw).unwrap();
        assert_eq!(Conf::new(raw, version, map, "aws-cni").unwrap().role, Role::Main);
    }

    #[test]
    fn names_are_libcnis() {
        for name in [json!(""), json!("../x"), json!("a b"), json!("-a"), json!(7), json!("x".repeat(256)), Value::Null]
        {
            let error = conf(json!({"name": name, "type": "wipam-cni"})).unwrap_err();
            assert_eq!(error.code, crate::error::INVALID_CONFIG, "{name}");
        }
    }

    #[test]
    fn what_is_no_configuration_has_its_code() {
        let code = |raw: &[u8]| decode(raw).unwrap_err().code;
        for raw in [&b""[..], b"  \n", b"{", b"[]", b"\"x\"", b"\xff\xfe", b"{}{}", b"nul"] {
            assert_eq!(code(raw), DECODING_FAILURE, "{raw:?}");
        }
        assert_eq!(code("[".repeat(100_000).as_bytes()), DECODING_FAILURE);
        let deep = format!("{{\"a\":{}", "{\"a\":".repeat(50_000));
        assert_eq!(code(deep.as_bytes()), DECODING_FAILURE);
        assert_eq!(code(b"{\"cniVersion\": \"9.9.9\"}"), crate::error::INCOMPATIBLE_VERSION);
        assert_eq!(code(b"{\"cniVersion\": 1}"), crate::error::INVALID_CONFIG);
        let mut endless = std::io::repeat(b' ');
        assert_eq!(read_stdin(&mut endless).unwrap_err().code, DECODING_FAILURE);
    }

    #[test]
    fn settings_are_texts_or_numbers() {
        assert_eq!(main_with(json!({"mtu": "1500"})).mtu().unwrap(), Some(1500));
        assert_eq!(main_with(json!({"mtu": 1500})).mtu().unwrap(), Some(1500));
        assert_eq!(main_with(json!({"mtu": null})).mtu().unwrap(), None);
        for wrong in [json!("x"), json!(575), json!(9002), json!(-1), json!(1500.5), json!([])] {
            assert!(main_with(json!({"mtu": wrong})).mtu().is_err());
        }
        assert_eq!(main_with(json!({"addTimeout": "5"})).add_timeout().unwrap(), Duration::from_secs(5));
        assert_eq!(main_with(json!({})).add_timeout().unwrap(), ADD_TIMEOUT);
        for wrong in ["eth", "lo", "vlan", "abcde", "a/b", "a b", "é"] {
            assert!(main_with(json!({"vethPrefix": wrong})).veth_prefix().is_err(), "{wrong}");
        }
        assert_eq!(main_with(json!({"pluginLogFile": "/a", "pluginLogLevel": "Debug"})).log_level(), Some("Debug"));
        assert!(main_with(json!({"logFile": "stdout"})).log_file().is_err());
        assert!(main_with(json!({"socket": "relative"})).socket().is_err());
        assert!(main_with(json!({"socket": 1})).socket().is_err());
    }

    #[test]
    fn requested_addresses_come_from_three_places() {
        let conf = main_with(
            json!({"runtimeConfig": {"ips": ["10.0.0.7/24"]}, "args": {"cni": {"ips": ["10.0.0.8", "fd00::1"]}}}),
        );
        assert_eq!(
            conf.requested(&["10.0.0.8".into(), "10.0.0.9".into()]).unwrap(),
            ["10.0.0.7/24", "10.0.0.8", "fd00::1", "10.0.0.9"]
        );
        assert_eq!(conf.requested(&["x".into()]).unwrap_err().code, crate::error::INVALID_ENVIRONMENT);
        for wrong in [json!("10.0.0.7"), json!([7]), json!(["10.0.0.300"])] {
            let error = main_with(json!({"runtimeConfig": {"ips": wrong}})).requested(&[]).unwrap_err();
            assert_eq!(error.code, crate::error::INVALID_CONFIG);
        }
    }

    #[test]
    fn gc_needs_its_list() {
        let list = |value| main_with(json!({"cni.dev/valid-attachments": value})).valid_attachments();
        assert_eq!(list(json!([])).unwrap(), []);
        assert_eq!(list(Value::Null).unwrap(), []);
        let got = list(json!([{"containerID": "c", "ifname": "eth0", "more": 1}])).unwrap();
        assert_eq!((got[0].network.as_str(), got[0].container_id.as_str(), got[0].ifname.as_str()), ("n", "c", "eth0"));
        for wrong in
            [json!([{}]), json!([{"containerID": "c"}]), json!("x"), json!([{"containerID": "", "ifname": "e"}])]
        {
            assert!(list(wrong).is_err());
        }
        assert!(main_with(json!({})).valid_attachments().is_err());
        assert_eq!(main_with(json!({"cni.dev/attachments": []})).valid_attachments().unwrap(), []);
    }
}
