//! Tests of training on a GPU by the command line. The emulated GPU takes its place, which only the
//! binary of the tests has. Every run must end in the bytes of a run on processors.

use std::process::Stdio;
use std::time::{Duration, Instant};

use zillion_feature::random::mix64;

use crate::harness::{Workplace, root, skip, stderr, stdout, zillion};

/// Settings by which the usual job takes few steps, but has a checkpoint, an end of an epoch and a
/// last, partial batch.
const SHORT: [&str; 6] = [
    "--set",
    "train.epochs=2",
    "--set",
    "train.batch_size=200",
    "--set",
    "train.checkpoint_every=3",
];

/// The number of runs that are killed.
const KILLS: u64 = 10;

/// Kills some runs at a random time, and resumes each of them. All must end in the files of the
/// reference.
fn kill_runs(
    place: &Workplace,
    settings: &[&str],
    (kills, whole_run): (u64, Duration),
    devices: impl Fn(u64) -> [&'static str; 2],
    reference: &std::collections::BTreeMap<String, String>,
) {
    for kill in 0..kills {
        let output = format!("killed-{kill}");
        let devices = devices(kill);
        let mut child = place
            .train(&output, &[settings, &["--device", devices[0]]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(kill) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
        place.train_ok(&output, &[settings, &["--resume", "--device", devices[1]]].concat());
        assert_eq!(&place.digest(&format!("{output}/checkpoints")), reference, "kill {kill}");
    }
}

#[test]
fn a_missing_driver_ends_a_training_that_names_a_gpu() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return;
    }
    let place = Workplace::new();
    let (code, error) = place.train_fails(&["--device", "cuda:0"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("libcuda.so.1") && error.contains("install driver"), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    // Without a name, the same machine trains, and says where and why.
    let output = place.train_ok("auto", &["--set", "train.epochs=1"]);
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("device cpu")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("libcuda.so.1"), "{text}");
}

#[test]
fn a_wrong_device_is_refused_by_name() {
    let place = Workplace::new();
    for device in ["gpu", "cuda", "cuda:x", "rocm:0"] {
        let (_, error) = place.train_fails(&["--device", device]);
        let names = ["run.device", "cuda:0", device];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
    let printed = place.train_ok("printed", &["--device", "cuda:3", "--print-config"]);
    assert!(stdout(&printed).contains("device = \"cuda:3\""), "{}", stdout(&printed));
}

#[test]
fn a_run_that_is_killed_ends_in_the_bytes_of_processors_on_any_device() {
    let place = Workplace::new();
    place.train_ok("reference", &[&SHORT[..], &["--device", "cpu"]].concat());
    let reference = place.digest("reference/checkpoints");
    let began = Instant::now();
    let whole = place.train_ok("whole", &[&SHORT[..], &["--device", "emulated:7"]].concat());
    let whole_run = began.elapsed();
    assert!(stderr(&whole).contains("device emulated:7 ("), "{}", stderr(&whole));
    assert!(stderr(&whole).contains("rows on the device, "), "{}", stderr(&whole));
    assert_eq!(place.digest("whole/checkpoints"), reference);
    let devices = |kill| match kill % 3 {
        0 => ["emulated:1", "emulated:2"],
        1 => ["emulated:3", "cpu"],
        _ => ["cpu", "emulated:4"],
    };
    kill_runs(&place, &SHORT, (KILLS, whole_run), devices, &reference);
}

#[test]
fn a_run_in_another_precision_is_killed_and_ends_in_its_own_bytes() {
    for precision in ["tf32", "bf16"] {
        let place = Workplace::new();
        let set = format!("train.precision={precision}");
        let settings = [&SHORT[..], &["--set", &set]].concat();
        // Processors compute bf16 if they have the instructions.
        if precision == "tf32" {
            let (code, error) = place.train_fails(&[&settings[..], &["--device", "cpu"]].concat());
            assert_eq!(code, 2, "{error}");
            let words = ["train.precision", precision, "run.device", "set \"f32\""];
            assert!(words.iter().all(|words| error.contains(words)), "{error}");
        }
        let began = Instant::now();
        let whole = place.train_ok("whole", &[&settings[..], &["--device", "emulated:7"]].concat());
        let whole_run = began.elapsed();
        assert!(stderr(&whole).contains(&format!("products in {precision}")), "{}", stderr(&whole));
        let printed = place.train_ok("printed", &[&settings[..], &["--print-config"]].concat());
        assert!(stdout(&printed).contains(&format!("precision = \"{precision}\"")));
        let reference = place.digest("whole/checkpoints");
        let devices = |kill| match kill % 2 {
            0 => ["emulated:1", "emulated:2"],
            _ => ["emulated:3", "emulated:4"],
        };
        kill_runs(&place, &settings, (3, whole_run), devices, &reference);
        // What a GPU trained in this precision cannot go on in another one.
        let other = [&SHORT[..], &["--resume", "--device", "emulated:1"]].concat();
        let refused = place.train("whole", &other).output().expect("the binary runs");
        assert!(!refused.status.success() && stderr(&refused).contains("train.precision"));
    }
}

/// Returns the arguments of the job of Frappe, or `None` if the data is not beside the checkout.
fn frappe() -> Option<[String; 3]> {
    let data = root().join("../shared/data/frappe_x1r");
    if !data.join("train.parquet").exists() {
        skip("frappe", "the data set is not beside the checkout");
        return None;
    }
    let job = root().join("examples/frappe/job.toml");
    Some([job.display().to_string(), "--set".into(), format!("data.root={}", data.display())])
}

/// Trains Frappe on a part of its rows in each precision, on the emulated GPU or on the GPU that
/// `ZILLION_TEST_GPU` names.
#[test]
fn frappe_has_nearly_one_auc_in_each_precision() {
    let Some(frappe) = frappe() else { return };
    let place = Workplace::new();
    let device = std::env::var("ZILLION_TEST_GPU").unwrap_or_else(|_| "emulated:6".to_owned());
    let auc_of = |precision: &str| {
        let set_output = format!("run.output={}", place.text(precision));
        let set_precision = format!("train.precision={precision}");
        let mut arguments = vec!["train", "--device", &device, "--json", "--set", &set_output];
        arguments.extend(frappe.iter().map(String::as_str));
        arguments.extend(["--set", &set_precision, "--set", "data.test=[]"]);
        arguments.extend(["--set", "data.sample=0.05", "--set", "train.epochs=2"]);
        arguments.extend(["--set", "train.batch_size=512", "--set", "model.hidden=[64,32]"]);
        let output = zillion(&arguments).output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        let line = text.lines().last().expect("a report");
        let report: serde_json::Value = serde_json::from_str(line).expect("the report is JSON");
        report["valid_auc"].as_f64().expect("the validation has an AUC")
    };
    let aucs = ["f32", "tf32", "bf16"].map(auc_of);
    assert!(aucs[0] > 0.6, "{aucs:?}");
    assert!((aucs[1] - aucs[0]).abs() < 0.005 && (aucs[2] - aucs[0]).abs() < 0.02, "{aucs:?}");
}

#[test]
fn frappe_ends_in_the_bytes_of_processors() {
    let Some(frappe) = frappe() else { return };
    let place = Workplace::new();
    // The emulated GPU runs every thread of a kernel, so the test trains on a part of the rows.
    let train = |name: &str, device: &str| {
        let set_output = format!("run.output={}", place.text(name));
        let mut arguments = vec!["train", "--device", device, "--set", &set_output];
        arguments.extend(frappe.iter().map(String::as_str));
        arguments.extend(["--set", "data.sample=0.02"]);
        arguments.extend(["--set", "train.epochs=1", "--set", "train.batch_size=512"]);
        arguments.extend(["--set", "data.test=[]"]);
        let output = zillion(&arguments).output().expect("the binary runs");
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.contains("rows on the device, "), device != "cpu", "{text}");
        place.digest(&format!("{name}/checkpoints"))
    };
    assert_eq!(train("gpu", "emulated:5"), train("cpu", "cpu"));
}
