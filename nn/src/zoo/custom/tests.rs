//! Tests of graphs that a job defines: refused graphs, graphs that equal models of the zoo, and
//! random graphs.

mod random;
mod refusals;

use toml::Value;
use zillion_config::ConfigError;

use super::GraphSpec;
use crate::error::Error;
use crate::graph::builder::Mode;
use crate::graph::{Graph, TableInput};
use crate::zoo::{self, LabelInput, ModelInputs, ModelSpec, SparseInput, VectorSegment};

/// Returns inputs with three features and two numbers. The rows of the features have vectors of 4
/// floats and a linear weight.
fn inputs() -> ModelInputs {
    let column = |name: &str| SparseInput {
        name: name.to_owned(),
        table: 0,
        vector: Some(VectorSegment { offset: 0, dim: 4 }),
        linear: Some(4),
        pooling: Default::default(),
        list: name == "item",
        sequence: false,
    };
    ModelInputs {
        tables: vec![TableInput { name: "ids".into(), stride: 8 }],
        columns: ["user", "item", "city"].map(column).into(),
        numeric: vec!["price".into(), "age".into()],
        labels: vec!["click".into()],
    }
}

fn section(text: &str) -> Value {
    toml::from_str::<toml::Table>(text).unwrap_or_else(|e| panic!("{e}\n{text}")).into()
}

fn read(text: &str) -> Result<GraphSpec, ConfigError> {
    GraphSpec::read(&section(text), "model")
}

/// Reads a graph, builds it for training and for inference, and checks that both have the same
/// parameters. Returns the graph for training.
fn build(text: &str) -> Result<Graph, Error> {
    build_spec(read(text)?)
}

fn build_spec(spec: GraphSpec) -> Result<Graph, Error> {
    let spec = ModelSpec::Graph(spec);
    let train = zoo::build(&spec, &inputs(), Mode::Train);
    let infer = zoo::build(&spec, &inputs(), Mode::Infer);
    match (train, infer) {
        (Ok(train), Ok(infer)) => {
            assert_eq!(train.params, infer.params);
            Ok(train)
        }
        (Err(train), Err(infer)) => {
            assert_eq!(train.to_string(), infer.to_string());
            Err(train)
        }
        (train, infer) => panic!("one mode builds, the other does not: {train:?}\n{infer:?}"),
    }
}

const DEEPFM: &str = "
logits = 'logit'
[nodes.deep]
op = 'concat'
inputs = ['fields', 'numeric']
[nodes.logit]
op = 'add'
inputs = ['shallow', 'output']
[nodes.shallow]
op = 'add'
inputs = ['wide', 'pairs']
[nodes.pairs]
op = 'fm'
inputs = 'fields'
[nodes.mlp]
op = 'mlp'
inputs = ['deep']
hidden = [8, 4]
batch_norm = true
dropout = 0.2
[nodes.output]
op = 'linear'
inputs = ['mlp']
width = 1
[nodes.wide]
op = 'wide'
[nodes.fields]
op = 'embedding'
[nodes.numeric]
op = 'numeric'
";

#[test]
fn the_order_in_the_file_does_not_matter() {
    let value = section(DEEPFM);
    let mut turned = value.as_table().unwrap().clone();
    let nodes = turned.remove("nodes").unwrap();
    let mut entries: Vec<_> = nodes.as_table().unwrap().clone().into_iter().collect();
    entries.reverse();
    turned.insert("nodes".into(), Value::Table(entries.into_iter().collect()));
    let turned = GraphSpec::read(&Value::Table(turned), "model").unwrap();
    assert_eq!(turned, read(DEEPFM).unwrap());
    assert_eq!(build_spec(turned).unwrap(), build(DEEPFM).unwrap());
}

#[test]
fn printed_models_read_back_the_same() {
    let spec = read(DEEPFM).unwrap();
    let text = toml::to_string(&ModelSpec::Graph(spec.clone())).unwrap();
    assert_eq!(read(&text).unwrap(), spec, "{text}");
    // Serde also reads the text without a path, as for the manifest of a checkpoint.
    assert_eq!(toml::from_str::<ModelSpec>(&text).unwrap(), ModelSpec::Graph(spec));
}

