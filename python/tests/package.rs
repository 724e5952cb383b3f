//! The test of the Python package: packs the library of this build and the Python sources into a
//! wheel, installs it in a virtual environment, and runs the pytest suite in `tests/python`.
//!
//! The packages from PyPI are in the environment of the tests of clients, which is created once, in
//! the build folder, and is reused until the list of packages changes. The wheel is installed in a
//! fresh environment beside it. If Python or PyPI cannot be reached, the test prints that it is
//! skipped. If the installation fails although PyPI can be reached, the test fails.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The name of this test in the list of tests that may skip.
const NAME: &str = "python_package";
/// The name of the tests of the suite that need torch, which the environment does not have.
const TORCH: &str = "python_torch";

#[test]
fn the_python_package_passes_its_tests() {
    let Some(packages) = find_packages() else { return };
    let folder = target().join(format!("python-package-{}", std::process::id()));
    let fresh = folder.join("environment");
    run(Command::new(&packages).args(["-m", "venv", "--without-pip"]).arg(&fresh));
    let python = fresh.join("bin/python");
    let print = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let site = |python: &Path| run(Command::new(python).args(["-c", print])).trim().to_owned();
    // The fresh environment finds the packages after its own.
    fs::write(Path::new(&site(&python)).join("packages.pth"), site(&packages)).expect("a link");

    let pack = root().join("tests/python/pack.py");
    let mut packing = Command::new(&packages);
    packing.arg(pack).arg(built_library()).arg(env!("CARGO_PKG_VERSION")).arg(&folder);
    let wheel = run(&mut packing);
    let mut install = Command::new(&packages);
    install.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(&python);
    let options = ["--quiet", "--no-deps", "--no-compile", "--ignore-installed"];
    run(install.arg("install").args(options).arg(wheel.trim()));

    // Python finds modules in the current folder first, and that of the crate has the sources.
    let mut suite = Command::new(&python);
    suite.current_dir(&folder);
    suite.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    suite.arg(root().join("tests/python"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_")) {
        suite.env_remove(name);
    }
    let said = run(suite.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()));
    for line in said.lines().filter(|line| line.starts_with("SKIPPED")) {
        assert!(line.ends_with("torch is not installed"), "not on the list of skips: {line}");
        announce_skip(TORCH, "torch is not installed, which is too large for this environment");
    }
    fs::remove_dir_all(&folder).expect("the folder of the test can be removed");
}

/// Returns the interpreter of the environment with the packages from PyPI, or `None` if it cannot
/// be made on this machine. The tests of clients make the same environment in the same way.
fn find_packages() -> Option<PathBuf> {
    let requirements = root().join("tests/clients/requirements.txt");
    let text = fs::read(&requirements).expect("the list of what to install");
    let name = format!("clients-{}", &blake3::hash(&text).to_hex()[..16]);
    let folder = target().join(name);
    let python = folder.join("bin/python");
    let stamp = folder.join("complete");
    if stamp.exists() {
        return Some(python);
    }
    // The remains of an interrupted attempt are not used.
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("an unfinished environment can be removed");
    }
    match Command::new("python3").args(["-m", "venv"]).arg(&folder).output() {
        Ok(output) if output.status.success() => {}
        _ => {
            announce_skip(NAME, "python3 with the module venv is not installed");
            return None;
        }
    }
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments);
        command
    };
    let probe = pip(&["--retries", "1", "--timeout", "10", "index", "versions", "pytest"]).output();
    if !probe.expect("pip runs").status.success() {
        announce_skip(NAME, "PyPI cannot be reached, and no environment was made before");
        return None;
    }
    run(pip(&["install", "--quiet", "--requirement"]).arg(&requirements));
    fs::write(&stamp, b"").expect("the environment can be marked complete");
    Some(python)
}

/// Prints that a test is skipped and why.
///
/// # Panics
/// Panics if the name is not on the list of tests that may skip.
fn announce_skip(name: &str, why: &str) {
    let allowed = include_str!("../../tests/allowed_skips.txt");
    let listed = allowed.lines().any(|line| line.split_whitespace().next() == Some(name));
    assert!(listed, "{name} may not skip ({why}): it is not in tests/allowed_skips.txt");
    // The test harness hides the output of `eprintln!` if a test passes.
    writeln!(std::io::stderr(), "SKIPPED {name}: {why}").expect("stderr takes a line");
}

/// Returns the library that cargo has built for this test, which lies beside it.
fn built_library() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    test.with_file_name("lib_zillion.so")
}

/// Runs a command to its end and returns its output.
///
/// # Panics
/// Panics with the whole output if the command fails.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&stdout);
    let complained = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{said}\n{complained}");
    said.into_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// Returns the build folder.
fn target() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    test.ancestors().nth(3).expect("<target>/<profile>/deps/<test>").to_owned()
}
