//! Files that are written whole and survive their writer: temporary file in the same directory, fsync, rename, fsync of
//! the directory, the previous good copy kept beside it.
//!
//! A kill between any two steps leaves the old content or the new one under the name or under `.prev`, never half of
//! either. What cannot be understood is set aside under `.bad-<utc>` for people to look at, and never read again.

pub mod disk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use disk::{Disk, Kernel};

/// A step that the disk refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct DiskError {
    /// What was tried, as a verb.
    pub what: &'static str,
    /// Where.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl DiskError {
    fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
        let path = path.to_owned();
        move |source| DiskError { what, path, source }
    }
}

/// Which of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The file itself.
    Current,
    /// The one before.
    Previous,
}

/// One file with its previous copy.
#[derive(Clone)]
pub struct Kept {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl Kept {
    /// The file at `path`, whether or not it exists.
    pub fn new(disk: Arc<dyn Disk>, path: impl Into<PathBuf>) -> Kept {
        Kept { disk, path: path.into() }
    }

    /// Path of a copy.
    pub fn path(&self, copy: Copy) -> PathBuf {
        match copy {
            Copy::Current => self.path.clone(),
            Copy::Previous => self.beside("prev"),
        }
    }

    /// The content of a copy; `None` when there is no such file.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn read(&self, copy: Copy) -> Result<Option<Vec<u8>>, DiskError> {
        let path = self.path(copy);
        match self.disk.read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(DiskError::at("read", &path)(e)),
        }
    }

    /// Replaces the content. When this returns `Ok`, the content survives a power cut; when it fails, what was there
    /// before is still there, under the name or under `.prev`. A missing directory is made.
    ///
    /// # Errors
    /// The first step that failed, with path and errno.
    pub fn write(&self, bytes: &[u8]) -> Result<(), DiskError> {
        let temp = self.beside("tmp");
        let result = self.fill(&temp, bytes).and_then(|()| self.publish(&temp));
        if result.is_err() {
            // Half a file must not fill the disk further. It is overwritten by the next write anyway.
            let _ = self.disk.remove(&temp);
        }
        result
    }

    fn fill(&self, temp: &Path, bytes: &[u8]) -> Result<(), DiskError> {
        let mut file = match self.disk.create(temp) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.disk.make_dir(self.dir()).map_err(DiskError::at("create", self.dir()))?;
                self.disk.create(temp)
            }
            other => other,
        }
        .map_err(DiskError::at("create", temp))?;
        file.write(bytes).map_err(DiskError::at("write", temp))?;
        file.sync().map_err(DiskError::at("sync", temp))
    }

    fn publish(&self, temp: &Path) -> Result<(), DiskError> {
        let previous = self.path(Copy::Previous);
        match self.disk.rename(&self.path, &previous) {
            // The first write ever, or one after a write that ended right here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(DiskError::at("rename", &self.path))?,
        }
        self.disk.rename(temp, &self.path).map_err(DiskError::at("rename", temp))?;
        self.disk.sync_dir(self.dir()).map_err(DiskError::at("sync", self.dir()))
    }

    /// Renames a copy that cannot be used to `.bad-<utc>`, and says where it went. `utc` is the time as it shall stand
    /// in the name.
    ///
    /// # Errors
    /// When it cannot be renamed; it then stays where it is.
    pub fn set_aside(&self, copy: Copy, utc: &str) -> Result<PathBuf, DiskError> {
        let from = self.path(copy);
        let stamp: String = utc.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let suffix = match copy {
            Copy::Current => format!("bad-{stamp}"),
            Copy::Previous => format!("prev.bad-{stamp}"),
        };
        let to = self.beside(&suffix);
        self.disk.rename(&from, &to).map_err(DiskError::at("rename", &from))?;
        Ok(to)
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::disk::testing::{Fault, Model};
    use super::*;

    fn kept(model: &Arc<Model>) -> Kept {
        Kept::new(model.clone(), "/state/state.json")
    }

    /// What a restarted daemon would take: the file, else its previous copy.
    fn recovered(kept: &Kept) -> Option<Vec<u8>> {
        kept.read(Copy::Current).unwrap().or_else(|| kept.read(Copy::Previous).unwrap())
    }

    #[test]
    fn a_write_makes_its_directory_and_keeps_the_previous_copy() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(Arc::new(Kernel), dir.path().join("a/b/state.json"));
        assert_eq!(kept.read(Copy::Current).unwrap(), None);
        kept.write(b"one").unwrap();
        kept.write(b"two").unwrap();
        assert_eq!(kept.read(Copy::Current).unwrap().unwrap(), b"two");
        assert_eq!(kept.read(Copy::Previous).unwrap().unwrap(), b"one");
        let aside = kept.set_aside(Copy::Current, "2026-11-30T08:05:12Z").unwrap();
        assert!(aside.ends_with("state.json.bad-20261130T080512Z"), "{aside:?}");
        assert_eq!(recovered(&kept).unwrap(), b"one");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(aside).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn failures_name_the_path_and_the_errno() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let kept = Kept::new(Arc::new(Kernel), dir.path().join("file/state.json"));
        let error = kept.write(b"x").unwrap_err().to_string();
        assert!(error.contains("file/state.json.tmp") && error.contains("os error 20"), "{error}");
    }

    /// Every step of a write may be the last: killed, cut off from power, or refused by the disk.
    #[test]
    fn no_step_can_lose_what_was_acknowledged() {
        for fault in [Fault::Kill, Fault::PowerCut, Fault::Refuse] {
            for step in 0.. {
                let model = Arc::new(Model::default());
                let kept = kept(&model);
                kept.write(b"one").unwrap();
                kept.write(b"two").unwrap();
                model.arm(step, fault);
                let result = kept.write(b"three");
                let fired = model.restart();
                let found = recovered(&kept).unwrap();
                match (&result, fault) {
                    (Ok(()), _) => assert_eq!(found, b"three", "{fault:?} at step {step}"),
                    // Not acknowledged: either is right, nothing else is.
                    (Err(_), _) => assert!(found == b"two" || found == b"three", "{fault:?} at step {step}: {found:?}"),
                }
                // And the next write must do, whatever the last one left.
                kept.write(b"four").unwrap();
                assert_eq!(recovered(&kept).unwrap(), b"four");
                if !fired {
                    assert!(step >= 5, "a write has at least create, write, sync, two renames, sync of the directory");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_full_disk_fails_by_name_and_mends() {
        let model = Arc::new(Model::default());
        let kept = kept(&model);
        kept.write(b"one").unwrap();
        model.fill(true);
        let error = kept.write(b"two").unwrap_err().to_string();
        assert!(error.contains("/state/state.json.tmp") && error.contains("os error 28"), "{error}");
        model.fill(false);
        kept.write(b"three").unwrap();
        assert_eq!(recovered(&kept).unwrap(), b"three");
    }
}
