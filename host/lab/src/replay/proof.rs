//! The recorded events through core and the recorded policies again: is every decision the same?

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use wipam_core::event::Ms;
use wipam_core::node::Node;
use wipam_core::policy::AnsweredBy;
use wipam_core::record::{Decision, Header, Line, RecordedPolicy};
use wipam_policy::settings::Written;
use wipam_policy::{HostOptions, PolicyHost};

use super::reading::{End, Recording};
use super::{Collector, Shelf, ShelfError, Watch, recorded};

/// What a run of the record says.
#[derive(Debug, Serialize)]
pub struct Proof {
    /// Events played.
    pub events: u64,
    /// Of them ADDs and DELs.
    pub pod_events: u64,
    /// Recorded decisions that were compared.
    pub compared: u64,
    /// Of them different, or missing on one side.
    pub different: u64,
    /// The first difference. Those after it mostly follow from it.
    pub first: Option<Difference>,
    /// Whether the record begins where the daemon began. Otherwise what was under way at its beginning is not in it,
    /// and differences prove nothing.
    pub from_start: bool,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// How long it took, without reading the file.
    #[serde(skip)]
    pub took: Duration,
}

impl Proof {
    /// Every decision is the same.
    pub fn identical(&self) -> bool {
        self.different == 0
    }
}

/// One decision as recorded and as played.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// Line of the record where the event stands.
    pub line: usize,
    /// Pool clock.
    pub at: Ms,
    /// What differs: "inputs", "answer", …
    pub what: &'static str,
    /// As recorded; `None` if there was none.
    pub recorded: Option<Decision>,
    /// As played; `None` if there was none.
    pub played: Option<Decision>,
}

/// The node and its policies while they are played.
struct Player<'a> {
    shelf: &'a Shelf,
    node: Node,
    host: PolicyHost,
    seen: Arc<Collector>,
    in_charge: Vec<RecordedPolicy>,
}

impl<'a> Player<'a> {
    fn start(shelf: &'a Shelf, header: &Header) -> Result<Player<'a>, ShelfError> {
        let candidate = shelf.candidate(&header.policies, &Written::new())?;
        let seen = Collector::new(true);
        let options = HostOptions { sink: Some(seen.clone()), ..HostOptions::quiet() };
        let host = PolicyHost::new(&candidate, options);
        let saved = header.state.as_deref().cloned();
        let node = Node::new(header.config.clone(), header.t, saved);
        Ok(Player { shelf, node, host, seen, in_charge: header.policies.clone() })
    }

    /// A header in the midst of a run: the daemon went on, perhaps with other policies.
    fn go_on(&mut self, header: &Header) -> Result<(), ShelfError> {
        let candidate = self.shelf.candidate(&header.policies, &Written::new())?;
        self.host.control().swap(&candidate);
        self.in_charge.clone_from(&header.policies);
        Ok(())
    }
}

/// Plays the whole record.
///
/// # Errors
/// A recorded policy is not at hand.
pub fn prove(recording: &Recording, shelf: &Shelf, native: bool, watch: &Watch<'_>) -> Result<Proof, ShelfError> {
    let lines = &recording.lines;
    // Compiled once, and not counted as playing.
    for line in lines {
        if let Line::Header(h) = line {
            shelf.candidate(&h.policies, &Written::new())?;
        }
    }
    let begun = Instant::now();
    let from_start = recording.header().is_some_and(|h| h.complete);
    let mut proof = Proof {
        events: 0,
        pod_events: 0,
        compared: 0,
        different: 0,
        first: None,
        from_start,
        interrupted: false,
        took: Duration::ZERO,
    };
    let mut player: Option<Player<'_>> = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        if !watch.go_on(at) {
            proof.interrupted = true;
            break;
        }
        at += 1;
        match (line, &mut player) {
            (Line::Header(h), Some(p)) if !h.complete => p.go_on(h)?,
            (Line::Header(h), _) => player = Some(Player::start(shelf, h)?),
            (Line::Event { t, e }, Some(p)) => {
                let from = at;
                while matches!(lines.get(at), Some(Line::Decision { .. })) {
                    at += 1;
                }
                if let Some(ahead) = swapped_already(&p.in_charge, &lines[from..at], &lines[at..]) {
                    p.go_on(ahead)?;
                }
                let _ = p.node.handle(*t, e.clone(), &mut p.host);
                proof.events += 1;
                proof.pod_events +=
                    u64::from(matches!(e, wipam_core::event::Event::Add { .. } | wipam_core::event::Event::Del { .. }));
                // Where a record is cut, decisions of its last event may be missing.
                let cut = at == lines.len() && recording.end != End::Whole;
                compare(&mut proof, (from, *t), &lines[from..at], &p.seen.take(), native, cut);
            }
            // Only a reader that skipped a header could bring these.
            (Line::Event { .. } | Line::Decision { .. }, _) => {}
        }
    }
    proof.took = begun.elapsed();
    Ok(proof)
}

/// ipamd swaps a moment before it notes so. When the decisions of an event come from a policy that is not in charge yet,
/// but is in the next header of this run, the swap had happened: gives that header.
fn swapped_already<'a>(in_charge: &[RecordedPolicy], decisions: &[Line], ahead: &'a [Line]) -> Option<&'a Header> {
    let is = |p: &RecordedPolicy, d: &Decision| {
        p.slot == d.slot && p.digest == d.digest && d.policy == format!("{} {}", p.name, p.version)
    };
    let stranger = decisions.iter().find_map(|l| match l {
        Line::Decision { d, .. } if d.by == AnsweredBy::Policy && !in_charge.iter().any(|p| is(p, d)) => Some(d),
        _ => None,
    })?;
    let next = ahead.iter().find_map(|l| match l {
        Line::Header(h) => Some(h),
        _ => None,
    })?;
    (!next.complete && next.policies.iter().any(|p| is(p, stranger))).then_some(next)
}

fn compare(
    proof: &mut Proof,
    (line, at): (usize, Ms),
    recorded_lines: &[Line],
    played: &[wipam_policy::Decision],
    native: bool,
    cut: bool,
) {
    let then = recorded_lines.iter().filter_map(|l| match l {
        Line::Decision { d, .. } => Some(&**d),
        _ => None,
    });
    let mut now = played.iter();
    for then in then {
        proof.compared += 1;
        let played = now.next().map(recorded);
        let what = match &played {
            None => Some("missing in the replay"),
            Some(played) => differs(then, played, native),
        };
        if let Some(what) = what {
            note(proof, Difference { line, at, what, recorded: Some(then.clone()), played });
        }
    }
    if !cut {
        for more in now {
            let played = Some(recorded(more));
            note(proof, Difference { line, at, what: "missing in the record", recorded: None, played });
        }
    }
}

fn note(proof: &mut Proof, difference: Difference) {
    proof.different += 1;
    proof.first.get_or_insert(difference);
}

/// The first field that differs. Natively no fuel, digest or rung is the same by nature.
fn differs(then: &Decision, now: &Decision, native: bool) -> Option<&'static str> {
    let checks = [
        ("the call", then.slot == now.slot && then.call == now.call),
        ("the inputs", then.inputs == now.inputs),
        ("the answer", then.answer == now.answer),
        ("the policy", native || (then.policy == now.policy && then.digest == now.digest)),
        ("the rung that answered", native || then.by == now.by),
        ("the guard's verdict", then.verdict == now.verdict),
    ];
    checks.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
}
