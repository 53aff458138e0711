//! Records made as ipamd makes them, in virtual time, and what a replay says of them: identical where nothing changed,
//! the first difference where something did, up to the cut where they are cut.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::atomic::AtomicBool;

use wipam_core::policy::{SettingValue, Slot};
use wipam_core::record::{Line, Writer};
use wipam_lab::burst::day;
use wipam_lab::pick::Source;
use wipam_lab::replay::played::parting;
use wipam_lab::replay::proof::{Proof, prove};
use wipam_lab::replay::reading::{End, Recording};
use wipam_lab::replay::world::{Choice, play};
use wipam_lab::replay::{Collector, Shelf, Watch, in_charge};
use wipam_lab::sim::{NodeSim, Tape};
use wipam_policy::load::NoFiles;
use wipam_policy::{Candidate, Document, EngineLimits, Environment, Gatekeeper, HostOptions, PolicyHost, WasmEngine};
use wipam_policy_fixtures as fixtures;
use wipam_vpc_sim::model::{InstanceConfig, SubnetConfig, Timing, Vpc, VpcConfig};

static NEVER: AtomicBool = AtomicBool::new(false);

fn watch() -> Watch<'static> {
    Watch { stop: &NEVER, progress: &|_| {} }
}

fn bytes(lines: &[Line]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for line in lines {
        writer.line(line).unwrap();
    }
    writer.into_inner()
}

/// Through the file format, as a record really comes.
fn recording(lines: &[Line]) -> Recording {
    Recording::from_lines(BufReader::new(bytes(lines).as_slice())).unwrap()
}

fn proof(recording: &Recording, native: bool) -> Proof {
    let shelf = Shelf::new(native, Vec::new()).unwrap();
    prove(recording, &shelf, native, &watch()).unwrap()
}

fn a_day() -> Recording {
    recording(&day("m5.large", 20, 40).unwrap())
}

#[test]
fn a_day_with_a_swap_and_a_kill_is_proven_identical() {
    let recording = a_day();
    let headers = recording.lines.iter().filter(|l| matches!(l, Line::Header(_))).count();
    assert_eq!(headers, 3, "begin, swap, begin again");
    let proof = proof(&recording, false);
    assert!(proof.identical(), "{:?}", proof.first);
    assert!(proof.from_start && proof.compared > 100, "{proof:?}");
    assert_eq!(proof.pod_events, recording.events().1);
}

#[test]
fn native_twins_give_the_same_decisions() {
    let recording = a_day();
    let proof = proof(&recording, true);
    assert!(proof.identical(), "{:?}", proof.first);
}

#[test]
fn an_altered_answer_is_found_and_shown_with_both() {
    let mut recording = a_day();
    let at =
        recording.lines.iter().position(|l| matches!(l, Line::Decision { d, .. } if d.call == "allocate")).unwrap();
    let Line::Decision { d, .. } = &mut recording.lines[at] else { unreachable!() };
    d.answer = serde_json::json!({ "assign": 77 });
    let proof = proof(&recording, false);
    assert_eq!(proof.different, 1);
    let first = proof.first.unwrap();
    assert_eq!(first.what, "the answer");
    assert_eq!(first.recorded.unwrap().answer, serde_json::json!({ "assign": 77 }));
    assert!(first.played.unwrap().answer["assign"].is_u64());
}

#[test]
fn an_altered_event_shows_in_the_inputs() {
    let mut recording = a_day();
    let at =
        recording.lines.iter().rposition(|l| matches!(l, Line::Event { e: wipam_core::event::Event::Add { .. }, .. }));
    let Line::Event { e: wipam_core::event::Event::Add { add, .. }, .. } = &mut recording.lines[at.unwrap()] else {
        unreachable!()
    };
    add.pod.name = "another".into();
    let proof = proof(&recording, false);
    assert!(!proof.identical());
    assert_eq!(proof.first.unwrap().what, "the inputs");
}

