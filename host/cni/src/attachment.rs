//! One interface of a pod in its three forms: what ipamd says of it, what netlink makes of it, and how it stands in a
//! result, from which a later DEL or CHECK reads it back.
//!
//! The result has the shape that the AWS VPC CNI's plugin writes, so that either plugin can delete what the other
//! made after a node changed hands while the daemon is away:
//! - the host's veth, without a sandbox;
//! - the pod's interface, with its sandbox and, in place of its MAC address, the decimal number of the route table of
//!   the network interface that owns the address. That quirk is the contract: it is the only place where the other
//!   plugin looks for the table;
//! - a link that does not exist, `dummy` and the host veth's hash, whose MAC `0` says "not a branch interface" and
//!   whose sandbox is the decimal device number.
//!
//! Addresses refer to the pod's interface and carry no gateway; there are no routes, no DNS.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, json};
use wipam_netlink::names;
use wipam_netlink::pod::{PodAddress, PodNet, PodTeardown};
use wipam_rpc::v1;

use crate::conf::{MTU, VETH_PREFIX};
use crate::env::{Target, check_ifname};
use crate::error::{CniError, DAEMON};
use crate::result::{CniResult, Interface, Ip};

/// The route table of the primary network interface.
const MAIN_TABLE: u32 = 254;
/// The highest index netlink takes for an address of a pod.
const MAX_INDEX: u32 = 250;

/// An answer that makes no sense.
fn senseless(what: impl AsRef<str>) -> CniError {
    CniError::new(
        DAEMON,
        format!("ipamd's answer makes no sense: {}", what.as_ref()),
        "plugin and ipamd may be of different versions: update both from one release",
    )
}

/// The addresses of an answer, in the order of their index; at least one.
pub fn addresses(list: &[v1::Address]) -> Result<Vec<(IpNet, &v1::Address)>, CniError> {
    let mut parsed = list
        .iter()
        .map(|a| match a.cidr.parse() {
            Ok(net) => Ok((net, a)),
            Err(_) => Err(senseless(format!("{:?} is not an address with prefix length", a.cidr))),
        })
        .collect::<Result<Vec<(IpNet, _)>, _>>()?;
    if parsed.is_empty() {
        return Err(senseless("it has no address"));
    }
    parsed.sort_by_key(|(_, a)| a.index);
    Ok(parsed)
}

/// The name of the host's veth when ipamd does not say it: by pod, or by container where the pod is not known.
pub fn host_ifname(prefix: Option<&str>, target: &Target) -> String {
    let prefix = prefix.unwrap_or(VETH_PREFIX);
    let pod = &target.args;
    let name = if pod.pod_name.is_empty() { &target.container_id } else { &pod.pod_name };
    names::host_veth_for(prefix, &pod.pod_namespace, name, &target.ifname)
}

/// What netlink shall make: `host` is the name ipamd said (may be empty), `mtu` the configured one before the
/// daemon's.
pub fn pod_net(
    target: &Target,
    list: &[v1::Address],
    host: &str,
    prefix: Option<&str>,
    mtu: Option<u32>,
) -> Result<PodNet, CniError> {
    let host = if host.is_empty() { host_ifname(prefix, target) } else { host.to_owned() };
    check_ifname(&host).map_err(|_| senseless(format!("{host:?} cannot be the name of a link")))?;
    // A second interface (net1, …) leaves the pod's main table, and with it the default route, to the first.
    let base = names::pod_index(&target.ifname);
    let addresses = addresses(list)?
        .into_iter()
        .map(|(net, a)| PodAddress { addr: net, table: a.table, index: base.saturating_add(a.index).min(MAX_INDEX) })
        .collect();
    Ok(PodNet {
        netns: target.netns.clone().unwrap_or_default(),
        ifname: target.ifname.clone(),
        host_ifname: host,
        alias: names::alias(&target.container_id, &target.ifname),
        mtu: mtu.unwrap_or(MTU),
        addresses,
    })
}

/// The result of an ADD; `device` is the device number of the network interface that owns the first address.
pub fn result(net: &PodNet, device: u32) -> CniResult {
    let table = net.addresses.first().map_or(MAIN_TABLE, |a| if a.table < 2 { MAIN_TABLE } else { a.table });
    // Known to CNI since 1.1.0; older results leave it out.
    let mtu: Map<_, _> = [("mtu".to_owned(), json!(net.mtu))].into_iter().collect();
    let host = Interface { name: net.host_ifname.clone(), more: mtu.clone(), ..Interface::default() };
    let pod = Interface {
        name: net.ifname.clone(),
        mac: table.to_string(),
        sandbox: net.netns.to_string_lossy().into_owned(),
        more: mtu,
    };
    let hash_at = net.host_ifname.len().saturating_sub(11);
    let hash = net.host_ifname.get(hash_at..).unwrap_or_default();
    let dummy =
        Interface { name: format!("dummy{hash}"), mac: "0".into(), sandbox: device.to_string(), more: Map::new() };
    let ips = net.addresses.iter().map(|a| Ip { address: alone(a.addr.addr()), gateway: None, interface: Some(1) });
    CniResult { ips: ips.collect(), interfaces: vec![host, pod, dummy], ..CniResult::default() }
}

fn alone(addr: IpAddr) -> IpNet {
    IpNet::from(addr)
}

/// Our part of a previous result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    /// The host's veth; empty when the result does not have it.
    pub host_ifname: String,
    /// The pod's addresses.
    pub addresses: Vec<IpNet>,
    /// Their route table; 0 when the result does not have it.
    pub table: u32,
    /// The pod's MTU, which only results of 1.1.0 have.
    pub mtu: Option<u32>,
}

