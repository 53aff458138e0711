//! The wire of a simulated VPC: what the model says is attached and assigned now.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{EniSpec, NodeSpec, WireSpec};
use crate::model::{Eni, Vpc};

/// Where instance metadata is served on EC2.
pub const IMDS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Where nodes find the simulated EC2 API: in a range set aside for tests of networks, so in no VPC.
pub const API: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 1);

/// The MTU of every link in a VPC.
const MTU: u32 = 9001;

impl WireSpec {
    /// The wire called `name` of the running instances of `vpc` and their interfaces as they are at `now_ms`, whatever
    /// describe and metadata say by then. The namespace of an instance is `<name>-<instance id>`. An interface that is
    /// still attaching is not there, one that is detaching still is.
    pub fn of_vpc(name: &str, vpc: &mut Vpc, now_ms: u64) -> Self {
        let enis = vpc.enis(now_ms);
        let subnets: BTreeMap<String, _> = vpc.subnets().into_iter().map(|subnet| (subnet.id, subnet.cidr)).collect();
        let instances = vpc.running();
        let spec_of = |eni: &Eni| {
            let plug = eni.attachment.as_ref().filter(|plug| eni.works_on(&plug.instance_id))?;
            instances.contains(&plug.instance_id).then_some(())?;
            let card = plug.network_card_index;
            Some(EniSpec {
                eni_id: eni.id.clone(),
                instance: plug.instance_id.clone(),
                mac: eni.mac.clone(),
                ifname: match card {
                    0 => format!("eth{}", plug.device_index),
                    _ => format!("eth{}c{card}", plug.device_index),
                },
                // Each card has its own indexes; only the first of the first card is the primary interface.
                device_index: if card == 0 { plug.device_index } else { plug.device_index.max(1) },
                subnet: *subnets.get(&eni.subnet_id)?,
                primary: eni.primary(),
                addresses: eni.secondary().to_vec(),
                prefixes: eni.prefixes.clone(),
                public: eni.public_ip,
                mtu: MTU,
            })
        };
        let enis = enis.iter().filter_map(|eni| spec_of(eni)).collect();
        let node = |id: &String| NodeSpec { instance: id.clone(), netns: format!("{name}-{id}") };
        Self {
            name: name.to_owned(),
            nodes: instances.iter().map(node).collect(),
            enis,
            vpc_cidrs: vpc.cidrs().to_vec(),
            imds: IMDS,
            api: API,
        }
    }
}
