//! Releases that nobody could take: when ipamd does not answer a DEL, the plugin leaves it here and succeeds, and the
//! daemon reads it when it starts (and whenever it looks again).
//!
//! One directory, one file of JSON for each attachment, named after a digest of its key, so that a repeated DEL
//! overwrites and no name from outside becomes a path:
//!
//! ```json
//! {"schema": 1, "network": "aws-cni", "containerId": "c1", "ifname": "eth0",
//!  "podNamespace": "default", "podName": "web-0", "podUid": "", "netns": "/run/netns/x",
//!  "networkRemoved": true, "cause": "", "addresses": ["10.0.0.7/32"], "hostIfname": "eni0123456789a",
//!  "queuedAt": 1764489394000000000}
//! ```
//!
//! A file is written whole (temporary file in the same directory, fsync, rename, fsync of the directory), so a reader
//! sees all of it or nothing, also after a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

/// Where the plugin leaves releases unless its configuration says otherwise (`queueDir`). It survives a reboot.
pub const DEFAULT_DIR: &str = "/var/lib/wipam/queue";

/// The version this code writes and the newest it reads.
pub const SCHEMA: u32 = 1;

/// Longest file that is read back, in bytes: nothing the plugin writes comes near.
const MAX_FILE: u64 = 256 * 1024;

/// What went wrong with the queue; each names the path.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The disk said no.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file is not a release as the plugin writes it.
    #[error("{} is not a queued release", path.display())]
    Format {
        /// Where.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// The file was written by a newer plugin.
    #[error("{} has schema {found}, this version reads up to {SCHEMA}: update ipamd", path.display())]
    Schema {
        /// Where.
        path: PathBuf,
        /// The file's schema.
        found: u32,
    },
    /// The file is longer than any release.
    #[error("{} is {size} bytes long, which no queued release is", path.display())]
    TooLong {
        /// Where.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
    },
}

/// One DEL that waits for the daemon. The first three fields are the attachment's key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Format version, [`SCHEMA`].
    pub schema: u32,
    /// Name of the network configuration.
    pub network: String,
    /// CNI container id.
    pub container_id: String,
    /// CNI interface name.
    pub ifname: String,
    /// Namespace of the pod; empty: unknown.
    #[serde(default)]
    pub pod_namespace: String,
    /// Name of the pod; empty: unknown.
    #[serde(default)]
    pub pod_name: String,
    /// UID of the pod; empty: unknown.
    #[serde(default)]
    pub pod_uid: String,
    /// CNI_NETNS; empty: unknown.
    #[serde(default)]
    pub netns: String,
    /// Whether the plugin took rules, route and link away itself. Else the daemon must look for them.
    #[serde(default)]
    pub network_removed: bool,
    /// As in `DelRequest.cause`.
    #[serde(default)]
    pub cause: String,
    /// Addresses according to the previous result, as CIDRs; evidence for people, the daemon knows its leases.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Host end of the veth according to the previous result; empty: unknown.
    #[serde(default)]
    pub host_ifname: String,
    /// When it was queued, nanoseconds since 1970 UTC.
    pub queued_at: u64,
}

impl Release {
    /// The request that this release stands for.
    pub fn request(&self) -> crate::v1::DelRequest {
        crate::v1::DelRequest {
            attachment: Some(crate::v1::Attachment {
                network: self.network.clone(),
                container_id: self.container_id.clone(),
                ifname: self.ifname.clone(),
            }),
            pod: Some(crate::v1::Pod {
                namespace: self.pod_namespace.clone(),
                name: self.pod_name.clone(),
                uid: self.pod_uid.clone(),
            }),
            netns: self.netns.clone(),
            network_removed: self.network_removed,
            cause: self.cause.clone(),
        }
    }
}

/// Now as [`Release::queued_at`] has it; 0 when the clock stands before 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// A file of the queue and what it holds, or why it cannot be read.
#[derive(Debug)]
pub struct Item {
    /// Its path, for [`Queue::remove`] or to set it aside.
    pub path: PathBuf,
    /// The release.
    pub release: Result<Release, QueueError>,
}

