//! Pods in throw-away namespaces, checked with `ip`.

#![allow(clippy::unwrap_used)] // helpers outside #[test] functions are tests too

mod support;

use std::time::Instant;

use support::{Ns, pod_net};
use wipam_netlink::pod::{self, Difference, HostRoute, PodAddress, PodNet, PodTeardown};
use wipam_netlink::{Error, mac_text, names, node};

#[test]
fn a_pod_is_set_up_as_the_reference_says() {
    need_root!("a_pod_is_set_up_as_the_reference_says");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    let links = host.inside(|| pod::setup(&net)).unwrap();

    let link = &host.json(&format!("link show {}", net.host_ifname))[0];
    assert_eq!(link["ifalias"], "wipam:c1:eth0");
    assert_eq!((&link["mtu"], &link["operstate"]), (&9001.into(), &"UP".into()));
    assert_eq!(link["address"], mac_text(links.host_mac).as_str());
    assert_eq!(link["ifindex"], links.host_ifindex);
    assert_eq!(host.route("10.0.0.21"), format!("10.0.0.21 dev {} scope link", net.host_ifname));
    assert!(host.has_rule(512, "from all to 10.0.0.21 lookup main"), "{:?}", host.rules());
    assert!(host.has_rule(1536, "from 10.0.0.21 lookup 2"), "{:?}", host.rules());
    let sysctl = |name: &str| {
        let output = host.exec(&format!("cat /proc/sys/net/{}", name.replace("IF", &net.host_ifname)));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(sysctl("ipv4/conf/IF/rp_filter"), "2");
    assert_eq!(sysctl("ipv6/conf/IF/accept_ra"), "0");
    assert_eq!(sysctl("ipv6/conf/IF/forwarding"), "0");

    let inner = &pod.json("link show eth0")[0];
    assert_eq!((&inner["mtu"], &inner["address"]), (&9001.into(), &mac_text(links.pod_mac).as_str().into()));
    assert!(pod.ip("-4 -o addr show eth0").contains("inet 10.0.0.21/32 scope global eth0"));
    assert_eq!(pod.route("default"), "default via 169.254.1.1 dev eth0");
    assert_eq!(pod.route("169.254.1.1"), "169.254.1.1 dev eth0 scope link");
    let neighbour = pod.ip("neigh show 169.254.1.1");
    assert!(neighbour.contains(&mac_text(links.host_mac)) && neighbour.contains("PERMANENT"), "{neighbour}");
    assert_eq!(host.inside(|| pod::check(&net)).unwrap(), []);
}

#[test]
fn set_up_twice_and_torn_down_twice_is_the_same_as_once() {
    need_root!("set_up_twice_and_torn_down_twice_is_the_same_as_once");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let (clean, clean_pod) = (host.state(), pod.state());
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    let first = host.inside(|| pod::setup(&net)).unwrap();
    let once = (host.state(), pod.state());
    let second = host.inside(|| pod::setup(&net)).unwrap();
    assert_eq!((first, once), (second, (host.state(), pod.state())), "a perfect interface is kept");

    pod.ip("route del default");
    host.inside(|| pod::setup(&net)).unwrap();
    assert_eq!(host.inside(|| pod::check(&net)).unwrap(), [], "a damaged one is made anew");

    for round in 0..2 {
        let report = host.inside(|| pod::teardown(&net.teardown())).into_result().unwrap();
        assert_eq!(report.links.len(), 1 - round);
        assert_eq!((host.state(), pod.state()), (clean.clone(), clean_pod.clone()));
    }
}

#[test]
fn half_a_pod_is_torn_down() {
    need_root!("half_a_pod_is_torn_down");
    let host = Ns::new("h");
    let clean = host.state();
    let damages: [&dyn Fn(&PodNet); 4] = [
        &|_| host.ip_void("rule del pref 512"),
        &|_| host.ip_void("route del 10.0.0.21"),
        &|net| host.ip_void(&format!("link del {}", net.host_ifname)),
        &|_| host.ip_void("rule del pref 1536"),
    ];
    for damage in damages {
        let pod = Ns::new("p");
        let net = pod_net(&pod, "c1", "10.0.0.21", 2);
        host.inside(|| pod::setup(&net)).unwrap();
        damage(&net);
        host.inside(|| pod::teardown(&net.teardown())).into_result().unwrap();
        assert_eq!(host.state(), clean);
    }
    // Nobody remembers the addresses.
    let pod = Ns::new("p");
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    let forgetful = PodTeardown { addresses: Vec::new(), ..net.teardown() };
    host.inside(|| pod::teardown(&forgetful)).into_result().unwrap();
    assert_eq!(host.state(), clean);
    // A namespace that is gone takes the link away by itself; rules stay for the tear-down.
    let pod = Ns::new("p");
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    drop(pod);
    host.inside(|| pod::teardown(&net.teardown())).into_result().unwrap();
    assert_eq!(host.state(), clean);
}

#[test]
fn rules_of_a_drifted_table_go_with_the_pod() {
    need_root!("rules_of_a_drifted_table_go_with_the_pod");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let clean = host.state();
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    host.ip("rule add pref 1536 from 10.0.0.21 to 10.0.0.0/16 lookup 7");
    host.inside(|| pod::teardown(&net.teardown())).into_result().unwrap();
    assert_eq!(host.state(), clean);
}

#[test]
fn every_failure_undoes_what_was_done() {
    need_root!("every_failure_undoes_what_was_done");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    let fails = |net: &PodNet| {
        let before = (host.state(), pod.state());
        let error = host.inside(|| pod::setup(net)).unwrap_err();
        assert_eq!((host.state(), pod.state()), before, "after {error}");
        error.to_string()
    };
    let missing = PodNet { netns: "/run/netns/wnl-not-there".into(), ..net.clone() };
    assert!(fails(&missing).contains("wnl-not-there"));
    let plain = PodNet { netns: "/proc/self/status".into(), ..net.clone() };
    assert!(fails(&plain).contains("not a network namespace"));
    assert!(fails(&PodNet { mtu: 40, ..net.clone() }).contains("create veth"));
    assert!(fails(&PodNet { alias: "x".repeat(300), ..net.clone() }).contains("255"));
    let twice = PodNet { addresses: [net.addresses[0]; 2].to_vec(), ..net.clone() };
    assert!(fails(&twice).contains("add address"));

    pod.ip("link add other type veth peer name peer");
    pod.ip("link set other up");
    pod.ip("route add default dev other");
    assert!(fails(&net).contains("route"), "the pod has a default route already");
    pod.ip("link del other");
    pod.ip("link add eth0 type veth peer name peer");
    let error = fails(&net);
    assert!(error.contains("eth0 already exists"), "{error}");
    pod.ip("link del eth0");

    // The node takes no IPv6, so the second address fails after the first has its route and rules: they go, and what
    // stood there before comes back.
    assert!(host.ok("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"));
    host.ip("link add old type veth peer name oldp");
    host.ip("link set old up");
    host.ip("route add 10.0.0.21 dev old scope link");
    host.ip("rule add pref 512 to 10.0.0.21 lookup main");
    let late = PodNet {
        addresses: vec![net.addresses[0], PodAddress::new("fd00:1::21".parse().unwrap(), 2, 1)],
        ..net.clone()
    };
    let error = fails(&late);
    assert!(error.contains("route to fd00:1::21"), "{error}");
    assert!(host.route("10.0.0.21").starts_with("10.0.0.21 dev old scope link"));
    host.inside(|| pod::setup(&net)).unwrap();
    assert!(host.route("10.0.0.21").contains(&net.host_ifname), "a stale route is replaced");
}

#[test]
fn a_stale_link_is_replaced_and_a_foreign_one_is_not() {
    need_root!("a_stale_link_is_replaced_and_a_foreign_one_is_not");
    let (host, old, new) = (Ns::new("h"), Ns::new("o"), Ns::new("n"));
    let first = pod_net(&old, "c1", "10.0.0.21", 2);
    let second = PodNet { host_ifname: first.host_ifname.clone(), ..pod_net(&new, "c2", "10.0.0.22", 0) };
    host.inside(|| pod::setup(&first)).unwrap();
    host.inside(|| pod::setup(&second)).unwrap();
    assert_eq!(host.inside(|| pod::check(&second)).unwrap(), []);
    assert!(!old.has_link("eth0"));
    host.inside(|| pod::teardown(&second.teardown())).into_result().unwrap();

    host.ip(&format!("link add {} type veth peer name x", second.host_ifname));
    host.inside(|| pod::setup(&second)).expect("a link without alias is replaced");
    host.inside(|| pod::teardown(&second.teardown())).into_result().unwrap();

    for (make, owner) in [("type veth peer name x", "calico:1"), ("type bridge", "")] {
        host.ip(&format!("link add {} {make}", second.host_ifname));
        if !owner.is_empty() {
            host.ip(&format!("link set {} alias {owner}", second.host_ifname));
        }
        let before = host.state();
        let error = host.inside(|| pod::setup(&second)).unwrap_err();
        assert!(matches!(error, Error::NameTaken { .. }), "{error}");
        assert_eq!(host.state(), before);
        host.ip(&format!("link del {}", second.host_ifname));
    }
}

#[test]
fn a_late_tear_down_removes_nothing_of_the_newer_pod() {
    need_root!("a_late_tear_down_removes_nothing_of_the_newer_pod");
    let (host, old, new) = (Ns::new("h"), Ns::new("o"), Ns::new("n"));
    let first = pod_net(&old, "c1", "10.0.0.21", 2);
    // The same pod in a new sandbox: same link name, same address.
    let second = PodNet { host_ifname: first.host_ifname.clone(), ..pod_net(&new, "c2", "10.0.0.21", 2) };
    host.inside(|| pod::setup(&first)).unwrap();
    host.inside(|| pod::setup(&second)).unwrap();
    let standing = host.state();
    for late in [pod::teardown, pod::unroute] {
        let report = host.inside(|| late(&first.teardown())).into_result().unwrap();
        assert_eq!((report.links.len(), report.kept.len()), (0, 1));
        assert_eq!(host.state(), standing);
    }
    // The address went to another pod, with another link name.
    host.inside(|| pod::teardown(&second.teardown())).into_result().unwrap();
    let third = pod_net(&new, "c3", "10.0.0.21", 3);
    host.inside(|| pod::setup(&third)).unwrap();
    let standing = host.state();
    let report = host.inside(|| pod::teardown(&first.teardown())).into_result().unwrap();
    assert_eq!(report.kept, ["10.0.0.21".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(host.state(), standing);
}

#[test]
fn unroute_leaves_only_the_link_and_does_not_wait() {
    need_root!("unroute_leaves_only_the_link_and_does_not_wait");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let clean = host.state();
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    let report = host.inside(|| pod::unroute(&net.teardown())).into_result().unwrap();
    assert_eq!(report.links, std::slice::from_ref(&net.host_ifname));
    assert!(host.json(&format!("link show {}", net.host_ifname))[0]["operstate"] != "UP");
    assert_eq!(host.route("10.0.0.21"), "");
    assert!(!host.rules().iter().any(|(priority, _)| matches!(priority, 512 | 1536)));
    host.inside(|| pod::unroute(&net.teardown())).into_result().unwrap();
    host.inside(|| pod::teardown(&net.teardown())).into_result().unwrap();
    assert_eq!(host.state(), clean);
}

#[test]
fn repair_puts_back_what_someone_removed() {
    need_root!("repair_puts_back_what_someone_removed");
    let (host, pod, other) = (Ns::new("h"), Ns::new("p"), Ns::new("p"));
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    let untouched = pod_net(&other, "c2", "10.0.0.22", 0);
    host.inside(|| pod::setup(&net)).unwrap();
    host.inside(|| pod::setup(&untouched)).unwrap();
    let whole = |net: &PodNet| HostRoute {
        host_ifname: net.host_ifname.clone(),
        alias: net.alias.clone(),
        addr: net.addresses[0].addr.addr(),
        table: net.addresses[0].table,
    };
    let gone = HostRoute { alias: "wipam:c9:eth0".into(), ..whole(&net) };
    let wanted = [whole(&net), whole(&untouched), gone];
    let repair = host.inside(|| pod::repair(&wanted)).unwrap();
    assert!(repair.mended.is_empty() && repair.errors.is_empty(), "{repair:?}");
    assert_eq!(repair.without_link.len(), 1);

    host.ip("rule del pref 512 to 10.0.0.21");
    host.ip("rule del pref 1536 from 10.0.0.21");
    host.ip("rule add pref 1536 from 10.0.0.21 lookup 9");
    host.ip("route del 10.0.0.21");
    let found = host.inside(|| pod::check(&net)).unwrap();
    assert!(found.contains(&Difference::Missing("the route to 10.0.0.21".into())), "{found:?}");
    let repair = host.inside(|| pod::repair(&wanted)).unwrap();
    assert_eq!((repair.mended.len(), repair.errors.len()), (4, 0), "{repair:?}");
    assert_eq!(host.inside(|| pod::check(&net)).unwrap(), []);
    assert!(!host.has_rule(1536, "from 10.0.0.21 lookup 9"));
}

#[test]
fn check_names_each_difference() {
    need_root!("check_names_each_difference");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let net = pod_net(&pod, "c1", "10.0.0.21", 2);
    host.inside(|| pod::setup(&net)).unwrap();
    pod.ip("link set eth0 mtu 1400");
    pod.ip("neigh replace 169.254.1.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    pod.ip("route del default");
    host.ip(&format!("link set {} alias wipam:c2:eth0", net.host_ifname));
    let found: Vec<String> = host.inside(|| pod::check(&net)).unwrap().iter().map(ToString::to_string).collect();
    for part in ["MTU of eth0 is 1400", "neighbour 169.254.1.1 is 02:00", "route to 0.0.0.0/0 is missing", "alias of"] {
        assert!(found.iter().any(|text| text.contains(part)), "{part} in {found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn two_pods_and_the_node_reach_each_other() {
    need_root!("two_pods_and_the_node_reach_each_other");
    let (host, a, b) = (Ns::new("h"), Ns::new("a"), Ns::new("b"));
    host.ip("addr add 10.0.0.10/32 dev lo");
    assert!(host.ok("sysctl -qw net.ipv4.ip_forward=1"));
    host.inside(|| pod::setup(&pod_net(&a, "c1", "10.0.0.21", 0))).unwrap();
    host.inside(|| pod::setup(&pod_net(&b, "c2", "10.0.0.22", 3))).unwrap();
    assert!(a.ping("10.0.0.22") && b.ping("10.0.0.21") && host.ping("10.0.0.22") && b.ping("10.0.0.10"));
    assert!(a.ok("ping -c1 -W1 -M do -s 8973 10.0.0.22"), "the whole MTU");
    host.inside(|| pod::unroute(&pod_net(&b, "c2", "10.0.0.22", 3).teardown())).into_result().unwrap();
    assert!(!a.ping("10.0.0.22"), "negative control");
}

#[test]
fn several_interfaces_and_both_families_live_in_one_pod() {
    need_root!("several_interfaces_and_both_families_live_in_one_pod");
    let (host, pod) = (Ns::new("h"), Ns::new("p"));
    let clean = host.state();
    let mut first = pod_net(&pod, "c1", "10.0.0.21", 2);
    first.addresses.push(PodAddress::new("fd00:1::21".parse().unwrap(), 2, 1));
    let mut second = pod_net(&pod, "c1", "10.0.0.31", 10_100);
    second.ifname = "net1".into();
    second.alias = names::alias("c1", "net1");
    second.host_ifname = names::host_veth_for("eni", "test", &pod.name, "net1");
    second.addresses[0].index = names::pod_index("net1");
    host.ip("addr add 10.0.0.10/32 dev lo");
    host.ip("addr add fd00:1::10/128 dev lo");
    for net in [&first, &second] {
        host.inside(|| pod::setup(net)).unwrap();
        assert_eq!(host.inside(|| pod::check(net)).unwrap(), []);
    }
    assert_eq!(pod.ip("route show table 1 default").trim(), "default via 169.254.1.2 dev net1 src 10.0.0.31");
    assert!(pod.has_rule(1, "from 10.0.0.31 lookup 1"));
    assert!(host.has_rule(1536, "from 10.0.0.31 lookup 10100"));
    assert!(host.ping("10.0.0.21") && host.ping("10.0.0.31") && host.ping("fd00:1::21"));
    host.ip("addr del 10.0.0.10/32 dev lo");
    host.ip("addr del fd00:1::10/128 dev lo");
    host.inside(|| pod::teardown_many(&[first.teardown(), second.teardown()])).into_result().unwrap();
    assert_eq!(host.state(), clean);
}

#[test]
fn forty_links_cost_few_waits() {
    need_root!("forty_links_cost_few_waits");
    let host = Ns::new("h");
    let clean = host.state();
    let pods: Vec<Ns> = (0..41).map(|_| Ns::new("p")).collect();
    let nets: Vec<PodNet> =
        pods.iter().enumerate().map(|(i, p)| pod_net(p, &format!("c{i}"), &format!("10.0.1.{i}"), 2)).collect();
    host.inside(|| nets.iter().for_each(|net| drop(pod::setup(net).unwrap())));
    let observed = host.inside(node::observe).unwrap();
    assert_eq!(observed.carried().len(), 41);
    assert_eq!(observed.table_of("10.0.1.7".parse().unwrap()), Some(2));
    assert_eq!(observed.link_of("10.0.1.7".parse().unwrap()).unwrap().alias.as_deref(), Some("wipam:c7:eth0"));

    let start = Instant::now();
    host.inside(|| pod::teardown(&nets[0].teardown())).into_result().unwrap();
    let one = start.elapsed();
    let all: Vec<_> = nets.iter().map(PodNet::teardown).collect();
    let start = Instant::now();
    let report = host.inside(|| pod::teardown_many(&all)).into_result().unwrap();
    let forty = start.elapsed();
    assert_eq!(report.links.len(), 40);
    assert_eq!(host.state(), clean);
    println!("one {one:?}, forty {forty:?}");
    assert!(forty < one * 20, "forty links took {forty:?}, one {one:?}");
}

impl Ns {
    fn ip_void(&self, words: &str) {
        self.ip(words);
    }
}
