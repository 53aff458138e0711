//! Two simulated EC2 nodes, everything on them real. One cluster serves all checks, since it takes seconds to start; each
//! check leaves its nodes serving. Needs root.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use wipam_e2e::pod::PodName;
use wipam_e2e::{Cluster, Node, Options, Pod, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// Two free addresses beyond those in use, so that interfaces come when they are needed.
const POLICIES: &str = "allocator: default\nsizer: { name: warm-ip-target, settings: { warm: 2 } }\n";

fn options() -> Options {
    // A second interface of each pod, whose addresses come from us under another main plugin.
    let storage = json!({
        "cniVersion": "1.0.0", "name": "storage",
        "plugins": [{
            "type": "bridge", "bridge": "br-storage", "isGateway": false, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "wipam-cni", "scope": "node", "ranges": [[{ "subnet": "192.168.77.0/24" }]],
                "socket": "@SOCKET@", "queueDir": "@QUEUE@",
            },
        }],
    });
    Options {
        // With netfilter on bridges, packets of the second network would be taken for ones that leave the VPC.
        env: [("IP_COOLDOWN_PERIOD", "2"), ("AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS", "192.168.77.0/24")]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        policies: Some(POLICIES.into()),
        networks: vec![("20-storage.conflist".into(), storage)],
        ..Options::default()
    }
}

/// Leases by pod: (network, pod) to address, as ipamd says.
fn leases(node: &Node) -> BTreeMap<(String, String), (String, String)> {
    let status = node.status().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let leases = status["node"]["leases"].as_array().unwrap();
    leases
        .iter()
        .map(|lease| {
            let key = (text(&lease["key"]["network"]), text(&lease["pod"]["name"]));
            (key, (text(&lease["addresses"][0]), text(&lease["phase"])))
        })
        .collect()
}

fn vpc_lease(node: &Node, pod: &str) -> Option<(String, String)> {
    leases(node).remove(&("aws-cni".to_owned(), pod.to_owned()))
}

/// Device index by address, of all nodes, as EC2 has it.
fn device_indexes(cluster: &Cluster) -> BTreeMap<Ipv4Addr, u64> {
    let state = cluster.vpc().control("GET", "/_sim/state", &Value::Null).unwrap();
    let mut found = BTreeMap::new();
    for eni in state["enis"].as_array().unwrap() {
        for address in eni["addresses"].as_array().unwrap().iter().skip(1) {
            if let Some(index) = eni["attachment"]["device-index"].as_u64() {
                found.insert(address.as_str().unwrap().parse().unwrap(), index);
            }
        }
    }
    found
}

fn address_of(pod: &Pod, link: &str) -> Ipv4Addr {
    let shown = pod.nsenter(&["ip", "-j", "-4", "addr", "show", "dev", link]).unwrap().ok().unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown[0]["addr_info"][0]["local"].as_str().unwrap_or_else(|| panic!("{shown}")).parse().unwrap()
}

