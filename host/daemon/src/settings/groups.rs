//! The settings themselves, group by group. Each is documented once, in the text that `--print-config` prints.
#![allow(missing_docs, reason = "each field's meaning is the third text where it is read, for people and for screens")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};

use super::source::{Name, Reader, boolean, duration, quoted, show_duration, unsigned};

fn name(key: &'static str, env: &'static str, doc: &'static str) -> Name {
    Name { key, env, doc }
}

/// Where an HTTP server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket (mode 0600).
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// How source ports of SNAT are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomPorts {
    /// `prng`: fully random.
    Prng,
    /// `hashrandom`.
    Hash,
    /// `none`: as they are.
    None,
}

/// Limits of the instance type that the operator states instead of asking EC2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedLimits {
    /// Interfaces of card 0.
    pub enis: u16,
    /// IPv4 addresses of an interface, the primary one included.
    pub ipv4: u16,
}

/// Files, directories and sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    pub queue_dir: PathBuf,
    pub aws_file: PathBuf,
    pub aws_socket: PathBuf,
    pub policy_dir: PathBuf,
    pub conflist: Option<PathBuf>,
    pub conflist_template: Option<PathBuf>,
    pub conflist_remove: bool,
}

impl Paths {
    pub(super) fn read(r: &mut Reader<'_>) -> Paths {
        let state_dir =
            path(r, "state-dir", "WIPAM_STATE_DIR", "/var/lib/wipam", "Our checkpoint; must survive a reboot.");
        let queue = state_dir.join("queue");
        Paths {
            socket: path(
                r,
                "socket",
                "WIPAM_SOCKET",
                wipam_rpc::DEFAULT_SOCKET,
                "Where the plugin reaches ipamd (mode 0600).",
            ),
            queue_dir: r.strict(
                name("queue-dir", "WIPAM_QUEUE_DIR", "Where the plugin leaves releases while ipamd is away."),
                queue,
                absolute,
                show_path,
            ),
            aws_file: r.lenient_empty(
                name("aws-file", "AWS_VPC_K8S_CNI_BACKING_STORE", "The checkpoint that the AWS daemon can read."),
                "/var/run/aws-node/ipam.json".into(),
                absolute,
                show_path,
            ),
            aws_socket: path(
                r,
                "aws-socket",
                "WIPAM_AWS_SOCKET",
                "/var/run/aws-node/ipamd.sock",
                "Socket of the AWS daemon: while somebody answers there, ipamd refuses to start.",
            ),
            policy_dir: path(
                r,
                "policy-dir",
                "WIPAM_POLICY_DIR",
                "/etc/wipam/policies",
                "policies.yaml and components, watched while running; a missing directory means the shipped policies.",
            ),
            conflist: r.strict(
                name(
                    "conflist",
                    "WIPAM_CONFLIST",
                    "CNI configuration to write once an address can be given; empty: write none.",
                ),
                Some("/etc/cni/net.d/10-aws.conflist".into()),
                optional_path,
                show_optional_path,
            ),
            conflist_template: r.strict(
                name(
                    "conflist-template",
                    "WIPAM_CONFLIST_TEMPLATE",
                    "File to write there instead of the built-in one.",
                ),
                None,
                optional_path,
                show_optional_path,
            ),
            conflist_remove: r.strict(
                name(
                    "conflist-remove",
                    "WIPAM_CONFLIST_REMOVE",
                    "Take the conflist away on an orderly stop: the node gets no new pods meanwhile.",
                ),
                false,
                boolean,
                bool::to_string,
            ),
            state_dir,
        }
    }
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: String,
    pub file: String,
    pub node_name: String,
}

