//! Tests of refused inputs and layers. The error must name the layer or the input.

use zillion_feature::Pooling;
use zillion_nn::{
    Error, Executor, Graph, GraphBuilder, Inputs, Mode, NodeId, Op, Params, Program, Result,
    Settings, TrainGraph, Unary, differentiate,
};

use crate::check::{SEED, workers};
use crate::data::{Data, graph_inputs};

fn message(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) -> String {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    build(&mut b).unwrap_err().to_string()
}

#[test]
fn shapes_by_the_name_of_the_layer() {
    let x = |b: &mut GraphBuilder| b.numeric("x", &[0, 1, 2]);
    assert_eq!(
        message(|b| b.numeric("x", &[99])),
        "layer `x`: there is no numeric column 99; name a column of the inputs"
    );
    assert_eq!(
        message(|b| b.gather("g", 0, 6, 4, Pooling::Sum)),
        "layer `g`: the rows [U0, 8] have no 4 floats from float 6 on; read floats that the rows have"
    );
    assert_eq!(
        message(|b| b.gather("g", 9, 0, 4, Pooling::Sum)),
        "layer `g`: there is no sparse column 9; name a column of the inputs"
    );
    assert_eq!(
        message(|b| {
            let (x, y) = (x(b)?, b.numeric("y", &[0, 1])?);
            b.add("sum", x, y)
        }),
        "layer `sum`: the columns of [B, 3] and [B, 2] differ; give inputs with the same number \
         of columns"
    );
    assert_eq!(
        message(|b| {
            let (x, w) = (x(b)?, b.fill("w", 4, 2, 1.0)?);
            b.matmul("product", x, w)
        }),
        "layer `product`: the input [B, 3] cannot be multiplied by a weight [4, 2]; give an input with as many columns as the weight has rows"
    );
    assert_eq!(
        message(|b| {
            let x = x(b)?;
            b.fm("fm", x, 2)
        }),
        "layer `fm`: [B, 3] is not two or more fields of 2 floats; give at least two fields, or change `dim`"
    );
    assert_eq!(
        message(|b| {
            let x = x(b)?;
            b.slice("part", x, 2, 2)
        }),
        "layer `part`: the input [B, 3] has no columns 2..4; name columns that it has"
    );
    assert_eq!(
        message(|b| {
            let x = x(b)?;
            b.linear("nothing", x, 0)
        }),
        "layer `nothing.weight`: the result [3, 0] has no elements; give it at least one row and \
         one column"
    );
    assert_eq!(
        message(|b| {
            let x = x(b)?;
            b.dropout("drop", x, 1.0)
        }),
        "layer `drop`: the dropout rate must be at least 0 and below 1, found 1"
    );
    assert_eq!(
        message(|b| {
            x(b)?;
            x(b)
        }),
        "layer `x`: another layer has this name; rename one of them"
    );
    assert_eq!(
        message(|b| b.relu("relu", NodeId(17))),
        "layer `relu`: there is no node %17; name a node of this graph"
    );
}

#[test]
fn operations_without_a_gradient_are_named() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let x = b.gather("x", 0, 0, 4, Pooling::Sum).unwrap();
    let stats = b.push("stats", Op::BatchNormStats, &[x]).unwrap();
    let loss = b.sum_columns("loss", stats).unwrap();
    let graph = b.finish();
    let refusal = differentiate(&graph, loss).unwrap_err().to_string();
    let expected = "layer `stats`: the operation batch_norm_stats has no gradient, but the loss";
    assert!(refusal.starts_with(expected), "{refusal}");
    let refusal = differentiate(&graph, x).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "layer `x`: the loss is not a [1, 1] matrix of this graph; name a node of this shape"
    );
}

#[test]
fn rows_of_a_table_are_looked_up_and_not_computed_with() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let x = b.gather("x", 0, 0, 4, Pooling::Sum).unwrap();
    let mut graph = b.finish();
    let rows = graph.find("rows.items").unwrap();
    assert!(Program::infer(&graph, &[rows], Settings::default()).is_err());
    assert!(Program::infer(&graph, &[NodeId(99)], Settings::default()).is_err());
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    b.gather("x", 0, 0, 4, Pooling::Sum).unwrap();
    let sum = b.sum_rows("all_rows", rows).unwrap_or(x);
    let squares = b.unary("squares", Unary::Square, rows).unwrap();
    let total = b.sum_rows("total", squares).unwrap();
    graph = b.finish();
    for node in [sum, total] {
        let refusal = Program::infer(&graph, &[node], Settings::default());
        assert!(matches!(refusal, Err(Error::Shape { .. })), "{graph}");
    }
}

