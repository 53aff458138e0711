//! The command as people run it: what it prints, and the exit codes that scripts rely on.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn wipam(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wipam")).args(args).output().unwrap()
}

/// Runs, checks the code, gives both outputs as one text.
fn run(code: i32, args: &[&str]) -> String {
    let out = wipam(args);
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "wipam {args:?}:\n{text}");
    text
}

fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

fn file(dir: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

const AWS: &str = r#"{"version":"vpc-cni-ipam/1","allocations":[
 {"networkName":"aws-cni","containerID":"0123456789abcdef","ifName":"eth0","ipv4":"10.0.0.7",
  "allocationTimestamp":1700000000000000000,"metadata":{"k8sPodNamespace":"default","k8sPodName":"web-0"}},
 {"networkName":"_migrated-from-cri","containerID":"c2","ifName":"unknown","ipv4":"10.0.0.8"}]}"#;

/// web-0 has a held address, web-1 lives, one address cools.
fn ours() -> String {
    let lease = |n: u8, held: &str| {
        format!(
            r#"{{"network":"aws-cni","container_id":"old-{n}","ifname":"eth0","pod":{{"namespace":"default","name":"web-{n}",
            "uid":"u{n}"}},"host_ifname":"eni{n}","addresses":[{{"address":"10.0.0.{}/32","index":0,"eni":"eni-a",
            "device":0,"table":254,"gateway":null}}],"assigned_at":1699999000000{held}}}"#,
            10 + n
        )
    };
    format!(
        r#"{{"schema":1,"instance":"i-1","boot":"b","clock":{{"pool_ms":1700000000000,"wall_ns":1700000000000000000,
        "boottime_ms":5}},"leases":[{},{}],"addresses":[{{"address":"10.0.0.20","state":"cooling","since":1699999990000,
        "until":1700000020000,"pod":{{"namespace":"default","name":"gone"}},"ifname":"eth0","keep":0}}]}}"#,
        lease(0, r#","held":{"since":1699999900000,"replaced":false}"#),
        lease(1, "")
    )
}

// ---- help ----

#[test]
fn help_has_examples_everywhere_and_the_exit_codes() {
    has(&run(0, &["--help"]), &["Exit codes", "130", "UTC", "replay", "burst"]);
    let commands: [&[&str]; 9] = [
        &["status"],
        &["record"],
        &["replay"],
        &["burst"],
        &["state", "show"],
        &["state", "verify"],
        &["policy", "inspect"],
        &["policy", "check"],
        &["policy", "try"],
    ];
    for command in commands {
        let text = run(0, &[command, &["--help"]].concat());
        has(&text, &["Examples:", &format!("  wipam {}", command.join(" "))]);
    }
    has(&run(64, &["stauts"]), &["stauts", "status"]);
    run(64, &["policy", "try", "default"]);
}

// ---- state ----

#[test]
fn state_files_of_both_kinds_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let aws = file(&dir, "ipam.json", AWS);
    has(&run(0, &["state", "show", s(&aws)]), &["10.0.0.7", "default/web-0", "2023-11-14T22:13:20Z", "0123456789ab"]);
    let own = file(&dir, "state.json", ours());
    let text = run(0, &["state", "show", s(&own)]);
    has(&text, &["i-1", "10.0.0.10", "held since 2023-11-14T22:11:40Z", "cooling", "2023-11-14T22:13:40Z"]);
    let json: serde_json::Value = serde_json::from_str(&run(0, &["state", "show", s(&own), "--json"])).unwrap();
    assert_eq!(json["leases"][0]["pod"]["name"], "web-0");
}

