//! The nodes without inputs: the values of a batch as matrices, parameters and constants.

use super::*;
use crate::onnx::proto::TensorProto;

/// The inputs of a batch, parameters and constants.
pub(super) struct Source;

impl OpGroup for Source {
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
        if !inputs.is_empty() {
            return Err(format!("{} takes no inputs; remove them", op.name()));
        }
        let known = &graph.inputs;
        match op {
            Op::Rows { table } => match known.tables.get(*table) {
                Some(input) => Ok(Shape { rows: Dim::Unique(*table), cols: input.stride }),
                None => Err(format!("there is no table {table}; name a table of the inputs")),
            },
            Op::Numeric { columns } => match columns.iter().find(|&&c| c >= known.numeric.len()) {
                Some(column) => {
                    Err(format!("there is no numeric column {column}; name a column of the inputs"))
                }
                // The pass for shared columns splits nodes that mix shared and other columns.
                None if !columns.is_empty()
                    && columns.iter().all(|&column| graph.shared.has_numeric(column)) =>
                {
                    Ok(Shape::constant(1, columns.len()))
                }
                None if columns.iter().any(|&column| graph.shared.has_numeric(column)) => Err(
                    "some of the columns have one row for all rows; read them with another node"
                        .into(),
                ),
                None => Ok(Shape::batch(columns.len())),
            },
            Op::Label { label } | Op::Weight { label: Some(label) }
                if *label >= known.labels.len() =>
            {
                Err(format!("there is no label {label}; name a label of the inputs"))
            }
            Op::Label { .. } | Op::Weight { .. } => Ok(Shape::batch(1)),
            Op::Param { param } => match graph.params.get(param.0 as usize) {
                Some(spec) => Ok(Shape::constant(spec.rows, spec.cols)),
                None => Err(format!(
                    "there is no parameter {}; name a parameter of this graph",
                    param.0
                )),
            },
            Op::Fill { shape, .. } if shape.const_len().is_some() => Ok(*shape),
            _ => {
                Err(format!("{} is not an input; use an operation that reads an input", op.name()))
            }
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, _inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let range = tile.first_row..tile.first_row + tile.rows;
        match op {
            Op::Numeric { columns } => {
                for (j, &column) in columns.iter().enumerate() {
                    for (i, &value) in tile.inputs.numeric[column][range.clone()].iter().enumerate()
                    {
                        out.data[i * out.stride + j] = value;
                    }
                }
            }
            Op::Label { label } => {
                let values = &tile.inputs.labels[*label].values[range];
                for (i, &value) in values.iter().enumerate() {
                    out.data[i * out.stride] = value;
                }
            }
            Op::Weight { label } => {
                let mask = label.and_then(|label| tile.inputs.labels[label].mask);
                for (i, row) in range.enumerate() {
                    let weight = tile.inputs.weight.map_or(1.0, |w| w[row]);
                    let present = mask.is_none_or(|m| m[row]);
                    out.data[i * out.stride] = if present { weight } else { 0.0 };
                }
            }
            Op::Fill { value, .. } => {
                for i in 0..tile.rows {
                    out.row(i).fill(*value);
                }
            }
            _ => reject(op),
        }
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Rows { table } => write!(f, "[table {table}]"),
            Op::Numeric { columns } => write!(f, "{columns:?}"),
            Op::Label { label } | Op::Weight { label: Some(label) } => write!(f, "[label {label}]"),
            Op::Param { param } => write!(f, "[{}]", param.0),
            Op::Fill { value, .. } => write!(f, "[{value}]"),
            _ => Ok(()),
        }
    }

    fn gradient(_cx: &mut Backward, _id: NodeId, _g: NodeId) -> Result<()> {
        Ok(())
    }

    fn onnx(op: &Op, _node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let value = match op {
            // The rows of tables are passed to the ONNX model as inputs of the columns that look
            // them up.
            Op::Rows { .. } => String::new(),
            Op::Param { param } => writer.param(*param)?,
            Op::Fill { value, shape } => match shape.rows {
                Dim::Const(rows) => {
                    let shape = writer.emitter.ints(&[rows as i64, shape.cols as i64]);
                    writer.emitter.filled(&shape, TensorProto::floats("", &[1], &[*value]))
                }
                _ => return Ok(None),
            },
            Op::Numeric { columns } => {
                let parts: Vec<String> =
                    columns.iter().map(|&c| writer.number(c)).collect::<Result<_>>()?;
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                writer.concat(&parts)
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }
}
