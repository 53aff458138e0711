//! The two files of a checkpoint: our truth (`state.json`) and the one the AWS daemon can read (`ipam.json`), written in
//! one commit and read back with suspicion.
//!
//! `state.json` comes first and records the digests of the `ipam.json` about to be written and of the one that stands
//! there. So a restart knows its own `ipam.json` whichever step was the last, and takes any other for the AWS daemon's.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};
use wipam_core::aws::{self, Allocation, AllocationMetadata, AwsFile};
use wipam_core::node::Node;
use wipam_core::record::opaque_state;
use wipam_core::saved::{self, Encoded, Saved, Stamp, StateError};

use crate::clock::{Clock, rfc3339};
use crate::files::{Copy, Disk, DiskError, Kept};
use crate::links::OwnLink;
use crate::metrics::Metrics;

/// sha256, hex.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Both files.
#[derive(Clone)]
pub struct Store {
    state: Kept,
    ipam: Kept,
    instance: String,
    /// Digest of the `ipam.json` that stands on disk, as far as we know.
    on_disk: Arc<Mutex<Option<String>>>,
}

/// A file that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file.
    pub path: PathBuf,
    /// Label for the metric.
    pub reason: &'static str,
    /// What is wrong and what was done, for people.
    pub text: String,
}

/// What a start finds.
#[derive(Debug, Default)]
pub struct Found {
    /// Our state, from the file or its previous copy.
    pub saved: Option<Saved>,
    /// What the AWS daemon wrote since.
    pub aws: Option<AwsFile>,
    /// Files that could not be used.
    pub problems: Vec<Problem>,
}

/// An encoded checkpoint on its way to the disk.
pub struct Write {
    store: Store,
    encoded: Encoded,
}

impl Write {
    /// Writes both files. Waits for the disk: call it on a blocking thread, one at a time.
    ///
    /// # Errors
    /// The first step that failed, with path and errno. What was on disk before can still be read.
    pub fn run(self) -> Result<(), DiskError> {
        self.store.state.write(&self.encoded.state)?;
        self.store.ipam.write(&self.encoded.ipam)?;
        *self.store.on_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.encoded.ipam_digest);
        Ok(())
    }
}

impl Store {
    /// The files of instance `instance` (may be set later, before the first write).
    pub fn new(disk: Arc<dyn Disk>, state: PathBuf, ipam: PathBuf) -> Store {
        Store {
            state: Kept::new(disk.clone(), state),
            ipam: Kept::new(disk, ipam),
            instance: String::new(),
            on_disk: Arc::default(),
        }
    }

