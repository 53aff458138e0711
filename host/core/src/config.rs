//! The host's own settings: everything that is not an opinion of a policy.

use serde::{Deserialize, Serialize};

use crate::event::Ms;

/// Settings of the state machine. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Name of the VPC's network in CNI configurations.
    pub network: String,
    /// Instance type, for policies and error texts.
    pub instance_type: String,
    /// Interfaces that may be attached to card 0.
    pub max_enis: u16,
    /// Slots of an interface for secondary addresses or prefixes: EC2's IPv4 limit less the primary address.
    pub slots_per_eni: u16,
    /// Pods that the kubelet allows on this node.
    pub max_pods: u32,
    /// Subnets growth may use, best first.
    pub subnets: Vec<String>,
    /// Ask for /28 prefixes instead of lone addresses.
    pub prefix_mode: bool,
    /// IP_COOLDOWN_PERIOD.
    pub cooldown: Ms,
    /// How long an address stays recorded for a sandbox that is gone without a DEL.
    pub held_for: Ms,
    /// Whether a kubelet is expected: `held-for` then starts no earlier than its first answer.
    pub kubelet: bool,
    /// A cooling address may go back to the pod (network, namespace/name, ifname) that had it.
    pub reuse_own_cooling: bool,
    /// Whether a policy may fail an ADD.
    pub allow_reject: bool,
    /// Offer rows reserved for others when growth is impossible.
    pub offer_reserved: bool,
    /// Upper bound of a policy's keep-for.
    pub max_keep_for: Ms,
    /// All reservations together, percent of the pool.
    pub max_reserved_percent: u8,
    /// A plan waits so long after the last change …
    pub settle: Ms,
    /// … but not longer than this after the first.
    pub settle_max: Ms,
    /// Slow tick: plan at least so often.
    pub tick: Ms,
    /// Tombstones last at least so long.
    pub tombstone: Ms,
}

impl Config {
    /// Defaults of the design for an instance with these limits.
    pub fn new(instance_type: &str, max_enis: u16, ipv4_per_eni: u16, subnet: &str) -> Config {
        let slots = ipv4_per_eni.saturating_sub(1);
        Config {
            network: "aws-cni".into(),
            instance_type: instance_type.into(),
            max_enis,
            slots_per_eni: slots,
            max_pods: u32::from(max_enis) * u32::from(slots) + 2,
            subnets: vec![subnet.into()],
            prefix_mode: false,
            cooldown: 30_000,
            held_for: 600_000,
            kubelet: false,
            reuse_own_cooling: true,
            allow_reject: false,
            offer_reserved: true,
            max_keep_for: 24 * 3_600_000,
            max_reserved_percent: 25,
            settle: 1_000,
            settle_max: 5_000,
            tick: 30_000,
            tombstone: 24 * 3_600_000,
        }
    }
}
