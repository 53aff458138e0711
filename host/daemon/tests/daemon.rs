//! `ipamd` as a process, in a namespace that plays an EC2 instance in the simulated VPC: calls over its socket, kill -9,
//! drain, two daemons, EC2 down and throttling, a full disk. Needs root, `ip`, `nft` and `nsenter`.
#![forbid(unsafe_code)]
// Clippy allows it in test functions, not in their helpers.
#![allow(clippy::unwrap_used)]

#[path = "daemon/lab.rs"]
mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lab::*;
use rustix::process::Signal;
use serde_json::Value;
use wipam_rpc::queue::{Queue, Release, SCHEMA};
use wipam_rpc::{Cause, v1};
use wipam_vpc_sim::model::{FaultEffect, FaultRule};

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_life_over_the_socket() {
    if !root("a_pods_life_over_the_socket") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let mut daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    assert_eq!(mode(&daemon.socket), 0o600);
    assert_eq!(mode(&daemon.introspect), 0o600);

    let address = add(&mut client, "c1", "web-0").await;
    assert_eq!(add(&mut client, "c1", "web-0").await, address, "a repeated ADD gets the same answer");
    let reply = client.add(within(60, add_request("c2", "web-1"))).await.unwrap().into_inner();
    assert_ne!(reply.addresses[0].cidr, address);
    assert_eq!((reply.mtu, reply.external_snat), (9001, false));
    assert_eq!(reply.vpc_cidrs, ["10.0.0.0/16"]);
    assert_eq!(reply.host_ifname.len(), "eni0123456789a".len());
    client.check(check_request("c1", &address)).await.unwrap();
    assert_eq!(
        client.check(check_request("c1", "10.9.9.9")).await.unwrap_err().code(),
        tonic::Code::FailedPrecondition
    );
    assert_eq!(client.check(check_request("c9", &address)).await.unwrap_err().code(), tonic::Code::NotFound);

    let conflist = wait_for("the conflist", || std::fs::read(place.path("net.d/10-aws.conflist")).ok()).await;
    let conflist: Value = serde_json::from_slice(&conflist).unwrap();
    assert_eq!(conflist["plugins"][0]["socket"], daemon.socket.display().to_string());

    let gone = client.del(del_request("c1")).await.unwrap().into_inner();
    assert_eq!(gone.addresses[0].cidr, address);
    assert!(client.del(del_request("unknown")).await.unwrap().into_inner().addresses.is_empty());

    let status = daemon.json("/v1/status");
    assert_eq!(status["phase"], "serving");
    assert_eq!(status["node"]["leases"].as_array().unwrap().len(), 1, "{status:#}");
    assert!(status["now"].as_str().unwrap().ends_with('Z'));
    assert!(daemon.json("/v1/enis")["0"]["AssignedIPs"].as_u64() == Some(1));
    assert!(!daemon.json("/v1/decisions?n=5").as_array().unwrap().is_empty());
    assert_eq!(daemon.json("/v1/policies")["allocator"]["name"], "default");
    assert_eq!(daemon.page("POST", "/v1/policies/reset").0, 200);
    assert_eq!(daemon.page("GET", "/nonsense").0, 404);
    let metrics = String::from_utf8(daemon.page("GET", "/metrics").1).unwrap();
    for line in ["awscni_add_ip_req_count 3", "awscni_assigned_ip_addresses 1", "wipam_adds_total{cause=\"\"} 3"] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    check_record(&daemon.page("GET", "/v1/record").1);

    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await, Some(0), "{}", place.log());
    assert!(!daemon.socket.exists());
}

