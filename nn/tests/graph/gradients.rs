//! Tests of every operation: its value against the reference, and its gradient against finite
//! differences.

use zillion_feature::Pooling;
use zillion_nn::{
    Binary, Dim, Distance, Focal, GraphBuilder, InBatch, NodeId, Op, ParamInit, Result, Unary,
};

use crate::check::check;

const TOLERANCE: f64 = 2e-5;

/// Checks a graph on three batches. The first has one row, the second has fewer rows than lanes,
/// and the third has several tiles with a shorter last tile.
fn checked(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) {
    for (rows, seed) in [(1, 1), (3, 2), (11, 3), (30, 4)] {
        let outcome = check(rows, seed, TOLERANCE, &build);
        assert!(outcome.compared > outcome.kinks, "{} at kinks", outcome.kinks);
    }
}

/// Builds a node `[B, 8]` whose gradient goes to both tables.
fn x(b: &mut GraphBuilder) -> Result<NodeId> {
    let item = b.gather("x.item", 0, 0, 6, Pooling::Sum)?;
    let text = b.gather("x.text", 2, 1, 2, Pooling::Sum)?;
    b.concat("x", &[item, text])
}

/// Builds a second node `[B, 8]`, whose gradient goes to the parameters of a linear layer.
fn y(b: &mut GraphBuilder) -> Result<NodeId> {
    let n = b.numeric("y.numeric", &[3, 1, 2])?;
    b.linear("y", n, 8)
}

fn constant(b: &mut GraphBuilder, name: &str, rows: usize, cols: usize) -> Result<NodeId> {
    Ok(b.param(name, (rows, cols), ParamInit::XavierNormal, true)?.1)
}

#[test]
fn lookups() {
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Sqrtn, Pooling::Max] {
        for column in 0..4 {
            checked(|b| b.gather("looked_up", column, 1, 3, pooling));
        }
    }
    // A part that is wider than a register of sixteen floats would need another table. This graph
    // looks up two parts of one row.
    checked(|b| {
        let all = b.gather("vector", 1, 0, 7, Pooling::Mean)?;
        let last = b.gather("linear", 1, 7, 1, Pooling::Sum)?;
        let single = b.gather("single", 0, 0, 8, Pooling::Sum)?;
        b.concat("all", &[all, last, single])
    });
}

#[test]
fn products() {
    checked(|b| {
        let x = x(b)?;
        b.linear("linear", x, 5)
    });
    checked(|b| {
        let x = x(b)?;
        b.linear("narrow", x, 1)
    });
    checked(|b| {
        let x = x(b)?;
        b.linear_no_bias("linear", x, 3)
    });
    // The graph multiplies constants, and also multiplies by a product of constants.
    checked(|b| {
        let (left, right) = (constant(b, "left", 8, 2)?, constant(b, "right", 2, 8)?);
        let weight = b.matmul("weight", left, right)?;
        let x = x(b)?;
        b.matmul("product", x, weight)
    });
    checked(|b| {
        let (x, weight) = (x(b)?, constant(b, "weight", 4, 8)?);
        b.push("transposed", Op::MatMulNt, &[x, weight])
    });
    checked(|b| {
        let (x, y) = (x(b)?, y(b)?);
        b.push("gram", Op::MatMulTn, &[x, y])
    });
    checked(|b| {
        let (left, right) = (constant(b, "left", 3, 4)?, constant(b, "right", 3, 2)?);
        b.push("product", Op::MatMulTn, &[left, right])
    });
}

#[test]
fn functions_of_one() {
    let functions = [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.1 },
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Gelu,
        Unary::Silu,
        Unary::Softplus,
        Unary::Square,
        Unary::Exp,
        Unary::Scale { by: -1.5 },
        Unary::Offset { by: 0.25 },
    ];
    for function in functions {
        checked(|b| {
            let x = x(b)?;
            b.unary("function", function, x)
        });
        checked(|b| {
            let c = constant(b, "c", 3, 2)?;
            b.unary("of_constant", function, c)
        });
    }
    for function in [Unary::Sqrt, Unary::Ln] {
        checked(|b| {
            let x = x(b)?;
            let square = b.unary("square", Unary::Square, x)?;
            let positive = b.unary("positive", Unary::Offset { by: 0.5 }, square)?;
            b.unary("function", function, positive)
        });
    }
    checked(|b| {
        let x = x(b)?;
        b.prelu("prelu", x)
    });
}

