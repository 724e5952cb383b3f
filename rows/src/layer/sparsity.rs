//! The share of zeros in the weights of a layer, and the bytes that leaving them out has saved.

use std::fmt;

use serde::Serialize;

use super::sparse::sparse_bytes;
use super::weights::WeightFormat;
use super::{LayerManifest, LayerPart};

/// The weights of the parts of a layer that leave out zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sparsity {
    /// The number of weights of all rows, including the weights of tombstones.
    pub weights: u64,
    /// The number of these weights that are zero and left out. Zeros in parts that store all
    /// weights are not counted.
    pub zeros: u64,
    /// The number of bytes of all files of the layer.
    pub bytes: u64,
    /// The number of bytes that the files would have if they stored all weights.
    pub whole_bytes: u64,
}

impl Sparsity {
    /// Returns the share of the weights that are zero and left out.
    pub fn share(&self) -> f64 {
        self.zeros as f64 / self.weights.max(1) as f64
    }
}

impl fmt::Display for Sparsity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, zeros, bytes, whole_bytes } = self;
        write!(
            f,
            "{zeros} of {weights} weights of rows are zero ({:.1} %): {bytes} bytes instead of \
             {whole_bytes}",
            self.share() * 100.0
        )
    }
}

impl LayerManifest {
    /// Returns the zeros that the parts of the layer leave out. Returns `None` if every part stores
    /// all weights.
    pub fn sparsity(&self) -> Option<Sparsity> {
        let mut sum = Sparsity::default();
        let mut saved = 0u64;
        for table in &self.tables {
            let mut add = |parts: &[LayerPart], segments: &[(String, usize)]| {
                let format = WeightFormat::new(table.row_type, segments);
                for part in parts {
                    let weights = part.rows.saturating_mul(format.width as u64);
                    sum.weights = sum.weights.saturating_add(weights);
                    let Some(stored) = part.stored else { continue };
                    sum.zeros = sum.zeros.saturating_add(weights.saturating_sub(stored));
                    let whole = part.rows.saturating_mul(format.row_bytes() as u64);
                    let own = sparse_bytes(&format, part.rows, stored);
                    saved = saved.saturating_add(whole.saturating_sub(own));
                }
            };
            add(&table.parts, &table.segments);
            table.narrow.iter().for_each(|narrow| add(&narrow.parts, &narrow.segments));
        }
        sum.bytes = self.files().map(|file| file.bytes).fold(0, u64::saturating_add);
        sum.whole_bytes = sum.bytes.saturating_add(saved);
        let is_sparse = |part: &LayerPart| part.stored.is_some();
        self.tables.iter().any(|table| table.all_parts().any(is_sparse)).then_some(sum)
    }
}
