//! Tests that read the files of Zillion with other tools: pandas, polars, pyarrow, safetensors and
//! onnxruntime. The tools must read the right contents.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use zillion_feature::FeatureKey;
use zillion_feature::random::{combine, mix64};

use super::{Python, run};
use crate::export::{chain, layered, part_file, publishing, registry_file};
use crate::harness::{Workplace, root, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, operate};

/// The number of rows that the test scores.
const SCORED: usize = 300;

#[test]
fn exported_rows_and_layers_open_everywhere() {
    let Some(python) = Python::get() else { return };
    let place = Workplace::new();
    publishing(&place, &[]);
    let output = place.text("exported");
    operate(&place, &["model", "export", "--output", &output]);
    let chain = chain(&place, None);
    let (layers, _) = layered(&place, &chain);
    let wanted: BTreeMap<&String, Value> = layers
        .iter()
        .map(|(table, rows)| {
            let missing = FeatureKey::missing(table).0;
            let ids = match table.as_str() {
                "item" => Some("int64"),
                "age" => Some("uint64"),
                _ => None,
            };
            let rows: Vec<Value> = rows
                .iter()
                .map(|(&key, (weights, count))| {
                    let is_missing = key == missing;
                    let id = FeatureKey(key).unmix();
                    let id =
                        if ids == Some("int64") { (id as i64).to_string() } else { id.to_string() };
                    json!({
                        "key": key.to_string(),
                        "id": (ids.is_some() && !is_missing).then_some(id),
                        "is_missing_of": is_missing.then_some(table),
                        "weights": weights,
                        "count": count,
                    })
                })
                .collect();
            (table, json!({ "ids": ids, "rows": rows }))
        })
        .collect();
    place.write("rows.json", &serde_json::to_string(&wanted).expect("JSON"));
    run(&mut python.script("files.py", &["rows", &output, &place.text("rows.json")]));

    // The test reads the registry's own file of the newest version that has tombstones.
    let parts = |manifest: &Value| -> Vec<(std::path::PathBuf, bool)> {
        let tables = manifest["layer"]["tables"].as_array().expect("tables");
        let of = |table: &Value| {
            let left = table["tombstones"].as_u64() > Some(0);
            let parts = table["parts"].as_array().expect("parts").clone();
            let path = |part: Value| {
                part_file(&place, manifest, part["file"]["blake3"].as_str().expect("a hash"))
            };
            parts.into_iter().map(|part| (path(part), left)).collect::<Vec<_>>()
        };
        tables.iter().flat_map(of).collect()
    };
    let all: Vec<(std::path::PathBuf, bool)> = chain.iter().rev().flat_map(parts).collect();
    let with = all.iter().find(|(_, left)| *left).expect("keys have left");
    for (path, _) in [with, &all[0]] {
        let (keys, tombstones) = keys_of(path);
        let wanted = json!({ "keys": keys, "tombstones": tombstones });
        place.write("layer.json", &wanted.to_string());
        let path = path.to_str().expect("a plain path");
        run(&mut python.script("files.py", &["layer", path, &place.text("layer.json")]));
    }

    let graph: Value = {
        let newest = &chain[chain.len() - 1];
        let hash = newest["graph"]["blake3"].as_str().expect("a hash");
        let bytes = std::fs::read(registry_file(&place, hash, "json")).expect("the graph");
        serde_json::from_slice(&bytes).expect("JSON")
    };
    let params = graph["graph"]["params"].as_array().expect("parameters");
    let shapes: BTreeMap<&str, Value> = params
        .iter()
        .map(|p| (p["name"].as_str().expect("a name"), json!([p["rows"], p["cols"]])))
        .collect();
    place.write("dense.json", &serde_json::to_string(&shapes).expect("JSON"));
    run(&mut python.script("files.py", &["dense", &output, &place.text("dense.json")]));
}

