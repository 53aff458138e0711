//! `wipam state show|verify`: our `state.json` and an AWS daemon's `ipam.json`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use wipam_core::aws::AwsFile;
use wipam_core::event::PodRef;
use wipam_core::saved::{Saved, SavedIntent, SavedState};

use super::{Failure, OK, Outcome, state_verify};
use crate::text::{Table, Wall, short, utc_ns};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// What is in a state file.
    #[command(after_help = "\
Examples:
  wipam state show /var/lib/wipam/state.json
  wipam state show /var/run/aws-node/ipam.json --json")]
    Show(Show),
    /// Whether a state file can be used; every problem with its cause.
    #[command(after_help = "\
Examples:
  wipam state verify /var/lib/wipam/state.json --instance i-0123456789abcdef0
  wipam state verify /var/run/aws-node/ipam.json

Exit code 0 when it can be used, 2 when there are problems, 1 when it cannot be read at all.")]
    Verify(state_verify::Verify),
}

#[derive(Debug, Args)]
pub struct Show {
    /// state.json or ipam.json.
    file: PathBuf,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

/// A file of either kind, read as far as its shape allows; what is wrong with its content is another question.
pub enum StateFile {
    /// Ours.
    Ours(Box<Saved>),
    /// An AWS daemon's.
    Aws(AwsFile),
}

impl StateFile {
    /// Parses bytes.
    ///
    /// # Errors
    /// A sentence: empty, cut off, not JSON, or neither kind of file.
    pub fn parse(bytes: &[u8]) -> Result<StateFile, String> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err("the file is empty".into());
        }
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| {
            let what = if e.is_eof() { "it breaks off (truncated)" } else { "it is not JSON" };
            format!("{what}: {e}")
        })?;
        let has = |key: &str| value.get(key).is_some();
        if has("schema") {
            let saved = serde_json::from_value(value).map_err(|e| format!("it is a state.json, but {e}"))?;
            return Ok(StateFile::Ours(Box::new(saved)));
        }
        if has("version") || has("allocations") {
            let file = serde_json::from_value(value).map_err(|e| format!("it is an ipam.json, but {e}"))?;
            return Ok(StateFile::Aws(file));
        }
        Err("it is neither a state.json (it has no \"schema\") nor an ipam.json (it has no \"version\")".into())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Path and cause.
    pub fn read(path: &Path) -> Result<StateFile, Failure> {
        let bytes = super::read(path)?;
        StateFile::parse(&bytes).map_err(|why| {
            let path = path.display();
            Failure::new(format!("{path} cannot be used: {why}; `wipam state verify {path}` says more"))
        })
    }
}

pub fn run(command: Command, out: &mut dyn Write) -> Outcome {
    match command {
        Command::Show(args) => show(&args, out),
        Command::Verify(args) => state_verify::run(&args, out),
    }
}

fn show(args: &Show, out: &mut dyn Write) -> Outcome {
    match StateFile::read(&args.file)? {
        StateFile::Ours(saved) if args.json => super::json(out, &saved),
        StateFile::Aws(file) if args.json => super::json(out, &file),
        StateFile::Ours(saved) => show_ours(&saved, out),
        StateFile::Aws(file) => show_aws(&file, out),
    }
}

fn show_aws(file: &AwsFile, out: &mut dyn Write) -> Outcome {
    writeln!(out, "ipam.json of the AWS daemon's format, {}: {} allocations", file.version, file.allocations.len())?;
    let mut table = Table::new(["ADDRESS", "POD", "INTERFACE", "NETWORK", "SANDBOX", "SINCE"]);
    for a in &file.allocations {
        let pod = match a.metadata.name.as_str() {
            "" => "unknown".to_owned(),
            name => format!("{}/{name}", a.metadata.namespace),
        };
        let since = if a.timestamp == 0 { "unknown".into() } else { utc_ns(a.timestamp.into()) };
        let address = a.address().map_or_else(|| "none".into(), |ip| ip.to_string());
        table.row([&address, &pod, &a.ifname, &a.network, short(&a.container_id), &since]);
    }
    write!(out, "{}", table.text(0))?;
    Ok(OK)
}

