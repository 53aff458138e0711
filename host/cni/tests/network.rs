//! The plugin makes and removes real networks: a namespace plays the node, others the pods, `ip` is the witness. Needs
//! root.

#![allow(clippy::unwrap_used)] // helpers too; the general exception knows only test functions

mod common;

use std::path::Path;

use common::{Answer, Lab, Netns, PLUGIN, Pod, add_reply, address, merge, range_address, root};
use serde_json::{Value, json};
use wipam_rpc::v1;

/// One pod's namespace on one node, and a daemon that gives out 10.0.0.7 of device 2.
struct Site {
    lab: Lab,
    node: Netns,
    pod_ns: Netns,
    pod: Pod,
}

fn site(name: &str) -> Site {
    let lab = Lab::up(Answer::Say(add_reply(vec![address("10.0.0.7/32", 0, 3, 2)])));
    let (node, pod_ns) = (Netns::new(), Netns::new());
    let pod = Pod::new(name, &pod_ns.path());
    Site { lab, node, pod_ns, pod }
}

impl Site {
    fn call(&self, verb: &str, conf: &Value) -> common::Done {
        self.pod.call_in(&self.node, PLUGIN, verb, conf, "/usr/lib/cni")
    }

    /// An ADD that must succeed; gives its result and the configuration with it as previous result.
    fn add(&self, version: &str) -> (Value, Value) {
        let mut conf = self.lab.main_conf(version, json!({}));
        let result = self.call("ADD", &conf).ok().json();
        merge(&mut conf, json!({"prevResult": result}));
        (result, conf)
    }

    fn rules(&self) -> String {
        self.node.ip(&["rule"]).lines().filter(|l| l.contains("10.0.0.")).collect::<Vec<_>>().join("\n")
    }

    fn routes(&self) -> String {
        self.node.ip(&["route"])
    }

    fn links(&self) -> String {
        self.node.ip(&["-o", "link"]).lines().filter(|l| l.contains("eni")).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn an_add_makes_the_network_and_says_so_in_every_version() {
    if !root("an_add_makes_the_network_and_says_so_in_every_version") {
        return;
    }
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let site = site("web-0");
        let (result, _) = site.add(version);
        assert_eq!(result["cniVersion"], version);
        if version < "0.3.0" {
            assert_eq!(result, json!({"cniVersion": version, "ip4": {"ip": "10.0.0.7/32"}, "dns": {}}));
        } else {
            let host = result["interfaces"][0]["name"].as_str().unwrap();
            let mut pod_if = json!({"name": "eth0", "mac": "3", "sandbox": site.pod_ns.path()});
            let mut host_if = json!({"name": host});
            if version == "1.1.0" {
                pod_if["mtu"] = json!(1400);
                host_if["mtu"] = json!(1400);
            }
            let dummy = json!({"name": format!("dummy{}", &host[3..]), "mac": "0", "sandbox": "2"});
            assert_eq!(result["interfaces"], json!([host_if, pod_if, dummy]));
            assert_eq!(result["ips"][0]["interface"], 1);
            assert!(result["ips"][0].get("gateway").is_none());
            let line = site.node.ip(&["-d", "link", "show", host]);
            assert!(line.contains("alias wipam:c-web-0:eth0") && line.contains("mtu 1400"), "{line}");
        }
        assert!(site.pod_ns.ip(&["addr", "show", "eth0"]).contains("inet 10.0.0.7/32"));
        assert!(site.pod_ns.ip(&["route"]).contains("default via 169.254.1.1 dev eth0"));
        assert!(site.routes().contains("10.0.0.7 dev eni"));
        assert!(site.rules().contains("512:") && site.rules().contains("1536:"), "{}", site.rules());
        // Once more: nothing changes.
        let links = site.links();
        assert_eq!(site.add(version).0, result);
        assert_eq!(site.links(), links);
    }
}

#[test]
fn a_chain_keeps_what_came_before() {
    if !root("a_chain_keeps_what_came_before") {
        return;
    }
    let site = site("web-0");
    let before = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "x0", "sandbox": "/run/netns/x"}],
        "ips": [{"address": "192.168.9.2/24", "interface": 1, "gateway": "192.168.9.1"}], "routes": [{"dst": "192.168.0.0/16"}],
        "dns": {"nameservers": ["1.1.1.1"]}});
    let mut conf = site.lab.main_conf("1.0.0", json!({"prevResult": before}));
    let result = site.call("ADD", &conf).ok().json();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 5);
    assert_eq!(result["ips"][0], before["ips"][0]);
    assert_eq!((&result["ips"][1]["address"], &result["ips"][1]["interface"]), (&json!("10.0.0.7/32"), &json!(3)));
    assert_eq!((&result["routes"], &result["dns"]), (&before["routes"], &before["dns"]));

    merge(&mut conf, json!({"prevResult": result}));
    let lease = v1::CheckReply { addresses: vec![address("10.0.0.7/32", 0, 3, 2)], host_ifname: String::new() };
    site.lab.set(|s| s.check = Answer::Say(lease));
    site.call("CHECK", &conf).ok();
    assert_eq!(site.lab.seen().checks[0].addresses, ["10.0.0.7/32"], "the other plugin's address is not ours");
}

