//! The servers over real HTTP on loopback: signature shapes, error documents, lost replies, metadata, control surface.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wipam_vpc_sim::model::{FaultEffect, FaultRule, InstanceConfig, Latency, Vpc, VpcConfig};
use wipam_vpc_sim::{ImdsOptions, Sim, access_key_of, serve_api, serve_imds};

const SUBNET: &str = "subnet-0000000000000000a";

fn sim() -> Arc<Sim> {
    let mut config = VpcConfig::default();
    config.instances.push(InstanceConfig { id: "i-0a".into(), subnet: SUBNET.into(), ..Default::default() });
    Arc::new(Sim::new(Vpc::new(config).unwrap()))
}

async fn api(sim: &Arc<Sim>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(serve_api(listener, Arc::clone(sim), std::future::pending()));
    addr
}

async fn imds(sim: &Arc<Sim>, instance: Option<&str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let options = ImdsOptions { instance: instance.map(str::to_owned), hop_limit: Some(1) };
    tokio::spawn(serve_imds(listener, Arc::clone(sim), options, std::future::pending()));
    addr
}

/// Status and body; `None` when the connection ended without an answer.
async fn http(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A broken connection may show as a reset.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(10), exchange).await.expect("no answer in 10 s")
}

fn date(offset_s: i64) -> String {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    (OffsetDateTime::now_utc() + time::Duration::seconds(offset_s)).format(format).unwrap()
}

fn authorization(date: &str, key: &str, region: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential={key}/{}/{region}/ec2/aws4_request, SignedHeaders=host;x-amz-date, Signature={}",
        &date[..8],
        "a".repeat(64)
    )
}

async fn call_as(addr: SocketAddr, key: &str, form: &str) -> Option<(u16, String)> {
    let date = date(0);
    let authorization = authorization(&date, key, "eu-central-1");
    http(addr, "POST", "/", &[("x-amz-date", &date), ("authorization", &authorization)], form).await
}

async fn call(addr: SocketAddr, form: &str) -> (u16, String) {
    call_as(addr, "AKIATEST", form).await.expect("an answer")
}

fn code(body: &str) -> &str {
    body.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next()).unwrap_or("no error")
}

#[tokio::test]
async fn signature_shapes() {
    let addr = api(&sim()).await;
    let form = "Action=DescribeVpcs&Version=2016-11-15";
    assert_eq!(call(addr, form).await.0, 200);
    let now = date(0);
    let old = date(-3600);
    let good = authorization(&now, "AKIATEST", "eu-central-1");
    let abroad = authorization(&now, "AKIATEST", "us-east-1");
    let late = authorization(&old, "AKIATEST", "eu-central-1");
    let short = good.replace(&"a".repeat(64), "abc");
    let unsigned = good.replace("host;x-amz-date", "host");
    let broken = good.replace("Signature=", "Signatur=");
    for (headers, status, wanted) in [
        (vec![], 403, "MissingAuthenticationToken"),
        (vec![("authorization", good.as_str())], 400, "IncompleteSignature"),
        (vec![("authorization", "Basic abc"), ("x-amz-date", &now)], 401, "AuthFailure"),
        (vec![("authorization", &abroad), ("x-amz-date", &now)], 401, "AuthFailure"),
        (vec![("authorization", &short), ("x-amz-date", &now)], 401, "AuthFailure"),
        (vec![("authorization", &unsigned), ("x-amz-date", &now)], 401, "AuthFailure"),
        (vec![("authorization", &broken), ("x-amz-date", &now)], 400, "IncompleteSignature"),
        (vec![("authorization", &late), ("x-amz-date", &old)], 400, "RequestExpired"),
    ] {
        let (got, body) = http(addr, "POST", "/", &headers, form).await.unwrap();
        assert_eq!((got, code(&body)), (status, wanted), "{headers:?}");
    }
}

#[tokio::test]
async fn errors_have_codes() {
    let addr = api(&sim()).await;
    for (form, wanted) in [
        ("Action=MakeCoffee", "InvalidAction"),
        ("Version=2016-11-15", "MissingAction"),
        ("Action=CreateNetworkInterface", "MissingParameter"),
        ("Action=CreateNetworkInterface&SubnetId=subnet-1", "InvalidSubnetID.NotFound"),
        ("Action=AttachNetworkInterface&NetworkInterfaceId=e&InstanceId=i&DeviceIndex=x", "InvalidParameterValue"),
        ("Action=DescribeNetworkInterfaces&Filter.1.Name=colour&Filter.1.Value.1=red", "InvalidParameterValue"),
        ("Action=DescribeNetworkInterfaces&MaxResults=1", "InvalidParameterValue"),
        ("Action=DescribeInstanceTypes&InstanceType.1=m5.tiny", "InvalidInstanceType"),
        ("Action=DeleteNetworkInterface&NetworkInterfaceId=eni-1", "InvalidNetworkInterfaceID.NotFound"),
        ("Action=ModifyNetworkInterfaceAttribute&NetworkInterfaceId=eni-1", "MissingParameter"),
    ] {
        let (status, body) = call(addr, form).await;
        assert_eq!((status, code(&body)), (400, wanted), "{form}");
    }
    assert_eq!(call(addr, "Action=DescribeVpcs&DryRun=true").await.0, 412);
}

#[tokio::test]
async fn a_lost_reply_breaks_the_connection_after_the_change() {
    let sim = sim();
    let addr = api(&sim).await;
    sim.lock().add_fault(FaultRule::nth("CreateNetworkInterface", 1, FaultEffect::LostReply));
    let form = format!("Action=CreateNetworkInterface&SubnetId={SUBNET}");
    assert_eq!(call_as(addr, "AKIATEST", &form).await, None);
    assert_eq!(sim.with(|vpc, now_ms| vpc.enis(now_ms)).len(), 2);
    assert_eq!(call(addr, &form).await.0, 200);
}

