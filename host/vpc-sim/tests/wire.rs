//! The wire against the kernel: every behaviour with its negative control. Needs root, `ip`, `nft` and `ping`.
//!
//! Pods and what a CNI plugin would do on a node are made here by `ip`, so that the wire is judged alone.

// Clippy allows it in test functions, not in their helpers.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ipnet::Ipv4Net;
use wipam_vpc_sim::wire::{self, EniSpec, INTERNET_HOST, NodeSpec, Wire, WireError, WireSpec};

/// Whether the test may run: as root; without it only where nobody counts on it.
fn root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and CI must not skip it");
    println!("SKIPPED (needs root): {test}");
    false
}

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn in_ns(netns: &str, command: &str) -> Output {
    let mut words = command.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    wire::in_netns(netns, move || command.output().unwrap()).unwrap()
}

fn must(netns: &str, command: &str) -> String {
    let output = in_ns(netns, command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One ping, answered within a second?
fn ping(netns: &str, to: impl ToString) -> bool {
    in_ns(netns, &format!("ping -n -c1 -W1 {}", to.to_string())).status.success()
}

/// A ping that is expected to stay without answer, so it does not wait as long.
fn no_ping(netns: &str, to: impl ToString) -> bool {
    !in_ns(netns, &format!("ping -n -c1 -W0.3 {}", to.to_string())).status.success()
}

/// Whom a TCP connection from `netns` to a listener in `server` seems to come from; a byte goes both ways.
fn seen_source(netns: &str, server: &str, to: SocketAddrV4) -> std::io::Result<Ipv4Addr> {
    let listener = wire::in_netns(server, || TcpListener::bind(to).unwrap()).unwrap();
    let mut client =
        wire::in_netns(netns, || TcpStream::connect_timeout(&to.into(), Duration::from_secs(1))).unwrap()?;
    let (mut accepted, peer) = listener.accept()?;
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    }
    let mut byte = [0];
    client.write_all(b"x")?;
    accepted.read_exact(&mut byte)?;
    accepted.write_all(b"y")?;
    client.read_exact(&mut byte)?;
    match peer {
        SocketAddr::V4(peer) => Ok(*peer.ip()),
        SocketAddr::V6(_) => Err(ErrorKind::Unsupported.into()),
    }
}

/// Two nodes; `a` has two ENIs in one subnet, `b` one in another. The primaries have public addresses.
fn spec(name: &str) -> WireSpec {
    let eni = |id: &str, instance: &str, index: u32, mac: &str, subnet: &str, primary: &str, more: &[&str]| EniSpec {
        eni_id: id.into(),
        instance: instance.into(),
        mac: mac.into(),
        ifname: format!("eth{index}"),
        device_index: index,
        subnet: net(subnet),
        primary: ip(primary),
        addresses: more.iter().map(|a| ip(a)).collect(),
        prefixes: Vec::new(),
        public: None,
        mtu: 9001,
    };
    let mut spec = WireSpec {
        name: name.into(),
        nodes: ["a", "b"].map(|n| NodeSpec { instance: format!("i-{n}"), netns: format!("{name}-{n}") }).into(),
        enis: vec![
            eni("eni-a0", "i-a", 0, "02:00:00:00:0a:00", "10.0.0.0/24", "10.0.0.10", &["10.0.0.11", "10.0.0.12"]),
            eni("eni-a1", "i-a", 1, "02:00:00:00:0a:01", "10.0.0.0/24", "10.0.0.20", &["10.0.0.21"]),
            eni("eni-b0", "i-b", 0, "02:00:00:00:0b:00", "10.0.1.0/24", "10.0.1.10", &["10.0.1.11"]),
        ],
        vpc_cidrs: vec![net("10.0.0.0/16")],
        imds: ip("169.254.169.254"),
        api: ip("198.18.255.1"),
    };
    spec.enis[0].public = Some(ip("203.0.113.10"));
    spec.enis[2].public = Some(ip("203.0.113.20"));
    spec
}

/// A wire with what a CNI plugin would add to it.
struct Lab {
    wire: Wire,
    spec: WireSpec,
    pods: Vec<String>,
}

impl Lab {
    /// `letters` must differ between tests that run at the same time.
    fn new(letters: &str) -> Self {
        wire::sweep(letters).unwrap();
        let spec = spec(&wire::name_for_this_process(letters));
        let wire = Wire::up(&spec).unwrap();
        for node in &spec.nodes {
            must(&node.netns, "sysctl -qw net.ipv4.ip_forward=1");
        }
        Self { wire, spec, pods: Vec::new() }
    }

    fn netns(&self, rest: &str) -> String {
        format!("{}-{rest}", self.spec.name)
    }

    fn apply(&mut self) -> wire::Changes {
        self.wire.apply(&self.spec).unwrap()
    }

    /// Brings up `a`'s second ENI as a daemon would: its own routing table 2.
    fn set_up_eth1(&self) {
        let a = self.netns("a");
        must(&a, "ip link set eth1 up");
        must(&a, "ip route add 10.0.0.1 dev eth1 scope link table 2");
        must(&a, "ip route add default via 10.0.0.1 dev eth1 table 2");
    }

    /// A pod called `pod` on `node` with `address`; what it sends leaves by `table`.
    fn pod(&mut self, node: &str, pod: &str, address: &str, table: &str) -> String {
        let (node, netns) = (self.netns(node), self.netns(pod));
        must(&node, &format!("ip netns add {netns}"));
        self.pods.push(netns.clone());
        must(&netns, &format!("ip link add eth0 mtu 9001 type veth peer name {pod} mtu 9001 netns {node}"));
        must(&netns, "ip link set eth0 up");
        must(&node, &format!("ip link set {pod} up"));
        must(&node, &format!("sysctl -qw net.ipv4.conf.{pod}.rp_filter=0 net.ipv4.conf.{pod}.proxy_arp=1"));
        must(&node, &format!("sysctl -qw net.ipv4.neigh.{pod}.proxy_delay=0"));
        must(&netns, &format!("ip addr add {address}/32 dev eth0"));
        must(&netns, "ip route add 169.254.1.1 dev eth0 scope link");
        must(&netns, "ip route add default via 169.254.1.1 dev eth0");
        must(&node, &format!("ip route add {address} dev {pod} scope link"));
        must(&node, &format!("ip rule add pref 512 to {address} lookup main"));
        must(&node, &format!("ip rule add pref 1536 from {address} to 10.0.0.0/16 lookup {table}"));
        netns
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for pod in &self.pods {
            let _ = Command::new("ip").args(["netns", "del", pod]).output();
        }
    }
}

#[test]
fn pods_reach_each_other_on_one_node_across_enis_and_nodes() {
    if !root("pods_reach_each_other_on_one_node_across_enis_and_nodes") {
        return;
    }
    let mut lab = Lab::new("wtr");
    lab.set_up_eth1();
    let a1 = lab.pod("a", "poda1", "10.0.0.11", "main");
    let a2 = lab.pod("a", "poda2", "10.0.0.21", "2");
    let b1 = lab.pod("b", "podb1", "10.0.1.11", "main");
    assert!(ping(&lab.netns("a"), "10.0.1.10"), "node to node");
    assert!(ping(&a1, "10.0.0.21"), "same node, other ENI");
    assert!(ping(&a1, "10.0.1.11"), "other node, primary ENI");
    assert!(ping(&a2, "10.0.1.11"), "other node, secondary ENI");
    assert!(ping(&b1, "10.0.0.21"), "and back");
    assert!(in_ns(&a2, "ping -n -c1 -W1 -M do -s 8973 10.0.1.11").status.success(), "9001 bytes pass whole");
    assert!(!in_ns(&a2, "ping -n -c1 -W0.3 -M do -s 8974 10.0.1.11").status.success(), "one more does not");
    let source = seen_source(&a2, &b1, "10.0.1.11:8080".parse().unwrap()).unwrap();
    assert_eq!(source, ip("10.0.0.21"), "no translation inside the VPC");
    let counters = lab.wire.counters().unwrap();
    assert!(counters.forwarded >= 8, "{counters:?}");
    assert_eq!((counters.spoofed_dropped, counters.no_owner_dropped, counters.no_public_dropped), (0, 0, 0));
}

#[test]
fn the_internet_gateway_lets_out_only_public_sources() {
    if !root("the_internet_gateway_lets_out_only_public_sources") {
        return;
    }
    let mut lab = Lab::new("wti");
    let a1 = lab.pod("a", "poda1", "10.0.0.11", "main");
    let (a, inet) = (lab.netns("a"), lab.wire.inet_netns());
    assert!(ping(&a, INTERNET_HOST), "a node has a public address");
    let host = SocketAddrV4::new(INTERNET_HOST, 8080);
    assert_eq!(seen_source(&a, &inet, host).unwrap(), ip("203.0.113.10"), "which is what the internet sees");
    assert!(ping(&inet, "203.0.113.20"), "and what it can reach");
    assert!(no_ping(&inet, "10.0.1.10"), "but not by the private address");

    let before = lab.wire.counters().unwrap();
    assert!(no_ping(&a1, INTERNET_HOST), "a pod without SNAT has none");
    let after = lab.wire.counters().unwrap();
    assert_eq!(after.no_public_dropped, before.no_public_dropped + 1);
    assert_eq!(after.spoofed_dropped, 0, "it is not spoofed, only private");

    must(&a, "nft add table ip t");
    must(&a, "nft add chain ip t post { type nat hook postrouting priority srcnat; }");
    must(&a, "nft add rule ip t post ip daddr != 10.0.0.0/16 oifname eth0 snat to 10.0.0.10");
    assert!(ping(&a1, INTERNET_HOST), "with SNAT it goes out");
    assert_eq!(seen_source(&a1, &inet, host).unwrap(), ip("203.0.113.10"));

    lab.spec.enis[0].public = None;
    assert!(lab.apply().is_empty(), "a public address is no change of links or private addresses");
    assert!(no_ping(&a1, INTERNET_HOST), "an open connection does not outlive the public address");
}

#[test]
fn a_source_on_the_wrong_eni_is_dropped_and_counted() {
    if !root("a_source_on_the_wrong_eni_is_dropped_and_counted") {
        return;
    }
    let mut lab = Lab::new("wts");
    lab.set_up_eth1();
    let a2 = lab.pod("a", "poda2", "10.0.0.21", "2");
    assert!(ping(&a2, "10.0.1.10"));
    // Without its rule the pod's packets leave by eth0, which does not own the address.
    must(&lab.netns("a"), "ip rule del pref 1536");
    assert!(no_ping(&a2, "10.0.1.10"));
    let counters = lab.wire.counters().unwrap();
    assert_eq!((counters.spoofed_dropped, counters.spoofed_by["eni-a0"], counters.spoofed_by["eni-a1"]), (1, 1, 0));
    // Metadata is no way around it.
    must(&lab.netns("a"), "ip addr add 10.0.1.10/32 dev lo");
    assert!(!in_ns(&lab.netns("a"), "ping -n -c1 -W0.3 -I 10.0.1.10 169.254.169.254").status.success());
    assert_eq!(lab.wire.counters().unwrap().spoofed_by["eni-a0"], 2);
}

#[test]
fn an_address_works_only_while_and_where_it_is_assigned() {
    if !root("an_address_works_only_while_and_where_it_is_assigned") {
        return;
    }
    let mut lab = Lab::new("wta");
    let a1 = lab.pod("a", "poda1", "10.0.0.11", "main");
    let a2 = lab.pod("a", "poda2", "10.0.0.12", "main");
    assert!(ping(&a1, "10.0.1.10") && ping(&a2, "10.0.1.10"));

    let taken = lab.spec.enis[0].addresses.remove(0);
    let changes = lab.apply();
    assert_eq!(changes.unassigned, [("eni-a0".to_owned(), net("10.0.0.11/32"))]);
    assert!(changes.assigned.is_empty() && changes.attached.is_empty() && changes.detached.is_empty());
    assert!(no_ping(&a1, "10.0.1.10"), "not as a source");
    assert_eq!(lab.wire.counters().unwrap().spoofed_by["eni-a0"], 1);
    assert!(no_ping(&lab.netns("b"), "10.0.0.11"), "not as a destination");
    assert_eq!(lab.wire.counters().unwrap().no_owner_dropped, 1);
    assert!(ping(&a2, "10.0.1.10"), "its neighbour is not concerned");

    // To the other node's ENI, whose subnet it is not in: the wire does not judge, EC2 does.
    lab.spec.enis[2].addresses.push(taken);
    assert_eq!(lab.apply().assigned, [("eni-b0".to_owned(), net("10.0.0.11/32"))]);
    let b1 = lab.pod("b", "podb1", "10.0.0.11", "main");
    must(&lab.netns("a"), "ip route del 10.0.0.11 dev poda1");
    assert!(ping(&b1, "10.0.0.10"), "the new owner uses it");
    assert!(ping(&lab.netns("a"), "10.0.0.11"), "and is found, also by a node that has the subnet on its link");
    assert!(no_ping(&a1, "10.0.1.10"), "the old one still may not");

    // Moved in one step, as with AllowReassignment.
    lab.spec.enis[2].addresses.pop();
    lab.spec.enis[1].addresses.push(taken);
    let changes = lab.apply();
    assert_eq!(changes.unassigned, [("eni-b0".to_owned(), net("10.0.0.11/32"))]);
    assert_eq!(changes.assigned, [("eni-a1".to_owned(), net("10.0.0.11/32"))]);
    assert!(no_ping(&b1, "10.0.0.10"));
    assert!(lab.apply().is_empty());
}

#[test]
fn every_address_of_a_prefix_works_and_none_beside_it() {
    if !root("every_address_of_a_prefix_works_and_none_beside_it") {
        return;
    }
    let mut lab = Lab::new("wtp");
    lab.set_up_eth1();
    lab.spec.enis[1].prefixes.push(net("10.0.0.32/28"));
    assert_eq!(lab.apply().assigned, [("eni-a1".to_owned(), net("10.0.0.32/28"))]);
    let first = lab.pod("a", "poda1", "10.0.0.32", "2");
    let last = lab.pod("a", "poda2", "10.0.0.47", "2");
    let beside = lab.pod("a", "poda3", "10.0.0.48", "2");
    let wrong = lab.pod("a", "poda4", "10.0.0.40", "main");
    assert!(ping(&first, "10.0.1.10") && ping(&last, "10.0.1.10"));
    assert!(ping(&lab.netns("b"), "10.0.0.32") && ping(&lab.netns("b"), "10.0.0.47"));
    assert!(no_ping(&beside, "10.0.1.10") && no_ping(&wrong, "10.0.1.10"));
    let counters = lab.wire.counters().unwrap();
    assert_eq!((counters.spoofed_by["eni-a1"], counters.spoofed_by["eni-a0"]), (1, 1));
    lab.spec.enis[1].prefixes.clear();
    assert_eq!(lab.apply().unassigned, [("eni-a1".to_owned(), net("10.0.0.32/28"))]);
    assert!(no_ping(&first, "10.0.1.10"));
    assert!(no_ping(&lab.netns("b"), "10.0.0.47"));
}

#[test]
fn links_appear_and_disappear_with_attachments() {
    if !root("links_appear_and_disappear_with_attachments") {
        return;
    }
    let mut lab = Lab::new("wtl");
    let a = lab.netns("a");
    let show = |netns: &str, link: &str| -> Option<serde_json::Value> {
        let output = in_ns(netns, &format!("ip -j addr show dev {link}"));
        output.status.success().then(|| serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()[0].clone())
    };
    let eth0 = show(&a, "eth0").unwrap();
    assert_eq!((&eth0["address"], &eth0["mtu"]), (&"02:00:00:00:0a:00".into(), &9001.into()));
    assert_eq!((&eth0["addr_info"][0]["local"], &eth0["addr_info"][0]["prefixlen"]), (&"10.0.0.10".into(), &24.into()));
    assert!(must(&a, "ip route show default").starts_with("default via 10.0.0.1 dev eth0"));
    let eth1 = show(&a, "eth1").unwrap();
    assert_eq!((&eth1["address"], &eth1["operstate"]), (&"02:00:00:00:0a:01".into(), &"DOWN".into()));
    assert_eq!(eth1["addr_info"], serde_json::json!([]), "a secondary ENI comes unconfigured");

    let detached = lab.spec.enis.remove(1);
    let changes = lab.apply();
    assert_eq!(changes.detached, ["eni-a1"]);
    assert_eq!(changes.unassigned.len(), 2);
    assert!(show(&a, "eth1").is_none());
    assert!(show(&a, "eth0").is_some());

    lab.spec.enis.push(EniSpec { instance: "i-b".into(), ..detached });
    let changes = lab.apply();
    assert_eq!(changes.attached, ["eni-a1"]);
    assert_eq!(show(&lab.netns("b"), "eth1").unwrap()["address"], "02:00:00:00:0a:01");
    assert_eq!(lab.wire.counters().unwrap().spoofed_by["eni-a1"], 0);

    // Somebody in the node removes what no instance could remove: the next apply mends it.
    must(&lab.netns("b"), "ip link del eth1");
    assert_eq!(lab.apply().attached, ["eni-a1"]);
    assert!(lab.apply().is_empty());

    // A node comes and goes.
    let node = NodeSpec { instance: "i-c".into(), netns: lab.netns("c") };
    lab.spec.nodes.push(node);
    lab.spec.enis[2].instance = "i-c".into();
    let changes = lab.apply();
    assert_eq!(
        (changes.nodes_added.as_slice(), changes.attached.as_slice()),
        ([lab.netns("c")].as_slice(), ["eni-a1".to_owned()].as_slice())
    );
    lab.spec.nodes.pop();
    lab.spec.enis.pop();
    assert_eq!(lab.apply().nodes_removed, [lab.netns("c")]);
}

#[test]
fn addresses_that_nobody_owns_lead_nowhere() {
    if !root("addresses_that_nobody_owns_lead_nowhere") {
        return;
    }
    let lab = Lab::new("wtn");
    assert!(no_ping(&lab.netns("a"), "10.0.0.99"), "in the own subnet");
    let neighbours = must(&lab.netns("a"), "ip neigh show 10.0.0.99");
    assert!(!neighbours.contains("lladdr"), "nobody answers for it: {neighbours}");
    assert!(no_ping(&lab.netns("a"), "10.0.9.9"), "behind the router");
    assert_eq!(lab.wire.counters().unwrap().no_owner_dropped, 1);
}

#[test]
fn servers_in_the_mapping_service_are_reached_from_nodes() {
    if !root("servers_in_the_mapping_service_are_reached_from_nodes") {
        return;
    }
    let lab = Lab::new("wtm");
    let vpc = lab.wire.vpc_netns();
    for address in ["169.254.169.254:80", "198.18.255.1:4566"] {
        let source = seen_source(&lab.netns("a"), &vpc, address.parse().unwrap()).unwrap();
        assert_eq!(source, ip("10.0.0.10"), "by its source a server knows the instance");
        seen_source(&lab.netns("inet"), &vpc, address.parse().unwrap()).expect_err("not from the internet");
    }
    let listener = wire::listen(&vpc, "169.254.169.254:81".parse().unwrap()).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let taken = wire::listen(&vpc, "169.254.169.254:81".parse().unwrap()).unwrap_err();
    assert!(matches!(taken, WireError::Netns { what: "listen in it", .. }), "{taken}");
}

/// Namespaces that start with `name`.
fn namespaces(name: &str) -> Vec<String> {
    let Ok(names) = std::fs::read_dir("/run/netns") else { return Vec::new() };
    names.map(|n| n.unwrap().file_name().into_string().unwrap()).filter(|n| n.starts_with(name)).collect()
}

#[test]
fn nothing_is_left_behind() {
    if !root("nothing_is_left_behind") {
        return;
    }
    let name = wire::name_for_this_process("wtd");
    let spec = spec(&name);
    let wire = Wire::up(&spec).unwrap();
    assert_eq!(namespaces(&name).len(), 4);
    wire.down().unwrap();
    assert_eq!(namespaces(&name), Vec::<String>::new(), "after down");
    drop(Wire::up(&spec).unwrap());
    assert_eq!(namespaces(&name), Vec::<String>::new(), "after drop");

    let mut refused = spec.clone();
    refused.enis[2].ifname = "lo".into();
    let error = Wire::up(&refused).unwrap_err();
    assert!(matches!(error, WireError::Refused { .. }), "{error}");
    assert_eq!(namespaces(&name), Vec::<String>::new(), "after a failure half way");

    // A namespace that a socket keeps alive loses its links all the same.
    let wire = Wire::up(&spec).unwrap();
    let held = wire::listen(&format!("{name}-a"), "0.0.0.0:9".parse().unwrap()).unwrap();
    let also = wire::listen(&wire.vpc_netns(), "0.0.0.0:9".parse().unwrap()).unwrap();
    wire.down().unwrap();
    assert_eq!(namespaces(&name), Vec::<String>::new(), "with sockets open");
    drop((held, also));
}

#[test]
fn a_failed_apply_is_mended_by_the_next() {
    if !root("a_failed_apply_is_mended_by_the_next") {
        return;
    }
    let mut lab = Lab::new("wtf");
    let good = lab.spec.clone();
    lab.spec.enis[0].addresses.clear();
    lab.spec.enis[1].ifname = "lo".into();
    let error = lab.wire.apply(&lab.spec).unwrap_err();
    assert!(error.to_string().contains("peer name lo"), "{error}");
    lab.spec = good;
    lab.apply();
    assert!(lab.apply().is_empty());
    let a1 = lab.pod("a", "poda1", "10.0.0.11", "main");
    assert!(ping(&a1, "10.0.1.10"));
}

#[test]
fn sweep_removes_what_the_dead_left_and_spares_the_living() {
    if !root("sweep_removes_what_the_dead_left_and_spares_the_living") {
        return;
    }
    // A process that has ended, so its id belongs to nobody.
    let mut child = Command::new("true").spawn().unwrap();
    let dead = format!("wtw{}", child.id());
    child.wait().unwrap();
    let living = Wire::up(&spec(&wire::name_for_this_process("wtw"))).unwrap();
    std::mem::forget(Wire::up(&spec(&dead)).unwrap());
    assert_eq!(wire::sweep("wt").unwrap(), Vec::<String>::new(), "another prefix");
    let swept = wire::sweep("wtw").unwrap();
    assert_eq!(swept, ["a", "b", "inet", "vpc"].map(|rest| format!("{dead}-{rest}")));
    assert!(namespaces(&dead).is_empty());
    assert_eq!(namespaces(living.name()).len(), 4);
    assert!(Path::new("/run/netns").exists());
}

#[test]
fn a_spec_that_contradicts_itself_is_refused_before_anything_is_made() {
    let refusal = |change: fn(&mut WireSpec)| {
        let mut spec = spec("wtx1");
        change(&mut spec);
        match Wire::up(&spec) {
            Err(WireError::Spec(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    assert!(refusal(|s| s.name = "wtx".into()).contains("process id"));
    assert!(refusal(|s| s.name = "w/x1".into()).contains("lower-case"));
    assert!(refusal(|s| s.nodes[0].netns = "other".into()).contains("wtx1-"));
    assert!(refusal(|s| s.nodes[0].netns = "wtx1-vpc".into()).contains("twice"));
    assert!(refusal(|s| s.nodes[1].instance = "i-a".into()).contains("twice"));
    assert!(refusal(|s| s.enis[0].instance = "i-z".into()).contains("no node"));
    assert!(refusal(|s| s.enis[0].mac = "02:00; drop".into()).contains("MAC"));
    assert!(refusal(|s| s.enis[0].ifname = "much-too-long-a-name".into()).contains("interface name"));
    assert!(refusal(|s| s.enis[0].mtu = 9).contains("MTU"));
    assert!(refusal(|s| s.enis[1].ifname = "eth0".into()).contains("twice"));
    assert!(refusal(|s| s.enis[1].addresses.push(ip("10.0.0.12"))).contains("10.0.0.12/32 of eni-a1"));
    assert!(refusal(|s| s.enis[1].prefixes.push(net("10.0.0.0/28"))).contains("is also in 10.0.0.0/28"));
    assert!(refusal(|s| s.enis[1].primary = ip("10.7.0.1")).contains("not in its subnet"));
    assert!(namespaces("wtx1").is_empty());
}
