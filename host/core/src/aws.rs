//! The AWS daemon's checkpoint (`ipam.json`, `vpc-cni-ipam/1`): read from it, and written so that it can be read by it.
//!
//! Facts: AWS VPC CNI v1.23, the format has not changed its version since 1.7; `allocationTimestamp` and `metadata` came
//! with 1.11. Entries of the runtime migration carry the placeholders `_migrated-from-cri` and `unknown`.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::saved::StateError;

/// The only version there is.
pub const VERSION: &str = "vpc-cni-ipam/1";

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Network name.
    #[serde(rename = "networkName", default)]
    pub network: String,
    /// Sandbox id.
    #[serde(rename = "containerID", default)]
    pub container_id: String,
    /// Interface name.
    #[serde(rename = "ifName", default)]
    pub ifname: String,
    /// IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Nanoseconds since 1970; absent before 1.11.
    #[serde(rename = "allocationTimestamp", default)]
    pub timestamp: i64,
    /// Absent before 1.11.
    #[serde(default)]
    pub metadata: AllocationMetadata,
}

/// Names of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationMetadata {
    /// Namespace.
    #[serde(rename = "k8sPodNamespace", default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(rename = "k8sPodName", default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Allocation {
    /// Its address.
    pub fn address(&self) -> Option<IpAddr> {
        self.ipv4.map(IpAddr::V4).or(self.ipv6.map(IpAddr::V6))
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwsFile {
    /// [`VERSION`].
    pub version: String,
    /// Allocations, in no order.
    #[serde(default)]
    pub allocations: Vec<Allocation>,
}

/// Reads the file.
///
/// # Errors
/// [`StateError`]: the caller sets it aside.
pub fn decode(bytes: &[u8]) -> Result<AwsFile, StateError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(StateError::Empty);
    }
    let file: AwsFile = serde_json::from_slice(bytes).map_err(|e| StateError::Malformed(e.to_string()))?;
    if file.version != VERSION {
        return Err(StateError::Version { found: file.version, expected: VERSION.into() });
    }
    let mut taken = HashSet::new();
    for a in &file.allocations {
        let Some(ip) = a.address() else {
            return Err(StateError::Malformed(format!("the allocation of {} has no address", a.container_id)));
        };
        if !taken.insert(ip) {
            let first = file.allocations.iter().find(|b| b.address() == Some(ip)).map(|b| b.container_id.clone());
            return Err(StateError::Duplicate {
                address: ip,
                first: first.unwrap_or_default(),
                second: a.container_id.clone(),
            });
        }
    }
    Ok(file)
}

/// One allocation as the AWS daemon writes it, with exactly its keys.
pub(crate) fn encode_allocation(a: &Allocation) -> Vec<u8> {
    serde_json::to_vec(a).unwrap_or_default()
}

/// The file around encoded allocations: one line, as the AWS daemon writes it.
pub(crate) fn encode_file<'a>(allocations: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let allocations: Vec<&[u8]> = allocations.collect();
    let mut out = format!("{{\"version\":\"{VERSION}\",\"allocations\":[").into_bytes();
    out.reserve(allocations.iter().map(|a| a.len() + 1).sum::<usize>() + 3);
    for (i, a) in allocations.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(a);
    }
    out.extend_from_slice(b"]}\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_entries_without_timestamp_or_metadata_are_read() {
        let text = r#"{"version":"vpc-cni-ipam/1","allocations":[
            {"networkName":"aws-cni","containerID":"c1","ifName":"eth0","ipv4":"10.0.0.1"},
            {"networkName":"_migrated-from-cri","containerID":"c2","ifName":"unknown","ipv4":"10.0.0.2","future":1}]}"#;
        let file = decode(text.as_bytes()).unwrap();
        assert_eq!(file.allocations.len(), 2);
        assert_eq!(file.allocations[0].timestamp, 0);
        assert_eq!(file.allocations[1].network, "_migrated-from-cri");
    }

    #[test]
    fn what_cannot_be_used_is_told_apart() {
        assert_eq!(decode(b" \n").unwrap_err(), StateError::Empty);
        assert!(matches!(decode(b"{\"version\":").unwrap_err(), StateError::Malformed(_)));
        assert!(matches!(decode(b"{\"version\":\"x/2\"}").unwrap_err(), StateError::Version { .. }));
        let twice = r#"{"version":"vpc-cni-ipam/1","allocations":[{"containerID":"a","ipv4":"10.0.0.1"},
            {"containerID":"b","ipv4":"10.0.0.1"}]}"#;
        assert!(matches!(decode(twice.as_bytes()).unwrap_err(), StateError::Duplicate { .. }));
    }

    #[test]
    fn an_allocation_has_exactly_the_daemons_keys() {
        let a = Allocation {
            network: "aws-cni".into(),
            container_id: "c".into(),
            ifname: "eth0".into(),
            ipv4: Some(Ipv4Addr::new(10, 0, 0, 1)),
            ipv6: None,
            timestamp: 1_690_000_000_000_000_000,
            metadata: AllocationMetadata { namespace: "default".into(), name: "p".into() },
        };
        let bytes = encode_allocation(&a);
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["allocationTimestamp", "containerID", "ifName", "ipv4", "metadata", "networkName"]);
        assert_eq!(value["allocationTimestamp"], 1_690_000_000_000_000_000_i64);
        let file = encode_file([bytes.as_slice(), bytes.as_slice()].into_iter());
        assert!(file.ends_with(b"]}\n"));
        assert_eq!(file.iter().filter(|b| **b == b'\n').count(), 1);
    }
}
