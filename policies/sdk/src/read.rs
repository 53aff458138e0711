//! Readers over the contract's types: rows and blocks as values instead of columns, and names for what marks mean.

use crate::{
    allocation::{Choice, Decision, Retention},
    marks::{NO_BLOCK, NONE_U8, block, eni, row},
    sizing,
    types::*,
};

/// One address that a decision may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number: what `Choice::Assign` and `Action::ReleaseRows` name.
    pub index: u32,
    /// The address as a number; IPv4 is in the low 32 bits.
    pub address: u128,
    /// Index into `snapshot.enis`.
    pub eni: Option<u8>,
    /// Index into `snapshot.blocks`; `None` for a lone address.
    pub block: Option<u16>,
    /// Bits of [`crate::marks::row`].
    pub marks: u16,
    /// Since when it is free; 0 when it was never used.
    pub free_since_ms: u64,
    /// When its cooling, reservation or hold ends; 0 for none.
    pub until_ms: u64,
    /// Key of the last pod's namespace/name; 0 for none.
    pub last_pod_key: u64,
}

impl Row {
    fn has(&self, mark: u16) -> bool {
        self.marks & mark != 0
    }
    /// Cooling, and last had by the asker.
    pub fn is_own_cooling(&self) -> bool {
        self.has(row::COOLING_OWN)
    }
    /// Held for the asker.
    pub fn is_own_held(&self) -> bool {
        self.has(row::HELD_OWN)
    }
    /// Reserved for the asker.
    pub fn is_own_reserved(&self) -> bool {
        self.has(row::RESERVED_OWN)
    }
    /// Reserved for another pod: leave it unless nothing else is there.
    pub fn is_reserved_for_another(&self) -> bool {
        self.has(row::RESERVED_OTHER)
    }
    /// Never given out since it came.
    pub fn is_never_used(&self) -> bool {
        self.has(row::NEVER_USED)
    }
    /// Asked for by the runtime.
    pub fn is_asked_for(&self) -> bool {
        self.has(row::ASKED_FOR)
    }
    /// Whether it may be given back to the cloud: a free lone address that is kept for nobody.
    pub fn is_releasable(&self) -> bool {
        self.block.is_none() && self.marks & !row::NEVER_USED == 0
    }
}

impl RowSet {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.address_lo.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.address_lo.is_empty()
    }

    /// The rows, ordered by address. Columns of unequal length (a host never sends them) end at the shortest.
    pub fn iter(&self) -> impl Iterator<Item = Row> + '_ {
        let lengths = [
            self.address_hi.len(),
            self.eni.len(),
            self.block.len(),
            self.marks.len(),
            self.free_since_ms.len(),
            self.until_ms.len(),
            self.last_pod_key.len(),
        ];
        let n = lengths.into_iter().fold(self.len(), usize::min);
        // Of one length each, so that the loop checks no bounds: it is most of what a decision costs.
        let (hi, lo, eni) = (&self.address_hi[..n], &self.address_lo[..n], &self.eni[..n]);
        let (block, marks, free) = (&self.block[..n], &self.marks[..n], &self.free_since_ms[..n]);
        let (until, last) = (&self.until_ms[..n], &self.last_pod_key[..n]);
        (0..n).map(move |i| Row {
            index: i as u32,
            address: wide(hi[i], lo[i]),
            eni: Some(eni[i]).filter(|e| *e != NONE_U8),
            block: Some(block[i]).filter(|b| *b != NO_BLOCK),
            marks: marks[i],
            free_since_ms: free[i],
            until_ms: until[i],
            last_pod_key: last[i],
        })
    }

    /// The row with the smallest key, or, for a request whose earlier answers the host refused (`attempt` > 0),
    /// the next smallest, and so on: round the best eight. Keys must differ, so let them end in `row.index`.
    ///
    /// It goes over the rows once for each attempt: a sort would be a third of a small component.
    pub fn best<K: Ord + Copy>(&self, attempt: u32, key: impl Fn(&Row) -> K) -> Option<Row> {
        let passes = attempt as usize % self.len().clamp(1, 8);
        let mut best: Option<(K, u32)> = None;
        for _ in 0..=passes {
            let above = best.take().map(|(k, _)| k);
            // Key and number alone are carried along: this loop is most of what a decision costs.
            for row in self.iter() {
                let k = key(&row);
                if best.is_none_or(|(b, _)| k < b) && above.is_none_or(|a| k > a) {
                    best = Some((k, row.index));
                }
            }
        }
        best.and_then(|(_, index)| self.get(index as usize))
    }

    /// One row by number.
    pub fn get(&self, i: usize) -> Option<Row> {
        Some(Row {
            index: u32::try_from(i).ok()?,
            address: wide(*self.address_hi.get(i)?, *self.address_lo.get(i)?),
            eni: Some(*self.eni.get(i)?).filter(|e| *e != NONE_U8),
            block: Some(*self.block.get(i)?).filter(|b| *b != NO_BLOCK),
            marks: *self.marks.get(i)?,
            free_since_ms: *self.free_since_ms.get(i)?,
            until_ms: *self.until_ms.get(i)?,
            last_pod_key: *self.last_pod_key.get(i)?,
        })
    }
}

