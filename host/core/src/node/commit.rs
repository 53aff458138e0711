//! What waits for the checkpoint: replies, intents, tear-downs. One write serves all that wait for it, and nothing that
//! needs it happens before it is on disk (guard 14).

use super::Node;
use crate::event::{AddError, CallId, Effect, Ms, Reply};
use crate::guard::g14_committed;
use crate::lease::Phase;
use crate::pool::LeaseNo;

/// After a failed write without new ADDs, try again so late.
const RETRY: Ms = 1_000;

/// State of the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Number of the last write that was asked for.
    issued: u64,
    /// Number of the last good write.
    committed: u64,
    outstanding: bool,
    dirty: bool,
    /// Something urgent waits: a failed write is tried again at once.
    urgent: bool,
    pub(super) retry_at: Option<Ms>,
    /// Why the last write failed.
    pub(super) failing: Option<String>,
    acks: Vec<(u64, Ack)>,
    /// Writes and what they served, for the group-commit metric.
    pub(super) writes: u64,
    pub(super) served: u64,
}

/// What follows a commit.
#[derive(Debug)]
pub(super) enum Ack {
    /// A new lease.
    Lease(LeaseNo),
    /// An answer that says something is recorded; a failed commit is told as storage error.
    Add(CallId, Reply),
    /// A DEL's or GC's answer, which is success either way: what is undone stays pending.
    Ended(CallId, Reply),
    /// A tear-down may begin.
    TearDown(u64),
    /// An EC2 call may begin.
    Intent(u64),
}

impl Node {
    /// The state changed; it belongs into the next checkpoint.
    pub(super) fn dirty(&mut self) {
        self.commit.dirty = true;
    }

    /// No checkpoint was ever asked for, and none is due.
    pub(super) fn nothing_to_write(&self) -> bool {
        self.commit.issued == 0 && !self.commit.dirty
    }

    /// Something is to happen after the next checkpoint, which holds all that was changed until now.
    pub(super) fn after_commit(&mut self, ack: Ack) {
        self.commit.dirty = true;
        self.commit.urgent = true;
        self.commit.acks.push((self.commit.issued + 1, ack));
    }

    /// The number of the checkpoint that will hold what is changed now.
    pub(super) fn commit_seq(&self) -> u64 {
        self.commit.issued + 1
    }

    pub(super) fn issue_commit(&mut self, now: Ms) {
        let c = &mut self.commit;
        if !c.dirty || c.outstanding {
            return;
        }
        if !c.urgent && c.retry_at.is_some_and(|at| now < at) {
            return;
        }
        c.issued += 1;
        c.outstanding = true;
        c.dirty = false;
        c.urgent = false;
        c.retry_at = None;
        self.out.push(Effect::Persist { seq: c.issued });
    }

    pub(super) fn on_persisted(&mut self, now: Ms, seq: u64, error: Option<String>) {
        if seq != self.commit.issued || !self.commit.outstanding {
            return;
        }
        self.commit.outstanding = false;
        self.commit.failing = error.clone();
        if error.is_none() {
            self.commit.committed = seq;
            self.commit.writes += 1;
        }
        let (due, later) = std::mem::take(&mut self.commit.acks).into_iter().partition(|(need, _)| *need <= seq);
        self.commit.acks = later;
        for (need, ack) in due {
            match &error {
                None => {
                    debug_assert!(g14_committed(need, self.commit.committed).is_ok());
                    self.commit.served += 1;
                    self.committed(now, ack);
                }
                Some(why) => self.not_committed(now, ack, why),
            }
        }
        if error.is_some() {
            self.commit.dirty = true;
            self.commit.urgent = false;
            self.commit.retry_at = Some(now + RETRY);
        }
    }

    fn committed(&mut self, now: Ms, ack: Ack) {
        match ack {
            Ack::Lease(no) => self.lease_committed(no),
            Ack::Add(call, reply) | Ack::Ended(call, reply) => self.reply(call, reply),
            Ack::TearDown(ticket) => self.tear_now(now, ticket),
            Ack::Intent(op) => self.op_may_call(now, op),
        }
    }

    fn lease_committed(&mut self, no: LeaseNo) {
        let Some(lease) = self.leases.get_mut(no) else { return };
        let Phase::Committing { calls, .. } = std::mem::replace(&mut lease.phase, Phase::Active) else { return };
        let reply = Reply::Added { addresses: lease.given(), host_ifname: lease.host_ifname.clone() };
        for call in calls {
            self.reply(call, reply.clone());
        }
    }

    fn not_committed(&mut self, now: Ms, ack: Ack, why: &str) {
        let error = AddError::Storage { error: why.into() };
        match ack {
            Ack::Lease(no) => {
                let calls = self.undo_lease(no);
                self.refuse(now, &calls, &error);
            }
            Ack::Add(call, _) => self.refuse(now, &[call], &error),
            // The caller hears success; the address stays out of use until a good commit holds the end of its lease.
            Ack::Ended(call, reply) => self.reply(call, reply),
            later @ (Ack::TearDown(_) | Ack::Intent(_)) => self.commit.acks.push((self.commit.issued + 1, later)),
        }
    }

    /// Takes back a lease that nobody was told of; says which calls waited for it.
    pub(super) fn undo_lease(&mut self, no: LeaseNo) -> Vec<CallId> {
        let Some(lease) = self.leases.remove(no) else { return Vec::new() };
        let Phase::Committing { calls, before, from, .. } = lease.phase else {
            return Vec::new();
        };
        let network = lease.key.network.clone();
        if let Some(old) = from {
            self.tombs.remove(&old.key);
            self.leases.insert(*old);
        }
        for (address, state) in lease.addresses.iter().zip(before) {
            self.lease_set_state(&network, address.set, address.addr(), state);
        }
        self.commit.acks.retain(|(_, ack)| !matches!(ack, Ack::Lease(n) if *n == no));
        self.dirty();
        calls
    }
}
