//! boto3 drives the API (`boto3/ec2.py`), and the same script drives moto, which keeps the script honest. The Python
//! environment is made once, beside the build's other products.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::net::TcpListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use wipam_vpc_sim::model::{InstanceConfig, Vpc, VpcConfig};
use wipam_vpc_sim::{Sim, serve_api};

const PACKAGES: [&str; 2] = ["boto3", "moto[server,ec2]"];

/// The environment's directory, made on first use and kept. A finished one has a mark in it.
fn environment() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boto3-venv");
        let mark = place.join("complete");
        if !mark.exists() {
            run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place));
            run(Command::new(place.join("bin/pip")).args(["install", "--quiet"]).args(PACKAGES));
            std::fs::write(mark, "").unwrap();
        }
        place
    })
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}; install python3 with venv"));
    assert!(status.success(), "{command:?} ended with {status}");
}

async fn script(endpoint: &str, more: &[&str]) {
    let output = tokio::process::Command::new(environment().join("bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boto3/ec2.py"))
        .arg(endpoint)
        .args(more)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(120), output).await.expect("done in 120 s").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_understands_the_api() {
    let mut config = VpcConfig::default();
    let subnet = config.subnets[0].id.clone();
    let id = "i-0aaaaaaaaaaaaaaaa".into();
    config.instances.push(InstanceConfig { id, subnet, public_ip: true, ..Default::default() });
    let sim = Arc::new(Sim::new(Vpc::new(config).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve_api(listener, sim, std::future::pending()));
    script(&endpoint, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moto_agrees_with_the_script() {
    let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new(environment().join("bin/moto_server"))
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Ends(server.unwrap());
    let up = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), up).await.expect("moto_server listens within 60 s");
    script(&format!("http://127.0.0.1:{port}"), &["--moto"]).await;
}
