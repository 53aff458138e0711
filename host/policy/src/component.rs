//! Reads a component without compiling it: is it one, what does it import, what does it export.

use std::panic::catch_unwind;

use serde::{Deserialize, Serialize};
use wasmparser::{
    Parser, Payload, Validator, WasmFeatures,
    component_types::{ComponentAnyTypeId, ComponentEntityType},
    types::TypesRef,
};
use wipam_core::policy::Slot;

/// The WIT package whose policies this host runs, without version.
pub const PACKAGE: &str = "wipam:policy";
/// The versions of it: 0.1 and any patch.
pub const VERSION: &str = "0.1";

/// One import of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Its name.
    pub name: String,
    /// What of it something outside would have to provide; empty if it consists of types alone.
    pub needs: Vec<String>,
}

/// What is known of a valid component before it is compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// What it imports.
    pub imports: Vec<Import>,
    /// Names of what it exports.
    pub exports: Vec<String>,
}

/// Why bytes are no component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAComponent {
    /// Something else altogether.
    #[error("this is not Wasm: it begins with {0}")]
    NotWasm(String),
    /// A module without component wrapping.
    #[error("this is a core Wasm module, not a component")]
    CoreModule,
    /// Broken, truncated, or of a proposal that is switched off.
    #[error("it is no valid component: {0}")]
    Invalid(String),
    /// The validator itself failed on it.
    #[error("reading it made the validator panic")]
    Panic,
}

impl NotAComponent {
    /// What to do about it.
    pub fn mend(&self) -> &'static str {
        match self {
            NotAComponent::NotWasm(_) => "give the .wasm file that the build of the policy writes (it may be gzipped)",
            NotAComponent::CoreModule => {
                "build it with the linker wasm-component-ld (target wasm32-unknown-unknown), or run `wasm-tools component new` on it"
            }
            NotAComponent::Invalid(_) => "copy or build the file again; the whole file must be there",
            NotAComponent::Panic => "build it with other tools, and please report the file",
        }
    }
}

impl Outside {
    /// Validates all of `bytes` and lists what crosses the component's border.
    ///
    /// # Errors
    /// If the bytes are not a whole, valid component.
    pub fn read(bytes: &[u8]) -> Result<Outside, NotAComponent> {
        if Parser::is_core_wasm(bytes) {
            return Err(NotAComponent::CoreModule);
        }
        if !Parser::is_component(bytes) {
            let begin: Vec<_> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            let begin = if begin.is_empty() { "nothing (the file is empty)".into() } else { begin.join(" ") };
            return Err(NotAComponent::NotWasm(begin));
        }
        // The bytes come from an operator's file; a bug in the validator must not end a daemon that owns addresses.
        catch_unwind(|| read(bytes)).unwrap_or(Err(NotAComponent::Panic))
    }

    /// Whether it exports the interface that the slot calls, in a version this host speaks.
    pub fn fills(&self, slot: Slot) -> bool {
        self.exports.iter().any(|name| speaks(name, interface(slot)))
    }

    /// Imports that need something from outside.
    pub fn needing(&self) -> impl Iterator<Item = &Import> {
        self.imports.iter().filter(|import| !import.needs.is_empty())
    }

    /// Exported interfaces that look like a policy's, of whatever package version.
    pub fn policy_like(&self) -> Vec<&str> {
        let names = ["/policy", "/allocation", "/sizing"];
        let looks = |export: &&str| names.iter().any(|n| export.split('@').next().is_some_and(|e| e.ends_with(n)));
        self.exports.iter().map(String::as_str).filter(looks).collect()
    }
}

/// Interface that a slot calls.
pub fn interface(slot: Slot) -> &'static str {
    match slot {
        Slot::Allocator => "allocation",
        Slot::Sizer => "sizing",
    }
}

/// Whether an export is `wipam:policy/<interface>@0.1.<any>`.
pub(crate) fn speaks(export: &str, interface: &str) -> bool {
    let version = export
        .strip_prefix(PACKAGE)
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(|rest| rest.strip_prefix(interface))
        .and_then(|rest| rest.strip_prefix('@'));
    version.and_then(|v| v.strip_prefix(VERSION)).is_some_and(|patch| patch.starts_with('.'))
}

fn read(bytes: &[u8]) -> Result<Outside, NotAComponent> {
    let invalid = |e: wasmparser::BinaryReaderError| NotAComponent::Invalid(e.to_string());
    let types = Validator::new_with_features(WasmFeatures::default()).validate_all(bytes).map_err(invalid)?;
    let mut outside = Outside::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(invalid)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    let name = import.map_err(invalid)?.name.name;
                    let item = types.as_ref().component_item_for_import(name).map(|item| item.ty);
                    let needs = item.map_or_else(|| vec![name.to_owned()], |ty| needs(name, ty, types.as_ref()));
                    outside.imports.push(Import { name: name.to_owned(), needs });
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    outside.exports.push(export.map_err(invalid)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outside)
}

/// What an import of this type needs from outside: all but plain types.
fn needs(name: &str, ty: ComponentEntityType, types: TypesRef<'_>) -> Vec<String> {
    match ty {
        ComponentEntityType::Type { created: ComponentAnyTypeId::Resource(_), .. } => vec![format!("resource {name}")],
        ComponentEntityType::Type { .. } => Vec::new(),
        ComponentEntityType::Instance(id) => match types.get(id) {
            Some(instance) => {
                instance.exports.iter().flat_map(|(export, item)| needs(export, item.ty, types)).collect()
            }
            None => vec![name.to_owned()],
        },
        ComponentEntityType::Func(_) => vec![name.to_owned()],
        ComponentEntityType::Module(_) => vec![format!("module {name}")],
        ComponentEntityType::Component(_) => vec![format!("component {name}")],
        ComponentEntityType::Value(_) => vec![format!("value {name}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_by_the_exports_name() {
        assert!(speaks("wipam:policy/allocation@0.1.0", "allocation"));
        assert!(speaks("wipam:policy/allocation@0.1.17", "allocation"));
        for other in [
            "wipam:policy/allocation@0.2.0",
            "wipam:policy/allocation@0.10.0",
            "wipam:policy/allocation@1.0.0",
            "wipam:policy/allocation",
            "wipam:policy/sizing@0.1.0",
            "other:policy/allocation@0.1.0",
        ] {
            assert!(!speaks(other, "allocation"), "{other}");
        }
    }

    #[test]
    fn what_is_no_component_is_named() {
        assert!(matches!(Outside::read(b""), Err(NotAComponent::NotWasm(_))));
        assert!(matches!(Outside::read(b"#!/bin/sh\n"), Err(NotAComponent::NotWasm(_))));
        assert_eq!(Outside::read(b"\0asm\x01\0\0\0"), Err(NotAComponent::CoreModule));
        assert_eq!(Outside::read(b"\0asm\x0d\0\x01\0"), Ok(Outside::default()));
        assert!(matches!(Outside::read(b"\0asm\x0d\0\x01\0\x07\xff"), Err(NotAComponent::Invalid(_))));
    }
}
