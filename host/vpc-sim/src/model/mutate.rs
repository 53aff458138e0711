//! The actions that change something.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;

use super::addresses::Addresses;
use super::config::Placement;
use super::random::Random;
use super::request::{
    AssignPrivateIpAddresses, AttachNetworkInterface, AttachStatus, Attachment, CreateNetworkInterface,
    DetachNetworkInterface, Ec2Error, Eni, EniStatus, ModifyNetworkInterfaceAttribute, Request, Response,
    UnassignPrivateIpAddresses, Wanted,
};
use super::vpc::{Due, EniRecord, Vpc};

/// The most addresses that an interface which is not plugged in may have: the highest limit of any type.
const UNPLUGGED_LIMIT: usize = 50;
/// The most tags of a resource.
const MAX_TAGS: usize = 50;

type Result<T> = std::result::Result<T, Ec2Error>;

fn fail<T>(code: &str, message: impl Into<String>) -> Result<T> {
    Err(Ec2Error::new(code, message))
}

impl Vpc {
    /// Does what the call asks; `partial` limits how many addresses it gets or gives.
    pub(super) fn act(&mut self, request: &Request, partial: Option<usize>) -> Result<Response> {
        match request {
            Request::DescribeNetworkInterfaces(query) => self.describe_enis(query),
            Request::DescribeInstances(query) => self.describe_instances(query),
            Request::DescribeInstanceTypes(query) => self.describe_instance_types(query),
            Request::DescribeSubnets(query) => self.describe_subnets(query),
            Request::DescribeVpcs(query) => self.describe_vpcs(query),
            Request::DescribeTags(query) => self.describe_tags(query),
            Request::CreateNetworkInterface(request) => self.create(request, partial),
            Request::AttachNetworkInterface(request) => self.attach(request),
            Request::ModifyNetworkInterfaceAttribute(request) => self.modify(request),
            Request::AssignPrivateIpAddresses(request) => self.assign(request, partial),
            Request::UnassignPrivateIpAddresses(request) => self.unassign(request, partial),
            Request::DetachNetworkInterface(request) => self.detach(request),
            Request::DeleteNetworkInterface { network_interface_id } => self.delete(network_interface_id),
            Request::CreateTags { resources, tags } => self.create_tags(resources, tags),
            Request::DeleteTags { resources, tags } => self.delete_tags(resources, tags),
        }
    }

    fn create(&mut self, request: &CreateNetworkInterface, partial: Option<usize>) -> Result<Response> {
        if let Some(token) = &request.client_token
            && let Some((first, eni)) = self.client_tokens.get(token)
        {
            if first != request {
                return fail(
                    "IdempotentParameterMismatch",
                    "The client token was used with other parameters; use a new token for a new interface.",
                );
            }
            return Ok(Response::Created { eni: Box::new(Eni::clone(eni)), client_token: token.clone() });
        }
        if self.live_enis >= self.config.max_network_interfaces {
            return fail("NetworkInterfaceLimitExceeded", "The maximum number of network interfaces has been reached.");
        }
        check_tags(&BTreeMap::new(), &request.tags)?;
        let mut eni = self.build_eni(request, UNPLUGGED_LIMIT, partial)?;
        if self.config.timing.create_ms > 0 {
            eni.status = EniStatus::Pending;
            self.schedule(self.now_ms + self.config.timing.create_ms, Due::Created(eni.id.clone()));
        }
        self.put(self.now_ms, eni.clone());
        // EC2 answers `pending` even when the interface can be used at once.
        eni.status = EniStatus::Pending;
        let client_token = match &request.client_token {
            Some(token) => {
                self.remember_token(token.clone(), request.clone(), Arc::new(eni.clone()));
                token.clone()
            }
            None => self.make_id("token"),
        };
        Ok(Response::Created { eni: Box::new(eni), client_token })
    }

