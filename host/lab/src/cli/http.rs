//! One GET over ipamd's introspection socket. Plain HTTP/1.1 with `Connection: close`: all that the few pages need,
//! and no reason to bring a client along.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Failure;

/// Where ipamd answers unless told otherwise.
pub const SOCKET: &str = "/run/wipam/introspect.sock";

/// Longest wait for a byte. The pages are made in milliseconds; a record of some MiB takes longer to copy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most bytes of an answer.
const MOST: u64 = 1 << 30;

/// GETs a page from `socket`: a path, `unix:PATH`, or `HOST:PORT`.
///
/// # Errors
/// Nobody listens, or the daemon says why it has no answer; with what helps.
pub fn get(socket: &str, page: &str) -> Result<Vec<u8>, Failure> {
    let answer = exchange(socket, page).map_err(|e| Failure::new(unreachable(socket, &e)))?;
    let (status, body) = parse(&answer).map_err(|why| {
        Failure::new(format!("{socket} does not answer as ipamd does ({why}); give --socket the introspection socket"))
    })?;
    match status {
        200 => Ok(body),
        404 => {
            Err(Failure::new(format!("ipamd at {socket} has no page {page}: it is of another version than this wipam")))
        }
        _ => Err(Failure::new(format!("ipamd at {socket} answers {status}: {}", reason(&body)))),
    }
}

fn exchange(socket: &str, page: &str) -> std::io::Result<Vec<u8>> {
    let path = socket.strip_prefix("unix:").unwrap_or(socket);
    let request = format!("GET {page} HTTP/1.1\r\nHost: ipamd\r\nConnection: close\r\nAccept: */*\r\n\r\n");
    let mut answer = Vec::new();
    if !path.contains('/') && path.contains(':') {
        let mut stream = TcpStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        stream.take(MOST).read_to_end(&mut answer)?;
    } else {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        stream.take(MOST).read_to_end(&mut answer)?;
    }
    Ok(answer)
}

fn unreachable(socket: &str, error: &std::io::Error) -> String {
    let mend = match error.kind() {
        std::io::ErrorKind::NotFound => {
            "ipamd does not run here, or listens elsewhere: start it, or give --socket what `ipamd --print-config` shows as introspection"
        }
        std::io::ErrorKind::ConnectionRefused => "nobody listens there any more: start ipamd, and look at its log",
        std::io::ErrorKind::PermissionDenied => "the socket is for root alone: run wipam as root",
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "ipamd hangs: look at its log",
        _ => "look whether ipamd runs, and at its log",
    };
    format!("ipamd does not answer at {socket}: {error}; {mend}")
}

/// The daemon's own words, or the bytes.
fn reason(body: &[u8]) -> String {
    serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|v| v.get("error")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned())
}

fn parse(answer: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or("no HTTP head")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "an HTTP head that is no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let status = status
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| format!("its first line is {status:?}"))?;
    let header = |name: &str| {
        head.split("\r\n")
            .filter_map(|l| l.split_once(':'))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    };
    let body = &answer[end + 4..];
    if header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        return Ok((status, unchunk(body)?));
    }
    if let Some(length) = header("content-length").and_then(|v| v.parse::<usize>().ok())
        && body.len() < length
    {
        return Err(format!("the answer breaks off after {} of {length} bytes", body.len()));
    }
    Ok((status, body.to_vec()))
}

fn unchunk(mut body: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    loop {
        let line = body.windows(2).position(|w| w == b"\r\n").ok_or("the answer breaks off")?;
        let size = std::str::from_utf8(&body[..line]).ok().and_then(|t| t.split(';').next());
        let size = size.and_then(|t| usize::from_str_radix(t.trim(), 16).ok()).ok_or("a chunk without a size")?;
        if size == 0 {
            return Ok(out);
        }
        let chunk = body.get(line + 2..line + 2 + size).ok_or("the answer breaks off")?;
        out.extend_from_slice(chunk);
        body = body.get(line + 4 + size..).ok_or("the answer breaks off")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_whole_chunked_and_broken() {
        let ok = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
        assert_eq!(ok, (200, b"hi".to_vec()));
        let chunked =
            parse(b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x\r\n!\r\n0\r\n\r\n").unwrap();
        assert_eq!(chunked, (503, b"hi!".to_vec()));
        for broken in [&b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"[..], b"ssh-2.0", b"", b"junk\r\n\r\n"] {
            assert!(parse(broken).is_err());
        }
    }

    #[test]
    fn nobody_there_is_told_with_the_mend() {
        let error = get("/no/such/socket", "/v1/status").unwrap_err();
        assert!(error.text.contains("/no/such/socket") && error.text.contains("--print-config"), "{}", error.text);
    }
}
