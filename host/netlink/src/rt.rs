//! The route family: links, addresses, routes, rules and neighbours as small structs, written and read by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use rustix::io::Errno;

use crate::error::{During, Error, Tolerate};
use crate::socket::{ACK, CREATE, EXCL, Netlink, REPLACE, Refusal};
use crate::wire::{self, Message, attributes, attributes_after};

/// The table the kernel consults last by itself.
pub(crate) const MAIN_TABLE: u32 = 254;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 8;
const IFF_UP: u32 = 1;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
/// As `RT_SCOPE_NOWHERE`, in a deletion.
const SCOPE_ANY: u8 = 255;
/// Routes an administrator or program made (what `ip route add` says).
const PROTO_BOOT: u8 = 3;
const UNICAST: u8 = 1;

/// A six-byte hardware address.
pub type Mac = [u8; 6];

/// A hardware address as people write it.
pub fn mac_text(mac: Mac) -> String {
    let bytes: Vec<String> = mac.iter().map(|b| format!("{b:02x}")).collect();
    bytes.join(":")
}

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its alias, where it has one.
    pub alias: Option<String>,
    /// Its hardware address; zeros when it has none of six bytes.
    pub mac: Mac,
    /// Its maximal packet size in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Its driver's kind (`veth`, `bridge`); hardware has none.
    pub kind: Option<String>,
}

impl Link {
    fn read(body: &[u8]) -> Option<Link> {
        let mut link =
            Link { index: wire::u32_at(body, 4)?, up: wire::u32_at(body, 8)? & IFF_UP != 0, ..Link::default() };
        for (kind, value) in attributes_after(body, 16) {
            match kind {
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_IFNAME => link.name = wire::text(value),
                IFLA_MTU => link.mtu = wire::u32_at(value, 0).unwrap_or_default(),
                IFLA_IFALIAS => link.alias = Some(wire::text(value)).filter(|a| !a.is_empty()),
                IFLA_LINKINFO => {
                    link.kind = attributes(value).find(|(kind, _)| *kind == 1).map(|(_, name)| wire::text(name));
                }
                _ => {}
            }
        }
        Some(link)
    }

    /// Whose alias it has; the empty string is a link without one.
    pub(crate) fn owner(&self) -> &str {
        self.alias.as_deref().unwrap_or_default()
    }
}

/// An address on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The link's number.
    pub link: u32,
    /// Address and prefix length.
    pub net: IpNet,
    /// Kernel scope: 0 is global.
    pub scope: u8,
}

/// A unicast route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination; length 0 is the default route.
    pub to: IpNet,
    /// Next hop, if not on the link itself.
    pub gateway: Option<IpAddr>,
    /// Number of the link it leaves by.
    pub link: u32,
    /// Route table.
    pub table: u32,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// The destination is on the link (scope link).
    pub on_link: bool,
}

impl Route {
    /// A route to one address on a link.
    pub(crate) fn host(to: IpAddr, link: u32, table: u32) -> Self {
        Route { to: IpNet::from(to), gateway: None, link, table, source: None, on_link: true }
    }

    /// Everything by a gateway.
    pub(crate) fn default_via(gateway: IpAddr, link: u32, table: u32) -> Self {
        Route { to: all(gateway), gateway: Some(gateway), link, table, source: None, on_link: false }
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        // A deletion takes the route whoever made it and whatever its scope is.
        let (protocol, scope) = match (kind, self.on_link) {
            (RTM_DELROUTE, _) => (0, SCOPE_ANY),
            (_, true) => (PROTO_BOOT, SCOPE_LINK),
            (_, false) => (PROTO_BOOT, SCOPE_UNIVERSE),
        };
        let small = u8::try_from(self.table).unwrap_or_default(); // RT_TABLE_UNSPEC: the attribute says it
        let family = family(self.to.addr());
        let fixed = [family, self.to.prefix_len(), 0, 0, small, protocol, scope, UNICAST, 0, 0, 0, 0];
        let mut message = Message::new(kind, ACK | flags, &fixed);
        if self.to.prefix_len() > 0 {
            message.put(1, &octets(self.to.network()));
        }
        message.put_u32(4, self.link);
        if let Some(gateway) = self.gateway {
            message.put(5, &octets(gateway));
        }
        if let Some(source) = self.source {
            message.put(7, &octets(source));
        }
        message.put_u32(15, self.table);
        message
    }