    /// Makes an unplugged interface and takes its addresses, but does not list it yet.
    pub(super) fn build_eni(
        &mut self,
        request: &CreateNetworkInterface,
        limit: usize,
        partial: Option<usize>,
    ) -> Result<Eni> {
        let subnet = self.subnets.get_mut(&request.subnet_id).ok_or_else(|| no_subnet(&request.subnet_id))?;
        check_wanted(&request.wanted)?;
        if 1 + request.wanted.units() > limit {
            return too_many_addresses();
        }
        let primary = match request.private_ip {
            Some(address) if !subnet.addresses.contains(address) => return outside(address),
            Some(address) if subnet.addresses.take(address) => address,
            Some(address) => return in_use(address),
            None => {
                let from = Self::search_from(self.config.placement, &mut self.places, subnet.addresses.size());
                subnet.addresses.take_any(from).ok_or_else(|| full_subnet(&request.subnet_id))?
            }
        };
        let availability_zone = subnet.zone.clone();
        let (addresses, prefixes) = match self.take(&request.subnet_id, &request.wanted, partial) {
            Ok(taken) => taken,
            Err(error) => {
                if let Some(subnet) = self.subnets.get_mut(&request.subnet_id) {
                    subnet.addresses.give_back(primary);
                }
                return Err(error);
            }
        };
        let id = self.make_id("eni");
        let addresses: Vec<Ipv4Addr> = std::iter::once(primary).chain(addresses).collect();
        addresses.iter().for_each(|address| {
            self.owners.insert(*address, id.clone());
        });
        let mut security_groups = request.security_groups.clone();
        if security_groups.is_empty() {
            security_groups.push(DEFAULT_GROUP.to_owned());
        }
        Ok(Eni {
            mac: self.make_mac(),
            id,
            subnet_id: request.subnet_id.clone(),
            availability_zone,
            description: request.description.clone(),
            addresses,
            prefixes,
            public_ip: None,
            security_groups,
            tags: request.tags.clone(),
            status: EniStatus::Available,
            attachment: None,
            source_dest_check: true,
        })
    }

    /// Takes what is wanted from a subnet: all of it (or as much as `partial` says), or nothing.
    fn take(
        &mut self,
        subnet_id: &str,
        wanted: &Wanted,
        partial: Option<usize>,
    ) -> Result<(Vec<Ipv4Addr>, Vec<Ipv4Net>)> {
        let subnet = self.subnets.get_mut(subnet_id).ok_or_else(|| no_subnet(subnet_id))?;
        let mut taken = (Vec::new(), Vec::new());
        let places = (self.config.placement, &mut self.places);
        match take_each(&mut subnet.addresses, subnet_id, places, wanted, partial.unwrap_or(usize::MAX), &mut taken) {
            Ok(()) => Ok(taken),
            Err(error) => {
                taken.0.iter().for_each(|address| subnet.addresses.give_back(*address));
                taken.1.iter().for_each(|prefix| subnet.addresses.give_back_prefix(*prefix));
                Err(error)
            }
        }
    }

    fn attach(&mut self, request: &AttachNetworkInterface) -> Result<Response> {
        let eni = self.eni(&request.network_interface_id)?;
        let instance = self.instances.get(&request.instance_id).ok_or_else(|| no_instance(&request.instance_id))?;
        if !instance.running {
            return fail("IncorrectState", format!("The instance '{}' is terminated.", request.instance_id));
        }
        if eni.attachment.is_some() {
            return fail("InvalidNetworkInterface.InUse", format!("Interface: [{}] in use.", eni.id));
        }
        if instance.zone != eni.availability_zone {
            return fail(
                "InvalidParameterCombination",
                "You may not attach a network interface to an instance if they are not in the same availability zone",
            );
        }
        let kind = &instance.kind;
        let Some(limit) = kind.cards.get(request.network_card_index as usize) else {
            return fail(
                "InvalidParameterValue",
                format!("Network card index {} is not valid for {}.", request.network_card_index, kind.name),
            );
        };
        let on_card: Vec<u32> = self
            .instance_enis(&request.instance_id, instance, self.now_ms)
            .iter()
            .filter_map(|eni| eni.attachment.as_ref())
            .filter(|attachment| attachment.network_card_index == request.network_card_index)
            .map(|attachment| attachment.device_index)
            .collect();
        if on_card.contains(&request.device_index) {
            return fail(
                "InvalidParameterValue",
                format!(
                    "Instance '{}' already has an interface attached at device index '{}'.",
                    request.instance_id, request.device_index
                ),
            );
        }
        if on_card.len() as u32 >= *limit {
            return fail(
                "AttachmentLimitExceeded",
                format!("Interface count {} exceeds the limit for {}", on_card.len() + 1, kind.name),
            );
        }
        if eni.units() > kind.ipv4_per_eni as usize {
            return too_many_addresses();
        }
        if !eni.prefixes.is_empty() && !kind.prefix_capable() {
            return no_prefixes_on(&kind.name);
        }
        self.plug(eni, request)
    }

