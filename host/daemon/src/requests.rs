//! What a call of the plugin says, checked and in core's words; and core's answers in the plugin's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use tonic::Status;
use wipam_core::event::{AddError, GivenAddress, Key, PodRef, Range, RangeSets};
use wipam_rpc::range_config::{self, RangeConfig};
use wipam_rpc::{Cause, v1};

use crate::clock::Clock;

/// Longest name that is taken from outside, bytes. The kernel and Kubernetes have lower limits; this one only keeps
/// a hostile request from filling the checkpoint.
const MAX_NAME: usize = 512;

/// The key of a request.
pub fn key(attachment: Option<v1::Attachment>) -> Result<Key, Status> {
    let attachment = attachment.ok_or_else(|| invalid("the request names no attachment"))?;
    let v1::Attachment { network, container_id, ifname } = attachment;
    for (what, text) in [("network", &network), ("container_id", &container_id), ("ifname", &ifname)] {
        if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
            return Err(invalid(format!("{what} must be 1 to {MAX_NAME} bytes without control characters")));
        }
    }
    Ok(Key { network, container_id, ifname })
}

/// The pod of a request. One without a name (a runtime that is no Kubernetes) is named after its sandbox: all nameless
/// ones together would be taken for one pod that moves.
pub fn pod(pod: Option<v1::Pod>, key: &Key) -> Result<PodRef, Status> {
    let v1::Pod { namespace, name, uid } = pod.unwrap_or_default();
    for (what, text) in [("pod.namespace", &namespace), ("pod.name", &name), ("pod.uid", &uid)] {
        if text.len() > MAX_NAME || text.chars().any(char::is_control) {
            return Err(invalid(format!("{what} must be at most {MAX_NAME} bytes without control characters")));
        }
    }
    let name = if name.is_empty() { key.container_id.clone() } else { name };
    Ok(PodRef { namespace, name, uid })
}

/// The addresses asked for, plain or with mask.
pub fn requested(list: &[String]) -> Result<Vec<IpAddr>, Status> {
    list.iter()
        .map(|text| {
            let plain = text.parse::<IpAddr>().ok();
            plain.or_else(|| text.parse::<IpNet>().ok().map(|net| net.addr())).ok_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                invalid(format!("{shown:?} is not an address such as 10.0.0.7 or 10.0.0.7/24"))
            })
        })
        .collect()
}

/// The ranges of an IPAM configuration, checked again: the plugin is not the only one who can open the socket.
pub fn ranges(conf: &[u8], network: &str, vpc: &str) -> Result<Option<RangeConfig>, Status> {
    if conf.is_empty() {
        return Ok(None);
    }
    if network == vpc {
        return Err(invalid(format!(
            "network {network:?} is the VPC's and cannot have ranges: give the other network another name"
        )));
    }
    RangeConfig::parse(conf).map(Some).map_err(|e| invalid(e.to_string()))
}

/// Core's ranges have no exclusions: each is cut into what is left.
pub fn range_sets(config: &RangeConfig) -> RangeSets {
    config.sets.iter().map(|set| set.ranges.iter().flat_map(cut).collect()).collect()
}

fn cut(range: &range_config::Range) -> Vec<Range> {
    let mut left = vec![(number(range.start), number(range.end))];
    for net in &range.exclude {
        if net.network().is_ipv4() != range.start.is_ipv4() {
            continue;
        }
        let (low, high) = (number(net.network()), number(net.broadcast()));
        left = left.into_iter().flat_map(|piece| without(piece, low, high)).collect();
    }
    let v4 = range.start.is_ipv4();
    left.into_iter()
        .map(|(start, end)| Range {
            subnet: range.subnet,
            start: address(start, v4),
            end: address(end, v4),
            gateway: range.gateway,
        })
        .collect()
}