fn keys_of(path: &std::path::Path) -> (Vec<String>, Vec<u8>) {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{UInt8Type, UInt64Type};
    let file = std::fs::File::open(path).expect("a part");
    let (mut keys, mut tombstones) = (Vec::new(), Vec::new());
    for batch in arrow_ipc::reader::FileReader::try_new(file, None).expect("an Arrow file") {
        let batch = batch.expect("rows");
        keys.extend(batch["key"].as_primitive::<UInt64Type>().values().iter().map(u64::to_string));
        tombstones.extend_from_slice(batch["tombstone"].as_primitive::<UInt8Type>().values());
    }
    (keys, tombstones)
}

/// Generates the CSV text of rows with a feature of every kind and some missing values. A different
/// value of `part` gives different rows.
fn data(part: u64, rows: usize) -> String {
    let mut text = "user,item,history,tags,price,height,age,click,buy\n".to_owned();
    for row in 0..rows {
        let draw = |salt: u64| mix64(combine(combine(part, salt), row as u64));
        let user = draw(1) % 40;
        let item = (draw(2) % 30) as i64 - 15;
        let bias = |id: u64, salt: u64| (mix64(combine(id, salt)) % 1000) as f64 / 250.0 - 2.0;
        let seen: Vec<String> =
            (0..draw(3) % 9).map(|i| ((draw(30 + i) % 30) as i64 - 15).to_string()).collect();
        let tags: Vec<String> =
            (0..draw(4) % 4).map(|i| format!("t{}", draw(50 + i) % 12)).collect();
        let or_none = |salt: u64, value: String| match draw(salt) % 8 {
            0 => String::new(),
            _ => value,
        };
        let price = or_none(6, format!("{:.2}", (draw(7) % 10_000) as f64 / 100.0 - 20.0));
        let height = format!("{:.1}", 150.0 + (draw(8) % 500) as f64 / 10.0);
        let age = or_none(9, (draw(10) % 80).to_string());
        let logit = bias(user, 77) + bias(item as u64, 78);
        let yes = |salt: u64, z: f64| ((draw(salt) % 100_000) as f64) < 1e5 / (1.0 + (-z).exp());
        let click = yes(11, logit);
        let buy = click && yes(12, logit);
        let user = or_none(13, format!("u{user}"));
        writeln!(
            text,
            "{user},{item},{},{},{price},{height},{age},{},{}",
            seen.join("|"),
            tags.join("|"),
            u8::from(click),
            u8::from(buy)
        )
        .expect("memory");
    }
    text
}

/// Returns a job file with the given pooling, labels, tables and model.
fn job(pooling: &str, labels: &str, tables: &str, model: &str) -> String {
    format!(
        "name = 'files'\nseed = 3\n[data]\ntrain = ['train.csv']\nvalid = ['valid.csv']\n\
         [features.user]\nkind = 'id'\ntype = 'string'\n\
         [features.item]\nkind = 'id'\n\
         [features.history]\nkind = 'sequence'\ntable = 'item'\nmax_len = 5\npooling = '{pooling}'\n\
         [features.tags]\nkind = 'ids'\ntype = 'string'\npooling = '{pooling}'\n\
         [features.price]\nkind = 'numeric'\ntransform = 'log1p'\nmissing = 3.5\n\
         [features.height]\nkind = 'numeric'\ntransform = 'standardise'\n\
         [features.age]\nkind = 'bucketized'\nbuckets = 4\n\
         [features.user_item]\nkind = 'cross'\nof = ['user', 'item']\n\
         {labels}\n[tables.'*']\ndim = 4\ninitializer = {{ kind = 'normal', std = 0.3 }}\n\
         optimizer = {{ kind = 'adagrad', lr = 0.1 }}\n{tables}\n[model]\n{model}\n\
         [train]\nepochs = 1\nbatch_size = 64\n[run]\nthreads = 1\n"
    )
}

const CLICK: &str = "[labels.click]";
const BOTH: &str = "[labels.click]\n[labels.buy]";
const FEATURES: &str = "['user', 'history', 'tags', 'price', 'height', 'age', 'user_item']";

