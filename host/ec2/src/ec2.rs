//! The real thing: SDK client, metadata, bucket and memory in one, and the gate through which every request goes.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::identity::IdentityCache;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, Region};
use aws_sdk_ec2::config::SharedHttpClient;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::Instrument;
use wipam_core::cloud::{CloudError, EniFacts, ErrorKind, InstanceFacts};

use crate::bucket::Bucket;
use crate::cloud::{Facts, Pending};
use crate::error;
use crate::imds::{FactsError, Identity, Imds};
use crate::observe::{Observer, Report};
use crate::settings::{Limits, Settings};

/// EC2 and instance metadata of the instance this process runs on.
pub struct Ec2 {
    pub(crate) client: aws_sdk_ec2::Client,
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    imds: Imds,
    region: String,
    bucket: Bucket,
    observer: Arc<dyn Observer>,
    limits: OnceCell<Limits>,
    memory: Mutex<Memory>,
}

/// What is remembered between calls.
#[derive(Default)]
struct Memory {
    /// Security groups of the primary interface as last read.
    groups: Vec<String>,
    /// Of the newest creations, by ClientToken.
    stamps: VecDeque<(String, Stamp)>,
    /// Failures in a row by action and what it was done to.
    failures: HashMap<(&'static str, String), u32>,
}

/// What a creation says that depends on when it was said. A call repeated with its ClientToken must repeat this to the
/// letter, or EC2 refuses it as another request.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    /// RFC 3339.
    pub created_at: String,
    /// Security groups.
    pub groups: Vec<String>,
}

const STAMPS_KEPT: usize = 64;
const FAILURES_KEPT: usize = 1024;

impl Ec2 {
    /// Learns from metadata who this instance is and makes a client for its region. Asks EC2 nothing yet.
    ///
    /// Fails with a text that says what it waits for while metadata is down; call it again then.
    pub async fn connect(settings: Settings, observer: Arc<dyn Observer>) -> Result<Ec2, FactsError> {
        let http = http_client();
        let config = ProviderConfig::without_region().with_http_client(http.clone());
        let imds = Imds::new(&config, settings.imds_endpoint.as_deref(), settings.imds_timeout)?;
        let identity = imds.identity().await?;
        let groups = imds.security_groups(&identity.primary_mac).await?;
        let region = region(&settings, &config, &imds).await?;
        let client = ec2_client(&settings, &config, http, &imds, &region).await?;
        let bucket = Bucket::new(settings.rate, settings.burst);
        tracing::info!(instance = identity.instance, region, zone = identity.zone, "instance metadata read");
        Ok(Ec2 {
            client,
            identity,
            imds,
            region,
            bucket,
            observer,
            limits: OnceCell::new(),
            memory: Mutex::new(Memory { groups, ..Memory::default() }),
            settings,
        })
    }

    /// Sends one request when its turn has come: the single way to EC2, where time is taken and outcomes are told.
    pub(crate) async fn request<T, E, F>(&self, action: &'static str, on: &str, send: F) -> Result<T, CloudError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let attempt = self.attempt(action, on);
        let span = tracing::info_span!("ec2", action, on, attempt);
        async {
            let waited = match self.bucket.take(self.settings.max_wait).await {
                Ok(waited) => waited,
                Err(too_long) => {
                    let refused = Err(error::over_rate(&too_long));
                    return self.ended(action, on, attempt, refused, Duration::ZERO, Duration::ZERO);
                }
            };
            let start = Instant::now();
            let answer = send.await.map_err(error::classify);
            self.ended(action, on, attempt, answer, waited, start.elapsed())
        }
        .instrument(span)
        .await
    }

