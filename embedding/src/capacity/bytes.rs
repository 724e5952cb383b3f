//! The memory that a table would take with rows of another width or with another number of rows.

use serde::Serialize;

use zillion_rows::TableSpec;
use zillion_rows::dtype::Dtype;

/// The row widths that are compared with the width of the table.
const DIMS: [usize; 8] = [4, 8, 16, 32, 64, 128, 256, 512];

/// The number type of the weights in an estimate of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// The type `f32`, with four bytes for each weight.
    F32,
    /// A type with two bytes for each weight, f16 or bf16. The numbers of the optimizer state still
    /// have four bytes.
    Half,
}

/// Returns the widths of the vector segment to compare: the width of the table, the next two
/// smaller widths, and the next two larger widths. The list is empty for a table without a vector
/// segment.
pub fn dims(spec: &TableSpec) -> Vec<usize> {
    let Some(own) = vector(spec) else { return Vec::new() };
    let near = |&dim: &usize| dim * 4 >= own && dim <= own * 4;
    let mut dims: Vec<usize> = DIMS.into_iter().filter(near).chain([own]).collect();
    dims.sort_unstable();
    dims.dedup();
    dims
}

/// Returns the bytes of memory that the table takes with `rows` rows. If the table has a vector
/// segment, the segment has `dim` floats.
pub fn memory(
    spec: &TableSpec,
    dim: Option<usize>,
    numbers: Numbers,
    rows: u64,
    shards: usize,
) -> u64 {
    let mut spec = spec.clone();
    let vector = spec.segments.iter_mut().find(|segment| segment.name == "vector");
    if let (Some(dim), Some(vector)) = (dim, vector) {
        vector.dim = dim;
    }
    spec.dtype = match numbers {
        Numbers::F32 => Dtype::F32,
        Numbers::Half => Dtype::Bf16,
    };
    spec.memory(rows, shards)
}

fn vector(spec: &TableSpec) -> Option<usize> {
    spec.segments.iter().find(|segment| segment.name == "vector").map(|segment| segment.dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::{segment, table};
    use zillion_rows::OptimizerSpec;

    #[test]
    fn wider_rows_and_wider_numbers_take_more() {
        let sgd = OptimizerSpec::Sgd { lr: 0.1 };
        let spec = table(
            "ids",
            false,
            vec![segment("vector", 16, sgd, 0.0), segment("linear", 1, sgd, 0.0)],
        );
        assert_eq!(dims(&spec), [4, 8, 16, 32, 64]);
        let rows = 1 << 20;
        let of = |dim, numbers| memory(&spec, Some(dim), numbers, rows, 1);
        assert_eq!(of(16, Numbers::F32), spec.memory(rows, 1));
        // 17 floats take 80 bytes for each row, and 48 bytes in half precision.
        assert_eq!(of(16, Numbers::F32) - of(16, Numbers::Half), 32 * rows);
        for pair in dims(&spec).windows(2) {
            assert!(of(pair[0], Numbers::F32) < of(pair[1], Numbers::F32));
            assert!(of(pair[0], Numbers::Half) < of(pair[1], Numbers::Half));
        }
        let odd = table("ids", false, vec![segment("vector", 11, sgd, 0.0)]);
        assert_eq!(dims(&odd), [4, 8, 11, 16, 32]);
        assert!(dims(&table("ids", false, vec![segment("linear", 1, sgd, 0.0)])).is_empty());
    }
}
