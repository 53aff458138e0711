//! The policy host: asks, falls back, asks the shadow, writes the log.
//!
//! [`PolicyHost`] belongs to the thread that runs core. [`PolicyControl`] is a handle for all others: swap, status,
//! decisions.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use arc_swap::ArcSwap;
use wipam_core::policy::{
    AllocDecision, AllocateCall, Answer, AnsweredBy, Memo, PlanCall, PlanDecision, Policies, ReleaseCall, Retention,
    Slot, Verdict,
};

use crate::{
    active::{ActiveSet, ActiveSlot, Candidate, Placed},
    config::Document,
    digest::{Digest, InputsDigest},
    engine::WasmEngine,
    fault::{Fault, FaultClass},
    gate::Refusal,
    ladder::{Ladder, LadderLimits, Step},
    load::{Files, Gatekeeper, NoFiles},
    log::{Answered, Decision, DecisionSink, PolicyId, Ring, ShadowAnswer},
    question::Question,
    settings::Environment,
    status::{PoliciesStatus, ShadowCounts, SlotStatus},
};

/// How a host logs and steps down.
#[derive(Clone)]
pub struct HostOptions {
    /// Decisions kept in memory; with 0 and without a sink no decision is logged, and no inputs are hashed.
    pub log_entries: usize,
    /// Hears of every decision.
    pub sink: Option<Arc<dyn DecisionSink>>,
    /// When to step down.
    pub ladder: LadderLimits,
    /// Nanoseconds since some moment, for the durations in the log. Nothing is decided by it.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for HostOptions {
    fn default() -> Self {
        let start = Instant::now();
        HostOptions {
            log_entries: 1024,
            sink: None,
            ladder: LadderLimits::default(),
            monotonic: Arc::new(move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        }
    }
}

impl HostOptions {
    /// No log, no digests, no durations: for fast replays.
    pub fn quiet() -> HostOptions {
        HostOptions { log_entries: 0, sink: None, ladder: LadderLimits::default(), monotonic: Arc::new(|| 0) }
    }
}

impl std::fmt::Debug for HostOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostOptions")
            .field("log_entries", &self.log_entries)
            .field("sink", &self.sink.is_some())
            .field("ladder", &self.ladder)
            .finish_non_exhaustive()
    }
}

/// What changes with every decision.
struct Inner {
    ladders: [Ladder; 2],
    ring: Ring,
    shadows: [ShadowCounts; 2],
    decisions: [u64; 2],
    faults: BTreeMap<(Slot, FaultClass), u64>,
    refusals: u64,
    last_refusal: Option<Refusal>,
}

struct Shared {
    active: ArcSwap<ActiveSet>,
    inner: Mutex<Inner>,
    options: HostOptions,
}

impl Shared {
    /// A thread that panicked while it held the lock left counters at worst one behind.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(slot: Slot) -> usize {
    match slot {
        Slot::Allocator => 0,
        Slot::Sizer => 1,
    }
}

/// A decision that may still be judged.
struct Recent {
    number: u64,
    slot: Slot,
    generation: u64,
    by: AnsweredBy,
    at_ms: u64,
}

/// Decisions that wait for a verdict; core judges each before it asks again, so few are ever needed.
const RECENT: usize = 256;

/// Answers core's questions. See the module's words.
pub struct PolicyHost {
    shared: Arc<Shared>,
    last_number: u64,
    recent: VecDeque<Recent>,
    inputs: InputsDigest,
    /// The shadow sizer's memo, with the generation of the shadow it belongs to.
    shadow_memo: (u64, Memo),
}

impl std::fmt::Debug for PolicyHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyHost").field("decisions", &self.last_number).finish_non_exhaustive()
    }
}

impl PolicyHost {
    /// With these policies in charge.
    pub fn new(candidate: &Candidate, options: HostOptions) -> PolicyHost {
        let ladder = Ladder::new(options.ladder, 1);
        let inner = Inner {
            ladders: [ladder.clone(), ladder],
            ring: Ring::new(options.log_entries),
            shadows: Default::default(),
            decisions: [0; 2],
            faults: BTreeMap::new(),
            refusals: 0,
            last_refusal: None,
        };
        PolicyHost {
            shared: Arc::new(Shared {
                active: ArcSwap::from_pointee(ActiveSet::first(candidate)),
                inner: Mutex::new(inner),
                options,
            }),
            last_number: 0,
            recent: VecDeque::with_capacity(RECENT),
            inputs: InputsDigest::default(),
            shadow_memo: (0, Memo::default()),
        }
    }

