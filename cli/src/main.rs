//! The program `zillion`. Everything that it does is in the library of this crate, which the Python
//! package calls too.

use std::process::ExitCode;

fn main() -> ExitCode {
    zillion_cli::run(std::env::args_os())
}
