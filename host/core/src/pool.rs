//! One pool of addresses: interfaces with lone addresses and prefixes, or ranges; what state each address is in; and
//! what of it is offered to a policy.
//!
//! Only addresses that have been used (and the lone ones, which EC2 limits to some hundreds) have an entry. What a
//! block has never given out is arithmetic, so a /10 costs no more than a /24 with equal leases. All counts are kept by
//! [`Pool::set`], the one place where an address changes its state.

use std::collections::{BTreeMap, BTreeSet};

use crate::addr::{Addr, halves};
use crate::cloud::{EniFacts, EniKind};
use crate::event::{Ms, PodRef};
use crate::ids::fnv64;
use crate::policy::{self as p, BlockSet, Counts, EniView, RowSet, eni_marks, row_marks};

/// Rows offered to one decision at most (design §4).
pub const MAX_ROWS: usize = 4096;
/// Never-used rows offered of each block (design §4, rule 2).
const FRESH_PER_BLOCK: usize = 64;
/// Remembered free addresses of a pool; the longest free are forgotten (design §4).
pub const MAX_REMEMBERED: usize = 4096;

/// Number of an interface in its pool; never used again.
pub type EniNo = u32;
/// Number of a block in its pool; never used again.
pub type BlockNo = u32;
/// Number of a lease; never used again while the process lives.
pub type LeaseNo = u64;

/// Whose address something is or was: namespace, name and interface. The pod's UID is evidence, not identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Pod, with the UID it had.
    pub pod: PodRef,
    /// Interface name.
    pub ifname: String,
}

impl Owner {
    /// Hash of namespace, name and interface name, for the index of what a pod had.
    pub fn hash(&self) -> u64 {
        owner_hash(&self.pod, &self.ifname)
    }
    /// Key of the pod for the policy's column.
    pub fn pod_key(&self) -> u64 {
        crate::ids::pod_key(&self.pod.namespace, &self.pod.name)
    }
}

/// See [`Owner::hash`].
pub fn owner_hash(pod: &PodRef, ifname: &str) -> u64 {
    fnv64(&[pod.namespace.as_bytes(), pod.name.as_bytes(), ifname.as_bytes()])
}

/// State of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A lone address that was never given to a pod.
    Fresh,
    /// Given back and rested.
    Free {
        /// Since when.
        since: Ms,
        /// Key of the last pod.
        last: u64,
    },
    /// Rests.
    Cooling {
        /// Since when.
        since: Ms,
        /// Until when at least.
        until: Ms,
        /// Whose it was.
        owner: Owner,
        /// How long it stays reserved afterwards.
        keep: Ms,
        /// Links, routes or rules still carry it; it rests until they are gone.
        linked: bool,
        /// May not go back to its own pod while it cools (the pod has another UID, or another row was picked).
        shut: bool,
    },
    /// Kept for its pod.
    Reserved {
        /// Since when.
        since: Ms,
        /// Until when.
        until: Ms,
        /// For whom.
        owner: Owner,
    },
    /// Of a lease that is active or being committed.
    Leased(LeaseNo),
    /// Of a lease whose sandbox is gone without a DEL.
    Held(LeaseNo),
    /// Being given back to EC2.
    Releasing,
}

/// Where an address lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A lone secondary address of an interface.
    Lone(EniNo),
    /// In a block.
    Block(BlockNo),
}

/// One address with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub place: Place,
    /// State.
    pub state: State,
    /// Missing from one reading of the cloud.
    pub suspect: bool,
}

/// Addresses by state, of an interface, a block or the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Leased.
    pub assigned: u32,
    /// Never used (lone) or rested.
    pub free: u32,
    /// Resting.
    pub cooling: u32,
    /// Kept for a pod.
    pub reserved: u32,
    /// Held.
    pub held: u32,
    /// Missing from one reading and in no use.
    pub suspect: u32,
    /// Being given back.
    pub releasing: u32,
}

impl Tally {
    fn slot(&mut self, entry: &Entry) -> &mut u32 {
        match entry.state {
            State::Leased(_) => &mut self.assigned,
            State::Held(_) => &mut self.held,
            State::Releasing => &mut self.releasing,
            _ if entry.suspect => &mut self.suspect,
            State::Fresh | State::Free { .. } => &mut self.free,
            State::Cooling { .. } => &mut self.cooling,
            State::Reserved { .. } => &mut self.reserved,
        }
    }
    /// Whether nothing stands in the way of giving the source back.
    pub fn idle(&self) -> bool {
        self.assigned == 0 && self.cooling == 0 && self.reserved == 0 && self.held == 0
    }
}

/// How far an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// EC2 or the host's set-up is not through.
    Attaching,
    /// In use.
    Ready,
    /// Being detached.
    Detaching,
}