impl Log {
    pub(super) fn read(r: &mut Reader<'_>) -> Log {
        Log {
            level: r.lenient(
                name(
                    "log-level",
                    "AWS_VPC_K8S_CNI_LOGLEVEL",
                    "debug, info, warn, error, or a filter such as info,wipam_daemon=trace.",
                ),
                "info".into(),
                log_level,
                quoted,
            ),
            file: r.lenient_empty(
                name("log-file", "AWS_VPC_K8S_CNI_LOG_FILE", "stderr, stdout, or a file to append JSON lines to."),
                "stderr".into(),
                text,
                quoted,
            ),
            node_name: r.lenient_empty(
                name("node-name", "MY_NODE_NAME", "Name of this node in records and logs; empty: the host's name."),
                String::new(),
                text,
                quoted,
            ),
        }
    }
}

/// Introspection and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    pub introspection: Listen,
    pub introspection_off: bool,
    pub metrics: Option<Listen>,
    pub metrics_off: bool,
    pub record_bytes: usize,
}

impl Http {
    pub(super) fn read(r: &mut Reader<'_>) -> Http {
        let unix = Listen::Unix("/run/wipam/introspect.sock".into());
        Http {
            introspection: r.strict(
                name(
                    "introspection",
                    "INTROSPECTION_BIND_ADDRESS",
                    "HTTP for wipam and people: unix:/path, or address:port.",
                ),
                unix,
                listen,
                |l| quoted(&l.to_string()),
            ),
            introspection_off: flag(r, "introspection-off", "DISABLE_INTROSPECTION", false, "No introspection."),
            metrics: r.strict(
                name(
                    "metrics",
                    "WIPAM_METRICS_ADDRESS",
                    "Where /metrics is served besides the introspection address, e.g. 0.0.0.0:61678; empty: nowhere.",
                ),
                None,
                |text| if text.is_empty() { Ok(None) } else { listen(text).map(Some) },
                |l| quoted(&l.as_ref().map(ToString::to_string).unwrap_or_default()),
            ),
            metrics_off: flag(r, "metrics-off", "DISABLE_METRICS", false, "No metrics."),
            record_bytes: r.strict(
                name(
                    "record-bytes",
                    "WIPAM_RECORD_BYTES",
                    "Memory for the flight recorder, compressed bytes; 0: none.",
                ),
                8 << 20,
                |text| unsigned(text).and_then(|n| usize::try_from(n).map_err(|_| "a smaller number".into())),
                usize::to_string,
            ),
        }
    }
}

/// EC2 and instance metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    pub ec2_endpoint: Option<String>,
    pub imds_endpoint: Option<String>,
    pub http_timeout: Duration,
    pub rate: u64,
    pub burst: u64,
    pub cluster: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub limits: Option<StatedLimits>,
    pub subnets: Vec<String>,
    pub max_enis: Option<u16>,
}

impl Cloud {
    pub(super) fn read(r: &mut Reader<'_>) -> Cloud {
        let ec2_endpoint = optional(r, "ec2-endpoint", "AWS_EC2_ENDPOINT", "EC2 endpoint; empty: the region's own.");
        Cloud {
            ec2_endpoint,
            imds_endpoint: optional(
                r,
                "imds-endpoint",
                "WIPAM_IMDS_ENDPOINT",
                "Instance metadata; empty: 169.254.169.254.",
            ),
            http_timeout: r.lenient(
                name("http-timeout", "HTTP_TIMEOUT", "Longest wait for one EC2 call, whole seconds, at least 10."),
                Duration::from_secs(10),
                |text| match unsigned(text) {
                    Ok(s) if (10..=3600).contains(&s) => Ok(Duration::from_secs(s)),
                    _ => Err("a whole number of seconds, 10 to 3600".into()),
                },
                |d| d.as_secs().to_string(),
            ),
            rate: number(r, "ec2-rate", "WIPAM_EC2_RATE", 4, 1..=1000, "EC2 calls per second in the long run."),
            burst: number(r, "ec2-burst", "WIPAM_EC2_BURST", 10, 1..=1000, "EC2 calls at once after a quiet time."),
            cluster: optional(r, "cluster", "CLUSTER_NAME", "Name of the cluster, for tags of new interfaces."),
            tags: read_tags(r),
            limits: r.strict(
                name(
                    "instance-limits",
                    "WIPAM_INSTANCE_LIMITS",
                    "Interfaces x IPv4 addresses of each, e.g. 3x6; empty: what EC2 says of the instance type.",
                ),
                None,
                stated_limits,
                |l| quoted(&l.map(|l| format!("{}x{}", l.enis, l.ipv4)).unwrap_or_default()),
            ),
            subnets: r.strict(
                name(
                    "subnets",
                    "WIPAM_SUBNETS",
                    "Subnets for new interfaces, best first; empty: the primary interface's.",
                ),
                Vec::new(),
                |text| Ok(text.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()),
                |list| quoted(&list.join(",")),
            ),
            max_enis: r.lenient(
                name(
                    "max-enis",
                    "MAX_ENI",
                    "At most so many interfaces; 0 in a file: as many as the instance type takes.",
                ),
                None,
                |text| match unsigned(text).map(u16::try_from) {
                    Ok(Ok(n)) if n > 0 => Ok(Some(n)),
                    Ok(Ok(_)) => Ok(None),
                    _ => Err("a whole number, 1 or more".into()),
                },
                |n| n.unwrap_or(0).to_string(),
            ),
        }
    }
}

