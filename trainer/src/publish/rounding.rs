//! The checks of versions with fewer bits than training: the bounds of a server that computes dense
//! layers in fewer bits, and weights that the number type of the rows cannot hold.

use zillion_feature::RawColumns;
use zillion_nn::DenseType;
use zillion_registry::VersionId;
use zillion_rows::layer::{LayerManifest, Unthrottled};
use zillion_scorer::{Error as ScorerError, ParityRows};

use crate::error::{Error, Result};

/// Checks that a server would load a version with dense layers in `dense`. `exact` and `rounded`
/// are the parity rows with their scores in f32 and in that type, and `tasks` has the names of the
/// scores.
///
/// # Errors
/// Returns an error that names the worst score if the rounding changes scores too much.
pub(super) fn check_rounding(
    dense: DenseType,
    tasks: &[String],
    exact: &ParityRows,
    rounded: &ParityRows,
) -> Result<()> {
    let mut row = 0;
    let score = |_: &RawColumns<'_>| {
        let of = |scores: &Vec<f32>| scores.get(row).copied().into_iter().collect();
        let scores = rounded.logits.iter().map(of).collect();
        row += 1;
        Ok(scores)
    };
    match exact.replay(VersionId(0), tasks, dense, score, &mut Unthrottled) {
        // The version does not have a number yet.
        Err(ScorerError::Rounding { label, row, found, wanted, mean, most, most_mean, .. }) => {
            Err(Error::Unsupported(format!(
                "a version with dense layers in {dense} is not published, because servers would \
                 refuse it: parity row {row} of label `{label}` has the score {found} in {dense} \
                 and {wanted} in f32, and scores differ by {mean} in the mean; a row may differ by \
                 {most} and the mean by {most_mean} (relative to scores above 1); set \
                 `publish.dense` to \"f32\", or train with inputs of similar magnitudes"
            )))
        }
        other => Ok(other?),
    }
}

/// Logs a warning for each table with weights that f16 cannot hold.
pub(super) fn warn_of_clamped(layer: &LayerManifest) {
    for table in layer.tables.iter().filter(|table| table.clamped > 0) {
        tracing::warn!(
            table = table.table,
            weights = table.clamped,
            "weights beyond 65504 are published as 65504, the largest number of f16; publish bf16 \
             or int8, or limit the weights by the table's `bounds`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(scores: [f32; 2]) -> ParityRows {
        ParityRows::new(2, &RawColumns::default(), vec![scores.to_vec()])
    }

    #[test]
    fn a_version_that_servers_would_refuse_is_not_published() {
        let tasks = ["click".to_owned()];
        let check = |rounded: [f32; 2]| {
            check_rounding(DenseType::Int8, &tasks, &rows([1.0, -2.0]), &rows(rounded))
        };
        check([1.01, -2.01]).unwrap();
        let said = check([1.01, -4.0]).unwrap_err().to_string();
        for part in ["int8", "row 1", "`click`", "-4", "-2", "publish.dense"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(check([f32::NAN, -2.0]).is_err());
    }
}