#[test]
fn a_failed_set_up_leaves_nothing() {
    if !root("a_failed_set_up_leaves_nothing") {
        return;
    }
    let site = site("web-0");
    site.pod_ns.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "other"]);
    let (msg, _) = site.call("ADD", &site.lab.main_conf("1.0.0", json!({}))).error(102);
    assert!(msg.contains("eth0"), "{msg}");
    let dels = site.lab.seen().dels;
    assert_eq!((dels.len(), dels[0].cause.as_str(), dels[0].network_removed), (1, "setup-failed", true));
    assert_eq!((site.links().as_str(), site.rules().as_str()), ("", ""));
    assert!(site.lab.queued().is_empty());

    site.lab.set(|s| s.del = Answer::Fail(tonic::Status::unavailable("gone")));
    site.call("ADD", &site.lab.main_conf("1.0.0", json!({}))).error(102);
    assert_eq!(site.lab.queued()[0].cause, "setup-failed", "the release waits for the daemon");
}

#[test]
fn with_ipamd_a_del_leaves_the_links_to_it() {
    if !root("with_ipamd_a_del_leaves_the_links_to_it") {
        return;
    }
    let site = site("web-0");
    let (_, conf) = site.add("1.0.0");
    let links = site.links();
    site.call("DEL", &conf).ok();
    assert_eq!((site.links(), site.lab.queued().len()), (links, 0));
    assert!(!site.lab.seen().dels[0].network_removed);
}

#[test]
fn without_ipamd_a_del_removes_routes_and_rules_and_keeps_the_release() {
    if !root("without_ipamd_a_del_removes_routes_and_rules_and_keeps_the_release") {
        return;
    }
    for version in ["0.2.0", "0.4.0", "1.0.0", "1.1.0"] {
        let mut site = site("web-0");
        let (_, conf) = site.add(version);
        site.lab.stop();
        assert_eq!(site.call("DEL", &conf).ok().stdout, "");
        assert_eq!(site.rules(), "", "{version}");
        assert!(!site.routes().contains("10.0.0.7"));
        assert!(site.links().contains("state DOWN"), "{}", site.links());
        let queued = site.lab.queued();
        assert_eq!((queued.len(), queued[0].addresses.clone()), (1, vec!["10.0.0.7/32".to_owned()]));
        assert!(!queued[0].network_removed, "the link still has its end before it");
        site.call("DEL", &conf).ok();
        assert_eq!(site.lab.queued().len(), 1);
    }
}

#[test]
fn a_del_after_the_end_of_the_namespace_cleans_the_node() {
    if !root("a_del_after_the_end_of_the_namespace_cleans_the_node") {
        return;
    }
    let mut site = site("web-0");
    let (_, conf) = site.add("1.0.0");
    site.lab.stop();
    site.node.ip(&["link", "del", conf["prevResult"]["interfaces"][0]["name"].as_str().unwrap()]);
    site.pod.netns = String::new();
    site.call("DEL", &conf).ok();
    assert_eq!(site.rules(), "");
    assert!(site.lab.queued()[0].network_removed);
}

