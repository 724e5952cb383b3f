//! The settings with which a first model learns, by its kind and by the size of the data.
//!
//! A first job is trained as it is drafted, so its rates must suit the data without a search. The
//! numbers were measured on the sets of `bench/drafts`; docs/design/training.md has the reasons.

use std::fmt;

/// The number of rows from which data counts as large: ids have enough rows to learn faster, and
/// layers enough to be wider.
const LARGE: u64 = 100_000;
/// The number of rows up to which the log loss tells better than the AUC which epoch is the best: a
/// tenth of them has few rows of the rarer label, whose order says little.
const FEW_TO_RANK: u64 = 15_000;
/// The largest number of features of data that consists of pairs of ids.
const MOST_OF_PAIRS: usize = 6;
/// The least number of values of an id that pairs with others.
const LEAST_OF_PAIRED: u64 = 200;
/// The least number of rows of each value of such an id, on average.
const LEAST_ROWS_OF_PAIRED: u64 = 5;

/// The kinds of models that can be drafted from one file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftedModel {
    /// Logistic regression over ids and numbers.
    Lr,
    /// A factorisation machine over vectors of ids.
    Fm,
    /// A multilayer perceptron over vectors and numbers.
    Dnn,
    /// A linear part beside a multilayer perceptron.
    WideDeep,
    /// A factorisation machine beside a multilayer perceptron.
    DeepFm,
    /// A deep & cross network with vector crosses.
    Dcn,
    /// A deep & cross network with matrix crosses.
    DcnV2,
    /// Two multilayer perceptrons with dot products of vectors between them.
    Dlrm,
}

impl DraftedModel {
    /// The kinds, in the order of the documents.
    pub const ALL: [Self; 8] = [
        Self::Lr,
        Self::Fm,
        Self::Dnn,
        Self::WideDeep,
        Self::DeepFm,
        Self::Dcn,
        Self::DcnV2,
        Self::Dlrm,
    ];

    /// Returns the name of the kind in a job.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lr => "lr",
            Self::Fm => "fm",
            Self::Dnn => "dnn",
            Self::WideDeep => "wide_deep",
            Self::DeepFm => "deepfm",
            Self::Dcn => "dcn",
            Self::DcnV2 => "dcnv2",
            Self::Dlrm => "dlrm",
        }
    }

    /// Returns the kind that suits a number of features with vectors.
    pub fn for_vectors(vectors: usize) -> Self {
        // Interactions between vectors need at least two vectors, and a wide part needs one.
        match vectors {
            0 => Self::Dnn,
            1 => Self::WideDeep,
            _ => Self::DeepFm,
        }
    }

    /// Returns whether the model has hidden layers.
    pub fn is_deep(self) -> bool {
        !matches!(self, Self::Lr | Self::Fm)
    }
}

impl fmt::Display for DraftedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl DraftedModel {
    /// Returns the kind with this name in a job, or `None` if no such kind can be drafted.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether the model pairs vectors, so that numbers alone are not enough.
    pub fn needs_vectors(self) -> bool {
        matches!(self, Self::Fm | Self::DeepFm | Self::Dlrm)
    }
}

/// The settings of a drafted model and of its training.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The kind of the model.
    pub model: DraftedModel,
    /// The number of floats of each vector.
    pub dim: usize,
    /// The learning rate of the tables, which learn by Adagrad.
    pub table_lr: f64,
    /// Whether the vectors learn with one rate for a whole row instead of one for each float.
    pub by_row: bool,
    /// The settings of the hidden layers, or `None` if the model has none.
    pub deep: Option<DeepRecipe>,
    /// The learning rate of the dense parameters, which learn by Adam.
    pub dense_lr: f64,
    /// The number of rows in a batch.
    pub batch_size: u64,
    /// The factor of all rates after an epoch that the validation finds no better.
    pub factor: f64,
    /// The number of such epochs in a row that end the training.
    pub patience: u32,
    /// Whether the log loss of a label of 0 and 1 judges the epochs, instead of the AUC.
    pub by_log_loss: bool,
}

/// The settings of hidden layers.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepRecipe {
    /// The units of the layers.
    pub hidden: Vec<usize>,
    /// The share of units that are dropped in training.
    pub dropout: f64,
}

impl Recipe {
    /// The reason for the length of vectors.
    pub const DIM_REASON: &str =
        "enough to begin with; 16 or 32 where users and items pair strongly";
    /// The reason for the length of vectors in data that consists of pairs of ids.
    pub const PAIRS_REASON: &str = "longer than otherwise, because little but pairs of ids tells";
    /// The reason for the dropout.
    pub const DROPOUT_REASON: &str = "without it, small data is learned by heart in a few epochs";
    /// The reason for the size of a batch.
    pub const BATCH_REASON: &str =
        "a hundredth of the rows, from 32 to 1024; with 4096, large files train faster";
    /// The reason for the number of epochs without validation rows.
    pub const BLIND: &str = "few, because no validation would end the training";

