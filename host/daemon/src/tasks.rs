//! What goes on beside the calls of the plugin: reading metadata and the host, looking whether sandboxes live, taking
//! releases from the disk, asking the kubelet, writing the conflist.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use wipam_core::cloud::InstanceFacts;
use wipam_core::event::{Event, Key, Reply};
use wipam_ec2::Facts;
use wipam_rpc::queue::{Item, Queue, QueueError};

use crate::actor::{Handle, NetInfo};
use crate::conflist;
use crate::deciders::Watch;
use crate::links::Links;
use crate::settings::Settings;
use crate::world::chain;

/// How often the kubelet is asked until it answers.
const SHORT: Duration = Duration::from_secs(1);

/// How often the policy directory is looked at. New content counts when it is the same twice.
const POLICIES: Duration = Duration::from_millis(100);

/// What the tasks share.
#[derive(Clone)]
pub struct Tasks {
    /// Settings.
    pub settings: Settings,
    /// The state machine.
    pub handle: Handle,
    /// The host's network.
    pub links: Arc<dyn Links>,
    /// Instance metadata.
    pub facts: Arc<dyn Facts>,
    /// Releases on disk.
    pub queue: Queue,
}

/// What the plugin is told beside its addresses.
pub fn net_info(settings: &Settings, instance: &InstanceFacts) -> NetInfo {
    let mut cidrs: Vec<String> = instance.vpc_cidrs.iter().map(ToString::to_string).collect();
    if !settings.host.external_snat {
        cidrs.extend(settings.host.exclude_snat.iter().map(ToString::to_string));
    }
    NetInfo { mtu: settings.host.pod_mtu, vpc_cidrs: cidrs, external_snat: settings.host.external_snat }
}

impl Tasks {
    /// Starts all of them; they end with `stop`.
    pub fn spawn(
        self,
        instance: InstanceFacts,
        watch: Box<dyn Watch>,
        stop: &CancellationToken,
    ) -> Vec<JoinHandle<()>> {
        let run = |task| tokio::spawn(stop.clone().run_until_cancelled_owned(task));
        let ended = |task: JoinHandle<Option<()>>| tokio::spawn(async { drop(task.await) });
        let tasks: [std::pin::Pin<Box<dyn Future<Output = ()> + Send>>; 4] = [
            Box::pin(self.clone().observe(instance)),
            Box::pin(self.clone().keep_conflist()),
            Box::pin(self.clone().ask_kubelet()),
            Box::pin(self.look_for_policies(watch)),
        ];
        tasks.into_iter().map(|task| ended(run(task))).collect()
    }

    /// Everything that is read again and again. The order matters once: releases that wait on disk come first, so that
    /// what they free is not taken for alive.
    async fn observe(self, mut instance: InstanceFacts) {
        loop {
            self.take_queued().await;
            self.look_at_host().await;
            self.look_at_sandboxes().await;
            tokio::time::sleep(self.settings.pool.observe).await;
            self.look_at_metadata(&mut instance).await;
        }
    }

    async fn look_at_metadata(&self, instance: &mut InstanceFacts) {
        match self.facts.attached().await {
            Ok(enis) => self.handle.event(Event::Metadata { enis }),
            Err(error) => tracing::warn!(error = chain(&error), "instance metadata could not be read"),
        }
        match self.facts.instance().await {
            Ok(now) => {
                self.handle.set_net(net_info(&self.settings, &now));
                *instance = now;
            }
            Err(error) => tracing::warn!(error = chain(&error), "the VPC's CIDRs could not be read"),
        }
        // Again even when nothing changed: somebody may have flushed rules or tables.
        let (links, facts) = (self.links.clone(), instance.clone());
        if let Ok(Err(error)) = spawn_blocking(move || links.set_up_node(&facts)).await {
            tracing::warn!(error, "the host's network could not be kept up");
        }
    }

    async fn look_at_host(&self) {
        let links = self.links.clone();
        match spawn_blocking(move || links.observe()).await {
            Ok(Ok(seen)) => self.handle.event(Event::HostObserved { addresses: seen.addresses }),
            Ok(Err(error)) => tracing::warn!(error, "the host's links could not be read"),
            Err(_) => {}
        }
    }

