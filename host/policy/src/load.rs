//! The load gates: from bytes and settings to a policy that may be asked.

use std::{
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use wipam_core::policy::{Issue, Metadata, PlanCall, PlanDecision, Slot};

use crate::{
    caps,
    component::{self, Outside},
    config::{PolicyRef, PolicySpec},
    digest::Digest,
    embedded,
    engine::{Called, Guest, WasmEngine},
    fault::{Fault, FaultClass},
    gate::{Gate, GateResult, Refusal},
    golden,
    native::{NativePolicy, NativeSettings},
    run::{Run, Runner},
    settings::{self, Environment, InForce, Resolved, Written},
};

/// Most bytes of a policy, zipped or not. A policy built with the SDK has less than a tenth.
pub const MAX_BYTES: usize = 512 << 10;

/// A policy with its settings that passed all gates. Immutable: code and settings are never swapped apart.
#[derive(Debug)]
pub struct Vetted {
    pub(crate) source: String,
    pub(crate) digest: Option<Digest>,
    pub(crate) bytes: usize,
    pub(crate) runner: Runner,
    pub(crate) in_force: Vec<InForce>,
    /// Who answers when the policy does not.
    pub(crate) twin: Arc<Runner>,
    pub(crate) warnings: Vec<String>,
}

impl Vetted {
    /// What it says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.runner.metadata
    }

    /// SHA-256 of the component, unzipped; none for a native policy.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Settings in force, with where each came from.
    pub fn in_force(&self) -> &[InForce] {
        &self.in_force
    }

    /// Whether a swap from one to the other would change nothing.
    pub(crate) fn same_as(&self, other: &Vetted) -> bool {
        self.digest == other.digest
            && self.runner.is_native() == other.runner.is_native()
            && self.runner.metadata == other.runner.metadata
            && self.in_force == other.in_force
    }
}

/// Passes candidates through the gates.
#[derive(Clone, Debug)]
pub struct Gatekeeper {
    engine: Option<Arc<WasmEngine>>,
    environment: Environment,
    canary: bool,
}

/// What is known of a candidate on its way.
struct Way<'a> {
    slot: Slot,
    shadow: bool,
    policy: &'a str,
    passed: Vec<GateResult>,
}

impl Way<'_> {
    fn pass(&mut self, gate: Gate, detail: impl Into<String>) {
        self.passed.push(GateResult { gate, passed: true, detail: detail.into(), mend: None });
    }

    fn refuse(&self, gate: Gate, cause: impl Into<String>, mend: impl Into<String>) -> Refusal {
        Refusal {
            gate,
            slot: Some(self.slot),
            shadow: self.shadow,
            policy: self.policy.to_owned(),
            cause: cause.into(),
            mend: mend.into(),
        }
    }
}

/// Bytes of files beside the document, by name. `None` if there is no such file.
pub trait Files {
    /// Reads at most a little more than [`MAX_BYTES`].
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    fn read(&self, name: &str) -> Option<std::io::Result<Arc<[u8]>>>;
}

/// No files at all.
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _name: &str) -> Option<std::io::Result<Arc<[u8]>>> {
        None
    }
}

impl Gatekeeper {
    /// With an engine for components. Settings that nobody wrote come from this environment.
    pub fn new(engine: Arc<WasmEngine>, environment: Environment) -> Gatekeeper {
        Gatekeeper { engine: Some(engine), environment, canary: true }
    }

    /// Without an engine: embedded policies run as native twins, components are refused. For tests and fast replays.
    pub fn native(environment: Environment) -> Gatekeeper {
        Gatekeeper { engine: None, environment, canary: true }
    }

    /// Leaves the canary gate out. For tests that need a policy which misbehaves after it was let in, and for
    /// `wipam policy try`, where a bad answer is what one wants to see.
    #[must_use]
    pub fn without_canary(mut self) -> Gatekeeper {
        self.canary = false;
        self
    }

    /// The environment.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The engine, if there is one.
    pub fn engine(&self) -> Option<&Arc<WasmEngine>> {
        self.engine.as_ref()
    }