#[test]
fn settings_outside_their_range() {
    let graph = Graph::default();
    for settings in [
        Settings { lanes: 0, ..Settings::default() },
        Settings { lanes: 257, ..Settings::default() },
        Settings { tile_rows: 0, ..Settings::default() },
    ] {
        assert!(matches!(Program::infer(&graph, &[], settings), Err(Error::Setting { .. })));
    }
}

fn small() -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let x = b.gather("x", 1, 0, 4, Pooling::Sum).unwrap();
    let y = b.gather("y", 2, 0, 4, Pooling::Sum).unwrap();
    let x = b.concat("xy", &[x, y]).unwrap();
    let logit = b.linear("logit", x, 1).unwrap();
    let loss = b.bce_with_logits("loss", logit, 0).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

fn run(data: &Data, break_it: impl FnOnce(&mut Inputs<'_>)) -> Result<()> {
    let train = small();
    let mut executor = Executor::new(Program::train(&train, Settings::default())?);
    let mut inputs = data.inputs();
    break_it(&mut inputs);
    let mut grads: Vec<Vec<f32>> = data.tables.iter().map(|t| vec![0.0; t.values.len()]).collect();
    let mut grads: Vec<&mut [f32]> = grads.iter_mut().map(Vec::as_mut_slice).collect();
    let mut params = Params::init(&train.graph.params, 1);
    executor.train(&workers(1), &inputs, &mut params, SEED, &mut grads)
}

#[test]
fn batches_that_do_not_fit_by_the_name_of_the_input() {
    let data = Data::new(5, 1);
    run(&data, |_| {}).unwrap();
    let refusal = |break_it: fn(&mut Inputs<'_>)| run(&data, break_it).unwrap_err().to_string();
    assert_eq!(refusal(|i| i.rows = 0), "the batch: found 0 rows; give 1 to 16777216 rows");
    assert!(refusal(|i| i.rows = 6).starts_with("item: "));
    assert_eq!(
        refusal(|i| _ = i.numeric.pop()),
        "the batch: found 15 numeric columns instead of 16; give the inputs of the model"
    );
    assert_eq!(
        refusal(|i| i.numeric[3] = &[1.0]),
        "n3: found 1 values for 5 rows; give one value for each row"
    );
    assert!(
        refusal(|i| i.columns[0].inverse = &[0, 1, 99, 1, 1]).starts_with("item: found index 99")
    );
    assert!(refusal(|i| i.columns[1].offsets = Some(&[0, 3, 2, 4, 5, 5])).starts_with("history: "));
    assert!(refusal(|i| i.columns[1].offsets = None).starts_with("history: "));
    assert!(refusal(|i| i.columns[2].weights = Some(&[])).starts_with("text: "));
    assert!(refusal(|i| i.columns[2].table = 0).starts_with("text: "));
    assert!(refusal(|i| i.columns[1].base = 1).starts_with("items: "));
    assert!(refusal(|i| i.tables[0].unique = 8).starts_with("items: "));
    assert!(refusal(|i| i.tables[0].stride = 7).starts_with("items: "));
    assert!(refusal(|i| i.occurrences[1].positions = &[0]).starts_with("words: "));
    assert!(refusal(|i| i.occurrences.clear()).starts_with("the batch: "));
    assert!(refusal(|i| i.labels.clear()).starts_with("the batch: "));
    assert!(refusal(|i| i.labels[0].mask = Some(&[true])).starts_with("clicked: "));
    assert!(refusal(|i| i.weight = Some(&[])).starts_with("the sample weight: "));
}

#[test]
fn parameters_and_buffers_that_do_not_fit() {
    let data = Data::new(5, 1);
    let train = small();
    let workers = workers(1);
    let mut executor = Executor::new(Program::train(&train, Settings::default()).unwrap());
    let mut params = Params::init(&train.graph.params, 1);
    let refusal = executor.train(&workers, &data.inputs(), &mut params, SEED, &mut []);
    assert!(refusal.unwrap_err().to_string().starts_with("row gradients: "));
    let refusal = executor.infer(&workers, &data.inputs(), &Params::init(&[], 1));
    assert!(refusal.unwrap_err().to_string().starts_with("parameter `logit.weight`: "));
    let logit = train.graph.find("logit").unwrap();
    let mut infer =
        Executor::new(Program::infer(&train.graph, &[logit], Settings::default()).unwrap());
    let refusal = infer.train(&workers, &data.inputs(), &mut params, SEED, &mut []);
    assert!(refusal.unwrap_err().to_string().contains("an inference program cannot train"));
    // A server calls the executor in this way, without labels and occurrences.
    let mut inputs = data.inputs();
    inputs.labels.clear();
    inputs.occurrences.clear();
    infer.infer(&workers, &inputs, &params).unwrap();
    assert_eq!(infer.output(logit).unwrap().len(), 5);
    assert!(infer.loss().is_none());
}
