//! The one image that pods run: a busybox that sleeps, as an OCI archive made here, since nothing is pulled.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Its name for the runtime, both for sandboxes and for containers.
pub const NAME: &str = "localhost/wipam-e2e:1";

/// A statically linked busybox (Debian's `busybox-static`).
pub const BUSYBOX: &str = "/bin/busybox";

/// What pods may run.
const APPLETS: [&str; 12] =
    ["cat", "echo", "hostname", "httpd", "ip", "ls", "nc", "ping", "sh", "sleep", "true", "wget"];

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(0);
    header
}

fn layer(busybox: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (dir, mode) in [("bin/", 0o755), ("etc/", 0o755), ("proc/", 0o755), ("tmp/", 0o1777)] {
        tar.append_data(&mut header(tar::EntryType::Directory, mode, 0), dir, std::io::empty())?;
    }
    tar.append_data(&mut header(tar::EntryType::Regular, 0o755, busybox.len()), "bin/busybox", busybox)?;
    for applet in APPLETS {
        tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), format!("bin/{applet}"), "busybox")?;
    }
    tar.into_inner()
}

/// The archive, for this architecture.
fn archive(busybox: &[u8]) -> Result<Vec<u8>> {
    let layer = layer(busybox)?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": { "Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [sha256(&layer)] }, "history": [],
    });
    let config = config.to_string().into_bytes();
    let part = |media: &str, bytes: &[u8]| json!({ "mediaType": format!("application/vnd.oci.image.{media}"), "digest": sha256(bytes), "size": bytes.len() });
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": part("config.v1+json", &config), "layers": [part("layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry: Value = part("manifest.v1+json", &manifest);
    entry["annotations"] = json!({ "io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "1" });
    entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string().into_bytes();

    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: String, bytes: &[u8]| {
        tar.append_data(&mut header(tar::EntryType::Regular, 0o644, bytes.len()), name, bytes)
    };
    add("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add("index.json".into(), &index)?;
    for blob in [&layer, &config, &manifest] {
        add(format!("blobs/sha256/{}", sha256(blob).trim_start_matches("sha256:")), blob)?;
    }
    Ok(tar.into_inner()?)
}

/// Writes the archive to `path`.
///
/// # Errors
/// There is no busybox, or the file cannot be written.
pub fn write(path: &Path) -> Result<()> {
    let busybox = std::fs::read(BUSYBOX)
        .with_context(|| format!("{BUSYBOX} cannot be read: apt-get install -y busybox-static"))?;
    std::fs::write(path, archive(&busybox)?).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_names_its_blobs_by_their_digests() {
        let bytes = archive(b"not really busybox").unwrap();
        let mut names = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            if let Some(digest) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(sha256(&content), format!("sha256:{digest}"));
            }
            names.push(name);
        }
        assert_eq!(names.len(), 5, "{names:?}");
        assert_eq!(archive(b"x").unwrap(), archive(b"x").unwrap(), "the same input makes the same archive");
    }
}
