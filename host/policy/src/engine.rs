//! Wasmtime, set up so that a policy can do no harm: no imports, no threads, a new store and instance for every
//! call, fuel that decides and a clock that protects.
//!
//! Fuel makes the end of an endless loop the same on every machine and in every replay. Some instructions do much
//! work for one unit (filling a whole memory), so an epoch with a wall-clock deadline stands behind it; a thread of
//! its own moves the epoch, since an executor's task could be starved by the very call it should end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    time::Duration,
};

use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store, StoreLimits, StoreLimitsBuilder,
    component::{Component, Linker},
};
use wipam_core::policy::{
    AllocDecision, AllocateCall, CloudView, Issue, Metadata, PlanCall, PlanDecision, ReleaseCall, Retention, Setting,
    Slot,
};

use crate::{
    bindings::{allocator::AllocatorPre, sizer::SizerPre},
    convert,
    digest::Digest,
    fault::Fault,
};

/// Limits of every call. The defaults fit decisions over 4096 rows many times over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Fuel of one call; about 1 ms of spinning.
    pub fuel: u64,
    /// Bytes the host may set aside while reading an answer.
    pub answer_bytes: usize,
    /// Wall-clock back-stop of one call.
    pub deadline: Duration,
    /// How often the epoch moves.
    pub tick: Duration,
    /// Bytes of a guest's memory.
    pub memory_bytes: usize,
    /// Instances that may exist at once: the decision, its shadow, a candidate's canary, and room.
    pub instances: u32,
    /// Stack that Wasm code may use, bytes. The calling thread needs this and about 200 KiB more.
    pub stack_bytes: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        EngineLimits {
            fuel: 20_000_000,
            answer_bytes: 256 << 10,
            deadline: Duration::from_secs(1),
            tick: Duration::from_millis(5),
            memory_bytes: 16 << 20,
            instances: 8,
            stack_bytes: 256 << 10,
        }
    }
}

/// The engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Wasmtime refused the configuration, or the address space is too small.
    #[error(
        "cannot set up the Wasm engine with {instances} memories of {memory_bytes} bytes; \
         raise the limit on address space (ulimit -v) or run policies natively"
    )]
    Wasmtime {
        /// Memories asked for.
        instances: u32,
        /// Bytes each.
        memory_bytes: usize,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No thread for the epoch.
    #[error("cannot start the thread that ends runaway policies")]
    Thread(#[from] std::io::Error),
}

/// What a store carries.
pub(crate) struct State {
    limits: StoreLimits,
}

/// A Wasmtime engine with its ticking thread and what was compiled for it.
pub struct WasmEngine {
    engine: Engine,
    limits: EngineLimits,
    deadline_ticks: u64,
    /// Compiled policies by digest, as long as somebody uses them: one that fills both slots is compiled once, and a
    /// change of settings compiles nothing.
    compiled: Mutex<HashMap<Digest, Weak<Compiled>>>,
    /// Dropped with the engine, which ends the ticking thread at once.
    _ticker: mpsc::Sender<()>,
}

impl std::fmt::Debug for WasmEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl WasmEngine {
    /// An engine with these limits, and its thread.
    ///
    /// # Errors
    /// If Wasmtime refuses, most likely for want of address space. There is no silent way round: without the pool
    /// each call would be slower and less predictable.
    pub fn new(limits: EngineLimits) -> Result<Arc<WasmEngine>, EngineError> {
        let engine = Engine::new(&config(&limits)).map_err(|source| EngineError::Wasmtime {
            instances: limits.instances,
            memory_bytes: limits.memory_bytes,
            source: source.into(),
        })?;
        let ticks = limits.deadline.as_nanos().div_ceil(limits.tick.as_nanos().max(1));
        Ok(Arc::new(WasmEngine {
            _ticker: start_ticker(&engine, limits.tick)?,
            // One more, since the current tick is partly spent.
            deadline_ticks: u64::try_from(ticks).unwrap_or(u64::MAX / 2).saturating_add(1),
            engine,
            limits,
            compiled: Mutex::default(),
        }))
    }

    /// The limits in force.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Compiles a component that was already found valid and free of imported functions.
    pub(crate) fn compile(&self, digest: Digest, bytes: &[u8]) -> Result<Arc<Compiled>, wasmtime::Error> {
        let known = |map: &HashMap<Digest, Weak<Compiled>>| map.get(&digest).and_then(Weak::upgrade);
        if let Some(compiled) = known(&self.compiled.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(compiled);
        }
        // Not under the lock: 50 ms.
        let compiled = Arc::new(Compiled { component: Component::new(&self.engine, bytes)? });
        let mut map = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, weak| weak.strong_count() > 0);
        map.insert(digest, Arc::downgrade(&compiled));
        Ok(compiled)
    }

    /// Links a component against nothing and looks its exports up, by name and shape.
    pub(crate) fn bind(
        self: &Arc<Self>,
        compiled: Arc<Compiled>,
        allocator: bool,
        sizer: bool,
    ) -> Result<Guest, wasmtime::Error> {
        let pre = Linker::<State>::new(&self.engine).instantiate_pre(&compiled.component)?;
        let guest = Guest {
            allocator: allocator.then(|| AllocatorPre::new(pre.clone())).transpose()?,
            sizer: sizer.then(|| SizerPre::new(pre)).transpose()?,
            _compiled: compiled,
            engine: self.clone(),
        };
        // Names were found; the shapes of the functions behind them are compared only with an instance.
        if let Some(pre) = &guest.allocator {
            pre.instantiate(self.store())?;
        }
        if let Some(pre) = &guest.sizer {
            pre.instantiate(self.store())?;
        }
        Ok(guest)
    }

    fn store(&self) -> Store<State> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.limits.memory_bytes)
            .table_elements(TABLE_ELEMENTS)
            .instances(CORE_INSTANCES as usize)
            .memories(MEMORIES as usize)
            .tables(TABLES as usize)
            .build();
        let mut store = Store::new(&self.engine, State { limits });
        store.limiter(|state| &mut state.limits);
        // A store without a deadline would trap at once.
        store.set_epoch_deadline(self.deadline_ticks);
        store.set_hostcall_fuel(self.limits.answer_bytes);
        // Fails only on an engine without fuel, and ours has it.
        let _ = store.set_fuel(self.limits.fuel);
        store
    }
}

