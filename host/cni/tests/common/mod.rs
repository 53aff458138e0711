//! What the tests share: a stand-in for ipamd that answers as told and remembers what it was asked, the plugin as a
//! process, and throw-away network namespaces.

#![allow(dead_code)] // each test binary uses its part

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};
use wipam_rpc::v1::node_server::{Node, NodeServer};
use wipam_rpc::{deadline, v1};

/// How the stand-in answers one kind of call.
pub enum Answer<R> {
    /// With this.
    Say(R),
    /// With this error.
    Fail(Status),
    /// Not at all.
    Hang,
}

impl<R: Clone> Answer<R> {
    fn now(&self) -> Option<Result<Response<R>, Status>> {
        match self {
            Answer::Say(reply) => Some(Ok(Response::new(reply.clone()))),
            Answer::Fail(status) => Some(Err(status.clone())),
            Answer::Hang => None,
        }
    }
}

/// What the stand-in answers; the defaults are those of an empty but healthy daemon.
pub struct Script {
    pub add: Answer<v1::AddReply>,
    pub del: Answer<v1::DelReply>,
    pub check: Answer<v1::CheckReply>,
    pub gc: Answer<v1::GcReply>,
    pub status: Answer<v1::StatusReply>,
}

/// What it was asked.
#[derive(Default, Clone)]
pub struct Seen {
    pub adds: Vec<v1::AddRequest>,
    pub budgets: Vec<Option<std::time::Duration>>,
    pub dels: Vec<v1::DelRequest>,
    pub checks: Vec<v1::CheckRequest>,
    pub gcs: Vec<v1::GcRequest>,
    pub statuses: Vec<v1::StatusRequest>,
}

struct Service {
    script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Seen>>,
}

async fn give<R>(answer: Option<Result<Response<R>, Status>>) -> Result<Response<R>, Status> {
    match answer {
        Some(answer) => answer,
        None => std::future::pending().await,
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn add(&self, request: Request<v1::AddRequest>) -> Result<Response<v1::AddReply>, Status> {
        let answer = {
            let mut seen = self.seen.lock().unwrap();
            seen.budgets.push(deadline::budget(request.metadata()));
            seen.adds.push(request.into_inner());
            self.script.lock().unwrap().add.now()
        };
        give(answer).await
    }
    async fn del(&self, request: Request<v1::DelRequest>) -> Result<Response<v1::DelReply>, Status> {
        self.seen.lock().unwrap().dels.push(request.into_inner());
        let answer = self.script.lock().unwrap().del.now();
        give(answer).await
    }
    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckReply>, Status> {
        self.seen.lock().unwrap().checks.push(request.into_inner());
        let answer = self.script.lock().unwrap().check.now();
        give(answer).await
    }
    async fn gc(&self, request: Request<v1::GcRequest>) -> Result<Response<v1::GcReply>, Status> {
        self.seen.lock().unwrap().gcs.push(request.into_inner());
        let answer = self.script.lock().unwrap().gc.now();
        give(answer).await
    }
    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        self.seen.lock().unwrap().statuses.push(request.into_inner());
        let answer = self.script.lock().unwrap().status.now();
        give(answer).await
    }
}

/// A directory with a socket, a queue and (while it serves) a stand-in for ipamd.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Seen>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Lab {
    /// Without a daemon.
    pub fn down() -> Lab {
        let script = Script {
            add: Answer::Fail(Status::internal("no script")),
            del: Answer::Say(v1::DelReply::default()),
            check: Answer::Say(v1::CheckReply::default()),
            gc: Answer::Say(v1::GcReply::default()),
            status: Answer::Say(v1::StatusReply { ready: true, reason: String::new() }),
        };
        Lab {
            dir: tempfile::tempdir().unwrap(),
            script: Arc::new(Mutex::new(script)),
            seen: Arc::default(),
            runtime: None,
        }
    }

    /// With a daemon that answers an ADD with `add`.
    pub fn up(add: Answer<v1::AddReply>) -> Lab {
        let mut lab = Lab::down();
        lab.script.lock().unwrap().add = add;
        lab.start();
        lab
    }

    pub fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = Service { script: self.script.clone(), seen: self.seen.clone() };
        let _ = std::fs::remove_file(self.socket());
        let listener = runtime.block_on(async { UnixListener::bind(self.socket()).unwrap() });
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(NodeServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        self.runtime = Some(runtime);
    }

    /// The daemon is gone; its socket stays, as after a kill.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("ipamd.sock")
    }

    pub fn queue(&self) -> wipam_rpc::queue::Queue {
        wipam_rpc::queue::Queue::new(self.dir.path().join("queue"))
    }

    pub fn queued(&self) -> Vec<wipam_rpc::queue::Release> {
        self.queue().read_all().unwrap().into_iter().map(|item| item.release.unwrap()).collect()
    }

    /// A configuration as main plugin, with `extra` keys.
    pub fn main_conf(&self, version: &str, extra: Value) -> Value {
        let mut conf = json!({
            "cniVersion": version, "name": "wipam", "type": "wipam-cni",
            "socket": self.socket(), "queueDir": self.dir.path().join("queue"), "addTimeout": 20, "delTimeout": 5,
            "logFile": self.dir.path().join("plugin.log"), "logLevel": "debug", "unknownKey": {"x": 1}});
        merge(&mut conf, extra);
        conf
    }

    /// A configuration under `main`, with `extra` keys of `ipam`.
    pub fn ipam_conf(&self, version: &str, main: &str, extra: Value) -> Value {
        let mut ipam = json!({
            "type": "wipam-cni", "scope": "node", "ranges": [[{"subnet": "192.168.2.0/24"}]],
            "socket": self.socket(), "queueDir": self.dir.path().join("queue"), "addTimeout": 20, "delTimeout": 5,
            "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.168.2.1"]}});
        merge(&mut ipam, extra);
        json!({"cniVersion": version, "name": "storage", "type": main, "ipam": ipam})
    }
}

