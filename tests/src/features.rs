//! Tests of sequences, crosses and side tables, from the job file to the score.

use std::fmt::Write as _;

use serde_json::Value;
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

const USERS: u64 = 60;
const ITEMS: u64 = 40;

/// Generates rows whose label depends only on the combination of the user's city and the item's
/// colour. For each city alone and for each colour alone, the labels 0 and 1 are equally frequent.
fn csv(part: u64, rows: u64) -> String {
    let mut text = "user,item,history,label\n".to_owned();
    for row in 0..rows {
        let draw = |salt: u64| mix64(combine(combine(part, salt), row));
        // A few users and items are not in a side table.
        let (user, item) = (draw(1) % (USERS + 2), draw(2) % (ITEMS + 1));
        let history: Vec<String> =
            (0..draw(3) % 6).map(|i| (draw(4 + i) % ITEMS).to_string()).collect();
        let match_made = (city(user) + colour(item)).is_multiple_of(2);
        let label = u8::from(match_made != draw(20).is_multiple_of(10));
        writeln!(text, "u{user},{item},{},{label}", history.join("|")).expect("memory");
    }
    text
}

fn city(user: u64) -> u64 {
    mix64(user) % 4
}

fn colour(item: u64) -> u64 {
    mix64(item + 1000) % 4
}

const JOB: &str = r#"
name = "features"
seed = 3

[data]
train = ["train.csv"]
valid = ["valid.csv"]
test = ["test.csv"]

[side.users]
path = "users.csv"
key = "user"
type = "string"
[side.items]
path = "items.csv"
key = "id"

[features.history]
kind = "sequence"
max_len = 4
table = "item"
[features.item]
kind = "id"
[features.city]
kind = "id"
type = "string"
side = "users"
[features.age]
kind = "bucketized"
buckets = 3
side = "users"
[features.income]
kind = "numeric"
transform = "standardise"
missing = 0
side = "users"
[features.colour]
kind = "id"
side = "items"
by = "item"
[features.city_colour]
kind = "cross"
of = ["city", "colour"]

[labels.label]

[tables."*"]
dim = 4
optimizer = { kind = "adagrad", lr = 0.05 }
[tables.city_colour]
dense = true
l2 = 1e-4
optimizer = { kind = "adam", lr = 0.01 }

[model]
kind = "deepfm"
hidden = [16, 8]

[train]
epochs = 3
batch_size = 64
checkpoint_every = 10

[run]
threads = 1
"#;

fn place() -> Workplace {
    let place = Workplace::new();
    for (part, (name, rows)) in (0..).zip([("train", 3000), ("valid", 500), ("test", 1000)]) {
        place.write(&format!("{name}.csv"), &csv(part, rows));
    }
    let mut users = "user,city,age,income\n".to_owned();
    for user in 0..USERS {
        let draw = mix64(user + 50);
        let age = if user.is_multiple_of(7) { String::new() } else { (draw % 90).to_string() };
        writeln!(users, "u{user},c{},{age},{}", city(user), draw % 1000).expect("memory");
    }
    place.write("users.csv", &users);
    let mut items = "id,colour\n".to_owned();
    for item in 0..ITEMS {
        writeln!(items, "{item},{}", colour(item)).expect("memory");
    }
    place.write("items.csv", &items);
    place.write("job.toml", JOB);
    place
}

