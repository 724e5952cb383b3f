//! Tests of operations on the values of lists. Lists may be empty, short, or longer than a tile.

use zillion_feature::Pooling;
use zillion_nn::{
    Binary, Dim, Error, Executor, GraphBuilder, Mode, NodeId, Op, Program, Result, Settings, Unary,
    differentiate,
};

use crate::check::{bits, check_on, params_of, train_step, workers};
use crate::data::{Data, graph_inputs};

const TOLERANCE: f64 = 2e-5;

/// Checks a graph on batches with one row, with fewer rows than lanes, and with several tiles. In
/// some batches, all lists are empty or all lists are short. In others, some lists have more values
/// than a tile of four rows may have.
fn checked(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) {
    for (rows, seed) in [(1, 1), (3, 2), (11, 3), (26, 4)] {
        for bound in [1, 5, 45] {
            let outcome = check_on(&Data::with_lists(rows, seed, bound), seed, TOLERANCE, &build);
            assert!(outcome.compared > outcome.kinks, "{} at kinks", outcome.kinks);
        }
    }
}

/// Builds the values `[V, 4]` of a column. The node has a gradient.
fn values(b: &mut GraphBuilder, column: usize) -> Result<NodeId> {
    b.gather_values("values", column, 0, 4)
}

/// Builds a node `[B, 4]` that has a gradient.
fn row(b: &mut GraphBuilder) -> Result<NodeId> {
    b.gather("row", 0, 3, 4, Pooling::Sum)
}

#[test]
fn lookups_of_each_value() {
    for column in 0..4 {
        checked(|b| values(b, column));
    }
    // The graph also has a pooled lookup of the same column, and lookups of parts of its rows.
    checked(|b| {
        let pooled = b.gather("pooled", 1, 0, 8, Pooling::Mean)?;
        let first = b.gather_values("first", 1, 0, 3)?;
        let last = b.gather_values("last", 1, 2, 6)?;
        let both = b.concat("both", &[last, first])?;
        let sum = b.segment_sum("sum", both)?;
        b.concat("all", &[pooled, sum])
    });
}

#[test]
fn rows_repeated_and_values_summed() {
    for column in 0..4 {
        checked(|b| {
            let row = row(b)?;
            b.repeat("repeated", row, column)
        });
        checked(|b| {
            let row = row(b)?;
            b.push("repeated", Op::Repeat { column, mean: true }, &[row])
        });
        checked(|b| {
            let values = values(b, column)?;
            b.segment_sum("sum", values)
        });
        checked(|b| {
            let values = values(b, column)?;
            b.segment_mean("mean", values)
        });
    }
}

#[test]
fn softmax_over_each_list() {
    for column in 0..4 {
        checked(|b| {
            let values = values(b, column)?;
            b.segment_softmax("softmax", values)
        });
    }
}

#[test]
fn attention() {
    checked(|b| {
        let (values, row) = (values(b, 1)?, row(b)?);
        let query = b.repeat("query", row, 1)?;
        let difference = b.sub("difference", query, values)?;
        let product = b.mul("product", query, values)?;
        let x = b.concat("attention", &[query, values, difference, product])?;
        let h = b.linear("hidden", x, 6)?;
        let h = b.sigmoid("activation", h)?;
        let h = b.linear("weight", h, 1)?;
        let h = b.segment_softmax("softmax", h)?;
        let weighted = b.mul("attended", values, h)?;
        let sum = b.segment_sum("sum", weighted)?;
        b.concat("result", &[sum, row])
    });
}

#[test]
fn row_operations_work_on_values() {
    for function in [Unary::Relu, Unary::Tanh, Unary::Gelu, Unary::Square] {
        checked(|b| {
            let values = values(b, 1)?;
            b.unary("function", function, values)
        });
    }
    for function in [Binary::Add, Binary::Sub, Binary::Mul] {
        checked(|b| {
            let values = values(b, 2)?;
            let other = b.linear("other", values, 4)?;
            let narrow = b.linear("narrow", other, 1)?;
            let wide = b.binary("wide", function, values, other)?;
            b.binary("both", function, wide, narrow)
        });
    }
    checked(|b| {
        let values = values(b, 1)?;
        let h = b.linear_no_bias("hidden", values, 5)?;
        let h = b.prelu("prelu", h)?;
        let h = b.layer_norm("norm", h)?;
        let h = b.dropout("dropout", h, 0.3)?;
        let part = b.slice("part", h, 1, 4)?;
        let dots = b.row_dot("dots", part, values)?;
        let fm = b.fm("fm", part, 2)?;
        let pairs = b.dot_interaction("pairs", values, 2)?;
        let padded = b.push("padded", Op::Pad { start: 1, total: 3 }, &[fm])?;
        let crossed = b.mul_add("crossed", part, dots, values)?;
        b.concat("all", &[crossed, dots, pairs, padded, h])
    });
    // The graph sums over all values and uses the sum as a constant for each value.
    checked(|b| {
        let values = values(b, 1)?;
        let mean = b.mean_rows("mean", values)?;
        let centred = b.sub("centred", values, mean)?;
        let gram = b.push("gram", Op::MatMulTn, &[centred, values])?;
        let gram = b.scale("gram.scaled", gram, 0.01)?;
        let product = b.matmul("product", values, gram)?;
        let sum = b.sum_rows("sum", product)?;
        b.push("spread", Op::BroadcastRows { rows: Dim::Values(1), mean: true }, &[sum])
    });
}

