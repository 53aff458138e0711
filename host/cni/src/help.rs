//! What the program says of itself to a person.

/// `--help`.
pub const HELP: &str = concat!(
    "wipam-cni ",
    env!("CARGO_PKG_VERSION"),
    r#": CNI plugin of wipam. The container runtime calls it; it asks ipamd for addresses.

usage: CNI_COMMAND=ADD|DEL|CHECK|STATUS|GC|VERSION CNI_…=… wipam-cni < CONFIGURATION
       wipam-cni --help | --version

CNI 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0 are spoken (CHECK since 0.4.0, STATUS and GC since 1.1.0).

As main plugin, an address of the VPC and the pod's network (/etc/cni/net.d/10-wipam.conflist, written by ipamd):

  {"cniVersion": "1.0.0", "name": "wipam", "plugins": [
    {"type": "wipam-cni", "mtu": 9001, "vethPrefix": "eni", "logFile": "/var/log/wipam/plugin.log", "logLevel": "info"},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}

As IPAM plugin, an address of a range for the interface that another plugin makes:

  {"cniVersion": "1.0.0", "name": "storage", "type": "macvlan", "master": "eth1",
   "ipam": {"type": "wipam-cni", "scope": "node",
            "ranges": [[{"subnet": "192.168.2.0/24", "rangeStart": "192.168.2.10", "rangeEnd": "192.168.2.99"}]],
            "routes": [{"dst": "192.168.0.0/16"}]}}

"scope": "node" must be said, since every node hands out these addresses. Short forms of one range: "subnet" with
rangeStart, rangeEnd and gateway as in host-local, or "range" with range_start, range_end and exclude as in whereabouts.

settings (numbers may be texts; as IPAM plugin they stand in "ipam")
  socket       where ipamd listens                             /run/wipam/ipamd.sock
  addTimeout   seconds an ADD waits for an address             100
  delTimeout   seconds any other call waits for ipamd          10
  queueDir     where a DEL is kept while ipamd is away         /var/lib/wipam/queue
  mtu          of the pod's interface, 576 to 9001             what ipamd says, else 9001
  vethPrefix   of host links, where ipamd does not name them   eni
  logFile      absolute path, or stderr                        none
  logLevel     debug, info, warn, error                        info

An address is asked for by CNI_ARGS (IP=10.0.0.7), runtimeConfig.ips or args.cni.ips.

exit codes
  0   done; ADD and VERSION print their result
  1   failed; a CNI error object with code, msg (the cause) and details (the mend) is on stdout
  64  used wrongly from a shell

error codes
  1 cniVersion not supported     4 environment      5 input or output   6 not JSON     7 configuration
  3 no such lease                11 try again later                     50 STATUS: no address can be given
  100 refused by the policy      101 the pod has a newer sandbox        102 the pod's network could not be made
  103 CHECK found differences    104 ipamd failed                       199 a bug of the plugin
"#
);

/// `--version`.
pub const VERSION: &str = concat!("wipam-cni ", env!("CARGO_PKG_VERSION"), "\n");
