//! Throw-away network namespaces, and the independent witnesses `ip` and `nft`.
#![allow(dead_code, missing_docs)] // each test file uses its part; a test's helpers are read, not looked up

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use wipam_netlink::pod::{PodAddress, PodNet};
use wipam_netlink::{names, netns};

/// False (after saying so) when not root; on CI that is a failure.
pub fn root(test: &str) -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    if output.stdout.starts_with(b"0\n") {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root, and CI must run it");
    println!("SKIPPED (needs root): {test}");
    false
}

/// Ends the test early when it cannot run.
#[macro_export]
macro_rules! need_root {
    ($name:literal) => {
        if !support::root($name) {
            return;
        }
    };
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// A network namespace that goes with this value.
pub struct Ns {
    pub name: String,
}

impl Ns {
    pub fn new(role: &str) -> Ns {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wnl-{role}-{}-{number}", std::process::id());
        let output = run("ip", &["netns", "add", &name]);
        assert!(output.status.success(), "{output:?}");
        let ns = Ns { name };
        ns.ip("link set lo up");
        ns
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Runs a test's body as if on this node.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::in_netns(&self.path(), work).unwrap()
    }

    /// `ip` in here; must succeed.
    pub fn ip(&self, words: &str) -> String {
        let (ok, text) = self.try_ip(words);
        assert!(ok, "ip {words}: {text}");
        text
    }

    pub fn try_ip(&self, words: &str) -> (bool, String) {
        let mut args = vec!["-n", self.name.as_str()];
        args.extend(words.split_whitespace());
        let output = run("ip", &args);
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// `ip -j` in here.
    pub fn json(&self, words: &str) -> Value {
        let text = self.ip(&format!("-j -d {words}"));
        if text.trim().is_empty() { Value::Array(Vec::new()) } else { serde_json::from_str(&text).unwrap() }
    }

    /// Any program in here.
    pub fn exec(&self, words: &str) -> Output {
        let mut args = vec!["netns", "exec", self.name.as_str()];
        args.extend(words.split_whitespace());
        run("ip", &args)
    }

    pub fn ok(&self, words: &str) -> bool {
        self.exec(words).status.success()
    }

    pub fn ping(&self, to: &str) -> bool {
        self.ok(&format!("ping -c1 -W1 {to}"))
    }

    /// Everything a namespace has, as text that two calls can compare: links, addresses, routes, rules, neighbours;
    /// without what the kernel does in its own time (carrier, link-local addresses).
    pub fn state(&self) -> String {
        let mut lines = Vec::new();
        for link in self.json("link show").as_array().unwrap() {
            let up = link["flags"].as_array().unwrap().contains(&"UP".into());
            let of = |key: &str| link[key].to_string();
            lines.push(format!("{} {} {} {} {up}", of("ifname"), of("ifalias"), of("mtu"), of("address")));
        }
        for words in ["-4 -o addr", "-6 -o addr", "route show table all", "-6 route show table all", "rule", "-6 rule"]
        {
            let text = self.ip(words);
            lines.extend(text.lines().filter(|l| !l.contains("fe80::") && !l.contains("ff00::")).map(str::to_owned));
        }
        lines.push(self.ip("neigh show nud permanent"));
        lines.join("\n")
    }

    pub fn has_link(&self, name: &str) -> bool {
        self.try_ip(&format!("link show {name}")).0
    }

    /// Rules as (priority, text).
    pub fn rules(&self) -> Vec<(u32, String)> {
        self.ip("rule")
            .lines()
            .filter_map(|line| {
                let (priority, rest) = line.split_once(':')?;
                Some((priority.parse().ok()?, rest.split_whitespace().collect::<Vec<_>>().join(" ")))
            })
            .collect()
    }

    pub fn has_rule(&self, priority: u32, text: &str) -> bool {
        self.rules().contains(&(priority, text.to_owned()))
    }

    pub fn route(&self, to: &str) -> String {
        self.ip(&format!("route show table main {to}")).trim().to_owned()
    }
}

impl Drop for Ns {
    fn drop(&mut self) {
        run("ip", &["netns", "del", &self.name]);
    }
}

/// What a test pod is made of.
pub fn pod_net(pod: &Ns, container: &str, addr: &str, table: u32) -> PodNet {
    let addr: IpAddr = addr.parse().unwrap();
    PodNet {
        netns: pod.path(),
        ifname: "eth0".into(),
        host_ifname: names::host_veth("eni", "test", &pod.name, 0),
        alias: names::alias(container, "eth0"),
        mtu: 9001,
        addresses: vec![PodAddress::new(addr, table, 0)],
    }
}
