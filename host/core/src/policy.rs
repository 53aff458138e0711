//! What a policy is shown and what it may answer, in the host's own types, and the seam through which core asks.
//!
//! The shapes follow `wit/policy.wit` field by field; the policy host converts. They are kept apart from the WIT's
//! generated types so that records and checkpoints outlive a WIT version (design: "state and formats").

use serde::{Deserialize, Serialize};

/// Value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// true or false.
    Boolean(bool),
    /// Integer, percent or milliseconds.
    Integer(i64),
    /// Text or choice.
    Text(String),
}

/// One setting by its kebab-case name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the knob.
    pub name: String,
    /// Its value.
    pub value: SettingValue,
}

/// Kind of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnobKind {
    /// true or false.
    Boolean,
    /// Whole number.
    Integer,
    /// 0 to 100.
    Percent,
    /// Milliseconds.
    DurationMs,
    /// Free text.
    Text,
    /// One of `choices`.
    Choice,
}

/// A setting that a policy understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    /// Kebab-case name.
    pub name: String,
    /// Kind, which the host checks.
    pub kind: KnobKind,
    /// Value when nobody sets one.
    pub default: SettingValue,
    /// Lower bound for integer, percent, duration.
    pub min: Option<i64>,
    /// Upper bound.
    pub max: Option<i64>,
    /// Allowed texts for a choice.
    pub choices: Vec<String>,
    /// One sentence for people.
    pub help: String,
}

/// What a policy says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Name; also the first half of the memo's owner.
    pub name: String,
    /// Version of the policy, free text.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// Settings it understands.
    pub knobs: Vec<Knob>,
    /// Layout number of the memo; 0 for none.
    pub memo_schema: u32,
    /// Room for later hints.
    pub extra: Vec<(String, String)>,
}

/// Something wrong with a set of settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// The setting, when one is to blame.
    pub setting: Option<String>,
    /// What is wrong and how to mend it.
    pub message: String,
}

/// A number worth a metric label or a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Name, at most 48 bytes.
    pub key: String,
    /// Value.
    pub value: i64,
}

/// One pool: one network, one card, one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Name of the network.
    pub network: String,
    /// "eni" or "range".
    pub kind: String,
    /// 4 or 6.
    pub family: u8,
    /// Network card.
    pub card: u8,
    /// What growth asks for by default: 32 or 28 (v4), 128 or 80 (v6), a slice's length.
    pub unit_length: u8,
    /// Whether growth is allowed at all now.
    pub may_grow: bool,
    /// Cool-down, ms.
    pub cooldown_ms: u64,
}

/// Limits of the card, less what trunks and unmanaged interfaces take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// EC2 instance type.
    pub instance_type: String,
    /// Interfaces on this card.
    pub max_enis: u16,
    /// Slots of an interface for secondary addresses or prefixes (the primary address is not counted).
    pub slots_per_eni: u16,
    /// Pods on this node.
    pub max_pods: u32,
}

/// Addresses by state. Each is in exactly one of the first six after `total`, which is their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sum of the six.
    pub total: u64,
    /// Leased to a sandbox.
    pub assigned: u64,
    /// Assignable now.
    pub free: u64,
    /// Resting.
    pub cooling: u64,
    /// Kept for the pod that had it.
    pub reserved: u64,
    /// Recorded for a sandbox that is gone without a DEL.
    pub held: u64,
    /// Missing from one reading of the cloud's state.
    pub suspect: u64,
    /// Being asked for; not in total.
    pub assigning: u64,
    /// Being given back; not in total.
    pub releasing: u64,
}

/// Bits of [`EniView::marks`].
pub mod eni_marks {
    /// The primary interface.
    pub const PRIMARY: u32 = 1;
    /// Not usable yet.
    pub const ATTACHING: u32 = 1 << 1;
    /// Offers nothing new.
    pub const DRAINING: u32 = 1 << 2;
    /// On its way out.
    pub const DETACHING: u32 = 1 << 3;
    /// No further addresses may be asked for on it.
    pub const NOT_FILLABLE: u32 = 1 << 4;
    /// None of its addresses go to pods.
    pub const NOT_ALLOCATABLE: u32 = 1 << 5;
    /// May not be detached.
    pub const NOT_REMOVABLE: u32 = 1 << 6;
    /// A trunk.
    pub const TRUNK: u32 = 1 << 7;
    /// EFA.
    pub const EFA: u32 = 1 << 8;
    /// Attached by somebody else.
    pub const UNMANAGED: u32 = 1 << 9;
    /// Missing from one reading.
    pub const SUSPECT: u32 = 1 << 10;
}

