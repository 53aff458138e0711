//! Policies in service: faults, ladder, swaps, shadow, log.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use wipam_core::policy::{Answer, AnsweredBy, Choice, Memo, PlanDecision, Policies, SkippedAction, Slot, Verdict};
use wipam_policy::{
    Candidate, Decision, DecisionSink, Document, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyHost,
    Vetted, WasmEngine,
    config::PolicySpec,
    fault::{Fault, FaultClass},
    ladder::Step,
    load::NoFiles,
    log::{Answered, CallKind},
};
use wipam_policy_fixtures::{Expect, hostile};

use crate::world::{allocate, document, engine, gatekeeper, plan, release, wasm, written};

fn shipped(slot: Slot, name: &str) -> Arc<Vetted> {
    gatekeeper().vet(slot, false, &PolicySpec::named(name), &NoFiles).unwrap()
}

fn vetted_hostile(slot: Slot, mode: &'static str) -> Arc<Vetted> {
    let fixture = hostile(mode, "victim", Expect::Faults);
    // As sizer it misbehaves while an ADD waits, and the canary has such snapshots.
    let keeper = if slot == Slot::Sizer { gatekeeper().without_canary() } else { gatekeeper() };
    keeper.vet_bytes(slot, mode, &fixture.bytes, &written(&fixture)).unwrap()
}

/// A host whose allocator and sizer do `mode` to the pod "victim", or while an ADD waits.
fn hostile_host(mode: &'static str) -> PolicyHost {
    let candidate = Candidate::of(vetted_hostile(Slot::Allocator, mode), vetted_hostile(Slot::Sizer, mode));
    PolicyHost::new(&candidate, HostOptions::default())
}

const CRASHES: [(&str, FaultClass); 5] = [
    ("trap", FaultClass::Panic),
    ("loop", FaultClass::Fuel),
    ("recurse", FaultClass::Memory),
    ("grow-memory", FaultClass::Panic),
    ("long-reason", FaultClass::Unreadable),
];

#[test]
fn a_fault_is_typed_and_the_twin_answers_this_call() {
    let native = wasm("policy: { native: default }").allocate(&allocate("victim", 1_000), false).answer;
    for (mode, class) in
        CRASHES.into_iter().chain([("row-out-of-range", FaultClass::Shape), ("error", FaultClass::Declined)])
    {
        let mut host = hostile_host(mode);
        let fine = host.allocate(&allocate("other", 1_000), false);
        assert_eq!(fine.by, AnsweredBy::Policy, "{mode}");
        let answer = host.allocate(&allocate("victim", 1_000), false);
        assert_eq!((answer.by, &answer.answer), (AnsweredBy::Native, &native), "{mode}");
        let log = host.control().decisions(1).remove(0);
        assert_eq!(log.fault.as_ref().unwrap().class, class, "{mode}: {:?}", log.fault);
        assert_eq!((log.policy.name.as_str(), log.policy.digest), ("default", None), "{mode}");
        assert!(log.fuel.is_some_and(|fuel| fuel > 0), "{mode}: the failed component's fuel is kept");
        assert!(class.replayable());
        let status = host.status();
        assert_eq!((status.allocator.faults, status.allocator.rung), (1, AnsweredBy::Policy));
        assert_eq!(status.faults[&format!("allocator/{}", class.as_str())], 1);
    }
}

#[test]
fn a_sizers_faults_are_typed_too() {
    for (mode, class) in
        CRASHES.into_iter().chain([("many-actions", FaultClass::Caps), ("error", FaultClass::Declined)])
    {
        let mut host = hostile_host(mode);
        assert_eq!(host.plan(&plan(0, 1_000), false).by, AnsweredBy::Policy, "{mode}");
        assert_eq!(host.plan(&plan(1, 1_000), false).by, AnsweredBy::Native, "{mode}");
        let fault = host.control().decisions(1).remove(0).fault.unwrap();
        assert_eq!(fault.class, class, "{mode}: {fault}");
    }
}

#[test]
fn deep_recursion_is_safe_on_a_small_stack() {
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(|| {
        let mut host = hostile_host("recurse");
        host.allocate(&allocate("victim", 1), false).by
    });
    assert_eq!(thread.unwrap().join().unwrap(), AnsweredBy::Native);
}

