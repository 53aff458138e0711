//! The simulated VPC, as a process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wipam_vpc_sim::model::VpcConfig;
use wipam_vpc_sim::wire;

use crate::http;
use crate::wait::wait_for;

/// Beginning of the names of its namespaces.
const WIRE: &str = "we";

/// A running `vpc-sim serve --wire`.
pub struct Sim {
    child: Child,
}

/// What the simulated VPC said when it was up.
#[derive(Clone, Debug)]
pub struct Vpc {
    /// Where this machine reaches the EC2 API, `address:port`.
    pub authority: String,
    /// Where processes on nodes reach it, as URL.
    pub node_endpoint: String,
    /// The namespace that plays the mapping service.
    pub vpc_netns: String,
    /// The namespace that plays the internet.
    pub inet_netns: String,
    /// A host on the internet.
    pub internet_host: Ipv4Addr,
    /// Id, namespace and primary address of each instance.
    pub instances: Vec<(String, String, Ipv4Addr)>,
}

impl Sim {
    /// Starts it and waits until it is up.
    ///
    /// # Errors
    /// What it said instead.
    pub fn start(program: &Path, config: &VpcConfig, dir: &Path) -> Result<(Sim, Vpc)> {
        use std::os::unix::process::CommandExt;
        let file = dir.join("vpc.yaml");
        std::fs::write(&file, serde_yaml_ng::to_string(config)?)?;
        let log = std::fs::File::create(dir.join("vpc-sim.log"))?;
        let mut child = Command::new(program)
            .args(["serve", "--wire", WIRE, "--api-listen", "127.0.0.1:0", "--until-stdin-closes", "--config"])
            .arg(&file)
            // It ends with us even when we are killed; its group keeps a Ctrl-C from it.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = child.stdout.take().context("its output is ours")?;
        let sim = Sim { child };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let log = || std::fs::read_to_string(dir.join("vpc-sim.log")).unwrap_or_default();
        let ready: Value = serde_json::from_str(&line).with_context(|| format!("vpc-sim did not start: {}", log()))?;
        Ok((sim, Vpc::parse(&ready).with_context(|| format!("vpc-sim said {line}"))?))
    }

    /// Ends it, and with it its namespaces.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let ended = || self.child.try_wait()?.context("it runs on");
        wait_for("vpc-sim to end", Duration::from_secs(15), ended)?;
        Ok(())
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes namespaces of killed runs.
///
/// # Errors
/// What could not be removed.
pub fn sweep() -> Result<Vec<String>> {
    Ok(wire::sweep(WIRE)?)
}

impl Vpc {
    fn parse(ready: &Value) -> Option<Vpc> {
        let text = |key: &str| ready[key].as_str().map(str::to_owned);
        let instance = |value: &Value| {
            let text = |key: &str| value[key].as_str();
            Some((text("id")?.to_owned(), text("netns")?.to_owned(), text("private_ip")?.parse().ok()?))
        };
        Some(Vpc {
            authority: text("endpoint")?.strip_prefix("http://")?.to_owned(),
            node_endpoint: text("node_endpoint")?,
            vpc_netns: text("vpc_netns")?,
            inet_netns: text("inet_netns")?,
            internet_host: text("internet_host")?.parse().ok()?,
            instances: ready["instances"].as_array()?.iter().map(instance).collect::<Option<_>>()?,
        })
    }

    /// One request to the control surface, `/_sim/…`; the answer's JSON.
    ///
    /// # Errors
    /// What it refused, or that it did not answer.
    pub fn control(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http::tcp(&self.authority, method, path, &body)?;
        serde_json::from_slice(&answer).with_context(|| format!("{method} {path}: not JSON"))
    }

    /// How often each EC2 action was called.
    ///
    /// # Errors
    /// As [`Vpc::control`].
    pub fn calls(&self) -> Result<Value> {
        self.control("GET", "/_sim/calls", &Value::Null)
    }

    /// Packets that the mapping service dropped or let pass, by the name of its counter.
    ///
    /// # Errors
    /// `nft`'s.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        let netns = format!("--net=/run/netns/{}", self.vpc_netns);
        let list = ["nft", "-j", "list", "counters", "table", "ip", "vpc"];
        let output = Command::new("nsenter").arg(netns).args(list).output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let counters = answer["nftables"].as_array().into_iter().flatten().map(|item| &item["counter"]);
        let pair = |c: &Value| Some((c["name"].as_str()?.to_owned(), c["packets"].as_u64()?));
        Ok(counters.filter_map(pair).collect())
    }
}
