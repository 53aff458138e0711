//! The truth on disk (design §6): `state.json`, schema 1. What is in it, how it is read, and what is refused.
//!
//! Times are milliseconds on the pool's clock (see [`crate::event::Ms`]) but for `wall_ns`, nanoseconds since 1970.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::event::{Key, Ms, NetTarget, Netns, PodRef, RangeSets};
use crate::lease::{LeasedAddress, Tombstone};
use crate::policy::Memo;

/// The schema this code writes. A newer one is read for what is known.
pub const SCHEMA: u32 = 1;

/// Clocks at one moment, so that the pool's clock goes on over restarts and reboots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The pool's clock.
    pub pool_ms: Ms,
    /// Wall time, nanoseconds since 1970.
    pub wall_ns: i64,
    /// CLOCK_BOOTTIME, milliseconds.
    pub boottime_ms: u64,
}

/// What the writer adds to the node's own state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Instance id; another instance's file is set aside.
    pub instance: String,
    /// Boot id of the kernel.
    pub boot: String,
    /// Clocks now.
    pub clock: Clock,
    /// Digest of the `ipam.json` that is on disk now, if it is ours.
    pub previous_ipam: Option<String>,
}

/// The two files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// `state.json`.
    pub state: Vec<u8>,
    /// `ipam.json`, for the AWS daemon.
    pub ipam: Vec<u8>,
    /// Digest of `ipam`, as recorded in `state`.
    pub ipam_digest: String,
}

/// Phase of a saved lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SavedHeld {
    /// Since when.
    pub since: Ms,
    /// Its own pod was replacing it.
    #[serde(default)]
    pub replaced: bool,
}

/// A saved lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLease {
    /// Key.
    #[serde(flatten)]
    pub key: Key,
    /// Pod.
    pub pod: PodRef,
    /// Namespace of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Host end of the veth.
    #[serde(default)]
    pub host_ifname: String,
    /// Addresses.
    pub addresses: Vec<LeasedAddress>,
    /// Pool clock.
    pub assigned_at: Ms,
    /// Nanoseconds since 1970; 0 when unknown.
    #[serde(default)]
    pub wall_ns: i64,
    /// Set when held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<SavedHeld>,
    /// Placeholder names of the runtime migration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migrated: bool,
}

/// State of an address that is not leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum SavedState {
    /// Rests.
    Cooling {
        /// Since when.
        since: Ms,
        /// Until when.
        until: Ms,
        /// Whose it was.
        pod: PodRef,
        /// Interface name.
        ifname: String,
        /// Reserved afterwards for so long.
        keep: Ms,
        /// Links, routes or rules still carry it.
        #[serde(default)]
        linked: bool,
        /// Not for its own pod either.
        #[serde(default)]
        shut: bool,
    },
    /// Kept for its pod.
    Reserved {
        /// Since when.
        since: Ms,
        /// Until when.
        until: Ms,
        /// For whom.
        pod: PodRef,
        /// Interface name.
        ifname: String,
    },
    /// Rested, and remembered.
    Free {
        /// Since when.
        since: Ms,
        /// Key of the last pod.
        last: u64,
    },
}

/// An address that is not leased but has a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAddress {
    /// Network of a range pool; "" for the VPC's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Set of a range network.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub set: u8,
    /// The address.
    pub address: IpAddr,
    /// Its state.
    #[serde(flatten)]
    pub state: SavedState,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &u8) -> bool {
    *n == 0
}

/// A tear-down that has not been done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTearing {
    /// What is to be removed.
    pub target: NetTarget,
    /// Set of each address.
    pub sets: Vec<u8>,
}

/// An EC2 operation that had begun: its intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "op")]
pub enum SavedIntent {
    /// CreateNetworkInterface, not answered.
    Create {
        /// Number.
        number: u64,
        /// Subnet id.
        subnet: String,
        /// Lone addresses asked for.
        addresses: u16,
        /// Prefixes asked for.
        prefixes: u16,
        /// ClientToken.
        token: String,
    },
    /// AttachNetworkInterface and what follows.
    Attach {
        /// Number.
        number: u64,
        /// Interface id.
        eni: String,
        /// Subnet id.
        subnet: String,
        /// Lone addresses asked for.
        addresses: u16,
        /// Prefixes asked for.
        prefixes: u16,
    },
    /// AssignPrivateIpAddresses.
    Grow {
        /// Number.
        number: u64,
        /// Interface id.
        eni: String,
        /// Lone addresses asked for.
        addresses: u16,
        /// Prefixes asked for.
        prefixes: u16,
    },
    /// UnassignPrivateIpAddresses.
    Release {
        /// Number.
        number: u64,
        /// Interface id.
        eni: String,
        /// Lone addresses.
        addresses: Vec<IpAddr>,
        /// Prefixes.
        prefixes: Vec<Ipv4Net>,
    },
    /// DetachNetworkInterface or DeleteNetworkInterface.
    Detach {
        /// Number.
        number: u64,
        /// Interface id.
        eni: String,
    },
}

