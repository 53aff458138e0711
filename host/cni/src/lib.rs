//! `wipam-cni`, the CNI plugin that the container runtime executes for each pod. It is started, does one thing and ends;
//! whatever must be remembered is ipamd's, or (while ipamd is away) waits in a directory.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mod@env`], [`conf`] | what comes in: variables and configuration, validated |
//! | [`result`], [`error`], [`version`] | what goes out, in every version of CNI |
//! | [`plugin`] | one call from its first byte to its last |
//! | `add`, `del`, `observe` | the verbs |
//! | [`ask`] | calls of ipamd and what their failures mean |
//! | [`attachment`] | one interface between ipamd's answer, netlink and the result |
//! | [`log`], [`help`] | what people read |
#![forbid(unsafe_code)]

mod add;
pub mod ask;
pub mod attachment;
pub mod conf;
mod del;
pub mod env;
pub mod error;
pub mod help;
pub mod log;
mod observe;
pub mod plugin;
pub mod result;
pub mod version;
