//! The state of a simulated VPC, how time passes in it, and the way every call takes: throttle, faults, action, latency.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;

use super::addresses::{Addresses, prefix_addresses};
use super::config::{InstanceConfig, Placement, SubnetConfig, VpcConfig, by_pattern};
use super::fault::{ActiveRule, FaultRule, judge};
use super::random::Random;
use super::request::{
    AttachStatus, Attachment, CallCount, CreateNetworkInterface, Ec2Error, Eni, EniStatus, ImdsView, Instance, Outcome,
    Request, Subnet,
};
use super::throttle::Throttles;
use crate::instance_types::{self, InstanceType};

/// How long a ClientToken is remembered.
const TOKEN_TTL_MS: u64 = 24 * 3_600_000;

/// What is wrong with a configuration, or with an instance that shall be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct ConfigError {
    /// Which part of the configuration.
    pub place: String,
    /// What is wrong and what would be right.
    pub cause: String,
}

impl ConfigError {
    pub(crate) fn new(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { place: place.into(), cause: cause.into() }
    }
}

/// A simulated VPC. Time is an argument of every method and never runs backwards: an earlier `now_ms` counts as the
/// latest one seen. Two VPCs with equal configuration that see equal calls answer equally.
#[derive(Debug, Clone)]
pub struct Vpc {
    pub(super) config: VpcConfig,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) now_ms: u64,
    pub(super) subnets: BTreeMap<String, SubnetState>,
    pub(super) enis: BTreeMap<String, EniRecord>,
    pub(super) live_enis: usize,
    pub(super) instances: BTreeMap<String, InstanceState>,
    /// Which interface has a lone address.
    pub(super) owners: HashMap<Ipv4Addr, String>,
    pub(super) attachments: HashMap<String, String>,
    pub(super) client_tokens: HashMap<String, (CreateNetworkInterface, Arc<Eni>)>,
    pub(super) due: BTreeMap<(u64, u64), Due>,
    sequence: u64,
    generation: u64,
    ids: Random,
    pub(super) places: Random,
    dice: Random,
    rules: Vec<ActiveRule>,
    throttles: Throttles,
    calls: BTreeMap<&'static str, CallCount>,
    next_public: u32,
}

/// One subnet.
#[derive(Debug, Clone)]
pub(super) struct SubnetState {
    pub(super) config: SubnetConfig,
    pub(super) zone: String,
    pub(super) addresses: Addresses,
    /// Addresses that others use, apart from those of the configuration's `occupied`.
    pub(super) foreign: Vec<Ipv4Addr>,
}

/// One interface: its versions by the time they began, oldest first; `None` means deleted. Only the last one counts
/// for mutating calls; older ones are kept as far as a lagging reader may look back.
#[derive(Debug, Clone)]
pub(super) struct EniRecord {
    versions: VecDeque<(u64, Option<Arc<Eni>>)>,
}

impl EniRecord {
    pub(super) fn current(&self) -> Option<&Arc<Eni>> {
        self.versions.back().and_then(|(_, eni)| eni.as_ref())
    }

    pub(super) fn as_of(&self, at_ms: u64) -> Option<&Arc<Eni>> {
        self.versions.iter().rev().find(|(since, _)| *since <= at_ms).and_then(|(_, eni)| eni.as_ref())
    }
}

/// One instance.
#[derive(Debug, Clone)]
pub(super) struct InstanceState {
    pub(super) config: InstanceConfig,
    pub(super) kind: InstanceType,
    pub(super) running: bool,
    pub(super) zone: String,
    pub(super) private_ip: Ipv4Addr,
    pub(super) public_ip: Option<Ipv4Addr>,
    pub(super) launch_time_ms: u64,
    /// Interfaces that are or lately were plugged in.
    pub(super) enis: BTreeSet<String>,
}

/// What happens by itself when its time has come.
#[derive(Debug, Clone)]
pub(super) enum Due {
    /// A new interface is no longer pending.
    Created(String),
    /// The attachment is complete.
    Attached { eni: String, attachment: String },
    /// The attachment is gone.
    Detached { eni: String, attachment: String },
    /// No lagging reader can see the deleted interface any more.
    Forget(String),
    /// No lagging reader can see that the interface was on the instance.
    Unlist { instance: String, eni: String },
    /// The token's time is over.
    ForgetToken(String),
}

