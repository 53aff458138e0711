//! A node with two interfaces on a small VPC that drops what EC2 drops: addresses on the wrong interface, and sources
//! without a public address on their way out. Secondary interfaces, source NAT and connection marks, by real packets.

#![allow(clippy::unwrap_used)] // helpers outside #[test] functions are tests too

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Ns, pod_net};
use wipam_netlink::eni::{self, EniNet};
use wipam_netlink::node::{self, NodeNet, SnatPorts};
use wipam_netlink::pod;
use wipam_netlink::{Error, Mac};

const PRIMARY: Mac = [0x0a, 0, 0, 0, 0x0a, 0];
const SECONDARY: Mac = [0x0a, 0, 0, 0, 0x0a, 1];
const PATIENCE: Duration = Duration::from_secs(1);

/// The VPC, a node, a client inside the VPC and a host outside.
struct Vpc {
    router: Ns,
    node: Ns,
    client: Ns,
    outside: Ns,
}

impl Vpc {
    fn new() -> Vpc {
        let vpc = Vpc { router: Ns::new("r"), node: Ns::new("n"), client: Ns::new("c"), outside: Ns::new("o") };
        assert!(vpc.router.ok("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0"));
        vpc.port(&vpc.node, "eth0", "0a:00:00:00:0a:00", "ve0", &["10.0.0.10", "10.0.0.11"]);
        vpc.port(&vpc.node, "eth1", "0a:00:00:00:0a:01", "ve1", &["10.0.0.20", "10.0.0.21"]);
        vpc.port(&vpc.client, "eth0", "0a:00:00:00:0b:00", "vc", &["10.0.1.10"]);
        vpc.port(&vpc.outside, "eth0", "0a:00:00:00:0c:00", "igw", &["198.18.0.2"]);
        let filter = "table ip vpc { chain f { type filter hook forward priority 0; policy accept; \
            iifname ve0 ip saddr != { 10.0.0.10, 10.0.0.11 } counter drop; \
            iifname ve1 ip saddr != { 10.0.0.20, 10.0.0.21 } counter drop; \
            oifname igw ip saddr != 10.0.0.10 counter drop; }; }";
        vpc.router.nft(filter);
        for (ns, addr, gateway) in [
            (&vpc.node, "10.0.0.10/24", "10.0.0.1"),
            (&vpc.client, "10.0.1.10/24", "10.0.1.1"),
            (&vpc.outside, "198.18.0.2/24", "198.18.0.1"),
        ] {
            ns.ip("link set eth0 up");
            ns.ip(&format!("addr add {addr} dev eth0"));
            ns.ip(&format!("route add default via {gateway} dev eth0"));
        }
        vpc
    }

    /// An interface of `ns` whose other end, `name`, answers for every router address and owns `addresses`.
    fn port(&self, ns: &Ns, ifname: &str, mac: &str, name: &str, addresses: &[&str]) {
        let peer = format!("peer name {name} mtu 9001 netns {}", self.router.name);
        ns.ip(&format!("link add {ifname} address {mac} mtu 9001 type veth {peer}"));
        self.router.ip(&format!("link set {name} up"));
        let proxy = format!("sysctl -qw net.ipv4.conf.{name}.proxy_arp=1 net.ipv4.neigh.{name}.proxy_delay=0");
        assert!(self.router.ok(&proxy));
        for addr in addresses {
            let gateway = format!("{}.1", addr.rsplit_once('.').unwrap().0);
            self.router.try_ip(&format!("addr add {gateway}/32 dev {name}"));
            self.router.ip(&format!("route add {addr}/32 dev {name}"));
            self.router.ip(&format!("neigh add {addr} lladdr {mac} dev {name} nud permanent"));
        }
    }

    /// Interface 1 and a pod on it.
    fn with_pod(self) -> (Vpc, Ns) {
        let pod = Ns::new("p");
        self.node.inside(|| {
            eni::setup(&secondary(), soon()).unwrap();
            pod::setup(&pod_net(&pod, "c1", "10.0.0.21", 2)).unwrap();
        });
        (self, pod)
    }
}