fn run_all(node: &Node, names: &[String]) -> Vec<Pod> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = names.iter().map(|name| scope.spawn(move || node.run_pod(name).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn pods_on_two_nodes() {
    if !common::root("pods_on_two_nodes") {
        return;
    }
    let cluster = Cluster::up(&options()).unwrap();
    let (a, b) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let timed = |name: &str, check: &dyn Fn()| {
        let began = std::time::Instant::now();
        check();
        println!("{name}: {:?}", began.elapsed());
    };
    timed("every path and a forged source", &|| pods_talk_on_every_path(&cluster, a, b));
    timed("a second network", &|| a_second_network_has_addresses_of_its_own(b));
    timed("kill -9", &|| a_killed_daemon_loses_nothing(a, b));
    timed("kill -9 in a storm", &|| a_daemon_killed_in_a_storm_gives_no_address_twice(a));
    timed("hostile policies", &|| hostile_policies_change_nothing(b));
    timed("STATUS and GC", &|| status_and_gc_tell_the_truth(b));
    timed("sticky after restart", &|| pods_get_their_addresses_back(&cluster, a));
    cluster.down().unwrap();
}

/// Same node, across nodes, across interfaces, to the internet; and what must not pass.
fn pods_talk_on_every_path(cluster: &Cluster, a: &Node, b: &Node) {
    let on_a = run_all(a, &(0..7).map(|n| format!("web-{n}")).collect::<Vec<_>>());
    let far = b.run_pod("far").unwrap();
    let index = device_indexes(cluster);
    let on = |n: u64| on_a.iter().find(|pod| index[&pod.ip()] == n).unwrap_or_else(|| panic!("no pod on eth{n}"));
    let (first, second) = (on(0), on(1));
    let same = on_a.iter().find(|pod| index[&pod.ip()] == 0 && pod.ip() != first.ip()).unwrap();
    for (from, to) in [(first, same), (first, second), (second, first), (first, &far), (second, &far), (&far, second)] {
        from.ping(to.ip()).unwrap();
    }
    let before = cluster.vpc().counters().unwrap();
    for pod in [first, second, &far] {
        pod.ping(cluster.vpc().internet_host).unwrap();
    }
    let after = cluster.vpc().counters().unwrap();
    assert!(after["to_internet"] >= before["to_internet"] + 3, "{before:?} {after:?}");
    assert_eq!(after["no_public_dropped"], before["no_public_dropped"], "each left with its node's address");

    // The controls: an address that EC2 gave to nobody, and one that it gave to another node. From a pod they do not
    // get past the node, whose kernel knows where they live; from the node itself not past the VPC.
    for forged in ["10.0.0.250".parse().unwrap(), far.ip()] {
        let (from, address, to) = (forged.to_string(), format!("{forged}/32"), b.ip().to_string());
        let ping = ["ping", "-I", &from, "-c", "2", "-i", "0.2", "-W", "1", &to];
        second.nsenter(&["ip", "addr", "add", &address, "dev", "eth0"]).unwrap().ok().unwrap();
        let said = second.nsenter(&ping).unwrap();
        assert_ne!(said.code, 0, "{said:?}");
        second.nsenter(&["ip", "addr", "del", &address, "dev", "eth0"]).unwrap().ok().unwrap();

        a.run(&["ip", "addr", "add", &address, "dev", "lo"]).unwrap().ok().unwrap();
        let before = cluster.vpc().counters().unwrap()["spoofed_dropped"];
        let said = a.run(&ping).unwrap();
        assert_ne!(said.code, 0, "{said:?}");
        let after = cluster.vpc().counters().unwrap();
        assert!(after["spoofed_dropped"] > before, "{forged}: dropped, but not by the VPC: {said:?} {after:?}");
        a.run(&["ip", "addr", "del", &address, "dev", "lo"]).unwrap().ok().unwrap();
    }
    // An address that is not in use is nobody's: the ping is no echo of our own doing.
    first.ping("10.0.1.240".parse().unwrap()).unwrap_err();
    for pod in on_a {
        pod.stop().unwrap();
    }
    far.stop().unwrap();
}

/// `bridge` makes the network, we say the addresses: unique, on the wire, given back.
fn a_second_network_has_addresses_of_its_own(node: &Node) {
    let pods = run_all(node, &["disk-0".into(), "disk-1".into()]);
    let addresses: Vec<_> = pods.iter().map(|pod| address_of(pod, "eth1")).collect();
    for (pod, address) in pods.iter().zip(&addresses) {
        assert_eq!(address.octets()[..3], [192, 168, 77]);
        let key = ("storage".to_owned(), pod.who().name.clone());
        assert_eq!(leases(node)[&key].0, address.to_string());
        assert_eq!(vpc_lease(node, &pod.who().name).unwrap().0, pod.ip().to_string());
    }
    assert_ne!(addresses[0], addresses[1]);
    pods[0].ping(addresses[1]).unwrap();
    for pod in pods {
        pod.stop().unwrap();
    }
    assert!(!leases(node).keys().any(|(network, _)| network == "storage"));
}

/// Pods talk on, a DEL waits on disk, and the next daemon knows what the last one did.
fn a_killed_daemon_loses_nothing(node: &Node, other: &Node) {
    let (stays, goes, far) =
        (node.run_pod("stays").unwrap(), node.run_pod("goes").unwrap(), other.run_pod("far").unwrap());
    let before = vpc_lease(node, "stays");
    node.kill_ipamd().unwrap();
    stays.ping(far.ip()).unwrap();
    goes.stop().unwrap();
    assert!(std::fs::read_dir(node.queue()).unwrap().count() > 0, "the release waits on disk");
    node.start_ipamd_serving().unwrap();
    wait_for("the queued release", PATIENCE, || {
        anyhow::ensure!(vpc_lease(node, "goes").is_none(), "the lease is there");
        Ok(())
    })
    .unwrap();
    assert_eq!(vpc_lease(node, "stays"), before);
    stays.ping(far.ip()).unwrap();
    let new = node.run_pod("new").unwrap();
    assert_ne!(new.ip(), stays.ip());
    new.ping(far.ip()).unwrap();
    for pod in [stays, new, far] {
        pod.stop().unwrap();
    }
}

/// The runtime tries again what failed, as kubelet would; in the end each pod has an address and none has two owners.
fn a_daemon_killed_in_a_storm_gives_no_address_twice(node: &Node) {
    let (kills, done) = (3, AtomicBool::new(false));
    let run = |name: String| {
        let who = PodName::new(&name);
        let mut attempt = 0;
        let pod = wait_for("a pod to run", PATIENCE, || {
            attempt += 1;
            node.run_pod_as(&who, attempt)
        });
        pod.unwrap()
    };
    let pods: Vec<Pod> = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            for _ in 0..kills {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                node.kill_ipamd().unwrap();
                node.start_ipamd_serving().unwrap();
            }
        });
        let threads: Vec<_> = (0..10).map(|n| scope.spawn(move || run(format!("storm-{n}")))).collect();
        let pods = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        pods
    });
    let distinct: BTreeSet<_> = pods.iter().map(Pod::ip).collect();
    assert_eq!(distinct.len(), pods.len());
    for pod in &pods {
        assert_eq!(address_of(pod, "eth0"), pod.ip());
        assert_eq!(vpc_lease(node, &pod.who().name), Some((pod.ip().to_string(), "active".into())));
        pod.ping(node.ip()).unwrap();
    }
    for pod in pods {
        pod.stop().unwrap();
    }
}

