//! Runs policies: Wasm components and their native twins.
#![forbid(unsafe_code)]

pub mod bindings;
pub mod caps;
pub mod config;
mod convert;
pub mod digest;
pub mod engine;
pub mod fault;
pub mod ladder;
pub mod log;
pub mod native;
pub mod settings;
