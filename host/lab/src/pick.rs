//! Policies as the command line names them: one that comes with the host, or a file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wipam_core::policy::{SettingValue, Slot};
use wipam_policy::component::Outside;
use wipam_policy::embedded::{self, Embedded};
use wipam_policy::load::{MAX_BYTES, NoFiles};
use wipam_policy::settings::Written;
use wipam_policy::{
    Candidate, Digest, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyHost, Refusal, Vetted, WasmEngine,
};

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// It comes with the host.
    Embedded(Embedded),
    /// Bytes of a file, perhaps gzipped.
    File {
        /// Where it was read.
        path: PathBuf,
        /// What was in it, at most a little more than a policy may have.
        bytes: Vec<u8>,
    },
}

/// Why no policy can be taken.
#[derive(Debug, thiserror::Error)]
pub enum PickError {
    /// Neither a file nor a name.
    #[error("there is no file {0} and no policy of that name comes with wipam; give a .wasm file, or one of {1}")]
    Unknown(String, String),
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `--set` without `=`.
    #[error("--set {0:?} is not knob=value, e.g. --set warm=5")]
    Setting(String),
    /// No engine.
    #[error("the Wasm engine cannot be started: {0}; with --native none is needed")]
    Engine(String),
    /// A gate does not let it pass.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A file has no native twin.
    #[error("{0} has no native twin; leave --native out, or name one of {1}")]
    NoTwin(String, String),
    /// It fills no slot.
    #[error("{0} fills neither slot; `wipam policy check {0}` says why")]
    NoSlot(String),
}

impl Source {
    /// A file if there is one, else a policy of that name.
    ///
    /// # Errors
    /// Neither is there, or the file cannot be read.
    pub fn find(text: &str) -> Result<Source, PickError> {
        let path = Path::new(text);
        if !path.is_file()
            && let Some(found) = embedded::named(text)
        {
            return Ok(Source::Embedded(found));
        }
        let io = |source| PickError::Io { path: path.to_owned(), source };
        match std::fs::File::open(path) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
                Ok(Source::File { path: path.to_owned(), bytes })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(PickError::Unknown(text.into(), embedded::names()))
            }
            Err(e) => Err(io(e)),
        }
    }

    /// The component, for the gates.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Source::Embedded(e) => e.component,
            Source::File { bytes, .. } => bytes,
        }
    }

    /// How messages call it.
    pub fn label(&self) -> String {
        match self {
            Source::Embedded(e) => e.name.into(),
            Source::File { path, .. } => path.display().to_string(),
        }
    }

    /// Slots it can fill; none if it is no component of ours.
    pub fn fills(&self) -> Vec<Slot> {
        let plain = unzipped(self.bytes());
        let outside = Outside::read(&plain).unwrap_or_default();
        [Slot::Allocator, Slot::Sizer].into_iter().filter(|slot| outside.fills(*slot)).collect()
    }

    /// SHA-256 of the component, unzipped.
    pub fn digest(&self) -> Digest {
        Digest::of(&unzipped(self.bytes()))
    }
}

/// What is in a gzipped file, within the size limit; anything else as it is. The size gate judges what is wrong with it.
fn unzipped(bytes: &[u8]) -> Vec<u8> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return bytes.to_vec();
    }
    let mut out = Vec::new();
    let _ = flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES as u64 + 1).read_to_end(&mut out);
    out
}

/// `knob=value` pairs as settings: `true`, `false` and whole numbers as such, all else text.
///
/// # Errors
/// A text without `=`.
pub fn settings(pairs: &[String]) -> Result<Written, PickError> {
    pairs
        .iter()
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or_else(|| PickError::Setting(pair.clone()))?;
            let value = match (value, value.parse()) {
                ("true", _) => SettingValue::Boolean(true),
                ("false", _) => SettingValue::Boolean(false),
                (_, Ok(n)) => SettingValue::Integer(n),
                (text, Err(_)) => SettingValue::Text(text.into()),
            };
            Ok((name.trim().to_owned(), value))
        })
        .collect()
}

/// Vets what was picked, as components or as native twins.
#[derive(Clone, Debug)]
pub struct Vetter {
    gatekeeper: Gatekeeper,
    native: bool,
}