/// The directory of waiting releases.
#[derive(Clone, Debug)]
pub struct Queue {
    dir: PathBuf,
}

impl Queue {
    /// The queue in `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Queue {
        Queue { dir: dir.into() }
    }

    /// The file of an attachment, whether or not it exists.
    pub fn path_of(&self, network: &str, container_id: &str, ifname: &str) -> PathBuf {
        let mut digest = Sha1::new();
        for part in [network, container_id, ifname] {
            // The length in front keeps ("a", "bc") and ("ab", "c") apart.
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        self.dir.join(format!("{}.json", hex::encode(digest.finalize())))
    }

    /// Leaves `release` on disk, replacing an earlier one of the same attachment. When this returns, it survives a
    /// power cut. Creates the directory (mode 0700) when it is missing.
    pub fn put(&self, release: &Release) -> Result<PathBuf, QueueError> {
        let path = self.path_of(&release.network, &release.container_id, &release.ifname);
        let temp = self.dir.join(format!(
            ".{}.{}.tmp",
            path.file_stem().unwrap_or_default().to_string_lossy(),
            std::process::id()
        ));
        let body = serde_json::to_vec(release).map_err(|source| QueueError::Format { path: path.clone(), source })?;
        self.make_dir()?;
        let written = write_synced(&temp, &body)
            .and_then(|()| fs::rename(&temp, &path).map_err(|e| io_error("rename", &temp, e)))
            .and_then(|()| sync_dir(&self.dir));
        if written.is_err() {
            // Half a file must not fill the disk further; it is hidden from readers anyway.
            let _ = fs::remove_file(&temp);
        }
        written.map(|()| path)
    }

    /// Takes the release of an attachment out of the queue, if there is one.
    ///
    /// An ADD does this first: its lease is newer than the DEL that waits here, which must not end it later.
    pub fn take(&self, network: &str, container_id: &str, ifname: &str) -> Result<Option<Release>, QueueError> {
        let path = self.path_of(network, container_id, ifname);
        match read(&path) {
            Ok(release) => {
                self.remove(&path)?;
                Ok(Some(release))
            }
            Err(QueueError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Everything that waits, oldest first; unreadable files come last, each with its error. A missing directory is
    /// an empty queue.
    pub fn read_all(&self) -> Result<Vec<Item>, QueueError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_error("list", &self.dir, e)),
        };
        let mut items = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| io_error("list", &self.dir, e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // A dot in front: somebody writes it right now, or was killed while writing.
            if name.starts_with('.') || !name.ends_with(".json") {
                continue;
            }
            match read(&path) {
                // Taken by an ADD between listing and reading.
                Err(QueueError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                release => items.push(Item { release, path }),
            }
        }
        items.sort_by(|a, b| {
            let key = |i: &Item| i.release.as_ref().map_or(u64::MAX, |r| r.queued_at);
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
        });
        Ok(items)
    }

    /// Forgets a release that the daemon has recorded. One that is gone already is fine.
    pub fn remove(&self, path: &Path) -> Result<(), QueueError> {
        match fs::remove_file(path) {
            Ok(()) => sync_dir(&self.dir),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(io_error("remove", path, e)),
        }
    }

    fn make_dir(&self) -> Result<(), QueueError> {
        if self.dir.is_dir() {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(|e| io_error("create", &self.dir, e))?;
        // The new name must survive a power cut as well as what is in it.
        self.dir.parent().filter(|p| !p.as_os_str().is_empty()).map_or(Ok(()), sync_dir)
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> QueueError {
    QueueError::Io { what, path: path.to_owned(), source }
}

fn write_synced(path: &Path, body: &[u8]) -> Result<(), QueueError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(body)?;
        file.sync_all()
    };
    write().map_err(|e| io_error("write", path, e))
}

fn sync_dir(dir: &Path) -> Result<(), QueueError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| io_error("sync", dir, e))
}

