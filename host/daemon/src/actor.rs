//! The one task that owns the node's state machine. Everything that happens comes in through one queue and becomes an
//! [`Event`]; everything the state machine wants done goes out as an `Effect` that some other task carries out.
//!
//! So nothing here waits for anything but the queue and the timer: a slow disk, EC2 or kernel holds nobody up but those
//! who wait for its answer.

mod effects;
mod handle;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use wipam_core::event::{CallId, Event, Note, Reply};
use wipam_core::node::Node;
use wipam_core::record::{FORMAT, Header};
use wipam_ec2::Cloud;

use crate::checkpoint::Store;
use crate::clock::{self, Clock, Stopwatch};
use crate::deciders::Deciders;
use crate::links::Links;
use crate::metrics::Metrics;
use crate::recorder::Recorder;

pub use handle::{Gone, Handle, NetInfo};

/// What the actor hears.
pub(crate) enum Input {
    /// Something happened.
    Event(Event),
    /// A call of the plugin, which is to be answered.
    Call { call: CallId, event: Event, reply: oneshot::Sender<Reply> },
    /// A question about the state, or something to do with it.
    Ask(Box<dyn FnOnce(&mut Actor) + Send>),
    /// The checkpoint was written, or was not.
    Written { seq: u64, error: Option<String>, took: std::time::Duration },
    /// Answer what can be answered, write what is to be written, and end.
    Drain { until: std::time::Duration, done: oneshot::Sender<()> },
}

/// A call that waits for its answer.
struct Waiting {
    reply: oneshot::Sender<Reply>,
    since: Stopwatch,
    kind: Kind,
}

/// What kind of call, for metrics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Add,
    Del,
    Other,
}

/// What the actor needs of the world.
pub struct Parts {
    /// The state machine, restored.
    pub node: Node,
    /// Who decides.
    pub deciders: Box<dyn Deciders>,
    /// Time.
    pub clock: Clock,
    /// Checkpoints.
    pub store: Store,
    /// EC2.
    pub cloud: Arc<dyn Cloud>,
    /// The host's network.
    pub links: Arc<dyn Links>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Flight recorder.
    pub recorder: Recorder,
    /// Name of the node and instance id, for records.
    pub names: (String, String),
}

/// The task's state.
pub struct Actor {
    node: Node,
    deciders: Box<dyn Deciders>,
    clock: Clock,
    store: Store,
    cloud: Arc<dyn Cloud>,
    links: Arc<dyn Links>,
    metrics: Arc<Metrics>,
    recorder: Recorder,
    names: (String, String),
    calls: HashMap<CallId, Waiting>,
    /// To send ourselves what other tasks have done. Weak: the queue ends when nobody outside holds it.
    me: mpsc::WeakUnboundedSender<Input>,
    tears: effects::Tears,
    enis: mpsc::UnboundedSender<effects::EniJob>,
    /// A checkpoint is being written.
    writing: bool,
    /// Replies since the last good checkpoint, for the group-commit metric.
    ready: watch::Sender<Result<(), String>>,
    draining: Option<(Stopwatch, std::time::Duration, oneshot::Sender<()>)>,
}