impl Vetter {
    /// With an engine, or with native twins alone. The environment of the process is not looked at: what a command
    /// shows depends on its arguments.
    ///
    /// # Errors
    /// The machine has no room for an engine.
    pub fn new(native: bool) -> Result<Vetter, PickError> {
        let gatekeeper = if native {
            Gatekeeper::native(Environment::default())
        } else {
            Gatekeeper::new(engine()?, Environment::default())
        };
        Ok(Vetter { gatekeeper, native })
    }

    /// The same without the canary gate, for looking at what a bad policy would answer.
    #[must_use]
    pub fn without_canary(self) -> Vetter {
        Vetter { gatekeeper: self.gatekeeper.without_canary(), ..self }
    }

    /// The gates.
    pub fn gatekeeper(&self) -> &Gatekeeper {
        &self.gatekeeper
    }

    /// One policy for one slot.
    ///
    /// # Errors
    /// A gate refuses it, or natively: it has no twin.
    pub fn vet(&self, slot: Slot, source: &Source, settings: &Written) -> Result<Arc<Vetted>, PickError> {
        if self.native {
            let twin = match source {
                Source::Embedded(e) => Some(*e),
                Source::File { .. } => embedded::with_digest(source.digest()),
            };
            let twin = twin.ok_or_else(|| PickError::NoTwin(source.label(), embedded::names()))?;
            return Ok(self.gatekeeper.vet_native(slot, twin.native, settings)?);
        }
        Ok(self.gatekeeper.vet_bytes(slot, &source.label(), source.bytes(), settings)?)
    }

    /// The native twin of a shipped policy, whatever this vetter prefers.
    ///
    /// # Errors
    /// As [`Vetter::vet`].
    pub fn vet_twin(&self, slot: Slot, twin: &Embedded, settings: &Written) -> Result<Arc<Vetted>, PickError> {
        Ok(self.gatekeeper.vet_native(slot, twin.native, settings)?)
    }

    /// A policy in every slot it fills, with the shipped one in the other. Settings go to the first slot that has
    /// their knobs, since a combined policy has one set of knobs for both.
    ///
    /// # Errors
    /// As [`Vetter::vet`].
    pub fn candidate(&self, source: &Source, settings: &Written) -> Result<Candidate, PickError> {
        let fills = source.fills();
        if fills.is_empty() {
            // The gates say it best.
            self.vet(Slot::Allocator, source, settings)?;
            return Err(PickError::NoSlot(source.label()));
        }
        let slot = |slot: Slot| match fills.contains(&slot) {
            true => self.vet(slot, source, settings),
            false => self.unnamed(slot),
        };
        Ok(Candidate::of(slot(Slot::Allocator)?, slot(Slot::Sizer)?))
    }

    fn unnamed(&self, slot: Slot) -> Result<Arc<Vetted>, PickError> {
        let spec = wipam_policy::config::PolicySpec::named(Environment::default().unnamed(slot));
        Ok(self.gatekeeper.vet(slot, false, &spec, &NoFiles)?)
    }
}

/// An engine with the limits of the daemon.
///
/// # Errors
/// The machine has no room for one.
pub fn engine() -> Result<Arc<WasmEngine>, PickError> {
    WasmEngine::new(EngineLimits::default()).map_err(|e| PickError::Engine(format!("{e:#}")))
}

/// A host with these policies.
pub fn host(candidate: &Candidate, options: HostOptions) -> PolicyHost {
    PolicyHost::new(candidate, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_typed_by_what_is_written() {
        let all = settings(&["warm=5".into(), "compatible=true".into(), "keep-for=5m".into()]).unwrap();
        assert_eq!(all["warm"], SettingValue::Integer(5));
        assert_eq!(all["compatible"], SettingValue::Boolean(true));
        assert_eq!(all["keep-for"], SettingValue::Text("5m".into()));
        assert!(settings(&["warm".into()]).unwrap_err().to_string().contains("knob=value"));
    }

    #[test]
    fn what_is_neither_a_file_nor_a_name_is_told() {
        let error = Source::find("no-such").unwrap_err().to_string();
        assert!(error.contains("no file no-such") && error.contains("sticky-podref"), "{error}");
        assert_eq!(Source::find("default").unwrap().fills(), [Slot::Allocator, Slot::Sizer]);
        assert_eq!(Source::find("warm-ip-target").unwrap().fills(), [Slot::Sizer]);
    }
}