#[test]
fn verify_tells_good_from_bad_and_names_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let verify = |code, name: &str, text: &str| run(code, &["state", "verify", s(&file(&dir, name, text))]);
    has(&verify(0, "good-aws", AWS), &["is good", "runtime migration"]);
    has(&verify(0, "good-own", &ours()), &["state.json is good"]);
    has(&verify(2, "empty", ""), &["the file is empty"]);
    has(&verify(2, "cut", &AWS[..AWS.len() / 2]), &["truncated"]);
    has(&verify(2, "noise", "hello"), &["not JSON"]);
    has(&verify(2, "other", "{\"a\":1}"), &["neither a state.json"]);
    has(&verify(2, "version", &AWS.replace("ipam/1", "ipam/2")), &["vpc-cni-ipam/2", "vpc-cni-ipam/1"]);
    has(&verify(2, "twice", &AWS.replace("10.0.0.8", "10.0.0.7")), &["10.0.0.7 is recorded 2 times", "c2"]);
    has(&verify(2, "twice-own", &ours().replace("10.0.0.11", "10.0.0.10")), &["10.0.0.10", "old-0", "old-1"]);
    has(&verify(2, "schema", &ours().replace("\"schema\":1", "\"schema\":0")), &["schema 0"]);
    has(&verify(0, "newer", &ours().replace("\"schema\":1", "\"schema\":9")), &["schema 9 is newer"]);
    let own = file(&dir, "state.json", ours());
    has(&run(2, &["state", "verify", s(&own), "--instance", "i-2"]), &["i-1", "i-2"]);
    has(&run(1, &["state", "verify", "/no/such/file"]), &["/no/such/file", "No such file"]);
    has(&run(1, &["state", "show", s(&file(&dir, "bad", "{"))]), &["state verify"]);
}

// ---- policies ----

#[test]
fn policies_are_inspected_and_checked_gate_by_gate() {
    let text = run(0, &["policy", "inspect", "warm-ip-target"]);
    has(&text, &["fills     sizer", "sha256", "KNOB", "burst-threshold", "all passed"]);
    has(&run(0, &["policy", "check", "default"]), &["as allocator: passes every gate", "as sizer", "canary"]);
    let text = run(1, &["policy", "check", "warm-ip-target", "--set", "warm=-3"]);
    has(&text, &["REFUSED", "settings", "warm", "not asked", "mend:"]);
    let dir = tempfile::tempdir().unwrap();
    let junk = file(&dir, "junk.wasm", "not wasm at all");
    has(&run(1, &["policy", "check", s(&junk)]), &["parse", "REFUSED", "this is not Wasm"]);
    has(&run(1, &["policy", "inspect", s(&junk)]), &["no component", "REFUSED at parse"]);
    has(&run(1, &["policy", "inspect", "no-such"]), &["no-such", "sticky-podref"]);
    let wasi = wipam_policy_fixtures::all().into_iter().find(|f| f.name == "imports-wasi").unwrap();
    let wasi = file(&dir, "wasi.wasm", wasi.bytes);
    has(&run(1, &["policy", "check", s(&wasi)]), &["imports", "wasi:clocks/wall-clock", "wasm32-unknown-unknown"]);
}

