//! A simulated VPC that begins where a record begins: the same limits, subnets, interfaces and addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use wipam_core::cloud::{self, AttachState, EniFacts, InstanceFacts, SubnetFacts};
use wipam_core::event::{Event, Ms};
use wipam_core::record::{Header, Line};
use wipam_vpc_sim::instance_types::{Hypervisor, InstanceType};
use wipam_vpc_sim::model::{
    AssignPrivateIpAddresses, AttachNetworkInterface, CreateNetworkInterface, InstanceConfig,
    ModifyNetworkInterfaceAttribute, Request, Response, SubnetConfig, Timing, Vpc, VpcConfig, Wanted,
};

use super::reading::Recording;

/// Model time from the VPC's beginning to that of the record: interfaces are attached by then.
const BEFORE: Ms = 60_000;

/// The VPC, the instance's facts, and the instant of the pool's clock at which model time began.
pub struct Scene {
    /// The VPC.
    pub vpc: Vpc,
    /// The node's instance in it.
    pub facts: InstanceFacts,
    /// Pool clock at model time 0.
    pub begin: Ms,
    /// What was guessed.
    pub notes: Vec<String>,
}

/// What the record says of EC2 before it says anything else.
struct Seen {
    enis: Vec<EniFacts>,
    subnets: Vec<SubnetFacts>,
}

fn seen(recording: &Recording) -> Seen {
    let (mut enis, mut subnets) = (None, None);
    for line in &recording.lines {
        let Line::Event { e, .. } = line else { continue };
        match e {
            Event::Ec2 { result: Ok(cloud::Reply::Enis(all)), .. } | Event::Metadata { enis: all }
                if !all.is_empty() =>
            {
                _ = enis.get_or_insert_with(|| all.clone());
            }
            Event::Ec2 { result: Ok(cloud::Reply::Subnets(all)), .. } => {
                _ = subnets.get_or_insert_with(|| all.clone());
            }
            _ => {}
        }
        if enis.is_some() && subnets.is_some() {
            break;
        }
    }
    Seen { enis: enis.unwrap_or_default(), subnets: subnets.unwrap_or_default() }
}

/// Builds it.
///
/// # Errors
/// What the record says of the VPC cannot be (overlapping subnets, an address twice).
pub fn scene(recording: &Recording, header: &Header) -> Result<Scene, String> {
    let Seen { enis, subnets } = seen(recording);
    let mut notes = Vec::new();
    if enis.is_empty() {
        notes.push("the record lists no interfaces; the simulated instance begins with a bare primary one".into());
    }
    let cidrs = cidrs(header, &enis, &subnets);
    let primary = enis.iter().find(|e| e.device == Some(0));
    let home = primary.map(|e| e.subnet.clone()).or_else(|| header.config.subnets.first().cloned()).unwrap_or_default();
    let config = VpcConfig {
        cidrs: cidrs.values().copied().collect(),
        subnets: cidrs
            .iter()
            .map(|(id, cidr)| SubnetConfig { id: id.clone(), cidr: *cidr, ..SubnetConfig::default() })
            .collect(),
        instances: vec![InstanceConfig {
            id: header.instance.clone(),
            instance_type: header.config.instance_type.clone(),
            subnet: home,
            private_ip: primary.map(|e| e.primary),
            ..InstanceConfig::default()
        }],
        // The record's own limits, whatever the table says of the type.
        instance_types: vec![InstanceType {
            name: header.config.instance_type.clone(),
            cards: vec![header.config.max_enis.into()],
            ipv4_per_eni: u32::from(header.config.slots_per_eni) + 1,
            hypervisor: Hypervisor::Nitro,
        }],
        timing: Timing::typical(),
        ..VpcConfig::default()
    };
    let mut vpc = Vpc::new(config).map_err(|e| format!("the record's VPC cannot be simulated: {e}"))?;
    for eni in &enis {
        put(&mut vpc, &header.instance, eni)?;
    }
    for subnet in &subnets {
        occupy(&mut vpc, subnet);
    }
    let facts = facts(&vpc, header, primary);
    Ok(Scene { vpc, facts, begin: header.t.saturating_sub(BEFORE), notes })
}

