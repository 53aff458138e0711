//! A tiny HTTP server that answers from a closure and can misbehave, and from it: instance metadata out of a map, and
//! an EC2 endpoint that keeps what it was sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What to do with a request.
pub enum Answer {
    /// Status and body.
    Send(u16, String),
    /// Keep the connection and say nothing.
    Hang,
    /// Close the connection.
    Close,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    /// The value of a form field, decoded.
    pub fn field(&self, name: &str) -> Option<String> {
        let pairs = self.body.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (decode(key), decode(value))).find(|(key, _)| key == name).map(|(_, value)| value)
    }

    pub fn action(&self) -> String {
        self.field("Action").unwrap_or_default()
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [a, b, after @ ..]) => {
                let hex = String::from_utf8(vec![*a, *b]).unwrap();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
                rest = after;
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(*other),
        }
        rest = tail;
    }
    String::from_utf8(bytes).unwrap()
}

/// A running server; stops when dropped.
pub struct Stub {
    pub url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    pub async fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (keep, answer) = (seen.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer.clone(), keep.clone()));
            }
        });
        Stub { url, seen, task }
    }

    /// What has been asked so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// Instance metadata that holds `tree` below `/latest/meta-data/`.
    pub async fn imds(tree: BTreeMap<String, String>) -> Stub {
        Stub::start(move |request| match request.path.strip_prefix("/latest/") {
            Some("api/token") if request.method == "PUT" => Answer::Send(200, "a-token".into()),
            _ if request.headers.get("x-aws-ec2-metadata-token").map(String::as_str) != Some("a-token") => {
                Answer::Send(401, String::new())
            }
            Some(path) => match tree.get(path.trim_start_matches("meta-data/").trim_end_matches('/')) {
                Some(text) => Answer::Send(200, text.clone()),
                None => Answer::Send(404, String::new()),
            },
            None => Answer::Send(404, String::new()),
        })
        .await
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: Arc<dyn Fn(&Request) -> Answer + Send + Sync>,
    seen: Arc<Mutex<Vec<Request>>>,
) {
    while let Some(request) = read(&mut stream).await {
        seen.lock().unwrap().push(request.clone());
        match answer(&request) {
            Answer::Send(status, body) => {
                // The SDK insists on the time to live of a token.
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600\r\n\r\n",
                    body.len()
                );
                if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                    return;
                }
            }
            Answer::Hang => {
                // Until the client gives up and closes.
                let _ = stream.read(&mut [0]).await;
                return;
            }
            Answer::Close => return,
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request { method, path, headers, body: String::from_utf8(body).unwrap() })
}

/// The metadata of a plain instance with one interface and one role.
pub fn plain_tree() -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut put = |path: &str, text: &str| tree.insert(path.to_owned(), text.to_owned());
    put("instance-id", "i-0123456789abcdef0");
    put("instance-type", "m5.large");
    put("local-ipv4", "10.0.0.4");
    put("mac", "02:00:00:00:00:01");
    put("placement/availability-zone", "eu-central-1a");
    put("placement/region", "eu-central-1");
    put("iam/security-credentials", "node");
    put(
        "iam/security-credentials/node",
        r#"{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"ASIAROLEOFTHENODE000","SecretAccessKey":"s",
            "Token":"session-of-the-role","LastUpdated":"2026-01-01T00:00:00Z","Expiration":"2099-01-01T00:00:00Z"}"#,
    );
    put("network/interfaces/macs", "02:00:00:00:00:01/");
    add_interface(&mut tree, "02:00:00:00:00:01", &[("device-number", "0"), ("local-ipv4s", "10.0.0.4\n10.0.0.5")]);
    tree
}

/// Adds the subtree of an interface; `more` beside what every interface has. The listing of MACs is the caller's.
pub fn add_interface(tree: &mut BTreeMap<String, String>, mac: &str, more: &[(&str, &str)]) {
    let id = format!("eni-{}", mac.replace(':', ""));
    let mut fields = vec![
        ("interface-id", id.as_str()),
        ("subnet-id", "subnet-0000000000000000a"),
        ("vpc-id", "vpc-0123456789abcdef0"),
        ("security-group-ids", "sg-1\nsg-2"),
        ("vpc-ipv4-cidr-blocks", "10.0.0.0/16\n100.64.0.0/16"),
    ];
    fields.extend_from_slice(more);
    let base = format!("network/interfaces/macs/{mac}");
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    tree.insert(base.clone(), names.join("\n"));
    for (name, text) in fields {
        tree.insert(format!("{base}/{name}"), text.to_owned());
    }
}
