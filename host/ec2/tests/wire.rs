//! What goes over the wire and what is made of answers that a well-behaved EC2 never gives. Each test talks to a small
//! server of its own on loopback.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml lets only the test functions themselves off

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wipam_core::cloud::{Call, CloudError, EniKind, ErrorKind, Reply};
use wipam_ec2::{Cloud, Ec2, Facts, FactsError, Limits, Observer, Report, Settings};

#[path = "wire/stub.rs"]
mod stub;
use stub::{Answer, Request, Stub, add_interface, plain_tree};

const TWO: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 4), Ipv4Addr::new(10, 0, 0, 5)];

fn settings(ec2: &str, imds: &str) -> Settings {
    Settings {
        ec2_endpoint: Some(ec2.into()),
        imds_endpoint: Some(imds.into()),
        timeout: Duration::from_secs(5),
        ..Settings::default()
    }
}

async fn connected(ec2: &str) -> (Ec2, Stub) {
    let imds = Stub::imds(plain_tree()).await;
    let cloud = Ec2::connect(settings(ec2, &imds.url), Arc::new(())).await.unwrap();
    (cloud, imds)
}

async fn failure(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> (CloudError, usize) {
    let ec2 = Stub::start(answer).await;
    let (cloud, _imds) = connected(&ec2.url).await;
    let error = cloud.call(&delete()).await.unwrap_err();
    (error, ec2.seen().len())
}

fn delete() -> Call {
    Call::DeleteEni { eni: "eni-1".into() }
}

fn refusal(code: &str) -> String {
    format!("<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>")
}

fn done(action: &str) -> String {
    format!("<{action}Response><requestId>r</requestId><return>true</return></{action}Response>")
}

#[tokio::test]
async fn ec2_codes_arrive_as_kinds_after_one_attempt() {
    let cases = [
        ("RequestLimitExceeded", 503, ErrorKind::Throttled),
        ("InternalError", 500, ErrorKind::ServerError),
        ("Unavailable", 503, ErrorKind::ServerError),
        ("UnauthorizedOperation", 403, ErrorKind::NotAuthorised),
        ("AuthFailure", 401, ErrorKind::NotAuthorised),
        ("InvalidNetworkInterfaceID.NotFound", 400, ErrorKind::NotFound),
        ("InvalidNetworkInterface.InUse", 400, ErrorKind::InUse),
        ("NobodyKnowsThis", 400, ErrorKind::Refused),
        ("NobodyKnowsThis", 500, ErrorKind::ServerError),
    ];
    for (code, status, kind) in cases {
        let (error, requests) = failure(move |_| Answer::Send(status, refusal(code))).await;
        assert_eq!((error.kind, error.code.as_str(), requests), (kind, code, 1), "{error}");
    }
}

#[tokio::test]
async fn no_connection_is_known_to_have_changed_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (cloud, _imds) = connected(&url).await;
    let error = cloud.call(&delete()).await.unwrap_err();
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Refused, "NotConnected"), "{error}");
}

#[tokio::test]
async fn a_connection_closed_without_answer_leaves_it_open_what_happened() {
    let (error, requests) = failure(|_| Answer::Close).await;
    assert_eq!((error.kind, error.code.as_str(), requests), (ErrorKind::NoAnswer, "ConnectionReset", 1), "{error}");
}

#[tokio::test]
async fn silence_ends_with_the_timeout() {
    let ec2 = Stub::start(|_| Answer::Hang).await;
    let imds = Stub::imds(plain_tree()).await;
    let settings = Settings { timeout: Duration::from_millis(300), ..settings(&ec2.url, &imds.url) };
    let cloud = Ec2::connect(settings, Arc::new(())).await.unwrap();
    let start = std::time::Instant::now();
    let error = cloud.call(&delete()).await.unwrap_err();
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::NoAnswer, "Timeout"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(ec2.seen().len(), 1);
}

#[tokio::test]
async fn answers_that_are_no_answers() {
    let page = "<html>Bad Gateway</html>";
    let (error, _) = failure(move |_| Answer::Send(502, page.into())).await;
    assert!(error.kind.ambiguous(), "{error:?}");
    let (error, _) = failure(move |_| Answer::Send(500, String::new())).await;
    assert!(error.kind.ambiguous(), "{error:?}");
    let (error, _) = failure(move |_| Answer::Send(403, page.into())).await;
    assert_eq!(error.kind, ErrorKind::Refused, "{error:?}");

    let attach = Call::AttachEni { eni: "eni-1".into(), device: 1, card: 0 };
    for body in [done("AttachNetworkInterface"), "nonsense".into(), String::new()] {
        let ec2 = Stub::start(move |_| Answer::Send(200, body.clone())).await;
        let (cloud, _imds) = connected(&ec2.url).await;
        let error = cloud.call(&attach).await.unwrap_err();
        assert_eq!((error.kind, error.code.as_str()), (ErrorKind::NoAnswer, "UnreadableAnswer"), "{error}");
    }
}