fn outcome(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

#[test]
fn all_three_train_resume_and_score_from_the_checkpoint() {
    let place = place();
    let report =
        outcome(&stdout(&place.train_ok("reference", &["--json", "--set", "run.shards=3"])));
    let auc = report["test_auc"].as_f64().expect("a number");
    assert!(auc > 0.8, "{report}");
    for side in ["users", "items"] {
        let rows = |report: &Value| report["missing_side_rows"][side].as_u64();
        assert!(rows(&report).is_some_and(|n| n > 100), "{report}");
        assert!(rows(&report["test"]).is_some_and(|n| n > 10), "{report}");
    }

    // A run that is killed in the middle and resumed with other threads and shards ends with the
    // same bytes.
    let killed = place.train("killed", &[]).env("ZILLION_FAILPOINT", "120:kill").output();
    assert!(!killed.expect("the binary runs").status.success());
    place.train_ok("killed", &["--resume", "--set", "run.threads=2", "--set", "run.shards=5"]);
    assert_eq!(place.digest("killed/checkpoints"), place.digest("reference/checkpoints"));

    let root = format!("data.root={}", place.text(""));
    let run = place.text("reference");
    let eval =
        zillion(&["eval", &run, "--json", "--set", &root]).output().expect("the binary runs");
    assert!(eval.status.success(), "{}", stderr(&eval));
    assert_eq!(outcome(&stdout(&eval))["auc"].as_f64(), Some(auc));
    // A request without labels contains only ids. All other values come from the side tables.
    place.write("request.csv", "user,item,history\nu1,2,3|4\nnobody,999,\n");
    let request = place.text("request.csv");
    let predict = zillion(&["predict", &run, &request, "--set", &root]).output();
    let predict = predict.expect("the binary runs");
    assert!(predict.status.success(), "{}", stderr(&predict));
    assert_eq!(stdout(&predict).lines().count(), 3, "{}", stdout(&predict));
}

#[test]
fn a_linear_model_learns_combinations_only_by_a_cross() {
    let place = place();
    let auc = |output: &str| {
        let linear = ["--json", "--set", "model={kind='lr'}", "--set", "train.epochs=8"];
        let report = outcome(&stdout(&place.train_ok(output, &linear)));
        report["test_auc"].as_f64().expect("a number")
    };
    let with = auc("with");
    let (before, rest) = JOB.split_once("[features.city_colour]").expect("the cross");
    let (_, rest) = rest.split_once("[labels.label]").expect("what follows it");
    let (tables, rest) = rest.split_once("[tables.city_colour]").expect("its table");
    let (_, model) = rest.split_once("[model]").expect("what follows it");
    place.write("job.toml", &format!("{before}[labels.label]{tables}[model]{model}"));
    let without = auc("without");
    assert!(with > 0.85 && without < 0.6, "with {with}, without {without}");
}

#[test]
fn a_side_table_may_move_but_not_change_its_meaning() {
    let place = place();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    std::fs::rename(place.path("users.csv"), place.path("people.csv")).expect("a rename");
    let moved = ["--resume", "--set", "train.epochs=2", "--set", "side.users.path='people.csv'"];
    place.train_ok("run", &moved);
    let rekeyed = [&moved[..], &["--set", "side.items.type='u64'"]].concat();
    let result = place.train("run", &rekeyed).output().expect("the binary runs");
    let said = stderr(&result);
    assert!(said.contains("`side.items.type` was \"i64\""), "{said}");
}

#[test]
fn a_side_table_must_not_change_inside_an_epoch() {
    let place = place();
    let killed = place.train("run", &[]).env("ZILLION_FAILPOINT", "120:kill").output();
    assert!(!killed.expect("the binary runs").status.success());
    let mut items = std::fs::read_to_string(place.path("items.csv")).expect("it is there");
    items.push_str("777,1\n");
    place.write("items.csv", &items);
    let result = place.train("run", &["--resume"]).output().expect("the binary runs");
    let said = stderr(&result);
    assert!(said.contains("side table items of"), "{said}");
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
    assert_eq!(printed["side"]["items"]["type"].as_str(), Some("i64"));
    assert_eq!(printed["features"]["history"]["pooling"].as_str(), Some("mean"));
    place.write("printed.toml", &toml::to_string(&printed).expect("TOML"));
    assert_eq!(print(&place.text("printed.toml")), printed);
}

#[test]
fn errors_of_the_job_are_named() {
    let place = place();
    for (from, to, code, message) in [
        (
            "of = [\"city\", ",
            "of = [\"cty\", ",
            2,
            "unknown value \"cty\" for `features.city_colour.of`; did you mean `city`?",
        ),
        (
            "of = [\"city\", ",
            "of = [\"history\", ",
            2,
            "`history` may have several values in a row",
        ),
        ("max_len = 4", "", 2, "a sequence needs `max_len`"),
        (
            "side = \"items\"",
            "side = \"itms\"",
            2,
            "unknown value \"itms\" for `features.colour.side`; did you mean `items`?",
        ),
        (
            "key = \"id\"",
            "key = \"idd\"",
            1,
            "column `idd` of side table `items` is missing; did you mean `id`?",
        ),
        (
            "missing = 0\n",
            "",
            1,
            "has no row in the side table, but the join with side table `users` needs one",
        ),
        (
            "type = \"string\"\n[side.items]",
            "[side.items]",
            1,
            "\"u0\" is not a whole number; declare `type = \"string\"` for side table `users`",
        ),
    ] {
        assert!(JOB.contains(from), "{from}");
        place.write("job.toml", &JOB.replacen(from, to, 1));
        let (found, said) = place.train_fails(&[]);
        assert!(said.contains(message), "{message}\n{said}");
        assert_eq!(found, code, "{said}");
    }
}
