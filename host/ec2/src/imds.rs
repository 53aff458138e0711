//! Instance metadata (IMDSv2): identity, the interface tree, and what can go wrong on the way.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::Duration;

use aws_config::imds::client::error::ImdsError;
use aws_config::provider_config::ProviderConfig;
use ipnet::Ipv4Net;
use wipam_core::cloud::{AttachState, CloudError, EniFacts, EniKind};

use crate::error::chain;

const ROOT: &str = "/latest/meta-data/";
const MACS: &str = "network/interfaces/macs/";

/// Why a fact about the instance could not be learnt. The text says what is being waited for.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// Nobody answers.
    #[error(
        "waiting for instance metadata at {endpoint}: {reason} (is it enabled, and its hop limit at least 2 if this \
         process is not in the host's network?)"
    )]
    Unreachable {
        /// Where it was looked for.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// It answers, but not with what was asked for.
    #[error("instance metadata at {endpoint} answered HTTP {status} for {path}{}", mend(*.status))]
    Answered {
        /// Where it was looked for.
        endpoint: String,
        /// Path below `/latest/meta-data/`.
        path: String,
        /// HTTP status.
        status: u16,
    },
    /// It answered with something that makes no sense.
    #[error("instance metadata {path} is {text:?}, which is not {wanted}")]
    Unreadable {
        /// Path below `/latest/meta-data/`.
        path: String,
        /// What was found.
        text: String,
        /// What should be there.
        wanted: &'static str,
    },
    /// A setting that cannot be used.
    #[error("{setting} = {value:?} cannot be used: {reason}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// The instance type's limits are unknown.
    #[error(
        "waiting for EC2's DescribeInstanceTypes to tell the limits of {instance_type} (give them in the settings if \
         this node may not ask)"
    )]
    Limits {
        /// Whose.
        instance_type: String,
        /// What EC2 said.
        #[source]
        source: CloudError,
    },
}

fn mend(status: u16) -> &'static str {
    match status {
        401 | 403 => " (metadata is switched off for this instance, or its role may not be read)",
        404 => " (it does not exist; is this an EC2 instance in a VPC?)",
        _ => "",
    }
}

impl FactsError {
    fn is_missing(&self) -> bool {
        matches!(self, FactsError::Answered { status: 404, .. })
    }
}

/// What metadata knows of the primary interface and the instance.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub instance: String,
    pub instance_type: String,
    pub zone: String,
    pub primary: Ipv4Addr,
    pub primary_mac: String,
    pub vpc: String,
}

/// Reads instance metadata.
#[derive(Clone, Debug)]
pub(crate) struct Imds {
    client: aws_config::imds::Client,
    endpoint: String,
}

impl Imds {
    /// A client for `endpoint`, else for what environment and profile say.
    pub fn new(config: &ProviderConfig, endpoint: Option<&str>, timeout: Duration) -> Result<Imds, FactsError> {
        let mut builder = aws_config::imds::Client::builder()
            .configure(config)
            .connect_timeout(timeout)
            .read_timeout(timeout)
            .operation_attempt_timeout(timeout)
            .operation_timeout(timeout * 4)
            // A second attempt is what renews a token that expired early.
            .max_attempts(3);
        if let Some(url) = endpoint {
            builder = builder.endpoint(url).map_err(|error| FactsError::Setting {
                setting: "metadata endpoint",
                value: url.to_owned(),
                reason: error.to_string(),
            })?;
        }
        let endpoint = endpoint.unwrap_or("its usual address (169.254.169.254, or as the environment says)");
        Ok(Imds { client: builder.build(), endpoint: endpoint.to_owned() })
    }

    /// The SDK's client, for credentials and region.
    pub fn client(&self) -> aws_config::imds::Client {
        self.client.clone()
    }

    /// Region of the instance.
    pub async fn region(&self) -> Result<String, FactsError> {
        self.get("placement/region").await
    }

    /// Who this instance is.
    pub async fn identity(&self) -> Result<Identity, FactsError> {
        let primary_mac = self.get("mac").await?.to_ascii_lowercase();
        Ok(Identity {
            instance: self.get("instance-id").await?,
            instance_type: self.get("instance-type").await?,
            zone: self.get("placement/availability-zone").await?,
            primary: self.parsed("local-ipv4", "an IPv4 address").await?,
            vpc: self.get(&format!("{MACS}{primary_mac}/vpc-id")).await?,
            primary_mac,
        })
    }

