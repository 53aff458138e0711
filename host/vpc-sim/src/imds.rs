//! Instance metadata, version 2, over a simulated VPC. What it tells is as old as the model's metadata lag.
//!
//! Version 1 (a read without a token) is refused, as on an instance that requires tokens.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use hyper::Method;
use tokio::net::TcpListener;

use crate::http::{self, Asked, Reply};
use crate::model::{Eni, ImdsView};
use crate::sim::{Sim, timestamp};

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";
const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
/// Six hours.
const MAX_TTL_S: u64 = 21_600;
/// How long the dummy credentials say they last.
const CREDENTIALS_MS: u64 = 6 * 3_600_000;

/// How a metadata server behaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImdsOptions {
    /// The instance that every caller is; absent: the caller's source address tells (any address of an interface).
    pub instance: Option<String>,
    /// The hop limit of answers: the TTL of packets the server sends. With 1, answers die on the first router, so that
    /// pods in a namespace of their own get none. Absent: the system's.
    pub hop_limit: Option<u32>,
}

/// Serves instance metadata until `shutdown` is ready.
///
/// # Errors
/// When the listener fails.
pub async fn serve_imds(
    listener: TcpListener,
    sim: Arc<Sim>,
    options: ImdsOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let hop_limit = options.hop_limit;
    let server = Arc::new(Imds { sim, instance: options.instance, tokens: Tokens::default() });
    http::serve(listener, hop_limit, shutdown, move |asked| {
        let server = Arc::clone(&server);
        async move { server.answer(&asked) }
    })
    .await
}

/// The access key id that the dummy credentials of an instance have; fault rules know callers by it.
pub fn access_key_of(instance_id: &str) -> String {
    let id: String = instance_id.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("ASIA{}", id.to_ascii_uppercase())
}

struct Imds {
    sim: Arc<Sim>,
    instance: Option<String>,
    tokens: Tokens,
}

impl Imds {
    fn answer(&self, asked: &Asked) -> Reply {
        let Some(instance) = self.caller(asked) else {
            return text(403, "no instance has this source address");
        };
        let now_ms = self.sim.now_ms();
        if asked.path == TOKEN_PATH {
            return self.token(asked, &instance, now_ms);
        }
        if asked.method != Method::GET {
            return text(405, "Method Not Allowed");
        }
        let ttl_s = asked.header(TOKEN_HEADER).and_then(|token| self.tokens.ttl_s(token, &instance, now_ms));
        let Some(ttl_s) = ttl_s else { return text(401, "Unauthorized") };
        let Some(view) = self.sim.with(|vpc, now_ms| vpc.imds_view(now_ms, &instance)) else {
            return text(404, "Not Found");
        };
        let tree = Tree::of(&view, self.sim.clock().unix_ms(), self.sim.clock().unix_of(view.launch_time_ms));
        match tree.get(&asked.path) {
            Some(body) => with_ttl(200, ttl_s, body),
            None => text(404, "Not Found"),
        }
    }

    fn caller(&self, asked: &Asked) -> Option<String> {
        if let Some(instance) = &self.instance {
            return Some(instance.clone());
        }
        match asked.peer.ip().to_canonical() {
            IpAddr::V4(address) => self.sim.lock().instance_of(address).map(str::to_owned),
            IpAddr::V6(_) => None,
        }
    }

    fn token(&self, asked: &Asked, instance: &str, now_ms: u64) -> Reply {
        if asked.method != Method::PUT {
            return text(405, "Method Not Allowed");
        }
        if asked.header("x-forwarded-for").is_some() {
            return text(403, "Forbidden");
        }
        match asked.header(TTL_HEADER).and_then(|ttl| ttl.parse().ok()) {
            Some(ttl_s @ 1..=MAX_TTL_S) => with_ttl(200, ttl_s, self.tokens.make(instance, now_ms, ttl_s)),
            _ => text(400, "Bad Request"),
        }
    }
}

fn text(status: u16, body: &str) -> Reply {
    Reply::new(status, "text/plain", body)
}

