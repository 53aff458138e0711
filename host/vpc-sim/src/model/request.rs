//! The calls that the model understands, typed for each action, and what they answer.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::Serialize;

use crate::instance_types::InstanceType;

/// Every action the model has, by its EC2 name.
pub const ACTIONS: [&str; 15] = [
    "AssignPrivateIpAddresses",
    "AttachNetworkInterface",
    "CreateNetworkInterface",
    "CreateTags",
    "DeleteNetworkInterface",
    "DeleteTags",
    "DescribeInstanceTypes",
    "DescribeInstances",
    "DescribeNetworkInterfaces",
    "DescribeSubnets",
    "DescribeTags",
    "DescribeVpcs",
    "DetachNetworkInterface",
    "ModifyNetworkInterfaceAttribute",
    "UnassignPrivateIpAddresses",
];

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Interfaces, as of the describe lag.
    DescribeNetworkInterfaces(Describe),
    /// Instances with their interfaces.
    DescribeInstances(Describe),
    /// Limits of instance types; `ids` are type names.
    DescribeInstanceTypes(Describe),
    /// Subnets with free counts.
    DescribeSubnets(Describe),
    /// The VPC.
    DescribeVpcs(Describe),
    /// Tags of all resources; `ids` is not used.
    DescribeTags(Describe),
    /// A new interface.
    CreateNetworkInterface(CreateNetworkInterface),
    /// Plugs an interface into an instance.
    AttachNetworkInterface(AttachNetworkInterface),
    /// Changes groups, description or DeleteOnTermination.
    ModifyNetworkInterfaceAttribute(ModifyNetworkInterfaceAttribute),
    /// More addresses or prefixes for an interface.
    AssignPrivateIpAddresses(AssignPrivateIpAddresses),
    /// Gives addresses or prefixes back.
    UnassignPrivateIpAddresses(UnassignPrivateIpAddresses),
    /// Unplugs an interface.
    DetachNetworkInterface(DetachNetworkInterface),
    /// Deletes an unplugged interface.
    DeleteNetworkInterface {
        /// The interface.
        network_interface_id: String,
    },
    /// Adds or overwrites tags.
    CreateTags {
        /// Ids of interfaces, instances, subnets or the VPC.
        resources: Vec<String>,
        /// The tags.
        tags: BTreeMap<String, String>,
    },
    /// Removes tags.
    DeleteTags {
        /// Ids of interfaces, instances, subnets or the VPC.
        resources: Vec<String>,
        /// Keys; with a value only if the tag has that value. Empty: all tags.
        tags: Vec<(String, Option<String>)>,
    },
}

impl Request {
    /// The EC2 name of the action.
    pub fn action(&self) -> &'static str {
        match self {
            Self::DescribeNetworkInterfaces(_) => "DescribeNetworkInterfaces",
            Self::DescribeInstances(_) => "DescribeInstances",
            Self::DescribeInstanceTypes(_) => "DescribeInstanceTypes",
            Self::DescribeSubnets(_) => "DescribeSubnets",
            Self::DescribeVpcs(_) => "DescribeVpcs",
            Self::DescribeTags(_) => "DescribeTags",
            Self::CreateNetworkInterface(_) => "CreateNetworkInterface",
            Self::AttachNetworkInterface(_) => "AttachNetworkInterface",
            Self::ModifyNetworkInterfaceAttribute(_) => "ModifyNetworkInterfaceAttribute",
            Self::AssignPrivateIpAddresses(_) => "AssignPrivateIpAddresses",
            Self::UnassignPrivateIpAddresses(_) => "UnassignPrivateIpAddresses",
            Self::DetachNetworkInterface(_) => "DetachNetworkInterface",
            Self::DeleteNetworkInterface { .. } => "DeleteNetworkInterface",
            Self::CreateTags { .. } => "CreateTags",
            Self::DeleteTags { .. } => "DeleteTags",
        }
    }
}

