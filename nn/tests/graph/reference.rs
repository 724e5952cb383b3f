//! A second definition of every forward operation, for tests. It computes in f64, one number at a
//! time.

use std::ops::Range;

use zillion_feature::Pooling;
use zillion_nn::{
    Binary, Dim, Distance, Gather, Graph, NodeId, Op, StepSeed, Unary, dropout_keeps,
};

use crate::data::Data;

#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * cols).map(|i| f(i / cols, i % cols)).collect();
        Self { rows, cols, values }
    }

    /// Returns an element. If there is only one row or one column, it is used for all indices.
    pub(crate) fn at(&self, i: usize, j: usize) -> f64 {
        let i = if self.rows == 1 { 0 } else { i };
        let j = if self.cols == 1 { 0 } else { j };
        self.values[i * self.cols + j]
    }
}

/// The values that change when finite differences are computed.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) params: Vec<Vec<f64>>,
    pub(crate) tables: Vec<Vec<f64>>,
}

/// Returns the values of the first `count` nodes.
pub(crate) fn evaluate(
    graph: &Graph,
    count: usize,
    data: &Data,
    point: &Point,
    seed: StepSeed,
) -> Vec<Matrix> {
    let mut values: Vec<Matrix> = Vec::new();
    for node in &graph.nodes[..count] {
        let x = |i: usize| -> &Matrix { &values[node.inputs[i].0 as usize] };
        let rows = match node.shape.rows {
            Dim::Batch | Dim::Whole => data.rows,
            Dim::Const(n) => n,
            Dim::Unique(t) => data.tables[t].values.len() / data.tables[t].stride,
            Dim::Values(column) => data.columns[column].lists.iter().map(Vec::len).sum(),
        };
        let cols = node.shape.cols;
        let make = |f: &dyn Fn(usize, usize) -> f64| Matrix::new(rows, cols, f);
        let value = match &node.op {
            Op::Rows { table } => {
                let stride = data.tables[*table].stride;
                make(&|i, j| point.tables[*table][i * stride + j])
            }
            Op::Numeric { columns } => make(&|i, j| f64::from(data.numeric[columns[j]][i])),
            Op::Label { .. } => make(&|i, _| f64::from(data.labels[i])),
            Op::Weight { label } => make(&|i, _| {
                if label.is_some() && !data.mask[i] { 0.0 } else { f64::from(data.weight[i]) }
            }),
            Op::Param { param } => make(&|i, j| point.params[param.0 as usize][i * cols + j]),
            Op::Fill { value, .. } => make(&|_, _| f64::from(*value)),
            Op::Gather(gather) => make(&|i, j| match gather.pooling {
                Some(pooling) => pooled(gather, pooling, data, point, i, j),
                None => looked_up(gather, data, point, i, j),
            }),
            Op::Repeat { column, mean } => make(&|value, j| {
                let (row, list) = list_of(data, *column, value);
                x(0).at(row, j) / if *mean { list.len() as f64 } else { 1.0 }
            }),
            Op::SegmentSum { column, mean } => make(&|i, j| {
                let list = values_of(data, *column, i);
                let by = if *mean { list.len().max(1) as f64 } else { 1.0 };
                list.map(|value| x(0).at(value, j)).sum::<f64>() / by
            }),
            Op::SegmentSoftmax { column } => make(&|value, j| {
                let (_, list) = list_of(data, *column, value);
                x(0).at(value, j).exp() / list.map(|other| x(0).at(other, j).exp()).sum::<f64>()
            }),
            Op::Linear => make(&|i, j| {
                let bias = node.inputs.get(2).map_or(0.0, |b| values[b.0 as usize].at(0, j));
                (0..x(0).cols).map(|k| x(0).at(i, k) * x(1).values[k * cols + j]).sum::<f64>()
                    + bias
            }),
            Op::MatMulNt => make(&|i, j| {
                let n = x(0).cols;
                (0..n).map(|k| x(0).at(i, k) * x(1).values[j * n + k]).sum()
            }),
            Op::MatMulTn => make(&|i, j| {
                (0..x(0).rows)
                    .map(|r| x(0).values[r * x(0).cols + i] * x(1).values[r * x(1).cols + j])
                    .sum()
            }),
            Op::Unary(function) => make(&|i, j| unary(*function, x(0).at(i, j))),
            Op::Binary(function) => make(&|i, j| {
                let (a, b) = (x(0).at(i, j), x(1).at(i, j));
                match function {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                    Binary::SafeDiv => {
                        if b == 0.0 {
                            0.0
                        } else {
                            a / b
                        }
                    }
                }
            }),
            Op::MulAdd => make(&|i, j| x(0).at(i, j) * x(1).at(i, j) + x(2).at(i, j)),
            Op::AddN => make(&|i, j| (0..node.inputs.len()).map(|k| x(k).at(i, j)).sum()),
            Op::Concat => make(&|i, mut j| {
                for k in 0.. {
                    let part = x(k);
                    if j < part.cols {
                        return part.values[i * part.cols + j];
                    }
                    j -= part.cols;
                }
                unreachable!()
            }),
            Op::Slice { start, .. } => make(&|i, j| x(0).values[i * x(0).cols + start + j]),
            Op::Pad { start, .. } => make(&|i, j| {
                if (*start..start + x(0).cols).contains(&j) {
                    x(0).values[i * x(0).cols + j - start]
                } else {
                    0.0
                }
            }),
            Op::SumColumns => make(&|i, _| (0..x(0).cols).map(|j| x(0).at(i, j)).sum()),
            Op::RowDot => make(&|i, _| (0..x(0).cols).map(|j| x(0).at(i, j) * x(1).at(i, j)).sum()),
            Op::SumRows { mean } => make(&|_, j| {
                let sum: f64 = (0..x(0).rows).map(|i| x(0).at(i, j)).sum();
                if *mean { sum / x(0).rows.max(1) as f64 } else { sum }
            }),
            Op::BroadcastColumns { .. } => make(&|i, _| x(0).at(i, 0)),
            Op::BroadcastRows { mean, .. } => {
                make(&|_, j| x(0).at(0, j) / if *mean { rows as f64 } else { 1.0 })
            }
            Op::SoftmaxColumns => make(&|i, j| {
                let sum: f64 = (0..cols).map(|k| x(0).at(i, k).exp()).sum();
                x(0).at(i, j).exp() / sum
            }),
            Op::LogSumExpColumns => {
                make(&|i, _| (0..x(0).cols).map(|k| x(0).at(i, k).exp()).sum::<f64>().ln())
            }
            Op::BatchNormStats => make(&|_, j| {
                let n = x(0).cols;
                let column: Vec<f64> = (0..x(0).rows).map(|i| x(0).values[i * n + j % n]).collect();
                let count = column.len().max(1) as f64;
                let mean = column.iter().sum::<f64>() / count;
                let var = column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
                if j < n { mean } else { var }
            }),
            Op::BatchNorm { eps } => make(&|i, j| {
                let (mean, var) = (x(1).values[j], x(1).values[cols + j]);
                (x(0).at(i, j) - mean) / (var + f64::from(*eps)).sqrt() * x(2).values[j]
                    + x(3).values[j]
            }),
            Op::BatchNormRunning { momentum, variance } => make(&|_, j| {
                let of = graph.node(node.inputs[1]).inputs[0];
                let n = values[of.0 as usize].rows as f64;
                if n == 0.0 {
                    return x(0).values[j];
                }
                let (from, by) = if *variance { (cols, n / (n - 1.0).max(1.0)) } else { (0, 1.0) };
                let m = f64::from(*momentum);
                (1.0 - m) * x(0).values[j] + m * by * x(1).values[from + j]
            }),
            Op::LayerNorm { eps } => make(&|i, j| {
                let row: Vec<f64> = (0..cols).map(|j| x(0).at(i, j)).collect();
                let mean = row.iter().sum::<f64>() / cols as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64;
                (row[j] - mean) / (var + f64::from(*eps)).sqrt() * x(1).values[j] + x(2).values[j]
            }),
            Op::Dropout { rate, salt } => make(&|i, j| {
                let kept = dropout_keeps(seed, *salt, i, j, *rate);
                if kept { x(0).at(i, j) / (1.0 - f64::from(*rate)) } else { 0.0 }
            }),
            Op::FmInteraction { dim } => make(&|i, _| {
                let fields = x(0).cols / dim;
                let v = |f: usize, k: usize| x(0).values[i * x(0).cols + f * dim + k];
                pairs(fields).map(|(a, b)| (0..*dim).map(|k| v(a, k) * v(b, k)).sum::<f64>()).sum()
            }),
            Op::DotInteraction { dim } => make(&|i, j| {
                let fields = x(0).cols / dim;
                let v = |f: usize, k: usize| x(0).values[i * x(0).cols + f * dim + k];
                let (a, b) = pairs(fields).nth(j).unwrap();
                (0..*dim).map(|k| v(a, k) * v(b, k)).sum()
            }),
            Op::Collect => x(0).clone(),
            Op::InBatchLse(spec) => make(&|i, _| {
                let item = |row: usize| data.columns[spec.column].lists[row][0];
                let score = |j: usize| {
                    let dot: f64 = (0..x(0).cols).map(|k| x(0).at(i, k) * x(1).at(j, k)).sum();
                    let c = node.inputs.get(2).map_or(0.0, |c| values[c.0 as usize].at(j, 0));
                    f64::from(spec.by) * dot - c
                };
                let counts = |j: &usize| *j == i || item(*j) != item(i);
                (0..data.rows).filter(counts).map(|j| score(j).exp()).sum::<f64>().ln()
            }),
            Op::BceSum => make(&|_, _| {
                (0..x(0).rows)
                    .map(|i| {
                        let (z, y, w) = (x(0).at(i, 0), x(1).at(i, 0), x(2).at(i, 0));
                        let p = 1.0 / (1.0 + (-z).exp());
                        -w * (y * p.ln() + (1.0 - y) * (1.0 - p).ln())
                    })
                    .sum()
            }),
            Op::FocalSum(spec) => make(&|_, _| {
                (0..x(0).rows)
                    .map(|i| {
                        let (z, y, w) = (x(0).at(i, 0), x(1).at(i, 0), x(2).at(i, 0));
                        let p = 1.0 / (1.0 + (-z).exp());
                        let gamma = f64::from(spec.gamma);
                        let positive = f64::from(spec.positive) * (1.0 - p).powf(gamma) * p.ln();
                        let negative = f64::from(spec.negative) * p.powf(gamma) * (1.0 - p).ln();
                        -w * (y * positive + (1.0 - y) * negative)
                    })
                    .sum()
            }),
            Op::DistanceSum(distance) => make(&|_, _| {
                (0..x(0).rows)
                    .map(|i| {
                        let (z, y, w) = (x(0).at(i, 0), x(1).at(i, 0), x(2).at(i, 0));
                        let apart = (z - y).abs();
                        w * match *distance {
                            Distance::Squared => apart.powi(2),
                            Distance::Huber { delta } if apart <= f64::from(delta) => {
                                apart.powi(2) / 2.0
                            }
                            Distance::Huber { delta } => {
                                f64::from(delta) * (apart - f64::from(delta) / 2.0)
                            }
                            Distance::Poisson => z.exp() - y * z,
                        }
                    })
                    .sum()
            }),
            backward => panic!("{} is no forward operation", backward.name()),
        };
        values.push(value);
    }
    values
}