/// CIDRs of all subnets that are named; where the record does not say one, one that holds what is known to be in it.
fn cidrs(header: &Header, enis: &[EniFacts], subnets: &[SubnetFacts]) -> BTreeMap<String, Ipv4Net> {
    let mut names: BTreeSet<&str> = header.config.subnets.iter().map(String::as_str).collect();
    names.extend(enis.iter().map(|e| e.subnet.as_str()));
    let mut unknown = 0;
    let mut all = BTreeMap::new();
    for name in names {
        let told = subnets.iter().find(|s| s.id == name).map(|s| s.cidr);
        let told = told.or_else(|| enis.iter().filter(|e| e.subnet == name).find_map(|e| e.subnet_cidr));
        let around = || {
            let inside = enis.iter().find(|e| e.subnet == name)?.primary;
            Some(Ipv4Net::new(inside, 20).ok()?.trunc())
        };
        let cidr = told.or_else(around).unwrap_or_else(|| {
            unknown += 1;
            Ipv4Net::new_assert(Ipv4Addr::new(100, 64 + unknown, 0, 0), 20)
        });
        all.insert(name.to_owned(), cidr);
    }
    all
}

fn call(vpc: &mut Vpc, what: &str, request: &Request) -> Result<Response, String> {
    vpc.call(0, request).result.map_err(|e| format!("the record's VPC cannot be simulated: {what}: {e:?}"))
}

/// Puts a recorded interface with its addresses into the VPC.
fn put(vpc: &mut Vpc, instance: &str, eni: &EniFacts) -> Result<(), String> {
    let named = Wanted { addresses: eni.addresses.clone(), ..Wanted::default() };
    let id = if eni.device == Some(0) {
        let found =
            vpc.enis(0).iter().find(|e| e.works_on(instance) || e.primary() == eni.primary).map(|e| e.id.clone());
        let id = found.ok_or("the simulated instance has no primary interface")?;
        if !eni.addresses.is_empty() {
            assign(vpc, &id, named)?;
        }
        id
    } else {
        let request = CreateNetworkInterface {
            subnet_id: eni.subnet.clone(),
            private_ip: Some(eni.primary),
            wanted: named,
            tags: eni.tags.clone(),
            ..CreateNetworkInterface::default()
        };
        let Response::Created { eni: made, .. } = call(vpc, &eni.id, &Request::CreateNetworkInterface(request))? else {
            return Err("CreateNetworkInterface answers something else".into());
        };
        made.id.clone()
    };
    if !eni.prefixes.is_empty() {
        assign(vpc, &id, Wanted { prefixes: eni.prefixes.clone(), ..Wanted::default() })?;
    }
    match eni.device {
        Some(device) if device > 0 && eni.state != AttachState::Detached => attach(vpc, instance, &id, device),
        _ => Ok(()),
    }
}

fn assign(vpc: &mut Vpc, id: &str, wanted: Wanted) -> Result<(), String> {
    let request = AssignPrivateIpAddresses { network_interface_id: id.into(), wanted, allow_reassignment: false };
    call(vpc, id, &Request::AssignPrivateIpAddresses(request)).map(|_| ())
}

fn attach(vpc: &mut Vpc, instance: &str, id: &str, device: u8) -> Result<(), String> {
    let request = AttachNetworkInterface {
        instance_id: instance.into(),
        network_interface_id: id.into(),
        device_index: device.into(),
        network_card_index: 0,
    };
    let Response::Attached { attachment_id, .. } = call(vpc, id, &Request::AttachNetworkInterface(request))? else {
        return Err("AttachNetworkInterface answers something else".into());
    };
    let request = ModifyNetworkInterfaceAttribute {
        network_interface_id: id.into(),
        delete_on_termination: Some((attachment_id, true)),
        ..ModifyNetworkInterfaceAttribute::default()
    };
    call(vpc, id, &Request::ModifyNetworkInterfaceAttribute(request)).map(|_| ())
}

/// Others use what the record says is not free.
fn occupy(vpc: &mut Vpc, subnet: &SubnetFacts) {
    let free_now = vpc.subnets().iter().find(|s| s.id == subnet.id).map_or(0, |s| u64::from(s.available));
    let others = free_now.saturating_sub(subnet.free);
    vpc.occupy(&subnet.id, u32::try_from(others).unwrap_or(u32::MAX));
}

fn facts(vpc: &Vpc, header: &Header, primary: Option<&EniFacts>) -> InstanceFacts {
    InstanceFacts {
        instance: header.instance.clone(),
        instance_type: header.config.instance_type.clone(),
        region: vpc.config().region.clone(),
        zone: String::new(),
        vpc: vpc.config().vpc_id.clone(),
        vpc_cidrs: vpc.cidrs().to_vec(),
        primary: primary.map_or(Ipv4Addr::UNSPECIFIED, |e| e.primary),
        primary_mac: primary.map(|e| e.mac.clone()).unwrap_or_default(),
        security_groups: Vec::new(),
        max_enis: header.config.max_enis,
        ipv4_per_eni: header.config.slots_per_eni + 1,
        prefix_capable: true,
    }
}
