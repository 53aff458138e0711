//! Results as CNI passes them along: read from any version, kept in the shape of the newest, printed in the one the
//! configuration asks for.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
pub use wipam_rpc::range_config::Route;

use crate::error::CniError;
use crate::version::Version;

/// One link of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Its MAC address (or what the AWS plugin's format keeps there); empty: not said.
    #[serde(deserialize_with = "or_default")]
    pub mac: String,
    /// Its network namespace; empty: the host's.
    #[serde(deserialize_with = "or_default")]
    pub sandbox: String,
    /// Other keys of other plugins (`mtu`, `socketPath`, `pciID`), which exist since 1.1.0.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// One address of a result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Ip {
    /// Address and prefix length.
    pub address: IpNet,
    /// Next hop for default routes; none: not said.
    #[serde(default, deserialize_with = "empty_is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into the result's interfaces.
    #[serde(default, deserialize_with = "negative_is_none")]
    pub interface: Option<usize>,
}

/// A whole result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CniResult {
    /// Links, of the host and of the pod.
    #[serde(deserialize_with = "or_default")]
    pub interfaces: Vec<Interface>,
    /// Addresses.
    #[serde(deserialize_with = "or_default")]
    pub ips: Vec<Ip>,
    /// Routes.
    #[serde(deserialize_with = "or_default")]
    pub routes: Vec<Route>,
    /// DNS, as given.
    #[serde(deserialize_with = "or_default")]
    pub dns: Map<String, Value>,
}

/// `null` is what Go prints for an empty list.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

fn empty_is_none<'de, D: Deserializer<'de>>(d: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(d)?.filter(|s| !s.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

fn negative_is_none<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    Ok(Option::<i64>::deserialize(d)?.and_then(|i| usize::try_from(i).ok()))
}

/// The shape of 0.1.0 and 0.2.0, for one family.
#[derive(Deserialize)]
struct OldIp {
    ip: IpNet,
    #[serde(default, deserialize_with = "empty_is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, deserialize_with = "or_default")]
    routes: Vec<Route>,
}

impl CniResult {
    /// Reads a result of any version; which one shows in its keys.
    pub fn parse(value: &Value) -> Result<CniResult, CniError> {
        let wrong = |e: serde_json::Error| {
            CniError::config(
                format!("prevResult cannot be read: {e}"),
                "the runtime must pass on what the plugin before printed",
            )
        };
        if !value.is_object() {
            // serde would take a list for an object.
            return Err(wrong(serde::de::Error::custom("it is not an object")));
        }
        let mut result = CniResult::deserialize(value).map_err(wrong)?;
        for key in ["ip4", "ip6"] {
            if let Some(old) = value.get(key).filter(|v| !v.is_null()) {
                let old = OldIp::deserialize(old).map_err(wrong)?;
                result.ips.push(Ip { address: old.ip, gateway: old.gateway, interface: None });
                result.routes.extend(old.routes);
            }
        }
        Ok(result)
    }

    /// Appends what another plugin of the chain made, `later`, keeping its references right.
    pub fn append(&mut self, later: CniResult) {
        let shift = self.interfaces.len();
        self.interfaces.extend(later.interfaces);
        self.ips.extend(later.ips.into_iter().map(|ip| Ip { interface: ip.interface.map(|i| i + shift), ..ip }));
        self.routes.extend(later.routes);
        if self.dns.is_empty() {
            self.dns = later.dns;
        }
    }

    /// The result as `version` has it, with a newline.
    pub fn to_json(&self, version: Version) -> String {
        let mut object = Map::new();
        object.insert("cniVersion".into(), json!(version.as_str()));
        if version < Version::V0_3_0 {
            self.add_old_ips(&mut object);
        } else {
            if !self.interfaces.is_empty() {
                let list = self.interfaces.iter().map(|i| interface_json(i, version)).collect();
                object.insert("interfaces".into(), Value::Array(list));
            }
            let ips = self.ips.iter().map(|ip| ip_json(ip, version)).collect();
            object.insert("ips".into(), Value::Array(ips));
            if !self.routes.is_empty() {
                let list = self.routes.iter().map(|r| route_json(r, version)).collect();
                object.insert("routes".into(), Value::Array(list));
            }
        }
        object.insert("dns".into(), Value::Object(self.dns.clone()));
        format!("{:#}\n", Value::Object(object))
    }

    /// 0.1.0 and 0.2.0 know one address of each family, with its routes, and no links.
    fn add_old_ips(&self, object: &mut Map<String, Value>) {
        for (key, v6) in [("ip4", false), ("ip6", true)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv6() == v6) else {
                continue;
            };
            let mut old = json!({ "ip": ip.address });
            if let Some(gateway) = ip.gateway {
                old["gateway"] = json!(gateway);
            }
            let routes: Vec<_> = self
                .routes
                .iter()
                .filter(|r| r.dst.addr().is_ipv6() == v6)
                .map(|r| route_json(r, Version::V0_2_0))
                .collect();
            if !routes.is_empty() {
                old["routes"] = Value::Array(routes);
            }
            object.insert(key.into(), old);
        }
    }
}