    /// Vets what a document names for a slot.
    ///
    /// # Errors
    /// The refusal of the first gate that does not let it pass.
    pub fn vet(&self, slot: Slot, shadow: bool, spec: &PolicySpec, files: &dyn Files) -> Result<Arc<Vetted>, Refusal> {
        let label = match &spec.policy {
            PolicyRef::Name(name) | PolicyRef::Embedded(name) | PolicyRef::Native(name) | PolicyRef::File(name) => name,
        };
        let mut way = Way { slot, shadow, policy: label, passed: Vec::new() };
        let file = |way: &Way<'_>, name: &str| match files.read(name) {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(error)) => Err(way.refuse(
                Gate::Document,
                format!("the file {name} cannot be read: {error}"),
                "make it readable for the daemon",
            )),
        };
        match &spec.policy {
            PolicyRef::File(name) => match file(&way, name)? {
                Some(bytes) => self.component(&mut way, format!("file {name}"), &bytes, spec),
                None => Err(way.refuse(
                    Gate::Document,
                    format!("there is no file {name} beside the document"),
                    "put it there, or correct the name",
                )),
            },
            PolicyRef::Name(name) => {
                for beside in [format!("{name}.wasm"), format!("{name}.wasm.gz")] {
                    if plain(&beside)
                        && let Some(bytes) = file(&way, &beside)?
                    {
                        return self.component(&mut way, format!("file {beside}"), &bytes, spec);
                    }
                }
                self.embedded(&mut way, name, spec)
            }
            PolicyRef::Embedded(name) => self.embedded(&mut way, name, spec),
            PolicyRef::Native(name) => {
                let native = self.shipped(&way, name)?.native;
                self.native_policy(&mut way, format!("native {name}"), native, &spec.settings)
            }
        }
    }

    /// Vets bytes, named `label` in messages.
    ///
    /// # Errors
    /// As [`Gatekeeper::vet`].
    pub fn vet_bytes(&self, slot: Slot, label: &str, bytes: &[u8], settings: &Written) -> Result<Arc<Vetted>, Refusal> {
        self.check(slot, label, bytes, settings).1
    }

    /// As [`Gatekeeper::vet_bytes`], with the word of each gate that was asked.
    pub fn check(
        &self,
        slot: Slot,
        label: &str,
        bytes: &[u8],
        settings: &Written,
    ) -> (Vec<GateResult>, Result<Arc<Vetted>, Refusal>) {
        let spec = PolicySpec { settings: settings.clone(), ..PolicySpec::named(label) };
        let mut way = Way { slot, shadow: false, policy: label, passed: Vec::new() };
        let result = self.component(&mut way, label.to_owned(), bytes, &spec);
        let mut gates = way.passed;
        if let Err(refusal) = &result {
            gates.push(GateResult {
                gate: refusal.gate,
                passed: false,
                detail: refusal.cause.clone(),
                mend: Some(refusal.mend.clone()),
            });
        }
        (gates, result)
    }

    /// Vets a native policy.
    ///
    /// # Errors
    /// If it does not fill the slot, or refuses its settings.
    pub fn vet_native(&self, slot: Slot, native: NativePolicy, settings: &Written) -> Result<Arc<Vetted>, Refusal> {
        let name = native.metadata().name;
        let mut way = Way { slot, shadow: false, policy: &name, passed: Vec::new() };
        self.native_policy(&mut way, format!("native {name}"), native, settings)
    }

    fn shipped(&self, way: &Way<'_>, name: &str) -> Result<embedded::Embedded, Refusal> {
        embedded::named(name).ok_or_else(|| {
            way.refuse(
                Gate::Document,
                format!("no policy {name} comes with this host"),
                format!("use one of {}, or put {name}.wasm beside the document", embedded::names()),
            )
        })
    }

    fn embedded(&self, way: &mut Way<'_>, name: &str, spec: &PolicySpec) -> Result<Arc<Vetted>, Refusal> {
        let shipped = self.shipped(way, name)?;
        if self.engine.is_some() {
            self.component(way, format!("embedded {name}"), shipped.component, spec)
        } else {
            self.native_policy(way, format!("native {name}"), shipped.native, &spec.settings)
        }
    }

    /// All gates, for a component.
    fn component(
        &self,
        way: &mut Way<'_>,
        source: String,
        given: &[u8],
        spec: &PolicySpec,
    ) -> Result<Arc<Vetted>, Refusal> {
        let bytes = size(way, given)?;
        let digest = digest(way, given, &bytes, spec.sha256)?;
        let outside = parse(way, &bytes)?;
        imports(way, &outside)?;
        let guest = self.bind(way, digest, &bytes, &outside)?;
        let metadata = describe(way, &guest)?;
        let resolved = self.settings(way, &metadata, &spec.settings)?;
        match guest.check(&resolved.settings()) {
            Ok(said) => checked(way, said)?,
            Err(fault) => {
                return Err(way.refuse(Gate::Check, format!("`check` failed: {fault}"), MEND_POLICY));
            }
        }
        let runner = Runner::new(metadata, Run::Component(Arc::new(guest)), resolved.settings());
        self.canary(way, &runner)?;
        let twin = embedded::with_digest(digest).map(|shipped| shipped.native);
        self.vetted(way, (source, Some(digest), given.len()), runner, resolved, twin)
    }

    /// The gates that a native policy passes too.
    fn native_policy(
        &self,
        way: &mut Way<'_>,
        source: String,
        native: NativePolicy,
        written: &Written,
    ) -> Result<Arc<Vetted>, Refusal> {
        if !native.fills(way.slot) {
            return Err(wrong_slot(way));
        }
        let metadata = native.metadata();
        let resolved = self.settings(way, &metadata, written)?;
        checked(way, native.check(&NativeSettings::from(&*resolved.settings())))?;
        let runner = Runner::new(metadata, Run::Native(native), resolved.settings());
        self.vetted(way, (source, None, 0), runner, resolved, Some(native))
    }

    /// Puts the parts together; a policy that ships with the host has its own twin, with its own settings.
    fn vetted(
        &self,
        way: &Way<'_>,
        (source, digest, bytes): (String, Option<Digest>, usize),
        runner: Runner,
        resolved: Resolved,
        own_twin: Option<NativePolicy>,
    ) -> Result<Arc<Vetted>, Refusal> {
        let twin = match own_twin.filter(|native| native.fills(way.slot)) {
            Some(native) => Runner::new(native.metadata(), Run::Native(native), resolved.settings()),
            None => self.unnamed_twin(way)?,
        };
        Ok(Arc::new(Vetted {
            source,
            digest,
            bytes,
            runner,
            in_force: resolved.in_force,
            twin: Arc::new(twin),
            warnings: resolved.warnings,
        }))
    }

    /// The twin of what the slot would run unnamed, with the settings of the environment.
    fn unnamed_twin(&self, way: &Way<'_>) -> Result<Runner, Refusal> {
        let native = self.shipped(way, self.environment.unnamed(way.slot))?.native;
        let metadata = native.metadata();
        let resolved = self.resolve(way, &metadata, &Written::new())?;
        Ok(Runner::new(metadata, Run::Native(native), resolved.settings()))
    }

    fn bind(&self, way: &mut Way<'_>, digest: Digest, bytes: &[u8], outside: &Outside) -> Result<Guest, Refusal> {
        let Some(engine) = &self.engine else {
            return Err(way.refuse(
                Gate::Compile,
                "this host was started without a Wasm engine",
                "start it with one, or name a native policy",
            ));
        };
        let compiled = match catch_unwind(AssertUnwindSafe(|| engine.compile(digest, bytes))) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(error)) => {
                let mend = format!(
                    "build it for plain wasm32 (no threads, at most {} MiB of memory)",
                    engine.limits().memory_bytes >> 20
                );
                return Err(way.refuse(Gate::Compile, format!("{error:#}"), mend));
            }
            Err(_) => {
                let cause = "compiling it made the compiler panic";
                return Err(way.refuse(Gate::Compile, cause, "build it with other tools, and please report the file"));
            }
        };
        way.pass(Gate::Compile, "compiled");
        exports(way, outside)?;
        let fills = |slot| outside.fills(slot);
        // A combined policy is asked only for what its slot calls, but both halves must have the right shape.
        let guest = engine.bind(compiled, fills(Slot::Allocator), fills(Slot::Sizer)).map_err(|error| {
            way.refuse(
                Gate::Bind,
                format!(
                    "its exports do not have the shapes of {}@{}: {error:#}",
                    component::PACKAGE,
                    component::VERSION
                ),
                "build it against this host's wit/policy.wit",
            )
        })?;
        way.pass(Gate::Bind, format!("fills {}", slots(outside)));
        Ok(guest)
    }

    fn settings(&self, way: &mut Way<'_>, metadata: &Metadata, written: &Written) -> Result<Resolved, Refusal> {
        let resolved = self.resolve(way, metadata, written)?;
        way.pass(Gate::Settings, format!("{} settings", resolved.in_force.len()));
        Ok(resolved)
    }

    fn resolve(&self, way: &Way<'_>, metadata: &Metadata, written: &Written) -> Result<Resolved, Refusal> {
        settings::resolve(metadata, written, &self.environment).map_err(|issues| {
            way.refuse(Gate::Settings, join(&issues), format!("correct {}.settings in the document", way.slot.as_str()))
        })
    }

    fn canary(&self, way: &mut Way<'_>, runner: &Runner) -> Result<(), Refusal> {
        if !self.canary {
            return Ok(());
        }
        let all = golden::all();
        let (mut answered, mut declined, mut most) = (0, None, 0);
        for golden in &all {
            let answers = match way.slot {
                Slot::Allocator => {
                    vec![twice(|| runner.allocate(&golden.allocate)), twice(|| runner.release(&golden.release))]
                }
                Slot::Sizer => vec![twice(|| canary_plan(runner, &golden.plan))],
            };
            for answer in answers {
                match answer {
                    Ok(fuel) => {
                        answered += 1;
                        most = most.max(fuel);
                    }
                    Err(Trouble::Fault(fault)) if fault.class == FaultClass::Declined => declined = Some(fault),
                    Err(trouble) => {
                        let cause = format!("on the built-in snapshot {:?}: {trouble}", golden.name);
                        return Err(way.refuse(Gate::Canary, cause, MEND_POLICY));
                    }
                }
            }
        }
        // "Not me" is an answer now and then, but not every time.
        if let (0, Some(fault)) = (answered, declined) {
            let cause = format!("it answers none of {} built-in snapshots ({fault})", all.len());
            return Err(way.refuse(Gate::Canary, cause, MEND_POLICY));
        }
        way.pass(Gate::Canary, format!("{} snapshots, at most {most} fuel", all.len()));
        Ok(())
    }
}