impl Previous {
    /// Finds the interface `ifname` that we (or the AWS plugin) made in the result of a whole chain. Results without
    /// interfaces (before 0.3.0) give all addresses.
    pub fn find(result: &CniResult, ifname: &str) -> Option<Previous> {
        let inside = |i: &Interface| !i.sandbox.is_empty();
        let Some(at) = result.interfaces.iter().position(|i| i.name == ifname && inside(i)) else {
            let old = result.interfaces.is_empty() && !result.ips.is_empty();
            return old.then(|| Previous {
                host_ifname: String::new(),
                addresses: result.ips.iter().map(|ip| ip.address).collect(),
                table: 0,
                mtu: None,
            });
        };
        let host = at.checked_sub(1).and_then(|i| result.interfaces.get(i)).filter(|i| !inside(i));
        let pod = &result.interfaces[at];
        Some(Previous {
            host_ifname: host.map(|i| i.name.clone()).unwrap_or_default(),
            addresses: result.ips.iter().filter(|ip| ip.interface == Some(at)).map(|ip| ip.address).collect(),
            table: pod.mac.parse().unwrap_or(0),
            mtu: pod.more.get("mtu").and_then(serde_json::Value::as_u64).and_then(|m| u32::try_from(m).ok()),
        })
    }

    /// What netlink shall take away.
    pub fn teardown(&self, target: &Target, prefix: Option<&str>) -> PodTeardown {
        let host_ifname =
            if self.host_ifname.is_empty() { host_ifname(prefix, target) } else { self.host_ifname.clone() };
        PodTeardown {
            host_ifname,
            alias: names::alias(&target.container_id, &target.ifname),
            addresses: self.addresses.iter().map(|net| (net.addr(), self.table)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Args;
    use crate::version::Version;

    fn target(ifname: &str) -> Target {
        Target {
            container_id: "c1".into(),
            ifname: ifname.into(),
            netns: Some("/run/netns/x".into()),
            args: Args { pod_namespace: "default".into(), pod_name: "sample-pod".into(), ..Args::default() },
        }
    }

    fn address(cidr: &str, index: u32, table: u32) -> v1::Address {
        v1::Address { cidr: cidr.into(), index, table, ..v1::Address::default() }
    }

    #[test]
    fn the_result_is_the_aws_plugins() {
        let net = pod_net(&target("eth0"), &[address("10.0.0.7/32", 0, 3)], "", None, None).unwrap();
        let printed: serde_json::Value = serde_json::from_str(&result(&net, 2).to_json(Version::V0_4_0)).unwrap();
        assert_eq!(
            printed,
            json!({"cniVersion": "0.4.0",
                "interfaces": [{"name": "enicc21c2d7785"},
                               {"name": "eth0", "mac": "3", "sandbox": "/run/netns/x"},
                               {"name": "dummycc21c2d7785", "mac": "0", "sandbox": "2"}],
                "ips": [{"version": "4", "address": "10.0.0.7/32", "interface": 1}],
                "dns": {}})
        );
    }

    #[test]
    fn what_was_printed_is_found_again_behind_other_plugins() {
        let net = pod_net(
            &target("net1"),
            &[address("fd00::7/128", 1, 0), address("10.0.0.7/32", 0, 0)],
            "eni0123456789a",
            None,
            Some(1400),
        )
        .unwrap();
        assert_eq!(net.addresses.iter().map(|a| a.index).collect::<Vec<_>>(), [1, 2]);
        let mut chain = CniResult::parse(&json!({
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "192.168.0.2/24", "interface": 1}]}))
        .unwrap();
        chain.append(result(&net, 0));
        for version in [Version::V0_3_1, Version::V1_0_0, Version::V1_1_0] {
            let back = CniResult::parse(&serde_json::from_str(&chain.to_json(version)).unwrap()).unwrap();
            let found = Previous::find(&back, "net1").unwrap();
            assert_eq!(found.host_ifname, "eni0123456789a");
            assert_eq!(found.addresses, ["10.0.0.7/32".parse::<IpNet>().unwrap(), "fd00::7/128".parse().unwrap()]);
            assert_eq!((found.table, found.mtu.is_some()), (254, version == Version::V1_1_0));
        }
        assert_eq!(Previous::find(&chain, "net2"), None);
    }

    #[test]
    fn old_results_give_their_addresses_and_the_name_is_computed() {
        let old = CniResult::parse(&json!({"ip4": {"ip": "10.0.0.7/32"}})).unwrap();
        let found = Previous::find(&old, "eth0").unwrap();
        assert_eq!(found.teardown(&target("eth0"), None).host_ifname, "enicc21c2d7785");
        assert_eq!(Previous::find(&CniResult::default(), "eth0"), None);
    }

    #[test]
    fn interfaces_of_one_pod_have_their_own_veths() {
        assert_ne!(host_ifname(None, &target("eth0")), host_ifname(None, &target("net1")));
        let unknown =
            |id: &str| host_ifname(None, &Target { container_id: id.into(), args: Args::default(), ..target("eth0") });
        assert_ne!(unknown("a"), unknown("b"));
    }

    #[test]
    fn senseless_answers_are_refused() {
        for (list, host) in [
            (vec![], ""),
            (vec![address("10.0.0.7", 0, 0)], ""),
            (vec![address("", 0, 0)], ""),
            (vec![address("10.0.0.7/32", 0, 0)], "a/b"),
            (vec![address("10.0.0.7/32", 0, 0)], "sixteen-letters-"),
        ] {
            assert_eq!(pod_net(&target("eth0"), &list, host, None, None).unwrap_err().code, DAEMON);
        }
    }
}
