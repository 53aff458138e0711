//! What the runtime sees of the plugin, as a process: verbs, versions, errors, the queue. No privileges needed.

#![allow(clippy::unwrap_used)] // helpers too; the general exception knows only test functions

mod common;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use common::{Answer, Done, Lab, PLUGIN, Pod, add_reply, exec, range_address};
use serde_json::{Value, json};
use tonic::Status;
use wipam_rpc::{Cause, v1};

fn ranges_lab() -> Lab {
    Lab::up(Answer::Say(v1::AddReply {
        addresses: vec![range_address("192.168.2.7/24", 0, "192.168.2.1")],
        ipam_result: br#"{"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.168.2.1"]}}"#.to_vec(),
        ..v1::AddReply::default()
    }))
}

fn pod() -> Pod {
    Pod::new("web-0", "/run/netns/none")
}

#[test]
fn version_lists_all_versions() {
    let done = exec(PLUGIN, &[], &[("CNI_COMMAND", "VERSION")], br#"{"cniVersion":"1.0.0"}"#).ok();
    let all = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    assert_eq!(done.json(), json!({"cniVersion": "1.0.0", "supportedVersions": all}));
    exec(PLUGIN, &[], &[("CNI_COMMAND", "VERSION")], b"").ok();
}

#[test]
fn people_get_help() {
    let help = exec(PLUGIN, &["--help"], &[], b"").ok().stdout;
    for word in ["conflist", "\"scope\": \"node\"", "exit codes", "queueDir", "CNI_COMMAND"] {
        assert!(help.contains(word), "{word}");
    }
    assert!(exec(PLUGIN, &["--version"], &[], b"").ok().stdout.starts_with("wipam-cni 0."));
    let wrong = exec(PLUGIN, &["--frobnicate"], &[], b"");
    assert_eq!((wrong.code, wrong.stdout.as_str()), (64, ""));
    let (msg, details) = exec(PLUGIN, &[], &[], b"{}").error(4);
    assert!(msg.contains("CNI_COMMAND") && details.contains("--help"));
}

#[test]
fn an_ipam_add_speaks_every_version() {
    let lab = ranges_lab();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let got = pod().call("ADD", &lab.ipam_conf(version, "bridge", json!({}))).ok().json();
        let old = json!({"cniVersion": version, "dns": {"nameservers": ["192.168.2.1"]},
            "ip4": {"ip": "192.168.2.7/24", "gateway": "192.168.2.1", "routes": [{"dst": "0.0.0.0/0"}]}});
        let mut new = json!({"cniVersion": version, "dns": {"nameservers": ["192.168.2.1"]},
            "ips": [{"address": "192.168.2.7/24", "gateway": "192.168.2.1"}], "routes": [{"dst": "0.0.0.0/0"}]});
        if version < "1.0.0" {
            new["ips"][0]["version"] = json!("4");
        }
        assert_eq!(got, if version < "0.3.0" { old } else { new });
    }
    let mut conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    conf.as_object_mut().unwrap().remove("cniVersion");
    assert_eq!(pod().call("ADD", &conf).ok().json()["cniVersion"], "0.1.0");
}

#[test]
fn ipamd_learns_all_that_the_runtime_says() {
    let lab = ranges_lab();
    let mut conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    common::merge(
        &mut conf,
        json!({"runtimeConfig": {"ips": ["192.168.2.9/24"]}, "args": {"cni": {"ips": ["192.168.2.8"]}}}),
    );
    let mut asker = pod();
    asker.args.push_str(";IP=192.168.2.7");
    asker.on("net1").call("ADD", &conf).ok();
    let seen = lab.seen();
    let add = &seen.adds[0];
    let key = add.attachment.clone().unwrap();
    assert_eq!((key.network.as_str(), key.container_id.as_str(), key.ifname.as_str()), ("storage", "c-web-0", "net1"));
    let who = add.pod.clone().unwrap();
    assert_eq!((who.namespace.as_str(), who.name.as_str(), who.uid.as_str()), ("default", "web-0", "u-web-0"));
    assert_eq!(add.netns, "/run/netns/none");
    assert_eq!(add.requested, ["192.168.2.9/24", "192.168.2.8", "192.168.2.7"]);
    assert_eq!(serde_json::from_slice::<Value>(&add.ipam_config).unwrap(), conf);
    assert_eq!(seen.budgets[0], Some(Duration::from_secs(20)));
}

