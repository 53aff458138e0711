//! Every hostile fixture at the gates; what is shipped; single gates.

use std::{io::Write as _, time::Duration};

use wipam_core::policy::{SettingValue, Slot};
use wipam_policy::{
    Digest, Environment, Gate, Gatekeeper,
    component::Outside,
    config::{PolicyRef, PolicySpec},
    embedded,
    inspect::inspect,
    load::{Files, MAX_BYTES, NoFiles},
    settings::Written,
};
use wipam_policy_fixtures::{self as fixtures, Expect};

use crate::world::{engine, gatekeeper, written};

fn expected(gate: fixtures::Gate) -> Gate {
    match gate {
        fixtures::Gate::Parse => Gate::Parse,
        fixtures::Gate::Imports => Gate::Imports,
        fixtures::Gate::Bind => Gate::Bind,
        fixtures::Gate::Describe => Gate::Describe,
    }
}

#[test]
fn every_hostile_policy_is_refused_at_its_gate_with_cause_and_mend() {
    for fixture in fixtures::all() {
        let refused = gatekeeper().vet_bytes(Slot::Sizer, fixture.name, &fixture.bytes, &written(&fixture)).err();
        let refused = refused.or_else(|| {
            gatekeeper().vet_bytes(Slot::Allocator, fixture.name, &fixture.bytes, &written(&fixture)).err()
        });
        let gate = refused.as_ref().map(|r| r.gate);
        match fixture.expected {
            Expect::RefusedAt(at) => assert_eq!(gate, Some(expected(at)), "{}: {refused:?}", fixture.name),
            Expect::Faults | Expect::GuardRefuses => {
                assert_eq!(gate, Some(Gate::Canary), "{}: {refused:?}", fixture.name);
            }
            Expect::Legal => assert!(matches!(gate, None | Some(Gate::Canary)), "{}: {refused:?}", fixture.name),
        }
        if let Some(refusal) = refused {
            assert!(!refusal.cause.is_empty() && !refusal.mend.is_empty());
            let text = refusal.to_string();
            assert!(text.contains(fixture.name) && text.contains(refusal.gate.as_str()), "{text}");
        }
    }
}

#[test]
fn the_gates_say_what_to_do() {
    let refusal = |name: &str| {
        let fixture = fixtures::all().into_iter().find(|f| f.name == name).unwrap();
        gatekeeper().vet_bytes(Slot::Sizer, name, &fixture.bytes, &written(&fixture)).unwrap_err()
    };
    assert!(refusal("imports-wasi").mend.contains("wasm32-unknown-unknown"));
    assert!(refusal("imports-wasi").cause.contains("wasi:clocks/wall-clock@0.2.6"));
    assert!(refusal("core-module").mend.contains("wasm-component-ld"));
    assert!(refusal("other-version").cause.contains("wipam:policy/sizing@0.2.0"));
    assert!(refusal("other-version").cause.contains("0.1"));
    assert!(refusal("describe-differs").cause.contains("different"));
}

#[test]
fn shipped_policies_pass_are_small_and_import_no_function() {
    for shipped in embedded::all() {
        assert!(shipped.component.len() <= 64 << 10, "{}: {} bytes", shipped.name, shipped.component.len());
        let outside = Outside::read(shipped.component).unwrap();
        assert_eq!(outside.needing().count(), 0, "{}", shipped.name);
        for slot in [Slot::Allocator, Slot::Sizer] {
            assert_eq!(outside.fills(slot), shipped.native.fills(slot), "{}", shipped.name);
            if !outside.fills(slot) {
                let refusal = gatekeeper().vet(slot, false, &PolicySpec::named(shipped.name), &NoFiles).unwrap_err();
                assert_eq!(refusal.gate, Gate::Bind);
                continue;
            }
            let vetted = gatekeeper().vet(slot, false, &PolicySpec::named(shipped.name), &NoFiles).unwrap();
            assert_eq!(vetted.metadata(), &shipped.native.metadata(), "component and twin describe themselves alike");
        }
    }
}

#[test]
fn check_lists_the_gates_in_order() {
    let shipped = embedded::named("default").unwrap();
    let (gates, result) = gatekeeper().check(Slot::Sizer, "default", shipped.component, &Written::new());
    result.unwrap();
    assert_eq!(gates.iter().map(|g| g.gate).collect::<Vec<_>>(), Gate::ALL[1..]);
    let wrong = Written::from([("warm-enis".to_owned(), SettingValue::Integer(-1))]);
    let (gates, result) = gatekeeper().check(Slot::Sizer, "default", shipped.component, &wrong);
    assert_eq!(result.unwrap_err().gate, Gate::Settings);
    let last = gates.last().unwrap();
    assert_eq!((last.gate, last.passed, last.detail.as_str()), (Gate::Settings, false, "warm-enis: -1 is below 0"));
}

#[test]
fn size_counts_zipped_and_unzipped_and_truncation_is_found() {
    let zip = |bytes: &[u8]| {
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap()
    };
    let vet = |bytes: &[u8]| gatekeeper().vet_bytes(Slot::Sizer, "x", bytes, &Written::new()).map(|v| v.digest());
    let component = embedded::named("default").unwrap().component;
    assert_eq!(vet(&zip(component)).unwrap(), Some(Digest::of(component)), "the digest is that of the component");
    assert_eq!(vet(&vec![0; MAX_BYTES + 1]).unwrap_err().gate, Gate::Size);
    assert_eq!(vet(&zip(&vec![0; 64 << 20])).unwrap_err().gate, Gate::Size, "a bomb is not unzipped");
    let zipped = zip(component);
    assert_eq!(vet(&zipped[..zipped.len() - 20]).unwrap_err().gate, Gate::Size);
    for keep in (0..component.len()).step_by(component.len() / 64) {
        let refusal = vet(&component[..keep]).unwrap_err();
        assert!(matches!(refusal.gate, Gate::Parse | Gate::Bind), "{keep}: {refusal}");
    }
}