impl Ns {
    fn nft(&self, commands: &str) {
        let mut args = vec!["netns", "exec", self.name.as_str(), "nft"];
        args.push(commands);
        let output = std::process::Command::new("ip").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn nft_json(&self, words: &str) -> Value {
        let output = self.exec(&format!("nft -j list {words}"));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn nft_text(&self) -> String {
        String::from_utf8(self.exec("nft -s list ruleset").stdout).unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn secondary() -> EniNet {
    EniNet {
        mac: SECONDARY,
        mtu: 9001,
        primary_ip: "10.0.0.20/24".parse().unwrap(),
        gateway: "10.0.0.1".parse().unwrap(),
        table: eni::table(0, 1),
    }
}

fn node_net() -> NodeNet {
    NodeNet {
        primary_mac: PRIMARY,
        primary_ip: Some(Ipv4Addr::new(10, 0, 0, 10)),
        vpc_cidrs: vec!["10.0.0.0/16".parse().unwrap()],
        exclude_snat_cidrs: vec!["100.64.0.0/10".parse().unwrap(), "192.0.2.7/32".parse().unwrap()],
        external_snat: false,
        node_port: true,
        connmark: 0x80,
        ports: SnatPorts::FullyRandom,
        veth_prefix: "eni".into(),
        mtu: Some(9001),
    }
}

#[test]
fn a_secondary_interface_is_set_up_idempotently_and_removed() {
    need_root!("a_secondary_interface_is_set_up_idempotently_and_removed");
    let vpc = Vpc::new();
    let node = &vpc.node;
    node.ip("addr add 10.0.0.77/24 dev eth1"); // what a DHCP client may have done
    node.ip("rule add pref 32765 from 10.0.0.20 lookup 9");
    assert_eq!(node.inside(|| eni::setup(&secondary(), soon())).unwrap(), "eth1");
    assert!(node.has_rule(32765, "from 10.0.0.20 lookup 2") && !node.has_rule(32765, "from 10.0.0.20 lookup 9"));
    let routes = node.ip("route show table 2");
    let routes: Vec<&str> = routes.lines().map(str::trim).collect();
    assert_eq!(routes, ["default via 10.0.0.1 dev eth1", "10.0.0.1 dev eth1 scope link"]);
    assert_eq!(node.route("10.0.0.0/24"), "10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.10");
    let addresses = node.ip("-4 -o addr show eth1");
    assert!(addresses.contains("10.0.0.20/24") && !addresses.contains("10.0.0.77"), "{addresses}");
    assert_eq!(node.exec("cat /proc/sys/net/ipv4/conf/eth1/rp_filter").stdout, b"2\n");
    assert!(node.ok("ping -c1 -W1 -I 10.0.0.20 10.0.1.10"), "its own address leaves by itself");

    let once = node.state();
    node.inside(|| eni::setup(&secondary(), soon())).unwrap();
    assert_eq!(node.state(), once);
    node.inside(|| eni::remove(secondary().primary_ip.addr(), 2)).unwrap();
    node.inside(|| eni::remove(secondary().primary_ip.addr(), 2)).unwrap();
    assert!(node.ip("route show table all").lines().all(|line| !line.contains("table 2")));
    assert!(!node.rules().iter().any(|(priority, _)| *priority == 32765));
}

#[test]
fn an_interface_that_does_not_come_is_an_error_and_main_is_refused() {
    need_root!("an_interface_that_does_not_come_is_an_error_and_main_is_refused");
    let node = Ns::new("n");
    let before = node.state();
    let error = node.inside(|| eni::setup(&secondary(), Instant::now())).unwrap_err();
    assert!(error.to_string().contains("0a:00:00:00:0a:01"), "{error}");
    let error = node.inside(|| eni::setup(&EniNet { table: 254, ..secondary() }, soon())).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)));
    assert_eq!(node.state(), before);
    // It comes late.
    let late = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.inside(|| eni::setup(&secondary(), Instant::now() + 10 * PATIENCE)));
        node.ip("link add eth1 address 0a:00:00:00:0a:01 type veth peer name x");
        node.ip("link set x up");
        waiting.join().unwrap()
    });
    assert_eq!(late.unwrap(), "eth1");
}

