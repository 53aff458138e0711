//! Making a pod's interface. The usual case costs about ten messages; whatever stands in the way is looked at only when
//! the kernel says that it does.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;

use super::check::inspect;
use super::{PodLinks, PodNet};
use crate::error::{During, Error};
use crate::names::ALIAS_PREFIX;
use crate::netns;
use crate::rt::{LinkChange, MAIN_TABLE, Mac, Route, Rt, Rule, Veth};
use crate::sysctl;

/// Reverse path filter *loose*: replies may come back by another interface.
const LOOSE: u32 = 2;

/// Makes the interface as `net` says. A link of that host name that is ours (or has no alias) is replaced, except when
/// it is this very interface in perfect order, which is kept untouched.
///
/// # Errors
/// Naming the step. Everything done before the failure is undone.
pub fn setup(net: &PodNet) -> Result<PodLinks, Error> {
    net.validate()?;
    let handle = netns::open(&net.netns)?;
    let mut host = Rt::open()?;
    let mut pod = netns::route_socket(&handle, &net.netns)?;
    if let Some(links) = make_veth(net, &mut host, &mut pod)? {
        return Ok(links);
    }
    let mut undo = Undo::default();
    build(net, &handle, &mut host, &mut pod, &mut undo).map_err(|cause| undo.run(net, &mut host, cause))
}

/// What to take back when a later step fails. The link takes its own routes, addresses and neighbours with it.
#[derive(Default)]
struct Undo {
    rules: Vec<Rule>,
    /// Routes to our addresses that led elsewhere before.
    routes: Vec<Route>,
}

impl Undo {
    fn run(self, net: &PodNet, host: &mut Rt, cause: Error) -> Error {
        let mut left = Vec::new();
        let link = host.link(&net.host_ifname).and_then(|link| match link {
            Some(link) => host.delete_link(link.index).during(|| format!("delete link {}", net.host_ifname)),
            None => Ok(()),
        });
        left.extend(link.err());
        for rule in &self.rules {
            left.extend(host.delete_rules(rule).during(|| format!("delete rule {rule:?}")).err());
        }
        for route in &self.routes {
            left.extend(host.replace_route(route).during(|| format!("restore the route to {}", route.to)).err());
        }
        if left.is_empty() { cause } else { Error::NotUndone { cause: Box::new(cause), left } }
    }
}

/// Makes the pair; returns the links when the whole interface already stands as wanted.
fn make_veth(net: &PodNet, host: &mut Rt, pod: &mut Rt) -> Result<Option<PodLinks>, Error> {
    let here = netns::open(Path::new("/proc/thread-self/ns/net"))?;
    let (host_mac, pod_mac) = (random_mac()?, random_mac()?);
    let veth =
        Veth { host: &net.host_ifname, host_mac, pod: &net.ifname, pod_mac, host_netns: here.as_fd(), mtu: net.mtu };
    match pod.create_veth(&veth) {
        Err(refusal) if refusal.errno == Errno::EXIST => {}
        made => return made.during(|| format!("create veth {} for {}", net.host_ifname, net.ifname)).map(|()| None),
    }
    if let Some(links) = clear_the_way(net, host, pod)? {
        return Ok(Some(links));
    }
    match pod.create_veth(&veth) {
        Err(refusal) if refusal.errno == Errno::EXIST => Err(pod_side_exists(net)),
        made => made.during(|| format!("create veth {} for {}", net.host_ifname, net.ifname)).map(|()| None),
    }
}

fn pod_side_exists(net: &PodNet) -> Error {
    Error::PodInterfaceExists { ifname: net.ifname.clone(), netns: net.netns.clone() }
}

/// Something has one of the two names. Removes it if it is ours to remove.
fn clear_the_way(net: &PodNet, host: &mut Rt, pod: &mut Rt) -> Result<Option<PodLinks>, Error> {
    let Some(old) = host.link(&net.host_ifname)? else {
        return Err(pod_side_exists(net));
    };
    if old.owner() == net.alias {
        let (differences, links) = inspect(net, host, pod)?;
        if differences.is_empty() {
            return Ok(links);
        }
    }
    let ours = old.alias.as_ref().is_none_or(|alias| alias.starts_with(ALIAS_PREFIX));
    if !ours || old.kind.as_deref() != Some("veth") {
        let kind = old.kind.unwrap_or_else(|| "a device".to_owned());
        return Err(Error::NameTaken { name: old.name, owner: old.alias.unwrap_or(kind) });
    }
    host.delete_link(old.index).during(|| format!("delete the stale link {}", old.name))?;
    Ok(None)
}

