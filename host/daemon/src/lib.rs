//! ipamd: composes core, policies, EC2, netlink and the checkpoint into the node daemon.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`] | every setting, from environment and file |
//! | [`app`] | the life of the process: open, start, serve, drain |
//! | [`actor`] | the one task that owns core's state machine |
//! | [`checkpoint`], [`files`] | what is on disk, and how it gets there whole |
//! | [`server`], [`requests`], [`peers`] | gRPC on a unix socket |
//! | [`introspect`], [`metrics`], [`gauges`] | HTTP for people and for Prometheus |
//! | [`recorder`] | the flight recorder |
//! | [`tasks`] | what is read again and again |
//! | [`world`], [`links`], [`kernel`], [`deciders`], [`policies`] | the seams to EC2, netlink and policies, and what is behind them |
//! | [`lock`], [`conflist`], [`clock`] | one daemon per node; the CNI configuration; time |
#![forbid(unsafe_code)]

pub mod actor;
pub mod app;
pub mod checkpoint;
pub mod clock;
pub mod conflist;
pub mod deciders;
pub mod files;
pub mod gauges;
pub mod introspect;
pub mod kernel;
pub mod links;
pub mod lock;
pub mod metrics;
pub mod peers;
pub mod policies;
pub mod recorder;
pub mod requests;
pub mod server;
pub mod settings;
pub mod tasks;
pub mod world;

/// Package of the policies' interface that this daemon runs.
pub const WIT: &str = "wipam:policy@0.1.0";