fn with_ttl(status: u16, ttl_s: u64, body: String) -> Reply {
    let headers = vec![("content-type", "text/plain".to_owned()), (TTL_HEADER, ttl_s.to_string())];
    Reply::Answer { status, headers, body }
}

/// Tokens that were handed out, each for one instance.
#[derive(Default)]
struct Tokens {
    /// Unknown outside of this process, which is all the secrecy a simulation needs.
    hasher: RandomState,
    serial: AtomicU64,
    live: Mutex<BTreeMap<String, (String, u64)>>,
}

impl Tokens {
    fn make(&self, instance: &str, now_ms: u64, ttl_s: u64) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let halves = [self.hasher.hash_one((serial, 0)), self.hasher.hash_one((serial, 1))];
        let bytes: Vec<u8> = halves.into_iter().flat_map(u64::to_be_bytes).chain(serial.to_be_bytes()).collect();
        let token = format!("AQAEA{}==", URL_SAFE.encode(bytes));
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, (_, until_ms)| *until_ms > now_ms);
        live.insert(token.clone(), (instance.to_owned(), now_ms + ttl_s * 1000));
        token
    }

    /// Whole seconds that a token still lives, `None` if it does not or is another instance's.
    fn ttl_s(&self, token: &str, instance: &str, now_ms: u64) -> Option<u64> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, until_ms) = live.get(token)?;
        (owner == instance && *until_ms > now_ms).then(|| (until_ms - now_ms).div_ceil(1000))
    }
}

/// The metadata of one instance: leaves by their path.
struct Tree {
    leaves: BTreeMap<String, String>,
}

impl Tree {
    fn of(view: &ImdsView, unix_now_ms: u64, launched_unix_ms: u64) -> Self {
        let mut tree = Self { leaves: BTreeMap::new() };
        let primary = view.interfaces.first().map(|(eni, _)| eni);
        let meta = |path: &str| format!("meta-data/{path}");
        for (path, value) in [
            ("instance-id", view.instance_id.clone()),
            ("instance-type", view.instance_type.clone()),
            ("ami-id", "ami-00000000000000000".to_owned()),
            ("placement/availability-zone", view.availability_zone.clone()),
            ("placement/region", view.region.clone()),
            ("services/domain", "amazonaws.com".to_owned()),
            ("services/partition", "aws".to_owned()),
        ] {
            tree.leaves.insert(meta(path), value);
        }
        if let Some(eni) = primary {
            tree.leaves.insert(meta("mac"), eni.mac.clone());
            tree.leaves.insert(meta("local-ipv4"), eni.primary().to_string());
            tree.leaves.insert(meta("local-hostname"), hostname(view, eni));
            tree.leaves.insert(meta("security-groups"), eni.security_groups.join("\n"));
            if let Some(address) = eni.public_ip {
                tree.leaves.insert(meta("public-ipv4"), address.to_string());
            }
        }
        if !view.role.is_empty() {
            let path = format!("iam/security-credentials/{}", view.role);
            tree.leaves.insert(meta(&path), credentials(view, unix_now_ms));
            tree.leaves.insert(meta("iam/info"), iam_info(view, unix_now_ms));
        }
        for (eni, subnet) in &view.interfaces {
            for (name, value) in interface(view, eni, &subnet.to_string()) {
                tree.leaves.insert(meta(&format!("network/interfaces/macs/{}/{name}", eni.mac)), value);
            }
        }
        let document = identity_document(view, primary, launched_unix_ms);
        tree.leaves.insert("dynamic/instance-identity/document".into(), document);
        tree
    }

