//! Fencing, liveness and namespaces, checked with `ip` and by real packets.

#![allow(clippy::unwrap_used)] // helpers outside #[test] functions are tests too

mod support;

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use support::{Ns, pod_net};
use wipam_netlink::fence::{FenceTarget, fence};
use wipam_netlink::liveness::{Liveness, LivenessQuery, alive};
use wipam_netlink::netns::{self, NetnsRef};
use wipam_netlink::pod::{self, PodNet};
use wipam_netlink::{Error, conntrack};

fn target(net: &PodNet) -> FenceTarget {
    FenceTarget {
        host_ifname: net.host_ifname.clone(),
        alias: net.alias.clone(),
        addresses: net.teardown().addresses,
        netns: Some(netns::identify(&net.netns).unwrap()),
    }
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn fencing_a_live_sandbox_takes_everything_from_it() {
    need_root!("fencing_a_live_sandbox_takes_everything_from_it");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let clean = host.state();
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    let target = target(&net);
    host.inside(|| fence(&target)).unwrap();
    assert_eq!(host.state(), clean);
    assert!(!pod.has_link("eth0"));
    host.inside(|| fence(&target)).expect("a second fence finds nothing");
}

#[test]
fn without_a_host_link_the_address_is_taken_in_the_namespace() {
    need_root!("without_a_host_link_the_address_is_taken_in_the_namespace");
    let (host, pod, successor) = (Ns::new("h"), Ns::new("p"), Ns::new("s"));
    // Made by another plugin: the host never saw a veth of that name, but rules are there.
    pod.ip("link add eth0 type bridge");
    pod.ip("link set eth0 up");
    pod.ip("addr add 10.0.0.21/24 dev eth0");
    pod.ip("addr add 10.9.0.99/24 dev eth0");
    let clean = host.state();
    host.ip("rule add pref 512 to 10.0.0.21 lookup main");
    host.ip("rule add pref 1536 from 10.0.0.21 lookup 3");
    let mut target = target(&pod_net(&pod, "c1", "10.0.0.21", 3));
    let right = target.netns.clone().unwrap();

    // A namespace that is only the successor at the path is not touched.
    successor.ip("link add eth0 type bridge");
    successor.ip("addr add 10.0.0.21/24 dev eth0");
    target.netns = Some(NetnsRef { path: successor.path(), inode: right.inode });
    host.inside(|| fence(&target)).unwrap();
    assert!(successor.ip("addr show eth0").contains("10.0.0.21"));

    target.netns = Some(right);
    host.inside(|| fence(&target)).unwrap();
    let left = pod.ip("addr show eth0");
    assert!(!left.contains("10.0.0.21") && left.contains("10.9.0.99"), "{left}");
    assert_eq!(host.state(), clean);

    target.netns = Some(NetnsRef { path: "/run/netns/wnl-gone".into(), inode: 1 });
    host.inside(|| fence(&target)).expect("a namespace that ended needs no fence");
    target.netns = Some(NetnsRef { path: "/nowhere/wnl-gone".into(), inode: 1 });
    host.inside(|| fence(&target)).expect_err("whether it ended cannot be told without its directory");
}

#[test]
fn an_address_of_another_sandbox_is_not_taken() {
    need_root!("an_address_of_another_sandbox_is_not_taken");
    let (host, old, new) = (Ns::new("h"), Ns::new("o"), Ns::new("n"));
    let stale = pod_net(&old, "c1", "10.0.0.21", 2);
    let holder = PodNet { host_ifname: stale.host_ifname.clone(), ..pod_net(&new, "c2", "10.0.0.21", 2) };
    host.inside(|| pod::setup(&holder)).unwrap();
    let before = host.state();
    let error = host.inside(|| fence(&target(&stale))).unwrap_err();
    assert!(matches!(error, Error::HeldByOther { .. }), "{error}");
    assert!(error.to_string().contains("wipam:c2:eth0"), "{error}");
    assert_eq!(host.state(), before);
}

#[test]
fn tracked_connections_of_the_address_are_forgotten_and_others_are_not() {
    need_root!("tracked_connections_of_the_address_are_forgotten_and_others_are_not");
    let (host, a, b) = (Ns::new("h"), Ns::new("a"), Ns::new("b"));
    host.ip("addr add 10.0.0.10/32 dev lo");
    // Something that tracks connections.
    assert!(host.ok("nft add table ip t") && host.ok("nft add chain ip t c { type filter hook input priority 0 ; }"));
    assert!(host.ok("nft add rule ip t c ct state established accept"));
    let (first, second) = (pod_net(&a, "c1", "10.0.0.21", 0), pod_net(&b, "c2", "10.0.0.22", 0));
    host.inside(|| pod::setup(&first)).unwrap();
    host.inside(|| pod::setup(&second)).unwrap();
    assert!(a.ping("10.0.0.10") && b.ping("10.0.0.10"));
    let tracked = || String::from_utf8(host.exec("conntrack -L").stdout).unwrap();
    assert!(tracked().contains("10.0.0.21") && tracked().contains("10.0.0.22"), "{}", tracked());
    host.inside(|| fence(&target(&first))).unwrap();
    assert!(!tracked().contains("10.0.0.21") && tracked().contains("10.0.0.22"), "{}", tracked());
    assert_eq!(host.inside(|| conntrack::forget(&[addr("10.0.0.22"), addr("fd00::1")])).unwrap(), 1);
    assert_eq!(host.inside(|| conntrack::forget(&[addr("10.0.0.22")])).unwrap(), 0);
}

#[test]
fn namespaces_are_told_apart() {
    need_root!("namespaces_are_told_apart");
    let pod = Ns::new("p");
    pod.ip("addr add 10.0.0.21/32 dev lo");
    let seen = netns::identify(&pod.path()).unwrap();
    assert!(netns::has_address(&seen, addr("10.0.0.21")).unwrap());
    assert!(!netns::has_address(&seen, addr("10.0.0.22")).unwrap());
    let before = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let inside = netns::in_netns(&pod.path(), || std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    assert_eq!(inside, seen.inode);
    assert_eq!(std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino(), before, "the caller stays where it was");
    let other = NetnsRef { inode: seen.inode + 1, ..seen };
    assert!(!netns::has_address(&other, addr("10.0.0.21")).unwrap());
}

#[test]
fn what_cannot_be_told_counts_as_alive() {
    need_root!("what_cannot_be_told_counts_as_alive");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    // An address no other test's namespace has: the question is asked of the whole machine.
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = format!("10.200.{high}.{low}");
    let own = own.as_str();
    let net = pod_net(&pod, "c1", own, 2);
    host.inside(|| pod::setup(&net)).unwrap();
    let seen = netns::identify(&net.netns).unwrap();
    let ask = |netns: Option<NetnsRef>, address: &str| {
        host.inside(|| alive(&LivenessQuery { addresses: vec![addr(address)], netns }))
    };
    assert_eq!(ask(Some(seen.clone()), own), Liveness::Alive);
    assert_eq!(ask(Some(seen.clone()), "10.0.0.99"), Liveness::Gone);
    assert_eq!(ask(Some(NetnsRef { inode: 1, ..seen.clone() }), own), Liveness::Gone);
    assert_eq!(ask(None, own), Liveness::Alive, "a link stands behind its route");
    host.ip(&format!("route del {own}"));
    assert_eq!(ask(None, own), Liveness::Alive, "a namespace on this host has it");
    pod.ip(&format!("addr del {own}/32 dev eth0"));
    assert_eq!(ask(None, own), Liveness::Gone);

    for path in ["/nowhere/wnl", "/proc/self/status"] {
        let answer = ask(Some(NetnsRef { path: path.into(), inode: 1 }), own);
        assert!(matches!(&answer, Liveness::Unknown(_)) && answer.counts_as_alive(), "{path}: {answer:?}");
    }
    let path = pod.path();
    drop(pod);
    assert_eq!(ask(Some(NetnsRef { path, ..seen }), own), Liveness::Gone);
    assert_eq!(ask(Some(NetnsRef { path: "/proc/4194305/ns/net".into(), inode: 1 }), own), Liveness::Gone);
}
