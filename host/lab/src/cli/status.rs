//! `wipam status`: the node as ipamd sees it.

use std::io::Write;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use wipam_core::node::Status;
use wipam_core::policy::{AnsweredBy, NO_ENI, eni_marks};
use wipam_policy::log::{Answered, CallKind};
use wipam_policy::status::SlotStatus;
use wipam_policy::{Decision, PoliciesStatus};

use super::{Failure, OK, Outcome, http};
use crate::say;
use crate::text::{Table, Wall, parse_utc, plain, short};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wipam status
  wipam status --decisions 20
  wipam status --json | jq .node.pools[0].counts
  watch wipam status")]
pub struct StatusArgs {
    /// Where ipamd answers: a path, or HOST:PORT.
    #[arg(long, default_value = http::SOCKET)]
    socket: String,
    /// Machine-readable: everything, with all leases and decisions.
    #[arg(long)]
    json: bool,
    /// So many of the last decisions.
    #[arg(long, value_name = "N", default_value_t = 5)]
    decisions: usize,
}

/// `/v1/status`, as far as a screen needs it.
#[derive(Debug, Deserialize)]
struct Page {
    phase: String,
    #[serde(rename = "waiting-for")]
    waiting_for: Option<String>,
    #[serde(rename = "not-ready-because")]
    not_ready_because: Option<String>,
    node: Option<Status>,
    policies: Option<PoliciesStatus>,
    now: Option<String>,
    #[serde(rename = "now-ms")]
    now_ms: Option<u64>,
    #[serde(flatten)]
    about: serde_json::Map<String, Value>,
}

pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Outcome {
    let body: Value = parse(&http::get(&args.socket, "/v1/status")?)?;
    let serving = body.get("phase").and_then(Value::as_str) == Some("serving");
    let decisions: Value = match serving && args.decisions > 0 {
        true => parse(&http::get(&args.socket, &format!("/v1/decisions?n={}", args.decisions))?)?,
        false => Value::Array(Vec::new()),
    };
    if args.json {
        let mut body = body;
        body["decisions"] = decisions;
        return super::json(out, &body);
    }
    let page: Page = parse(&serde_json::to_vec(&body)?)?;
    let decisions: Vec<Decision> = parse(&serde_json::to_vec(&decisions)?)?;
    print(&page, &decisions, out)?;
    Ok(OK)
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|e| {
        Failure::new(format!("ipamd's answer is not understood: {e}; it is of another version than this wipam"))
    })
}

fn print(page: &Page, decisions: &[Decision], out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "ipamd     {}", page.phase)?;
    for (key, value) in &page.about {
        let text = match value {
            Value::String(s) => s.clone(),
            Value::Array(all) if all.is_empty() => continue,
            Value::Array(all) => all
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join("; "),
            Value::Null | Value::Bool(_) | Value::Object(_) => continue,
            Value::Number(n) => n.to_string(),
        };
        writeln!(out, "{key:<9} {}", plain(&text))?;
    }
    if let Some(what) = &page.waiting_for {
        writeln!(out, "waits for {}", plain(what))?;
    }
    let Some(node) = &page.node else { return Ok(()) };
    let now = page.now.as_deref().unwrap_or_default();
    let wall = Wall {
        pool_ms: page.now_ms.unwrap_or(node.now_ms),
        wall_ns: parse_utc(now).unwrap_or_else(|| i128::from(node.now_ms) * 1_000_000),
    };
    writeln!(out, "now       {now}")?;
    match &page.not_ready_because {
        None => writeln!(out, "ready     yes")?,
        Some(why) => writeln!(out, "ready     NO: {}", plain(why))?,
    }
    pools(node, out)?;
    trouble(node, &wall, out)?;
    leases(node, &wall, out)?;
    if let Some(policies) = &page.policies {
        print_policies(policies, &wall, out)?;
    }
    print_decisions(decisions, &wall, out)
}

