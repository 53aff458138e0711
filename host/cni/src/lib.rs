//! `wipam-cni`, the CNI plugin: what the container runtime executes for each pod.
#![forbid(unsafe_code)]

pub mod conf;
pub mod env;
pub mod error;
pub mod result;
pub mod version;
