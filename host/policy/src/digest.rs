//! Digests: of components, of settings, and of the inputs of a decision.
//!
//! The digest of the inputs answers one question in the log and in a replay: was the policy shown the same? It is no
//! seal against forgery. It is the SHA-256 of a plain concatenation (format `wipam-inputs/1`), since JSON of hundreds of
//! rows would take longer than the decision itself:
//!
//! - integers little-endian in their own width, booleans one byte, options a byte 0 or 1 and then the value;
//! - texts and byte strings: length as `u32`, then the bytes;
//! - lists: number of elements as `u32`, then the elements; a list of records field by field;
//! - a column of integers of more than one byte: number of elements as `u32`, then the XXH3-128 (16 bytes,
//!   little-endian) of all its integers, since SHA-256 over hundreds of rows would cost more than the policy;
//! - records: the fields in the order of `wit/policy.wit`, `extra` included;
//! - a call: `"wipam-inputs/1"`, one byte (1 allocate, 2 release, 3 plan), then the arguments in the order of the WIT,
//!   with the settings the policy got and (for a plan) the memo it got.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_128;
use wipam_core::policy::{
    AllocateCall, BlockSet, Counts, Demand, EniView, Given, Limits, OutcomeView, PlanCall, Pod, PoolInfo, ReleaseCall,
    RowSet, Setting, SettingValue, Snapshot,
};

/// A SHA-256; lower-case hex as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// From 64 hex digits, with or without a leading `sha256:`.
    pub fn parse(text: &str) -> Option<Digest> {
        let mut out = [0; 32];
        hex::decode_to_slice(text.strip_prefix("sha256:").unwrap_or(text), &mut out).ok()?;
        Some(Digest(out))
    }

    /// The first 12 hex digits, for screens.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Digest::parse(&text).ok_or_else(|| D::Error::custom("not a SHA-256 (64 hex digits)"))
    }
}

/// Writes inputs into reused buffers.
#[derive(Default)]
pub(crate) struct InputsDigest {
    buf: Vec<u8>,
    column: Vec<u8>,
}

impl InputsDigest {
    /// Of an allocation.
    pub(crate) fn allocate(&mut self, call: &AllocateCall, settings: &[Setting]) -> Digest {
        self.begin(1);
        let request = &call.request;
        self.u64(request.sandbox);
        self.text(&request.ifname);
        self.buf.push(request.index);
        self.pod(&request.pod);
        self.u32(request.attempt);
        self.u64(request.deadline_ms);
        self.given(&call.given, settings);
        self.snapshot(&call.pool);
        self.end()
    }

    /// Of a release.
    pub(crate) fn release(&mut self, call: &ReleaseCall, settings: &[Setting]) -> Digest {
        self.begin(2);
        let lease = &call.lease;
        self.u64(lease.sandbox);
        self.text(&lease.ifname);
        self.buf.push(lease.index);
        self.pod(&lease.pod);
        self.u64(lease.address_hi);
        self.u64(lease.address_lo);
        self.u64(lease.assigned_at_ms);
        self.text(&lease.cause);
        self.given(&call.given, settings);
        self.pool_info(&call.pool);
        self.limits(&call.limits);
        self.counts(&call.counts);
        self.end()
    }

    /// Of a plan, with the memo that the policy really got.
    pub(crate) fn plan(&mut self, call: &PlanCall, settings: &[Setting], memo: &[u8]) -> Digest {
        self.begin(3);
        self.given(&call.given, settings);
        self.snapshot(&call.pool);
        self.demand(&call.demand);
        self.count(call.cloud.subnets.len());
        for subnet in &call.cloud.subnets {
            self.text(&subnet.id);
            self.option(subnet.free, Self::u64);
            self.u64(subnet.usable_after_ms);
            self.u64(subnet.blocks_after_ms);
        }
        self.count(call.cloud.barriers.len());
        for barrier in &call.cloud.barriers {
            self.text(&barrier.op);
            self.buf.push(barrier.subnet);
            self.text(&barrier.code);
            self.u64(barrier.until_ms);
        }
        self.outcomes(&call.cloud.in_flight);
        self.outcomes(&call.cloud.last);
        self.bytes(memo);
        self.end()
    }

    fn begin(&mut self, call: u8) {
        self.buf.clear();
        self.buf.extend_from_slice(b"wipam-inputs/1");
        self.buf.push(call);
    }

    fn end(&self) -> Digest {
        Digest::of(&self.buf)
    }

