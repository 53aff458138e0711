//! Builds the shipped policies as components, so that `src` can embed them from OUT_DIR: `default.wasm`,
//! `warm-ip-target.wasm`, `sticky-podref.wasm`.

#[path = "../../policies/guests.rs"]
mod guests;

use std::{error::Error, path::Path};

const PACKAGES: [&str; 3] = ["wipam-policy-default", "wipam-policy-warm-ip-target", "wipam-policy-sticky-podref"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    println!("cargo::rerun-if-changed=build.rs");
    for dir in ["guests.rs", "sdk", "default", "warm-ip-target", "sticky-podref"] {
        println!("cargo::rerun-if-changed={}", root.join("policies").join(dir).display());
    }
    println!("cargo::rerun-if-changed={}", root.join("wit/policy.wit").display());
    guests::build(&root, "wipam-policy-", &PACKAGES)
}
