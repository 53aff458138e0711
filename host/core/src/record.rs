//! The record of a node, `wipam-record/1`: JSON lines that say how it began, what happened and what policies answered,
//! so that a session can be played again under the same or another policy.
//!
//! ```text
//! {"h":{"format":"wipam-record/1", …}}     a header; everything after it belongs to it, until the next header
//! {"t":1764489394000,"e":{"add":{…}}}      an event, pool clock ms
//! {"t":1764489394000,"d":{"number":7, …}}  a policy's answer to something in that event
//! ```
//!
//! The stream is zstd, any number of frames one after the other; this module knows only the lines. Container ids and
//! paths of namespaces are replaced by numbers before they are written ([`opaque`], [`opaque_state`]): equal names get
//! equal numbers, so that a replay takes the same turns, and the number policies see stays the same.

use std::fmt;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Config;
use crate::event::{Add, Event, Key, Ms, Netns};
use crate::ids;
use crate::policy::{AnsweredBy, Setting, Slot, Verdict};
use crate::saved::Saved;

/// Name and version of the format.
pub const FORMAT: &str = "wipam-record/1";

/// Longest line that is read, in bytes; a header carries a whole checkpoint.
const MAX_LINE: usize = 256 << 20;

/// A policy that was in force when the record (or this segment of it) began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPolicy {
    /// Which slot it fills.
    pub slot: Slot,
    /// Name it gives itself.
    pub name: String,
    /// Version it gives itself.
    pub version: String,
    /// sha256 of the component, hex; "" for a native twin.
    pub digest: String,
    /// Its settings.
    pub settings: Vec<Setting>,
}

/// How a segment begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// Name of the node.
    pub host: String,
    /// Instance id.
    pub instance: String,
    /// Version of the daemon that wrote it.
    pub daemon: String,
    /// Package of the policies' interface, e.g. `wipam:policy@0.1.0`.
    pub wit: String,
    /// Pool clock when the segment began.
    pub t: Ms,
    /// Wall time of that moment, nanoseconds since 1970 UTC.
    pub wall_ns: i64,
    /// The host's settings and limits.
    pub config: Config,
    /// Policies in force.
    pub policies: Vec<RecordedPolicy>,
    /// Whether the segment begins where the daemon began, so that `state` is all there was. A later segment begins
    /// with the checkpoint of that moment, which does not hold what was under way (EC2 calls, waiting ADDs).
    pub complete: bool,
    /// The checkpoint to begin from, container ids replaced; `None` for an empty node.
    pub state: Option<Box<Saved>>,
}

/// One answer of a policy, as the decision log has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Number in the decision log.
    pub number: u64,
    /// Which slot was asked.
    pub slot: Slot,
    /// What was asked: "allocate", "release", "plan".
    pub call: String,
    /// Which rung of the ladder answered.
    pub by: AnsweredBy,
    /// Digest of the arguments.
    pub inputs: String,
    /// Name and version of the policy that answered.
    pub policy: String,
    /// Digest of that policy.
    pub digest: String,
    /// The answer.
    pub answer: Value,
    /// Its reason.
    pub reason: String,
    /// Fuel it took; `None` for a native twin.
    pub fuel: Option<u64>,
    /// What the guard said.
    pub verdict: Option<Verdict>,
}

/// A line of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A segment begins.
    Header(Box<Header>),
    /// Something happened.
    Event {
        /// Pool clock.
        t: Ms,
        /// What.
        e: Event,
    },
    /// A policy answered.
    Decision {
        /// Pool clock.
        t: Ms,
        /// What.
        d: Box<Decision>,
    },
}

/// A line as it stands in the file: one of the keys says which kind it is.
#[derive(Default, Serialize, Deserialize)]
struct Raw<H, E, D> {
    #[serde(skip_serializing_if = "Option::is_none")]
    h: Option<H>,
    #[serde(skip_serializing_if = "Option::is_none")]
    t: Option<Ms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e: Option<E>,
    #[serde(skip_serializing_if = "Option::is_none")]
    d: Option<D>,
}

/// Why a record cannot be read on; names the line, counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The stream broke off or is not what it should be (zstd damage comes here too).
    #[error("line {line}: cannot be read: {source}")]
    Io {
        /// Number of the line.
        line: u64,
        /// What the stream said.
        source: std::io::Error,
    },
    /// The line is not of this format.
    #[error("line {line}: {cause}")]
    Line {
        /// Number of the line.
        line: u64,
        /// What is wrong.
        cause: String,
    },
}