#[test]
fn a_record_cut_anywhere_plays_up_to_the_cut() {
    let lines = day("t3.medium", 6, 6).unwrap();
    let plain = bytes(&lines);
    let squeezed = zstd::encode_all(plain.as_slice(), 3).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.rec");
    let header = plain.iter().position(|b| *b == b'\n').unwrap() + 1;
    let (mut played, mut refused) = (0, 0);
    for i in 0..24 {
        for whole in [&plain, &squeezed] {
            let cut = whole.len() * i / 24;
            std::fs::write(&path, &whole[..cut]).unwrap();
            match Recording::read(&path) {
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("line 1"), "{error}");
                    assert!(cut < header || whole.len() == squeezed.len(), "{cut} {error}");
                }
                Ok(recording) => {
                    played += 1;
                    let cut_at_a_line = whole.len() == plain.len() && whole[cut - 1] == b'\n';
                    assert!(cut_at_a_line || matches!(recording.end, End::Cut(_)), "{cut}: {:?}", recording.end);
                    let proof = proof(&recording, true);
                    assert!(proof.identical() || cut_at_a_line, "{cut}: {:?}", proof.first);
                }
            }
        }
    }
    assert!(played > 10 && refused > 0, "{played} {refused}");
}

#[test]
fn a_damaged_line_is_named_and_what_is_before_it_played() {
    let lines = day("t3.medium", 4, 2).unwrap();
    let mut text = bytes(&lines[..10]);
    text.extend_from_slice(b"{\"t\":1,\"e\":\"unheard-of\"}\n");
    text.extend(bytes(&lines[10..]));
    let recording = Recording::from_lines(BufReader::new(text.as_slice())).unwrap();
    let End::Damaged(why) = &recording.end else { panic!("{:?}", recording.end) };
    assert!(why.contains("line 11") && why.contains("unheard-of"), "{why}");
    assert_eq!(recording.lines.len(), 10);
}

#[test]
fn other_policies_play_the_same_pods_and_part_from_the_record() {
    let recording = a_day();
    let shelf = Shelf::new(true, Vec::new()).unwrap();
    let none = BTreeMap::new();
    let as_recorded = |p: &[wipam_core::record::RecordedPolicy]| shelf.candidate(p, &none);
    let base = play(&recording, "recorded", &Choice::Recorded(&as_recorded), false, &watch()).unwrap();
    let again = play(&recording, "again", &Choice::Recorded(&as_recorded), false, &watch()).unwrap();
    assert_eq!(parting(&base, &again, 9), parting(&base, &base, 9), "deterministic");
    assert_eq!(base.failed, 0, "{:?}", base.given.values().find(|g| g.error.is_some()));
    assert_eq!(base.pod_events, recording.events().1);
    assert!(base.sticky > 0 && base.sticky <= base.returns, "{} of {}", base.sticky, base.returns);

    let default = shelf.vetter().candidate(&Source::find("default").unwrap(), &none).unwrap();
    let other = play(&recording, "default", &Choice::Fixed(Box::new(default)), false, &watch()).unwrap();
    let p = parting(&base, &other, 3);
    assert!(p.steps_in_all > 0 && !p.steps.is_empty() && p.steps.len() <= 3, "{p:?}");
    assert!(other.idle_ms > base.idle_ms, "default keeps a whole interface warm: {} {}", other.idle_ms, base.idle_ms);

    // The recorded sizer with another setting.
    let more = BTreeMap::from([("warm".to_owned(), SettingValue::Integer(8))]);
    let header = recording.header().unwrap();
    let eight = shelf.candidate(&header.policies, &more).unwrap();
    let eight = play(&recording, "warm=8", &Choice::Fixed(Box::new(eight)), false, &watch()).unwrap();
    assert!(eight.idle_ms > base.idle_ms);
}

#[test]
fn a_swap_that_is_noted_late_is_found_by_who_answered() {
    // ipamd's watcher swaps on a thread of its own; events may come between that and its note.
    let engine = WasmEngine::new(EngineLimits::default()).unwrap();
    // A busy machine may break the canary's wall-clock limit, which is not the question here.
    let keeper = Gatekeeper::new(engine, Environment::default()).without_canary();
    let vet = |text: &str| keeper.vet_document(&Document::parse(text).unwrap(), &NoFiles).unwrap();
    let seen = Collector::new(true);
    let options = HostOptions { sink: Some(seen.clone()), ..HostOptions::quiet() };
    let mut host = PolicyHost::new(&vet("policy: default"), options);
    let mut sim = NodeSim::new(small_vpc(), "i-1", |_| ());
    sim.tape = Some(Tape { lines: Vec::new(), seen: seen.clone() });
    sim.mark(in_charge(&host), true);
    sim.serve(&mut host);
    sim.run(&mut host, 60_000);
    host.control().swap(&vet("allocator: sticky-podref\nsizer: warm-ip-target"));
    for i in 0..3 {
        sim.add(&mut host, &format!("c{i}"), &format!("p{i}"), "u");
    }
    sim.mark(in_charge(&host), false);
    sim.feed(&mut host, wipam_core::event::Event::PolicySwapped);
    sim.run(&mut host, 60_000);
    let proof = proof(&recording(&sim.tape.take().unwrap().lines), false);
    assert!(proof.identical(), "{:?}", proof.first);
}

