//! The cost of a version with fewer bits than training: the AUC before and after the rounding.

use std::fmt;

use serde::Serialize;
use zillion_nn::DenseType;
use zillion_rows::RowType;

/// The name of the metric of a version that has its AUC after the rounding.
pub(crate) const AS_PUBLISHED: &str = "valid_auc_as_published";

/// The AUC of labelled rows as training scores them, and as a version does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundingCost {
    /// The number type of the rows of the version.
    pub row_type: RowType,
    /// The number type of the dense layers of the version.
    pub dense: DenseType,
    /// The AUC with the rows and the layers of training.
    pub whole: f64,
    /// The AUC with the rows and the layers of the version.
    pub rounded: f64,
}

impl fmt::Display for RoundingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row_type, dense, whole, rounded } = self;
        let rows = format!("{} rows", row_type.name());
        let layers = format!("dense layers in {dense}");
        let what = match (row_type.is_f32(), dense.is_exact()) {
            (_, true) => rows,
            (true, false) => layers,
            (false, false) => format!("{rows} and {layers}"),
        };
        write!(
            f,
            "{what}: validation auc {whole:.6} before rounding, {rounded:.6} after ({:+.6})",
            rounded - whole
        )
    }
}
