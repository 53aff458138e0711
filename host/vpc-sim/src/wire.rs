//! The wire: network namespaces that behave like a VPC.
//!
//! One namespace, `<name>-vpc`, plays the VPC's mapping service. Every network interface (ENI) is a veth pair between
//! it and the namespace of the node the ENI is attached to. What the namespace lets through is what EC2 would:
//!
//! - an address (or an address of a /28 prefix) is reached only behind the ENI that owns it, and may be used as a source
//!   only there; other sources are dropped and counted (`spoofed_dropped`, also for each ENI);
//! - addresses of the VPC that nobody owns lead nowhere (`no_owner_dropped`) and get no ARP answer;
//! - the internet gateway lets out only sources with a public address and rewrites them one to one, without state, as
//!   the real one does; other sources are dropped and counted (`no_public_dropped`);
//! - the instance metadata address and an address for the EC2 endpoint are local to that namespace: a server that
//!   listens there (see [`listen`]) is reached from every node.
//!
//! `<name>-inet` is the internet: one host, [`INTERNET_HOST`], that answers pings. A node's namespace gets its primary
//! ENI configured as DHCP would and its other ENIs unconfigured and down, as a fresh node sees them.
//!
//! The wire knows nothing of the model: a [`WireSpec`] says what should be, [`Wire::apply`] reads what is and changes
//! the difference. It runs the programs `ip` and `nft` and needs root. Everything of a wire has a name that starts with
//! [`WireSpec::name`], which ends with the process id of its owner, so that [`sweep`] knows what a dead run left behind.

mod model;
mod netns;
mod plan;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

pub use model::{API, IMDS};
pub use netns::{in_netns, sweep};

/// The host on the simulated internet that answers pings.
pub const INTERNET_HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

/// What a wire should look like. Plain data; two equal specs give two equal wires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSpec {
    /// Starts every name the wire makes: lower-case letters and then the owner's process id, e.g. `w1234`
    /// ([`name_for_this_process`] makes one).
    pub name: String,
    /// The instances.
    pub nodes: Vec<NodeSpec>,
    /// The attached network interfaces of all instances. One that is not attached is not on the wire: leave it out.
    pub enis: Vec<EniSpec>,
    /// The address ranges of the VPC: destinations inside that nobody owns are dropped.
    pub vpc_cidrs: Vec<Ipv4Net>,
    /// Where instance metadata is served, 169.254.169.254 on EC2.
    pub imds: Ipv4Addr,
    /// Where the EC2 API is served for the nodes, outside of the VPC's ranges.
    pub api: Ipv4Addr,
}

/// An instance: a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Its instance id, which [`EniSpec::instance`] names.
    pub instance: String,
    /// Its namespace, created and removed by the wire; must start with `<name>-`.
    pub netns: String,
}

/// A network interface that is attached to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EniSpec {
    /// Its id.
    pub eni_id: String,
    /// The instance it is attached to.
    pub instance: String,
    /// Its MAC address, `02:…`.
    pub mac: String,
    /// What the node's kernel calls it: `eth0` for the primary one, else `eth1`, ….
    pub ifname: String,
    /// Its device index; 0 is the primary interface, which the wire configures as DHCP would.
    pub device_index: u32,
    /// Its subnet; the router is the first address of it.
    pub subnet: Ipv4Net,
    /// Its primary private address.
    pub primary: Ipv4Addr,
    /// Its secondary private addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// The prefixes assigned to it, /28 on EC2.
    pub prefixes: Vec<Ipv4Net>,
    /// The public address that the internet gateway maps to `primary`.
    pub public: Option<Ipv4Addr>,
    /// The largest packet in bytes, 9001 on EC2.
    pub mtu: u32,
}

/// What [`Wire::apply`] changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Namespaces of nodes that appeared.
    pub nodes_added: Vec<String>,
    /// Namespaces of nodes that went.
    pub nodes_removed: Vec<String>,
    /// ENIs whose link appeared in the namespace of their node.
    pub attached: Vec<String>,
    /// ENIs whose link disappeared.
    pub detached: Vec<String>,
    /// Addresses (as /32) and prefixes that began to work, each with its ENI.
    pub assigned: Vec<(String, Ipv4Net)>,
    /// Addresses (as /32) and prefixes that ceased to work, each with its ENI.
    pub unassigned: Vec<(String, Ipv4Net)>,
}

