//! How long a call may wait. gRPC carries it as a header; tonic drops the server's handler, and the client's call, the
//! moment it has passed, and with them the sentence that would have said why. So who waits must answer earlier.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// How long before a call's deadline the server answers. The client asks for this much more than it means.
pub const MARGIN: Duration = Duration::from_millis(1500);

/// A request that the server may let wait for `wait`; what [`budget`] reads on the other side.
pub fn request<T>(message: T, wait: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(wait + MARGIN);
    request
}

/// How long the caller of a request with this metadata lets it wait: its deadline less [`MARGIN`]; `None` when it set
/// none or an unreadable one.
pub fn budget(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let unit = text.chars().last()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    let deadline = match unit {
        'H' => Duration::from_secs(n * 3600),
        'M' => Duration::from_secs(n * 60),
        'S' => Duration::from_secs(n),
        'm' => Duration::from_millis(n),
        'u' => Duration::from_micros(n),
        'n' => Duration::from_nanos(n),
        _ => return None,
    };
    Some(deadline.saturating_sub(MARGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read() {
        for wait in [Duration::from_millis(20), Duration::from_secs(100), Duration::from_secs(3600)] {
            let got = budget(request((), wait).metadata()).unwrap();
            assert!(got <= wait && got + Duration::from_secs(1) > wait, "{wait:?} became {got:?}");
        }
        assert_eq!(budget(&MetadataMap::new()), None);
        for wrong in ["", "S", "1", "123456789S", "-1S", "1é", "1x"] {
            let mut map = MetadataMap::new();
            if let Ok(value) = wrong.parse() {
                map.insert("grpc-timeout", value);
            }
            assert_eq!(budget(&map), None, "{wrong}");
        }
    }
}
