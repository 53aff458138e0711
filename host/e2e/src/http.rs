//! One HTTP exchange over any stream: enough for the simulated EC2's control surface and ipamd's pages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks over TCP; `authority` is `address:port`.
///
/// # Errors
/// Nobody answers, or the answer is no success; its body is in the text then.
pub fn tcp(authority: &str, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
    let stream = TcpStream::connect(authority).with_context(|| format!("cannot connect to {authority}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    exchange(stream, method, path, body)
}

/// Asks over a unix socket.
///
/// # Errors
/// As [`tcp`].
pub fn unix(socket: &Path, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    exchange(stream, method, path, body)
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("{method} {path}"))?;
    let end =
        answer.windows(4).position(|w| w == b"\r\n\r\n").with_context(|| format!("{method} {path}: no answer"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let body = answer.split_off(end + 4);
    let status = head.split(' ').nth(1).unwrap_or_default();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(&body).with_context(|| format!("{method} {path}: torn answer"))? } else { body };
    if !status.starts_with('2') {
        bail!("{method} {path} answered {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

/// Puts a chunked body together.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let line = rest.windows(2).position(|w| w == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        rest = &rest[line + 2..];
        if size == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").unwrap(), b"abcde");
        assert_eq!(unchunk(b"5\r\nabc"), None);
    }
}
