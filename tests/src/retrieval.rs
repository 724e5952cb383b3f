//! Tests of the two-tower model, from sequences to the ranks of items.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_schema::Schema;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

/// The number of items.
pub(crate) const ITEMS: u64 = 60;
const USERS: u64 = 400;

/// Generates the sequence of items of each user. There are six groups of ten items, and a user
/// stays in one group. Usually the next item of a sequence is the next item of the group; otherwise
/// it is one of the first four items of the group.
fn sequences() -> Vec<(i64, Vec<i64>)> {
    let sequence = |user: u64| {
        let draw = |salt: u64| mix64(combine(combine(77, salt), user));
        let group = draw(1) % 6;
        let mut at = draw(2) % 10;
        let items = (0..2 + draw(3) % 7).map(|i| {
            at = if draw(10 + i) % 3 == 0 { draw(30 + i) % 4 } else { (at + 1) % 10 };
            (group * 10 + at) as i64
        });
        (user as i64, items.collect())
    };
    (0..USERS).map(sequence).collect()
}

fn write_sequences(place: &Workplace, name: &str) {
    let rows = sequences();
    let users: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.0)));
    let lists = rows.iter().map(|r| Some(r.1.iter().map(|&i| Some(i))));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let batch = RecordBatch::try_from_iter([("user", users), ("bought", lists)]).expect("a batch");
    let file = std::fs::File::create(place.path(name)).expect("a file");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(&batch).expect("rows");
    writer.close().expect("an end");
}

/// Returns the user, the history and the target item of each row of a file.
fn rows(place: &Workplace, name: &str) -> Vec<(i64, Vec<i64>, i64)> {
    let file = std::fs::File::open(place.path(name)).expect("the file");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build();
    let mut rows = Vec::new();
    for batch in reader.expect("a reader") {
        let batch = batch.expect("rows");
        let schema: Arc<Schema> = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, ["user", "history", "item"]);
        let numbers = |array: &ArrayRef| -> Vec<i64> {
            let array = array.as_any().downcast_ref::<Int64Array>().expect("whole numbers");
            array.values().to_vec()
        };
        let lists = batch.column(1).as_any().downcast_ref::<ListArray>().expect("lists");
        let (users, items) = (numbers(batch.column(0)), numbers(batch.column(2)));
        rows.extend((0..batch.num_rows()).map(|i| (users[i], numbers(&lists.value(i)), items[i])));
    }
    rows
}

/// Returns a workplace with sequences, items, and a job of two towers.
pub(crate) fn place() -> Workplace {
    let place = Workplace::new();
    write_sequences(&place, "sequences.parquet");
    let (input, out) = (place.text("sequences.parquet"), place.text("data"));
    let arguments =
        ["data", "next-item", "--in", &input, "--by", "user", "--items", "bought", "--last", "5"];
    let made = zillion(&[&arguments[..], &["--out", &out]].concat()).output().expect("it runs");
    assert!(made.status.success(), "{}", stderr(&made));
    let mut items = "id,kind\n".to_owned();
    for item in 0..ITEMS {
        writeln!(items, "{item},k{}", item % 10).expect("memory");
    }
    place.write("data/items.csv", &items);
    place.write("job.toml", JOB);
    place
}

const JOB: &str = r#"
name = "retrieval"
seed = 2

[data]
train = ["data/train.parquet"]
valid = ["data/valid.parquet"]
test = ["data/test.parquet"]

[side.items]
path = "data/items.csv"
key = "id"

[features.history]
kind = "sequence"
max_len = 3
table = "item"
[features.item]
kind = "id"
[features.kind]
kind = "id"
type = "string"
side = "items"
by = "item"

[tables."*"]
dim = 16
initializer = { kind = "normal", std = 0.1 }
optimizer = { kind = "adagrad", lr = 0.1 }

[model]
kind = "two_tower"
user = ["history"]
item = ["item", "kind"]
hidden = [16]
dim = 12
temperature = 0.2
dropout = 0.1

[eval]
candidates = "items"
exclude = "history"
ndcg_at = [10]
recall_at = [5, 10]

[train]
epochs = 6
batch_size = 100
lanes = 4
tile_rows = 16
clip_norm = 5.0
checkpoint_every = 4
optimizer = { kind = "adam", lr = 5e-3 }
plateau = { metric = "recall@5", factor = 0.5, patience = 4 }

[run]
threads = 1
"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

#[test]
fn every_item_but_the_first_becomes_a_row_with_its_history() {
    let place = place();
    let parts =
        ["train", "valid", "test"].map(|part| rows(&place, &format!("data/{part}.parquet")));
    let mut expected: [Vec<(i64, Vec<i64>, i64)>; 3] = Default::default();
    for (user, items) in sequences() {
        for at in 1..items.len() {
            let before = items[at.saturating_sub(5)..at].to_vec();
            let part = match items.len() - at {
                1 if items.len() >= 3 => 2,
                2 if items.len() >= 3 => 1,
                _ => 0,
            };
            expected[part].push((user, before, items[at]));
        }
    }
    assert_eq!(parts, expected);
}