/// A filter: one name, any of the values. Values may hold `*` and `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// For example `attachment.instance-id` or `tag:owner`.
    pub name: String,
    /// Alternatives.
    pub values: Vec<String>,
}

impl Filter {
    /// A filter on one value.
    pub fn new(name: &str, value: &str) -> Self {
        Self { name: name.into(), values: vec![value.into()] }
    }
}

/// What all Describe* calls take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Describe {
    /// Ids; empty: all.
    pub ids: Vec<String>,
    /// All must match.
    pub filters: Vec<Filter>,
    /// Page size, 5 to 1000.
    pub max_results: Option<u32>,
    /// From the previous page.
    pub next_token: Option<String>,
}

impl Describe {
    /// All that match one filter.
    pub fn by(name: &str, value: &str) -> Self {
        Self { filters: vec![Filter::new(name, value)], ..Self::default() }
    }

    /// One thing by its id.
    pub fn id(id: &str) -> Self {
        Self { ids: vec![id.into()], ..Self::default() }
    }
}

/// Which addresses a call wants beside the primary one. At most one field may be set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// So many secondary addresses, chosen by EC2.
    pub address_count: u32,
    /// These secondary addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// So many /28 prefixes, chosen by EC2.
    pub prefix_count: u32,
    /// These /28 prefixes.
    pub prefixes: Vec<Ipv4Net>,
}

impl Wanted {
    /// So many secondary addresses.
    pub fn addresses(count: u32) -> Self {
        Self { address_count: count, ..Self::default() }
    }

    /// So many /28 prefixes.
    pub fn prefixes(count: u32) -> Self {
        Self { prefix_count: count, ..Self::default() }
    }

    /// How many slots of the interface it takes.
    pub fn units(&self) -> usize {
        self.address_count as usize + self.addresses.len() + self.prefix_count as usize + self.prefixes.len()
    }
}

/// Arguments of CreateNetworkInterface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateNetworkInterface {
    /// Where.
    pub subnet_id: String,
    /// The primary address; absent: EC2 picks.
    pub private_ip: Option<Ipv4Addr>,
    /// Beside the primary one.
    pub wanted: Wanted,
    /// Groups; empty: the VPC's default group.
    pub security_groups: Vec<String>,
    /// Free text.
    pub description: String,
    /// Tags of the new interface.
    pub tags: BTreeMap<String, String>,
    /// Makes a repeated call answer the first one's interface.
    pub client_token: Option<String>,
}

/// Arguments of AttachNetworkInterface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachNetworkInterface {
    /// The instance.
    pub instance_id: String,
    /// The interface.
    pub network_interface_id: String,
    /// Slot on the card; two interfaces of one card never share it.
    pub device_index: u32,
    /// The network card.
    pub network_card_index: u32,
}

/// Arguments of ModifyNetworkInterfaceAttribute: exactly one of the optional fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModifyNetworkInterfaceAttribute {
    /// The interface.
    pub network_interface_id: String,
    /// Attachment id and the new DeleteOnTermination.
    pub delete_on_termination: Option<(String, bool)>,
    /// The new groups.
    pub security_groups: Option<Vec<String>>,
    /// The new description.
    pub description: Option<String>,
    /// The new source/destination check.
    pub source_dest_check: Option<bool>,
}

/// Arguments of AssignPrivateIpAddresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignPrivateIpAddresses {
    /// The interface.
    pub network_interface_id: String,
    /// What to add.
    pub wanted: Wanted,
    /// Whether named addresses may be taken from another interface's secondary ones.
    pub allow_reassignment: bool,
}

/// Arguments of UnassignPrivateIpAddresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnassignPrivateIpAddresses {
    /// The interface.
    pub network_interface_id: String,
    /// Secondary addresses to give back.
    pub addresses: Vec<Ipv4Addr>,
    /// Prefixes to give back.
    pub prefixes: Vec<Ipv4Net>,
}

/// Arguments of DetachNetworkInterface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetachNetworkInterface {
    /// The attachment.
    pub attachment_id: String,
    /// Done at once, without the detach latency.
    pub force: bool,
}

