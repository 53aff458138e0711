//! What to tell `ip` and `nft`: pure functions from a spec, and from what there is, to their input.
//!
//! How an address works: the mapping service has a route to it behind the ENI's link. Routes to secondary addresses and
//! to prefixes go through the ENI's primary address, which has a permanent neighbour entry with the ENI's MAC, so an ENI
//! has one neighbour entry however many addresses it owns. Proxy ARP answers a node that asks for an address behind
//! another ENI. Addresses of the VPC without a route fall into a blackhole, for which the kernel answers no ARP.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::Deserialize;

use super::netns::PORT_GROUP;
use super::{Changes, EniSpec, INTERNET_HOST, WireError, WireSpec, tools};

/// Both ends of the link between the mapping service and the internet.
const IGW: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));

/// Links made later inherit the `default` ones.
pub(super) const VPC_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/default/proxy_arp", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// A fresh node. A new namespace inherits the machine's settings, whatever they are, so each is said.
pub(super) const NODE_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv4/conf/all/accept_local", "0"),
    ("ipv4/conf/default/accept_local", "0"),
];

/// The packet filter of the mapping service. There is no connection tracking in it, so nothing can outlive the address
/// it was for.
pub(super) const RULES: &str = r#"
table ip vpc {
  counter spoofed_dropped { }
  counter no_public_dropped { }
  counter no_owner_dropped { }
  counter forwarded { }
  counter to_internet { }
  counter from_internet { }
  set own { type ifname . ipv4_addr; flags interval; }
  set with_public { type ipv4_addr; }
  map public { type ipv4_addr : ipv4_addr; }
  map private { type ipv4_addr : ipv4_addr; }
  map spoofed_by { type ifname : counter; }
  chain spoofed {
    counter name iifname map @spoofed_by
    counter name "spoofed_dropped" drop
  }
  chain from_gateway {
    ip daddr set ip daddr map @private accept
    drop
  }
  chain arrive {
    type filter hook prerouting priority raw; policy accept;
    iifname "igw" goto from_gateway
    iifname "eni*" iifname . ip saddr != @own goto spoofed
    iifname "eni*" fib daddr type != local fib daddr oif missing counter name "no_owner_dropped" drop
  }
  chain cross {
    type filter hook forward priority filter; policy drop;
    iifname "eni*" oifname "eni*" counter name "forwarded" accept
    iifname "eni*" oifname "igw" ip saddr != @with_public counter name "no_public_dropped" drop
    iifname "eni*" oifname "igw" counter name "to_internet" accept
    iifname "igw" oifname "eni*" ip daddr @with_public counter name "from_internet" accept
  }
  chain leave {
    type filter hook postrouting priority srcnat; policy accept;
    oifname "igw" ip saddr set ip saddr map @public
  }
}
"#;

/// What does not change while the wire is up: loopback addresses and the internet gateway.
pub(super) fn mapping_service(spec: &WireSpec, inet: &str) -> String {
    let (ours, theirs) = IGW;
    format!(
        "addr add {}/32 dev lo\n\
         addr add {}/32 dev lo\n\
         link add igw group {PORT_GROUP} type veth peer name eth0 netns {inet}\n\
         addr add {ours}/30 dev igw\n\
         link set igw up\n\
         route add default via {theirs} dev igw\n",
        spec.imds, spec.api
    )
}

/// The other end of the gateway.
pub(super) fn internet() -> String {
    let (ours, theirs) = IGW;
    format!(
        "addr add {INTERNET_HOST}/32 dev lo\n\
         addr add {theirs}/30 dev eth0\n\
         link set eth0 up\n\
         route add default via {ours} dev eth0\n"
    )
}

/// The name of the counter of foreign sources that came from `port`.
pub(super) fn counter_of(port: &str) -> String {
    format!("spoofed-{port}")
}

/// What the mapping service has now.
#[derive(Debug, Default)]
pub(super) struct Actual {
    /// Name of the link → its alias, see [`fingerprint`].
    ports: BTreeMap<String, String>,
    /// Destination → the link it is behind; `None` for the blackholes.
    routes: BTreeMap<Ipv4Net, Option<String>>,
}