/// The AWS daemon ignores text that is no JSON object of strings, and drops reserved keys one by one.
fn read_tags(r: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut tags = r.lenient_empty(
        name("eni-tags", "ADDITIONAL_ENI_TAGS", "Tags of new interfaces, a JSON object of strings."),
        BTreeMap::new(),
        |text| serde_json::from_str::<BTreeMap<String, String>>(text).map_err(|_| "a JSON object of strings".into()),
        |tags| serde_json::Value::from_iter(tags.clone()).to_string(),
    );
    tags.retain(|key, _| {
        let reserved = key.contains("k8s.amazonaws.com");
        if reserved {
            r.warnings.push(format!("ADDITIONAL_ENI_TAGS: {key:?} is reserved (k8s.amazonaws.com) and not set"));
        }
        !reserved
    });
    tags
}

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub network: String,
    pub max_pods: Option<u32>,
    pub prefix_mode: bool,
    pub cooldown: Duration,
    pub held_for: Duration,
    pub kubelet_health: Option<SocketAddr>,
    pub reuse_own_cooling: bool,
    pub allow_reject: bool,
    pub offer_reserved: bool,
    pub max_keep_for: Duration,
    pub max_reserved_percent: u8,
    pub settle: Duration,
    pub settle_max: Duration,
    pub tick: Duration,
    pub tombstone: Duration,
    pub add_timeout: Duration,
    pub observe: Duration,
    pub drain: Duration,
}

