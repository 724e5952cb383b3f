//! The type for ids whose rows are never evicted.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use zillion_feature::FeatureKey;

/// An id whose row is never evicted, in the form in which it occurs in the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PinnedId {
    /// An id that is a whole number.
    Number(i64),
    /// An id that is a text.
    Text(String),
}

impl PinnedId {
    /// Returns the key of the id.
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
                f.write_str("an id, which is a whole number or a text")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<PinnedId, E> {
                Ok(PinnedId::Number(id))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<PinnedId, E> {
                // Both ids have the same key, because ids are mixed by their bits.
                Ok(PinnedId::Number(id as i64))
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<PinnedId, E> {
                Ok(PinnedId::Text(id.to_owned()))
            }
        }
        deserializer.deserialize_any(Id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
