//! The seam to the host's network: what the daemon wants done, in core's words. Every function waits for the kernel;
//! call them on a blocking thread.

use std::net::IpAddr;

use wipam_core::cloud::{EniFacts, InstanceFacts};
use wipam_core::event::{NetTarget, Netns};

/// A host link that carries an alias of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLink {
    /// Its name.
    pub name: String,
    /// Container id in its alias.
    pub container_id: String,
    /// Interface name in its alias.
    pub ifname: String,
    /// Addresses that are routed to it.
    pub addresses: Vec<IpAddr>,
}

/// What stands on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every address that a link, route or rule carries, whoever it belongs to.
    pub addresses: Vec<IpAddr>,
    /// Links that carry an alias of ours.
    pub own: Vec<OwnLink>,
}

/// The host's network.
pub trait Links: Send + Sync + 'static {
    /// Sets up what all pods share: rules, SNAT, sysctls. Done again it repairs, and takes a changed list of CIDRs.
    ///
    /// # Errors
    /// What failed, for people.
    fn set_up_node(&self, facts: &InstanceFacts) -> Result<(), String>;

    /// Sets up the host's side of an attached interface.
    ///
    /// # Errors
    /// What failed, for people.
    fn set_up_eni(&self, eni: &EniFacts, table: u32) -> Result<(), String>;

    /// Forgets the host's side of an interface.
    ///
    /// # Errors
    /// What failed, for people.
    fn remove_eni(&self, eni: &EniFacts, table: u32) -> Result<(), String>;

    /// Removes links, routes and rules of ended leases, all links at once. One result for each target.
    fn tear_down(&self, targets: &[NetTarget]) -> Vec<Result<(), String>>;

    /// Cuts a sandbox off from its addresses.
    ///
    /// # Errors
    /// What failed, for people; the address must then not be given to another.
    fn fence(&self, target: &NetTarget) -> Result<(), String>;

    /// Puts back routes and rules of living leases that somebody took away; says what was mended.
    ///
    /// # Errors
    /// What failed, for people.
    fn repair(&self, targets: &[NetTarget]) -> Result<Vec<String>, String>;

    /// Whether a sandbox lives; what cannot be told counts as alive.
    fn alive(&self, target: &NetTarget) -> bool;

    /// What stands on the host now.
    ///
    /// # Errors
    /// What failed, for people.
    fn observe(&self) -> Result<Observed, String>;

    /// The namespace at a path with its inode; inode 0 when it cannot be read.
    fn identify(&self, path: &str) -> Netns;

    /// The name of the host end of a pod's veth.
    fn host_veth(&self, namespace: &str, pod: &str, ifname: &str) -> String;
}