/// One interface.
#[derive(Clone, Debug)]
pub struct Eni {
    /// What EC2 says.
    pub facts: EniFacts,
    /// How far it is.
    pub stage: Stage,
    /// Offers nothing new.
    pub draining: bool,
    /// Attached by somebody else: no pods, never changed.
    pub unmanaged: bool,
    /// Missing from one reading.
    pub suspect: bool,
    /// EC2 slots.
    pub slots: u16,
    /// Slots being asked for.
    pub asking: u16,
    /// Slots being given back.
    pub leaving: u16,
    /// Its lone addresses by state; those of its blocks are in the blocks.
    pub lone: Tally,
    /// Lone addresses.
    pub lone_count: u16,
    /// Its blocks.
    pub blocks: BTreeSet<BlockNo>,
    /// When it became usable.
    pub attached_at: Ms,
    /// When units last came (guard 10).
    pub grown_at: Option<Ms>,
    /// When units were last given back (guard 10).
    pub shrunk_at: Option<Ms>,
}

impl Eni {
    /// Whether it is the primary interface.
    pub fn primary(&self) -> bool {
        self.facts.device == Some(0) && self.facts.card == 0
    }
    /// Whether pods may get its addresses.
    pub fn allocatable(&self) -> bool {
        self.stage == Stage::Ready && !self.unmanaged && !self.suspect && self.facts.kind == EniKind::Interface
    }
    /// Whether EC2 may be asked for more on it.
    pub fn fillable(&self) -> bool {
        self.allocatable() && !self.draining
    }
    /// Slots in use; those moving are not among them.
    pub fn slots_used(&self) -> u16 {
        (self.lone_count + self.blocks.len() as u16).saturating_sub(self.leaving)
    }
    /// Slots that could be asked for.
    pub fn room(&self) -> u16 {
        self.slots.saturating_sub(self.lone_count + self.blocks.len() as u16 + self.asking)
    }
    /// Route table: 254 for the primary, device + 1 for others of card 0, 10000 + 100·card + device else
    /// (AWS VPC CNI numbering).
    pub fn table(&self) -> u32 {
        let device = u32::from(self.facts.device.unwrap_or(0));
        match (self.facts.card, device) {
            (0, 0) => 254,
            (0, n) => n + 1,
            (card, n) => 10_000 + 100 * u32::from(card) + n,
        }
    }
}

/// A prefix of an interface, or a range.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its interface; none for a range.
    pub eni: Option<EniNo>,
    /// First address of the CIDR.
    pub base: Addr,
    /// Length of the CIDR.
    pub length: u8,
    /// First address that may be given.
    pub first: Addr,
    /// Last address that may be given.
    pub last: Addr,
    /// Addresses between that are never given (a gateway).
    pub skip: Vec<Addr>,
    /// Gateway to tell pods.
    pub gateway: Option<Addr>,
    /// Offers nothing new.
    pub draining: bool,
    /// Missing from one reading.
    pub suspect: bool,
    /// Being given back.
    pub releasing: bool,
    /// Addresses with an entry, by state.
    pub tally: Tally,
    /// Entries.
    pub touched: u32,
    /// Nothing below is untouched: where the search for a never-used address begins.
    hint: Addr,
}

impl Block {
    /// Addresses it can give.
    pub fn capacity(&self) -> u128 {
        (self.last - self.first + 1) - self.skip.len() as u128
    }
    /// Addresses it has never given.
    pub fn untouched(&self) -> u64 {
        u64::try_from(self.capacity() - u128::from(self.touched)).unwrap_or(u64::MAX)
    }
    /// Whether it holds the address (and may give it).
    pub fn gives(&self, addr: Addr) -> bool {
        self.first <= addr && addr <= self.last && !self.skip.contains(&addr)
    }
}

/// Who asks, for the offer.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    /// [`owner_hash`] of the pod and interface.
    pub owner: u64,
    /// Only these, if any.
    pub requested: Vec<Addr>,
    /// Not these: refused before (a fence failed, the guard said no).
    pub refused: BTreeSet<Addr>,
    /// Rows reserved for others may be shown: growth is impossible and the operator allows it.
    pub reserved_of_others: bool,
    /// Cooling rows of its own may be shown.
    pub own_cooling: bool,
    /// Held leases that it may take over.
    pub held: BTreeSet<LeaseNo>,
}

/// One offered address, before it becomes a row of the columns.
#[derive(Clone, Copy, Debug)]
struct Row {
    addr: Addr,
    place: Place,
    marks: u16,
    since: Ms,
    until: Ms,
    last: u64,
}

/// What is offered: the snapshot's rows and the address behind each.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Columns.
    pub rows: RowSet,
    /// Address of each row.
    pub addrs: Vec<Addr>,
    /// Assignable ones that are not among the rows.
    pub left_out: u64,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Network.
    pub network: String,
    /// Which set of ranges; 0 for the VPC's pool.
    pub set: u8,
    /// Whether it consists of ranges.
    pub range: bool,
    /// 4 or 6.
    pub family: u8,
    enis: BTreeMap<EniNo, Eni>,
    blocks: BTreeMap<BlockNo, Block>,
    by_base: BTreeMap<Addr, BlockNo>,
    entries: BTreeMap<Addr, Entry>,
    /// Of the entries alone; untouched addresses of blocks are added in [`Pool::counts`].
    tally: Tally,
    fresh: BTreeMap<Addr, EniNo>,
    rested: BTreeMap<(Ms, Addr), (Place, u64)>,
    ending: BTreeSet<(Ms, Addr)>,
    own: BTreeMap<u64, BTreeSet<Addr>>,
    reserved: BTreeSet<Addr>,
    next: u32,
}

