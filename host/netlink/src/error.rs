//! What can go wrong, each with its cause and, where there is one, its mend.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::socket::Refusal;

/// Why an operation on the node's network failed. Each text is whole: causes are in it, not behind `source()`, because
/// the plugin has one line to tell the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused one step.
    #[error("{action}: {reason}")]
    Kernel {
        /// The step.
        action: String,
        /// The kernel's own words, or the name of its error number.
        reason: String,
        /// The error number.
        errno: io::Error,
    },
    /// A network namespace cannot be entered or read.
    #[error("network namespace {}: {action}: {errno}; is the path right and visible from here?", .path.display())]
    Netns {
        /// The namespace's file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The error of the system.
        errno: io::Error,
    },
    /// The path is there but is no network namespace.
    #[error("{} is not a network namespace; its mount is missing here (mount propagation?)", .0.display())]
    NotANetns(PathBuf),
    /// A kernel parameter cannot be written.
    #[error("cannot set {} to {value}: {errno}; is /proc/sys writable here?", .path.display())]
    Sysctl {
        /// The parameter's file.
        path: PathBuf,
        /// The wanted value.
        value: String,
        /// The error of the system.
        errno: io::Error,
    },
    /// A name or alias the kernel cannot hold.
    #[error("{what} {value:?} {problem}")]
    BadName {
        /// Which of the arguments.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The host name is in use by a link that is not ours to replace.
    #[error("link {name} exists and belongs to someone else ({owner}); choose another veth prefix or remove it")]
    NameTaken {
        /// The link.
        name: String,
        /// Its alias or kind.
        owner: String,
    },
    /// The pod already has an interface of that name.
    #[error("interface {ifname} already exists in {}; another plugin or an earlier ADD made it", .netns.display())]
    PodInterfaceExists {
        /// The interface.
        ifname: String,
        /// The pod's namespace.
        netns: PathBuf,
    },
    /// A link that was there a moment ago, or should be, is not.
    #[error("no link {0}")]
    NoLink(String),
    /// No link with that MAC came up before the deadline.
    #[error("no link with MAC address {mac} after {waited_ms} ms; is the network interface attached?")]
    NoLinkWithMac {
        /// The MAC address.
        mac: String,
        /// How long was waited.
        waited_ms: u128,
    },
    /// An address that shall be taken away is routed to a link of another sandbox.
    #[error("{addr} is routed to {link}, which belongs to {owner:?}; it is not taken away")]
    HeldByOther {
        /// The address.
        addr: IpAddr,
        /// The link.
        link: String,
        /// The link's alias.
        owner: String,
    },
    /// An argument that cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// A step failed, and so did undoing what came before it.
    #[error("{cause}; undoing the steps before also failed: {}", list(.left))]
    NotUndone {
        /// The failure.
        cause: Box<Error>,
        /// What could not be undone.
        left: Vec<Error>,
    },
    /// Several steps of a tear-down failed; the others were done.
    #[error("{}", list(.0))]
    Several(Vec<Error>),
}

/// Joins messages for one line.
fn list(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// One error out of those a tear-down gathered; `Ok` when there are none.
    pub(crate) fn all(mut errors: Vec<Error>) -> Result<(), Error> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }
}

/// Says what was being done when the kernel refused.
pub(crate) trait During<T> {
    /// Names the step; the text is made only on failure.
    fn during(self, action: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, Refusal> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|refusal| {
            let errno = io::Error::from(refusal.errno);
            let mut reason = refusal.words.unwrap_or_else(|| errno.to_string());
            if refusal.errno == Errno::PERM {
                reason.push_str("; this needs CAP_NET_ADMIN");
            }
            Error::Kernel { action: action(), reason, errno }
        })
    }
}

impl<T> During<T> for io::Result<T> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|errno| Error::Kernel { action: action(), reason: errno.to_string(), errno })
    }
}

/// Treats one error number of a refusal as success: what shall be gone is gone, what shall exist exists.
pub(crate) trait Tolerate {
    /// `Ok` when the refusal is one of `errnos`.
    fn tolerate(self, errnos: &[Errno]) -> Self;
}

impl Tolerate for Result<(), Refusal> {
    fn tolerate(self, errnos: &[Errno]) -> Self {
        match self {
            Err(refusal) if errnos.contains(&refusal.errno) => Ok(()),
            other => other,
        }
    }
}