impl Actual {
    pub(super) fn read(vpc: &str) -> Result<Self, WireError> {
        #[derive(Deserialize)]
        struct Link {
            ifname: String,
            #[serde(default)]
            ifalias: String,
        }
        #[derive(Deserialize)]
        struct Route {
            dst: String,
            dev: Option<String>,
        }
        let links: Vec<Link> = tools::ip_json(vpc, &["link", "show"])?;
        let routes: Vec<Route> = tools::ip_json(vpc, &["route", "show"])?;
        let ports = links.into_iter().filter(|link| link.ifname.starts_with("eni"));
        // Without a length it is one address; `default` is neither.
        let dst = |text: &str| text.parse::<Ipv4Net>().or_else(|_| text.parse::<Ipv4Addr>().map(Ipv4Net::from)).ok();
        Ok(Self {
            ports: ports.map(|link| (link.ifname, link.ifalias)).collect(),
            routes: routes
                .into_iter()
                .filter(|route| route.dev.as_deref().is_none_or(|dev| dev.starts_with("eni")))
                .filter_map(|route| Some((dst(&route.dst)?, route.dev)))
                .collect(),
        })
    }
}

/// Everything about an ENI's link that cannot be changed in place. It is the alias of the link's end in the mapping
/// service; a link that says anything else is replaced.
fn fingerprint(eni: &EniSpec) -> String {
    let EniSpec { eni_id, instance, ifname, mac, primary, subnet, mtu, device_index, .. } = eni;
    format!("{eni_id},{instance},{device_index},{ifname},{mac},{primary},{subnet},{mtu}")
}

fn eni_of(fingerprint: &str) -> String {
    fingerprint.split(',').next().unwrap_or_default().to_owned()
}

/// Every address, as /32, and prefix of an ENI.
fn owned(eni: &EniSpec) -> impl Iterator<Item = Ipv4Net> + '_ {
    std::iter::once(eni.primary).chain(eni.addresses.iter().copied()).map(Ipv4Net::from).chain(eni.prefixes.clone())
}

/// The router of a subnet.
fn router(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()) + 1)
}

/// The commands that make a wire what the spec says.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// For `ip` in the mapping service, before the filter is loaded.
    pub(super) remove: String,
    /// For `nft` in the mapping service: all elements of all sets.
    pub(super) elements: String,
    /// For `ip` in the mapping service, after the filter was loaded.
    pub(super) add: String,
    /// Namespace and commands for `ip` in it: what DHCP does.
    pub(super) primaries: Vec<(String, String)>,
    /// ENI id → link.
    pub(super) ports: BTreeMap<String, String>,
    pub(super) next_port: u32,
}

/// Compares, writes the commands and notes in `changes` what they change.
pub(super) fn plan(spec: &WireSpec, actual: &Actual, next_port: u32, changes: &mut Changes) -> Plan {
    let mut plan = Plan { next_port, ..Plan::default() };
    plan_links(spec, actual, &mut plan, changes);
    plan_routes(spec, actual, &mut plan, changes);
    plan.elements = elements(spec, &plan.ports);
    plan
}