// ---- a policy that faults ----

fn small_vpc() -> Vpc {
    Vpc::new(VpcConfig {
        subnets: vec![SubnetConfig {
            id: "subnet-a".into(),
            cidr: "10.0.0.0/20".parse().unwrap(),
            ..SubnetConfig::default()
        }],
        instances: vec![InstanceConfig {
            id: "i-1".into(),
            instance_type: "t3.medium".into(),
            subnet: "subnet-a".into(),
            ..InstanceConfig::default()
        }],
        timing: Timing::typical(),
        ..VpcConfig::default()
    })
    .unwrap()
}

/// A record in which the allocator traps until the ladder steps down. Also gives the allocator's file.
fn faulty() -> (Vec<Line>, Vec<u8>, u64) {
    let bad = fixtures::all()
        .into_iter()
        .find(|f| f.expected == fixtures::Expect::Faults && f.name.contains("trap"))
        .expect("a fixture that traps");
    let engine = WasmEngine::new(EngineLimits::default()).unwrap();
    let keeper = Gatekeeper::new(engine, Environment::from_pairs([("WARM_IP_TARGET", "3")])).without_canary();
    let settings: BTreeMap<String, SettingValue> =
        bad.settings.iter().map(|(k, v)| ((*k).to_owned(), SettingValue::Text((*v).to_owned()))).collect();
    let shipped = keeper.vet_document(&Document::default(), &NoFiles).unwrap();
    let trap = keeper.vet_bytes(Slot::Allocator, bad.name, &bad.bytes, &settings).unwrap();
    let candidate = Candidate::of(trap, shipped.get(Slot::Sizer).clone());
    let seen = Collector::new(true);
    let mut host = PolicyHost::new(&candidate, HostOptions { sink: Some(seen.clone()), ..HostOptions::quiet() });
    let mut sim = NodeSim::new(small_vpc(), "i-1", |_| ());
    sim.tape = Some(Tape { lines: Vec::new(), seen: seen.clone() });
    sim.mark(in_charge(&host), true);
    sim.serve(&mut host);
    sim.run(&mut host, 60_000);
    for i in 0..6 {
        sim.add(&mut host, &format!("c{i}"), &format!("p{i}"), "u");
        sim.run(&mut host, 2_000);
    }
    assert!(sim.trace.failed.is_empty(), "no ADD fails because of a policy: {:?}", sim.trace.failed);
    (sim.tape.take().unwrap().lines, bad.bytes, seen.faults())
}

#[test]
fn faults_and_the_ladder_are_replayed_as_they_happened() {
    let (lines, file, faults) = faulty();
    assert!(faults >= 3, "{faults}");
    let recording = recording(&lines);
    // It does not come with wipam: without its file nothing can be proven, and the text says what helps.
    let bare = Shelf::new(false, Vec::new()).unwrap();
    let error = prove(&recording, &bare, false, &watch()).unwrap_err().to_string();
    assert!(error.contains("--with FILE"), "{error}");
    let given = Source::File { path: "bad.wasm".into(), bytes: file };
    let shelf = Shelf::new(false, vec![given]).unwrap();
    let proof = prove(&recording, &shelf, false, &watch()).unwrap();
    assert!(proof.identical(), "{:?}", proof.first);
    let native = recording.lines.iter().any(|l| {
        matches!(l, Line::Decision { d, .. } if d.by == wipam_core::policy::AnsweredBy::Native && d.call == "allocate")
    });
    assert!(native, "the twin answered");
}

#[test]
fn an_interrupted_run_says_so() {
    let recording = a_day();
    let stop = AtomicBool::new(true);
    let shelf = Shelf::new(true, Vec::new()).unwrap();
    let proof = prove(&recording, &shelf, true, &Watch { stop: &stop, progress: &|_| {} }).unwrap();
    assert!(proof.interrupted && proof.events == 0);
}
