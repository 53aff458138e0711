//! The pure model: a VPC in virtual time. No I/O and no clock; `now_ms` is an argument and a seed decides the rest.

mod addresses;
mod config;
mod describe;
mod fault;
mod mutate;
mod random;
mod request;
mod throttle;
mod vpc;

pub use config::{Bucket, InstanceConfig, Latency, Placement, SubnetConfig, Timing, VpcConfig};
pub(crate) use describe::state_name;
pub use fault::{FaultEffect, FaultRule};
pub use request::{
    ACTIONS, AssignPrivateIpAddresses, AttachNetworkInterface, AttachStatus, Attachment, CallCount,
    CreateNetworkInterface, Describe, DetachNetworkInterface, Ec2Error, Eni, EniStatus, Filter, ImdsView, Instance,
    ModifyNetworkInterfaceAttribute, Outcome, Request, Response, Subnet, Tag, UnassignPrivateIpAddresses, VpcInfo,
    Wanted,
};
pub use vpc::{ConfigError, Vpc, all_addresses};
