//! Running `ip` and `nft`, and writing sysctls, inside a namespace.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{WireError, in_netns};

/// Runs a program in the caller's namespace with `input` on its standard input; returns its standard output.
pub(super) fn run(program: &str, args: &[&str], input: &str) -> Result<Vec<u8>, WireError> {
    let said = || format!("{program} {}", args.join(" "));
    let start = |source| WireError::Start { program: said(), source };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading says why by its exit code and standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(WireError::Refused { program: said(), stderr, input: input.to_owned() })
}

/// Runs the `ip` commands in `batch`, one a line, in `netns`; stops at the first that fails.
pub(super) fn ip_batch(netns: &str, batch: &str) -> Result<(), WireError> {
    if batch.is_empty() {
        return Ok(());
    }
    run("ip", &["-n", netns, "-batch", "-"], batch).map(drop)
}

/// What `ip -json …` shows in `netns`.
pub(super) fn ip_json<T: DeserializeOwned>(netns: &str, args: &[&str]) -> Result<T, WireError> {
    let args = [&["-n", netns, "-json"], args].concat();
    let out = run("ip", &args, "")?;
    // `ip` prints nothing at all where it means an empty list.
    let out = if out.is_empty() { b"[]".as_slice() } else { &out };
    serde_json::from_slice(out).map_err(|source| WireError::Json { program: format!("ip {}", args.join(" ")), source })
}

/// Loads `rules` in `netns` in one transaction.
pub(super) fn nft(netns: &str, rules: &str) -> Result<(), WireError> {
    in_netns(netns, || run("nft", &["-f", "-"], rules))?.map(drop)
}

/// Packets of every named counter in the table of the mapping service.
pub(super) fn nft_counters(netns: &str) -> Result<BTreeMap<String, u64>, WireError> {
    #[derive(Deserialize)]
    struct Answer {
        nftables: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        counter: Option<Counter>,
    }
    #[derive(Deserialize)]
    struct Counter {
        name: String,
        packets: u64,
    }
    let args = ["-j", "list", "counters", "table", "ip", "vpc"];
    let out = in_netns(netns, || run("nft", &args, ""))??;
    let answer: Answer = serde_json::from_slice(&out)
        .map_err(|source| WireError::Json { program: format!("nft {}", args.join(" ")), source })?;
    Ok(answer.nftables.into_iter().filter_map(|item| item.counter).map(|c| (c.name, c.packets)).collect())
}

/// Writes `net.ipv4…`-like settings, given as (path below `/proc/sys/net`, value), in `netns`.
pub(super) fn sysctl(netns: &str, settings: &[(&str, &str)]) -> Result<(), WireError> {
    // /proc/sys/net shows the namespace of the thread that opens it.
    let write = || settings.iter().try_for_each(|(key, value)| std::fs::write(format!("/proc/sys/net/{key}"), value));
    in_netns(netns, write)?.map_err(|source| WireError::Netns {
        name: netns.to_owned(),
        what: "set a sysctl in it",
        source,
    })
}
