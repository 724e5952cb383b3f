//! Tests of models that a job file defines as a graph: training, checks, interruption and
//! resumption.

use serde_json::Value;

use crate::harness::{JOB, Workplace, stderr, stdout, zillion};

/// A model with a combination of operations that no model of the zoo has.
const GATED: &str = r#"
[model]
kind = "graph"
logits = "score"
l2 = 1e-4
[model.nodes.fields]
op = "embedding"
[model.nodes.left]
op = "linear"
inputs = "fields"
width = 3
bias = false
[model.nodes.right]
op = "linear"
inputs = ["fields"]
width = 3
[model.nodes.bounded]
op = "tanh"
inputs = "right"
[model.nodes.bilinear]
op = "row_dot"
inputs = ["left", "bounded"]
[model.nodes.price]
op = "numeric"
[model.nodes.gate]
op = "linear"
inputs = "price"
width = 1
init = { kind = "uniform", low = -0.5, high = 0.5 }
[model.nodes.open]
op = "sigmoid"
inputs = "gate"
[model.nodes.gated]
op = "mul"
inputs = ["bilinear", "open", "strength"]
[model.nodes.strength]
op = "param"
shape = [1, 1]
init = { kind = "constant", value = 0.5 }
[model.nodes.normal]
op = "layer_norm"
inputs = "fields"
[model.nodes.deep]
op = "mlp"
inputs = "normal"
hidden = [8]
activation = "silu"
batch_norm = true
dropout = 0.1
[model.nodes.deep_score]
op = "linear"
inputs = "deep"
width = 1
[model.nodes.wide]
op = "wide"
bias = true
[model.nodes.score]
op = "add"
inputs = ["wide", "gated", "deep_score"]
"#;

/// Returns the job of the harness with another model.
fn with_model(model: &str) -> String {
    let start = JOB.find("[model]").expect("a model");
    let end = JOB.find("[train]").expect("a section behind it");
    format!("{}{model}\n{}", &JOB[..start], &JOB[end..])
}

pub(crate) fn gated() -> Workplace {
    let place = Workplace::new();
    place.write("job.toml", &with_model(GATED));
    place
}

#[test]
fn a_custom_model_trains_and_resumes_to_the_same_bytes() {
    let place = gated();
    let output = place.train_ok("reference", &["--json"]);
    let outcome: Value = serde_json::from_str(stdout(&output).trim()).expect("JSON");
    let auc = outcome["test_auc"].as_f64().expect("a number");
    assert!(auc > 0.7, "{auc}");

    place.write("answers", "13\nq\n");
    let answers = std::fs::File::open(place.path("answers")).expect("it was written");
    let stopped = place.train("resumed", &["--step"]).stdin(answers).output().expect("it runs");
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    assert!(stderr(&stopped).contains("interrupted: go on with --resume"), "{}", stderr(&stopped));
    // The other run has another number of threads and shards, and its nodes are in another order.
    let mut nodes: Vec<&str> = GATED.split("[model.nodes.").collect();
    nodes[1..].reverse();
    place.write("job.toml", &with_model(&nodes.join("\n[model.nodes.")));
    place.train_ok("resumed", &["--resume", "--set", "run.threads=2", "--set", "run.shards=5"]);
    assert_eq!(place.digest("resumed/checkpoints"), place.digest("reference/checkpoints"));
}

#[test]
fn deepfm_as_a_graph_trains_to_the_bytes_of_the_zoo() {
    let place = Workplace::new();
    place.train_ok("zoo", &[]);
    place.write(
        "job.toml",
        &with_model(
            r#"
[model]
kind = "graph"
logits = "logit"
l2 = 1e-4
[model.nodes]
wide = { op = "wide" }
fields = { op = "embedding" }
pairs = { op = "fm", inputs = "fields" }
shallow = { op = "add", inputs = ["wide", "pairs"] }
price = { op = "numeric" }
deep = { op = "concat", inputs = ["fields", "price"] }
mlp = { op = "mlp", inputs = "deep", hidden = [16, 8], batch_norm = true, dropout = 0.1 }
output = { op = "linear", inputs = "mlp", width = 1 }
logit = { op = "add", inputs = ["shallow", "output"] }
"#,
        ),
    );
    place.train_ok("graph", &[]);
    let tables = |run: &str| {
        let mut files = place.digest(&format!("{run}/checkpoints"));
        files.retain(|name, _| name.contains("/tables/"));
        assert!(!files.is_empty());
        files
    };
    assert_eq!(tables("graph"), tables("zoo"));
    let lines = |run: &str| {
        let run = place.text(run);
        let output =
            zillion(&["predict", &run, &place.text("test.csv")]).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(lines("graph"), lines("zoo"));
}

#[test]
fn the_printed_job_of_a_custom_model_is_the_same_job() {
    let place = gated();
    let printed = stdout(&place.train_ok("unused", &["--print-config"]));
    place.write("again.toml", &printed);
    let again = place.text("again.toml");
    let output = zillion(&["train", &again, "--print-config"]).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), printed);
}