#[test]
fn the_node_is_set_up_idempotently_in_one_transaction() {
    need_root!("the_node_is_set_up_idempotently_in_one_transaction");
    let vpc = Vpc::new();
    let node = &vpc.node;
    node.nft("add table ip others");
    let before = (node.state(), node.nft_text());
    node.ip("rule add pref 1024 fwmark 0x40/0x40 lookup main"); // of an earlier setting
    assert_eq!(node.inside(|| node::setup(&node_net())).unwrap(), "eth0");
    let once = (node.state(), node.nft_text());
    println!("{}", once.1);
    assert!(node.has_rule(1024, "from all fwmark 0x80/0x80 lookup main"), "{:?}", node.rules());
    assert_eq!(node.rules().iter().filter(|(priority, _)| *priority == 1024).count(), 1);
    assert_eq!(node.exec("cat /proc/sys/net/ipv4/ip_forward").stdout, b"1\n");
    assert_eq!(node.exec("cat /proc/sys/net/ipv4/conf/eth0/rp_filter").stdout, b"2\n");
    node.inside(|| node::setup(&node_net())).unwrap();
    assert_eq!((node.state(), node.nft_text()), once);

    for part in [
        "type nat hook postrouting priority srcnat; policy accept;",
        "type filter hook prerouting priority mangle; policy accept;",
        "ip daddr 10.0.0.0/16 return",
        "ip daddr 192.0.2.7 return",
        "oifname != \"eni*\" fib daddr type != local snat to 10.0.0.10 fully-random",
        "iifname \"eth0\" fib daddr . iif type local ct mark set ct mark | 0x00000080",
        "ct mark & 0x00000080 != 0x00000000 meta mark set meta mark | 0x00000080",
    ] {
        assert!(once.1.contains(part), "{part} in\n{}", once.1);
    }
    let chains = node.nft_json("table ip wipam");
    let count = |kind: &str| chains["nftables"].as_array().unwrap().iter().filter(|o| o.get(kind).is_some()).count();
    assert_eq!((count("chain"), count("rule")), (4, 13));

    // What cannot be meant changes nothing.
    let bad = NodeNet { veth_prefix: "eni".into(), vpc_cidrs: Vec::new(), ..node_net() };
    node.inside(|| node::setup(&bad)).unwrap_err();
    assert_eq!(node.nft_text(), once.1);
    for round in 0..2 {
        node.inside(node::teardown).unwrap();
        assert_eq!((node.state(), node.nft_text()), before, "round {round}");
    }
}

#[test]
fn what_is_switched_off_is_not_there() {
    need_root!("what_is_switched_off_is_not_there");
    let vpc = Vpc::new();
    let set = |net: NodeNet| {
        vpc.node.inside(|| node::setup(&net)).unwrap();
        (vpc.node.nft_text(), vpc.node.rules().iter().any(|(priority, _)| *priority == 1024))
    };
    let (text, rule) = set(NodeNet { external_snat: true, vpc_cidrs: Vec::new(), ..node_net() });
    assert!(!text.contains("snat") && text.contains("fib daddr . iif") && rule, "{text}");
    let (text, rule) = set(NodeNet { node_port: false, ports: SnatPorts::Random, primary_ip: None, ..node_net() });
    assert!(text.contains("snat to 10.0.0.10 random") && !text.contains("fib daddr . iif") && rule, "{text}");
    let (text, _) = set(NodeNet { ports: SnatPorts::Kept, ..node_net() });
    assert!(text.contains("snat to 10.0.0.10 comment") || text.contains("snat to 10.0.0.10\n"), "{text}");
    let (text, rule) = set(NodeNet { node_port: false, external_snat: true, ..node_net() });
    assert!(!text.contains("chain") && !rule, "{text}");
    for bad in [NodeNet { connmark: 0, ..node_net() }, NodeNet { veth_prefix: String::new(), ..node_net() }] {
        assert!(matches!(vpc.node.inside(|| node::setup(&bad)), Err(Error::Invalid(_))));
    }
}