/// Header, events, decisions, and no container id.
fn check_record(bytes: &[u8]) {
    use wipam_core::record::{Line, Reader};
    let plain = zstd::decode_all(bytes).unwrap();
    let lines: Vec<Line> = Reader::new(plain.as_slice()).collect::<Result<_, _>>().unwrap();
    assert!(matches!(&lines[0], Line::Header(h) if h.complete && h.instance == INSTANCE && h.host == "node-a"));
    assert!(lines.iter().any(|l| matches!(l, Line::Decision { d, .. } if d.call == "allocate" && d.verdict.is_some())));
    let text = String::from_utf8(plain).unwrap();
    assert!(text.contains("web-0") && !text.contains("\"c1\""), "container ids are in the record");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_are_refused_by_name() {
    if !root("wrong_requests_are_refused_by_name") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    let good = add_request("c1", "p");
    for (request, text) in [
        (v1::AddRequest::default(), "names no attachment"),
        (v1::AddRequest { requested: vec!["nonsense".into()], ..good.clone() }, "is not an address"),
        (v1::AddRequest { ipam_config: b"{".to_vec(), ..good.clone() }, "another name"),
    ] {
        let status = client.add(within(5, request)).await.unwrap_err();
        assert_eq!(Cause::of(&status), Some(Cause::Invalid), "{status:?}");
        assert!(status.message().contains(text), "{status:?}");
    }
    assert_eq!(Cause::of(&client.del(v1::DelRequest::default()).await.unwrap_err()), Some(Cause::Invalid));
    assert_eq!(Cause::of(&client.gc(v1::GcRequest::default()).await.unwrap_err()), Some(Cause::Invalid));

    // A range network, and what it echoes.
    let conf = br#"{"cniVersion":"1.0.0","name":"second","type":"bridge","ipam":{"type":"wipam-cni","scope":"node",
        "ranges":[[{"subnet":"192.168.7.0/29"}]],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["1.1.1.1"]}}}"#;
    let second = Some(v1::Attachment { network: "second".into(), ..attachment("c1").unwrap() });
    let request = v1::AddRequest { attachment: second, ipam_config: conf.to_vec(), ..good };
    let reply = client.add(within(5, request)).await.unwrap().into_inner();
    assert_eq!(reply.addresses[0].gateway, "192.168.7.1");
    assert!(reply.addresses[0].cidr.starts_with("192.168.7.") && reply.addresses[0].cidr.ends_with("/29"));
    assert_eq!(reply.host_ifname, "");
    let echoed: Value = serde_json::from_slice(&reply.ipam_result).unwrap();
    assert_eq!(echoed["dns"]["nameservers"][0], "1.1.1.1");
    assert_eq!(echoed["routes"][0]["dst"], "0.0.0.0/0");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_adds_at_once() {
    if !root("two_hundred_adds_at_once") {
        return;
    }
    let (lab, place) = (Lab::start("m5.4xlarge"), Place::new());
    let daemon = place.start(&lab.netns);
    daemon.ready().await;
    let mut adds = tokio::task::JoinSet::new();
    for n in 0..200 {
        let client = daemon.client().await;
        adds.spawn(async move { add(&mut client.clone(), &format!("c{n}"), &format!("p{n}")).await });
    }
    let given: BTreeSet<String> = adds.join_all().await.into_iter().collect();
    assert_eq!(given.len(), 200, "each its own address");
    let commits = daemon.json("/v1/status")["node"]["commits"].clone();
    assert!(commits[0].as_u64() < commits[1].as_u64(), "one write serves many: {commits}");
}

/// A small xorshift, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What callers were told before the daemon was killed.
#[derive(Default)]
struct Told {
    added: BTreeMap<String, String>,
    released: BTreeSet<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_nine_loses_and_doubles_nothing() {
    if !root("kill_nine_loses_and_doubles_nothing") {
        return;
    }
    let lab = Lab::start("m5.4xlarge");
    let place = Place::new().set("IP_COOLDOWN_PERIOD", "0").set("WIPAM_HELD_FOR", "1h");
    let mut random = Random(0x5eed_cafe);
    let mut told = Told::default();
    for round in 0..8 {
        let daemon = place.start(&lab.netns);
        let mut client = daemon.ready().await;
        for (container, address) in &told.added {
            let found = client.check(check_request(container, address)).await;
            found.unwrap_or_else(|e| panic!("round {round}: {container} had {address}: {e}\n{}", place.log()));
        }
        for container in &told.released {
            assert!(client.check(check_request(container, "10.0.0.1")).await.is_err(), "{container} is back");
        }
        let unique: BTreeSet<&String> = told.added.values().collect();
        assert_eq!(unique.len(), told.added.len(), "an address was given twice");
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..4 {
            let (mut client, tx) = (daemon.client().await, tx.clone());
            callers.spawn(async move {
                for n in 0..12 {
                    let container = format!("r{round}c{caller}n{n}");
                    let Ok(reply) = client.add(within(30, add_request(&container, &container))).await else { return };
                    drop(tx.send((container.clone(), Some(reply.into_inner().addresses[0].cidr.clone()))));
                    if n % 3 == 0 {
                        // From here on nobody knows, until the answer is there.
                        drop(tx.send((container.clone(), None)));
                        let Ok(_) = client.del(del_request(&container)).await else { return };
                        drop(tx.send((container.clone(), Some(String::new()))));
                    }
                }
            });
        }
        drop(tx);
        tokio::time::sleep(Duration::from_millis(5 + random.below(150))).await;
        daemon.kill();
        callers.join_all().await;
        while let Ok((container, what)) = rx.try_recv() {
            match what.as_deref() {
                Some("") => drop(told.released.insert(container)),
                Some(address) => drop(told.added.insert(container, address.to_owned())),
                None => drop(told.added.remove(&container)),
            }
        }
    }
    assert!(!told.added.is_empty(), "no round got as far as an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_is_refused_by_pid() {
    if !root("a_second_daemon_is_refused_by_pid") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let daemon = place.start(&lab.netns);
    daemon.ready().await;
    let (code, text) = place.run(&lab.netns);
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("pid {}", daemon.child.id())), "{text}");
    assert!(daemon.socket.exists(), "the refused one took the socket along");