/// Returns the value of one node.
pub(crate) fn value(
    graph: &Graph,
    id: NodeId,
    data: &Data,
    point: &Point,
    seed: StepSeed,
) -> Matrix {
    evaluate(graph, id.0 as usize + 1, data, point, seed).pop().unwrap()
}

fn pairs(fields: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..fields).flat_map(|i| (0..i).map(move |j| (i, j)))
}

/// Returns the range of the values in the list of a row.
fn values_of(data: &Data, column: usize, row: usize) -> Range<usize> {
    let lists = &data.columns[column].lists;
    let first = lists[..row].iter().map(Vec::len).sum();
    first..first + lists[row].len()
}

/// Returns the row that a value belongs to, and the range of the values in the list of this row.
fn list_of(data: &Data, column: usize, value: usize) -> (usize, Range<usize>) {
    let mut lists = (0..data.rows).map(|row| (row, values_of(data, column, row)));
    lists.find(|(_, list)| list.contains(&value)).unwrap()
}

fn looked_up(gather: &Gather, data: &Data, point: &Point, value: usize, j: usize) -> f64 {
    let column = &data.columns[gather.column];
    let stride = data.tables[column.table].stride;
    let weight = if column.weighted { f64::from(column.weights[value]) } else { 1.0 };
    let key = column.lists.concat()[value] as usize;
    weight * point.tables[column.table][key * stride + gather.offset + j]
}

