//! The lookup of a row of a side table by its key.

use std::sync::Arc;

use zillion_feature::{FeatureKey, RawType, SideIndex};

use crate::value::{Outcome, Refusal};

/// The lookup of a row of a side table by its key.
#[derive(Clone, Debug)]
pub(crate) struct SideLookup {
    pub(crate) raw: RawType,
    pub(crate) rule: Rule,
}

/// The rule for the keys that are looked up.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    /// The rule for the keys in the data. They are looked up in the side table. If the side table
    /// does not have a key, the result is the index after its last row. If `needed` is true, such a
    /// key is refused instead.
    Find { index: Arc<SideIndex>, needed: bool },
    /// The rule for the keys in the file of the side table itself. A missing key is refused. The
    /// key `twice` is refused too, because the row at the place `other` has the same key.
    Unique { twice: FeatureKey, other: String },
}

impl SideLookup {
    pub(crate) fn new(raw: RawType, index: Arc<SideIndex>, needed: bool) -> Self {
        Self { raw, rule: Rule::Find { index, needed } }
    }

    #[inline]
    pub(crate) fn row(&self, key: Option<FeatureKey>) -> Outcome<u32> {
        match (&self.rule, key) {
            (Rule::Find { index, needed }, key) => match key.and_then(|key| index.row(key)) {
                Some(row) => Ok(row),
                None if !needed => Ok(index.len()),
                None => Err(if key.is_none() { Refusal::Missing } else { Refusal::NoSideRow }),
            },
            (Rule::Unique { twice, .. }, Some(key)) if key == *twice => Err(Refusal::NoSideRow),
            (Rule::Unique { .. }, Some(_)) => Ok(0),
            (Rule::Unique { .. }, None) => Err(Refusal::Missing),
        }
    }

    /// Returns the error message about a refused key.
    pub(crate) fn explain(&self, used_by: &str) -> String {
        match &self.rule {
            Rule::Find { .. } => format!(
                "has no row in the side table, but {used_by} needs one for every row, because a numeric feature has no `missing = <number>`; set it, or add the row"
            ),
            Rule::Unique { other, .. } => {
                format!("is the key of {other} too; keep one of the two rows")
            }
        }
    }
}