impl Vpc {
    /// A VPC at time 0. Fails with the part of the configuration that cannot be.
    pub fn new(config: VpcConfig) -> Result<Self, ConfigError> {
        let mut places = Random::new(config.seed, 2);
        let mut subnets = BTreeMap::new();
        for subnet in &config.subnets {
            check_subnet(&config, subnet)?;
            let state = SubnetState::new(&config.region, subnet, &mut places);
            if subnets.insert(subnet.id.clone(), state).is_some() {
                return Err(ConfigError::new(&subnet.id, "two subnets have this id; give each its own"));
            }
        }
        let mut vpc = Self {
            tags: BTreeMap::new(),
            now_ms: 0,
            subnets,
            enis: BTreeMap::new(),
            live_enis: 0,
            instances: BTreeMap::new(),
            owners: HashMap::new(),
            attachments: HashMap::new(),
            client_tokens: HashMap::new(),
            due: BTreeMap::new(),
            sequence: 0,
            generation: 0,
            ids: Random::new(config.seed, 1),
            places,
            dice: Random::new(config.seed, 3),
            rules: config.faults.iter().cloned().map(ActiveRule::new).collect(),
            throttles: Throttles::new(&config.throttles),
            calls: BTreeMap::new(),
            next_public: 0,
            config,
        };
        for instance in vpc.config.instances.clone() {
            vpc.run_instance(0, instance)?;
        }
        Ok(vpc)
    }

    /// One call without a name.
    pub fn call(&mut self, now_ms: u64, request: &Request) -> Outcome {
        self.call_as(now_ms, "", false, request)
    }

    /// One call by `caller` (an access key id), perhaps as a dry run: a dry run that would be allowed fails with
    /// `DryRunOperation` and changes nothing.
    pub fn call_as(&mut self, now_ms: u64, caller: &str, dry_run: bool, request: &Request) -> Outcome {
        self.advance(now_ms);
        let action = request.action();
        let mut latency_ms = self.latency(action);
        if !self.throttles.take(self.now_ms, action) {
            self.calls.entry(action).or_default().throttled += 1;
            let error = Ec2Error::new("RequestLimitExceeded", "Request limit exceeded.");
            return Outcome { latency_ms, result: Err(error), lost_reply: false };
        }
        let verdict = judge(&mut self.rules, self.now_ms, action, caller, &mut self.dice);
        latency_ms += verdict.extra_latency_ms;
        let result = match verdict.error {
            Some((code, message, status)) => Err(injected(&code, message, status, action)),
            None if dry_run => {
                Err(Ec2Error::new("DryRunOperation", "Request would have succeeded, but DryRun flag is set."))
            }
            None => self.act(request, verdict.partial),
        };
        let count = self.calls.entry(action).or_default();
        match &result {
            Ok(_) => count.ok += 1,
            Err(error) if error.code == "RequestLimitExceeded" => count.throttled += 1,
            Err(_) => count.failed += 1,
        }
        count.lost_replies += u64::from(verdict.lost_reply);
        Outcome { latency_ms, result, lost_reply: verdict.lost_reply }
    }

    /// All interfaces as they are now, whatever the lags, sorted by id.
    pub fn enis(&mut self, now_ms: u64) -> Vec<Arc<Eni>> {
        self.advance(now_ms);
        self.enis.values().filter_map(|record| record.current().cloned()).collect()
    }

    /// Subnets as they are now, sorted by id.
    pub fn subnets(&self) -> Vec<Subnet> {
        self.subnets.values().map(SubnetState::view).collect()
    }

    /// The VPC's ranges, the primary one first.
    pub fn cidrs(&self) -> &[Ipv4Net] {
        &self.config.cidrs
    }

    /// The configuration it was made from (with ranges that came later).
    pub fn config(&self) -> &VpcConfig {
        &self.config
    }

    /// Adds a range to the VPC.
    pub fn add_cidr(&mut self, now_ms: u64, cidr: Ipv4Net) {
        self.advance(now_ms);
        if !self.config.cidrs.contains(&cidr) {
            self.config.cidrs.push(cidr);
            self.generation += 1;
        }
    }

