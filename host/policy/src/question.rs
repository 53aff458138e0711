//! The three functions of a policy as one shape, so that ladder, shadow and log are written once.

use wipam_core::policy::{
    AllocDecision, AllocateCall, Choice, CloudView, Fact, Given, Memo, PlanCall, PlanDecision, ReleaseCall, Retention,
    Slot, row_marks,
};

use crate::{
    digest::{Digest, InputsDigest},
    engine::Called,
    log::{Answered, CallKind},
    run::Runner,
};

/// One question to a policy.
pub(crate) trait Question {
    type Answer;
    const SLOT: Slot;
    const KIND: CallKind;

    fn given(&self) -> &Given;
    fn network(&self) -> &str;
    fn ask(&self, runner: &Runner) -> Called<Self::Answer>;
    /// The same, as a shadow is asked: with a memo of its own and no outcomes of plans that it did not make.
    fn ask_shadow(&self, runner: &Runner, memo: &Memo) -> Called<Self::Answer>;
    /// What the asked policy was shown.
    fn digest(&self, to: &mut InputsDigest, runner: &Runner) -> Digest;
    /// What is answered if even the twin fails.
    fn last_resort(&self) -> Self::Answer;
    fn answered(answer: &Self::Answer) -> Answered;
    fn words(answer: &Self::Answer) -> (&str, &[Fact]);
    fn memo(_answer: &Self::Answer) -> Option<&Memo> {
        None
    }
}

impl Question for AllocateCall {
    type Answer = AllocDecision;
    const SLOT: Slot = Slot::Allocator;
    const KIND: CallKind = CallKind::Allocate;

    fn given(&self) -> &Given {
        &self.given
    }
    fn network(&self) -> &str {
        &self.pool.pool.network
    }
    fn ask(&self, runner: &Runner) -> Called<AllocDecision> {
        runner.allocate(self)
    }
    fn ask_shadow(&self, runner: &Runner, _memo: &Memo) -> Called<AllocDecision> {
        runner.allocate(self)
    }
    fn digest(&self, to: &mut InputsDigest, runner: &Runner) -> Digest {
        to.allocate(self, &runner.settings)
    }
    /// The first row that is nobody else's: a pod should get an address if there is one.
    fn last_resort(&self) -> AllocDecision {
        let free = self.pool.rows.marks.iter().position(|marks| marks & row_marks::RESERVED_OTHER == 0);
        let choice = match free.and_then(|row| u32::try_from(row).ok()) {
            Some(row) => Choice::Assign(row),
            None => Choice::Hold(1_000),
        };
        AllocDecision { choice, reason: "no policy could answer".into(), facts: Vec::new() }
    }
    fn answered(answer: &AllocDecision) -> Answered {
        Answered::Allocate(answer.choice)
    }
    fn words(answer: &AllocDecision) -> (&str, &[Fact]) {
        (&answer.reason, &answer.facts)
    }
}

impl Question for ReleaseCall {
    type Answer = Retention;
    const SLOT: Slot = Slot::Allocator;
    const KIND: CallKind = CallKind::Release;

    fn given(&self) -> &Given {
        &self.given
    }
    fn network(&self) -> &str {
        &self.pool.network
    }
    fn ask(&self, runner: &Runner) -> Called<Retention> {
        runner.release(self)
    }
    fn ask_shadow(&self, runner: &Runner, _memo: &Memo) -> Called<Retention> {
        runner.release(self)
    }
    fn digest(&self, to: &mut InputsDigest, runner: &Runner) -> Digest {
        to.release(self, &runner.settings)
    }
    fn last_resort(&self) -> Retention {
        Retention { keep_for_ms: 0, reason: "no policy could answer".into(), facts: Vec::new() }
    }
    fn answered(answer: &Retention) -> Answered {
        Answered::Release(answer.keep_for_ms)
    }
    fn words(answer: &Retention) -> (&str, &[Fact]) {
        (&answer.reason, &answer.facts)
    }
}

impl Question for PlanCall {
    type Answer = (PlanDecision, Option<Memo>);
    const SLOT: Slot = Slot::Sizer;
    const KIND: CallKind = CallKind::Plan;

    fn given(&self) -> &Given {
        &self.given
    }
    fn network(&self) -> &str {
        &self.pool.pool.network
    }
    fn ask(&self, runner: &Runner) -> Called<Self::Answer> {
        runner.plan(self, &self.cloud, &self.memo).map(|plan| {
            let memo = runner.own(&plan);
            (plan, memo)
        })
    }
    fn ask_shadow(&self, runner: &Runner, memo: &Memo) -> Called<Self::Answer> {
        let cloud = CloudView { last: Vec::new(), ..self.cloud.clone() };
        runner.plan(self, &cloud, memo).map(|plan| {
            let memo = runner.own(&plan);
            (plan, memo)
        })
    }
    fn digest(&self, to: &mut InputsDigest, runner: &Runner) -> Digest {
        to.plan(self, &runner.settings, runner.memo(&self.memo))
    }
    fn last_resort(&self) -> Self::Answer {
        let plan = PlanDecision {
            recheck_ms: Some(5_000),
            reason: "no policy could answer".into(),
            ..PlanDecision::default()
        };
        (plan, None)
    }
    fn answered((plan, _): &Self::Answer) -> Answered {
        Answered::Plan { actions: plan.actions.clone(), recheck_ms: plan.recheck_ms }
    }
    fn words((plan, _): &Self::Answer) -> (&str, &[Fact]) {
        (&plan.reason, &plan.facts)
    }
    fn memo((_, memo): &Self::Answer) -> Option<&Memo> {
        memo.as_ref()
    }
}