impl Actor {
    /// Starts the task; it runs until drained, or until every handle is gone.
    pub fn spawn(parts: Parts, net: NetInfo) -> Handle {
        let (tx, rx) = mpsc::unbounded_channel();
        let (ready, ready_rx) = watch::channel(Err("starting".to_owned()));
        let handle = Handle::new(tx.clone(), parts.clock.clone(), parts.metrics.clone(), net, ready_rx);
        let me = tx.downgrade();
        let enis = effects::eni_worker(parts.links.clone(), me.clone());
        let mut actor = Actor {
            node: parts.node,
            deciders: parts.deciders,
            clock: parts.clock,
            store: parts.store,
            cloud: parts.cloud,
            links: parts.links,
            metrics: parts.metrics,
            recorder: parts.recorder,
            names: parts.names,
            calls: HashMap::new(),
            me,
            tears: effects::Tears::default(),
            enis,
            writing: false,
            ready,
            draining: None,
        };
        actor.begin_segment(true);
        tokio::spawn(actor.run(rx));
        handle
    }

    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Input>) {
        loop {
            let now = self.clock.now();
            let mut wake = clock::until(&self.clock, self.node.wake_at(now));
            if let Some((since, limit, _)) = &self.draining {
                wake = wake.min(limit.saturating_sub(since.elapsed()));
            }
            let input = tokio::select! {
                biased;
                input = queue.recv() => input,
                () = tokio::time::sleep(wake) => Some(Input::Event(Event::Tick)),
            };
            let Some(input) = input else { break };
            self.take(input);
            if self.drained() {
                break;
            }
        }
        tracing::info!("the state machine has ended");
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.handle(event),
            Input::Call { call, event, reply } => {
                let kind = match &event {
                    Event::Add { .. } => Kind::Add,
                    Event::Del { .. } => Kind::Del,
                    _ => Kind::Other,
                };
                // While draining no new ADD begins: dropping the sender says so.
                if kind == Kind::Add && self.draining.is_some() {
                    return;
                }
                self.calls.insert(call, Waiting { reply, since: Stopwatch::start(), kind });
                self.handle(event);
            }
            Input::Ask(ask) => ask(self),
            Input::Written { seq, error, took } => {
                self.writing = false;
                self.metrics.time("wipam_checkpoint_seconds", &[], took);
                if let Some(error) = &error {
                    self.metrics.count("wipam_checkpoint_failures_total", &[]);
                    tracing::error!(error, "the checkpoint could not be written; ADDs fail until it can be");
                }
                let before = self.calls.len();
                self.handle(Event::Persisted { seq, error });
                self.metrics.observe("wipam_checkpoint_changes", &[], before.saturating_sub(self.calls.len()) as f64);
            }
            Input::Drain { until, done } => self.draining = Some((Stopwatch::start(), until, done)),
        }
    }

    /// Feeds one event to the state machine and carries out what it wants.
    fn handle(&mut self, event: Event) {
        if self.recorder.full() {
            self.begin_segment(false);
        } else if self.recorder.on() && matches!(event, Event::PolicySwapped) {
            let header = self.header(false);
            self.recorder.mark(header);
        }
        let now = self.clock.now();
        self.recorder.event(now, &event);
        let effects = self.node.handle(now, event, self.deciders.policies());
        for decision in self.deciders.take_decisions() {
            self.recorder.decision(now, decision);
        }
        for effect in effects {
            self.carry_out(effect);
        }
        let is_ready = self.node.ready(now);
        self.ready.send_if_modified(|was| {
            let changed = *was != is_ready;
            *was = is_ready;
            changed
        });
    }

    fn begin_segment(&mut self, complete: bool) {
        if self.recorder.on() {
            let header = self.header(complete);
            self.recorder.begin(header);
        }
    }

    /// How a segment begins now.
    fn header(&mut self, complete: bool) -> Header {
        let stamp = self.clock.stamp();
        let empty = self.node.pristine();
        Header {
            format: FORMAT.into(),
            host: self.names.0.clone(),
            instance: self.names.1.clone(),
            daemon: env!("CARGO_PKG_VERSION").into(),
            wit: crate::WIT.into(),
            t: stamp.pool_ms,
            wall_ns: stamp.wall_ns,
            config: self.node.config().clone(),
            policies: self.deciders.recorded(),
            complete,
            state: if empty { None } else { self.store.opaque_state(&mut self.node, &self.clock).map(Box::new) },
        }
    }

    /// Whether a drain is over: every call answered (or the time is up) and the last checkpoint written.
    fn drained(&mut self) -> bool {
        let Some((since, limit, _)) = &self.draining else { return false };
        let late = since.elapsed() >= *limit;
        let adds = self.calls.values().any(|w| w.kind == Kind::Add);
        if (adds && !late) || self.writing {
            return false;
        }
        // Dropping the senders answers whoever is left: "stopping".
        self.calls.clear();
        if let Some((_, _, done)) = self.draining.take() {
            let _ = done.send(());
        }
        true
    }

    fn note(&self, note: &Note) {
        let utc = |at| self.clock.rfc3339(at);
        match note {
            Note::Guard { guard, why } => {
                self.metrics.count("wipam_guard_total", &[("guard", &guard.to_string())]);
                tracing::warn!(guard, why, "the guard refused a proposal");
            }
            Note::Held { key, pod } => {
                self.metrics.count("wipam_held_total", &[]);
                tracing::warn!(%key, %pod, "the sandbox is gone without a DEL; its addresses are held for the pod");
            }
            Note::Orphan { key, address } => {
                tracing::warn!(%key, %address, "an address outside the known pool is kept while it lives")
            }
            Note::Suspect { what } => tracing::warn!(what, "missing from a reading; EC2 will be asked"),
            Note::Network { key, why } => {
                self.metrics.count("wipam_network_failures_total", &[]);
                tracing::warn!(%key, why, "links, routes or rules could not be removed; it will be tried again");
            }
            Note::BackOff { op, subnet, code, until } => {
                tracing::warn!(op, subnet, code, until = utc(*until), "EC2 refused; this kind of growth rests");
            }
            Note::Ready => tracing::info!("the pool can give addresses"),
        }
    }
}
