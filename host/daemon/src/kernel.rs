//! The host's network for real: core's words into netlink's.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use wipam_core::cloud::{EniFacts, InstanceFacts};
use wipam_core::event::{NetTarget, Netns};
use wipam_netlink::eni::EniNet;
use wipam_netlink::fence::FenceTarget;
use wipam_netlink::liveness::{LivenessQuery, alive};
use wipam_netlink::netns::{NetnsRef, identify};
use wipam_netlink::node::{self, NodeNet, SnatPorts};
use wipam_netlink::pod::{HostRoute, PodTeardown, repair, teardown_many};
use wipam_netlink::{Mac, eni, fence, names};

use crate::links::{Links, Observed, OwnLink};
use crate::settings::{Host, RandomPorts};

/// How long an attached interface may take to show up as a link.
const LINK_DEADLINE: Duration = Duration::from_secs(20);

/// Netlink, in the network namespace of the process.
pub struct Kernel {
    host: Host,
    boot: String,
}

impl Kernel {
    /// With these settings; `boot` is this boot's id.
    pub fn new(host: Host, boot: String) -> Kernel {
        Kernel { host, boot }
    }

    fn target(&self, target: &NetTarget, seen: Option<&node::Observed>) -> PodTeardown {
        let ours = names::alias(&target.key.container_id, &target.key.ifname);
        let link = seen.and_then(|s| match target.host_ifname.as_str() {
            // A lease that was rebuilt from the links themselves knows no name.
            "" => s.link_with_alias(&ours),
            name => s.links.iter().find(|l| l.name == name),
        });
        // Pods of the AWS daemon have links without alias; they are known by having no recorded namespace.
        let foreign = target.netns.is_none() && link.is_some_and(|l| l.alias.is_none());
        PodTeardown {
            host_ifname: link.map_or_else(|| target.host_ifname.clone(), |l| l.name.clone()),
            alias: if foreign { String::new() } else { ours },
            addresses: target.addresses.iter().map(|a| (a.address.addr(), a.table)).collect(),
        }
    }

    /// The recorded namespace, if it was recorded in this boot: an inode of another boot names something else.
    fn netns(&self, netns: Option<&Netns>) -> Option<NetnsRef> {
        let known = netns.filter(|n| n.inode != 0 && n.boot == self.boot)?;
        Some(NetnsRef { path: known.path.clone().into(), inode: known.inode })
    }
}

/// Whether the host's network is ours to touch: a range belongs to another main plugin.
fn ours(target: &NetTarget) -> bool {
    target.addresses.iter().any(|a| !a.eni.is_empty()) || !target.host_ifname.is_empty() || target.netns.is_none()
}

fn mac(text: &str) -> Result<Mac, String> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|b| u8::from_str_radix(b, 16).ok()).collect();
    bytes.and_then(|b| b.try_into().ok()).ok_or_else(|| format!("{text:?} is not a MAC address"))
}

