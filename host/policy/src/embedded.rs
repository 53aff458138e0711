//! The policies that come with the host: as components, built by the build script, and as their native twins.

use crate::{digest::Digest, native::NativePolicy};

/// One shipped policy.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// The component.
    pub component: &'static [u8],
    /// The same function, compiled into the host.
    pub native: NativePolicy,
}

static DEFAULT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/default.wasm"));
static WARM_IP_TARGET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/warm-ip-target.wasm"));
static STICKY_PODREF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sticky-podref.wasm"));

/// All shipped policies.
pub fn all() -> [Embedded; 3] {
    use {wipam_policy_default as default, wipam_policy_sticky_podref as sticky, wipam_policy_warm_ip_target as warm};
    [
        Embedded { name: "default", component: DEFAULT, native: NativePolicy::combined::<default::Default>() },
        Embedded {
            name: "warm-ip-target",
            component: WARM_IP_TARGET,
            native: NativePolicy::sizer::<warm::WarmIpTarget>(),
        },
        Embedded {
            name: "sticky-podref",
            component: STICKY_PODREF,
            native: NativePolicy::allocator::<sticky::StickyPodref>(),
        },
    ]
}

/// The shipped policy of this name.
pub fn named(name: &str) -> Option<Embedded> {
    all().into_iter().find(|embedded| embedded.name == name)
}

/// The shipped policy whose component has this digest, whatever file it came from.
pub fn with_digest(digest: Digest) -> Option<Embedded> {
    all().into_iter().find(|embedded| Digest::of(embedded.component) == digest)
}

/// The names, for messages.
pub fn names() -> String {
    all().map(|embedded| embedded.name).join(", ")
}
