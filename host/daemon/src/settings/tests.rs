//! Cases of the AWS daemon's environment, precedence, and what `--print-config` prints.

use super::*;
use std::net::SocketAddr;
use std::time::Duration;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn from_env(pairs: &[(&str, &str)]) -> Loaded {
    from_text("", "", &env(pairs)).unwrap()
}

fn refused(text: &str, pairs: &[(&str, &str)]) -> String {
    from_text("ipamd.yaml", text, &env(pairs)).unwrap_err().to_string()
}

#[test]
fn warm_targets_as_the_aws_daemon_reads_them() {
    let cases: [(&str, Option<&str>, Option<&str>); 8] = [
        ("WARM_IP_TARGET", Some("5"), Some("5")),
        ("WARM_IP_TARGET", None, None),
        ("WARM_IP_TARGET", Some("-1"), None),
        ("WARM_PREFIX_TARGET", Some("non-integer-string"), None),
        ("MINIMUM_IP_TARGET", Some("10"), Some("10")),
        ("MINIMUM_IP_TARGET", Some("-5"), None),
        ("WARM_ENI_TARGET", Some("0"), Some("0")),
        ("WARM_IP_TARGET", Some("2O"), None),
    ];
    for (name, value, expected) in cases {
        let pairs: Vec<_> = value.map(|v| (name, v)).into_iter().collect();
        let loaded = from_env(&pairs);
        assert_eq!(loaded.settings.warm.get(name).map(String::as_str), expected, "{name}={value:?}");
        assert_eq!(loaded.warnings.is_empty(), value.is_none() || expected.is_some(), "{:?}", loaded.warnings);
    }
}

#[test]
fn booleans_of_both_manners() {
    let prefix = |v| from_env(&[("ENABLE_PREFIX_DELEGATION", v)]);
    assert!(!from_env(&[]).settings.pool.prefix_mode);
    assert!(prefix("T").settings.pool.prefix_mode);
    for bad in ["TrUe", ""] {
        let loaded = prefix(bad);
        assert!(!loaded.settings.pool.prefix_mode && loaded.warnings.len() == 1, "{bad:?}");
    }
    // The second helper takes an empty text for none, silently.
    let node_port = from_env(&[("AWS_VPC_CNI_NODE_PORT_SUPPORT", "")]);
    assert!(node_port.settings.host.node_port && node_port.warnings.is_empty());
    let node_port = from_env(&[("AWS_VPC_CNI_NODE_PORT_SUPPORT", "nope")]);
    assert!(node_port.settings.host.node_port && node_port.warnings.len() == 1);
}

#[test]
fn excluded_cidrs_are_canonical_and_bad_ones_are_skipped() {
    for (text, expected, warnings) in [
        ("2000::1/128", vec![], 1),
        ("10.0.0.0", vec![], 1),
        ("10.0.0.0/32,abcd", vec!["10.0.0.0/32"], 1),
        (" 10.1.2.3/16 , 192.168.0.0/24", vec!["10.1.0.0/16", "192.168.0.0/24"], 0),
        ("", vec![], 0),
    ] {
        let loaded = from_env(&[("AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS", text)]);
        let nets: Vec<_> = loaded.settings.host.exclude_snat.iter().map(ToString::to_string).collect();
        assert_eq!(nets, expected, "{text}");
        assert_eq!(loaded.warnings.len(), warnings, "{text}: {:?}", loaded.warnings);
    }
}

