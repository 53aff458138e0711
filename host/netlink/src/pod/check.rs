//! Comparing what is with what should be, and mending the host's side of it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use super::{FROM_POD_PRIORITY, PodAddress, PodLinks, PodNet, host_rules, is_main};
use crate::error::{During, Error};
use crate::netns;
use crate::rt::{Link, MAIN_TABLE, Route, Rt, Rule, mac_text};

/// One way in which a pod's interface is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Something is not there.
    Missing(String),
    /// Something is there but otherwise.
    Wrong {
        /// What.
        what: String,
        /// How it should be.
        expected: String,
        /// How it is.
        found: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing(what) => write!(f, "{what} is missing"),
            Difference::Wrong { what, expected, found } => write!(f, "{what} is {found}, should be {expected}"),
        }
    }
}

/// Gathers differences.
#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn missing(&mut self, what: impl Into<String>) {
        self.0.push(Difference::Missing(what.into()));
    }

    fn need(&mut self, there: bool, what: impl FnOnce() -> String) {
        if !there {
            self.missing(what());
        }
    }

    fn same<T: fmt::Display + PartialEq>(&mut self, what: impl FnOnce() -> String, expected: T, found: T) {
        if expected != found {
            let (expected, found) = (expected.to_string(), found.to_string());
            self.0.push(Difference::Wrong { what: what(), expected, found });
        }
    }
}

/// Compares the pod's interface with `net`; an empty list means that all is well.
///
/// # Errors
/// When it cannot be compared, for instance because the namespace is gone.
pub fn check(net: &PodNet) -> Result<Vec<Difference>, Error> {
    net.validate()?;
    let handle = netns::open(&net.netns)?;
    let mut pod = netns::route_socket(&handle, &net.netns)?;
    Ok(inspect(net, &mut Rt::open()?, &mut pod)?.0)
}

/// The differences, and the links when both are there.
pub(super) fn inspect(net: &PodNet, host: &mut Rt, pod: &mut Rt) -> Result<(Vec<Difference>, Option<PodLinks>), Error> {
    let mut differences = Differences::default();
    let host_link = host.link(&net.host_ifname)?;
    let pod_link = pod.link(&net.ifname)?;
    compare_link(net, &mut differences, &net.host_ifname, host_link.as_ref());
    compare_link(net, &mut differences, &net.ifname, pod_link.as_ref());
    let (Some(host_link), Some(pod_link)) = (host_link, pod_link) else {
        return Ok((differences.0, None));
    };
    differences.same(|| format!("the alias of {}", net.host_ifname), net.alias.as_str(), host_link.owner());
    compare_pod(net, &mut differences, pod, &pod_link, &host_link)?;
    for address in &net.addresses {
        compare_host(address, &mut differences, host, host_link.index)?;
    }
    compare_rules(&net.addresses, &mut differences, &host.rules()?);
    let links = PodLinks {
        host_ifname: host_link.name,
        host_mac: host_link.mac,
        pod_mac: pod_link.mac,
        host_ifindex: host_link.index,
    };
    Ok((differences.0, Some(links)))
}

fn compare_link(net: &PodNet, differences: &mut Differences, name: &str, link: Option<&Link>) {
    let Some(link) = link else { return differences.missing(format!("link {name}")) };
    differences.same(|| format!("the MTU of {name}"), net.mtu, link.mtu);
    differences.same(|| format!("link {name}"), "up", if link.up { "up" } else { "down" });
}

fn compare_pod(
    net: &PodNet,
    differences: &mut Differences,
    pod: &mut Rt,
    link: &Link,
    host_link: &Link,
) -> Result<(), Error> {
    let addresses = pod.addresses()?;
    for address in &net.addresses {
        let there = addresses.iter().any(|a| a.link == link.index && a.net.addr() == address.addr.addr());
        differences.need(there, || format!("address {} on {}", address.addr.addr(), net.ifname));
    }
    let rules = pod.rules()?;
    for plan in net.pod_routes() {
        let routes = pod.routes(plan.table)?;
        for wanted in plan.routes(link.index) {
            let there = routes.iter().any(|r| (r.to, r.gateway, r.link) == (wanted.to, wanted.gateway, wanted.link));
            differences.need(there, || format!("the pod's route to {}", wanted.to));
        }
        if let Some(rule) = plan.rule() {
            differences.need(rules.contains(&rule), || format!("the pod's rule for {}", plan.addr));
        }
        match pod.neighbour(link.index, plan.gateway)? {
            Some((mac, true)) => differences.same(
                || format!("the pod's neighbour {}", plan.gateway),
                mac_text(host_link.mac),
                mac_text(mac),
            ),
            _ => differences.missing(format!("the pod's permanent neighbour {}", plan.gateway)),
        }
    }
    Ok(())
}