    fn u32(&mut self, value: u32) {
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    fn u16(&mut self, value: u16) {
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    fn bool(&mut self, value: bool) {
        self.buf.push(u8::from(value));
    }

    fn count(&mut self, len: usize) {
        // Lists come from snapshots of a node: far below 2^32.
        self.u32(u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.buf.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, put: impl Fn(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn pairs(&mut self, pairs: &[(String, String)]) {
        self.count(pairs.len());
        for (key, value) in pairs {
            self.text(key);
            self.text(value);
        }
    }

    /// A column of `N`-byte integers: this is where nearly all bytes come from.
    fn column<T: Copy, const N: usize>(&mut self, column: &[T], le: impl Fn(T) -> [u8; N]) {
        self.count(column.len());
        self.column.clear();
        self.column.resize(column.len() * N, 0);
        for (to, value) in self.column.chunks_exact_mut(N).zip(column) {
            to.copy_from_slice(&le(*value));
        }
        self.buf.extend_from_slice(&XxHash3_128::oneshot(&self.column).to_le_bytes());
    }

    fn given(&mut self, given: &Given, settings: &[Setting]) {
        self.u64(given.now_ms);
        self.u64(given.seed);
        self.count(settings.len());
        for setting in settings {
            self.text(&setting.name);
            match &setting.value {
                SettingValue::Boolean(value) => {
                    self.buf.push(0);
                    self.bool(*value);
                }
                SettingValue::Integer(value) => {
                    self.buf.push(1);
                    self.buf.extend_from_slice(&value.to_le_bytes());
                }
                SettingValue::Text(value) => {
                    self.buf.push(2);
                    self.text(value);
                }
            }
        }
        self.pairs(&given.extra);
    }

    fn pod(&mut self, pod: &Pod) {
        self.text(&pod.namespace);
        self.text(&pod.name);
        self.text(&pod.uid);
        self.u64(pod.key);
        self.bool(pod.facts_known);
        self.text(&pod.owner_kind);
        self.text(&pod.owner_name);
        self.pairs(&pod.labels);
        self.pairs(&pod.annotations);
    }

    fn pool_info(&mut self, pool: &PoolInfo) {
        self.text(&pool.network);
        self.text(&pool.kind);
        self.buf.extend_from_slice(&[pool.family, pool.card, pool.unit_length]);
        self.bool(pool.may_grow);
        self.u64(pool.cooldown_ms);
    }

    fn limits(&mut self, limits: &Limits) {
        self.text(&limits.instance_type);
        self.u16(limits.max_enis);
        self.u16(limits.slots_per_eni);
        self.u32(limits.max_pods);
    }

    fn counts(&mut self, c: &Counts) {
        for value in [c.total, c.assigned, c.free, c.cooling, c.reserved, c.held, c.suspect, c.assigning, c.releasing] {
            self.u64(value);
        }
    }

    fn eni(&mut self, eni: &EniView) {
        self.text(&eni.id);
        self.buf.extend_from_slice(&[eni.device_index, eni.card, eni.subnet]);
        self.u32(eni.marks);
        for value in [eni.slots, eni.slots_used, eni.slots_moving] {
            self.u16(value);
        }
        for value in [eni.assigned, eni.free, eni.cooling, eni.reserved, eni.held] {
            self.u32(value);
        }
        self.u64(eni.attached_at_ms);
    }

    fn snapshot(&mut self, pool: &Snapshot) {
        self.pool_info(&pool.pool);
        self.limits(&pool.limits);
        self.counts(&pool.counts);
        self.count(pool.enis.len());
        for eni in &pool.enis {
            self.eni(eni);
        }
        self.blocks(&pool.blocks);
        self.rows(&pool.rows);
        self.u64(pool.rows_left_out);
    }

    fn blocks(&mut self, blocks: &BlockSet) {
        self.bytes(&blocks.eni);
        self.bytes(&blocks.length);
        self.column(&blocks.base_hi, u64::to_le_bytes);
        self.column(&blocks.base_lo, u64::to_le_bytes);
        for column in [&blocks.assigned, &blocks.cooling, &blocks.reserved, &blocks.held] {
            self.column(column, u32::to_le_bytes);
        }
        self.column(&blocks.untouched, u64::to_le_bytes);
        self.column(&blocks.marks, u16::to_le_bytes);
    }

    fn rows(&mut self, rows: &RowSet) {
        self.column(&rows.address_hi, u64::to_le_bytes);
        self.column(&rows.address_lo, u64::to_le_bytes);
        self.bytes(&rows.eni);
        self.column(&rows.block, u16::to_le_bytes);
        self.column(&rows.marks, u16::to_le_bytes);
        for column in [&rows.free_since_ms, &rows.until_ms, &rows.last_pod_key] {
            self.column(column, u64::to_le_bytes);
        }
    }

    fn demand(&mut self, demand: &Demand) {
        self.u32(demand.waiting);
        self.u64(demand.oldest_wait_ms);
        for value in [demand.adds_10s, demand.adds_1m, demand.dels_1m, demand.failed_1m] {
            self.u32(value);
        }
        self.option(demand.pending_pods, Self::u32);
        self.bool(demand.schedulable);
        self.bool(demand.stopping);
    }

    fn outcomes(&mut self, outcomes: &[OutcomeView]) {
        self.count(outcomes.len());
        for outcome in outcomes {
            self.text(&outcome.op);
            self.buf.push(outcome.eni);
            self.u32(outcome.asked);
            self.u32(outcome.applied);
            self.text(&outcome.code);
            self.u64(outcome.at_ms);
        }
    }
}
