//! The addresses of one subnet: a bitmap with two summaries, so that the next free address and the next wholly free
//! /28 are found in a few words whatever the subnet's size.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Addresses in a /28 prefix.
pub(crate) const PREFIX_SIZE: u32 = 16;

/// Which addresses of a subnet are taken. The five that EC2 keeps for itself are taken from the start.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    base: u32,
    size: u32,
    free: u32,
    used: Vec<u64>,
    /// A bit for each word of `used` that has a free address.
    has_free: Vec<u64>,
    /// A bit for each word of `used` that has a wholly free aligned /28.
    has_block: Vec<u64>,
}

impl Addresses {
    /// A subnet of at least 16 addresses, with EC2's five taken: the first four and the last.
    pub(crate) fn new(cidr: Ipv4Net) -> Self {
        let size = 1u32 << (32 - u32::from(cidr.prefix_len())).min(31);
        let words = size.div_ceil(64) as usize;
        let mut this = Self {
            base: u32::from(cidr.network()),
            size,
            free: size,
            used: vec![0; words],
            has_free: vec![0; words.div_ceil(64)],
            has_block: vec![0; words.div_ceil(64)],
        };
        if size < 64 {
            this.used[0] = !0 << size;
        }
        for word in 0..words {
            this.summarise(word);
        }
        for reserved in [0, 1, 2, 3, size - 1] {
            this.set(reserved);
        }
        this
    }

    /// How many addresses are free.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Whether the subnet has the address.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.offset(address).is_some()
    }

    /// Takes this address; false if it is outside or already taken.
    pub(crate) fn take(&mut self, address: Ipv4Addr) -> bool {
        match self.offset(address) {
            Some(offset) if !self.is_used(offset) => {
                self.set(offset);
                true
            }
            _ => false,
        }
    }

    /// Takes this /28; false if it is not an aligned /28 of the subnet or not wholly free.
    pub(crate) fn take_prefix_at(&mut self, prefix: Ipv4Net) -> bool {
        let Some(first) = self.offset(prefix.network()) else { return false };
        let fits = prefix.prefix_len() == 28 && first + PREFIX_SIZE <= self.size;
        if !fits || self.lane(first) != 0 {
            return false;
        }
        (first..first + PREFIX_SIZE).for_each(|offset| self.set(offset));
        true
    }

    /// Takes a free address, the first at or after `from` (an offset; wraps around).
    pub(crate) fn take_any(&mut self, from: u32) -> Option<Ipv4Addr> {
        let word = next_set(&self.has_free, (from % self.size) as usize / 64)?;
        let offset = word as u32 * 64 + (!self.used[word]).trailing_zeros();
        self.set(offset);
        Some(Ipv4Addr::from(self.base + offset))
    }

    /// Takes a wholly free aligned /28, the first at or after `from` (an offset; wraps around).
    pub(crate) fn take_prefix(&mut self, from: u32) -> Option<Ipv4Net> {
        let word = next_set(&self.has_block, (from % self.size) as usize / 64)?;
        let first = (0..4).map(|lane| word as u32 * 64 + lane * PREFIX_SIZE).find(|first| self.lane(*first) == 0)?;
        (first..first + PREFIX_SIZE).for_each(|offset| self.set(offset));
        Some(Ipv4Net::new_assert(Ipv4Addr::from(self.base + first), 28))
    }

    /// Frees an address that was taken.
    pub(crate) fn give_back(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.offset(address) {
            self.clear(offset);
        }
    }

    /// Frees a /28 that was taken.
    pub(crate) fn give_back_prefix(&mut self, prefix: Ipv4Net) {
        prefix_addresses(prefix).for_each(|address| self.give_back(address));
    }

    /// How many addresses the subnet has, reserved ones included.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The first address of each aligned /28 that has a free address, with that free address.
    pub(crate) fn one_free_in_each_block(&self) -> Vec<Ipv4Addr> {
        (0..self.size / PREFIX_SIZE)
            .map(|block| block * PREFIX_SIZE)
            .filter(|first| self.lane(*first) == 0)
            .map(|first| Ipv4Addr::from(self.base + first))
            .collect()
    }

    fn offset(&self, address: Ipv4Addr) -> Option<u32> {
        u32::from(address).checked_sub(self.base).filter(|offset| *offset < self.size)
    }

    fn is_used(&self, offset: u32) -> bool {
        self.used[offset as usize / 64] >> (offset % 64) & 1 == 1
    }

    fn lane(&self, first: u32) -> u64 {
        self.used[first as usize / 64] >> (first % 64 / PREFIX_SIZE * PREFIX_SIZE) & 0xFFFF
    }

    fn set(&mut self, offset: u32) {
        let word = offset as usize / 64;
        self.used[word] |= 1 << (offset % 64);
        self.free -= 1;
        self.summarise(word);
    }

    fn clear(&mut self, offset: u32) {
        let word = offset as usize / 64;
        if self.is_used(offset) {
            self.used[word] &= !(1 << (offset % 64));
            self.free += 1;
            self.summarise(word);
        }
    }

    fn summarise(&mut self, word: usize) {
        let used = self.used[word];
        let block = (0..4).any(|lane| used >> (lane * PREFIX_SIZE) & 0xFFFF == 0);
        put(&mut self.has_free, word, used != !0);
        put(&mut self.has_block, word, block);
    }
}

