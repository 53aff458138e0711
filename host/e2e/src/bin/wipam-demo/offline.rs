//! What needs neither root nor containers: a node in virtual time under several policies, and the replay of a record.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use wipam_core::record::Writer;
use wipam_e2e::programs::ours;
use wipam_lab::sim::NodeSim;
use wipam_policy::load::NoFiles;
use wipam_policy::{Document, EngineLimits, Environment, HostOptions, PolicyHost, WasmEngine};
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Timing, Vpc, VpcConfig};

use crate::screen::{Screen, say};

/// The simulation.
///
/// # Errors
/// A pod got no address, a policy missed its target, or a replay is not what happened.
pub fn run(cache: &Path) -> Result<()> {
    let mut screen = Screen::new("wipam, without root: what policies cost and keep, in virtual time");
    let rows =
        screen.step("Forty pods come one by one, thirty go again; each policy as WebAssembly component", || {
            let documents = [
                ("default", "policy: default"),
                ("warm-ip-target, warm 5", "sizer: { name: warm-ip-target, settings: { warm: 5 } }"),
                ("warm-ip-target, warm 1", "sizer: { name: warm-ip-target, settings: { warm: 1 } }"),
            ];
            let mut rows = Vec::new();
            say(format!("{:<24} {:>9} {:>10} {:>10} {:>9}", "policy", "EC2 calls", "addresses", "free", "wait, p99"));
            for (name, document) in documents {
                let row = simulate(document)?;
                say(format!(
                    "{name:<24} {:>9} {:>10} {:>10} {:>6} ms",
                    row.calls, row.addresses, row.free, row.wait_p99_ms
                ));
                rows.push(row);
            }
            Ok(rows)
        })?;
    screen.step("The target is kept: at rest exactly as many free addresses as were asked for", || {
        for (row, warm) in rows.iter().skip(1).zip([5, 1]) {
            ensure!(row.free == warm, "{} free, {warm} wanted", row.free);
        }
        Ok(())
    })?;
    screen.step("A simulated day with a swap and a killed daemon, recorded, and again under another policy", || {
        let record = cache.join("day.record");
        let mut writer = Writer::new(std::io::BufWriter::new(std::fs::File::create(&record)?));
        for line in wipam_lab::burst::day("m5.large", 20, 40)? {
            writer.line(&line)?;
        }
        writer.into_inner().into_inner()?;
        replay(&record)
    })?;
    screen.end();
    Ok(())
}

/// How one run ended.
struct Row {
    calls: u32,
    addresses: u64,
    free: u64,
    wait_p99_ms: u64,
}

const NODE: &str = "i-0000000000000000a";

fn vpc() -> Result<Vpc> {
    let subnet = SubnetConfig { id: "subnet-a".into(), cidr: "10.0.0.0/20".parse()?, ..SubnetConfig::default() };
    let instance = InstanceConfig {
        id: NODE.into(),
        instance_type: "m5.xlarge".into(),
        subnet: subnet.id.clone(),
        ..InstanceConfig::default()
    };
    let config = VpcConfig {
        subnets: vec![subnet],
        instances: vec![instance],
        timing: Timing::typical(),
        ..VpcConfig::default()
    };
    Ok(Vpc::new(config)?)
}

fn simulate(document: &str) -> Result<Row> {
    let document = Document::parse(document).map_err(anyhow::Error::msg)?;
    let engine = WasmEngine::new(EngineLimits::default())?;
    let environment = Environment::default();
    let mut policies = PolicyHost::wasm(engine, &document, &NoFiles, environment, HostOptions::quiet())?;
    let mut sim = NodeSim::new(vpc()?, NODE, |_| ());
    sim.serve(&mut policies);
    sim.run(&mut policies, 60_000);
    for n in 0..40 {
        sim.add(&mut policies, &format!("c{n}"), &format!("web-{n}"), &format!("uid-{n}"));
        sim.run(&mut policies, 2_000);
    }
    for n in 0..30 {
        sim.del(&mut policies, &format!("c{n}"));
        sim.run(&mut policies, 2_000);
    }
    // Long enough for addresses to rest and for surplus to go back.
    sim.run(&mut policies, 600_000);
    if let Some(failed) = sim.trace.failed.first() {
        bail!("a pod got no address: {failed}");
    }
    let counts = sim.node.pool().counts();
    let mut waits = sim.trace.waits.clone();
    waits.sort_unstable();
    Ok(Row {
        calls: sim.trace.calls.values().sum(),
        addresses: counts.total,
        free: counts.free,
        wait_p99_ms: waits.get(waits.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0),
    })
}

/// Plays a record twice: with the policies it was made with, which must give what happened; and with another one.
///
/// # Errors
/// The first replay differs, or `wipam` cannot read the record.
pub fn replay(record: &Path) -> Result<()> {
    let wipam = ours("wipam")?;
    let run = |more: &[&str]| {
        let output = Command::new(&wipam).arg("replay").arg(record).args(more).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        anyhow::Ok((output.status.code().context("wipam was killed")?, text))
    };
    let (code, text) = run(&[])?;
    ensure!(code == 0, "the same policies did not give what happened (exit code {code}):\n{text}");
    say(format!("under its own policies:\n{}", shorten(&text)));
    let (code, text) = run(&["--policy", "default"])?;
    ensure!(code == 0, "wipam replay ended with {code}:\n{text}");
    say(format!("beside the policy default:\n{}", shorten(&text)));
    Ok(())
}

/// The beginning of a long text.
fn shorten(text: &str) -> String {
    const LINES: usize = 24;
    let mut lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let more = lines.len().saturating_sub(LINES);
    lines.truncate(LINES);
    let mut text = lines.join("\n");
    if more > 0 {
        text.push_str(&format!("\n… and {more} lines more"));
    }
    text
}
