//! The working directory of a run, and everything that a run may leave: processes, mounts, cgroups, sockets of shims.
//!
//! Each process of a run carries the directory in its environment, and each mount lies below it; so what belongs to a
//! run is known without guessing, whether the run ends in order or was killed. The directory's `lock` is held by the
//! run for as long as it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::sim::{self, Sim};
use crate::wait::wait_for;

/// Names the run that a process belongs to.
const TAG: &str = "WIPAM_E2E_DIR";
/// Names the runtime that a process belongs to, besides.
const PART: &str = "WIPAM_E2E_PART";
/// Beginning of the names of working directories and of the runs' cgroups.
const PREFIX: &str = "wipam-e2e-";
const CGROUPS: &str = "/sys/fs/cgroup";
/// How long a process may take to be gone after SIGKILL.
const KILLED: Duration = Duration::from_secs(10);

/// One run.
pub struct Site {
    dir: PathBuf,
    sim: Mutex<Option<Sim>>,
    /// Set once nothing may be started any more.
    closed: Mutex<bool>,
    /// Locked as long as this run lives.
    _lock: File,
}

impl Site {
    /// Makes the working directory.
    ///
    /// # Errors
    /// The disk's.
    pub fn new() -> Result<Site> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::temp_dir();
        // Unix sockets lie in it, whose paths have 107 bytes.
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Under its name only once the lock is held: whoever sweeps meanwhile must not take it for a dead one.
        let (hidden, dir) = (base.join(format!(".{name}")), base.join(&name));
        fs::create_dir_all(&hidden).with_context(|| format!("cannot make {}", hidden.display()))?;
        let lock = File::create(hidden.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&hidden, &dir)?;
        Ok(Site { dir, sim: Mutex::new(None), closed: Mutex::new(false), _lock: lock })
    }

    /// The working directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Parent of the containers' cgroups.
    pub fn cgroup(&self) -> String {
        format!("/{}", name(&self.dir))
    }

    /// Takes charge of the simulated VPC.
    ///
    /// # Errors
    /// The run is over.
    pub fn keep_sim(&self, start: impl FnOnce() -> Result<Sim>) -> Result<()> {
        self.unless_closed(|| {
            *self.sim.lock().unwrap_or_else(PoisonError::into_inner) = Some(start()?);
            Ok(())
        })
    }

    /// Starts a process of this run with its output appended to `log`. It is in a process group of its own, so that a
    /// Ctrl-C reaches only us, who end it in order.
    ///
    /// # Errors
    /// The run is over, or the program cannot be started.
    pub fn spawn(&self, mut command: Command, log: &Path) -> Result<Proc> {
        let file = OpenOptions::new().create(true).append(true).open(log)?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        self.tag(&mut command);
        let child = self.unless_closed(|| command.spawn().with_context(|| format!("cannot start {program}")))?;
        Ok(Proc { child, log: log.to_owned() })
    }

    fn tag(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        command.env(TAG, &self.dir).process_group(0);
    }

    fn unless_closed<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            bail!("the run is over");
        }
        work()
    }

    /// Ends everything of this run and removes its directory. The second call does nothing.
    ///
    /// # Errors
    /// What could not be ended or removed, all of it.
    pub fn down(&self) -> Result<()> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *closed, true) {
            return Ok(());
        }
        // The nodes before the network they are on.
        let cleaned = end(&self.dir);
        let sim = self.sim.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stopped = sim.map_or(Ok(()), Sim::stop);
        cleaned.and(stopped)?;
        remove_dir(&self.dir)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = self.down() {
            eprintln!("something is left of {}: {error:#}", self.dir.display());
        }
    }
}

/// A process of a run.
pub struct Proc {
    child: Child,
    log: PathBuf,
}