#[test]
fn pods_reach_the_world_by_the_primary_interface_and_the_vpc_by_their_own() {
    need_root!("pods_reach_the_world_by_the_primary_interface_and_the_vpc_by_their_own");
    let (vpc, pod) = Vpc::new().with_pod();
    let watch = "table ip w { chain i { type filter hook input priority 0; ip saddr 10.0.0.21 counter; }; }";
    vpc.client.nft(watch);
    assert!(!pod.ping("198.18.0.2"), "negative control: no source NAT yet");
    vpc.node.inside(|| node::setup(&node_net())).unwrap();
    assert!(pod.ping("198.18.0.2"), "{}", vpc.node.nft_text());
    assert!(pod.ok("ping -c3 -i0.2 -W1 198.18.0.2"), "packets after the first as well");
    assert!(pod.ping("10.0.1.10") && vpc.client.ping("10.0.0.21"));
    let counter = vpc.client.nft_json("table ip w").to_string();
    assert!(!counter.contains("\"packets\":0") && !counter.contains("\"packets\": 0"), "not translated: {counter}");

    vpc.node.ip("rule del pref 1024");
    assert!(!pod.ping("198.18.0.2"), "negative control: without the rule it leaves by the wrong interface");
    vpc.node.inside(|| node::setup(&node_net())).unwrap();
    vpc.node.ip("rule del pref 1536");
    assert!(!pod.ping("10.0.1.10"), "negative control: without rule 1536 the VPC drops the pod's packets");
}

/// Serves one connection in the pod, connects from the client to the node's port; true if an answer came.
fn node_port_answers(vpc: &Vpc, listener: &TcpListener) -> bool {
    let target: SocketAddr = "10.0.0.10:30080".parse().unwrap();
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&target, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).ok()?;
        Some(answer)
    };
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| vpc.client.inside(ask));
        let deadline = Instant::now() + 3 * PATIENCE;
        while Instant::now() < deadline && !asked.is_finished() {
            match listener.accept() {
                Ok((mut stream, _)) => drop(stream.write_all(b"hi")),
                Err(_) => std::thread::park_timeout(Duration::from_millis(10)),
            }
        }
        asked.join().unwrap() == Some(*b"hi")
    })
}

#[test]
fn node_port_replies_leave_by_the_primary_interface() {
    need_root!("node_port_replies_leave_by_the_primary_interface");
    let (vpc, pod) = Vpc::new().with_pod();
    // What kube-proxy does.
    vpc.node.nft(
        "table ip kp { chain p { type nat hook prerouting priority -100; \
         ip daddr 10.0.0.10 tcp dport 30080 dnat to 10.0.0.21:80; }; }",
    );
    let listener = pod.inside(|| TcpListener::bind("10.0.0.21:80")).unwrap();
    listener.set_nonblocking(true).unwrap();
    vpc.node.inside(|| node::setup(&NodeNet { node_port: false, ..node_net() })).unwrap();
    assert!(!node_port_answers(&vpc, &listener), "negative control: without the mark the reply leaves by interface 1");
    vpc.node.inside(|| node::setup(&node_net())).unwrap();
    assert!(node_port_answers(&vpc, &listener), "{}", vpc.node.nft_text());
    vpc.node.ip("rule del pref 1024");
    assert!(!node_port_answers(&vpc, &listener), "negative control: the mark alone does nothing");
}