const CREATED: &str = "<CreateNetworkInterfaceResponse><networkInterface>\
    <networkInterfaceId>eni-7</networkInterfaceId><subnetId>subnet-1</subnetId><macAddress>02:AA:00:00:00:07</macAddress>\
    <privateIpAddress>10.0.0.9</privateIpAddress><status>pending</status><privateIpAddressesSet>\
    <item><privateIpAddress>10.0.0.9</privateIpAddress><primary>true</primary></item>\
    <item><privateIpAddress>10.0.0.10</privateIpAddress><primary>false</primary></item>\
    </privateIpAddressesSet></networkInterface></CreateNetworkInterfaceResponse>";

#[tokio::test]
async fn a_creation_says_whose_it_is_and_repeats_itself_to_the_letter() {
    let ec2 = Stub::start(|_| Answer::Send(200, CREATED.into())).await;
    let imds = Stub::imds(plain_tree()).await;
    let settings = Settings {
        cluster: Some("blue".into()),
        tags: [("team".to_owned(), "net".to_owned())].into(),
        ..settings(&ec2.url, &imds.url)
    };
    let cloud = Ec2::connect(settings, Arc::new(())).await.unwrap();
    let create =
        |token: &str| Call::CreateEni { subnet: "subnet-1".into(), addresses: 1, prefixes: 0, token: token.into() };
    let Reply::Created(made) = cloud.call(&create("t-1")).await.unwrap() else { panic!("not Created") };
    assert_eq!((made.id.as_str(), made.mac.as_str()), ("eni-7", "02:aa:00:00:00:07"));
    assert_eq!(
        (made.primary, made.addresses.as_slice()),
        (Ipv4Addr::new(10, 0, 0, 9), &[Ipv4Addr::new(10, 0, 0, 10)][..])
    );
    assert_eq!((made.device, made.attachment), (None, None));

    // A second later the time of creation would differ, if it were taken anew.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cloud.call(&create("t-1")).await.unwrap();
    cloud.call(&create("t-2")).await.unwrap();
    let seen = ec2.seen();
    assert_eq!(seen[0].body, seen[1].body);
    assert_ne!(seen[0].body, seen[2].body);

    let field = |name: &str| seen[0].field(name).unwrap_or_else(|| panic!("{name} is missing in {}", seen[0].body));
    assert_eq!(field("ClientToken"), "t-1");
    assert_eq!(field("Description"), "aws-K8S-i-0123456789abcdef0");
    assert_eq!((field("SecurityGroupId.1"), field("SecurityGroupId.2")), ("sg-1".into(), "sg-2".into()));
    assert_eq!(field("SecondaryPrivateIpAddressCount"), "1");
    assert_eq!(seen[0].field("Ipv4PrefixCount"), None);
    assert_eq!(field("TagSpecification.1.ResourceType"), "network-interface");
    let tags: std::collections::BTreeMap<String, String> = (1..=5)
        .map(|n| {
            (field(&format!("TagSpecification.1.Tag.{n}.Key")), field(&format!("TagSpecification.1.Tag.{n}.Value")))
        })
        .collect();
    assert_eq!(tags["node.k8s.amazonaws.com/instance_id"], "i-0123456789abcdef0");
    assert_eq!(tags["cluster.k8s.amazonaws.com/name"], "blue");
    assert_eq!(tags["eks:eni:owner"], "amazon-vpc-cni");
    assert_eq!(tags["team"], "net");
    let created_at = &tags["node.k8s.amazonaws.com/createdAt"];
    assert!(created_at.len() == 20 && created_at.ends_with('Z') && created_at.contains('T'), "{created_at}");
}

