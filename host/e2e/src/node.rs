//! One node: a containerd and an ipamd in the network namespace that plays an EC2 instance.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cri::{Cri, Output};
use crate::pod::{Pod, PodName};
use crate::programs::{SYSTEM_PLUGINS, ours};
use crate::site::{Proc, Site, end_runtime, mark_runtime};
use crate::wait::wait_for;
use crate::{http, image};

/// How long anything may take to come up.
const START: Duration = Duration::from_secs(60);
/// The conflist that ipamd writes.
const CONFLIST: &str = "10-aws.conflist";

/// What a node is made from.
pub(crate) struct Plan {
    pub(crate) site: Arc<Site>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) id: String,
    pub(crate) netns: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) ec2_endpoint: String,
    /// Further settings of ipamd.
    pub(crate) env: Vec<(String, String)>,
    /// Further networks: name of the file and the list's JSON.
    pub(crate) networks: Vec<(String, Value)>,
    pub(crate) policies: PathBuf,
}

/// A node.
pub struct Node {
    plan: Plan,
    dir: PathBuf,
    containerd: Mutex<Option<Proc>>,
    cri: Mutex<Option<Cri>>,
    ipamd: Mutex<Option<Proc>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Makes its directories; starts nothing.
    pub(crate) fn new(plan: Plan) -> Result<Node> {
        let dir = plan.site.dir().join(&plan.id);
        for sub in ["bin", "ctd", "logs", "net.d", "run", "state"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        for plugin in fs::read_dir(SYSTEM_PLUGINS)?.flatten() {
            symlink(plugin.path(), dir.join("bin").join(plugin.file_name()))?;
        }
        symlink(ours("wipam-cni")?, dir.join("bin/wipam-cni"))?;
        let (containerd, cri, ipamd) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        Ok(Node { plan, dir, containerd, cri, ipamd })
    }

    /// The instance's id.
    pub fn id(&self) -> &str {
        &self.plan.id
    }

    /// Its primary address.
    pub fn ip(&self) -> Ipv4Addr {
        self.plan.ip
    }

    /// Name of its network namespace.
    pub fn netns(&self) -> &str {
        &self.plan.netns
    }

    /// Its directory: `state`, `run` (sockets), `logs`, `net.d`, `bin`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that its ipamd takes policies from.
    pub fn policies(&self) -> &Path {
        &self.plan.policies
    }

    /// ipamd's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("run/ipamd.sock")
    }

    /// Where the plugin leaves releases while ipamd is away.
    pub fn queue(&self) -> PathBuf {
        self.dir.join("state/queue")
    }

