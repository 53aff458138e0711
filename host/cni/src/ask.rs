//! Calls of ipamd: one connection, a deadline for each call, and what a failure means to the runtime.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use wipam_rpc::client::{self, ConnectError};
use wipam_rpc::v1::node_client::NodeClient;
use wipam_rpc::{Cause, deadline, v1};

use crate::env::Verb;
use crate::error::{self, CniError, chain};

/// How long the plugin waits beyond a call's own deadline, for a daemon that hangs and keeps none.
const GRACE: Duration = Duration::from_secs(1);

/// Why ipamd gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nobody could be reached.
    Down(ConnectError),
    /// ipamd said no.
    Refused(Cause, Status),
    /// ipamd does not know the attachment.
    Unknown(Status),
    /// The connection broke, or something that is not ipamd answered: whether the call was done is not known.
    Broken(Status),
    /// No answer came in time: whether the call was done is not known.
    Late(Duration),
}

impl Failure {
    /// Whether ipamd may have done what was asked although it did not say so.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Failure::Broken(_) | Failure::Late(_))
    }

    /// One line for the log.
    pub fn text(&self) -> String {
        match self {
            Failure::Down(e) => chain(e),
            Failure::Refused(cause, status) => format!("ipamd refused ({}): {}", cause.as_str(), status.message()),
            Failure::Unknown(status) => format!("ipamd does not know the attachment: {}", status.message()),
            Failure::Broken(status) => format!("the call of ipamd broke: {}", broken(status)),
            Failure::Late(after) => format!("ipamd did not answer within {} s", after.as_secs()),
        }
    }
}

/// What the transport knows: a status of tonic's own often has the cause only in its sources.
fn broken(status: &Status) -> String {
    let text = match std::error::Error::source(status) {
        Some(source) => format!("{}: {}", status.message(), chain(source)),
        None => status.message().to_owned(),
    };
    format!("{text} ({})", status.code().description())
}

fn classify(status: Status, wait: Duration) -> Failure {
    match (status.code(), Cause::of(&status)) {
        (Code::NotFound, _) => Failure::Unknown(status),
        (_, Some(cause)) => Failure::Refused(cause, status),
        // tonic's own word for a deadline that passed, on either side.
        (Code::DeadlineExceeded | Code::Cancelled, None) => Failure::Late(wait),
        (_, None) => Failure::Broken(status),
    }
}

/// ipamd behind its socket.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    /// The daemon behind `socket`; nothing is opened yet.
    pub fn new(socket: PathBuf) -> Daemon {
        Daemon { socket }
    }

    /// Asks for the addresses of an attachment, waiting up to `wait`.
    pub async fn add(&self, message: v1::AddRequest, wait: Duration) -> Result<v1::AddReply, Failure> {
        self.call(wait, message, |mut node, request| async move { node.add(request).await }).await
    }

    /// Ends an attachment's lease.
    pub async fn del(&self, message: v1::DelRequest, wait: Duration) -> Result<v1::DelReply, Failure> {
        self.call(wait, message, |mut node, request| async move { node.del(request).await }).await
    }

    /// Asks whether a lease is as we believe.
    pub async fn check(&self, message: v1::CheckRequest, wait: Duration) -> Result<v1::CheckReply, Failure> {
        self.call(wait, message, |mut node, request| async move { node.check(request).await }).await
    }

    /// Ends all leases of a network that are not named.
    pub async fn gc(&self, message: v1::GcRequest, wait: Duration) -> Result<v1::GcReply, Failure> {
        self.call(wait, message, |mut node, request| async move { node.gc(request).await }).await
    }

    /// Asks whether an ADD could succeed.
    pub async fn status(&self, message: v1::StatusRequest, wait: Duration) -> Result<v1::StatusReply, Failure> {
        self.call(wait, message, |mut node, request| async move { node.status(request).await }).await
    }

    async fn call<M, R, F>(
        &self,
        wait: Duration,
        message: M,
        call: impl FnOnce(NodeClient<Channel>, Request<M>) -> F,
    ) -> Result<R, Failure>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let whole = async {
            let node = client::connect(&self.socket).await.map_err(Failure::Down)?;
            let reply = call(node, deadline::request(message, wait)).await;
            reply.map(Response::into_inner).map_err(|status| classify(status, wait))
        };
        match tokio::time::timeout(wait + deadline::MARGIN + GRACE, whole).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Late(wait)),
        }
    }

    /// A failure as the runtime gets to see it.
    pub fn error(&self, verb: Verb, failure: &Failure) -> CniError {
        error_of(verb, &self.socket, failure)
    }
}

fn error_of(verb: Verb, socket: &Path, failure: &Failure) -> CniError {
    let verb = verb.as_str();
    let socket = socket.display();
    match failure {
        Failure::Down(e) => CniError::new(
            error::TRY_AGAIN,
            format!("{verb}: {}", chain(e)),
            format!("is the DaemonSet of wipam running on this node, and is {socket} the socket of its ipamd?"),
        ),
        Failure::Refused(cause, status) => CniError::of_cause(*cause, &format!("{verb}: {}", status.message())),
        Failure::Unknown(status) => CniError::new(
            error::UNKNOWN_CONTAINER,
            format!("{verb}: {}", status.message()),
            "ipamd has no lease of this container and interface; the pod's sandbox must be made anew",
        ),
        Failure::Broken(status) if status.code() == Code::Unimplemented => CniError::new(
            error::DAEMON,
            format!("{verb}: ipamd behind {socket} does not know this call"),
            "plugin and ipamd are of different versions: update both from one release",
        ),
        Failure::Broken(status) if status.code() == Code::PermissionDenied => CniError::new(
            error::DAEMON,
            format!("{verb}: ipamd behind {socket} refuses this user: {}", status.message()),
            "the plugin must run as root, as container runtimes run it",
        ),
        Failure::Broken(status) => CniError::new(
            error::TRY_AGAIN,
            format!("{verb}: the call of ipamd behind {socket} broke: {}", broken(status)),
            "ipamd may just have been restarted; its log tells",
        ),
        Failure::Late(wait) => CniError::new(
            error::TRY_AGAIN,
            format!("{verb}: ipamd behind {socket} did not answer within {} s", wait.as_secs()),
            "ipamd hangs or is overloaded; its log tells",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let wait = Duration::from_secs(1);
        assert!(matches!(classify(Status::cancelled("Timeout expired"), wait), Failure::Late(_)));
        assert!(matches!(classify(Status::not_found("x"), wait), Failure::Unknown(_)));
        assert!(matches!(classify(Status::unknown("x"), wait), Failure::Broken(_)));
        assert!(matches!(classify(Cause::Held.status("x"), wait), Failure::Refused(Cause::Held, _)));
        assert!(Failure::Late(wait).is_ambiguous() && !Failure::Unknown(Status::not_found("")).is_ambiguous());
    }

    #[test]
    fn a_missing_daemon_is_explained() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let daemon = Daemon::new("/nonexistent/ipamd.sock".into());
        let failure = runtime.block_on(daemon.del(v1::DelRequest::default(), Duration::from_secs(1))).unwrap_err();
        let error = daemon.error(Verb::Add, &failure);
        assert_eq!(error.code, error::TRY_AGAIN);
        assert!(error.msg.contains("ipamd does not answer on /nonexistent/ipamd.sock: No such file"), "{error}");
        assert!(error.details.contains("DaemonSet"));
    }
}
