//! Passes over the training data before the first step: statistics and vocabularies.
//!
//! Both read in file order, so that their results depend on the data alone.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{
    Buckets, ColumnStatistics, FeatureKey, FeatureKind, FeatureSpec, Statistics, TableId,
};

use crate::block::{Block, Column};
use crate::dataset::Dataset;
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};
use crate::order::Order;
use crate::quantiles::Sample;
use crate::sums::Moments;
use crate::windows::Windows;

/// Rows that a pass decodes at a time.
const WINDOW: usize = 65_536;

/// Features whose values are kept for quantiles in one pass: bounds its memory, at 64 to 128 MiB each.
const QUANTILES_OF_A_PASS: usize = 4;

/// The statistics that the schema's transforms need: mean and standard deviation in `f64`, and for
/// quantile buckets their boundaries, exact up to 2²⁴ present values and from a sample beyond.
///
/// # Errors
/// What reading the rows may meet, and a feature without a single present value.
pub fn statistics(dataset: &Dataset, workers: &Arc<Workers>) -> Result<Statistics> {
    let mut statistics = Statistics::default();
    let wanted: Vec<&FeatureSpec> =
        dataset.schema().features.iter().filter(|f| f.needs_statistics()).collect();
    let (mut with_quantiles, mut others): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|feature| quantiles(feature).is_some());
    while !with_quantiles.is_empty() || !others.is_empty() {
        let later = with_quantiles.split_off(with_quantiles.len().min(QUANTILES_OF_A_PASS));
        let mut features = std::mem::replace(&mut with_quantiles, later);
        features.append(&mut others);
        for (feature, column) in features.iter().zip(one_pass(dataset, &features, workers)?) {
            statistics.columns.insert(feature.name.clone(), column);
        }
    }
    Ok(statistics)
}

fn quantiles(feature: &FeatureSpec) -> Option<u32> {
    match feature.kind {
        FeatureKind::Bucketized { buckets: Buckets::Quantiles(count), .. } => Some(count),
        _ => None,
    }
}

fn one_pass(
    dataset: &Dataset,
    features: &[&FeatureSpec],
    workers: &Arc<Workers>,
) -> Result<Vec<ColumnStatistics>> {
    let field = |feature: &&FeatureSpec| Field {
        used_by: format!("feature `{}`", feature.name),
        column: feature.column.clone(),
        role: Role::Present,
        slot: Slot::Pass,
    };
    let mut moments = vec![Moments::default(); features.len()];
    let mut samples: Vec<Option<Sample>> =
        features.iter().map(|feature| quantiles(feature).map(|_| Sample::default())).collect();
    visit(dataset, features.iter().map(field).collect(), workers, |block| {
        // Columns are independent of each other: a phase over them, each in the order of its rows.
        let mut columns: Vec<_> =
            block.columns.iter().zip(&mut moments).zip(&mut samples).collect();
        workers.for_each_mut(&mut columns, |_, ((column, moments), sample)| {
            let Column::Present(values) = column else {
                unreachable!("a pass decodes present values")
            };
            values.iter().for_each(|&x| moments.add(x));
            if let Some(sample) = sample {
                values.iter().for_each(|&x| sample.add(x));
            }
        });
        Ok(())
    })?;
    let mut columns = Vec::with_capacity(features.len());
    for ((feature, moments), sample) in features.iter().zip(moments).zip(samples) {
        let refuse = |problem: &str| ReaderError::Setting {
            problem: problem.to_owned(),
            key: format!("features.{}", feature.name),
        };
        if moments.count == 0 {
            return Err(refuse("no row of the training data has a value; leave the feature out"));
        }
        let std = moments.std();
        if !std.is_finite() {
            return Err(refuse(
                "the values spread too far for a standard deviation; scale the column",
            ));
        }
        let boundaries = sample.zip(quantiles(feature)).map(|(s, count)| s.boundaries(count));
        columns.push(ColumnStatistics {
            count: moments.count,
            mean: moments.mean(),
            std,
            min: moments.min,
            max: moments.max,
            boundaries,
        });
    }
    Ok(columns)
}

/// The distinct keys of each given table in the data, sorted: what fills a dense table before the first
/// step. Each table comes with the most keys that it may have.
///
/// # Errors
/// What reading the rows may meet, and a table with more keys than it may have.
pub fn vocabulary(
    dataset: &Dataset,
    tables: &[(TableId, usize)],
    workers: &Arc<Workers>,
) -> Result<Vec<Vec<FeatureKey>>> {
    let schema = dataset.schema();
    let table_of = schema.sparse_tables();
    let mut fields = Vec::new();
    let mut owners = Vec::new();
    for field in field::resolved_where(schema, dataset.statistics(), |feature| {
        feature.table().is_some_and(|table| tables.iter().any(|(wanted, _)| *wanted == table))
    })? {
        if let Slot::Sparse(at) = field.slot {
            let owner = tables.iter().position(|(table, _)| *table == table_of[at]);
            owners.extend(owner);
            fields.push(field);
        }
    }
    let mut keys: Vec<KeySet> = vec![KeySet::default(); tables.len()];
    visit(dataset, fields, workers, |block| {
        for (column, &owner) in block.columns.iter().zip(&owners) {
            let (Column::Keys(values) | Column::Lists { keys: values, .. }) = column else {
                unreachable!("a sparse feature decodes into keys")
            };
            let (table, cap) = tables[owner];
            keys[owner].extend(values.iter().copied());
            if keys[owner].len() > cap {
                let table = schema.tables.get(table.index()).cloned().unwrap_or_default();
                return Err(ReaderError::VocabularyTooLarge { cap, table });
            }
        }
        Ok(())
    })?;
    let sorted = |set: KeySet| {
        let mut keys: Vec<FeatureKey> = set.into_iter().collect();
        keys.sort_unstable();
        keys
    };
    Ok(keys.into_iter().map(sorted).collect())
}

/// Decodes `fields` of every row and shows each block once, in file order.
fn visit(
    dataset: &Dataset,
    fields: Vec<Field>,
    workers: &Arc<Workers>,
    mut show: impl FnMut(&Block) -> Result<()>,
) -> Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    let reading = Arc::new(dataset.reading(fields)?);
    let order = Order { seed: 0, epoch: 0, shuffle: false };
    let mut windows = Windows::new(reading, workers.clone(), order, WINDOW, 0);
    while let Some(window) = windows.next_window()? {
        windows.read_ahead();
        // A block that spans windows is a piece of each; the first one starts with its first row.
        for piece in window.pieces.iter().filter(|piece| piece.start == 0) {
            show(&piece.block)?;
        }
    }
    Ok(())
}

type KeySet = HashSet<FeatureKey, BuildHasherDefault<KeyHasher>>;

/// Keys are mixed already.
#[derive(Clone, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // Not on the way of a `FeatureKey`, which hashes as one `u64`.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
