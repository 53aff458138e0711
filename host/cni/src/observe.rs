//! The verbs without a pod to make: CHECK, STATUS and GC.

use wipam_netlink::pod::{self as links, Difference, PodNet};
use wipam_rpc::v1;

use crate::ask::Failure;
use crate::attachment::{self, Previous};
use crate::conf::Role;
use crate::env::Target;
use crate::error::{CniError, NOT_AS_EXPECTED, NOT_AVAILABLE, chain};
use crate::plugin::Call;
use crate::result::CniResult;

/// Serves a CHECK: the lease is in the result, and (as main plugin) the pod's network is as the lease says.
pub(crate) async fn check(call: &Call<'_>, target: &Target) -> Result<(), CniError> {
    let conf = call.conf;
    let result = conf.prev_result()?.ok_or_else(|| {
        CniError::config("CHECK without prevResult", "the runtime must pass on the result of the ADD")
    })?;
    let previous = expected(call, target, &result)?;
    let request = v1::CheckRequest {
        attachment: Some(conf.attachment(target)),
        addresses: previous.addresses.iter().map(ToString::to_string).collect(),
    };
    let daemon = call.daemon()?;
    let reply =
        daemon.check(request, conf.del_timeout()?).await.map_err(|failure| daemon.error(call.verb, &failure))?;
    for (lease, _) in attachment::addresses(&reply.addresses)? {
        if !previous.addresses.iter().any(|net| net.addr() == lease.addr()) {
            return Err(differs(format!("ipamd's lease {lease} is not in the previous result")));
        }
    }
    match conf.role {
        Role::Ipam => Ok(()),
        Role::Main => check_network(call, target, &reply, &previous),
    }
}

/// What the previous result says of our interface.
fn expected(call: &Call<'_>, target: &Target, result: &CniResult) -> Result<Previous, CniError> {
    if call.conf.role == Role::Ipam {
        let addresses = result.ips.iter().map(|ip| ip.address).collect();
        return Ok(Previous { host_ifname: String::new(), addresses, table: 0, mtu: None });
    }
    let found = Previous::find(result, &target.ifname).filter(|p| !p.addresses.is_empty());
    found.ok_or_else(|| differs(format!("the previous result has no interface {} with an address", target.ifname)))
}

fn check_network(
    call: &Call<'_>,
    target: &Target,
    reply: &v1::CheckReply,
    previous: &Previous,
) -> Result<(), CniError> {
    let host = if reply.host_ifname.is_empty() { &previous.host_ifname } else { &reply.host_ifname };
    let mtu = call.conf.mtu()?.or(previous.mtu);
    let net: PodNet = attachment::pod_net(target, &reply.addresses, host, call.conf.veth_prefix()?.as_deref(), mtu)?;
    let found = links::check(&net).map_err(|e| differs(chain(&e)))?;
    // Where nobody says the MTU, the one that is cannot be wrong.
    let matters =
        |d: &&Difference| mtu.is_some() || !matches!(d, Difference::Wrong { what, .. } if what.contains("MTU"));
    let texts: Vec<_> = found.iter().filter(matters).map(ToString::to_string).collect();
    if texts.is_empty() { Ok(()) } else { Err(differs(texts.join("; "))) }
}

fn differs(what: String) -> CniError {
    CniError::new(
        NOT_AS_EXPECTED,
        format!("CHECK: {what}"),
        "something else changed the pod's network; ipamd repairs the node's side, else the pod must be made anew",
    )
}

/// Serves a STATUS: silence means that an ADD could succeed.
pub(crate) async fn status(call: &Call<'_>) -> Result<(), CniError> {
    let conf = call.conf;
    let ipam_config = match conf.role {
        Role::Main => Vec::new(),
        Role::Ipam => conf.ranges().map(|_| conf.raw.clone())?,
    };
    let daemon = call.daemon()?;
    let request = v1::StatusRequest { network: conf.network.clone(), ipam_config };
    match daemon.status(request, conf.del_timeout()?).await {
        Ok(reply) if reply.ready => Ok(()),
        Ok(reply) => Err(CniError::new(
            NOT_AVAILABLE,
            format!("STATUS: ipamd cannot give an address now: {}", reply.reason),
            "see `wipam status` on the node",
        )),
        Err(failure) => {
            // Pods that run are not concerned, so it is never "limited connectivity" (51).
            let told = daemon.error(call.verb, &failure);
            Err(CniError { code: NOT_AVAILABLE, ..told })
        }
    }
}

/// Serves a GC: ipamd ends what the runtime does not name.
pub(crate) async fn gc(call: &Call<'_>) -> Result<(), CniError> {
    let conf = call.conf;
    let valid = conf.valid_attachments()?;
    let daemon = call.daemon()?;
    let request = v1::GcRequest { network: conf.network.clone(), valid };
    match daemon.gc(request, conf.del_timeout()?).await {
        Ok(reply) => {
            call.log.info(format_args!("{} leases ended", reply.released));
            Ok(())
        }
        Err(Failure::Unknown(_)) => Ok(()),
        Err(failure) => Err(daemon.error(call.verb, &failure)),
    }
}