impl Pool {
    pub(super) fn read(r: &mut Reader<'_>) -> Pool {
        let seconds = Duration::from_secs;
        Pool {
            network: r.strict(
                name("network", "WIPAM_NETWORK", "Name of the CNI network whose pods get addresses of the VPC."),
                "aws-cni".into(),
                non_empty,
                quoted,
            ),
            max_pods: r.strict(
                name("max-pods", "WIPAM_MAX_PODS", "Pods the kubelet allows here; 0: interfaces x addresses + 2."),
                None,
                |text| match unsigned(text).map(u32::try_from) {
                    Ok(Ok(n)) => Ok(Some(n).filter(|n| *n > 0)),
                    _ => Err("a whole number, 0 or more".into()),
                },
                |n| n.unwrap_or(0).to_string(),
            ),
            prefix_mode: flag(
                r,
                "prefix-delegation",
                "ENABLE_PREFIX_DELEGATION",
                false,
                "Ask for /28 prefixes, not lone addresses.",
            ),
            cooldown: time(r, "cooldown", "IP_COOLDOWN_PERIOD", seconds(30), "How long a released address rests."),
            held_for: time(
                r,
                "held-for",
                "WIPAM_HELD_FOR",
                seconds(600),
                "How long an address waits for the pod of a sandbox that vanished.",
            ),
            kubelet_health: r.strict(
                name(
                    "kubelet-health",
                    "WIPAM_KUBELET_HEALTH",
                    "The kubelet's health port: held-for counts once it has answered; empty: there is no kubelet.",
                ),
                Some(SocketAddr::from(([127, 0, 0, 1], 10248))),
                |text| match text {
                    "" => Ok(None),
                    _ => text.parse().map(Some).map_err(|_| "address:port, or empty".into()),
                },
                |a| quoted(&a.map(|a| a.to_string()).unwrap_or_default()),
            ),
            reuse_own_cooling: own_flag(
                r,
                "reuse-own-cooling",
                "WIPAM_REUSE_OWN_COOLING",
                true,
                "A resting address may go back to the pod that had it.",
            ),
            allow_reject: own_flag(r, "allow-reject", "WIPAM_ALLOW_REJECT", false, "A policy may fail a pod's ADD."),
            offer_reserved: own_flag(
                r,
                "offer-reserved",
                "WIPAM_OFFER_RESERVED",
                true,
                "Offer addresses reserved for others when growth is impossible.",
            ),
            max_keep_for: time(
                r,
                "max-keep-for",
                "WIPAM_MAX_KEEP_FOR",
                seconds(86_400),
                "Longest reservation a policy may ask for.",
            ),
            max_reserved_percent: r.strict(
                name(
                    "max-reserved-percent",
                    "WIPAM_MAX_RESERVED_PERCENT",
                    "All reservations together, percent of the pool.",
                ),
                25,
                |text| match unsigned(text).map(u8::try_from) {
                    Ok(Ok(n)) if n <= 100 => Ok(n),
                    _ => Err("a whole number, 0 to 100".into()),
                },
                u8::to_string,
            ),
            settle: time(
                r,
                "settle",
                "WIPAM_SETTLE",
                seconds(1),
                "The sizing plan waits so long after the last change,",
            ),
            settle_max: time(
                r,
                "settle-max",
                "WIPAM_SETTLE_MAX",
                seconds(5),
                "but not longer than this after the first.",
            ),
            tick: time(r, "tick", "WIPAM_TICK", seconds(30), "Plan at least so often."),
            tombstone: time(
                r,
                "tombstone",
                "WIPAM_TOMBSTONE",
                seconds(86_400),
                "How long a superseded sandbox is remembered.",
            ),
            add_timeout: time(
                r,
                "add-timeout",
                "WIPAM_ADD_TIMEOUT",
                seconds(100),
                "How long an ADD waits that brings no deadline.",
            ),
            observe: time(
                r,
                "observe",
                "WIPAM_OBSERVE",
                seconds(30),
                "How often metadata and the host's links are read.",
            ),
            drain: time(r, "drain", "WIPAM_DRAIN", seconds(8), "How long a stop waits for calls under way."),
        }
    }
}

/// The host's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub external_snat: bool,
    pub exclude_snat: Vec<Ipv4Net>,
    pub random_ports: RandomPorts,
    pub node_port: bool,
    pub connmark: u32,
    pub eni_mtu: u32,
    pub pod_mtu: u32,
    pub veth_prefix: String,
}