/// What of a piece is outside `low..=high`.
fn without((start, end): (u128, u128), low: u128, high: u128) -> Vec<(u128, u128)> {
    if high < start || end < low {
        return vec![(start, end)];
    }
    let mut rest = Vec::new();
    if start < low {
        rest.push((start, low - 1));
    }
    if high < end {
        rest.push((high + 1, end));
    }
    rest
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128, v4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(bits) if v4 => Ipv4Addr::from_bits(bits).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

/// What the caller gives as `grpc-timeout`, less what the answer needs to get there; `default` when there is none.
pub fn patience(metadata: &tonic::metadata::MetadataMap, default: Duration) -> Duration {
    let given = metadata.get("grpc-timeout").and_then(|v| v.to_str().ok()).and_then(grpc_timeout);
    given.map_or(default, |all| all.saturating_sub((all / 10).min(Duration::from_secs(1))))
}

/// `100S`, `90000m`, …: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

/// A failed ADD as the plugin gets it: instants as UTC, the cause beside the text.
pub fn refusal(error: &AddError, clock: &Clock) -> Status {
    let mut text = error.to_string();
    if let Some(until) = error.until() {
        text = text.replace(&until.to_string(), &clock.rfc3339(until));
    }
    Cause::parse(error.cause()).status(text)
}

/// A request that makes no sense.
pub fn invalid(text: impl Into<String>) -> Status {
    Cause::Invalid.status(text)
}

/// Addresses as the plugin gets them.
pub fn addresses(given: Vec<GivenAddress>) -> Vec<v1::Address> {
    given
        .into_iter()
        .map(|a| v1::Address {
            cidr: a.address.to_string(),
            index: u32::from(a.index),
            gateway: a.gateway.map(|g| g.to_string()).unwrap_or_default(),
            eni: a.eni,
            device: u32::from(a.device),
            table: a.table,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn hostile_names_are_refused_with_a_reason() {
        let attachment = |network: &str, container: &str| {
            Some(v1::Attachment { network: network.into(), container_id: container.into(), ifname: "eth0".into() })
        };
        assert!(key(attachment("n", "c")).is_ok());
        let long = "x".repeat(513);
        for bad in [None, attachment("", "c"), attachment("n", ""), attachment("n", "a\nb"), attachment(&long, "c")] {
            let status = key(bad).unwrap_err();
            assert_eq!(Cause::of(&status), Some(Cause::Invalid));
            assert!(!status.message().is_empty());
        }
    }

    #[test]
    fn nameless_pods_are_not_one_pod() {
        let of = |container: &str| {
            let key = Key { network: "n".into(), container_id: container.into(), ifname: "eth0".into() };
            pod(None, &key).unwrap()
        };
        assert!(!of("a").same_name(&of("b")));
    }

    #[test]
    fn exclusions_cut_ranges() {
        let conf = br#"{"name":"n","ipam":{"type":"wipam-cni","scope":"node","range":"10.0.0.0/24",
            "range_start":"10.0.0.4","range_end":"10.0.0.20","exclude":["10.0.0.0/29","10.0.0.12","10.0.0.16/30"]}}"#;
        let config = ranges(conf, "n", "aws-cni").unwrap().unwrap();
        let sets = range_sets(&config);
        let pieces: Vec<_> = sets[0].iter().map(|r| format!("{}-{}", r.start, r.end)).collect();
        assert_eq!(pieces, ["10.0.0.8-10.0.0.11", "10.0.0.13-10.0.0.15", "10.0.0.20-10.0.0.20"]);
        assert!(ranges(conf, "aws-cni", "aws-cni").unwrap_err().message().contains("another name"));
        assert!(ranges(b"{", "n", "aws-cni").is_err());
    }

    #[test]
    fn timeouts_leave_time_for_the_answer() {
        let patience = |text: Option<&str>| {
            let mut map = tonic::metadata::MetadataMap::new();
            if let Some(text) = text {
                map.insert("grpc-timeout", text.parse().unwrap());
            }
            super::patience(&map, Duration::from_secs(100)).as_millis()
        };
        assert_eq!(patience(None), 100_000);
        assert_eq!(patience(Some("100S")), 99_000);
        assert_eq!(patience(Some("5000m")), 4_500);
        assert_eq!(patience(Some("0m")), 0);
        for bad in ["", "S", "x1S", "999999999S", "1é"] {
            assert_eq!(super::grpc_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn instants_in_refusals_are_utc() {
        let clock = Clock::new(Arc::new(crate::clock::Kernel), "b".into(), None);
        let until = clock.now() + 60_000;
        let status = refusal(&AddError::Cooling { count: 2, until }, &clock);
        assert_eq!(Cause::of(&status), Some(Cause::Cooling));
        assert!(!status.message().contains(&until.to_string()) && status.message().ends_with('Z'), "{status:?}");
    }
}