    fn plug(&mut self, eni: Arc<Eni>, request: &AttachNetworkInterface) -> Result<Response> {
        let attachment_id = self.make_id("eni-attach");
        let attach_ms = self.config.timing.attach_ms;
        let status = if attach_ms == 0 { AttachStatus::Attached } else { AttachStatus::Attaching };
        let now_ms = self.now_ms;
        self.edit(now_ms, &eni.id, |eni| {
            eni.status = EniStatus::InUse;
            eni.attachment = Some(Attachment {
                id: attachment_id.clone(),
                instance_id: request.instance_id.clone(),
                device_index: request.device_index,
                network_card_index: request.network_card_index,
                status,
                attach_time_ms: now_ms,
                delete_on_termination: false,
            });
        });
        if attach_ms > 0 {
            let due = Due::Attached { eni: eni.id.clone(), attachment: attachment_id.clone() };
            self.schedule(now_ms + attach_ms, due);
        }
        if let Some(instance) = self.instances.get_mut(&request.instance_id) {
            instance.enis.insert(eni.id.clone());
        }
        self.attachments.insert(attachment_id.clone(), eni.id.clone());
        Ok(Response::Attached { attachment_id, network_card_index: request.network_card_index })
    }

    fn modify(&mut self, request: &ModifyNetworkInterfaceAttribute) -> Result<Response> {
        let eni = self.eni(&request.network_interface_id)?;
        if let Some((attachment, _)) = &request.delete_on_termination
            && eni.attachment.as_ref().is_none_or(|plug| plug.id != *attachment)
        {
            return no_attachment(attachment);
        }
        if request.security_groups.as_ref().is_some_and(Vec::is_empty) {
            return fail("InvalidParameterValue", "An interface needs at least one security group.");
        }
        self.edit(self.now_ms, &eni.id, |eni| {
            if let (Some((_, value)), Some(plug)) = (&request.delete_on_termination, &mut eni.attachment) {
                plug.delete_on_termination = *value;
            }
            if let Some(groups) = &request.security_groups {
                eni.security_groups.clone_from(groups);
            }
            if let Some(description) = &request.description {
                eni.description.clone_from(description);
            }
            if let Some(check) = request.source_dest_check {
                eni.source_dest_check = check;
            }
        });
        Ok(Response::Done)
    }