impl Pool {
    /// An empty pool.
    pub fn new(network: &str, set: u8, range: bool, family: u8) -> Pool {
        Pool {
            network: network.into(),
            set,
            range,
            family,
            enis: BTreeMap::new(),
            blocks: BTreeMap::new(),
            by_base: BTreeMap::new(),
            entries: BTreeMap::new(),
            tally: Tally::default(),
            fresh: BTreeMap::new(),
            rested: BTreeMap::new(),
            ending: BTreeSet::new(),
            own: BTreeMap::new(),
            reserved: BTreeSet::new(),
            next: 0,
        }
    }

    // ---- sources ----

    /// Interfaces in order of arrival, which is also the order of snapshot indices.
    pub fn enis(&self) -> impl Iterator<Item = (EniNo, &Eni)> {
        self.enis.iter().map(|(no, eni)| (*no, eni))
    }
    /// One interface.
    pub fn eni(&self, no: EniNo) -> Option<&Eni> {
        self.enis.get(&no)
    }
    /// One interface, to change flags; its counts belong to the pool.
    pub fn eni_mut(&mut self, no: EniNo) -> Option<&mut Eni> {
        self.enis.get_mut(&no)
    }
    /// An interface by EC2's id.
    pub fn eni_by_id(&self, id: &str) -> Option<EniNo> {
        self.enis.iter().find(|(_, e)| e.facts.id == id).map(|(no, _)| *no)
    }
    /// Blocks in order of arrival, which is also the order of snapshot indices.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockNo, &Block)> {
        self.blocks.iter().map(|(no, b)| (*no, b))
    }
    /// One block.
    pub fn block(&self, no: BlockNo) -> Option<&Block> {
        self.blocks.get(&no)
    }
    /// One block, to change flags.
    pub fn block_mut(&mut self, no: BlockNo) -> Option<&mut Block> {
        self.blocks.get_mut(&no)
    }
    /// The block whose CIDR begins there.
    pub fn block_at(&self, base: Addr) -> Option<BlockNo> {
        self.by_base.get(&base).copied()
    }

    /// Adds an interface without addresses.
    pub fn add_eni(&mut self, facts: EniFacts, stage: Stage, slots: u16, unmanaged: bool, now: Ms) -> EniNo {
        self.next += 1;
        self.enis.insert(
            self.next,
            Eni {
                facts,
                stage,
                draining: false,
                unmanaged,
                suspect: false,
                slots,
                asking: 0,
                leaving: 0,
                lone: Tally::default(),
                lone_count: 0,
                blocks: BTreeSet::new(),
                attached_at: now,
                grown_at: None,
                shrunk_at: None,
            },
        );
        self.next
    }

    /// Adds a never-used lone address. Present ones stay as they are. Says whether it was new.
    pub fn add_lone(&mut self, eni: EniNo, addr: Addr) -> bool {
        if self.entries.contains_key(&addr) || !self.enis.contains_key(&eni) {
            return false;
        }
        self.insert(addr, Entry { place: Place::Lone(eni), state: State::Fresh, suspect: false });
        true
    }

    /// Adds a block; present ones (same first address of the CIDR) stay as they are.
    #[allow(clippy::too_many_arguments)]
    pub fn add_block(
        &mut self,
        eni: Option<EniNo>,
        base: Addr,
        length: u8,
        first: Addr,
        last: Addr,
        skip: Vec<Addr>,
        gateway: Option<Addr>,
    ) -> BlockNo {
        let key = if self.range { first } else { base };
        if let Some(no) = self.by_base.get(&key) {
            return *no;
        }
        self.next += 1;
        let skip = skip.into_iter().filter(|a| first <= *a && *a <= last).collect::<BTreeSet<_>>();
        self.blocks.insert(
            self.next,
            Block {
                eni,
                base,
                length,
                first,
                last,
                skip: skip.into_iter().collect(),
                gateway,
                draining: false,
                suspect: false,
                releasing: false,
                tally: Tally::default(),
                touched: 0,
                hint: first,
            },
        );
        self.by_base.insert(key, self.next);
        if let Some(eni) = eni.and_then(|no| self.enis.get_mut(&no)) {
            eni.blocks.insert(self.next);
        }
        self.next
    }

    /// Removes a lone address, whatever its state. The caller has the guard's word for it.
    pub fn remove_lone(&mut self, addr: Addr) {
        if matches!(self.entries.get(&addr), Some(Entry { place: Place::Lone(_), .. })) {
            self.remove(addr);
        }
    }

    /// Removes a block with all its entries.
    pub fn remove_block(&mut self, no: BlockNo) {
        let Some(block) = self.blocks.get(&no) else { return };
        let (first, last, base, eni) = (block.first, block.last, block.base, block.eni);
        let entries: Vec<Addr> = self.entries.range(first..=last).map(|(a, _)| *a).collect();
        for addr in entries {
            if self.entries.get(&addr).is_some_and(|e| e.place == Place::Block(no)) {
                self.remove(addr);
            }
        }
        self.blocks.remove(&no);
        self.by_base.remove(&if self.range { first } else { base });
        if let Some(eni) = eni.and_then(|e| self.enis.get_mut(&e)) {
            eni.blocks.remove(&no);
        }
    }

    /// Removes an interface with all its addresses.
    pub fn remove_eni(&mut self, no: EniNo) {
        let Some(eni) = self.enis.get(&no) else { return };
        for block in eni.blocks.clone() {
            self.remove_block(block);
        }
        for addr in self.lone_of(no) {
            self.remove(addr);
        }
        self.enis.remove(&no);
    }

    /// Lone addresses of an interface.
    pub fn lone_of(&self, no: EniNo) -> Vec<Addr> {
        self.entries.iter().filter(|(_, e)| e.place == Place::Lone(no)).map(|(a, _)| *a).collect()
    }

    // ---- addresses ----

    /// Where an address lives, with or without an entry.
    pub fn place(&self, addr: Addr) -> Option<Place> {
        if let Some(entry) = self.entries.get(&addr) {
            return Some(entry.place);
        }
        let (_, no) = self.by_base.range(..=addr).next_back()?;
        self.blocks.get(no).filter(|b| b.gives(addr)).map(|_| Place::Block(*no))
    }

    /// The interface an address belongs to.
    pub fn eni_of(&self, place: Place) -> Option<EniNo> {
        match place {
            Place::Lone(eni) => Some(eni),
            Place::Block(no) => self.blocks.get(&no).and_then(|b| b.eni),
        }
    }

    /// An address with an entry.
    pub fn entry(&self, addr: Addr) -> Option<&Entry> {
        self.entries.get(&addr)
    }

    /// All entries in order of address.
    pub fn entries(&self) -> impl Iterator<Item = (Addr, &Entry)> {
        self.entries.iter().map(|(a, e)| (*a, e))
    }

    /// State of an address of this pool; `None` for a block's never-used one.
    pub fn state(&self, addr: Addr) -> Option<&State> {
        self.entries.get(&addr).map(|e| &e.state)
    }

    /// Puts an address of this pool into a state; `None` makes a block's address never-used again. The one place where
    /// counts and indices change. Addresses outside the pool are ignored (and said so).
    pub fn set(&mut self, addr: Addr, state: Option<State>) -> bool {
        let Some(place) = self.place(addr) else { return false };
        let suspect = self.entries.get(&addr).is_some_and(|e| e.suspect);
        self.remove(addr);
        match (state, place) {
            (Some(state), _) => self.insert(addr, Entry { place, state, suspect }),
            (None, Place::Lone(_)) => self.insert(addr, Entry { place, state: State::Fresh, suspect }),
            (None, Place::Block(_)) => {}
        }
        true
    }

    /// Marks an address with an entry as missing from a reading, or takes that back.
    pub fn set_suspect(&mut self, addr: Addr, suspect: bool) {
        if let Some(mut entry) = self.entries.get(&addr).cloned() {
            self.remove(addr);
            entry.suspect = suspect;
            self.insert(addr, entry);
        }
    }

    fn insert(&mut self, addr: Addr, entry: Entry) {
        *self.tally.slot(&entry) += 1;
        match entry.place {
            Place::Lone(no) => {
                if let Some(eni) = self.enis.get_mut(&no) {
                    *eni.lone.slot(&entry) += 1;
                    eni.lone_count += 1;
                }
            }
            Place::Block(no) => {
                if let Some(block) = self.blocks.get_mut(&no) {
                    *block.tally.slot(&entry) += 1;
                    block.touched += 1;
                }
            }
        }
        match &entry.state {
            State::Fresh if !entry.suspect => {
                if let Place::Lone(no) = entry.place {
                    self.fresh.insert(addr, no);
                }
            }
            State::Free { since, last } if !entry.suspect => {
                self.rested.insert((*since, addr), (entry.place, *last));
            }
            State::Cooling { until, owner, linked, .. } => {
                // Without this no clock could end it: the tear-down's answer does.
                if !linked {
                    self.ending.insert((*until, addr));
                }
                self.own.entry(owner.hash()).or_default().insert(addr);
            }
            State::Reserved { until, owner, .. } => {
                self.ending.insert((*until, addr));
                self.reserved.insert(addr);
                self.own.entry(owner.hash()).or_default().insert(addr);
            }
            _ => {}
        }
        self.entries.insert(addr, entry);
    }

    fn remove(&mut self, addr: Addr) {
        let Some(entry) = self.entries.remove(&addr) else { return };
        *self.tally.slot(&entry) -= 1;
        match entry.place {
            Place::Lone(no) => {
                if let Some(eni) = self.enis.get_mut(&no) {
                    *eni.lone.slot(&entry) -= 1;
                    eni.lone_count -= 1;
                }
            }
            Place::Block(no) => {
                if let Some(block) = self.blocks.get_mut(&no) {
                    *block.tally.slot(&entry) -= 1;
                    block.touched -= 1;
                    block.hint = block.hint.min(addr);
                }
            }
        }
        self.fresh.remove(&addr);
        match &entry.state {
            State::Free { since, .. } => {
                self.rested.remove(&(*since, addr));
            }
            State::Cooling { until, owner, .. } | State::Reserved { until, owner, .. } => {
                self.ending.remove(&(*until, addr));
                self.reserved.remove(&addr);
                let hash = owner.hash();
                if let Some(set) = self.own.get_mut(&hash) {
                    set.remove(&addr);
                    if set.is_empty() {
                        self.own.remove(&hash);
                    }
                }
            }
            _ => {}
        }
    }

    /// The first address whose cooling or reservation ends, and when.
    pub fn next_end(&self) -> Option<(Ms, Addr)> {
        self.ending.first().copied()
    }

    /// Addresses whose cooling or reservation has ended.
    pub fn ended(&self, now: Ms) -> Vec<Addr> {
        self.ending.range(..=(now, Addr::MAX)).map(|(_, a)| *a).collect()
    }

    /// Forgets the longest free addresses beyond [`MAX_REMEMBERED`]: blocks' ones become never-used again.
    pub fn forget_surplus(&mut self) {
        while self.rested.len() > MAX_REMEMBERED {
            let Some(((_, addr), _)) = self.rested.first_key_value().map(|(k, v)| (*k, *v)) else { return };
            self.set(addr, None);
        }
    }

    // ---- figures ----

    /// Addresses by state. `assigning` and `releasing` of interfaces are added by the sizing loop.
    pub fn counts(&self) -> Counts {
        let mut c = Counts {
            assigned: self.tally.assigned.into(),
            free: self.tally.free.into(),
            cooling: self.tally.cooling.into(),
            reserved: self.tally.reserved.into(),
            held: self.tally.held.into(),
            suspect: self.tally.suspect.into(),
            releasing: self.tally.releasing.into(),
            ..Counts::default()
        };
        for block in self.blocks.values() {
            if block.releasing {
                c.releasing += block.untouched();
            } else if block.suspect {
                c.suspect += block.untouched();
            } else {
                c.free += block.untouched();
            }
        }
        // What an interface on its way out still has free is being given back.
        for (no, _) in self.enis.iter().filter(|(_, e)| e.stage == Stage::Detaching) {
            let leaving = u64::from(self.eni_tally(*no).free).min(c.free);
            c.free -= leaving;
            c.releasing += leaving;
        }
        c.total = c.assigned + c.free + c.cooling + c.reserved + c.held + c.suspect;
        c
    }

    /// Whether new rows of this place may be offered.
    pub fn offers(&self, place: Place) -> bool {
        let block_ok = match place {
            Place::Lone(_) => true,
            Place::Block(no) => self.blocks.get(&no).is_some_and(|b| !b.draining && !b.suspect && !b.releasing),
        };
        block_ok
            && match self.eni_of(place) {
                Some(no) => self.enis.get(&no).is_some_and(|e| e.allocatable() && !e.draining),
                None => self.range,
            }
    }

    /// Whether a held row of this place may go to its own pod: also while its interface drains (design §4).
    fn offers_held(&self, place: Place) -> bool {
        match self.eni_of(place) {
            Some(no) => self.enis.get(&no).is_some_and(Eni::allocatable),
            None => true,
        }
    }

    /// Free addresses that could go to anybody now.
    pub fn assignable(&self) -> u64 {
        let lone: u64 =
            self.enis.values().filter(|e| e.allocatable() && !e.draining).map(|e| u64::from(e.lone.free)).sum();
        let blocks: u64 = self
            .blocks
            .iter()
            .filter(|(no, _)| self.offers(Place::Block(**no)))
            .map(|(_, b)| u64::from(b.tally.free) + b.untouched())
            .sum();
        lone + blocks
    }

    /// Whether an asker could get anything at all, without building rows.
    pub fn could_serve(&self, asker: &Asker) -> bool {
        self.assignable() > 0
            || self.own.contains_key(&asker.owner)
            || !asker.held.is_empty()
            || (asker.reserved_of_others && !self.reserved.is_empty())
    }

    /// Reserved addresses, for the cap.
    pub fn reserved_count(&self) -> u64 {
        self.reserved.len() as u64
    }

    /// Reserved addresses, to end them all.
    pub fn reserved(&self) -> Vec<Addr> {
        self.reserved.iter().copied().collect()
    }

    /// The cooling address that ends first, not counting what no clock can end.
    pub fn first_cooling_end(&self) -> Option<Ms> {
        self.ending
            .iter()
            .find(|(_, a)| matches!(self.entries.get(a).map(|e| &e.state), Some(State::Cooling { .. })))
            .map(|(until, _)| *until)
    }

    // ---- the offer ----

    /// Never-used addresses of a block, lowest first.
    fn fresh_of(&mut self, no: BlockNo, max: usize) -> Vec<Addr> {
        let Some(block) = self.blocks.get_mut(&no) else { return Vec::new() };
        let mut found = Vec::with_capacity(max);
        let mut next = block.hint.max(block.first);
        let mut used = self.entries.range(next..=block.last).map(|(a, _)| *a).peekable();
        let mut moved = false;
        while found.len() < max && next <= block.last {
            match used.peek() {
                Some(taken) if *taken == next => {
                    used.next();
                }
                _ if block.skip.contains(&next) => {}
                _ => {
                    if !moved {
                        block.hint = next;
                        moved = true;
                    }
                    found.push(next);
                }
            }
            next += 1;
        }
        if !moved {
            block.hint = next;
        }
        found
    }

    /// What one decision may name (design §4, "what is offered"). Without an asker, for a sizer.
    pub fn offer(&mut self, asker: Option<&Asker>) -> Offer {
        let mut chosen: Vec<Row> = Vec::with_capacity(256);
        let mut own_total = 0;
        if let Some(asker) = asker {
            self.offer_own(asker, &mut chosen);
            own_total = chosen.len() as u64;
            if asker.requested.is_empty() {
                self.offer_free(Some(asker), &mut chosen);
                if asker.reserved_of_others {
                    self.offer_reserved(asker, &mut chosen);
                }
            } else {
                self.offer_requested(asker, &mut chosen);
            }
        } else {
            self.offer_free(None, &mut chosen);
        }
        let free_shown =
            chosen.iter().filter(|r| r.marks & !(row_marks::NEVER_USED | row_marks::REQUESTED) == 0).count();
        let left_out = (self.assignable() + own_total).saturating_sub(free_shown as u64 + own_total);
        self.columns(chosen, left_out)
    }

    fn columns(&self, mut chosen: Vec<Row>, left_out: u64) -> Offer {
        chosen.sort_unstable_by_key(|r| r.addr);
        let n = chosen.len();
        let mut offer = Offer { left_out, addrs: Vec::with_capacity(n), rows: RowSet::default() };
        let rows = &mut offer.rows;
        rows.address_hi = chosen.iter().map(|r| halves(r.addr).0).collect();
        rows.address_lo = chosen.iter().map(|r| halves(r.addr).1).collect();
        rows.marks = chosen.iter().map(|r| r.marks).collect();
        rows.free_since_ms = chosen.iter().map(|r| r.since).collect();
        rows.until_ms = chosen.iter().map(|r| r.until).collect();
        rows.last_pod_key = chosen.iter().map(|r| r.last).collect();
        offer.addrs.extend(chosen.iter().map(|r| r.addr));
        rows.eni.reserve_exact(n);
        rows.block.reserve_exact(n);
        // Neighbours mostly share their source: look up again only when it changes.
        let mut known: Option<(Place, u8, u16)> = None;
        for r in &chosen {
            let (_, eni, block) = match known {
                Some(k) if k.0 == r.place => k,
                _ => self.indices(r.place),
            };
            known = Some((r.place, eni, block));
            rows.eni.push(eni);
            rows.block.push(block);
        }
        offer
    }

    /// Snapshot indices of a place's interface and block.
    fn indices(&self, place: Place) -> (Place, u8, u16) {
        let eni = self.eni_of(place).and_then(|no| self.index_of(no)).unwrap_or(p::NO_ENI);
        let block = match place {
            Place::Block(no) => self.blocks.keys().position(|k| *k == no).map_or(p::NO_BLOCK, |i| i as u16),
            Place::Lone(_) => p::NO_BLOCK,
        };
        (place, eni, block)
    }

    /// Rule 1: all of the asker's.
    fn offer_own(&self, asker: &Asker, chosen: &mut Vec<Row>) {
        for addr in self.own.get(&asker.owner).into_iter().flatten().copied() {
            let Some(entry) = self.entries.get(&addr) else { continue };
            if asker.refused.contains(&addr) || entry.suspect || !self.offers(entry.place) || chosen.len() >= MAX_ROWS {
                continue;
            }
            match &entry.state {
                State::Cooling { since, until, owner, linked: false, shut: false, .. } if asker.own_cooling => {
                    chosen.push(row(addr, entry.place, row_marks::COOLING_OWN, (*since, *until), owner.pod_key()));
                }
                State::Reserved { since, until, owner } => {
                    chosen.push(row(addr, entry.place, row_marks::RESERVED_OWN, (*since, *until), owner.pod_key()));
                }
                _ => {}
            }
        }
    }

    /// Adds the asker's held rows; the lease table knows their ends: address, since, until, last pod.
    pub fn offer_held(&self, offer: &mut Offer, held: &[(Addr, Ms, Ms, u64)]) {
        for (addr, since, until, last) in held {
            let Some(entry) = self.entries.get(addr).filter(|e| self.offers_held(e.place)) else { continue };
            let at = offer.addrs.partition_point(|a| a < addr);
            let (_, eni, block) = self.indices(entry.place);
            let (hi, lo) = halves(*addr);
            let rows = &mut offer.rows;
            offer.addrs.insert(at, *addr);
            rows.address_hi.insert(at, hi);
            rows.address_lo.insert(at, lo);
            rows.eni.insert(at, eni);
            rows.block.insert(at, block);
            rows.marks.insert(at, row_marks::HELD_OWN);
            rows.free_since_ms.insert(at, *since);
            rows.until_ms.insert(at, *until);
            rows.last_pod_key.insert(at, *last);
        }
    }

    /// Rules 2 and 3: never-used ones, then remembered free ones, longest free first.
    fn offer_free(&mut self, asker: Option<&Asker>, chosen: &mut Vec<Row>) {
        let refused = |addr: &Addr| asker.is_some_and(|a| a.refused.contains(addr));
        let open: BTreeSet<EniNo> =
            self.enis.iter().filter(|(_, e)| e.allocatable() && !e.draining).map(|(no, _)| *no).collect();
        for (addr, eni) in &self.fresh {
            if chosen.len() >= MAX_ROWS {
                return;
            }
            if open.contains(eni) && !refused(addr) {
                chosen.push(row(*addr, Place::Lone(*eni), row_marks::NEVER_USED, (0, 0), 0));
            }
        }
        let mut blocks: Vec<(std::cmp::Reverse<u32>, BlockNo)> = self
            .blocks
            .iter()
            .filter(|(no, b)| b.untouched() > 0 && self.offers(Place::Block(**no)))
            .map(|(no, b)| (std::cmp::Reverse(b.tally.assigned + b.tally.held), *no))
            .collect();
        blocks.sort_unstable();
        for (_, no) in blocks {
            let room = MAX_ROWS.saturating_sub(chosen.len()).min(FRESH_PER_BLOCK);
            for addr in self.fresh_of(no, room) {
                if !refused(&addr) {
                    chosen.push(row(addr, Place::Block(no), row_marks::NEVER_USED, (0, 0), 0));
                }
            }
        }
        for ((since, addr), (place, last)) in &self.rested {
            if chosen.len() >= MAX_ROWS {
                return;
            }
            if !refused(addr) && self.offers(*place) {
                chosen.push(row(*addr, *place, 0, (*since, 0), *last));
            }
        }
    }

    /// Rule 4: rows reserved for others.
    fn offer_reserved(&self, asker: &Asker, chosen: &mut Vec<Row>) {
        for addr in &self.reserved {
            if chosen.len() >= MAX_ROWS {
                return;
            }
            let Some(entry) = self.entries.get(addr) else { continue };
            if let State::Reserved { since, until, owner } = &entry.state
                && owner.hash() != asker.owner
                && !asker.refused.contains(addr)
                && !entry.suspect
                && self.offers(entry.place)
            {
                chosen.push(row(*addr, entry.place, row_marks::RESERVED_OTHER, (*since, *until), owner.pod_key()));
            }
        }
    }

    /// The addresses the runtime asked for, as far as they are assignable.
    fn offer_requested(&self, asker: &Asker, chosen: &mut Vec<Row>) {
        for addr in &asker.requested {
            let Some(place) = self.place(*addr).filter(|pl| self.offers(*pl)) else { continue };
            if asker.refused.contains(addr) {
                continue;
            }
            if let Some(own) = chosen.iter_mut().find(|r| r.addr == *addr) {
                own.marks |= row_marks::REQUESTED;
                continue;
            }
            match self.entries.get(addr) {
                None | Some(Entry { state: State::Fresh, suspect: false, .. }) => {
                    let marks = row_marks::REQUESTED | row_marks::NEVER_USED;
                    chosen.push(row(*addr, place, marks, (0, 0), 0));
                }
                Some(Entry { state: State::Free { since, last }, suspect: false, .. }) => {
                    chosen.push(row(*addr, place, row_marks::REQUESTED, (*since, 0), *last));
                }
                _ => {}
            }
        }
        chosen.retain(|r| r.marks & row_marks::REQUESTED != 0);
    }

    // ---- views ----

    /// Interfaces as a policy sees them. `subnets` gives the index of a subnet id.
    pub fn eni_views(&self, subnets: &[String]) -> Vec<EniView> {
        self.enis.values().map(|e| self.eni_view(e, subnets)).collect()
    }

    fn eni_view(&self, e: &Eni, subnets: &[String]) -> EniView {
        let mut t = e.lone;
        let mut untouched = 0u64;
        for block in e.blocks.iter().filter_map(|no| self.blocks.get(no)) {
            t.assigned += block.tally.assigned;
            t.cooling += block.tally.cooling;
            t.reserved += block.tally.reserved;
            t.held += block.tally.held;
            t.free += block.tally.free;
            if !block.releasing && !block.suspect {
                untouched += block.untouched();
            }
        }
        EniView {
            id: e.facts.id.clone(),
            device_index: e.facts.device.unwrap_or(0),
            card: e.facts.card,
            subnet: subnets.iter().position(|s| *s == e.facts.subnet).map_or(255, |i| i as u8),
            marks: marks_of(e),
            slots: e.slots,
            slots_used: e.slots_used(),
            slots_moving: e.asking + e.leaving,
            assigned: t.assigned,
            free: t.free + untouched as u32,
            cooling: t.cooling,
            reserved: t.reserved,
            held: t.held,
            attached_at_ms: e.attached_at,
        }
    }

    /// Blocks as a policy sees them.
    pub fn block_views(&self) -> BlockSet {
        let index: BTreeMap<EniNo, u8> = self.enis.keys().enumerate().map(|(i, no)| (*no, i as u8)).collect();
        let mut set = BlockSet::default();
        for b in self.blocks.values() {
            let (hi, lo) = halves(b.base);
            set.eni.push(b.eni.and_then(|no| index.get(&no).copied()).unwrap_or(p::NO_ENI));
            set.length.push(b.length);
            set.base_hi.push(hi);
            set.base_lo.push(lo);
            set.assigned.push(b.tally.assigned);
            set.cooling.push(b.tally.cooling);
            set.reserved.push(b.tally.reserved);
            set.held.push(b.tally.held);
            set.untouched.push(b.untouched());
            set.marks.push(u16::from(b.draining || b.releasing) | (u16::from(b.suspect) << 1));
        }
        set
    }

    /// Interface behind a snapshot index.
    pub fn eni_at(&self, index: usize) -> Option<EniNo> {
        self.enis.keys().nth(index).copied()
    }
    /// Block behind a snapshot index.
    pub fn block_at_index(&self, index: usize) -> Option<BlockNo> {
        self.blocks.keys().nth(index).copied()
    }
    /// Snapshot index of an interface.
    pub fn index_of(&self, no: EniNo) -> Option<u8> {
        self.enis.keys().position(|k| *k == no).map(|i| i as u8)
    }

    /// Everything of an interface, its blocks included.
    pub fn eni_tally(&self, no: EniNo) -> Tally {
        let Some(e) = self.enis.get(&no) else { return Tally::default() };
        let mut t = e.lone;
        for b in e.blocks.iter().filter_map(|b| self.blocks.get(b)) {
            t.assigned += b.tally.assigned;
            t.cooling += b.tally.cooling;
            t.reserved += b.tally.reserved;
            t.held += b.tally.held;
            t.releasing += b.tally.releasing;
            t.suspect += b.tally.suspect;
            t.free += b.tally.free + b.untouched().min(u64::from(u32::MAX)) as u32;
        }
        t
    }

    /// Recomputes every count and index from the entries and compares. For property tests.
    pub fn audit(&self) -> Result<(), String> {
        let mut again = Pool::new(&self.network, self.set, self.range, self.family);
        again.enis = self.enis.clone();
        again.blocks = self.blocks.clone();
        for e in again.enis.values_mut() {
            e.lone = Tally::default();
            e.lone_count = 0;
        }
        for b in again.blocks.values_mut() {
            b.tally = Tally::default();
            b.touched = 0;
        }
        for (addr, entry) in &self.entries {
            again.insert(*addr, entry.clone());
        }
        let same = |what: &str, ok: bool| if ok { Ok(()) } else { Err(format!("{what} differs from a recount")) };
        same("tally", again.tally == self.tally)?;
        same("fresh", again.fresh == self.fresh)?;
        same("rested", again.rested == self.rested)?;
        same("ending", again.ending == self.ending)?;
        same("own", again.own == self.own)?;
        same("reserved", again.reserved == self.reserved)?;
        for (no, e) in &self.enis {
            same("interface", again.enis[no].lone == e.lone && again.enis[no].lone_count == e.lone_count)?;
        }
        for (no, b) in &self.blocks {
            same("block", again.blocks[no].tally == b.tally && again.blocks[no].touched == b.touched)?;
            let first_fresh = (b.first..=b.last).find(|a| b.gives(*a) && !self.entries.contains_key(a));
            if let Some(first) = first_fresh.filter(|_| b.capacity() < 100_000) {
                same("hint", b.hint <= first)?;
            }
        }
        Ok(())
    }
}