const MEND_POLICY: &str = "mend the policy; `wipam policy check` shows the same offline";

fn plain(name: &str) -> bool {
    !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
}

fn join(issues: &[Issue]) -> String {
    let one = |issue: &Issue| match &issue.setting {
        Some(setting) => format!("{setting}: {}", caps::clean(&issue.message)),
        None => caps::clean(&issue.message),
    };
    issues.iter().take(8).map(one).collect::<Vec<_>>().join("; ")
}

fn slots(outside: &Outside) -> String {
    let names = [Slot::Allocator, Slot::Sizer].into_iter().filter(|slot| outside.fills(*slot)).map(Slot::as_str);
    names.collect::<Vec<_>>().join(" and ")
}

// ---- gates ----

/// Size, and unzipping under the same limit.
fn size(way: &mut Way<'_>, given: &[u8]) -> Result<Vec<u8>, Refusal> {
    let too_large = |way: &Way<'_>, what: &str| {
        way.refuse(
            Gate::Size,
            format!("{what} than {MAX_BYTES} bytes"),
            "build it in release mode, stripped (profile `guest`); a policy has some 50 KB",
        )
    };
    if given.len() > MAX_BYTES {
        return Err(too_large(way, "it has more"));
    }
    if !given.starts_with(&[0x1f, 0x8b]) {
        way.pass(Gate::Size, format!("{} bytes", given.len()));
        return Ok(given.to_vec());
    }
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    let read = flate2::read::MultiGzDecoder::new(given).take(limit).read_to_end(&mut bytes);
    read.map_err(|error| {
        way.refuse(Gate::Size, format!("it is gzipped, and unzipping fails: {error}"), "copy or zip the file again")
    })?;
    if bytes.len() > MAX_BYTES {
        return Err(too_large(way, "unzipped it has more"));
    }
    way.pass(Gate::Size, format!("{} bytes, unzipped {}", given.len(), bytes.len()));
    Ok(bytes)
}

