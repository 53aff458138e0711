//! What the author of a wipam policy needs.
//!
//! A policy is a set of pure functions over plain data: it is shown one pool of addresses and answers with row
//! numbers (which address a pod gets) or with actions (how many addresses to hold). The contract is
//! `wit/policy.wit`; this crate holds
//!
//! - its types as Rust types: [`types`], [`allocation`], [`sizing`] (all `Clone + Debug + PartialEq`);
//! - readers, so that nobody writes index arithmetic over columns: [`Row`], [`Block`], `Eni::is_primary()`, ...;
//! - typed settings and [`knob`] builders;
//! - the arithmetic that every sizing policy needs: [`pool`];
//! - one trait per role, [`Policy`], [`Allocator`], [`Sizer`], and the macros that export an implementation as a
//!   component: [`export_allocator!`], [`export_sizer!`], [`export_combined!`];
//! - snapshot builders for native tests: [`testing`].
//!
//! The same code compiles natively. There the macros expand to nothing, and a policy is an ordinary library:
//!
//! ```
//! use wipam_policy_sdk::{Allocator, Policy, allocation::*, export_allocator, knob, types::*};
//!
//! struct Lowest;
//!
//! impl Policy for Lowest {
//!     fn describe() -> Metadata {
//!         knob::metadata("lowest", "0.1.0", "the lowest address that nobody waits for")
//!     }
//! }
//!
//! impl Allocator for Lowest {
//!     fn allocate(_: &Request, _: &Given, pool: &Snapshot) -> Result<Decision, String> {
//!         Ok(match pool.rows.iter().find(|row| !row.is_reserved_for_another()) {
//!             Some(row) => Decision::assign(row.index, "lowest"),
//!             None => Decision::hold(1_000, "nothing free"),
//!         })
//!     }
//! }
//!
//! export_allocator!(Lowest);
//!
//! let pool = wipam_policy_sdk::testing::lone_pool(&[("10.0.0.7", 0), ("10.0.0.5", 0)]);
//! let answer = Lowest::allocate(&wipam_policy_sdk::testing::request("default", "web"), &Given::default(), &pool);
//! assert_eq!(answer.unwrap().choice, Choice::Assign(0)); // rows are ordered by address
//! ```
//!
//! Rules that keep a policy replayable: no clock (`given.now_ms` is the time), no randomness (`given.seed`), no
//! state between calls (every call runs in a new instance; a sizer's memory is its `memo`).

#[cfg(all(target_arch = "wasm32", feature = "bump"))]
#[allow(unsafe_code)]
mod bump;
mod export;
pub mod knob;
pub mod marks;
pub mod pool;
mod read;
mod settings;
pub mod testing;

pub use export::{Allocator, Policy, Sizer};
pub use read::{Block, Row};
pub use settings::Settings;

#[allow(unsafe_code, missing_docs, clippy::all)]
#[doc(hidden)]
pub mod bindings {
    //! Made by wit-bindgen from `wit/policy.wit`. Use the re-exports of the crate root.
    wit_bindgen::generate!({
        world: "combined",
        path: "../../wit/policy.wit",
        pub_export_macro: true,
        export_macro_name: "export_all",
        generate_unused_types: true,
        additional_derives: [PartialEq],
    });
}

/// Data that every policy sees; see `wit/policy.wit`, interface `types`.
pub mod types {
    pub use crate::bindings::wipam::policy::types::*;
}

/// Which address a pod gets; see `wit/policy.wit`, interface `allocation`.
pub mod allocation {
    pub use crate::bindings::exports::wipam::policy::allocation::{Choice, Decision, Lease, Request, Retention};
}

/// How many addresses and interfaces to hold; see `wit/policy.wit`, interface `sizing`.
pub mod sizing {
    pub use crate::bindings::exports::wipam::policy::sizing::{
        Action, Attachment, Barrier, Cloud, Decision, Demand, DrainMark, Growth, Outcome, Subnet,
    };
}

/// For the export macros alone.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings::exports::wipam::policy::{allocation, policy, sizing};
    /// The world `allocator`, encoded for the linker.
    pub const ALLOCATOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/allocator.section"));
    /// The world `sizer`, encoded for the linker.
    pub const SIZER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sizer.section"));
    /// The world `combined`, encoded for the linker.
    pub const COMBINED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/combined.section"));

    /// Bytes as an array, which is what a link section takes.
    pub const fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        let mut i = 0;
        while i < N {
            out[i] = bytes[i];
            i += 1;
        }
        out
    }
}
