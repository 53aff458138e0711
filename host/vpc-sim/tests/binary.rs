//! The binary `vpc-sim` as a process: ready line, metadata and API from a node's namespace, an attachment that shows as
//! a link, and what is left after SIGTERM, SIGKILL and `sweep`. Needs root, `ip` and `nft`.

// Clippy allows it in test functions, not in their helpers.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wipam_vpc_sim::wire;

const BINARY: &str = env!("CARGO_BIN_EXE_vpc-sim");

fn root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and CI must not skip it");
    println!("SKIPPED (needs root): {test}");
    false
}

/// A running `vpc-sim serve`; killed when dropped, and swept.
struct Sim {
    child: Child,
    ready: Value,
    prefix: &'static str,
    _config: tempfile::NamedTempFile,
}

impl Sim {
    fn start(prefix: &'static str) -> Self {
        wire::sweep(prefix).unwrap();
        let example = Command::new(BINARY).arg("example-config").output().unwrap();
        assert!(example.status.success());
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(&example.stdout).unwrap();
        let mut child = Command::new(BINARY)
            .args(["serve", "--wire", prefix, "--api-listen", "127.0.0.1:0", "--config"])
            .arg(config.path())
            .arg("--until-stdin-closes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        Self { child, ready, prefix, _config: config }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn node(&self, index: usize) -> String {
        self.ready["instances"][index]["netns"].as_str().unwrap().to_owned()
    }

    /// Namespaces of this run that exist.
    fn namespaces(&self) -> Vec<String> {
        let own = format!("{}{}-", self.prefix, self.child.id());
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        names.filter_map(|name| name.file_name().into_string().ok()).filter(|name| name.starts_with(&own)).collect()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = wire::sweep(self.prefix);
    }
}

/// One HTTP exchange from inside a namespace: the whole answer.
fn http(netns: &str, to: &str, head: &str, body: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let request = format!("{head}\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    wire::in_netns(netns, move || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
    .unwrap()
}

fn body(answer: &str) -> &str {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Calls the EC2 API from a node.
fn ec2(netns: &str, form: &str) -> String {
    let date = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().unwrap().stdout;
    let date = String::from_utf8(date).unwrap();
    let date = date.trim();
    let head = format!(
        "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded; charset=utf-8\r\n\
         X-Amz-Date: {date}\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=AKIDEXAMPLE/{}/eu-central-1/ec2/aws4_request, \
         SignedHeaders=content-type;host;x-amz-date, Signature={}",
        &date[..8],
        "0".repeat(64)
    );
    http(netns, "198.18.255.1:80", &head, &format!("{form}&Version=2016-11-15")).unwrap()
}

/// What stands in the first `<tag>` of an XML answer.
fn tag<'a>(xml: &'a str, tag: &str) -> &'a str {
    let rest = xml.split_once(&format!("<{tag}>")).unwrap_or_else(|| panic!("no {tag} in {xml}")).1;
    rest.split_once('<').unwrap().0
}

fn show_link(netns: &str, link: &str) -> Option<Value> {
    let output = Command::new("ip").args(["-n", netns, "-j", "link", "show", "dev", link]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone())
}

/// Waits until `what` gives something, at most ten seconds.
fn wait_for<T>(name: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    let (_never, tick) = std::sync::mpsc::channel::<()>();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < end, "waited ten seconds for {name}");
        let _ = tick.recv_timeout(Duration::from_millis(20));
    }
}