#[test]
fn every_operation_builds() {
    let unary = [
        "relu",
        "leaky_relu",
        "prelu",
        "sigmoid",
        "tanh",
        "gelu",
        "silu",
        "softplus",
        "square",
        "exp",
        "softmax",
        "bias",
        "batch_norm",
        "layer_norm",
    ];
    for op in unary {
        let text = format!(
            "logits = 'out'\n[nodes.x]\nop = 'embedding'\n[nodes.y]\nop = '{op}'\ninputs = ['x']\n\
             [nodes.z]\nop = 'fm'\ninputs = ['y']\ndim = 4\n\
             [nodes.positive]\nop = 'softplus'\ninputs = ['z']\n\
             [nodes.root]\nop = 'sqrt'\ninputs = ['positive']\n\
             [nodes.out]\nop = 'ln'\ninputs = ['root']"
        );
        let graph = build(&text).unwrap_or_else(|e| panic!("{op}: {e}"));
        assert!(graph.find("y").is_some());
    }
    let graph = build(
        "logits = 'out'
        [nodes.x]
        op = 'embedding'
        features = ['city', 'user']
        [nodes.one]
        op = 'embedding'
        features = ['item']
        [nodes.w]
        op = 'param'
        shape = [8, 4]
        init = { kind = 'normal', std = 0.1 }
        [nodes.xw]
        op = 'matmul'
        inputs = ['x', 'w']
        [nodes.gated]
        op = 'mul_add'
        inputs = ['xw', 'one', 'half']
        [nodes.half]
        op = 'constant'
        value = 0.5
        [nodes.d]
        op = 'dropout'
        inputs = ['gated']
        rate = 0.5
        [nodes.weighted]
        op = 'sub'
        inputs = ['d', 'total']
        [nodes.total]
        op = 'sum_rows'
        inputs = ['w']
        [nodes.product]
        op = 'mul'
        inputs = ['weighted', 'centre', 'one']
        [nodes.dots]
        op = 'dot_interaction'
        inputs = ['both']
        [nodes.both]
        op = 'concat'
        inputs = ['x', 'one']
        [nodes.part]
        op = 'slice'
        inputs = ['x']
        start = 4
        len = 4
        [nodes.pair]
        op = 'row_dot'
        inputs = ['part', 'product']
        [nodes.crossed]
        op = 'cross_v2'
        inputs = ['x']
        low_rank = 2
        layers = 2
        [nodes.again]
        op = 'cross'
        inputs = ['x', 'crossed']
        [nodes.scaled]
        op = 'scale'
        inputs = ['again']
        by = 2
        [nodes.lifted]
        op = 'offset'
        inputs = ['scaled']
        by = -1
        [nodes.mean]
        op = 'mean_columns'
        inputs = ['lifted']
        [nodes.sum]
        op = 'sum_columns'
        inputs = ['dots']
        [nodes.ratio]
        op = 'safe_div'
        inputs = ['mean', 'sum']
        [nodes.out]
        op = 'add'
        inputs = ['ratio', 'pair', 'wide']
        [nodes.wide]
        op = 'wide'
        features = ['user', 'age']
        bias = true
        [nodes.centre]
        op = 'div'
        inputs = ['one', 'rows_of_w']
        [nodes.rows_of_w]
        op = 'exp'
        inputs = ['rows-w']
        [nodes.rows-w]
        op = 'mean_rows'
        inputs = ['w']",
    )
    .unwrap();
    // The order is depth first from the output, with inputs in the listed order.
    let names: Vec<&str> = graph.params.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), 15);
    assert_eq!(names[..2], ["crossed.0.narrow.weight", "crossed.0.projected.weight"]);
    assert_eq!(names[12..], ["w", "wide.numeric.weight", "wide.bias"]);
}

#[test]
fn attention_over_a_list_can_be_written() {
    let graph = build(
        "logits = 'score'
        [nodes.history]
        op = 'values'
        feature = 'item'
        [nodes.user]
        op = 'embedding'
        features = ['user']
        [nodes.asked]
        op = 'repeat'
        inputs = ['user', 'history']
        [nodes.match]
        op = 'row_dot'
        inputs = ['asked', 'history']
        [nodes.attention]
        op = 'segment_softmax'
        inputs = ['match']
        [nodes.weighted]
        op = 'mul'
        inputs = ['history', 'attention']
        [nodes.pooled]
        op = 'segment_sum'
        inputs = ['weighted']
        [nodes.mean]
        op = 'segment_mean'
        inputs = ['weighted']
        [nodes.score]
        op = 'row_dot'
        inputs = ['pooled', 'mean']",
    )
    .unwrap();
    let shape = |name: &str| graph.shape(graph.find(name).unwrap()).to_string();
    assert_eq!([shape("asked"), shape("pooled")], ["[V1, 4]", "[B, 4]"]);
}

#[test]
fn each_label_has_its_node() {
    let text = "[outputs]\nclick = 'a'\nbuy = 'b'\n[nodes.x]\nop = 'embedding'\n\
                [nodes.a]\nop = 'fm'\ninputs = 'x'\n[nodes.b]\nop = 'linear'\ninputs = 'x'\nwidth = 1";
    let label = |name: &str| LabelInput { name: name.to_owned(), ..inputs().labels[0].clone() };
    let build = |text: &str, labels: &[&str]| {
        let labels = labels.iter().map(|name| label(name)).collect();
        let spec = ModelSpec::Graph(read(text)?);
        zoo::build(&spec, &ModelInputs { labels, ..inputs() }, Mode::Train)
    };
    let graph = build(text, &["click", "buy"]).unwrap();
    assert_eq!(graph.output("logits"), graph.find("a"));
    assert_eq!(graph.output("logits/buy"), graph.find("b"));
    for (text, labels, message) in [
        (
            text,
            &["click", "buy", "like"][..],
            "`model.outputs`: no node for the label `like`; add a key `like`",
        ),
        (text, &["click"], "unknown key `model.outputs.buy`; expected one of `click`"),
        (
            "logits = 'a'\n[nodes.a]\nop = 'wide'",
            &["click", "buy"],
            "`model.logits`: the job has several labels (click, buy); name a node for each label \
             in [model.outputs]",
        ),
    ] {
        assert_eq!(build(text, labels).unwrap_err().to_string(), message);
    }
}
