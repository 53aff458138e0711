//! `wipam state verify`: every problem of a state file, each with its cause.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use wipam_core::aws::{self, AwsFile};
use wipam_core::saved::{self, SCHEMA, Saved, SavedState};

use super::state::StateFile;
use super::{OK, Outcome, PROBLEMS};
use crate::text::plain;

#[derive(Debug, Args)]
pub struct Verify {
    /// state.json or ipam.json.
    file: PathBuf,
    /// The instance that the file must be of.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// "state.json", "ipam.json", or "unknown".
    pub kind: &'static str,
    /// Reasons not to use the file.
    pub problems: Vec<String>,
    /// Worth knowing, but no reason.
    pub notes: Vec<String>,
}

pub fn run(args: &Verify, out: &mut dyn Write) -> Outcome {
    let found = verify(&super::read(&args.file)?, args.instance.as_deref());
    let code = if found.problems.is_empty() { OK } else { PROBLEMS };
    if args.json {
        super::json(out, &found)?;
        return Ok(code);
    }
    for problem in &found.problems {
        writeln!(out, "problem: {}", plain(problem))?;
    }
    for note in &found.notes {
        writeln!(out, "note: {}", plain(note))?;
    }
    let path = args.file.display();
    match found.problems.len() {
        0 => writeln!(out, "{path}: {} is good", found.kind)?,
        n => writeln!(
            out,
            "{path}: {n} problem{}; ipamd would set the file aside and rebuild from the copy before it, EC2 and the node's own links",
            if n == 1 { "" } else { "s" }
        )?,
    }
    Ok(code)
}

/// Looks at bytes.
pub fn verify(bytes: &[u8], instance: Option<&str>) -> Findings {
    match StateFile::parse(bytes) {
        Err(why) => Findings { kind: "unknown", problems: vec![why], notes: Vec::new() },
        Ok(StateFile::Ours(file)) => {
            let mut found = Findings { kind: "state.json", ..Findings::default() };
            ours(&file, instance, &mut found);
            // Whatever else the daemon would refuse.
            if found.problems.is_empty()
                && let Err(error) = saved::decode(bytes)
            {
                found.problems.push(error.to_string());
            }
            found
        }
        Ok(StateFile::Aws(file)) => {
            let mut found = Findings { kind: "ipam.json", ..Findings::default() };
            theirs(&file, &mut found);
            if instance.is_some() {
                found.notes.push("an ipam.json does not say which instance it is of".into());
            }
            if found.problems.is_empty()
                && let Err(error) = aws::decode(bytes)
            {
                found.problems.push(error.to_string());
            }
            found
        }
    }
}

/// Who has an address, by pool (the network's name where it has ranges) and address.
type Taken<'a> = BTreeMap<(&'a str, IpAddr), Vec<String>>;

fn doubles(taken: &Taken<'_>, problems: &mut Vec<String>) {
    for ((_, ip), who) in taken.iter().filter(|(_, who)| who.len() > 1) {
        problems.push(format!("address {ip} is recorded {} times: {}", who.len(), who.join(", ")));
    }
}

fn ours(saved: &Saved, instance: Option<&str>, found: &mut Findings) {
    let Findings { problems, notes, .. } = found;
    match saved.schema {
        0 => problems.push(format!("schema 0 does not exist; this version writes {SCHEMA}")),
        newer if newer > SCHEMA => {
            notes.push(format!("schema {newer} is newer than this version's {SCHEMA}; what is known is read"));
        }
        _ => {}
    }
    if let Some(expected) = instance.filter(|i| *i != saved.instance) {
        problems.push(format!("it is of instance {:?}, this is {expected}: its leases live elsewhere", saved.instance));
    }
    let (mut keys, mut taken) = (BTreeSet::new(), Taken::new());
    for lease in &saved.leases {
        if !keys.insert(&lease.key) {
            problems.push(format!("the attachment {} is recorded twice", lease.key));
        }
        if lease.addresses.is_empty() {
            problems.push(format!("the attachment {} has no address", lease.key));
        }
        let ranged = saved.networks.contains_key(&lease.key.network);
        let pool = if ranged { lease.key.network.as_str() } else { "" };
        for a in &lease.addresses {
            taken.entry((pool, a.given.address.addr())).or_default().push(format!("leased to {}", lease.key));
        }
    }
    for a in &saved.addresses {
        let what = match &a.state {
            SavedState::Cooling { pod, .. } => format!("cooling after {pod}"),
            SavedState::Reserved { pod, .. } => format!("reserved for {pod}"),
            SavedState::Free { .. } => "free".into(),
        };
        taken.entry((&a.network, a.address)).or_default().push(what);
    }
    doubles(&taken, problems);
    if saved.clock.pool_ms == 0 {
        notes.push("it has no clock: ages and ends of what it holds are counted from now".into());
    }
    let migrated = saved.leases.iter().filter(|l| l.migrated).count();
    if migrated > 0 {
        notes.push(format!("{migrated} leases came from a runtime migration and do not know their names"));
    }
    if !saved.intents.is_empty() {
        notes.push(format!("{} EC2 calls had begun; a start settles them by asking EC2", saved.intents.len()));
    }
}

