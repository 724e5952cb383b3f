//! The crosses of features. A cross has one id for each combination of the ids of other features.
//!
//! A linear model can learn the effect of two ids that occur together only if the pair has its own
//! weight (Cheng et al. 2016, "Wide & Deep"). A cross is computed from the keys of a batch after
//! the columns of the files have been filled. Training and serving both use this module.

use crate::batch::{Batch, KeyColumn};
use crate::key::FeatureKey;
use crate::random;
use crate::schema::{FeatureKind, FeatureSpec, Schema};

/// Returns the key of a combination of member keys. The key is a chain of [`random::combine`], so
/// the order of the members matters. The chain is one of the rules that [`HASH_ID`](crate::HASH_ID)
/// identifies.
#[inline]
pub fn cross_key(members: impl IntoIterator<Item = FeatureKey>) -> FeatureKey {
    FeatureKey(members.into_iter().fold(0, |key, member| random::combine(key, member.0)))
}

/// The crosses of a schema, with the columns that they read and fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crosses {
    /// Each cross column with the columns of its members, as positions in [`Batch::sparse`]. The
    /// crosses follow the order of the schema.
    columns: Vec<(usize, Vec<usize>)>,
}

impl Crosses {
    /// Returns the crosses of a schema.
    pub fn of(schema: &Schema) -> Self {
        let positions = schema.column_positions();
        let column = |(feature, &position): (&FeatureSpec, &usize)| match &feature.kind {
            FeatureKind::Cross { of, .. } => {
                Some((position, of.iter().map(|&member| positions[member]).collect()))
            }
            _ => None,
        };
        Self { columns: schema.features.iter().zip(&positions).filter_map(column).collect() }
    }

    /// Computes the crosses of a batch whose other columns have been filled. The schema lists the
    /// members of a cross before the cross, so a cross that is itself a member is filled in time.
    /// If the batch lacks a member column, because a pass reads only some features, the cross is
    /// not changed. A cross of shared columns is shared.
    pub fn fill(&self, batch: &mut Batch) {
        for (column, members) in &self.columns {
            let is_shared = |member: usize| batch.shared.has_sparse(member);
            let rows_of = |member| if is_shared(member) { 1 } else { batch.rows };
            let filled = |&member: &usize| batch.sparse[member].keys.len() == rows_of(member);
            if !members.iter().all(filled) {
                continue;
            }
            let all_shared = members.iter().all(|&member| is_shared(member));
            let keys = |member: usize| batch.sparse[member].keys.as_slice();
            // The work goes column by column: each loop is over two slices, which the compiler
            // vectorises.
            let mut chain = vec![0u64; if all_shared { 1 } else { batch.rows }];
            for &member in members {
                match keys(member) {
                    &[word] if is_shared(member) => {
                        chain.iter_mut().for_each(|key| *key = random::combine(*key, word.0));
                    }
                    words => {
                        for (key, word) in chain.iter_mut().zip(words) {
                            *key = random::combine(*key, word.0);
                        }
                    }
                }
            }
            if all_shared {
                batch.shared.add_sparse(*column);
            }
            batch.sparse[*column] = KeyColumn::single(chain.into_iter().map(FeatureKey).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schema() -> Schema {
        let job = "
            [features.a]
            kind = 'id'
            [features.price]
            kind = 'numeric'
            [features.b]
            kind = 'id'
            [features.ab]
            kind = 'cross'
            of = ['a', 'b']
            [features.c]
            kind = 'bucketized'
            boundaries = [1]
            [features.ba]
            kind = 'cross'
            of = ['b', 'a']
            table = 'ab'
            [features.abc]
            kind = 'cross'
            of = ['ab', 'c']
            [labels.y]
        ";
        Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap()
    }

    fn filled(a: &[u64], b: &[u64], c: &[u64]) -> Batch {
        let schema = schema();
        let mut batch = Batch::empty(&schema);
        batch.rows = a.len();
        let column = |ids: &[u64]| {
            KeyColumn::single(ids.iter().map(|&id| FeatureKey::from_u64(id)).collect())
        };
        batch.sparse[0] = column(a);
        batch.sparse[1] = column(b);
        batch.sparse[3] = column(c);
        Crosses::of(&schema).fill(&mut batch);
        batch
    }

    #[test]
    fn golden_vectors_pin_the_chain() {
        let key = |ids: [u64; 2]| cross_key(ids.map(FeatureKey::from_u64)).0;
        assert_eq!(key([1, 2]), 0xcc4a_ecce_e378_4bdc);
        assert_eq!(key([2, 1]), 0x52ec_069e_2722_9dd2);
    }

    proptest! {
        #[test]
        fn a_cross_is_a_function_of_its_members_in_order(
            rows in proptest::collection::vec((0u64..4, 0u64..4, 0u64..2), 1..60)
        ) {
            let column = |pick: fn(&(u64, u64, u64)) -> u64| rows.iter().map(pick).collect::<Vec<_>>();
            let batch = filled(&column(|r| r.0), &column(|r| r.1), &column(|r| r.2));
            let (ab, ba, abc) = (&batch.sparse[2].keys, &batch.sparse[4].keys, &batch.sparse[5].keys);
            for (i, x) in rows.iter().enumerate() {
                let id = FeatureKey::from_u64;
                prop_assert_eq!(ab[i], cross_key([id(x.0), id(x.1)]));
                prop_assert_eq!(abc[i], cross_key([ab[i], id(x.2)]));
                for (j, y) in rows.iter().enumerate() {
                    prop_assert_eq!(ab[i] == ab[j], (x.0, x.1) == (y.0, y.1));
                    prop_assert_eq!(abc[i] == abc[j], x == y);
                    prop_assert_eq!(ab[i] == ba[j], (x.0, x.1) == (y.1, y.0));
                }
            }
        }
    }

    #[test]
    fn a_cross_of_a_shared_and_another_column_is_made_for_each_row() {
        let mut batch = filled(&[7, 7, 7], &[1, 2, 3], &[5, 5, 5]);
        let copied = batch.clone();
        batch.shared = crate::SharedColumns::new([0, 3], []);
        batch.sparse[0].keys.truncate(1);
        batch.sparse[3].keys.truncate(1);
        Crosses::of(&schema()).fill(&mut batch);
        assert_eq!(batch.shared, crate::SharedColumns::new([0, 3], []));
        assert_eq!(batch.expand(), copied);
    }

    #[test]
    fn a_batch_without_the_members_is_left_alone() {
        let schema = schema();
        let mut batch = Batch::empty(&schema);
        batch.rows = 3;
        Crosses::of(&schema).fill(&mut batch);
        assert!(batch.sparse.iter().all(|column| column.keys.is_empty()));
    }
}
