//! The error object that CNI wants on stdout, its codes, and what a person can do about each.

use std::fmt::Write as _;

use serde_json::json;
use wipam_rpc::Cause;

use crate::version::Version;

/// CNI's code of a version that is not supported.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// CNI's code of a field whose value cannot be honoured.
pub const UNSUPPORTED_FIELD: u32 = 2;
/// CNI's code of a container that nobody knows.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// CNI's code of environment variables that are missing or mean nothing.
pub const INVALID_ENVIRONMENT: u32 = 4;
/// CNI's code of a failed read or write.
pub const IO_FAILURE: u32 = 5;
/// CNI's code of input that is not JSON.
pub const DECODING_FAILURE: u32 = 6;
/// CNI's code of JSON that is no configuration for us.
pub const INVALID_CONFIG: u32 = 7;
/// CNI's code of what may work when the runtime tries again.
pub const TRY_AGAIN: u32 = 11;
/// CNI's code with which STATUS says that an ADD would fail.
pub const NOT_AVAILABLE: u32 = 50;
/// Ours: the policy refused an address.
pub const POLICY_REJECTED: u32 = 100;
/// Ours: a newer sandbox of the same pod has the lease.
pub const SUPERSEDED: u32 = 101;
/// Ours: the pod's links, addresses, routes or rules could not be made.
pub const NETWORK_SETUP: u32 = 102;
/// Ours: CHECK found something else than the previous result says.
pub const NOT_AS_EXPECTED: u32 = 103;
/// Ours: ipamd failed or answered what makes no sense.
pub const DAEMON: u32 = 104;
/// Ours: a bug of the plugin.
pub const INTERNAL: u32 = 199;

/// A failed call, as the runtime gets to see it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}; {details}")]
pub struct CniError {
    /// One of the constants of this module.
    pub code: u32,
    /// The cause.
    pub msg: String,
    /// The mend.
    pub details: String,
}

impl CniError {
    /// An error with its cause and its mend; control characters are escaped, so that no input forges a log line.
    pub fn new(code: u32, msg: impl AsRef<str>, details: impl AsRef<str>) -> CniError {
        CniError { code, msg: printable(msg.as_ref()), details: printable(details.as_ref()) }
    }

    /// A configuration that cannot be used.
    pub fn config(msg: impl AsRef<str>, details: impl AsRef<str>) -> CniError {
        CniError::new(INVALID_CONFIG, msg, details)
    }

    /// An environment that cannot be used.
    pub fn environment(msg: impl AsRef<str>, details: impl AsRef<str>) -> CniError {
        CniError::new(INVALID_ENVIRONMENT, msg, details)
    }

    /// The object for stdout, in the `version` of the request if that is known, with a newline.
    pub fn to_json(&self, version: Option<Version>) -> String {
        let version = version.unwrap_or(Version::NEWEST).as_str();
        let object = json!({"cniVersion": version, "code": self.code, "msg": self.msg, "details": self.details});
        format!("{object:#}\n")
    }

    /// What a failed call of ipamd means: `message` is the daemon's sentence, `cause` what it put beside it.
    pub fn of_cause(cause: Cause, message: &str) -> CniError {
        let (code, details) = match cause {
            Cause::Exhausted => (
                TRY_AGAIN,
                "all addresses the node may have are in use: see `wipam status`; fewer pods, a larger instance type \
                 or a higher MAX_ENI help",
            ),
            Cause::Held => (
                TRY_AGAIN,
                "the remaining addresses are kept for pods whose sandboxes vanished without a DEL; they end by \
                 themselves, see `wipam status`",
            ),
            Cause::Cooling => {
                (TRY_AGAIN, "released addresses rest before they are used again; the runtime's retry gets one")
            }
            Cause::Throttled => (TRY_AGAIN, "EC2 throttles this account's calls; ipamd goes on by itself"),
            Cause::SubnetFull => (TRY_AGAIN, "the subnet has no free address: add a subnet or free addresses in it"),
            Cause::Starting => (TRY_AGAIN, "ipamd is not ready yet; it says in its log what it waits for"),
            Cause::Stopping => (TRY_AGAIN, "ipamd is shutting down; its successor serves the retry"),
            Cause::Storage => {
                (TRY_AGAIN, "ipamd cannot write its state: look at space and permissions of its state directory")
            }
            Cause::PolicyRejected => (
                POLICY_REJECTED,
                "the allocation policy refused this pod: see the decision log of ipamd or `wipam status`",
            ),
            Cause::Superseded => (SUPERSEDED, "the pod runs in a newer sandbox; this one can be removed"),
            Cause::Invalid => {
                (INVALID_CONFIG, "ipamd refuses the request: plugin and ipamd may be of different versions")
            }
            Cause::Internal => (DAEMON, "see the log of ipamd"),
        };
        CniError::new(code, message, details)
    }
}

/// `text` with control characters escaped and cut to a length that logs bear.
pub fn printable(text: &str) -> String {
    const MOST: usize = 2000;
    let mut out = String::with_capacity(text.len().min(MOST));
    for c in text.chars() {
        if out.len() > MOST {
            out.push('…');
            break;
        }
        if c.is_control() {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// An error and what caused it, as one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        // Some crates repeat the cause in their own text.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_what_the_specification_wants() {
        let error = CniError::new(TRY_AGAIN, "no\naddress", "wait");
        let object: serde_json::Value = serde_json::from_str(&error.to_json(Some(Version::V0_4_0))).unwrap();
        assert_eq!(object, json!({"cniVersion": "0.4.0", "code": 11, "msg": "no\\naddress", "details": "wait"}));
        assert!(printable(&"x".repeat(100_000)).len() < 2100);
    }

    #[test]
    fn every_cause_has_a_code_and_a_mend() {
        for cause in Cause::ALL {
            let error = CniError::of_cause(cause, "said");
            assert!([TRY_AGAIN, INVALID_CONFIG].contains(&error.code) || error.code >= 100, "{cause:?}");
            assert!(error.details.len() > 10 && error.msg == "said");
        }
    }
}