fn read(path: &Path) -> Result<Release, QueueError> {
    let size = fs::metadata(path).map_err(|e| io_error("read", path, e))?.len();
    if size > MAX_FILE {
        return Err(QueueError::TooLong { path: path.to_owned(), size });
    }
    let body = fs::read(path).map_err(|e| io_error("read", path, e))?;
    let release: Release =
        serde_json::from_slice(&body).map_err(|source| QueueError::Format { path: path.to_owned(), source })?;
    if release.schema > SCHEMA {
        return Err(QueueError::Schema { path: path.to_owned(), found: release.schema });
    }
    Ok(release)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn release(container: &str, at: u64) -> Release {
        Release {
            schema: SCHEMA,
            network: "net".into(),
            container_id: container.into(),
            ifname: "eth0".into(),
            pod_name: "web-0".into(),
            addresses: vec!["10.0.0.7/32".into()],
            network_removed: true,
            queued_at: at,
            ..Release::default()
        }
    }

    #[test]
    fn what_is_put_is_read_oldest_first_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path().join("a/queue"));
        assert!(queue.read_all().unwrap().is_empty());
        queue.put(&release("young", 20)).unwrap();
        queue.put(&release("old", 10)).unwrap();
        let items = queue.read_all().unwrap();
        let names: Vec<_> = items.iter().map(|i| i.release.as_ref().unwrap().container_id.clone()).collect();
        assert_eq!(names, ["old", "young"]);
        assert_eq!(items[0].release.as_ref().unwrap(), &release("old", 10));
        for item in &items {
            queue.remove(&item.path).unwrap();
            queue.remove(&item.path).unwrap();
        }
        assert!(queue.read_all().unwrap().is_empty());
        let mode = fs::metadata(dir.path().join("a/queue")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_repeated_release_replaces_and_an_add_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        queue.put(&release("c", 1)).unwrap();
        queue.put(&release("c", 2)).unwrap();
        assert_eq!(queue.read_all().unwrap().len(), 1);
        assert_eq!(queue.take("net", "c", "eth1").unwrap(), None);
        assert_eq!(queue.take("net", "c", "eth0").unwrap(), Some(release("c", 2)));
        assert_eq!(queue.take("net", "c", "eth0").unwrap(), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn keys_that_run_together_have_their_own_files() {
        let queue = Queue::new("q");
        assert_ne!(queue.path_of("a", "bc", "d"), queue.path_of("ab", "c", "d"));
        assert_ne!(queue.path_of("a", "b", "cd"), queue.path_of("a", "bc", "d"));
    }

    #[test]
    fn broken_files_are_reported_and_hide_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        queue.put(&release("good", 5)).unwrap();
        fs::write(dir.path().join("aa.json"), b"{\"schema\":1").unwrap();
        fs::write(dir.path().join("bb.json"), b"").unwrap();
        fs::write(dir.path().join("cc.json"), serde_json::to_vec(&Release { schema: 2, ..release("new", 1) }).unwrap())
            .unwrap();
        fs::write(dir.path().join("dd.json"), vec![b' '; 300_000]).unwrap();
        fs::write(dir.path().join(".ee.json.1.tmp"), b"half").unwrap();
        fs::write(dir.path().join("note.txt"), b"x").unwrap();
        let items = queue.read_all().unwrap();
        assert_eq!(items.len(), 5);
        assert!(items[0].release.is_ok());
        assert!(matches!(items[1].release, Err(QueueError::Format { .. })));
        assert!(matches!(items[3].release, Err(QueueError::Schema { found: 2, .. })));
        assert!(matches!(items[4].release, Err(QueueError::TooLong { size: 300_000, .. })));
    }

    #[test]
    fn a_queue_that_cannot_be_written_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = Queue::new(file.join("queue")).put(&release("c", 1)).unwrap_err();
        assert!(error.to_string().contains("file/queue"), "{error}");
    }

    #[test]
    fn unknown_keys_and_missing_optional_ones_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        let path = queue.path_of("n", "c", "e");
        fs::write(&path, br#"{"schema":1,"network":"n","containerId":"c","ifname":"e","queuedAt":7,"later":[1]}"#)
            .unwrap();
        assert_eq!(queue.take("n", "c", "e").unwrap().unwrap().queued_at, 7);
    }
}