    async fn look_at_sandboxes(&self) {
        let Ok(targets) = self.handle.targets().await else { return };
        let (links, handle) = (self.links.clone(), self.handle.clone());
        let look = move || {
            match links.repair(&targets) {
                Ok(mended) if mended.is_empty() => {}
                Ok(mended) => tracing::warn!(mended = mended.join("; "), "routes or rules of pods were put back"),
                Err(error) => tracing::warn!(error, "routes or rules of pods could not be put back"),
            }
            for target in targets {
                let alive = links.alive(&target);
                handle.event(Event::Liveness { key: target.key, alive });
            }
        };
        let _ = spawn_blocking(look).await;
    }

    /// DELs that came while nobody listened. Each leaves the disk when the checkpoint has it.
    async fn take_queued(&self) {
        let queue = self.queue.clone();
        let items = match spawn_blocking(move || queue.read_all()).await {
            Ok(Ok(items)) => items,
            Ok(Err(error)) => return tracing::warn!(error = chain(&error), "queued releases could not be read"),
            Err(_) => return,
        };
        for Item { path, release } in items {
            let release = match release {
                Ok(release) => release,
                Err(error) => {
                    self.set_aside(&path, &error);
                    continue;
                }
            };
            let key = Key { network: release.network, container_id: release.container_id, ifname: release.ifname };
            let cause = if release.cause.is_empty() { "del".into() } else { release.cause };
            tracing::info!(%key, "a queued release is carried out");
            match self.handle.del(key, cause, release.network_removed).await {
                Ok(Reply::Deleted { .. }) => {
                    if let Err(error) = self.queue.remove(&path) {
                        tracing::warn!(
                            error = chain(&error),
                            "a queued release could not be removed; it will be repeated"
                        );
                    }
                }
                Ok(other) => tracing::warn!(?other, "a queued release was not taken"),
                Err(_) => return,
            }
        }
    }

    /// A file nobody can read must not be read every half minute; people find it beside the others.
    fn set_aside(&self, path: &std::path::Path, error: &QueueError) {
        let aside = path.with_extension("bad");
        tracing::error!(error = chain(error), aside = %aside.display(), "a queued release cannot be read; it is set aside");
        if let Err(error) = std::fs::rename(path, &aside) {
            tracing::warn!(%error, "it could not be renamed");
        }
    }

    /// Written when an address can be given, not before; and again if somebody removes it.
    async fn keep_conflist(self) {
        let mut ready = self.handle.ready();
        if ready.wait_for(Result::is_ok).await.is_err() {
            return;
        }
        loop {
            let settings = self.settings.clone();
            match spawn_blocking(move || conflist::write(&settings)).await {
                Ok(Ok(true)) => {
                    let path = self.settings.paths.conflist.as_ref().map(|p| p.display().to_string());
                    tracing::info!(path, "the conflist is written: the node takes pods");
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::error!(%error, "the node takes no pods"),
                Err(_) => return,
            }
            tokio::time::sleep(self.settings.pool.observe).await;
        }
    }

    async fn ask_kubelet(self) {
        let Some(address) = self.settings.pool.kubelet_health else { return };
        loop {
            let answered = tokio::time::timeout(SHORT, healthz(address)).await;
            if matches!(answered, Ok(Ok(true))) {
                tracing::info!(%address, "the kubelet answers");
                return self.handle.event(Event::KubeletAnswered);
            }
            tokio::time::sleep(SHORT).await;
        }
    }

    async fn look_for_policies(self, mut watch: Box<dyn Watch>) {
        loop {
            tokio::time::sleep(POLICIES).await;
            let look = spawn_blocking(move || {
                let swapped = watch.poll();
                (watch, swapped)
            });
            let Ok((back, swapped)) = look.await else { return };
            watch = back;
            if swapped {
                self.handle.event(Event::PolicySwapped);
            }
        }
    }
}

/// Whether something at `address` answers a health check with 200.
async fn healthz(address: std::net::SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(head.ends_with(b" 200"))
}