fn pools(node: &Status, out: &mut dyn Write) -> Result<(), Failure> {
    let l = &node.limits;
    writeln!(
        out,
        "limits    {}: {} interfaces with {} addresses each, {} pods",
        l.instance_type, l.max_enis, l.slots_per_eni, l.max_pods
    )?;
    for pool in &node.pools {
        let c = &pool.counts;
        writeln!(
            out,
            "\nPool {} ({}): {} addresses: {} assigned, {} free, {} cooling, {} reserved, {} held, {} suspect; {} on their way, {} going",
            pool.network,
            pool.kind,
            c.total,
            c.assigned,
            c.free,
            c.cooling,
            c.reserved,
            c.held,
            c.suspect,
            c.assigning,
            c.releasing
        )?;
        let mut table =
            Table::new(["ENI", "DEVICE", "SLOTS", "USED", "ASSIGNED", "FREE", "COOLING", "RESERVED", "HELD", "MARKS"]);
        for e in &pool.enis {
            let numbers = [
                u32::from(e.device_index),
                e.slots.into(),
                e.slots_used.into(),
                e.assigned,
                e.free,
                e.cooling,
                e.reserved,
                e.held,
            ];
            let cells = std::iter::once(e.id.clone()).chain(numbers.map(|n| n.to_string())).chain([marks(e.marks)]);
            table.row(cells);
        }
        if !table.is_empty() {
            write!(out, "{}", table.text(2))?;
        }
    }
    Ok(())
}

fn marks(marks: u32) -> String {
    let words = [
        (eni_marks::PRIMARY, "primary"),
        (eni_marks::ATTACHING, "attaching"),
        (eni_marks::DRAINING, "draining"),
        (eni_marks::DETACHING, "detaching"),
        (eni_marks::NOT_FILLABLE, "not-fillable"),
        (eni_marks::NOT_ALLOCATABLE, "not-allocatable"),
        (eni_marks::NOT_REMOVABLE, "not-removable"),
        (eni_marks::TRUNK, "trunk"),
        (eni_marks::EFA, "efa"),
        (eni_marks::UNMANAGED, "unmanaged"),
        (eni_marks::SUSPECT, "suspect"),
    ];
    words.into_iter().filter(|(bit, _)| marks & bit != 0).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// What waits, rests or failed.
fn trouble(node: &Status, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "\nwaiting   {} ADDs", node.waiting)?;
    for op in &node.operations {
        let eni = match op.eni {
            NO_ENI => "",
            n => node.pools.first().and_then(|p| p.enis.get(usize::from(n))).map_or("", |e| e.id.as_str()),
        };
        writeln!(out, "EC2       {} {eni} of {} units, {}, since {}", op.op, op.asked, op.code, wall.utc(op.at_ms))?;
    }
    for (op, subnet, code, until) in &node.back_off {
        writeln!(out, "back-off  {op} {subnet}: {code}, until {}", wall.utc(*until))?;
    }
    let breaches: Vec<String> = (1..)
        .zip(node.guard.0.iter().skip(1))
        .filter(|(_, n)| **n > 0)
        .map(|(guard, n): (u32, _)| format!("guard {guard}: {n}"))
        .collect();
    writeln!(out, "guard     {}", if breaches.is_empty() { "nothing refused".into() } else { breaches.join(", ") })?;
    let (commits, served) = node.commits;
    writeln!(out, "storage   {commits} checkpoints for {served} changes")?;
    if let Some(error) = &node.storage_error {
        writeln!(out, "storage   FAILING: {}; ADDs fail until it can be written", plain(error))?;
    }
    if !node.carried.is_empty() {
        let all: Vec<String> = node.carried.iter().take(8).map(ToString::to_string).collect();
        writeln!(
            out,
            "carried   {} addresses on the host's links that no lease has: {}",
            node.carried.len(),
            all.join(", ")
        )?;
    }
    Ok(())
}