    fn read(body: &[u8]) -> Option<Route> {
        let [family, length, _, _, table, _, scope, kind] = *body.first_chunk::<8>()?;
        if kind != UNICAST {
            return None;
        }
        let mut route = Route {
            to: IpNet::new(unspecified(family)?, length).ok()?,
            gateway: None,
            link: 0,
            table: table.into(),
            source: None,
            on_link: scope == SCOPE_LINK,
        };
        for (kind, value) in attributes_after(body, 12) {
            match kind {
                1 => route.to = IpNet::new(ip(value)?, length).ok()?,
                4 => route.link = wire::u32_at(value, 0)?,
                5 => route.gateway = ip(value),
                7 => route.source = ip(value),
                15 => route.table = wire::u32_at(value, 0)?,
                _ => {}
            }
        }
        Some(route)
    }
}

/// A policy rule that looks a table up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// Its place: lower is consulted first.
    pub priority: u32,
    /// Only packets from here.
    pub from: Option<IpNet>,
    /// Only packets to there.
    pub to: Option<IpNet>,
    /// Only packets with this mark under this mask.
    pub mark: Option<(u32, u32)>,
    /// The table; 0 in a deletion is any.
    pub table: u32,
    /// For IPv6.
    pub v6: bool,
}

impl Rule {
    /// Packets to one address.
    pub(crate) fn to(priority: u32, to: IpAddr, table: u32) -> Self {
        Rule { priority, from: None, to: Some(to.into()), mark: None, table, v6: to.is_ipv6() }
    }

    /// Packets from one address.
    pub(crate) fn from(priority: u32, from: IpAddr, table: u32) -> Self {
        Rule { priority, from: Some(from.into()), to: None, mark: None, table, v6: from.is_ipv6() }
    }

    /// IPv4 packets with a mark.
    pub(crate) fn marked(priority: u32, mark: u32, table: u32) -> Self {
        Rule { priority, from: None, to: None, mark: Some((mark, mark)), table, v6: false }
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        const TO_TABLE: u8 = 1;
        let family = if self.v6 { AF_INET6 } else { AF_INET };
        let length = |net: Option<IpNet>| net.map_or(0, |n| n.prefix_len());
        let small = u8::try_from(self.table).unwrap_or_default();
        let fixed = [family, length(self.to), length(self.from), 0, small, 0, 0, TO_TABLE, 0, 0, 0, 0];
        let mut message = Message::new(kind, ACK | flags, &fixed);
        if let Some(to) = self.to {
            message.put(1, &octets(to.network()));
        }
        if let Some(from) = self.from {
            message.put(2, &octets(from.network()));
        }
        message.put_u32(6, self.priority);
        if let Some((mark, mask)) = self.mark {
            message.put_u32(10, mark).put_u32(16, mask);
        }
        if self.table != 0 {
            message.put_u32(15, self.table);
        }
        message
    }

    fn read(body: &[u8]) -> Option<Rule> {
        let [family, to_length, from_length, _, table] = *body.first_chunk::<5>()?;
        let mut rule =
            Rule { priority: 0, from: None, to: None, mark: None, table: table.into(), v6: family == AF_INET6 };
        let (mut mark, mut mask) = (None, u32::MAX);
        for (kind, value) in attributes_after(body, 12) {
            match kind {
                1 => rule.to = IpNet::new(ip(value)?, to_length).ok(),
                2 => rule.from = IpNet::new(ip(value)?, from_length).ok(),
                6 => rule.priority = wire::u32_at(value, 0)?,
                10 => mark = wire::u32_at(value, 0),
                15 => rule.table = wire::u32_at(value, 0)?,
                16 => mask = wire::u32_at(value, 0)?,
                _ => {}
            }
        }
        rule.mark = mark.filter(|m| *m != 0).map(|m| (m, mask));
        Some(rule)
    }
}

/// A veth pair to be made by a socket of the pod's namespace: the pod end, at once up, and the host end in `host_netns`,
/// still down. (Only the end that is made first can be born up.)
pub(crate) struct Veth<'a> {
    pub(crate) host: &'a str,
    pub(crate) host_mac: Mac,
    pub(crate) host_netns: BorrowedFd<'a>,
    pub(crate) pod: &'a str,
    pub(crate) pod_mac: Mac,
    pub(crate) mtu: u32,
}