fn theirs(file: &AwsFile, found: &mut Findings) {
    let Findings { problems, notes, .. } = found;
    if file.version != aws::VERSION {
        problems.push(format!("version {:?} is not {:?}, the only one there is", file.version, aws::VERSION));
    }
    let (mut keys, mut taken) = (BTreeSet::new(), Taken::new());
    for (i, a) in file.allocations.iter().enumerate() {
        let who = match a.container_id.as_str() {
            "" => format!("allocation {}", i + 1),
            id => format!("{}/{id}/{}", a.network, a.ifname),
        };
        if a.container_id.is_empty() {
            problems.push(format!("allocation {} has no containerID", i + 1));
        } else if !keys.insert((&a.network, &a.container_id, &a.ifname)) {
            problems.push(format!("the attachment {who} is recorded twice"));
        }
        match a.address() {
            Some(ip) => taken.entry(("", ip)).or_default().push(format!("allocated to {who}")),
            None => problems.push(format!("{who} has no address")),
        }
    }
    doubles(&taken, problems);
    let count = |what: &str, n: usize, notes: &mut Vec<String>| {
        if n > 0 {
            notes.push(format!("{n} of {} allocations {what}", file.allocations.len()));
        }
    };
    let all = || file.allocations.iter();
    count("have no timestamp (written before 1.11)", all().filter(|a| a.timestamp == 0).count(), notes);
    count("do not name their pod", all().filter(|a| a.metadata.name.is_empty()).count(), notes);
    let placeholder = all().filter(|a| a.network == "_migrated-from-cri" || a.ifname == "unknown").count();
    count("have the placeholder names of a runtime migration", placeholder, notes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_double_is_told_with_both_owners() {
        let text = r#"{"version":"vpc-cni-ipam/1","allocations":[
            {"networkName":"n","containerID":"a","ifName":"eth0","ipv4":"10.0.0.1"},
            {"networkName":"n","containerID":"b","ifName":"eth0","ipv4":"10.0.0.1"},
            {"networkName":"n","containerID":"b","ifName":"eth0","ipv4":"10.0.0.2"},
            {"containerID":"c"}]}"#;
        let found = verify(text.as_bytes(), None);
        assert_eq!(found.kind, "ipam.json");
        let all = found.problems.join("\n");
        assert!(all.contains("10.0.0.1 is recorded 2 times: allocated to n/a/eth0, allocated to n/b/eth0"), "{all}");
        assert!(all.contains("n/b/eth0 is recorded twice"), "{all}");
        assert!(all.contains("has no address"), "{all}");
        assert_eq!(found.problems.len(), 3, "{all}");
    }

    #[test]
    fn an_address_cannot_be_leased_and_cooling() {
        let text = r#"{"schema":1,"instance":"i-1","leases":[{"network":"n","container_id":"c","ifname":"eth0",
            "pod":{"namespace":"d","name":"p"},"addresses":[{"address":"10.0.0.9/32","index":0,
            "eni":"eni-1","device":0,"table":254,"gateway":null}],"assigned_at":1}],
            "addresses":[{"address":"10.0.0.9","state":"free","since":1,"last":2}]}"#;
        let found = verify(text.as_bytes(), Some("i-2"));
        let all = found.problems.join("\n");
        assert!(all.contains("10.0.0.9 is recorded 2 times: leased to n/c/eth0, free"), "{all}");
        assert!(all.contains("i-2"), "{all}");
        assert!(found.notes.iter().any(|n| n.contains("no clock")), "{:?}", found.notes);
    }
}