    let other = Place::new();
    std::fs::create_dir(other.path("aws")).unwrap();
    let _aws = std::os::unix::net::UnixListener::bind(other.path("aws/ipamd.sock")).unwrap();
    let (code, text) = other.run(&lab.netns);
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("pid {}", std::process::id())) && text.contains("aws/ipamd.sock"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_user_is_turned_away() {
    if !root("a_foreign_user_is_turned_away") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let daemon = place.start(&lab.netns);
    daemon.ready().await;
    // As if somebody had widened the modes.
    for path in [place.dir.path().to_owned(), daemon.socket.clone()] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1]); \
                  s.send(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n'); sys.exit(0 if s.recv(1)==b'' else 3)";
    let client = Command::new("python3").args(["-c", script]).arg(&daemon.socket).uid(65534).gid(65534).output();
    let client = client.unwrap();
    // Closed at once, by an orderly end or a reset.
    let text = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() || text.contains("reset") || text.contains("Broken pipe"), "{client:?}");
    let metrics = String::from_utf8(daemon.page("GET", "/metrics").1).unwrap();
    assert!(metrics.contains("wipam_rejected_peers_total 1"), "{metrics}");
    add(&mut daemon.client().await, "c1", "p1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_what_is_under_way_and_keeps_what_was_given() {
    if !root("a_stop_answers_what_is_under_way_and_keeps_what_was_given") {
        return;
    }
    let lab = Lab::start("t3.medium");
    let place = Place::new().set("WIPAM_CONFLIST_REMOVE", "true").set("WIPAM_DRAIN", "2s");
    let mut daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    // t3.medium: 3 interfaces with 5 pod addresses each; the sixteenth has to wait.
    let mut given = BTreeMap::new();
    for n in 0..15 {
        given.insert(format!("c{n}"), add(&mut client, &format!("c{n}"), &format!("p{n}")).await);
    }
    wait_for("the conflist", || place.path("net.d/10-aws.conflist").exists().then_some(())).await;
    let mut waiting = daemon.client().await;
    let waits = tokio::spawn(async move { refused(&mut waiting, 60, "late").await });
    wait_for("a waiting ADD", || (daemon.json("/v1/status")["node"]["waiting"] == 1).then_some(())).await;
    daemon.signal(Signal::TERM);
    let (cause, text) = waits.await.unwrap();
    assert_eq!(cause, Some(Cause::Stopping), "{text}");
    assert_eq!(daemon.ended().await, Some(0), "{}", place.log());
    assert!(!place.path("net.d/10-aws.conflist").exists());

    let daemon = place.start(&lab.netns);
    let mut client = daemon.client().await;
    wait_for("service", || (daemon.page("GET", "/v1/enis").0 == 200).then_some(())).await;
    for (container, address) in &given {
        client.check(check_request(container, address)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_ec2_says_what_it_waits_for() {
    if !root("a_start_without_ec2_says_what_it_waits_for") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let down = FaultEffect::Error { code: "Unavailable".into(), message: None, http_status: None };
    lab.sim.lock().add_fault(FaultRule::every("*", down));
    let daemon = place.start(&lab.netns);
    let mut client = daemon.client().await;
    let waits = |s: Value| s["waiting-for"].as_str().filter(|t| t.contains("Unavailable")).map(str::to_owned);
    wait_for("the reason in the status", || waits(daemon.json("/v1/status"))).await;
    let (cause, text) = refused(&mut client, 1, "c1").await;
    assert_eq!(cause, Some(Cause::Starting), "{text}");
    assert!(text.contains("waiting for"), "{text}");
    let status = client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
    assert!(!status.ready && status.reason.contains("starting"), "{status:?}");
    assert_eq!(Cause::of(&client.del(del_request("c1")).await.unwrap_err()), Some(Cause::Starting));
    assert!(!place.path("net.d/10-aws.conflist").exists());
    // An ADD that has the time waits through the start.
    let mut patient = daemon.client().await;
    let waits = tokio::spawn(async move { add(&mut patient, "c2", "p2").await });
    lab.sim.lock().clear_faults();
    waits.await.unwrap();
    assert!(place.log().contains("Unavailable"), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn throttling_delays_and_is_named() {
    if !root("throttling_delays_and_is_named") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    let throttled = FaultEffect::Error { code: "RequestLimitExceeded".into(), message: None, http_status: None };
    for action in ["AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"] {
        lab.sim.lock().add_fault(FaultRule::every(action, throttled.clone()));
    }
    let mut cause = None;
    for n in 0..16 {
        let container = format!("c{n}");
        match client.add(within(3, add_request(&container, &container))).await {
            Ok(_) => {}
            Err(status) => {
                cause = Cause::of(&status);
                assert!(status.message().contains('Z'), "an instant in UTC: {status:?}");
                break;
            }
        }
    }
    assert_eq!(cause, Some(Cause::Throttled), "{}", place.log());
    lab.sim.lock().clear_faults();
    add(&mut client, "patient", "patient").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_left_on_disk_are_carried_out_at_the_start() {
    if !root("releases_left_on_disk_are_carried_out_at_the_start") {
        return;
    }
    let (lab, place) = (Lab::start("t3.medium"), Place::new());
    let daemon = place.start(&lab.netns);
    let address = add(&mut daemon.ready().await, "c1", "p1").await;
    daemon.kill();
    let queue = Queue::new(place.path("state/queue"));
    let release = Release {
        schema: SCHEMA,
        network: "aws-cni".into(),
        container_id: "c1".into(),
        ifname: "eth0".into(),
        network_removed: true,
        ..Release::default()
    };
    queue.put(&release).unwrap();
    std::fs::write(place.path("state/queue/nonsense.json"), "{").unwrap();
    let daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    wait_for("the queue to be empty", || queue.read_all().unwrap().is_empty().then_some(())).await;
    assert!(client.check(check_request("c1", &address)).await.is_err());
    assert!(place.path("state/queue/nonsense.bad").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_adds_by_name_and_mends() {
    if !root("a_full_disk_fails_adds_by_name_and_mends") {
        return;
    }
    let (lab, place) = (Lab::start("m5.4xlarge"), Place::new());
    // A name that cannot become a file any more is as good as a full disk, and needs no mount.
    let daemon = place.start(&lab.netns);
    let mut client = daemon.ready().await;
    let address = add(&mut client, "c1", "p1").await;
    let blocked = place.path("state/state.json.tmp");
    std::fs::create_dir(&blocked).unwrap();
    let (cause, text) = refused(&mut client, 10, "c2").await;
    assert_eq!(cause, Some(Cause::Storage), "{text}");
    assert!(text.contains("state.json.tmp") && text.contains("os error"), "{text}");
    client.del(del_request("c1")).await.unwrap();
    std::fs::remove_dir(&blocked).unwrap();
    add(&mut client, "c3", "p3").await;
    daemon.kill();
    let daemon = place.start(&lab.netns);
    assert!(daemon.ready().await.check(check_request("c1", &address)).await.is_err(), "the DEL was lost");
}

#[test]
fn usage_errors_end_with_64_and_settings_are_printed() {
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipamd"));
        let out = command.args(args).env_clear().envs(env.iter().copied()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    assert_eq!(run(&["--nonsense"], &[]).0, Some(64));
    let (code, _, text) = run(&[], &[("POD_MTU", "1")]);
    assert_eq!(code, Some(64));
    assert!(text.contains("POD_MTU"), "{text}");
    let (code, text, _) = run(&["--print-config"], &[("WARM_IP_TARGET", "3")]);
    assert_eq!(code, Some(0));
    assert!(text.contains("# WARM_IP_TARGET (from the environment)\nwarm-ips: 3\n"), "{text}");
    let (code, text, _) = run(&["--help"], &[]);
    assert!(code == Some(0) && text.contains("Examples:") && text.contains("Exit codes:"), "{text}");
}
