//! Tests of jobs with several labels, from the job file to the score.

use std::fmt::Write as _;

use serde_json::Value;
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

/// Generates rows with three labels. Clicks depend on the ids. A purchase occurs only after a
/// click; the label is missing in some rows without a click. Two of three rows have a number of
/// stars.
fn csv(part: u64, rows: u64) -> String {
    let mut text = "user,item,click,buy,stars\n".to_owned();
    for row in 0..rows {
        let draw = |salt: u64| mix64(combine(combine(part, salt), row));
        let (user, item) = (draw(1) % 40, draw(2) % 30);
        let bias = |id: u64, salt: u64| (mix64(combine(id, salt)) % 1000) as f64 / 250.0 - 2.0;
        let chance = |z: f64| 1.0 / (1.0 + (-z).exp());
        let yes = |salt: u64, z: f64| ((draw(salt) % 100_000) as f64) < 100_000.0 * chance(z);
        let click = yes(3, bias(user, 7) + bias(item, 8));
        let buy = click && yes(4, bias(user, 9) + bias(item, 8));
        let bought = match (click, draw(5).is_multiple_of(3)) {
            (false, true) => "",
            _ if buy => "1",
            _ => "0",
        };
        let stars = match draw(6) % 3 {
            0 => String::new(),
            _ => (1 + u8::from(yes(11, bias(item, 8))) * 2 + u8::from(yes(12, bias(user, 9))) * 2)
                .to_string(),
        };
        writeln!(text, "{user},{item},{},{bought},{stars}", u8::from(click)).expect("memory");
    }
    text
}

const JOB: &str = r#"
name = "tasks"
seed = 4

[data]
train = ["train.csv"]
valid = ["valid.csv"]
test = ["test.csv"]

[features.user]
kind = "id"
[features.item]
kind = "id"

[labels.click]
[labels.liked]
column = "stars"
at_least = 3
weight = 0.5

[tables."*"]
dim = 8
initializer = { kind = "normal", std = 0.05 }
optimizer = { kind = "adagrad", lr = 0.05 }

[model]
kind = "mmoe"
experts = 2
expert = [16]
tower = [8]
dropout = 0.1

[train]
epochs = 4
batch_size = 64
lanes = 4
tile_rows = 16
clip_norm = 1.0
checkpoint_every = 10
optimizer = { kind = "adam", lr = 5e-3 }
plateau = { factor = 0.5, patience = 5, task = "liked" }

[run]
threads = 1
"#;