#[tokio::test]
async fn invalid_parameter_for_a_full_subnet_is_told_from_other_mistakes_by_the_free_count() {
    for (free, kind) in [(2, ErrorKind::SubnetFull), (200, ErrorKind::Refused)] {
        let ec2 = Stub::start(move |request| match request.action().as_str() {
            "DescribeSubnets" => Answer::Send(
                200,
                format!(
                    "<DescribeSubnetsResponse><subnetSet><item><subnetId>subnet-1</subnetId>\
                     <cidrBlock>10.0.0.0/24</cidrBlock><availableIpAddressCount>{free}</availableIpAddressCount>\
                     <availabilityZone>eu-central-1a</availabilityZone></item></subnetSet></DescribeSubnetsResponse>"
                ),
            ),
            _ => Answer::Send(400, refusal("InvalidParameterValue")),
        })
        .await;
        let (cloud, _imds) = connected(&ec2.url).await;
        let create = Call::CreateEni { subnet: "subnet-1".into(), addresses: 5, prefixes: 0, token: "t".into() };
        let error = cloud.call(&create).await.unwrap_err();
        assert_eq!((error.kind, error.code.as_str()), (kind, "InvalidParameterValue"));
    }
}

#[tokio::test]
async fn requests_are_signed_with_the_role_that_metadata_hands_out() {
    let ec2 = Stub::start(|request| Answer::Send(200, done(&request.action()))).await;
    let (cloud, _imds) = connected(&ec2.url).await;
    cloud.call(&delete()).await.unwrap();
    let headers = &ec2.seen()[0].headers;
    let authorization = &headers["authorization"];
    assert!(authorization.contains("Credential=ASIAROLEOFTHENODE000/"), "{authorization}");
    assert!(authorization.contains("/eu-central-1/ec2/aws4_request"), "{authorization}");
    assert_eq!(headers["x-amz-security-token"], "session-of-the-role");
    assert!(headers["user-agent"].contains("app/wipam"), "{}", headers["user-agent"]);
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let ec2 = Stub::start(|request| Answer::Send(200, done(&request.action()))).await;
    let mut tree = plain_tree();
    tree.retain(|path, _| !path.starts_with("iam/"));
    let imds = Stub::imds(tree).await;
    let cloud = Ec2::connect(settings(&ec2.url, &imds.url), Arc::new(())).await.unwrap();
    let error = cloud.call(&delete()).await.unwrap_err();
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::NotAuthorised, "NoCredentials"), "{error}");
    assert!(ec2.seen().is_empty());
}

/// All settings from the environment, as in production. Runs in a process of its own, since the environment is shared.
#[tokio::test]
async fn region_credentials_and_endpoints_come_from_the_standard_chain() {
    let empty = "<DescribeNetworkInterfacesResponse><networkInterfaceSet/></DescribeNetworkInterfacesResponse>";
    let imds = Stub::imds(plain_tree()).await;
    let ec2 = Stub::start(move |_| Answer::Send(200, empty.into())).await;
    for variable in ["AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL"] {
        let before = ec2.seen().len();
        let output = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_the_standard_chain", "--ignored", "--nocapture"])
            .env_clear()
            .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", &imds.url)
            .env(variable, &ec2.url)
            .env("AWS_REGION", "us-west-2")
            .env("AWS_ACCESS_KEY_ID", "AKIDOFTHEENVIRONMENT")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("HOME", "/nonexistent")
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{variable}: {}", String::from_utf8_lossy(&output.stderr));
        let seen = ec2.seen();
        assert_eq!(seen.len(), before + 2, "{variable}");
        let authorization = &seen[before].headers["authorization"];
        assert!(authorization.contains("Credential=AKIDOFTHEENVIRONMENT/"), "{authorization}");
        assert!(authorization.contains("/us-west-2/ec2/"), "{authorization}");
    }
}

#[tokio::test]
#[ignore = "the other half of region_credentials_and_endpoints_come_from_the_standard_chain, which starts it"]
async fn child_of_the_standard_chain() {
    let cloud = Ec2::connect(Settings::default(), Arc::new(())).await.unwrap();
    assert_eq!(cloud.call(&Call::DescribeEnis).await, Ok(Reply::Enis(Vec::new())));
}

