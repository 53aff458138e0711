//! ADD: an address from ipamd, then (as main plugin) the pod's network, then the result. What was begun is taken back
//! when a later step fails.

use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use wipam_netlink::{netns, pod as links};
use wipam_rpc::queue::{self, Queue, Release};
use wipam_rpc::v1;

use crate::ask::{Daemon, Failure};
use crate::attachment;
use crate::conf::Role;
use crate::del;
use crate::env::Target;
use crate::error::{CniError, DAEMON, NETWORK_SETUP, chain};
use crate::plugin::{Call, netns_text, pod};
use crate::result::{CniResult, Ip};

/// How long taking back waits for ipamd before the release is left on disk.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves an ADD and returns what is printed.
pub(crate) async fn add(call: &Call<'_>, target: &Target) -> Result<String, CniError> {
    let result = match call.conf.role {
        Role::Main => as_main(call, target).await,
        Role::Ipam => as_ipam(call, target).await,
    }?;
    Ok(result.to_json(call.conf.version))
}

async fn as_main(call: &Call<'_>, target: &Target) -> Result<CniResult, CniError> {
    let conf = call.conf;
    // All that can be wrong without ipamd's help is found before it is asked.
    let (mtu, prefix) = (conf.mtu()?, conf.veth_prefix()?);
    let mut chain_result = conf.prev_result()?.unwrap_or_default();
    conf.socket().and(conf.queue_dir())?;
    conf.add_timeout()?;
    check_netns(target.netns.as_deref().unwrap_or(Path::new("")))?;
    let asked = Asked::new(call, target, Vec::new()).await?;
    let reply = &asked.reply;
    let made = attachment::pod_net(
        target,
        &reply.addresses,
        &reply.host_ifname,
        prefix.as_deref(),
        mtu.or((reply.mtu > 0).then_some(reply.mtu)),
    )
    .and_then(|net| match links::setup(&net) {
        Ok(_) => Ok(net),
        Err(e) => Err(CniError::new(
            NETWORK_SETUP,
            format!("ADD: the pod's network could not be set up: {}", chain(&e)),
            "the address was given back; the runtime may try again",
        )),
    });
    let net = match made {
        Ok(net) => net,
        Err(error) => return Err(asked.undo(error).await),
    };
    if prefix.is_some_and(|p| !net.host_ifname.starts_with(&p)) {
        call.log.warn(format_args!(
            "ipamd names the veth {}, vethPrefix of the configuration is not used",
            net.host_ifname
        ));
    }
    let device = reply.addresses.iter().min_by_key(|a| a.index).map_or(0, |a| a.device);
    let addresses: Vec<_> = net.addresses.iter().map(|a| a.addr.addr().to_string()).collect();
    call.log.info(format_args!("{} on {} by {}", addresses.join(", "), target.ifname, net.host_ifname));
    chain_result.append(attachment::result(&net, device));
    Ok(chain_result)
}

async fn as_ipam(call: &Call<'_>, target: &Target) -> Result<CniResult, CniError> {
    let ranges = call.conf.ranges()?;
    let asked = Asked::new(call, target, call.conf.raw.clone()).await?;
    match ipam_result(&asked.reply, &ranges.ipam_result()) {
        Ok(result) => Ok(result),
        Err(error) => Err(asked.undo(error).await),
    }
}

/// Addresses with their gateways, and what the configuration says of routes and DNS: from ipamd, or, where it is silent,
/// from the plugin's own reading.
fn ipam_result(reply: &v1::AddReply, own: &[u8]) -> Result<CniResult, CniError> {
    let wrong = |what: String| {
        CniError::new(
            DAEMON,
            format!("ipamd's answer makes no sense: {what}"),
            "update plugin and ipamd from one release",
        )
    };
    let echoed = if reply.ipam_result.is_empty() { own } else { &reply.ipam_result };
    let echoed = serde_json::from_slice(echoed).map_err(|e| wrong(e.to_string()))?;
    let mut result = CniResult::parse(&echoed).map_err(|e| wrong(e.msg))?;
    result.ips = attachment::addresses(&reply.addresses)?
        .into_iter()
        .map(|(address, a): (IpNet, _)| {
            let gateway = match a.gateway.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| wrong(format!("gateway {text:?} is not an address")))?),
            };
            Ok(Ip { address, gateway, interface: None })
        })
        .collect::<Result<_, CniError>>()?;
    Ok(result)
}

/// The namespace must be one, and not our own: a pod's interface made there would be the node's.
fn check_netns(path: &Path) -> Result<(), CniError> {
    let wrong = |what: String| {
        CniError::environment(what, "CNI_NETNS must name the pod's network namespace, and be visible from here")
    };
    let pod = netns::identify(path).map_err(|e| wrong(format!("CNI_NETNS: {}", chain(&e))))?;
    match netns::identify(Path::new("/proc/self/ns/net")) {
        Ok(own) if own.inode == pod.inode => {
            Err(wrong(format!("CNI_NETNS {} is the plugin's own namespace", path.display())))
        }
        _ => Ok(()),
    }
}

/// An answered ADD that may still have to be taken back.
struct Asked<'a> {
    call: &'a Call<'a>,
    target: &'a Target,
    daemon: Daemon,
    reply: v1::AddReply,
}