fn chain(error: &wipam_netlink::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl Links for Kernel {
    fn set_up_node(&self, facts: &InstanceFacts) -> Result<(), String> {
        let net = NodeNet {
            primary_mac: mac(&facts.primary_mac)?,
            primary_ip: Some(facts.primary),
            vpc_cidrs: facts.vpc_cidrs.clone(),
            exclude_snat_cidrs: self.host.exclude_snat.clone(),
            external_snat: self.host.external_snat,
            node_port: self.host.node_port,
            connmark: self.host.connmark,
            ports: match self.host.random_ports {
                RandomPorts::Prng => SnatPorts::FullyRandom,
                RandomPorts::Hash => SnatPorts::Random,
                RandomPorts::None => SnatPorts::Kept,
            },
            veth_prefix: self.host.veth_prefix.clone(),
            mtu: Some(self.host.eni_mtu),
        };
        node::setup(&net).map(drop).map_err(|e| chain(&e))
    }

    fn set_up_eni(&self, facts: &EniFacts, table: u32) -> Result<(), String> {
        let subnet = facts.subnet_cidr.ok_or_else(|| format!("the subnet's CIDR of {} is not known yet", facts.id))?;
        let primary = Ipv4Net::new(facts.primary, subnet.prefix_len()).map_err(|e| e.to_string())?;
        let router = Ipv4Addr::from_bits(subnet.network().to_bits() + 1);
        let net = EniNet {
            mac: mac(&facts.mac)?,
            mtu: self.host.eni_mtu,
            primary_ip: IpNet::V4(primary),
            gateway: router.into(),
            table,
        };
        eni::setup(&net, deadline()).map(drop).map_err(|e| chain(&e))
    }

    fn remove_eni(&self, facts: &EniFacts, table: u32) -> Result<(), String> {
        eni::remove(facts.primary.into(), table).map_err(|e| chain(&e))
    }

    fn tear_down(&self, targets: &[NetTarget]) -> Vec<Result<(), String>> {
        let seen = match node::observe() {
            Ok(seen) => seen,
            Err(error) => return vec![Err(chain(&error)); targets.len()],
        };
        let pods: Vec<_> = targets.iter().filter(|t| ours(t)).map(|t| self.target(t, Some(&seen))).collect();
        let report = teardown_many(&pods);
        // Errors are of the batch; whoever still has an address on the host is asked again.
        let why = report.errors.iter().map(chain).collect::<Vec<_>>().join("; ");
        if why.is_empty() {
            return vec![Ok(()); targets.len()];
        }
        let left = node::observe().map(|s| s.carried());
        let carried = |t: &NetTarget| match &left {
            Ok(left) => t.addresses.iter().any(|a| left.contains(&a.address.addr())),
            Err(_) => true,
        };
        targets.iter().map(|t| if ours(t) && carried(t) { Err(why.clone()) } else { Ok(()) }).collect()
    }

    fn fence(&self, target: &NetTarget) -> Result<(), String> {
        let seen = node::observe().map_err(|e| chain(&e))?;
        let PodTeardown { host_ifname, alias, addresses } = self.target(target, Some(&seen));
        let netns = self.netns(target.netns.as_ref());
        fence::fence(&FenceTarget { host_ifname, alias, addresses, netns }).map_err(|e| chain(&e))
    }

    fn repair(&self, targets: &[NetTarget]) -> Result<Vec<String>, String> {
        // Without a name there is no veth of ours (a range), and without a namespace another plugin made it.
        let wanted: Vec<_> = targets
            .iter()
            .filter(|t| !t.host_ifname.is_empty() && t.netns.is_some())
            .flat_map(|t| {
                t.addresses.iter().map(|a| HostRoute {
                    host_ifname: t.host_ifname.clone(),
                    alias: names::alias(&t.key.container_id, &t.key.ifname),
                    addr: a.address.addr(),
                    table: a.table,
                })
            })
            .collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let done = repair(&wanted).map_err(|e| chain(&e))?;
        let errors = done.errors.iter().map(chain).collect::<Vec<_>>().join("; ");
        if errors.is_empty() { Ok(done.mended) } else { Err(errors) }
    }

    fn alive(&self, target: &NetTarget) -> bool {
        // No sandbox outlives the kernel it ran on.
        if target.netns.as_ref().is_some_and(|n| !n.boot.is_empty() && n.boot != self.boot) {
            return false;
        }
        // A tombstone has no address: it lasts while its namespace does.
        if target.addresses.is_empty() {
            let is_there = |n: &Netns| identify(Path::new(&n.path)).is_ok_and(|found| found.inode == n.inode);
            return target.netns.as_ref().is_some_and(is_there);
        }
        let query = LivenessQuery {
            netns: self.netns(target.netns.as_ref()),
            addresses: target.addresses.iter().map(|a| a.address.addr()).collect(),
        };
        alive(&query).counts_as_alive()
    }

    fn observe(&self) -> Result<Observed, String> {
        let seen = node::observe().map_err(|e| chain(&e))?;
        let addresses: BTreeSet<IpAddr> = seen.carried();
        let own = seen
            .links
            .iter()
            .filter_map(|link| {
                let (container_id, ifname) = names::parse_alias(link.alias.as_deref()?)?;
                let routed = seen.host_routes.iter().filter(|r| r.link == link.index).map(|r| r.to.addr());
                Some(OwnLink {
                    name: link.name.clone(),
                    container_id: container_id.to_owned(),
                    ifname: ifname.to_owned(),
                    addresses: routed.collect(),
                })
            })
            .collect();
        Ok(Observed { addresses: addresses.into_iter().collect(), own })
    }

    fn identify(&self, path: &str) -> Netns {
        let inode = identify(Path::new(path)).map_or(0, |found| found.inode);
        Netns { path: path.to_owned(), inode, boot: self.boot.clone() }
    }

    fn host_veth(&self, namespace: &str, pod: &str, ifname: &str) -> String {
        names::host_veth_for(&self.host.veth_prefix, namespace, pod, ifname)
    }
}

fn deadline() -> Instant {
    Instant::now() + LINK_DEADLINE
}
