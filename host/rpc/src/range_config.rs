//! What the `ipam` section of a `ranges` network may say, read in one place: the plugin refuses what is wrong before it
//! asks, and the daemon reads the same again.
//!
//! ```json
//! {"type": "wipam-cni", "scope": "node",
//!  "ranges": [[{"subnet": "192.168.2.0/24", "rangeStart": "192.168.2.10", "rangeEnd": "192.168.2.99",
//!               "gateway": "192.168.2.1", "exclude": ["192.168.2.50", "192.168.2.64/30"]}]],
//!  "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.168.2.1"]}}
//! ```
//!
//! Each inner list is a *set*: an interface gets one address from each set (two sets, two addresses: dual stack).
//! A set of its own, in front of `ranges`, may be written flat in two ways:
//! - as `host-local` has it: `subnet`, `rangeStart`, `rangeEnd`, `gateway`. Without `gateway` the subnet's first
//!   address is the gateway; a gateway is never handed out;
//! - as `whereabouts` has it: `range` (`192.168.2.225/28`, or `192.168.2.10-192.168.2.99/24`), `range_start`,
//!   `range_end`, `exclude`, `gateway`. Without `gateway` there is none and every host address is handed out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most sets in one network.
pub const MAX_SETS: usize = 16;
/// Most ranges in one set.
pub const MAX_RANGES: usize = 64;
/// Most exclusions in one range.
pub const MAX_EXCLUDE: usize = 1024;

/// Why an `ipam` section is refused. The text says where, what and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not JSON, or not an object where one must be.
    #[error("{at}: {what}")]
    Shape {
        /// Which part of the configuration.
        at: String,
        /// What was expected.
        what: String,
    },
    /// No address can come from it.
    #[error("ipam names no addresses: give \"ranges\": [[{{\"subnet\": …}}]], \"subnet\" or \"range\"")]
    Empty,
    /// `"scope": "node"` was not said.
    #[error(
        "ipam.ranges without \"scope\": \"node\": every node would hand out these addresses; say \"scope\": \"node\" \
         if no other node reaches this network (cluster-wide ranges are not supported)"
    )]
    Scope,
    /// `scope` has another value than `node`.
    #[error("ipam.scope is {0:?}: only \"node\" is supported (every node hands out the same addresses)")]
    UnknownScope(String),
    /// A range that means nothing.
    #[error("{at}: {what}")]
    Range {
        /// Which range.
        at: String,
        /// What is wrong with it.
        what: String,
    },
}

/// A route of the configuration, echoed in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; none: the gateway of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Keys of CNI 1.1 (`mtu`, `advmss`, `priority`, `table`, `scope`), as given.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A run of addresses of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The subnet, without host bits; its prefix length is that of every address handed out.
    pub subnet: IpNet,
    /// First address handed out.
    pub start: IpAddr,
    /// Last address handed out.
    pub end: IpAddr,
    /// Echoed with each address, and never handed out itself.
    pub gateway: Option<IpAddr>,
    /// Never handed out.
    pub exclude: Vec<IpNet>,
}

impl Range {
    /// Whether this range may hand `ip` out.
    pub fn contains(&self, ip: IpAddr) -> bool {
        same_family(self.start, ip)
            && self.start <= ip
            && ip <= self.end
            && self.gateway != Some(ip)
            && !self.exclude.iter().any(|net| net.contains(&ip))
    }

    fn overlaps(&self, other: &Range) -> bool {
        same_family(self.start, other.start) && self.start <= other.end && other.start <= self.end
    }
}

/// The ranges, any of which may serve one address of an interface. Never empty, all of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    /// In the order of the configuration.
    pub ranges: Vec<Range>,
}

impl RangeSet {
    /// Whether the set is of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.ranges.iter().any(|r| r.start.is_ipv6())
    }
}

