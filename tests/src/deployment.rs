//! Tests of the files in `deploy/` and of the Dockerfile. Each command line there must be one that
//! the binary accepts. No test needs a cluster, a running systemd or Docker.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::clients::{Python, run};
use crate::harness::{Workplace, binary, last_json, root, skip, stderr, stdout, zillion};

/// The script that runs a trainer and gives an interruption an exit code of its own.
const SCRIPT: &str = "zillion-trainer";

/// Asserts that the binary accepts the options of a command. Nothing is started.
fn assert_options_are_known(words: &[&str]) {
    let with = |more: &[&str]| {
        let arguments = [words, more].concat();
        zillion(&arguments).output().expect("the binary runs")
    };
    let known = with(&["--help"]);
    assert!(known.status.success(), "{words:?}: {}", stderr(&known));
    // The help is printed only if all options before it are valid.
    assert!(!with(&["--no-such-option", "--help"]).status.success(), "{words:?}");
}

/// Asserts that the binary accepts the arguments of the script. `job` takes the place of the job
/// file, which must be valid too.
fn assert_trainer_is_known(words: &[&str], job: &str) {
    let (program, rest) = words.split_first().expect("a command");
    assert!(Path::new(program).ends_with(SCRIPT), "{words:?}");
    let script = fs::read_to_string(root().join("deploy/bin").join(SCRIPT)).expect("the script");
    let line = script.lines().find(|line| line.starts_with("zillion train \"$@\" "));
    let own = line.expect("the script trains").trim_start_matches("zillion train \"$@\" ");
    let own: Vec<&str> = own.split_whitespace().take_while(|word| *word != ">").collect();
    assert_eq!(own, ["--resume", "--json"]);
    let arguments = [&["train", job][..], &rest[1..], &own[..], &["--print-config"][..]].concat();
    let result = zillion(&arguments).output().expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
    let config: toml::Table = stdout(&result).parse().expect("a job is TOML");
    let folder = config["ps"]["store"].as_str().expect("the store is set");
    assert_eq!(folder, "/srv/zillion/store");
}

#[test]
fn the_manifests_of_kubernetes_are_valid() {
    let Some(python) = Python::get() else { return };
    let folder = root().join("deploy/kubernetes");
    let folder = folder.to_str().expect("the checkout has a plain name");
    let rendered = last_json(&run(&mut python.script("deployment.py", &["validate", folder])));
    let rendered = rendered.as_array().expect("a list of rendered folders");
    assert!(rendered.len() >= 2, "the base and an overlay");
    let place = Workplace::new();
    for one in rendered {
        let words = |name: &str| -> Vec<&str> {
            let words = one[name].as_array().expect("the words of a command");
            words.iter().filter_map(Value::as_str).collect()
        };
        assert_eq!(words("server")[..3], ["zillion", "ps", "serve"]);
        assert_options_are_known(&words("server")[1..]);
        place.write("deployed.toml", one["job"].as_str().expect("the text of a job"));
        assert_trainer_is_known(&words("trainer"), &place.text("deployed.toml"));
        // The servers write below the store, so that the folder of the run must lie there.
        let job: toml::Table = one["job"].as_str().unwrap_or_default().parse().expect("TOML");
        let output = job["run"]["output"].as_str().expect("the folder of the run");
        assert!(output.starts_with("/srv/zillion/store/"), "{output}");
    }
}

#[test]
fn the_image_is_built_by_the_pinned_compiler() {
    let text = fs::read_to_string(root().join("Dockerfile")).expect("a Dockerfile");
    let pinned = fs::read_to_string(root().join("rust-toolchain.toml")).expect("a toolchain");
    let pinned: toml::Table = pinned.parse().expect("a toolchain is TOML");
    let version = pinned["toolchain"]["channel"].as_str().expect("a version");
    let wanted = format!("ARG RUST_VERSION={version}");
    assert!(text.lines().any(|line| line == wanted), "the Dockerfile lacks `{wanted}`");
    let Some(python) = Python::get() else { return };
    let path = root().join("Dockerfile");
    let path = path.to_str().expect("the checkout has a plain name");
    run(&mut python.script("deployment.py", &["dockerfile", path]));
}

/// Returns the units of systemd with their texts, sorted.
fn units() -> Vec<(String, String)> {
    let folder = root().join("deploy/systemd");
    let entries = fs::read_dir(folder).expect("a folder of units");
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut units: Vec<(String, String)> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "service"))
        .map(|path| {
            let name = path.file_name().and_then(|n| n.to_str()).expect("units have plain names");
            (name.to_owned(), fs::read_to_string(&path).expect("units are text"))
        })
        .collect();
    units.sort();
    assert_eq!(units.len(), 2, "servers and trainers");
    units
}

/// Returns the values of a key of a unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Returns the words of the command of a unit, as its instance 0 runs them.
fn command_of(unit: &str) -> Vec<String> {
    let [command] = values(unit, "ExecStart")[..] else { panic!("one command: {unit}") };
    let settings: Vec<(&str, &str)> = values(unit, "Environment")
        .into_iter()
        .flat_map(str::split_whitespace)
        .chain(["CREDENTIALS_DIRECTORY=/run/credentials"])
        .map(|setting| setting.split_once('=').expect("NAME=VALUE"))
        .collect();
    let words = command.split_whitespace().map(|word| {
        let word = settings.iter().fold(word.replace("%i", "0"), |word, (name, value)| {
            word.replace(&format!("${{{name}}}"), value)
        });
        assert!(!word.contains(['$', '%']), "`{word}` has no value in the unit");
        word
    });
    words.collect()
}

