//! What one pod costs, in this process or as a whole process of its own, for comparison with other plugins.
//!
//! ```text
//! floor loop N                    N pods set up and torn down in throw-away namespaces; medians in microseconds
//! floor pod NETNS HOST ADDRESS    one set-up, exec to exit
//! floor unpod HOST ADDRESS        its quick tear-down (the link only goes down)
//! ```
//! Needs root; `loop` runs `ip netns` to make its namespaces.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use wipam_netlink::names;
use wipam_netlink::netns;
use wipam_netlink::pod::{self, PodAddress, PodNet};

fn net(netns: PathBuf, host_ifname: &str, addr: IpAddr) -> PodNet {
    PodNet {
        netns,
        ifname: "eth0".into(),
        host_ifname: host_ifname.into(),
        alias: names::alias("floor", "eth0"),
        mtu: 9001,
        addresses: vec![PodAddress::new(addr, 0, 0)],
    }
}

fn median(mut times: Vec<Duration>) -> u128 {
    times.sort();
    times.get(times.len() / 2).map_or(0, Duration::as_micros)
}

fn ip(words: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let status = Command::new("ip").args(words.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(format!("ip {words}: {status}").into()) }
}

fn measure(node: &str, pod: &str, count: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (mut up, mut quick, mut down) = (Vec::new(), Vec::new(), Vec::new());
    netns::in_netns(&PathBuf::from("/run/netns").join(node), || -> Result<(), Box<dyn Error + Send + Sync>> {
        for _ in 0..count {
            ip(&format!("netns add {pod}"))?;
            let net = net(PathBuf::from("/run/netns").join(pod), "floor0", "10.99.0.7".parse()?);
            let start = Instant::now();
            pod::setup(&net)?;
            up.push(start.elapsed());
            let start = Instant::now();
            pod::unroute(&net.teardown()).into_result()?;
            quick.push(start.elapsed());
            let start = Instant::now();
            pod::teardown(&net.teardown()).into_result()?;
            down.push(start.elapsed());
            ip(&format!("netns del {pod}"))?;
        }
        Ok(())
    })??;
    println!("set-up {} us, unroute {} us, tear-down {} us", median(up), median(quick), median(down));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pod", netns, host, addr] => pod::setup(&net(netns.into(), host, addr.parse()?)).map(drop)?,
        ["unpod", host, addr] => {
            pod::unroute(&net(PathBuf::new(), host, addr.parse()?).teardown()).into_result()?;
        }
        ["loop", count] => {
            let (node, pod) = (format!("floor-n{}", std::process::id()), format!("floor-p{}", std::process::id()));
            ip(&format!("netns add {node}"))?;
            let result = measure(&node, &pod, count.parse()?);
            ip(&format!("netns del {node}"))?;
            result?;
        }
        _ => return Err("usage: floor loop N | pod NETNS HOST ADDRESS | unpod HOST ADDRESS".into()),
    }
    Ok(())
}
