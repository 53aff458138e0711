//! `cargo xtask test`: every test, and nothing skipped in silence.

use crate::packages;
use crate::run::{cargo, is_root, run};

/// `cargo xtask test [--fast]`.
///
/// # Errors
/// The first step that failed.
pub fn test(args: &[String]) -> Result<(), String> {
    let fast = args.iter().any(|a| a == "--fast");
    if !is_root() {
        if std::env::var_os("CI").is_some() {
            return Err("on CI the tests run as root: a skipped network-namespace test is a failure".into());
        }
        println!("not root: the tests in network namespaces are skipped, each says so");
    }
    let missing = packages::missing();
    if !missing.is_empty() {
        packages::install(&missing)?;
    }
    // Tests execute the plugin and the daemons as processes: they must be there first, and up to date.
    run("build", cargo().args(["build", "--workspace", "--bins"]))?;
    if !fast {
        run("plugin", cargo().args(["build", "--profile", "plugin", "--package", "wipam-cni"]))?;
    }
    run("tests", cargo().args(["test", "--workspace", "--no-fail-fast"]))
}
