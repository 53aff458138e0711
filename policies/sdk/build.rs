//! Encodes the worlds `allocator`, `sizer` and `combined` of `wit/policy.wit` for the export macros.
//!
//! The bindings are made once, for the world `combined`, so that all policies share one set of types. What a
//! component exports is said by a custom section that the linker reads; it must name the policy's own world, so the
//! macros place the section in the policy's crate, from the bytes written here.

use std::{env, error::Error, fs, path::Path};

use wit_component::{StringEncoding, metadata};
use wit_parser::Resolve;

fn main() -> Result<(), Box<dyn Error>> {
    let wit = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../wit/policy.wit");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", wit.display());
    let mut resolve = Resolve::default();
    // The text, not the path, so that no path can end up in the section.
    let package = resolve.push_str("policy.wit", &fs::read_to_string(&wit)?)?;
    for world in ["allocator", "sizer", "combined"] {
        let id = resolve.select_world(&[package], Some(world))?;
        let bytes = metadata::encode(&resolve, id, StringEncoding::UTF8, None)?;
        fs::write(Path::new(&env::var("OUT_DIR")?).join(format!("{world}.section")), bytes)?;
    }
    Ok(())
}
