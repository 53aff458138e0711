//! Addresses as numbers: one ordered space per family, so that pools can count, cut and skip without walking.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address as a number. IPv4 takes the low 32 bits; the family is the pool's.
pub type Addr = u128;

/// The number of an address.
pub fn number(ip: IpAddr) -> Addr {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// The address with this number in a family (4 or 6). Numbers past the family's end wrap; pools never make one.
pub fn ip(family: u8, addr: Addr) -> IpAddr {
    if family == 4 { IpAddr::V4(Ipv4Addr::from(addr as u32)) } else { IpAddr::V6(Ipv6Addr::from(addr)) }
}

/// 4 or 6.
pub fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 4 } else { 6 }
}

/// High and low half, as the WIT's columns want them.
pub fn halves(addr: Addr) -> (u64, u64) {
    ((addr >> 64) as u64, addr as u64)
}