impl Host {
    pub(super) fn read(r: &mut Reader<'_>) -> Host {
        let external_snat = r.lenient_empty(
            name(
                "external-snat",
                "AWS_VPC_K8S_CNI_EXTERNALSNAT",
                "Something else does SNAT for traffic leaving the VPC.",
            ),
            false,
            boolean,
            bool::to_string,
        );
        let eni_mtu = mtu(r, "eni-mtu", "AWS_VPC_ENI_MTU", 9001, "MTU of interfaces.");
        let pod_mtu = mtu(r, "pod-mtu", "POD_MTU", eni_mtu, "MTU of pods; as of interfaces unless set.");
        if pod_mtu > eni_mtu {
            r.warnings.push(format!("pod-mtu {pod_mtu} is above eni-mtu {eni_mtu}: large packets of pods are lost"));
        }
        Host {
            external_snat,
            exclude_snat: read_excluded(r),
            random_ports: r.lenient_empty(
                name("random-ports", "AWS_VPC_K8S_CNI_RANDOMIZESNAT", "Source ports of SNAT: prng, hashrandom, none."),
                RandomPorts::Prng,
                |text| match text {
                    "prng" => Ok(RandomPorts::Prng),
                    "hashrandom" => Ok(RandomPorts::Hash),
                    "none" => Ok(RandomPorts::None),
                    _ => Err("prng, hashrandom or none".into()),
                },
                |p| match p {
                    RandomPorts::Prng => "prng".into(),
                    RandomPorts::Hash => "hashrandom".into(),
                    RandomPorts::None => "none".into(),
                },
            ),
            node_port: r.lenient_empty(
                name(
                    "node-port",
                    "AWS_VPC_CNI_NODE_PORT_SUPPORT",
                    "Replies of NodePort services leave by the primary interface.",
                ),
                true,
                boolean,
                bool::to_string,
            ),
            connmark: r.lenient_empty(
                name(
                    "connmark",
                    "AWS_VPC_K8S_CNI_CONNMARK",
                    "Packet mark for that, decimal, 0x hexadecimal or 0 octal.",
                ),
                0x80,
                connmark,
                |n| format!("{n:#x}"),
            ),
            eni_mtu,
            pod_mtu,
            veth_prefix: r.strict(
                name("veth-prefix", "AWS_VPC_K8S_CNI_VETHPREFIX", "Prefix of host veth names, 1 to 4 letters."),
                "eni".into(),
                veth_prefix,
                quoted,
            ),
        }
    }
}

/// Invalid and IPv6 items are skipped one by one, as the AWS daemon does; hosts bits are cleared.
fn read_excluded(r: &mut Reader<'_>) -> Vec<Ipv4Net> {
    let items = r.lenient_empty(
        name(
            "exclude-snat",
            "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
            "CIDRs that are reached without SNAT, separated by commas.",
        ),
        Vec::<String>::new(),
        |text| Ok(text.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()),
        |list| quoted(&list.join(",")),
    );
    let mut nets = Vec::new();
    for item in items {
        match item.parse::<IpNet>() {
            Ok(IpNet::V4(net)) => nets.push(net.trunc()),
            Ok(IpNet::V6(_)) => r.warnings.push(format!("exclude-snat: {item} is IPv6 and has no effect")),
            Err(_) => r.warnings.push(format!("exclude-snat: {item:?} is not a CIDR such as 10.0.0.0/8, ignored")),
        }
    }
    nets
}

/// The targets belong to the policies; a bad one is as good as none, as with the AWS daemon.
pub(super) fn read_warm(r: &mut Reader<'_>) -> BTreeMap<String, String> {
    let targets = [
        ("warm-enis", "WARM_ENI_TARGET", "Interfaces' worth of free addresses to keep (default policy)."),
        ("warm-ips", "WARM_IP_TARGET", "Free addresses to keep; not 0 selects the sizer warm-ip-target."),
        ("minimum-ips", "MINIMUM_IP_TARGET", "Addresses to have in all; not 0 selects the sizer warm-ip-target."),
        ("warm-prefixes", "WARM_PREFIX_TARGET", "Wholly free prefixes to keep (default policy)."),
    ];
    let mut found = BTreeMap::new();
    for (key, env, doc) in targets {
        let value = r.lenient(
            name(key, env, doc),
            None,
            |text| match text {
                "unset" => Ok(None),
                _ => unsigned(text).map(Some).map_err(|_| "a whole number, 0 or more".into()),
            },
            |n| n.map_or("unset".into(), |n| n.to_string()),
        );
        found.extend(value.map(|n| (env.to_owned(), n.to_string())));
    }
    found
}

fn path(r: &mut Reader<'_>, key: &'static str, env: &'static str, default: &str, doc: &'static str) -> PathBuf {
    r.strict(name(key, env, doc), default.into(), absolute, show_path)
}

fn optional(r: &mut Reader<'_>, key: &'static str, env: &'static str, doc: &'static str) -> Option<String> {
    r.strict(
        name(key, env, doc),
        None,
        |text| Ok(Some(text.to_owned()).filter(|t| !t.is_empty())),
        |value| quoted(&value.as_deref().unwrap_or_default()),
    )
}

