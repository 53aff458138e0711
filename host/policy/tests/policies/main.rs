//! The policy host against shipped and hostile policies. One binary, so that Wasmtime is linked and the policies are
//! compiled once.
#![allow(clippy::unwrap_used, reason = "a failed test is what a panic is for")]

mod directory;
mod gates;
mod service;
mod twins;
mod world;
