//! What the tests share.

/// Whether a test that needs root may run.
pub fn root(test: &str) -> bool {
    if wipam_e2e::programs::is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and on CI nothing is skipped");
    println!("SKIPPED (needs root): {test}");
    false
}
