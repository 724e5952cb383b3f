//! What each operation is in ONNX.

use zillion_feature::Pooling;

use super::lists::divide_or_zero;
use super::proto::{AttributeProto, TensorProto};
use super::{Writer, no_form};
use crate::error::Result;
use crate::graph::{Dim, NodeId};
use crate::op::{Binary, Gather, Op, Unary};

/// `√(2/π)` and the cubic's factor, of the tanh form of gelu.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

impl Writer<'_> {
    /// Writes one node; those that it reads are written.
    pub(super) fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        self.emitter.enter(id, &node.name);
        let inputs: Vec<String> = node.inputs.iter().map(|&i| self.value(i).to_owned()).collect();
        let x: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let cols_of = |at: usize| node.inputs.get(at).map_or(0, |&i| self.graph.shape(i).cols);
        let value = match (&node.op, x.as_slice()) {
            // Rows come as inputs of the columns that look them up.
            (Op::Rows { .. }, _) => String::new(),
            (Op::Param { param }, _) => {
                let spec = self.graph.param(*param);
                self.emitter.claim(&spec.name)?;
                let values = self.params.value(*param);
                let tensor = TensorProto::floats(&spec.name, &[spec.rows, spec.cols], values);
                self.emitter.initializers.push(tensor);
                spec.name.clone()
            }
            (Op::Fill { value, shape }, []) => match shape.rows {
                Dim::Const(rows) => {
                    let shape = self.emitter.ints(&[rows as i64, shape.cols as i64]);
                    self.emitter.filled(&shape, TensorProto::floats("", &[1], &[*value]))
                }
                _ => return Err(no_form(&node.op, &node.name)),
            },
            (Op::Numeric { columns }, []) => {
                let parts: Vec<String> =
                    columns.iter().map(|&c| self.number(c)).collect::<Result<_>>()?;
                self.side_by_side(&parts)
            }
            (Op::Gather(gather), [_]) => self.gather(id, gather, &node.name)?,

            (Op::Linear, [x, w]) => self.emitter.op("MatMul", &[x, w], vec![]),
            (Op::Linear, [x, w, b]) => {
                let product = self.emitter.op("MatMul", &[x, w], vec![]);
                self.emitter.op("Add", &[&product, b], vec![])
            }
            (Op::MatMulNt, [a, w]) => {
                self.emitter.op("Gemm", &[a, w], vec![AttributeProto::int("transB", 1)])
            }
            (Op::Unary(unary), [x]) => self.unary(*unary, x),
            (Op::Binary(binary), [a, b]) => self.binary(*binary, a, b),
            (Op::MulAdd, [a, b, c]) => {
                let product = self.emitter.op("Mul", &[a, b], vec![]);
                self.emitter.op("Add", &[&product, c], vec![])
            }
            (Op::AddN, terms) => self.emitter.op("Sum", terms, vec![]),

            (Op::Concat, parts) => {
                let parts: Vec<String> = parts.iter().map(|&p| p.to_owned()).collect();
                self.side_by_side(&parts)
            }
            (Op::Slice { start, len }, [x]) => {
                let e = &mut self.emitter;
                let (from, to) = (e.int(*start as i64), e.int((start + len) as i64));
                let axis = e.int(1);
                e.op("Slice", &[x, &from, &to, &axis], vec![])
            }
            (Op::Pad { start, total }, [x]) => {
                let behind = total - start - cols_of(0);
                let pads = self.emitter.ints(&[0, *start as i64, 0, behind as i64]);
                self.emitter.op("Pad", &[x, &pads], vec![])
            }
            (Op::SumColumns, [x]) => self.over("ReduceSum", x, 1),
            (Op::RowDot, [a, b]) => {
                let product = self.emitter.op("Mul", &[a, b], vec![]);
                self.over("ReduceSum", &product, 1)
            }
            // Over rows of the batch it would couple them; over those of a constant it is one.
            (Op::SumRows { mean }, [x]) if self.is_constant(id) => {
                self.over(if *mean { "ReduceMean" } else { "ReduceSum" }, x, 0)
            }
            (Op::BroadcastColumns { cols }, [x]) => {
                let shape = self.emitter.ints(&[1, *cols as i64]);
                self.emitter.op("Expand", &[x, &shape], vec![])
            }

            (Op::Repeat { column, mean }, [x]) => match self.list(*column)? {
                None => self.same(id, x),
                Some(list) => {
                    self.emitter.enter(id, &node.name);
                    let e = &mut self.emitter;
                    let x = if *mean {
                        let by = list.inverse_lengths(e);
                        e.op("Mul", &[x, &by], vec![])
                    } else {
                        (*x).to_owned()
                    };
                    list.repeat(e, &x)
                }
            },
            (Op::SegmentSum { column, mean }, [x]) => match self.list(*column)? {
                None => self.same(id, x),
                Some(list) => {
                    self.emitter.enter(id, &node.name);
                    let e = &mut self.emitter;
                    let sum = list.sum(e, x, node.shape.cols);
                    if *mean {
                        let by = list.inverse_lengths(e);
                        e.op("Mul", &[&sum, &by], vec![])
                    } else {
                        sum
                    }
                }
            },
            (Op::SegmentSoftmax { column }, [x]) => match self.list(*column)? {
                None => {
                    self.emitter.enter(id, &node.name);
                    let none = self.emitter.op("Sub", &[x, x], vec![]);
                    self.emitter.op("Exp", &[&none], vec![])
                }
                Some(list) => {
                    self.emitter.enter(id, &node.name);
                    list.softmax(&mut self.emitter, x, node.shape.cols)
                }
            },
            (Op::SoftmaxColumns, [x]) => {
                self.emitter.op("Softmax", &[x], vec![AttributeProto::int("axis", 1)])
            }
            (Op::LogSumExpColumns, [x]) => self.over("ReduceLogSumExp", x, 1),

            (Op::BatchNorm { eps }, [x, stats, scale, shift]) => {
                self.batch_norm(*eps, x, stats, scale, shift, node.shape.cols)
            }
            (Op::LayerNorm { eps }, [x, scale, shift]) => self.layer_norm(*eps, x, scale, shift),
            (Op::FmInteraction { dim }, [x]) => self.fm(x, *dim, cols_of(0)),
            (Op::DotInteraction { dim }, [x]) => self.dots(x, *dim, cols_of(0)),
            (op, _) => return Err(no_form(op, &node.name)),
        };
        self.values[id.0 as usize] = value;
        Ok(())
    }

    /// Rows of a column's ids, pooled where they are to be.
    fn gather(&mut self, id: NodeId, gather: &Gather, layer: &str) -> Result<String> {
        let rows = self.rows(gather, layer)?;
        let Some(list) = self.list(gather.column)? else {
            // A column without lists has one row, pooled by itself.
            return Ok(rows);
        };
        let weights = self.weights(gather.column)?;
        self.emitter.enter(id, layer);
        let e = &mut self.emitter;
        Ok(match gather.pooling {
            None => list.weighted(e, &rows, &weights),
            Some(pooling @ (Pooling::Sum | Pooling::Mean | Pooling::Sqrtn | Pooling::Max)) => {
                list.pool(e, &rows, &weights, gather.dim, pooling)
            }
        })
    }

    /// Whether nothing of the batch is in a node's inputs.
    fn is_constant(&self, id: NodeId) -> bool {
        let inputs = &self.graph.node(id).inputs;
        inputs.iter().all(|&input| matches!(self.graph.shape(input).rows, Dim::Const(_)))
    }

    fn same(&mut self, id: NodeId, x: &str) -> String {
        let layer = self.graph.node(id).name.clone();
        self.emitter.enter(id, &layer);
        self.emitter.op("Identity", &[x], vec![])
    }

    fn side_by_side(&mut self, parts: &[String]) -> String {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.emitter.op("Concat", &parts, vec![AttributeProto::int("axis", 1)])
    }

    /// A reduction over one axis, which stays as one of length one.
    fn over(&mut self, op_type: &str, x: &str, axis: i64) -> String {
        let axis = self.emitter.int(axis);
        self.emitter.op(op_type, &[x, &axis], vec![AttributeProto::int("keepdims", 1)])
    }

    fn unary(&mut self, unary: Unary, x: &str) -> String {
        let e = &mut self.emitter;
        match unary {
            Unary::Relu => e.op("Relu", &[x], vec![]),
            Unary::LeakyRelu { slope } => {
                e.op("LeakyRelu", &[x], vec![AttributeProto::float("alpha", slope)])
            }
            Unary::Sigmoid => e.op("Sigmoid", &[x], vec![]),
            Unary::Tanh => e.op("Tanh", &[x], vec![]),
            Unary::Softplus => e.op("Softplus", &[x], vec![]),
            Unary::Square => e.op("Mul", &[x, x], vec![]),
            Unary::Sqrt => e.op("Sqrt", &[x], vec![]),
            Unary::Exp => e.op("Exp", &[x], vec![]),
            Unary::Ln => e.op("Log", &[x], vec![]),
            Unary::Scale { by } => {
                let by = e.float(by);
                e.op("Mul", &[x, &by], vec![])
            }
            Unary::Offset { by } => {
                let by = e.float(by);
                e.op("Add", &[x, &by], vec![])
            }
            Unary::Silu => {
                let share = e.op("Sigmoid", &[x], vec![]);
                e.op("Mul", &[x, &share], vec![])
            }
            Unary::Gelu => {
                let (scale, cube) = (e.float(GELU_SCALE), e.float(GELU_CUBE));
                let (half, one) = (e.float(0.5), e.float(1.0));
                let square = e.op("Mul", &[x, x], vec![]);
                let third = e.op("Mul", &[&square, x], vec![]);
                let third = e.op("Mul", &[&third, &cube], vec![]);
                let inner = e.op("Add", &[x, &third], vec![]);
                let inner = e.op("Mul", &[&inner, &scale], vec![]);
                let tanh = e.op("Tanh", &[&inner], vec![]);
                let share = e.op("Add", &[&tanh, &one], vec![]);
                let share = e.op("Mul", &[&share, &half], vec![]);
                e.op("Mul", &[x, &share], vec![])
            }
        }
    }

    fn binary(&mut self, binary: Binary, a: &str, b: &str) -> String {
        let op_type = match binary {
            Binary::Add => "Add",
            Binary::Sub => "Sub",
            Binary::Mul => "Mul",
            Binary::Div => "Div",
            Binary::SafeDiv => return divide_or_zero(&mut self.emitter, a, b),
        };
        self.emitter.op(op_type, &[a, b], vec![])
    }

    /// `a·x + b` with what the running statistics come to.
    fn batch_norm(
        &mut self,
        eps: f32,
        x: &str,
        stats: &str,
        scale: &str,
        shift: &str,
        cols: usize,
    ) -> String {
        let e = &mut self.emitter;
        let axis = e.int(1);
        let (start, middle, end) = (e.int(0), e.int(cols as i64), e.int(2 * cols as i64));
        let mean = e.op("Slice", &[stats, &start, &middle, &axis], vec![]);
        let variance = e.op("Slice", &[stats, &middle, &end, &axis], vec![]);
        let eps = e.float(eps);
        let variance = e.op("Add", &[&variance, &eps], vec![]);
        let deviation = e.op("Sqrt", &[&variance], vec![]);
        let factor = e.op("Div", &[scale, &deviation], vec![]);
        let moved = e.op("Mul", &[&mean, &factor], vec![]);
        let summand = e.op("Sub", &[shift, &moved], vec![]);
        let scaled = e.op("Mul", &[x, &factor], vec![]);
        e.op("Add", &[&scaled, &summand], vec![])
    }

    fn layer_norm(&mut self, eps: f32, x: &str, scale: &str, shift: &str) -> String {
        let mean = self.over("ReduceMean", x, 1);
        let centred = self.emitter.op("Sub", &[x, &mean], vec![]);
        let squares = self.emitter.op("Mul", &[&centred, &centred], vec![]);
        let variance = self.over("ReduceMean", &squares, 1);
        let e = &mut self.emitter;
        let eps = e.float(eps);
        let variance = e.op("Add", &[&variance, &eps], vec![]);
        let deviation = e.op("Sqrt", &[&variance], vec![]);
        let normal = e.op("Div", &[&centred, &deviation], vec![]);
        let scaled = e.op("Mul", &[&normal, scale], vec![]);
        e.op("Add", &[&scaled, shift], vec![])
    }

    /// Fields as an axis of their own: `[rows, fields, dim]`.
    fn fields(&mut self, x: &str, dim: usize, cols: usize) -> String {
        // 0: as many rows as there are.
        let shape = self.emitter.ints(&[0, (cols / dim) as i64, dim as i64]);
        self.emitter.op("Reshape", &[x, &shape], vec![])
    }

    /// `½ Σ ((Σ v)² − Σ v²)`.
    fn fm(&mut self, x: &str, dim: usize, cols: usize) -> String {
        let fields = self.fields(x, dim, cols);
        let e = &mut self.emitter;
        let axis = e.int(1);
        let flat = |name| vec![AttributeProto::int(name, 0)];
        let sum = e.op("ReduceSum", &[&fields, &axis], flat("keepdims"));
        let sum = e.op("Mul", &[&sum, &sum], vec![]);
        let squares = e.op("Mul", &[&fields, &fields], vec![]);
        let squares = e.op("ReduceSum", &[&squares, &axis], flat("keepdims"));
        let pairs = e.op("Sub", &[&sum, &squares], vec![]);
        let total = self.over("ReduceSum", &pairs, 1);
        let half = self.emitter.float(0.5);
        self.emitter.op("Mul", &[&total, &half], vec![])
    }

    /// The products of all fields with each other, of which the pairs `(i, j)`, `j < i`, are taken.
    fn dots(&mut self, x: &str, dim: usize, cols: usize) -> String {
        let count = cols / dim;
        let fields = self.fields(x, dim, cols);
        let e = &mut self.emitter;
        let turned = e.op("Transpose", &[&fields], vec![AttributeProto::ints("perm", &[0, 2, 1])]);
        let products = e.op("MatMul", &[&fields, &turned], vec![]);
        let shape = e.ints(&[0, (count * count) as i64]);
        let flat = e.op("Reshape", &[&products, &shape], vec![]);
        let pairs = (0..count).flat_map(|i| (0..i).map(move |j| (i * count + j) as i64));
        let pairs = e.ints(&pairs.collect::<Vec<_>>());
        e.op("Gather", &[&flat, &pairs], vec![AttributeProto::int("axis", 1)])
    }
}
