//! The flight recorder: the last N MiB of what happened, compressed, in memory (format: `wipam_core::record`).
//!
//! Two segments, each beginning with a header and the checkpoint of that moment, so that either can be replayed without
//! the other: when the younger has half of the memory, the older is dropped. Lines are compressed in chunks, each a
//! zstd frame of its own; frames one after the other are a stream again.

use std::io;

use wipam_core::event::{Event, Ms};
use wipam_core::record::{Decision, Header, Line, Writer, opaque};

/// Lines are collected to this many bytes before they are compressed: enough for a good ratio, little to lose.
const CHUNK: usize = 128 * 1024;

/// zstd level: 3 compresses such lines about tenfold at hundreds of MB a second.
const LEVEL: i32 = 3;

#[derive(Default)]
struct Segment {
    frames: Vec<u8>,
    pending: Vec<u8>,
}

impl Segment {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        Writer::new(&mut self.pending).line(line)?;
        if self.pending.len() >= CHUNK {
            self.squeeze()?;
        }
        Ok(())
    }

    fn squeeze(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.frames.extend(zstd::encode_all(self.pending.as_slice(), LEVEL)?);
            self.pending.clear();
        }
        Ok(())
    }
}

/// The recorder; owned by the actor.
pub struct Recorder {
    limit: usize,
    older: Segment,
    younger: Segment,
}

impl Recorder {
    /// Keeps at most about `limit` compressed bytes; 0 records nothing.
    pub fn new(limit: usize) -> Recorder {
        Recorder { limit, older: Segment::default(), younger: Segment::default() }
    }

    /// Whether anything is recorded at all.
    pub fn on(&self) -> bool {
        self.limit > 0
    }

    /// Begins a segment; the one before the last is dropped.
    pub fn begin(&mut self, header: Header) {
        self.older = std::mem::take(&mut self.younger);
        self.push(&Line::Header(Box::new(header)));
    }

    /// Notes within a segment that the daemon goes on with other policies; a replay swaps where this stands.
    pub fn mark(&mut self, header: Header) {
        self.push(&Line::Header(Box::new(header)));
    }

    /// Whether the younger segment has had its half, so that [`Recorder::begin`] is due.
    pub fn full(&self) -> bool {
        self.on() && self.younger.frames.len() >= self.limit / 2
    }

    /// Records an event that is about to be handled.
    pub fn event(&mut self, t: Ms, event: &Event) {
        if self.on() {
            self.push(&Line::Event { t, e: opaque(event) });
        }
    }

    /// Records an answer of a policy.
    pub fn decision(&mut self, t: Ms, decision: Decision) {
        if self.on() {
            self.push(&Line::Decision { t, d: Box::new(decision) });
        }
    }

    fn push(&mut self, line: &Line) {
        if self.on()
            && let Err(error) = self.younger.line(line)
        {
            tracing::warn!(%error, "the flight recorder lost a line");
        }
    }

    /// The record so far, a zstd stream.
    ///
    /// # Errors
    /// When the compressor fails (out of memory).
    pub fn bytes(&mut self) -> io::Result<Vec<u8>> {
        self.older.squeeze()?;
        self.younger.squeeze()?;
        Ok([self.older.frames.as_slice(), self.younger.frames.as_slice()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;
    use wipam_core::config::Config;
    use wipam_core::event::{Add, Key, Netns, PodRef};
    use wipam_core::record::{FORMAT, Reader};

    fn header(t: Ms) -> Header {
        Header {
            format: FORMAT.into(),
            host: "node".into(),
            instance: "i-1".into(),
            daemon: "0".into(),
            wit: "wipam:policy@0.1.0".into(),
            t,
            wall_ns: 0,
            config: Config::new("t3.medium", 3, 6, "subnet-1"),
            policies: Vec::new(),
            complete: t == 0,
            state: None,
        }
    }

    fn add(n: u64) -> Event {
        let key = Key { network: "aws-cni".into(), container_id: format!("secret-{n}"), ifname: "eth0".into() };
        let netns = Some(Netns { path: "/run/netns/secret".into(), inode: 7, boot: "secret".into() });
        Event::Add {
            call: n,
            add: Box::new(Add {
                key,
                pod: PodRef { namespace: "default".into(), name: format!("p{n}"), uid: String::new() },
                netns,
                host_ifname: "eni1".into(),
                requested: Vec::new(),
                deadline: n,
                ranges: None,
            }),
        }
    }

    fn lines(bytes: &[u8]) -> Vec<Line> {
        let plain = zstd::stream::Decoder::new(bytes).unwrap();
        Reader::new(BufReader::new(plain)).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn the_record_is_bounded_and_begins_with_a_header() {
        let mut recorder = Recorder::new(64 * 1024);
        recorder.begin(header(0));
        for n in 0..100_000 {
            if recorder.full() {
                recorder.begin(header(n));
            }
            recorder.event(n, &add(n));
        }
        let bytes = recorder.bytes().unwrap();
        assert!(bytes.len() < 160 * 1024, "{}", bytes.len());
        let lines = lines(&bytes);
        let Some(Line::Header(first)) = lines.first() else { panic!("{:?}", lines.first()) };
        assert!(!first.complete);
        assert!(matches!(lines.last(), Some(Line::Event { t: 99_999, .. })));
        assert_eq!(lines.iter().filter(|l| matches!(l, Line::Header(_))).count(), 2);
    }

    #[test]
    fn no_container_id_or_path_is_in_it() {
        let mut recorder = Recorder::new(1 << 20);
        recorder.begin(header(0));
        recorder.event(1, &add(1));
        let bytes = recorder.bytes().unwrap();
        let plain = zstd::decode_all(bytes.as_slice()).unwrap();
        assert!(!String::from_utf8(plain).unwrap().contains("secret"));
        // Fetching it does not end it.
        recorder.event(2, &add(2));
        assert_eq!(lines(&recorder.bytes().unwrap()).len(), 3);
    }
}