#[tokio::test]
async fn latency_is_waited_for() {
    let mut config = VpcConfig::default();
    config.timing.latency = BTreeMap::from([("*".to_owned(), Latency { base_ms: 150, jitter_ms: 0 })]);
    let sim = Arc::new(Sim::new(Vpc::new(config).unwrap()));
    let addr = api(&sim).await;
    let before = sim.now_ms();
    call(addr, "Action=DescribeVpcs").await;
    assert!(sim.now_ms() - before >= 150);
}

#[tokio::test]
async fn control_surface_and_callers() {
    let sim = sim();
    let addr = api(&sim).await;
    let key = access_key_of("i-0a");
    let rule = format!(
        r#"{{"action":"CreateNetworkInterface","caller":"{key}","effect":{{"kind":"error","code":"UnauthorizedOperation"}}}}"#
    );
    assert_eq!(http(addr, "POST", "/_sim/faults", &[], &rule).await.unwrap().0, 200);
    let form = format!("Action=CreateNetworkInterface&SubnetId={SUBNET}");
    let (status, body) = call_as(addr, &key, &form).await.unwrap();
    assert_eq!((status, code(&body)), (403, "UnauthorizedOperation"));
    assert_eq!(call(addr, &form).await.0, 200);
    let get = async |path: &str| {
        let (_, body) = http(addr, "GET", path, &[], "").await.unwrap();
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let calls = get("/_sim/calls").await;
    assert_eq!(
        (&calls["CreateNetworkInterface"]["ok"], &calls["CreateNetworkInterface"]["failed"]),
        (&1.into(), &1.into())
    );
    assert_eq!(get("/_sim/faults").await.as_array().unwrap().len(), 1);
    assert_eq!(get("/_sim/state").await["enis"].as_array().unwrap().len(), 2);
    assert_eq!(http(addr, "DELETE", "/_sim/faults", &[], "").await.unwrap().0, 200);
    assert_eq!(call_as(addr, &key, &form).await.unwrap().0, 200);
    let (status, body) = http(addr, "POST", "/_sim/faults", &[], r#"{"action":"x"}"#).await.unwrap();
    assert!(status == 400 && body.contains("effect"), "{body}");
    assert_eq!(http(addr, "DELETE", "/_sim/instances/i-0a", &[], "").await.unwrap().0, 200);
    assert_eq!(http(addr, "DELETE", "/_sim/instances/i-0a", &[], "").await.unwrap().0, 404);
}

#[tokio::test]
async fn metadata_needs_a_token() {
    let sim = sim();
    let addr = imds(&sim, Some("i-0a")).await;
    let ttl = "x-aws-ec2-metadata-token-ttl-seconds";
    let put = async |headers: &[(&str, &str)]| http(addr, "PUT", "/latest/api/token", headers, "").await.unwrap();
    assert_eq!(put(&[]).await.0, 400);
    assert_eq!(put(&[(ttl, "0")]).await.0, 400);
    assert_eq!(put(&[(ttl, "21601")]).await.0, 400);
    assert_eq!(put(&[(ttl, "60"), ("x-forwarded-for", "10.0.0.1")]).await.0, 403);
    let (status, token) = put(&[(ttl, "60")]).await;
    assert_eq!(status, 200);
    let read = async |path: &str, token: &str| {
        let headers = [("x-aws-ec2-metadata-token", token)];
        http(addr, "GET", &format!("/latest/{path}"), &headers, "").await.unwrap()
    };
    assert_eq!(read("meta-data/", "").await.0, 401);
    assert_eq!(read("meta-data/", "wrong").await.0, 401);
    assert_eq!(read("meta-data/instance-id", &token).await, (200, "i-0a".into()));
    assert_eq!(read("meta-data/no-such", &token).await.0, 404);
    let eni = sim.with(|vpc, now_ms| vpc.enis(now_ms))[0].clone();
    let macs = "meta-data/network/interfaces/macs";
    assert_eq!(read(macs, &token).await, (200, format!("{}/", eni.mac)));
    let fields = read(&format!("{macs}/{}/", eni.mac), &token).await.1;
    for field in
        ["device-number", "interface-id", "local-ipv4s", "subnet-id", "vpc-ipv4-cidr-blocks", "security-group-ids"]
    {
        assert!(fields.lines().any(|line| line == field), "{field} is not in {fields}");
    }
    assert!(!fields.contains("ipv4-prefix"));
    assert_eq!(read(&format!("{macs}/{}/subnet-ipv4-cidr-block", eni.mac), &token).await.1, "10.0.0.0/24");
    assert_eq!(read("meta-data/iam/security-credentials/", &token).await.1, "node");
    let credentials = read("meta-data/iam/security-credentials/node", &token).await.1;
    assert!(credentials.contains(&access_key_of("i-0a")), "{credentials}");
    let document = read("dynamic/instance-identity/document", &token).await.1;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&document).unwrap()["region"], "eu-central-1");
}

#[tokio::test]
async fn metadata_knows_callers_by_address() {
    let addr = imds(&sim(), None).await;
    // The loopback address is no instance's.
    let answer = http(addr, "PUT", "/latest/api/token", &[("x-aws-ec2-metadata-token-ttl-seconds", "60")], "").await;
    assert_eq!(answer.unwrap().0, 403);
}