    fn assign(&mut self, request: &AssignPrivateIpAddresses, partial: Option<usize>) -> Result<Response> {
        let eni = self.eni(&request.network_interface_id)?;
        check_wanted(&request.wanted)?;
        if request.wanted.units() == 0 {
            return fail(
                "MissingParameter",
                "Either PrivateIpAddress, SecondaryPrivateIpAddressCount, Ipv4Prefix or Ipv4PrefixCount is needed.",
            );
        }
        let kind = eni
            .attachment
            .as_ref()
            .and_then(|plug| self.instances.get(&plug.instance_id))
            .map(|instance| &instance.kind);
        let prefixes = request.wanted.prefix_count > 0 || !request.wanted.prefixes.is_empty();
        if let Some(kind) = kind.filter(|kind| prefixes && !kind.prefix_capable()) {
            return no_prefixes_on(&kind.name);
        }
        // An address that the interface has already counts once.
        let fresh: Vec<Ipv4Addr> =
            request.wanted.addresses.iter().copied().filter(|address| !eni.addresses.contains(address)).collect();
        let known = request.wanted.addresses.len() - fresh.len();
        let limit = kind.map_or(UNPLUGGED_LIMIT, |kind| kind.ipv4_per_eni as usize);
        if eni.units() + request.wanted.units() - known > limit {
            return too_many_addresses();
        }
        if request.allow_reassignment {
            self.take_from_others(&eni, &fresh)?;
        }
        let wanted = Wanted { addresses: fresh, ..request.wanted.clone() };
        let (addresses, prefixes) = self.take(&eni.subnet_id, &wanted, partial)?;
        addresses.iter().for_each(|address| {
            self.owners.insert(*address, eni.id.clone());
        });
        self.edit(self.now_ms, &eni.id, |eni| {
            eni.addresses.extend(&addresses);
            eni.prefixes.extend(&prefixes);
        });
        Ok(Response::Assigned { network_interface_id: eni.id.clone(), addresses, prefixes })
    }

    /// Frees those of the addresses that are secondary ones of other interfaces in the subnet.
    fn take_from_others(&mut self, eni: &Eni, addresses: &[Ipv4Addr]) -> Result<()> {
        let owned = |address: &Ipv4Addr| Some((*address, self.owners.get(address)?.clone()));
        let taken: Vec<(Ipv4Addr, String)> = addresses.iter().filter_map(owned).collect();
        for (address, owner) in &taken {
            if self.eni(owner)?.primary() == *address {
                return in_use(*address);
            }
        }
        for (address, owner) in taken {
            self.edit(self.now_ms, &owner, |eni| eni.addresses.retain(|own| *own != address));
            self.owners.remove(&address);
            if let Some(subnet) = self.subnets.get_mut(&eni.subnet_id) {
                subnet.addresses.give_back(address);
            }
        }
        Ok(())
    }

    fn unassign(&mut self, request: &UnassignPrivateIpAddresses, partial: Option<usize>) -> Result<Response> {
        let eni = self.eni(&request.network_interface_id)?;
        if request.addresses.is_empty() && request.prefixes.is_empty() {
            return fail("MissingParameter", "The request must contain the parameter PrivateIpAddress or Ipv4Prefix.");
        }
        let known = request.addresses.iter().all(|address| eni.secondary().contains(address))
            && request.prefixes.iter().all(|prefix| eni.prefixes.contains(prefix));
        if !known {
            return fail(
                "InvalidParameterValue",
                format!("Some of the specified addresses are not assigned to interface {} as secondary ones.", eni.id),
            );
        }
        let most = partial.unwrap_or(usize::MAX);
        let addresses: Vec<Ipv4Addr> = request.addresses.iter().copied().take(most).collect();
        let prefixes: Vec<Ipv4Net> = request.prefixes.iter().copied().take(most).collect();
        if let Some(subnet) = self.subnets.get_mut(&eni.subnet_id) {
            addresses.iter().for_each(|address| subnet.addresses.give_back(*address));
            prefixes.iter().for_each(|prefix| subnet.addresses.give_back_prefix(*prefix));
        }
        addresses.iter().for_each(|address| {
            self.owners.remove(address);
        });
        self.edit(self.now_ms, &eni.id, |eni| {
            eni.addresses.retain(|address| !addresses.contains(address));
            eni.prefixes.retain(|prefix| !prefixes.contains(prefix));
        });
        Ok(Response::Done)
    }