/// One interface as a policy sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EniView {
    /// `eni-…`.
    pub id: String,
    /// Device index.
    pub device_index: u8,
    /// Network card.
    pub card: u8,
    /// Index into [`CloudView::subnets`].
    pub subnet: u8,
    /// [`eni_marks`].
    pub marks: u32,
    /// EC2 slots, the primary address not counted.
    pub slots: u16,
    /// Slots taken by lone addresses and prefixes.
    pub slots_used: u16,
    /// Slots being asked for or given back.
    pub slots_moving: u16,
    /// Addresses leased.
    pub assigned: u32,
    /// Addresses free.
    pub free: u32,
    /// Addresses cooling.
    pub cooling: u32,
    /// Addresses reserved.
    pub reserved: u32,
    /// Addresses held.
    pub held: u32,
    /// When it was attached, pool clock ms.
    pub attached_at_ms: u64,
}

/// Prefixes and ranges as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSet {
    /// Index into [`Snapshot::enis`]; 255 for none.
    pub eni: Vec<u8>,
    /// Prefix length.
    pub length: Vec<u8>,
    /// High half of the first address.
    pub base_hi: Vec<u64>,
    /// Low half of the first address (IPv4 in the low 32 bits).
    pub base_lo: Vec<u64>,
    /// Leased.
    pub assigned: Vec<u32>,
    /// Cooling.
    pub cooling: Vec<u32>,
    /// Reserved.
    pub reserved: Vec<u32>,
    /// Held.
    pub held: Vec<u32>,
    /// Never given out since the block came.
    pub untouched: Vec<u64>,
    /// Bit 0 draining, 1 suspect.
    pub marks: Vec<u16>,
}

impl BlockSet {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.eni.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.eni.is_empty()
    }
}

/// Bits of [`RowSet::marks`].
pub mod row_marks {
    /// Cooling, and last had by the asker.
    pub const COOLING_OWN: u16 = 1;
    /// Held for the asker.
    pub const HELD_OWN: u16 = 1 << 1;
    /// Reserved for the asker.
    pub const RESERVED_OWN: u16 = 1 << 2;
    /// Reserved for another pod.
    pub const RESERVED_OTHER: u16 = 1 << 3;
    /// Never used.
    pub const NEVER_USED: u16 = 1 << 4;
    /// Asked for by the runtime.
    pub const REQUESTED: u16 = 1 << 5;
}

/// `eni` column value for "none".
pub const NO_ENI: u8 = 255;
/// `block` column value for "none".
pub const NO_BLOCK: u16 = u16::MAX;

/// The addresses a decision may name, as columns of equal length, ordered by address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSet {
    /// High half.
    pub address_hi: Vec<u64>,
    /// Low half (IPv4 in the low 32 bits).
    pub address_lo: Vec<u64>,
    /// Index into [`Snapshot::enis`]; 255 for none.
    pub eni: Vec<u8>,
    /// Index into [`Snapshot::blocks`]; 65535 for none.
    pub block: Vec<u16>,
    /// [`row_marks`].
    pub marks: Vec<u16>,
    /// Free since, pool clock ms; 0 for never used.
    pub free_since_ms: Vec<u64>,
    /// End of cooling, reservation or hold; 0 for none.
    pub until_ms: Vec<u64>,
    /// Key of the last pod; 0 for none.
    pub last_pod_key: Vec<u64>,
}

impl RowSet {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.address_lo.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.address_lo.is_empty()
    }
}

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Which pool.
    pub pool: PoolInfo,
    /// Limits.
    pub limits: Limits,
    /// Addresses by state.
    pub counts: Counts,
    /// Interfaces.
    pub enis: Vec<EniView>,
    /// Blocks.
    pub blocks: BlockSet,
    /// What may be named.
    pub rows: RowSet,
    /// Assignable addresses that are not among the rows.
    pub rows_left_out: u64,
}

/// Clock, randomness and settings of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Pool clock, ms.
    pub now_ms: u64,
    /// Derived from the request or tick.
    pub seed: u64,
    /// Core leaves this empty; the policy host fills in the settings of the policy that answers.
    pub settings: Vec<Setting>,
    /// Room for later hints.
    pub extra: Vec<(String, String)>,
}

