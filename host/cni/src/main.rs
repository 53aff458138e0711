//! The plugin's process: arguments for people, everything else for the runtime.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use wipam_cni::error::{CniError, INTERNAL};
use wipam_cni::{help, plugin};

/// Used wrongly from a shell (EX_USAGE).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    answer_panics();
    let mut args = std::env::args_os();
    let program = plugin::program_name(args.next());
    match args.next() {
        Some(arg) if arg == "--help" || arg == "-h" => return print(help::HELP, 0),
        Some(arg) if arg == "--version" || arg == "-V" => return print(help::VERSION, 0),
        Some(arg) => {
            let arg = arg.to_string_lossy().into_owned();
            let _ = writeln!(io::stderr(), "wipam-cni: unknown argument {arg:?}; see wipam-cni --help");
            return ExitCode::from(USAGE);
        }
        None => {}
    }
    if std::env::var_os("CNI_COMMAND").is_none() && io::stdin().is_terminal() {
        return print(help::HELP, 0);
    }
    let outcome = plugin::run(&|name| std::env::var_os(name), &mut io::stdin().lock(), &program);
    let _ = io::stderr().write_all(outcome.stderr.as_bytes());
    print(&outcome.stdout, outcome.code)
}

/// Prints what belongs on stdout; whoever closed it learns by the exit code.
fn print(text: &str, code: u8) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::from(1),
    }
}

/// A bug must not leave the runtime without an error object: the process ends (`panic = "abort"`) after this hook.
fn answer_panics() {
    std::panic::set_hook(Box::new(|info| {
        let error = CniError::new(INTERNAL, format!("bug of the plugin: {info}"), "report it with the plugin's log");
        let _ = io::stderr().write_all(format!("wipam-cni: {error}\n").as_bytes());
        let _ = io::stdout().write_all(error.to_json(None).as_bytes());
        std::process::exit(1);
    }));
}