/// A prefix, range or range slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number: what `Action::ReleaseBlock` names.
    pub index: u16,
    /// Index into `snapshot.enis`.
    pub eni: Option<u8>,
    /// Prefix length.
    pub length: u8,
    /// Its first address as a number; IPv4 is in the low 32 bits.
    pub base: u128,
    /// Addresses in use.
    pub assigned: u32,
    /// Addresses resting after use.
    pub cooling: u32,
    /// Addresses kept for the pod that had them.
    pub reserved: u32,
    /// Addresses recorded for a sandbox that is gone without a DEL.
    pub held: u32,
    /// Addresses never given out.
    pub untouched: u64,
    /// Bits of [`crate::marks::block`].
    pub marks: u16,
}

impl Block {
    /// How many addresses it has in a pool of this family (4 or 6), at most 2^62.
    pub fn size(&self, family: u8) -> u64 {
        block_size(family, self.length)
    }
    /// Whether nothing in it is assigned, cooling, reserved or held.
    pub fn is_idle(&self) -> bool {
        self.assigned == 0 && self.cooling == 0 && self.reserved == 0 && self.held == 0
    }
    /// Whether new pods may get addresses of it, as far as the block's own marks say.
    pub fn is_usable(&self) -> bool {
        self.marks & (block::DRAINING | block::SUSPECT) == 0
    }
    /// Addresses that are in no other state.
    pub fn free(&self, family: u8) -> u64 {
        let taken =
            u64::from(self.assigned) + u64::from(self.cooling) + u64::from(self.reserved) + u64::from(self.held);
        self.size(family).saturating_sub(taken)
    }
}

impl BlockSet {
    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.length.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length.is_empty()
    }
    /// The blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        (0..self.len()).map_while(|i| self.get(i))
    }
    /// One block by number.
    pub fn get(&self, i: usize) -> Option<Block> {
        Some(Block {
            index: u16::try_from(i).ok()?,
            eni: Some(*self.eni.get(i)?).filter(|e| *e != NONE_U8),
            length: *self.length.get(i)?,
            base: wide(*self.base_hi.get(i)?, *self.base_lo.get(i)?),
            assigned: *self.assigned.get(i)?,
            cooling: *self.cooling.get(i)?,
            reserved: *self.reserved.get(i)?,
            held: *self.held.get(i)?,
            untouched: *self.untouched.get(i)?,
            marks: *self.marks.get(i)?,
        })
    }
}