/// A pod as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; empty when unknown.
    pub uid: String,
    /// [`crate::ids::pod_key`] of namespace and name.
    pub key: u64,
    /// Whether owner, labels and annotations are known.
    pub facts_known: bool,
    /// Kind of the owner.
    pub owner_kind: String,
    /// Name of the owner.
    pub owner_name: String,
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
}

/// An ADD that wants an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Opaque number of the sandbox.
    pub sandbox: u64,
    /// Interface name.
    pub ifname: String,
    /// Which address of the interface.
    pub index: u8,
    /// Who asks.
    pub pod: Pod,
    /// How many earlier answers the host refused.
    pub attempt: u32,
    /// When the ADD gives up, pool clock ms.
    pub deadline_ms: u64,
}

/// Answer to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// A row of the row-set.
    Assign(u32),
    /// Nothing suits; ask again after a change or so many ms.
    Hold(u32),
    /// Fail the ADD.
    Reject,
}

/// Answer with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDecision {
    /// The choice.
    pub choice: Choice,
    /// One sentence.
    pub reason: String,
    /// Numbers for reports.
    pub facts: Vec<Fact>,
}

/// A lease that ended, for `release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    /// Opaque number of the sandbox.
    pub sandbox: u64,
    /// Interface name.
    pub ifname: String,
    /// Which address of the interface.
    pub index: u8,
    /// Whose it was.
    pub pod: Pod,
    /// High half of the address.
    pub address_hi: u64,
    /// Low half.
    pub address_lo: u64,
    /// Pool clock ms.
    pub assigned_at_ms: u64,
    /// "del", "gc", "gone", "superseded".
    pub cause: String,
}

/// How long to keep the address for its pod after the cool-down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Milliseconds; 0 for not at all.
    pub keep_for_ms: u64,
    /// One sentence.
    pub reason: String,
    /// Numbers for reports.
    pub facts: Vec<Fact>,
}

/// What is asked of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// ADDs waiting for an address.
    pub waiting: u32,
    /// How long the oldest has waited.
    pub oldest_wait_ms: u64,
    /// ADDs in the last 10 s.
    pub adds_10s: u32,
    /// ADDs in the last minute.
    pub adds_1m: u32,
    /// DELs in the last minute.
    pub dels_1m: u32,
    /// Failed ADDs in the last minute.
    pub failed_1m: u32,
    /// Pods bound here without a sandbox, where known.
    pub pending_pods: Option<u32>,
    /// Whether the node takes new pods.
    pub schedulable: bool,
    /// Whether the node is being drained for good.
    pub stopping: bool,
}

/// A subnet growth may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetView {
    /// `subnet-…`.
    pub id: String,
    /// Free addresses, where known.
    pub free: Option<u64>,
    /// Not before.
    pub usable_after_ms: u64,
    /// No /28 before.
    pub blocks_after_ms: u64,
}

/// An operation that must not be asked for yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// "attach", "grow", "release", "detach".
    pub op: String,
    /// Index into [`CloudView::subnets`]; 255 for all.
    pub subnet: u8,
    /// As in [`OutcomeView::code`].
    pub code: String,
    /// Until, pool clock ms.
    pub until_ms: u64,
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeView {
    /// "attach", "grow", "release", "detach", "drain".
    pub op: String,
    /// Index in this snapshot; 255 if gone or none.
    pub eni: u8,
    /// Units asked for.
    pub asked: u32,
    /// Units that came or went.
    pub applied: u32,
    /// "" for done, else "throttled", "subnet-exhausted", "no-cidr-block", "limit-reached", "not-authorised",
    /// "not-found", `guard-<n>`, "superseded", "unknown".
    pub code: String,
    /// When, pool clock ms.
    pub at_ms: u64,
}

/// The cloud as far as a plan may depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudView {
    /// Subnets.
    pub subnets: Vec<SubnetView>,
    /// Back-off.
    pub barriers: Vec<Barrier>,
    /// Begun and not answered.
    pub in_flight: Vec<OutcomeView>,
    /// The last plan's actions, in order.
    pub last: Vec<OutcomeView>,
}

/// One proposed change of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// A new interface.
    Attach {
        /// Index into [`CloudView::subnets`]; 255 leaves it to the host.
        subnet: u8,
        /// 32 or 28.
        length: u8,
        /// Units to begin with.
        count: u16,
    },
    /// More units on an interface.
    Grow {
        /// Index into [`Snapshot::enis`]; 255 for a pool without interfaces.
        eni: u8,
        /// 32 or 28.
        length: u8,
        /// Units.
        count: u16,
    },
    /// Give lone addresses back, all on one interface.
    ReleaseRows(Vec<u32>),
    /// Give a block back.
    ReleaseBlock(u16),
    /// Offer nothing new on an interface, or take that back.
    Drain {
        /// Index into [`Snapshot::enis`].
        eni: u8,
        /// On or off.
        on: bool,
    },
    /// Detach and delete an interface.
    Detach(u8),
}