impl Proc {
    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The end of what it printed, for error texts.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end and waits; answers how it did.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        wait_for("a process to end", patience, || self.ended().context("it runs on"))
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Ends what runs left whose process is gone, and removes it; gives their directories.
///
/// # Errors
/// What could not be removed.
pub fn sweep() -> Result<Vec<PathBuf>> {
    sim::sweep()?;
    let mut swept = Vec::new();
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        let dir = entry.path();
        if !name(&dir).starts_with(PREFIX) || !dir.is_dir() {
            continue;
        }
        // No lock file: it is no run's, or its removal was cut short after everything else had gone.
        let held = File::open(dir.join("lock"))
            .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        if !held {
            end(&dir)?;
            remove_dir(&dir)?;
            swept.push(dir);
        }
    }
    Ok(swept)
}

fn name(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Ends the processes of the run in `dir` and takes away its mounts, cgroups and shim sockets.
fn end(dir: &Path) -> Result<()> {
    let sockets: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|node| shim_sockets(&node.path().join("ctd")))
        .collect();
    kill_all(TAG, dir)?;
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    unmount_all(dir)?;
    remove_cgroups(&name(dir))
}

/// Marks a command as belonging to the runtime in `dir`, which [`end_runtime`] ends.
pub(crate) fn mark_runtime(command: &mut Command, dir: &Path) {
    command.env(PART, dir);
}

/// Ends a runtime as a power cut would: its shims and containers die, its mounts and files are gone, nobody is told.
pub(crate) fn end_runtime(dir: &Path) -> Result<()> {
    let sockets = shim_sockets(dir);
    kill_all(PART, dir)?;
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    unmount_all(dir)?;
    remove_dir(dir)?;
    Ok(fs::create_dir_all(dir)?)
}

/// Kills until none is left: one may start another meanwhile.
fn kill_all(tag: &str, dir: &Path) -> Result<()> {
    wait_for("processes to be gone", KILLED, || {
        let left = processes(tag, dir);
        for pid in &left {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if left.is_empty() { Ok(()) } else { bail!("{left:?} of {}", dir.display()) }
    })
}

/// Processes that carry the run's tag, and their descendants: containers do not inherit it.
fn processes(tag: &str, dir: &Path) -> BTreeSet<u32> {
    let tag = format!("{tag}={}", dir.display()).into_bytes();
    let mut parents = BTreeMap::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Some(parent) = parent(pid) else { continue };
        parents.insert(pid, parent);
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if pid != std::process::id() && environ.split(|byte| *byte == 0).any(|variable| variable == tag) {
            found.insert(pid);
        }
    }
    loop {
        let more: Vec<_> = parents.iter().filter(|(p, up)| found.contains(up) && !found.contains(p)).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more.into_iter().map(|(pid, _)| *pid));
    }
}

/// The parent of a process that has not ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}

/// Where the shims of a containerd listen: outside of its directories, at a path that only each bundle knows.
fn shim_sockets(runtime: &Path) -> Vec<PathBuf> {
    let bundles = fs::read_dir(runtime.join("state/io.containerd.runtime.v2.task/k8s.io")).into_iter().flatten();
    let addresses = bundles.flatten().filter_map(|bundle| fs::read_to_string(bundle.path().join("address")).ok());
    addresses.filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from)).collect()
}

fn unmount_all(dir: &Path) -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let ours: Vec<_> = points.filter(|point| point.starts_with(dir)).collect();
    // Later ones lie on or in earlier ones.
    for point in ours.iter().rev() {
        unmount(point, UnmountFlags::DETACH).with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

/// Removes the run's cgroups of every hierarchy. They are empty, but the kernel may need a moment to see it.
fn remove_cgroups(name: &str) -> Result<()> {
    let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    for root in hierarchies.chain([PathBuf::from(CGROUPS)]).map(|dir| dir.join(name)).filter(|dir| dir.is_dir()) {
        wait_for("a cgroup to be empty", Duration::from_secs(5), || {
            remove_cgroup(&root).with_context(|| root.display().to_string())
        })?;
    }
    Ok(())
}

fn remove_cgroup(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroup(&entry.path())?;
    }
    fs::remove_dir(dir)
}

fn remove_dir(dir: &Path) -> Result<()> {
    // What was unmounted lazily may linger for a moment.
    wait_for("the directory to go", Duration::from_secs(5), || match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    })
}
