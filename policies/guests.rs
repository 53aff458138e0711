//! How guests become components: a nested cargo for `wasm32-unknown-unknown`. Included by build scripts.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the packages of the workspace at `root` with the profile `guest`, each with these features, and copies
/// each component into OUT_DIR as `<package without prefix>.wasm`.
///
/// The guests have a target directory of their own below the outer one, since cargo holds a lock on that. The same
/// sources give the same bytes wherever they are built: no path of this machine gets into them.
pub fn build(root: &Path, prefix: &str, packages: &[&str]) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target_dir = target_dir(&out).join("guests");
    require_target()?;
    let mut cargo = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.current_dir(root).arg("build").args(["--profile", "guest", "--target", TARGET]);
    cargo.arg("--target-dir").arg(&target_dir);
    for package in packages {
        cargo.arg("--package").arg(package);
    }
    isolate(&mut cargo);
    cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-component-ld");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rustflags(root));
    let run = cargo.output().map_err(|e| format!("cannot start cargo for the policies: {e}"))?;
    if !run.status.success() {
        let text = String::from_utf8_lossy(&run.stderr);
        return Err(format!("building the policies {packages:?} for {TARGET} failed:\n{text}").into());
    }
    for package in packages {
        let built = target_dir.join(TARGET).join("guest").join(format!("{}.wasm", package.replace('-', "_")));
        let name = package.strip_prefix(prefix).unwrap_or(package);
        let bytes = fs::read(&built).map_err(|e| format!("reading {}: {e}", built.display()))?;
        fs::write(out.join(format!("{name}.wasm")), bytes)?;
    }
    Ok(())
}

/// The outer cargo's target directory: the nearest one above OUT_DIR that cargo has tagged as a cache.
fn target_dir(out: &Path) -> PathBuf {
    let tagged = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    tagged.unwrap_or(out).to_path_buf()
}

/// Takes away what the outer build (its flags, wrappers such as clippy's, its target) must not decide for guests.
fn isolate(cargo: &mut Command) {
    const OF_A_BUILD: [&str; 6] =
        ["CARGO_BUILD_", "CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_PKG_"];
    const SINGLE: [&str; 6] = [
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_MANIFEST_DIR",
        "CARGO_INCREMENTAL",
    ];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OF_A_BUILD.iter().any(|prefix| text.starts_with(prefix)) || SINGLE.contains(&text.as_ref()) {
            cargo.env_remove(&name);
        }
    }
}

/// The stack size of `.cargo/config.toml` (flags from the environment replace those of the file), and paths that
/// panics would tell, renamed.
fn rustflags(root: &Path) -> String {
    let mut flags = vec!["-Clink-arg=-zstack-size=65536".to_owned()];
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    for (path, name) in [(cargo_home.as_path(), "/cargo"), (root, "/wipam")] {
        flags.push(format!("--remap-path-prefix={}={name}", path.display()));
    }
    flags.join("\u{1f}")
}

fn require_target() -> Result<(), Box<dyn Error>> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let asked = Command::new(&rustc).args(["--print", "target-libdir", "--target", TARGET]).output()?;
    let dir = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if asked.status.success() && Path::new(&dir).is_dir() {
        return Ok(());
    }
    Err(format!("policies are built for {TARGET}, which {rustc} does not have; install it: rustup target add {TARGET}")
        .into())
}
