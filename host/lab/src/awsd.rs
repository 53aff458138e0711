//! The AWS daemon's arithmetic (VPC CNI 1.23, secondary addresses on card 0) on the same simulated VPC, to count its
//! EC2 calls beside ours.
//!
//! What is kept: one pass every 5 s; what is short or over is judged by addresses that no pod has, so a pod that waits is
//! no demand; an increase touches one interface in a pass; a new interface comes with its addresses in the create call;
//! calls are made one after the other and hold the loop up; a decrease at most every 30 s; a start fills once.
//! What is kinder than the real one: candidates are taken in order instead of at random, and a pod that finds no address
//! gets the next one at once, where the kubelet would make a new sandbox after a while.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use wipam_core::event::Ms;
use wipam_vpc_sim::model::{
    AssignPrivateIpAddresses, AttachNetworkInterface, CreateNetworkInterface, ModifyNetworkInterfaceAttribute, Request,
    Response, UnassignPrivateIpAddresses, Vpc, Wanted,
};

/// From one pass to the next.
const PASS: Ms = 5_000;
/// From one decrease to the next.
const DECREASE: Ms = 30_000;
/// More interfaces than any card takes.
const MOST_ENIS: usize = 64;

/// What the daemon is told to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// WARM_IP_TARGET.
    WarmIp(u32),
    /// WARM_ENI_TARGET, the default with 1.
    WarmEni(u32),
}

#[derive(Clone, Debug)]
struct AwsEni {
    id: String,
    free: Vec<Ipv4Addr>,
    assigned: u32,
}

impl AwsEni {
    fn total(&self) -> u32 {
        self.assigned + self.free.len() as u32
    }
}

/// One daemon on one instance.
pub struct Awsd {
    vpc: Vpc,
    instance: String,
    subnet: String,
    target: Target,
    max_enis: usize,
    per_eni: u32,
    enis: Vec<AwsEni>,
    now: Ms,
    next_pass: Ms,
    last_decrease: Option<Ms>,
    waiting: VecDeque<Ms>,
    /// EC2 calls by action.
    pub calls: BTreeMap<&'static str, u32>,
    /// How long each pod waited, ms.
    pub waits: Vec<Ms>,
}

impl Awsd {
    /// Starts on an instance whose primary interface has no secondary address, and fills the pool once.
    ///
    /// # Errors
    /// The VPC has no such instance, or its type is unknown.
    pub fn start(mut vpc: Vpc, instance: &str, target: Target) -> Result<Awsd, String> {
        let view = vpc.instances(0).into_iter().find(|i| i.id == instance).ok_or("no such instance")?;
        let kind = wipam_vpc_sim::instance_types::lookup(&view.instance_type)
            .ok_or_else(|| format!("unknown instance type {}", view.instance_type))?;
        let primary = vpc.enis(0).first().cloned().ok_or("the instance has no interface")?;
        let mut daemon = Awsd {
            vpc,
            instance: instance.into(),
            subnet: primary.subnet_id.clone(),
            target,
            max_enis: (kind.cards.first().copied().unwrap_or(1) as usize).min(MOST_ENIS),
            per_eni: kind.ipv4_per_eni - 1,
            enis: vec![AwsEni { id: primary.id.clone(), free: Vec::new(), assigned: 0 }],
            now: 0,
            next_pass: 0,
            last_decrease: None,
            waiting: VecDeque::new(),
            calls: BTreeMap::new(),
            waits: Vec::new(),
        };
        daemon.pass();
        Ok(daemon)
    }

    /// Addresses in the pool.
    pub fn total(&self) -> u32 {
        self.enis.iter().map(AwsEni::total).sum()
    }

    /// Addresses that no pod has.
    pub fn available(&self) -> u32 {
        self.enis.iter().map(|e| e.free.len() as u32).sum()
    }

    /// Pods without an address.
    pub fn unserved(&self) -> usize {
        self.waiting.len()
    }

    /// Runs passes until an instant of model time.
    pub fn run_until(&mut self, until: Ms) {
        while self.next_pass <= until {
            self.now = self.now.max(self.next_pass);
            self.pass();
        }
        self.now = self.now.max(until);
    }

