//! Taking pods' interfaces away. A tear-down may come late, when another pod has the name or the address: only what
//! carries the right alias, or what no link stands behind, is removed.

use std::net::IpAddr;

use super::{FROM_POD_PRIORITY, PodTeardown, TO_POD_PRIORITY};
use crate::error::{During, Error};
use crate::rt::{Link, LinkChange, MAIN_TABLE, Route, Rt, Rule};

/// Links about to be deleted together are put in this link group ("wipa"); one that is found in it later was left by a
/// process that died in between, and goes with the next batch.
const DOOMED: u32 = 0x7769_7061;

/// What a tear-down did. It goes on after an error, so it can have done things and failed at others.
#[derive(Debug, Default)]
pub struct TeardownReport {
    /// The links that were deleted (by [`unroute`]: set down), by host name.
    pub links: Vec<String>,
    /// Addresses left alone because a link that is not this sandbox's stands behind their route.
    pub kept: Vec<IpAddr>,
    /// What failed.
    pub errors: Vec<Error>,
}

impl TeardownReport {
    /// `Ok` with what was done when nothing failed.
    ///
    /// # Errors
    /// All that failed, as one error.
    pub fn into_result(mut self) -> Result<Self, Error> {
        Error::all(std::mem::take(&mut self.errors))?;
        Ok(self)
    }

    /// Notes an error and goes on.
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

/// Removes link, routes and rules of one interface and waits for the kernel to take the link away (20 ms). Never needs
/// the pod's namespace; what is already gone is fine.
pub fn teardown(pod: &PodTeardown) -> TeardownReport {
    teardown_many(std::slice::from_ref(pod))
}

/// As [`teardown`] for many interfaces with one wait for all links.
pub fn teardown_many(pods: &[PodTeardown]) -> TeardownReport {
    let mut report = TeardownReport::default();
    let Some(mut host) = report.note(Rt::open()) else { return report };
    let mut links = Vec::new();
    for pod in pods {
        links.extend(clear(&mut host, pod, &mut report));
    }
    delete(&mut host, &links, &mut report);
    report
}

/// The quick part of a tear-down: rules and routes go, the link is set down; the kernel is not waited for. The link
/// itself stays until [`teardown`] or the end of the pod's namespace.
pub fn unroute(pod: &PodTeardown) -> TeardownReport {
    unroute_many(std::slice::from_ref(pod))
}

/// As [`unroute`] for all interfaces of a pod.
pub fn unroute_many(pods: &[PodTeardown]) -> TeardownReport {
    let mut report = TeardownReport::default();
    let Some(mut host) = report.note(Rt::open()) else { return report };
    for pod in pods {
        if let Some(link) = clear(&mut host, pod, &mut report) {
            let down = LinkChange { up: Some(false), ..LinkChange::default() };
            let result = host.change_link(link.index, &down).during(|| format!("set {} down", link.name));
            if report.note(result).is_some() {
                report.links.push(link.name);
            }
        }
    }
    report
}

/// Removes routes and rules; returns the sandbox's own link, if it is there.
fn clear(host: &mut Rt, pod: &PodTeardown, report: &mut TeardownReport) -> Option<Link> {
    let found = host.link(&pod.host_ifname);
    let own = report.note(found).flatten().filter(|link| link.owner() == pod.alias);
    let addresses = match (&own, pod.addresses.as_slice()) {
        (Some(link), []) => report.note(routed_to(host, link)).unwrap_or_default(),
        (_, known) => known.iter().map(|(addr, _)| *addr).collect(),
    };
    for addr in addresses {
        match may_clear(host, addr, own.as_ref()) {
            Ok((false, _)) => report.kept.push(addr),
            Ok((true, route)) => clear_address(host, addr, route, report),
            Err(error) => report.errors.push(error),
        }
    }
    own
}

/// The addresses behind a link, for a tear-down that was told none.
fn routed_to(host: &mut Rt, link: &Link) -> Result<Vec<IpAddr>, Error> {
    let single = |r: &Route| r.link == link.index && r.on_link && r.to.prefix_len() == r.to.max_prefix_len();
    Ok(host.routes(MAIN_TABLE)?.iter().filter(|r| single(r)).map(|r| r.to.addr()).collect())
}

/// Whether the address's route is this sandbox's, or nobody's, and the route.
fn may_clear(host: &mut Rt, addr: IpAddr, own: Option<&Link>) -> Result<(bool, Option<Route>), Error> {
    let Some(route) = host.host_route(addr)? else { return Ok((true, None)) };
    let ours = own.is_some_and(|link| link.index == route.link);
    Ok((ours || host.link_by_index(route.link)?.is_none(), Some(route)))
}

/// Route and rules of one address, whatever table the rules name (it may have changed since).
fn clear_address(host: &mut Rt, addr: IpAddr, route: Option<Route>, report: &mut TeardownReport) {
    for rule in [Rule::to(TO_POD_PRIORITY, addr, 0), Rule::from(FROM_POD_PRIORITY, addr, 0)] {
        let result = host.delete_rules(&rule).during(|| format!("delete rules {} of {addr}", rule.priority));
        report.note(result);
    }
    if let Some(route) = route {
        let result = host.delete_route(&route).during(|| format!("delete the route to {addr}"));
        report.note(result);
    }
}

/// Deletes links with as few waits as possible.
fn delete(host: &mut Rt, links: &[Link], report: &mut TeardownReport) {
    if let [link] = links {
        let result = host.delete_link(link.index).during(|| format!("delete link {}", link.name));
        if report.note(result).is_some() {
            report.links.push(link.name.clone());
        }
        return;
    }
    let doomed = LinkChange { group: Some(DOOMED), ..LinkChange::default() };
    let mut grouped = Vec::new();
    for link in links {
        match host.change_link(link.index, &doomed) {
            Err(refusal) if refusal.errno == rustix::io::Errno::NODEV => {} // its namespace ended meanwhile
            moved => {
                let moved = moved.during(|| format!("move link {} to the group to be deleted", link.name));
                grouped.extend(report.note(moved).map(|()| link.name.clone()));
            }
        }
    }
    if grouped.is_empty() {
        return;
    }
    let result = host.delete_group(DOOMED).during(|| format!("delete links {}", grouped.join(", ")));
    if report.note(result).is_some() {
        report.links.append(&mut grouped);
    }
}