#[test]
fn gradients_are_checked_against_finite_differences() {
    let place = gated();
    let job = place.text("job.toml");
    let root = format!("data.root={}", place.text(""));
    let output = zillion(&["check", &job, "--set", &root, "--gradients", "--json"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output).trim()).expect("JSON");
    let groups = report["gradients"]["groups"].as_array().expect("a list");
    let names: Vec<&str> = groups.iter().filter_map(|group| group["name"].as_str()).collect();
    for name in ["left.weight", "strength", "deep.0.norm.weight", "wide.bias", "user", "item"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for group in groups {
        let [worst, norm] = ["worst", "norm"].map(|key| group[key].as_f64().expect("a number"));
        assert!(worst < 0.02 && norm > 0.0, "{group}");
    }
    let text = zillion(&["check", &job, "--set", &root, "--gradients"]).output().expect("it runs");
    assert!(stdout(&text).contains("the gradients agree to 2.0 %"), "{}", stdout(&text));
}

#[test]
fn a_bad_graph_is_refused_by_its_node() {
    let place = gated();
    for (from, to, message) in [
        (
            "inputs = \"right\"",
            "inputs = \"bounded\"",
            "`model.nodes.bounded`: nodes form a cycle, in which each node reads the next one: bounded -> bounded",
        ),
        (
            "inputs = [\"left\", \"bounded\"]",
            "inputs = [\"left\", \"fields\"]",
            "`model.nodes.bounded`: no output depends on this node",
        ),
        (
            "width = 3\nbias = false",
            "width = 4\nbias = false",
            "`model.nodes.bilinear`: row_dot cannot read inputs of these shapes: [B, 4] and [B, 3]",
        ),
        ("op = \"tanh\"", "op = \"tahn\"", "did you mean `tanh`?"),
    ] {
        assert!(GATED.contains(from), "{from}");
        place.write("job.toml", &with_model(&GATED.replace(from, to)));
        let (code, said) = place.train_fails(&[]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(message), "{said}");
        let job = place.text("job.toml");
        let root = format!("data.root={}", place.text(""));
        let check = zillion(&["check", &job, "--set", &root]).output().expect("it runs");
        assert_eq!(check.status.code(), Some(1), "{}", stdout(&check));
        assert!(stdout(&check).contains(message), "{}", stdout(&check));
    }
}

#[test]
fn each_label_may_have_its_node() {
    let place = Workplace::new();
    let model = GATED
        .replace("logits = \"score\"", "outputs = { label = \"score\", again = \"price_score\" }");
    let more = "[model.nodes.price_score]\nop = \"linear\"\ninputs = \"price\"\nwidth = 1\n";
    let job = with_model(&format!("{model}{more}"));
    let label = "[labels.label]\n[labels.again]\ncolumn = \"label\"\nat_least = 1\n";
    place.write("job.toml", &job.replace("[labels.label]\n", label));
    let output = place.train_ok("run", &["--json"]);
    let outcome: Value = serde_json::from_str(stdout(&output).trim()).expect("JSON");
    // Both tasks have the same label. The node of one task reads all features, and the node of the
    // other task reads only the price.
    let auc = |task: &str| outcome["test"]["tasks"][task]["auc"].as_f64().expect("a number");
    assert!(auc("label") > auc("again") + 0.02, "{outcome}");

    place.write("job.toml", &job.replace("[labels.label]\n", &format!("{label}[labels.more]\n")));
    let (code, said) = place.train_fails(&[]);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("`model.outputs`: no node for the label `more`; add a key `more`"),
        "{said}"
    );
}
