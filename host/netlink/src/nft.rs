//! The node's nf_tables table, written in one transaction: source NAT for traffic that leaves the VPC, and the
//! connection marks that bring replies back to the primary interface. Only the expressions used here are encoded.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rustix::io::Errno;

use crate::error::{During, Error};
use crate::node::{NodeNet, SnatPorts};
use crate::socket::{APPEND, CREATE, Netlink};
use crate::wire::Message;

/// The table's name; it and all in it are ours alone.
pub const TABLE: &str = "wipam";

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0x0a00;
const DELTABLE: u16 = 0x0a02;
const NEWCHAIN: u16 = 0x0a03;
const NEWRULE: u16 = 0x0a06;
/// `NFPROTO_IPV4`, version 0, no resource.
const IPV4: [u8; 4] = [2, 0, 0, 0];
/// The batch is for nf_tables (resource number 10 in network order).
const FOR_NFTABLES: [u8; 4] = [0, 0, 0, 10];

const REG_VERDICT: u32 = 0;
const REG_1: u32 = 8;
const REG_2: u32 = 9;
const EQ: u32 = 0;
const NEQ: u32 = 1;
const VERDICT_RETURN: i32 = -5;
const VERDICT_JUMP: i32 = -3;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const CT_MARK: u32 = 3;
const HOOK_PREROUTING: u32 = 0;
const HOOK_POSTROUTING: u32 = 4;
/// Where iptables' mangle table stands.
const PRIORITY_MANGLE: i32 = -150;
/// After kube-proxy's DNAT at -100, so that the real destination is seen.
const PRIORITY_AFTER_DNAT: i32 = -90;
const PRIORITY_SRCNAT: i32 = 100;
const ADDRESS_LOCAL: u32 = 2;

const POSTROUTING: &str = "snat";
const MANGLE: &str = "mark-restore";
const OUTBOUND: &str = "outbound";
const MARK_OUTBOUND: &str = "mark-outbound";

/// Replaces the table with what `net` asks for, in one transaction: no packet ever sees half of it.
///
/// # Errors
/// Naming the message the kernel refused; the old table then stands.
pub(crate) fn replace(net: &NodeNet, primary: &str, primary_ip: Ipv4Addr) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.renew_table();
    if net.node_port || !net.external_snat {
        mangle_chain(&mut batch, net, primary);
    }
    if !net.external_snat {
        outbound_chains(&mut batch, net);
        snat_chain(&mut batch, net, primary_ip);
    }
    batch.commit()
}

/// Removes the table; one that is not there is fine.
pub(crate) fn remove() -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.table(NEWTABLE, CREATE);
    batch.table(DELTABLE, 0);
    batch.commit()
}

/// Marks connections that came in by the primary interface for this node, and gives packets of marked connections that
/// come back from pods the mark that the rule 1024 looks for.
fn mangle_chain(batch: &mut Batch, net: &NodeNet, primary: &str) {
    batch.base_chain(MANGLE, "filter", HOOK_PREROUTING, PRIORITY_MANGLE);
    if net.node_port {
        batch.rule(MANGLE, "node port", |rule| {
            rule.name_is(META_IIFNAME, primary).destination_is_local(EQ, true).set_ct_mark(net.connmark);
        });
    }
    batch.rule(MANGLE, "replies from pods", |rule| {
        rule.name_begins(META_IIFNAME, EQ, &net.veth_prefix).restore_mark(net.connmark);
    });
}

/// Marks connections from pods to the world, so that they leave by the primary interface, whose address they get.
fn outbound_chains(batch: &mut Batch, net: &NodeNet) {
    batch.base_chain(OUTBOUND, "nat", HOOK_PREROUTING, PRIORITY_AFTER_DNAT);
    batch.chain(MARK_OUTBOUND);
    batch.rule(OUTBOUND, "local", |rule| {
        rule.destination_is_local(EQ, false).verdict(VERDICT_RETURN, None);
    });
    batch.rule(OUTBOUND, "from pods", |rule| {
        rule.name_begins(META_IIFNAME, EQ, &net.veth_prefix).verdict(VERDICT_JUMP, Some(MARK_OUTBOUND));
    });
    batch.rule(OUTBOUND, "first packet", |rule| {
        rule.restore_mark(net.connmark);
    });
    not_translated(batch, MARK_OUTBOUND, net);
    batch.rule(MARK_OUTBOUND, "leaves the VPC", |rule| {
        rule.set_ct_mark(net.connmark);
    });
}