    /// Native twins alone, no engine: for the lab, and for machines without room for one.
    ///
    /// # Errors
    /// If the document names a component, or settings that do not fit.
    pub fn native(document: &Document, environment: Environment, options: HostOptions) -> Result<PolicyHost, Refusal> {
        let candidate = Gatekeeper::native(environment).vet_document(document, &NoFiles)?;
        Ok(PolicyHost::new(&candidate, options))
    }

    /// Components, as the document says.
    ///
    /// # Errors
    /// The refusal of the first gate that does not let a policy pass.
    pub fn wasm(
        engine: Arc<WasmEngine>,
        document: &Document,
        files: &dyn Files,
        environment: Environment,
        options: HostOptions,
    ) -> Result<PolicyHost, Refusal> {
        let candidate = Gatekeeper::new(engine, environment).vet_document(document, files)?;
        Ok(PolicyHost::new(&candidate, options))
    }

    /// A handle for other threads.
    pub fn control(&self) -> PolicyControl {
        PolicyControl { shared: self.shared.clone() }
    }

    /// For `wipam status`.
    pub fn status(&self) -> PoliciesStatus {
        self.control().status()
    }

    fn logs(&self) -> bool {
        self.shared.options.log_entries > 0 || self.shared.options.sink.is_some()
    }

    fn decide<Q: Question>(&mut self, question: &Q, native: bool) -> Answer<Q::Answer> {
        let set = self.shared.active.load_full();
        let slot = set.slot(Q::SLOT);
        let rung =
            if native { AnsweredBy::Native } else { self.shared.lock().ladders[index(Q::SLOT)].rung(slot.generation) };
        let asked = slot.on(rung);
        let started = (self.shared.options.monotonic)();
        let made = ask(question, slot, asked, rung);
        let duration_ns = (self.shared.options.monotonic)().saturating_sub(started);
        // A question put again as native was already put to the shadow.
        let shadow = if native { None } else { self.ask_shadow(question, slot, &made.answer) };
        self.last_number += 1;
        let number = self.last_number;
        self.remember(Recent {
            number,
            slot: Q::SLOT,
            generation: slot.generation,
            by: rung,
            at_ms: question.given().now_ms,
        });
        let decision = self.logs().then(|| {
            let shown = asked.unwrap_or(&slot.current);
            let runner = if asked.is_some() { shown.runner().0 } else { shown.twin().0 };
            let (reason, facts) = Q::words(&made.answer);
            Decision {
                number,
                at_ms: question.given().now_ms,
                network: question.network().to_owned(),
                slot: Q::SLOT,
                call: Q::KIND,
                inputs: Some(question.digest(&mut self.inputs, runner)),
                policy: made.id.clone(),
                by: made.by,
                asked_native: native,
                answer: Q::answered(&made.answer),
                reason: reason.to_owned(),
                facts: facts.to_vec(),
                fuel: made.fuel,
                duration_ns,
                fault: made.fault.clone(),
                verdict: None,
                shadow: shadow.clone(),
            }
        });
        let (by, answer) = (made.by, made.answer);
        self.record(Q::SLOT, number, made.fault, shadow, decision);
        Answer { decision: number, by, answer }
    }

    /// Puts the question to the shadow, if there is one. Its answer goes nowhere but into the log.
    fn ask_shadow<Q: Question>(&mut self, question: &Q, slot: &ActiveSlot, answer: &Q::Answer) -> Option<ShadowAnswer> {
        let shadow = slot.shadow.as_ref()?;
        let (runner, id) = shadow.runner();
        if Q::SLOT == Slot::Sizer && self.shadow_memo.0 != id.generation {
            self.shadow_memo = (id.generation, Memo::default());
        }
        let called = question.ask_shadow(runner, &self.shadow_memo.1);
        let mut said = ShadowAnswer {
            policy: id.clone(),
            answer: None,
            reason: String::new(),
            agrees: false,
            fuel: called.fuel,
            fault: None,
        };
        match called.answer {
            Ok(theirs) => {
                let theirs_answered = Q::answered(&theirs);
                said.agrees = same(&theirs_answered, &Q::answered(answer));
                said.answer = Some(theirs_answered);
                said.reason = Q::words(&theirs).0.to_owned();
                if let Some(memo) = Q::memo(&theirs) {
                    self.shadow_memo.1 = memo.clone();
                }
            }
            Err(fault) => said.fault = Some(fault),
        }
        Some(said)
    }