#[test]
fn flipped_bytes_never_panic_the_gates() {
    let component = embedded::named("warm-ip-target").unwrap().component;
    let mut random = crate::world::Random(7);
    for _ in 0..150 {
        let mut bytes = component.to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        // Whether it is refused or not: it must not take the host down.
        let _ = Outside::read(&bytes);
    }
}

#[test]
fn a_digest_that_is_asked_for_must_match() {
    let component = embedded::named("default").unwrap().component;
    let spec = |sha256| PolicySpec {
        policy: PolicyRef::Embedded("default".into()),
        sha256: Some(sha256),
        settings: Written::new(),
    };
    gatekeeper().vet(Slot::Sizer, false, &spec(Digest::of(component)), &NoFiles).unwrap();
    let refusal = gatekeeper().vet(Slot::Sizer, false, &spec(Digest::of(b"x")), &NoFiles).unwrap_err();
    assert_eq!(refusal.gate, Gate::Digest);
    assert!(refusal.cause.contains(&Digest::of(component).to_string()));
}

struct One(&'static str, Vec<u8>);
impl Files for One {
    fn read(&self, name: &str) -> Option<std::io::Result<std::sync::Arc<[u8]>>> {
        (name == self.0).then(|| Ok(self.1.as_slice().into()))
    }
}

#[test]
fn a_file_beside_the_document_wins_over_the_embedded_name() {
    let file = One("default.wasm", embedded::named("warm-ip-target").unwrap().component.to_vec());
    let named = gatekeeper().vet(Slot::Sizer, false, &PolicySpec::named("default"), &file).unwrap();
    assert_eq!(named.metadata().name, "warm-ip-target");
    let spec = PolicySpec { policy: PolicyRef::Embedded("default".into()), ..PolicySpec::named("") };
    assert_eq!(gatekeeper().vet(Slot::Sizer, false, &spec, &file).unwrap().metadata().name, "default");
    let missing = PolicySpec { policy: PolicyRef::File("gone.wasm".into()), ..PolicySpec::named("") };
    let refusal = gatekeeper().vet(Slot::Sizer, false, &missing, &file).unwrap_err();
    assert_eq!((refusal.gate, refusal.cause.contains("gone.wasm")), (Gate::Document, true));
    assert_eq!(
        gatekeeper().vet(Slot::Sizer, false, &PolicySpec::named("nope"), &file).unwrap_err().mend,
        "use one of default, warm-ip-target, sticky-podref, or put nope.wasm beside the document"
    );
}

#[test]
fn memories_and_tables_that_do_not_fit_are_refused_at_load() {
    // 17 MiB from the start, in a component that is otherwise empty: the pool has no slot for it.
    let wat = r#"(component (core module $m (memory 272)) (core instance (instantiate $m)))"#;
    let bytes = wat::parse_str(wat).unwrap();
    let refusal = gatekeeper().vet_bytes(Slot::Sizer, "hog", &bytes, &Written::new()).unwrap_err();
    assert_eq!(refusal.gate, Gate::Compile, "{refusal}");
}

#[test]
fn the_epoch_ends_what_fuel_does_not() {
    let limits =
        wipam_policy::EngineLimits { fuel: u64::MAX / 2, deadline: Duration::from_millis(50), ..Default::default() };
    let engine = wipam_policy::WasmEngine::new(limits).unwrap();
    let fixture = fixtures::hostile("loop", "", Expect::Faults);
    let refusal = Gatekeeper::new(engine, Environment::default())
        .vet_bytes(Slot::Allocator, "loop", &fixture.bytes, &written(&fixture))
        .unwrap_err();
    assert!(refusal.cause.contains("deadline"), "{refusal}");
}

#[test]
fn without_an_engine_components_are_refused_and_shipped_ones_run_natively() {
    let keeper = Gatekeeper::native(Environment::default());
    let component = embedded::named("default").unwrap().component;
    assert_eq!(keeper.vet_bytes(Slot::Sizer, "x", component, &Written::new()).unwrap_err().gate, Gate::Compile);
    assert_eq!(keeper.vet_unnamed().unwrap().get(Slot::Sizer).digest(), None);
}

#[test]
fn inspection_tells_all_it_can() {
    let good = inspect(&engine(), "default.wasm", embedded::named("default").unwrap().component);
    assert_eq!(good.fills, [Slot::Allocator, Slot::Sizer]);
    assert_eq!((good.refusal, good.not_a_component), (None, None));
    assert_eq!(good.metadata.unwrap().name, "default");
    let wasi = fixtures::all().into_iter().find(|f| f.name == "imports-wasi").unwrap();
    let bad = inspect(&engine(), "wasi.wasm", &wasi.bytes);
    assert_eq!(bad.imports[0].needs, ["now"]);
    assert_eq!(bad.refusal.unwrap().gate, Gate::Imports);
    let text = serde_json::to_string(&inspect(&engine(), "x", b"text")).unwrap();
    assert!(text.contains("not Wasm"));
}
