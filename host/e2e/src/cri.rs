//! A container runtime as kubelet sees it: CRI over its unix socket, as blocking calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint, Uri};

/// Generated from `proto/cri.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

use v1::runtime_service_client::RuntimeServiceClient;

/// Longer than an ADD waits for growth (100 s), so that its own error is seen.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection to one runtime. Cheap to clone; clones may be used by many threads at once.
#[derive(Clone)]
pub struct Cri {
    runtime: Arc<Runtime>,
    client: RuntimeServiceClient<Channel>,
}

/// What a command printed, and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output if the command succeeded.
    ///
    /// # Errors
    /// Code and both outputs otherwise.
    pub fn ok(self) -> Result<String> {
        anyhow::ensure!(self.code == 0, "ended with {}: {}{}", self.code, self.stdout, self.stderr);
        Ok(self.stdout)
    }
}

impl Cri {
    /// Connects to the runtime behind `socket`.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(runtime: Arc<Runtime>, socket: &Path) -> Result<Cri> {
        let path: PathBuf = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The name fills HTTP/2's :authority and goes nowhere else.
        let endpoint = Endpoint::from_static("http://containerd").timeout(CALL_TIMEOUT);
        let channel = runtime
            .block_on(endpoint.connect_with_connector(connector))
            .with_context(|| format!("no runtime answers on {}", socket.display()))?;
        Ok(Cri { runtime, client: RuntimeServiceClient::new(channel) })
    }

    /// Name and version of the runtime.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn version(&self) -> Result<String> {
        let mut client = self.client.clone();
        let reply = self.runtime.block_on(client.version(v1::VersionRequest::default()))?.into_inner();
        Ok(format!("{} {}", reply.runtime_name, reply.runtime_version))
    }

    /// Whether the runtime has found a network configuration; why not.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn network_ready(&self) -> Result<Result<(), String>> {
        let mut client = self.client.clone();
        let reply = self.runtime.block_on(client.status(v1::StatusRequest::default()))?.into_inner();
        let conditions = reply.status.map(|status| status.conditions).unwrap_or_default();
        Ok(match conditions.into_iter().find(|condition| condition.r#type == "NetworkReady") {
            Some(condition) if condition.status => Ok(()),
            Some(condition) => Err(condition.message),
            None => Err("the runtime says nothing of its network".into()),
        })
    }

    /// The network configurations in force, as the runtime prints them.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn network_config(&self) -> Result<String> {
        let mut client = self.client.clone();
        let reply = self.runtime.block_on(client.status(v1::StatusRequest { verbose: true }))?.into_inner();
        Ok(reply.info.get("cniconfig").cloned().unwrap_or_default())
    }

    /// Starts a sandbox; its id.
    ///
    /// # Errors
    /// The runtime's status, with the plugin's text in it when that failed.
    pub fn run_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<String, tonic::Status> {
        let mut client = self.client.clone();
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()) };
        Ok(self.runtime.block_on(client.run_pod_sandbox(request))?.into_inner().pod_sandbox_id)
    }

    /// Stops a sandbox, which calls the plugin's DEL.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn stop_sandbox(&self, id: &str) -> Result<(), tonic::Status> {
        let mut client = self.client.clone();
        self.runtime.block_on(client.stop_pod_sandbox(v1::PodSandboxId { pod_sandbox_id: id.into() }))?;
        Ok(())
    }

    /// Removes a stopped sandbox.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), tonic::Status> {
        let mut client = self.client.clone();
        self.runtime.block_on(client.remove_pod_sandbox(v1::PodSandboxId { pod_sandbox_id: id.into() }))?;
        Ok(())
    }

    /// All sandboxes the runtime knows.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn sandboxes(&self) -> Result<Vec<v1::PodSandbox>> {
        let mut client = self.client.clone();
        Ok(self.runtime.block_on(client.list_pod_sandbox(v1::Empty {}))?.into_inner().items)
    }

    /// A sandbox's state, with what the runtime tells of it in JSON.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn sandbox(&self, id: &str) -> Result<v1::PodSandboxStatusResponse> {
        let mut client = self.client.clone();
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        Ok(self.runtime.block_on(client.pod_sandbox_status(request))?.into_inner())
    }

    /// Creates and starts a container that does nothing, for commands to run in; its id.
    ///
    /// # Errors
    /// The runtime's status.
    pub fn start_container(&self, sandbox: &str, config: &v1::PodSandboxConfig, image: &str) -> Result<String> {
        let mut client = self.client.clone();
        // Without the right to lower it, containers keep the score they are given.
        let resources = v1::LinuxContainerResources { oom_score_adj: 1000 };
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image.into() }),
            command: Vec::new(),
            log_path: format!("{sandbox}.log"),
            linux: Some(v1::LinuxContainerConfig { resources: Some(resources) }),
        };
        let create = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(container),
            sandbox_config: Some(config.clone()),
        };
        let container_id = self.runtime.block_on(client.create_container(create))?.into_inner().container_id;
        let start = v1::StartContainerRequest { container_id: container_id.clone() };
        self.runtime.block_on(client.start_container(start))?;
        Ok(container_id)
    }

    /// Runs a command in a container and waits at most `timeout` (whole seconds) for its end.
    ///
    /// # Errors
    /// The runtime's status; a command that fails is no error.
    pub fn exec(&self, container: &str, cmd: &[&str], timeout: Duration) -> Result<Output> {
        let mut client = self.client.clone();
        let request = v1::ExecSyncRequest {
            container_id: container.into(),
            cmd: cmd.iter().map(|part| (*part).to_owned()).collect(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        };
        let reply = self.runtime.block_on(client.exec_sync(request))?.into_inner();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { code: reply.exit_code, stdout: text(reply.stdout), stderr: text(reply.stderr) })
    }
}
