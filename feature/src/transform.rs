//! The transforms of numeric values, which training, evaluation and serving share.

use crate::error::SchemaError;
use crate::key::FeatureKey;
use crate::schema::{Buckets, FeatureKind, FeatureSpec, NumericTransform};
use crate::statistics::Statistics;

/// The transform of a numeric feature, with its statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NumericMap {
    /// The identity: the value is not changed.
    Raw,
    /// The function `sign(x) · ln(1 + |x|)`, which is the common log1p for counts and also accepts
    /// negative numbers.
    Log1p,
    /// The function `(x − mean) / std`. For a constant column, the result is 0.
    Standardise {
        /// The mean over the training data.
        mean: f64,
        /// The inverse of the standard deviation, or 0 for a constant column.
        inverse_std: f64,
    },
}

impl NumericMap {
    /// Returns the transform of the numeric feature `name` with its statistics.
    ///
    /// # Errors
    /// Returns an error if the transform needs statistics that are absent.
    pub fn resolve(
        name: &str,
        transform: NumericTransform,
        statistics: &Statistics,
    ) -> Result<Self, SchemaError> {
        Ok(match transform {
            NumericTransform::Raw => Self::Raw,
            NumericTransform::Log1p => Self::Log1p,
            NumericTransform::Standardise => {
                let column = statistics.columns.get(name).ok_or_else(|| missing(name))?;
                let inverse_std = if column.std > 0.0 { 1.0 / column.std } else { 0.0 };
                Self::Standardise { mean: column.mean, inverse_std }
            }
        })
    }

    /// Returns the transformed value.
    #[inline]
    pub fn apply(&self, x: f64) -> f32 {
        match *self {
            Self::Raw => x as f32,
            Self::Log1p => x.abs().ln_1p().copysign(x) as f32,
            Self::Standardise { mean, inverse_std } => ((x - mean) * inverse_std) as f32,
        }
    }
}

/// The boundaries of the buckets of a bucketized feature.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucketizer {
    boundaries: Vec<f32>,
}

impl Bucketizer {
    /// Returns the boundaries of the buckets of a bucketized feature.
    ///
    /// # Errors
    /// Returns an error if the boundaries are quantiles and their statistics are absent.
    ///
    /// # Panics
    /// Panics if the feature is not bucketized.
    pub fn resolve(feature: &FeatureSpec, statistics: &Statistics) -> Result<Self, SchemaError> {
        let FeatureKind::Bucketized { buckets, .. } = &feature.kind else {
            panic!("feature `{}` is not bucketized", feature.name);
        };
        let boundaries = match buckets {
            Buckets::Boundaries(boundaries) => boundaries.clone(),
            Buckets::Quantiles(_) => statistics
                .columns
                .get(&feature.name)
                .and_then(|c| c.boundaries.clone())
                .ok_or_else(|| missing(&feature.name))?,
        };
        Ok(Self { boundaries })
    }

    /// Returns the key of the bucket that contains the value `x`. The number of the bucket is the
    /// number of boundaries that are less than or equal to `x`.
    #[inline]
    pub fn key(&self, x: f64) -> FeatureKey {
        let bucket = self.boundaries.partition_point(|&b| f64::from(b) <= x);
        FeatureKey::from_u64(bucket as u64)
    }
}

fn missing(name: &str) -> SchemaError {
    SchemaError::MissingStatistics {
        feature: name.to_owned(),
        hint: "collect them first, or read them from the checkpoint",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ColumnStatistics;

    #[test]
    fn transforms_are_what_they_say() {
        let mut statistics = Statistics::default();
        statistics
            .columns
            .insert("x".into(), ColumnStatistics { mean: 2.0, std: 4.0, ..Default::default() });
        statistics.columns.insert("c".into(), ColumnStatistics { mean: 5.0, ..Default::default() });
        let map = |name, t| NumericMap::resolve(name, t, &statistics);
        assert_eq!(map("x", NumericTransform::Raw).unwrap().apply(3.5), 3.5);
        assert_eq!(map("x", NumericTransform::Standardise).unwrap().apply(6.0), 1.0);
        assert_eq!(map("c", NumericTransform::Standardise).unwrap().apply(5.0), 0.0);
        let log = map("x", NumericTransform::Log1p).unwrap();
        assert!((log.apply(1.0) - std::f32::consts::LN_2).abs() < 1e-7);
        assert_eq!(log.apply(-1.0), -log.apply(1.0));
        assert!(map("y", NumericTransform::Standardise).is_err());
    }

    #[test]
    fn a_boundary_belongs_to_the_bucket_above() {
        let b = Bucketizer { boundaries: vec![0.0, 1.0, 2.0] };
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0, 9.0].map(|x| b.key(x).unmix()), [0, 1, 1, 2, 3, 3]);
    }
}
