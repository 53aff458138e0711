//! EC2 and instance metadata behind two small traits.
//!
//! [`Cloud`] carries out one [`Call`](wipam_core::cloud::Call) as one EC2 request; [`Facts`] reads instance metadata.
//! [`Ec2`] implements both over the AWS SDK and IMDSv2. What the crate does *not* do: retry, plan, or remember a pool.
//!
//! - **One attempt.** The SDK's own retries are off. Each failure comes back typed by EC2's code
//!   ([`kind_of`]; never by its prose) and by whether the change may have happened: a connection that could not be made
//!   is `Refused` (`NotConnected`), an answer that did not come is `NoAnswer`. [`Backoff`] says how long to stay away.
//! - **One bucket.** All requests of the node share a token bucket; an answer that says *throttled* empties it.
//! - **One repetition is safe:** `CreateEni` with the same token and counts sends the same request to the letter and
//!   gets the same interface. After a restart of the process the creation time written on it differs, and EC2 answers
//!   `IdempotentParameterMismatch`: reported as `NoAnswer`, since then only a describe can tell.
//! - **Waiting** for an attachment is asking `DescribeEnis` again, by core or by [`wait_for`].
//!
//! # Permissions
//!
//! The instance role (or whatever the standard chain finds) needs:
//! `ec2:CreateNetworkInterface`, `ec2:CreateTags` (on `network-interface/*`), `ec2:AttachNetworkInterface`,
//! `ec2:ModifyNetworkInterfaceAttribute`, `ec2:AssignPrivateIpAddresses`, `ec2:UnassignPrivateIpAddresses`,
//! `ec2:DetachNetworkInterface`, `ec2:DeleteNetworkInterface`, `ec2:DescribeNetworkInterfaces`, `ec2:DescribeSubnets`,
//! and `ec2:DescribeInstanceTypes` unless [`Settings::limits`] is given. `AmazonEKS_CNI_Policy` holds all of them.
//!
//! # Testing
//!
//! `cargo test -p wipam-ec2` runs the contract suite (`tests/contract.rs`) against the simulated VPC on loopback. Its
//! head says how to point it at real AWS.
#![forbid(unsafe_code)]

mod backoff;
mod bucket;
mod calls;
mod cloud;
mod convert;
mod ec2;
mod error;
mod imds;
mod observe;
mod settings;
mod wait;

pub use backoff::Backoff;
pub use bucket::{Bucket, TooLong};
pub use calls::{TAG_CLUSTER, TAG_CREATED_AT, TAG_INSTANCE, TAG_OWNER};
pub use cloud::{Cloud, Facts, Pending};
pub use ec2::Ec2;
pub use error::kind_of;
pub use imds::FactsError;
pub use observe::{Observer, Report};
pub use settings::{Limits, Settings, additional_tags, http_timeout};
pub use wait::{Wait, WaitError, wait_for};
