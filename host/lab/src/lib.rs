//! The lab: core, policies and the simulated VPC in virtual time, and what the command `wipam` is made of.
#![forbid(unsafe_code)]

pub mod ec2model;
pub mod sim;
