//! DEL: ipamd ends the lease and takes the links away in its own time. Without ipamd the plugin takes rules and routes
//! away by the previous result and leaves the release on disk. A pod's end is never held up, and no address is lost.

use wipam_netlink::pod::{self as links};
use wipam_rpc::Cause;
use wipam_rpc::queue::{self, Queue, Release};
use wipam_rpc::v1;

use crate::ask::{Daemon, Failure};
use crate::attachment::Previous;
use crate::conf::{DEL_TIMEOUT, Role};
use crate::env::Target;
use crate::error::{CniError, TRY_AGAIN, chain};
use crate::plugin::{Call, netns_text, pod};

/// Serves a DEL.
///
/// Settings that only an ADD needs are not looked at, and those that a DEL needs fall back to their defaults when they
/// are wrong: the ADD that could have succeeded with them is the one that this DEL ends.
pub(crate) async fn del(call: &Call<'_>, target: &Target) -> Result<(), CniError> {
    let conf = call.conf;
    let socket = conf.socket().unwrap_or_else(|_| wipam_rpc::DEFAULT_SOCKET.into());
    let daemon = Daemon::new(socket);
    let request = v1::DelRequest {
        attachment: Some(conf.attachment(target)),
        pod: Some(pod(target)),
        netns: netns_text(target),
        network_removed: false,
        cause: String::new(),
    };
    let failure = match daemon.del(request, conf.del_timeout().unwrap_or(DEL_TIMEOUT)).await {
        Ok(reply) => {
            let released: Vec<_> = reply.addresses.iter().map(|a| a.cidr.as_str()).collect();
            call.log.info(format_args!("released [{}]", released.join(", ")));
            return Ok(());
        }
        // Nothing of ours is left: the lease went to a newer sandbox, or there never was one.
        Err(Failure::Unknown(_) | Failure::Refused(Cause::Superseded, _)) => return Ok(()),
        Err(failure) => failure,
    };
    call.log.warn(format_args!("{}; doing without", failure.text()));
    let previous = previous(call, target);
    let removed = call.conf.role == Role::Main && remove_network(call, target, previous.as_ref());
    let release = release(call, target, previous.as_ref(), removed, "");
    let dir = conf.queue_dir().unwrap_or_else(|_| queue::DEFAULT_DIR.into());
    enqueue(&Queue::new(dir), &release)
}

/// Our part of the previous result, as far as it can be read.
fn previous(call: &Call<'_>, target: &Target) -> Option<Previous> {
    match call.conf.prev_result() {
        Ok(result) => result.and_then(|r| match call.conf.role {
            Role::Main => Previous::find(&r, &target.ifname),
            // Which link of another plugin has our addresses is that plugin's business.
            Role::Ipam => Some(Previous {
                host_ifname: String::new(),
                addresses: r.ips.iter().map(|ip| ip.address).collect(),
                table: 0,
                mtu: None,
            }),
        }),
        Err(error) => {
            call.log.warn(format_args!("{error}"));
            None
        }
    }
}

/// Takes routes and rules away and sets the link down, if they are this sandbox's. The link itself goes with the pod's
/// namespace or by ipamd, since its end takes 20 ms of waiting. Returns whether all that is known of is gone.
fn remove_network(call: &Call<'_>, target: &Target, previous: Option<&Previous>) -> bool {
    let Some(previous) = previous else {
        call.log.warn(format_args!("no previous result: routes and rules are left to ipamd"));
        return false;
    };
    let prefix = call.conf.veth_prefix().ok().flatten();
    let report = links::unroute(&previous.teardown(target, prefix.as_deref()));
    if !report.kept.is_empty() {
        call.log.info(format_args!("{:?} belong to another sandbox now and stay", report.kept));
    }
    for error in &report.errors {
        call.log.warn(format_args!("{}", chain(error)));
    }
    // A link that is only down still has its end before it.
    report.errors.is_empty() && report.links.is_empty()
}

/// The release as it waits for ipamd.
pub(crate) fn release(
    call: &Call<'_>,
    target: &Target,
    previous: Option<&Previous>,
    network_removed: bool,
    cause: &str,
) -> Release {
    let pod = &target.args;
    Release {
        schema: queue::SCHEMA,
        network: call.conf.network.clone(),
        container_id: target.container_id.clone(),
        ifname: target.ifname.clone(),
        pod_namespace: pod.pod_namespace.clone(),
        pod_name: pod.pod_name.clone(),
        pod_uid: pod.pod_uid.clone(),
        netns: netns_text(target),
        network_removed,
        cause: cause.to_owned(),
        addresses: previous.map(|p| p.addresses.iter().map(ToString::to_string).collect()).unwrap_or_default(),
        host_ifname: previous.map(|p| p.host_ifname.clone()).unwrap_or_default(),
        queued_at: queue::now(),
    }
}

/// Leaves a release on disk. If that fails the DEL must fail too, or the address would be lost; the runtime repeats it.
pub(crate) fn enqueue(queue: &Queue, release: &Release) -> Result<(), CniError> {
    queue.put(release).map(|_| ()).map_err(|e| {
        CniError::new(
            TRY_AGAIN,
            format!("DEL: ipamd does not answer, and the release cannot be left on disk: {}", chain(&e)),
            "start ipamd, or make room and permission for that directory (queueDir); the runtime's retry does the rest",
        )
    })
}
