//! Names for the bits of `marks`. Ignore bits that have no name here: a later host may set them.

/// Bits of a row's marks.
pub mod row {
    /// Cooling, and last had by the asking pod.
    pub const COOLING_OWN: u16 = 1 << 0;
    /// Held for the asking pod: its earlier sandbox went without a DEL, or is being replaced.
    pub const HELD_OWN: u16 = 1 << 1;
    /// Reserved for the asking pod by an earlier `release` answer.
    pub const RESERVED_OWN: u16 = 1 << 2;
    /// Reserved for another pod; offered only when nothing else is left.
    pub const RESERVED_OTHER: u16 = 1 << 3;
    /// Never given out since it came.
    pub const NEVER_USED: u16 = 1 << 4;
    /// The runtime asked for this very address.
    pub const ASKED_FOR: u16 = 1 << 5;
}

/// Bits of an interface's marks.
pub mod eni {
    /// The instance's first interface; it can never be detached.
    pub const PRIMARY: u32 = 1 << 0;
    /// Not usable yet.
    pub const ATTACHING: u32 = 1 << 1;
    /// No new pod goes here.
    pub const DRAINING: u32 = 1 << 2;
    /// On its way out.
    pub const DETACHING: u32 = 1 << 3;
    /// Must not get more addresses (custom networking's primary, an excluded subnet).
    pub const NOT_FILLABLE: u32 = 1 << 4;
    /// Its addresses must not be given out.
    pub const NOT_ALLOCATABLE: u32 = 1 << 5;
    /// Must not be detached.
    pub const NOT_REMOVABLE: u32 = 1 << 6;
    /// Carries branch interfaces.
    pub const TRUNK: u32 = 1 << 7;
    /// Elastic Fabric Adapter.
    pub const EFA: u32 = 1 << 8;
    /// Not ours.
    pub const UNMANAGED: u32 = 1 << 9;
    /// Missing from one reading of the cloud's state.
    pub const SUSPECT: u32 = 1 << 10;
}

/// Bits of a block's marks.
pub mod block {
    /// No new pod gets an address of it.
    pub const DRAINING: u16 = 1 << 0;
    /// Missing from one reading of the cloud's state.
    pub const SUSPECT: u16 = 1 << 1;
}

/// "No interface" in a row, block, growth or outcome; "the host's choice" for a subnet.
pub const NONE_U8: u8 = 255;
/// "No block" in a row.
pub const NO_BLOCK: u16 = 65535;