#[test]
fn ranges_are_refused_before_ipamd_is_asked() {
    let lab = ranges_lab();
    for (extra, word) in [
        (json!({"scope": null}), "every node would hand out these addresses"),
        (json!({"scope": "cluster"}), "only \"node\""),
        (json!({"ranges": [[{"subnet": "192.168.2.1/24"}]]}), "did you mean 192.168.2.0/24"),
        (json!({"ranges": [[{"subnet": "192.168.2.0/24", "rangeStart": "10.0.0.1"}]]}), "ipam.ranges[0][0]"),
        (json!({"ranges": null}), "names no addresses"),
    ] {
        let conf = lab.ipam_conf("1.1.0", "bridge", extra);
        for verb in ["ADD", "STATUS"] {
            let (msg, _) = pod().call(verb, &conf).error(7);
            assert!(msg.contains(word), "{msg}");
        }
    }
    let two = json!({"ranges": [[{"subnet": "192.168.2.0/24"}], [{"subnet": "192.168.3.0/24"}]]});
    let (msg, _) = pod().call("ADD", &lab.ipam_conf("0.2.0", "bridge", two)).error(7);
    assert!(msg.contains("only one address of each family"), "{msg}");
    assert!(lab.seen().adds.is_empty() && lab.seen().statuses.is_empty());
}

#[test]
fn causes_become_codes() {
    let lab = ranges_lab();
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    for (cause, code) in [
        (Cause::Exhausted, 11),
        (Cause::Held, 11),
        (Cause::Cooling, 11),
        (Cause::Throttled, 11),
        (Cause::SubnetFull, 11),
        (Cause::Starting, 11),
        (Cause::Stopping, 11),
        (Cause::Storage, 11),
        (Cause::PolicyRejected, 100),
        (Cause::Superseded, 101),
        (Cause::Invalid, 7),
        (Cause::Internal, 104),
    ] {
        lab.set(|s| s.add = Answer::Fail(cause.status(format!("because of {}", cause.as_str()))));
        let (msg, _) = pod().call("ADD", &conf).error(code);
        assert_eq!(msg, format!("ADD: because of {}", cause.as_str()));
    }
    assert!(lab.seen().dels.is_empty(), "ipamd said no, there is nothing to give back");
    lab.set(|s| s.add = Answer::Fail(Status::unimplemented("x")));
    assert!(pod().call("ADD", &conf).error(104).1.contains("versions"));
}

#[test]
fn an_add_without_daemon_says_so_and_may_be_repeated() {
    let lab = Lab::down();
    let (msg, details) = pod().call("ADD", &lab.ipam_conf("1.0.0", "bridge", json!({}))).error(11);
    assert!(msg.contains("ipamd does not answer on") && msg.contains("ipamd.sock"), "{msg}");
    assert!(details.contains("DaemonSet"), "{details}");
    std::fs::write(lab.socket(), b"not a socket").unwrap();
    pod().call("ADD", &lab.ipam_conf("1.0.0", "bridge", json!({}))).error(11);
}

#[test]
fn a_daemon_that_hangs_is_left_and_the_address_given_back() {
    let lab = Lab::up(Answer::Hang);
    let start = Instant::now();
    let (msg, _) = pod().call("ADD", &lab.ipam_conf("1.0.0", "bridge", json!({"addTimeout": 1}))).error(11);
    assert!(msg.contains("did not answer within 1 s"), "{msg}");
    assert!(start.elapsed() < Duration::from_secs(15));
    let dels = lab.seen().dels;
    assert_eq!((dels.len(), dels[0].cause.as_str()), (1, "setup-failed"));
}

