//! Keys whose rows never go.

use std::fmt;
use std::ops::Range;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use zillion_feature::FeatureKey;

/// One id whose row is never evicted, as the data has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PinnedId {
    /// An id that is a whole number.
    Number(i64),
    /// An id that is a text.
    Text(String),
}

impl PinnedId {
    /// The key that the data's id becomes.
    pub fn key(&self) -> FeatureKey {
        match self {
            Self::Number(id) => FeatureKey::from_i64(*id),
            Self::Text(id) => FeatureKey::from_text(id),
        }
    }
}

impl<'de> Deserialize<'de> for PinnedId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Id;
        impl Visitor<'_> for Id {
            type Value = PinnedId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id: a whole number or a text")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<PinnedId, E> {
                Ok(PinnedId::Number(id))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<PinnedId, E> {
                // The same key: ids are mixed by their bits.
                Ok(PinnedId::Number(id as i64))
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<PinnedId, E> {
                Ok(PinnedId::Text(id.to_owned()))
            }
        }
        deserializer.deserialize_any(Id)
    }
}

/// The pinned keys of a table, sorted.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    keys: Vec<FeatureKey>,
}

impl Pinned {
    pub(crate) fn new(ids: &[PinnedId]) -> Self {
        let mut keys: Vec<FeatureKey> = ids.iter().map(PinnedId::key).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { keys }
    }

    /// All of them.
    pub(crate) fn keys(&self) -> &[FeatureKey] {
        &self.keys
    }

    /// Whether a key is one of them.
    pub(crate) fn has(&self, key: FeatureKey) -> bool {
        self.keys.binary_search(&key).is_ok()
    }

    /// Those of one slot.
    pub(crate) fn of_slot(&self, slot: usize) -> &[FeatureKey] {
        let before = |slot: usize| self.keys.partition_point(|key| key.slot() < slot);
        let range: Range<usize> =
            if self.keys.is_empty() { 0..0 } else { before(slot)..before(slot + 1) };
        &self.keys[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_keys_are_found_by_slot() {
        let ids = [PinnedId::Number(7), PinnedId::Text("a".into()), PinnedId::Number(7)];
        let pinned = Pinned::new(&ids);
        assert_eq!(pinned.keys.len(), 2);
        for id in &ids {
            assert!(pinned.of_slot(id.key().slot()).contains(&id.key()));
        }
        let all: usize = (0..zillion_feature::SLOTS).map(|slot| pinned.of_slot(slot).len()).sum();
        assert_eq!(all, 2);
        assert!(Pinned::default().of_slot(4095).is_empty());
    }

    #[test]
    fn ids_are_numbers_or_texts() {
        #[derive(Deserialize, Serialize, PartialEq, Debug)]
        struct Section {
            pinned: Vec<PinnedId>,
        }
        let section: Section = toml::from_str("pinned = [1, -2, \"x\"]").unwrap();
        let wanted = [PinnedId::Number(1), PinnedId::Number(-2), PinnedId::Text("x".into())];
        assert_eq!(section.pinned, wanted);
        let again: Section = toml::from_str(&toml::to_string(&section).unwrap()).unwrap();
        assert_eq!(again, section);
        assert!(toml::from_str::<Section>("pinned = [1.5]").is_err());
    }
}
