//! Tests of training data in a bucket. A job must train to the same bytes as with the same files on
//! this machine, also if requests fail, and it must name an object that changes or is missing.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::place::S3Place;
use super::proxy::{Fault, Proxy, storm};
use super::s3::{Create, S3Server};
use crate::formats::{as_json, write_arrow};
use crate::harness::{Workplace, csv, stderr, stdout, zillion};

/// The folder of the data in the bucket.
const ROOT: &str = "s3://models/data";

/// Copies the files of a workplace into the bucket, below the folder of the data.
fn upload(server: &S3Server, place: &Workplace, names: &[&str]) {
    for name in names {
        let target = server.bucket().join("data").join(name);
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("our own folder");
        std::fs::copy(place.path(name), target).expect("our own files");
    }
}

/// Trains on files of this machine or, with `root`, of the bucket.
fn train(s3: &S3Place, run: &str, root: Option<&str>, more: &[&str]) -> Output {
    let root = root.map(|root| format!("data.root={root}"));
    let mut arguments: Vec<&str> = root.iter().flat_map(|root| ["--set", root.as_str()]).collect();
    arguments.extend(more);
    s3.command(s3.place.train(run, &arguments)).output().expect("the binary runs")
}

fn train_ok(s3: &S3Place, run: &str, root: Option<&str>, more: &[&str]) -> Vec<(String, String)> {
    let output = train(s3, run, root, more);
    assert!(output.status.success(), "{run}: {}", stderr(&output));
    tables(&s3.place, run)
}

/// Returns the files of the checkpoints and their hashes. A manifest names the folder of the data,
/// so manifests are left out.
fn tables(place: &Workplace, run: &str) -> Vec<(String, String)> {
    let files = place.digest(&format!("{run}/checkpoints"));
    files.into_iter().filter(|(name, _)| !name.ends_with("MANIFEST")).collect()
}

/// Writes the training data in every format, in one file and in parts.
fn write_formats(place: &Workplace) -> Vec<&'static str> {
    let text = csv(0, 1500);
    let (header, rows) = text.split_once('\n').expect("a header");
    let lines: Vec<&str> = rows.lines().collect();
    for folder in ["parts", "parts/day=2"] {
        std::fs::create_dir_all(place.path(folder)).expect("a new folder");
    }
    for (name, part) in [
        ("parts/a.csv", &lines[..400]),
        ("parts/a-b.csv", &lines[400..700]),
        ("parts/day=2/c.csv", &lines[700..]),
    ] {
        place.write(name, &format!("{header}\n{}\n", part.join("\n")));
    }
    place.write("parts/_SUCCESS", "");
    place.write("train.jsonl", &as_json(&text));
    write_arrow(&place.path("train.arrow"), &text);
    let packed = Command::new("gzip").arg("-kf").arg(place.path("train.csv")).status();
    assert!(packed.expect("gzip runs").success());
    let mut convert = zillion(&["data", "convert"]);
    convert.arg(place.path("train.csv")).args(["--output"]).arg(place.path("train.parquet"));
    let converted = convert.output().expect("the binary runs");
    assert!(converted.status.success(), "{}", stderr(&converted));
    vec![
        "train.csv",
        "valid.csv",
        "test.csv",
        "train.csv.gz",
        "train.jsonl",
        "train.arrow",
        "train.parquet",
        "parts/a.csv",
        "parts/a-b.csv",
        "parts/day=2/c.csv",
        "parts/_SUCCESS",
    ]
}

#[test]
fn data_in_a_bucket_trains_to_the_bytes_of_local_files() {
    let server = S3Server::start(Create::Honoured);
    let proxy = Proxy::start(server.address, storm(11, 60));
    let s3 = S3Place::new(proxy.address);
    let names = write_formats(&s3.place);
    upload(&server, &s3.place, &names);
    let one = ["--set", "train.epochs=1"];
    for (index, train) in [
        "\"train.csv\"",
        "\"train.csv.gz\"",
        "\"train.jsonl\"",
        "\"train.arrow\"",
        "\"train.parquet\"",
        "\"parts\"",
        "\"parts/*\"",
        "[\"parts/**/c.csv\", \"parts/a*.csv\"]",
    ]
    .iter()
    .enumerate()
    {
        let set = format!("data.train={train}");
        let more = [&one[..], &["--set", &set]].concat();
        // A glob that is not written for folders also matches the marker of a finished job.
        if index == 6 {
            let local = train_output(&s3, "local-glob", None, &more);
            let remote = train_output(&s3, "remote-glob", Some(ROOT), &more);
            assert!(local.contains("_SUCCESS") && remote.contains("_SUCCESS"), "{local}\n{remote}");
            continue;
        }
        let local = train_ok(&s3, &format!("local-{index}"), None, &more);
        let remote = train_ok(&s3, &format!("remote-{index}"), Some(ROOT), &more);
        assert!(local.len() >= 5);
        assert_eq!(remote, local, "{train}");
    }
    assert!(proxy.broken() > 10, "{}", proxy.broken());
}

fn train_output(s3: &S3Place, run: &str, root: Option<&str>, more: &[&str]) -> String {
    stderr(&train(s3, run, root, more))
}

