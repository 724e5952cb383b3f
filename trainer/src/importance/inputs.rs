//! The inputs of a model that are permuted: each one is a feature, or the features that read the
//! same column.

use zillion_feature::{FeatureSpec, Schema};

/// An input of a model, with its columns in a batch. All columns are permuted in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    /// The name of the feature, or the names of the features that read the same column.
    pub(super) name: String,
    pub(super) is_cross: bool,
    /// The positions of the columns in [`Batch::sparse`](zillion_feature::Batch).
    pub(super) sparse: Vec<usize>,
    /// The positions of the columns in [`Batch::numeric`](zillion_feature::Batch).
    pub(super) numeric: Vec<usize>,
}

/// Returns the inputs of a schema, in the order of its features.
pub(super) fn list_inputs(schema: &Schema) -> Vec<Input> {
    let mut inputs: Vec<(&FeatureSpec, Input)> = Vec::new();
    for (feature, position) in schema.features.iter().zip(schema.column_positions()) {
        let is_same = |(other, _): &&mut (&FeatureSpec, Input)| {
            let reads_same = other.column == feature.column && other.side == feature.side;
            reads_same && !feature.is_cross() && !other.is_cross()
        };
        let input = match inputs.iter_mut().find(is_same) {
            Some((_, input)) => {
                input.name = format!("{}, {}", input.name, feature.name);
                input
            }
            None => {
                let input = Input {
                    name: feature.name.clone(),
                    is_cross: feature.is_cross(),
                    sparse: Vec::new(),
                    numeric: Vec::new(),
                };
                inputs.push((feature, input));
                &mut inputs.last_mut().expect("an input was added").1
            }
        };
        match feature.table() {
            Some(_) => input.sparse.push(position),
            // A vector has a column for each of its floats.
            None => input.numeric.extend(position..position + feature.numeric_width()),
        }
    }
    inputs.into_iter().map(|(_, input)| input).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_floats_of_a_vector_are_permuted_together() {
        let job = "[features.emb]\nkind = 'vector'\nsize = 3\n[features.price]\nkind = 'numeric'\n\
                   [features.user]\nkind = 'id'\n[labels.y]\n";
        let job: toml::Value = job.parse::<toml::Table>().unwrap().into();
        let inputs = list_inputs(&Schema::from_job(&job).unwrap());
        let columns = |at: usize| (inputs[at].sparse.clone(), inputs[at].numeric.clone());
        assert_eq!(columns(0), (vec![], vec![0, 1, 2]));
        assert_eq!(columns(1), (vec![], vec![3]));
        assert_eq!(columns(2), (vec![0], vec![]));
    }
}