impl Eni {
    fn has(&self, mark: u32) -> bool {
        self.marks & mark != 0
    }
    /// The instance's first interface.
    pub fn is_primary(&self) -> bool {
        self.has(eni::PRIMARY)
    }
    /// Not usable yet.
    pub fn is_attaching(&self) -> bool {
        self.has(eni::ATTACHING)
    }
    /// No new pod goes here.
    pub fn is_draining(&self) -> bool {
        self.has(eni::DRAINING)
    }
    /// On its way out.
    pub fn is_detaching(&self) -> bool {
        self.has(eni::DETACHING)
    }
    /// Whether it counts against `limits.max_enis` (what trunks and foreign ones take is already off the limit).
    pub fn is_counted(&self) -> bool {
        !self.has(eni::TRUNK | eni::UNMANAGED)
    }
    /// Whether its free addresses can be given to new pods now.
    pub fn is_usable(&self) -> bool {
        use eni::*;
        !self.has(ATTACHING | DRAINING | DETACHING | NOT_ALLOCATABLE | UNMANAGED | SUSPECT)
    }
    /// Whether it may get more addresses.
    pub fn is_fillable(&self) -> bool {
        use eni::*;
        self.is_usable() && !self.has(NOT_FILLABLE | TRUNK | EFA)
    }
    /// Whether it may leave, once empty.
    pub fn is_removable(&self) -> bool {
        use eni::*;
        !self.has(PRIMARY | ATTACHING | DETACHING | NOT_REMOVABLE | TRUNK | EFA | UNMANAGED | SUSPECT)
    }
    /// Whether nothing on it is assigned, cooling, reserved or held.
    pub fn is_idle(&self) -> bool {
        self.assigned == 0 && self.cooling == 0 && self.reserved == 0 && self.held == 0
    }
    /// EC2 slots that are neither used nor moving.
    pub fn room(&self) -> u16 {
        self.slots.saturating_sub(self.slots_used).saturating_sub(self.slots_moving)
    }
}

impl PoolInfo {
    /// Addresses that come with one unit of growth (1 for lone addresses, 16 for a /28), at most 2^62.
    pub fn unit_size(&self) -> u64 {
        block_size(self.family, self.unit_length)
    }
    /// Whether growth asks for lone addresses.
    pub fn grows_by_address(&self) -> bool {
        self.unit_size() == 1
    }
}

impl Decision {
    /// Gives the pod this row.
    pub fn assign(row: u32, reason: impl Into<String>) -> Self {
        Self { choice: Choice::Assign(row), reason: reason.into(), facts: Vec::new(), extra: Vec::new() }
    }
    /// Nothing suits; asks again after a change, or after so many ms.
    pub fn hold(ms: u32, reason: impl Into<String>) -> Self {
        Self { choice: Choice::Hold(ms), ..Self::assign(0, reason) }
    }
}

impl Retention {
    /// Keeps the address for its pod so many ms after the cool-down.
    pub fn keep(ms: u64, reason: impl Into<String>) -> Self {
        Self { keep_for_ms: ms, reason: reason.into(), facts: Vec::new(), extra: Vec::new() }
    }
    /// Does not keep it.
    pub fn none(reason: impl Into<String>) -> Self {
        Self::keep(0, reason)
    }
}

impl sizing::Decision {
    /// These actions, nothing remembered.
    pub fn new(actions: Vec<sizing::Action>, reason: impl Into<String>) -> Self {
        Self { actions, recheck_ms: None, memo: None, reason: reason.into(), facts: Vec::new(), extra: Vec::new() }
    }
    /// Adds a number for metrics and reports.
    #[must_use]
    pub fn fact(mut self, key: &str, value: i64) -> Self {
        self.facts.push(Fact { key: key.into(), value });
        self
    }
}

fn wide(hi: u64, lo: u64) -> u128 {
    u128::from(hi) << 64 | u128::from(lo)
}

fn block_size(family: u8, length: u8) -> u64 {
    let bits: u8 = if family == 6 { 128 } else { 32 };
    // More than 2^62 is "endless" to every rule, and sums of it must not overflow.
    1 << bits.saturating_sub(length).min(62)
}