/// A sizing answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDecision {
    /// Ordered proposals.
    pub actions: Vec<Action>,
    /// Ask again after so many ms even if nothing changes.
    pub recheck_ms: Option<u32>,
    /// Handed back in the next call.
    pub memo: Option<Vec<u8>>,
    /// One sentence.
    pub reason: String,
    /// Numbers for reports.
    pub facts: Vec<Fact>,
}

/// The two slots a policy can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slot {
    /// Which address a pod gets.
    Allocator,
    /// How many addresses to hold.
    Sizer,
}

impl Slot {
    /// Text for labels and screens.
    pub fn as_str(self) -> &'static str {
        match self {
            Slot::Allocator => "allocator",
            Slot::Sizer => "sizer",
        }
    }
}

/// Which rung of the fault ladder answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnsweredBy {
    /// The active policy.
    Policy,
    /// The last good policy, after repeated faults of the active one.
    LastGood,
    /// The native twin.
    Native,
}

/// An answer and where it came from. There always is one: a policy's fault is answered by its native twin.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer<T> {
    /// Number in the decision log.
    pub decision: u64,
    /// Rung of the ladder.
    pub by: AnsweredBy,
    /// The answer, with reason, facts and lists already cut to the caps of guard 11.
    pub answer: T,
}

/// What the guard said of an answer; goes back into the decision log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Applied as answered.
    Accepted,
    /// A plan of which some actions were skipped, each with the number of the guard.
    Partly(Vec<SkippedAction>),
    /// Refused wholly; a fault of the policy.
    Refused {
        /// Number of the guard's invariant.
        guard: u8,
        /// What was wrong.
        why: String,
    },
}

/// An action of a plan that the guard did not let through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedAction {
    /// Index in the plan.
    pub action: u32,
    /// Number of the guard's invariant.
    pub guard: u8,
    /// What was wrong.
    pub why: String,
}

/// What the policy slot remembers between plans. Belongs to the policy (name, schema) that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memo {
    /// Name of the policy that wrote it.
    pub policy: String,
    /// Its memo-schema.
    pub schema: u32,
    /// At most 4 KiB.
    pub bytes: Vec<u8>,
}

/// Arguments of `allocate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocateCall {
    /// Who asks for what.
    pub request: Request,
    /// Clock and seed.
    pub given: Given,
    /// The pool.
    pub pool: Snapshot,
}

/// Arguments of `release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseCall {
    /// The lease that ended.
    pub lease: EndedLease,
    /// Clock and seed.
    pub given: Given,
    /// Which pool.
    pub pool: PoolInfo,
    /// Limits.
    pub limits: Limits,
    /// Addresses by state.
    pub counts: Counts,
}

/// Arguments of `plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanCall {
    /// Clock and seed.
    pub given: Given,
    /// The pool.
    pub pool: Snapshot,
    /// What is asked of it.
    pub demand: Demand,
    /// The cloud.
    pub cloud: CloudView,
    /// What the slot remembers; passed on only to the policy that owns it.
    pub memo: Memo,
}

/// The seam to the policy host. Core asks, the host answers from the component, the last good one or the native twin.
///
/// `native` skips the component: core sets it after the guard refused the component's answer, or when liveness
/// demands an answer (design §3).
pub trait Policies {
    /// Which address a pod gets.
    fn allocate(&mut self, call: &AllocateCall, native: bool) -> Answer<AllocDecision>;
    /// How long an address stays reserved for its pod.
    fn release(&mut self, call: &ReleaseCall) -> Answer<Retention>;
    /// How many addresses to hold. The returned memo, if any, is kept by core together with its owner.
    fn plan(&mut self, call: &PlanCall, native: bool) -> Answer<(PlanDecision, Option<Memo>)>;
    /// What the guard said of decision number `decision`. `Refused` is a fault.
    fn verdict(&mut self, slot: Slot, decision: u64, verdict: Verdict);
    /// A fault that only core can see: a policy that starves pods (design §3, liveness).
    fn fault(&mut self, slot: Slot, decision: u64, why: &str);
}