impl Changes {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What the mapping service counted since [`Wire::up`], in packets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Dropped because the source address does not belong to the ENI they came from.
    pub spoofed_dropped: u64,
    /// `spoofed_dropped` for each ENI that is attached now.
    pub spoofed_by: BTreeMap<String, u64>,
    /// Dropped at the internet gateway because the source has no public address.
    pub no_public_dropped: u64,
    /// Dropped because nobody owns the destination.
    pub no_owner_dropped: u64,
    /// Let through from ENI to ENI.
    pub forwarded: u64,
    /// Let out to the internet.
    pub to_internet: u64,
    /// Let in from the internet.
    pub from_internet: u64,
}

/// Why the wire could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The spec contradicts itself; nothing was changed.
    #[error("wire spec: {0}")]
    Spec(String),
    /// A namespace could not be entered, listed or removed.
    #[error("network namespace {name}: cannot {what} (root is needed; `ip netns` shows what exists)")]
    Netns {
        /// The namespace's name.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// `ip` or `nft` could not be started.
    #[error("cannot run `{program}` (Debian packages iproute2 and nftables have it)")]
    Start {
        /// The program with its arguments.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// `ip` or `nft` refused; the next [`Wire::apply`] starts from what there is then.
    #[error("`{program}` failed: {stderr}; its input was:\n{input}")]
    Refused {
        /// The program with its arguments.
        program: String,
        /// What it said.
        stderr: String,
        /// What it was given on standard input.
        input: String,
    },
    /// `ip` or `nft` answered something that is not the JSON we know.
    #[error("`{program}` answered JSON of another shape than iproute2 6.1 and nftables 1.0.6 do")]
    Json {
        /// The program with its arguments.
        program: String,
        /// Where the JSON went wrong.
        source: serde_json::Error,
    },
    /// Something could not be removed; the rest was.
    #[error("could not remove everything: {}", .0.join("; "))]
    Left(Vec<String>),
}

/// `prefix` with this process's id: a [`WireSpec::name`] that [`sweep`]`(prefix)` leaves alone while this process lives.
pub fn name_for_this_process(prefix: &str) -> String {
    format!("{prefix}{}", std::process::id())
}

/// The namespace of the mapping service of the wire `name`.
pub fn vpc_netns(name: &str) -> String {
    format!("{name}-vpc")
}

/// The namespace of the internet of the wire `name`.
pub fn inet_netns(name: &str) -> String {
    format!("{name}-inet")
}

/// A listening socket inside the namespace `netns`: it stays there whichever thread uses it. Non-blocking, as tokio
/// wants it.
///
/// # Errors
/// [`WireError::Netns`] if the namespace does not exist or the address cannot be bound in it.
pub fn listen(netns: &str, addr: SocketAddr) -> Result<TcpListener, WireError> {
    let bind = move || {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    in_netns(netns, bind)?.map_err(|source| WireError::Netns { name: netns.to_owned(), what: "listen in it", source })
}

/// A wire that is up. Dropping it removes everything it made.
#[derive(Debug)]
pub struct Wire {
    name: String,
    /// Namespaces of nodes this wire made and has not removed.
    nodes: BTreeSet<String>,
    /// ENI id → name of its link in the mapping service, as last applied.
    ports: BTreeMap<String, String>,
    /// The next port's number. Never used twice, so that no rule of a removed ENI can fit a new one.
    next_port: u32,
    /// The packet filter's elements as last loaded; `None` if that is not known.
    elements: Option<String>,
    down: bool,
}

impl Wire {
    /// Makes the namespaces and everything in them.
    ///
    /// # Errors
    /// Any [`WireError`]; what had been made by then is removed.
    pub fn up(spec: &WireSpec) -> Result<Self, WireError> {
        plan::check(spec)?;
        let mut wire = Self {
            name: spec.name.clone(),
            nodes: BTreeSet::new(),
            ports: BTreeMap::new(),
            next_port: 0,
            elements: None,
            down: false,
        };
        // From here on an early return drops `wire`, which removes what was made.
        wire.make_mapping_service(spec)?;
        wire.apply(spec)?;
        Ok(wire)
    }

    /// The wire's name, with which all its namespaces start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace of the mapping service, where metadata and the EC2 API are to be served.
    pub fn vpc_netns(&self) -> String {
        vpc_netns(&self.name)
    }

    /// The namespace of the internet.
    pub fn inet_netns(&self) -> String {
        inet_netns(&self.name)
    }

    /// Changes what differs between the wire and `spec`, and says what that was.
    ///
    /// The wire is read anew each time, so a call after a failed one, or after somebody removed a link, mends it. The
    /// addresses of the metadata service and the API are those given to [`Wire::up`].
    ///
    /// # Errors
    /// [`WireError::Spec`] (nothing changed) or what the system refused (partly changed; apply again).
    pub fn apply(&mut self, spec: &WireSpec) -> Result<Changes, WireError> {
        plan::check(spec)?;
        if spec.name != self.name {
            return Err(WireError::Spec(format!("this wire is called {}, the spec {}", self.name, spec.name)));
        }
        let mut changes = self.apply_nodes(spec)?;
        let vpc = self.vpc_netns();
        let actual = plan::Actual::read(&vpc)?;
        let plan = plan::plan(spec, &actual, self.next_port, &mut changes);
        self.next_port = plan.next_port;

        // Who may use which address is taken away before links and routes change and given after they did; the filter is
        // loaded as a whole, so one load between the two steps does both.
        tools::ip_batch(&vpc, &plan.remove)?;
        if self.elements.as_deref() != Some(&plan.elements) {
            self.elements = None;
            tools::nft(&vpc, &plan.elements)?;
            self.elements = Some(plan.elements);
        }
        tools::ip_batch(&vpc, &plan.add)?;
        for (netns, batch) in &plan.primaries {
            tools::ip_batch(netns, batch)?;
        }
        self.ports = plan.ports;
        Ok(changes)
    }

    /// What the mapping service counted since the wire came up.
    ///
    /// # Errors
    /// When `nft` cannot be run or the namespace is gone.
    pub fn counters(&self) -> Result<Counters, WireError> {
        let counted = tools::nft_counters(&self.vpc_netns())?;
        let get = |name: &str| counted.get(name).copied().unwrap_or_default();
        Ok(Counters {
            spoofed_dropped: get("spoofed_dropped"),
            spoofed_by: self.ports.iter().map(|(eni, port)| (eni.clone(), get(&plan::counter_of(port)))).collect(),
            no_public_dropped: get("no_public_dropped"),
            no_owner_dropped: get("no_owner_dropped"),
            forwarded: get("forwarded"),
            to_internet: get("to_internet"),
            from_internet: get("from_internet"),
        })
    }

    /// Removes everything the wire made: links, rules, namespaces.
    ///
    /// # Errors
    /// [`WireError::Left`] names what could not be removed; the rest is gone.
    pub fn down(mut self) -> Result<(), WireError> {
        self.remove_all()
    }

    fn remove_all(&mut self) -> Result<(), WireError> {
        self.down = true;
        let mut names = vec![self.vpc_netns(), self.inet_netns()];
        names.extend(std::mem::take(&mut self.nodes));
        netns::remove(&names)
    }

    fn make_mapping_service(&self, spec: &WireSpec) -> Result<(), WireError> {
        let (vpc, inet) = (self.vpc_netns(), self.inet_netns());
        netns::add(&vpc)?;
        netns::add(&inet)?;
        tools::sysctl(&vpc, plan::VPC_SYSCTLS)?;
        tools::nft(&vpc, plan::RULES)?;
        tools::ip_batch(&vpc, &plan::mapping_service(spec, &inet))?;
        tools::ip_batch(&inet, &plan::internet())
    }

    /// Namespaces first: links need them.
    fn apply_nodes(&mut self, spec: &WireSpec) -> Result<Changes, WireError> {
        let wanted: BTreeSet<String> = spec.nodes.iter().map(|node| node.netns.clone()).collect();
        let mut changes = Changes::default();
        for netns in self.nodes.clone().difference(&wanted) {
            netns::remove(std::slice::from_ref(netns))?;
            self.nodes.remove(netns);
            changes.nodes_removed.push(netns.clone());
        }
        for netns in &wanted {
            if self.nodes.contains(netns) && netns::exists(netns) {
                continue;
            }
            netns::add(netns)?;
            self.nodes.insert(netns.clone());
            tools::sysctl(netns, plan::NODE_SYSCTLS)?;
            changes.nodes_added.push(netns.clone());
        }
        Ok(changes)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !self.down
            && let Err(error) = self.remove_all()
        {
            tracing::warn!(wire = self.name, %error, "left something behind");
        }
    }
}
