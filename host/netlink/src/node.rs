//! The node as a whole: what holds once for all pods, and what is there now.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::eni::{FROM_ENI_PRIORITY, link_with_mac};
use crate::error::{During, Error};
use crate::nft;
use crate::pod::{FROM_POD_PRIORITY, TO_POD_PRIORITY};
use crate::rt::{Address, Link, LinkChange, MAIN_TABLE, Mac, Route, Rt, Rule, mac_text};
use crate::sysctl;

/// Priority of the rule that sends marked packets out by the primary interface.
pub const MARK_PRIORITY: u32 = 1024;

/// What source NAT does with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnatPorts {
    /// Kept where possible.
    Kept,
    /// Hashed (`random`).
    Random,
    /// From a random generator (`fully-random`), which loses no packets to races.
    #[default]
    FullyRandom,
}

/// What [`setup`] makes of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNet {
    /// The primary interface.
    pub primary_mac: Mac,
    /// Its address, which traffic to outside the VPC gets; none: the interface's first global address.
    pub primary_ip: Option<Ipv4Addr>,
    /// Networks that see pods' own addresses.
    pub vpc_cidrs: Vec<Ipv4Net>,
    /// Further such networks.
    pub exclude_snat_cidrs: Vec<Ipv4Net>,
    /// Someone else does source NAT: none here.
    pub external_snat: bool,
    /// Replies of NodePort connections leave by the primary interface.
    pub node_port: bool,
    /// The bit(s) of the connection mark to use (0x80 by default).
    pub connmark: u32,
    /// Ports of source NAT.
    pub ports: SnatPorts,
    /// What names of pods' host links begin with.
    pub veth_prefix: String,
    /// Largest packet of the primary interface in bytes; none leaves it.
    pub mtu: Option<u32>,
}

impl NodeNet {
    fn validate(&self) -> Result<(), Error> {
        if self.connmark == 0 {
            return Err(Error::Invalid("the connection mark is 0; choose a bit, for instance 0x80".into()));
        }
        if self.veth_prefix.is_empty() || self.veth_prefix.len() > 4 {
            return Err(Error::Invalid(format!("veth prefix {:?} must have 1 to 4 characters", self.veth_prefix)));
        }
        if self.vpc_cidrs.is_empty() && !self.external_snat {
            return Err(Error::Invalid("no VPC network is known: source NAT would hit traffic inside the VPC".into()));
        }
        Ok(())
    }
}

/// Sets forwarding, the reverse path filter, rule 1024 and the nf_tables table; replaces what an earlier call made.
/// Returns the primary interface's name.
///
/// # Errors
/// Naming the step; what was set before it stays, and the next call begins again.
pub fn setup(net: &NodeNet) -> Result<String, Error> {
    net.validate()?;
    let mut host = Rt::open()?;
    let primary = link_with_mac(&mut host, net.primary_mac)?
        .ok_or_else(|| Error::NoLinkWithMac { mac: mac_text(net.primary_mac), waited_ms: 0 })?;
    let primary_ip = match net.primary_ip {
        Some(ip) => ip,
        None => first_address(&mut host, &primary)?,
    };
    sysctl::set("ipv4/ip_forward", "1")?;
    sysctl::set(&format!("ipv4/conf/{}/rp_filter", primary.name), "2")?;
    if let Some(mtu) = net.mtu.filter(|mtu| *mtu != primary.mtu) {
        let change = LinkChange { mtu: Some(mtu), ..LinkChange::default() };
        host.change_link(primary.index, &change).during(|| format!("set the MTU of {} to {mtu}", primary.name))?;
    }
    set_mark_rule(&mut host, net)?;
    nft::replace(net, &primary.name, primary_ip)?;
    Ok(primary.name)
}