/// The model section of a job. Its graph has operations that no model of the zoo has.
const WRITTEN: &str = r#"
kind = 'graph'
logits = 'score'
[nodes]
fields = { op = 'embedding' }
numbers = { op = 'numeric' }
wide = { op = 'wide', bias = true }
query = { op = 'embedding', features = ['item'] }
seen = { op = 'values', feature = 'history' }
own = { op = 'values', feature = 'tags' }
asked = { op = 'repeat', inputs = ['query', 'seen'] }
alike = { op = 'row_dot', inputs = ['asked', 'seen'] }
share = { op = 'segment_softmax', inputs = ['alike'] }
weighed = { op = 'mul', inputs = ['seen', 'share'] }
interest = { op = 'segment_sum', inputs = ['weighed'] }
tag_gate = { op = 'silu', inputs = ['own'] }
tag_mean = { op = 'segment_mean', inputs = ['tag_gate'] }
normal = { op = 'layer_norm', inputs = ['fields'] }
soft = { op = 'softmax', inputs = ['normal'] }
gelu = { op = 'gelu', inputs = ['normal'] }
leaky = { op = 'leaky_relu', inputs = ['gelu'], slope = 0.1 }
prelu = { op = 'prelu', inputs = ['leaky'] }
plus = { op = 'softplus', inputs = ['prelu'] }
root = { op = 'sqrt', inputs = ['plus'] }
far = { op = 'offset', inputs = ['root'], by = 1.5 }
log = { op = 'ln', inputs = ['far'] }
less = { op = 'scale', inputs = ['log'], by = 0.2 }
power = { op = 'exp', inputs = ['less'] }
ratio = { op = 'safe_div', inputs = ['power', 'root'] }
gap = { op = 'sub', inputs = ['ratio', 'soft'] }
square = { op = 'square', inputs = ['gap'] }
mean = { op = 'mean_columns', inputs = ['square'] }
part = { op = 'slice', inputs = ['fields'], start = 4, len = 8 }
pairs = { op = 'dot_interaction', inputs = ['fields'], dim = 4 }
bilinear = { op = 'fm', inputs = ['part'], dim = 4 }
constant = { op = 'param', shape = [3, 8] }
line = { op = 'mean_rows', inputs = ['constant'] }
moved = { op = 'mul_add', inputs = ['part', 'line', 'line'] }
crossed = { op = 'cross', inputs = ['moved'], layers = 2 }
crossed2 = { op = 'cross_v2', inputs = ['crossed'], layers = 1, low_rank = 2 }
all = { op = 'concat', inputs = ['fields', 'numbers', 'interest', 'tag_mean', 'pairs', 'crossed2', 'mean'] }
norm = { op = 'batch_norm', inputs = ['all'] }
mlp = { op = 'mlp', inputs = ['norm'], hidden = [8], activation = 'tanh', dropout = 0.1 }
deep = { op = 'linear', inputs = ['mlp'], width = 1 }
score = { op = 'add', inputs = ['wide', 'bilinear', 'deep'] }
"#;