fn snat_chain(batch: &mut Batch, net: &NodeNet, primary_ip: Ipv4Addr) {
    batch.base_chain(POSTROUTING, "nat", HOOK_POSTROUTING, PRIORITY_SRCNAT);
    not_translated(batch, POSTROUTING, net);
    batch.rule(POSTROUTING, "leaves the VPC", |rule| {
        rule.name_begins(META_OIFNAME, NEQ, &net.veth_prefix)
            .destination_is_local(NEQ, false)
            .snat(primary_ip, net.ports);
    });
}

/// Destinations that see pods' own addresses.
fn not_translated(batch: &mut Batch, chain: &str, net: &NodeNet) {
    let named = [(&net.vpc_cidrs, "VPC"), (&net.exclude_snat_cidrs, "excluded")];
    for (cidr, why) in named.into_iter().flat_map(|(list, why)| list.iter().map(move |cidr| (cidr, why))) {
        batch.rule(chain, why, |rule| {
            rule.destination_in(*cidr).verdict(VERDICT_RETURN, None);
        });
    }
}

/// One transaction under construction; each message with what it is, for the error text.
struct Batch(Vec<(Message, String)>);

impl Batch {
    fn new() -> Self {
        Batch(vec![(Message::new(BATCH_BEGIN, 0, &FOR_NFTABLES), "begin".into())])
    }

    fn add(&mut self, message: Message, what: impl Into<String>) {
        self.0.push((message, what.into()));
    }

    fn table(&mut self, kind: u16, flags: u16) {
        let mut message = Message::new(kind, flags, &IPV4);
        message.put_str(1, TABLE).put_be32(2, 0);
        self.add(message, "table");
    }

    /// Deletes the table, whether it is there or not, and makes an empty one.
    fn renew_table(&mut self) {
        self.table(NEWTABLE, CREATE);
        self.table(DELTABLE, 0);
        self.table(NEWTABLE, CREATE);
    }

    fn chain(&mut self, name: &str) {
        let mut message = Message::new(NEWCHAIN, CREATE, &IPV4);
        message.put_str(1, TABLE).put_str(3, name);
        self.add(message, format!("chain {name}"));
    }

    fn base_chain(&mut self, name: &str, kind: &str, hook: u32, priority: i32) {
        const ACCEPT: u32 = 1;
        let mut message = Message::new(NEWCHAIN, CREATE, &IPV4);
        message.put_str(1, TABLE).put_str(3, name);
        message.nest(4, |nest| {
            nest.put_be32(1, hook).put(2, &priority.to_be_bytes());
        });
        message.put_be32(5, ACCEPT).put_str(7, kind);
        self.add(message, format!("chain {name}"));
    }

    fn rule(&mut self, chain: &str, what: &str, fill: impl FnOnce(&mut Expressions<'_>)) {
        let mut message = Message::new(NEWRULE, CREATE | APPEND, &IPV4);
        message.put_str(1, TABLE).put_str(2, chain);
        message.nest(4, |list| fill(&mut Expressions(list)));
        message.put(7, &comment(what));
        self.add(message, format!("rule \"{what}\" of chain {chain}"));
    }

    fn commit(mut self) -> Result<(), Error> {
        self.add(Message::new(BATCH_END, 0, &FOR_NFTABLES), "end");
        let (messages, names): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let mut netlink = Netlink::netfilter().during(|| "open a netfilter netlink socket".to_owned())?;
        netlink.transaction(messages).or_else(|(number, refusal)| {
            let name = names.get(number).map_or("transaction", String::as_str);
            let hint = match refusal.errno {
                Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::INVAL => {
                    "; does this kernel have nf_tables with nat and fib?"
                }
                _ => "",
            };
            Err(refusal).during(|| format!("write the nf_tables table {TABLE} ({name}){hint}"))
        })
    }
}

/// A comment as `nft` shows it: type 0, length, text with its zero byte.
fn comment(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut data = vec![0, length];
    data.extend_from_slice(text.as_bytes());
    data.push(0);
    data
}

/// The expressions of one rule, in order.
struct Expressions<'a>(&'a mut Message);

