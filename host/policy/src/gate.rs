//! The gates a candidate passes, in order, and what a refusal says.

use serde::{Deserialize, Serialize};
use wipam_core::policy::Slot;

/// A gate. The order here is the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// The document and the files it names can be read.
    Document,
    /// At most [`MAX_BYTES`](crate::load::MAX_BYTES), unzipped too.
    Size,
    /// The SHA-256 that the document asks for.
    Digest,
    /// The whole file is a valid component.
    Parse,
    /// It imports no function.
    Imports,
    /// It compiles within the engine's limits.
    Compile,
    /// It exports what its slot calls, in this version's shapes.
    Bind,
    /// It says twice the same about itself, and that makes sense.
    Describe,
    /// The settings fit its knobs.
    Settings,
    /// It accepts the settings.
    Check,
    /// It answers built-in snapshots sensibly, and twice the same.
    Canary,
}

impl Gate {
    /// All, in order.
    pub const ALL: [Gate; 11] = [
        Gate::Document,
        Gate::Size,
        Gate::Digest,
        Gate::Parse,
        Gate::Imports,
        Gate::Compile,
        Gate::Bind,
        Gate::Describe,
        Gate::Settings,
        Gate::Check,
        Gate::Canary,
    ];

    /// Text for labels and screens.
    pub fn as_str(self) -> &'static str {
        match self {
            Gate::Document => "document",
            Gate::Size => "size",
            Gate::Digest => "digest",
            Gate::Parse => "parse",
            Gate::Imports => "imports",
            Gate::Compile => "compile",
            Gate::Bind => "bind",
            Gate::Describe => "describe",
            Gate::Settings => "settings",
            Gate::Check => "check",
            Gate::Canary => "canary",
        }
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a candidate was refused. Whatever was active before still is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("policy {policy} refused at gate {gate}: {cause}; {mend}")]
pub struct Refusal {
    /// The gate.
    pub gate: Gate,
    /// The slot it was meant for; none if the document itself is at fault.
    pub slot: Option<Slot>,
    /// Whether it was meant as a shadow.
    pub shadow: bool,
    /// The policy as the document names it.
    pub policy: String,
    /// What is wrong.
    pub cause: String,
    /// What to do about it.
    pub mend: String,
}

impl Refusal {
    /// A refusal of the document.
    pub(crate) fn document(cause: impl Into<String>, mend: impl Into<String>) -> Refusal {
        Refusal {
            gate: Gate::Document,
            slot: None,
            shadow: false,
            policy: crate::config::DOCUMENT.into(),
            cause: cause.into(),
            mend: mend.into(),
        }
    }
}

/// A gate's word on a candidate, for `wipam policy check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// Whether the candidate passed; gates after the first refusal are not asked.
    pub passed: bool,
    /// A finding, or the cause of the refusal.
    pub detail: String,
    /// What to do about a refusal.
    pub mend: Option<String>,
}