/// Returns the name and the job file of each model.
fn models() -> Vec<(&'static str, String)> {
    let attention = "attention = [{ query = 'item', history = 'history' }]";
    let two_tower =
        format!("kind = 'two_tower'\nuser = {FEATURES}\nitem = ['item']\nhidden = [8]\ndim = 4");
    let zero = "unknown = 'zero'";
    let rows: Vec<(&str, &str, &str, &str, String)> = vec![
        ("lr", "sum", CLICK, "", "kind = 'lr'".into()),
        ("fm", "mean", CLICK, zero, "kind = 'fm'".into()),
        ("dnn", "max", CLICK, zero, "kind = 'dnn'\nhidden = [8]\nactivation = 'prelu'".into()),
        ("wide_deep", "sqrtn", CLICK, "", "kind = 'wide_deep'\nhidden = [8, 4]".into()),
        (
            "deepfm",
            "mean",
            CLICK,
            "",
            "kind = 'deepfm'\nhidden = [8, 4]\nbatch_norm = true\ndropout = 0.1\nactivation = 'gelu'".into(),
        ),
        ("dcn", "sum", CLICK, "", "kind = 'dcn'\nhidden = [8]\ncross_layers = 2".into()),
        (
            "dcnv2",
            "mean",
            CLICK,
            zero,
            "kind = 'dcnv2'\nhidden = [8]\ncross_layers = 2\nstructure = 'stacked'\nlow_rank = 3".into(),
        ),
        ("dlrm", "sqrtn", CLICK, "", "kind = 'dlrm'\nhidden = [8]".into()),
        (
            "din",
            "sum",
            CLICK,
            zero,
            format!("kind = 'din'\nhidden = [8]\nattention_hidden = [6]\nwide = true\nfm = true\n{attention}"),
        ),
        (
            "din_softmax",
            "max",
            CLICK,
            "",
            format!(
                "kind = 'din'\nhidden = [8]\nactivation = 'dice'\nattention_hidden = [6]\n\
                 attention_activation = 'dice'\nsoftmax = true\n{attention}"
            ),
        ),
        ("shared", "mean", BOTH, "", "kind = 'shared_bottom'\nbottom = [8]\ntower = [4]".into()),
        ("mmoe", "mean", BOTH, "", "kind = 'mmoe'\nexperts = 3\nexpert = [8]\ntower = [4]".into()),
        ("esmm", "sum", BOTH, zero, "kind = 'esmm'\nhidden = [8]".into()),
        ("two_tower", "mean", CLICK, "", two_tower),
        ("written", "max", CLICK, zero, WRITTEN.replace("[nodes]", "[model.nodes]")),
    ];
    let job = |(name, pooling, labels, tables, model): (_, &str, &str, &str, String)| {
        (name, job(pooling, labels, tables, &model))
    };
    rows.into_iter().map(job).collect()
}

/// Converts the CSV text of a file to the input of the program in the document: a JSON list for
/// each column, and a map from each text to its key.
fn columns(text: &str) -> (Value, BTreeMap<String, String>) {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().expect("a header");
    let mut columns: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut texts = BTreeMap::new();
    for row in lines {
        for (&name, cell) in names.iter().zip(row) {
            let mut text = |cell: &str| {
                texts.insert(cell.to_owned(), FeatureKey::from_text(cell).0.to_string());
                Value::from(cell)
            };
            let whole = |cell: &str| Value::from(cell.parse::<i64>().expect("a whole number"));
            let list = || cell.split('|').filter(|part| !part.is_empty());
            let value = match name {
                "click" | "buy" => continue,
                "history" => Value::Array(list().map(whole).collect()),
                "tags" => Value::Array(list().map(&mut text).collect()),
                _ if cell.is_empty() => Value::Null,
                "user" => text(cell),
                "item" => whole(cell),
                _ => Value::from(cell.parse::<f64>().expect("a number")),
            };
            columns.entry(name).or_default().push(value);
        }
    }
    (json!(columns), texts)
}

#[test]
fn onnxruntime_scores_as_zillion_does() {
    let Some(python) = Python::get() else { return };
    let place = Workplace::new();
    place.write("train.csv", &data(1, 1200));
    place.write("valid.csv", &data(2, 200));
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let doc = root().join("docs/FILES.md");
    for (name, text) in models() {
        place.write("job.toml", &text);
        place.train_ok(name, &["--set", &registry, "--set", &format!("publish.model={MODEL}")]);
        // Training has seen the first half of the scored rows, and not the second half. Ids of the
        // second half have no row, and read what their table declares.
        let (seen, unseen) = (data(1, 1200), data(3, 1200));
        let half = SCORED / 2;
        let lines = seen.lines().take(half + 1).chain(unseen.lines().skip(1).take(SCORED - half));
        let scored: String = lines.map(|line| format!("{line}\n")).collect();
        place.write("score.csv", &scored);
        let exported = place.text(&format!("exported-{name}"));
        operate(&place, &["model", "export", "--output", &exported, "--pointer", "stable"]);
        let predicted = operate(&place, &["predict", &place.text("score.csv"), "--json"]);
        let lines: Vec<Value> =
            predicted.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), SCORED, "{name}");
        let of = |pick: &dyn Fn(&Value) -> &Value| -> Vec<Value> {
            lines.iter().map(|line| pick(line).clone()).collect()
        };
        let mut outputs = BTreeMap::new();
        outputs.insert("logits".to_owned(), json!(of(&|line| &line["logit"])));
        outputs.insert("probabilities".to_owned(), json!(of(&|line| &line["probability"])));
        for task in lines[0]["tasks"].as_object().into_iter().flat_map(|tasks| tasks.keys()) {
            if task != "click" {
                for (what, key) in [("logits", "logit"), ("probabilities", "probability")] {
                    let values = of(&|line| &line["tasks"][task][key]);
                    outputs.insert(format!("{what}/{task}"), json!(values));
                }
            }
        }
        if name == "two_tower" {
            outputs.extend([("user".to_owned(), Value::Null), ("item".to_owned(), Value::Null)]);
        }
        assert_eq!(outputs.len() > 2, text.contains("labels.buy") || name == "two_tower", "{name}");
        let (data, texts) = columns(&scored);
        let wanted = json!({ "data": data, "texts": texts, "outputs": outputs });
        place.write("score.json", &wanted.to_string());
        let doc = doc.to_str().expect("a plain path");
        // The script compares the scores, and fails if a difference is larger than 1e-5.
        run(&mut python.script("files.py", &["score", &exported, &place.text("score.json"), doc]));
    }
}

