//! What is in charge: an immutable set behind one pointer, so that code, settings, digest and generation are swapped
//! together and a decision in flight finishes on what it began with.

use std::sync::Arc;

use wipam_core::policy::{AnsweredBy, Slot};

use crate::{
    config::{Document, PolicySpec},
    gate::Refusal,
    load::{Files, Gatekeeper, Vetted},
    log::PolicyId,
    run::Runner,
};

/// Policies for both slots that passed all gates, ready to be swapped in.
#[derive(Clone, Debug)]
pub struct Candidate {
    allocator: Arc<Vetted>,
    sizer: Arc<Vetted>,
    shadow_allocator: Option<Arc<Vetted>>,
    shadow_sizer: Option<Arc<Vetted>>,
    /// Environment variables without effect, and the like.
    pub warnings: Vec<String>,
}

impl Candidate {
    /// Of two policies, without shadows.
    pub fn of(allocator: Arc<Vetted>, sizer: Arc<Vetted>) -> Candidate {
        let mut warnings = allocator.warnings.clone();
        warnings.extend(sizer.warnings.iter().cloned());
        warnings.dedup();
        Candidate { allocator, sizer, shadow_allocator: None, shadow_sizer: None, warnings }
    }

    /// With a shadow for a slot.
    #[must_use]
    pub fn with_shadow(mut self, slot: Slot, shadow: Arc<Vetted>) -> Candidate {
        match slot {
            Slot::Allocator => self.shadow_allocator = Some(shadow),
            Slot::Sizer => self.shadow_sizer = Some(shadow),
        }
        self
    }

    /// The policy for a slot.
    pub fn get(&self, slot: Slot) -> &Arc<Vetted> {
        match slot {
            Slot::Allocator => &self.allocator,
            Slot::Sizer => &self.sizer,
        }
    }

    fn shadow(&self, slot: Slot) -> Option<&Arc<Vetted>> {
        match slot {
            Slot::Allocator => self.shadow_allocator.as_ref(),
            Slot::Sizer => self.shadow_sizer.as_ref(),
        }
    }
}

impl Gatekeeper {
    /// Vets all that a document names; slots it leaves unnamed run what the environment asks for.
    ///
    /// # Errors
    /// The first refusal; a document is taken as a whole or not at all.
    pub fn vet_document(&self, document: &Document, files: &dyn Files) -> Result<Candidate, Refusal> {
        let vet = |slot| match document.active.get(slot) {
            Some(spec) => self.vet(slot, false, spec, files),
            None => self.vet(slot, false, &PolicySpec::named(self.environment().unnamed(slot)), files),
        };
        let mut candidate = Candidate::of(vet(Slot::Allocator)?, vet(Slot::Sizer)?);
        for slot in [Slot::Allocator, Slot::Sizer] {
            if let Some(spec) = document.shadow.get(slot) {
                candidate = candidate.with_shadow(slot, self.vet(slot, true, spec, files)?);
            }
        }
        let sizer = &candidate.sizer;
        let idle = self.environment().without_effect(&sizer.metadata().name, sizer.in_force());
        candidate.warnings.extend(idle);
        Ok(candidate)
    }

    /// What runs when no document can be used: the policies that the environment asks for.
    ///
    /// # Errors
    /// Only if what is embedded does not run on this machine.
    pub fn vet_unnamed(&self) -> Result<Candidate, Refusal> {
        self.vet_document(&Document::default(), &crate::load::NoFiles)
    }
}

/// A policy in a slot, with its names.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) vetted: Arc<Vetted>,
    pub(crate) id: Arc<PolicyId>,
    twin_id: Arc<PolicyId>,
}

impl Placed {
    fn new(vetted: Arc<Vetted>, generation: u64) -> Placed {
        let id = |runner: &Runner, digest| {
            let (name, version) = (runner.metadata.name.clone(), runner.metadata.version.clone());
            Arc::new(PolicyId { name, version, digest, generation })
        };
        let (of, twin_id) = (id(&vetted.runner, vetted.digest), id(&vetted.twin, None));
        Placed { vetted, id: of, twin_id }
    }