fn plan_links(spec: &WireSpec, actual: &Actual, plan: &mut Plan, changes: &mut Changes) {
    let wanted: BTreeMap<String, &EniSpec> = spec.enis.iter().map(|eni| (fingerprint(eni), eni)).collect();
    for (port, alias) in &actual.ports {
        if let Some(eni) = wanted.get(alias) {
            plan.ports.insert(eni.eni_id.clone(), port.clone());
        } else {
            line(&mut plan.remove, format_args!("link del {port}"));
            changes.detached.push(eni_of(alias));
        }
    }
    let netns: BTreeMap<&str, &str> = spec.nodes.iter().map(|n| (n.instance.as_str(), n.netns.as_str())).collect();
    for (alias, eni) in wanted {
        if plan.ports.contains_key(&eni.eni_id) {
            continue;
        }
        let port = format!("eni{}", plan.next_port);
        plan.next_port += 1;
        let node = netns[eni.instance.as_str()];
        let EniSpec { ifname, mac, mtu, primary, subnet, .. } = eni;
        let peer = format!("peer name {ifname} address {mac} mtu {mtu} netns {node}");
        line(&mut plan.add, format_args!("link add {port} mtu {mtu} group {PORT_GROUP} type veth {peer}"));
        line(&mut plan.add, format_args!("link set {port} up"));
        // Else the kernel waits up to 0.8 s before it answers ARP for another.
        line(&mut plan.add, format_args!("ntable change name arp_cache dev {port} proxy_delay 0"));
        line(&mut plan.add, format_args!("neigh replace {primary} lladdr {mac} dev {port} nud permanent"));
        line(&mut plan.add, format_args!("addr replace {}/32 dev lo", router(*subnet)));
        // Last, so that a link which was not finished is known by its missing alias.
        line(&mut plan.add, format_args!("link set {port} alias {alias}"));
        if eni.device_index == 0 {
            let (len, router) = (subnet.prefix_len(), router(*subnet));
            let dhcp = format!(
                "link set {ifname} up\naddr add {primary}/{len} brd + dev {ifname}\nroute add default via {router} dev {ifname}\n"
            );
            plan.primaries.push((node.to_owned(), dhcp));
        }
        changes.attached.push(eni.eni_id.clone());
        plan.ports.insert(eni.eni_id.clone(), port);
    }
}

fn plan_routes(spec: &WireSpec, actual: &Actual, plan: &mut Plan, changes: &mut Changes) {
    let mut wanted: BTreeMap<Ipv4Net, Option<(&EniSpec, String)>> =
        spec.vpc_cidrs.iter().map(|cidr| (cidr.trunc(), None)).collect();
    for eni in &spec.enis {
        wanted.extend(owned(eni).map(|dst| (dst, Some((eni, plan.ports[&eni.eni_id].clone())))));
    }
    let id = |port: &str| actual.ports.get(port).map(|alias| eni_of(alias)).unwrap_or_default();
    for (dst, dev) in &actual.routes {
        let now = wanted.get(dst).map(|w| w.as_ref().map(|(_, port)| port));
        if now == Some(dev.as_ref()) {
            continue;
        }
        let Some(dev) = dev else {
            line(&mut plan.remove, format_args!("route del blackhole {dst}"));
            continue;
        };
        // The routes behind a link go with it.
        if plan.ports.values().any(|port| port == dev) {
            line(&mut plan.remove, format_args!("route del {dst} dev {dev}"));
        }
        changes.unassigned.push((id(dev), *dst));
    }
    for (dst, target) in wanted {
        let port = target.as_ref().map(|(_, port)| port);
        if actual.routes.get(&dst).map(Option::as_ref) == Some(port) {
            continue;
        }
        let Some((eni, port)) = target else {
            line(&mut plan.add, format_args!("route replace blackhole {dst}"));
            continue;
        };
        let via =
            if dst == Ipv4Net::from(eni.primary) { String::new() } else { format!("via {} onlink ", eni.primary) };
        line(&mut plan.add, format_args!("route replace {dst} {via}dev {port}"));
        changes.assigned.push((eni.eni_id.clone(), dst));
    }
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{args}");
}

/// All elements of all sets, as one transaction that replaces the former ones.
fn elements(spec: &WireSpec, ports: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut own = Vec::new();
    let mut counters = Vec::new();
    for eni in &spec.enis {
        let port = &ports[&eni.eni_id];
        own.extend(owned(eni).map(|net| match net.prefix_len() {
            32 => format!("\"{port}\" . {}", net.addr()),
            _ => format!("\"{port}\" . {net}"),
        }));
        line(&mut text, format_args!("add counter ip vpc {} {{ }}", counter_of(port)));
        counters.push(format!("\"{port}\" : \"{}\"", counter_of(port)));
    }
    let public: Vec<_> = spec.enis.iter().filter_map(|eni| Some((eni.primary, eni.public?))).collect();
    let pairs = |f: fn(&(Ipv4Addr, Ipv4Addr)) -> String| public.iter().map(f).collect::<Vec<_>>();
    replace(&mut text, "set", "own", &own);
    replace(&mut text, "map", "spoofed_by", &counters);
    replace(&mut text, "set", "with_public", &pairs(|(private, _)| private.to_string()));
    replace(&mut text, "map", "public", &pairs(|(private, public)| format!("{private} : {public}")));
    replace(&mut text, "map", "private", &pairs(|(private, public)| format!("{public} : {private}")));
    text
}