    /// A leaf's value, or the names in a directory, those of directories with a slash behind.
    fn get(&self, path: &str) -> Option<String> {
        let path = path.trim_start_matches('/');
        let (version, rest) = path.split_once('/').unwrap_or((path, ""));
        let dated = version.len() == 10 && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if version != "latest" && !dated {
            return path.is_empty().then(|| "latest".to_owned());
        }
        if let Some(value) = self.leaves.get(rest) {
            return Some(value.clone());
        }
        let directory = match rest.trim_end_matches('/') {
            "" => String::new(),
            name => format!("{name}/"),
        };
        let mut names: Vec<String> = Vec::new();
        for key in self.leaves.range(directory.clone()..).map(|(key, _)| key) {
            let Some(inside) = key.strip_prefix(&directory) else { break };
            let name = inside.split_once('/').map_or_else(|| inside.to_owned(), |(name, _)| format!("{name}/"));
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        (!names.is_empty()).then(|| names.join("\n"))
    }
}

fn interface(view: &ImdsView, eni: &Eni, subnet: &str) -> Vec<(String, String)> {
    let lines = |items: Vec<String>| items.join("\n");
    let plug = eni.attachment.as_ref();
    let cidrs: Vec<String> = view.vpc_cidrs.iter().map(ToString::to_string).collect();
    let mut leaves = vec![
        ("device-number", plug.map_or(0, |plug| plug.device_index).to_string()),
        ("interface-id", eni.id.clone()),
        ("local-hostname", hostname(view, eni)),
        ("local-ipv4s", lines(eni.addresses.iter().map(ToString::to_string).collect())),
        ("mac", eni.mac.clone()),
        ("network-card", plug.map_or(0, |plug| plug.network_card_index).to_string()),
        ("owner-id", view.account.clone()),
        ("security-group-ids", lines(eni.security_groups.clone())),
        ("security-groups", lines(eni.security_groups.clone())),
        ("subnet-id", eni.subnet_id.clone()),
        ("subnet-ipv4-cidr-block", subnet.to_owned()),
        ("vpc-id", view.vpc_id.clone()),
        ("vpc-ipv4-cidr-block", cidrs.first().cloned().unwrap_or_default()),
        ("vpc-ipv4-cidr-blocks", lines(cidrs)),
    ];
    if !eni.prefixes.is_empty() {
        leaves.push(("ipv4-prefix", lines(eni.prefixes.iter().map(ToString::to_string).collect())));
    }
    let mut leaves: Vec<(String, String)> = leaves.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    if let Some(public) = eni.public_ip {
        leaves.push(("public-ipv4s".into(), public.to_string()));
        leaves.push((format!("ipv4-associations/{public}"), eni.primary().to_string()));
    }
    leaves
}

fn hostname(view: &ImdsView, eni: &Eni) -> String {
    let dashed = eni.primary().to_string().replace('.', "-");
    format!("ip-{dashed}.{}.compute.internal", view.region)
}

fn credentials(view: &ImdsView, unix_now_ms: u64) -> String {
    serde_json::json!({
        "Code": "Success",
        "LastUpdated": timestamp(unix_now_ms),
        "Type": "AWS-HMAC",
        "AccessKeyId": access_key_of(&view.instance_id),
        "SecretAccessKey": "a simulated VPC has no secrets",
        "Token": "simulated",
        "Expiration": timestamp(unix_now_ms + CREDENTIALS_MS),
    })
    .to_string()
}

fn iam_info(view: &ImdsView, unix_now_ms: u64) -> String {
    serde_json::json!({
        "Code": "Success",
        "LastUpdated": timestamp(unix_now_ms),
        "InstanceProfileArn": format!("arn:aws:iam::{}:instance-profile/{}", view.account, view.role),
        "InstanceProfileId": "AIPA00000000000000000",
    })
    .to_string()
}

fn identity_document(view: &ImdsView, primary: Option<&Eni>, launched_unix_ms: u64) -> String {
    serde_json::json!({
        "accountId": view.account,
        "architecture": "x86_64",
        "availabilityZone": view.availability_zone,
        "imageId": "ami-00000000000000000",
        "instanceId": view.instance_id,
        "instanceType": view.instance_type,
        "pendingTime": timestamp(launched_unix_ms),
        "privateIp": primary.map(|eni| eni.primary().to_string()),
        "region": view.region,
        "version": "2017-09-30",
    })
    .to_string()
}