#[test]
fn two_towers_beat_popularity_and_resume_exactly() {
    let place = place();
    let output = place.train_ok("reference", &["--json", "--set", "run.shards=3"]);
    let said = stderr(&output);
    assert!(said.contains("valid  ndcg@10 0.") && said.contains("  recall@5 0."), "{said}");
    assert!(said.contains("by popularity") && said.contains("among 60 candidates"), "{said}");
    let report = json(&stdout(&output));
    let test = &report["test"];
    let figure = |what: &str, name: &str| test[what][name].as_f64().expect(name);
    let (found, popular) = (figure("ranking", "recall@5"), figure("popularity", "recall@5"));
    assert!(found > 2.0 * popular && found > 0.4, "{found} {popular}");
    assert!(figure("ranking", "recall@10") >= found, "{report}");
    assert_eq!(test["auc"], Value::Null);

    let killed = place.train("killed", &[]).env("ZILLION_FAILPOINT", "90:kill").output();
    assert!(!killed.expect("the binary runs").status.success());
    place.train_ok("killed", &["--resume", "--set", "run.threads=2", "--set", "run.shards=5"]);
    assert_eq!(place.digest("killed/checkpoints"), place.digest("reference/checkpoints"));

    let root = format!("data.root={}", place.text(""));
    let run = place.text("reference");
    let eval = zillion(&["eval", &run, "--json", "--set", &root]).output().expect("it runs");
    assert!(eval.status.success(), "{}", stderr(&eval));
    let again = json(&stdout(&eval));
    assert_eq!((&again["ranking"], &again["popularity"]), (&test["ranking"], &test["popularity"]));
    // Without labels, a score is the cosine divided by the temperature.
    let data = place.text("data/test.parquet");
    for (more, first) in [(&[][..], "score"), (&["--json"][..], "{\"row\":0,\"score\":")] {
        let arguments = [&["predict", &run, &data, "--set", &root][..], more].concat();
        let scored = stdout(&zillion(&arguments).output().expect("it runs"));
        assert!(scored.starts_with(first), "{scored}");
        let last = scored.lines().last().expect("a row").trim_end_matches('}');
        let score: f64 = last.rsplit(':').next().unwrap_or(last).parse().expect("a number");
        assert!(score.abs() <= 5.001, "{score}");
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
    assert_eq!(printed["train"]["plateau"]["metric"].as_str(), Some("recall@5"));
    place.write("printed.toml", &toml::to_string(&printed).expect("TOML"));
    assert_eq!(print(&place.text("printed.toml")), printed);
}

#[test]
fn errors_of_the_job_are_named() {
    let place = place();
    for (from, to, message) in [
        ("candidates = \"items\"", "candidates = \"item\"", "did you mean `items`?"),
        ("exclude = \"history\"", "exclude = \"histery\"", "did you mean `history`?"),
        ("metric = \"recall@5\"", "metric = \"recall@7\"", "is recall@7, which is not measured"),
        (
            "metric = \"recall@5\"",
            "metric = \"auc\"",
            "which needs labels, but the job has no labels",
        ),
        ("metric = \"recall@5\"", "metric = \"recal@5\"", "unknown metric `recal@5`; choose auc"),
        ("recall_at = [5, 10]", "recall_at = [0]", "must be at least 1, found 0"),
        (
            "by = \"item\"",
            "by = \"history\"",
            "is in the item's tower, but is not a column of side table",
        ),
        ("user = [\"history\"]", "user = [\"history\", \"item\"]", "is named 2 times"),
        ("item = [\"item\", \"kind\"]", "item = [\"item\"]", "is in neither tower"),
        (
            "item = [\"item\", \"kind\"]",
            "item = [\"kind\", \"item\"]",
            "are the ids of feature `kind`",
        ),
        ("temperature = 0.2", "temperature = 0", "must be above 0"),
        ("candidates = \"items\"\nexclude = \"history\"", "", "set `columns.group"),
        ("kind = \"two_tower\"", "kind = \"dnn\"", "unknown key"),
    ] {
        assert!(JOB.contains(from), "{from}");
        place.write("job.toml", &JOB.replacen(from, to, 1));
        let (code, said) = place.train_fails(&[]);
        assert!(said.contains(message), "{message}\n{said}");
        assert_eq!(code, 2, "{said}");
    }
}

#[test]
fn groups_are_ranked_where_a_job_asks_for_it() {
    let place = Workplace::new();
    let job = std::fs::read_to_string(place.path("job.toml")).expect("the harness's job");
    let job = job.replace(
        "[tables.\"*\"]",
        "[columns]\ngroup = \"user\"\n[eval]\nndcg_at = [3]\nrecall_at = [1]\n[tables.\"*\"]",
    );
    let job =
        job.replace("plateau = { factor = 0.5", "plateau = { metric = \"ndcg@3\", factor = 0.5");
    place.write("job.toml", &job);
    let report = json(&stdout(&place.train_ok("run", &["--json"])));
    let ranking = &report["test"]["ranking"];
    let (ndcg, recall) = (ranking["ndcg@3"].as_f64(), ranking["recall@1"].as_f64());
    assert!(ndcg.is_some_and(|x| x > 0.5 && x < 1.0), "{report}");
    assert!(recall.is_some_and(|x| x > 0.1 && x < 0.9), "{report}");
    assert_eq!(report["test"]["popularity"], Value::Null);
}
