//! One trait per role, and the macros that turn an implementation into the exports of a component.

use crate::{allocation, sizing, types::*};

/// What every policy says about itself.
pub trait Policy {
    /// Name, version and knobs. It must be the same at every call.
    fn describe() -> Metadata;

    /// Rules across settings. Names, kinds and bounds were checked by the host against the knobs of
    /// [`Policy::describe`], and defaults are filled in.
    ///
    /// # Errors
    /// One [`Issue`] for each thing an operator must mend; the host then refuses the policy with these settings.
    fn check(_settings: &[Setting]) -> Result<(), Vec<Issue>> {
        Ok(())
    }
}

/// Decides which address a pod gets, and how long it stays its own.
pub trait Allocator: Policy {
    /// Chooses a row of `pool.rows` for the asking pod.
    ///
    /// # Errors
    /// A sentence that says why the policy cannot answer; the host's native policy answers instead.
    fn allocate(request: &allocation::Request, given: &Given, pool: &Snapshot) -> Result<allocation::Decision, String>;

    /// Says how long (ms) the address stays reserved for its pod after the cool-down. The host caps it.
    ///
    /// # Errors
    /// As for [`Allocator::allocate`].
    fn release(
        _lease: &allocation::Lease,
        _given: &Given,
        _pool: &PoolInfo,
        _limits: &Limits,
        _counts: &Counts,
    ) -> Result<allocation::Retention, String> {
        Ok(allocation::Retention::none("not kept"))
    }
}

/// Decides how many addresses and interfaces to hold.
pub trait Sizer: Policy {
    /// Answers at most 8 actions, in the order in which they shall be done. `memo` is what the last decision left.
    ///
    /// # Errors
    /// A sentence that says why the policy cannot answer; the host's native policy answers instead.
    fn plan(
        given: &Given,
        pool: &Snapshot,
        demand: &sizing::Demand,
        cloud: &sizing::Cloud,
        memo: &[u8],
    ) -> Result<sizing::Decision, String>;
}

/// Exports a type that implements [`Policy`] and [`Allocator`] as a component of world `allocator`.
///
/// Natively it expands to nothing, so that a crate can be component and library.
#[macro_export]
macro_rules! export_allocator {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
    $crate::__export_part!(policy Component $policy);
    $crate::__export_part!(allocation Component $policy);
    $crate::__export_part!(section $crate::__private::ALLOCATOR);
        };
    };
}

/// Exports a type that implements [`Policy`] and [`Sizer`] as a component of world `sizer`.
///
/// Natively it expands to nothing, so that a crate can be component and library.
#[macro_export]
macro_rules! export_sizer {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
    $crate::__export_part!(policy Component $policy);
    $crate::__export_part!(sizing Component $policy);
    $crate::__export_part!(section $crate::__private::SIZER);
        };
    };
}

/// Exports a type that implements [`Policy`], [`Allocator`] and [`Sizer`] as a component of world `combined`.
///
/// Natively it expands to nothing, so that a crate can be component and library.
#[macro_export]
macro_rules! export_combined {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
    $crate::__export_part!(policy Component $policy);
    $crate::__export_part!(allocation Component $policy);
    $crate::__export_part!(sizing Component $policy);
    $crate::__export_part!(section $crate::__private::COMBINED);
        };
    };
}

/// The pieces of the export macros.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_part {
    (policy $component:ident $policy:ty) => {
        impl $crate::__private::policy::Guest for $component {
            fn describe() -> $crate::types::Metadata {
                <$policy as $crate::Policy>::describe()
            }
            fn check(
                settings: ::std::vec::Vec<$crate::types::Setting>,
            ) -> ::core::result::Result<(), ::std::vec::Vec<$crate::types::Issue>> {
                <$policy as $crate::Policy>::check(&settings)
            }
        }
        $crate::bindings::exports::wipam::policy::policy::__export_wipam_policy_policy_0_1_0_cabi!(
            $component with_types_in $crate::bindings::exports::wipam::policy::policy
        );
    };
    (allocation $component:ident $policy:ty) => {
        impl $crate::__private::allocation::Guest for $component {
            fn allocate(
                request: $crate::allocation::Request,
                given: $crate::types::Given,
                pool: $crate::types::Snapshot,
            ) -> ::core::result::Result<$crate::allocation::Decision, ::std::string::String> {
                <$policy as $crate::Allocator>::allocate(&request, &given, &pool)
            }
            fn release(
                lease: $crate::allocation::Lease,
                given: $crate::types::Given,
                pool: $crate::types::PoolInfo,
                limits: $crate::types::Limits,
                counts: $crate::types::Counts,
            ) -> ::core::result::Result<$crate::allocation::Retention, ::std::string::String> {
                <$policy as $crate::Allocator>::release(&lease, &given, &pool, &limits, &counts)
            }
        }
        $crate::bindings::exports::wipam::policy::allocation::__export_wipam_policy_allocation_0_1_0_cabi!(
            $component with_types_in $crate::bindings::exports::wipam::policy::allocation
        );
    };
    (sizing $component:ident $policy:ty) => {
        impl $crate::__private::sizing::Guest for $component {
            fn plan(
                given: $crate::types::Given,
                pool: $crate::types::Snapshot,
                demand: $crate::sizing::Demand,
                cloud: $crate::sizing::Cloud,
                memo: ::std::vec::Vec<u8>,
            ) -> ::core::result::Result<$crate::sizing::Decision, ::std::string::String> {
                <$policy as $crate::Sizer>::plan(&given, &pool, &demand, &cloud, &memo)
            }
        }
        $crate::bindings::exports::wipam::policy::sizing::__export_wipam_policy_sizing_0_1_0_cabi!(
            $component with_types_in $crate::bindings::exports::wipam::policy::sizing
        );
    };
    (section $bytes:expr) => {
        #[used]
        #[unsafe(link_section = "component-type:wipam-policy")]
        static WORLD: [u8; $bytes.len()] = $crate::__private::array($bytes);
    };
}