#[test]
fn nodes_reach_metadata_and_api_and_an_attachment_shows_as_a_link() {
    if !root("nodes_reach_metadata_and_api_and_an_attachment_shows_as_a_link") {
        return;
    }
    let mut sim = Sim::start("wba");
    assert_eq!((&sim.ready["event"], &sim.ready["instances"][0]["id"]), (&"ready".into(), &"i-a".into()));
    let (a, b) = (sim.node(0), sim.node(1));

    // Metadata knows who asks.
    let put = "PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60";
    for (node, id) in [(&a, "i-a"), (&b, "i-b")] {
        let token = http(node, "169.254.169.254:80", put, "").unwrap();
        let get = format!("GET /latest/meta-data/instance-id HTTP/1.1\r\nX-aws-ec2-metadata-token: {}", body(&token));
        assert_eq!(body(&http(node, "169.254.169.254:80", &get, "").unwrap()), id);
    }
    let bare = http(&a, "169.254.169.254:80", "GET /latest/meta-data/instance-id HTTP/1.1", "").unwrap();
    assert!(bare.starts_with("HTTP/1.1 401"), "no answer without a token: {bare}");

    assert!(body(&ec2(&a, "Action=DescribeInstances")).contains("<instanceId>i-a</instanceId>"));
    let create = ec2(&a, "Action=CreateNetworkInterface&SubnetId=subnet-0000000000000000a");
    let (eni, mac) = (tag(&create, "networkInterfaceId"), tag(&create, "macAddress"));
    assert!(show_link(&a, "eth1").is_none());
    let attach = format!("Action=AttachNetworkInterface&NetworkInterfaceId={eni}&InstanceId=i-a&DeviceIndex=1");
    let attached = ec2(&a, &attach);
    let link = wait_for("eth1", || show_link(&a, "eth1"));
    assert_eq!((&link["address"], &link["operstate"]), (&mac.into(), &"DOWN".into()));
    ec2(&a, &format!("Action=DetachNetworkInterface&AttachmentId={}", tag(&attached, "attachmentId")));
    wait_for("eth1 to go", || show_link(&a, "eth1").is_none().then_some(()));

    sim.signal(Signal::TERM);
    assert!(sim.child.wait().unwrap().success(), "an asked-for end is a success");
    assert_eq!(sim.namespaces(), Vec::<String>::new());
}

/// A pod's packets pass one more hop than its node's; with the default hop limit metadata answers die there.
#[test]
fn metadata_does_not_reach_pods() {
    if !root("metadata_does_not_reach_pods") {
        return;
    }
    let sim = Sim::start("wbh");
    let node = sim.node(0);
    let pod = format!("{node}-pod");
    let ip = |args: &str| {
        let status = Command::new("ip").args(args.split_whitespace()).status().unwrap();
        assert!(status.success(), "ip {args}");
    };
    ip(&format!("netns add {pod}"));
    ip(&format!("-n {pod} link add eth0 type veth peer name pod netns {node}"));
    ip(&format!("-n {node} link set pod up"));
    ip(&format!("-n {node} addr add 172.16.0.1/30 dev pod"));
    ip(&format!("-n {pod} link set eth0 up"));
    ip(&format!("-n {pod} addr add 172.16.0.2/30 dev eth0"));
    ip(&format!("-n {pod} route add default via 172.16.0.1"));
    let primary: Ipv4Addr = sim.ready["instances"][0]["private_ip"].as_str().unwrap().parse().unwrap();
    wire::in_netns(&node, || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let rules = format!(
            "table ip t {{ chain post {{ type nat hook postrouting priority srcnat; oifname eth0 snat to {primary}\n }}\n }}"
        );
        assert!(Command::new("nft").arg(rules).status().unwrap().success());
    })
    .unwrap();
    let put = "PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60";
    assert!(body(&ec2(&pod, "Action=DescribeVpcs")).contains("vpcId"), "the pod is connected");
    http(&node, "169.254.169.254:80", put, "").expect("the node is answered");
    http(&pod, "169.254.169.254:80", put, "").expect_err("the pod is not");
    // Its name starts with the run's, so the sweep at the end takes it, too.
}

#[test]
fn a_killed_run_is_swept_and_a_closed_stdin_ends_one() {
    if !root("a_killed_run_is_swept_and_a_closed_stdin_ends_one") {
        return;
    }
    let mut sim = Sim::start("wbk");
    assert_eq!(sim.namespaces().len(), 4);
    let sweep = || String::from_utf8(Command::new(BINARY).args(["sweep", "wbk"]).output().unwrap().stdout).unwrap();
    assert_eq!(sweep(), "", "it lives");
    sim.signal(Signal::KILL);
    sim.child.wait().unwrap();
    assert_eq!(sweep().lines().count(), 4);
    assert_eq!(sim.namespaces(), Vec::<String>::new());

    let mut sim = Sim::start("wbk");
    drop(sim.child.stdin.take());
    assert!(sim.child.wait().unwrap().success(), "its parent went");
    assert_eq!(sim.namespaces(), Vec::<String>::new());
}

#[test]
fn a_bad_configuration_is_refused_with_its_place() {
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(b"instances: [{id: i-a, subnet: nowhere}]\n").unwrap();
    let output = Command::new(BINARY).args(["serve", "--config"]).arg(config.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("instance i-a") && text.contains("nowhere"), "{text}");
}