    /// What the metadata service of a running instance knows at `now_ms`, `None` for an unknown or terminated one.
    pub fn imds_view(&mut self, now_ms: u64, instance_id: &str) -> Option<ImdsView> {
        self.advance(now_ms);
        let as_of = self.now_ms.saturating_sub(self.config.timing.metadata_lag_ms);
        let instance = self.instances.get(instance_id).filter(|instance| instance.running)?;
        let interfaces = self
            .instance_enis(instance_id, instance, as_of)
            .into_iter()
            .filter(|eni| eni.works_on(instance_id))
            .filter_map(|eni| Some((Eni::clone(eni), self.subnets.get(&eni.subnet_id)?.config.cidr)))
            .collect();
        Some(ImdsView {
            instance_id: instance_id.to_owned(),
            instance_type: instance.kind.name.clone(),
            account: self.config.account.clone(),
            region: self.config.region.clone(),
            availability_zone: instance.zone.clone(),
            role: instance.config.role.clone(),
            vpc_id: self.config.vpc_id.clone(),
            vpc_cidrs: self.config.cidrs.clone(),
            launch_time_ms: instance.launch_time_ms,
            interfaces,
        })
    }

    /// The instance that has an interface with this address, a lone one or one of a prefix.
    pub fn instance_of(&self, address: Ipv4Addr) -> Option<&str> {
        let by_prefix = || {
            // Rarely asked, so there is no index of prefixes.
            let has = |eni: &&Arc<Eni>| eni.prefixes.iter().any(|prefix| prefix.contains(&address));
            self.enis.values().filter_map(EniRecord::current).find(has)
        };
        let lone = self.owners.get(&address).and_then(|id| self.enis.get(id)?.current());
        let eni = lone.or_else(by_prefix)?;
        eni.attachment.as_ref().map(|attachment| attachment.instance_id.as_str())
    }

    /// All instances with their interfaces as they are now, whatever the lags, sorted by id.
    pub fn instances(&mut self, now_ms: u64) -> Vec<Instance> {
        self.advance(now_ms);
        self.instances.iter().map(|(id, instance)| self.instance_view(id, instance, self.now_ms)).collect()
    }

    /// The ids of all running instances, sorted.
    pub fn running(&self) -> Vec<String> {
        self.instances.iter().filter(|(_, instance)| instance.running).map(|(id, _)| id.clone()).collect()
    }

