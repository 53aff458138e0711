//! The contract between the CNI plugin, the command line and ipamd: `wipam.v1.Node` over a unix socket, how errors
//! cross it, how the plugin leaves a release on disk while nobody listens, and what a `ranges` network may say.
//!
//! Both sides use this crate, so what the plugin accepts is what the daemon understands.
#![forbid(unsafe_code)]

pub mod client;
pub mod deadline;
pub mod queue;
pub mod range_config;

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
        Cause::Exhausted,
        Cause::Held,
        Cause::Cooling,
        Cause::Throttled,
        Cause::SubnetFull,
        Cause::Starting,
        Cause::PolicyRejected,
        Cause::Superseded,
        Cause::Storage,
        Cause::Invalid,
        Cause::Stopping,
        Cause::Internal,
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

    /// The gRPC code that goes with it, for clients that know nothing of [`CAUSE_KEY`].
    pub fn code(self) -> tonic::Code {
        match self {
            Cause::Exhausted | Cause::Held | Cause::Cooling | Cause::Throttled | Cause::SubnetFull => {
                tonic::Code::ResourceExhausted
            }
            Cause::Starting | Cause::Stopping => tonic::Code::Unavailable,
            Cause::PolicyRejected => tonic::Code::FailedPrecondition,
            Cause::Superseded => tonic::Code::Aborted,
            Cause::Invalid => tonic::Code::InvalidArgument,
            Cause::Storage | Cause::Internal => tonic::Code::Internal,
        }
    }

    /// The failed call as the server returns it: `message` for people, the cause beside it for machines.
    pub fn status(self, message: impl Into<String>) -> tonic::Status {
        let mut status = tonic::Status::new(self.code(), message);
        status.metadata_mut().insert(CAUSE_KEY, tonic::metadata::MetadataValue::from_static(self.as_str()));
        status
    }

    /// The cause a server put beside its message; `None` when the failure came from elsewhere (the transport, a
    /// deadline on this side, something else that listens on the socket).
    pub fn of(status: &tonic::Status) -> Option<Cause> {
        status.metadata().get(CAUSE_KEY).and_then(|v| v.to_str().ok()).map(Cause::parse)
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

    #[test]
    fn a_status_carries_its_cause() {
        for cause in Cause::ALL {
            let status = cause.status("because");
            assert_eq!(Cause::of(&status), Some(cause));
            assert_eq!(status.message(), "because");
        }
        assert_eq!(Cause::of(&tonic::Status::unavailable("x")), None);
    }
}