#[test]
fn batch_norm_over_values() {
    for (rows, seed) in [(1, 1), (11, 3), (26, 4)] {
        for bound in [1, 5, 45] {
            check_on(&Data::with_lists(rows, seed, bound), seed, 2e-4, |b| {
                let values = values(b, 1)?;
                let h = b.linear("linear", values, 20)?;
                b.batch_norm("norm", h)
            });
        }
    }
}

#[test]
fn values_summed_are_the_pooled_lookup() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Infer);
    for (column, name) in [(1, "history"), (2, "text")] {
        let pooled = b.gather(&format!("{name}.pooled"), column, 0, 4, Pooling::Sum).unwrap();
        let values = b.gather_values(&format!("{name}.values"), column, 0, 4).unwrap();
        let summed = b.segment_sum(&format!("{name}.summed"), values).unwrap();
        b.output(&format!("{name}.pooled"), pooled).unwrap();
        b.output(&format!("{name}.summed"), summed).unwrap();
    }
    let graph = b.finish();
    let ids: Vec<NodeId> = graph.outputs.iter().map(|&(_, id)| id).collect();
    let settings = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };
    let mut executor = Executor::new(Program::infer(&graph, &ids, settings).unwrap());
    let data = Data::with_lists(40, 9, 30);
    executor.infer(&workers(2), &data.inputs(), &params_of(&graph, 1)).unwrap();
    for pair in ids.chunks(2) {
        let [pooled, summed] = [pair[0], pair[1]].map(|id| executor.output(id).unwrap());
        for (a, b) in pooled.iter().zip(summed) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
    }
}

/// Builds a model with attention and a normalised hidden layer. The values of this layer outlive
/// their pass.
fn model(b: &mut GraphBuilder) -> Result<NodeId> {
    let row = row(b)?;
    let mut parts = vec![row];
    for column in [1, 2] {
        let values = b.gather_values(&format!("values.{column}"), column, 0, 4)?;
        let query = b.repeat(&format!("query.{column}"), row, column)?;
        let x = b.concat(&format!("attention.{column}"), &[query, values])?;
        let h = b.linear(&format!("hidden.{column}"), x, 9)?;
        let h = b.batch_norm(&format!("norm.{column}"), h)?;
        let h = b.sigmoid(&format!("activation.{column}"), h)?;
        let h = b.linear(&format!("weight.{column}"), h, 1)?;
        let weighted = b.mul(&format!("weighted.{column}"), values, h)?;
        parts.push(b.segment_sum(&format!("sum.{column}"), weighted)?);
    }
    let x = b.concat("all", &parts)?;
    let logit = b.linear("logit", x, 1)?;
    b.output("logit", logit)?;
    b.bce_with_logits("loss", logit, 0)
}

#[test]
fn threads_do_not_change_a_bit() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let loss = model(&mut b).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    for (rows, bound, lanes, tile_rows) in
        [(1, 9, 8, 4), (200, 1, 8, 16), (200, 30, 8, 4), (77, 60, 3, 1), (300, 5, 11, 70)]
    {
        let data = Data::with_lists(rows, 5, bound);
        let params = params_of(&train.graph, 3);
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let step = |threads| bits(&train_step(&train, &data, &params, settings, &workers(threads)));
        let one = step(1);
        assert_eq!(one, step(2));
        assert_eq!(one, step(3));
    }
}

#[test]
fn buffers_of_long_lists_serve_short_ones() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let loss = model(&mut b).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    let params = params_of(&train.graph, 1);
    let program = || {
        Program::train(&train, Settings { lanes: 4, tile_rows: 8, ..Settings::default() }).unwrap()
    };
    let mut used = Executor::new(program());
    let workers = workers(2);
    for (rows, bound) in [(20, 5), (20, 50), (3, 1), (70, 5), (1, 90), (70, 5)] {
        let data = Data::with_lists(rows, rows as u64, bound);
        let run = |executor: &mut Executor| {
            let mut grads: Vec<Vec<f32>> =
                data.tables.iter().map(|t| vec![0.0; t.values.len()]).collect();
            let mut slices: Vec<&mut [f32]> = grads.iter_mut().map(Vec::as_mut_slice).collect();
            let seed = crate::check::SEED;
            let mut params = params.clone();
            executor.train(&workers, &data.inputs(), &mut params, seed, &mut slices).unwrap();
            (executor.loss().unwrap().to_bits(), grads)
        };
        assert_eq!(run(&mut used), run(&mut Executor::new(program())));
    }
}

#[test]
fn rows_and_values_do_not_mix() {
    let refused = |build: &dyn Fn(&mut GraphBuilder) -> Result<NodeId>, reason: &str| {
        let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
        match build(&mut b).unwrap_err() {
            Error::Shape { node, reason: found } => {
                assert_eq!(node, "wrong");
                assert!(found.contains(reason), "{found}");
            }
            other => panic!("{other}"),
        }
    };
    refused(
        &|b| {
            let (values, row) = (values(b, 1)?, row(b)?);
            b.add("wrong", values, row)
        },
        "rows of [V1, 4] and [B, 4] differ",
    );
    refused(
        &|b| {
            let values = values(b, 1)?;
            let other = b.gather_values("other", 2, 0, 4)?;
            b.concat("wrong", &[values, other])
        },
        "rows of [V1, 4] and [V2, 4] differ",
    );
    refused(
        &|b| {
            let row = row(b)?;
            b.segment_sum("wrong", row)
        },
        "the input [B, 4] is not the values of a list column",
    );
    refused(
        &|b| {
            let values = values(b, 1)?;
            b.repeat("wrong", values, 1)
        },
        "repeat cannot read inputs of these shapes: [V1, 4]",
    );
    refused(
        &|b| {
            let row = row(b)?;
            b.repeat("wrong", row, 9)
        },
        "there is no sparse column 9",
    );
}
