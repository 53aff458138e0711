//! The harness alone, with the plugins of the system: what a failure here says is no fault of ours. Needs root.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

mod common;

use std::process::Command;

use serde_json::json;
use wipam_e2e::{Cluster, Options};

#[test]
fn a_node_runs_pods_and_nothing_is_left() {
    if !common::root("a_node_runs_pods_and_nothing_is_left") {
        return;
    }
    let ptp = json!({
        "cniVersion": "1.0.0", "name": "plain",
        "plugins": [{ "type": "ptp", "ipam": { "type": "host-local", "subnet": "172.16.0.0/24", "dataDir": "/nonexistent" } }],
    });
    let dir = tempdir();
    let ptp = serde_json::from_str(&ptp.to_string().replace("/nonexistent", &dir)).unwrap();
    let options = Options {
        nodes: 1,
        networks: vec![("20-plain.conflist".into(), ptp)],
        start_ipamd: false,
        ..Options::default()
    };
    let cluster = Cluster::up(&options).unwrap();
    let site = cluster.dir().to_owned();
    let node = &cluster.nodes()[0];
    let (one, two) = (node.run_pod("one").unwrap(), node.run_pod("two").unwrap());
    assert_ne!(one.ip(), two.ip());
    one.ping(two.ip()).unwrap();
    let shown = one.exec(&["ip", "addr", "show", "eth0"]).unwrap().ok().unwrap();
    assert!(shown.contains(&one.ip().to_string()), "{shown}");
    assert!(two.nsenter(&["ip", "-o", "addr"]).unwrap().ok().unwrap().contains(&two.ip().to_string()));
    two.stop().unwrap();
    let netns = node.netns().to_owned();

    // One pod runs: the end must not depend on an orderly stop.
    cluster.down().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    assert!(!site.exists() && !std::path::Path::new("/run/netns").join(netns).exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(site.to_str().unwrap()), "{mounts}");
    let processes = Command::new("ps").args(["axww", "-o", "args"]).output().unwrap().stdout;
    assert!(!String::from_utf8_lossy(&processes).contains(site.to_str().unwrap()));
}

fn tempdir() -> String {
    let dir = std::env::temp_dir().join(format!("wipam-host-local-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir.to_str().unwrap().to_owned()
}