fn place() -> Workplace {
    let place = Workplace::new();
    for (part, (name, rows)) in (0..).zip([("train", 3000), ("valid", 600), ("test", 1000)]) {
        place.write(&format!("{name}.csv"), &csv(part, rows));
    }
    place.write("job.toml", JOB);
    place
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// Changes the job to two labels and the model `esmm`.
fn esmm(place: &Workplace) {
    let (head, rest) = JOB.split_once("[labels.liked]").expect("the label");
    let (_, rest) = rest.split_once("[tables").expect("what follows it");
    let (middle, rest) = rest.split_once("[model]").expect("the model");
    let (_, rest) = rest.split_once("[train]").expect("what follows it");
    let job = format!(
        "{head}[labels.buy]\n[tables{middle}[model]\nkind = 'esmm'\nhidden = [16]\n[train]{rest}"
    );
    place.write("job.toml", &job.replace("task = \"liked\"", "task = \"buy\""));
}

#[test]
fn several_labels_train_resume_and_have_their_own_metrics() {
    let place = place();
    let output = place.train_ok("reference", &["--json", "--set", "run.shards=3"]);
    let said = stderr(&output);
    assert!(said.contains("valid auc click 0.") && said.contains(" liked 0."), "{said}");
    let report = json(&stdout(&output));
    let tasks = &report["test"]["tasks"];
    let figure = |task: &str, what: &str| tasks[task][what].as_f64().expect(what);
    assert!(figure("click", "auc") > 0.75 && figure("liked", "auc") > 0.65, "{report}");
    assert_eq!(report["test_auc"], tasks["click"]["auc"]);
    assert_eq!(figure("click", "rows"), 1000.0);
    let starred = csv(2, 1000).lines().skip(1).filter(|line| !line.ends_with(',')).count();
    assert_eq!(figure("liked", "rows"), starred as f64);

    let killed = place.train("killed", &[]).env("ZILLION_FAILPOINT", "120:kill").output();
    assert!(!killed.expect("the binary runs").status.success());
    place.train_ok("killed", &["--resume", "--set", "run.threads=2", "--set", "run.shards=5"]);
    assert_eq!(place.digest("killed/checkpoints"), place.digest("reference/checkpoints"));

    let root = format!("data.root={}", place.text(""));
    let run = place.text("reference");
    let eval = zillion(&["eval", &run, "--json", "--set", &root]).output().expect("it runs");
    assert_eq!(&json(&stdout(&eval))["tasks"], tasks, "{}", stderr(&eval));
    assert!(stderr(&eval).contains("      liked  auc 0."), "{}", stderr(&eval));

    place.write("request.csv", "user,item\n1,2\n3,4\n");
    let request = place.text("request.csv");
    let predict = |more: &[&str]| {
        let arguments = [&["predict", &run, &request, "--set", &root][..], more].concat();
        let output = zillion(&arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let table = predict(&[]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((rows.len(), &rows[0]), (3, &vec!["click", "liked"]));
    let row = json(&predict(&["--json"]));
    assert_eq!(row["probability"].as_f64(), rows[2][0].parse().ok());
    assert_eq!(row["probability"], row["tasks"]["click"]["probability"]);
    assert_eq!(row["tasks"]["liked"]["probability"].as_f64(), rows[2][1].parse().ok());
}

#[test]
fn esmm_scores_clicks_purchases_and_purchases_after_a_click() {
    let place = place();
    esmm(&place);
    let output = place.train_ok("reference", &["--json"]);
    let report = json(&stdout(&output));
    let tasks = report["test"]["tasks"].as_object().expect("three tasks").clone();
    let auc = |task: &str| tasks[task]["auc"].as_f64().expect("an auc");
    assert!(auc("click") > 0.75 && auc("buy") > 0.75, "{report}");
    assert!(auc("buy_given_click") > 0.55, "{report}");
    // Purchases are known for all impressions, because without a click there was none.
    assert_eq!(tasks["buy"]["rows"], 1000);
    assert_eq!(tasks["buy_given_click"]["rows"], tasks["click"]["positives"]);
    assert_eq!(tasks["buy_given_click"]["positives"], tasks["buy"]["positives"]);
    let calibration = tasks["buy"]["calibration"].as_f64().expect("a figure");
    assert!((0.7..1.4).contains(&calibration), "{report}");

    let root = format!("data.root={}", place.text(""));
    let (run, request) = (place.text("reference"), place.text("test.csv"));
    let scored = zillion(&["predict", &run, &request, "--set", &root]).output().expect("it runs");
    let text = stdout(&scored);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("click\tbuy\tbuy_given_click"), "{}", stderr(&scored));
    for line in lines {
        let p: Vec<f64> = line.split('\t').map(|p| p.parse().expect("a number")).collect();
        assert!((p[0] * p[2] - p[1]).abs() < 1e-6, "{line}");
    }
}

#[test]
fn the_printed_job_is_the_same_job() {
    let place = place();
    let print = |job: &str| {
        let output = zillion(&["train", job, "--print-config"]).output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).parse::<toml::Table>().expect("TOML")
    };
    let printed = print(&place.text("job.toml"));
    assert_eq!(printed["labels"]["liked"]["at_least"].as_float(), Some(3.0));
    assert_eq!(printed["train"]["plateau"]["task"].as_str(), Some("liked"));
    place.write("printed.toml", &toml::to_string(&printed).expect("TOML"));
    assert_eq!(print(&place.text("printed.toml")), printed);
}

#[test]
fn errors_of_the_job_are_named() {
    let place = place();
    for (from, to, message) in [
        (
            "kind = \"mmoe\"\nexperts = 2\nexpert = [16]\ntower = [8]\ndropout = 0.1",
            "kind = \"deepfm\"",
            "deepfm learns one label, but the job has 2; keep one label, or choose a model that \
             learns several: shared_bottom, mmoe, esmm",
        ),
        ("task = \"liked\"", "task = \"like\"", "did you mean `liked`?"),
        ("at_least = 3", "at_lest = 3", "did you mean `at_least`?"),
        ("weight = 0.5", "weight = -1", "must be finite and not negative"),
        ("column = \"stars\"\nat_least = 3", "column = \"click\"", "is the same as label `click`"),
    ] {
        assert!(JOB.contains(from), "{from}");
        place.write("job.toml", &JOB.replacen(from, to, 1));
        let (code, said) = place.train_fails(&[]);
        assert!(said.contains(message), "{message}\n{said}");
        assert_eq!(code, 2, "{said}");
    }
    // The job has no label at all.
    let (head, rest) = JOB.split_once("[labels.click]").expect("the labels");
    let (_, rest) = rest.split_once("[tables").expect("what follows them");
    place.write("job.toml", &format!("{head}[tables{rest}"));
    let (code, said) = place.train_fails(&[]);
    assert!(said.contains("`labels`: a job needs at least one label"), "{said}");
    assert_eq!(code, 2, "{said}");
    // The job lacks a threshold.
    place.write("job.toml", &JOB.replacen("at_least = 3", "", 1));
    let (code, said) = place.train_fails(&[]);
    assert!(said.contains("`at_least = <number>`"), "{said}");
    assert_eq!(code, 1, "{said}");
}
