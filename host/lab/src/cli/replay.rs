//! `wipam replay`: a record proven, and compared with what other policies would have done.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use wipam_core::policy::{Slot, Verdict};
use wipam_core::record::{Decision, RecordedPolicy};
use wipam_policy::Candidate;
use wipam_policy::settings::Written;

use super::{DIFFERS, FAILED, Failure, INTERRUPTED, OK, Outcome};
use crate::pick::{self, PickError, Source};
use crate::replay::played::{Parting, Played, parting};
use crate::replay::proof::{Difference, Proof, prove};
use crate::replay::reading::{End, Recording};
use crate::replay::world::{Choice, play};
use crate::replay::{Shelf, ShelfError, Watch, rung};
use crate::say;
use crate::text::{Table, Wall, plain, span};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wipam replay node.rec                                    prove that it happened so
  wipam replay node.rec --policy warm-ip-target --set warm=5
  wipam replay node.rec --policy default --policy my-policy.wasm
  wipam replay node.rec --set warm=5                       the recorded policies with another setting
  wipam replay node.rec --native --stats                   native twins: ten times faster

First the events go through core and the recorded policies again, and every decision is compared (inputs and answer).
Then, with --policy or --set, the recorded policies and the others each play the same pods in a world of their own, where
a simulated VPC with the record's limits answers for EC2; what EC2 refused in the record is not repeated.

Exit code 3 when a decision differs from the record, 130 when interrupted.")]
pub struct Replay {
    /// A record (`wipam record`); may be cut anywhere.
    record: PathBuf,
    /// A .wasm file, or the name of a policy that comes with wipam; at most two. It plays in each slot it fills.
    #[arg(long, value_name = "FILE_OR_NAME")]
    policy: Vec<String>,
    /// A setting, for each of these policies that has the knob; may be repeated.
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    set: Vec<String>,
    /// A file of a recorded policy that does not come with wipam.
    #[arg(long, value_name = "FILE")]
    with: Vec<String>,
    /// Native twins instead of components: faster, and no fuel.
    #[arg(long)]
    native: bool,
    /// How fast it went.
    #[arg(long)]
    stats: bool,
    /// So many differences of each kind.
    #[arg(long, value_name = "N", default_value_t = 5)]
    differences: usize,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

/// Lines from which a progress bar is shown.
const LONG: usize = 20_000;

/// Set by Ctrl-C. Installed once for the process.
fn interrupted() -> &'static AtomicBool {
    static STOP: OnceLock<AtomicBool> = OnceLock::new();
    STOP.get_or_init(|| {
        std::thread::spawn(|| {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                interrupted().store(true, Ordering::Relaxed);
            }
        });
        AtomicBool::new(false)
    })
}

