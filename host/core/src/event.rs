//! What happens to the node ([`Event`]) and what the node wants done ([`Effect`]).
//!
//! The daemon feeds real events and carries out the effects; the lab and the tests feed recorded, simulated or random
//! ones. Both are plain data, so that a session can be written down and played again.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cloud::{self, CloudError, EniFacts};

/// Milliseconds on the pool's clock: begins at wall time when the state was made, runs with CLOCK_BOOTTIME, goes on
/// over restarts and reboots, never goes back (WIT `given.now-ms`).
pub type Ms = u64;

/// Number of a call of the plugin, chosen by the daemon; replies carry it back.
pub type CallId = u64;

/// CNI's key of an attachment. Everything that must happen once happens once for this key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Name of the network configuration.
    pub network: String,
    /// Sandbox id of the runtime.
    pub container_id: String,
    /// Interface name in the pod.
    pub ifname: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}

/// A pod as the plugin knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl PodRef {
    /// Whether this is the same pod by name, whatever the UID.
    pub fn same_name(&self, other: &PodRef) -> bool {
        self.namespace == other.namespace && self.name == other.name
    }
    /// Whether both UIDs are known and equal.
    pub fn same_uid(&self, other: &PodRef) -> bool {
        !self.uid.is_empty() && self.uid == other.uid
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A network namespace by path, inode and the boot it was seen in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Netns {
    /// Path, as in CNI_NETNS.
    pub path: String,
    /// Inode of the nsfs file; 0 when it could not be read.
    pub inode: u64,
    /// Boot id of the kernel.
    #[serde(default)]
    pub boot: String,
}

/// A range of addresses that a network configuration brings, like host-local's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range {
    /// The subnet; its length is the mask of the pod's address.
    pub subnet: IpNet,
    /// First address that may be given.
    pub start: IpAddr,
    /// Last address that may be given.
    pub end: IpAddr,
    /// Gateway, never given to a pod.
    pub gateway: Option<IpAddr>,
}

/// One address of each set goes to the pod; a set is a list of ranges of one family.
pub type RangeSets = Vec<Vec<Range>>;

/// An ADD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add {
    /// Which attachment.
    pub key: Key,
    /// Which pod.
    pub pod: PodRef,
    /// Namespace of the sandbox.
    pub netns: Option<Netns>,
    /// Name of the host end of the veth; "" for a range network.
    pub host_ifname: String,
    /// Addresses the runtime asked for.
    pub requested: Vec<IpAddr>,
    /// When the caller gives up.
    pub deadline: Ms,
    /// The ranges of a range network; `None` for the VPC's pool.
    pub ranges: Option<RangeSets>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// An ADD.
    Add {
        /// Number of the call.
        call: CallId,
        /// Its content.
        add: Box<Add>,
    },
    /// The caller of an ADD is gone; what was not committed is withdrawn.
    Cancel {
        /// Number of the ADD's call.
        call: CallId,
    },
    /// A DEL.
    Del {
        /// Number of the call.
        call: CallId,
        /// Which attachment.
        key: Key,
        /// "del", or what the plugin says.
        cause: String,
        /// The plugin removed links, routes and rules already.
        network_removed: bool,
    },
    /// CNI GC: everything of this network that is not named is fenced, then cools.
    Gc {
        /// Number of the call.
        call: CallId,
        /// Network.
        network: String,
        /// Attachments that live.
        valid: Vec<Key>,
    },
    /// Time has come ([`crate::node::Node::wake_at`]).
    Tick,
    /// A policy or its settings were swapped.
    PolicySwapped,
    /// The checkpoint with this sequence number is on disk, or is not.
    Persisted {
        /// From [`Effect::Persist`].
        seq: u64,
        /// Path and errno when it failed.
        error: Option<String>,
    },
    /// EC2 answered.
    Ec2 {
        /// From [`Effect::Ec2`].
        op: u64,
        /// The answer.
        result: Result<cloud::Reply, CloudError>,
    },
    /// What instance metadata lists as attached: evidence, not an order.
    Metadata {
        /// Attached interfaces.
        enis: Vec<EniFacts>,
    },
    /// The host's own links, routes and rules carry these addresses.
    HostObserved {
        /// Addresses, whoever they belong to.
        addresses: Vec<IpAddr>,
    },
    /// Whether a lease's sandbox lives. A check that cannot be made counts as alive.
    Liveness {
        /// Lease.
        key: Key,
        /// Alive.
        alive: bool,
    },
    /// A fence was done, or was not.
    Fenced {
        /// From [`Effect::Fence`].
        ticket: u64,
        /// Why it failed.
        error: Option<String>,
    },
    /// Links, routes and rules of an ended lease are gone, or are not.
    TornDown {
        /// From [`Effect::TearDown`].
        ticket: u64,
        /// Why it failed.
        error: Option<String>,
    },
    /// The host's side of an interface is set up, or is not.
    EniReady {
        /// Interface id.
        eni: String,
        /// Why it failed.
        error: Option<String>,
    },
    /// ipamd serves; `held-for` counts from here at the earliest.
    Serving,
    /// The kubelet's health port answered for the first time.
    KubeletAnswered,
    /// One read of the API server: the pods bound to this node.
    PodsRead {
        /// Every pod of this node.
        pods: Vec<PodRef>,
    },
    /// Whether the node takes new pods, and whether it is being drained for good.
    NodeState {
        /// Takes new pods.
        schedulable: bool,
        /// Stops for good: reservations end, none is granted.
        stopping: bool,
    },
}

