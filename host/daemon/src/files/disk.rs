//! The steps of the kernel that a careful write takes, as a trait, so that tests can stop after any of them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// A file system, as far as checkpoints need one.
pub trait Disk: Send + Sync {
    /// The whole content.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Creates or empties a file (mode 0600).
    fn create(&self, path: &Path) -> io::Result<Box<dyn Open + '_>>;
    /// Renames, replacing what is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory and those above it (mode 0755), durably.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait Open {
    /// Appends all of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Disk for Kernel {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Open + '_>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        dir.parent().map_or(Ok(()), |parent| self.sync_dir(parent))
    }
}

impl Open for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        // The length is new, so its metadata must go along; fdatasync does that.
        self.sync_data()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A file system in memory that knows what has reached the disk, and stops when told.

    use super::{Disk, Open};
    use std::collections::BTreeMap;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// What happens at the armed step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// The process ends; the kernel keeps what it was told.
        Kill,
        /// Everything not synced is lost.
        PowerCut,
        /// This step fails, later ones work.
        Refuse,
    }

    #[derive(Clone, Default)]
    struct Inode {
        content: Vec<u8>,
        synced: Vec<u8>,
    }

    #[derive(Default)]
    struct State {
        inodes: Vec<Inode>,
        names: BTreeMap<PathBuf, usize>,
        synced_names: BTreeMap<PathBuf, usize>,
        armed: Option<(u32, Fault)>,
        fired: Option<Fault>,
        full: bool,
    }

    /// The file system.
    #[derive(Default)]
    pub struct Model(Mutex<State>);

    impl Model {
        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// The step with this number (from 0) fails.
        pub fn arm(&self, step: u32, fault: Fault) {
            self.state().armed = Some((step, fault));
        }

        /// No write has room.
        pub fn fill(&self, full: bool) {
            self.state().full = full;
        }

        /// The next process begins; says whether the fault struck the last one.
        pub fn restart(&self) -> bool {
            let mut s = self.state();
            s.armed = None;
            let fired = s.fired.take();
            if fired == Some(Fault::PowerCut) {
                s.names = s.synced_names.clone();
                for inode in &mut s.inodes {
                    inode.content = inode.synced.clone();
                }
            }
            fired.is_some()
        }

        /// Whether the process is gone.
        pub fn is_dead(&self) -> bool {
            matches!(self.state().fired, Some(Fault::Kill | Fault::PowerCut))
        }

        fn step(&self) -> io::Result<MutexGuard<'_, State>> {
            let mut s = self.state();
            if matches!(s.fired, Some(Fault::Kill | Fault::PowerCut)) {
                return Err(io::Error::other("the process is dead"));
            }
            if let Some((left, fault)) = s.armed {
                s.armed = left.checked_sub(1).map(|left| (left, fault));
                if left == 0 {
                    s.fired = Some(fault);
                    return Err(io::Error::from_raw_os_error(5));
                }
            }
            Ok(s)
        }
    }

    impl Disk for Model {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            let s = self.state();
            let inode = *s.names.get(path).ok_or(io::ErrorKind::NotFound)?;
            Ok(s.inodes[inode].content.clone())
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn Open + '_>> {
            let mut s = self.step()?;
            let inode = match s.names.get(path) {
                Some(inode) => *inode,
                None => {
                    s.inodes.push(Inode::default());
                    s.inodes.len() - 1
                }
            };
            s.inodes[inode].content.clear();
            s.names.insert(path.to_owned(), inode);
            Ok(Box::new(OpenModel { model: self, inode }))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            let mut s = self.step()?;
            let inode = s.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            s.names.insert(to.to_owned(), inode);
            Ok(())
        }

        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            let mut s = self.step()?;
            let inside = |path: &PathBuf| path.parent() == Some(dir);
            s.synced_names.retain(|path, _| !inside(path));
            let now: Vec<_> = s.names.iter().filter(|(p, _)| inside(p)).map(|(p, i)| (p.clone(), *i)).collect();
            s.synced_names.extend(now);
            Ok(())
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.step()?.names.remove(path).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn make_dir(&self, _: &Path) -> io::Result<()> {
            self.step().map(|_| ())
        }
    }

    struct OpenModel<'a> {
        model: &'a Model,
        inode: usize,
    }

    impl Open for OpenModel<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            let mut s = self.model.step().inspect_err(|_| {
                // A write that is cut off leaves half of it.
                self.model.state().inodes[self.inode].content = bytes[..bytes.len() / 2].to_vec();
            })?;
            if s.full {
                s.inodes[self.inode].content = bytes[..bytes.len() / 2].to_vec();
                return Err(io::Error::from_raw_os_error(28));
            }
            s.inodes[self.inode].content.extend_from_slice(bytes);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            let mut s = self.model.step()?;
            let content = s.inodes[self.inode].content.clone();
            s.inodes[self.inode].synced = content;
            Ok(())
        }
    }
}
