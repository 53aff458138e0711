//! Types and calls generated from `wit/policy.wit`, one module for each world.
//!
//! Parameters borrow: the columns of a snapshot go to the guest straight from core's vectors, without a copy on our
//! side. The second module takes its shared interfaces from the first, so that one conversion serves both.
#![allow(missing_docs, reason = "generated; the WIT carries the words")]

/// World `allocator`.
pub mod allocator {
    wasmtime::component::bindgen!({
        world: "allocator",
        path: "../../wit/policy.wit",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// World `sizer`.
pub mod sizer {
    wasmtime::component::bindgen!({
        world: "sizer",
        path: "../../wit/policy.wit",
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "wipam:policy/types": crate::bindings::allocator::wipam::policy::types,
        },
    });
}

/// What guests are shown, and say of themselves.
pub use allocator::wipam::policy::types;