fn bar(recording: &Recording, what: String) -> ProgressBar {
    let lines = recording.lines.len();
    if lines < LONG || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(lines as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} lines, {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

fn watched<T>(recording: &Recording, what: &str, run: impl FnOnce(&Watch<'_>) -> T) -> T {
    let bar = bar(recording, what.into());
    let result = run(&Watch { stop: interrupted(), progress: &|n| bar.set_position(n) });
    bar.finish_and_clear();
    result
}

pub fn run(args: &Replay, out: &mut dyn Write) -> Outcome {
    if args.policy.len() > 2 {
        return Err(Failure::usage("at most two --policy: a comparison is read side by side"));
    }
    let sources = args.policy.iter().map(|p| Source::find(p)).collect::<Result<Vec<_>, _>>()?;
    let settings = pick::settings(&args.set)?;
    let mut files = args.with.iter().map(|f| Source::find(f)).collect::<Result<Vec<_>, _>>()?;
    files.extend(sources.iter().cloned());
    let recording = Recording::read(&args.record)?;
    let shelf = Shelf::new(args.native, files)?;
    // A wrong --policy is told before minutes are spent on the proof.
    let others = others(&recording, &shelf, &sources, &settings)?;
    let proof = watched(&recording, "proof", |watch| prove(&recording, &shelf, args.native, watch));
    let proof = match proof {
        Err(error) if others.is_empty() => return Err(error.into()),
        other => other,
    };
    let mut runs = Vec::new();
    if !others.is_empty() && !interrupted().load(Ordering::Relaxed) {
        runs = compare(&recording, &shelf, others, args.native)?;
    }
    let report = Report { args, recording: &recording, proof, runs };
    if args.json {
        report.json(out)?
    } else {
        report.text(out)?
    }
    Ok(report.code())
}

/// The policies to compare with, each under its name.
fn others(
    recording: &Recording,
    shelf: &Shelf,
    sources: &[Source],
    settings: &Written,
) -> Result<Vec<(String, Candidate)>, Failure> {
    let recorded = recording.header().map(|h| h.policies.clone()).unwrap_or_default();
    let suffix: Vec<String> = settings.iter().map(|(k, v)| format!("{k}={}", super::policy::value(v))).collect();
    let label = |name: &str| match suffix.is_empty() {
        true => name.to_owned(),
        false => format!("{name} {}", suffix.join(" ")),
    };
    if sources.is_empty() {
        if settings.is_empty() {
            return Ok(Vec::new());
        }
        known_knob(settings, recorded.iter().flat_map(|p| p.settings.iter().map(|s| s.name.as_str())))?;
        return Ok(vec![(label("recorded"), shelf.candidate(&recorded, settings)?)]);
    }
    let (mut all, mut knobs) = (Vec::new(), Vec::new());
    for source in sources {
        let (candidate, used) = candidate(shelf, &recorded, source, settings, &mut knobs)?;
        let name = source.label();
        all.push((if used { label(&name) } else { name }, candidate));
    }
    known_knob(settings, knobs.iter().map(String::as_str))?;
    Ok(all)
}

fn known_knob<'a>(settings: &Written, knobs: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let knobs: Vec<&str> = knobs.collect();
    match settings.keys().find(|k| !knobs.contains(&k.as_str())) {
        None => Ok(()),
        Some(k) => Err(Failure::new(format!("no policy here has a knob {k}; there are {}", knobs.join(", ")))),
    }
}

/// A policy in each slot it fills, with those settings that it has knobs for; the recorded one stays in the other slot.
/// Adds its knobs, and says whether any setting was for it.
fn candidate(
    shelf: &Shelf,
    recorded: &[RecordedPolicy],
    source: &Source,
    settings: &Written,
    knobs: &mut Vec<String>,
) -> Result<(Candidate, bool), Failure> {
    let fills = source.fills();
    if fills.is_empty() {
        return Err(PickError::NoSlot(source.label()).into());
    }
    let plain = shelf.vetter().vet(fills[0], source, &Written::new())?;
    let its: Vec<String> = plain.metadata().knobs.iter().map(|k| k.name.clone()).collect();
    let settings: Written =
        settings.iter().filter(|(k, _)| its.contains(*k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    knobs.extend(its);
    let vet = |slot: Slot| Ok::<_, Failure>(shelf.vetter().vet(slot, source, &settings)?);
    let base = || -> Result<Candidate, ShelfError> { shelf.candidate(recorded, &Written::new()) };
    let [allocator, sizer] = [Slot::Allocator, Slot::Sizer].map(|slot| match fills.contains(&slot) {
        true => vet(slot),
        false => Ok(base()?.get(slot).clone()),
    });
    Ok((Candidate::of(allocator?, sizer?), !settings.is_empty()))
}

/// The recorded policies first, then the others.
fn compare(
    recording: &Recording,
    shelf: &Shelf,
    others: Vec<(String, Candidate)>,
    native: bool,
) -> Result<Vec<Played>, Failure> {
    let as_recorded = |policies: &[RecordedPolicy]| shelf.candidate(policies, &Written::new());
    let mut choices = vec![("recorded".to_owned(), Choice::Recorded(&as_recorded))];
    choices.extend(others.into_iter().map(|(label, candidate)| (label, Choice::Fixed(Box::new(candidate)))));
    let mut runs = Vec::new();
    for (label, choice) in &choices {
        let played = watched(recording, label, |watch| play(recording, label, choice, !native, watch))?;
        let stop = played.interrupted;
        runs.push(played);
        if stop {
            break;
        }
    }
    Ok(runs)
}

struct Report<'a> {
    args: &'a Replay,
    recording: &'a Recording,
    proof: Result<Proof, ShelfError>,
    runs: Vec<Played>,
}

impl Report<'_> {
    fn interrupted(&self) -> bool {
        self.proof.as_ref().is_ok_and(|p| p.interrupted) || self.runs.iter().any(|r| r.interrupted)
    }

    fn code(&self) -> u8 {
        let broken = matches!(self.recording.end, End::Damaged(_));
        match &self.proof {
            Ok(p) if !p.identical() && p.from_start => DIFFERS,
            _ if self.interrupted() || interrupted().load(Ordering::Relaxed) => INTERRUPTED,
            _ if broken => FAILED,
            _ => OK,
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.recording.end {
            End::Whole => {}
            End::Cut(why) => notes.push(format!("the record is cut ({why}); it was played up to there")),
            End::Damaged(why) => notes.push(format!("the record is DAMAGED ({why}); it was played up to there")),
        }
        if self.recording.header().is_some_and(|h| !h.complete) {
            notes.push(
                "the record begins in the midst of a run: what was under way then is not in it, so nothing is proven, and first differences are expected"
                    .into(),
            );
        }
        if self.interrupted() {
            notes.push("INTERRUPTED: these are figures of a part of the record".into());
        }
        for run in &self.runs {
            if run.unanswered > 0 {
                notes.push(format!(
                    "{}: {} ADDs were still waiting at the end, or lost to a restart",
                    run.label, run.unanswered
                ));
            }
        }
        notes
    }

    // ---- text ----

    fn text(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let wall = self.recording.wall();
        if let Some(h) = self.recording.header() {
            let (events, pods) = self.recording.events();
            writeln!(
                out,
                "record   {} ({}, {}), {} to {}, {events} events, {pods} ADDs and DELs",
                plain(&h.host),
                plain(&h.instance),
                plain(&h.config.instance_type),
                wall.utc(h.t),
                wall.utc(self.recording.last_ms())
            )?;
            for p in &h.policies {
                let digest = if p.digest.is_empty() { "native" } else { crate::text::short(&p.digest) };
                writeln!(out, "policy   {} {} {} ({digest})", p.slot.as_str(), plain(&p.name), plain(&p.version))?;
            }
        }
        self.say_proof(&wall, out)?;
        if !self.runs.is_empty() {
            writeln!(out, "\nThe same pods in a simulated VPC, from the record's beginning:")?;
            write!(out, "{}", comparison(&self.runs).text(2))?;
            self.say_partings(&wall, out)?;
        }
        for note in self.notes() {
            writeln!(out, "note     {}", plain(&note))?;
        }
        if self.args.stats {
            self.say_stats(out)?;
        }
        Ok(())
    }

    fn say_proof(&self, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
        let proof = match &self.proof {
            Ok(proof) => proof,
            Err(error) => {
                writeln!(out, "proof    not possible: {}", plain(&error.to_string()))?;
                return Ok(());
            }
        };
        let part = if proof.interrupted { " of the part that was played" } else { "" };
        match &proof.first {
            None => writeln!(
                out,
                "proof    identical: {} decisions{part}, inputs and answers, from {} events",
                proof.compared, proof.events
            )?,
            Some(first) => {
                writeln!(
                    out,
                    "proof    DIFFERS: {} of {} decisions{part}; the first:",
                    proof.different, proof.compared
                )?;
                say_difference(first, wall, out)?;
            }
        }
        Ok(())
    }

    fn say_partings(&self, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
        let Some((base, others)) = self.runs.split_first() else { return Ok(()) };
        for other in others {
            let p = parting(base, other, self.args.differences);
            writeln!(
                out,
                "\n{} differs from {} in {} ADDs and {} EC2 calls",
                other.label, base.label, p.adds_in_all, p.steps_in_all
            )?;
            say_parting(&p, &base.label, &other.label, wall, out)?;
        }
        Ok(())
    }

    fn say_stats(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let rate = |n: u64, took: Duration| if took.is_zero() { 0.0 } else { n as f64 / took.as_secs_f64() };
        let how = if self.args.native { "native twins" } else { "Wasm" };
        if let Ok(p) = &self.proof {
            writeln!(
                out,
                "stats    proof ({how}): {:.2} s, {:.0} pod events/s, {:.0} events/s, {:.0} decisions/s",
                p.took.as_secs_f64(),
                rate(p.pod_events, p.took),
                rate(p.events, p.took),
                rate(p.compared, p.took)
            )?;
        }
        for r in &self.runs {
            writeln!(
                out,
                "stats    {} ({how}): {:.2} s, {:.0} pod events/s, {:.0} decisions/s",
                r.label,
                r.took.as_secs_f64(),
                rate(r.pod_events, r.took),
                rate(r.decisions, r.took)
            )?;
        }
        Ok(())
    }

    // ---- JSON ----

    fn json(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let proof = match &self.proof {
            Ok(p) => {
                let mut v = serde_json::to_value(p)?;
                v["identical"] = json!(p.identical());
                v["took-ms"] = json!(u64::try_from(p.took.as_millis()).unwrap_or(u64::MAX));
                v
            }
            Err(e) => json!({ "error": e.to_string() }),
        };
        let runs: Vec<Value> = self.runs.iter().map(run_json).collect::<Result<_, _>>()?;
        let partings: Vec<Parting> = match self.runs.split_first() {
            Some((base, others)) => others.iter().map(|o| parting(base, o, self.args.differences)).collect(),
            None => Vec::new(),
        };
        let (events, pods) = self.recording.events();
        let body = json!({
            "events": events, "pod-events": pods, "proof": proof, "runs": runs, "partings": partings,
            "notes": self.notes(), "partial": self.interrupted(),
        });
        super::json(out, &body).map(|_| ())
    }
}

fn run_json(run: &Played) -> Result<Value, serde_json::Error> {
    let mut v = serde_json::to_value(run)?;
    v["address-calls"] = json!(run.address_calls());
    v["wait-ms"] = json!({ "p50": run.wait(50), "p99": run.wait(99), "max": run.wait(100) });
    v["served"] = json!(run.waits.len());
    v["took-ms"] = json!(u64::try_from(run.took.as_millis()).unwrap_or(u64::MAX));
    Ok(v)
}

/// One row for each figure, one column for each run.
fn comparison(runs: &[Played]) -> Table {
    let mut table = Table::new(std::iter::once("").chain(runs.iter().map(|r| r.label.as_str())));
    let mut row = |name: &str, cell: &dyn Fn(&Played) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(runs.iter().map(cell)));
    };
    row("ADDs served", &|r| r.waits.len().to_string());
    row("ADDs failed", &|r| r.failed.to_string());
    row("wait p50", &|r| span(r.wait(50)));
    row("wait p99", &|r| span(r.wait(99)));
    row("wait max", &|r| span(r.wait(100)));
    row("waited over 1 s", &|r| (r.waits.len() - r.waits.partition_point(|w| *w <= 1_000)).to_string());
    row("address calls", &|r| r.address_calls().to_string());
    let mut actions: Vec<&'static str> = runs.iter().flat_map(|r| r.calls.keys().copied()).collect();
    actions.sort_unstable();
    actions.dedup();
    for action in actions {
        row(&format!("  {action}"), &|r| r.calls.get(action).copied().unwrap_or(0).to_string());
    }
    row("EC2 errors", &|r| r.errors.values().sum::<u32>().to_string());
    row("idle address-hours", &|r| hours(r.idle_milli_hours()));
    row("all address-hours", &|r| hours(r.held_ms / 3_600));
    row("same address again", &|r| format!("{} of {}", r.sticky, r.returns));
    row("guard rejections", &|r| r.guard.to_string());
    row("policy faults", &|r| r.faults.to_string());
    row("decisions", &|r| r.decisions.to_string());
    row("fuel per decision", &|r| {
        r.fuel.checked_div(r.decisions).filter(|f| *f > 0).map_or("-".into(), |f| f.to_string())
    });
    table
}

fn hours(milli: u128) -> String {
    format!("{}.{:03}", milli / 1_000, milli % 1_000)
}

fn say_difference(d: &Difference, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "  line {}, {}: not the same: {}", d.line, wall.utc(d.at), d.what)?;
    for (who, decision) in [("recorded", &d.recorded), ("replayed", &d.played)] {
        match decision {
            None => writeln!(out, "    {who}  nothing")?,
            Some(decision) => say_decision(who, decision, out)?,
        }
    }
    Ok(())
}