/// The sixteen addresses of a /28.
pub(crate) fn prefix_addresses(prefix: Ipv4Net) -> impl Iterator<Item = Ipv4Addr> {
    let first = u32::from(prefix.network());
    (first..first + PREFIX_SIZE).map(Ipv4Addr::from)
}

fn put(bits: &mut [u64], index: usize, value: bool) {
    let mask = 1 << (index % 64);
    if value { bits[index / 64] |= mask } else { bits[index / 64] &= !mask }
}

/// The index of the first set bit at or after `from`, wrapping around.
fn next_set(bits: &[u64], from: usize) -> Option<usize> {
    let start = from / 64;
    let head = bits[start] & (!0 << (from % 64));
    if head != 0 {
        return Some(start * 64 + head.trailing_zeros() as usize);
    }
    (start + 1..bits.len())
        .chain(0..=start)
        .find(|word| bits[*word] != 0)
        .map(|word| word * 64 + bits[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn reserves_five_and_finds_all_others() {
        for (cidr, size) in [("10.0.0.0/28", 16), ("10.0.0.16/28", 16), ("10.0.0.0/27", 32), ("10.0.0.0/22", 1024)] {
            let mut addresses = Addresses::new(net(cidr));
            assert_eq!(addresses.free(), size - 5, "{cidr}");
            let mut got = Vec::new();
            while let Some(address) = addresses.take_any(got.len() as u32 * 7) {
                assert!(net(cidr).contains(&address));
                got.push(address);
            }
            got.sort();
            got.dedup();
            assert_eq!((got.len() as u32, addresses.free()), (size - 5, 0), "{cidr}");
            got.iter().for_each(|address| addresses.give_back(*address));
            assert_eq!(addresses.free(), size - 5);
        }
    }

    #[test]
    fn prefixes_need_a_wholly_free_aligned_block() {
        let mut addresses = Addresses::new(net("10.0.0.0/25"));
        let mut got = Vec::new();
        while let Some(prefix) = addresses.take_prefix(0) {
            got.push(prefix.to_string());
        }
        // The first block holds the reserved four and the last one the broadcast address.
        let expected: Vec<String> = (1..7).map(|block| format!("10.0.0.{}/28", block * 16)).collect();
        assert_eq!(got, expected);
        addresses.give_back_prefix(net("10.0.0.32/28"));
        assert!(addresses.take(Ipv4Addr::new(10, 0, 0, 40)));
        assert!(addresses.take_prefix(0).is_none() && !addresses.take_prefix_at(net("10.0.0.32/28")));
        addresses.give_back(Ipv4Addr::new(10, 0, 0, 40));
        assert!(addresses.take_prefix_at(net("10.0.0.32/28")));
    }
}