/// A valid `ipam` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeConfig {
    /// One address comes from each, in this order. Never empty.
    pub sets: Vec<RangeSet>,
    /// Echoed.
    pub routes: Vec<Route>,
    /// Echoed; an object, empty when not given.
    pub dns: Map<String, Value>,
}

impl RangeConfig {
    /// Reads the whole network configuration (what the plugin got on its stdin).
    pub fn parse(conf: &[u8]) -> Result<RangeConfig, RangeError> {
        let conf: Value = serde_json::from_slice(conf).map_err(|e| shape("network configuration", e.to_string()))?;
        RangeConfig::from_ipam(conf.get("ipam").ok_or_else(|| shape("ipam", "is missing"))?)
    }

    /// Reads the `ipam` section alone.
    pub fn from_ipam(ipam: &Value) -> Result<RangeConfig, RangeError> {
        let ipam = ipam.as_object().ok_or_else(|| shape("ipam", "must be an object"))?;
        let mut sets = Vec::new();
        if let Some(flat) = flat_range(ipam)? {
            sets.push(RangeSet { ranges: vec![flat] });
        }
        sets.extend(listed_sets(ipam)?);
        if sets.is_empty() {
            return Err(RangeError::Empty);
        }
        check_scope(ipam)?;
        check_overlaps(&sets)?;
        Ok(RangeConfig { sets, routes: routes(ipam)?, dns: dns(ipam)? })
    }

    /// Routes and DNS as CNI JSON: what the daemon puts into `AddReply.ipam_result`.
    pub fn ipam_result(&self) -> Vec<u8> {
        serde_json::json!({ "routes": self.routes, "dns": self.dns }).to_string().into_bytes()
    }
}

fn shape(at: impl Into<String>, what: impl Into<String>) -> RangeError {
    RangeError::Shape { at: at.into(), what: what.into() }
}

fn check_scope(ipam: &Map<String, Value>) -> Result<(), RangeError> {
    match ipam.get("scope") {
        None | Some(Value::Null) => Err(RangeError::Scope),
        Some(Value::String(s)) if s == "node" => Ok(()),
        Some(Value::String(s)) => Err(RangeError::UnknownScope(s.clone())),
        Some(_) => Err(shape("ipam.scope", "must be a text")),
    }
}

/// Two ranges that share an address would hand it out twice: within a set by chance, across sets by design.
fn check_overlaps(sets: &[RangeSet]) -> Result<(), RangeError> {
    let all: Vec<(usize, &Range)> =
        sets.iter().enumerate().flat_map(|(i, set)| set.ranges.iter().map(move |r| (i, r))).collect();
    for (n, (i, a)) in all.iter().enumerate() {
        for (j, b) in &all[n + 1..] {
            if i == j && !same_family(a.start, b.start) {
                return Err(RangeError::Range {
                    at: format!("range set {i}"),
                    what: format!("mixes IPv4 ({}) and IPv6 ({}): use one set for each family", a.subnet, b.subnet),
                });
            }
            if a.overlaps(b) {
                return Err(RangeError::Range {
                    at: format!("range sets {i} and {j}"),
                    what: format!("{}-{} and {}-{} overlap", a.start, a.end, b.start, b.end),
                });
            }
        }
    }
    Ok(())
}

fn listed_sets(ipam: &Map<String, Value>) -> Result<Vec<RangeSet>, RangeError> {
    let Some(listed) = ipam.get("ranges").filter(|v| !v.is_null()) else {
        return Ok(Vec::new());
    };
    let listed = listed.as_array().ok_or_else(|| shape("ipam.ranges", "must be a list of lists of ranges"))?;
    if listed.len() > MAX_SETS {
        return Err(shape("ipam.ranges", format!("has {} sets, at most {MAX_SETS} are possible", listed.len())));
    }
    listed.iter().enumerate().map(|(i, set)| listed_set(i, set)).collect()
}

