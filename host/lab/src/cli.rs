//! The command line: what there is, and which exit code says what.

mod burst;
mod http;
mod policy;
mod record;
mod replay;
mod state;
mod state_verify;
mod status;
mod try_policy;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::{Parser, Subcommand};

/// All went well.
pub const OK: u8 = 0;
/// It could not be done, or a policy was refused.
pub const FAILED: u8 = 1;
/// `state verify` found problems.
pub const PROBLEMS: u8 = 2;
/// `replay` gives other decisions than the record.
pub const DIFFERS: u8 = 3;
/// The command line was wrong.
pub const USAGE: u8 = 64;
/// Ctrl-C; what was printed is a part of the result.
pub const INTERRUPTED: u8 = 130;

const CODES: &str = "\
Exit codes:
  0    all went well
  1    it could not be done (the text says why and what helps), or a policy was refused
  2    `state verify` found problems
  3    `replay` does not give the decisions that the record has
  64   the command line was wrong
  130  interrupted; what was printed is a part of the result

All times are UTC. `wipam help COMMAND` shows examples.";

/// Looks at a node's address management, tries policies on it, and plays its records again.
#[derive(Debug, Parser)]
#[command(name = "wipam", version, after_help = CODES, arg_required_else_help = true, max_term_width = 120)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The node as ipamd sees it: pool, leases, policies, last decisions.
    Status(status::StatusArgs),
    /// Look at policies: what they are, whether they would be let in, what they would answer.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Look at state files: ours, or an AWS daemon's ipam.json.
    #[command(subcommand)]
    State(state::Command),
    /// Fetch the flight recorder of a running ipamd.
    Record(record::Record),
    /// Play a record again: prove it, and compare it with what other policies would have done.
    Replay(replay::Replay),
    /// What many pods on an empty node cost in EC2 calls, beside the AWS daemon's arithmetic.
    Burst(burst::Burst),
}

/// Why a command ends without its result.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    fn new(text: impl Into<String>) -> Failure {
        Failure { code: FAILED, text: text.into() }
    }

    /// The arguments do not go together.
    fn usage(text: impl Into<String>) -> Failure {
        Failure { code: USAGE, text: text.into() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let more = cause.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            source = cause.source();
        }
        Failure::new(text)
    }
}

/// An exit code, or why there is no result.
type Outcome = Result<u8, Failure>;

/// Runs a command line (the first argument is the program's name); says the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no errors and belong on stdout.
            if !error.use_stderr() {
                let _ = write!(out, "{error}");
                return OK;
            }
            let _ = write!(err, "{error}");
            return USAGE;
        }
    };
    let outcome = match args.command {
        Command::Status(args) => status::run(&args, out),
        Command::Policy(command) => policy::run(command, out),
        Command::State(command) => state::run(command, out),
        Command::Record(args) => record::run(&args, out, err),
        Command::Replay(args) => replay::run(&args, out),
        Command::Burst(args) => burst::run(&args, out),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            let _ = out.flush();
            let _ = writeln!(err, "wipam: {}", failure.text);
            failure.code
        }
    }
}

/// A whole file.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|e| Failure::new(format!("{} cannot be read: {e}", path.display())))
}

/// A value as JSON, indented, with a line end.
fn json(out: &mut dyn Write, value: &impl serde::Serialize) -> Outcome {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(OK)
}