    fn encode(&self, node: &mut Node, clock: &Clock) -> Encoded {
        let stamp = Stamp {
            instance: self.instance.clone(),
            boot: clock.boot().to_owned(),
            clock: clock.stamp(),
            previous_ipam: self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        node.encode(&stamp, &digest)
    }

    /// Encodes the state as it is now; [`Write::run`] then takes its time.
    pub fn prepare(&self, node: &mut Node, clock: &Clock) -> Write {
        Write { store: self.clone(), encoded: self.encode(node, clock) }
    }

    /// The state as it is now, without container ids, for the head of a record.
    pub fn opaque_state(&self, node: &mut Node, clock: &Clock) -> Option<Saved> {
        saved::decode(&self.encode(node, clock).state).ok().map(opaque_state)
    }

    /// Reads what a restart needs; `instance` is whose files are believed. Files that cannot be used are set aside.
    pub fn load(&mut self, instance: &str, wall_ns: i64) -> Found {
        self.instance = instance.to_owned();
        let utc = rfc3339(i128::from(wall_ns) / 1_000_000);
        let mut found = Found::default();
        for copy in [Copy::Current, Copy::Previous] {
            found.saved = self.read_state(copy, &utc, &mut found.problems);
            if found.saved.is_some() {
                break;
            }
        }
        self.read_ipam(&utc, &mut found);
        found
    }

    fn read_state(&self, copy: Copy, utc: &str, problems: &mut Vec<Problem>) -> Option<Saved> {
        let bytes = self.bytes(&self.state, copy, utc, problems)?;
        match saved::decode(&bytes).and_then(|s| s.of_instance(&self.instance)) {
            Ok(saved) => Some(saved),
            Err(error) => {
                problems.push(set_aside(&self.state, copy, utc, reason(&error), &error.to_string()));
                None
            }
        }
    }

    fn read_ipam(&self, utc: &str, found: &mut Found) {
        // Without our state the previous copy is better than nothing: it names pods that live.
        let copies: &[Copy] = if found.saved.is_some() { &[Copy::Current] } else { &[Copy::Current, Copy::Previous] };
        for copy in copies {
            let Some(bytes) = self.bytes(&self.ipam, *copy, utc, &mut found.problems) else { continue };
            let its = digest(&bytes);
            if *copy == Copy::Current {
                *self.on_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(its.clone());
            }
            if found.saved.as_ref().is_some_and(|s| s.ipam.contains(&its)) {
                return;
            }
            match aws::decode(&bytes) {
                Ok(file) => {
                    found.aws = Some(file);
                    return;
                }
                Err(error) => {
                    found.problems.push(set_aside(&self.ipam, *copy, utc, reason(&error), &error.to_string()));
                }
            }
        }
    }

    fn bytes(&self, file: &Kept, copy: Copy, utc: &str, problems: &mut Vec<Problem>) -> Option<Vec<u8>> {
        match file.read(copy) {
            Ok(bytes) => bytes,
            Err(error) => {
                problems.push(set_aside(file, copy, utc, "unreadable", &error.to_string()));
                None
            }
        }
    }
}

fn reason(error: &StateError) -> &'static str {
    match error {
        StateError::Empty => "empty",
        StateError::Malformed(_) => "malformed",
        StateError::Version { .. } => "version",
        StateError::Duplicate { .. } | StateError::DuplicateKey(_) => "duplicate",
        StateError::Instance { .. } => "instance",
    }
}

fn set_aside(file: &Kept, copy: Copy, utc: &str, reason: &'static str, why: &str) -> Problem {
    let path = file.path(copy);
    let text = match file.set_aside(copy, utc) {
        Ok(to) => format!("{} cannot be used: {why}; it was set aside as {}", path.display(), to.display()),
        Err(error) => format!("{} cannot be used: {why}; it could not be set aside: {error}", path.display()),
    };
    Problem { path, reason, text }
}

/// Logs and counts what could not be used.
pub fn report(found: &Found, metrics: &Metrics) {
    for problem in &found.problems {
        metrics.count("wipam_bad_checkpoints_total", &[("reason", problem.reason)]);
        tracing::error!(file = %problem.path.display(), reason = problem.reason, "{}", problem.text);
    }
    match (&found.saved, found.problems.is_empty()) {
        (Some(saved), false) => tracing::warn!(leases = saved.leases.len(), "the state comes from the previous copy"),
        (None, false) => tracing::warn!("the state is rebuilt from EC2 and from the host's links, routes and rules"),
        (_, true) => {}
    }
}

/// What the host's own links say when there is no state: an allocation for each address behind a link with our alias
/// that `known` does not have. The pods' names are lost; their DELs find them by container id.
pub fn from_links(own: &[OwnLink], network: &str, known: Option<&AwsFile>) -> AwsFile {
    let taken: BTreeSet<IpAddr> = known.iter().flat_map(|f| &f.allocations).filter_map(Allocation::address).collect();
    let mut allocations = Vec::new();
    for link in own {
        for address in link.addresses.iter().filter(|a| !taken.contains(a)) {
            let (ipv4, ipv6) = match address {
                IpAddr::V4(v4) => (Some(*v4), None),
                IpAddr::V6(v6) => (None, Some(*v6)),
            };
            allocations.push(Allocation {
                network: network.to_owned(),
                container_id: link.container_id.clone(),
                ifname: link.ifname.clone(),
                ipv4,
                ipv6,
                timestamp: 0,
                metadata: AllocationMetadata::default(),
            });
        }
    }
    AwsFile { version: aws::VERSION.into(), allocations }
}

#[cfg(test)]
mod tests;