#[test]
fn functions_of_two_with_every_broadcast() {
    for function in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::SafeDiv] {
        for (left, right) in
            [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0), (1, 2), (2, 1)]
        {
            checked(|b| {
                let mut operand = |name: &str, kind: usize| -> Result<NodeId> {
                    let node = match kind {
                        0 if name == "left" => x(b)?,
                        0 => y(b)?,
                        1 => b.gather(&format!("{name}.column"), 0, 2, 1, Pooling::Sum)?,
                        2 => constant(b, &format!("{name}.line"), 1, 8)?,
                        _ => constant(b, &format!("{name}.scalar"), 1, 1)?,
                    };
                    // The divisor is far from zero.
                    let square = b.unary(&format!("{name}.square"), Unary::Square, node)?;
                    b.unary(&format!("{name}.far"), Unary::Offset { by: 1.0 }, square)
                };
                let (left, right) = (operand("left", left)?, operand("right", right)?);
                b.binary("function", function, left, right)
            });
        }
    }
}

#[test]
fn multiply_and_add() {
    for (kind_b, kind_c) in [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 2), (2, 1), (1, 1)] {
        checked(|g| {
            let a = x(g)?;
            let mut operand = |name: &str, kind: usize| match kind {
                0 => {
                    let n = g.numeric(&format!("{name}.n"), &[4, 5])?;
                    g.linear(name, n, 8)
                }
                1 => g.gather(name, 3, 0, 1, Pooling::Sum),
                _ => constant(g, name, 1, 8),
            };
            let (b, c) = (operand("b", kind_b)?, operand("c", kind_c)?);
            g.mul_add("mul_add", a, b, c)
        });
    }
}

#[test]
fn sums_of_many_uses() {
    // The graph uses x ten times, which gives more gradients than one addition takes.
    checked(|b| {
        let x = x(b)?;
        let mut sum = b.relu("first", x)?;
        for i in 0..9 {
            let next = b.unary(&format!("use.{i}"), Unary::Tanh, x)?;
            sum = b.mul_add(&format!("sum.{i}"), next, x, sum)?;
        }
        Ok(sum)
    });
    checked(|b| {
        let (x, y) = (x(b)?, y(b)?);
        b.push("sum", Op::AddN, &[x, y, x, x])
    });
}

#[test]
fn columns() {
    checked(|b| {
        let (x, y) = (x(b)?, y(b)?);
        let part = b.slice("part", x, 2, 4)?;
        let twice = b.concat("twice", &[part, y, part, x])?;
        let outer = b.concat("outer", &[twice, y])?;
        b.slice("some", outer, 3, 20)
    });
    checked(|b| {
        let x = x(b)?;
        b.push("padded", Op::Pad { start: 2, total: 11 }, &[x])
    });
    checked(|b| {
        let (c, d) = (constant(b, "c", 3, 4)?, constant(b, "d", 3, 2)?);
        let all = b.concat("all", &[c, d, c])?;
        let some = b.slice("some", all, 1, 7)?;
        b.push("padded", Op::Pad { start: 1, total: 9 }, &[some])
    });
    checked(|b| {
        let line = constant(b, "line", 1, 6)?;
        let part = b.slice("part", line, 2, 3)?;
        let again = b.slice("again", part, 1, 2)?;
        let x = x(b)?;
        let two = b.slice("two", x, 5, 2)?;
        b.mul("product", two, again)
    });
}

#[test]
fn a_part_that_reads_its_own_concatenation_is_copied() {
    // The second part is computed from the first part. In one buffer, both would be read and
    // written at the same time.
    checked(|b| {
        let x = x(b)?;
        let y = b.unary("y", Unary::Tanh, x)?;
        let z = b.linear("z", y, 3)?;
        b.concat("stacked", &[x, y, z])
    });
}

