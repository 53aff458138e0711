//! What can go wrong while a policy answers, told apart by type and never by text.

use serde::{Deserialize, Serialize};

/// Class of a fault; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// The guest panicked or hit `unreachable`.
    Panic,
    /// The fuel of the decision ran out.
    Fuel,
    /// The wall-clock back-stop fired. It depends on the machine, so such a decision cannot be replayed.
    Deadline,
    /// An access outside the guest's memory. A Rust guest that overflows its stack ends here too.
    Memory,
    /// The stack that Wasm code may use was exhausted.
    Stack,
    /// Any other trap.
    Trap,
    /// No instance could be made (pool full, memory too large).
    Instance,
    /// The answer could not be read: too large for the host's budget, or not valid in the component ABI.
    Unreadable,
    /// The answer names things that were not shown.
    Shape,
    /// The answer is longer than guard 11 allows.
    Caps,
    /// The policy answered with an error.
    Declined,
    /// The guard refused the answer.
    Refused,
    /// Core found that the policy starves pods.
    Starves,
    /// A native policy panicked.
    NativePanic,
}

impl FaultClass {
    /// Text for labels and screens.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultClass::Panic => "panic",
            FaultClass::Fuel => "fuel",
            FaultClass::Deadline => "deadline",
            FaultClass::Memory => "memory",
            FaultClass::Stack => "stack",
            FaultClass::Trap => "trap",
            FaultClass::Instance => "instance",
            FaultClass::Unreadable => "unreadable",
            FaultClass::Shape => "shape",
            FaultClass::Caps => "caps",
            FaultClass::Declined => "declined",
            FaultClass::Refused => "refused",
            FaultClass::Starves => "starves",
            FaultClass::NativePanic => "native-panic",
        }
    }

    /// Whether the same inputs give the same fault on every machine.
    pub fn replayable(self) -> bool {
        !matches!(self, FaultClass::Deadline | FaultClass::Instance)
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {text}", class.as_str())]
pub struct Fault {
    /// Its class.
    pub class: FaultClass,
    /// What happened, for people; at most 256 bytes.
    pub text: String,
}

impl Fault {
    /// A fault; the text is cut to 256 bytes and freed of control characters.
    pub fn new(class: FaultClass, text: &str) -> Fault {
        Fault { class, text: crate::caps::clean(text) }
    }

    /// Class of an error that Wasmtime returned from a call.
    pub(crate) fn of_call(error: &wasmtime::Error) -> Fault {
        use wasmtime::Trap;
        let Some(trap) = error.downcast_ref::<Trap>() else {
            // Without a trap the guest came back, and reading what it left failed.
            return Fault::new(FaultClass::Unreadable, &format!("{error:#}"));
        };
        let class = match trap {
            Trap::UnreachableCodeReached => FaultClass::Panic,
            Trap::OutOfFuel => FaultClass::Fuel,
            Trap::Interrupt => FaultClass::Deadline,
            Trap::MemoryOutOfBounds => FaultClass::Memory,
            Trap::StackOverflow => FaultClass::Stack,
            _ => FaultClass::Trap,
        };
        Fault::new(class, &trap.to_string())
    }

    /// An error of instantiation: a trap in a start function, or no room in the pool.
    pub(crate) fn of_instance(error: &wasmtime::Error) -> Fault {
        match error.downcast_ref::<wasmtime::Trap>() {
            Some(_) => Fault::of_call(error),
            None => Fault::new(FaultClass::Instance, &format!("{error:#}")),
        }
    }
}
