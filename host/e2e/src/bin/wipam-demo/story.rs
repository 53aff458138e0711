//! The steps. Each verifies what it claims.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use wipam_e2e::{Cluster, Node, Pod, wait_for};

use crate::screen::{say, seconds};

/// Two free addresses and no more, so that the second interface comes when it is needed and not before.
pub const FIRST_POLICIES: &str = "\
allocator: default
sizer:
  name: warm-ip-target
  settings: { warm: 2 }
";
const SECOND_POLICIES: &str = "\
allocator:
  name: sticky-podref
  settings: { all-pods: true, keep-for: 10m }
sizer:
  name: warm-ip-target
  settings: { warm: 3 }
";

const PATIENCE: Duration = Duration::from_secs(60);

/// What the nodes are.
pub fn introduce(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let runtime = node.cri()?.version()?;
        let policies = node.page("/v1/policies")?;
        let name = |slot: &str| policies[slot]["name"].as_str().unwrap_or("?").to_owned();
        say(format!(
            "{} at {}: {runtime}, ipamd {} with allocator {} and sizer {}",
            node.id(),
            node.ip(),
            node.ipamd_pid()?,
            name("allocator"),
            name("sizer")
        ));
    }
    Ok(())
}

/// The pods, and what they live on.
pub struct Story<'a> {
    cluster: &'a Cluster,
    a: &'a Node,
    b: &'a Node,
    cache: &'a Path,
    on_a: Vec<Pod>,
    on_b: Vec<Pod>,
}