/// The digest asked for may be that of the file or of what is zipped in it.
fn digest(way: &mut Way<'_>, given: &[u8], bytes: &[u8], wanted: Option<Digest>) -> Result<Digest, Refusal> {
    let (file, digest) = (Digest::of(given), Digest::of(bytes));
    match wanted {
        Some(wanted) if wanted != file && wanted != digest => Err(way.refuse(
            Gate::Digest,
            format!("its sha256 is {file}, the document asks for {wanted}"),
            "give the file that is meant, or correct sha256 in the document",
        )),
        Some(_) => {
            way.pass(Gate::Digest, format!("{digest} as asked for"));
            Ok(digest)
        }
        None => {
            way.pass(Gate::Digest, digest.to_string());
            Ok(digest)
        }
    }
}

fn parse(way: &mut Way<'_>, bytes: &[u8]) -> Result<Outside, Refusal> {
    let outside = Outside::read(bytes).map_err(|error| way.refuse(Gate::Parse, error.to_string(), error.mend()))?;
    way.pass(Gate::Parse, format!("{} exports", outside.exports.len()));
    Ok(outside)
}

fn imports(way: &mut Way<'_>, outside: &Outside) -> Result<(), Refusal> {
    let Some(import) = outside.needing().next() else {
        way.pass(Gate::Imports, "no function imported");
        return Ok(());
    };
    let all: Vec<_> = outside.needing().map(|i| i.name.as_str()).take(6).collect();
    let mend = if outside.needing().any(|i| i.name.starts_with("wasi:")) {
        "a policy has no system to call: build it for wasm32-unknown-unknown with the linker wasm-component-ld \
         (`cargo build --target wasm32-unknown-unknown`), not for wasm32-wasip2, and without clock, files, \
         environment or printing"
    } else {
        "take the import out; everything a policy may know is an argument"
    };
    let needs: Vec<_> = import.needs.iter().take(4).map(String::as_str).collect();
    let cause = format!("it imports {} ({} of {})", all.join(", "), needs.join(", "), import.name);
    Err(way.refuse(Gate::Imports, cause, mend))
}