fn compare_host(address: &PodAddress, differences: &mut Differences, host: &mut Rt, link: u32) -> Result<(), Error> {
    let addr = address.addr.addr();
    match host.host_route(addr)? {
        Some(route) => differences.same(|| format!("the link number of the route to {addr}"), link, route.link),
        None => differences.missing(format!("the route to {addr}")),
    }
    Ok(())
}

fn compare_rules(addresses: &[PodAddress], differences: &mut Differences, rules: &[Rule]) {
    for address in addresses {
        for rule in address.rules() {
            differences.need(rules.contains(&rule), || format!("rule {} for {}", rule.priority, address.addr.addr()));
        }
    }
}

/// A pod's address as the host should route it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// The name of the veth's host end.
    pub host_ifname: String,
    /// The alias it must have; the empty string means *none*.
    pub alias: String,
    /// The address.
    pub addr: IpAddr,
    /// Its route table; 0, 1 and 254 mean `main`.
    pub table: u32,
}

/// What [`repair`] did or could not do.
#[derive(Debug, Default)]
pub struct Repair {
    /// What was mended, in words.
    pub mended: Vec<String>,
    /// Addresses whose link is not there, so that there is nothing to route to.
    pub without_link: Vec<IpAddr>,
    /// What failed.
    pub errors: Vec<Error>,
}

/// Puts back routes and rules that someone removed or bent, for all addresses with one reading of the node. Rules 1536
/// of these addresses that name another table are removed.
///
/// # Errors
/// When the node's links, routes or rules cannot be read; single failures are in the answer.
pub fn repair(wanted: &[HostRoute]) -> Result<Repair, Error> {
    let mut host = Rt::open()?;
    let links: HashMap<String, Link> = host.links()?.into_iter().map(|link| (link.name.clone(), link)).collect();
    let routes: HashMap<IpAddr, Route> = host
        .routes(MAIN_TABLE)?
        .into_iter()
        .filter(|r| r.to.prefix_len() == r.to.max_prefix_len())
        .map(|r| (r.to.addr(), r))
        .collect();
    let rules = host.rules()?;
    let mut repair = Repair::default();
    for want in wanted {
        match links.get(&want.host_ifname).filter(|link| link.owner() == want.alias) {
            None => repair.without_link.push(want.addr),
            Some(link) => {
                let stands = routes.get(&want.addr).is_some_and(|route| route.link == link.index);
                let mended = mend_route(&mut host, want, link, stands).and_then(|mut done| {
                    done.extend(mend_rules(&mut host, want, &rules)?);
                    Ok(done)
                });
                match mended {
                    Ok(done) => repair.mended.extend(done),
                    Err(error) => repair.errors.push(error),
                }
            }
        }
    }
    Ok(repair)
}

fn mend_route(host: &mut Rt, want: &HostRoute, link: &Link, stands: bool) -> Result<Vec<String>, Error> {
    if stands {
        return Ok(Vec::new());
    }
    let what = format!("route to {} by {}", want.addr, link.name);
    host.replace_route(&Route::host(want.addr, link.index, MAIN_TABLE)).during(|| format!("put back the {what}"))?;
    Ok(vec![what])
}

fn mend_rules(host: &mut Rt, want: &HostRoute, rules: &[Rule]) -> Result<Vec<String>, Error> {
    let mut done = Vec::new();
    let wanted = host_rules(want.addr, want.table);
    let bent = |rule: &&Rule| {
        rule.priority == FROM_POD_PRIORITY
            && rule.from == Some(want.addr.into())
            && (is_main(want.table) || rule.table != want.table)
    };
    for rule in rules.iter().filter(bent) {
        let what = format!("rule {} of {} to table {}", rule.priority, want.addr, rule.table);
        host.delete_rules(rule).during(|| format!("remove the wrong {what}"))?;
        done.push(format!("removed {what}"));
    }
    for rule in wanted.iter().filter(|rule| !rules.contains(rule)) {
        let what = format!("rule {} of {}", rule.priority, want.addr);
        if host.add_rule(rule).during(|| format!("put back {what}"))? {
            done.push(what);
        }
    }
    Ok(done)
}
