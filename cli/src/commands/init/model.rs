//! The text of the model, its tables and its training in a drafted job.

use std::fmt::Write as _;

use zillion_datatools::{DraftedModel, Recipe};

/// The kind of values that a drafted job predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    /// A label of 0 and 1.
    Binary,
    /// A label with classes.
    Classes,
    /// Amounts, with the distance from which an error counts linearly, if there is one.
    Amount(Option<f64>),
}

/// Returns the sections `[tables."*"]`, `[model]` and `[train]`. `validates` says whether the job
/// has validation rows, which decide when the training stops.
pub(super) fn text(recipe: &Recipe, validates: bool, target: Target) -> String {
    let Recipe { model, dim, table_lr, dense_lr, batch_size, .. } = recipe;
    let mut text = String::from("# One table a feature; [tables.NAME] overrides these for one.\n");
    let why = if *dim > 8 { Recipe::PAIRS_REASON } else { Recipe::DIM_REASON };
    let _ = writeln!(text, "[tables.\"*\"]\ndim = {dim}  # {why}");
    text.push_str("initializer = { kind = \"normal\", std = 0.01 }\n");
    let rule = match recipe.by_row {
        true => format!("kind = \"rowwise_adagrad\", lr = {table_lr}"),
        false => format!("kind = \"adagrad\", lr = {table_lr}, initial_accumulator = 0.001"),
    };
    let _ = writeln!(text, "# {}\noptimizer = {{ {rule} }}", recipe.table_reason());
    let kinds = DraftedModel::ALL.map(DraftedModel::name).join(" ");
    let _ = writeln!(
        text,
        "\n# {kinds}: `zillion init --model KIND` drafts the rates of another kind.\n\
         [model]\nkind = \"{model}\""
    );
    if *model == DraftedModel::Dlrm {
        // Products of two vectors near zero are too small to learn from.
        text.push_str(
            "interaction = \"cat\"  # \"dot\", the products alone, learns slowly from zero\n",
        );
    }
    if let Some(deep) = &recipe.deep {
        let _ = writeln!(text, "hidden = {:?}", deep.hidden);
        if deep.dropout > 0.0 {
            let _ = writeln!(text, "dropout = {}  # {}", deep.dropout, Recipe::DROPOUT_REASON);
        }
    }
    let epochs = recipe.epochs(validates);
    let most = if validates { "at most: the validation ends the training" } else { Recipe::BLIND };
    let _ = writeln!(text, "\n[train]\nepochs = {epochs}  # {most}");
    let _ = writeln!(text, "batch_size = {batch_size}  # {}", Recipe::BATCH_REASON);
    let _ = writeln!(
        text,
        "optimizer = {{ kind = \"adam\", lr = {dense_lr} }}  # {}",
        recipe.dense_reason()
    );
    if let Target::Amount(Some(delta)) = target {
        let _ = writeln!(
            text,
            "loss = {{ \"*\" = {{ kind = \"huber\", delta = {} }} }}  # squared errors of far values would decide all",
            toml::Value::from(delta)
        );
    }
    if validates {
        // The AUC of a few rows, or of classes that are easy to tell apart, is near 1 while their
        // probabilities are still far from right.
        let (named, metric) = match target {
            Target::Binary if recipe.by_log_loss => ("log loss", ", metric = \"logloss\""),
            Target::Classes => ("log loss", ", metric = \"logloss\""),
            Target::Binary => ("AUC", ""),
            Target::Amount(None) => ("rmse", ", metric = \"rmse\""),
            Target::Amount(Some(_)) => ("mae", ", metric = \"mae\""),
        };
        let _ = writeln!(
            text,
            "# If the validation {named} gets no better, the rates fall to {} of what they were; {} \
             misses in a row\n# stop the training, and the best epoch is tested.\n\
             plateau = {{ factor = {}, patience = {}{metric} }}",
            recipe.factor, recipe.patience, recipe.factor, recipe.patience
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_every_kind_are_valid_and_have_its_own_keys() {
        for kind in DraftedModel::ALL {
            for (validates, target) in [
                (false, Target::Binary),
                (true, Target::Binary),
                (true, Target::Classes),
                (true, Target::Amount(None)),
                (false, Target::Amount(Some(2.5))),
            ] {
                let is_huber = matches!(target, Target::Amount(Some(_)));
                let job: toml::Table =
                    text(&Recipe::new(kind, 5000, true), validates, target).parse().expect("TOML");
                let has = |section: &str, key: &str| job[section].get(key).is_some();
                assert_eq!(job["model"]["kind"].as_str(), Some(kind.name()));
                assert_eq!(has("model", "hidden"), kind.is_deep(), "{kind}");
                assert_eq!(has("model", "dropout"), kind.is_deep(), "{kind}");
                assert_eq!(has("model", "interaction"), kind == DraftedModel::Dlrm, "{kind}");
                assert_eq!(has("train", "plateau"), validates, "{kind}");
                assert_eq!(has("train", "loss"), is_huber, "{kind}");
            }
        }
    }
}
