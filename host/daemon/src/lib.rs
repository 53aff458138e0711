//! ipamd: composes core, policies, EC2, netlink and the checkpoint into the node daemon.
#![forbid(unsafe_code)]

pub mod clock;
pub mod files;
pub mod links;
pub mod lock;
pub mod metrics;
pub mod peers;
pub mod requests;
pub mod settings;

/// Package of the policies' interface that this daemon runs.
pub const WIT: &str = "wipam:policy@0.1.0";