    /// How often each action was called.
    pub fn calls(&self) -> &BTreeMap<&'static str, CallCount> {
        &self.calls
    }

    /// A number that changes whenever an interface came, went, was plugged or unplugged, or its addresses changed.
    pub fn generation(&mut self, now_ms: u64) -> u64 {
        self.advance(now_ms);
        self.generation
    }

    /// When something next happens by itself, such as an attachment that completes.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Adds a fault rule. Its counters start at this moment.
    pub fn add_fault(&mut self, rule: FaultRule) {
        self.rules.push(ActiveRule::new(rule));
    }

    /// The fault rules that stand, spent ones included.
    pub fn faults(&self) -> impl Iterator<Item = &FaultRule> {
        self.rules.iter().map(ActiveRule::rule)
    }

    /// Removes all fault rules.
    pub fn clear_faults(&mut self) {
        self.rules.clear();
    }

    /// Others take up to `count` free addresses of the subnet, at random places. Answers how many they got.
    pub fn occupy(&mut self, subnet_id: &str, count: u32) -> u32 {
        let places = &mut self.places;
        self.subnets.get_mut(subnet_id).map_or(0, |subnet| subnet.occupy(count, places))
    }

    /// Others give back up to `count` addresses of the subnet, the latest first. Answers how many.
    pub fn vacate(&mut self, subnet_id: &str, count: u32) -> u32 {
        let Some(subnet) = self.subnets.get_mut(subnet_id) else { return 0 };
        let kept = subnet.foreign.len().saturating_sub(count as usize);
        let gone = subnet.foreign.split_off(kept);
        gone.iter().for_each(|address| subnet.addresses.give_back(*address));
        gone.len() as u32
    }

    /// Starts an instance with its primary interface plugged in. Answers its id.
    pub fn run_instance(&mut self, now_ms: u64, config: InstanceConfig) -> Result<String, ConfigError> {
        self.advance(now_ms);
        let place = format!("instance {}", config.id);
        let kind = self
            .kind(&config.instance_type)
            .cloned()
            .ok_or_else(|| ConfigError::new(&place, format!("unknown instance type {:?}", config.instance_type)))?;
        if self.instances.contains_key(&config.id) {
            return Err(ConfigError::new(&place, "an instance with this id exists; give another or none"));
        }
        let subnet = self
            .subnets
            .get(&config.subnet)
            .ok_or_else(|| ConfigError::new(&place, format!("unknown subnet {:?}", config.subnet)))?;
        let zone = subnet.zone.clone();
        let id = if config.id.is_empty() { self.make_id("i") } else { config.id.clone() };
        let request = primary_interface(&config);
        let mut eni = self
            .build_eni(&request, kind.ipv4_per_eni as usize, None)
            .map_err(|error| ConfigError::new(&place, format!("its primary interface cannot be made: {error}")))?;
        if config.public_ip {
            eni.public_ip = Some(
                self.public_address()
                    .ok_or_else(|| ConfigError::new(&place, "public-pool has no address left; give a larger one"))?,
            );
        }
        let attachment = self.make_id("eni-attach");
        eni.status = EniStatus::InUse;
        eni.attachment = Some(Attachment {
            id: attachment.clone(),
            instance_id: id.clone(),
            device_index: 0,
            network_card_index: 0,
            status: AttachStatus::Attached,
            attach_time_ms: self.now_ms,
            delete_on_termination: true,
        });
        let state = InstanceState {
            kind,
            running: true,
            zone,
            private_ip: eni.primary(),
            public_ip: eni.public_ip,
            launch_time_ms: self.now_ms,
            enis: BTreeSet::from([eni.id.clone()]),
            config,
        };
        self.attachments.insert(attachment, eni.id.clone());
        self.instances.insert(id.clone(), state);
        self.put(self.now_ms, eni);
        Ok(id)
    }

    /// Terminates an instance: interfaces with DeleteOnTermination go, others become available at once. False if it
    /// does not run.
    pub fn terminate_instance(&mut self, now_ms: u64, instance_id: &str) -> bool {
        self.advance(now_ms);
        let Some(instance) = self.instances.get_mut(instance_id).filter(|instance| instance.running) else {
            return false;
        };
        instance.running = false;
        for id in instance.enis.clone() {
            let Some(eni) = self.enis.get(&id).and_then(EniRecord::current).cloned() else { continue };
            match &eni.attachment {
                Some(attachment) if attachment.instance_id == instance_id => {
                    let (attachment, goes) = (attachment.id.clone(), attachment.delete_on_termination);
                    self.unplug(self.now_ms, &id, &attachment);
                    if goes {
                        self.drop_eni(&id);
                    }
                }
                _ => {}
            }
        }
        true
    }

    /// Lets everything happen that is due by `now_ms`, each at its own time.
    pub(super) fn advance(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        while let Some(entry) = self.due.first_entry() {
            let (at, _) = *entry.key();
            if at > self.now_ms {
                break;
            }
            match entry.remove() {
                Due::Created(eni) => self.edit(at, &eni, |eni| {
                    if eni.status == EniStatus::Pending {
                        eni.status = EniStatus::Available;
                    }
                }),
                Due::Attached { eni, attachment } => self.edit(at, &eni, |eni| {
                    if let Some(plug) = eni.attachment.as_mut().filter(|plug| plug.id == attachment)
                        && plug.status == AttachStatus::Attaching
                    {
                        plug.status = AttachStatus::Attached;
                    }
                }),
                Due::Detached { eni, attachment } => self.unplug(at, &eni, &attachment),
                Due::Forget(eni) => {
                    self.enis.remove(&eni);
                }
                Due::Unlist { instance, eni } => self.unlist(&instance, &eni),
                Due::ForgetToken(token) => {
                    self.client_tokens.remove(&token);
                }
            }
        }
    }

    /// Plans something for later.
    pub(super) fn schedule(&mut self, at_ms: u64, due: Due) {
        self.sequence += 1;
        self.due.insert((at_ms, self.sequence), due);
    }

    /// Writes a new version of an interface.
    pub(super) fn put(&mut self, at_ms: u64, eni: Eni) {
        let id = eni.id.clone();
        self.put_version(at_ms, &id, Some(Arc::new(eni)));
    }

    /// Changes an interface, if it still exists.
    pub(super) fn edit(&mut self, at_ms: u64, id: &str, change: impl FnOnce(&mut Eni)) {
        if let Some(current) = self.enis.get(id).and_then(EniRecord::current) {
            let mut eni = Eni::clone(current);
            change(&mut eni);
            self.put(at_ms, eni);
        }
    }

    fn put_version(&mut self, at_ms: u64, id: &str, eni: Option<Arc<Eni>>) {
        let lag = self.max_lag();
        if !self.enis.contains_key(id) {
            self.live_enis += 1;
            self.enis.insert(id.to_owned(), EniRecord { versions: VecDeque::new() });
        }
        let Some(record) = self.enis.get_mut(id) else { return };
        self.generation += 1;
        if record.versions.back().is_some_and(|(since, _)| *since == at_ms) {
            record.versions.pop_back();
        }
        record.versions.push_back((at_ms, eni));
        let oldest_look = self.now_ms.saturating_sub(lag);
        while record.versions.get(1).is_some_and(|(since, _)| *since <= oldest_look) {
            record.versions.pop_front();
        }
    }

    /// Deletes an interface that is not plugged in and frees its addresses.
    pub(super) fn drop_eni(&mut self, id: &str) {
        let Some(eni) = self.enis.get(id).and_then(EniRecord::current).cloned() else { return };
        if let Some(subnet) = self.subnets.get_mut(&eni.subnet_id) {
            eni.addresses.iter().for_each(|address| subnet.addresses.give_back(*address));
            eni.prefixes.iter().for_each(|prefix| subnet.addresses.give_back_prefix(*prefix));
        }
        eni.addresses.iter().for_each(|address| {
            self.owners.remove(address);
        });
        self.put_version(self.now_ms, id, None);
        self.live_enis -= 1;
        let at = self.now_ms + self.max_lag() + 1;
        self.schedule(at, Due::Forget(id.to_owned()));
    }

    /// Ends an attachment, if it is still this one.
    pub(super) fn unplug(&mut self, at_ms: u64, id: &str, attachment: &str) {
        let Some(eni) = self.enis.get(id).and_then(EniRecord::current) else { return };
        let Some(plug) = eni.attachment.as_ref().filter(|plug| plug.id == attachment) else { return };
        let instance = plug.instance_id.clone();
        self.attachments.remove(attachment);
        self.edit(at_ms, id, |eni| {
            eni.attachment = None;
            eni.status = EniStatus::Available;
        });
        let at = self.now_ms + self.max_lag() + 1;
        self.schedule(at, Due::Unlist { instance, eni: id.to_owned() });
    }

    fn unlist(&mut self, instance_id: &str, id: &str) {
        let current = self.enis.get(id).and_then(EniRecord::current);
        let back = current
            .and_then(|eni| eni.attachment.as_ref())
            .is_some_and(|attachment| attachment.instance_id == instance_id);
        if let Some(instance) = self.instances.get_mut(instance_id).filter(|_| !back) {
            instance.enis.remove(id);
        }
    }

    /// The interfaces of an instance as of a time, primary first, then by card and device index.
    pub(super) fn instance_enis<'a>(
        &'a self,
        id: &str,
        instance: &'a InstanceState,
        as_of_ms: u64,
    ) -> Vec<&'a Arc<Eni>> {
        let slot = |eni: &Arc<Eni>| {
            eni.attachment.as_ref().map(|attachment| (attachment.network_card_index, attachment.device_index))
        };
        let mut enis: Vec<_> = instance
            .enis
            .iter()
            .filter_map(|eni| self.enis.get(eni)?.as_of(as_of_ms))
            .filter(|eni| eni.attachment.as_ref().is_some_and(|attachment| attachment.instance_id == id))
            .collect();
        enis.sort_by_key(|eni| slot(eni));
        enis
    }

    /// The limits of a type: the configuration's, else the table's.
    pub(super) fn kind(&self, name: &str) -> Option<&InstanceType> {
        self.config.instance_types.iter().find(|kind| kind.name == name).or_else(|| instance_types::lookup(name))
    }

    pub(super) fn max_lag(&self) -> u64 {
        self.config.timing.describe_lag_ms.max(self.config.timing.metadata_lag_ms)
    }

    pub(super) fn make_id(&mut self, kind: &str) -> String {
        format!("{kind}-0{:016x}", self.ids.next())
    }

    /// A locally administered unicast address, as EC2's are. The serial number makes it unique.
    pub(super) fn make_mac(&mut self) -> String {
        let [a, .., b] = self.ids.next().to_be_bytes();
        self.sequence += 1;
        let [.., d, e, f] = self.sequence.to_be_bytes();
        let first = [0x02, 0x06, 0x0a][usize::from(a) % 3];
        format!("{first:02x}:{a:02x}:{b:02x}:{d:02x}:{e:02x}:{f:02x}")
    }

    /// Remembers what a ClientToken made.
    pub(super) fn remember_token(&mut self, token: String, request: CreateNetworkInterface, eni: Arc<Eni>) {
        self.schedule(self.now_ms + TOKEN_TTL_MS, Due::ForgetToken(token.clone()));
        self.client_tokens.insert(token, (request, eni));
    }

    /// Where in a subnet of `size` addresses the search for a free one begins.
    pub(super) fn search_from(placement: Placement, places: &mut Random, size: u32) -> u32 {
        match placement {
            Placement::Lowest => 0,
            Placement::Scattered => places.below(u64::from(size)) as u32,
        }
    }

    fn latency(&mut self, action: &str) -> u64 {
        let Some((_, latency)) = by_pattern(&self.config.timing.latency, action) else { return 0 };
        let latency = *latency;
        latency.base_ms + self.dice.below(latency.jitter_ms + 1)
    }

    fn public_address(&mut self) -> Option<Ipv4Addr> {
        let pool = self.config.public_pool;
        let address = u32::from(pool.network()).checked_add(1 + self.next_public).map(Ipv4Addr::from)?;
        self.next_public += 1;
        (pool.contains(&address) && address != pool.broadcast()).then_some(address)
    }
}

