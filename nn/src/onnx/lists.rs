//! List columns in ONNX: the operations between the rows of the batch and the values of their
//! lists.
//!
//! A list feature has two inputs: the rows of all its values, list after list, and the length of
//! each list. The lengths determine the row of the batch to which a value belongs. Sums and maxima
//! over lists are computed by `ScatterND` with a reduction.

use zillion_feature::Pooling;

use super::emit::Emitter;
use super::proto::{AttributeProto, TensorProto};

/// The names of the values that are computed once from the lengths of a list column.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// The name of the input with the lengths, `[batch]`.
    pub(crate) lengths: String,
    /// The names of the vectors with the row of each value. Their shapes are `[values]` and
    /// `[values, 1]`.
    row_of: String,
    places: String,
}

impl List {
    /// Writes the operations that compute the row of each value from the lengths. They set a mark
    /// at the first value of each list except the first list. The marks of empty lists are added to
    /// the mark of the next value. The row of a value is the sum of the marks up to and including
    /// the value.
    pub(crate) fn new(e: &mut Emitter, lengths: &str) -> Self {
        let int = |v: i64| TensorProto::ints("", &[1], &[v]);
        let axis = e.int(0);
        let zero = e.int(0);
        let ends = e.op("CumSum", &[lengths, &axis], Vec::new());
        let last = e.int(-1);
        let begins = e.op("Slice", &[&ends, &zero, &last, &axis], Vec::new());
        let count = e.op("ReduceSum", &[lengths], vec![AttributeProto::int("keepdims", 1)]);
        let one = e.int(1);
        let room = e.op("Add", &[&count, &one], Vec::new());
        let marks = e.filled(&room, int(0));
        let lists = e.op("Shape", &[&begins], Vec::new());
        let ones = e.filled(&lists, int(1));
        let add = vec![AttributeProto::int("axis", 0), AttributeProto::text("reduction", "add")];
        let marks = e.op("ScatterElements", &[&marks, &begins, &ones], add);
        let rows = e.op("CumSum", &[&marks, &axis], Vec::new());
        let row_of = e.op("Slice", &[&rows, &zero, &count, &axis], Vec::new());
        let places = e.op("Unsqueeze", &[&row_of, &one], Vec::new());
        Self { lengths: lengths.to_owned(), row_of, places }
    }

    /// Writes the repetition of each row of the batch, once for each value of its list.
    pub(crate) fn repeat(&self, e: &mut Emitter, x: &str) -> String {
        e.op("Gather", &[x, &self.row_of], vec![AttributeProto::int("axis", 0)])
    }

    /// Writes the sum over each list: `[values, cols]` → `[batch, cols]`.
    pub(crate) fn sum(&self, e: &mut Emitter, x: &str, cols: usize) -> String {
        self.scatter(e, x, cols, 0.0, "add")
    }

    /// Writes the largest value of each list. The result is −∞ for an empty list.
    fn max(&self, e: &mut Emitter, x: &str, cols: usize) -> String {
        self.scatter(e, x, cols, f32::NEG_INFINITY, "max")
    }

    fn scatter(&self, e: &mut Emitter, x: &str, cols: usize, from: f32, by: &str) -> String {
        let batch = e.op("Shape", &[&self.lengths], Vec::new());
        let cols = e.int(cols as i64);
        let shape = e.op("Concat", &[&batch, &cols], vec![AttributeProto::int("axis", 0)]);
        let start = e.filled(&shape, TensorProto::floats("", &[1], &[from]));
        let attributes = vec![AttributeProto::text("reduction", by)];
        e.op("ScatterND", &[&start, &self.places, x], attributes)
    }

    /// Writes the softmax over each list. The largest value of the list is subtracted first, so
    /// that no exponential overflows.
    pub(crate) fn softmax(&self, e: &mut Emitter, x: &str, cols: usize) -> String {
        let largest = self.max(e, x, cols);
        let largest = self.repeat(e, &largest);
        let less = e.op("Sub", &[x, &largest], Vec::new());
        let powers = e.op("Exp", &[&less], Vec::new());
        let sum = self.sum(e, &powers, cols);
        let sum = self.repeat(e, &sum);
        e.op("Div", &[&powers, &sum], Vec::new())
    }

    /// Writes the reciprocal of the length of each list, `[batch, 1]`. The result is 1 for an empty
    /// list.
    pub(crate) fn inverse_lengths(&self, e: &mut Emitter) -> String {
        let one = e.int(1);
        let lengths = e.op("Max", &[&self.lengths, &one], Vec::new());
        let column = e.op("Unsqueeze", &[&lengths, &one], Vec::new());
        let to = vec![AttributeProto::int("to", i64::from(super::proto::data::FLOAT))];
        let column = e.op("Cast", &[&column], to);
        e.op("Reciprocal", &[&column], Vec::new())
    }

    /// Writes the rows of values multiplied by their weights.
    pub(crate) fn weighted(&self, e: &mut Emitter, rows: &str, weights: &str) -> String {
        let weights = self.column(e, weights);
        e.op("Mul", &[rows, &weights], Vec::new())
    }

    /// Writes weights as a column `[values, 1]`. The input may also be a single weight for all
    /// values.
    fn column(&self, e: &mut Emitter, weights: &str) -> String {
        let shape = e.op("Shape", &[&self.places], Vec::new());
        let one = e.int(1);
        let column = e.op("Unsqueeze", &[weights, &one], Vec::new());
        e.op("Expand", &[&column, &shape], Vec::new())
    }

    /// Writes the pooling of the rows of each list into one row, by the rules of `ops::gather`.
    pub(crate) fn pool(
        &self,
        e: &mut Emitter,
        rows: &str,
        weights: &str,
        cols: usize,
        pooling: Pooling,
    ) -> String {
        let weighted = self.weighted(e, rows, weights);
        match pooling {
            Pooling::Sum => self.sum(e, &weighted, cols),
            Pooling::Mean | Pooling::Sqrtn => {
                let sum = self.sum(e, &weighted, cols);
                let own = self.column(e, weights);
                let divisor = if pooling == Pooling::Mean {
                    self.sum(e, &own, 1)
                } else {
                    let squares = e.op("Mul", &[&own, &own], Vec::new());
                    let squares = self.sum(e, &squares, 1);
                    e.op("Sqrt", &[&squares], Vec::new())
                };
                divide_or_zero(e, &sum, &divisor)
            }
            Pooling::Max => {
                let largest = self.max(e, &weighted, cols);
                let (zero, one, none) = (e.float(0.0), e.int(1), e.int(0));
                let column = e.op("Unsqueeze", &[&self.lengths, &one], Vec::new());
                let empty = e.op("Equal", &[&column, &none], Vec::new());
                e.op("Where", &[&empty, &zero, &largest], Vec::new())
            }
        }
    }
}

/// Writes `a / b`, and 0 where `b` is 0.
pub(crate) fn divide_or_zero(e: &mut Emitter, a: &str, b: &str) -> String {
    let zero = e.float(0.0);
    let none = e.op("Equal", &[b, &zero], Vec::new());
    let quotient = e.op("Div", &[a, b], Vec::new());
    e.op("Where", &[&none, &zero, &quotient], Vec::new())
}