fn flag(r: &mut Reader<'_>, key: &'static str, env: &'static str, default: bool, doc: &'static str) -> bool {
    r.lenient(name(key, env, doc), default, boolean, bool::to_string)
}

fn own_flag(r: &mut Reader<'_>, key: &'static str, env: &'static str, default: bool, doc: &'static str) -> bool {
    r.strict(name(key, env, doc), default, boolean, bool::to_string)
}

fn time(r: &mut Reader<'_>, key: &'static str, env: &'static str, default: Duration, doc: &'static str) -> Duration {
    r.strict(name(key, env, doc), default, duration, show_duration)
}

fn number(
    r: &mut Reader<'_>,
    key: &'static str,
    env: &'static str,
    default: u64,
    bounds: std::ops::RangeInclusive<u64>,
    doc: &'static str,
) -> u64 {
    let value = r.strict(name(key, env, doc), default, unsigned, u64::to_string);
    if !bounds.contains(&value) {
        r.errors.push(format!("{key}: {value}: must be {} to {}", bounds.start(), bounds.end()));
    }
    value
}

/// The AWS image refuses to start with an MTU out of these bounds; a silently different one would lose packets.
fn mtu(r: &mut Reader<'_>, key: &'static str, env: &'static str, default: u32, doc: &'static str) -> u32 {
    r.strict(
        name(key, env, doc),
        default,
        |text| match unsigned(text).map(u32::try_from) {
            Ok(Ok(n)) if (576..=9001).contains(&n) => Ok(n),
            _ => Err("a whole number, 576 to 9001".into()),
        },
        u32::to_string,
    )
}

fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn non_empty(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a name".into()),
        _ => Ok(text.to_owned()),
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("an absolute path".into()) }
}

fn optional_path(text: &str) -> Result<Option<PathBuf>, String> {
    if text.is_empty() { Ok(None) } else { absolute(text).map(Some) }
}

fn show_path(path: &impl AsRef<Path>) -> String {
    quoted(&path.as_ref().to_string_lossy())
}

fn show_optional_path(path: &Option<PathBuf>) -> String {
    quoted(&path.as_ref().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default())
}

fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some(path) => absolute(path).map(Listen::Unix).map_err(|_| "unix: with an absolute path".into()),
        None => text.parse().map(Listen::Tcp).map_err(|_| "unix:/path or address:port such as 127.0.0.1:61679".into()),
    }
}

fn log_level(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "trace" | "debug" | "info" | "warn" | "error" => Ok(lower),
        "fatal" => Ok("error".into()),
        _ if lower.contains('=') && text.parse::<tracing_subscriber::EnvFilter>().is_ok() => Ok(text.to_owned()),
        _ => Err("trace, debug, info, warn, error, or a filter such as info,wipam_daemon=trace".into()),
    }
}

fn stated_limits(text: &str) -> Result<Option<StatedLimits>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let must = || "interfaces x addresses such as 3x6, each 1 to 1000 (addresses at least 2)".to_owned();
    let (enis, ipv4) = text.split_once('x').ok_or_else(must)?;
    match (enis.parse(), ipv4.parse()) {
        (Ok(enis @ 1..=1000), Ok(ipv4 @ 2..=1000)) => Ok(Some(StatedLimits { enis, ipv4 })),
        _ => Err(must()),
    }
}

fn connmark(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(&text[1..], 8),
        None => text.parse(),
    };
    parsed.ok().filter(|n| *n > 0).ok_or_else(|| "a mark such as 0x80, 1 to 0xffffffff".into())
}

/// Longer prefixes would not fit the kernel's 15 bytes beside the pod's hash; reserved ones would take links of others.
fn veth_prefix(text: &str) -> Result<String, String> {
    let fits = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
    match fits && !["eth", "lo", "vlan"].contains(&text) {
        true => Ok(text.to_owned()),
        false => Err("1 to 4 letters or digits, not eth, lo or vlan".into()),
    }
}