impl SubnetState {
    fn new(region: &str, config: &SubnetConfig, places: &mut Random) -> Self {
        let mut state = Self {
            zone: format!("{region}{}", config.zone),
            addresses: Addresses::new(config.cidr),
            foreign: Vec::new(),
            config: config.clone(),
        };
        for address in config.occupied.iter().flat_map(hosts_and_ends) {
            state.addresses.take(address);
        }
        if config.fragmented {
            for address in state.addresses.one_free_in_each_block() {
                state.addresses.take(address);
                state.foreign.push(address);
            }
        }
        state.occupy(config.occupied_random, places);
        state
    }

    fn occupy(&mut self, count: u32, places: &mut Random) -> u32 {
        let mut got = 0;
        while got < count {
            let from = Vpc::search_from(Placement::Scattered, places, self.addresses.size());
            let Some(address) = self.addresses.take_any(from) else { break };
            self.foreign.push(address);
            got += 1;
        }
        got
    }

    pub(super) fn view(&self) -> Subnet {
        Subnet {
            id: self.config.id.clone(),
            cidr: self.config.cidr,
            availability_zone: self.zone.clone(),
            available: self.addresses.free(),
            tags: self.config.tags.clone(),
        }
    }
}

fn hosts_and_ends(net: &Ipv4Net) -> impl Iterator<Item = Ipv4Addr> + use<> {
    let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
    (first..=last).map(Ipv4Addr::from)
}

