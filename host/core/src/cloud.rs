//! What core asks of EC2 and what it hears back, one EC2 call each, in the host's own types.
//!
//! The EC2 adapter turns these into SDK calls; the simulator and the lab answer them from a model. Errors are told
//! apart by EC2's code, never by its prose.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// One EC2 call. Mutating ones are guarded and preceded by an intent in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// `CreateNetworkInterface`; the adapter adds security groups, tags and description.
    CreateEni {
        /// Subnet id.
        subnet: String,
        /// Lone secondary addresses to begin with.
        addresses: u16,
        /// /28 prefixes to begin with.
        prefixes: u16,
        /// ClientToken: a repeated call with it returns the same interface.
        token: String,
    },
    /// `AttachNetworkInterface` to this instance.
    AttachEni {
        /// Interface id.
        eni: String,
        /// Device index.
        device: u8,
        /// Network card.
        card: u8,
    },
    /// `ModifyNetworkInterfaceAttribute`: DeleteOnTermination = true.
    DeleteOnTermination {
        /// Interface id.
        eni: String,
        /// Attachment id.
        attachment: String,
    },
    /// `AssignPrivateIpAddresses`, lone addresses or prefixes (one of the two counts is 0).
    Assign {
        /// Interface id.
        eni: String,
        /// Lone addresses.
        addresses: u16,
        /// /28 prefixes.
        prefixes: u16,
    },
    /// `UnassignPrivateIpAddresses`.
    Unassign {
        /// Interface id.
        eni: String,
        /// Lone addresses.
        addresses: Vec<Ipv4Addr>,
        /// /28 prefixes.
        prefixes: Vec<Ipv4Net>,
    },
    /// `DetachNetworkInterface`.
    DetachEni {
        /// Interface id.
        eni: String,
        /// Attachment id.
        attachment: String,
    },
    /// `DeleteNetworkInterface`.
    DeleteEni {
        /// Interface id.
        eni: String,
    },
    /// `DescribeNetworkInterfaces` of this instance (attached to it, or tagged as its own and not attached), all pages.
    DescribeEnis,
    /// `DescribeSubnets`.
    DescribeSubnets {
        /// Subnet ids.
        ids: Vec<String>,
    },
}

impl Call {
    /// EC2's name of the action, for logs, metrics and records.
    pub fn action(&self) -> &'static str {
        match self {
            Call::CreateEni { .. } => "CreateNetworkInterface",
            Call::AttachEni { .. } => "AttachNetworkInterface",
            Call::DeleteOnTermination { .. } => "ModifyNetworkInterfaceAttribute",
            Call::Assign { .. } => "AssignPrivateIpAddresses",
            Call::Unassign { .. } => "UnassignPrivateIpAddresses",
            Call::DetachEni { .. } => "DetachNetworkInterface",
            Call::DeleteEni { .. } => "DeleteNetworkInterface",
            Call::DescribeEnis => "DescribeNetworkInterfaces",
            Call::DescribeSubnets { .. } => "DescribeSubnets",
        }
    }

    /// Whether the call changes anything at EC2.
    pub fn mutates(&self) -> bool {
        !matches!(self, Call::DescribeEnis | Call::DescribeSubnets { .. })
    }
}

/// State of an interface's attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachState {
    /// Asked for.
    Attaching,
    /// Usable.
    Attached,
    /// On its way out.
    Detaching,
    /// Not attached to anything.
    Detached,
}

/// Kind of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EniKind {
    /// Ordinary.
    #[default]
    Interface,
    /// Trunk for branch interfaces.
    Trunk,
    /// EFA with IP.
    Efa,
    /// EFA without IP.
    EfaOnly,
}

/// One interface as EC2 (or instance metadata, with fewer fields known) describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EniFacts {
    /// `eni-…`.
    pub id: String,
    /// MAC address, lower case with colons.
    pub mac: String,
    /// Subnet id.
    pub subnet: String,
    /// The subnet's CIDR, where known (metadata has it, EC2's description of an interface has not).
    pub subnet_cidr: Option<Ipv4Net>,
    /// Primary private address.
    pub primary: Ipv4Addr,
    /// Lone secondary private addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// /28 prefixes.
    pub prefixes: Vec<Ipv4Net>,
    /// Device index, when attached.
    pub device: Option<u8>,
    /// Network card.
    pub card: u8,
    /// Attachment id, when attached and known.
    pub attachment: Option<String>,
    /// State of the attachment.
    pub state: AttachState,
    /// Ordinary, trunk, EFA.
    pub kind: EniKind,
    /// Tags; empty when read from metadata.
    pub tags: BTreeMap<String, String>,
    /// Goes with its instance.
    pub delete_on_termination: bool,
}

