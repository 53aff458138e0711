//! Times, durations and tables for screens: UTC in RFC 3339 with `Z`, columns as wide as they need to be.

use std::fmt::Write as _;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use wipam_core::event::Ms;

/// An instant in nanoseconds since 1970 as RFC 3339 with `Z`, to the millisecond. An instant outside the calendar is
/// shown as its number.
pub fn utc_ns(ns: i128) -> String {
    let ms = ns.div_euclid(1_000_000) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(ms)
        .ok()
        .and_then(|t| t.to_offset(UtcOffset::UTC).format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{ns} ns"))
}

/// The nanoseconds since 1970 that a text in RFC 3339 names.
pub fn parse_utc(text: &str) -> Option<i128> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp_nanos)
}

/// Turns the pool's clock into wall time: what one instant reads on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wall {
    /// The instant on the pool's clock.
    pub pool_ms: Ms,
    /// The same in nanoseconds since 1970.
    pub wall_ns: i128,
}

impl Wall {
    /// An instant of the pool's clock for a screen.
    pub fn utc(&self, at: Ms) -> String {
        utc_ns(self.wall_ns + (i128::from(at) - i128::from(self.pool_ms)) * 1_000_000)
    }
}

/// A duration as people write it: `850 ms`, `12.3 s`, `4 min 5 s`, `3 h 20 min`.
pub fn span(ms: Ms) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// The first twelve characters of a long id, as runtimes show it.
pub fn short(id: &str) -> &str {
    id.char_indices().nth(12).map_or(id, |(at, _)| &id[..at])
}

/// What is untrusted, on one line: control characters would let a name write on the operator's screen.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Rows of cells under a head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these column heads.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell.into())).collect());
    }

    /// Rows under the head.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Whether there is no row under the head.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..columns)
            .map(|c| self.rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
            .collect()
    }

    /// Columns that hold only numbers under their head stand to the right.
    fn right(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().skip(1).filter_map(|r| r.get(column)).filter(|c| !c.is_empty()).peekable();
        cells.peek().is_some() && cells.all(|c| c.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-')))
    }

    /// The lines, each indented by so many blanks.
    pub fn text(&self, indent: usize) -> String {
        let widths = self.widths();
        let right: Vec<bool> = (0..widths.len()).map(|c| self.right(c)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (c, cell) in row.iter().enumerate() {
                let (gap, width) = (if c == 0 { "" } else { "  " }, widths[c]);
                let _ = match right[c] {
                    true => write!(line, "{gap}{cell:>width$}"),
                    false => write!(line, "{gap}{cell:<width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// As a table of Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let _ = writeln!(out, "| {} |", row.join(" | "));
            if i == 0 {
                let rule: Vec<&str> = (0..row.len()).map(|c| if self.right(c) { "---:" } else { "---" }).collect();
                let _ = writeln!(out, "| {} |", rule.join(" | "));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_z() {
        assert_eq!(utc_ns(1_700_000_000_123_456_789), "2023-11-14T22:13:20.123Z");
        assert_eq!(utc_ns(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc_ns(i128::MAX), format!("{} ns", i128::MAX));
        let wall = Wall { pool_ms: 1_000, wall_ns: 5_000_000_000 };
        assert_eq!(wall.utc(500), "1970-01-01T00:00:04.5Z");
        assert_eq!(parse_utc("1970-01-01T00:00:04.5Z"), Some(4_500_000_000));
    }

    #[test]
    fn spans() {
        let all = [(999, "999 ms"), (1_250, "1.2 s"), (61_000, "1 min 1 s"), (7_260_000, "2 h 1 min")];
        for (ms, text) in all {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn tables_align_and_numbers_stand_right() {
        let mut t = Table::new(["name", "n"]);
        t.row(["a", "7"]);
        t.row(["longer", "123"]);
        assert_eq!(t.text(2), "  name      n\n  a         7\n  longer  123\n");
        assert_eq!(t.markdown(), "| name | n |\n| --- | ---: |\n| a | 7 |\n| longer | 123 |\n");
        t.row(["evil\x1b[2J\n", "1"]);
        assert!(!t.text(0).contains('\x1b'));
    }
}
