//! What `wipam policy inspect` shows of a file.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wipam_core::policy::{Metadata, Slot};

use crate::{
    component::{Import, Outside},
    digest::Digest,
    engine::WasmEngine,
    gate::Refusal,
    load::Gatekeeper,
    settings::{Environment, Written},
};

/// A file, seen from outside and from within.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Bytes of the file.
    pub bytes: usize,
    /// SHA-256 of the file.
    pub sha256: Digest,
    /// Why it is no valid component; none if it is one.
    pub not_a_component: Option<String>,
    /// What it imports.
    pub imports: Vec<Import>,
    /// What it exports.
    pub exports: Vec<String>,
    /// Slots it can fill on this host.
    pub fills: Vec<Slot>,
    /// What it says about itself; none if it did not get that far.
    pub metadata: Option<Metadata>,
    /// The first gate that refuses it, with defaults for all settings.
    pub refusal: Option<Refusal>,
}

/// Looks at bytes. Never fails: what is wrong with them is part of the answer.
pub fn inspect(engine: &Arc<WasmEngine>, label: &str, bytes: &[u8]) -> Inspection {
    let outside = Outside::read(bytes);
    let seen = outside.clone().unwrap_or_default();
    let fills: Vec<_> = [Slot::Allocator, Slot::Sizer].into_iter().filter(|slot| seen.fills(*slot)).collect();
    let slot = fills.first().copied().unwrap_or(Slot::Allocator);
    let gatekeeper = Gatekeeper::new(engine.clone(), Environment::default());
    let (metadata, refusal) = match gatekeeper.vet_bytes(slot, label, bytes, &Written::new()) {
        Ok(vetted) => (Some(vetted.metadata().clone()), None),
        Err(refusal) => (None, Some(refusal)),
    };
    Inspection {
        bytes: bytes.len(),
        sha256: Digest::of(bytes),
        not_a_component: outside.err().map(|error| error.to_string()),
        imports: seen.imports,
        exports: seen.exports,
        fills,
        metadata,
        refusal,
    }
}
