//! The lab: core, policies and the simulated VPC in virtual time, and what the command `wipam` is made of.
#![forbid(unsafe_code)]

pub mod awsd;
pub mod burst;
pub mod cli;
pub mod ec2model;
pub mod pick;
pub mod replay;
pub mod say;
pub mod sim;
pub mod text;