/// Writes lines. The caller compresses.
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Writer<W> {
        Writer { out }
    }

    /// Appends one line. Events are written as given: make them [`opaque`] first.
    pub fn line(&mut self, line: &Line) -> std::io::Result<()> {
        let raw: Raw<&Header, &Event, &Decision> = match line {
            Line::Header(h) => Raw { h: Some(h), t: None, e: None, d: None },
            Line::Event { t, e } => Raw { h: None, t: Some(*t), e: Some(e), d: None },
            Line::Decision { t, d } => Raw { h: None, t: Some(*t), e: None, d: Some(d) },
        };
        serde_json::to_writer(&mut self.out, &raw)?;
        self.out.write_all(b"\n")
    }

    /// Gives the stream back.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Reads lines one by one; the first must be a header of a known format.
pub struct Reader<R> {
    input: R,
    line: u64,
    begun: bool,
    failed: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads decompressed lines from `input`.
    pub fn new(input: R) -> Reader<R> {
        Reader { input, line: 0, begun: false, failed: false }
    }

    fn read(&mut self) -> Result<Option<Line>, RecordError> {
        let mut text = Vec::new();
        self.line += 1;
        let line = self.line;
        std::io::Read::take(&mut self.input, MAX_LINE as u64)
            .read_until(b'\n', &mut text)
            .map_err(|source| RecordError::Io { line, source })?;
        if text.is_empty() {
            return match self.begun {
                true => Ok(None),
                false => Err(bad(line, "the record is empty: it has no header")),
            };
        }
        if text.last() != Some(&b'\n') {
            return Err(bad(line, "breaks off: the record was cut, or the line is too long"));
        }
        let parsed = parse(&text).map_err(|cause| RecordError::Line { line, cause })?;
        if !self.begun && !matches!(parsed, Line::Header(_)) {
            return Err(bad(line, "is not a header; a record begins with {\"h\":…}"));
        }
        self.begun = true;
        Ok(Some(parsed))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Line, RecordError>;
    /// After an error nothing more comes: what follows a broken line cannot be trusted to belong to it.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.read().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}

fn bad(line: u64, cause: impl fmt::Display) -> RecordError {
    RecordError::Line { line, cause: cause.to_string() }
}

fn parse(text: &[u8]) -> Result<Line, String> {
    let raw: Raw<Value, Event, Box<Decision>> = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    match raw {
        Raw { h: Some(h), t: None, e: None, d: None } => {
            // The version first: a newer header may not even have our fields.
            let format = h.get("format").and_then(Value::as_str).unwrap_or_default();
            if format != FORMAT {
                return Err(format!("format {format:?} is not {FORMAT:?}, the only one this version reads"));
            }
            serde_json::from_value(h).map(|h| Line::Header(Box::new(h))).map_err(|e| format!("header: {e}"))
        }
        Raw { h: None, t: Some(t), e: Some(e), d: None } => Ok(Line::Event { t, e }),
        Raw { h: None, t: Some(t), e: None, d: Some(d) } => Ok(Line::Decision { t, d }),
        _ => Err("must have \"h\", or \"t\" with one of \"e\" and \"d\"".into()),
    }
}

fn opaque_key(key: &Key) -> Key {
    let number = ids::sandbox_number(&key.network, &key.container_id);
    Key { container_id: ids::opaque_container(number), ..key.clone() }
}

fn opaque_netns(netns: &Netns) -> Netns {
    Netns { path: opaque_path(&netns.path), inode: netns.inode, boot: String::new() }
}

fn opaque_path(path: &str) -> String {
    if path.is_empty() || path.starts_with('#') {
        return path.to_owned();
    }
    ids::opaque_container(ids::fnv64(&[path.as_bytes()]))
}

/// The event without container ids and namespace paths. Doing it twice changes nothing more.
pub fn opaque(event: &Event) -> Event {
    match event {
        Event::Add { call, add } => {
            let netns = add.netns.as_ref().map(opaque_netns);
            Event::Add { call: *call, add: Box::new(Add { key: opaque_key(&add.key), netns, ..(**add).clone() }) }
        }
        Event::Del { call, key, cause, network_removed } => {
            Event::Del { call: *call, key: opaque_key(key), cause: cause.clone(), network_removed: *network_removed }
        }
        Event::Gc { call, network, valid } => {
            Event::Gc { call: *call, network: network.clone(), valid: valid.iter().map(opaque_key).collect() }
        }
        Event::Liveness { key, alive } => Event::Liveness { key: opaque_key(key), alive: *alive },
        other => other.clone(),
    }
}

/// The checkpoint without container ids and namespace paths.
pub fn opaque_state(mut saved: Saved) -> Saved {
    for lease in &mut saved.leases {
        lease.key = opaque_key(&lease.key);
        lease.netns = lease.netns.as_ref().map(opaque_netns);
    }
    for tomb in &mut saved.tombstones {
        tomb.by = ids::opaque_container(ids::sandbox_number(&tomb.key.network, &tomb.by));
        tomb.key = opaque_key(&tomb.key);
        tomb.netns = tomb.netns.as_ref().map(opaque_netns);
    }
    for tearing in &mut saved.tearing {
        tearing.target.key = opaque_key(&tearing.target.key);
        tearing.target.netns = tearing.target.netns.as_ref().map(opaque_netns);
    }
    saved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PodRef;

    fn header() -> Header {
        Header {
            format: FORMAT.into(),
            host: "node".into(),
            instance: "i-1".into(),
            daemon: "0".into(),
            wit: "wipam:policy@0.1.0".into(),
            t: 0,
            wall_ns: 0,
            config: Config::new("t3.medium", 3, 6, "subnet-1"),
            policies: Vec::new(),
            complete: true,
            state: Some(Box::default()),
        }
    }

    fn lines() -> Vec<Line> {
        let key = Key { network: "n".into(), container_id: "c".into(), ifname: "eth0".into() };
        let add = Add {
            key: key.clone(),
            pod: PodRef::default(),
            netns: Some(Netns { path: "/run/netns/x".into(), inode: 3, boot: "b".into() }),
            host_ifname: String::new(),
            requested: Vec::new(),
            deadline: 9,
            ranges: None,
        };
        let decision = Decision {
            number: 1,
            slot: Slot::Allocator,
            call: "allocate".into(),
            by: AnsweredBy::Policy,
            inputs: "abc".into(),
            policy: "default".into(),
            digest: "def".into(),
            answer: serde_json::json!({"assign": 3}),
            reason: "fullest first".into(),
            fuel: Some(7),
            verdict: Some(Verdict::Accepted),
        };
        vec![
            Line::Header(Box::new(header())),
            Line::Event { t: 1, e: Event::Add { call: 1, add: Box::new(add) } },
            Line::Decision { t: 1, d: Box::new(decision) },
            Line::Event { t: 2, e: Event::Liveness { key, alive: true } },
            Line::Event { t: 3, e: Event::Tick },
        ]
    }

    fn written(lines: &[Line]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        lines.iter().for_each(|line| writer.line(line).unwrap());
        writer.into_inner()
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = lines();
        let read: Vec<Line> = Reader::new(written(&lines).as_slice()).collect::<Result<_, _>>().unwrap();
        assert_eq!(read, lines);
    }

    #[test]
    fn damage_is_told_by_line_and_ends_the_reading() {
        let good = written(&lines());
        let with = |extra: &str| [good.as_slice(), extra.as_bytes()].concat();
        let future = written(&lines()[..1]);
        let future = String::from_utf8(future).unwrap().replace(FORMAT, "wipam-record/2");
        for (bytes, line, cause) in [
            (Vec::new(), 1, "no header"),
            (b"{\"t\":1,\"e\":\"tick\"}\n".to_vec(), 1, "not a header"),
            (future.into_bytes(), 1, "wipam-record/2"),
            (with("{\"t\":1}\n"), 6, "must have"),
            (with("{\"t\":1,\"e\":\"unheard-of\"}\n"), 6, "unheard-of"),
            (with("nonsense\n"), 6, "expected"),
            (with("{\"t\":4,\"e\""), 6, "breaks off"),
        ] {
            let mut reader = Reader::new(bytes.as_slice());
            let error = reader.find_map(Result::err).unwrap().to_string();
            assert!(error.starts_with(&format!("line {line}:")) && error.contains(cause), "{error}");
            assert!(reader.next().is_none());
        }
    }

    #[test]
    fn opaque_twice_is_opaque_once_and_the_number_stays() {
        for line in lines() {
            let Line::Event { e, .. } = line else { continue };
            let once = opaque(&e);
            assert_eq!(opaque(&once), once);
            if let (Event::Add { add: a, .. }, Event::Add { add: b, .. }) = (&e, &once) {
                assert_ne!(a.key.container_id, b.key.container_id);
                let number = |key: &Key| ids::sandbox_number(&key.network, &key.container_id);
                assert_eq!(number(&a.key), number(&b.key));
            }
        }
    }
}