#[test]
fn converted_files_open_everywhere() {
    let Some(python) = Python::get() else { return };
    let place = Workplace::new();
    let text = data(4, 700);
    place.write("rows.csv", &text);
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().expect("a header");
    let rows: Vec<Vec<&str>> = lines.collect();
    let types = [
        ("user", "string"),
        ("item", "int64"),
        ("history", "list<item: int64 not null>"),
        ("tags", "list<item: string not null>"),
        ("price", "double"),
        ("height", "double"),
        ("age", "uint64"),
        ("click", "uint8"),
        ("buy", "int64"),
    ];
    let value = |of: &str, cell: &str| -> Value {
        let whole = |cell: &str| Value::from(cell.parse::<i64>().expect("a whole number"));
        let parts = || cell.split('|').filter(|part| !part.is_empty());
        match of {
            "list<item: int64 not null>" => parts().map(whole).collect(),
            "list<item: string not null>" => parts().map(Value::from).collect(),
            _ if cell.is_empty() => Value::Null,
            "string" => Value::from(cell),
            "double" => Value::from(cell.parse::<f64>().expect("a number")),
            _ => whole(cell),
        }
    };
    let mut columns = BTreeMap::new();
    for (at, &name) in names.iter().enumerate() {
        let of = types.iter().find(|(known, _)| *known == name).expect("a type").1;
        let values: Vec<Value> = rows.iter().map(|row| value(of, row[at])).collect();
        columns.insert(name, values);
    }
    // The columns are in the order of the file. A map of serde_json sorts its keys, so the JSON is
    // written by hand.
    let shown: Vec<String> =
        types.iter().map(|(name, of)| format!("\"{name}\":\"{of}\"")).collect();
    let columns = serde_json::to_string(&columns).expect("JSON");
    place.write(
        "wanted.json",
        &format!("{{\"types\":{{{}}},\"columns\":{columns}}}", shown.join(",")),
    );
    for output in ["rows.parquet", "rows.arrow", "folder"] {
        for to in ["parquet", "arrow"] {
            if output != "folder" && !output.ends_with(to) {
                continue;
            }
            let name = if output == "folder" { format!("folder-{to}") } else { output.to_owned() };
            let (input, target) = (place.text("rows.csv"), place.text(&name));
            let mut command =
                zillion(&["data", "convert", &input, "--output", &target, "--to", to]);
            for of in [
                "history=list<int64>",
                "tags=list<string>",
                "age=uint64",
                "click=label",
                "item=int64",
                "price=float",
            ] {
                command.args(["--type", of]);
            }
            command.args(["--group-rows", "100"]);
            if output == "folder" {
                command.args(["--part-rows", "250"]);
            }
            let done = command.output().expect("the binary runs");
            assert!(done.status.success(), "{}\n{}", stdout(&done), stderr(&done));
            run(&mut python.script("files.py", &["data", &target, &place.text("wanted.json")]));
        }
    }
}
