//! ipamd. Reads as a summary of the process; the rest is in the library.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use wipam_daemon::app::Daemon;
use wipam_daemon::settings::{self, Loaded};
use wipam_daemon::world::{Real, chain};

const AFTER_HELP: &str = "\
Settings come from the environment (the AWS daemon's names where one exists), the file, then defaults.

Examples:
  ipamd --print-config                       what is in force, and where each value comes from
  ipamd --print-config > /etc/wipam/ipamd.yaml; ipamd --config /etc/wipam/ipamd.yaml
  WARM_IP_TARGET=5 IP_COOLDOWN_PERIOD=10 ipamd
  wipam status                               what it is doing

SIGTERM or SIGINT drains (calls under way are answered, the last checkpoint is written); a second one ends at once.

Exit codes: 0 orderly end; 1 it could not start or a server failed; 64 wrong arguments or settings.";

/// The node daemon of wipam: gives pods their addresses, as policies decide.
#[derive(Parser)]
#[command(name = "ipamd", version, after_help = AFTER_HELP)]
struct Cli {
    /// Settings file (YAML); without it, /etc/wipam/ipamd.yaml if that exists
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings in force as a settings file, each with its origin, and warnings; then end
    #[arg(long)]
    print_config: bool,
}

const USAGE: u8 = 64;
const DEFAULT_CONFIG: &str = "/etc/wipam/ipamd.yaml";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let file = cli.config.or_else(|| Some(PathBuf::from(DEFAULT_CONFIG)).filter(|p| p.exists()));
    let loaded = match settings::load(file.as_deref(), &settings::Process) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("ipamd: {error}");
            return USAGE.into();
        }
    };
    if cli.print_config {
        print!("{}", settings::print(&loaded));
        return ExitCode::SUCCESS;
    }
    match trace(&loaded).and_then(|()| run(loaded)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            eprintln!("ipamd: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(loaded: Loaded) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_signals()?;
        let daemon = Daemon::open(loaded, Arc::new(Real)).await?;
        daemon.run(stop).await
    })
}

/// Ends with the first SIGTERM or SIGINT; the second ends the process.
fn stop_signals() -> std::io::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let (first, stop) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            match first.take() {
                Some(first) => drop(first.send(())),
                None => std::process::exit(1),
            }
        }
    });
    Ok(async { drop(stop.await) })
}

fn trace(loaded: &Loaded) -> anyhow::Result<()> {
    let log = &loaded.settings.log;
    let filter = EnvFilter::try_new(&log.level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    match log.file.as_str() {
        "stderr" => builder.with_writer(std::io::stderr).init(),
        "stdout" => builder.init(),
        path => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|e| anyhow::anyhow!("the log file {path} cannot be opened: {e}"))?;
            builder.json().with_writer(Mutex::new(file)).init();
        }
    }
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(())
}