#[test]
fn the_same_fault_costs_the_same_fuel_every_time() {
    let mut host = hostile_host("loop");
    for n in 0..2 {
        host.allocate(&allocate("victim", n * 100_000), false);
    }
    let log = host.control().decisions(2);
    assert_eq!(log[0].fuel, log[1].fuel);
    assert_eq!(log[0].fuel, Some(EngineLimits::default().fuel));
}

#[test]
fn the_ladder_goes_to_last_good_then_native_and_an_operator_leads_back() {
    let good = Candidate::of(shipped(Slot::Allocator, "sticky-podref"), shipped(Slot::Sizer, "default"));
    let mut host = PolicyHost::new(&good, HostOptions::default());
    let control = host.control();
    let bad = Candidate::of(vetted_hostile(Slot::Allocator, "trap"), shipped(Slot::Sizer, "default"));
    let swapped = control.swap(&bad);
    assert_eq!(swapped.changed, [Slot::Allocator], "the sizer is the same and stays");
    // Two faults, a pause longer than the window, then three.
    let mut by = |now| host.allocate(&allocate("victim", now), false).by;
    for now in [0, 1, 70_000, 70_001] {
        assert_eq!(by(now), AnsweredBy::Native);
    }
    assert_eq!(control.status().allocator.rung, AnsweredBy::Policy);
    assert_eq!(by(129_999), AnsweredBy::Native, "the third in a minute");
    let status = control.status().allocator;
    assert_eq!((status.rung, status.faults, status.name.as_str()), (AnsweredBy::LastGood, 5, "hostile"));
    assert_eq!(status.last_good.unwrap().name, "sticky-podref");
    assert_eq!(status.step.unwrap().at_ms, 129_999);
    assert_eq!(by(130_000), AnsweredBy::LastGood);
    assert_eq!(control.decisions(1)[0].policy.name, "sticky-podref");
    control.reset(Slot::Allocator);
    assert_eq!(by(140_000), AnsweredBy::Native, "asked again, fails again");
    // The same policy again changes nothing; another does.
    assert_eq!(control.swap(&bad).changed, []);
    assert_eq!(control.swap(&good).changed, [Slot::Allocator]);
    assert_eq!(by(150_000), AnsweredBy::Policy);
}

#[test]
fn the_last_good_may_fail_too() {
    let first = Candidate::of(vetted_hostile(Slot::Allocator, "trap"), shipped(Slot::Sizer, "default"));
    let mut host = PolicyHost::new(&first, HostOptions::default());
    host.control().swap(&Candidate::of(vetted_hostile(Slot::Allocator, "loop"), shipped(Slot::Sizer, "default")));
    for now in 0..6 {
        host.allocate(&allocate("victim", now), false);
    }
    let status = host.status().allocator;
    assert_eq!(status.rung, AnsweredBy::Native);
    assert_eq!(host.allocate(&allocate("other", 7), false).by, AnsweredBy::Native, "until an operator acts");
    assert_eq!(status.native_twin, "default");
}

#[test]
fn refusals_of_the_guard_and_starvation_step_down_and_native_answers_do_not_count() {
    let mut host = hostile_host("same-row");
    let refuse = || Verdict::Refused { guard: 3, why: "cooling".into() };
    for now in 0..2 {
        let answer = host.allocate(&allocate("victim", now), false);
        host.verdict(Slot::Allocator, answer.decision, refuse());
        // Core asks again for the native answer; what the guard says of that is not the policy's fault.
        let again = host.allocate(&allocate("victim", now), true);
        assert_eq!(again.by, AnsweredBy::Native);
        host.verdict(Slot::Allocator, again.decision, refuse());
    }
    assert_eq!(host.status().allocator.rung, AnsweredBy::Policy);
    let answer = host.allocate(&allocate("victim", 5), false);
    host.fault(Slot::Allocator, answer.decision, "hold past half the deadline");
    let status = host.status().allocator;
    assert_eq!((status.rung, status.faults), (AnsweredBy::Native, 3));
    assert_eq!(status.last_fault.unwrap().1.class, FaultClass::Starves);
    let log = host.control().decisions(5);
    assert_eq!(log[0].fault.as_ref().unwrap().class, FaultClass::Refused);
    assert_eq!(log[0].verdict, Some(refuse()));
}

#[test]
fn both_slots_have_ladders_of_their_own() {
    let mut host = hostile_host("trap");
    for now in 0..3 {
        host.plan(&plan(1, now), false);
    }
    let status = host.status();
    assert_eq!((status.allocator.rung, status.sizer.rung), (AnsweredBy::Policy, AnsweredBy::Native));
}

