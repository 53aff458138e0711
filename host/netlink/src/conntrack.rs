//! Forgetting connections: after an address changes hands, no packet may still follow its former owner's connections.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use rustix::io::Errno;

use crate::error::{During, Error, Tolerate};
use crate::rt::ip;
use crate::socket::{ACK, Netlink};
use crate::wire::{Message, attributes, attributes_after};

const CT_GET: u16 = 0x0101;
const CT_DELETE: u16 = 0x0102;
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `struct nfgenmsg`: family, version, resource.
const FIXED: usize = 4;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// One connection, by the raw attributes that name it to the kernel.
struct Connection {
    family: u8,
    names: Vec<(u16, Vec<u8>)>,
}

/// Deletes every connection that has one of `addresses` as source or destination, in either direction, translated or
/// not. Returns how many there were. A kernel without connection tracking has none.
///
/// # Errors
/// When the table cannot be read, or an entry not be deleted.
pub fn forget(addresses: &[IpAddr]) -> Result<u32, Error> {
    if addresses.is_empty() || !Path::new("/proc/sys/net/netfilter/nf_conntrack_max").exists() {
        return Ok(0);
    }
    let wanted: HashSet<IpAddr> = addresses.iter().copied().collect();
    let mut netlink = Netlink::netfilter().during(|| "open a netfilter netlink socket".to_owned())?;
    let mut count = 0;
    for family in [AF_INET, AF_INET6] {
        if wanted.iter().any(|a| a.is_ipv6() == (family == AF_INET6)) {
            for connection in connections(&mut netlink, family, &wanted)? {
                delete(&mut netlink, &connection)?;
                count += 1;
            }
        }
    }
    Ok(count)
}

fn connections(netlink: &mut Netlink, family: u8, wanted: &HashSet<IpAddr>) -> Result<Vec<Connection>, Error> {
    let all = Message::new(CT_GET, 0, &[family, 0, 0, 0]);
    netlink.dump(&all, |body| read(body, wanted)).during(|| "list tracked connections".to_owned())
}

/// The connection in `body` if it concerns one of the addresses.
fn read(body: &[u8], wanted: &HashSet<IpAddr>) -> Option<Connection> {
    let concerned = attributes_after(body, FIXED)
        .filter(|(kind, _)| matches!(*kind, ORIGINAL | REPLY))
        .flat_map(|(_, tuple)| attributes(tuple).filter(|(kind, _)| *kind == 1))
        .flat_map(|(_, addresses)| attributes(addresses))
        .any(|(_, value)| ip(value).is_some_and(|addr| wanted.contains(&addr)));
    concerned.then(|| Connection {
        family: body[0],
        names: attributes_after(body, FIXED)
            .filter(|(kind, _)| matches!(*kind, ORIGINAL | ID | ZONE))
            .map(|(kind, value)| (kind, value.to_vec()))
            .collect(),
    })
}

/// The identity number keeps a connection safe that took the same ports in between.
fn delete(netlink: &mut Netlink, connection: &Connection) -> Result<(), Error> {
    let mut message = Message::new(CT_DELETE, ACK, &[connection.family, 0, 0, 0]);
    for (kind, value) in &connection.names {
        if *kind == ORIGINAL {
            message.nest(*kind, |nest| {
                nest.raw(value);
            });
        } else {
            message.put(*kind, value);
        }
    }
    netlink.request(message).tolerate(&[Errno::NOENT]).during(|| "delete a tracked connection".to_owned())
}
