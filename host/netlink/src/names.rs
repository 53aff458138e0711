//! Names that are derived, never stored: host veths, the alias that says whose a link is.

use sha1::{Digest, Sha1};

/// What every alias of ours starts with.
pub const ALIAS_PREFIX: &str = "wipam:";
/// Longest interface name the kernel takes.
pub const MAX_IFNAME: usize = 15;
/// Longest link alias the kernel takes (`IFALIASZ` less its zero byte).
pub const MAX_ALIAS: usize = 255;

/// Prefix and the first eleven hexadecimal digits of a SHA-1, cut to what fits an interface name.
fn hashed(prefix: &str, what: &str) -> String {
    let digest = Sha1::digest(what.as_bytes());
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}{}", &hex[..11])
}

/// The host end of a pod's veth, in Calico's scheme: the hash of `<namespace>.<pod>` for the first interface and of
/// `<namespace>.<pod>.<index>` for further ones. Tools that know pods by that scheme find ours.
///
/// `prefix` has at most four bytes (`eni` by default), else the name is too long for the kernel, and
/// [`crate::pod::setup`] refuses it. Names of pods may contain dots: pod `x` at index 1 and a pod `x.1` at index 0
/// share a name, as they do with the AWS plugin. [`crate::pod::setup`] replaces the link then; use [`host_veth_for`].
pub fn host_veth(prefix: &str, namespace: &str, pod: &str, index: u32) -> String {
    match index {
        0 => hashed(prefix, &format!("{namespace}.{pod}")),
        index => hashed(prefix, &format!("{namespace}.{pod}.{index}")),
    }
}

/// The host end for any interface of a pod: `eth0` has the name of [`host_veth`] with index 0, every other interface
/// the hash of `<namespace>.<pod>/<ifname>`, so interfaces of one pod never collide, nor do they with another pod's
/// (no name in Kubernetes contains a slash).
pub fn host_veth_for(prefix: &str, namespace: &str, pod: &str, ifname: &str) -> String {
    match ifname {
        "eth0" => host_veth(prefix, namespace, pod, 0),
        ifname => hashed(prefix, &format!("{namespace}.{pod}/{ifname}")),
    }
}

/// Which of a pod's route tables an interface's routes go to, and which gateway it sees: 0 (`main`, 169.254.1.1) for
/// `eth0`, N for a name ending in the number N (1 to 200), else one of 201 to 250 by hash. Two interfaces of one pod
/// then do not fight about the default route.
pub fn pod_index(ifname: &str) -> u32 {
    if ifname == "eth0" {
        return 0;
    }
    let digits = ifname.trim_start_matches(|c: char| !c.is_ascii_digit());
    match digits.parse::<u32>() {
        Ok(n @ 1..=200) => n,
        _ => 201 + u32::from(Sha1::digest(ifname.as_bytes())[0]) % 50,
    }
}

/// The alias of a host veth: `wipam:<container id>:<ifname>`. It decides what a late tear-down may remove.
pub fn alias(container_id: &str, ifname: &str) -> String {
    format!("{ALIAS_PREFIX}{container_id}:{ifname}")
}

/// The container id and interface name in an alias of ours; `None` for anyone else's.
pub fn parse_alias(alias: &str) -> Option<(&str, &str)> {
    alias.strip_prefix(ALIAS_PREFIX)?.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calicos() {
        assert_eq!(host_veth("eni", "kube-system", "coredns-57ff979f67-qqbdh", 0), "enib5faff8a083");
        assert_eq!(host_veth("eni", "default", "sample-pod", 0), "enicc21c2d7785");
        assert_ne!(host_veth("eni", "default", "sample-pod", 1), host_veth("eni", "default", "sample-pod", 0));
        assert!(host_veth("eni", "a", "b", 7).len() <= MAX_IFNAME);
    }

    #[test]
    fn interfaces_of_one_pod_and_pods_with_dots_differ() {
        let of = |pod, ifname| host_veth_for("eni", "ns", pod, ifname);
        assert_eq!(of("x", "eth0"), host_veth("eni", "ns", "x", 0));
        let names = [of("x", "eth0"), of("x", "net1"), of("x", "net2"), of("x.net1", "eth0"), of("x.net1", "net1")];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn aliases_come_back() {
        assert_eq!(parse_alias(&alias("0123ab", "eth0")), Some(("0123ab", "eth0")));
        assert_eq!(parse_alias("calico"), None);
    }

    #[test]
    fn indexes_stay_in_range() {
        assert_eq!((pod_index("eth0"), pod_index("eth1"), pod_index("net17")), (0, 1, 17));
        for name in ["mesh", "net0", "net999", "x4294967297", "a1b"] {
            assert!((201..=250).contains(&pod_index(name)), "{name}");
        }
    }
}