impl<'a> Asked<'a> {
    /// Asks ipamd. A release of the same attachment that waits on disk is withdrawn first, since this lease is newer.
    async fn new(call: &'a Call<'a>, target: &'a Target, ipam_config: Vec<u8>) -> Result<Asked<'a>, CniError> {
        let conf = call.conf;
        let requested = conf.requested(&target.args.ips)?;
        let (daemon, wait, queue) = (call.daemon()?, conf.add_timeout()?, Queue::new(conf.queue_dir()?));
        let waiting = withdraw(call, target, &queue);
        let request = v1::AddRequest {
            attachment: Some(conf.attachment(target)),
            pod: Some(pod(target)),
            netns: netns_text(target),
            requested,
            ipam_config,
        };
        match daemon.add(request, wait).await {
            Ok(reply) => Ok(Asked { call, target, daemon, reply }),
            Err(failure) => {
                let error = daemon.error(call.verb, &failure);
                put_back(call, &queue, waiting);
                if failure.is_ambiguous() {
                    call.log.warn(format_args!("{}; the address, if there is one, is given back", failure.text()));
                    release(call, target, &daemon).await;
                }
                Err(error)
            }
        }
    }

    /// Gives the address back because of `error`, which is returned.
    async fn undo(&self, error: CniError) -> CniError {
        self.call.log.error(format_args!("undoing the ADD: {error}"));
        release(self.call, self.target, &self.daemon).await;
        error
    }
}

/// Ends the lease of a failed ADD, now or by the queue.
async fn release(call: &Call<'_>, target: &Target, daemon: &Daemon) {
    let request = v1::DelRequest {
        attachment: Some(call.conf.attachment(target)),
        pod: Some(pod(target)),
        netns: netns_text(target),
        network_removed: call.conf.role == Role::Main,
        cause: "setup-failed".into(),
    };
    let failure = match daemon.del(request, UNDO_TIMEOUT).await {
        Ok(_) | Err(Failure::Unknown(_)) => return,
        Err(failure) => failure,
    };
    let release = del::release(call, target, None, true, "setup-failed");
    let queued = call.conf.queue_dir().and_then(|dir| del::enqueue(&Queue::new(dir), &release));
    match queued {
        Ok(()) => call.log.warn(format_args!("{}; the release is queued", failure.text())),
        // The runtime sends a DEL after a failed ADD; if that can do no more, it says so.
        Err(error) => call.log.error(format_args!("{}; {error}", failure.text())),
    }
}

fn withdraw(call: &Call<'_>, target: &Target, queue: &Queue) -> Option<Release> {
    match queue.take(&call.conf.network, &target.container_id, &target.ifname) {
        Ok(waiting) => waiting,
        Err(queue::QueueError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotADirectory => None,
        Err(error) => {
            call.log.warn(format_args!("a queued release of this attachment: {}", chain(&error)));
            None
        }
    }
}

fn put_back(call: &Call<'_>, queue: &Queue, waiting: Option<Release>) {
    if let Some(Err(error)) = waiting.map(|release| queue.put(&release)) {
        call.log.error(format_args!("a queued release is lost: {}", chain(&error)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wipam_rpc::range_config::RangeConfig;

    fn reply(cidr: &str, gateway: &str, ipam_result: &[u8]) -> v1::AddReply {
        v1::AddReply {
            addresses: vec![v1::Address { cidr: cidr.into(), gateway: gateway.into(), ..v1::Address::default() }],
            ipam_result: ipam_result.to_vec(),
            ..v1::AddReply::default()
        }
    }

    fn own() -> Vec<u8> {
        let ipam = serde_json::json!({"subnet": "192.168.2.0/24", "scope": "node", "routes": [{"dst": "0.0.0.0/0"}]});
        RangeConfig::from_ipam(&ipam).unwrap().ipam_result()
    }

    #[test]
    fn routes_come_from_ipamd_or_the_configuration() {
        let result = ipam_result(&reply("192.168.2.3/24", "192.168.2.1", b""), &own()).unwrap();
        assert_eq!(result.ips[0].gateway, Some("192.168.2.1".parse().unwrap()));
        assert_eq!((result.routes.len(), result.interfaces.len()), (1, 0));
        let result = ipam_result(&reply("192.168.2.3/24", "", b"{\"routes\":[]}"), &own()).unwrap();
        assert_eq!((result.ips[0].gateway, result.routes.len()), (None, 0));
    }

    #[test]
    fn a_senseless_answer_is_an_error() {
        for bad in [reply("x", "", b""), reply("10.0.0.1/24", "x", b""), reply("10.0.0.1/24", "", b"{")] {
            assert_eq!(ipam_result(&bad, &own()).unwrap_err().code, DAEMON);
        }
        assert_eq!(ipam_result(&v1::AddReply::default(), &own()).unwrap_err().code, DAEMON);
    }

    #[test]
    fn our_own_namespace_is_no_pods() {
        assert!(check_netns(Path::new("/proc/self/ns/net")).unwrap_err().msg.contains("own namespace"));
        assert!(check_netns(Path::new("/etc/hostname")).is_err());
        assert!(check_netns(Path::new("/nonexistent")).is_err());
    }
}