    fn detach(&mut self, request: &DetachNetworkInterface) -> Result<Response> {
        let Some(id) = self.attachments.get(&request.attachment_id).cloned() else {
            return no_attachment(&request.attachment_id);
        };
        let eni = self.eni(&id)?;
        let Some(plug) = &eni.attachment else { return no_attachment(&request.attachment_id) };
        if plug.device_index == 0 && plug.network_card_index == 0 {
            return fail(
                "OperationNotPermitted",
                "The network interface at device index 0 and network card index 0 cannot be detached.",
            );
        }
        if plug.status == AttachStatus::Detaching && !request.force {
            return fail("IncorrectState", format!("Attachment '{}' is already detaching.", plug.id));
        }
        let detach_ms = if request.force { 0 } else { self.config.timing.detach_ms };
        if detach_ms == 0 {
            self.unplug(self.now_ms, &id, &request.attachment_id);
            return Ok(Response::Done);
        }
        self.edit(self.now_ms, &id, |eni| {
            if let Some(plug) = &mut eni.attachment {
                plug.status = AttachStatus::Detaching;
            }
        });
        let due = Due::Detached { eni: id, attachment: request.attachment_id.clone() };
        self.schedule(self.now_ms + detach_ms, due);
        Ok(Response::Done)
    }

    fn delete(&mut self, id: &str) -> Result<Response> {
        if self.eni(id)?.attachment.is_some() {
            // Not InvalidNetworkInterface.InUse, which the documentation suggests: this is what the service says.
            return fail("InvalidParameterValue", format!("Network interface '{id}' is currently in use."));
        }
        self.drop_eni(id);
        Ok(Response::Done)
    }

    fn create_tags(&mut self, resources: &[String], tags: &BTreeMap<String, String>) -> Result<Response> {
        // EC2 tags all or none: look first.
        for resource in resources {
            check_tags(&self.tags_of(resource)?, tags)?;
        }
        for resource in resources {
            self.change_tags(resource, |own| own.extend(tags.clone()));
        }
        Ok(Response::Done)
    }

    fn delete_tags(&mut self, resources: &[String], tags: &[(String, Option<String>)]) -> Result<Response> {
        for resource in resources {
            self.tags_of(resource)?;
        }
        let named = |key: &String, value: &String| {
            tags.iter().any(|(name, only)| name == key && only.as_ref().is_none_or(|only| only == value))
        };
        for resource in resources {
            self.change_tags(resource, |own| own.retain(|key, value| !tags.is_empty() && !named(key, value)));
        }
        Ok(Response::Done)
    }

    fn tags_of(&self, resource: &str) -> Result<BTreeMap<String, String>> {
        let kind = resource.rsplit_once('-').map_or("", |(kind, _)| kind);
        match kind {
            "eni" => Ok(self.eni(resource)?.tags.clone()),
            "i" => match self.instances.get(resource) {
                Some(instance) => Ok(instance.config.tags.clone()),
                None => Err(no_instance(resource)),
            },
            "subnet" => match self.subnets.get(resource) {
                Some(subnet) => Ok(subnet.config.tags.clone()),
                None => Err(no_subnet(resource)),
            },
            "vpc" if resource == self.config.vpc_id => Ok(self.tags.clone()),
            "vpc" => fail("InvalidVpcID.NotFound", format!("The vpc ID '{resource}' does not exist")),
            _ => fail("InvalidID", format!("The ID '{resource}' is not valid")),
        }
    }

    fn change_tags(&mut self, resource: &str, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        if self.enis.contains_key(resource) {
            self.edit(self.now_ms, resource, |eni| change(&mut eni.tags));
        } else if let Some(instance) = self.instances.get_mut(resource) {
            change(&mut instance.config.tags);
        } else if let Some(subnet) = self.subnets.get_mut(resource) {
            change(&mut subnet.config.tags);
        } else if resource == self.config.vpc_id {
            change(&mut self.tags);
        }
    }

    /// The interface as it is now; mutating calls see no lag.
    fn eni(&self, id: &str) -> Result<Arc<Eni>> {
        self.enis.get(id).and_then(EniRecord::current).cloned().ok_or_else(|| no_eni(id))
    }
}

