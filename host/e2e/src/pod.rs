//! A pod: one sandbox, and a container in it once something shall be run there.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cri::{Cri, Output, v1};
use crate::image;

/// Who a pod is, for the runtime and the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl PodName {
    /// A pod of namespace `default` with a UID made from its name.
    pub fn new(name: &str) -> PodName {
        PodName { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") }
    }
}

/// A pod that runs. It goes with its cluster, not with this value.
pub struct Pod {
    cri: Cri,
    who: PodName,
    sandbox: String,
    config: v1::PodSandboxConfig,
    ip: Ipv4Addr,
    netns: PathBuf,
    container: Mutex<Option<String>>,
}

impl Pod {
    /// Runs a sandbox. `attempt` tells sandboxes of one pod apart.
    pub(crate) fn run(cri: Cri, who: &PodName, attempt: u32, logs: &Path, cgroup: String) -> Result<Pod> {
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: who.name.clone(),
                uid: who.uid.clone(),
                namespace: who.namespace.clone(),
                attempt,
            }),
            hostname: who.name.clone(),
            log_directory: logs.to_string_lossy().into_owned(),
            linux: Some(v1::LinuxPodSandboxConfig { cgroup_parent: cgroup }),
        };
        let sandbox = cri.run_sandbox(&config).map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        let status = cri.sandbox(&sandbox)?;
        let network = status.status.and_then(|status| status.network).context("a sandbox without network")?;
        let ip = network.ip.parse().with_context(|| format!("{:?} is no address", network.ip))?;
        let netns = netns(&status.info).context("a sandbox without namespace")?;
        Ok(Pod { cri, who: who.clone(), sandbox, config, ip, netns, container: Mutex::new(None) })
    }

    /// Who it is.
    pub fn who(&self) -> &PodName {
        &self.who
    }

    /// The address that the runtime was told.
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// The sandbox's id, which is the plugin's container id.
    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    /// Path of its network namespace.
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// Runs a command in its container (made when first asked for), at most 60 s.
    ///
    /// # Errors
    /// The runtime's status; a command that fails is no error.
    pub fn exec(&self, cmd: &[&str]) -> Result<Output> {
        let container = {
            let mut container = self.container.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match &*container {
                Some(id) => id.clone(),
                None => {
                    let id = self.cri.start_container(&self.sandbox, &self.config, image::NAME)?;
                    container.insert(id).clone()
                }
            }
        };
        self.cri.exec(&container, cmd, Duration::from_secs(60))
    }

    /// Pings from its container: three packets in a row at most, one answer is enough.
    ///
    /// # Errors
    /// No answer: what ping printed.
    pub fn ping(&self, to: Ipv4Addr) -> Result<()> {
        let to = to.to_string();
        // The first packets of a path may be lost while neighbours are learnt.
        let output = self.exec(&["ping", "-c", "3", "-A", "-w", "5", &to])?;
        let answered = output.stdout.lines().any(|line| line.contains(" bytes from ") || line.contains("ttl="));
        if output.code == 0 && answered {
            return Ok(());
        }
        bail!("{} ({}) has no answer from {to}: {}{}", self.who.name, self.ip, output.stdout, output.stderr)
    }

    /// Runs a program of this machine in the pod's network namespace, with root's rights.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn nsenter(&self, cmd: &[&str]) -> Result<Output> {
        let output = Command::new("nsenter").arg(format!("--net={}", self.netns.display())).args(cmd).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// Stops and removes the sandbox, as kubelet does: the plugin's DEL, then the rest.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn stop(&self) -> Result<()> {
        self.cri.stop_sandbox(&self.sandbox).map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        self.cri.remove_sandbox(&self.sandbox).map_err(|status| anyhow::anyhow!("{}", status.message()))
    }
}

/// The path of a sandbox's network namespace in what containerd tells of it.
fn netns(info: &std::collections::HashMap<String, String>) -> Option<PathBuf> {
    let info: Value = serde_json::from_str(info.get("info")?).ok()?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    Some(network["path"].as_str()?.into())
}