/// What an action answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// DescribeNetworkInterfaces.
    NetworkInterfaces {
        /// Sorted by id.
        items: Vec<Eni>,
        /// More follows.
        next_token: Option<String>,
    },
    /// DescribeInstances.
    Instances {
        /// Sorted by id.
        items: Vec<Instance>,
        /// More follows.
        next_token: Option<String>,
    },
    /// DescribeInstanceTypes.
    InstanceTypes {
        /// Sorted by name.
        items: Vec<InstanceType>,
        /// More follows.
        next_token: Option<String>,
    },
    /// DescribeSubnets.
    Subnets {
        /// Sorted by id.
        items: Vec<Subnet>,
        /// More follows.
        next_token: Option<String>,
    },
    /// DescribeVpcs.
    Vpcs {
        /// One or none.
        items: Vec<VpcInfo>,
        /// More follows.
        next_token: Option<String>,
    },
    /// DescribeTags.
    Tags {
        /// Sorted by resource and key.
        items: Vec<Tag>,
        /// More follows.
        next_token: Option<String>,
    },
    /// CreateNetworkInterface: the interface as it was made.
    Created {
        /// The interface.
        eni: Box<Eni>,
        /// The token of the call, given or made.
        client_token: String,
    },
    /// AttachNetworkInterface.
    Attached {
        /// The new attachment.
        attachment_id: String,
        /// The card.
        network_card_index: u32,
    },
    /// AssignPrivateIpAddresses.
    Assigned {
        /// The interface.
        network_interface_id: String,
        /// The new secondary addresses.
        addresses: Vec<Ipv4Addr>,
        /// The new prefixes.
        prefixes: Vec<Ipv4Net>,
    },
    /// An action that answers no more than that it was done.
    Done,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{code}: {message}")]
pub struct Ec2Error {
    /// EC2's error code, what programs look at.
    pub code: String,
    /// For people.
    pub message: String,
    /// The HTTP status of the answer.
    pub http_status: u16,
}

impl Ec2Error {
    /// An error with the HTTP status that EC2 uses for the code.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        let http_status = match code {
            "RequestLimitExceeded" | "ServiceUnavailable" | "Unavailable" | "InsufficientInstanceCapacity" => 503,
            "InternalError" | "InternalFailure" => 500,
            "UnauthorizedOperation" => 403,
            "DryRunOperation" => 412,
            "AuthFailure" | "InvalidClientTokenId" => 401,
            _ => 400,
        };
        Self { code: code.into(), message: message.into(), http_status }
    }
}

/// How one call went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The answer leaves so long after the call. The change itself has happened at the call's time.
    pub latency_ms: u64,
    /// The answer.
    pub result: Result<Response, Ec2Error>,
    /// What `result` says has happened, but the caller gets no answer: its connection breaks after `latency_ms`.
    pub lost_reply: bool,
}

/// Whether an interface is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EniStatus {
    /// Being made.
    Pending,
    /// Not plugged in.
    Available,
    /// Plugged in, or about to be, or about to be unplugged.
    InUse,
}

impl EniStatus {
    /// EC2's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Available => "available",
            Self::InUse => "in-use",
        }
    }
}

/// The state of an attachment. `detached` never shows: the attachment is gone then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachStatus {
    /// Asked for; the instance does not see it yet.
    Attaching,
    /// The instance has it.
    Attached,
    /// On its way out; the instance may still see it.
    Detaching,
}

impl AttachStatus {
    /// EC2's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
        }
    }
}

/// Where an interface is plugged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attachment {
    /// `eni-attach-…`
    pub id: String,
    /// The instance.
    pub instance_id: String,
    /// Slot on the card; 0 on card 0 is the primary interface.
    pub device_index: u32,
    /// The network card.
    pub network_card_index: u32,
    /// How far it is.
    pub status: AttachStatus,
    /// When it was asked for, model time.
    pub attach_time_ms: u64,
    /// Whether the interface goes when the instance is terminated.
    pub delete_on_termination: bool,
}

