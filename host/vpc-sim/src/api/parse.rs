//! From form parameters to the model's requests.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::params::{Params, read};
use crate::model::{
    AssignPrivateIpAddresses, AttachNetworkInterface, CreateNetworkInterface, Describe, DetachNetworkInterface,
    Ec2Error, Filter, ModifyNetworkInterfaceAttribute, Request, UnassignPrivateIpAddresses, Wanted,
};

type Result<T> = std::result::Result<T, Ec2Error>;

/// The request of a form.
pub(super) fn request(params: &Params) -> Result<Request> {
    let eni = || params.need("NetworkInterfaceId");
    Ok(match params.get("Action").unwrap_or_default() {
        "DescribeNetworkInterfaces" => Request::DescribeNetworkInterfaces(describe(params, "NetworkInterfaceId")?),
        "DescribeInstances" => Request::DescribeInstances(describe(params, "InstanceId")?),
        "DescribeInstanceTypes" => Request::DescribeInstanceTypes(describe(params, "InstanceType")?),
        "DescribeSubnets" => Request::DescribeSubnets(describe(params, "SubnetId")?),
        "DescribeVpcs" => Request::DescribeVpcs(describe(params, "VpcId")?),
        "DescribeTags" => Request::DescribeTags(describe(params, "")?),
        "CreateNetworkInterface" => Request::CreateNetworkInterface(create(params)?),
        "AttachNetworkInterface" => Request::AttachNetworkInterface(AttachNetworkInterface {
            instance_id: params.need("InstanceId")?,
            network_interface_id: eni()?,
            device_index: read("DeviceIndex", &params.need("DeviceIndex")?)?,
            network_card_index: params.read("NetworkCardIndex")?.unwrap_or(0),
        }),
        "ModifyNetworkInterfaceAttribute" => Request::ModifyNetworkInterfaceAttribute(modify(params)?),
        "AssignPrivateIpAddresses" => Request::AssignPrivateIpAddresses(AssignPrivateIpAddresses {
            network_interface_id: eni()?,
            wanted: Wanted {
                addresses: params.read_list("PrivateIpAddress")?,
                prefixes: params.read_list("Ipv4Prefix")?,
                ..counts(params)?
            },
            allow_reassignment: params.read("AllowReassignment")?.unwrap_or(false),
        }),
        "UnassignPrivateIpAddresses" => Request::UnassignPrivateIpAddresses(UnassignPrivateIpAddresses {
            network_interface_id: eni()?,
            addresses: params.read_list("PrivateIpAddress")?,
            prefixes: params.read_list("Ipv4Prefix")?,
        }),
        "DetachNetworkInterface" => Request::DetachNetworkInterface(DetachNetworkInterface {
            attachment_id: params.need("AttachmentId")?,
            force: params.read("Force")?.unwrap_or(false),
        }),
        "DeleteNetworkInterface" => Request::DeleteNetworkInterface { network_interface_id: eni()? },
        "CreateTags" => Request::CreateTags { resources: resources(params)?, tags: tags(params)? },
        "DeleteTags" => Request::DeleteTags {
            resources: resources(params)?,
            tags: params
                .list("Tag")
                .iter()
                .map(|tag| Ok((tag.need("Key")?, tag.get("Value").map(str::to_owned))))
                .collect::<Result<_>>()?,
        },
        "" => return Err(Ec2Error::new("MissingAction", "The request must contain the parameter Action")),
        other => {
            let message = format!("The action {other} is not valid for this web service.");
            return Err(Ec2Error::new("InvalidAction", message));
        }
    })
}

fn describe(params: &Params, ids: &str) -> Result<Describe> {
    let filter = |filter: &Params| {
        let name = filter.need("Name")?;
        Ok(Filter { name, values: filter.strings("Value") })
    };
    Ok(Describe {
        ids: params.strings(ids),
        filters: params.list("Filter").iter().map(filter).collect::<Result<_>>()?,
        max_results: params.read("MaxResults")?,
        next_token: params.get("NextToken").map(str::to_owned),
    })
}

fn counts(params: &Params) -> Result<Wanted> {
    Ok(Wanted {
        address_count: params.read("SecondaryPrivateIpAddressCount")?.unwrap_or(0),
        prefix_count: params.read("Ipv4PrefixCount")?.unwrap_or(0),
        ..Wanted::default()
    })
}

fn create(params: &Params) -> Result<CreateNetworkInterface> {
    let mut private_ip: Option<Ipv4Addr> = params.read("PrivateIpAddress")?;
    let mut secondary = Vec::new();
    for member in params.list("PrivateIpAddresses") {
        let address = read("PrivateIpAddresses", &member.need("PrivateIpAddress")?)?;
        match member.get("Primary") {
            Some("true") if private_ip.is_some() => {
                let message = "Only one primary private IP address can be specified.";
                return Err(Ec2Error::new("InvalidParameterCombination", message));
            }
            Some("true") => private_ip = Some(address),
            _ => secondary.push(address),
        }
    }
    let prefixes = params.list("Ipv4Prefix");
    let prefix = |member: &Params| read("Ipv4Prefix", &member.need("Ipv4Prefix")?);
    let mut tags = BTreeMap::new();
    for specification in params.list("TagSpecification") {
        if specification.get("ResourceType") != Some("network-interface") {
            let message = "A tag specification of CreateNetworkInterface must be for network-interface.";
            return Err(Ec2Error::new("InvalidParameterValue", message));
        }
        tags.extend(self::tags(&specification)?);
    }
    Ok(CreateNetworkInterface {
        subnet_id: params.need("SubnetId")?,
        private_ip,
        wanted: Wanted {
            addresses: secondary,
            prefixes: prefixes.iter().map(prefix).collect::<Result<_>>()?,
            ..counts(params)?
        },
        security_groups: params.strings("SecurityGroupId"),
        description: params.get("Description").unwrap_or_default().to_owned(),
        tags,
        client_token: params.get("ClientToken").map(str::to_owned),
    })
}

fn modify(params: &Params) -> Result<ModifyNetworkInterfaceAttribute> {
    let delete_on_termination = params
        .read("Attachment.DeleteOnTermination")?
        .map(|value| Ok::<_, Ec2Error>((params.need("Attachment.AttachmentId")?, value)))
        .transpose()?;
    let groups = params.strings("SecurityGroupId");
    let request = ModifyNetworkInterfaceAttribute {
        network_interface_id: params.need("NetworkInterfaceId")?,
        delete_on_termination,
        security_groups: (!groups.is_empty()).then_some(groups),
        description: params.get("Description.Value").map(str::to_owned),
        source_dest_check: params.read("SourceDestCheck.Value")?,
    };
    let attributes = [
        request.delete_on_termination.is_some(),
        request.security_groups.is_some(),
        request.description.is_some(),
        request.source_dest_check.is_some(),
    ];
    match attributes.into_iter().filter(|set| *set).count() {
        0 => Err(Ec2Error::new("MissingParameter", "The request must contain an attribute to change.")),
        1 => Ok(request),
        _ => Err(Ec2Error::new("InvalidParameterCombination", "Only one attribute can be changed at a time.")),
    }
}

fn resources(params: &Params) -> Result<Vec<String>> {
    match params.strings("ResourceId") {
        none if none.is_empty() => {
            Err(Ec2Error::new("MissingParameter", "The request must contain the parameter resourceIdSet"))
        }
        some => Ok(some),
    }
}

fn tags(params: &Params) -> Result<BTreeMap<String, String>> {
    let list = params.list("Tag");
    list.iter().map(|tag| Ok((tag.need("Key")?, tag.get("Value").unwrap_or_default().to_owned()))).collect()
}