/// Takes addresses and prefixes one by one into `taken`, at most `most` of each kind; on an error those taken so far
/// are in `taken` too.
fn take_each(
    free: &mut Addresses,
    subnet_id: &str,
    (placement, places): (Placement, &mut Random),
    wanted: &Wanted,
    most: usize,
    taken: &mut (Vec<Ipv4Addr>, Vec<Ipv4Net>),
) -> Result<()> {
    let size = free.size();
    let mut from = || Vpc::search_from(placement, places, size);
    for address in wanted.addresses.iter().take(most) {
        if !free.contains(*address) {
            return outside(*address);
        }
        if !free.take(*address) {
            return in_use(*address);
        }
        taken.0.push(*address);
    }
    for prefix in wanted.prefixes.iter().take(most) {
        if !free.take_prefix_at(*prefix) {
            return no_blocks(subnet_id);
        }
        taken.1.push(*prefix);
    }
    for _ in 0..(wanted.address_count as usize).min(most) {
        taken.0.push(free.take_any(from()).ok_or_else(|| full_subnet(subnet_id))?);
    }
    for _ in 0..(wanted.prefix_count as usize).min(most) {
        match free.take_prefix(from()) {
            Some(prefix) => taken.1.push(prefix),
            None => return no_blocks(subnet_id),
        }
    }
    Ok(())
}

/// The group that an interface gets if none is named.
pub(crate) const DEFAULT_GROUP: &str = "sg-0000000000000000d";

pub(super) fn no_eni(id: &str) -> Ec2Error {
    // Programs read the id from this text when they asked for many.
    Ec2Error::new("InvalidNetworkInterfaceID.NotFound", format!("The networkInterface ID '{id}' does not exist"))
}

pub(super) fn no_instance(id: &str) -> Ec2Error {
    Ec2Error::new("InvalidInstanceID.NotFound", format!("The instance ID '{id}' does not exist"))
}

pub(super) fn no_subnet(id: &str) -> Ec2Error {
    Ec2Error::new("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist"))
}

fn no_attachment<T>(id: &str) -> Result<T> {
    fail("InvalidAttachmentID.NotFound", format!("The attachment ID '{id}' does not exist"))
}

fn full_subnet(id: &str) -> Ec2Error {
    let message = format!("The specified subnet {id} does not have enough free addresses to satisfy the request.");
    Ec2Error::new("InsufficientFreeAddressesInSubnet", message)
}

fn no_blocks<T>(id: &str) -> Result<T> {
    fail(
        "InsufficientCidrBlocks",
        format!("The specified subnet {id} does not have enough free cidr blocks to satisfy the request."),
    )
}

fn outside<T>(address: Ipv4Addr) -> Result<T> {
    fail("InvalidParameterValue", format!("Address {address} does not fall within the subnet's address range"))
}

fn in_use<T>(address: Ipv4Addr) -> Result<T> {
    fail("InvalidIPAddress.InUse", format!("Address {address} is in use."))
}

fn too_many_addresses<T>() -> Result<T> {
    fail("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
}

fn no_prefixes_on<T>(kind: &str) -> Result<T> {
    fail("InvalidParameterCombination", format!("IPv4 prefixes are not supported on the instance type {kind}."))
}

fn check_wanted(wanted: &Wanted) -> Result<()> {
    let ways =
        [wanted.address_count > 0, !wanted.addresses.is_empty(), wanted.prefix_count > 0, !wanted.prefixes.is_empty()];
    if ways.iter().filter(|way| **way).count() > 1 {
        return fail(
            "InvalidParameterCombination",
            "Only one of named addresses, an address count, named prefixes and a prefix count may be given.",
        );
    }
    Ok(())
}

fn check_tags(own: &BTreeMap<String, String>, more: &BTreeMap<String, String>) -> Result<()> {
    if let Some(key) = more.keys().find(|key| key.starts_with("aws:")) {
        return fail("InvalidParameterValue", format!("Tag keys starting with 'aws:' are reserved: {key}"));
    }
    if more.iter().any(|(key, value)| key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256) {
        return fail("InvalidParameterValue", "A tag key has 1 to 128 characters, a value at most 256.");
    }
    if own.len() + more.keys().filter(|key| !own.contains_key(*key)).count() > MAX_TAGS {
        return fail("TagLimitExceeded", format!("More than {MAX_TAGS} tags on one resource."));
    }
    Ok(())
}