/// Per component; a policy built by the SDK has one core instance, one memory and one table.
const CORE_INSTANCES: u32 = 8;
const MEMORIES: u32 = 1;
const TABLES: u32 = 4;
const TABLE_ELEMENTS: usize = 10_000;
/// Pages of a slot that stay resident between calls; more than a decision over 700 rows touches.
const KEEP_RESIDENT: usize = 256 << 10;

fn config(limits: &EngineLimits) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(limits.instances)
        .total_core_instances(limits.instances * CORE_INSTANCES)
        .total_memories(limits.instances * MEMORIES)
        .total_tables(limits.instances * TABLES)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_memory_size(limits.memory_bytes)
        .table_elements(TABLE_ELEMENTS)
        .max_unused_warm_slots(limits.instances)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(16 << 10);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        // As large as a memory may become, or the pool would reserve terabytes.
        .memory_reservation(limits.memory_bytes as u64)
        .memory_guard_size(64 << 10)
        .memory_init_cow(true)
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(limits.stack_bytes)
        // The same bits on every machine.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false);
    config
}

/// Moves the epoch until the engine is gone. It holds the engine weakly, and the sender of the channel lives in the
/// wrapper, so it ends with it.
fn start_ticker(engine: &Engine, tick: Duration) -> std::io::Result<mpsc::Sender<()>> {
    let (sender, stop) = mpsc::channel();
    let weak = engine.weak();
    std::thread::Builder::new().name("wipam-epoch".into()).spawn(move || {
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(tick) {
            match weak.upgrade() {
                Some(engine) => engine.increment_epoch(),
                None => break,
            }
        }
    })?;
    Ok(sender)
}

/// Machine code of one component.
pub(crate) struct Compiled {
    component: Component,
}

/// A component whose exports were found and typed, ready to be called. Every call makes its own store and instance.
pub struct Guest {
    engine: Arc<WasmEngine>,
    allocator: Option<AllocatorPre<State>>,
    sizer: Option<SizerPre<State>>,
    /// Keeps the engine's cache entry alive.
    _compiled: Arc<Compiled>,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest")
            .field("allocator", &self.allocator.is_some())
            .field("sizer", &self.sizer.is_some())
            .finish_non_exhaustive()
    }
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Called<T> {
    /// The answer, or why there is none.
    pub(crate) answer: Result<T, Fault>,
    /// Fuel used, instantiation included; none if no component ran.
    pub(crate) fuel: Option<u64>,
}

impl<T> Called<T> {
    /// Cuts and checks an answer.
    pub(crate) fn and_then(mut self, check: impl FnOnce(&mut T) -> Result<(), Fault>) -> Called<T> {
        if let Ok(answer) = &mut self.answer
            && let Err(fault) = check(answer)
        {
            self.answer = Err(fault);
        }
        self
    }

    pub(crate) fn map<U>(self, to: impl FnOnce(T) -> U) -> Called<U> {
        Called { answer: self.answer.map(to), fuel: self.fuel }
    }
}

impl Guest {
    /// Whether it exports what the slot calls.
    pub fn fills(&self, slot: Slot) -> bool {
        match slot {
            Slot::Allocator => self.allocator.is_some(),
            Slot::Sizer => self.sizer.is_some(),
        }
    }

