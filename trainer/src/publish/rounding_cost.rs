//! The cost of rounded rows: the AUC before and after the rounding.

use std::fmt;

use serde::Serialize;
use zillion_rows::RowType;

/// The AUC of labelled rows with the rows of training, and with the rows that a version has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundingCost {
    /// The number type of the rows of the version.
    pub row_type: RowType,
    /// The AUC with the rows of training.
    pub whole: f64,
    /// The AUC with the rows of the version.
    pub rounded: f64,
}

impl fmt::Display for RoundingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row_type, whole, rounded } = self;
        write!(
            f,
            "{} rows: validation auc {whole:.6} before rounding, {rounded:.6} after ({:+.6})",
            row_type.name(),
            rounded - whole
        )
    }
}
