//! What is told about each request, for metrics and the record.

use std::time::Duration;

/// One request to EC2's API, after it ended. A paged describe makes several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// EC2's name of the action.
    pub action: &'static str,
    /// `"ok"`, or the code of the [`CloudError`](wipam_core::cloud::CloudError).
    pub outcome: &'a str,
    /// From sending to the answer; zero if nothing was sent.
    pub latency: Duration,
    /// Time waited for a turn in the token bucket before that.
    pub waited: Duration,
    /// 1, or more if the same action on the same thing failed just before.
    pub attempt: u32,
}

/// Hears of every request. Called on the task that made the call: be quick.
pub trait Observer: Send + Sync {
    /// One request ended.
    fn observed(&self, report: &Report<'_>);
}

/// Listens to nothing.
impl Observer for () {
    fn observed(&self, _: &Report<'_>) {}
}