#[test]
fn reductions() {
    checked(|b| {
        let x = x(b)?;
        b.sum_columns("sum", x)
    });
    checked(|b| {
        let x = x(b)?;
        b.mean_columns("mean", x)
    });
    checked(|b| {
        let x = x(b)?;
        b.sum_rows("sum", x)
    });
    checked(|b| {
        let x = x(b)?;
        b.mean_rows("mean", x)
    });
    checked(|b| {
        let (x, y) = (x(b)?, y(b)?);
        b.row_dot("dot", x, y)
    });
    checked(|b| {
        let c = constant(b, "c", 4, 3)?;
        let by_row = b.sum_columns("by_row", c)?;
        let by_column = b.mean_rows("by_column", c)?;
        let columns = b.push("columns", Op::BroadcastColumns { cols: 3 }, &[by_row])?;
        let op = Op::BroadcastRows { rows: Dim::Const(4), mean: true };
        let rows = b.push("rows", op, &[by_column])?;
        b.mul("product", columns, rows)
    });
    // Every row uses a statistic of the batch, which is a barrier in the middle of the graph.
    checked(|b| {
        let x = x(b)?;
        let mean = b.mean_rows("mean", x)?;
        let centred = b.sub("centred", x, mean)?;
        let square = b.unary("square", Unary::Square, centred)?;
        let variance = b.mean_rows("variance", square)?;
        let op = Op::BroadcastRows { rows: Dim::Batch, mean: false };
        let spread = b.push("spread", op, &[variance])?;
        b.mul("product", spread, centred)
    });
}

#[test]
fn softmax() {
    checked(|b| {
        let x = x(b)?;
        b.softmax_columns("softmax", x)
    });
    checked(|b| {
        let x = x(b)?;
        b.log_sum_exp_columns("log_sum_exp", x)
    });
    checked(|b| {
        let c = constant(b, "c", 3, 5)?;
        let shares = b.softmax_columns("softmax", c)?;
        let sums = b.log_sum_exp_columns("log_sum_exp", c)?;
        b.mul("product", shares, sums)
    });
    // These rows have more columns than a register holds.
    checked(|b| {
        let x = x(b)?;
        let wide = b.linear("wide", x, 37)?;
        let shares = b.softmax_columns("softmax", wide)?;
        let sums = b.log_sum_exp_columns("log_sum_exp", wide)?;
        b.mul("product", shares, sums)
    });
}

#[test]
fn rows_against_the_whole_batch() {
    // The batches have one row, repeated items, or more rows than a block has.
    for (rows, seed) in [(1, 1), (3, 2), (11, 3), (30, 4), (300, 5)] {
        for corrected in [false, true] {
            let outcome = check(rows, seed, TOLERANCE, |b| {
                let x = x(b)?;
                let u = b.linear("u", x, 5)?;
                let n = b.numeric("n", &[3, 1, 2])?;
                let v = b.linear("v", n, 5)?;
                let mut operands = vec![u, b.push("v.whole", Op::Collect, &[v])?];
                if corrected {
                    let c = b.numeric("c", &[7])?;
                    operands.push(b.push("c.whole", Op::Collect, &[c])?);
                }
                let op = Op::InBatchLse(InBatch { column: 0, by: 0.7 });
                b.push("in_batch", op, &operands)
            });
            assert!(outcome.compared > outcome.kinks);
        }
    }
    // A value is scored against itself after a batch norm, which adds barriers.
    for (rows, seed) in [(11, 3), (30, 4)] {
        check(rows, seed, 2e-4, |b| {
            let x = x(b)?;
            let u = b.linear("u", x, 6)?;
            let u = b.batch_norm("norm", u)?;
            let whole = b.push("whole", Op::Collect, &[u])?;
            b.push("in_batch", Op::InBatchLse(InBatch { column: 3, by: 0.3 }), &[u, whole])
        });
    }
}

