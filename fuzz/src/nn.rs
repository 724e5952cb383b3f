//! The targets of the crate `nn`: graphs and dense parameters.

use zillion_feature::Pooling;
use zillion_nn::{
    ColumnInput, Executor, Graph, GraphBuilder, GraphInputs, Mode, NodeId, ParamInit, ParamSpec,
    Params, Program, Settings, TableInput,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 2] = [&GRAPHS, &SAFETENSORS];

/// The reader of graphs and the planner. A server uses both when it loads a version.
pub const GRAPHS: Target = Target {
    name: "graphs",
    read: |bytes| {
        let Ok(graph) = Graph::from_json(bytes) else { return false };
        // Before a server makes an executor, it compares the parameters with their file.
        let floats = graph.params.iter().map(|param| param.rows.saturating_mul(param.cols));
        if floats.fold(0, usize::saturating_add) > bytes.len() {
            return true;
        }
        let outputs: Vec<NodeId> = graph.outputs.iter().map(|&(_, id)| id).collect();
        let Ok(program) = Program::infer(&graph, &outputs, Settings::default()) else {
            return false;
        };
        let _ = (graph.to_string(), Executor::new(program));
        true
    },
    seeds: || vec![graph_of_lookups(), graph_of_numbers()],
};

/// The reader of the file of dense parameters.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    read: |bytes| Params::from_safetensors(&specs(), bytes).is_ok(),
    seeds: || {
        let params = Params::init(&specs(), 1);
        vec![params.to_safetensors().expect("parameters can be written")]
    },
};

fn specs() -> Vec<ParamSpec> {
    let spec = |(name, rows, cols): (&str, usize, usize)| ParamSpec {
        name: name.to_owned(),
        rows,
        cols,
        init: ParamInit::XavierNormal,
        trainable: true,
    };
    [("mlp.0.weight", 6, 5), ("mlp.0.bias", 1, 5), ("mlp.1.weight", 5, 1)].map(spec).into()
}

/// Returns the file of a graph with lookups, lists and products of rows.
fn graph_of_lookups() -> Vec<u8> {
    let column = |name: &str| ColumnInput { name: name.to_owned(), table: 0 };
    let inputs = GraphInputs {
        tables: vec![TableInput { name: "items".to_owned(), stride: 5 }],
        columns: vec![column("item"), column("history")],
        ..GraphInputs::default()
    };
    let build = |b: &mut GraphBuilder| {
        let item = b.gather("item", 0, 0, 4, Pooling::Sum)?;
        let history = b.gather("history", 1, 0, 4, Pooling::Max)?;
        let values = b.gather_values("values", 1, 0, 4)?;
        let own = b.repeat("own", item, 1)?;
        let scores = b.row_dot("scores", values, own)?;
        let shares = b.segment_softmax("shares", scores)?;
        let weighted = b.mul("weighted", values, shares)?;
        let attended = b.segment_sum("attended", weighted)?;
        let fields = b.concat("fields", &[item, history, attended])?;
        let pairs = b.dot_interaction("pairs", fields, 4)?;
        let logits = b.linear("linear", pairs, 1)?;
        b.output("logits", logits)
    };
    file_of(inputs, build)
}

/// Returns the file of a graph with numbers, normalisations, and an operation on constants that is
/// folded.
fn graph_of_numbers() -> Vec<u8> {
    let inputs = GraphInputs {
        numeric: vec!["x".to_owned(), "y".to_owned()],
        labels: vec!["clicked".to_owned()],
        ..GraphInputs::default()
    };
    let build = |b: &mut GraphBuilder| {
        let x = b.numeric("x", &[0, 1])?;
        let two = b.fill("two", 1, 2, 2.0)?;
        let four = b.mul("four", two, two)?;
        let scaled = b.mul("scaled", x, four)?;
        let deep = b.linear("deep", scaled, 8)?;
        let normed = b.batch_norm("normed", deep)?;
        let active = b.relu("active", normed)?;
        let left = b.slice("left", active, 0, 4)?;
        let logits = b.linear("linear", left, 1)?;
        b.alias("last", logits)?;
        b.output("logits", logits)
    };
    file_of(inputs, build)
}

fn file_of(
    inputs: GraphInputs,
    build: impl FnOnce(&mut GraphBuilder) -> zillion_nn::Result<()>,
) -> Vec<u8> {
    let mut builder = GraphBuilder::new(inputs, Mode::Infer);
    build(&mut builder).expect("the sample is a valid graph");
    builder.finish().to_json().expect("the sample can be written")
}