fn say_decision(who: &str, d: &Decision, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "    {who}  {} by {} ({}), inputs {}", d.call, plain(&d.policy), rung(d.by), d.inputs)?;
    writeln!(out, "              answer {}", d.answer)?;
    writeln!(out, "              reason {}", plain(&d.reason))?;
    if let Some(verdict) = d.verdict.as_ref().filter(|v| **v != Verdict::Accepted) {
        writeln!(out, "              guard  {}", plain(&say::verdict(verdict)))?;
    }
    Ok(())
}

fn say_parting(p: &Parting, base: &str, other: &str, wall: &Wall, out: &mut dyn Write) -> Result<(), Failure> {
    use crate::replay::played::{Given, Step};
    let outcome = |g: &Given| match (&g.error, g.addresses.first()) {
        (Some(error), _) => format!("fails: {error}"),
        (None, Some(ip)) => format!("{ip} after {} ({})", span(g.waited.unwrap_or(0)), g.reason),
        (None, None) => "still waits".into(),
    };
    for (a, b) in &p.adds {
        writeln!(out, "  ADD of {} at {}", plain(&a.pod), wall.utc(a.at))?;
        writeln!(out, "    {base}: {}", plain(&outcome(a)))?;
        writeln!(out, "    {other}: {}", b.as_ref().map_or_else(|| "was not asked".into(), |b| plain(&outcome(b))))?;
    }
    let step = |s: &Option<Step>| match s {
        Some(s) => format!("{} at {} ({})", s.call, wall.utc(s.at), s.reason),
        None => "none any more".into(),
    };
    for (n, a, b) in &p.steps {
        writeln!(out, "  EC2 call {n}")?;
        writeln!(out, "    {base}: {}", plain(&step(a)))?;
        writeln!(out, "    {other}: {}", plain(&step(b)))?;
    }
    Ok(())
}
