//! The plugin's log: one line for each thing that happened, to a file or stderr, never to stdout.

use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::printable;

/// A log file that is longer is renamed to `FILE.1` (replacing the one before), in bytes.
const ROTATE_AT: u64 = 10 * 1024 * 1024;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every step.
    Debug,
    /// Every call.
    Info,
    /// What is odd.
    Warn,
    /// What failed.
    Error,
}

impl Level {
    /// Reads a level in any case; unknown ones mean `Debug`, as in the AWS plugin, `None` means `Info`.
    fn parse(text: Option<&str>) -> Level {
        match text.map(str::to_ascii_lowercase).as_deref() {
            None | Some("info") => Level::Info,
            Some("warn" | "warning") => Level::Warn,
            Some("error" | "fatal") => Level::Error,
            Some(_) => Level::Debug,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
        }
    }
}

/// Where lines go. Trouble with the log never fails a call.
#[derive(Debug)]
pub struct Log {
    to: Option<File>,
    least: Level,
    /// Stands in front of each line: which call it belongs to.
    about: String,
}

impl Log {
    /// A log that keeps nothing.
    pub fn none() -> Log {
        Log { to: None, least: Level::Error, about: String::new() }
    }

    /// A log into `file` (`stderr` is meant literally) whose lines carry `about`. A file that cannot be opened is
    /// reported on stderr and done without.
    pub fn open(file: Option<PathBuf>, level: Option<&str>, about: String) -> Log {
        let to = file.and_then(|path| match open(&path) {
            Ok(file) => Some(file),
            Err(e) => {
                let _ = writeln!(std::io::stderr(), "wipam-cni: cannot open the log {}: {e}", path.display());
                None
            }
        });
        Log { to, least: Level::parse(level), about }
    }

    /// Writes a line with a level.
    pub fn write(&self, level: Level, what: Arguments<'_>) {
        let Some(mut file) = self.to.as_ref().filter(|_| level >= self.least) else {
            return;
        };
        let line = format!("{} {:5} {} {}\n", timestamp(), level.as_str(), self.about, printable(&what.to_string()));
        // One write for each line: plugins of many pods append to the same file.
        let _ = file.write_all(line.as_bytes());
    }

    /// Writes a step.
    pub fn debug(&self, what: Arguments<'_>) {
        self.write(Level::Debug, what);
    }

    /// Writes what a call did.
    pub fn info(&self, what: Arguments<'_>) {
        self.write(Level::Info, what);
    }

    /// Writes what is odd.
    pub fn warn(&self, what: Arguments<'_>) {
        self.write(Level::Warn, what);
    }

    /// Writes what failed.
    pub fn error(&self, what: Arguments<'_>) {
        self.write(Level::Error, what);
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    if path == Path::new("stderr") {
        return OpenOptions::new().append(true).open("/proc/self/fd/2");
    }
    if path.metadata().is_ok_and(|m| m.is_file() && m.len() > ROTATE_AT) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        // Two plugins at once: the second renames a young file, which loses lines but nothing else.
        let _ = std::fs::rename(path, old);
    }
    if let Some(dir) = path.parent() {
        let _ = std::fs::create_dir_all(dir);
    }
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// Now in UTC, as RFC 3339 with milliseconds.
fn timestamp() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs(), now.subsec_millis())
}

/// Seconds since 1970 as a date. The civil calendar is cheaper to compute than a time crate is to link.
fn rfc3339(seconds: u64, millis: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Counted from 1 March of year 0, so that the leap day is a year's last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(seconds, 0), text);
        }
    }

    #[test]
    fn lines_are_whole_and_filtered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/plugin.log");
        let log = Log::open(Some(path.clone()), Some("Warn"), "ADD c1".into());
        log.info(format_args!("not this"));
        log.warn(format_args!("first\nsecond"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.ends_with("Z WARN  ADD c1 first\\nsecond\n"), "{text}");
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.log");
        File::create(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        Log::open(Some(path.clone()), None, String::new()).info(format_args!("x"));
        assert!(path.metadata().unwrap().len() < 100);
        assert!(dir.path().join("plugin.log.1").exists());
    }
}