#[test]
fn without_previous_result_a_del_still_keeps_the_release() {
    if !root("without_previous_result_a_del_still_keeps_the_release") {
        return;
    }
    let mut site = site("web-0");
    let (_, mut conf) = site.add("1.0.0");
    site.lab.stop();
    conf.as_object_mut().unwrap().remove("prevResult");
    let rules = site.rules();
    site.call("DEL", &conf).ok();
    assert_eq!(site.rules(), rules, "it is not known which address to remove");
    assert!(!site.lab.queued()[0].network_removed);
}

#[test]
fn a_late_del_does_not_touch_the_newer_sandbox() {
    if !root("a_late_del_does_not_touch_the_newer_sandbox") {
        return;
    }
    let mut site = site("web-0");
    let (_, old) = site.add("1.0.0");
    let second = Netns::new();
    let newer = Pod { container: "c-newer".into(), netns: second.path(), ..site.pod.clone() };
    newer.call_in(&site.node, PLUGIN, "ADD", &site.lab.main_conf("1.0.0", json!({})), "").ok();
    let (links, rules, routes) = (site.links(), site.rules(), site.routes());
    assert_eq!(links.lines().count(), 1, "same pod, same veth name");
    site.lab.stop();
    site.call("DEL", &old).ok();
    assert_eq!((site.links(), site.rules(), site.routes()), (links, rules, routes));
}

#[test]
fn interfaces_of_one_pod_do_not_collide() {
    if !root("interfaces_of_one_pod_do_not_collide") {
        return;
    }
    let mut site = site("web-0");
    site.add("1.0.0");
    site.lab.set(|s| s.add = Answer::Say(add_reply(vec![address("10.0.0.8/32", 0, 254, 0)])));
    let second = Site { pod: site.pod.on("net1"), ..site };
    let (result, conf) = second.add("1.0.0");
    assert_eq!(result["interfaces"][1]["mac"], "254");
    assert_eq!(second.links().lines().count(), 2);
    let routes = second.pod_ns.ip(&["route"]);
    assert!(
        routes.contains("default via 169.254.1.1 dev eth0") && !routes.contains("default via 169.254.1.2"),
        "{routes}"
    );
    assert!(second.pod_ns.ip(&["rule"]).contains("from 10.0.0.8"));
    site = second;
    site.lab.stop();
    site.call("DEL", &conf).ok();
    assert!(site.rules().contains("10.0.0.7") && !site.rules().contains("10.0.0.8"), "{}", site.rules());
}

#[test]
fn both_families_fit_one_interface() {
    if !root("both_families_fit_one_interface") {
        return;
    }
    let site = site("web-0");
    let both = vec![address("fd00::7/128", 1, 3, 2), address("10.0.0.7/32", 0, 3, 2)];
    site.lab.set(|s| s.add = Answer::Say(add_reply(both.clone())));
    let (result, conf) = site.add("1.0.0");
    let addresses: Vec<_> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, ["10.0.0.7/32", "fd00::7/128"]);
    assert!(
        site.pod_ns.ip(&["-6", "route"]).contains("default via fe80::2 dev eth0"),
        "{}",
        site.pod_ns.ip(&["-6", "route"])
    );
    site.lab.set(|s| s.check = Answer::Say(v1::CheckReply { addresses: both, host_ifname: String::new() }));
    site.call("CHECK", &conf).ok();
}

#[test]
fn a_check_finds_what_was_changed() {
    if !root("a_check_finds_what_was_changed") {
        return;
    }
    let site = site("web-0");
    let lease = v1::CheckReply { addresses: vec![address("10.0.0.7/32", 0, 3, 2)], host_ifname: String::new() };
    site.lab.set(|s| s.check = Answer::Say(lease));
    let (_, conf) = site.add("1.1.0");
    assert_eq!(site.call("CHECK", &conf).ok().stdout, "");
    site.node.ip(&["rule", "del", "priority", "1536"]);
    let (msg, _) = site.call("CHECK", &conf).error(103);
    assert!(msg.contains("1536"), "{msg}");
    site.add("1.1.0");
    site.call("CHECK", &conf).ok();
    site.pod_ns.ip(&["addr", "del", "10.0.0.7/32", "dev", "eth0"]);
    assert!(site.call("CHECK", &conf).error(103).0.contains("10.0.0.7"));
}

