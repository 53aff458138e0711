//! Settings of the adapter, and the reading of the AWS daemon's variables that fill them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of an instance type, where the operator knows better than `DescribeInstanceTypes` (or may not ask it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Interfaces of card 0.
    pub max_enis: u16,
    /// IPv4 addresses of an interface, the primary one included.
    pub ipv4_per_eni: u16,
    /// Whether /28 prefixes can be had.
    pub prefix_capable: bool,
}

/// How to reach EC2 and instance metadata, and what to write on new interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// EC2 endpoint, e.g. from `AWS_EC2_ENDPOINT`. It wins over the SDK's own sources (`AWS_ENDPOINT_URL_EC2`,
    /// `AWS_ENDPOINT_URL`, profile), which hold when this is `None`.
    pub ec2_endpoint: Option<String>,
    /// Metadata endpoint; `None` = `AWS_EC2_METADATA_SERVICE_ENDPOINT`, profile, `http://169.254.169.254`.
    pub imds_endpoint: Option<String>,
    /// Region; `None` = `AWS_REGION`, profile, instance metadata.
    pub region: Option<String>,
    /// Longest wait for the answer to one EC2 call (`HTTP_TIMEOUT`).
    pub timeout: Duration,
    /// Longest wait for the answer to one metadata read.
    pub imds_timeout: Duration,
    /// EC2 calls per second in the long run, all actions together.
    pub rate: f64,
    /// EC2 calls that may go out at once after a quiet time; at least 1.
    pub burst: u32,
    /// A call that would wait longer than this for its turn fails at once as throttled.
    pub max_wait: Duration,
    /// Interfaces per page of `DescribeNetworkInterfaces`, 5 to 1000.
    pub page_size: u16,
    /// `CLUSTER_NAME`; adds the cluster tags.
    pub cluster: Option<String>,
    /// `ADDITIONAL_ENI_TAGS`; on a clash with ours these win.
    pub tags: BTreeMap<String, String>,
    /// Limits given by the operator; `None` = `DescribeInstanceTypes`.
    pub limits: Option<Limits>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            ec2_endpoint: None,
            imds_endpoint: None,
            region: None,
            timeout: MIN_HTTP_TIMEOUT,
            imds_timeout: Duration::from_secs(1),
            // EC2 refills a mutating action's bucket with 5 tokens a second for the whole account and region;
            // a node that takes most of that starves its neighbours.
            rate: 4.0,
            burst: 10,
            max_wait: Duration::from_secs(30),
            page_size: 1000,
            cluster: None,
            tags: BTreeMap::new(),
            limits: None,
        }
    }
}

const MIN_HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads `HTTP_TIMEOUT` as the AWS daemon does: whole seconds, at least 10; anything else is 10 s. The second value is
/// a warning for a value that had no effect.
pub fn http_timeout(value: Option<&str>) -> (Duration, Option<String>) {
    let Some(text) = value else { return (MIN_HTTP_TIMEOUT, None) };
    match text.parse::<u64>().map(Duration::from_secs) {
        Ok(asked) if asked >= MIN_HTTP_TIMEOUT => (asked, None),
        _ => (MIN_HTTP_TIMEOUT, Some(format!("HTTP_TIMEOUT={text:?} is not a whole number of seconds ≥ 10; using 10"))),
    }
}

/// Reads `ADDITIONAL_ENI_TAGS` as the AWS daemon does: a JSON object of strings; keys that contain `k8s.amazonaws.com`
/// are dropped, text that is no such object is ignored wholly. The second value holds a warning for each.
pub fn additional_tags(json: &str) -> (BTreeMap<String, String>, Vec<String>) {
    if json.trim().is_empty() {
        return (BTreeMap::new(), Vec::new());
    }
    let mut tags: BTreeMap<String, String> = match serde_json::from_str(json) {
        Ok(tags) => tags,
        Err(error) => {
            let warning = format!("ADDITIONAL_ENI_TAGS is not a JSON object of strings ({error}); no tag is added");
            return (BTreeMap::new(), vec![warning]);
        }
    };
    let mut warnings = Vec::new();
    tags.retain(|key, _| {
        let reserved = key.contains("k8s.amazonaws.com");
        if reserved {
            warnings.push(format!("ADDITIONAL_ENI_TAGS: {key:?} is reserved (k8s.amazonaws.com) and not added"));
        }
        !reserved
    });
    (tags, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_timeout_has_a_floor() {
        let seconds = |text: &str| {
            let (value, warning) = http_timeout(Some(text));
            (value.as_secs(), warning.is_some())
        };
        assert_eq!(http_timeout(None), (Duration::from_secs(10), None));
        assert_eq!(seconds("10"), (10, false));
        assert_eq!(seconds("45"), (45, false));
        for bad in ["9", "0", "-1", "10s", "", " 12"] {
            assert_eq!(seconds(bad), (10, true), "{bad:?}");
        }
    }

    #[test]
    fn additional_tags_drop_reserved_keys_one_by_one_and_bad_json_wholly() {
        let (tags, warnings) = additional_tags(r#"{"team":"net","node.k8s.amazonaws.com/no_manage":"true"}"#);
        assert_eq!(tags, BTreeMap::from([("team".into(), "net".into())]));
        assert_eq!(warnings.len(), 1);
        for bad in ["[]", "{\"a\":1}", "nonsense"] {
            let (tags, warnings) = additional_tags(bad);
            assert!(tags.is_empty() && warnings.len() == 1, "{bad}");
        }
        for empty in ["", "{}", " "] {
            assert_eq!(additional_tags(empty), (BTreeMap::new(), Vec::new()));
        }
    }
}
