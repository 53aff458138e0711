//! A secondary network interface: its address, its own route table, the rule that sends its own traffic there.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::error::{During, Error};
use crate::rt::{Link, LinkChange, MAIN_TABLE, Mac, Route, Rt, Rule, mac_text};
use crate::sysctl;

/// Priority of the rule for packets from an interface's own address.
pub const FROM_ENI_PRIORITY: u32 = 32765;

/// Global scope of an address.
const GLOBAL: u8 = 0;

/// A secondary network interface as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EniNet {
    /// Its MAC address, by which it is found.
    pub mac: Mac,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Its primary address with the subnet's prefix length.
    pub primary_ip: IpNet,
    /// The subnet's router (base address + 1).
    pub gateway: IpAddr,
    /// Its route table ([`table`]); never `main`.
    pub table: u32,
}

/// The route table of the interface with that device number on that network card: `main` for the primary one,
/// device + 1 on card 0, 10000 + 100 · card + device on others.
pub fn table(card: u32, device: u32) -> u32 {
    match (card, device) {
        (0, 0) => MAIN_TABLE,
        (0, device) => device + 1,
        (card, device) => 10_000 + 100 * card + device,
    }
}

/// Brings the interface up, waiting until `deadline` for a link with its MAC address. Returns the link's name. A second
/// call finds all in place and changes nothing.
///
/// # Errors
/// Naming the step. Nothing is undone: the next call goes on from there, and nothing uses the table until it is whole.
pub fn setup(eni: &EniNet, deadline: Instant) -> Result<String, Error> {
    if matches!(eni.table, 0 | MAIN_TABLE) {
        return Err(Error::Invalid(format!(
            "interface {} shall use route table {}; only the primary interface has main",
            mac_text(eni.mac),
            eni.table
        )));
    }
    let mut host = Rt::open()?;
    let link = wait_for_mac(&mut host, eni.mac, deadline)?;
    let name = link.name.clone();
    sysctl::set(&format!("ipv4/conf/{name}/rp_filter"), "2")?;
    let up = LinkChange { up: Some(true), mtu: Some(eni.mtu), ..LinkChange::default() };
    host.change_link(link.index, &up).during(|| format!("set {name} up with MTU {}", eni.mtu))?;
    set_address(&mut host, &link, eni.primary_ip)?;
    set_routes(&mut host, &link, eni)?;
    let rule = Rule::from(FROM_ENI_PRIORITY, eni.primary_ip.addr(), eni.table);
    for stale in host.rules()?.iter().filter(|r| r.from == rule.from && r.priority == rule.priority && **r != rule) {
        host.delete_rules(stale).during(|| format!("delete the stale rule from {}", eni.primary_ip.addr()))?;
    }
    host.add_rule(&rule).during(|| format!("add the rule from {}", eni.primary_ip.addr()))?;
    Ok(name)
}

/// Finds the hardware link (or veth) with a MAC address, waiting until `deadline`.
fn wait_for_mac(host: &mut Rt, mac: Mac, deadline: Instant) -> Result<Link, Error> {
    const PAUSE: Duration = Duration::from_millis(100);
    let start = Instant::now();
    loop {
        if let Some(link) = link_with_mac(host, mac)? {
            return Ok(link);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(Error::NoLinkWithMac { mac: mac_text(mac), waited_ms: start.elapsed().as_millis() });
        }
        std::thread::park_timeout(PAUSE.min(deadline - now));
    }
}

/// The link with a MAC address, bridges and stacked devices apart (they borrow theirs).
pub(crate) fn link_with_mac(host: &mut Rt, mac: Mac) -> Result<Option<Link>, Error> {
    let mut links = host.links()?.into_iter().filter(|link| link.mac == mac);
    Ok(links.find(|link| matches!(link.kind.as_deref(), None | Some("veth" | "tun"))))
}

/// The primary address alone: others of global scope were put there by someone (DHCP) and would send from them.
fn set_address(host: &mut Rt, link: &Link, wanted: IpNet) -> Result<(), Error> {
    let mut there = false;
    for found in host.addresses()?.into_iter().filter(|a| a.link == link.index && a.scope == GLOBAL) {
        if found.net == wanted {
            there = true;
        } else if found.net.addr().is_ipv6() == wanted.addr().is_ipv6() {
            let action = || format!("remove {} from {}", found.net, link.name);
            host.delete_address(link.index, found.net).during(action)?;
        }
    }
    // Deleting another address of the subnet may have taken this one along.
    there &= host.addresses()?.iter().any(|a| a.link == link.index && a.net == wanted);
    if there {
        return Ok(());
    }
    host.add_address(link.index, wanted).during(|| format!("add {wanted} to {}", link.name))
}

/// Gateway and default route in the interface's table, and no route to the subnet by this interface in `main`.
fn set_routes(host: &mut Rt, link: &Link, eni: &EniNet) -> Result<(), Error> {
    let wanted =
        [Route::host(eni.gateway, link.index, eni.table), Route::default_via(eni.gateway, link.index, eni.table)];
    for route in &wanted {
        host.replace_route(route).during(|| format!("add the route to {} in table {}", route.to, eni.table))?;
    }
    let subnet = eni.primary_ip.trunc();
    let connected = |route: &&Route| route.link == link.index && route.to == subnet && route.gateway.is_none();
    for route in host.routes(MAIN_TABLE)?.iter().filter(connected) {
        let action = || format!("delete {subnet} by {} from main", link.name);
        host.delete_route(route).during(action)?;
    }
    Ok(())
}

/// Forgets an interface that is being detached: all rules from its primary address, and its table's routes.
///
/// # Errors
/// What could not be removed; the rest was.
pub fn remove(primary_ip: IpAddr, table: u32) -> Result<(), Error> {
    let mut host = Rt::open()?;
    let mut errors = Vec::new();
    for rule in host.rules()?.iter().filter(|rule| rule.from == Some(primary_ip.into())) {
        let action = || format!("delete rule {} from {primary_ip}", rule.priority);
        errors.extend(host.delete_rules(rule).during(action).err());
    }
    if !matches!(table, 0 | MAIN_TABLE) {
        for route in &host.routes(table)? {
            let action = || format!("delete the route to {} from table {table}", route.to);
            errors.extend(host.delete_route(route).during(action).err());
        }
    }
    Error::all(errors)
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_never_meet() {
        assert_eq!((table(0, 0), table(0, 1), table(0, 14)), (254, 2, 15));
        assert_eq!((table(1, 0), table(1, 1), table(2, 7)), (10_100, 10_101, 10_207));
    }
}
