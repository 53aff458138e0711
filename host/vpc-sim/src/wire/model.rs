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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AttachNetworkInterface, CreateNetworkInterface, InstanceConfig, Request, Response, Timing, VpcConfig, Wanted,
    };

    #[test]
    fn an_interface_is_on_the_wire_from_attached_until_detached() {
        let mut config = VpcConfig { timing: Timing { attach_ms: 100, ..Timing::default() }, ..VpcConfig::default() };
        let subnet = config.subnets[0].clone();
        let instance =
            InstanceConfig { id: "i-a".into(), subnet: subnet.id.clone(), public_ip: true, ..Default::default() };
        config.instances.push(instance);
        let mut vpc = Vpc::new(config).unwrap();
        let spec = WireSpec::of_vpc("w1", &mut vpc, 0);
        assert_eq!(spec.nodes, [NodeSpec { instance: "i-a".into(), netns: "w1-i-a".into() }]);
        let [eth0] = spec.enis.as_slice() else { panic!("{spec:?}") };
        assert_eq!((eth0.ifname.as_str(), eth0.device_index, eth0.subnet), ("eth0", 0, subnet.cidr));
        assert!(eth0.public.is_some());

        let wanted = Wanted::addresses(2);
        let create = CreateNetworkInterface { subnet_id: subnet.id, wanted, ..Default::default() };
        let Ok(Response::Created { eni, .. }) = vpc.call(10, &Request::CreateNetworkInterface(create)).result else {
            panic!("not created")
        };
        assert_eq!(WireSpec::of_vpc("w1", &mut vpc, 10), spec, "what is not attached is not there");
        let attach = AttachNetworkInterface {
            network_interface_id: eni.id.clone(),
            instance_id: "i-a".into(),
            device_index: 1,
            ..Default::default()
        };
        vpc.call(20, &Request::AttachNetworkInterface(attach)).result.unwrap();
        assert_eq!(WireSpec::of_vpc("w1", &mut vpc, 119), spec, "nor what is attaching");
        let spec = WireSpec::of_vpc("w1", &mut vpc, 120);
        let eth1 = spec.enis.iter().find(|spec| spec.eni_id == eni.id).unwrap();
        assert_eq!((eth1.ifname.as_str(), eth1.public, eth1.primary), ("eth1", None, eni.primary()));
        assert_eq!(eth1.addresses, eni.secondary());
        super::super::plan::check(&spec).unwrap();

        vpc.terminate_instance(200, "i-a");
        let spec = WireSpec::of_vpc("w1", &mut vpc, 200);
        assert!(spec.nodes.is_empty() && spec.enis.is_empty());
    }
}
