//! A simulated VPC with one node, in this process, and `ipamd` as a child in the node's network namespace.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use wipam_rpc::v1::node_client::NodeClient;
use wipam_rpc::{Cause, v1};
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Vpc, VpcConfig};
use wipam_vpc_sim::wire::{self, Wire, WireSpec};
use wipam_vpc_sim::{ImdsOptions, Sim, serve_api, serve_imds};

const IPAMD: &str = env!("CARGO_BIN_EXE_ipamd");
pub const INSTANCE: &str = "i-a";

/// Whether root-only tests can run; on CI they must.
pub fn root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and CI must not skip it");
    println!("SKIPPED (needs root): {test}");
    false
}

/// The VPC, its servers and its wire; removed when dropped.
pub struct Lab {
    pub sim: Arc<Sim>,
    pub netns: String,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
    servers: Vec<tokio::task::JoinHandle<()>>,
}

impl Lab {
    /// A node of `instance_type` in a /22.
    pub fn start(instance_type: &str) -> Lab {
        Lab::with(instance_type, |_| {})
    }

    pub fn with(instance_type: &str, change: impl FnOnce(&mut VpcConfig)) -> Lab {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut config = VpcConfig::default();
        let subnet = "subnet-0000000000000000d".to_owned();
        config.subnets = vec![SubnetConfig {
            id: subnet.clone(),
            cidr: ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 22),
            ..SubnetConfig::default()
        }];
        config.instances = vec![InstanceConfig {
            id: INSTANCE.into(),
            instance_type: instance_type.into(),
            subnet,
            ..InstanceConfig::default()
        }];
        change(&mut config);
        let sim = Arc::new(Sim::new(Vpc::new(config).unwrap()));
        let letter = char::from(b'a' + u8::try_from(NUMBER.fetch_add(1, Ordering::Relaxed) % 26).unwrap());
        let name = wire::name_for_this_process(&format!("dt{letter}"));
        let spec = sim.with(|vpc, now| WireSpec::of_vpc(&name, vpc, now));
        let netns = spec.nodes[0].netns.clone();
        let wire = Wire::up(&spec).unwrap();
        let mut servers = Vec::new();
        let listen = |addr| {
            TcpListener::from_std(wire::listen(&wire.vpc_netns(), SocketAddr::from((addr, 80))).unwrap()).unwrap()
        };
        let (api, imds) = (listen(wire::API), listen(wire::IMDS));
        let forever = std::future::pending::<()>;
        let shared = sim.clone();
        servers.push(tokio::spawn(async move { drop(serve_api(api, shared, forever()).await) }));
        let shared = sim.clone();
        let options = ImdsOptions { instance: Some(INSTANCE.into()), hop_limit: None };
        servers.push(tokio::spawn(async move { drop(serve_imds(imds, shared, options, forever()).await) }));
        let stop = Arc::new(AtomicBool::new(false));
        let follower = Some(follow(wire, sim.clone(), stop.clone()));
        Lab { sim, netns, stop, follower, servers }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.servers.iter().for_each(tokio::task::JoinHandle::abort);
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
    }
}

/// Keeps the wire as the model wants it, until told to stop; then takes it down.
fn follow(mut wire: Wire, sim: Arc<Sim>, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut applied = None;
        while !stop.load(Ordering::Relaxed) {
            let name = wire.name().to_owned();
            let (generation, spec) = sim.with(|vpc, now| (vpc.generation(now), WireSpec::of_vpc(&name, vpc, now)));
            if applied != Some(generation) && wire.apply(&spec).is_ok() {
                applied = Some(generation);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        wire.down().unwrap();
    })
}

