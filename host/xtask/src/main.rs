//! Project tasks, started with `cargo xtask <task>`. Few dependencies, so that they start at once.
#![forbid(unsafe_code)]

mod demo;
mod packages;
mod run;
mod tests;

use std::process::ExitCode;

const HELP: &str = "\
Project tasks.

Usage: cargo xtask <task> [options]

  test [--fast]          every test; --fast leaves out what builds a release or takes longer than a minute
  demo [--keep] [--once] two simulated EC2 nodes, containerd, both daemons, pods that talk; see README.md
  packages [--install]   say which system packages tests and demo need, and install what is missing (root)

Examples:
  cargo xtask test
  sudo -E cargo xtask demo

Exit codes: 0 all went well; 1 something failed; 64 the command line was wrong.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let task = args.first().map(String::as_str).unwrap_or("help");
    let rest = args.get(1..).unwrap_or_default();
    let done = match task {
        "demo" => demo::demo(rest),
        "test" => tests::test(rest),
        "packages" => packages::packages(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => {
            eprintln!("xtask: there is no task {other:?}\n\n{HELP}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {task}: {why}");
            ExitCode::FAILURE
        }
    }
}
