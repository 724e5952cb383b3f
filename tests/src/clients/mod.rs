//! Tests of the real binary with unmodified clients. Each module runs one Python script of
//! `tests/clients/`, in a virtual environment with the pinned packages of `requirements.txt`.
//!
//! The environment is created once, in the build folder, and is reused until the list of packages
//! changes. If PyPI cannot be reached, the modules print that they are skipped. If PyPI can be
//! reached but the installation fails, the test fails.

mod files;
mod http_triton;
mod openapi;
mod s3;
mod tf_grpc;
mod triton_grpc;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::harness::{root, skip, stderr, stdout};

/// A virtual environment of Python with the packages of the clients.
pub(crate) struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// Returns the environment. The first call creates it. If PyPI cannot be reached, prints a
    /// message and returns `None`.
    pub(crate) fn get() -> Option<&'static Self> {
        static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
        let python = PYTHON.get_or_init(Self::make).as_ref();
        if python.is_none() {
            skip("clients", "PyPI cannot be reached, and no environment was made before");
        }
        python
    }

    fn make() -> Option<Self> {
        let requirements = root().join("tests/clients/requirements.txt");
        let text = fs::read(&requirements).expect("the list of what to install");
        let name = format!("clients-{}", &blake3::hash(&text).to_hex()[..16]);
        let folder = target().join(name);
        let interpreter = folder.join("bin/python");
        let stamp = folder.join("complete");
        if stamp.exists() {
            return Some(Self { interpreter });
        }
        // The remains of an interrupted attempt are not used.
        if folder.exists() {
            fs::remove_dir_all(&folder).expect("an unfinished environment can be removed");
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let pip = |arguments: &[&str]| {
            let mut command = Command::new(&interpreter);
            command.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments);
            command
        };
        let probe = pip(&["--retries", "1", "--timeout", "10", "index", "versions", "grpcio"])
            .output()
            .expect("pip runs");
        if !probe.status.success() {
            return None;
        }
        run(pip(&["install", "--quiet", "--requirement"]).arg(&requirements));
        fs::write(&stamp, b"").expect("the environment can be marked complete");
        Some(Self { interpreter })
    }

    /// Returns a command that runs `tests/clients/<script>`.
    pub(crate) fn script(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.interpreter);
        command.arg(root().join("tests/clients").join(script)).args(arguments);
        command.stdin(Stdio::null()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Returns a command that runs a program of a package, such as `schemathesis` or `moto_server`.
    pub(crate) fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let folder = self.interpreter.parent().expect("an interpreter lies in a folder");
        let mut command = Command::new(folder.join(program));
        command.args(arguments).stdin(Stdio::null()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Runs a command to its end and returns its output.
///
/// # Panics
/// Panics with the whole output if the command fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output: Output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        stdout(&output),
        stderr(&output)
    );
    stdout(&output)
}

/// Returns the build folder.
pub(crate) fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test knows its own path");
        exe.ancestors().nth(3).expect("<target>/<profile>/deps/<test>").to_owned()
    })
}
