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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use wipam_core::cloud::{AttachState, EniKind};

    use super::*;
    use crate::cloud::Pending;

    /// Answers each describe with the next of a list, and with the last for ever.
    struct Script(Mutex<VecDeque<Result<Vec<EniFacts>, CloudError>>>);

    impl Script {
        fn new(answers: impl IntoIterator<Item = Result<Vec<EniFacts>, CloudError>>) -> Script {
            Script(Mutex::new(answers.into_iter().collect()))
        }
    }

    impl Cloud for Script {
        fn call<'a>(&'a self, call: &'a Call) -> Pending<'a, Reply, CloudError> {
            assert_eq!(*call, Call::DescribeEnis);
            let mut answers = self.0.lock().unwrap();
            let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            Box::pin(async move { next.unwrap().map(Reply::Enis) })
        }
    }

    fn eni(state: AttachState) -> EniFacts {
        EniFacts {
            id: "eni-1".into(),
            mac: "02:00:00:00:00:01".into(),
            subnet: "subnet-1".into(),
            subnet_cidr: None,
            primary: Ipv4Addr::LOCALHOST,
            addresses: Vec::new(),
            prefixes: Vec::new(),
            device: Some(1),
            card: 0,
            attachment: None,
            state,
            kind: EniKind::Interface,
            tags: Default::default(),
            delete_on_termination: false,
        }
    }

    fn failed(kind: ErrorKind) -> Result<Vec<EniFacts>, CloudError> {
        Err(CloudError { kind, code: "X".into(), message: String::new() })
    }

    fn attached(eni: Option<&EniFacts>) -> bool {
        eni.is_some_and(|eni| eni.state == AttachState::Attached)
    }

    #[tokio::test(start_paused = true)]
    async fn it_looks_until_the_wish_holds_through_failures_that_heal() {
        let script = Script::new([
            Ok(Vec::new()),
            failed(ErrorKind::Throttled),
            Ok(vec![eni(AttachState::Attaching)]),
            failed(ErrorKind::NoAnswer),
            failed(ErrorKind::ServerError),
            Ok(vec![eni(AttachState::Attached)]),
        ]);
        let seen = wait_for(&script, "eni-1", Wait::default(), attached).await.unwrap();
        assert_eq!(seen, Some(eni(AttachState::Attached)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_gives_up_in_time_and_tells_what_it_last_saw() {
        let script = Script::new([Ok(vec![eni(AttachState::Attaching)])]);
        let start = Instant::now();
        let error = wait_for(&script, "eni-1", Wait::default(), attached).await.unwrap_err();
        assert!(start.elapsed() <= Duration::from_secs(60), "{:?}", start.elapsed());
        assert_eq!(error.to_string(), "eni-1 is not as wished after 60s; last seen attaching");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_stays_ends_it_at_once() {
        let script = Script::new([failed(ErrorKind::NotAuthorised)]);
        let start = Instant::now();
        let error = wait_for(&script, "eni-1", Wait::default(), attached).await.unwrap_err();
        assert!(matches!(error, WaitError::Describe(_)));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn absence_can_be_wished_for() {
        let script = Script::new([Ok(vec![eni(AttachState::Detaching)]), Ok(Vec::new())]);
        assert_eq!(wait_for(&script, "eni-1", Wait::default(), |eni| eni.is_none()).await, Ok(None));
    }
}