/// Takes rule 1024 and the nf_tables table away; forwarding and the reverse path filter stay, others may rely on them.
///
/// # Errors
/// What could not be removed; the rest was.
pub fn teardown() -> Result<(), Error> {
    let mut host = Rt::open()?;
    let mut errors = Vec::new();
    for rule in mark_rules(&mut host)? {
        errors.extend(host.delete_rules(&rule).during(|| "delete the rule for marked packets".to_owned()).err());
    }
    errors.extend(nft::remove().err());
    Error::all(errors)
}

fn first_address(host: &mut Rt, link: &Link) -> Result<Ipv4Addr, Error> {
    let found = host.addresses()?.into_iter().find_map(|a| match a.net {
        IpNet::V4(net) if a.link == link.index && a.scope == 0 => Some(net.addr()),
        _ => None,
    });
    found.ok_or_else(|| Error::Invalid(format!("{} has no IPv4 address for source NAT", link.name)))
}

fn mark_rules(host: &mut Rt) -> Result<Vec<Rule>, Error> {
    let rules = host.rules()?.into_iter();
    Ok(rules.filter(|r| r.priority == MARK_PRIORITY && r.mark.is_some() && r.table == MAIN_TABLE && !r.v6).collect())
}

/// Rule 1024 stands exactly when something sets the mark.
fn set_mark_rule(host: &mut Rt, net: &NodeNet) -> Result<(), Error> {
    let wanted = Rule::marked(MARK_PRIORITY, net.connmark, MAIN_TABLE);
    let needed = net.node_port || !net.external_snat;
    for stale in mark_rules(host)?.iter().filter(|rule| !needed || **rule != wanted) {
        host.delete_rules(stale).during(|| "delete the stale rule for marked packets".to_owned())?;
    }
    if needed {
        host.add_rule(&wanted).during(|| "add the rule for marked packets".to_owned())?;
    }
    Ok(())
}

/// What stands on the node now, read in a few dumps: to rebuild after a restart, and to find what nobody claims.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// All links.
    pub links: Vec<Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// Routes in `main` to single addresses on a link.
    pub host_routes: Vec<Route>,
    /// Rules with our priorities: 512, 1024, 1536, 32765.
    pub rules: Vec<Rule>,
}

impl Observed {
    /// The link behind the route to an address.
    pub fn link_of(&self, addr: IpAddr) -> Option<&Link> {
        let route = self.host_routes.iter().find(|route| route.to.addr() == addr)?;
        self.links.iter().find(|link| link.index == route.link)
    }

    /// The link with an alias.
    pub fn link_with_alias(&self, alias: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.alias.as_deref() == Some(alias))
    }

    /// Every address the node still carries in a pod's route or rule: none of these may be given back or reused.
    pub fn carried(&self) -> std::collections::BTreeSet<IpAddr> {
        let of_rule = |rule: &Rule| match rule.priority {
            TO_POD_PRIORITY => rule.to,
            FROM_POD_PRIORITY => rule.from,
            _ => None,
        };
        let single = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
        let rules = self.rules.iter().filter_map(of_rule).filter(single);
        self.host_routes.iter().map(|route| route.to).chain(rules).map(|net| net.addr()).collect()
    }

    /// The table of an address's rule 1536; none is `main`.
    pub fn table_of(&self, addr: IpAddr) -> Option<u32> {
        let from = Some(IpNet::from(addr));
        self.rules.iter().find(|r| r.priority == FROM_POD_PRIORITY && r.from == from).map(|r| r.table)
    }
}

/// Reads the node.
///
/// # Errors
/// When one of the dumps fails.
pub fn observe() -> Result<Observed, Error> {
    let mut host = Rt::open()?;
    let ours = [TO_POD_PRIORITY, MARK_PRIORITY, FROM_POD_PRIORITY, FROM_ENI_PRIORITY];
    let single = |route: &Route| route.on_link && route.to.prefix_len() == route.to.max_prefix_len();
    Ok(Observed {
        links: host.links()?,
        addresses: host.addresses()?,
        host_routes: host.routes(MAIN_TABLE)?.into_iter().filter(single).collect(),
        rules: host.rules()?.into_iter().filter(|rule| ours.contains(&rule.priority)).collect(),
    })
}