#[tokio::test]
async fn metadata_that_is_down_is_named_with_what_is_waited_for() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let start = std::time::Instant::now();
    let Err(error) = Ec2::connect(settings("http://127.0.0.1:1", &url), Arc::new(())).await else {
        panic!("connected")
    };
    assert!(matches!(error, FactsError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("waiting for instance metadata at http://127.0.0.1:") && text.contains("hop limit"),
        "{text}"
    );
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test]
async fn metadata_that_refuses_or_lies_is_told_apart() {
    let off = Stub::start(|_| Answer::Send(403, String::new())).await;
    let Err(error) = Ec2::connect(settings("http://127.0.0.1:1", &off.url), Arc::new(())).await else { panic!() };
    assert!(error.to_string().contains("IMDS is disabled"), "{error:?}: {error}");

    let mut tree = plain_tree();
    tree.insert("local-ipv4".into(), "<html>".into());
    let lying = Stub::imds(tree).await;
    let Err(error) = Ec2::connect(settings("http://127.0.0.1:1", &lying.url), Arc::new(())).await else { panic!() };
    assert_eq!(error.to_string(), r#"instance metadata local-ipv4 is "<html>", which is not an IPv4 address"#);
}

#[tokio::test]
async fn unusable_endpoints_are_refused_at_the_start() {
    let imds = Stub::imds(plain_tree()).await;
    for url in ["ec2.example", "ftp://ec2.example", "https://", ""] {
        let Err(error) = Ec2::connect(settings(url, &imds.url), Arc::new(())).await else { panic!("{url}") };
        assert!(matches!(error, FactsError::Setting { setting: "EC2 endpoint", .. }), "{error:?}");
    }
    let Err(error) = Ec2::connect(settings("http://x", "not a url"), Arc::new(())).await else { panic!() };
    assert!(matches!(error, FactsError::Setting { setting: "metadata endpoint", .. }), "{error:?}");
}

#[tokio::test]
async fn the_metadata_tree_with_all_its_oddities() {
    let mut tree = plain_tree();
    let macs =
        ["02:00:00:00:00:01/", "02:00:00:00:00:0A/", "02:00:00:00:00:03/", "02:00:00:00:00:04/", "02:00:00:00:00:05/"];
    tree.insert("network/interfaces/macs".into(), macs.join("\n"));
    let prefixes = "10.0.0.16/28\n10.0.0.32/28";
    let second = [
        ("device-number", "1"),
        ("local-ipv4s", "10.0.0.9"),
        ("ipv4-prefix", prefixes),
        ("subnet-ipv4-cidr-block", "10.0.0.0/24"),
    ];
    add_interface(&mut tree, "02:00:00:00:00:0A", &second);
    // EFA without IP on another card; one that is listed but gone; one whose number has not come yet.
    add_interface(&mut tree, "02:00:00:00:00:03", &[("device-number", "1"), ("network-card", "1")]);
    add_interface(&mut tree, "02:00:00:00:00:05", &[("local-ipv4s", "10.0.0.77")]);
    let imds = Stub::imds(tree).await;
    let limits = Limits { max_enis: 3, ipv4_per_eni: 10, prefix_capable: true };
    let settings = Settings { limits: Some(limits), ..settings("http://127.0.0.1:1", &imds.url) };
    let cloud = Ec2::connect(settings, Arc::new(())).await.unwrap();

    let enis = cloud.attached().await.unwrap();
    let ids: Vec<(&str, Option<u8>, u8)> = enis.iter().map(|eni| (eni.id.as_str(), eni.device, eni.card)).collect();
    assert_eq!(
        ids,
        [("eni-020000000001", Some(0), 0), ("eni-02000000000A", Some(1), 0), ("eni-020000000003", Some(1), 1)]
    );
    assert_eq!((enis[0].primary, enis[0].addresses.as_slice(), enis[0].subnet_cidr), (TWO[0], &TWO[1..], None));
    assert_eq!(enis[1].mac, "02:00:00:00:00:0a");
    assert_eq!(enis[1].prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), prefixes);
    assert_eq!(enis[1].subnet_cidr, Some("10.0.0.0/24".parse().unwrap()));
    assert_eq!((enis[2].kind, enis[2].primary), (EniKind::EfaOnly, Ipv4Addr::UNSPECIFIED));

    let facts = cloud.instance().await.unwrap();
    assert_eq!((facts.instance.as_str(), facts.region.as_str()), ("i-0123456789abcdef0", "eu-central-1"));
    assert_eq!((facts.vpc.as_str(), facts.zone.as_str()), ("vpc-0123456789abcdef0", "eu-central-1a"));
    assert_eq!(facts.vpc_cidrs, ["10.0.0.0/16".parse().unwrap(), "100.64.0.0/16".parse().unwrap()]);
    assert_eq!(facts.security_groups, ["sg-1", "sg-2"]);
    assert_eq!((facts.max_enis, facts.ipv4_per_eni, facts.prefix_capable), (3, 10, true));
}