    fn ended<T>(
        &self,
        action: &'static str,
        on: &str,
        attempt: u32,
        answer: Result<T, CloudError>,
        waited: Duration,
        latency: Duration,
    ) -> Result<T, CloudError> {
        let (latency_ms, waited_ms) = (latency.as_millis() as u64, waited.as_millis() as u64);
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(error) => error.code.as_str(),
        };
        match &answer {
            Ok(_) => tracing::debug!(latency_ms, waited_ms, code = outcome, "EC2 answered"),
            Err(error) => {
                tracing::warn!(latency_ms, waited_ms, code = outcome, error = error.message, "EC2 call failed")
            }
        }
        if answer.as_ref().is_err_and(|e| e.kind == ErrorKind::Throttled && e.code != error::LOCAL_RATE_LIMIT) {
            self.bucket.drain();
        }
        self.remember_outcome(action, on, answer.is_ok());
        self.observer.observed(&Report { action, outcome, latency, waited, attempt });
        answer
    }

    fn attempt(&self, action: &'static str, on: &str) -> u32 {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.failures.get(&(action, on.to_owned())).map_or(1, |failures| failures.saturating_add(1))
    }

    fn remember_outcome(&self, action: &'static str, on: &str, ok: bool) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (action, on.to_owned());
        if ok {
            memory.failures.remove(&key);
            return;
        }
        // Things that failed once and are gone since would pile up over months.
        if memory.failures.len() >= FAILURES_KEPT {
            memory.failures.clear();
        }
        *memory.failures.entry(key).or_default() += 1;
    }

    /// What to write on the interface that `token` creates: the same each time for one token.
    pub(crate) async fn stamp(&self, token: &str) -> Stamp {
        if let Some(stamp) = self.known_stamp(token) {
            return stamp;
        }
        let read = self.imds.security_groups(&self.identity.primary_mac).await;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(groups) => memory.groups = groups,
            Err(error) => tracing::warn!(%error, "security groups not read anew; using those known"),
        }
        let stamp = Stamp { created_at: now_rfc3339(), groups: memory.groups.clone() };
        if memory.stamps.len() >= STAMPS_KEPT {
            memory.stamps.pop_front();
        }
        memory.stamps.push_back((token.to_owned(), stamp.clone()));
        stamp
    }

    fn known_stamp(&self, token: &str) -> Option<Stamp> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.stamps.iter().find(|(known, _)| known == token).map(|(_, stamp)| stamp.clone())
    }

    async fn limits(&self) -> Result<Limits, FactsError> {
        if let Some(given) = self.settings.limits {
            return Ok(given);
        }
        let asked = self.limits.get_or_try_init(|| self.describe_limits()).await;
        asked
            .copied()
            .map_err(|source| FactsError::Limits { instance_type: self.identity.instance_type.clone(), source })
    }

    async fn read_instance(&self) -> Result<InstanceFacts, FactsError> {
        let mac = &self.identity.primary_mac;
        let vpc_cidrs = self.imds.vpc_cidrs(mac).await?;
        let security_groups = self.imds.security_groups(mac).await?;
        let limits = self.limits().await?;
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).groups.clone_from(&security_groups);
        let identity = self.identity.clone();
        Ok(InstanceFacts {
            instance: identity.instance,
            instance_type: identity.instance_type,
            region: self.region.clone(),
            zone: identity.zone,
            vpc: identity.vpc,
            vpc_cidrs,
            primary: identity.primary,
            primary_mac: identity.primary_mac,
            security_groups,
            max_enis: limits.max_enis,
            ipv4_per_eni: limits.ipv4_per_eni,
            prefix_capable: limits.prefix_capable,
        })
    }
}

impl Facts for Ec2 {
    fn instance(&self) -> Pending<'_, InstanceFacts, FactsError> {
        Box::pin(self.read_instance())
    }

    fn attached(&self) -> Pending<'_, Vec<EniFacts>, FactsError> {
        Box::pin(self.imds.interfaces())
    }
}

/// TLS by rustls with ring; plain `http://` endpoints work too. Idle connections are dropped before EC2's front ends
/// drop them, since a request sent into a closing connection counts as *no answer* and costs describes to clear up.
fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .pool_idle_timeout(Duration::from_secs(10))
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        .build_https()
}

/// The standard chain, with our metadata client at its end.
async fn region(settings: &Settings, config: &ProviderConfig, imds: &Imds) -> Result<String, FactsError> {
    if let Some(region) = &settings.region {
        return Ok(region.clone());
    }
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::builder().configure(config).build());
    match chain.region().await {
        Some(region) => Ok(region.as_ref().to_owned()),
        None => imds.region().await,
    }
}

async fn ec2_client(
    settings: &Settings,
    config: &ProviderConfig,
    http: SharedHttpClient,
    imds: &Imds,
    region: &str,
) -> Result<aws_sdk_ec2::Client, FactsError> {
    let region = Region::new(region.to_owned());
    let config = config.clone().with_region(Some(region.clone()));
    let credentials =
        DefaultCredentialsChain::builder().imds_client(imds.client()).region(region.clone()).configure(config);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(settings.timeout.min(Duration::from_secs(3)))
        .operation_attempt_timeout(settings.timeout)
        .build();
    let shared = aws_config::from_env()
        .http_client(http)
        .region(region)
        .credentials_provider(credentials.build().await)
        // Within the call's own time, or a slow credentials source would look like a call without an answer.
        .identity_cache(IdentityCache::lazy().load_timeout(settings.timeout.min(Duration::from_secs(10)) / 2).build())
        .timeout_config(timeouts)
        // Core decides about each repetition: it may not want the change any more.
        .retry_config(RetryConfig::disabled())
        .load()
        .await;
    let mut builder = aws_sdk_ec2::config::Builder::from(&shared);
    // In CloudTrail the node's calls shall be told from other tools'.
    builder.set_app_name(AppName::new("wipam").ok());
    if let Some(endpoint) = &settings.ec2_endpoint {
        check_endpoint(endpoint)?;
        builder = builder.endpoint_url(endpoint);
    }
    Ok(aws_sdk_ec2::Client::from_conf(builder.build()))
}

/// A slip here would else show at the first call only, as a call that could not be sent.
fn check_endpoint(url: &str) -> Result<(), FactsError> {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match host {
        Some(host) if !host.trim_matches('/').is_empty() => Ok(()),
        _ => Err(FactsError::Setting {
            setting: "EC2 endpoint",
            value: url.to_owned(),
            reason: "it must begin with https:// or http:// and name a host".into(),
        }),
    }
}

fn now_rfc3339() -> String {
    let seconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let time = aws_smithy_types::DateTime::from_secs(i64::try_from(seconds).unwrap_or(0));
    time.fmt(aws_smithy_types::date_time::Format::DateTime).unwrap_or_default()
}
