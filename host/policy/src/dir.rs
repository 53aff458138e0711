//! Policies from a directory: `policies.yaml` with `.wasm` files beside it, swapped while running.
//!
//! Changes are told by content, never by events: a mounted ConfigMap changes by moving a symbolic link, and what is
//! reported of that differs between systems. A change is taken up when two polls in a row see the same content, so
//! that a file which is still being copied is not tried.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    active::Candidate,
    config::{DOCUMENT, Document},
    digest::Digest,
    gate::Refusal,
    load::{Files, Gatekeeper, MAX_BYTES},
};

/// Most policy files in one directory.
const MAX_FILES: usize = 64;
/// Most bytes of the document.
const MAX_DOCUMENT: usize = 64 << 10;

/// Watches one directory. Its owner calls [`DirLoader::poll`] on a timer.
#[derive(Debug)]
pub struct DirLoader {
    dir: PathBuf,
    gatekeeper: Gatekeeper,
    /// Content that was last tried, whatever came of it.
    tried: Option<Digest>,
    /// Content that one poll has seen.
    pending: Option<Digest>,
    /// Whether there ever was a document. Its loss is a mistake then, not the wish for defaults.
    had_document: bool,
}

impl DirLoader {
    /// Of `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>, gatekeeper: Gatekeeper) -> DirLoader {
        DirLoader { dir: dir.into(), gatekeeper, tried: None, pending: None, had_document: false }
    }

    /// The gatekeeper in use.
    pub fn gatekeeper(&self) -> &Gatekeeper {
        &self.gatekeeper
    }

    /// Loads what is there now. Without directory or document: what the environment asks for.
    ///
    /// # Errors
    /// The refusal of the document or of a policy it names.
    pub fn load(&mut self) -> Result<Candidate, Refusal> {
        let contents = Contents::read(&self.dir);
        self.tried = Some(contents.digest());
        self.pending = None;
        self.take(&contents)
    }

    /// Loads if the content is another than last time, and the same as at the last poll. Costs reading the files.
    pub fn poll(&mut self) -> Option<Result<Candidate, Refusal>> {
        let contents = Contents::read(&self.dir);
        let digest = contents.digest();
        if self.tried == Some(digest) {
            self.pending = None;
            return None;
        }
        if self.pending != Some(digest) {
            self.pending = Some(digest);
            return None;
        }
        self.tried = Some(digest);
        self.pending = None;
        Some(self.take(&contents))
    }

    fn take(&mut self, contents: &Contents) -> Result<Candidate, Refusal> {
        let document = match &contents.document {
            Ok(Some(bytes)) => {
                self.had_document = true;
                parse(bytes)?
            }
            Ok(None) if self.had_document => {
                return Err(Refusal::document(
                    format!("{} is gone", self.dir.join(DOCUMENT).display()),
                    "put it back; an empty one stands for the defaults",
                ));
            }
            Ok(None) => Document::default(),
            Err(error) => {
                return Err(Refusal::document(
                    format!("{} cannot be read: {error}", self.dir.join(DOCUMENT).display()),
                    "make the directory and the document readable for the daemon",
                ));
            }
        };
        self.gatekeeper.vet_document(&document, contents)
    }
}

fn parse(bytes: &[u8]) -> Result<Document, Refusal> {
    if bytes.len() > MAX_DOCUMENT {
        return Err(Refusal::document(
            format!("it has more than {MAX_DOCUMENT} bytes"),
            "a document names policies; put binaries into files beside it",
        ));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Refusal::document(format!("it is not UTF-8: {error}"), "save it as UTF-8"))?;
    Document::parse(text).map_err(|error| Refusal::document(error, "correct the document"))
}

/// What a directory holds.
struct Contents {
    document: Result<Option<Vec<u8>>, String>,
    files: BTreeMap<String, Result<Arc<[u8]>, String>>,
}

impl Contents {
    fn read(dir: &Path) -> Contents {
        let document = match read_some(&dir.join(DOCUMENT), MAX_DOCUMENT) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let mut files = BTreeMap::new();
        for name in names(dir) {
            match read_some(&dir.join(&name), MAX_BYTES) {
                Ok(bytes) => drop(files.insert(name, Ok(bytes.into()))),
                // Gone between listing and reading.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => drop(files.insert(name, Err(error.to_string()))),
            }
        }
        Contents { document, files }
    }

    fn digest(&self) -> Digest {
        let mut text = match &self.document {
            Ok(Some(bytes)) => format!("document {}\n", Digest::of(bytes)),
            Ok(None) => "none\n".into(),
            Err(error) => format!("unreadable {error}\n"),
        };
        for (name, file) in &self.files {
            match file {
                Ok(bytes) => text.push_str(&format!("{name} {}\n", Digest::of(bytes))),
                Err(error) => text.push_str(&format!("{name} unreadable {error}\n")),
            }
        }
        Digest::of(text.as_bytes())
    }
}

impl Files for Contents {
    fn read(&self, name: &str) -> Option<io::Result<Arc<[u8]>>> {
        Some(match self.files.get(name)? {
            Ok(bytes) => Ok(bytes.clone()),
            Err(error) => Err(io::Error::other(error.clone())),
        })
    }
}

/// Names of what may be policies. Names with a leading dot are a ConfigMap's own, or an editor's.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name != DOCUMENT && !name.starts_with('.'))
        .collect();
    names.sort();
    names.truncate(MAX_FILES);
    names
}

/// A regular file's first bytes, one more than `most` so that a file too large is seen to be.
fn read_some(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