/// A gate refuses one; another passes and fails in service, where its native twin answers.
fn hostile_policies_change_nothing(node: &Node) {
    for fixture in wipam_policy_fixtures::all() {
        let wipam_policy_fixtures::Expect::RefusedAt(_) = fixture.expected else { continue };
        let before = node.page("/v1/policies").unwrap();
        let file = format!("{}.wasm", fixture.name);
        node.write_policies(&format!("sizer: {{ file: {file} }}\n"), &[(&file, &fixture.bytes)]).unwrap();
        let after = wait_for("a refusal", PATIENCE, || {
            let now = node.page("/v1/policies")?;
            anyhow::ensure!(now["refusals"].as_u64() > before["refusals"].as_u64(), "not refused");
            Ok(now)
        });
        let after = after.unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
        assert_eq!(after["generation"], before["generation"], "{}", fixture.name);
        assert!(!after["last_refusal"]["mend"].as_str().unwrap().is_empty(), "{after}");
    }
    for mode in ["trap", "loop"] {
        let fixture = wipam_policy_fixtures::hostile(mode, "hostage", wipam_policy_fixtures::Expect::Faults);
        let before = node.page("/v1/policies").unwrap()["generation"].as_u64();
        let file = format!("{mode}.wasm");
        let document = format!("allocator:\n  file: {file}\n  settings: {{ mode: {mode}, only-for: hostage }}\n");
        node.write_policies(&document, &[(&file, &fixture.bytes)]).unwrap();
        wait_for("it to be let in", PATIENCE, || {
            let now = node.page("/v1/policies")?;
            anyhow::ensure!(now["generation"].as_u64() > before, "{}", now["last_refusal"]);
            Ok(())
        })
        .unwrap();
        node.run_pod("hostage").unwrap().stop().unwrap();
        let status = node.page("/v1/policies").unwrap();
        assert!(status["allocator"]["faults"].as_u64() > Some(0), "{mode} did not misbehave: {status}");
    }
    node.write_policies(POLICIES, &[]).unwrap();
    wait_for("the shipped policies", PATIENCE, || {
        let status = node.page("/v1/policies")?;
        anyhow::ensure!(status["allocator"]["name"] == "default", "{}", status["allocator"]["name"]);
        Ok(())
    })
    .unwrap();
    node.run_pod("free").unwrap().stop().unwrap();
}

