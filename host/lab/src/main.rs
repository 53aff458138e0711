//! The command `wipam`. See `wipam --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let code = wipam_lab::cli::run(std::env::args_os(), &mut out, &mut std::io::stderr());
    // Nobody reads on (`wipam … | head`): not an error of ours.
    let _ = std::io::Write::flush(&mut out);
    ExitCode::from(code)
}