#[test]
fn the_shadow_is_asked_counted_and_never_used() {
    let mut alone = wasm("policy: default");
    let fixture = hostile("same-row", "victim", Expect::Legal);
    let shadow = gatekeeper().vet_bytes(Slot::Allocator, "shadow", &fixture.bytes, &written(&fixture)).unwrap();
    let base = Candidate::of(shipped(Slot::Allocator, "default"), shipped(Slot::Sizer, "default"));
    let candidate =
        base.with_shadow(Slot::Allocator, shadow).with_shadow(Slot::Sizer, shipped(Slot::Sizer, "warm-ip-target"));
    let mut host = PolicyHost::new(&candidate, HostOptions::default());
    for now in 1..20 {
        let name = if now % 2 == 0 { "victim" } else { "web-0" };
        assert_eq!(host.allocate(&allocate(name, now), false), alone.allocate(&allocate(name, now), false));
        assert_eq!(host.plan(&plan(now as u32 % 3, now), false), alone.plan(&plan(now as u32 % 3, now), false));
    }
    let counts = host.status().allocator.shadow.unwrap().counts;
    assert_eq!(counts.asked, 19);
    assert_eq!(counts.agreed + counts.differed, 19);
    let log = host.control().decisions(2);
    assert!(log.iter().all(|d| d.shadow.is_some()));
    // A native answer that core asks for is not shadowed again.
    host.allocate(&allocate("victim", 99), true);
    assert_eq!(host.status().allocator.shadow.unwrap().counts.asked, 19);
}

#[test]
fn a_crashing_shadow_hurts_nobody() {
    let base = Candidate::of(shipped(Slot::Allocator, "default"), shipped(Slot::Sizer, "default"));
    let mut host = PolicyHost::new(
        &base.with_shadow(Slot::Allocator, vetted_hostile(Slot::Allocator, "trap")),
        HostOptions::default(),
    );
    for now in 0..10 {
        assert_eq!(host.allocate(&allocate("victim", now), false).by, AnsweredBy::Policy);
    }
    let status = host.status().allocator;
    assert_eq!((status.rung, status.faults, status.shadow.unwrap().counts.faults), (AnsweredBy::Policy, 0, 10));
}

#[test]
fn a_memo_goes_only_to_its_owner() {
    use wipam_policy::native::NativePolicy;
    struct Counter;
    impl wipam_policy_sdk::Policy for Counter {
        fn describe() -> wipam_policy_sdk::types::Metadata {
            let mut about = wipam_policy_sdk::knob::metadata("counter", "1", "counts");
            about.memo_schema = 2;
            about
        }
    }
    impl wipam_policy_sdk::Sizer for Counter {
        fn plan(
            _: &wipam_policy_sdk::types::Given,
            _: &wipam_policy_sdk::types::Snapshot,
            _: &wipam_policy_sdk::sizing::Demand,
            cloud: &wipam_policy_sdk::sizing::Cloud,
            memo: &[u8],
        ) -> Result<wipam_policy_sdk::sizing::Decision, String> {
            let reason = format!("{memo:?} {}", cloud.last.len());
            let mut said = wipam_policy_sdk::sizing::Decision::new(Vec::new(), reason);
            said.memo = Some(vec![memo.first().map_or(1, |n| n + 1)]);
            Ok(said)
        }
    }
    let counter = gatekeeper().vet_native(Slot::Sizer, NativePolicy::sizer::<Counter>(), &Default::default()).unwrap();
    let base = Candidate::of(shipped(Slot::Allocator, "default"), counter.clone());
    let mut host = PolicyHost::new(&base.with_shadow(Slot::Sizer, counter), HostOptions::default());
    let mut ask = |memo: Memo| {
        let Answer { answer: (PlanDecision { reason, .. }, memo), .. } =
            host.plan(&wipam_core::policy::PlanCall { memo, ..plan(0, 1) }, false);
        (reason, memo.unwrap())
    };
    let memo = |policy: &str, schema| Memo { policy: policy.into(), schema, bytes: vec![41] };
    assert_eq!(ask(memo("counter", 2)), ("[41] 2".into(), Memo { bytes: vec![42], ..memo("counter", 2) }));
    for other in [memo("other", 2), memo("counter", 1), Memo::default()] {
        assert_eq!(ask(other).0, "[] 2");
    }
    // The shadow has seen four calls with its own memo, and never a `last`.
    let shadows: Vec<_> = host.control().decisions(4).into_iter().map(|d| d.shadow.unwrap().reason).collect();
    assert_eq!(shadows, ["[] 0", "[1] 0", "[2] 0", "[3] 0"]);
}

