//! Answers core's EC2 calls from the simulated VPC's model: the same calls, limits and error codes as over the wire,
//! in virtual time.

use wipam_core::cloud::{
    AttachState, Call, CloudError, EniFacts, EniKind, ErrorKind, InstanceFacts, Reply, SubnetFacts,
};
use wipam_vpc_sim::model::{
    AssignPrivateIpAddresses, AttachNetworkInterface, AttachStatus, CreateNetworkInterface, Describe,
    DetachNetworkInterface, Ec2Error, Eni, Filter, ModifyNetworkInterfaceAttribute, Request, Response,
    UnassignPrivateIpAddresses, Vpc, Wanted,
};

/// The tag that says whose an interface is.
const INSTANCE_TAG: &str = "node.k8s.amazonaws.com/instance_id";

/// One call of an instance at model time `now_ms`. Answers with how long the answer takes, and the answer.
pub fn call(vpc: &mut Vpc, now_ms: u64, instance: &str, call: &Call) -> (u64, Result<Reply, CloudError>) {
    if let Call::DescribeEnis = call {
        return describe(vpc, now_ms, instance);
    }
    let Some(request) = request(instance, call) else {
        return (0, Err(refused("InvalidParameterValue", "the call has no counterpart")));
    };
    let outcome = vpc.call_as(now_ms, instance, false, &request);
    if outcome.lost_reply {
        let error = CloudError {
            kind: ErrorKind::NoAnswer,
            code: "ConnectionReset".into(),
            message: "the connection broke before the answer came".into(),
        };
        return (outcome.latency_ms, Err(error));
    }
    let result = outcome.result.map_err(|e| error(&e)).map(|r| reply(r, instance));
    (outcome.latency_ms, result)
}

/// Attached ones, and ours that are attached to nothing: two describes, as the adapter makes them, counted as they are.
fn describe(vpc: &mut Vpc, now_ms: u64, instance: &str) -> (u64, Result<Reply, CloudError>) {
    let mut all: Vec<EniFacts> = Vec::new();
    let mut latency = 0;
    let by_attachment = vec![Filter::new("attachment.instance-id", instance)];
    let by_tag = vec![Filter::new(&format!("tag:{INSTANCE_TAG}"), instance), Filter::new("status", "available")];
    for filters in [by_attachment, by_tag] {
        let mut next_token = None;
        loop {
            let request = Request::DescribeNetworkInterfaces(Describe {
                filters: filters.clone(),
                next_token: next_token.take(),
                ..Describe::default()
            });
            let outcome = vpc.call_as(now_ms, instance, false, &request);
            latency += outcome.latency_ms;
            match outcome.result {
                Ok(Response::NetworkInterfaces { items, next_token: next }) => {
                    all.extend(items.iter().map(|e| eni_facts(e, instance)));
                    next_token = next;
                }
                Ok(_) => return (latency, Err(refused("InternalError", "an answer of another kind"))),
                Err(e) => return (latency, Err(error(&e))),
            }
            if next_token.is_none() {
                break;
            }
        }
    }
    (latency, Ok(Reply::Enis(all)))
}

fn request(instance: &str, call: &Call) -> Option<Request> {
    Some(match call {
        Call::CreateEni { subnet, addresses, prefixes, token } => {
            Request::CreateNetworkInterface(CreateNetworkInterface {
                subnet_id: subnet.clone(),
                wanted: wanted(*addresses, *prefixes),
                description: format!("aws-K8S-{instance}"),
                tags: [(INSTANCE_TAG.to_string(), instance.to_string())].into(),
                client_token: Some(token.clone()),
                ..CreateNetworkInterface::default()
            })
        }
        Call::AttachEni { eni, device, card } => Request::AttachNetworkInterface(AttachNetworkInterface {
            instance_id: instance.into(),
            network_interface_id: eni.clone(),
            device_index: (*device).into(),
            network_card_index: (*card).into(),
        }),
        Call::DeleteOnTermination { eni, attachment } => {
            Request::ModifyNetworkInterfaceAttribute(ModifyNetworkInterfaceAttribute {
                network_interface_id: eni.clone(),
                delete_on_termination: Some((attachment.clone(), true)),
                ..ModifyNetworkInterfaceAttribute::default()
            })
        }
        Call::Assign { eni, addresses, prefixes } => Request::AssignPrivateIpAddresses(AssignPrivateIpAddresses {
            network_interface_id: eni.clone(),
            wanted: wanted(*addresses, *prefixes),
            allow_reassignment: false,
        }),
        Call::Unassign { eni, addresses, prefixes } => {
            Request::UnassignPrivateIpAddresses(UnassignPrivateIpAddresses {
                network_interface_id: eni.clone(),
                addresses: addresses.clone(),
                prefixes: prefixes.clone(),
            })
        }
        Call::DetachEni { attachment, .. } => {
            Request::DetachNetworkInterface(DetachNetworkInterface { attachment_id: attachment.clone(), force: false })
        }
        Call::DeleteEni { eni } => Request::DeleteNetworkInterface { network_interface_id: eni.clone() },
        Call::DescribeSubnets { ids } => Request::DescribeSubnets(Describe { ids: ids.clone(), ..Describe::default() }),
        Call::DescribeEnis => return None,
    })
}

