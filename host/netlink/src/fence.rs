//! Taking an address away from a sandbox for certain, so that another may have it.

use std::net::IpAddr;

use crate::conntrack;
use crate::error::{During, Error};
use crate::netns::{self, Found, NetnsRef};
use crate::pod::{FROM_POD_PRIORITY, TO_POD_PRIORITY};
use crate::rt::{Link, MAIN_TABLE, Rt, Rule};

/// The sandbox to be cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceTarget {
    /// The name of its veth's host end.
    pub host_ifname: String,
    /// The alias of that link; the empty string means *none* (made by another plugin).
    pub alias: String,
    /// Its addresses with their route tables.
    pub addresses: Vec<(IpAddr, u32)>,
    /// Its namespace, where it was recorded.
    pub netns: Option<NetnsRef>,
}

/// Cuts a sandbox off from its addresses: deletes its host veth, or without one takes the addresses from the links in
/// its recorded namespace; then rules, routes and tracked connections. When this returns `Ok`, the sandbox can neither
/// send from nor receive at these addresses, and the node knows nothing of them.
///
/// # Errors
/// When one step fails or an address is routed to a link of another sandbox (nothing is touched then): the addresses
/// must not be given to anyone. The other steps were still tried.
pub fn fence(target: &FenceTarget) -> Result<(), Error> {
    let mut host = Rt::open()?;
    let own = host.link(&target.host_ifname)?.filter(|link| link.owner() == target.alias);
    for (addr, _) in &target.addresses {
        refuse_foreign(&mut host, *addr, own.as_ref())?;
    }
    let mut errors = Vec::new();
    let cut = match &own {
        Some(link) => host.delete_link(link.index).during(|| format!("delete link {}", link.name)),
        None => target.netns.as_ref().map_or(Ok(()), |netns| strip(netns, &target.addresses)),
    };
    errors.extend(cut.err());
    for (addr, _) in &target.addresses {
        errors.extend(forget_address(&mut host, *addr).err());
    }
    let addresses: Vec<IpAddr> = target.addresses.iter().map(|(addr, _)| *addr).collect();
    errors.extend(conntrack::forget(&addresses).err());
    Error::all(errors)
}

/// A route to a link that is not the target's means that someone else has the address.
fn refuse_foreign(host: &mut Rt, addr: IpAddr, own: Option<&Link>) -> Result<(), Error> {
    let Some(route) = host.host_route(addr)? else { return Ok(()) };
    if own.is_some_and(|link| link.index == route.link) {
        return Ok(());
    }
    match host.link_by_index(route.link)? {
        None => Ok(()),
        Some(link) => Err(Error::HeldByOther { addr, owner: link.owner().to_owned(), link: link.name }),
    }
}

/// Takes the addresses from whatever link has them in the recorded namespace, if that still exists.
fn strip(netns: &NetnsRef, addresses: &[(IpAddr, u32)]) -> Result<(), Error> {
    let Found::Same(handle) = netns.find()? else { return Ok(()) };
    let mut pod = netns::route_socket(&handle, &netns.path)?;
    let mut errors = Vec::new();
    for found in pod.addresses()? {
        if addresses.iter().any(|(addr, _)| *addr == found.net.addr()) {
            let result = pod.delete_address(found.link, found.net);
            errors.extend(result.during(|| format!("take {} from the old sandbox", found.net)).err());
        }
    }
    Error::all(errors)
}

/// Rules and the route of an address on the host.
fn forget_address(host: &mut Rt, addr: IpAddr) -> Result<(), Error> {
    for rule in [Rule::to(TO_POD_PRIORITY, addr, 0), Rule::from(FROM_POD_PRIORITY, addr, 0)] {
        host.delete_rules(&rule).during(|| format!("delete rules {} of {addr}", rule.priority))?;
    }
    let Some(route) = host.host_route(addr)? else { return Ok(()) };
    debug_assert_eq!(route.table, MAIN_TABLE);
    host.delete_route(&route).during(|| format!("delete the route to {addr}"))
}