fn listed_set(index: usize, set: &Value) -> Result<RangeSet, RangeError> {
    let at = format!("ipam.ranges[{index}]");
    let set = set.as_array().ok_or_else(|| shape(&at, "must be a list of ranges (double brackets: [[{…}]])"))?;
    if set.is_empty() || set.len() > MAX_RANGES {
        return Err(shape(&at, format!("has {} ranges, must have 1 to {MAX_RANGES}", set.len())));
    }
    let ranges = set
        .iter()
        .enumerate()
        .map(|(j, range)| {
            let at = format!("{at}[{j}]");
            let range = range.as_object().ok_or_else(|| shape(&at, "must be an object"))?;
            flat_range_at(&at, range)?.ok_or_else(|| shape(&at, "has no \"subnet\""))
        })
        .collect::<Result<_, _>>()?;
    Ok(RangeSet { ranges })
}

fn flat_range(ipam: &Map<String, Value>) -> Result<Option<Range>, RangeError> {
    flat_range_at("ipam", ipam)
}

/// Reads a range from an object that may hold other keys as well; `None` when it holds none.
fn flat_range_at(at: &str, map: &Map<String, Value>) -> Result<Option<Range>, RangeError> {
    let subnet = text(at, map, &["subnet"])?;
    let range = text(at, map, &["range"])?;
    let (subnet, first, last, default_gateway) = match (subnet, range) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(shape(at, "has both \"subnet\" and \"range\": give one")),
        (Some(subnet), None) => (parse_subnet(&format!("{at}.subnet"), subnet)?, None, None, true),
        (None, Some(range)) => {
            let (subnet, first, last) = parse_range(&format!("{at}.range"), range)?;
            (subnet, first, last, false)
        }
    };
    let (low, high) = host_bounds(at, subnet)?;
    let start = address(at, map, &["rangeStart", "range_start"])?.or(first).unwrap_or(low);
    let end = address(at, map, &["rangeEnd", "range_end"])?.or(last).unwrap_or(high);
    let gateway = address(at, map, &["gateway"])?.or(default_gateway.then_some(low));
    let range = Range { subnet, start, end, gateway, exclude: exclude(at, map)? };
    check_range(at, &range, low, high)?;
    Ok(Some(range))
}

fn check_range(at: &str, range: &Range, low: IpAddr, high: IpAddr) -> Result<(), RangeError> {
    let wrong = |what: String| Err(RangeError::Range { at: at.to_owned(), what });
    for (name, ip) in [("start", range.start), ("end", range.end)] {
        if !same_family(ip, low) || ip < low || ip > high {
            return wrong(format!("{name} {ip} is not a host address of {} ({low} to {high})", range.subnet));
        }
    }
    if range.start > range.end {
        return wrong(format!("start {} is above end {}", range.start, range.end));
    }
    if let Some(gateway) = range.gateway.filter(|g| !same_family(*g, low)) {
        return wrong(format!("gateway {gateway} is of another family than {}", range.subnet));
    }
    if range.start == range.end && range.gateway == Some(range.start) {
        return wrong(format!("the only address, {}, is the gateway", range.start));
    }
    if let Some(all) = range.exclude.iter().find(|net| net.contains(&range.start) && net.contains(&range.end)) {
        return wrong(format!("exclude {all} leaves no address of {}-{}", range.start, range.end));
    }
    Ok(())
}

/// First and last host address: not the network's own, and for IPv4 not the broadcast address.
fn host_bounds(at: &str, subnet: IpNet) -> Result<(IpAddr, IpAddr), RangeError> {
    let host_bits = subnet.max_prefix_len() - subnet.prefix_len();
    if host_bits < 2 {
        let what =
            format!("{subnet} has no room for hosts: the prefix must be /{} or shorter", subnet.max_prefix_len() - 2);
        return Err(RangeError::Range { at: at.to_owned(), what });
    }
    Ok(match subnet {
        IpNet::V4(net) => (
            Ipv4Addr::from_bits(net.network().to_bits() + 1).into(),
            Ipv4Addr::from_bits(net.broadcast().to_bits() - 1).into(),
        ),
        IpNet::V6(net) => (Ipv6Addr::from_bits(net.network().to_bits() + 1).into(), net.broadcast().into()),
    })
}