#[tokio::test]
async fn limits_are_those_of_card_0_asked_for_once_and_an_error_says_how_to_do_without() {
    let body = |network: &str| {
        format!(
            "<DescribeInstanceTypesResponse><instanceTypeSet><item><instanceType>m5.large</instanceType>\
             <hypervisor>nitro</hypervisor><networkInfo>{network}</networkInfo></item></instanceTypeSet>\
             </DescribeInstanceTypesResponse>"
        )
    };
    let whole = "<maximumNetworkInterfaces>60</maximumNetworkInterfaces>\
                 <ipv4AddressesPerInterface>50</ipv4AddressesPerInterface>";
    let cards = "<networkCards><item><networkCardIndex>1</networkCardIndex>\
                 <maximumNetworkInterfaces>8</maximumNetworkInterfaces></item><item><networkCardIndex>0</networkCardIndex>\
                 <maximumNetworkInterfaces>15</maximumNetworkInterfaces></item></networkCards>";
    for (network, max) in [(whole.to_owned(), 60), (format!("{whole}{cards}"), 15)] {
        let answer = body(&network);
        let ec2 = Stub::start(move |_| Answer::Send(200, answer.clone())).await;
        let (cloud, _imds) = connected(&ec2.url).await;
        for _ in 0..2 {
            let facts = cloud.instance().await.unwrap();
            assert_eq!((facts.max_enis, facts.ipv4_per_eni, facts.prefix_capable), (max, 50, true));
        }
        assert_eq!(ec2.seen().len(), 1);
    }
    let ec2 = Stub::start(|_| Answer::Send(403, refusal("UnauthorizedOperation"))).await;
    let (cloud, _imds) = connected(&ec2.url).await;
    let error = cloud.instance().await.unwrap_err();
    assert!(matches!(&error, FactsError::Limits { source, .. } if source.kind == ErrorKind::NotAuthorised));
    assert!(error.to_string().contains("m5.large"), "{error}");
}

#[derive(Default)]
struct Reports(Mutex<Vec<(&'static str, String, bool, u32)>>);

impl Observer for Reports {
    fn observed(&self, report: &Report<'_>) {
        let waited = !report.waited.is_zero();
        self.0.lock().unwrap().push((report.action, report.outcome.to_owned(), waited, report.attempt));
    }
}

#[tokio::test]
async fn each_request_is_reported_and_throttling_slows_the_next_down() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let ec2 = Stub::start(move |request| match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Answer::Send(503, refusal("RequestLimitExceeded")),
        _ => Answer::Send(200, done(&request.action())),
    })
    .await;
    let imds = Stub::imds(plain_tree()).await;
    let reports = Arc::new(Reports::default());
    let settings =
        Settings { rate: 5.0, burst: 10, max_wait: Duration::from_millis(250), ..settings(&ec2.url, &imds.url) };
    let cloud = Ec2::connect(settings, reports.clone()).await.unwrap();
    assert_eq!(cloud.call(&delete()).await.unwrap_err().kind, ErrorKind::Throttled);
    // The bucket is empty now: the next waits a fifth of a second, and of two at once the second would wait too long.
    let call = delete();
    let (first, second) = tokio::join!(cloud.call(&call), cloud.call(&call));
    first.unwrap();
    let error = second.unwrap_err();
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Throttled, "LocalRateLimit"), "{error}");
    cloud.call(&call).await.unwrap();
    let action = "DeleteNetworkInterface";
    let expected = [
        (action, "RequestLimitExceeded".to_owned(), false, 1),
        (action, "LocalRateLimit".to_owned(), false, 2),
        (action, "ok".to_owned(), true, 2),
        (action, "ok".to_owned(), true, 1),
    ];
    assert_eq!(*reports.0.lock().unwrap(), expected);
    assert_eq!(ec2.seen().len(), 3);
}

#[tokio::test]
async fn an_endpoint_whose_pages_never_end_is_left() {
    let page = "<DescribeNetworkInterfacesResponse><networkInterfaceSet/><nextToken>again</nextToken>\
                </DescribeNetworkInterfacesResponse>";
    let ec2 = Stub::start(move |_| Answer::Send(200, page.into())).await;
    let imds = Stub::imds(plain_tree()).await;
    let settings = Settings { rate: f64::INFINITY, ..settings(&ec2.url, &imds.url) };
    let cloud = Ec2::connect(settings, Arc::new(())).await.unwrap();
    let error = cloud.call(&Call::DescribeEnis).await.unwrap_err();
    assert_eq!(error.code, "UnreadableAnswer", "{error}");
}