#[test]
fn a_swap_under_load_is_whole_and_no_call_fails() {
    // Each allocator knows itself by its reason; code and settings must never be mixed.
    let sets: Vec<Candidate> = ["10m", "20m"]
        .map(|keep| {
            let doc = document(&format!("allocator: {{ name: sticky-podref, settings: {{ keep-for: {keep} }} }}\n"));
            gatekeeper().vet_document(&doc, &NoFiles).unwrap()
        })
        .into();
    let mut host = PolicyHost::new(&sets[0], HostOptions::default());
    let control = host.control();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, control) = (stop.clone(), control.clone());
        std::thread::spawn(move || {
            let mut swaps = 0;
            while !stop.load(Ordering::Relaxed) {
                control.swap(&sets[(swaps + 1) % 2]);
                control.status();
                swaps += 1;
            }
            swaps
        })
    };
    for now in 0..2_000 {
        assert_eq!(host.allocate(&allocate("web-0", now), false).by, AnsweredBy::Policy);
        let keep = host.release(&release(now)).answer.keep_for_ms;
        assert!([600_000, 1_200_000].contains(&keep), "{keep}");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swapper.join().unwrap() > 0);
    for decision in control.decisions(1024).iter().filter(|d| d.call == CallKind::Release) {
        // Odd generations have 10 min, even ones 20 min.
        let expected = if decision.policy.generation % 2 == 1 { 600_000 } else { 1_200_000 };
        assert_eq!(decision.answer, Answered::Release(expected));
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl DecisionSink for Heard {
    fn decided(&self, decision: &Decision) {
        self.0.lock().unwrap().push(format!("decided {}", decision.number));
    }
    fn judged(&self, _: Slot, number: u64, verdict: &Verdict) {
        self.0.lock().unwrap().push(format!("judged {number} {}", matches!(verdict, Verdict::Partly(_))));
    }
    fn faulted(&self, _: Slot, number: u64, fault: &Fault) {
        self.0.lock().unwrap().push(format!("fault {number} {}", fault.class.as_str()));
    }
    fn stepped(&self, _: Slot, step: &Step) {
        self.0.lock().unwrap().push(format!("stepped {:?}", step.to));
    }
}

#[test]
fn the_sink_hears_all_and_the_log_is_json() {
    let heard = Arc::new(Heard::default());
    let candidate = Candidate::of(vetted_hostile(Slot::Allocator, "trap"), shipped(Slot::Sizer, "default"));
    let options = HostOptions { sink: Some(heard.clone()), log_entries: 2, ..HostOptions::default() };
    let mut host = PolicyHost::new(&candidate, options);
    for now in 0..3 {
        host.allocate(&allocate("victim", now), false);
    }
    let partly = Verdict::Partly(vec![SkippedAction { action: 0, guard: 7, why: "limit".into() }]);
    let answer = host.plan(&plan(1, 3), false);
    host.verdict(Slot::Sizer, answer.decision, partly.clone());
    let all = heard.0.lock().unwrap().clone();
    assert_eq!(
        all,
        [
            "decided 1",
            "fault 1 panic",
            "decided 2",
            "fault 2 panic",
            "decided 3",
            "fault 3 panic",
            "stepped Native",
            "decided 4",
            "judged 4 true"
        ]
    );
    let log = host.control().decisions(10);
    assert_eq!(log.iter().map(|d| d.number).collect::<Vec<_>>(), [3, 4], "a ring of two");
    assert_eq!(log[1].verdict, Some(partly));
    let text = serde_json::to_string(&log).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Decision>>(&text).unwrap(), log);
    serde_json::to_string(&host.status()).unwrap();
}

#[test]
fn the_inputs_digest_tells_equal_inputs_from_others() {
    let mut host = wasm("policy: default");
    let mut digest = |call| {
        host.allocate(&call, false);
        host.control().decisions(1).remove(0).inputs.unwrap()
    };
    let base = digest(allocate("web-0", 5));
    assert_eq!(base, digest(allocate("web-0", 5)));
    let mut seen = vec![base];
    let mut changed = |change: fn(&mut wipam_core::policy::AllocateCall)| {
        let mut call = allocate("web-0", 5);
        change(&mut call);
        let digest = digest(call);
        assert!(!seen.contains(&digest));
        seen.push(digest);
    };
    changed(|c| c.given.now_ms += 1);
    changed(|c| c.given.seed += 1);
    changed(|c| c.pool.rows.free_since_ms[0] += 1);
    changed(|c| c.pool.rows.marks[1] ^= 16);
    changed(|c| c.request.pod.uid.push('x'));
    changed(|c| c.pool.enis[0].id.push('x'));
    changed(|c| c.pool.counts.held += 1);
}