fn parse_subnet(at: &str, text: &str) -> Result<IpNet, RangeError> {
    let net: IpNet = text.parse().map_err(|_| not_a(at, text, "CIDR such as 192.168.2.0/24"))?;
    if net.addr() != net.network() {
        let what = format!("{net} has host bits set: did you mean {}?", net.trunc());
        return Err(RangeError::Range { at: at.to_owned(), what });
    }
    Ok(net)
}

/// `192.168.2.225/28`, or `192.168.2.10-192.168.2.99/24`: subnet, first and last.
fn parse_range(at: &str, text: &str) -> Result<(IpNet, Option<IpAddr>, Option<IpAddr>), RangeError> {
    let wrong = || not_a(at, text, "range such as 192.168.2.0/24 or 192.168.2.10-192.168.2.99/24");
    match text.split_once('-') {
        None => Ok((text.parse::<IpNet>().map_err(|_| wrong())?.trunc(), None, None)),
        Some((first, last)) => {
            let first: IpAddr = first.trim().parse().map_err(|_| wrong())?;
            let last: IpNet = last.trim().parse().map_err(|_| wrong())?;
            Ok((last.trunc(), Some(first), Some(last.addr())))
        }
    }
}

fn exclude(at: &str, map: &Map<String, Value>) -> Result<Vec<IpNet>, RangeError> {
    let Some(list) = map.get("exclude").filter(|v| !v.is_null()) else {
        return Ok(Vec::new());
    };
    let at = format!("{at}.exclude");
    let list = list.as_array().ok_or_else(|| shape(&at, "must be a list of addresses or CIDRs"))?;
    if list.len() > MAX_EXCLUDE {
        return Err(shape(&at, format!("has {} entries, at most {MAX_EXCLUDE} are possible", list.len())));
    }
    list.iter()
        .map(|entry| {
            let text = entry.as_str().ok_or_else(|| shape(&at, "must be a list of texts"))?;
            let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            net.map(|n| n.trunc()).map_err(|_| not_a(&at, text, "address or CIDR"))
        })
        .collect()
}

fn routes(ipam: &Map<String, Value>) -> Result<Vec<Route>, RangeError> {
    match ipam.get("routes").filter(|v| !v.is_null()) {
        None => Ok(Vec::new()),
        Some(routes) => Vec::<Route>::deserialize(routes).map_err(|e| shape("ipam.routes", e.to_string())),
    }
}

fn dns(ipam: &Map<String, Value>) -> Result<Map<String, Value>, RangeError> {
    match ipam.get("dns").filter(|v| !v.is_null()) {
        None => Ok(Map::new()),
        Some(Value::Object(dns)) => Ok(dns.clone()),
        Some(_) => Err(shape("ipam.dns", "must be an object")),
    }
}

/// The first of the `keys` that is there, as text.
fn text<'a>(at: &str, map: &'a Map<String, Value>, keys: &[&str]) -> Result<Option<&'a str>, RangeError> {
    match keys.iter().find_map(|key| map.get(*key).filter(|v| !v.is_null()).map(|v| (key, v))) {
        None => Ok(None),
        Some((_, Value::String(s))) => Ok(Some(s)),
        Some((key, _)) => Err(shape(format!("{at}.{key}"), "must be a text")),
    }
}

fn address(at: &str, map: &Map<String, Value>, keys: &[&str]) -> Result<Option<IpAddr>, RangeError> {
    let Some(text) = text(at, map, keys)? else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| not_a(&format!("{at}.{}", keys[0]), text, "IP address"))
}