fn replace(text: &mut String, kind: &str, name: &str, elements: &[String]) {
    line(text, format_args!("flush {kind} ip vpc {name}"));
    if !elements.is_empty() {
        line(text, format_args!("add element ip vpc {name} {{ {} }}", elements.join(", ")));
    }
}

/// Whether the spec is consistent, so that nothing is begun that cannot be finished.
pub(super) fn check(spec: &WireSpec) -> Result<(), WireError> {
    let fail = |text: String| Err(WireError::Spec(text));
    let name = spec.name.as_str();
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if letters.is_empty() || letters.len() == name.len() || !letters.bytes().all(|b| b.is_ascii_lowercase()) {
        return fail(format!("name {name:?}: lower-case letters and then the process id are wanted, such as w1234"));
    }
    let mut namespaces = BTreeSet::from([super::vpc_netns(name), super::inet_netns(name)]);
    let mut instances = BTreeSet::new();
    for node in &spec.nodes {
        let rest = node.netns.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
        if rest.is_empty() || !rest.bytes().all(word) {
            return fail(format!(
                "namespace {:?}: it must be {name}- and letters, digits, '-', '_' or '.'",
                node.netns
            ));
        }
        if !namespaces.insert(node.netns.clone()) || !instances.insert(node.instance.as_str()) {
            return fail(format!("node {} ({}) is there twice", node.instance, node.netns));
        }
    }
    check_enis(spec, &instances).map_or(Ok(()), fail)
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// What is wrong with the ENIs.
fn check_enis(spec: &WireSpec, instances: &BTreeSet<&str>) -> Option<String> {
    let mut seen = BTreeSet::new();
    let mut owners: Vec<(Ipv4Net, &str)> = Vec::new();
    for eni in &spec.enis {
        let EniSpec { eni_id, instance, ifname, mac, mtu, .. } = eni;
        let mac_ok = mac.len() == 17 && mac.bytes().all(|b| b == b':' || b.is_ascii_hexdigit());
        let ifname_ok = (1..=15).contains(&ifname.len()) && ifname.bytes().all(word);
        if eni_id.is_empty() || !eni_id.bytes().all(word) || !ifname_ok || !mac_ok {
            return Some(format!("ENI {eni_id:?}: bad id, interface name {ifname:?} or MAC {mac:?}"));
        }
        if !(576..=65535).contains(mtu) {
            return Some(format!("ENI {eni_id}: MTU {mtu} is not between 576 and 65535"));
        }
        if !instances.contains(instance.as_str()) {
            return Some(format!("ENI {eni_id} is attached to {instance}, which is no node of this spec"));
        }
        if !eni.subnet.contains(&eni.primary) {
            return Some(format!("ENI {eni_id}: {} is not in its subnet {}", eni.primary, eni.subnet));
        }
        // Other indexes may repeat: each network card of an instance has its own.
        let primary = (eni.device_index == 0).then(|| format!("{instance} device index 0"));
        for key in [eni_id.clone(), mac.to_lowercase(), format!("{instance} {ifname}")].into_iter().chain(primary) {
            if !seen.insert(key.clone()) {
                return Some(format!("ENI {eni_id}: {key} is there twice"));
            }
        }
        owners.extend(owned(eni).map(|net| (net.trunc(), eni_id.as_str())));
    }
    owners.sort();
    let twice = owners.windows(2).find(|pair| pair[0].0.contains(&pair[1].0))?;
    Some(format!("{} of {} is also in {} of {}", twice[1].0, twice[1].1, twice[0].0, twice[0].1))
}