#[test]
fn answers_are_equal_in_fresh_instances_and_engines() {
    let other = WasmEngine::new(EngineLimits::default()).unwrap();
    let keeper = Gatekeeper::new(other, Environment::default());
    let candidate = keeper.vet_document(&Document::default(), &NoFiles).unwrap();
    let mut hosts = [wasm(""), PolicyHost::new(&candidate, HostOptions::default())];
    let mut logs = Vec::new();
    for host in &mut hosts {
        for now in 0..3 {
            host.allocate(&allocate("web-0", now), false);
            host.plan(&plan(1, now), false);
        }
        let strip = |d: Decision| Decision { duration_ns: 0, ..d };
        logs.push(host.control().decisions(6).into_iter().map(strip).collect::<Vec<_>>());
    }
    assert_eq!(logs[0], logs[1], "answers and fuel");
}

#[test]
fn quiet_hosts_log_nothing_and_answer_the_same() {
    let doc = document("policy: default");
    let mut quiet = PolicyHost::native(&doc, Environment::default(), HostOptions::quiet()).unwrap();
    let mut loud = wasm("policy: default");
    let call = allocate("web-0", 9);
    assert_eq!(quiet.allocate(&call, false).answer, loud.allocate(&call, false).answer);
    assert_eq!(quiet.control().decisions(9), []);
    assert_eq!(quiet.status().allocator.decisions, 1);
}

#[test]
fn a_stranger_has_as_twin_what_its_slot_would_run_unnamed() {
    let env = Environment::from_pairs([("WARM_IP_TARGET", "3")]);
    let fixture = hostile("none", "", Expect::Legal);
    let keeper = Gatekeeper::new(engine(), env);
    let vet = |slot| keeper.vet_bytes(slot, "mine", &fixture.bytes, &written(&fixture)).unwrap();
    let host = PolicyHost::new(&Candidate::of(vet(Slot::Allocator), vet(Slot::Sizer)), HostOptions::default());
    let status = host.status();
    assert_eq!(status.sizer.native_twin, "warm-ip-target");
    assert_eq!(status.allocator.native_twin, "default");
}

#[test]
fn a_refused_candidate_changes_nothing_but_the_status() {
    let mut host = wasm("policy: default");
    let control = host.control();
    let before = control.status();
    let bad = document("sizer: { name: warm-ip-target, settings: { warm: -1 } }\n");
    control.apply(gatekeeper().vet_document(&bad, &NoFiles)).unwrap_err();
    let after = control.status();
    assert_eq!((after.generation, after.refusals), (before.generation, 1));
    assert_eq!(after.last_refusal.unwrap().cause, "warm: -1 is below 0");
    assert!(matches!(host.allocate(&allocate("web-0", 1), false).answer.choice, Choice::Assign(_)));
    control.apply(gatekeeper().vet_document(&document(""), &NoFiles)).unwrap();
    assert_eq!(control.status().last_refusal, None);
}

#[test]
fn variables_without_effect_are_warned_of() {
    let env = Environment::from_pairs([("WARM_ENI_TARGET", "2"), ("WARM_IP_TARGET", "3")]);
    let host = PolicyHost::native(&document(""), env.clone(), HostOptions::quiet()).unwrap();
    let status = host.status();
    assert_eq!(status.sizer.name, "warm-ip-target");
    assert_eq!(
        status.warnings,
        ["WARM_ENI_TARGET=2 has no effect: it is for the policy default, and the sizer is warm-ip-target"]
    );
    let warm = status.sizer.settings.iter().find(|s| s.name == "warm").unwrap();
    assert_eq!(warm.value, wipam_core::policy::SettingValue::Integer(3));
    let doc = document("sizer: { native: warm-ip-target, settings: { warm: 9 } }");
    let host = PolicyHost::native(&doc, env, HostOptions::quiet()).unwrap();
    assert_eq!(host.status().warnings[1], "WARM_IP_TARGET=3 has no effect: the document sets sizer.settings.warm");
}
