//! The policy host against shipped and hostile policies. One binary, so that Wasmtime is linked and the policies are
//! compiled once.

mod directory;
mod gates;
mod service;
mod twins;
mod world;