/// An address of a lease as the plugin needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenAddress {
    /// Address with mask (/32 or /128 in the VPC's pool).
    pub address: IpNet,
    /// 0 first, 1 second.
    pub index: u8,
    /// Interface id; "" for a range.
    pub eni: String,
    /// Device index of the interface.
    pub device: u8,
    /// Route table: 254 (main) for the primary interface, device + 1 for the others of card 0.
    pub table: u32,
    /// Gateway of a range.
    pub gateway: Option<IpAddr>,
}

/// Everything the host needs to remove or check a sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetTarget {
    /// Lease.
    pub key: Key,
    /// Host end of its veth; "" when there is none of ours.
    pub host_ifname: String,
    /// Its addresses with their route tables.
    pub addresses: Vec<GivenAddress>,
    /// Its namespace.
    pub netns: Option<Netns>,
}

/// What the daemon is to do. Effects of one [`crate::node::Node::handle`] are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Answer a call of the plugin.
    Reply {
        /// Number of the call.
        call: CallId,
        /// The answer.
        reply: Reply,
    },
    /// Write the checkpoint as it is now ([`crate::node::Node::encode`], at once, before the next event), then say
    /// [`Event::Persisted`]. At most one is outstanding.
    Persist {
        /// Sequence number.
        seq: u64,
    },
    /// Call EC2, then say [`Event::Ec2`].
    Ec2 {
        /// Number of the operation.
        op: u64,
        /// The call.
        call: cloud::Call,
    },
    /// Fence a sandbox (delete its host veth, or the address inside its netns; rules, route, conntrack), then say
    /// [`Event::Fenced`].
    Fence {
        /// Ticket.
        ticket: u64,
        /// Which sandbox.
        target: NetTarget,
    },
    /// Remove links, routes and rules of an ended lease, in batches, then say [`Event::TornDown`].
    TearDown {
        /// Ticket.
        ticket: u64,
        /// Which sandbox.
        target: NetTarget,
    },
    /// See whether these sandboxes live, then say [`Event::Liveness`] for each.
    CheckAlive {
        /// Leases.
        targets: Vec<NetTarget>,
    },
    /// Set up the host's side of an attached interface (none is needed for the primary one), then say
    /// [`Event::EniReady`].
    SetUpEni {
        /// The interface.
        eni: EniFacts,
        /// Its route table.
        table: u32,
    },
    /// Forget the host's side of an interface that is being detached. No answer is awaited.
    RemoveEni {
        /// The interface.
        eni: EniFacts,
        /// Its route table.
        table: u32,
    },
    /// Something for people: a log line, an event, a metric.
    Note(Note),
}

/// Answers to the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// An ADD has its addresses, and a checkpoint holds them.
    Added {
        /// In order of index.
        addresses: Vec<GivenAddress>,
        /// Host end of the veth.
        host_ifname: String,
    },
    /// An ADD failed.
    Refused(AddError),
    /// A DEL is done (or its key was unknown: no addresses).
    Deleted {
        /// What was released.
        addresses: Vec<GivenAddress>,
        /// Host end of the veth.
        host_ifname: String,
    },
    /// A GC is done.
    Collected {
        /// Leases that ended.
        released: u32,
    },
}

