//! `wipam-demo`: a simulated VPC with two nodes, each with a containerd and an ipamd; pods that talk; a second interface;
//! policies swapped and refused while pods come; a daemon killed; what happened, replayed under another policy. Each
//! step is verified: the exit code says whether all of it held.

#![forbid(unsafe_code)]

mod offline;
mod screen;
mod story;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use wipam_e2e::programs::{bin_dir, is_root};
use wipam_e2e::{Cluster, Options, missing};
use wipam_vpc_sim::model::Timing;

use screen::{Screen, say};
use story::Story;

const HELP: &str = "\
Two simulated EC2 nodes with containerd, ipamd and the plugin, and a story about them in verified steps.

Usage: wipam-demo [--keep] [--once]

  --keep   leave everything running at the end, until Ctrl-C, and say how to look at it
  --once   keep no files for the next run (the pods' image, the record of a node)

Everything it starts is taken away at the end, after a failure, and on Ctrl-C; what a killed run left goes with the next.
Without root or containerd it says what it skips and runs the rest.

Exit codes: 0 every step held; 1 one did not (its text says which and why); 64 wrong arguments; 130 interrupted.
";

/// What the command line asked for.
#[derive(Clone, Copy, Default)]
struct Args {
    keep: bool,
    once: bool,
}

fn main() -> ExitCode {
    let mut args = Args::default();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--keep" => args.keep = true,
            "--once" => args.once = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("wipam-demo: unknown argument {other:?}\n\n{HELP}");
                return ExitCode::from(64);
            }
        }
    }
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = std::io::stdout().flush();
            eprintln!("wipam-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where files are kept between runs: beside the binaries, so that whatever removes those removes these.
fn cache() -> PathBuf {
    bin_dir().join("wipam-demo-files")
}

fn run(args: Args) -> Result<()> {
    let cache = cache();
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let packages = missing();
    let outcome = if is_root() && packages.is_empty() {
        online(args, &cache)
    } else {
        let why = match is_root() {
            false => "this is not root".to_owned(),
            true => format!("missing: apt-get install -y --no-install-recommends {}", packages.join(" ")),
        };
        println!("Skipped: nodes, containers, pods that talk, a killed daemon ({why}).");
        println!("What runs anywhere: a node in virtual time, under several policies.\n");
        offline::run(&cache)
    };
    if args.once {
        std::fs::remove_dir_all(&cache).with_context(|| format!("cannot remove {}", cache.display()))?;
    }
    outcome
}

fn online(args: Args, cache: &Path) -> Result<()> {
    let mut screen = Screen::new("wipam: pods on simulated EC2 nodes get addresses that WebAssembly policies choose");
    let options = Options {
        // Three interfaces of six addresses: small enough to fill one.
        instance_type: "t3.medium".into(),
        // Addresses rest so shortly only here, where the same few are used again and again.
        env: vec![("IP_COOLDOWN_PERIOD".into(), "2".into())],
        policies: Some(story::FIRST_POLICIES.into()),
        timing: Timing::typical(),
        cache: Some(cache.to_owned()),
        ..Options::default()
    };
    let cluster = screen.step("A VPC with two nodes; on each a containerd and an ipamd", || {
        let cluster = Cluster::up(&options)?;
        story::introduce(&cluster)?;
        Ok(cluster)
    })?;
    let mut story = Story::new(&cluster, cache);
    screen.step("Pods on both nodes, by way of the container runtime", || story.pods())?;
    screen
        .step("They talk: on one node, across nodes, with the internet; a forged source does not", || story.talk())?;
    screen.step("More pods than one interface has addresses: a second one comes", || story.second_interface())?;
    screen.step("Another policy takes over while pods come and go", || story.swap())?;
    screen.step("Hostile policies are refused, or outlived", || story.hostile())?;
    screen.step("kill -9 for a daemon while its pods run", || story.kill())?;
    screen.step("What happened on a node, again under another policy", || story.replay())?;
    if args.keep {
        keep(&cluster);
    }
    screen.step("Everything is taken away", || {
        let dir = cluster.dir().to_owned();
        cluster.down()?;
        anyhow::ensure!(!dir.exists(), "{} is still there", dir.display());
        Ok(())
    })?;
    screen.end();
    Ok(())
}

/// Waits for Ctrl-C, which the cluster itself handles.
fn keep(cluster: &Cluster) {
    println!("Everything stays until Ctrl-C. Logs, sockets and state: {}", cluster.dir().display());
    for node in cluster.nodes() {
        say(format!("node {}: nsenter --net=/run/netns/{} bash", node.id(), node.netns()));
        let socket = node.dir().join("run/introspect.sock");
        say(format!("  curl -s --unix-socket {} http://localhost/v1/status", socket.display()));
        say(format!("  ctr -a {} -n k8s.io containers ls", node.dir().join("ctd/c.sock").display()));
    }
    loop {
        std::thread::park();
    }
}
