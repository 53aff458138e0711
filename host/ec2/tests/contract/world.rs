//! Where the contract is tested: a simulated VPC on loopback, or the real one this instance lives in.

use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use wipam_core::cloud::{AttachState, Call, CloudError, EniFacts, ErrorKind, Reply};
use wipam_ec2::{Cloud, Ec2, Facts, Settings, Wait, wait_for};
use wipam_vpc_sim::model::{FaultEffect, FaultRule, InstanceConfig, Vpc, VpcConfig};
use wipam_vpc_sim::{ImdsOptions, Sim, serve_api, serve_imds};

pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const SUBNET: &str = "subnet-0000000000000000a";

/// Tests on a real account take turns: they share one instance and its few slots.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The cloud under test and what the test has made in it.
pub struct World {
    pub cloud: Ec2,
    pub subnet: String,
    /// Absent on real AWS.
    pub sim: Option<Simulated>,
    made: Mutex<BTreeSet<String>>,
}

/// A simulated VPC and its two servers, which end with it.
pub struct Simulated {
    pub sim: Arc<Sim>,
    pub api: String,
    pub imds: String,
    servers: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.servers.iter().for_each(JoinHandle::abort);
    }
}

impl Simulated {
    pub async fn start(config: VpcConfig) -> Simulated {
        let sim = Arc::new(Sim::new(Vpc::new(config).unwrap()));
        let (api, imds) = (listener().await, listener().await);
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (api_url, imds_url) = (url(&api), url(&imds));
        let options = ImdsOptions { instance: Some(INSTANCE.into()), hop_limit: None };
        let servers = vec![
            tokio::spawn(serve_api(api, sim.clone(), std::future::pending())),
            tokio::spawn(serve_imds(imds, sim.clone(), options, std::future::pending())),
        ];
        Simulated { sim, api: api_url, imds: imds_url, servers }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            ec2_endpoint: Some(self.api.clone()),
            imds_endpoint: Some(self.imds.clone()),
            region: Some("eu-central-1".into()),
            timeout: Duration::from_secs(5),
            // The bucket has tests of its own; here it would only make the tests slow.
            rate: f64::INFINITY,
            ..Settings::default()
        }
    }

    /// The next call of `action` meets with this.
    pub fn next(&self, action: &str, effect: FaultEffect) {
        self.sim.lock().add_fault(FaultRule::nth(action, 1, effect));
    }

    /// How many calls of `action` have arrived.
    pub fn calls(&self, action: &str) -> u64 {
        self.sim.lock().calls().get(action).map_or(0, |count| count.ok + count.failed + count.throttled)
    }

    /// How many interfaces there are, the primary ones included.
    pub fn enis(&self) -> usize {
        self.sim.with(|vpc, now_ms| vpc.enis(now_ms)).len()
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// One m5.large (3 interfaces of 10 addresses, nitro) in a /24.
pub fn one_node() -> VpcConfig {
    let instance = InstanceConfig { id: INSTANCE.into(), subnet: SUBNET.into(), ..InstanceConfig::default() };
    VpcConfig { instances: vec![instance], ..VpcConfig::default() }
}

/// Runs `test` in a world of its own: the real one if the environment says so, else a simulated one from `config`.
/// What the test made is taken away however it ends.
pub async fn everywhere<F, T>(config: VpcConfig, test: T)
where
    T: FnOnce(Arc<World>) -> F,
    F: Future<Output = ()>,
{
    if std::env::var_os("WIPAM_TEST_AWS").is_none() {
        return simulated(config, |settings| settings, test).await;
    }
    let _turn = ONE_AT_A_TIME.lock().await;
    let cloud = Ec2::connect(Settings::default(), Arc::new(())).await.unwrap();
    let facts = cloud.instance().await.unwrap();
    let subnet = match std::env::var("WIPAM_TEST_SUBNET") {
        Ok(subnet) => subnet,
        Err(_) => {
            let enis = cloud.attached().await.unwrap();
            enis.into_iter().find(|eni| eni.mac == facts.primary_mac).unwrap().subnet
        }
    };
    run(World { cloud, subnet, sim: None, made: Mutex::default() }, test).await;
}

/// Runs `test` in a simulated VPC, and on real AWS not at all: it needs faults, or a VPC made to measure.
pub async fn simulated<F, T>(config: VpcConfig, settings: impl FnOnce(Settings) -> Settings, test: T)
where
    T: FnOnce(Arc<World>) -> F,
    F: Future<Output = ()>,
{
    if std::env::var_os("WIPAM_TEST_AWS").is_some() {
        return;
    }
    let sim = Simulated::start(config).await;
    let cloud = Ec2::connect(settings(sim.settings()), Arc::new(())).await.unwrap();
    run(World { cloud, subnet: SUBNET.into(), sim: Some(sim), made: Mutex::default() }, test).await;
}

async fn run<F, T>(world: World, test: T)
where
    T: FnOnce(Arc<World>) -> F,
    F: Future<Output = ()>,
{
    let world = Arc::new(world);
    let result = AssertUnwindSafe(test(world.clone())).catch_unwind().await;
    if world.sim.is_none() {
        world.clean_up().await;
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

impl World {
    /// The simulation, in tests that only run there.
    pub fn sim(&self) -> &Simulated {
        self.sim.as_ref().unwrap()
    }

    pub async fn call(&self, call: Call) -> Result<Reply, CloudError> {
        let reply = self.cloud.call(&call).await;
        if let Ok(Reply::Created(eni)) = &reply {
            self.made.lock().unwrap().insert(eni.id.clone());
        }
        reply
    }

    pub async fn fails(&self, call: Call) -> (ErrorKind, String) {
        let error = self.call(call.clone()).await.expect_err(&format!("{call:?}"));
        (error.kind, error.code)
    }

    /// The call that creates an interface in the test's subnet.
    pub fn create(&self, addresses: u16, prefixes: u16, token: &str) -> Call {
        Call::CreateEni { subnet: self.subnet.clone(), addresses, prefixes, token: token.into() }
    }

    /// An interface, made.
    pub async fn created(&self, addresses: u16, prefixes: u16) -> EniFacts {
        match self.call(self.create(addresses, prefixes, &token())).await.unwrap() {
            Reply::Created(eni) => *eni,
            other => panic!("{other:?}"),
        }
    }

    pub async fn enis(&self) -> Vec<EniFacts> {
        match self.call(Call::DescribeEnis).await.unwrap() {
            Reply::Enis(enis) => enis,
            other => panic!("{other:?}"),
        }
    }

    pub async fn eni(&self, id: &str) -> Option<EniFacts> {
        self.enis().await.into_iter().find(|eni| eni.id == id)
    }

    /// Attaches at the lowest free index and waits until it is attached.
    pub async fn attached(&self, eni: &str) -> EniFacts {
        let used: BTreeSet<u8> = self.enis().await.iter().filter(|e| e.card == 0).filter_map(|e| e.device).collect();
        let device = (1..).find(|index| !used.contains(index)).unwrap();
        let attach = Call::AttachEni { eni: eni.into(), device, card: 0 };
        let Reply::Attached { attachment } = self.call(attach).await.unwrap() else { panic!("not Attached") };
        let seen = self.when(eni, |eni| eni.is_some_and(|eni| eni.state == AttachState::Attached)).await.unwrap();
        assert_eq!((seen.device, seen.card, seen.attachment.as_deref()), (Some(device), 0, Some(attachment.as_str())));
        seen
    }

    /// Waits until EC2 shows the interface as wished.
    pub async fn when(&self, eni: &str, wished: impl Fn(Option<&EniFacts>) -> bool + Send) -> Option<EniFacts> {
        let pause = Duration::from_millis(if self.sim.is_some() { 20 } else { 500 });
        wait_for(&self.cloud, eni, Wait { pause, ..Wait::default() }, wished).await.unwrap()
    }

    /// Detaches and deletes what the test made and has not deleted itself.
    async fn clean_up(&self) {
        let made = self.made.lock().unwrap().clone();
        for eni in self.enis().await.into_iter().filter(|eni| made.contains(&eni.id)) {
            if let Some(attachment) = eni.attachment {
                let detached = self.call(Call::DetachEni { eni: eni.id.clone(), attachment }).await;
                println!("clean-up: detach {}: {detached:?}", eni.id);
                self.when(&eni.id, |eni| eni.is_none_or(|eni| eni.state == AttachState::Detached)).await;
            }
            let deleted = self.call(Call::DeleteEni { eni: eni.id.clone() }).await;
            println!("clean-up: delete {}: {deleted:?}", eni.id);
        }
    }
}

/// A ClientToken that no other run has used.
pub fn token() -> String {
    static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    format!("wipam-test-{now}-{serial}")
}
