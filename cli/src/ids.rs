//! The ids in the data, from which features make the keys of tables.

use zillion_feature::{FeatureKey, FeatureKind, RawType};

/// The kind of ids that a feature has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdKind {
    Signed,
    Unsigned,
    Text,
    Bucket,
    Cross,
}

impl IdKind {
    /// Returns the kind of a feature's ids, or `None` for a feature that reads no table.
    pub(crate) fn of(feature: &FeatureKind) -> Option<Self> {
        Some(match feature {
            FeatureKind::Id { raw, .. }
            | FeatureKind::Ids { raw, .. }
            | FeatureKind::Sequence { raw, .. } => match raw {
                RawType::I64 => Self::Signed,
                RawType::U64 => Self::Unsigned,
                RawType::String => Self::Text,
            },
            FeatureKind::Bucketized { .. } => Self::Bucket,
            FeatureKind::Cross { .. } => Self::Cross,
            FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } => return None,
        })
    }

    /// Returns the name of the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Signed => "i64",
            Self::Unsigned => "u64",
            Self::Text => "string",
            Self::Bucket => "bucket",
            Self::Cross => "cross",
        }
    }

    /// Returns the key of an id, or `None` if a feature of this kind cannot have the id.
    pub(crate) fn make_key(self, id: &str) -> Option<FeatureKey> {
        match self {
            Self::Signed => id.parse().ok().map(FeatureKey::from_i64),
            // The ids of buckets are their numbers.
            Self::Unsigned | Self::Bucket => id.parse().ok().map(FeatureKey::from_u64),
            Self::Text => Some(FeatureKey::from_text(id)),
            Self::Cross => None,
        }
    }

    /// Returns the id from which a key was made, or `None` if the key is a hash.
    pub(crate) fn recover(self, key: FeatureKey) -> Option<String> {
        match self {
            Self::Signed => Some(key.unmix().cast_signed().to_string()),
            Self::Unsigned => Some(key.unmix().to_string()),
            Self::Bucket => Some(format!("bucket {}", key.unmix())),
            Self::Text | Self::Cross => None,
        }
    }
}

/// Formats a key as `0x` and 16 hexadecimal digits.
pub(crate) fn hex(key: FeatureKey) -> String {
    format!("{:#018x}", key.0)
}
