//! The test of the Python package: packs the library of this build and the Python sources into a
//! wheel, installs it in a virtual environment, and runs the pytest suite in `tests/python` and,
//! at the same time, the notebooks in `examples/notebooks`.
//!
//! The packages from PyPI are in the environment of the tests of clients, which is created once, in
//! the build folder, and is reused until the list of packages changes. The wheel is installed in a
//! fresh environment beside it. If Python or PyPI cannot be reached, the test prints that it is
//! skipped. If the installation fails although PyPI can be reached, the test fails.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

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

    let notebooks = Notebooks::start(&python, &folder);
    let mut suite = pytest(&python, &folder);
    let outcome = suite.arg("-rs").arg(root().join("tests/python")).output();
    let notebooks = notebooks.wait();
    let said = check(&suite, outcome);
    for line in said.lines().filter(|line| line.starts_with("SKIPPED")) {
        assert!(line.ends_with("torch is not installed"), "not on the list of skips: {line}");
        announce_skip(TORCH, "torch is not installed, which is too large for this environment");
    }
    notebooks.check();
    fs::remove_dir_all(&folder).expect("the folder of the test can be removed");
}

/// Returns a command that runs pytest in a folder.
fn pytest(python: &Path, folder: &Path) -> Command {
    let mut pytest = Command::new(python);
    // Python finds modules in the current folder first, and that of the crate has the sources.
    pytest.current_dir(folder).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_")) {
        pytest.env_remove(name);
    }
    pytest.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    pytest
}

/// The notebooks while they run. They are copies, which receive the outputs.
struct Notebooks {
    folder: PathBuf,
    names: Vec<&'static str>,
    running: Child,
}

/// The notebooks after their end.
struct Finished {
    folder: PathBuf,
    names: Vec<&'static str>,
    output: Output,
}

impl Notebooks {
    /// The notebooks, and a part of the outputs of each.
    const ALL: [(&str, &[&str]); 3] = [
        ("films.ipynb", &["epoch 1  loss", "image/svg+xml", "Validation AUC", "did you mean"]),
        ("online.ipynb", &["version "]),
        ("pytorch.ipynb", &[" before, "]),
    ];

    /// Starts the notebooks, except the one that needs torch if torch is not installed.
    fn start(python: &Path, folder: &Path) -> Self {
        let folder = folder.join("notebooks");
        let temporary = folder.join("temporary");
        fs::create_dir_all(&temporary).expect("the folder of the notebooks");
        let import = Command::new(python).args(["-c", "import torch"]).output();
        let has_torch = import.expect("Python runs").status.success();
        let mut names = Vec::new();
        for (name, _) in Self::ALL {
            let text = fs::read(root().join("examples/notebooks").join(name)).expect("a notebook");
            for cell in code_cells(&text) {
                let outputs = cell["outputs"].as_array().map_or(0, Vec::len);
                assert_eq!(outputs, 0, "{name} has outputs; clear them");
            }
            if name == "pytorch.ipynb" && !has_torch {
                announce_skip(TORCH, "torch is not installed, so its notebook does not run");
                continue;
            }
            fs::write(folder.join(name), text).expect("a copy");
            names.push(name);
        }
        let mut command = pytest(python, &folder);
        command.args(["--nbmake", "--overwrite", "--nbmake-timeout=200", "-c", "/dev/null"]);
        for name in ["IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"] {
            command.env(name, &temporary);
        }
        let running = command.args(&names).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { folder, names, running: running.expect("pytest starts") }
    }

    /// Waits until all notebooks have ended.
    fn wait(self) -> Finished {
        let Self { folder, names, running } = self;
        Finished { folder, names, output: running.wait_with_output().expect("pytest ends") }
    }
}

impl Finished {
    /// Checks that the notebooks ran to their ends, and that they show what they should show.
    fn check(self) {
        let said = String::from_utf8_lossy(&self.output.stdout);
        assert!(self.output.status.success(), "the notebooks failed: {said}");
        let names = |name: &str| self.names.contains(&name);
        for (name, wanted) in Notebooks::ALL.into_iter().filter(|(name, _)| names(name)) {
            let text = fs::read(self.folder.join(name)).expect("the notebook that ran");
            let shown: Vec<_> = code_cells(&text).map(|cell| cell["outputs"].to_string()).collect();
            for part in wanted {
                let is_shown = shown.iter().any(|outputs| outputs.contains(part));
                assert!(is_shown, "{name} does not show `{part}`: {shown:?}");
            }
        }
    }
}

/// Returns the cells of a notebook that have code.
fn code_cells(text: &[u8]) -> impl Iterator<Item = serde_json::Value> {
    let mut notebook: serde_json::Value = serde_json::from_slice(text).expect("a notebook is JSON");
    let cells = notebook["cells"].as_array_mut().map(std::mem::take).unwrap_or_default();
    cells.into_iter().filter(|cell| cell["cell_type"] == "code")
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
    writeln!(io::stderr(), "SKIPPED {name}: {why}").expect("stderr takes a line");
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
    let outcome = command.output();
    check(command, outcome)
}

/// Returns the output of a command that has ended.
///
/// # Panics
/// Panics with the whole output if the command failed.
fn check(command: &Command, outcome: io::Result<Output>) -> String {
    let Output { status, stdout, stderr } =
        outcome.unwrap_or_else(|error| panic!("{command:?}: {error}"));
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
