//! The last uses of rows, for the hot keys of a layer that is made of other layers.

use std::collections::HashMap;

use zillion_feature::FeatureKey;

use super::Layer;
use crate::layout::HotRule;

/// The last uses of the keys that some layers list, for the list of a layer that is made of them.
#[derive(Debug, Default)]
pub(super) struct LastUses {
    of_keys: HashMap<u64, u32>,
}

impl LastUses {
    /// Collects the lists of a table in some layers, oldest first. Without a rule, nothing is
    /// collected.
    pub(super) fn of_rule<'a>(
        rule: Option<HotRule>,
        layers: impl IntoIterator<Item = &'a Layer>,
        table: usize,
    ) -> Self {
        let layers = layers.into_iter().filter(|_| rule.is_some());
        let lists = layers.filter_map(|layer| layer.hot(table));
        let keys = lists.flat_map(|list| list.keys().iter().map(|hot| (hot.key.0, hot.last)));
        Self { of_keys: keys.collect() }
    }

    /// Returns the time of the last push of a key that a layer lists.
    pub(super) fn of(&self, key: FeatureKey) -> Option<u32> {
        self.of_keys.get(&key.0).copied()
    }
}
