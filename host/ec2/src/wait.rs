//! Sitting and waiting until an interface is as wished: by describe, with bounded polls.

use std::time::Duration;

use tokio::time::Instant;
use wipam_core::cloud::{Call, CloudError, EniFacts, ErrorKind, Reply};

use crate::backoff::Backoff;
use crate::cloud::Cloud;

/// How long and how often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Give up after this.
    pub limit: Duration,
    /// Pause before the second look; doubles, with jitter, up to eight times this.
    pub pause: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

impl Default for Wait {
    fn default() -> Self {
        Wait { limit: Duration::from_secs(60), pause: Duration::from_millis(500), seed: 0 }
    }
}

/// Why waiting ended without the wish come true.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Time is up.
    #[error("{eni} is not as wished after {limit:?}; last seen {}", seen(.last))]
    Timeout {
        /// Which interface.
        eni: String,
        /// How long it was waited for.
        limit: Duration,
        /// What the last describe showed, boxed for its size; `None` = not there, or no describe succeeded.
        last: Option<Box<EniFacts>>,
    },
    /// A describe failed in a way that waiting does not heal.
    #[error("looking at the interface failed")]
    Describe(#[source] CloudError),
}

fn seen(last: &Option<Box<EniFacts>>) -> String {
    last.as_ref().map_or_else(|| "absent".to_owned(), |eni| format!("{:?}", eni.state).to_lowercase())
}

/// Describes until `wished` holds for interface `eni` (`None` = EC2 does not list it) and returns what was seen then.
///
/// Throttling, lost answers and server errors are waited through; other errors end it at once.
pub async fn wait_for(
    cloud: &dyn Cloud,
    eni: &str,
    wait: Wait,
    wished: impl Fn(Option<&EniFacts>) -> bool + Send,
) -> Result<Option<EniFacts>, WaitError> {
    let start = Instant::now();
    let backoff = Backoff { first: wait.pause, cap: wait.pause * 8 };
    let mut last = None;
    for look in 1.. {
        match cloud.call(&Call::DescribeEnis).await {
            Ok(Reply::Enis(enis)) => last = enis.into_iter().find(|known| known.id == eni),
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::Throttled || error.kind.ambiguous() => {}
            Err(error) => return Err(WaitError::Describe(error)),
        }
        if wished(last.as_ref()) {
            break;
        }
        let pause = backoff.delay(look, wait.seed);
        if start.elapsed() + pause > wait.limit {
            return Err(WaitError::Timeout { eni: eni.to_owned(), limit: wait.limit, last: last.map(Box::new) });
        }
        tokio::time::sleep(pause).await;
    }
    Ok(last)
}