#[test]
fn ipamd_names_the_veth_when_it_wants_to() {
    if !root("ipamd_names_the_veth_when_it_wants_to") {
        return;
    }
    let site = site("web-0");
    let named =
        v1::AddReply { host_ifname: "enideadbeef123".into(), ..add_reply(vec![address("10.0.0.7/32", 0, 0, 0)]) };
    site.lab.set(|s| s.add = Answer::Say(named));
    let result =
        site.call("ADD", &site.lab.main_conf("1.0.0", json!({"vethPrefix": "abc", "mtu": "1300"}))).ok().json();
    assert_eq!(result["interfaces"][0]["name"], "enideadbeef123");
    assert!(site.links().contains("mtu 1300"));
    assert!(!site.rules().contains("1536:"), "the primary interface needs no rule from the pod");
}

#[test]
fn under_the_bridge_plugin_it_gives_addresses() {
    if !root("under_the_bridge_plugin_it_gives_addresses") {
        return;
    }
    let bridge = "/usr/lib/cni/bridge";
    assert!(Path::new(bridge).exists(), "install containernetworking-plugins");
    let cni_path = format!("{}:/usr/lib/cni", Path::new(PLUGIN).parent().unwrap().display());
    let mut site = site("web-0");
    let range = |ip: &str| {
        Answer::Say(v1::AddReply { addresses: vec![range_address(ip, 0, "192.168.2.1")], ..v1::AddReply::default() })
    };
    let call = |site: &Site, verb: &str, conf: &Value| site.pod.call_in(&site.node, bridge, verb, conf, &cni_path);
    for version in ["0.2.0", "0.3.1", "0.4.0", "1.0.0"] {
        site.lab.set(|s| s.add = range("192.168.2.7/24"));
        let mut conf = site.lab.ipam_conf(version, "bridge", json!({}));
        merge(&mut conf, json!({"bridge": "br0", "isGateway": true}));
        let result = call(&site, "ADD", &conf).ok().json();
        assert!(site.pod_ns.ip(&["addr", "show", "eth0"]).contains("inet 192.168.2.7/24"));
        assert!(site.pod_ns.ip(&["route"]).contains("default via 192.168.2.1 dev eth0"));
        assert!(site.node.ip(&["addr", "show", "br0"]).contains("192.168.2.1/24"));
        merge(&mut conf, json!({"prevResult": result}));
        if version >= "0.4.0" {
            let lease =
                v1::CheckReply { addresses: vec![range_address("192.168.2.7/24", 0, "")], host_ifname: String::new() };
            site.lab.set(|s| s.check = Answer::Say(lease));
            call(&site, "CHECK", &conf).ok();
        }
        // A second interface of the same pod on the same network.
        site.lab.set(|s| s.add = range("192.168.2.8/24"));
        let mut second = site.lab.ipam_conf(version, "bridge", json!({"routes": []}));
        merge(&mut second, json!({"bridge": "br0"}));
        site.pod.on("net1").call_in(&site.node, bridge, "ADD", &second, &cni_path).ok();
        let keys: Vec<_> =
            site.lab.seen().adds.iter().rev().take(2).map(|a| a.attachment.clone().unwrap().ifname).collect();
        assert_eq!(keys, ["net1", "eth0"]);
        site.pod.on("net1").call_in(&site.node, bridge, "DEL", &second, &cni_path).ok();
        call(&site, "DEL", &conf).ok();
        let del = site.lab.seen().dels.last().cloned().unwrap().attachment.unwrap();
        assert_eq!((del.network.as_str(), del.ifname.as_str()), ("storage", "eth0"));
        assert!(!site.pod_ns.ip(&["-o", "link"]).contains("eth0"));
    }
    // What we say against a configuration comes out of the main plugin.
    let mut conf = site.lab.ipam_conf("1.0.0", "bridge", json!({"scope": null}));
    merge(&mut conf, json!({"bridge": "br0"}));
    let done = call(&site, "ADD", &conf);
    assert!(done.stdout.contains("every node would hand out these addresses"), "{done:?}");
    // Without ipamd the release waits, and the main plugin ends the interface all the same.
    site.lab.stop();
    let conf = site.lab.ipam_conf("1.0.0", "bridge", json!({}));
    call(&site, "DEL", &conf).ok();
    assert_eq!(site.lab.queued()[0].network, "storage");
}