/// Why an ADD failed. Each variant is another thing for an operator to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum AddError {
    /// The limits allow no more, and all is in use.
    #[error("no address: all {total} that {limit} allows are in use; fewer pods or a larger instance type would help")]
    Exhausted {
        /// Addresses in the pool.
        total: u64,
        /// What limits, e.g. "t3.medium (3 interfaces, 6 addresses each)".
        limit: String,
    },
    /// An address is recorded for a pod whose sandbox is gone without a DEL.
    #[error("no free address: {count} held, the next for {pod} until {until}")]
    Held {
        /// How many are held.
        count: u64,
        /// For whom the first to end is held.
        pod: PodRef,
        /// When that ends.
        until: Ms,
    },
    /// Addresses rest.
    #[error("no free address: {count} cooling, the first until {until}")]
    Cooling {
        /// How many are cooling.
        count: u64,
        /// When the first may be used again.
        until: Ms,
    },
    /// EC2 throttles growth.
    #[error("no free address: EC2 throttles {op}, next try at {until}")]
    Throttled {
        /// Operation.
        op: String,
        /// Next try.
        until: Ms,
    },
    /// The subnet has no free address (or no free /28).
    #[error("no free address: subnet {subnet} is full ({code}), next try at {until}")]
    SubnetFull {
        /// Subnet id.
        subnet: String,
        /// EC2's code class.
        code: String,
        /// Next try.
        until: Ms,
    },
    /// EC2 refuses growth for another reason (a missing permission, a quota, no answer).
    #[error("no free address: EC2 refuses {op} ({code}), next try at {until}")]
    Cloud {
        /// Operation.
        op: String,
        /// Code class.
        code: String,
        /// Next try.
        until: Ms,
    },
    /// Growth is under way and did not end in time.
    #[error("no free address yet: {what}")]
    Growing {
        /// What is awaited.
        what: String,
    },
    /// ipamd is starting.
    #[error("ipamd is starting: {what}")]
    Starting {
        /// What is awaited.
        what: String,
    },
    /// The policy said no, or held until the deadline.
    #[error("the policy refused: {reason}")]
    PolicyRejected {
        /// The policy's reason.
        reason: String,
    },
    /// A newer sandbox of the pod took the address over.
    #[error("superseded by sandbox {by}")]
    Superseded {
        /// Container id of the newer one.
        by: String,
    },
    /// A DEL or a cancelled call withdrew it.
    #[error("withdrawn by a DEL of the same attachment")]
    Withdrawn,
    /// The checkpoint could not be written.
    #[error("the checkpoint could not be written: {error}")]
    Storage {
        /// Path and errno.
        error: String,
    },
    /// The request makes no sense.
    #[error("{why}")]
    Invalid {
        /// What is wrong and how to mend it.
        why: String,
    },
    /// The old sandbox of this pod could not be fenced.
    #[error("the old sandbox of {pod} could not be fenced: {why}")]
    NotFenced {
        /// The pod.
        pod: PodRef,
        /// What failed.
        why: String,
    },
}

impl AddError {
    /// The same time-free name as a metric label and a gRPC cause.
    pub fn cause(&self) -> &'static str {
        match self {
            AddError::Exhausted { .. } => "exhausted",
            AddError::Held { .. } => "held",
            AddError::Cooling { .. } => "cooling",
            AddError::Throttled { .. } => "throttled",
            AddError::SubnetFull { .. } => "subnet-full",
            AddError::Cloud { .. } | AddError::Growing { .. } | AddError::NotFenced { .. } => "internal",
            AddError::Starting { .. } => "starting",
            AddError::PolicyRejected { .. } => "policy-rejected",
            AddError::Superseded { .. } => "superseded",
            AddError::Withdrawn => "stopping",
            AddError::Storage { .. } => "storage",
            AddError::Invalid { .. } => "invalid",
        }
    }

    /// The instant the text names, so that a screen can show it as UTC.
    pub fn until(&self) -> Option<Ms> {
        match self {
            AddError::Held { until, .. }
            | AddError::Cooling { until, .. }
            | AddError::Throttled { until, .. }
            | AddError::SubnetFull { until, .. }
            | AddError::Cloud { until, .. } => Some(*until),
            _ => None,
        }
    }
}

/// Something for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// The guard refused something; the number is the metric's label.
    Guard {
        /// Number of the invariant.
        guard: u8,
        /// What was wrong.
        why: String,
    },
    /// A lease is not alive and became held.
    Held {
        /// Lease.
        key: Key,
        /// Pod.
        pod: PodRef,
    },
    /// A lease outside the known pool is kept while it lives.
    Orphan {
        /// Lease.
        key: Key,
        /// Address.
        address: IpAddr,
    },
    /// An address or interface is missing from a reading.
    Suspect {
        /// Interface or address.
        what: String,
    },
    /// A fence or tear-down failed and will be tried again.
    Network {
        /// Lease.
        key: Key,
        /// What failed.
        why: String,
    },
    /// EC2 refused something; growth of that kind rests.
    BackOff {
        /// "attach", "grow", "release", "detach".
        op: String,
        /// Subnet id, or "".
        subnet: String,
        /// Code class.
        code: String,
        /// Until.
        until: Ms,
    },
    /// The pool can give addresses for the first time.
    Ready,
}