pub fn merge(into: &mut Value, extra: Value) {
    if let (Some(into), Value::Object(extra)) = (into.as_object_mut(), extra) {
        into.extend(extra);
    }
}

/// What a run of the plugin left.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// The result, or the error object.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }

    #[track_caller]
    pub fn ok(self) -> Done {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// The error object, which must be whole and have this code.
    #[track_caller]
    pub fn error(&self, code: u64) -> (String, String) {
        let object = self.json();
        assert_eq!((self.code, object["code"].as_u64()), (1, Some(code)), "{self:?}");
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        assert!(!text("msg").is_empty() && !text("details").is_empty() && !text("cniVersion").is_empty(), "{self:?}");
        assert!(self.stderr.starts_with("wipam-cni: ") && self.stderr.lines().count() == 1, "{self:?}");
        (text("msg"), text("details"))
    }
}

/// Runs a program with exactly these variables and this input.
pub fn exec(program: &str, args: &[&str], env: &[(&str, &str)], stdin: &[u8]) -> Done {
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    // Who fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let out = child.wait_with_output().unwrap();
    Done {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

pub const PLUGIN: &str = env!("CARGO_BIN_EXE_wipam-cni");

/// Who is attached where.
#[derive(Clone)]
pub struct Pod {
    pub container: String,
    pub ifname: String,
    pub netns: String,
    pub args: String,
}

impl Pod {
    pub fn new(name: &str, netns: &str) -> Pod {
        Pod {
            container: format!("c-{name}"),
            ifname: "eth0".into(),
            netns: netns.into(),
            args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID=u-{name};Z=1"),
        }
    }

    pub fn on(&self, ifname: &str) -> Pod {
        Pod { ifname: ifname.into(), ..self.clone() }
    }

    fn env<'a>(&'a self, verb: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", &self.container),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_NETNS", &self.netns),
            ("CNI_ARGS", &self.args),
            ("CNI_PATH", "/usr/lib/cni"),
        ]
    }

    /// Calls the plugin.
    pub fn call(&self, verb: &str, conf: &Value) -> Done {
        exec(PLUGIN, &[], &self.env(verb), conf.to_string().as_bytes())
    }

    /// Calls the plugin, or another program, in a node's namespace.
    pub fn call_in(&self, node: &Netns, program: &str, verb: &str, conf: &Value, cni_path: &str) -> Done {
        let mut env = self.env(verb);
        env.retain(|(k, _)| *k != "CNI_PATH");
        env.push(("CNI_PATH", cni_path));
        let net = format!("--net={}", node.path());
        exec("/usr/bin/nsenter", &[&net, program], &env, conf.to_string().as_bytes())
    }
}

/// A network namespace that goes away with its value.
pub struct Netns {
    pub name: String,
}

impl Netns {
    pub fn new() -> Netns {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wcni{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        exec("ip", &["netns", "add", &name], &[], b"").ok();
        exec("ip", &["-n", &name, "link", "set", "lo", "up"], &[], b"").ok();
        Netns { name }
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// What `ip` says in it.
    pub fn ip(&self, args: &[&str]) -> String {
        let all: Vec<_> = ["-n", &self.name].iter().chain(args).copied().collect();
        exec("ip", &all, &[], b"").ok().stdout
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Whether a test that needs root may run.
pub fn root(test: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    if Path::new("/proc/self").metadata().is_ok_and(|m| m.uid() == 0) {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and on CI nothing is skipped");
    println!("SKIPPED (needs root): {test}");
    false
}

/// An address as ipamd says it.
pub fn address(cidr: &str, index: u32, table: u32, device: u32) -> v1::Address {
    v1::Address { cidr: cidr.into(), index, table, device, eni: "eni-1".into(), ..v1::Address::default() }
}

pub fn range_address(cidr: &str, index: u32, gateway: &str) -> v1::Address {
    v1::Address { cidr: cidr.into(), index, gateway: gateway.into(), ..v1::Address::default() }
}

pub fn add_reply(addresses: Vec<v1::Address>) -> v1::AddReply {
    v1::AddReply { addresses, mtu: 1400, ..v1::AddReply::default() }
}
