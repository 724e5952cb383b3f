//! Functions of one, two or three elements, and sums of several values.

use super::functions::{with_binary, with_unary, with_unary_grad};
use super::kernel::{map1, map2};
use super::*;

/// The functions of the elements of one to three values, and sums of several values.
pub(super) struct Elementwise;

impl OpGroup for Elementwise {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::Unary(_), [x]) => Ok(*x),
            (Op::UnaryGrad(_), [g, x]) if g == x => Ok(*x),
            (Op::Binary(_), [a, b]) => broadcast(*a, *b),
            (Op::MulAdd, [a, b, c]) => {
                for other in [b, c] {
                    if broadcast(*a, *other)? != *a {
                        return Err(format!(
                            "{other} does not broadcast to {a}; give inputs with the same rows \
                             and columns"
                        ));
                    }
                }
                Ok(*a)
            }
            (Op::AddN, [first, rest @ ..]) if rest.iter().all(|s| s == first) => Ok(*first),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let rows = tile.rows;
        match (op, inputs) {
            (Op::Unary(function), &[x]) => with_unary!(*function, map1(rows, x, &mut out)),
            (Op::UnaryGrad(function), &[g, x]) => {
                with_unary_grad!(*function, map2(rows, g, x, &mut out));
            }
            (Op::Binary(function), &[a, b]) => with_binary!(*function, map2(rows, a, b, &mut out)),
            (Op::MulAdd, &[a, b, c]) => mul_add(rows, a, b, c, &mut out),
            (Op::AddN, terms) => add_n(rows, terms, &mut out),
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::Unary(Unary::Offset { .. }), &[x]) => cx.add_gradient(x, g),
            (Op::Unary(Unary::Scale { by }), &[x]) => {
                cx.push_gradient(id, x, Op::Unary(Unary::Scale { by: *by }), &[g])?
            }
            (Op::Unary(function), &[x]) => {
                let point = if function.uses_result() { id } else { x };
                cx.push_gradient(id, x, Op::UnaryGrad(*function), &[g, point])?;
            }
            (Op::Binary(function), &[a, b]) => binary_gradient(cx, id, *function, a, b, g)?,
            (Op::MulAdd, &[a, b, c]) => {
                product_gradient(cx, id, a, b, g)?;
                cx.add_reduced_gradient(id, c, g)?;
            }
            (Op::AddN, terms) => terms.iter().for_each(|&term| cx.add_gradient(term, g)),
            (Op::UnaryGrad(_), _) => return Err(cx.refuse_gradient(id)),
            _ => {}
        }
        Ok(())
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Unary(function) | Op::UnaryGrad(function) => match function {
                Unary::LeakyRelu { slope } => write!(f, "[{slope}]"),
                Unary::Scale { by } | Unary::Offset { by } => write!(f, "[{by}]"),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn chaining(_op: &Op) -> Chaining {
        Chaining::Rows
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        let out = sizes.out();
        match op {
            Op::UnaryGrad(_) | Op::MulAdd => 2 * out,
            Op::AddN => out * (sizes.inputs.len() as u64).saturating_sub(1),
            _ => out,
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let e = &mut writer.emitter;
        Ok(Some(match (op, node.inputs) {
            (Op::Unary(function), [x]) => function.to_onnx(e, x),
            (Op::Binary(function), [a, b]) => function.to_onnx(e, a, b),
            (Op::MulAdd, [a, b, c]) => {
                let product = e.op("Mul", &[a, b], vec![]);
                e.op("Add", &[&product, c], vec![])
            }
            (Op::AddN, terms) => e.op("Sum", terms, vec![]),
            _ => return Ok(None),
        }))
    }
}

/// Returns the shape of the result of two operands. One operand may have a single row or column,
/// which is broadcast.
pub(super) fn broadcast(a: Shape, b: Shape) -> ShapeResult {
    let rows = match (a.rows, b.rows) {
        (a, b) if a == b => a,
        (Dim::Const(1), rows) | (rows, Dim::Const(1)) => rows,
        _ => return Err(format!("the rows of {a} and {b} differ; give inputs with the same rows")),
    };
    let cols = match (a.cols, b.cols) {
        (a, b) if a == b => a,
        (1, cols) | (cols, 1) => cols,
        _ => {
            return Err(format!(
                "the columns of {a} and {b} differ; give inputs with the same number of columns"
            ));
        }
    };
    Ok(Shape { rows, cols })
}

fn mul_add(rows: usize, a: View<'_>, b: View<'_>, c: View<'_>, out: &mut ViewMut<'_>) {
    #[inline(always)]
    fn line(
        a: &[f32],
        b: impl Iterator<Item = f32>,
        c: impl Iterator<Item = f32>,
        out: &mut [f32],
    ) {
        for (((o, &a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
            *o = a * b + c;
        }
    }
    let wide = a.cols > 1;
    simd!({
        for i in 0..rows {
            let (a, b, c, out) = (a.row(i), b.row(i), c.row(i), out.row(i));
            match (wide && b.len() == 1, wide && c.len() == 1) {
                (false, false) => line(a, b.iter().copied(), c.iter().copied(), out),
                (true, false) => line(a, std::iter::repeat(b[0]), c.iter().copied(), out),
                (false, true) => line(a, b.iter().copied(), std::iter::repeat(c[0]), out),
                (true, true) => line(a, std::iter::repeat(b[0]), std::iter::repeat(c[0]), out),
            }
        }
    })
}

fn add_n(rows: usize, terms: &[View<'_>], out: &mut ViewMut<'_>) {
    match *terms {
        [a] => simd!({ map1(rows, a, out, |a| a) }),
        [a, b, ref rest @ ..] => simd!({
            map2(rows, a, b, out, |a, b| a + b);
            for term in rest {
                for i in 0..rows {
                    kernel::add(out.row(i), term.row(i));
                }
            }
        }),
        [] => {}
    }
}

/// Appends the gradients of both factors of a product.
fn product_gradient(cx: &mut Backward, id: NodeId, a: NodeId, b: NodeId, g: NodeId) -> Result<()> {
    for (of, by) in [(a, b), (b, a)] {
        if !cx.needs_gradient(of) {
            continue;
        }
        let (wanted, full) = (cx.shape(of), cx.shape(g));
        let narrow = wanted.cols == 1 && full.cols > 1;
        if narrow && wanted.rows == full.rows && cx.shape(by) == full {
            // One pass computes the product and its sum over the columns.
            cx.push_gradient(id, of, Op::RowDot, &[g, by])?;
        } else {
            let gx = cx.push(id, "grad", Op::Binary(Binary::Mul), &[g, by])?;
            cx.add_reduced_gradient(id, of, gx)?;
        }
    }
    Ok(())
}

fn binary_gradient(
    cx: &mut Backward,
    id: NodeId,
    function: Binary,
    a: NodeId,
    b: NodeId,
    g: NodeId,
) -> Result<()> {
    match function {
        Binary::Mul => product_gradient(cx, id, a, b, g)?,
        Binary::Add => {
            cx.add_reduced_gradient(id, a, g)?;
            cx.add_reduced_gradient(id, b, g)?;
        }
        Binary::Sub => {
            cx.add_reduced_gradient(id, a, g)?;
            if cx.needs_gradient(b) {
                let gb = cx.reduce_to(id, g, b)?;
                cx.push_gradient(id, b, Op::Unary(Unary::Scale { by: -1.0 }), &[gb])?;
            }
        }
        Binary::Div | Binary::SafeDiv => {
            if !cx.needs_gradient(a) && !cx.needs_gradient(b) {
                return Ok(());
            }
            let quotient = cx.push(id, "grad", Op::Binary(function), &[g, b])?;
            cx.add_reduced_gradient(id, a, quotient)?;
            if cx.needs_gradient(b) {
                let gb = cx.push(id, "grad", Op::Binary(Binary::Mul), &[quotient, id])?;
                let gb = cx.push(id, "grad", Op::Unary(Unary::Scale { by: -1.0 }), &[gb])?;
                cx.add_reduced_gradient(id, b, gb)?;
            }
        }
    }
    Ok(())
}