    /// A pod comes.
    pub fn add(&mut self) {
        self.waiting.push_back(self.now);
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(since) = self.waiting.front().copied() {
            let Some(eni) = self.enis.iter_mut().find(|e| !e.free.is_empty()) else { return };
            eni.free.pop();
            eni.assigned += 1;
            self.waiting.pop_front();
            self.waits.push(self.now.saturating_sub(since));
        }
    }

    fn call(&mut self, request: &Request) -> Option<Response> {
        *self.calls.entry(request.action()).or_default() += 1;
        let outcome = self.vpc.call_as(self.now, &self.instance, false, request);
        // The loop waits for the answer.
        self.now += outcome.latency_ms;
        outcome.result.ok()
    }

    fn short(&self) -> u32 {
        match self.target {
            Target::WarmIp(warm) => warm.saturating_sub(self.available()),
            Target::WarmEni(_) => self.per_eni,
        }
    }

    fn low(&self) -> bool {
        match self.target {
            Target::WarmIp(_) => self.short() > 0,
            Target::WarmEni(target) => {
                self.available() < self.per_eni * target || (target == 0 && self.available() == 0)
            }
        }
    }

    fn over(&self) -> u32 {
        match self.target {
            Target::WarmIp(warm) => self.available().saturating_sub(warm),
            Target::WarmEni(_) => 0,
        }
    }

    fn pass(&mut self) {
        if self.low() {
            self.increase();
        } else if self.over() > 0 && self.last_decrease.is_none_or(|at| self.now >= at + DECREASE) {
            self.decrease();
        }
        self.serve();
        self.next_pass = self.now + PASS;
    }

    /// One interface: room on one there is, else a new one.
    fn increase(&mut self) {
        let want = self.short();
        let per_eni = self.per_eni;
        if let Some(at) = self.enis.iter().position(|e| e.total() < per_eni) {
            let n = want.min(per_eni - self.enis[at].total());
            let request = Request::AssignPrivateIpAddresses(AssignPrivateIpAddresses {
                network_interface_id: self.enis[at].id.clone(),
                wanted: Wanted::addresses(n),
                allow_reassignment: false,
            });
            if let Some(Response::Assigned { addresses, .. }) = self.call(&request) {
                self.enis[at].free.extend(addresses);
            }
        } else if self.enis.len() < self.max_enis {
            self.new_eni(want.min(per_eni));
        }
    }

    fn new_eni(&mut self, n: u32) {
        let create = Request::CreateNetworkInterface(CreateNetworkInterface {
            subnet_id: self.subnet.clone(),
            wanted: Wanted::addresses(n),
            description: format!("aws-K8S-{}", self.instance),
            ..CreateNetworkInterface::default()
        });
        let Some(Response::Created { eni, .. }) = self.call(&create) else { return };
        let attach = Request::AttachNetworkInterface(AttachNetworkInterface {
            instance_id: self.instance.clone(),
            network_interface_id: eni.id.clone(),
            device_index: self.enis.len() as u32,
            network_card_index: 0,
        });
        let Some(Response::Attached { attachment_id, .. }) = self.call(&attach) else { return };
        self.call(&Request::ModifyNetworkInterfaceAttribute(ModifyNetworkInterfaceAttribute {
            network_interface_id: eni.id.clone(),
            delete_on_termination: Some((attachment_id, true)),
            ..ModifyNetworkInterfaceAttribute::default()
        }));
        // Metadata has to list it first.
        let timing = &self.vpc.config().timing;
        self.now += timing.attach_ms + timing.metadata_lag_ms;
        self.enis.push(AwsEni { id: eni.id.clone(), free: eni.secondary().to_vec(), assigned: 0 });
    }

    fn decrease(&mut self) {
        let mut over = self.over() as usize;
        for at in 0..self.enis.len() {
            let n = over.min(self.enis[at].free.len());
            if n == 0 {
                continue;
            }
            let keep = self.enis[at].free.len() - n;
            let addresses = self.enis[at].free.split_off(keep);
            let request = Request::UnassignPrivateIpAddresses(UnassignPrivateIpAddresses {
                network_interface_id: self.enis[at].id.clone(),
                addresses,
                prefixes: Vec::new(),
            });
            self.call(&request);
            over -= n;
        }
        self.last_decrease = Some(self.now);
    }
}