#[test]
fn try_gives_a_pod_its_own_address_back_and_shows_the_default_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = file(&dir, "state.json", ours());
    let common = ["--state", s(&state), "--instance-type", "t3.small", "--free", "1"];
    let try_it = |policy: &str, more: &[&str]| run(0, &[&["policy", "try", policy], &common[..], more].concat());
    let own = try_it("sticky-podref", &["--pod", "default/web-0", "--uid", "u0"]);
    has(
        &own,
        &[
            "1 held",
            "allocate:",
            "sticky-podref",
            "10.0.0.10",
            "reason",
            "default (native twin)",
            "the pod gets 10.0.0.10",
        ],
    );
    let new = try_it("sticky-podref", &["--pod", "default/new"]);
    has(&new, &["never used", "the pod gets 10.0.0.21"]);
    let sizer = try_it("warm-ip-target", &["--pod", "default/new", "--set", "warm=5"]);
    has(&sizer, &["plan:", "warm-ip-target", "addresses"]);
    let json = try_it("default", &["--pod", "default/new", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(
        json["allocate"]["decision"]["reason"].is_string() && json["plan"]["default"]["answer"].is_string(),
        "{json}"
    );
}

#[test]
fn try_on_a_full_aws_file_says_that_nothing_is_assignable() {
    let dir = tempfile::tempdir().unwrap();
    let state = file(&dir, "ipam.json", AWS);
    let text = run(0, &["policy", "try", "default", "--state", s(&state), "--pod", "default/new"]);
    has(&text, &["not asked", "--free N", "--instance-type"]);
    let text = run(1, &["policy", "try", "default", "--state", s(&state), "--pod", "new"]);
    has(&text, &["namespace/name"]);
    let wrong = ["policy", "try", "default", "--state", s(&state), "--pod", "a/b", "--instance-type", "m5.tiny"];
    has(&run(1, &wrong), &["m5.tiny"]);
}

// ---- the daemon ----

/// Answers a number of requests like ipamd; gives the socket.
fn daemon(dir: &TempDir, answers: Vec<(&'static str, String)>) -> PathBuf {
    let path = dir.path().join("introspect.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for (status, body) in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if !matches!(stream.read(&mut byte), Ok(1)) {
                    return;
                }
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
    path
}

#[test]
fn status_says_what_to_do_when_ipamd_does_not_answer() {
    has(&run(1, &["status", "--socket", "/no/such.sock"]), &["/no/such.sock", "start it", "--print-config"]);
    has(&run(1, &["record", "--socket", "/no/such.sock", "-o", "/dev/null"]), &["/no/such.sock"]);
    let dir = tempfile::tempdir().unwrap();
    let starting = r#"{"version":"0.1.0","phase":"starting","waiting-for":"EC2 at http://x"}"#;
    let socket = daemon(&dir, vec![("200 OK", starting.into())]);
    has(&run(0, &["status", "--socket", s(&socket)]), &["starting", "waits for EC2 at http://x"]);
    let dir = tempfile::tempdir().unwrap();
    let socket = daemon(&dir, vec![("503 Service Unavailable", r#"{"error":"ipamd is stopping"}"#.into())]);
    has(&run(1, &["status", "--socket", s(&socket)]), &["503", "ipamd is stopping"]);
    let dir = tempfile::tempdir().unwrap();
    let socket = daemon(&dir, vec![("200 OK", "{\"phase\":7}".into())]);
    has(&run(1, &["status", "--socket", s(&socket)]), &["another version"]);
}

#[test]
fn status_shows_pool_leases_policies_and_decisions() {
    use wipam_core::event::Event;
    use wipam_lab::sim::NodeSim;
    use wipam_policy::{Document, Environment, HostOptions, PolicyHost};
    let document =
        Document::parse("sizer: warm-ip-target\nallocator: sticky-podref\nshadow: {allocator: default}").unwrap();
    let mut policies = PolicyHost::native(&document, Environment::default(), HostOptions::default()).unwrap();
    let mut sim = NodeSim::new(vpc(), "i-1", |_| ());
    sim.serve(&mut policies);
    sim.run(&mut policies, 60_000);
    for i in 0..2 {
        sim.add(&mut policies, &format!("sandbox-{i}"), &format!("web-{i}"), "u");
        sim.run(&mut policies, 5_000);
    }
    let key = sim.key("sandbox-0");
    sim.feed(&mut policies, Event::Liveness { key, alive: false });
    let body = serde_json::json!({
        "version": "0.1.0", "node-name": "node-a", "phase": "serving", "ready": true, "now": "2026-01-02T03:04:05Z",
        "now-ms": sim.now, "node": sim.node.status(sim.now), "policies": policies.status(),
    });
    let decisions = serde_json::to_string(&policies.control().decisions(5)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = daemon(&dir, vec![("200 OK", body.to_string()), ("200 OK", decisions)]);
    let text = run(0, &["status", "--socket", s(&socket)]);
    has(
        &text,
        &["node-a", "ready     yes", "Pool aws-cni", "1 held", "default/web-1", "held until 2026-01-02T03:14:05Z"],
    );
    has(
        &text,
        &["sticky-podref", "warm-ip-target", "default: ", "Last decisions", "allocate", "guard     nothing refused"],
    );
}

fn vpc() -> wipam_vpc_sim::model::Vpc {
    use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Timing, Vpc, VpcConfig};
    Vpc::new(VpcConfig {
        subnets: vec![SubnetConfig {
            id: "subnet-a".into(),
            cidr: "10.0.0.0/20".parse().unwrap(),
            ..SubnetConfig::default()
        }],
        instances: vec![InstanceConfig {
            id: "i-1".into(),
            instance_type: "t3.medium".into(),
            subnet: "subnet-a".into(),
            ..InstanceConfig::default()
        }],
        timing: Timing::typical(),
        ..VpcConfig::default()
    })
    .unwrap()
}

// ---- records ----

#[test]
fn a_record_is_written_proven_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("node.rec");
    let record = s(&record);
    run(0, &["burst", "--instance-type", "t3.medium", "--pods", "6", "--churn", "6", "--record", record]);
    has(&run(0, &["replay", record, "--stats"]), &["proof    identical", "pod events/s", "warm-ip-target"]);
    let both =
        ["replay", record, "--native", "--policy", "default", "--policy", "warm-ip-target", "--set", "minimum=9"];
    let text = run(0, &both);
    // `default` has no such knob.
    has(&text, &["warm-ip-target minimum=9"]);
    assert!(!text.contains("default minimum"), "{text}");
}

#[test]
fn a_comparison_shows_figures_and_where_runs_part() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("node.rec");
    let record = s(&record);
    run(0, &["burst", "--instance-type", "t3.medium", "--pods", "6", "--churn", "6", "--record", record]);
    let text = run(0, &["replay", record, "--native", "--policy", "default", "--policy", "warm-ip-target"]);
    has(
        &text,
        &["address calls", "idle address-hours", "wait p99", "same address again", "default differs from recorded"],
    );
    has(&text, &["EC2 call ", "CreateNetworkInterface"]);
    has(&run(0, &["replay", record, "--native", "--set", "warm=7"]), &["recorded warm=7"]);
    let json = run(0, &["replay", record, "--native", "--policy", "default", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["proof"]["identical"], true);
    assert_eq!(json["runs"].as_array().unwrap().len(), 2);

    has(&run(1, &["replay", record, "--set", "no-such=1"]), &["no-such", "warm"]);
    has(&run(1, &["replay", record, "--policy", "no-such"]), &["no-such"]);
    has(&run(64, &["replay", record, "--policy", "a", "--policy", "b", "--policy", "c"]), &["at most two"]);
    has(&run(1, &["replay", "/no/such.rec"]), &["/no/such.rec"]);
    let junk = file(&dir, "junk.rec", "hello\n");
    has(&run(1, &["replay", s(&junk)]), &["is no record", "line 1"]);

    // Cut, damaged, altered.
    let whole = zstd::decode_all(std::fs::File::open(record).unwrap()).unwrap();
    let cut = file(&dir, "cut.rec", &whole[..whole.len() * 3 / 4]);
    has(&run(0, &["replay", s(&cut), "--native"]), &["the record is cut", "line ", "identical"]);
    let mut lines: Vec<&[u8]> = whole.split_inclusive(|b| *b == b'\n').collect();
    let bad = b"{\"t\":1}\n";
    lines.insert(30, bad);
    let damaged = file(&dir, "damaged.rec", lines.concat());
    has(&run(1, &["replay", s(&damaged), "--native"]), &["DAMAGED", "line 31"]);
    let text = String::from_utf8(whole).unwrap();
    let altered = file(&dir, "altered.rec", text.replacen("{\"assign\":", "{\"assign\":4", 1));
    has(&run(3, &["replay", s(&altered), "--native"]), &["DIFFERS", "the answer", "recorded", "replayed", "reason"]);
}

#[test]
fn burst_prints_the_table_and_refuses_nonsense() {
    let text = run(0, &["burst", "--instance-type", "t3.medium", "--pods", "10", "--pace", "1/s", "--markdown"]);
    has(&text, &["| pods come |", "warm-ip-target, warm 1", "AWS daemon, WARM_ENI_TARGET=1"]);
    run(64, &["burst", "--pace", "fast"]);
    has(&run(64, &["burst", "--instance-type", "t3.medium", "--pods", "16"]), &["15 pods"]);
    has(&run(1, &["burst", "--instance-type", "m5.tiny"]), &["m5.tiny"]);
}
