//! A record from a file, as far as it can be read.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use wipam_core::event::{Event, Ms};
use wipam_core::record::{Header, Line, Reader, RecordError};

use crate::text::Wall;

/// How a record ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Where its writer ended it.
    Whole,
    /// It was cut off; what is there is good. Says where.
    Cut(String),
    /// A line is not what it should be; what follows cannot be trusted. Names line and cause.
    Damaged(String),
}

/// A record in memory.
#[derive(Debug)]
pub struct Recording {
    /// Its lines; the first is a header. Line `i` of the file is element `i - 1`.
    pub lines: Vec<Line>,
    /// How it ends.
    pub end: End,
}

/// Why there is nothing to play.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not even its first line is good.
    #[error("{path} is no record: {source}; `wipam record -o FILE` writes one")]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// Line and cause.
        source: RecordError,
    },
}

impl Recording {
    /// Reads a file: zstd, or plain JSON lines.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is no header. Anything later is told by [`Recording::end`].
    pub fn read(path: &Path) -> Result<Recording, ReadError> {
        let io = |source| ReadError::Io { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let zstd = input.fill_buf().map_err(io)?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        let input: Box<dyn Read> = match zstd {
            true => Box::new(zstd::stream::Decoder::with_buffer(input).map_err(io)?),
            false => Box::new(input),
        };
        Recording::from_lines(BufReader::with_capacity(1 << 20, input))
            .map_err(|source| ReadError::NotARecord { path: path.to_owned(), source })
    }

    /// Reads decompressed lines.
    ///
    /// # Errors
    /// The first line is no header.
    pub fn from_lines(input: impl BufRead) -> Result<Recording, RecordError> {
        let (mut lines, mut end) = (Vec::new(), End::Whole);
        for line in Reader::new(input) {
            match line {
                Ok(line) => lines.push(line),
                Err(error) if lines.is_empty() => return Err(error),
                Err(error) => end = ending(&error),
            }
        }
        Ok(Recording { lines, end })
    }

    /// The first header.
    pub fn header(&self) -> Option<&Header> {
        match self.lines.first() {
            Some(Line::Header(header)) => Some(header),
            _ => None,
        }
    }

    /// The pool's clock of its last line.
    pub fn last_ms(&self) -> Ms {
        let at = |line: &Line| match line {
            Line::Header(h) => h.t,
            Line::Event { t, .. } | Line::Decision { t, .. } => *t,
        };
        self.lines.last().map(at).unwrap_or(0)
    }

    /// The pool's clock in wall time.
    pub fn wall(&self) -> Wall {
        let (pool_ms, wall_ns) = self.header().map_or((0, 0), |h| (h.t, h.wall_ns));
        Wall { pool_ms, wall_ns: wall_ns.into() }
    }

    /// Events, and how many of them are ADDs or DELs.
    pub fn events(&self) -> (u64, u64) {
        let (mut all, mut pods) = (0, 0);
        for line in &self.lines {
            if let Line::Event { e, .. } = line {
                all += 1;
                pods += u64::from(matches!(e, Event::Add { .. } | Event::Del { .. }));
            }
        }
        (all, pods)
    }
}

fn ending(error: &RecordError) -> End {
    match error {
        RecordError::Io { source, .. } if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            End::Cut(error.to_string())
        }
        RecordError::Line { cause, .. } if cause.starts_with("breaks off") => End::Cut(error.to_string()),
        _ => End::Damaged(error.to_string()),
    }
}