impl Expressions<'_> {
    fn add(&mut self, name: &str, fill: impl FnOnce(&mut Message)) -> &mut Self {
        self.0.nest(1, |element| {
            element.put_str(1, name).nest(2, fill);
        });
        self
    }

    fn compare(&mut self, op: u32, value: &[u8]) -> &mut Self {
        self.add("cmp", |e| {
            e.put_be32(1, REG_1).put_be32(2, op).nest(3, |data| {
                data.put(1, value);
            });
        })
    }

    /// register 1 = (register 1 & mask) ^ xor
    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) -> &mut Self {
        let length = u32::try_from(mask.len()).unwrap_or_default();
        self.add("bitwise", |e| {
            e.put_be32(1, REG_1).put_be32(2, REG_1).put_be32(3, length);
            e.nest(4, |data| {
                data.put(1, mask);
            });
            e.nest(5, |data| {
                data.put(1, xor);
            });
        })
    }

    fn load_meta(&mut self, key: u32) -> &mut Self {
        self.add("meta", |e| {
            e.put_be32(1, REG_1).put_be32(2, key);
        })
    }

    fn load_ct_mark(&mut self) -> &mut Self {
        self.add("ct", |e| {
            e.put_be32(1, REG_1).put_be32(2, CT_MARK);
        })
    }

    /// The interface's name is exactly this.
    fn name_is(&mut self, key: u32, name: &str) -> &mut Self {
        let mut padded = [0; 16];
        let length = name.len().min(15);
        padded[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.load_meta(key).compare(EQ, &padded)
    }

    /// The interface's name begins so (or, with [`NEQ`], does not).
    fn name_begins(&mut self, key: u32, op: u32, prefix: &str) -> &mut Self {
        self.load_meta(key).compare(op, prefix.as_bytes())
    }

    /// The destination is (or is not) an address of this node; `on_interface`: of the interface it came in by.
    fn destination_is_local(&mut self, op: u32, on_interface: bool) -> &mut Self {
        const RESULT_ADDRESS_TYPE: u32 = 3;
        const BY_DESTINATION: u32 = 2;
        const BY_IIF: u32 = 8;
        let flags = BY_DESTINATION | if on_interface { BY_IIF } else { 0 };
        self.add("fib", |e| {
            e.put_be32(1, REG_1).put_be32(2, RESULT_ADDRESS_TYPE).put_be32(3, flags);
        })
        .compare(op, &ADDRESS_LOCAL.to_ne_bytes())
    }

    /// The IPv4 destination lies in a network.
    fn destination_in(&mut self, cidr: Ipv4Net) -> &mut Self {
        const NETWORK_HEADER: u32 = 1;
        const DESTINATION: u32 = 16;
        self.add("payload", |e| {
            e.put_be32(1, REG_1).put_be32(2, NETWORK_HEADER).put_be32(3, DESTINATION).put_be32(4, 4);
        });
        if cidr.prefix_len() < 32 {
            self.bitwise(&cidr.netmask().octets(), &[0; 4]);
        }
        self.compare(EQ, &cidr.network().octets())
    }

    /// Adds bits to the connection's mark.
    fn set_ct_mark(&mut self, mark: u32) -> &mut Self {
        self.load_ct_mark().bitwise(&(!mark).to_ne_bytes(), &mark.to_ne_bytes()).add("ct", |e| {
            e.put_be32(2, CT_MARK).put_be32(4, REG_1);
        })
    }

    /// If the connection has the mark, gives it to the packet and leaves the packet's other bits (kube-proxy's) alone.
    fn restore_mark(&mut self, mark: u32) -> &mut Self {
        self.load_ct_mark().bitwise(&mark.to_ne_bytes(), &[0; 4]).compare(NEQ, &[0; 4]);
        self.load_meta(META_MARK).bitwise(&(!mark).to_ne_bytes(), &mark.to_ne_bytes()).add("meta", |e| {
            e.put_be32(2, META_MARK).put_be32(3, REG_1);
        })
    }

    fn verdict(&mut self, code: i32, chain: Option<&str>) -> &mut Self {
        self.add("immediate", |e| {
            e.put_be32(1, REG_VERDICT).nest(2, |data| {
                data.nest(2, |verdict| {
                    verdict.put(1, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        verdict.put_str(2, chain);
                    }
                });
            });
        })
    }

    /// Gives the connection `source` as its source address.
    fn snat(&mut self, source: Ipv4Addr, ports: SnatPorts) -> &mut Self {
        const RANDOM: u32 = 4;
        const FULLY_RANDOM: u32 = 16;
        const SOURCE: u32 = 0;
        self.add("immediate", |e| {
            e.put_be32(1, REG_2).nest(2, |data| {
                data.put(1, &source.octets());
            });
        })
        .add("nat", |e| {
            e.put_be32(1, SOURCE).put_be32(2, IPV4[0].into()).put_be32(3, REG_2);
            match ports {
                SnatPorts::Kept => {}
                SnatPorts::Random => {
                    e.put_be32(7, RANDOM);
                }
                SnatPorts::FullyRandom => {
                    e.put_be32(7, FULLY_RANDOM);
                }
            }
        })
    }
}
