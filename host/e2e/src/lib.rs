//! Simulated EC2 nodes on one machine, each part real: a containerd for each node in the node's network namespace, the
//! CNI plugin, ipamd with its policies, and a VPC that drops what EC2's network would drop.
//!
//! [`Cluster::up`] starts it, [`Node::run_pod`] makes a pod as kubelet would (CRI), [`Pod::exec`] runs something in it.
//! Everything goes when the cluster is dropped, on a panic and on Ctrl-C; what a killed run left goes with the next
//! [`sweep`]. Needs root, and the programs that [`missing`] names.
//!
//! | module | what it is |
//! |---|---|
//! | `site` | the working directory of a run and all that may be left by one: processes, mounts, cgroups |
//! | `sim` | the process `vpc-sim` |
//! | `image`, `cri` | the pods' image, and the container runtime's interface |
//! | `node`, `pod` | a node with containerd and ipamd, and what runs on it |
//! | `cluster` | all of it together |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod cri;
pub mod http;
pub mod image;
pub mod node;
pub mod pod;
pub mod programs;
pub mod sim;
pub mod site;
pub mod wait;

pub use cluster::{Cluster, Options};
pub use cri::Output;
pub use node::Node;
pub use pod::Pod;
pub use programs::missing;
pub use site::sweep;
pub use wait::wait_for;