    /// A command in its network namespace. Not `ip netns exec`, which would mount another `/sys`.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.plan.netns)).arg(program);
        command
    }

    /// Runs a program in its network namespace to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, cmd: &[&str]) -> Result<Output> {
        let (program, args) = cmd.split_first().context("no command")?;
        let output = self.command(program).args(args).output()?;
        Ok(output_of(&output))
    }

    // --- containerd -------------------------------------------------------------------------------------------------

    /// Starts containerd and gives it the image.
    ///
    /// # Errors
    /// It did not come up: its last words.
    pub fn start_containerd(&self, archive: &Path) -> Result<()> {
        let ctd = self.dir.join("ctd");
        let config = ctd.join("config.toml");
        fs::write(&config, self.containerd_config())?;
        let mut command = self.command("containerd");
        command.arg("--config").arg(&config);
        mark_runtime(&mut command, &ctd);
        let mut process = self.plan.site.spawn(command, &self.dir.join("logs/containerd.log"))?;
        let socket = ctd.join("c.sock");
        let cri = wait_for("containerd", START, || {
            if let Some(status) = process.ended() {
                bail!("it ended with {status}: {}", process.last_words());
            }
            Cri::connect(self.plan.runtime.clone(), &socket)
        })?;
        // The interface is there before its plugins are.
        wait_for("containerd's CRI", START, || cri.version())?;
        let import = ["-n", "k8s.io", "images", "import"];
        let output = Command::new("ctr").arg("-a").arg(&socket).args(import).arg(archive).output()?;
        if !output.status.success() {
            bail!("the image cannot be imported: {}", String::from_utf8_lossy(&output.stderr));
        }
        *locked(&self.containerd) = Some(process);
        *locked(&self.cri) = Some(cri);
        Ok(())
    }

    /// As after a power cut: containerd, every sandbox and the runtime's memory of them are gone, and no DEL came.
    /// Start containerd again with [`Node::start_containerd`].
    ///
    /// # Errors
    /// What could not be ended.
    pub fn lose_containerd(&self) -> Result<()> {
        *locked(&self.cri) = None;
        if let Some(mut process) = locked(&self.containerd).take() {
            process.kill()?;
        }
        end_runtime(&self.dir.join("ctd"))
    }

    fn containerd_config(&self) -> String {
        let dir = self.dir.display();
        let networks = self.plan.networks.len() + 1;
        format!(
            r#"version = 2
root = "{dir}/ctd/root"
state = "{dir}/ctd/state"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{dir}/ctd/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{dir}/bin"
    conf_dir = "{dir}/net.d"
    max_conf_num = {networks}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{dir}/ctd/runc"
"#,
            image = image::NAME
        )
    }

    /// The runtime's interface.
    ///
    /// # Errors
    /// containerd does not run.
    pub fn cri(&self) -> Result<Cri> {
        locked(&self.cri).clone().with_context(|| format!("containerd of {} does not run", self.plan.id))
    }

    /// Waits until the runtime has a network for pods.
    ///
    /// # Errors
    /// It never had: what it says, and what ipamd says.
    pub fn wait_for_network(&self) -> Result<()> {
        let cri = self.cri()?;
        let ready = wait_for("the runtime's network", START, || {
            self.check_ipamd()?;
            // Other networks may be there before; pods must not start with those alone.
            anyhow::ensure!(self.dir.join("net.d").join(CONFLIST).exists(), "ipamd has not written {CONFLIST}");
            cri.network_ready()?.map_err(anyhow::Error::msg)
        });
        ready.with_context(|| format!("{}: {}", self.plan.id, self.ipamd_log(8)))
    }

    // --- ipamd ------------------------------------------------------------------------------------------------------

    /// Its settings.
    fn ipamd_env(&self) -> Vec<(String, String)> {
        let at = |path: &str| self.dir.join(path).to_string_lossy().into_owned();
        let own = [
            ("WIPAM_STATE_DIR", at("state")),
            ("WIPAM_SOCKET", at("run/ipamd.sock")),
            ("WIPAM_AWS_SOCKET", at("run/aws.sock")),
            ("AWS_VPC_K8S_CNI_BACKING_STORE", at("state/ipam.json")),
            ("WIPAM_POLICY_DIR", self.plan.policies.to_string_lossy().into_owned()),
            ("WIPAM_CONFLIST", at(&format!("net.d/{CONFLIST}"))),
            ("INTROSPECTION_BIND_ADDRESS", format!("unix:{}", at("run/introspect.sock"))),
            ("AWS_ENDPOINT_URL_EC2", self.plan.ec2_endpoint.clone()),
            ("WIPAM_KUBELET_HEALTH", String::new()),
            ("MY_NODE_NAME", self.plan.id.clone()),
            ("CLUSTER_NAME", "e2e".into()),
        ];
        own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(self.plan.env.iter().cloned()).collect()
    }

    /// Starts ipamd and waits until it answers; not until it serves.
    ///
    /// # Errors
    /// It ended: its last words.
    pub fn start_ipamd(&self) -> Result<()> {
        let mut command = self.command(ours("ipamd")?);
        // Nothing of the caller's: no proxies, no credentials.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("RUST_BACKTRACE", "1");
        command.envs(self.ipamd_env());
        let process = self.plan.site.spawn(command, &self.dir.join("logs/ipamd.log"))?;
        *locked(&self.ipamd) = Some(process);
        wait_for("ipamd to answer", START, || {
            self.check_ipamd()?;
            self.status()
        })?;
        Ok(())
    }

    /// Starts ipamd and waits until it serves.
    ///
    /// # Errors
    /// It ended or does not get there: what it waits for.
    pub fn start_ipamd_serving(&self) -> Result<()> {
        self.start_ipamd()?;
        self.wait_until_serving()
    }

    /// Waits until ipamd serves.
    ///
    /// # Errors
    /// It does not get there: what it waits for.
    pub fn wait_until_serving(&self) -> Result<()> {
        wait_for("ipamd to serve", START, || {
            self.check_ipamd()?;
            let status = self.status()?;
            anyhow::ensure!(status["phase"] == "serving", "it waits for {}", status["waiting-for"]);
            Ok(())
        })
        .with_context(|| format!("{}: {}", self.plan.id, self.ipamd_log(8)))
    }

    fn check_ipamd(&self) -> Result<()> {
        match locked(&self.ipamd).as_mut() {
            None => bail!("ipamd was not started"),
            Some(process) => match process.ended() {
                Some(status) => bail!("ipamd ended with {status}: {}", process.last_words()),
                None => Ok(()),
            },
        }
    }

    /// ipamd's process id.
    ///
    /// # Errors
    /// It does not run.
    pub fn ipamd_pid(&self) -> Result<u32> {
        locked(&self.ipamd).as_ref().map(Proc::pid).context("ipamd does not run")
    }

    /// `kill -9` of ipamd; its pid.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill_ipamd(&self) -> Result<u32> {
        let mut process = locked(&self.ipamd).take().context("ipamd does not run")?;
        process.kill()?;
        Ok(process.pid())
    }

    /// An orderly stop of ipamd.
    ///
    /// # Errors
    /// It does not run, did not end in time, or not with success.
    pub fn stop_ipamd(&self) -> Result<()> {
        let mut process = locked(&self.ipamd).take().context("ipamd does not run")?;
        let status = process.terminate(Duration::from_secs(20))?;
        anyhow::ensure!(status.success(), "ipamd ended with {status}: {}", process.last_words());
        Ok(())
    }

    /// The last lines of ipamd's log.
    pub fn ipamd_log(&self, lines: usize) -> String {
        let text = fs::read_to_string(self.dir.join("logs/ipamd.log")).unwrap_or_default();
        let last: Vec<_> = text.lines().rev().take(lines).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// A page of ipamd, as JSON: `/v1/status`, `/v1/policies`, ….
    ///
    /// # Errors
    /// It does not answer, or not with success.
    pub fn page(&self, path: &str) -> Result<Value> {
        let body = http::unix(&self.dir.join("run/introspect.sock"), "GET", path, "")?;
        serde_json::from_slice(&body).with_context(|| format!("{path} is not JSON"))
    }

    /// What ipamd says of itself.
    ///
    /// # Errors
    /// As [`Node::page`].
    pub fn status(&self) -> Result<Value> {
        self.page("/v1/status")
    }

    /// ipamd's flight recorder, compressed JSON lines.
    ///
    /// # Errors
    /// As [`Node::page`].
    pub fn record(&self) -> Result<Vec<u8>> {
        http::unix(&self.dir.join("run/introspect.sock"), "GET", "/v1/record", "")
    }

    /// Puts a policies document, and files beside it, where ipamd looks for them.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_policies(&self, document: &str, files: &[(&str, &[u8])]) -> Result<()> {
        let dir = self.policies();
        fs::create_dir_all(dir)?;
        // The document last: it names the files.
        for (name, bytes) in files.iter().copied().chain([("policies.yaml", document.as_bytes())]) {
            let temp = dir.join(format!(".{name}.tmp"));
            fs::write(&temp, bytes)?;
            fs::rename(&temp, dir.join(name))?;
        }
        Ok(())
    }

    // --- pods -------------------------------------------------------------------------------------------------------

    /// Runs a pod of namespace `default`.
    ///
    /// # Errors
    /// The runtime's, with the plugin's text in it.
    pub fn run_pod(&self, name: &str) -> Result<Pod> {
        self.run_pod_as(&PodName::new(name), 0)
    }

    /// Runs a pod's sandbox; `attempt` tells sandboxes of one pod apart.
    ///
    /// # Errors
    /// The runtime's, with the plugin's text in it.
    pub fn run_pod_as(&self, who: &PodName, attempt: u32) -> Result<Pod> {
        Pod::run(self.cri()?, who, attempt, &self.dir.join("logs"), self.plan.site.cgroup())
            .with_context(|| format!("pod {} on {}", who.name, self.plan.id))
    }

    /// The configuration of the VPC network, as a runtime hands it to the plugin in `version`.
    pub fn plugin_conf(&self, version: &str) -> Value {
        json!({
            "cniVersion": version, "name": "aws-cni", "type": "wipam-cni",
            "socket": self.socket(), "queueDir": self.queue(),
        })
    }

    /// Calls our plugin as a runtime would, with these variables.
    ///
    /// # Errors
    /// It cannot be started; a failed call is no error.
    pub fn plugin(&self, verb: &str, env: &[(&str, &str)], conf: &Value) -> Result<Output> {
        let mut command = self.command(self.dir.join("bin/wipam-cni"));
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_PATH", self.dir.join("bin")).envs(env.iter().copied());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that fails early does not read its input.
            let _ = std::io::Write::write_all(&mut stdin, conf.to_string().as_bytes());
        }
        Ok(output_of(&child.wait_with_output()?))
    }

    /// Waits until the runtime has seen as many configurations as there are.
    pub(crate) fn wait_for_networks(&self) -> Result<()> {
        let (cri, want) = (self.cri()?, self.plan.networks.iter().map(|(_, list)| list["name"].as_str()));
        let want: Vec<_> = want.flatten().map(|name| format!("\"{name}\"")).collect();
        wait_for("further networks", START, || {
            let seen = cri.network_config()?;
            match want.iter().find(|name| !seen.contains(*name)) {
                None => Ok(()),
                Some(name) => bail!("the runtime has not read {name}"),
            }
        })
    }

    /// Networks besides the VPC's are put in place.
    pub(crate) fn write_networks(&self) -> Result<()> {
        for (file, list) in &self.plan.networks {
            let temp = self.dir.join("net.d").join(format!(".{file}.tmp"));
            // Each node has its own ipamd.
            let text = list.to_string().replace("@SOCKET@", &self.socket().to_string_lossy());
            fs::write(&temp, text.replace("@QUEUE@", &self.queue().to_string_lossy()))?;
            fs::rename(&temp, self.dir.join("net.d").join(file))?;
        }
        Ok(())
    }
}

fn output_of(output: &std::process::Output) -> Output {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
