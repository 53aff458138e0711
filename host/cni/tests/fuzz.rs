//! Whatever comes in, what goes out is a result, silence or a whole error object.

#![allow(clippy::unwrap_used)] // helpers too; the general exception knows only test functions

mod common;

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

use common::PLUGIN;
use proptest::prelude::*;
use serde_json::{Value, json};
use wipam_cni::plugin::{self, Outcome};

/// Names and values that are nearly right.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec![
            "", "wipam-cni", "bridge", "n", "1.1.0", "1.0.0", "0.2.0", "node", "eth0", "..", "/", "10.0.0.0/24", "10.0.0.7", "fd00::/64",
            "192.168.2.10-192.168.2.20/24", "-1", "99999999999999999999", "\u{0}", "\n", "é", "/proc/self/ns/net", "/run/netns/x",
        ]).prop_map(str::to_owned),
        1 => ".{0,40}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "cniVersion",
        "name",
        "type",
        "ipam",
        "ranges",
        "subnet",
        "range",
        "rangeStart",
        "rangeEnd",
        "gateway",
        "exclude",
        "scope",
        "routes",
        "dst",
        "gw",
        "dns",
        "prevResult",
        "interfaces",
        "ips",
        "address",
        "interface",
        "ip4",
        "ip",
        "mac",
        "sandbox",
        "mtu",
        "vethPrefix",
        "addTimeout",
        "delTimeout",
        "logLevel",
        "runtimeConfig",
        "args",
        "cni",
        "cni.dev/valid-attachments",
        "containerID",
        "ifname",
        "other",
    ])
    .prop_map(str::to_owned)
}

/// A configuration that is right but for some keys. Socket and queue stay in `dir`.
fn conf() -> impl Strategy<Value = Value> {
    (any::<bool>(), prop::collection::vec((key(), value(), any::<bool>()), 0..4)).prop_map(|(main, changes)| {
        let mut conf = match main {
            true => json!({"cniVersion": "1.1.0", "name": "n", "type": "wipam-cni"}),
            false => json!({"cniVersion": "1.1.0", "name": "n", "type": "bridge",
                "ipam": {"type": "wipam-cni", "scope": "node", "subnet": "10.0.0.0/24"}}),
        };
        for (key, value, inner) in changes {
            match conf.get_mut("ipam").filter(|i| inner && i.is_object()) {
                Some(ipam) => ipam[key] = value,
                None => conf[key] = value,
            }
        }
        conf
    })
}

fn env() -> impl Strategy<Value = HashMap<String, OsString>> {
    let good = json!({"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/none",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=d"});
    let names = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"];
    let verb = prop::sample::select(vec!["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION", "add", ""]);
    let bytes = prop_oneof![
        prop::collection::vec(1u8..=255, 0..60).prop_map(OsString::from_vec),
        word().prop_map(|w| OsString::from(w.replace('\0', ""))),
    ];
    (verb, prop::collection::vec((prop::sample::select(names.to_vec()), bytes), 0..2)).prop_map(
        move |(verb, changes)| {
            let mut env: HashMap<String, OsString> = good
                .as_object()
                .unwrap()
                .iter()
                .map(|(k, v)| (k.clone(), OsString::from(v.as_str().unwrap())))
                .collect();
            env.insert("CNI_COMMAND".into(), verb.into());
            env.extend(changes.into_iter().map(|(k, v)| (k.to_owned(), v)));
            env
        },
    )
}

fn sane(outcome: &Outcome) -> Result<(), TestCaseError> {
    if outcome.code == 0 {
        prop_assert!(outcome.stdout.is_empty() || serde_json::from_str::<Value>(&outcome.stdout).is_ok());
        return Ok(());
    }
    prop_assert_eq!(outcome.code, 1);
    let object: Value = serde_json::from_str(&outcome.stdout).expect("an error object");
    prop_assert!(object["code"].as_u64().is_some_and(|c| c > 0 && c != 199), "{}", object);
    for key in ["cniVersion", "msg", "details"] {
        let text = object[key].as_str().unwrap_or_default();
        prop_assert!(!text.is_empty() && text.len() < 6000 && !text.chars().any(char::is_control), "{}", object);
    }
    prop_assert!(outcome.stderr.lines().count() == 1);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn nearly_right_input_is_answered(env in env(), mut conf in conf()) {
        let dir = tempfile::tempdir().unwrap();
        let ours = json!({"socket": dir.path().join("s"), "queueDir": dir.path().join("q"), "addTimeout": 1, "delTimeout": 1});
        if let Some(ipam) = conf.get_mut("ipam") {
            common::merge(ipam, ours.clone());
        }
        common::merge(&mut conf, ours);
        let stdin = conf.to_string();
        sane(&plugin::run(&|name| env.get(name).cloned(), &mut stdin.as_bytes(), "wipam-cni"))?;
    }

    #[test]
    fn bytes_are_answered(verb in prop::sample::select(vec!["ADD", "CHECK", "STATUS", "GC", "VERSION"]), stdin in prop::collection::vec(any::<u8>(), 0..400)) {
        let env = |name: &str| match name {
            "CNI_COMMAND" => Some(OsString::from(verb)),
            "CNI_CONTAINERID" | "CNI_IFNAME" => Some("x".into()),
            "CNI_NETNS" => Some("/run/netns/none".into()),
            _ => None,
        };
        sane(&plugin::run(&env, &mut &stdin[..], "wipam-cni"))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The process itself, as the runtime starts it.
    #[test]
    fn the_process_never_panics(env in env(), stdin in prop::collection::vec(any::<u8>(), 0..2000), cut in 0usize..80) {
        use std::io::Write as _;
        let mut input = br#"{"cniVersion":"1.1.0","name":"n","type":"wipam-cni","socket":"/nonexistent/s","x":["#[..cut.min(77)].to_vec();
        input.extend(&stdin);
        let mut command = Command::new(PLUGIN);
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in env.iter().filter(|(_, v)| !v.as_bytes().contains(&0)) {
            command.env(name, value);
        }
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(&input);
        let out = child.wait_with_output().unwrap();
        let code = out.status.code().expect("no signal");
        sane(&Outcome {
            stdout: String::from_utf8(out.stdout).unwrap(),
            stderr: String::from_utf8(out.stderr).unwrap(),
            code: u8::try_from(code).unwrap(),
        })?;
    }
}
