//! `wipam record`: fetches the flight recorder.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;

use super::{Failure, OK, Outcome, http};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wipam record -o node.rec && wipam replay node.rec
  wipam record > node.rec

The record has what happened and what policies answered, and neither container ids nor secrets.")]
pub struct Record {
    /// Where ipamd answers: a path, or HOST:PORT.
    #[arg(long, default_value = http::SOCKET)]
    socket: String,
    /// Where the record goes; without one, to stdout.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &Record, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    if args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::new("a record is compressed and no use on a screen; give -o FILE"));
    }
    let bytes = http::get(&args.socket, "/v1/record")?;
    match &args.output {
        Some(path) => {
            std::fs::write(path, &bytes)
                .map_err(|e| Failure::new(format!("{} cannot be written: {e}", path.display())))?;
            writeln!(err, "{} bytes in {}; `wipam replay {}` plays it", bytes.len(), path.display(), path.display())?;
        }
        None => out.write_all(&bytes)?,
    }
    Ok(OK)
}