impl Veth<'_> {
    fn message(&self) -> Message {
        let mut message = Message::new(RTM_NEWLINK, ACK | CREATE | EXCL, &link_header(0, IFF_UP, IFF_UP));
        message.put_str(IFLA_IFNAME, self.pod).put_u32(IFLA_MTU, self.mtu).put(IFLA_ADDRESS, &self.pod_mac);
        message.nest(IFLA_LINKINFO, |info| {
            info.put_str(1, "veth").nest(2, |data| {
                data.nest(1, |peer| {
                    peer.raw(&link_header(0, 0, 0)).put_str(IFLA_IFNAME, self.host);
                    peer.put_u32(IFLA_MTU, self.mtu).put(IFLA_ADDRESS, &self.host_mac);
                    peer.put(IFLA_NET_NS_FD, &self.host_netns.as_raw_fd().to_ne_bytes());
                });
            });
        });
        message
    }
}

/// What [`Rt::change_link`] shall alter; the rest stays.
#[derive(Default)]
pub(crate) struct LinkChange<'a> {
    pub(crate) up: Option<bool>,
    pub(crate) alias: Option<&'a str>,
    pub(crate) mtu: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) rp_filter: Option<u32>,
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut fixed = [0; 16];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&change.to_ne_bytes());
    fixed
}

fn family(addr: IpAddr) -> u8 {
    if addr.is_ipv6() { AF_INET6 } else { AF_INET }
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::UNSPECIFIED.into()),
        AF_INET6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

/// All addresses of that address's family.
fn all(addr: IpAddr) -> IpNet {
    match addr {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

pub(crate) fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?)),
        _ => None,
    }
}

/// The route family's socket with the operations this crate needs.
pub(crate) struct Rt(Netlink);

impl Rt {
    /// A socket of the calling thread's namespace.
    pub(crate) fn open() -> Result<Self, Error> {
        Netlink::route().map(Rt).during(|| "open a route netlink socket".to_owned())
    }

    pub(crate) fn create_veth(&mut self, veth: &Veth<'_>) -> Result<(), Refusal> {
        self.0.request(veth.message())
    }

