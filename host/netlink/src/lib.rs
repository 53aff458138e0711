//! Pod and node networking over netlink; no `ip`, `iptables` or `nft` program is run.
//!
//! | module | what it does |
//! |---|---|
//! | [`names`] | names of host veths and the alias that says whose a link is |
//! | [`pod`] | a pod's links, routes and rules: set up, tear down, check, repair |
//! | [`fence`] | takes an address away from an old sandbox before another gets it |
//! | [`netns`], [`liveness`] | is that sandbox still there? |
//! | [`eni`] | a secondary network interface and its route table |
//! | [`node`] | what holds once for the node: forwarding, source NAT, connection marks; and what is there now |
//!
//! Every function is synchronous and acts in the network namespace of the thread that calls it. All are idempotent.
#![forbid(unsafe_code)]

mod error;
mod nft;
mod rt;
mod socket;
mod sysctl;
mod wire;

pub mod conntrack;
pub mod eni;
pub mod fence;
pub mod liveness;
pub mod names;
pub mod netns;
pub mod node;
pub mod pod;

pub use error::Error;
pub use rt::{Address, Link, Mac, Route, Rule, mac_text};