fn interface_json(interface: &Interface, version: Version) -> Value {
    let mut object = Map::new();
    object.insert("name".into(), json!(interface.name));
    for (key, value) in [("mac", &interface.mac), ("sandbox", &interface.sandbox)] {
        if !value.is_empty() {
            object.insert(key.into(), json!(value));
        }
    }
    if version >= Version::V1_1_0 {
        object.extend(interface.more.clone());
    }
    Value::Object(object)
}

fn ip_json(ip: &Ip, version: Version) -> Value {
    let mut object = json!({ "address": ip.address });
    if version < Version::V1_0_0 {
        object["version"] = json!(if ip.address.addr().is_ipv6() { "6" } else { "4" });
    }
    if let Some(gateway) = ip.gateway {
        object["gateway"] = json!(gateway);
    }
    if let Some(interface) = ip.interface {
        object["interface"] = json!(interface);
    }
    object
}

fn route_json(route: &Route, version: Version) -> Value {
    let mut object = json!({ "dst": route.dst });
    if let Some(gw) = route.gw {
        object["gw"] = json!(gw);
    }
    if version >= Version::V1_1_0 {
        for (key, value) in &route.more {
            object[key] = value.clone();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> CniResult {
        CniResult::parse(&json!({
            "interfaces": [{"name": "eni1"}, {"name": "eth0", "mac": "3", "sandbox": "/run/netns/x", "mtu": 9001}],
            "ips": [{"address": "10.0.0.7/32", "interface": 1}, {"address": "fd00::7/64", "gateway": "fd00::1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400}, {"dst": "::/0"}],
            "dns": {"nameservers": ["10.0.0.2"]}}))
        .unwrap()
    }

    fn printed(version: Version) -> Value {
        serde_json::from_str(&sample().to_json(version)).unwrap()
    }

    #[test]
    fn each_version_gets_its_shape() {
        let newest = printed(Version::V1_1_0);
        assert_eq!(
            newest,
            json!({"cniVersion": "1.1.0",
            "interfaces": [{"name": "eni1"}, {"name": "eth0", "mac": "3", "sandbox": "/run/netns/x", "mtu": 9001}],
            "ips": [{"address": "10.0.0.7/32", "interface": 1}, {"address": "fd00::7/64", "gateway": "fd00::1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400}, {"dst": "::/0"}],
            "dns": {"nameservers": ["10.0.0.2"]}})
        );
        let one = printed(Version::V1_0_0);
        assert_eq!(one["interfaces"][1], json!({"name": "eth0", "mac": "3", "sandbox": "/run/netns/x"}));
        assert_eq!(one["routes"][0], json!({"dst": "0.0.0.0/0", "gw": "10.0.0.1"}));
        assert_eq!(one["ips"], newest["ips"]);
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            let old = printed(version);
            assert_eq!(old["cniVersion"], version.as_str());
            assert_eq!(old["ips"][0], json!({"version": "4", "address": "10.0.0.7/32", "interface": 1}));
            assert_eq!(old["ips"][1]["version"], "6");
        }
        for version in [Version::V0_1_0, Version::V0_2_0] {
            assert_eq!(
                printed(version),
                json!({"cniVersion": version.as_str(),
                    "ip4": {"ip": "10.0.0.7/32", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
                    "ip6": {"ip": "fd00::7/64", "gateway": "fd00::1", "routes": [{"dst": "::/0"}]},
                    "dns": {"nameservers": ["10.0.0.2"]}})
            );
        }
    }

    #[test]
    fn every_version_is_read_back() {
        for version in Version::ALL {
            let back = CniResult::parse(&printed(version)).unwrap();
            let addresses = |r: &CniResult| r.ips.iter().map(|i| (i.address, i.gateway)).collect::<Vec<_>>();
            assert_eq!(addresses(&back), addresses(&sample()), "{version:?}");
            assert_eq!(back.dns, sample().dns);
            if version >= Version::V0_3_0 {
                assert_eq!(back.interfaces.len(), 2);
                assert_eq!(back.ips[0].interface, Some(1));
            }
        }
    }

    #[test]
    fn what_go_prints_is_read() {
        let result = CniResult::parse(&json!({"interfaces": null, "ips": [{"address": "10.0.0.7/24", "gateway": "", "interface": -1}], "routes": null, "dns": null})).unwrap();
        assert_eq!(result.ips[0], Ip { address: "10.0.0.7/24".parse().unwrap(), gateway: None, interface: None });
        for wrong in
            [json!([]), json!("x"), json!({"ips": [{}]}), json!({"ips": [{"address": "x"}]}), json!({"ips": {}})]
        {
            assert_eq!(CniResult::parse(&wrong).unwrap_err().code, crate::error::INVALID_CONFIG, "{wrong}");
        }
    }

    #[test]
    fn appending_moves_references() {
        let mut first = sample();
        first.append(sample());
        assert_eq!(first.ips.iter().map(|i| i.interface).collect::<Vec<_>>(), [Some(1), Some(1), Some(3), Some(3)]);
    }
}