    /// Makes a store, runs `call` in it and reads the fuel.
    fn run<T>(&self, call: impl FnOnce(&mut Store<State>) -> Result<T, Fault>) -> Called<T> {
        let mut store = self.engine.store();
        let answer = call(&mut store);
        let left = store.get_fuel().unwrap_or(0);
        Called { answer, fuel: Some(self.engine.limits.fuel.saturating_sub(left)) }
    }

    /// `describe`, called twice in one instance: the two must be equal.
    pub(crate) fn describe_twice(&self) -> Result<(Metadata, Metadata), Fault> {
        let called = self.run(|store| {
            if let Some(pre) = &self.allocator {
                let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
                let policy = guest.wipam_policy_policy();
                let mut ask = || policy.call_describe(&mut *store).map_err(|e| Fault::of_call(&e));
                return Ok((convert::metadata(ask()?), convert::metadata(ask()?)));
            }
            let pre = self.sizer.as_ref().ok_or_else(|| no_function("describe"))?;
            let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
            let policy = guest.wipam_policy_policy();
            let mut ask = || policy.call_describe(&mut *store).map_err(|e| Fault::of_call(&e));
            Ok((convert::metadata(ask()?), convert::metadata(ask()?)))
        });
        called.answer
    }

    /// `check` on settings whose names, kinds and bounds are right.
    pub(crate) fn check(&self, settings: &[Setting]) -> Result<Result<(), Vec<Issue>>, Fault> {
        let settings = convert::settings(settings);
        let called = self.run(|store| {
            if let Some(pre) = &self.allocator {
                let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
                let said = guest.wipam_policy_policy().call_check(store, &settings);
                return Ok(said.map_err(|e| Fault::of_call(&e))?.map_err(convert::issues));
            }
            let pre = self.sizer.as_ref().ok_or_else(|| no_function("check"))?;
            let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
            let said = guest.wipam_policy_policy().call_check(store, &settings);
            Ok(said.map_err(|e| Fault::of_call(&e))?.map_err(convert::issues))
        });
        called.answer
    }

    pub(crate) fn allocate(&self, call: &AllocateCall, settings: &[Setting]) -> Called<AllocDecision> {
        let enis = convert::enis(&call.pool.enis);
        let (labels, annotations) = convert::pod_pairs(&call.request.pod);
        let (settings, extra) = (convert::settings(settings), convert::pairs(&call.given.extra));
        let request = convert::request(&call.request, &labels, &annotations);
        let given = convert::given(&call.given, &settings, &extra);
        let pool = convert::snapshot(&call.pool, &enis);
        self.run(|store| {
            let pre = self.allocator.as_ref().ok_or_else(|| no_function("allocate"))?;
            let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
            let said = guest.wipam_policy_allocation().call_allocate(store, request, given, pool);
            convert::allocation(said.map_err(|e| Fault::of_call(&e))?)
        })
    }

    pub(crate) fn release(&self, call: &ReleaseCall, settings: &[Setting]) -> Called<Retention> {
        let (labels, annotations) = convert::pod_pairs(&call.lease.pod);
        let (settings, extra) = (convert::settings(settings), convert::pairs(&call.given.extra));
        let lease = convert::lease(&call.lease, &labels, &annotations);
        let given = convert::given(&call.given, &settings, &extra);
        let (pool, limits) = (convert::pool_info(&call.pool), convert::limits(&call.limits));
        self.run(|store| {
            let pre = self.allocator.as_ref().ok_or_else(|| no_function("release"))?;
            let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
            let counts = convert::counts(&call.counts);
            let said = guest.wipam_policy_allocation().call_release(store, lease, given, pool, limits, counts);
            convert::retention(said.map_err(|e| Fault::of_call(&e))?)
        })
    }

    pub(crate) fn plan(
        &self,
        call: &PlanCall,
        cloud: &CloudView,
        memo: &[u8],
        settings: &[Setting],
    ) -> Called<PlanDecision> {
        let enis = convert::enis(&call.pool.enis);
        let (settings, extra) = (convert::settings(settings), convert::pairs(&call.given.extra));
        let given = convert::given(&call.given, &settings, &extra);
        let pool = convert::snapshot(&call.pool, &enis);
        let parts = convert::CloudParts::of(cloud);
        self.run(|store| {
            let pre = self.sizer.as_ref().ok_or_else(|| no_function("plan"))?;
            let guest = pre.instantiate(&mut *store).map_err(|e| Fault::of_instance(&e))?;
            let demand = convert::demand(&call.demand);
            let said = guest.wipam_policy_sizing().call_plan(store, given, pool, demand, parts.cloud(), memo);
            convert::plan(said.map_err(|e| Fault::of_call(&e))?)
        })
    }
}

fn no_function(name: &str) -> Fault {
    Fault::new(crate::fault::FaultClass::Declined, &format!("the component exports no `{name}`"))
}
