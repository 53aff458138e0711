//! The seam: what the daemon knows of the cloud. [`Ec2`](crate::Ec2) is the real one; a model may stand in for it.

use std::future::Future;
use std::pin::Pin;

use wipam_core::cloud::{Call, CloudError, EniFacts, InstanceFacts, Reply};

use crate::FactsError;

/// A boxed future, so that the traits here can be used as `dyn`.
pub type Pending<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// Carries out calls, each exactly once.
///
/// Nothing is retried here and nothing is waited for except a turn in the token bucket and the answer itself: when to
/// ask again is core's decision, since only core knows whether the call is still wanted. In particular `AttachEni`
/// returns as soon as EC2 has accepted it; until [`Call::DescribeEnis`] says *attached* the interface is not usable
/// ([`wait_for`](crate::wait_for) does that asking where a caller wants to sit and wait).
///
/// Dropping the future abandons the answer, not the call: EC2 may carry it out all the same.
pub trait Cloud: Send + Sync {
    /// Carries out `call`. For [`ErrorKind::ambiguous`](wipam_core::cloud::ErrorKind::ambiguous) errors the change may
    /// have happened; for all others it has not.
    fn call<'a>(&'a self, call: &'a Call) -> Pending<'a, Reply, CloudError>;
}

/// Reads what the instance can learn about itself without asking EC2's API for each look.
pub trait Facts: Send + Sync {
    /// What is fixed about the instance, and the VPC's CIDRs and primary security groups as they are now.
    fn instance(&self) -> Pending<'_, InstanceFacts, FactsError>;

    /// The attached interfaces as instance metadata lists them: evidence, seconds old at times. Tags, attachment ids
    /// and delete-on-termination are unknown there and come as empty, `None` and false; the kind is a guess
    /// (`EfaOnly` without any address, else `Interface`). An interface that comes or goes while it is being read is
    /// left out.
    fn attached(&self) -> Pending<'_, Vec<EniFacts>, FactsError>;
}