/// The verbs that containerd 1.6 does not know: the binary is called as a newer runtime would.
fn status_and_gc_tell_the_truth(node: &Node) {
    let conf = node.plugin_conf("1.1.0");
    let status = node.plugin("STATUS", &[], &conf).unwrap();
    assert_eq!((status.code, status.stdout.as_str()), (0, ""), "{status:?}");

    // An attachment that no runtime remembers, beside one that it does.
    let kept = node.run_pod("kept").unwrap();
    let name = format!("{}-lost", node.netns());
    let ip = |args: &[&str]| assert!(std::process::Command::new("ip").args(args).status().unwrap().success());
    ip(&["netns", "add", &name]);
    let path = format!("/run/netns/{name}");
    let env = [
        ("CNI_CONTAINERID", "lost-sandbox"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", path.as_str()),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=lost;K8S_POD_UID=uid-lost"),
    ];
    let added = node.plugin("ADD", &env, &conf).unwrap().ok().unwrap();
    let result: Value = serde_json::from_str(&added).unwrap();
    let host = result["interfaces"][0]["name"].as_str().unwrap();
    assert!(vpc_lease(node, "lost").is_some());
    assert_eq!(node.run(&["ip", "link", "show", host]).unwrap().code, 0);

    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": kept.sandbox(), "ifname": "eth0" }]);
    node.plugin("GC", &[], &gc).unwrap().ok().unwrap();
    wait_for("the lost attachment to go", PATIENCE, || {
        anyhow::ensure!(vpc_lease(node, "lost").is_none(), "its lease is there");
        anyhow::ensure!(node.run(&["ip", "link", "show", host])?.code != 0, "its link is there");
        Ok(())
    })
    .unwrap();
    assert_eq!(vpc_lease(node, "kept"), Some((kept.ip().to_string(), "active".into())));
    kept.ping(node.ip()).unwrap();
    ip(&["netns", "del", &name]);
    kept.stop().unwrap();

    node.stop_ipamd().unwrap();
    let status = node.plugin("STATUS", &[], &conf).unwrap();
    let error: Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(status.code != 0 && error["code"].as_u64() == Some(50), "{status:?}");
    node.start_ipamd_serving().unwrap();
}

/// The node loses its runtime and every sandbox; no DEL comes. Each pod that comes back gets its own address again.
fn pods_get_their_addresses_back(cluster: &Cluster, node: &Node) {
    let names: Vec<_> = (0..3).map(|n| format!("db-{n}")).collect();
    let pods = run_all(node, &names);
    let before: BTreeMap<_, _> =
        pods.iter().map(|pod| (pod.who().name.clone(), (pod.ip(), address_of(pod, "eth1")))).collect();
    drop(pods);
    node.lose_containerd().unwrap();
    node.stop_ipamd().unwrap();
    node.start_ipamd_serving().unwrap();
    node.start_containerd(cluster.archive()).unwrap();
    node.wait_for_network().unwrap();
    // In another order than they came, with a stranger among them.
    let stranger = node.run_pod("stranger").unwrap();
    for name in names.iter().rev() {
        let pod = node.run_pod(name).unwrap();
        assert_eq!((pod.ip(), address_of(&pod, "eth1")), before[name], "{name}");
        pod.ping(node.ip()).unwrap();
    }
    assert!(before.values().all(|(ip, _)| *ip != stranger.ip()));
}