#[test]
fn a_listener_that_is_no_ipamd_is_survived() {
    let lab = Lab::down();
    let listener = std::os::unix::net::UnixListener::bind(lab.socket()).unwrap();
    let thread = std::thread::spawn(move || {
        // The ADD, its undoing, the DEL.
        for stream in listener.incoming().take(3) {
            use std::io::Write as _;
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({"addTimeout": 1, "delTimeout": 1}));
    pod().call("ADD", &conf).error(11);
    pod().call("DEL", &conf).ok();
    assert_eq!(lab.queued().len(), 1);
    // Whoever was not needed is let go.
    while !thread.is_finished() {
        let _ = std::os::unix::net::UnixStream::connect(lab.socket());
    }
    thread.join().unwrap();
}

#[test]
fn a_senseless_answer_is_given_back() {
    let lab = Lab::up(Answer::Say(add_reply(vec![])));
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    pod().call("ADD", &conf).error(104);
    lab.set(|s| s.add = Answer::Say(add_reply(vec![range_address("nonsense", 0, "")])));
    pod().call("ADD", &conf).error(104);
    assert_eq!(lab.seen().dels.iter().map(|d| d.cause.as_str()).collect::<Vec<_>>(), ["setup-failed"; 2]);
}

#[test]
fn a_del_reaches_ipamd_or_waits_on_disk() {
    let mut lab = ranges_lab();
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    let asker = Pod { netns: String::new(), ..pod() };
    assert_eq!(asker.call("DEL", &conf).ok().stdout, "");
    assert_eq!((lab.seen().dels.len(), lab.queued().len()), (1, 0));
    for status in [Cause::Superseded.status("x"), Status::not_found("x")] {
        lab.set(|s| s.del = Answer::Fail(status));
        asker.call("DEL", &conf).ok();
    }
    assert!(lab.queued().is_empty(), "nothing of ours is left");

    for cause in [Cause::Starting, Cause::Storage, Cause::Internal, Cause::Invalid] {
        lab.set(|s| s.del = Answer::Fail(cause.status("x")));
        asker.call("DEL", &conf).ok();
        assert_eq!(lab.queued().len(), 1, "{cause:?}");
    }
    lab.stop();
    asker.call("DEL", &conf).ok();
    asker.on("net1").call("DEL", &conf).ok();
    let queued = lab.queued();
    assert_eq!(queued.len(), 2);
    let request = queued[0].request();
    assert_eq!(request.attachment.unwrap().container_id, "c-web-0");
    assert_eq!(request.pod.unwrap().uid, "u-web-0");
    let mode = std::fs::metadata(lab.dir.path().join("queue")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn an_add_withdraws_the_release_that_waits() {
    let mut lab = Lab::down();
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    pod().call("DEL", &conf).ok();
    pod().call("ADD", &conf).error(11);
    assert_eq!(lab.queued().len(), 1, "an ADD that failed leaves it");
    lab.set(|s| s.add = Answer::Say(add_reply(vec![range_address("192.168.2.7/24", 0, "")])));
    lab.start();
    pod().call("ADD", &conf).ok();
    assert!(lab.queued().is_empty(), "the new lease would be ended by it");
}

#[test]
fn a_del_that_nobody_can_keep_fails() {
    let lab = Lab::down();
    let file = lab.dir.path().join("full");
    std::fs::write(&file, b"").unwrap();
    let conf = lab.ipam_conf("1.0.0", "bridge", json!({"queueDir": file.join("queue")}));
    let (msg, details) = pod().call("DEL", &conf).error(11);
    assert!(msg.contains("cannot be left on disk") && msg.contains("full/queue"), "{msg}");
    assert!(details.contains("queueDir"), "{details}");
}

#[test]
fn a_del_forgives_what_an_add_would_not() {
    let lab = ranges_lab();
    let mut conf = lab.ipam_conf(
        "1.0.0",
        "bridge",
        json!({"ranges": "broken", "scope": 7, "addTimeout": "x", "logFile": "stdout"}),
    );
    common::merge(&mut conf, json!({"prevResult": [1]}));
    let asker = Pod { netns: "gone".into(), args: "nonsense".into(), ..pod() };
    asker.call("DEL", &conf).ok();
    assert_eq!(lab.seen().dels.len(), 1);
    let mut conf = lab.main_conf("1.0.0", json!({"mtu": "x", "vethPrefix": 9, "delTimeout": -1}));
    common::merge(&mut conf, json!({"prevResult": {"ips": 5}}));
    asker.call("DEL", &conf).ok();
    assert_eq!(lab.seen().dels.len(), 2);
}

#[test]
fn status_says_whether_an_add_could_succeed() {
    let mut lab = ranges_lab();
    let status = |lab: &Lab| {
        exec(PLUGIN, &[], &[("CNI_COMMAND", "STATUS")], lab.main_conf("1.1.0", json!({})).to_string().as_bytes())
    };
    assert_eq!(status(&lab).ok().stdout, "");
    lab.set(|s| s.status = Answer::Say(v1::StatusReply { ready: false, reason: "IMDS is away".into() }));
    assert!(status(&lab).error(50).0.contains("IMDS is away"));
    lab.stop();
    status(&lab).error(50);
}

#[test]
fn gc_passes_the_list_on() {
    let lab = ranges_lab();
    let gc = |extra: Value| {
        exec(PLUGIN, &[], &[("CNI_COMMAND", "GC")], lab.main_conf("1.1.0", extra).to_string().as_bytes())
    };
    gc(json!({"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "net1"}]})).ok();
    let seen = lab.seen().gcs;
    assert_eq!((seen[0].network.as_str(), seen[0].valid.len(), seen[0].valid[1].ifname.as_str()), ("wipam", 2, "net1"));
    gc(json!({})).error(7);
    assert_eq!(lab.seen().gcs.len(), 1, "without a list nothing may be ended");
    lab.set(|s| s.gc = Answer::Fail(Cause::Starting.status("x")));
    gc(json!({"cni.dev/valid-attachments": null})).error(11);
}

#[test]
fn verbs_need_their_version() {
    let lab = ranges_lab();
    pod().call("CHECK", &lab.main_conf("0.3.1", json!({}))).error(1);
    pod().call("GC", &lab.main_conf("1.0.0", json!({}))).error(1);
    pod().call("STATUS", &lab.main_conf("1.0.0", json!({}))).error(1);
    let (msg, details) = pod().call("ADD", &lab.main_conf("1.2.0", json!({}))).error(1);
    assert!(msg.contains("1.2.0") && details.contains("1.1.0"));
}

#[test]
fn an_ipam_check_compares_the_lease() {
    let lab = ranges_lab();
    let mut conf = lab.ipam_conf("1.0.0", "bridge", json!({}));
    pod().call("CHECK", &conf).error(7);
    common::merge(&mut conf, json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "192.168.2.7/24"}]}}));
    lab.set(|s| {
        s.check = Answer::Say(v1::CheckReply {
            addresses: vec![range_address("192.168.2.7/24", 0, "")],
            host_ifname: String::new(),
        })
    });
    pod().call("CHECK", &conf).ok();
    assert_eq!(lab.seen().checks[0].addresses, ["192.168.2.7/24"]);
    lab.set(|s| {
        s.check = Answer::Say(v1::CheckReply {
            addresses: vec![range_address("192.168.2.8/24", 0, "")],
            host_ifname: String::new(),
        })
    });
    assert!(pod().call("CHECK", &conf).error(103).0.contains("192.168.2.8"));
    lab.set(|s| s.check = Answer::Fail(Status::not_found("no lease")));
    pod().call("CHECK", &conf).error(3);
}

#[test]
fn wrong_settings_are_named() {
    let lab = ranges_lab();
    for (extra, word) in [
        (json!({"mtu": "big"}), "mtu"),
        (json!({"vethPrefix": "toolong"}), "vethPrefix"),
        (json!({"socket": "relative/path"}), "socket"),
        (json!({"logFile": "stdout"}), "logFile"),
        (json!({"ipam": {"type": "host-local"}}), "ipam"),
        (json!({"name": "../../etc"}), "name"),
        (json!({"name": null}), "name"),
        (json!({"type": "other"}), "type"),
        (json!({"prevResult": 1}), "prevResult"),
    ] {
        let (msg, _) = pod().call("ADD", &lab.main_conf("1.0.0", extra)).error(7);
        assert!(msg.contains(word), "{msg}");
    }
    assert!(lab.seen().adds.is_empty());
}

#[test]
fn hostile_environments_get_an_error_object() {
    let lab = ranges_lab();
    let conf = lab.main_conf("1.0.0", json!({}));
    for asker in [
        Pod { container: "../../etc/passwd".into(), ..pod() },
        Pod { container: "a".repeat(5000), ..pod() },
        Pod { container: String::new(), ..pod() },
        Pod { ifname: "0123456789abcdef".into(), ..pod() },
        Pod { ifname: "a/b".into(), ..pod() },
        Pod { netns: "relative".into(), ..pod() },
        Pod { netns: "/run/../etc/passwd".into(), ..pod() },
        Pod { netns: "/etc/passwd".into(), ..pod() },
        Pod { netns: "/nonexistent".into(), ..pod() },
        Pod { netns: "/proc/self/ns/net".into(), ..pod() },
        Pod { args: "K8S_POD_NAME".into(), ..pod() },
        Pod { args: "A=1".into(), ..pod() },
        Pod { args: "IP=10.0.0.999".into(), netns: "/proc/1/ns/mnt".into(), ..pod() },
    ] {
        asker.call("ADD", &conf).error(4);
    }
    assert!(lab.seen().adds.is_empty());
    for stdin in [&b""[..], b"{", b"[]", b"\0\0\0", b"\xff\xfe{}", "[".repeat(200_000).as_bytes()] {
        let env = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c"), ("CNI_NETNS", "/x"), ("CNI_IFNAME", "e")];
        exec(PLUGIN, &[], &env, stdin).error(6);
    }
    let big = vec![b' '; 9 * 1024 * 1024];
    let done: Done = exec(PLUGIN, &[], &[("CNI_COMMAND", "STATUS")], &big);
    done.error(6);
}

#[test]
fn a_closed_stdout_is_no_panic() {
    let done = exec("/bin/sh", &["-c", &format!("{PLUGIN} >&- </dev/null")], &[("CNI_COMMAND", "VERSION")], b"");
    assert!(done.code <= 1 && !done.stderr.contains("panic"), "{done:?}");
}

#[test]
fn the_log_tells_the_story_and_stdout_stays_clean() {
    let lab = Lab::up(Answer::Fail(Cause::Held.status("held for default/web-1\nuntil noon")));
    let mut conf =
        lab.ipam_conf("1.0.0", "bridge", json!({"logFile": lab.dir.path().join("p.log"), "logLevel": "Debug"}));
    pod().call("ADD", &conf).error(11);
    let log = std::fs::read_to_string(lab.dir.path().join("p.log")).unwrap();
    assert!(log.contains("ADD network=storage container=c-web-0 ifname=eth0 pod=default/web-0"), "{log}");
    assert!(log.contains("until noon") && log.lines().count() == 2, "{log}");
    conf["ipam"]["logFile"] = json!("/proc/nonexistent/x");
    let done = pod().call("ADD", &conf);
    assert!(done.stderr.contains("cannot open the log") && done.json()["code"] == 11);
}
