//! How other tasks talk to the actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use wipam_core::event::{Add, CallId, Event, GivenAddress, Key, NetTarget, Reply};
use wipam_core::node::Status;

use super::{Actor, Input};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// What the plugin is told beside its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetInfo {
    /// MTU of pods.
    pub mtu: u32,
    /// CIDRs that are reached without SNAT.
    pub vpc_cidrs: Vec<String>,
    /// Something else does SNAT.
    pub external_snat: bool,
}

/// The daemon is stopping: the actor has ended or drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ipamd is stopping")]
pub struct Gone;

/// A way to the actor; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    tx: mpsc::UnboundedSender<Input>,
    clock: Clock,
    metrics: Arc<Metrics>,
    net: Arc<watch::Sender<NetInfo>>,
    ready: watch::Receiver<Result<(), String>>,
    next: Arc<AtomicU64>,
}

/// Withdraws an ADD whose caller has gone away.
struct CancelOnDrop<'a> {
    handle: &'a Handle,
    call: Option<CallId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.handle.event(Event::Cancel { call });
        }
    }
}

impl Handle {
    pub(super) fn new(
        tx: mpsc::UnboundedSender<Input>,
        clock: Clock,
        metrics: Arc<Metrics>,
        net: NetInfo,
        ready: watch::Receiver<Result<(), String>>,
    ) -> Handle {
        let net = Arc::new(watch::Sender::new(net));
        Handle { tx, clock, metrics, net, ready, next: Arc::new(AtomicU64::new(1)) }
    }

    /// The pool's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What the plugin is told beside its addresses, as it is now.
    pub fn net(&self) -> NetInfo {
        self.net.borrow().clone()
    }

    /// The VPC's CIDRs may change while the node runs.
    pub fn set_net(&self, net: NetInfo) {
        self.net.send_replace(net);
    }

    /// Whether an address could be given, kept up to date.
    pub fn ready(&self) -> watch::Receiver<Result<(), String>> {
        self.ready.clone()
    }

    /// Something happened; nobody waits for an answer.
    pub fn event(&self, event: Event) {
        // When the actor has ended, there is nobody left whom it could matter to.
        let _ = self.tx.send(Input::Event(event));
    }

    async fn call(&self, call: CallId, event: Event) -> Result<Reply, Gone> {
        let (reply, answer) = oneshot::channel();
        self.tx.send(Input::Call { call, event, reply }).map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    fn number(&self) -> CallId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// An ADD. Dropping the future withdraws it.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn add(&self, add: Add) -> Result<Reply, Gone> {
        let call = self.number();
        let mut cancel = CancelOnDrop { handle: self, call: Some(call) };
        let reply = self.call(call, Event::Add { call, add: Box::new(add) }).await;
        cancel.call = None;
        reply
    }

    /// A DEL.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn del(&self, key: Key, cause: String, network_removed: bool) -> Result<Reply, Gone> {
        let call = self.number();
        self.call(call, Event::Del { call, key, cause, network_removed }).await
    }

    /// A GC.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn gc(&self, network: String, valid: Vec<Key>) -> Result<Reply, Gone> {
        let call = self.number();
        self.call(call, Event::Gc { call, network, valid }).await
    }

    async fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&mut Actor) -> T + Send + 'static) -> Result<T, Gone> {
        let (tx, rx) = oneshot::channel();
        let ask = Box::new(move |actor: &mut Actor| drop(tx.send(ask(actor))));
        self.tx.send(Input::Ask(ask)).map_err(|_| Gone)?;
        rx.await.map_err(|_| Gone)
    }

    /// What an attachment has.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn check(&self, key: Key) -> Result<Option<(Vec<GivenAddress>, String)>, Gone> {
        self.ask(move |a| a.node.check(&key)).await
    }

    /// The whole state, for screens.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn status(&self) -> Result<Status, Gone> {
        self.ask(|a| a.node.status(a.clock.now())).await
    }

    /// Every lease, for liveness checks.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn targets(&self) -> Result<Vec<NetTarget>, Gone> {
        self.ask(|a| a.node.targets()).await
    }

    /// The flight recorder's bytes.
    ///
    /// # Errors
    /// The daemon is stopping; the inner one is the compressor's.
    pub async fn record(&self) -> Result<std::io::Result<Vec<u8>>, Gone> {
        self.ask(|a| a.recorder.bytes()).await
    }

    /// Policies in force, for screens.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn policies(&self) -> Result<Value, Gone> {
        self.ask(|a| a.deciders.status()).await
    }

    /// The last `n` decisions, for screens.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn decisions(&self, n: usize) -> Result<Value, Gone> {
        self.ask(move |a| a.deciders.decisions(n)).await
    }

    /// Steps the ladder up again.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn reset_policies(&self) -> Result<(), Gone> {
        self.ask(|a| {
            a.deciders.reset();
            a.handle(Event::PolicySwapped);
        })
        .await
    }

    /// Answers what can be answered within `until`, writes the last checkpoint, ends the actor.
    pub async fn drain(&self, until: Duration) {
        let (done, ended) = oneshot::channel();
        if self.tx.send(Input::Drain { until, done }).is_ok() {
            let _ = ended.await;
        }
    }
}