/// An elastic network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Eni {
    /// `eni-…`
    pub id: String,
    /// Six bytes in lower-case hex with colons.
    pub mac: String,
    /// Its subnet.
    pub subnet_id: String,
    /// Its zone.
    pub availability_zone: String,
    /// Free text.
    pub description: String,
    /// The primary address first, then the secondary ones in the order they came.
    pub addresses: Vec<Ipv4Addr>,
    /// /28 prefixes in the order they came.
    pub prefixes: Vec<Ipv4Net>,
    /// The public address in front of the primary one.
    pub public_ip: Option<Ipv4Addr>,
    /// Opaque ids.
    pub security_groups: Vec<String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Whether it is plugged in.
    pub status: EniStatus,
    /// Where.
    pub attachment: Option<Attachment>,
    /// Whether the VPC drops packets with a source that the interface does not own.
    pub source_dest_check: bool,
}

impl Eni {
    /// The primary address.
    pub fn primary(&self) -> Ipv4Addr {
        self.addresses.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// The secondary addresses.
    pub fn secondary(&self) -> &[Ipv4Addr] {
        self.addresses.get(1..).unwrap_or_default()
    }

    /// Whether the instance has it plugged in and working (attached, or still on its way out).
    pub fn works_on(&self, instance_id: &str) -> bool {
        self.attachment.as_ref().is_some_and(|attachment| {
            attachment.instance_id == instance_id && attachment.status != AttachStatus::Attaching
        })
    }

    /// Slots in use: every address and every prefix is one.
    pub fn units(&self) -> usize {
        self.addresses.len() + self.prefixes.len()
    }
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// `i-…`
    pub id: String,
    /// For example `m5.large`.
    pub instance_type: String,
    /// False once terminated.
    pub running: bool,
    /// The subnet of its primary interface.
    pub subnet_id: String,
    /// Its zone.
    pub availability_zone: String,
    /// The primary address.
    pub private_ip: Ipv4Addr,
    /// The public address in front of the primary one.
    pub public_ip: Option<Ipv4Addr>,
    /// When it was started, model time.
    pub launch_time_ms: u64,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Its interfaces, primary first, then by card and device index.
    pub enis: Vec<Eni>,
}

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Subnet {
    /// `subnet-…`
    pub id: String,
    /// Its range.
    pub cidr: Ipv4Net,
    /// Its zone.
    pub availability_zone: String,
    /// Addresses that nobody uses.
    pub available: u32,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// The VPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct VpcInfo {
    /// `vpc-…`
    pub id: String,
    /// Ranges, the primary one first.
    pub cidrs: Vec<Ipv4Net>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// One tag of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tag {
    /// The resource's id.
    pub resource_id: String,
    /// For example `network-interface`.
    pub resource_type: &'static str,
    /// The tag's key.
    pub key: String,
    /// The tag's value.
    pub value: String,
}

/// What an instance's metadata service knows, as of the metadata lag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImdsView {
    /// `i-…`
    pub instance_id: String,
    /// For example `m5.large`.
    pub instance_type: String,
    /// The account.
    pub account: String,
    /// The region.
    pub region: String,
    /// The zone.
    pub availability_zone: String,
    /// The role whose credentials it hands out.
    pub role: String,
    /// The VPC.
    pub vpc_id: String,
    /// The VPC's ranges.
    pub vpc_cidrs: Vec<Ipv4Net>,
    /// When the instance was started, model time.
    pub launch_time_ms: u64,
    /// Interfaces that are plugged in, each with its subnet's range; primary first.
    pub interfaces: Vec<(Eni, Ipv4Net)>,
}

/// How often an action was called and how that went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CallCount {
    /// Done.
    pub ok: u64,
    /// Refused or failed, throttling apart.
    pub failed: u64,
    /// RequestLimitExceeded.
    pub throttled: u64,
    /// Of `ok` and `failed`: those whose answer was lost.
    pub lost_replies: u64,
}
