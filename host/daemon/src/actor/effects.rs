//! Carrying out what the state machine wants, each kind on its own task.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use wipam_core::cloud::{Call, EniFacts};
use wipam_core::event::{CallId, Effect, Event, NetTarget, Reply};

use super::{Actor, Input, Kind};
use crate::clock::Stopwatch;
use crate::links::Links;

/// Sends to the actor; when it has ended, nobody needs to hear.
pub(super) fn tell(me: &mpsc::WeakUnboundedSender<Input>, input: Input) {
    if let Some(tx) = me.upgrade() {
        let _ = tx.send(input);
    }
}

/// Tear-downs that wait for the batch before them. Taking one link away makes the kernel wait 20 ms, forty at once
/// hardly longer: what comes in meanwhile goes together.
#[derive(Default)]
pub(super) struct Tears {
    waiting: Vec<(u64, NetTarget)>,
    running: bool,
}

/// Work on the host's side of an interface; done one after the other, since removal and set-up of the same table must
/// not overtake each other.
pub(super) enum EniJob {
    SetUp(EniFacts, u32),
    Remove(EniFacts, u32),
}

pub(super) fn eni_worker(links: Arc<dyn Links>, me: mpsc::WeakUnboundedSender<Input>) -> mpsc::UnboundedSender<EniJob> {
    let (tx, mut jobs) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(job) = jobs.recv().await {
            let links = links.clone();
            let done = spawn_blocking(move || match job {
                EniJob::SetUp(eni, table) => Some((eni.id.clone(), links.set_up_eni(&eni, table).err())),
                EniJob::Remove(eni, table) => {
                    if let Err(error) = links.remove_eni(&eni, table) {
                        tracing::warn!(eni = eni.id, error, "the host's side of the interface could not be removed");
                    }
                    None
                }
            });
            if let Ok(Some((eni, error))) = done.await {
                if let Some(error) = &error {
                    tracing::warn!(eni, error, "the host's side of the interface could not be set up");
                }
                tell(&me, Input::Event(Event::EniReady { eni, error }));
            }
        }
    });
    tx
}

impl Actor {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { call, reply } => self.answer(call, reply),
            Effect::Persist { seq } => self.persist(seq),
            Effect::Ec2 { op, call } => self.call_ec2(op, call),
            Effect::Fence { ticket, target } => self.fence(ticket, target),
            Effect::TearDown { ticket, target } => {
                self.tears.waiting.push((ticket, target));
                self.tear_down();
            }
            Effect::CheckAlive { targets } => self.check_alive(targets),
            Effect::SetUpEni { eni, table } => drop(self.enis.send(EniJob::SetUp(eni, table))),
            Effect::RemoveEni { eni, table } => drop(self.enis.send(EniJob::Remove(eni, table))),
            Effect::Note(note) => self.note(&note),
        }
    }

    fn answer(&mut self, call: CallId, reply: Reply) {
        // A call that was cancelled has nobody waiting.
        let Some(waiting) = self.calls.remove(&call) else { return };
        if waiting.kind == Kind::Add {
            let cause = match &reply {
                Reply::Refused(error) => error.cause(),
                _ => "",
            };
            self.metrics.count("wipam_adds_total", &[("cause", cause)]);
            self.metrics.time("wipam_add_seconds", &[], waiting.since.elapsed());
            if !cause.is_empty() {
                self.metrics.count("awscni_no_available_ip_addresses", &[]);
            }
        }
        let _ = waiting.reply.send(reply);
    }

    fn persist(&mut self, seq: u64) {
        let write = self.store.prepare(&mut self.node, &self.clock);
        self.writing = true;
        let me = self.me.clone();
        spawn_blocking(move || {
            let watch = Stopwatch::start();
            let error = write.run().err().map(|e| e.to_string());
            tell(&me, Input::Written { seq, error, took: watch.elapsed() });
        });
    }

    fn call_ec2(&self, op: u64, call: Call) {
        let (cloud, me) = (self.cloud.clone(), self.me.clone());
        tokio::spawn(async move {
            let result = cloud.call(&call).await;
            if let Err(error) = &result {
                tracing::warn!(action = call.action(), %error, "an EC2 call failed");
            }
            tell(&me, Input::Event(Event::Ec2 { op, result }));
        });
    }

    fn fence(&self, ticket: u64, target: NetTarget) {
        let (links, me) = (self.links.clone(), self.me.clone());
        spawn_blocking(move || {
            let error = links.fence(&target).err();
            tell(&me, Input::Event(Event::Fenced { ticket, error }));
        });
    }

    fn tear_down(&mut self) {
        if self.tears.running || self.tears.waiting.is_empty() {
            return;
        }
        self.tears.running = true;
        let (tickets, targets): (Vec<_>, Vec<_>) = std::mem::take(&mut self.tears.waiting).into_iter().unzip();
        let (links, me) = (self.links.clone(), self.me.clone());
        spawn_blocking(move || {
            let results = links.tear_down(&targets);
            for (ticket, result) in tickets.into_iter().zip(results) {
                tell(&me, Input::Event(Event::TornDown { ticket, error: result.err() }));
            }
            let next = |actor: &mut Actor| {
                actor.tears.running = false;
                actor.tear_down();
            };
            tell(&me, Input::Ask(Box::new(next)));
        });
    }

    fn check_alive(&self, targets: Vec<NetTarget>) {
        let (links, me) = (self.links.clone(), self.me.clone());
        spawn_blocking(move || {
            for target in targets {
                let alive = links.alive(&target);
                tell(&me, Input::Event(Event::Liveness { key: target.key, alive }));
            }
        });
    }
}