/// Directories, sockets and settings of one daemon; survives its restarts.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub env: Vec<(String, String)>,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap(), env: Vec::new() }
    }

    pub fn set(mut self, name: &str, value: &str) -> Place {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.path(name).display().to_string();
        let mut all: Vec<(String, String)> = [
            ("WIPAM_SOCKET", path("ipamd.sock")),
            ("WIPAM_STATE_DIR", path("state")),
            ("AWS_VPC_K8S_CNI_BACKING_STORE", path("aws/ipam.json")),
            ("WIPAM_AWS_SOCKET", path("aws/ipamd.sock")),
            ("WIPAM_POLICY_DIR", path("policies")),
            ("WIPAM_CONFLIST", path("net.d/10-aws.conflist")),
            ("INTROSPECTION_BIND_ADDRESS", format!("unix:{}", path("introspect.sock"))),
            ("WIPAM_KUBELET_HEALTH", String::new()),
            ("AWS_EC2_ENDPOINT", "http://198.18.255.1".into()),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("WIPAM_EC2_RATE", "100".into()),
            ("WIPAM_EC2_BURST", "100".into()),
            ("MY_NODE_NAME", "node-a".into()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
        all.extend(self.env.iter().cloned());
        all
    }

    fn command(&self, netns: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{netns}")).arg(IPAMD).env_clear();
        command.env("PATH", "/usr/bin:/bin").envs(self.settings());
        command
    }

    /// Starts a daemon; its log goes to `log` in the directory.
    pub fn start(&self, netns: &str) -> Daemon {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let child = self.command(netns).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Daemon { child, socket: self.path("ipamd.sock"), introspect: self.path("introspect.sock") }
    }

    /// Runs a daemon that is expected to end by itself; its standard error.
    pub fn run(&self, netns: &str) -> (Option<i32>, String) {
        let out = self.command(netns).stdin(Stdio::null()).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
    pub introspect: PathBuf,
}

impl Daemon {
    pub fn signal(&self, signal: Signal) {
        // nsenter has become ipamd: the same pid.
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// kill -9, and the end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for an orderly end.
    pub async fn ended(&mut self) -> Option<i32> {
        wait_for("the end of ipamd", || self.child.try_wait().unwrap()).await.code()
    }

    pub async fn client(&self) -> NodeClient<Channel> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match wipam_rpc::client::connect(&self.socket).await {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until an ADD could succeed.
    pub async fn ready(&self) -> NodeClient<Channel> {
        let mut client = self.client().await;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
            if status.ready {
                return client;
            }
            assert!(Instant::now() < deadline, "not ready: {}", status.reason);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A page of the introspection server: status code and body.
    pub fn page(&self, method: &str, path: &str) -> (u16, Vec<u8>) {
        use std::io::{Read, Write};
        let mut stream = StdUnixStream::connect(&self.introspect).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        let body = answer.split_off(end);
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (code, if chunked { unchunk(&body) } else { body })
    }

    pub fn json(&self, path: &str) -> Value {
        let (code, body) = self.page("GET", path);
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        all.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    all
}

/// Looks again and again until there is something, for 30 s.
pub async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn attachment(container: &str) -> Option<v1::Attachment> {
    Some(v1::Attachment { network: "aws-cni".into(), container_id: container.into(), ifname: "eth0".into() })
}

pub fn add_request(container: &str, pod: &str) -> v1::AddRequest {
    v1::AddRequest {
        attachment: attachment(container),
        pod: Some(v1::Pod { namespace: "default".into(), name: pod.into(), uid: String::new() }),
        ..v1::AddRequest::default()
    }
}

pub fn del_request(container: &str) -> v1::DelRequest {
    v1::DelRequest { attachment: attachment(container), ..v1::DelRequest::default() }
}

pub fn check_request(container: &str, address: &str) -> v1::CheckRequest {
    v1::CheckRequest { attachment: attachment(container), addresses: vec![address.into()] }
}

/// A request that gives up after `seconds`.
pub fn within<T>(seconds: u64, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(Duration::from_secs(seconds));
    request
}

/// The address of an ADD that must succeed.
pub async fn add(client: &mut NodeClient<Channel>, container: &str, pod: &str) -> String {
    let reply = client.add(within(60, add_request(container, pod))).await.unwrap().into_inner();
    assert_eq!(reply.addresses.len(), 1, "{reply:?}");
    reply.addresses[0].cidr.clone()
}

/// Cause and text of an ADD that must fail.
pub async fn refused(client: &mut NodeClient<Channel>, seconds: u64, container: &str) -> (Option<Cause>, String) {
    let status = client.add(within(seconds, add_request(container, container))).await.unwrap_err();
    (Cause::of(&status), status.message().to_owned())
}

pub fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
