//! The encoding of requests that have only the inputs of some features.
//!
//! A retrieval model has two towers, and each of them reads features of its own. A request for the
//! nearest items has only the inputs of the user's tower, and a catalogue of items has only those
//! of the item's tower. The columns of the other features get missing values, because a batch has
//! all columns; the tower does not read them.

use std::sync::Arc;

use super::{Encoder, Input, Rule};
use crate::batch::{Batch, KeyColumn};
use crate::key::FeatureKey;
use crate::schema::FeatureKind;

/// A column that no input fills, with the value that it gets in every row.
#[derive(Clone, Debug)]
pub(super) enum Omitted {
    /// A column with one key in each row, at this position among the sparse columns.
    Single { at: usize, key: FeatureKey },
    /// A column with lists, at this position among the sparse columns.
    List { at: usize },
    /// A column with numbers, at this position among the numeric columns.
    Number { at: usize },
}

impl Omitted {
    /// Fills the column of a batch.
    pub(super) fn fill(&self, batch: &mut Batch) {
        let rows = batch.rows;
        match *self {
            Self::Single { at, key } => batch.sparse[at] = KeyColumn::single(vec![key; rows]),
            Self::List { at } => {
                batch.sparse[at] = KeyColumn::ragged(vec![0; rows + 1], Vec::new());
            }
            Self::Number { at } => batch.numeric[at] = vec![0.0; rows],
        }
    }
}

impl Encoder {
    /// Returns an encoder that reads only the inputs of the features with these names. The columns
    /// of the other features get missing values, or 0 for numbers.
    ///
    /// A cross also needs the inputs of its members, and a feature of a side table needs the input
    /// with the key. Names that the schema does not have are ignored.
    #[must_use]
    pub fn for_features(&self, names: &[String]) -> Self {
        let features = &self.schema.features;
        let mut wanted: Vec<bool> = features.iter().map(|f| names.contains(&f.name)).collect();
        // The members of a cross are earlier features, and may be crosses themselves.
        for position in (0..features.len()).rev() {
            if let (true, FeatureKind::Cross { of, .. }) =
                (wanted[position], &features[position].kind)
            {
                of.iter().for_each(|&member| wanted[member] = true);
            }
        }
        let is_wanted = |name: &str| {
            features.iter().zip(&wanted).any(|(feature, wanted)| *wanted && feature.name == name)
        };
        let reads = |join: usize| {
            let reference = &self.joins[join].reference;
            let mut pairs = features.iter().zip(&wanted);
            pairs.any(|(feature, wanted)| *wanted && feature.side.as_ref() == Some(reference))
        };
        let is_read = |input: &&Input| match input.rule {
            Rule::Side { .. } => reads(input.at),
            _ => is_wanted(&input.spec.name),
        };
        let inputs: Vec<Input> = self.inputs.iter().filter(is_read).cloned().collect();
        let mut omitted = Vec::new();
        for (feature, at) in features.iter().zip(self.schema.column_positions()) {
            let is_filled = match &feature.side {
                _ if feature.is_cross() => true,
                Some(side) => inputs.iter().any(|input| {
                    matches!(input.rule, Rule::Side { .. })
                        && self.joins[input.at].reference == *side
                }),
                None => is_wanted(&feature.name),
            };
            match feature.kind {
                _ if is_filled => {}
                FeatureKind::Ids { .. } | FeatureKind::Sequence { .. } => {
                    omitted.push(Omitted::List { at });
                }
                FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } => {
                    let columns = at..at + feature.numeric_width();
                    omitted.extend(columns.map(|at| Omitted::Number { at }));
                }
                _ => {
                    let key = FeatureKey::missing(&feature.name);
                    omitted.push(Omitted::Single { at, key });
                }
            }
        }
        let names = inputs.iter().flat_map(|input| [&input.spec.name, &input.spec.column]);
        let mut names: Vec<String> = names.cloned().collect();
        names.sort_unstable();
        names.dedup();
        Self {
            names: Arc::new(names),
            inputs: Arc::new(inputs),
            omitted: Arc::new(omitted),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::request::{RawColumn, RawColumns, RawValues};
    use crate::schema::Schema;
    use crate::side::{SideColumn, SideIndex, SideTable};
    use crate::statistics::Statistics;

    fn encoder() -> Encoder {
        let job = "
            [features.user]
            kind = 'id'
            [features.history]
            kind = 'ids'
            [features.age]
            kind = 'numeric'
            [features.item]
            kind = 'id'
            [features.colour]
            kind = 'id'
            side = 's'
            by = 'item'
            [features.both]
            kind = 'cross'
            of = ['user', 'item']
            [labels.y]
            [side.s]
            path = 's.csv'
            key = 'k'
        ";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let mut index = SideIndex::default();
        index.push(FeatureKey::from_u64(5)).unwrap();
        let columns = vec![(4, SideColumn::Keys(vec![FeatureKey::from_u64(77)]))];
        let side = SideTable { index: Arc::new(index), columns };
        Encoder::new(&schema, &Statistics::default(), &[Arc::new(side)]).unwrap()
    }

    fn columns(named: &[(&'static str, i64)]) -> RawColumns<'static> {
        let column = |&(name, value): &(&'static str, i64)| {
            let values = RawValues::Ints(vec![value]);
            (Cow::Borrowed(name), RawColumn { values, lengths: None, is_shared: false })
        };
        named.iter().map(column).collect()
    }

    #[test]
    fn only_the_inputs_of_the_features_are_read() {
        let whole = encoder();
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let user = whole.for_features(&names(&["user", "history", "age"]));
        let inputs: Vec<&str> = user.inputs().map(|input| input.name.as_str()).collect();
        assert_eq!(inputs, ["user", "history", "age"]);
        let part = columns(&[("user", 3), ("history", 4), ("age", 30)]);
        let batch = user.encode(1, &part).unwrap();
        let all = columns(&[("user", 3), ("history", 4), ("age", 30), ("item", 5)]);
        let expected = whole.encode(1, &all).unwrap();
        assert_eq!(batch.sparse[..2], expected.sparse[..2]);
        assert_eq!(batch.numeric, expected.numeric);
        assert_eq!(batch.sparse[2].keys, [FeatureKey::missing("item")]);
        assert_eq!(batch.sparse[3].keys, [FeatureKey::missing("colour")]);
        assert!(user.encode(1, &all).unwrap_err().to_string().contains("item"));
        let item = whole.for_features(&names(&["item", "colour"]));
        let batch = item.encode(1, &columns(&[("item", 5)])).unwrap();
        assert_eq!(batch.sparse[2..4], expected.sparse[2..4]);
        assert_eq!((&batch.numeric[0][..], batch.sparse[1].keys.len()), (&[0.0][..], 0));
        let crossed = whole.for_features(&names(&["both"]));
        let batch = crossed.encode(1, &columns(&[("user", 3), ("item", 5)])).unwrap();
        assert_eq!(batch.sparse[4], expected.sparse[4]);
    }
}
