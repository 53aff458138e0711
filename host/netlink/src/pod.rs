//! One interface of a pod: a veth pair, addresses, routes and the rules that choose the outgoing network interface.
//!
//! Inside the pod, a gateway nobody has (169.254.1.1) stands in the neighbour table for good with the host end's MAC
//! address, so every packet reaches the host without ARP. On the host each address has a route to its veth, a rule
//! *to* it (priority 512, `main`) and, unless its interface is the primary one, a rule *from* it (priority 1536, the
//! interface's table).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::IpNet;

use crate::error::Error;
use crate::names::{MAX_ALIAS, MAX_IFNAME};
use crate::rt::{MAIN_TABLE, Mac, Route, Rule};

mod check;
mod setup;
mod teardown;

pub use check::{Difference, HostRoute, Repair, check, repair};
pub use setup::setup;
pub use teardown::{TeardownReport, teardown, teardown_many, unroute, unroute_many};

/// Priority of the rule for packets to a pod.
pub const TO_POD_PRIORITY: u32 = 512;
/// Priority of the rule for packets from a pod.
pub const FROM_POD_PRIORITY: u32 = 1536;
/// Priority, inside a pod, of the rules of its further addresses.
const IN_POD_PRIORITY: u32 = 1;
/// More would meet the pod's tables 253 to 255, which are the kernel's.
const MAX_INDEX: u32 = 250;

/// One address of a pod's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PodAddress {
    /// The address; the pod sees it alone (/32 or /128), whatever prefix length stands here.
    pub addr: IpNet,
    /// The route table of the network interface that owns it; 0, 1 and 254 mean `main` (the primary interface).
    pub table: u32,
    /// Chooses gateway 169.254.1.(index+1) and the pod's table: 0 is `main`. At most 250.
    pub index: u32,
}

impl PodAddress {
    /// An address with its owner's route table.
    pub fn new(addr: IpAddr, table: u32, index: u32) -> Self {
        PodAddress { addr: addr.into(), table, index }
    }

    /// The host's rules for this address.
    fn rules(&self) -> Vec<Rule> {
        host_rules(self.addr.addr(), self.table)
    }
}

/// Rule 512 and, off the primary interface, rule 1536.
fn host_rules(addr: IpAddr, table: u32) -> Vec<Rule> {
    let mut rules = vec![Rule::to(TO_POD_PRIORITY, addr, MAIN_TABLE)];
    if !is_main(table) {
        rules.push(Rule::from(FROM_POD_PRIORITY, addr, table));
    }
    rules
}

/// 1 is what old AWS plugins wrote for the primary interface.
fn is_main(table: u32) -> bool {
    matches!(table, 0 | 1 | MAIN_TABLE)
}

/// One interface of a pod as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    /// The pod's network namespace.
    pub netns: PathBuf,
    /// The interface's name in the pod.
    pub ifname: String,
    /// The name of the veth's host end ([`crate::names::host_veth_for`]).
    pub host_ifname: String,
    /// The host end's alias ([`crate::names::alias`]).
    pub alias: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Its addresses. The first of each family is reached by `main` in the pod when the list begins with index 0.
    pub addresses: Vec<PodAddress>,
}

/// What [`setup`] made, for the CNI result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLinks {
    /// Name of the host end.
    pub host_ifname: String,
    /// MAC address of the host end.
    pub host_mac: Mac,
    /// MAC address of the pod's interface.
    pub pod_mac: Mac,
    /// Number of the host end.
    pub host_ifindex: u32,
}

/// One interface to take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTeardown {
    /// The name of the host end.
    pub host_ifname: String,
    /// The alias it must have; the empty string means *none* (made by another plugin).
    pub alias: String,
    /// Addresses and the route tables they were set up with. When empty (nobody remembers), those routed to the link.
    pub addresses: Vec<(IpAddr, u32)>,
}