#[test]
fn tags_drop_reserved_keys_and_bad_json() {
    for (text, expected) in [
        ("", 0),
        (r#"{"tagKey1": "tagVal1"}"#, 1),
        ("xxxx", 0),
        (r#"{"bla.k8s.amazonaws.com": "bla"}"#, 0),
        (r#"{"bla.k8s.amazonaws.com": "bla", "team": "net"}"#, 1),
    ] {
        assert_eq!(from_env(&[("ADDITIONAL_ENI_TAGS", text)]).settings.cloud.tags.len(), expected, "{text}");
    }
}

#[test]
fn mtus_cooldown_and_prefix_are_refused_when_wrong() {
    let host = from_env(&[]).settings.host;
    assert_eq!((host.eni_mtu, host.pod_mtu), (9001, 9001));
    let host = from_env(&[("AWS_VPC_ENI_MTU", "8000")]).settings.host;
    assert_eq!((host.eni_mtu, host.pod_mtu), (8000, 8000));
    assert_eq!(from_env(&[("POD_MTU", "8000")]).settings.host.pod_mtu, 8000);
    for (name, bad) in [
        ("AWS_VPC_ENI_MTU", "10000"),
        ("POD_MTU", "500"),
        ("POD_MTU", "abc"),
        ("IP_COOLDOWN_PERIOD", "-1"),
        ("IP_COOLDOWN_PERIOD", "2O"),
        ("AWS_VPC_K8S_CNI_VETHPREFIX", "longer"),
        ("AWS_VPC_K8S_CNI_VETHPREFIX", "eth"),
        ("WIPAM_SOCKET", "relative"),
        ("WIPAM_INSTANCE_LIMITS", "3x1"),
        ("ENABLE_IPv6", "true"),
    ] {
        assert!(refused("", &[(name, bad)]).contains(name), "{name}={bad}");
    }
    assert_eq!(from_env(&[("IP_COOLDOWN_PERIOD", "0")]).settings.pool.cooldown, Duration::ZERO);
}

#[test]
fn the_rest_of_the_aws_daemons_variables() {
    let s = from_env(&[
        ("MAX_ENI", "0"),
        ("HTTP_TIMEOUT", "5"),
        ("AWS_VPC_K8S_CNI_CONNMARK", "0200"),
        ("AWS_VPC_K8S_CNI_RANDOMIZESNAT", "hashrandom"),
        ("AWS_VPC_K8S_CNI_LOGLEVEL", "Debug"),
        ("INTROSPECTION_BIND_ADDRESS", "127.0.0.1:61679"),
        ("AWS_VPC_K8S_CNI_BACKING_STORE", ""),
    ])
    .settings;
    assert_eq!(s.cloud.max_enis, None);
    assert_eq!(s.cloud.http_timeout, Duration::from_secs(10));
    assert_eq!(s.host.connmark, 0x80);
    assert_eq!(s.host.random_ports, RandomPorts::Hash);
    assert_eq!(s.log.level, "debug");
    assert_eq!(s.http.introspection, Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 61679))));
    assert_eq!(s.paths.aws_file, Path::new("/var/run/aws-node/ipam.json"));
    assert_eq!(from_env(&[("AWS_VPC_K8S_CNI_CONNMARK", "0")]).settings.host.connmark, 0x80);
    let unix = from_env(&[("INTROSPECTION_BIND_ADDRESS", "unix:/run/x.sock")]).settings.http.introspection;
    assert_eq!(unix, Listen::Unix("/run/x.sock".into()));
}

#[test]
fn the_environment_wins_over_the_file_and_origins_are_shown() {
    let text = "cooldown: 10\nheld-for: 2m\nsubnets: [subnet-1, subnet-2]\n";
    let loaded = from_text("f", text, &env(&[("IP_COOLDOWN_PERIOD", "20")])).unwrap();
    assert_eq!(loaded.settings.pool.cooldown, Duration::from_secs(20));
    assert_eq!(loaded.settings.pool.held_for, Duration::from_secs(120));
    assert_eq!(loaded.settings.cloud.subnets, ["subnet-1", "subnet-2"]);
    let origin = |key| loaded.shown.iter().find(|s| s.key == key).unwrap().origin;
    assert_eq!(origin("cooldown"), Origin::Environment);
    assert_eq!(origin("held-for"), Origin::File);
    assert_eq!(origin("tick"), Origin::Default);
}

#[test]
fn wrong_files_are_refused_with_every_mistake_at_once() {
    let text = refused("coldown: 10\nheld-for: soon\nzzzzzzzzzz: 1\n", &[]);
    assert!(text.contains("coldown: there is no such setting; did you mean cooldown?"), "{text}");
    assert!(text.contains("held-for: \"soon\": must be a time"), "{text}");
    assert!(text.contains("zzzzzzzzzz: there is no such setting; `ipamd --print-config`"), "{text}");
    for bad in ["- a\n", "a: [", "3"] {
        assert!(refused(bad, &[]).contains("ipamd.yaml is not a YAML mapping"), "{bad}");
    }
    assert!(
        load(Some(Path::new("/nonexistent.yaml")), &env(&[])).unwrap_err().to_string().contains("/nonexistent.yaml")
    );
}

#[test]
fn what_is_printed_is_a_file_that_says_the_same() {
    let first = from_env(&[
        ("WARM_IP_TARGET", "3"),
        ("ADDITIONAL_ENI_TAGS", r#"{"a":"b"}"#),
        ("WIPAM_INSTANCE_LIMITS", "3x6"),
        ("AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS", "10.0.0.0/8"),
        ("ENABLE_POD_ENI", "true"),
    ]);
    let printed = print(&first);
    assert!(printed.contains("# WARNING: ENABLE_POD_ENI=true has no effect"), "{printed}");
    assert!(printed.contains("# WARM_IP_TARGET (from the environment)\nwarm-ips: 3\n"), "{printed}");
    let second = from_text("printed", &printed, &env(&[])).unwrap();
    assert_eq!(second.settings, first.settings);
    assert!(first.shown.iter().all(|s| !s.doc.is_empty() && !s.env.is_empty()));
}