/// Everything after the pair exists.
fn build(net: &PodNet, handle: &File, host: &mut Rt, pod: &mut Rt, undo: &mut Undo) -> Result<PodLinks, Error> {
    let gone = |name: &str| Error::NoLink(name.to_owned());
    let host_link = host.link(&net.host_ifname)?.ok_or_else(|| gone(&net.host_ifname))?;
    quiet_ipv6(&net.host_ifname)?;
    let change =
        LinkChange { up: Some(true), alias: Some(&net.alias), rp_filter: Some(LOOSE), ..LinkChange::default() };
    host.change_link(host_link.index, &change).during(|| format!("set {} up", net.host_ifname))?;
    let pod_link = pod.link(&net.ifname)?.ok_or_else(|| gone(&net.ifname))?;
    if net.addresses.iter().any(|a| a.addr.addr().is_ipv6()) {
        allow_ipv6(net, handle)?;
    }
    fill_pod(net, pod, pod_link.index, host_link.mac)?;
    for address in &net.addresses {
        let addr = address.addr.addr();
        route_to_pod(host, &Route::host(addr, host_link.index, MAIN_TABLE), undo)?;
        if addr.is_ipv6() {
            // Else the host could ask for the pod's MAC address only once its own link-local address has passed
            // duplicate detection, a second from now.
            host.set_neighbour(host_link.index, addr, pod_link.mac)
                .during(|| format!("write neighbour {addr} down"))?;
        }
        for rule in address.rules() {
            if host.add_rule(&rule).during(|| format!("add rule {} for {}", rule.priority, address.addr))? {
                undo.rules.push(rule);
            }
        }
    }
    Ok(PodLinks {
        host_ifname: net.host_ifname.clone(),
        host_mac: host_link.mac,
        pod_mac: pod_link.mac,
        host_ifindex: host_link.index,
    })
}

/// Addresses, routes, rules and the gateway's neighbour entries inside the pod.
fn fill_pod(net: &PodNet, pod: &mut Rt, link: u32, host_mac: Mac) -> Result<(), Error> {
    for address in &net.addresses {
        let addr = address.addr.addr();
        pod.add_address(link, addr.into()).during(|| format!("add address {addr} to {}", net.ifname))?;
    }
    for plan in net.pod_routes() {
        for route in plan.routes(link) {
            pod.add_route(&route).during(|| format!("add the pod's route to {} by {}", route.to, net.ifname))?;
        }
        if let Some(rule) = plan.rule() {
            pod.add_rule(&rule).during(|| format!("add the pod's rule for {}", plan.addr))?;
        }
        pod.set_neighbour(link, plan.gateway, host_mac)
            .during(|| format!("write the pod's neighbour {} down", plan.gateway))?;
    }
    Ok(())
}

/// The host's route to an address. One that led elsewhere is stale (the address was given to this pod), but comes back
/// should the set-up fail.
fn route_to_pod(host: &mut Rt, route: &Route, undo: &mut Undo) -> Result<(), Error> {
    let action = || format!("add the route to {}", route.to);
    match host.add_route(route) {
        Err(refusal) if refusal.errno == Errno::EXIST => {}
        added => return added.during(action),
    }
    let before = host.host_route(route.to.addr())?;
    host.replace_route(route).during(action)?;
    undo.routes.extend(before.filter(|old| old.link != route.link));
    Ok(())
}

/// A host end neither believes routers behind it nor is one in IPv6's eyes; before it is up.
fn quiet_ipv6(link: &str) -> Result<(), Error> {
    for (name, value) in [("accept_ra", "0"), ("accept_redirects", "1"), ("forwarding", "0")] {
        sysctl::set_if_present(&format!("ipv6/conf/{link}/{name}"), value)?;
    }
    Ok(())
}

/// Runtimes switch IPv6 off in pods; one that gets such an address wants it.
fn allow_ipv6(net: &PodNet, handle: &File) -> Result<(), Error> {
    netns::inside(handle, &net.netns, || {
        sysctl::set_if_present("ipv6/conf/lo/disable_ipv6", "0")?;
        sysctl::set_if_present(&format!("ipv6/conf/{}/disable_ipv6", net.ifname), "0")
    })?
}

/// A locally administered unicast address. With 46 random bits nobody needs to look whether it is taken.
fn random_mac() -> Result<Mac, Error> {
    let mut mac = [0; 6];
    rustix::rand::getrandom(&mut mac, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)
        .during(|| "read random bytes for a MAC address".to_owned())?;
    mac[0] = (mac[0] & 0xfc) | 0x02;
    Ok(mac)
}