#[test]
fn urls_of_files_side_tables_and_commands_work() {
    let server = S3Server::start(Create::Honoured);
    let s3 = S3Place::new(server.address);
    upload(&server, &s3.place, &["train.csv", "valid.csv", "test.csv"]);
    // The root is a local folder, and the lists have whole URLs.
    let sets = [
        "--set",
        "data.train=\"s3://models/data/tr*.csv\"",
        "--set",
        "data.valid=\"s3://models/data/valid.csv\"",
    ];
    let more = [&sets[..], &["--set", "train.epochs=1"]].concat();
    let local = train_ok(&s3, "local", None, &["--set", "train.epochs=1"]);
    assert_eq!(train_ok(&s3, "mixed", None, &more), local);
    let run = |arguments: &[&str]| {
        let output = s3.command(zillion(arguments)).output().expect("the binary runs");
        assert!(output.status.success(), "{arguments:?}\n{}", stderr(&output));
        stdout(&output)
    };
    let inspected = run(&["data", "inspect", "s3://models/data/train.csv"]);
    assert!(inspected.contains("user") && inspected.contains("price"), "{inspected}");
    let job = s3.place.text("job.toml");
    let checked = run(&["check", &job, "--set", &format!("data.root={ROOT}")]);
    assert!(checked.contains("user"), "{checked}");
    let checkpoint = s3.place.text("local");
    let scores = run(&["predict", &checkpoint, "s3://models/data/test.csv"]);
    assert_eq!(scores, run(&["predict", &checkpoint, &s3.place.text("test.csv")]));
    let converted = s3.place.text("converted.parquet");
    run(&["data", "convert", "s3://models/data/train.csv", "--output", &converted]);
    assert!(Path::new(&converted).is_file());
}

#[test]
fn a_killed_run_goes_on_from_the_bucket() {
    let server = S3Server::start(Create::Honoured);
    let s3 = S3Place::new(server.address);
    let names = write_formats(&s3.place);
    upload(&server, &s3.place, &names);
    for (name, train) in [("text", "\"parts\""), ("parquet", "\"train.parquet\"")] {
        let set = format!("data.train={train}");
        let more = ["--set", set.as_str(), "--set", "train.epochs=4"];
        let whole = train_ok(&s3, &format!("{name}-whole"), Some(ROOT), &more);
        let root = format!("data.root={ROOT}");
        let sets = [&["--set", root.as_str()], &more[..]].concat();
        let command = s3.place.train(name, &sets);
        let mut child = s3.command(command).stderr(Stdio::null()).spawn().expect("the binary runs");
        let checkpoints = s3.place.path(&format!("{name}/checkpoints"));
        let begun = || {
            let mut entries = std::fs::read_dir(&checkpoints).into_iter().flatten().flatten();
            entries.any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
        };
        while !begun() && child.try_wait().expect("our own child").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child");
        let resumed = train_ok(&s3, name, Some(ROOT), &[&more[..], &["--resume"]].concat());
        assert_eq!(resumed, whole, "{name}");
    }
}

/// Trains on a file in the bucket that `change` changes at request `at` for its bytes. Returns the
/// error message.
fn train_while_it_changes(name: &str, at: usize, change: fn(&Path)) -> String {
    let server = S3Server::start(Create::Honoured);
    let requests = Arc::new(AtomicUsize::new(0));
    let object = server.bucket().join("data").join(name);
    let (counted, path, wanted) = (requests.clone(), object.clone(), format!("/data/{name} "));
    let proxy = Proxy::start(server.address, move |head| {
        let is_read = head.starts_with("GET ") && head.contains(&wanted);
        if is_read && counted.fetch_add(1, Ordering::Relaxed) + 1 == at {
            change(&path);
        }
        Fault::None
    });
    let s3 = S3Place::new(proxy.address);
    let names = write_formats(&s3.place);
    upload(&server, &s3.place, &names);
    let set = format!("data.train=\"{name}\"");
    let output = train(&s3, "run", Some(ROOT), &["--set", &set]);
    let said = stderr(&output);
    assert!(requests.load(Ordering::Relaxed) >= at, "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{ROOT}/{name}")), "{said}");
    said
}

#[test]
fn an_object_that_is_replaced_is_named() {
    let replace: fn(&Path) = |path| {
        let mut bytes = std::fs::read(path).expect("it is there");
        // The size stays the same, so that only the entity tag tells the two states apart.
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).expect("our own file");
    };
    for name in ["train.csv", "train.csv.gz", "train.parquet", "train.arrow"] {
        let said = train_while_it_changes(name, 4, replace);
        assert!(said.contains("was replaced after it was opened"), "{name}: {said}");
        assert!(said.contains("new data under new names"), "{name}: {said}");
    }
}

#[test]
fn an_object_that_vanishes_is_named() {
    let remove: fn(&Path) = |path| std::fs::remove_file(path).expect("our own file");
    for name in ["train.csv", "train.parquet"] {
        let said = train_while_it_changes(name, 4, remove);
        assert!(said.contains("was removed after it was opened"), "{name}: {said}");
    }
}

#[test]
fn what_a_bucket_refuses_is_explained() {
    let server = S3Server::start(Create::Honoured);
    let mut s3 = S3Place::new(server.address);
    upload(&server, &s3.place, &["train.csv", "valid.csv", "test.csv"]);
    let said = |s3: &S3Place, train_list: &str| {
        let set = format!("data.train=\"{train_list}\"");
        let output = train(s3, "refused", None, &["--set", &set]);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
        stderr(&output)
    };
    for (list, reason) in [
        ("s3://nowhere/data/*.csv", "create the bucket, or correct its name"),
        ("s3://models/data/none*.csv", "matches no file (looked for s3://models/data/none*.csv)"),
        ("s3://models/none", "matches no file"),
        ("s3://models/data/[.csv", "is not a valid glob"),
        ("http://models/data/train.csv", "the kind of store is unknown"),
    ] {
        let said = said(&s3, list);
        assert!(said.contains(reason), "{list}: {said}");
    }
    s3.set("AWS_SECRET_ACCESS_KEY", "another secret");
    let denied = said(&s3, "s3://models/data/*.csv");
    assert!(denied.contains("403") && denied.contains("credentials"), "{denied}");
    assert!(!denied.contains("another secret"), "{denied}");
}
