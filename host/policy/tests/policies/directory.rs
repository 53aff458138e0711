//! The watched directory: changes by content, half-written files, a ConfigMap's links.

use std::{fs, os::unix::fs::symlink, path::Path};

use wipam_core::policy::Slot;
use wipam_policy::{Candidate, DirLoader, Environment, Gate, Gatekeeper, Refusal, embedded};

use crate::world::engine;

fn loader(dir: &Path) -> DirLoader {
    DirLoader::new(dir, Gatekeeper::new(engine(), Environment::default()))
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(dir.join(name), bytes).unwrap();
}

/// Two polls: the first sees the change, the second takes it up.
fn settled(loader: &mut DirLoader) -> Option<Result<Candidate, Refusal>> {
    assert!(loader.poll().is_none(), "a change is not taken up at first sight");
    loader.poll()
}

fn allocator(candidate: &Candidate) -> &str {
    &candidate.get(Slot::Allocator).metadata().name
}

#[test]
fn without_directory_or_document_the_defaults_run() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(allocator(&loader(&dir.path().join("not-there")).load().unwrap()), "default");
    assert_eq!(allocator(&loader(dir.path()).load().unwrap()), "default");
}

#[test]
fn a_change_is_seen_by_content_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "policies.yaml", "policy: default\n");
    let mut loader = loader(dir.path());
    loader.load().unwrap();
    assert!(loader.poll().is_none());
    write(dir.path(), "policies.yaml", "policy: default\n");
    assert!(loader.poll().is_none() && loader.poll().is_none(), "written again, the same content");
    write(dir.path(), "policies.yaml", "policy: default\nallocator: sticky-podref\n");
    assert_eq!(allocator(&settled(&mut loader).unwrap().unwrap()), "sticky-podref");
    assert!(loader.poll().is_none());
}

#[test]
fn a_file_that_is_being_copied_is_not_tried_and_a_broken_one_is_refused_once() {
    let dir = tempfile::tempdir().unwrap();
    let component = embedded::named("sticky-podref").unwrap().component;
    write(dir.path(), "policies.yaml", "allocator: { file: mine.wasm }\n");
    write(dir.path(), "mine.wasm", component);
    let mut loader = loader(dir.path());
    loader.load().unwrap();
    for part in [1_000, 10_000, 20_000] {
        write(dir.path(), "mine.wasm", &component[..part]);
        assert!(loader.poll().is_none(), "each poll sees another content");
    }
    assert_eq!(loader.poll().unwrap().unwrap_err().gate, Gate::Parse, "now it stands still, and it is broken");
    assert!(loader.poll().is_none(), "told once");
    write(dir.path(), "mine.wasm", component);
    assert_eq!(allocator(&settled(&mut loader).unwrap().unwrap()), "sticky-podref");
    fs::remove_file(dir.path().join("mine.wasm")).unwrap();
    assert_eq!(settled(&mut loader).unwrap().unwrap_err().gate, Gate::Document);
}

#[test]
fn a_mounted_config_map_swaps_by_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let put = |version: &str, document: &str| {
        let data = dir.path().join(version);
        fs::create_dir(&data).unwrap();
        write(&data, "policies.yaml", document);
        write(&data, "mine.wasm", embedded::named("sticky-podref").unwrap().component);
        symlink(version, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    put("..2026_1", "policy: default\n");
    for name in ["policies.yaml", "mine.wasm"] {
        symlink(format!("..data/{name}"), dir.path().join(name)).unwrap();
    }
    let mut loader = loader(dir.path());
    assert_eq!(allocator(&loader.load().unwrap()), "default");
    put("..2026_2", "allocator: { file: mine.wasm }\n");
    assert_eq!(allocator(&settled(&mut loader).unwrap().unwrap()), "sticky-podref");
}

#[test]
fn a_document_that_is_lost_or_wrong_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "policies.yaml", "policy: default\n");
    let mut loader = loader(dir.path());
    loader.load().unwrap();
    fs::remove_file(dir.path().join("policies.yaml")).unwrap();
    let lost = settled(&mut loader).unwrap().unwrap_err();
    assert_eq!((lost.gate, lost.cause.contains("is gone")), (Gate::Document, true));
    for (wrong, cause) in [
        (b"policy: [\n".to_vec(), ""),
        (b"sizer:\n  nme: default\n".to_vec(), "line 2"),
        (b"\xff\xfe".to_vec(), "UTF-8"),
        (vec![b'#'; 100_000], "bytes"),
    ] {
        write(dir.path(), "policies.yaml", wrong);
        let refusal = settled(&mut loader).unwrap().unwrap_err();
        assert_eq!(refusal.gate, Gate::Document);
        assert!(refusal.cause.contains(cause), "{}", refusal.cause);
    }
    write(dir.path(), "policies.yaml", "");
    settled(&mut loader).unwrap().unwrap();
}

#[test]
fn what_is_no_regular_file_or_too_large_is_refused_when_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dir.wasm")).unwrap();
    write(dir.path(), "big.wasm", vec![0; 2 << 20]);
    for (file, gate) in [("dir.wasm", Gate::Document), ("big.wasm", Gate::Size)] {
        write(dir.path(), "policies.yaml", format!("allocator: {{ file: {file} }}\n"));
        assert_eq!(loader(dir.path()).load().unwrap_err().gate, gate, "{file}");
    }
}