/// `state.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Schema.
    pub schema: u32,
    /// Instance id.
    pub instance: String,
    /// Boot id.
    #[serde(default)]
    pub boot: String,
    /// Clocks when it was written.
    #[serde(default)]
    pub clock: Clock,
    /// Digests of the `ipam.json` written with it and of the one before.
    #[serde(default)]
    pub ipam: Vec<String>,
    /// Range networks.
    #[serde(default)]
    pub networks: BTreeMap<String, RangeSets>,
    /// Leases.
    #[serde(default)]
    pub leases: Vec<SavedLease>,
    /// Addresses with a history.
    #[serde(default)]
    pub addresses: Vec<SavedAddress>,
    /// Tombstones.
    #[serde(default)]
    pub tombstones: Vec<Tombstone>,
    /// Tear-downs.
    #[serde(default)]
    pub tearing: Vec<SavedTearing>,
    /// Intents.
    #[serde(default)]
    pub intents: Vec<SavedIntent>,
    /// Memo of the sizing policy.
    #[serde(default)]
    pub memo: Memo,
    /// What a newer version wrote; written back unchanged.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Why a state file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Not JSON, or cut off.
    #[error("not a state file: {0}")]
    Malformed(String),
    /// Another format.
    #[error("version {found:?} is not known, expected {expected:?}")]
    Version {
        /// Found.
        found: String,
        /// Expected.
        expected: String,
    },
    /// One address twice on one network.
    #[error("address {address} is leased twice, to {first} and to {second}")]
    Duplicate {
        /// The address.
        address: IpAddr,
        /// One lease.
        first: String,
        /// The other.
        second: String,
    },
    /// One key twice.
    #[error("the attachment {0} is recorded twice")]
    DuplicateKey(String),
    /// Written on another instance.
    #[error("the file is of instance {found}, this is {expected}")]
    Instance {
        /// Found.
        found: String,
        /// Expected.
        expected: String,
    },
}

/// Reads `state.json`.
///
/// # Errors
/// [`StateError`]: the caller sets the file aside and goes on from the previous copy.
pub fn decode(bytes: &[u8]) -> Result<Saved, StateError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(StateError::Empty);
    }
    let saved: Saved = serde_json::from_slice(bytes).map_err(|e| StateError::Malformed(e.to_string()))?;
    if saved.schema == 0 {
        return Err(StateError::Version { found: saved.schema.to_string(), expected: SCHEMA.to_string() });
    }
    check(&saved)?;
    Ok(saved)
}

impl Saved {
    /// Refuses another instance's file: its leases live elsewhere.
    ///
    /// # Errors
    /// [`StateError::Instance`].
    pub fn of_instance(self, instance: &str) -> Result<Saved, StateError> {
        if self.instance == instance {
            Ok(self)
        } else {
            Err(StateError::Instance { found: self.instance, expected: instance.into() })
        }
    }

    /// The pool's clock now: goes on by CLOCK_BOOTTIME within a boot, by wall time over a reboot, never back.
    pub fn pool_now(&self, boot: &str, now: &Clock) -> Ms {
        let passed = if boot == self.boot && now.boottime_ms >= self.clock.boottime_ms {
            now.boottime_ms - self.clock.boottime_ms
        } else {
            u64::try_from((now.wall_ns - self.clock.wall_ns) / 1_000_000).unwrap_or(0)
        };
        self.clock.pool_ms + passed
    }
}

/// Keys are unique, and addresses are unique on their network.
fn check(saved: &Saved) -> Result<(), StateError> {
    let mut keys = HashSet::new();
    let mut taken: BTreeMap<(&str, IpAddr), &Key> = BTreeMap::new();
    for lease in &saved.leases {
        if !keys.insert(&lease.key) {
            return Err(StateError::DuplicateKey(lease.key.to_string()));
        }
        // Every network without ranges shares the VPC's pool.
        let pool = if saved.networks.contains_key(&lease.key.network) { lease.key.network.as_str() } else { "" };
        for a in &lease.addresses {
            let ip = a.given.address.addr();
            if let Some(first) = taken.insert((pool, ip), &lease.key) {
                return Err(StateError::Duplicate {
                    address: ip,
                    first: first.to_string(),
                    second: lease.key.to_string(),
                });
            }
        }
    }
    Ok(())
}