    pub(crate) fn runner(&self) -> (&Runner, &Arc<PolicyId>) {
        (&self.vetted.runner, &self.id)
    }

    pub(crate) fn twin(&self) -> (&Runner, &Arc<PolicyId>) {
        (&self.vetted.twin, &self.twin_id)
    }
}

/// One slot.
#[derive(Clone, Debug)]
pub(crate) struct ActiveSlot {
    pub(crate) generation: u64,
    pub(crate) current: Placed,
    pub(crate) last_good: Option<Placed>,
    pub(crate) shadow: Option<Placed>,
}

impl ActiveSlot {
    fn first(candidate: &Candidate, slot: Slot, generation: u64) -> ActiveSlot {
        ActiveSlot {
            generation,
            current: Placed::new(candidate.get(slot).clone(), generation),
            last_good: None,
            shadow: candidate.shadow(slot).map(|shadow| Placed::new(shadow.clone(), generation)),
        }
    }

    /// The slot after a swap, and whether the policy in charge changed. `rung` is where the ladder stood.
    fn next(&self, candidate: &Candidate, slot: Slot, generation: u64, rung: AnsweredBy) -> (ActiveSlot, bool) {
        let new = candidate.get(slot);
        let mut next = ActiveSlot::first(candidate, slot, generation);
        if let (Some(old), Some(new)) = (&self.shadow, &next.shadow)
            && old.vetted.same_as(&new.vetted)
        {
            next.shadow = self.shadow.clone();
        }
        if self.current.vetted.same_as(new) {
            // Nothing to swap here; its ladder stands where it stands.
            next = ActiveSlot {
                generation: self.generation,
                current: self.current.clone(),
                last_good: self.last_good.clone(),
                shadow: next.shadow,
            };
            return (next, false);
        }
        // Who was stepped down from is not good.
        let good = match rung {
            AnsweredBy::Policy => Some(self.current.clone()),
            AnsweredBy::LastGood => self.last_good.clone(),
            AnsweredBy::Native => None,
        };
        next.last_good = good.filter(|good| !good.vetted.same_as(new));
        (next, true)
    }

    /// Who is to be asked on this rung; `None` for the twin.
    pub(crate) fn on(&self, rung: AnsweredBy) -> Option<&Placed> {
        match rung {
            AnsweredBy::Policy => Some(&self.current),
            AnsweredBy::LastGood => Some(self.last_good.as_ref().unwrap_or(&self.current)),
            AnsweredBy::Native => None,
        }
    }
}

/// Both slots.
#[derive(Debug)]
pub(crate) struct ActiveSet {
    pub(crate) generation: u64,
    pub(crate) allocator: ActiveSlot,
    pub(crate) sizer: ActiveSlot,
    pub(crate) warnings: Vec<String>,
}

impl ActiveSet {
    pub(crate) fn first(candidate: &Candidate) -> ActiveSet {
        ActiveSet {
            generation: 1,
            allocator: ActiveSlot::first(candidate, Slot::Allocator, 1),
            sizer: ActiveSlot::first(candidate, Slot::Sizer, 1),
            warnings: candidate.warnings.clone(),
        }
    }

    /// The set after a swap, and the slots whose policy changed.
    pub(crate) fn next(&self, candidate: &Candidate, rung: impl Fn(Slot) -> AnsweredBy) -> (ActiveSet, Vec<Slot>) {
        let generation = self.generation + 1;
        let next = |slot| self.slot(slot).next(candidate, slot, generation, rung(slot));
        let ((allocator, a), (sizer, s)) = (next(Slot::Allocator), next(Slot::Sizer));
        let changed = [(Slot::Allocator, a), (Slot::Sizer, s)].into_iter().filter(|(_, c)| *c).map(|(slot, _)| slot);
        let changed = changed.collect();
        (ActiveSet { generation, allocator, sizer, warnings: candidate.warnings.clone() }, changed)
    }

    pub(crate) fn slot(&self, slot: Slot) -> &ActiveSlot {
        match slot {
            Slot::Allocator => &self.allocator,
            Slot::Sizer => &self.sizer,
        }
    }
}