fn pooled(
    gather: &Gather,
    pooling: Pooling,
    data: &Data,
    point: &Point,
    row: usize,
    j: usize,
) -> f64 {
    let column = &data.columns[gather.column];
    let stride = data.tables[column.table].stride;
    let before: usize = column.lists[..row].iter().map(Vec::len).sum();
    let list = &column.lists[row];
    let values: Vec<(f64, f64)> = list
        .iter()
        .enumerate()
        .map(|(n, &key)| {
            let weight = if column.weighted { f64::from(column.weights[before + n]) } else { 1.0 };
            (weight, point.tables[column.table][key as usize * stride + gather.offset + j])
        })
        .collect();
    if values.is_empty() {
        return 0.0;
    }
    let sum: f64 = values.iter().map(|(w, v)| w * v).sum();
    match pooling {
        Pooling::Sum => sum,
        Pooling::Mean => sum / values.iter().map(|(w, _)| w).sum::<f64>(),
        Pooling::Sqrtn => sum / values.iter().map(|(w, _)| w * w).sum::<f64>().sqrt(),
        Pooling::Max => values.iter().map(|(w, v)| w * v).fold(f64::NEG_INFINITY, f64::max),
    }
}

fn unary(function: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match function {
        Unary::Relu => x.max(0.0),
        Unary::LeakyRelu { slope } => {
            if x > 0.0 {
                x
            } else {
                f64::from(slope) * x
            }
        }
        Unary::Sigmoid => sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Unary::Silu => x * sigmoid(x),
        Unary::Softplus => x.exp().ln_1p(),
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Ln => x.ln(),
        Unary::Scale { by } => f64::from(by) * x,
        Unary::Offset { by } => x + f64::from(by),
    }
}