impl PodNet {
    /// The tear-down that takes away what [`setup`] makes of this.
    pub fn teardown(&self) -> PodTeardown {
        PodTeardown {
            host_ifname: self.host_ifname.clone(),
            alias: self.alias.clone(),
            addresses: self.addresses.iter().map(|a| (a.addr.addr(), a.table)).collect(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        check_ifname("interface name", &self.ifname)?;
        check_ifname("host interface name", &self.host_ifname)?;
        check_alias(&self.alias)?;
        if let Some(address) = self.addresses.iter().find(|a| a.index > MAX_INDEX) {
            return Err(Error::Invalid(format!(
                "address {} has index {}; a pod has at most {MAX_INDEX} indexed addresses",
                address.addr, address.index
            )));
        }
        Ok(())
    }

    /// How the pod reaches the world from each address; addresses that share gateway and table appear once.
    fn pod_routes(&self) -> Vec<PodRoutes> {
        let with_main = self.addresses.first().is_some_and(|a| a.index == 0);
        let mut plan: Vec<PodRoutes> = Vec::new();
        for address in &self.addresses {
            let addr = address.addr.addr();
            let first = !plan.iter().any(|p| p.addr.is_ipv6() == addr.is_ipv6());
            let table = if address.index == 0 || (first && with_main) { MAIN_TABLE } else { address.index };
            let routes = PodRoutes { addr, gateway: gateway(addr, address.index), table };
            if !plan.iter().any(|p| (p.gateway, p.table) == (routes.gateway, table)) {
                plan.push(routes);
            }
        }
        plan
    }
}

/// The routes of one gateway inside the pod.
struct PodRoutes {
    addr: IpAddr,
    gateway: IpAddr,
    table: u32,
}

impl PodRoutes {
    fn routes(&self, link: u32) -> [Route; 2] {
        let source = (self.table != MAIN_TABLE).then_some(self.addr);
        [
            Route { source, ..Route::host(self.gateway, link, self.table) },
            Route { source, ..Route::default_via(self.gateway, link, self.table) },
        ]
    }

    fn rule(&self) -> Option<Rule> {
        (self.table != MAIN_TABLE).then(|| Rule::from(IN_POD_PRIORITY, self.addr, self.table))
    }
}

/// The gateway that a pod sees for its address with that index.
pub fn gateway(addr: IpAddr, index: u32) -> IpAddr {
    let last = u8::try_from(index + 1).unwrap_or(u8::MAX);
    match addr {
        IpAddr::V4(_) => Ipv4Addr::new(169, 254, 1, last).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

fn check_ifname(what: &'static str, name: &str) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_IFNAME {
        "is longer than the 15 bytes the kernel takes"
    } else if name == "." || name == ".." || name.contains(['/', ':']) || name.contains(char::is_whitespace) {
        "holds a character no interface name may have"
    } else {
        return Ok(());
    };
    Err(Error::BadName { what, value: name.to_owned(), problem })
}

fn check_alias(alias: &str) -> Result<(), Error> {
    let problem = if alias.len() > MAX_ALIAS {
        "is longer than the 255 bytes the kernel takes"
    } else if alias.contains('\0') {
        "holds a zero byte"
    } else {
        return Ok(());
    };
    Err(Error::BadName { what: "alias", value: alias.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(addresses: &[(&str, u32)]) -> PodNet {
        PodNet {
            netns: "/run/netns/x".into(),
            ifname: "eth0".into(),
            host_ifname: "eni0".into(),
            alias: "wipam:c:eth0".into(),
            mtu: 9001,
            addresses: addresses.iter().map(|(a, i)| PodAddress::new(a.parse().unwrap(), 0, *i)).collect(),
        }
    }

    #[test]
    fn the_first_of_each_family_uses_main_and_the_others_their_own_table() {
        let tables = |net: PodNet| net.pod_routes().iter().map(|r| r.table).collect::<Vec<_>>();
        assert_eq!(tables(net(&[("10.0.0.1", 0), ("fd00::1", 1)])), [254, 254]);
        assert_eq!(tables(net(&[("10.0.0.1", 0), ("10.0.0.2", 1)])), [254, 1]);
        assert_eq!(tables(net(&[("10.0.0.1", 3)])), [3], "a second interface leaves main alone");
        assert_eq!(tables(net(&[("10.0.0.1", 0), ("10.0.0.2", 0)])), [254]);
    }

    #[test]
    fn names_the_kernel_would_cut_are_refused() {
        let mut bad = net(&[]);
        bad.alias = "x".repeat(256);
        assert!(matches!(bad.validate(), Err(Error::BadName { what: "alias", .. })));
        for name in ["", "..", "a/b", "sixteen-letters-", "a b"] {
            assert!(check_ifname("x", name).is_err(), "{name}");
        }
        assert!(net(&[("10.0.0.1", 251)]).validate().is_err());
        assert!(net(&[("10.0.0.1", 250)]).validate().is_ok());
    }
}