    /// The link of that name.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let mut message = Message::new(RTM_GETLINK, 0, &link_header(0, 0, 0));
        message.put_str(IFLA_IFNAME, name).put_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
        self.one_link(message, || format!("look link {name} up"))
    }

    /// The link of that number.
    pub(crate) fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        let mut message = Message::new(RTM_GETLINK, 0, &link_header(index, 0, 0));
        message.put_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
        self.one_link(message, || format!("look link number {index} up"))
    }

    fn one_link(&mut self, message: Message, action: impl FnOnce() -> String) -> Result<Option<Link>, Error> {
        match self.0.ask(message, Link::read) {
            Err(refusal) if refusal.errno == Errno::NODEV => Ok(None),
            other => Ok(other.during(action)?.flatten()),
        }
    }

    /// All links of the namespace.
    pub(crate) fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut message = Message::new(RTM_GETLINK, 0, &link_header(0, 0, 0));
        message.put_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
        self.0.dump(&message, Link::read).during(|| "list links".to_owned())
    }

    /// Alters a link.
    pub(crate) fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<(), Refusal> {
        let (flags, mask) = change.up.map_or((0, 0), |up| (u32::from(up) * IFF_UP, IFF_UP));
        let mut message = Message::new(RTM_SETLINK, ACK, &link_header(index, flags, mask));
        if let Some(alias) = change.alias {
            message.put_str(IFLA_IFALIAS, alias);
        }
        if let Some(mtu) = change.mtu {
            message.put_u32(IFLA_MTU, mtu);
        }
        if let Some(group) = change.group {
            message.put_u32(IFLA_GROUP, group);
        }
        if let Some(value) = change.rp_filter {
            const RP_FILTER: u16 = 8;
            message.nest(IFLA_AF_SPEC, |spec| {
                spec.nest(AF_INET.into(), |inet| {
                    inet.nest(1, |conf| {
                        conf.put_u32(RP_FILTER, value);
                    });
                });
            });
        }
        self.0.request(message)
    }

    /// Deletes a link and waits for the kernel to take it away (20 ms); a link already gone is fine.
    pub(crate) fn delete_link(&mut self, index: u32) -> Result<(), Refusal> {
        self.0.request(Message::new(RTM_DELLINK, ACK, &link_header(index, 0, 0))).tolerate(&[Errno::NODEV])
    }

    /// Deletes all links of a group in one wait; an empty group is fine.
    pub(crate) fn delete_group(&mut self, group: u32) -> Result<(), Refusal> {
        let mut message = Message::new(RTM_DELLINK, ACK, &link_header(0, 0, 0));
        message.put_u32(IFLA_GROUP, group);
        self.0.request(message).tolerate(&[Errno::NODEV])
    }

    /// Adds an address to a link; one already there is an error (`EXIST`). IPv6 needs no duplicate detection here: the
    /// link has two ends, both ours.
    pub(crate) fn add_address(&mut self, link: u32, net: IpNet) -> Result<(), Refusal> {
        const NO_DAD: u8 = 2;
        let flags = if matches!(net, IpNet::V6(_)) { NO_DAD } else { 0 };
        self.0.request(address_message(RTM_NEWADDR, CREATE | EXCL, link, net, flags))
    }

    /// Takes an address from a link.
    pub(crate) fn delete_address(&mut self, link: u32, net: IpNet) -> Result<(), Refusal> {
        self.0.request(address_message(RTM_DELADDR, 0, link, net, 0)).tolerate(&[Errno::ADDRNOTAVAIL, Errno::NODEV])
    }

    /// All addresses of the namespace.
    pub(crate) fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let message = Message::new(RTM_GETADDR, 0, &[0; 8]);
        self.0.dump(&message, read_address).during(|| "list addresses".to_owned())
    }

    /// Adds a route; one to the same destination is an error (`EXIST`).
    pub(crate) fn add_route(&mut self, route: &Route) -> Result<(), Refusal> {
        self.0.request(route.message(RTM_NEWROUTE, CREATE | EXCL))
    }

    /// Adds a route in place of one to the same destination.
    pub(crate) fn replace_route(&mut self, route: &Route) -> Result<(), Refusal> {
        self.0.request(route.message(RTM_NEWROUTE, CREATE | REPLACE))
    }

    /// Deletes a route; one already gone is fine.
    pub(crate) fn delete_route(&mut self, route: &Route) -> Result<(), Refusal> {
        self.0.request(route.message(RTM_DELROUTE, 0)).tolerate(&[Errno::SRCH, Errno::NODEV])
    }

    /// The unicast routes of one table, both families.
    pub(crate) fn routes(&mut self, table: u32) -> Result<Vec<Route>, Error> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let small = u8::try_from(table).unwrap_or_default();
            let mut message = Message::new(RTM_GETROUTE, 0, &[family, 0, 0, 0, small, 0, 0, 0, 0, 0, 0, 0]);
            message.put_u32(15, table);
            match self.0.dump(&message, Route::read) {
                // A table nobody has put a route in does not exist.
                Err(refusal) if refusal.errno == Errno::NOENT => {}
                // A kernel without IPv6.
                Err(refusal) if family == AF_INET6 && refusal.errno == Errno::OPNOTSUPP => {}
                // The kernel's filter does not hold for every family it falls back to.
                routes => found.extend(
                    routes.during(|| format!("list routes of table {table}"))?.into_iter().filter(|r| r.table == table),
                ),
            }
        }
        Ok(found)
    }

    /// The route in `main` to exactly this address, whatever the number of routes.
    pub(crate) fn host_route(&mut self, addr: IpAddr) -> Result<Option<Route>, Error> {
        const FIB_MATCH: u32 = 0x2000;
        let bits = IpNet::from(addr).prefix_len();
        let mut fixed = [family(addr), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fixed[8..12].copy_from_slice(&FIB_MATCH.to_ne_bytes());
        let mut message = Message::new(RTM_GETROUTE, 0, &fixed);
        message.put(1, &octets(addr));
        let unreachable = [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::INVAL, Errno::ACCESS, Errno::SRCH];
        let found = match self.0.ask(message, Route::read) {
            Err(refusal) if unreachable.contains(&refusal.errno) => None,
            other => other.during(|| format!("look the route to {addr} up"))?.flatten(),
        };
        Ok(found.filter(|r| r.to == IpNet::from(addr) && r.table == MAIN_TABLE))
    }

    /// Adds a rule; false when it was there.
    pub(crate) fn add_rule(&mut self, rule: &Rule) -> Result<bool, Refusal> {
        match self.0.request(rule.message(RTM_NEWRULE, CREATE | EXCL)) {
            Err(refusal) if refusal.errno == Errno::EXIST => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Deletes every rule that matches; returns how many there were.
    pub(crate) fn delete_rules(&mut self, rule: &Rule) -> Result<u32, Refusal> {
        const BOUND: u32 = 1024; // more can only mean that someone adds them as we delete
        for count in 0..BOUND {
            match self.0.request(rule.message(RTM_DELRULE, 0)) {
                Err(refusal) if matches!(refusal.errno, Errno::NOENT | Errno::SRCH) => return Ok(count),
                other => other?,
            }
        }
        Ok(BOUND)
    }

    /// All rules, both families.
    pub(crate) fn rules(&mut self) -> Result<Vec<Rule>, Error> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let message = Message::new(RTM_GETRULE, 0, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            match self.0.dump(&message, Rule::read) {
                Err(refusal)
                    if family == AF_INET6 && matches!(refusal.errno, Errno::OPNOTSUPP | Errno::AFNOSUPPORT) => {}
                rules => found.extend(rules.during(|| "list rules".to_owned())?),
            }
        }
        Ok(found)
    }

    /// Writes down the hardware address of a neighbour for good.
    pub(crate) fn set_neighbour(&mut self, link: u32, addr: IpAddr, mac: Mac) -> Result<(), Refusal> {
        const PERMANENT: u8 = 0x80;
        let mut fixed = [0; 12];
        fixed[0] = family(addr);
        fixed[4..8].copy_from_slice(&link.to_ne_bytes());
        fixed[8] = PERMANENT;
        let mut message = Message::new(RTM_NEWNEIGH, ACK | CREATE | REPLACE, &fixed);
        message.put(1, &octets(addr)).put(2, &mac);
        self.0.request(message)
    }

    /// Hardware address and whether it is permanent, of a neighbour.
    pub(crate) fn neighbour(&mut self, link: u32, addr: IpAddr) -> Result<Option<(Mac, bool)>, Error> {
        let mut fixed = [0; 12];
        fixed[0] = family(addr);
        fixed[4..8].copy_from_slice(&link.to_ne_bytes());
        let mut message = Message::new(RTM_GETNEIGH, 0, &fixed);
        message.put(1, &octets(addr));
        match self.0.ask(message, read_neighbour) {
            Err(refusal) if matches!(refusal.errno, Errno::NOENT | Errno::NODEV) => Ok(None),
            other => Ok(other.during(|| format!("look neighbour {addr} up"))?.flatten()),
        }
    }
}

/// `struct ifaddrmsg` and its two attributes.
fn address_message(kind: u16, flags: u16, link: u32, net: IpNet, address_flags: u8) -> Message {
    let mut fixed = [family(net.addr()), net.prefix_len(), address_flags, SCOPE_UNIVERSE, 0, 0, 0, 0];
    fixed[4..8].copy_from_slice(&link.to_ne_bytes());
    let mut message = Message::new(kind, ACK | flags, &fixed);
    message.put(2, &octets(net.addr())).put(1, &octets(net.addr()));
    if let IpNet::V4(v4) = net
        && v4.prefix_len() < 31
    {
        message.put(4, &v4.broadcast().octets());
    }
    message
}

fn read_address(body: &[u8]) -> Option<Address> {
    let [_, length, _, scope] = *body.first_chunk::<4>()?;
    let link = wire::u32_at(body, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes_after(body, 8) {
        match kind {
            1 => address = ip(value),
            2 => local = ip(value),
            _ => {}
        }
    }
    Some(Address { link, net: IpNet::new(local.or(address)?, length).ok()?, scope })
}

fn read_neighbour(body: &[u8]) -> Option<(Mac, bool)> {
    const PERMANENT: u16 = 0x80;
    let permanent = wire::u16_at(body, 8)? & PERMANENT != 0;
    let (_, mac) = attributes_after(body, 12).find(|(kind, _)| *kind == 2)?;
    Some((mac.try_into().ok()?, permanent))
}