/// A subnet as EC2 describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetFacts {
    /// `subnet-…`.
    pub id: String,
    /// IPv4 CIDR.
    pub cidr: Ipv4Net,
    /// `AvailableIpAddressCount`.
    pub free: u64,
    /// Availability zone.
    pub zone: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// What is fixed about the instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// `i-…`.
    pub instance: String,
    /// Instance type.
    pub instance_type: String,
    /// Region.
    pub region: String,
    /// Availability zone.
    pub zone: String,
    /// `vpc-…`.
    pub vpc: String,
    /// CIDRs of the VPC.
    pub vpc_cidrs: Vec<Ipv4Net>,
    /// Primary private address.
    pub primary: Ipv4Addr,
    /// MAC of the primary interface.
    pub primary_mac: String,
    /// Security groups of the primary interface; new ones get the same.
    pub security_groups: Vec<String>,
    /// Interfaces of card 0.
    pub max_enis: u16,
    /// IPv4 addresses of an interface, the primary one included.
    pub ipv4_per_eni: u16,
    /// Whether /28 prefixes can be had (nitro or bare metal).
    pub prefix_capable: bool,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The new interface, not attached yet.
    Created(Box<EniFacts>),
    /// The id of the attachment.
    Attached {
        /// Attachment id.
        attachment: String,
    },
    /// What came, which may be less than was asked for.
    Assigned {
        /// Lone addresses.
        addresses: Vec<Ipv4Addr>,
        /// /28 prefixes.
        prefixes: Vec<Ipv4Net>,
    },
    /// Done.
    Done,
    /// All interfaces of this instance.
    Enis(Vec<EniFacts>),
    /// Subnets.
    Subnets(Vec<SubnetFacts>),
}

/// What kind of failure, which decides what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// `RequestLimitExceeded`, `Throttling`: nothing happened; slower.
    Throttled,
    /// `InsufficientFreeAddressesInSubnet` (and what custom networking gets for it): this subnet is full.
    SubnetFull,
    /// `InsufficientCidrBlocks`: no free /28 in this subnet.
    NoCidrBlock,
    /// `PrivateIpAddressLimitExceeded`: our picture of the interface is wrong; read it again.
    AddressLimit,
    /// `AttachmentLimitExceeded`, `NetworkInterfaceLimitExceeded`.
    EniLimit,
    /// `UnauthorizedOperation`, `AuthFailure`.
    NotAuthorised,
    /// `Invalid….NotFound`.
    NotFound,
    /// `InvalidNetworkInterface.InUse` and the like: somebody else is at it; later.
    InUse,
    /// No answer: the call may or may not have happened. Only a describe can tell.
    NoAnswer,
    /// 5xx with a code, `Unavailable`, `InternalError`: the call may or may not have happened.
    ServerError,
    /// Anything else EC2 said no to; nothing happened.
    Refused,
}

impl ErrorKind {
    /// Whether the change may have happened although the call failed.
    pub fn ambiguous(self) -> bool {
        matches!(self, ErrorKind::NoAnswer | ErrorKind::ServerError)
    }

    /// The WIT's code for an outcome or barrier.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::Throttled => "throttled",
            ErrorKind::SubnetFull => "subnet-exhausted",
            ErrorKind::NoCidrBlock => "no-cidr-block",
            ErrorKind::AddressLimit | ErrorKind::EniLimit => "limit-reached",
            ErrorKind::NotAuthorised => "not-authorised",
            ErrorKind::NotFound => "not-found",
            ErrorKind::InUse | ErrorKind::NoAnswer | ErrorKind::ServerError | ErrorKind::Refused => "unknown",
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("EC2 answered {code}: {message}")]
pub struct CloudError {
    /// What to do about it.
    pub kind: ErrorKind,
    /// EC2's code, or ours for no answer ("Timeout", "ConnectionReset").
    pub code: String,
    /// EC2's text, for people.
    pub message: String,
}