#[test]
fn norms() {
    checked(|b| {
        let x = x(b)?;
        b.layer_norm("norm", x)
    });
    for (rows, seed) in [(3, 2), (11, 3), (30, 4)] {
        check(rows, seed, 2e-4, |b| {
            let x = x(b)?;
            let h = b.linear("linear", x, 20)?;
            b.batch_norm("norm", h)
        });
    }
}

#[test]
fn dropout() {
    checked(|b| {
        let x = x(b)?;
        let h = b.dropout("dropped", x, 0.4)?;
        let h = b.linear("linear", h, 6)?;
        b.dropout("dropped_again", h, 0.2)
    });
}

#[test]
fn interactions() {
    // The rows have two, three or eight fields, with vectors of one to four floats.
    for (dim, cols) in [(2, 6), (4, 8), (1, 8), (3, 6)] {
        checked(|b| {
            let x = x(b)?;
            let x = b.slice("fields", x, 1, cols.min(7))?;
            let x = b.linear("projected", x, cols)?;
            b.fm("fm", x, dim)
        });
        checked(|b| {
            let x = x(b)?;
            let x = b.linear("projected", x, cols)?;
            b.dot_interaction("dots", x, dim)
        });
    }
    // Some vectors are wider than a register, and some numbers of pairs fill several registers.
    for (dim, fields) in [(20, 3), (16, 4), (5, 19)] {
        checked(|b| {
            let x = x(b)?;
            let x = b.linear("projected", x, dim * fields)?;
            let fm = b.fm("fm", x, dim)?;
            let dots = b.dot_interaction("dots", x, dim)?;
            let both = b.concat("both", &[fm, dots])?;
            b.scale("smaller", both, 0.1)
        });
    }
    // The rows are too wide to be transposed on the stack.
    check(3, 5, TOLERANCE, |b| {
        let x = x(b)?;
        let x = b.linear("projected", x, 3 * 300)?;
        let x = b.scale("smaller", x, 0.1)?;
        b.dot_interaction("dots", x, 300)
    });
}

#[test]
fn crosses() {
    checked(|b| {
        let x = x(b)?;
        let one = b.cross("cross.0", x, x)?;
        b.cross("cross.1", x, one)
    });
    checked(|b| {
        let x = x(b)?;
        let one = b.cross_v2("cross.0", x, x)?;
        b.cross_v2_low_rank("cross.1", x, one, 2)
    });
}

#[test]
fn losses() {
    checked(|b| {
        let x = x(b)?;
        let logits = b.linear("logits", x, 1)?;
        let loss = b.bce_with_logits("loss", logits, 0)?;
        let square = b.unary("square", Unary::Square, x)?;
        let by_row = b.sum_columns("by_row", square)?;
        let penalty = b.mean_rows("penalty", by_row)?;
        let penalty = b.scale("scaled", penalty, 0.1)?;
        b.add("total", loss, penalty)
    });
    // The losses are weighted by class, or focused on hard examples.
    for (gamma, positive, negative) in [(0.0, 3.0, 1.0), (2.0, 0.25, 0.75), (0.5, 1.0, 1.0)] {
        checked(|b| {
            let x = x(b)?;
            let logits = b.linear("logits", x, 1)?;
            let (labels, weights) = (b.label("labels", 0)?, b.weight("weights", Some(0))?);
            let focal = Focal { gamma, positive, negative };
            b.push("loss", Op::FocalSum(focal), &[logits, labels, weights])
        });
    }
    // The score predicts a number. A delta of 0.3 has rows on both sides of it.
    for distance in [
        Distance::Squared,
        Distance::Huber { delta: 0.3 },
        Distance::Huber { delta: 5.0 },
        Distance::Poisson,
    ] {
        checked(|b| {
            let x = x(b)?;
            let scores = b.linear("scores", x, 1)?;
            let (labels, weights) = (b.label("labels", 0)?, b.weight("weights", Some(0))?);
            b.push("loss", Op::DistanceSum(distance), &[scores, labels, weights])
        });
    }
}
