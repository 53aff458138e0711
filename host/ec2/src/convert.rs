//! From the SDK's shapes, where everything is optional, to the host's.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use aws_sdk_ec2::operation::assign_private_ip_addresses::AssignPrivateIpAddressesOutput;
use aws_sdk_ec2::types::{
    AttachmentStatus, InstanceTypeHypervisor, InstanceTypeInfo, NetworkInterface, NetworkInterfaceType, Subnet, Tag,
};
use ipnet::Ipv4Net;
use wipam_core::cloud::{AttachState, CloudError, EniFacts, EniKind, Reply, SubnetFacts};

use crate::error::unreadable;
use crate::settings::Limits;

/// An interface. One without IPv4 (EFA only, IPv6 only) gets 0.0.0.0 as primary address.
pub(crate) fn eni(source: &NetworkInterface) -> Result<EniFacts, CloudError> {
    let attachment = source.attachment();
    let state = match attachment.and_then(|a| a.status()) {
        None | Some(AttachmentStatus::Detached) => AttachState::Detached,
        Some(AttachmentStatus::Attached) => AttachState::Attached,
        Some(AttachmentStatus::Detaching) => AttachState::Detaching,
        // Also what a later EC2 may add: on its way, not to be used yet.
        Some(_) => AttachState::Attaching,
    };
    let mut addresses = Vec::new();
    for entry in source.private_ip_addresses().iter().filter(|entry| entry.primary() != Some(true)) {
        addresses.push(address(entry.private_ip_address())?);
    }
    let mut prefixes = Vec::new();
    for entry in source.ipv4_prefixes() {
        prefixes.push(prefix(entry.ipv4_prefix())?);
    }
    let primary = match source.private_ip_address() {
        Some(text) => address(Some(text))?,
        None => Ipv4Addr::UNSPECIFIED,
    };
    let attached = attachment.filter(|_| state != AttachState::Detached);
    Ok(EniFacts {
        id: text(source.network_interface_id(), "interface id")?,
        mac: text(source.mac_address(), "MAC address")?.to_ascii_lowercase(),
        subnet: text(source.subnet_id(), "subnet id")?,
        subnet_cidr: None,
        primary,
        addresses,
        prefixes,
        device: attached.and_then(|a| a.device_index()).and_then(|n| u8::try_from(n).ok()),
        card: attached.and_then(|a| a.network_card_index()).and_then(|n| u8::try_from(n).ok()).unwrap_or(0),
        attachment: attached.and_then(|a| a.attachment_id()).map(str::to_owned),
        state,
        kind: kind(source.interface_type()),
        tags: tags(source.tag_set()),
        delete_on_termination: attached.and_then(|a| a.delete_on_termination()).unwrap_or(false),
    })
}

/// Whether the interface is attached (or being so) to another instance than `instance`.
pub(crate) fn elsewhere(source: &NetworkInterface, instance: &str) -> bool {
    source.attachment().and_then(|a| a.instance_id()).is_some_and(|other| other != instance)
}

/// A subnet. One without IPv4 is left out (`None`).
pub(crate) fn subnet(source: &Subnet) -> Result<Option<SubnetFacts>, CloudError> {
    let Some(cidr) = source.cidr_block() else { return Ok(None) };
    Ok(Some(SubnetFacts {
        id: text(source.subnet_id(), "subnet id")?,
        cidr: cidr.parse().map_err(|_| unreadable("subnet CIDR"))?,
        free: u64::try_from(source.available_ip_address_count().unwrap_or(0)).unwrap_or(0),
        zone: text(source.availability_zone(), "availability zone")?,
        tags: tags(source.tags()),
    }))
}

/// What was assigned, be it less than was asked for.
pub(crate) fn assigned(source: &AssignPrivateIpAddressesOutput) -> Result<Reply, CloudError> {
    let addresses = source.assigned_private_ip_addresses().iter().map(|a| address(a.private_ip_address()));
    let prefixes = source.assigned_ipv4_prefixes().iter().map(|p| prefix(p.ipv4_prefix()));
    Ok(Reply::Assigned {
        addresses: addresses.collect::<Result<_, _>>()?,
        prefixes: prefixes.collect::<Result<_, _>>()?,
    })
}

/// Limits of card 0: where no card is reported, the instance has one, and the limits of the whole hold for it.
pub(crate) fn limits(source: &InstanceTypeInfo) -> Result<Limits, CloudError> {
    let network = source.network_info().ok_or_else(|| unreadable("network limits"))?;
    let card = network.network_cards().iter().find(|card| card.network_card_index() == Some(0));
    let max_enis = card.and_then(|c| c.maximum_network_interfaces()).or(network.maximum_network_interfaces());
    let nitro = source.hypervisor() == Some(&InstanceTypeHypervisor::Nitro);
    Ok(Limits {
        max_enis: positive(max_enis, "interface limit")?,
        ipv4_per_eni: positive(network.ipv4_addresses_per_interface(), "address limit")?,
        prefix_capable: nitro || source.bare_metal() == Some(true),
    })
}

fn positive(value: Option<i32>, what: &str) -> Result<u16, CloudError> {
    value.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0).ok_or_else(|| unreadable(what))
}

fn kind(source: Option<&NetworkInterfaceType>) -> EniKind {
    match source {
        Some(NetworkInterfaceType::Trunk) => EniKind::Trunk,
        Some(NetworkInterfaceType::Efa) => EniKind::Efa,
        Some(NetworkInterfaceType::EfaOnly) => EniKind::EfaOnly,
        _ => EniKind::Interface,
    }
}

fn tags(source: &[Tag]) -> BTreeMap<String, String> {
    let pair = |tag: &Tag| Some((tag.key()?.to_owned(), tag.value().unwrap_or_default().to_owned()));
    source.iter().filter_map(pair).collect()
}

pub(crate) fn text(value: Option<&str>, what: &str) -> Result<String, CloudError> {
    value.map(str::to_owned).ok_or_else(|| unreadable(what))
}

fn address(value: Option<&str>) -> Result<Ipv4Addr, CloudError> {
    value.and_then(|text| text.parse().ok()).ok_or_else(|| unreadable("private address"))
}

fn prefix(value: Option<&str>) -> Result<Ipv4Net, CloudError> {
    value.and_then(|text| text.parse().ok()).ok_or_else(|| unreadable("prefix"))
}