    /// Returns the settings for a kind of model and a number of training rows. For files that are
    /// longer than what was examined, `rows` may be the number of examined rows. `pairs` says
    /// whether the data consists of [pairs of ids](Recipe::is_of_pairs).
    pub fn new(model: DraftedModel, rows: u64, pairs: bool) -> Self {
        let is_large = rows >= LARGE;
        let hidden = if is_large { vec![128, 64] } else { vec![64, 32] };
        let deep = DeepRecipe { hidden, dropout: 0.3 };
        let pairs = pairs && model.needs_vectors() && model.is_deep();
        let by_row = pairs && !is_large;
        let (beside_layers, of_layers) = if is_large { (0.05, 0.003) } else { (0.01, 0.001) };
        Self {
            model,
            dim: if pairs { 16 } else { 8 },
            by_row,
            table_lr: match model {
                _ if by_row => 0.05,
                DraftedModel::Lr => 0.05,
                DraftedModel::Fm => 0.02,
                _ => beside_layers,
            },
            deep: model.is_deep().then_some(deep),
            dense_lr: if model.is_deep() { of_layers } else { 0.01 },
            batch_size: (rows / 100).clamp(32, 1024).next_power_of_two(),
            factor: 0.5,
            patience: 3,
            by_log_loss: rows < FEW_TO_RANK,
        }
    }

    /// Returns whether data consists of pairs of ids, such as users and items: it has few features,
    /// and two ids or more have many values that repeat. `ids` has the number of values of each id
    /// that occurs once a row.
    pub fn is_of_pairs(features: usize, ids: &[u64], rows: u64) -> bool {
        let pairs = |&&values: &&u64| {
            values >= LEAST_OF_PAIRED && rows >= LEAST_ROWS_OF_PAIRED.saturating_mul(values)
        };
        features <= MOST_OF_PAIRS && ids.iter().filter(pairs).count() >= 2
    }

    /// Returns the number of epochs. `validates` says whether the job has validation rows.
    pub fn epochs(&self, validates: bool) -> u32 {
        if validates { 50 } else { 5 }
    }

    /// Returns the reason for the learning rate of the tables, as one line.
    pub fn table_reason(&self) -> &'static str {
        if self.by_row {
            "One rate for a whole vector: what pairs tell has no other way into the model."
        } else if self.model.is_deep() {
            "Beside hidden layers 0.01, from 100,000 rows 0.05: faster ones learn rare ids by heart."
        } else {
            "Only the tables learn ids here, so they learn faster than beside hidden layers."
        }
    }

    /// Returns the reason for the learning rate of the dense parameters, as one line.
    pub fn dense_reason(&self) -> &'static str {
        match self.model.is_deep() {
            true => "of layers; 0.003 from 100,000 rows, 0.001 below",
            false => "of weights of numbers, which nothing else learns",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_a_hundredth_of_the_rows_within_bounds() {
        for (rows, batch) in [(1, 32), (3_000, 32), (30_000, 512), (200_000, 1024), (1 << 30, 1024)]
        {
            assert_eq!(Recipe::new(DraftedModel::DeepFm, rows, false).batch_size, batch, "{rows}");
        }
    }

    #[test]
    fn models_without_hidden_layers_have_no_settings_of_them_and_faster_rates() {
        let [shallow, deep] =
            [DraftedModel::Fm, DraftedModel::Dnn].map(|m| Recipe::new(m, 50_000, true));
        assert_eq!(shallow.deep, None);
        assert!(deep.deep.is_some());
        assert!(shallow.table_lr >= deep.table_lr && shallow.dense_lr > deep.dense_lr);
    }

    #[test]
    fn large_data_has_faster_rates_and_wider_layers() {
        let [small, large] =
            [LARGE - 1, LARGE].map(|rows| Recipe::new(DraftedModel::DeepFm, rows, false));
        assert!(large.table_lr > small.table_lr && large.dense_lr > small.dense_lr);
        let width = |recipe: Recipe| recipe.deep.map_or(0, |deep| deep.hidden[0]);
        assert!(width(large) > width(small));
    }

    #[test]
    fn pairs_of_ids_have_longer_vectors() {
        assert!(Recipe::is_of_pairs(4, &[2_000, 500, 3], 60_000));
        assert!(!Recipe::is_of_pairs(20, &[2_000, 500], 60_000), "many other features");
        assert!(!Recipe::is_of_pairs(4, &[2_000, 50], 60_000), "one id with many values");
        assert!(!Recipe::is_of_pairs(4, &[40_000, 30_000], 60_000), "ids that hardly repeat");
        let [pairs, other] = [true, false].map(|p| Recipe::new(DraftedModel::DeepFm, 60_000, p));
        assert!(pairs.dim > other.dim && pairs.table_lr > other.table_lr);
        assert!(pairs.by_row && !other.by_row);
        // Many rows move vectors far enough with a rate for each float.
        assert!(!Recipe::new(DraftedModel::DeepFm, LARGE, true).by_row);
        assert!(!Recipe::new(DraftedModel::Fm, 60_000, true).by_row);
    }

    #[test]
    fn few_rows_are_judged_by_their_log_loss() {
        let by_log_loss = |rows| Recipe::new(DraftedModel::DeepFm, rows, false).by_log_loss;
        assert!(by_log_loss(3_000) && !by_log_loss(100_000));
    }

    #[test]
    fn names_are_those_of_jobs() {
        for kind in DraftedModel::ALL {
            assert_eq!(DraftedModel::from_name(kind.name()), Some(kind));
        }
        assert_eq!(DraftedModel::from_name("din"), None);
    }
}