fn row(addr: Addr, place: Place, marks: u16, (since, until): (Ms, Ms), last: u64) -> Row {
    Row { addr, place, marks, since, until, last }
}

fn marks_of(e: &Eni) -> u32 {
    let mut marks = 0;
    let mut mark = |on: bool, bit: u32| marks |= if on { bit } else { 0 };
    mark(e.primary(), eni_marks::PRIMARY | eni_marks::NOT_REMOVABLE);
    mark(e.stage == Stage::Attaching, eni_marks::ATTACHING);
    mark(e.draining, eni_marks::DRAINING);
    mark(e.stage == Stage::Detaching, eni_marks::DETACHING);
    mark(!e.fillable(), eni_marks::NOT_FILLABLE);
    mark(!e.allocatable(), eni_marks::NOT_ALLOCATABLE);
    mark(e.facts.kind == EniKind::Trunk, eni_marks::TRUNK);
    mark(matches!(e.facts.kind, EniKind::Efa | EniKind::EfaOnly), eni_marks::EFA);
    mark(e.unmanaged, eni_marks::UNMANAGED | eni_marks::NOT_REMOVABLE);
    mark(e.facts.kind != EniKind::Interface, eni_marks::NOT_REMOVABLE);
    mark(e.suspect, eni_marks::SUSPECT);
    marks
}