fn not_a(at: &str, text: &str, what: &str) -> RangeError {
    // A hostile value must not make a hostile log line.
    let shown: String = text.chars().take(64).collect();
    RangeError::Shape { at: at.to_owned(), what: format!("{shown:?} is not a {what}") }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(mut ipam: Value) -> Result<RangeConfig, RangeError> {
        ipam.as_object_mut().unwrap().entry("scope").or_insert(json!("node"));
        RangeConfig::from_ipam(&ipam)
    }

    fn only(ipam: Value) -> Range {
        let mut config = parse(ipam).unwrap();
        assert_eq!(config.sets.len(), 1);
        config.sets.remove(0).ranges.remove(0)
    }

    fn refused(ipam: Value) -> String {
        parse(ipam).unwrap_err().to_string()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn host_local_ranges_have_a_gateway_that_is_not_handed_out() {
        let range = only(json!({"ranges": [[{"subnet": "192.168.2.0/24"}]]}));
        assert_eq!((range.start, range.end), (ip("192.168.2.1"), ip("192.168.2.254")));
        assert_eq!(range.gateway, Some(ip("192.168.2.1")));
        assert!(!range.contains(ip("192.168.2.1")) && range.contains(ip("192.168.2.2")));
        assert!(!range.contains(ip("192.168.2.255")) && !range.contains(ip("::2")));
        let flat = only(json!({"subnet": "192.168.2.0/24", "rangeStart": "192.168.2.9", "gateway": "192.168.2.254"}));
        assert_eq!((flat.start, flat.gateway), (ip("192.168.2.9"), Some(ip("192.168.2.254"))));
    }

    #[test]
    fn whereabouts_ranges_mask_host_bits_and_have_no_gateway() {
        let range = only(json!({"range": "192.168.2.225/28"}));
        assert_eq!(range.subnet, "192.168.2.224/28".parse::<IpNet>().unwrap());
        assert_eq!((range.start, range.end, range.gateway), (ip("192.168.2.225"), ip("192.168.2.238"), None));
        let range =
            only(json!({"range": "192.168.2.225-192.168.2.230/28", "exclude": ["192.168.2.226", "192.168.2.229/30"]}));
        assert_eq!((range.start, range.end), (ip("192.168.2.225"), ip("192.168.2.230")));
        let free: Vec<u8> = (224..=239).filter(|n| range.contains(ip(&format!("192.168.2.{n}")))).collect();
        assert_eq!(free, [225, 227]);
        let v6 = only(json!({"range": "2001:db8::/64", "range_start": "2001:db8::10"}));
        assert_eq!((v6.start, v6.end), (ip("2001:db8::10"), ip("2001:db8::ffff:ffff:ffff:ffff")));
    }

    #[test]
    fn dual_stack_is_two_sets_and_flat_comes_first() {
        let config = parse(json!({
            "range": "10.1.0.0/24",
            "ranges": [[{"subnet": "fd00::/120"}], [{"subnet": "10.2.0.0/24"}, {"subnet": "10.3.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}, {"dst": "::/0"}],
            "dns": {"nameservers": ["10.1.0.1"]}}))
        .unwrap();
        assert_eq!(config.sets.iter().map(|s| s.ranges.len()).collect::<Vec<_>>(), [1, 1, 2]);
        assert!(config.sets[1].is_ipv6() && !config.sets[2].is_ipv6());
        let echoed: Value = serde_json::from_slice(&config.ipam_result()).unwrap();
        assert_eq!(
            echoed,
            json!({"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}, {"dst": "::/0"}],
                   "dns": {"nameservers": ["10.1.0.1"]}})
        );
    }

    #[test]
    fn scope_must_be_said() {
        let ranges = json!({"ranges": [[{"subnet": "10.0.0.0/24"}]]});
        assert_eq!(RangeConfig::from_ipam(&ranges).unwrap_err(), RangeError::Scope);
        assert!(RangeError::Scope.to_string().contains("every node would hand out these addresses"));
        assert!(refused(json!({"subnet": "10.0.0.0/24", "scope": "cluster"})).contains("\"cluster\""));
        assert!(refused(json!({"subnet": "10.0.0.0/24", "scope": 1})).contains("must be a text"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (ipam, expected) in [
            (json!({}), "names no addresses"),
            (json!({"ranges": []}), "names no addresses"),
            (json!({"ranges": {}}), "ipam.ranges: must be a list"),
            (json!({"ranges": [{"subnet": "10.0.0.0/24"}]}), "double brackets"),
            (json!({"ranges": [[]]}), "has 0 ranges"),
            (json!({"ranges": [[{"subnet": 4}]]}), "ipam.ranges[0][0].subnet: must be a text"),
            (json!({"ranges": [[{"gateway": "10.0.0.1"}]]}), "has no \"subnet\""),
            (json!({"ranges": [[{"subnet": "10.0.0.1/24"}]]}), "did you mean 10.0.0.0/24?"),
            (json!({"ranges": [[{"subnet": "10.0.0.0"}]]}), "is not a CIDR"),
            (json!({"subnet": "10.0.0.0/31"}), "no room for hosts: the prefix must be /30"),
            (json!({"subnet": "10.0.0.0/32"}), "no room"),
            (json!({"subnet": "10.0.0.0/24", "range": "10.0.0.0/24"}), "has both"),
            (json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.0"}), "start 10.0.1.0 is not a host address"),
            (json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.255"}), "end 10.0.0.255 is not a host address"),
            (json!({"subnet": "10.0.0.0/24", "rangeStart": "fd00::1"}), "is not a host address"),
            (json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}), "above end"),
            (json!({"subnet": "10.0.0.0/24", "gateway": "fd00::1"}), "another family"),
            (json!({"subnet": "10.0.0.0/24", "gateway": "x\u{0}y"}), "is not a IP address"),
            (json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.1"}), "is the gateway"),
            (json!({"range": "10.0.0.0/24", "exclude": ["0.0.0.0/0"]}), "leaves no address"),
            (json!({"range": "10.0.0.0/24", "exclude": ["10.0.0.300"]}), "is not a address or CIDR"),
            (json!({"range": "10.0.0.9-10.0.1.9/24"}), "is not a host address"),
            (json!({"range": "10.0.0.9-10.0.0.12"}), "is not a range"),
            (json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}), "mixes IPv4"),
            (json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/25"}]]}), "overlap"),
            (json!({"subnet": "10.0.0.0/24", "routes": [{"dst": "x"}]}), "ipam.routes"),
            (json!({"subnet": "10.0.0.0/24", "dns": []}), "ipam.dns"),
        ] {
            let text = refused(ipam.clone());
            assert!(text.contains(expected), "{ipam}: {text:?} lacks {expected:?}");
        }
        assert!(RangeConfig::parse(b"{").unwrap_err().to_string().contains("network configuration"));
        assert!(RangeConfig::parse(b"{}").unwrap_err().to_string().contains("ipam"));
    }

    proptest! {
        /// Whatever is accepted has at least one address, all inside the subnet, none the network's own.
        #[test]
        fn accepted_ranges_make_sense(net in any::<u32>(), len in 0u8..=32, start in any::<u32>(), span in 0u32..300, cut in any::<bool>()) {
            let subnet = ipnet::Ipv4Net::new(Ipv4Addr::from_bits(net), len).unwrap().trunc();
            let mut ipam = json!({"subnet": subnet.to_string()});
            if cut {
                let low = subnet.network().to_bits().wrapping_add(start % 1024);
                ipam["rangeStart"] = json!(Ipv4Addr::from_bits(low).to_string());
                ipam["rangeEnd"] = json!(Ipv4Addr::from_bits(low.wrapping_add(span)).to_string());
            }
            if let Ok(config) = parse(ipam) {
                let range = &config.sets[0].ranges[0];
                prop_assert!(range.start <= range.end);
                prop_assert!(range.subnet.contains(&range.start) && range.subnet.contains(&range.end));
                prop_assert_ne!(range.start, range.subnet.network());
                prop_assert!(range.contains(range.start) || range.contains(range.end));
            }
        }
    }
}
