//! `wipam policy inspect|check|try`.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;
use wipam_core::policy::{Knob, SettingValue, Slot};
use wipam_policy::inspect::{Inspection, inspect};
use wipam_policy::{Gate, GateResult};

use super::{FAILED, Failure, OK, Outcome, try_policy};
use crate::pick::{self, Source, Vetter};
use crate::text::{Table, plain};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// What a policy is: size, digest, imports, exports, what it says about itself, its knobs.
    #[command(after_help = "\
Examples:
  wipam policy inspect my-policy.wasm
  wipam policy inspect warm-ip-target --json

Exit code 1 when a gate would refuse it.")]
    Inspect(Look),
    /// Whether a node would let a policy in: every gate with its verdict.
    #[command(after_help = "\
Examples:
  wipam policy check my-policy.wasm
  wipam policy check warm-ip-target --set warm=5 --set compatible=true

Exit code 1 when a gate refuses it.")]
    Check(Check),
    /// What a policy would answer to a pod on a recorded state, and why, beside the default policy.
    Try(try_policy::Try),
}

#[derive(Debug, Args)]
pub struct Look {
    /// A .wasm file (may be gzipped), or the name of a policy that comes with wipam.
    file: String,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    look: Look,
    /// A setting, as policies.yaml would have it; may be repeated.
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    set: Vec<String>,
}

pub fn run(command: Command, out: &mut dyn Write) -> Outcome {
    match command {
        Command::Inspect(args) => run_inspect(&args, out),
        Command::Check(args) => run_check(&args, out),
        Command::Try(args) => try_policy::run(&args, out),
    }
}

fn run_inspect(args: &Look, out: &mut dyn Write) -> Outcome {
    let source = Source::find(&args.file)?;
    let seen = inspect(&pick::engine()?, &source.label(), source.bytes());
    let code = if seen.refusal.is_some() { FAILED } else { OK };
    if args.json {
        super::json(out, &seen)?;
        return Ok(code);
    }
    print_inspection(&source.label(), &seen, out)?;
    Ok(code)
}

fn print_inspection(label: &str, seen: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    let list = |all: &[String]| if all.is_empty() { "nothing".into() } else { all.join(", ") };
    let imports: Vec<String> = seen
        .imports
        .iter()
        .map(|i| if i.needs.is_empty() { format!("{} (types only)", i.name) } else { i.name.clone() })
        .collect();
    let fills: Vec<&str> = seen.fills.iter().map(|s| s.as_str()).collect();
    writeln!(out, "file      {label}")?;
    writeln!(out, "bytes     {}", seen.bytes)?;
    writeln!(out, "sha256    {}", seen.sha256)?;
    if let Some(why) = &seen.not_a_component {
        writeln!(out, "kind      no component: {}", plain(why))?;
    }
    writeln!(out, "imports   {}", plain(&list(&imports)))?;
    writeln!(out, "exports   {}", plain(&list(&seen.exports)))?;
    writeln!(out, "fills     {}", if fills.is_empty() { "no slot".into() } else { fills.join(" and ") })?;
    if let Some(m) = &seen.metadata {
        writeln!(out, "name      {} {}", plain(&m.name), plain(&m.version))?;
        writeln!(out, "summary   {}", plain(&m.summary))?;
        writeln!(
            out,
            "memo      {}",
            if m.memo_schema == 0 { "none".into() } else { format!("schema {}", m.memo_schema) }
        )?;
        print_knobs(&m.knobs, out)?;
    }
    match &seen.refusal {
        None => writeln!(out, "gates     all passed, with every knob at its default")?,
        Some(r) => {
            writeln!(out, "gates     REFUSED at {}: {}", r.gate, plain(&r.cause))?;
            writeln!(out, "mend      {}", plain(&r.mend))?;
        }
    }
    Ok(())
}

/// A value as it is written in a document.
pub fn value(value: &SettingValue) -> String {
    match value {
        SettingValue::Boolean(b) => b.to_string(),
        SettingValue::Integer(n) => n.to_string(),
        SettingValue::Text(t) => t.clone(),
    }
}

fn print_knobs(knobs: &[Knob], out: &mut dyn Write) -> Result<(), Failure> {
    if knobs.is_empty() {
        writeln!(out, "knobs     none")?;
        return Ok(());
    }
    let mut table = Table::new(["KNOB", "KIND", "DEFAULT", "RANGE", "MEANS"]);
    for k in knobs {
        let kind = serde_json::to_value(k.kind)?;
        let range = match (k.min, k.max) {
            _ if !k.choices.is_empty() => k.choices.join("|"),
            (None, None) => String::new(),
            (min, max) => {
                let side = |n: Option<i64>| n.map(|n| n.to_string()).unwrap_or_default();
                format!("{}..{}", side(min), side(max))
            }
        };
        table.row([&k.name, kind.as_str().unwrap_or("?"), &value(&k.default), &range, &k.help]);
    }
    writeln!(out, "knobs")?;
    write!(out, "{}", table.text(2))?;
    Ok(())
}

fn run_check(args: &Check, out: &mut dyn Write) -> Outcome {
    let source = Source::find(&args.look.file)?;
    let settings = pick::settings(&args.set)?;
    let vetter = Vetter::new(false)?;
    let mut slots = source.fills();
    if slots.is_empty() {
        // The gates say what it is instead.
        slots.push(Slot::Allocator);
    }
    let mut results = Vec::new();
    for slot in slots {
        let (gates, vetted) = vetter.gatekeeper().check(slot, &source.label(), source.bytes(), &settings);
        results.push((slot, gates, vetted.is_ok()));
    }
    let passed = results.iter().all(|(.., ok)| *ok);
    let code = if passed { OK } else { FAILED };
    if args.look.json {
        let slots: Vec<_> =
            results.iter().map(|(slot, gates, ok)| json!({ "slot": slot, "passed": ok, "gates": gates })).collect();
        super::json(out, &json!({ "policy": source.label(), "passed": passed, "slots": slots }))?;
        return Ok(code);
    }
    for (slot, gates, ok) in &results {
        writeln!(
            out,
            "{} as {}: {}",
            source.label(),
            slot.as_str(),
            if *ok { "passes every gate" } else { "REFUSED" }
        )?;
        print_gates(gates, out)?;
    }
    Ok(code)
}

fn print_gates(gates: &[GateResult], out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(["GATE", "VERDICT", "DETAIL"]);
    // The document's own gate has nothing to say about a single file.
    for gate in Gate::ALL.into_iter().filter(|g| *g != Gate::Document) {
        match gates.iter().find(|r| r.gate == gate) {
            Some(r) => table.row([gate.as_str(), if r.passed { "pass" } else { "REFUSED" }, r.detail.as_str()]),
            None => table.row([gate.as_str(), "-", "not asked"]),
        }
    }
    write!(out, "{}", table.text(2))?;
    for mend in gates.iter().filter_map(|r| r.mend.as_ref()) {
        writeln!(out, "  mend: {}", plain(mend))?;
    }
    Ok(())
}
