//! Runs policies: Wasm components and their native twins, load gates, fault ladder, shadow, decision log.
//!
//! ```text
//! policies.yaml + *.wasm ──▶ dir ──▶ load (gates) ──▶ active (one pointer)
//!                                                        │
//! core ── Policies::allocate/release/plan ──▶ host ──▶ run: component (engine) or native twin
//!                                               │
//!                                               └──▶ ladder, shadow, log, status
//! ```
//!
//! The way in is [`PolicyHost`] (answers core), [`PolicyControl`] (swap, status, decisions from other threads),
//! [`DirLoader`] (a watched directory) and [`inspect`](inspect::inspect) with [`Gatekeeper::check`] (the command line).
#![forbid(unsafe_code)]

mod active;
pub mod bindings;
pub mod caps;
pub mod component;
pub mod config;
mod convert;
pub mod digest;
mod dir;
pub mod embedded;
pub mod engine;
pub mod fault;
pub mod gate;
pub mod golden;
mod host;
pub mod inspect;
pub mod ladder;
pub mod load;
pub mod log;
pub mod native;
mod question;
mod run;
pub mod settings;
pub mod status;

pub use active::Candidate;
pub use config::Document;
pub use digest::Digest;
pub use dir::DirLoader;
pub use engine::{EngineLimits, WasmEngine};
pub use gate::{Gate, GateResult, Refusal};
pub use host::{HostOptions, PolicyControl, PolicyHost, Swapped};
pub use load::{Gatekeeper, Vetted};
pub use log::{Decision, DecisionSink};
pub use native::NativePolicy;
pub use settings::Environment;
pub use status::PoliciesStatus;