/// Whether what the slot calls is there, and if not, what is there instead.
fn exports(way: &Way<'_>, outside: &Outside) -> Result<(), Refusal> {
    let has_policy = outside.exports.iter().any(|name| component::speaks(name, "policy"));
    if has_policy && outside.fills(way.slot) {
        return Ok(());
    }
    let wanted = format!(
        "{0}/policy@{1}.x and {0}/{2}@{1}.x",
        component::PACKAGE,
        component::VERSION,
        component::interface(way.slot)
    );
    if has_policy && (outside.fills(Slot::Allocator) || outside.fills(Slot::Sizer)) {
        return Err(wrong_slot(way));
    }
    let alike = outside.policy_like();
    let (cause, mend) = if alike.is_empty() {
        let has = if outside.exports.is_empty() { "nothing".into() } else { outside.exports.join(", ") };
        (
            format!("it exports {has}, not {wanted}"),
            "write it with the SDK: export_allocator!, export_sizer! or export_combined!",
        )
    } else {
        (
            format!("it exports {}; this host speaks {wanted}", alike.join(", ")),
            "build it against this host's wit/policy.wit",
        )
    };
    Err(way.refuse(Gate::Bind, cause, mend))
}

fn wrong_slot(way: &Way<'_>) -> Refusal {
    let (is, other) = match way.slot {
        Slot::Allocator => ("a sizer", "sizer"),
        Slot::Sizer => ("an allocator", "allocator"),
    };
    way.refuse(
        Gate::Bind,
        format!("it is {is} and has nothing that the slot {} calls", way.slot.as_str()),
        format!("name it under {other}, and another policy under {}", way.slot.as_str()),
    )
}

fn describe(way: &mut Way<'_>, guest: &Guest) -> Result<Metadata, Refusal> {
    let (first, second) = guest
        .describe_twice()
        .map_err(|fault| way.refuse(Gate::Describe, format!("`describe` failed: {fault}"), MEND_POLICY))?;
    if first != second {
        return Err(way.refuse(
            Gate::Describe,
            "two calls of `describe` gave different answers",
            "`describe` must return constants",
        ));
    }
    let problems = settings::problems_of(&first);
    if !problems.is_empty() {
        return Err(way.refuse(Gate::Describe, problems.join("; "), "correct what `describe` returns"));
    }
    way.pass(Gate::Describe, format!("{} {}", first.name, first.version));
    Ok(first)
}

fn checked(way: &mut Way<'_>, said: Result<(), Vec<Issue>>) -> Result<(), Refusal> {
    match said {
        Ok(()) => {
            way.pass(Gate::Check, "the policy accepts the settings");
            Ok(())
        }
        Err(issues) => Err(way.refuse(
            Gate::Check,
            format!("the policy refuses the settings: {}", join(&issues)),
            format!("correct {}.settings in the document", way.slot.as_str()),
        )),
    }
}

// ---- canary ----

enum Trouble {
    Fault(Fault),
    Differs(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Fault(fault) => write!(f, "{fault}"),
            Trouble::Differs(what) => write!(f, "asked twice the same, it gives different {what}"),
        }
    }
}

/// Asks twice, each time in a new instance. Equal answers and equal fuel (which is returned), or trouble.
fn twice<T: PartialEq>(mut ask: impl FnMut() -> Called<T>) -> Result<u64, Trouble> {
    let (first, second) = (ask(), ask());
    match (first.answer, second.answer) {
        (Ok(a), Ok(b)) if a != b => Err(Trouble::Differs("answers".into())),
        (Ok(_), Ok(_)) if first.fuel != second.fuel => {
            Err(Trouble::Differs(format!("fuel ({:?} and {:?})", first.fuel, second.fuel)))
        }
        (Ok(_), Ok(_)) => Ok(first.fuel.unwrap_or(0)),
        (Err(fault), _) | (_, Err(fault)) => Err(Trouble::Fault(fault)),
    }
}

fn canary_plan(runner: &Runner, call: &PlanCall) -> Called<PlanDecision> {
    let called = runner.plan(call, &call.cloud, &call.memo);
    called.and_then(|plan| golden::plan_shape(call, plan))
}
