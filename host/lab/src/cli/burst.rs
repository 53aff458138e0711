//! `wipam burst`: the table of EC2 calls.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use wipam_core::event::Ms;
use wipam_core::record::{Line, Writer};
use wipam_vpc_sim::instance_types;

use super::{Failure, OK, Outcome};
use crate::awsd::Target;
use crate::burst::{Cost, Sizer, burst, day};
use crate::text::{Table, span};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wipam burst
  wipam burst --instance-type m5.large --pods 27 --warm 2
  wipam burst --pace all --pace 10/s --pace 30s --markdown
  wipam burst --record node.rec && wipam replay node.rec --policy default

Address calls are CreateNetworkInterface and AssignPrivateIpAddresses, from the start of the daemon. Our policies run as
native twins on the real core; the AWS daemon is its arithmetic (5 s loop, one interface in a pass) on the same
simulated VPC, with pods that retry at once.")]
pub struct Burst {
    /// The instance.
    #[arg(long, value_name = "TYPE", default_value = "m4.4xlarge")]
    instance_type: String,
    /// So many pods; without it as many as the instance has addresses for.
    #[arg(long, value_name = "N")]
    pods: Option<u32>,
    /// WARM_IP_TARGET of both.
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm: u32,
    /// How pods come: `all`, `N/s`, or `Ns` for one in N seconds; may be repeated.
    #[arg(long, value_name = "PACE", value_parser = pace)]
    pace: Vec<(String, Ms)>,
    /// Instead of the table, write the record of such a node (pods that come, go and return, a swap, a kill) to play with.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "markdown"])]
    record: Option<PathBuf>,
    /// With --record: so many times a pod goes and one comes.
    #[arg(long, value_name = "N", default_value_t = 200, requires = "record")]
    churn: u32,
    /// As a table of Markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Machine-readable.
    #[arg(long)]
    json: bool,
}

fn pace(text: &str) -> Result<(String, Ms), String> {
    let wrong = || format!("{text:?} is no pace; write all, 10/s, or 30s");
    let gap = match (text, text.strip_suffix("/s"), text.strip_suffix('s')) {
        ("all", ..) => 0,
        (_, Some(n), _) => {
            n.parse::<Ms>().ok().filter(|n| (1..=1_000).contains(n)).map(|n| 1_000 / n).ok_or_else(wrong)?
        }
        (_, None, Some(n)) => {
            n.parse::<Ms>().ok().filter(|n| (1..=3_600).contains(n)).map(|n| n * 1_000).ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let label = match gap {
        0 => "all at once".into(),
        gap if gap > 1_000 => format!("one in {} s", gap / 1_000),
        _ => text.into(),
    };
    Ok((label, gap))
}

/// Runs of one command, so that a mistyped number does not simulate for hours.
const MOST_PODS: u32 = 5_000;

pub fn run(args: &Burst, out: &mut dyn Write) -> Outcome {
    let kind = instance_types::lookup(&args.instance_type).ok_or_else(|| {
        Failure::new(format!(
            "instance type {} is not in the table; write it as EC2 does, e.g. m5.large",
            args.instance_type
        ))
    })?;
    let room = kind.cards.first().copied().unwrap_or(1) * (kind.ipv4_per_eni - 1);
    let pods = args.pods.unwrap_or(room);
    if pods > room.min(MOST_PODS) {
        return Err(Failure::usage(format!(
            "--pods {pods}: {} has addresses for {room} pods, and at most {MOST_PODS} are simulated",
            args.instance_type
        )));
    }
    if let Some(path) = &args.record {
        return write_record(path, &day(&args.instance_type, pods, args.churn)?, out);
    }
    let mut paces = args.pace.clone();
    if paces.is_empty() {
        paces = ["all", "10/s", "4/s", "1/s", "30s"].iter().filter_map(|t| pace(t).ok()).collect();
    }
    let sizers = [
        Sizer::WarmIpTarget(args.warm),
        Sizer::Aws(Target::WarmIp(args.warm)),
        Sizer::Default,
        Sizer::Aws(Target::WarmEni(1)),
    ];
    let mut rows = Vec::new();
    for (label, gap) in &paces {
        for sizer in sizers {
            rows.push((label.clone(), sizer, burst(&args.instance_type, sizer, pods, *gap)?));
        }
    }
    if args.json {
        let all: Vec<Value> = rows.iter().map(|(label, sizer, cost)| cost_json(label, *sizer, cost)).collect();
        return super::json(out, &json!({ "instance-type": args.instance_type, "pods": pods, "rows": all }));
    }
    let table = table(&rows);
    if args.markdown {
        write!(out, "{}", table.markdown())?;
    } else {
        writeln!(
            out,
            "0 to {pods} pods on {}, EC2 calls from the daemon's start to {} after the last pod",
            args.instance_type,
            span(120_000)
        )?;
        write!(out, "{}", table.text(0))?;
    }
    Ok(OK)
}

fn write_record(path: &Path, lines: &[Line], out: &mut dyn Write) -> Outcome {
    let failed = |e: std::io::Error| Failure::new(format!("{} cannot be written: {e}", path.display()));
    let file = std::fs::File::create(path).map_err(failed)?;
    let mut writer = Writer::new(zstd::stream::Encoder::new(file, 3).map_err(failed)?);
    for line in lines {
        writer.line(line).map_err(failed)?;
    }
    writer.into_inner().finish().map_err(failed)?;
    writeln!(out, "{} lines in {}; `wipam replay {}` plays them", lines.len(), path.display(), path.display())?;
    Ok(OK)
}

fn quantile(waits: &[Ms], percent: usize) -> Ms {
    let rank = (waits.len() * percent).div_ceil(100).max(1);
    waits.get(rank - 1).copied().unwrap_or(0)
}

fn table(rows: &[(String, Sizer, Cost)]) -> Table {
    let mut table = Table::new([
        "pods come",
        "sizer",
        "address calls",
        "create",
        "assign",
        "attach",
        "modify",
        "unassign",
        "wait p50",
        "wait max",
        "without",
        "free at rest",
    ]);
    for (label, sizer, cost) in rows {
        table.row([
            label.clone(),
            sizer.label(),
            cost.address_calls().to_string(),
            cost.count("CreateNetworkInterface").to_string(),
            cost.count("AssignPrivateIpAddresses").to_string(),
            cost.count("AttachNetworkInterface").to_string(),
            cost.count("ModifyNetworkInterfaceAttribute").to_string(),
            cost.count("UnassignPrivateIpAddresses").to_string(),
            span(quantile(&cost.waits, 50)),
            span(quantile(&cost.waits, 100)),
            cost.failed.to_string(),
            cost.free.to_string(),
        ]);
    }
    table
}

fn cost_json(label: &str, sizer: Sizer, cost: &Cost) -> Value {
    json!({
        "pace": label, "sizer": sizer.label(), "address-calls": cost.address_calls(), "calls": cost.calls,
        "wait-ms": { "p50": quantile(&cost.waits, 50), "max": quantile(&cost.waits, 100) },
        "served": cost.waits.len(), "without-address": cost.failed, "free": cost.free,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces() {
        assert_eq!(pace("all").unwrap().1, 0);
        assert_eq!(pace("10/s").unwrap().1, 100);
        assert_eq!(pace("30s").unwrap(), ("one in 30 s".into(), 30_000));
        for wrong in ["", "s", "0/s", "fast", "-1s"] {
            assert!(pace(wrong).is_err(), "{wrong}");
        }
    }
}