fn check_subnet(config: &VpcConfig, subnet: &SubnetConfig) -> Result<(), ConfigError> {
    let place = format!("subnet {}", subnet.id);
    let length = subnet.cidr.prefix_len();
    if !(8..=28).contains(&length) || subnet.cidr.trunc() != subnet.cidr {
        return Err(ConfigError::new(place, format!("{} is not a network of size /8 to /28", subnet.cidr)));
    }
    if !config.cidrs.iter().any(|cidr| cidr.contains(&subnet.cidr)) {
        return Err(ConfigError::new(place, format!("{} lies in no range of cidrs; add one", subnet.cidr)));
    }
    let twin = config.subnets.iter().find(|other| {
        !std::ptr::eq(*other, subnet) && (other.cidr.contains(&subnet.cidr) || subnet.cidr.contains(&other.cidr))
    });
    match twin {
        Some(other) => Err(ConfigError::new(place, format!("{} overlaps {} ({})", subnet.cidr, other.cidr, other.id))),
        None => Ok(()),
    }
}

fn primary_interface(config: &InstanceConfig) -> CreateNetworkInterface {
    let wanted = super::request::Wanted {
        address_count: config.secondary_addresses,
        prefix_count: config.prefixes,
        ..Default::default()
    };
    CreateNetworkInterface {
        subnet_id: config.subnet.clone(),
        private_ip: config.private_ip,
        wanted,
        security_groups: config.security_groups.clone(),
        ..Default::default()
    }
}

fn injected(code: &str, message: Option<String>, status: Option<u16>, action: &str) -> Ec2Error {
    let message = message.unwrap_or_else(|| match code {
        "UnauthorizedOperation" => "You are not authorized to perform this operation.".to_owned(),
        "RequestLimitExceeded" => "Request limit exceeded.".to_owned(),
        _ => format!("Injected fault in {action}."),
    });
    let error = Ec2Error::new(code, message);
    Ec2Error { http_status: status.unwrap_or(error.http_status), ..error }
}

/// Every address of an interface: lone ones and those of its prefixes.
pub fn all_addresses(eni: &Eni) -> impl Iterator<Item = Ipv4Addr> + '_ {
    eni.addresses.iter().copied().chain(eni.prefixes.iter().flat_map(|prefix| prefix_addresses(*prefix)))
}