fn wanted(addresses: u16, prefixes: u16) -> Wanted {
    if prefixes > 0 { Wanted::prefixes(prefixes.into()) } else { Wanted::addresses(addresses.into()) }
}

fn reply(response: Response, instance: &str) -> Reply {
    match response {
        Response::Created { eni, .. } => Reply::Created(Box::new(eni_facts(&eni, instance))),
        Response::Attached { attachment_id, .. } => Reply::Attached { attachment: attachment_id },
        Response::Assigned { addresses, prefixes, .. } => Reply::Assigned { addresses, prefixes },
        Response::Subnets { items, .. } => Reply::Subnets(
            items
                .into_iter()
                .map(|s| SubnetFacts {
                    id: s.id,
                    cidr: s.cidr,
                    free: u64::from(s.available),
                    zone: s.availability_zone,
                    tags: s.tags,
                })
                .collect(),
        ),
        _ => Reply::Done,
    }
}

/// An interface of the model in core's terms.
pub fn eni_facts(eni: &Eni, instance: &str) -> EniFacts {
    let ours = eni.attachment.as_ref().filter(|a| a.instance_id == instance);
    EniFacts {
        id: eni.id.clone(),
        mac: eni.mac.clone(),
        subnet: eni.subnet_id.clone(),
        subnet_cidr: None,
        primary: eni.primary(),
        addresses: eni.secondary().to_vec(),
        prefixes: eni.prefixes.clone(),
        device: ours.map(|a| a.device_index as u8),
        card: ours.map_or(0, |a| a.network_card_index as u8),
        attachment: ours.map(|a| a.id.clone()),
        state: match ours.map(|a| a.status) {
            Some(AttachStatus::Attaching) => AttachState::Attaching,
            Some(AttachStatus::Attached) => AttachState::Attached,
            Some(AttachStatus::Detaching) => AttachState::Detaching,
            None => AttachState::Detached,
        },
        kind: EniKind::Interface,
        tags: eni.tags.clone(),
        delete_on_termination: ours.is_some_and(|a| a.delete_on_termination),
    }
}

fn refused(code: &str, message: &str) -> CloudError {
    CloudError { kind: ErrorKind::Refused, code: code.into(), message: message.into() }
}

/// The model's error by EC2's code.
fn error(e: &Ec2Error) -> CloudError {
    let kind = match e.code.as_str() {
        "RequestLimitExceeded" => ErrorKind::Throttled,
        "InsufficientFreeAddressesInSubnet" => ErrorKind::SubnetFull,
        "InsufficientCidrBlocks" => ErrorKind::NoCidrBlock,
        "PrivateIpAddressLimitExceeded" => ErrorKind::AddressLimit,
        "AttachmentLimitExceeded" | "NetworkInterfaceLimitExceeded" => ErrorKind::EniLimit,
        "UnauthorizedOperation" | "AuthFailure" => ErrorKind::NotAuthorised,
        "InvalidNetworkInterface.InUse" | "IncorrectState" => ErrorKind::InUse,
        code if code.ends_with(".NotFound") => ErrorKind::NotFound,
        _ if e.http_status >= 500 => ErrorKind::ServerError,
        _ => ErrorKind::Refused,
    };
    CloudError { kind, code: e.code.clone(), message: e.message.clone() }
}

/// What instance metadata and DescribeInstanceTypes would say of an instance of the model.
pub fn instance_facts(vpc: &mut Vpc, now_ms: u64, instance: &str) -> Option<InstanceFacts> {
    let view = vpc.instances(now_ms).into_iter().find(|i| i.id == instance)?;
    let kind = wipam_vpc_sim::instance_types::lookup(&view.instance_type)?;
    let primary = vpc
        .enis(now_ms)
        .into_iter()
        .find(|e| e.attachment.as_ref().is_some_and(|a| a.instance_id == instance && a.device_index == 0))?;
    Some(InstanceFacts {
        instance: instance.into(),
        instance_type: view.instance_type.clone(),
        region: vpc.config().region.clone(),
        zone: primary.availability_zone.clone(),
        vpc: vpc.config().vpc_id.clone(),
        vpc_cidrs: vpc.cidrs().to_vec(),
        primary: primary.primary(),
        primary_mac: primary.mac.clone(),
        security_groups: primary.security_groups.clone(),
        max_enis: kind.cards.first().copied().unwrap_or(1) as u16,
        ipv4_per_eni: kind.ipv4_per_eni as u16,
        prefix_capable: kind.prefix_capable(),
    })
}