impl<'a> Story<'a> {
    /// Before the first pod.
    pub fn new(cluster: &'a Cluster, cache: &'a Path) -> Story<'a> {
        let (a, b) = (&cluster.nodes()[0], &cluster.nodes()[1]);
        Story { cluster, a, b, cache, on_a: Vec::new(), on_b: Vec::new() }
    }

    /// Runs pods side by side on a node.
    fn run_pods(node: &Node, names: &[String]) -> Result<Vec<Pod>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = names.iter().map(|name| scope.spawn(move || node.run_pod(name))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
        })
    }

    /// Two pods here, one there.
    pub fn pods(&mut self) -> Result<()> {
        self.on_a = Self::run_pods(self.a, &["web-0".into(), "web-1".into()])?;
        self.on_b = Self::run_pods(self.b, &["web-2".into()])?;
        for pod in self.on_a.iter().chain(&self.on_b) {
            say(format!("{} has {}", pod.who().name, pod.ip()));
        }
        let owned = self.owners()?;
        for pod in self.on_a.iter().chain(&self.on_b) {
            ensure!(owned.contains_key(&pod.ip()), "EC2 has not assigned {}", pod.ip());
        }
        Ok(())
    }

    /// Device index and instance of each secondary address, as EC2 has it.
    fn owners(&self) -> Result<BTreeMap<Ipv4Addr, (u64, String)>> {
        let state = self.cluster.vpc().control("GET", "/_sim/state", &Value::Null)?;
        let mut owners = BTreeMap::new();
        for eni in state["enis"].as_array().context("EC2 has interfaces")? {
            let Some(index) = eni["attachment"]["device-index"].as_u64() else { continue };
            let instance = eni["attachment"]["instance-id"].as_str().unwrap_or_default();
            for address in eni["addresses"].as_array().into_iter().flatten().skip(1) {
                let address = address.as_str().and_then(|text| text.parse().ok()).context("an address")?;
                owners.insert(address, (index, instance.to_owned()));
            }
        }
        Ok(owners)
    }

    /// Every path, and a negative control.
    pub fn talk(&mut self) -> Result<()> {
        let (one, two, far) = (&self.on_a[0], &self.on_a[1], &self.on_b[0]);
        let internet = self.cluster.vpc().internet_host;
        let before = self.counters()?;
        for (what, from, to) in [
            ("same node   ", one, two.ip()),
            ("across nodes", one, far.ip()),
            ("and back    ", far, two.ip()),
            ("internet    ", one, internet),
            ("internet    ", far, internet),
        ] {
            let began = Instant::now();
            from.ping(to)?;
            say(format!("{what}  {} -> {to}: answered ({})", from.ip(), seconds(began.elapsed())));
        }
        let after = self.counters()?;
        let grew = |name: &str| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
        ensure!(grew("to_internet") > 0, "nothing passed the internet gateway");
        self.forge(one, far)
    }

    fn counters(&self) -> Result<BTreeMap<String, u64>> {
        self.cluster.vpc().counters()
    }

    /// A source that the interface does not own: from a pod it does not get past the node, whose kernel knows where an
    /// address lives; from the node itself not past the VPC, which says so.
    fn forge(&self, from: &Pod, to: &Pod) -> Result<()> {
        const FORGED: &str = "10.0.0.250";
        let to = to.ip().to_string();
        let ping = ["ping", "-I", FORGED, "-c", "2", "-i", "0.2", "-W", "1", &to];
        from.nsenter(&["ip", "addr", "add", FORGED, "dev", "eth0"])?.ok()?;
        let answer = from.nsenter(&ping)?;
        from.nsenter(&["ip", "addr", "del", "10.0.0.250/32", "dev", "eth0"])?.ok()?;
        ensure!(answer.code != 0, "a forged source was answered: {}", answer.stdout);
        say(format!("forged        pod {FORGED} -> {to}: no answer"));

        self.a.run(&["ip", "addr", "add", FORGED, "dev", "lo"])?.ok()?;
        let before = self.counters()?;
        let answer = self.a.run(&ping)?;
        self.a.run(&["ip", "addr", "del", "10.0.0.250/32", "dev", "lo"])?.ok()?;
        ensure!(answer.code != 0, "a forged source was answered: {}", answer.stdout);
        let dropped = |counters: &BTreeMap<String, u64>| counters.get("spoofed_dropped").copied().unwrap_or(0);
        let count = dropped(&self.counters()?) - dropped(&before);
        ensure!(count > 0, "no answer, but the VPC did not drop it either");
        say(format!("forged        node {FORGED} -> {to}: dropped by the VPC ({count} packets counted)"));
        Ok(())
    }

    /// Pods until an address of the second interface is in use.
    pub fn second_interface(&mut self) -> Result<()> {
        let on_node = |owners: &BTreeMap<Ipv4Addr, (u64, String)>| {
            owners.values().filter(|(_, instance)| instance == self.a.id()).map(|(index, _)| *index).max()
        };
        let before = on_node(&self.owners()?).unwrap_or(0);
        ensure!(before == 0, "there is a second interface already");
        let names: Vec<_> = (3..8).map(|n| format!("web-{n}")).collect();
        let more = Self::run_pods(self.a, &names)?;
        let owners = self.owners()?;
        for pod in &more {
            let index = owners.get(&pod.ip()).map(|(index, _)| *index);
            say(format!("{} has {} on eth{}", pod.who().name, pod.ip(), index.context("an address nobody owns")?));
        }
        self.on_a.extend(more);
        let second = |pod: &&Pod| owners.get(&pod.ip()).is_some_and(|(index, _)| *index == 1);
        let pod = self.on_a.iter().find(second).context("no pod is on the second interface")?;
        let (first, far) = (&self.on_a[0], &self.on_b[0]);
        for (from, to) in [(pod, first.ip()), (first, pod.ip()), (pod, far.ip()), (far, pod.ip())] {
            from.ping(to)?;
            say(format!("{} -> {to}: answered", from.ip()));
        }
        pod.ping(self.cluster.vpc().internet_host)?;
        say(format!("{} -> internet: answered", pod.ip()));
        Ok(())
    }

    /// The allocator is exchanged while pods come and go on node b.
    pub fn swap(&mut self) -> Result<()> {
        let (node, stop) = (self.b, AtomicBool::new(false));
        let (adds, failed) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
        let generation = node.page("/v1/policies")?["generation"].as_u64().context("a generation")?;
        let storm = |worker: usize| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let pod = node.run_pod(&format!("burst-{worker}-{n}"));
                match pod.and_then(|pod| pod.stop()) {
                    Ok(()) => drop(adds.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failed.lock().unwrap_or_else(|p| p.into_inner()).push(format!("{error:#}")),
                }
            }
        };
        let more_adds = |count: usize| {
            let until = adds.load(Ordering::Relaxed) + count;
            wait_for("pods to come and go", PATIENCE, || {
                ensure!(adds.load(Ordering::Relaxed) >= until, "only {} so far", adds.load(Ordering::Relaxed));
                Ok(())
            })
        };
        let took = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2).map(|worker| scope.spawn(move || storm(worker))).collect();
            let swap = || {
                more_adds(4)?;
                let began = Instant::now();
                node.write_policies(SECOND_POLICIES, &[])?;
                wait_for("the swap", PATIENCE, || {
                    let status = node.page("/v1/policies")?;
                    ensure!(status["generation"].as_u64() > Some(generation), "{}", status["last_refusal"]);
                    ensure!(status["allocator"]["name"] == "sticky-podref", "{}", status["allocator"]["name"]);
                    Ok(())
                })?;
                let took = began.elapsed();
                more_adds(6)?;
                Ok(took)
            };
            let took: Result<Duration> = swap();
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| drop(worker.join()));
            took
        })?;
        let failed = failed.into_inner().unwrap_or_else(|p| p.into_inner());
        ensure!(failed.is_empty(), "{} ADDs failed: {}", failed.len(), failed.join("; "));
        let adds = adds.into_inner();
        say(format!("default -> sticky-podref: in charge {} after the file was written", seconds(took)));
        say(format!("{adds} pods came and went meanwhile, 0 failed"));
        Ok(())
    }

    /// Some are refused at a gate; one passes them all and fails in service.
    pub fn hostile(&mut self) -> Result<()> {
        let fixtures = wipam_policy_fixtures::all();
        for name in ["truncated", "imports-wasi", "describe-differs"] {
            let fixture = fixtures.iter().find(|fixture| fixture.name == name).context("a fixture")?;
            let before = self.b.page("/v1/policies")?;
            let refusals = before["refusals"].as_u64();
            let file = format!("{name}.wasm");
            self.b.write_policies(&format!("sizer: {{ file: {file} }}\n"), &[(&file, &fixture.bytes)])?;
            let refusal = wait_for("a refusal", PATIENCE, || {
                let status = self.b.page("/v1/policies")?;
                ensure!(status["refusals"].as_u64() > refusals, "not refused yet");
                ensure!(status["generation"] == before["generation"], "it was let in");
                Ok(status["last_refusal"].clone())
            })?;
            let text = |key: &str| refusal[key].as_str().unwrap_or_default().to_owned();
            say(format!("{name}: refused at gate {}: {}; {}", text("gate"), text("cause"), text("mend")));
        }
        self.outlive()
    }

    /// A policy that never ends when it is asked for one certain pod.
    fn outlive(&mut self) -> Result<()> {
        let fixture = wipam_policy_fixtures::hostile("loop", "hostage", wipam_policy_fixtures::Expect::Faults);
        let before = self.b.page("/v1/policies")?["generation"].as_u64();
        let document = "allocator:\n  file: loop.wasm\n  settings: { mode: loop, only-for: hostage }\n";
        self.b.write_policies(document, &[("loop.wasm", &fixture.bytes)])?;
        wait_for("the policy to be let in", PATIENCE, || {
            let status = self.b.page("/v1/policies")?;
            ensure!(status["generation"].as_u64() > before, "{}", status["last_refusal"]);
            Ok(())
        })?;
        let began = Instant::now();
        let pod = self.b.run_pod("hostage")?;
        let took = began.elapsed();
        pod.ping(self.on_b[0].ip())?;
        let status = self.b.page("/v1/policies")?;
        let faults = status["allocator"]["faults"].as_u64().unwrap_or(0);
        ensure!(faults > 0, "it did not misbehave: {status}");
        say(format!(
            "loops for ever for one pod: stopped by its fuel, its native twin answered; hostage has {} after {}",
            pod.ip(),
            seconds(took)
        ));
        pod.stop()?;
        self.b.write_policies(SECOND_POLICIES, &[])?;
        wait_for("the former policy", PATIENCE, || {
            let status = self.b.page("/v1/policies")?;
            ensure!(status["allocator"]["name"] == "sticky-podref", "{}", status["allocator"]["name"]);
            Ok(())
        })
    }

    /// Pods by name, with their addresses, as ipamd says.
    fn leases(node: &Node) -> Result<BTreeMap<String, String>> {
        let status = node.status()?;
        let leases = status["node"]["leases"].as_array().context("leases")?;
        let pair = |lease: &Value| {
            let name = lease["pod"]["name"].as_str().unwrap_or_default().to_owned();
            (name, format!("{} {}", lease["addresses"][0].as_str().unwrap_or_default(), lease["phase"]))
        };
        Ok(leases.iter().map(pair).collect())
    }

    /// ipamd of node a dies; pods do not notice, a DEL is not lost, and after its return all is as it was.
    pub fn kill(&mut self) -> Result<()> {
        let before = Self::leases(self.a)?;
        // The flight recorder is memory: it begins anew with the next daemon.
        std::fs::write(self.record(), self.a.record()?)?;
        let gone = self.on_a.pop().context("a pod")?;
        let name = gone.who().name.clone();
        let pid = self.a.kill_ipamd()?;
        say(format!("ipamd {pid} of {} was killed with {} pods", self.a.id(), before.len()));
        self.ping_all("while it is away")?;
        gone.stop()?;
        let queued = files(&self.a.queue())?;
        ensure!(queued.len() == 1, "the release of {name} should wait on disk: {queued:?}");
        say(format!("{name} was deleted meanwhile: its network is gone, its release waits on disk"));
        let began = Instant::now();
        self.a.start_ipamd_serving()?;
        say(format!("a new ipamd serves after {}", seconds(began.elapsed())));
        wait_for("the queued release", PATIENCE, || {
            ensure!(files(&self.a.queue())?.is_empty(), "it still waits on disk");
            ensure!(!Self::leases(self.a)?.contains_key(&name), "{name} still has its lease");
            Ok(())
        })?;
        let mut expected = before;
        expected.remove(&name);
        let after = Self::leases(self.a)?;
        ensure!(after == expected, "leases differ: {expected:?} became {after:?}");
        say(format!("{} leases as before; the one of {name} was released", after.len()));
        self.ping_all("afterwards")?;
        let pod = self.a.run_pod("after")?;
        pod.ping(self.on_b[0].ip())?;
        say(format!("a new pod has {} and talks", pod.ip()));
        self.on_a.push(pod);
        Ok(())
    }

    fn ping_all(&self, when: &str) -> Result<()> {
        for pod in &self.on_a {
            pod.ping(self.on_b[0].ip()).with_context(|| when.to_owned())?;
        }
        say(format!("{} pods ping across nodes {when}", self.on_a.len()));
        Ok(())
    }

    fn record(&self) -> PathBuf {
        self.cache.join("node-a.record")
    }

    /// The record of node a until its daemon was killed, as it was and under another policy.
    pub fn replay(&mut self) -> Result<()> {
        let record = self.record();
        say(format!("{} bytes of events and decisions: {}", std::fs::metadata(&record)?.len(), record.display()));
        crate::offline::replay(&record)
    }
}

/// Files of a directory, without those still being written.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(entries) => {
            let paths = entries.flatten().map(|entry| entry.path());
            Ok(paths.filter(|p| p.extension().is_some_and(|e| e == "json")).collect())
        }
    }
}