fn show_ours(saved: &Saved, out: &mut dyn Write) -> Outcome {
    let wall = Wall { pool_ms: saved.clock.pool_ms, wall_ns: saved.clock.wall_ns.into() };
    let held = saved.leases.iter().filter(|l| l.held.is_some()).count();
    writeln!(out, "state.json, schema {}", saved.schema)?;
    writeln!(out, "instance    {}", saved.instance)?;
    writeln!(out, "boot        {}", saved.boot)?;
    writeln!(out, "written     {}", utc_ns(saved.clock.wall_ns.into()))?;
    writeln!(out, "leases      {} ({held} held)", saved.leases.len())?;
    writeln!(out, "addresses   {} more with a history", saved.addresses.len())?;
    if !saved.memo.policy.is_empty() {
        writeln!(out, "memo        {} bytes of {}", saved.memo.bytes.len(), saved.memo.policy)?;
    }
    for (network, sets) in &saved.networks {
        let ranges: Vec<String> =
            sets.iter().flatten().map(|r| format!("{}-{} in {}", r.start, r.end, r.subnet)).collect();
        writeln!(out, "network     {network}: {}", ranges.join(", "))?;
    }
    if !saved.other.is_empty() {
        let keys: Vec<&str> = saved.other.keys().map(String::as_str).collect();
        writeln!(out, "unknown     {} (written by a newer version, kept)", keys.join(", "))?;
    }
    show_leases(saved, &wall, out)?;
    show_addresses(saved, &wall, out)?;
    show_open(saved, &wall, out)?;
    Ok(OK)
}

fn show_leases(saved: &Saved, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(["ADDRESS", "POD", "INTERFACE", "NETWORK", "SANDBOX", "ENI", "SINCE", "STATE"]);
    for lease in &saved.leases {
        let state = match &lease.held {
            Some(h) => format!("held since {}", wall.utc(h.since)),
            None if lease.migrated => "active, names unknown".into(),
            None => "active".into(),
        };
        for a in &lease.addresses {
            table.row([
                a.given.address.addr().to_string().as_str(),
                &lease.pod.to_string(),
                &lease.key.ifname,
                &lease.key.network,
                short(&lease.key.container_id),
                &a.given.eni,
                &wall.utc(lease.assigned_at),
                &state,
            ]);
        }
    }
    if !table.is_empty() {
        writeln!(out, "\nLeases")?;
        write!(out, "{}", table.text(0))?;
    }
    Ok(())
}

fn show_addresses(saved: &Saved, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(["ADDRESS", "STATE", "SINCE", "UNTIL", "POD"]);
    for a in &saved.addresses {
        let (state, since, until, pod): (&str, _, _, Option<&PodRef>) = match &a.state {
            SavedState::Cooling { since, until, pod, .. } => ("cooling", *since, Some(*until), Some(pod)),
            SavedState::Reserved { since, until, pod, .. } => ("reserved", *since, Some(*until), Some(pod)),
            SavedState::Free { since, .. } => ("free", *since, None, None),
        };
        table.row([
            a.address.to_string(),
            state.into(),
            wall.utc(since),
            until.map(|t| wall.utc(t)).unwrap_or_default(),
            pod.map(ToString::to_string).unwrap_or_default(),
        ]);
    }
    if !table.is_empty() {
        writeln!(out, "\nAddresses with a history")?;
        write!(out, "{}", table.text(0))?;
    }
    Ok(())
}

/// What had begun and was not done.
fn show_open(saved: &Saved, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    if !saved.intents.is_empty() {
        writeln!(out, "\nEC2 calls that had begun")?;
    }
    for intent in &saved.intents {
        let text = match intent {
            SavedIntent::Create { subnet, addresses, prefixes, .. } => {
                format!("create an interface in {subnet} with {addresses} addresses and {prefixes} prefixes")
            }
            SavedIntent::Attach { eni, .. } => format!("attach {eni}"),
            SavedIntent::Grow { eni, addresses, prefixes, .. } => {
                format!("{addresses} addresses and {prefixes} prefixes more on {eni}")
            }
            SavedIntent::Release { eni, addresses, prefixes, .. } => {
                format!("give {} addresses and {} prefixes of {eni} back", addresses.len(), prefixes.len())
            }
            SavedIntent::Detach { eni, .. } => format!("detach and delete {eni}"),
        };
        writeln!(out, "  {text}")?;
    }
    for t in &saved.tearing {
        writeln!(out, "  tear down the links of {}", t.target.key)?;
    }
    for t in &saved.tombstones {
        writeln!(out, "  a late DEL of {} will change nothing (since {})", t.key, wall.utc(t.since))?;
    }
    Ok(())
}