#[test]
fn the_commands_of_units_are_known() {
    let place = Workplace::new();
    for (name, unit) in units() {
        let command = command_of(&unit);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[0] {
            "/usr/local/bin/zillion" => assert_options_are_known(&words[1..]),
            _ => assert_trainer_is_known(&words, &place.text("job.toml")),
        }
        // The drop-in for etcd adds settings and replaces the command.
        let role = name.trim_end_matches("@.service");
        let path = root().join("deploy/systemd/etcd").join(role).with_extension("conf");
        let drop_in = fs::read_to_string(path).expect("a drop-in for each unit");
        assert!(drop_in.contains("\nExecStart=\nExecStart="), "the command is replaced: {drop_in}");
        let others = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with("ExecStart="));
            lines.collect::<Vec<_>>().join("\n")
        };
        let with_etcd = others(&unit) + "\n" + &drop_in.replace("ExecStart=\n", "");
        let command = command_of(&with_etcd);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        assert!(words.iter().any(|word| word.ends_with("etcd")), "{words:?}");
        match words[0] {
            "/usr/local/bin/zillion" => assert_options_are_known(&words[1..]),
            _ => assert_trainer_is_known(&words, &place.text("job.toml")),
        }
        // The file with examples sets what the unit reads, and nothing else.
        let example = name.trim_start_matches("zillion-").replace("@.service", ".env");
        let example = fs::read_to_string(root().join("deploy/systemd").join(example));
        let example = example.expect("each unit has a file of settings");
        let named = |text: &str| -> Vec<String> {
            let pairs = text.split_whitespace().filter_map(|setting| setting.split_once('='));
            let mut names: Vec<String> = pairs.map(|(name, _)| name.to_owned()).collect();
            names.sort();
            names
        };
        let settings: Vec<&str> = example.lines().filter(|line| !line.starts_with('#')).collect();
        let names = named(&settings.join("\n"));
        assert_eq!(names, named(&values(&unit, "Environment").join(" ")), "{name}");
        // The binary would read a variable with its prefix as a setting of its own.
        assert!(!names.iter().any(|name| name.starts_with("ZILLION_")), "{names:?}");
    }
}

#[test]
fn systemd_accepts_the_units() {
    let version = Command::new("systemd-analyze").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        skip("systemd", "there is no systemd-analyze");
        return;
    }
    let place = Workplace::new();
    for (name, unit) in units() {
        // systemd looks for the program, which is not installed here.
        let program = binary().to_str().expect("the build folder has a plain name");
        let script = root().join("deploy/bin").join(SCRIPT);
        let script = script.to_str().expect("the checkout has a plain name");
        let unit = unit
            .replace("/usr/local/bin/zillion-trainer", script)
            .replace("/usr/local/bin/zillion ", &format!("{program} "));
        let name = name.replace('@', "@0");
        place.write(&name, &unit);
        let verify = |path: &str| {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", path]).output().expect("systemd-analyze runs")
        };
        let result = verify(&place.text(&name));
        let said = stderr(&result);
        // Unknown keys are warnings, which do not change the exit code.
        let about = said.lines().filter(|line| line.contains(&name)).collect::<Vec<_>>();
        assert!(result.status.success() && about.is_empty(), "{said}");

        place.write(&name, &unit.replace("LimitNOFILE=", "LimitNOFILES="));
        let said = stderr(&verify(&place.text(&name)));
        assert!(said.contains("LimitNOFILES"), "a wrong key is not seen: {said}");
    }
}

/// Returns a command that runs the script of trainers with the binary of this build.
fn trainer(place: &Workplace, output: &str, more: &[&str]) -> Command {
    fs::create_dir_all(place.path("bin")).expect("our own folder");
    let link = place.path("bin/zillion");
    if !link.exists() {
        std::os::unix::fs::symlink(binary(), &link).expect("our own folder");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(root().join("deploy/bin").join(SCRIPT));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_")) {
        command.env_remove(name);
    }
    let output = format!("run.output={}", place.text(output));
    let data = format!("data.root={}", place.text(""));
    command.arg(place.text("job.toml")).args(["--set", &data, "--set", &output]).args(more);
    command.env("PATH", format!("{}:{path}", place.text("bin"))).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn an_interrupted_trainer_has_a_code_of_its_own() {
    let place = Workplace::new();
    let long = ["--set", "train.epochs=400", "--set", "train.plateau.patience=10000"];
    let mut child = trainer(&place, "interrupted", &long).spawn().expect("a shell runs");
    // The first checkpoint shows that training has begun.
    let checkpoints = place.path("interrupted/checkpoints");
    while !fs::read_dir(&checkpoints).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok())) {
        let ended = child.try_wait().expect("our own child can be asked");
        assert!(ended.is_none(), "the training ends before it is stopped: {ended:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let result = child.wait_with_output().expect("our own child can be waited for");
    assert_eq!(result.status.code(), Some(75), "{}", stderr(&result));
    assert_eq!(last_json(&stdout(&result))["interrupted"], true);

    // A training that is complete is not tried again, and other codes stay as they are.
    for (more, code) in [(["--set", "train.epochs=1"], 0), (["--set", "no.such.key=1"], 2)] {
        let result = trainer(&place, "whole", &more).output().expect("a shell runs");
        assert_eq!(result.status.code(), Some(code), "{}", stderr(&result));
    }
}