    /// Security groups of the interface with this MAC.
    pub async fn security_groups(&self, mac: &str) -> Result<Vec<String>, FactsError> {
        self.lines(&format!("{MACS}{mac}/security-group-ids")).await
    }

    /// IPv4 CIDRs of the VPC, as the interface with this MAC lists them.
    pub async fn vpc_cidrs(&self, mac: &str) -> Result<Vec<Ipv4Net>, FactsError> {
        self.parsed_lines(&format!("{MACS}{mac}/vpc-ipv4-cidr-blocks"), "an IPv4 CIDR").await
    }

    /// All interfaces. One that vanishes, or is not wholly listed yet, is left out: it is coming or going.
    pub async fn interfaces(&self) -> Result<Vec<EniFacts>, FactsError> {
        let mut found = Vec::new();
        for entry in self.lines(MACS).await? {
            let mac = entry.trim_end_matches('/');
            match self.interface(mac).await {
                Ok(eni) => found.push(eni),
                Err(error) if error.is_missing() => tracing::debug!(mac, %error, "interface is coming or going"),
                Err(error) => return Err(error),
            }
        }
        found.sort_by_key(|eni| (eni.card, eni.device, eni.id.clone()));
        Ok(found)
    }

    async fn interface(&self, mac: &str) -> Result<EniFacts, FactsError> {
        let base = format!("{MACS}{mac}/");
        // The listing tells which of the optional fields exist, so that a 404 always means "vanished".
        let fields = self.lines(&base).await?;
        let has = |name: &str| fields.iter().any(|field| field.trim_end_matches('/') == name);
        let mut addresses: Vec<Ipv4Addr> = match has("local-ipv4s") {
            true => self.parsed_lines(&format!("{base}local-ipv4s"), "an IPv4 address").await?,
            false => Vec::new(),
        };
        let kind = match addresses.is_empty() && !has("ipv6s") {
            true => EniKind::EfaOnly,
            false => EniKind::Interface,
        };
        let primary = if addresses.is_empty() { Ipv4Addr::UNSPECIFIED } else { addresses.remove(0) };
        let subnet_cidr = match has("subnet-ipv4-cidr-block") {
            true => Some(self.parsed(&format!("{base}subnet-ipv4-cidr-block"), "an IPv4 CIDR").await?),
            false => None,
        };
        let prefixes = match has("ipv4-prefix") {
            true => self.parsed_lines(&format!("{base}ipv4-prefix"), "an IPv4 CIDR").await?,
            false => Vec::new(),
        };
        let card = match has("network-card") {
            true => self.parsed(&format!("{base}network-card"), "a network card's number").await?,
            false => 0,
        };
        Ok(EniFacts {
            id: self.get(&format!("{base}interface-id")).await?,
            mac: mac.to_ascii_lowercase(),
            subnet: self.get(&format!("{base}subnet-id")).await?,
            subnet_cidr,
            primary,
            addresses,
            prefixes,
            device: Some(self.parsed(&format!("{base}device-number"), "a device number").await?),
            card,
            attachment: None,
            state: AttachState::Attached,
            kind,
            tags: BTreeMap::new(),
            delete_on_termination: false,
        })
    }

    async fn parsed<T: FromStr>(&self, path: &str, wanted: &'static str) -> Result<T, FactsError> {
        let text = self.get(path).await?;
        parse(path, &text, wanted)
    }

    async fn parsed_lines<T: FromStr>(&self, path: &str, wanted: &'static str) -> Result<Vec<T>, FactsError> {
        self.lines(path).await?.iter().map(|line| parse(path, line, wanted)).collect()
    }

    async fn lines(&self, path: &str) -> Result<Vec<String>, FactsError> {
        let text = self.get(path).await?;
        Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    async fn get(&self, path: &str) -> Result<String, FactsError> {
        match self.client.get(format!("{ROOT}{path}")).await {
            Ok(text) => Ok(text.as_ref().trim().to_owned()),
            Err(ImdsError::ErrorResponse(answer)) => Err(FactsError::Answered {
                endpoint: self.endpoint.clone(),
                path: path.to_owned(),
                status: answer.response().status().as_u16(),
            }),
            Err(error) => Err(FactsError::Unreachable { endpoint: self.endpoint.clone(), reason: chain(&error) }),
        }
    }
}

fn parse<T: FromStr>(path: &str, text: &str, wanted: &'static str) -> Result<T, FactsError> {
    text.parse().map_err(|_| FactsError::Unreadable { path: path.to_owned(), text: text.to_owned(), wanted })
}
