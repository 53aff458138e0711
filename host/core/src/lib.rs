//! The pure heart of wipam: pool, leases, guard and the sizing loop as one state machine.
//!
//! No I/O, no async, no clock, no AWS, no Kubernetes: time, randomness and ids are arguments.
#![forbid(unsafe_code)]

pub mod addr;
pub mod aws;
pub mod cloud;
pub mod config;
pub mod event;
pub mod guard;
pub mod ids;
pub mod lease;
pub mod node;
pub mod policy;
pub mod pool;
pub mod record;
pub mod saved;