fn leases(node: &Status, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(["POD", "ADDRESS", "INTERFACE", "SANDBOX", "SINCE", "STATE"]);
    for l in &node.leases {
        let state = match (l.phase.as_str(), l.held_until) {
            (_, Some(until)) => format!("held until {}", wall.utc(until)),
            (phase, None) if l.orphan => format!("{phase}, orphan"),
            (phase, None) => phase.into(),
        };
        let addresses: Vec<String> = l.addresses.iter().map(ToString::to_string).collect();
        table.row([
            &l.pod.to_string(),
            &addresses.join(" "),
            &l.key.ifname,
            short(&l.key.container_id),
            &wall.utc(l.assigned_at),
            &state,
        ]);
    }
    writeln!(out, "\nLeases: {}", table.len())?;
    if !table.is_empty() {
        write!(out, "{}", table.text(2))?;
    }
    Ok(())
}

fn rung(by: AnsweredBy) -> &'static str {
    match by {
        AnsweredBy::Policy => "policy",
        AnsweredBy::LastGood => "last good",
        AnsweredBy::Native => "native twin",
    }
}

fn print_policies(p: &PoliciesStatus, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "\nPolicies, generation {}", p.generation)?;
    let mut table =
        Table::new(["SLOT", "POLICY", "VERSION", "DIGEST", "GEN", "ANSWERS", "DECISIONS", "FAULTS", "SHADOW"]);
    for s in [&p.allocator, &p.sizer] {
        let shadow = s.shadow.as_ref().map_or_else(String::new, |sh| {
            let c = &sh.counts;
            format!("{}: {} agreed, {} differed, {} faults", sh.policy.name, c.agreed, c.differed, c.faults)
        });
        table.row([
            s.slot.as_str(),
            &s.name,
            &s.version,
            &s.digest.map_or_else(|| "native".into(), |d| d.short()),
            &s.generation.to_string(),
            rung(s.rung),
            &s.decisions.to_string(),
            &s.faults.to_string(),
            &shadow,
        ]);
    }
    write!(out, "{}", table.text(2))?;
    for s in [&p.allocator, &p.sizer] {
        slot_trouble(s, wall, out)?;
    }
    for warning in &p.warnings {
        writeln!(out, "  warning: {}", plain(warning))?;
    }
    if let Some(r) = &p.last_refusal {
        writeln!(out, "  refused: {}", plain(&r.to_string()))?;
    }
    Ok(())
}

fn slot_trouble(s: &SlotStatus, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some((at, fault)) = &s.last_fault {
        writeln!(out, "  {}: last fault {} {}", s.slot.as_str(), wall.utc(*at), plain(&fault.to_string()))?;
    }
    if let Some(step) = &s.step {
        writeln!(
            out,
            "  {}: stepped down to the {} at {}; mend or replace the policy, it is not asked until then",
            s.slot.as_str(),
            rung(step.to),
            wall.utc(step.at_ms)
        )?;
    }
    Ok(())
}

fn print_decisions(all: &[Decision], wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nLast decisions")?;
    let mut table = Table::new(["NO", "AT", "CALL", "BY", "ANSWER", "REASON", "GUARD"]);
    for d in all {
        let call = match d.call {
            CallKind::Allocate => "allocate",
            CallKind::Release => "release",
            CallKind::Plan => "plan",
        };
        let answer = match &d.answer {
            Answered::Allocate(choice) => format!("{choice:?}").to_lowercase(),
            Answered::Release(keep) => format!("keep {keep} ms"),
            Answered::Plan { actions, .. } => format!("{} actions", actions.len()),
        };
        table.row([
            d.number.to_string(),
            wall.utc(d.at_ms),
            call.into(),
            format!("{} ({})", d.policy.name, rung(d.by)),
            answer,
            d.reason.clone(),
            d.verdict.as_ref().map(say::verdict).unwrap_or_default(),
        ]);
    }
    write!(out, "{}", table.text(2))?;
    Ok(())
}
