//! Component and native twin agree on every generated pool, with every setting.

use proptest::prelude::*;
use wipam_core::policy::{KnobKind, Metadata, Policies, SettingValue, Slot};
use wipam_policy::{Candidate, Environment, HostOptions, PolicyHost, embedded, load::Gatekeeper, settings::Written};

use crate::world::{Random, gatekeeper, random};

/// Random values for half of the knobs.
fn settings(random: &mut Random, metadata: &Metadata) -> Written {
    let mut written = Written::new();
    for knob in &metadata.knobs {
        if random.chance(50) {
            continue;
        }
        let value = match knob.kind {
            KnobKind::Boolean => SettingValue::Boolean(random.chance(50)),
            KnobKind::Text | KnobKind::Choice => continue,
            KnobKind::Integer | KnobKind::Percent | KnobKind::DurationMs => {
                let (min, max) = (knob.min.unwrap_or(0), knob.max.unwrap_or(1_000));
                // Mostly small numbers: that is where decisions change.
                let span = if random.chance(80) { (max - min).min(12) } else { max - min };
                SettingValue::Integer(min + random.below(span as u64 + 1) as i64)
            }
        };
        written.insert(knob.name.clone(), value);
    }
    written
}

/// A host that runs `name` as component, and one that runs its twin, with the same settings.
fn pair(slot: Slot, name: &str, written: &Written) -> [PolicyHost; 2] {
    let shipped = embedded::named(name).unwrap();
    let keeper: Gatekeeper = gatekeeper().without_canary();
    let component = keeper.vet_bytes(slot, name, shipped.component, written).unwrap();
    let native = keeper.vet_native(slot, shipped.native, written).unwrap();
    let other = Gatekeeper::native(Environment::default()).vet_unnamed().unwrap();
    [component, native].map(|policy| {
        let candidate = match slot {
            Slot::Allocator => Candidate::of(policy, other.get(Slot::Sizer).clone()),
            Slot::Sizer => Candidate::of(other.get(Slot::Allocator).clone(), policy),
        };
        PolicyHost::new(&candidate, HostOptions::default())
    })
}

fn agree(slot: Slot, name: &str, seed: u64) {
    let mut numbers = Random(seed);
    let written = settings(&mut numbers, &embedded::named(name).unwrap().native.metadata());
    let [mut component, mut native] = pair(slot, name, &written);
    let mut memo = Default::default();
    for _ in 0..4 {
        let mut world = random(&mut numbers);
        match slot {
            Slot::Allocator => {
                assert_eq!(component.allocate(&world.allocate, false), native.allocate(&world.allocate, false));
                assert_eq!(component.release(&world.release), native.release(&world.release));
            }
            Slot::Sizer => {
                world.plan.memo = memo;
                let (ours, theirs) = (component.plan(&world.plan, false), native.plan(&world.plan, false));
                assert_eq!(ours, theirs);
                memo = ours.answer.1.unwrap_or_default();
            }
        }
    }
    let (ours, theirs) = (component.control().decisions(9), native.control().decisions(9));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!((ours.inputs, &ours.fault), (theirs.inputs, &theirs.fault));
        assert_eq!(ours.fault, None, "a shipped policy never fails");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn default_allocates_like_its_twin(seed: u64) {
        agree(Slot::Allocator, "default", seed);
    }

    #[test]
    fn default_sizes_like_its_twin(seed: u64) {
        agree(Slot::Sizer, "default", seed);
    }

    #[test]
    fn warm_ip_target_like_its_twin(seed: u64) {
        agree(Slot::Sizer, "warm-ip-target", seed);
    }

    #[test]
    fn sticky_podref_like_its_twin(seed: u64) {
        agree(Slot::Allocator, "sticky-podref", seed);
    }
}
