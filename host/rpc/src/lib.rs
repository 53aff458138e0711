//! The gRPC contract between the CNI plugin and ipamd: `wipam.v1.Node` over a unix socket, and how errors cross it.
#![forbid(unsafe_code)]

/// Generated from `proto/wipam_v1.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("wipam.v1");
}

/// Where ipamd listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/wipam/ipamd.sock";

/// Metadata key of the machine-readable cause of a failed call; its values are [`Cause`]s as text.
pub const CAUSE_KEY: &str = "wipam-cause";

/// Why a call failed, as it crosses the socket beside the human text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// All addresses that the limits allow are in use.
    Exhausted,
    /// Addresses are recorded for other pods, whose sandboxes are gone without a DEL.
    Held,
    /// Addresses rest before they may be used again.
    Cooling,
    /// EC2 throttles; growth goes on later.
    Throttled,
    /// The subnet has no free address.
    SubnetFull,
    /// ipamd is starting.
    Starting,
    /// The policy refused.
    PolicyRejected,
    /// The attachment was taken over by a newer sandbox.
    Superseded,
    /// The checkpoint could not be written.
    Storage,
    /// The request is malformed.
    Invalid,
    /// ipamd is stopping.
    Stopping,
    /// Anything else.
    Internal,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 12] = [
        Cause::Exhausted, Cause::Held, Cause::Cooling, Cause::Throttled, Cause::SubnetFull, Cause::Starting,
        Cause::PolicyRejected, Cause::Superseded, Cause::Storage, Cause::Invalid, Cause::Stopping, Cause::Internal,
    ];

    /// The text on the wire, also a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Exhausted => "exhausted",
            Cause::Held => "held",
            Cause::Cooling => "cooling",
            Cause::Throttled => "throttled",
            Cause::SubnetFull => "subnet-full",
            Cause::Starting => "starting",
            Cause::PolicyRejected => "policy-rejected",
            Cause::Superseded => "superseded",
            Cause::Storage => "storage",
            Cause::Invalid => "invalid",
            Cause::Stopping => "stopping",
            Cause::Internal => "internal",
        }
    }

    /// Reads [`Cause::as_str`] back; unknown texts are `Internal`, so that a newer daemon's cause is still an error.
    pub fn parse(text: &str) -> Cause {
        Cause::ALL.into_iter().find(|c| c.as_str() == text).unwrap_or(Cause::Internal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_cross_the_wire_unchanged() {
        for cause in Cause::ALL {
            assert_eq!(Cause::parse(cause.as_str()), cause);
        }
        assert_eq!(Cause::parse("from-the-future"), Cause::Internal);
    }
}