    fn remember(&mut self, recent: Recent) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
    }

    /// Counts a decision, steps down if it was one fault too many, logs.
    fn record(
        &mut self,
        slot: Slot,
        number: u64,
        fault: Option<Fault>,
        shadow: Option<ShadowAnswer>,
        decision: Option<Decision>,
    ) {
        {
            let mut inner = self.shared.lock();
            inner.decisions[index(slot)] += 1;
            if let Some(shadow) = &shadow {
                inner.shadows[index(slot)].count(shadow);
            }
        }
        if let Some(decision) = decision {
            if let Some(sink) = &self.shared.options.sink {
                sink.decided(&decision);
            }
            self.shared.lock().ring.push(decision);
        }
        if let Some(fault) = fault {
            self.fault_of(slot, number, &fault);
        }
    }

    /// A fault of decision `number`: counted, logged, and maybe a step down.
    fn fault_of(&mut self, slot: Slot, number: u64, fault: &Fault) {
        let Some(recent) = self.recent.iter().rev().find(|r| r.number == number && r.slot == slot) else {
            return;
        };
        let set = self.shared.active.load();
        let active = set.slot(slot);
        let step = {
            let mut inner = self.shared.lock();
            *inner.faults.entry((slot, fault.class)).or_default() += 1;
            if let Some(entry) = inner.ring.get_mut(number) {
                entry.fault.get_or_insert_with(|| fault.clone());
            }
            let ladder = &mut inner.ladders[index(slot)];
            ladder.fault(recent.generation, recent.by, recent.at_ms, active.last_good.is_some(), fault)
        };
        self.tell(slot, number, fault, &active.current, step);
    }

    fn tell(&self, slot: Slot, number: u64, fault: &Fault, current: &Placed, step: Option<Step>) {
        let name = &current.id.name;
        tracing::warn!(
            slot = slot.as_str(), policy = %name, decision = number, class = fault.class.as_str(), "policy fault: {}", fault.text
        );
        if let Some(sink) = &self.shared.options.sink {
            sink.faulted(slot, number, fault);
            if let Some(step) = &step {
                sink.stepped(slot, step);
            }
        }
        if let Some(step) = step {
            tracing::error!(
                slot = slot.as_str(), policy = %name, from = ?step.from, to = ?step.to,
                "too many policy faults; it is not asked again until it is swapped or reset"
            );
        }
    }
}

/// Whether a shadow answered the same; only what has effects counts.
fn same(a: &Answered, b: &Answered) -> bool {
    match (a, b) {
        (Answered::Plan { actions: a, .. }, Answered::Plan { actions: b, .. }) => a == b,
        _ => a == b,
    }
}

/// An answer with its history.
struct Made<'a, T> {
    answer: T,
    by: AnsweredBy,
    id: &'a Arc<PolicyId>,
    fuel: Option<u64>,
    fault: Option<Fault>,
}

/// Asks the policy on its rung; after a fault, or without one to ask, the twin. There always is an answer.
fn ask<'a, Q: Question>(
    question: &Q,
    slot: &'a ActiveSlot,
    asked: Option<&'a Placed>,
    rung: AnsweredBy,
) -> Made<'a, Q::Answer> {
    let (mut fuel, mut fault) = (None, None);
    if let Some(placed) = asked {
        let (runner, id) = placed.runner();
        let called = question.ask(runner);
        fuel = called.fuel;
        match called.answer {
            Ok(answer) => return Made { answer, by: rung, id, fuel, fault },
            Err(why) => fault = Some(why),
        }
    }
    let (twin, id) = asked.unwrap_or(&slot.current).twin();
    let answer = question.ask(twin).answer.unwrap_or_else(|why| {
        tracing::error!(slot = Q::SLOT.as_str(), policy = %id.name, "the native twin failed: {why}");
        fault.get_or_insert(why);
        question.last_resort()
    });
    Made { answer, by: AnsweredBy::Native, id, fuel, fault }
}

impl Policies for PolicyHost {
    fn allocate(&mut self, call: &AllocateCall, native: bool) -> Answer<AllocDecision> {
        self.decide(call, native)
    }

    fn release(&mut self, call: &ReleaseCall) -> Answer<Retention> {
        self.decide(call, false)
    }

    fn plan(&mut self, call: &PlanCall, native: bool) -> Answer<(PlanDecision, Option<Memo>)> {
        self.decide(call, native)
    }

    fn verdict(&mut self, slot: Slot, decision: u64, verdict: Verdict) {
        if let Some(sink) = &self.shared.options.sink {
            sink.judged(slot, decision, &verdict);
        }
        let refused = match &verdict {
            Verdict::Refused { guard, why } => Some(Fault::new(FaultClass::Refused, &format!("guard {guard}: {why}"))),
            _ => None,
        };
        if self.shared.options.log_entries > 0
            && let Some(entry) = self.shared.lock().ring.get_mut(decision)
        {
            entry.verdict = Some(verdict);
        }
        if let Some(fault) = refused {
            self.fault_of(slot, decision, &fault);
        }
    }

    fn fault(&mut self, slot: Slot, decision: u64, why: &str) {
        self.fault_of(slot, decision, &Fault::new(FaultClass::Starves, why));
    }
}

/// A handle to a [`PolicyHost`] for other threads.
#[derive(Clone)]
pub struct PolicyControl {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for PolicyControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyControl").finish_non_exhaustive()
    }
}

/// What a swap did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Generation of what changed.
    pub generation: u64,
    /// Slots whose policy or settings changed. A slot that did not keeps its generation and its rung.
    pub changed: Vec<Slot>,
}

impl PolicyControl {
    /// Puts vetted policies in charge, all at once. Decisions in flight finish on what they began with.
    pub fn swap(&self, candidate: &Candidate) -> Swapped {
        let mut inner = self.shared.lock();
        let old = self.shared.active.load_full();
        let (next, changed) = {
            let rung = |slot| inner.ladders[index(slot)].rung(old.slot(slot).generation);
            old.next(candidate, rung)
        };
        let generation = next.generation;
        for slot in [Slot::Allocator, Slot::Sizer] {
            let shadow = |set: &ActiveSet| set.slot(slot).shadow.as_ref().map(|s| s.id.clone());
            if shadow(&old) != shadow(&next) {
                inner.shadows[index(slot)] = ShadowCounts::default();
            }
        }
        self.shared.active.store(Arc::new(next));
        for slot in &changed {
            inner.ladders[index(*slot)].reset(generation);
        }
        inner.last_refusal = None;
        tracing::info!(generation, ?changed, "policies swapped");
        Swapped { generation, changed }
    }

    /// Notes that a candidate was refused; what is in charge stays.
    pub fn refused(&self, refusal: Refusal) {
        tracing::error!(gate = refusal.gate.as_str(), policy = %refusal.policy, "{refusal}");
        let mut inner = self.shared.lock();
        inner.refusals += 1;
        inner.last_refusal = Some(refusal);
    }

    /// Swaps, or notes the refusal.
    ///
    /// # Errors
    /// The refusal, given back.
    pub fn apply(&self, loaded: Result<Candidate, Refusal>) -> Result<Swapped, Refusal> {
        match loaded {
            Ok(candidate) => Ok(self.swap(&candidate)),
            Err(refusal) => {
                self.refused(refusal.clone());
                Err(refusal)
            }
        }
    }

    /// Puts a slot's policy back in charge after its ladder stepped down: an operator says so.
    pub fn reset(&self, slot: Slot) {
        let mut inner = self.shared.lock();
        let generation = self.shared.active.load().slot(slot).generation;
        inner.ladders[index(slot)].reset(generation);
        tracing::info!(slot = slot.as_str(), "the ladder was reset");
    }

    /// The last `n` decisions, oldest first.
    pub fn decisions(&self, n: usize) -> Vec<Decision> {
        self.shared.lock().ring.last(n)
    }

    /// Digest of the component in charge of a slot; none if it is native.
    pub fn digest(&self, slot: Slot) -> Option<Digest> {
        self.shared.active.load().slot(slot).current.vetted.digest
    }

    /// For `wipam status`.
    pub fn status(&self) -> PoliciesStatus {
        let inner = self.shared.lock();
        let set = self.shared.active.load();
        let slot = |slot: Slot| {
            let ladder = &inner.ladders[index(slot)];
            SlotStatus::of(slot, set.slot(slot), ladder, inner.decisions[index(slot)], &inner.shadows[index(slot)])
        };
        PoliciesStatus {
            generation: set.generation,
            allocator: slot(Slot::Allocator),
            sizer: slot(Slot::Sizer),
            faults: inner
                .faults
                .iter()
                .map(|((slot, class), n)| (format!("{}/{}", slot.as_str(), class.as_str()), *n))
                .collect(),
            warnings: set.warnings.clone(),
            refusals: inner.refusals,
            last_refusal: inner.last_refusal.clone(),
        }
    }
}
