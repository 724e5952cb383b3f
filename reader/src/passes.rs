//! The passes over the training data before the first step: statistics, labels and vocabularies.
//!
//! The passes read the rows in file order, so their results depend only on the data. The pass over
//! the labels may end early, and reads the rows in an order that depends on the seed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{
    Batch, Buckets, ColumnStatistics, FeatureKey, FeatureKind, FeatureSpec, MixedHasher, Schema,
    SideColumn, Statistics, TableId,
};

use crate::assembly::Assembly;
use crate::block::{Block, Texts};
use crate::dataset::Dataset;
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};
use crate::order::Order;
use crate::quantiles::Sample;
use crate::sums::Moments;
use crate::windows::{Window, Windows};

/// The number of rows that a pass decodes at a time. It is small enough that the rows are still in
/// a cache when they are used.
const WINDOW: usize = 8192;

/// The maximum number of features for which one pass collects values for quantiles. The limit
/// bounds the memory: each of these features needs 64 to 128 MiB.
const QUANTILES_OF_A_PASS: usize = 4;

/// Returns the statistics that the transforms of the schema need. These are the mean and the
/// standard deviation in `f64`, and the boundaries of quantile buckets. The boundaries are exact
/// for up to 2²⁴ values that are not missing; for more values, they come from a sample.
///
/// # Errors
/// Returns an error if rows cannot be read, or if all values of a feature are missing.
pub fn statistics(dataset: &Dataset, workers: &Arc<Workers>) -> Result<Statistics> {
    let mut statistics = Statistics::default();
    let features = &dataset.schema().features;
    let wanted = (0..features.len()).filter(|&f| features[f].needs_statistics());
    let (mut with_quantiles, mut others): (Vec<usize>, Vec<usize>) =
        wanted.partition(|&f| quantiles(&features[f]).is_some());
    while !with_quantiles.is_empty() || !others.is_empty() {
        let later = with_quantiles.split_off(with_quantiles.len().min(QUANTILES_OF_A_PASS));
        let mut now = std::mem::replace(&mut with_quantiles, later);
        now.append(&mut others);
        for (&feature, column) in now.iter().zip(one_pass(dataset, &now, workers)?) {
            statistics.columns.insert(features[feature].name.clone(), column);
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

/// The source of the values of a feature in a pass. For a feature of the data, the column of the
/// field holds the values. For a joined feature, this column holds row indices of a side table, and
/// `side` holds the values of the side table.
struct Input<'a> {
    field: usize,
    side: Option<&'a [f64]>,
}

impl Input<'_> {
    /// Calls `show` with each value of the feature that is not missing, in the order of the rows of
    /// a block.
    fn visit(&self, block: &Block, mut show: impl FnMut(f64)) {
        let column = &block.columns[self.field];
        match self.side {
            None => column.view::<[f64]>().iter().filter(|x| !x.is_nan()).for_each(|&x| show(x)),
            // The index after the last row stands for a key that the side table does not have.
            Some(numbers) => column
                .view::<[u32]>()
                .iter()
                .filter_map(|&row| numbers.get(row as usize))
                .filter(|x| !x.is_nan())
                .for_each(|&x| show(x)),
        }
    }
}

/// Returns the fields that a pass over the numbers of `features` must decode, and the source of the
/// values of each feature.
fn inputs<'a>(dataset: &'a Dataset, features: &[usize]) -> (Vec<Field>, Vec<Input<'a>>) {
    let (schema, sides) = (dataset.schema(), dataset.sides());
    let joins = field::joins(schema);
    let mut fields: Vec<Field> = Vec::new();
    let mut inputs = Vec::with_capacity(features.len());
    for &feature in features {
        let spec = &schema.features[feature];
        let Some(number) = joins.iter().position(|join| join.features.contains(&feature)) else {
            inputs.push(Input { field: fields.len(), side: None });
            fields.push(Field {
                used_by: format!("feature `{}`", spec.name),
                column: spec.column.clone(),
                role: field::derived(spec, Role::Number { needed: spec.needs_value() }),
                slot: Slot::Pass,
            });
            continue;
        };
        let SideColumn::Numbers(numbers) = sides.column(joins[number].side, feature) else {
            unreachable!("only numbers have statistics")
        };
        let known = fields.iter().position(|field| field.slot == Slot::Join(number));
        let field = known.unwrap_or_else(|| {
            fields.push(field::side_row(schema, sides, number, &joins[number]));
            fields.len() - 1
        });
        inputs.push(Input { field, side: Some(numbers) });
    }
    (fields, inputs)
}

fn one_pass(
    dataset: &Dataset,
    features: &[usize],
    workers: &Arc<Workers>,
) -> Result<Vec<ColumnStatistics>> {
    let (fields, inputs) = inputs(dataset, features);
    let fields =
        with_all(dataset, fields, || field::unresolved(dataset.schema(), dataset.sides()))?;
    let features: Vec<&FeatureSpec> =
        features.iter().map(|&feature| &dataset.schema().features[feature]).collect();
    let mut moments = vec![Moments::default(); features.len()];
    let mut samples: Vec<Option<Sample>> =
        features.iter().map(|feature| quantiles(feature).map(|_| Sample::default())).collect();
    visit(dataset, fields, workers, |window| {
        // A block may lie in several windows, with one piece in each. Only the piece that starts
        // with the first row of the block is visited, because a visit covers the whole block.
        for piece in window.pieces.iter().filter(|piece| piece.span_start == 0) {
            // Columns do not depend on each other, so the pool processes several columns in
            // parallel. Each column is processed in the order of its rows.
            let mut columns: Vec<_> = inputs.iter().zip(&mut moments).zip(&mut samples).collect();
            workers.for_each_mut(&mut columns, |_, ((input, moments), sample)| {
                input.visit(&piece.block, |x| moments.add(x));
                if let Some(sample) = sample {
                    input.visit(&piece.block, |x| sample.add(x));
                }
            });
        }
        Ok(())
    })?;
    let mut columns = Vec::with_capacity(features.len());
    for ((feature, moments), sample) in features.iter().zip(moments).zip(samples) {
        let refuse = |problem: &str| {
            ReaderError::setting(format_args!("features.{}", feature.name), problem)
        };
        if moments.count == 0 {
            return Err(refuse(
                "no row of the training data has a value; remove the feature from the job",
            ));
        }
        let std = moments.std();
        if !std.is_finite() {
            return Err(refuse(
                "the values are too large for a standard deviation; scale the column",
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

/// Returns the sorted distinct keys that the data has for each table in `tables`. A dense table is
/// filled with these keys before the first step. Each entry of `tables` names a table and the
/// maximum number of its keys.
///
/// # Errors
/// Returns an error if rows cannot be read, or if a table has more keys than its maximum.
pub fn vocabulary(
    dataset: &Dataset,
    tables: &[(TableId, usize)],
    workers: &Arc<Workers>,
) -> Result<Vec<Vec<FeatureKey>>> {
    let schema = dataset.schema();
    // For each wanted column of a batch, `owners` holds the index of the column and the index of
    // the table that the column fills.
    let owner = |table: TableId| tables.iter().position(|(wanted, _)| *wanted == table);
    let owners: Vec<(usize, usize)> = (0..)
        .zip(schema.sparse_tables())
        .filter_map(|(column, table)| Some((column, owner(table)?)))
        .collect();
    let read = with_members(schema, |f| f.table().and_then(owner).is_some());
    let statistics = dataset.statistics();
    let fields = field::resolved_where(schema, dataset.sides(), statistics, |f| read[f])?;
    let fields =
        with_all(dataset, fields, || field::resolved(schema, dataset.sides(), statistics))?;
    let assembly = Assembly::new(schema, dataset.sides(), statistics, |f| read[f])?;
    let mut keys: Vec<KeySet> = vec![KeySet::default(); tables.len()];
    visit(dataset, fields.clone(), workers, |window| {
        let batch = assembly.batch(window.pieces.make_contiguous(), &fields)?;
        for &(column, owner) in &owners {
            let (table, cap) = tables[owner];
            keys[owner].extend(batch.sparse[column].keys.iter().copied());
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

/// Decodes all rows to columns, without assembling batches, and returns the number of rows. Keys
/// are mixed or hashed and numbers are transformed, as for training. A benchmark uses this function
/// to measure the cost of reading alone.
///
/// # Errors
/// Returns an error if rows cannot be read, or if the dataset lacks statistics that a transform
/// needs.
pub fn decode_columns(dataset: &Dataset, workers: &Arc<Workers>) -> Result<u64> {
    let mut fields = field::resolved(dataset.schema(), dataset.sides(), dataset.statistics())?;
    fields.retain(|field| !dataset.lacks(field));
    let mut rows = 0;
    visit(dataset, fields, workers, |window| {
        rows += window.rows as u64;
        Ok(())
    })?;
    Ok(rows)
}

/// Returns the number of occurrences of each key of a feature in the data. The feature has one id
/// in each row. `feature` is its position in the schema.
///
/// # Errors
/// Returns an error if rows cannot be read.
pub fn frequencies(
    dataset: &Dataset,
    feature: usize,
    workers: &Arc<Workers>,
) -> Result<Vec<(FeatureKey, u64)>> {
    let schema = dataset.schema();
    let column = schema.column_positions()[feature];
    let statistics = dataset.statistics();
    let fields = field::resolved_where(schema, dataset.sides(), statistics, |f| f == feature)?;
    let assembly = Assembly::new(schema, dataset.sides(), statistics, |f| f == feature)?;
    let mut counts: HashMap<FeatureKey, u64, MixedHasher> = HashMap::default();
    visit(dataset, fields.clone(), workers, |window| {
        let batch = assembly.batch(window.pieces.make_contiguous(), &fields)?;
        for &key in &batch.sparse[column].keys {
            *counts.entry(key).or_default() += 1;
        }
        Ok(())
    })?;
    let mut sorted: Vec<(FeatureKey, u64)> = counts.into_iter().collect();
    sorted.sort_unstable();
    Ok(sorted)
}

/// Decodes the labels and the weights of at least `most` rows, or of all rows if there are fewer,
/// and calls `show` with each batch. The batches have no features. The files and their row groups
/// come in an order that depends on `seed`, so that the rows of a long dataset are spread over it.
///
/// # Errors
/// Returns an error if rows cannot be read, or the error of `show`.
pub fn labels<E: From<ReaderError>>(
    dataset: &Dataset,
    seed: u64,
    most: u64,
    workers: &Arc<Workers>,
    mut show: impl FnMut(&Batch) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (schema, statistics) = (dataset.schema(), dataset.statistics());
    let mut fields: Vec<Field> = field::labels(schema, schema.labels.len() > 1).collect();
    fields.retain(|field| !dataset.lacks(field));
    if fields.is_empty() {
        return Ok(());
    }
    fields.extend(field::weight(schema).filter(|field| !dataset.lacks(field)));
    let fields =
        with_all(dataset, fields, || field::resolved(schema, dataset.sides(), statistics))?;
    let assembly = Assembly::new(schema, dataset.sides(), statistics, |_| false)?;
    let reading = Arc::new(dataset.first_pass(fields.clone())?);
    let order = Order { seed, epoch: 0, shuffle: true };
    let mut windows = Windows::new(reading, workers.clone(), order, WINDOW, 0, None);
    let mut rows = 0;
    while rows < most
        && let Some(mut window) = windows.next_window()?
    {
        windows.read_ahead();
        show(&assembly.batch(window.pieces.make_contiguous(), &fields)?)?;
        rows += window.rows as u64;
    }
    Ok(())
}

/// Finds the texts of keys that a feature of strings has made of its column. The pass ends when all
/// texts are found. A key that no text of the column has is left out.
///
/// # Errors
/// Returns an error if rows cannot be read.
pub fn texts(
    dataset: &Dataset,
    feature: &FeatureSpec,
    wanted: &HashSet<FeatureKey>,
    workers: &Arc<Workers>,
) -> Result<HashMap<FeatureKey, String>> {
    let mut found = HashMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let used_by = format!("feature `{}`", feature.name);
    let field =
        Field { used_by, column: feature.column.clone(), role: Role::Text, slot: Slot::Pass };
    // Bad rows that scoring left out are left out here too.
    let resolved = || field::resolved(dataset.schema(), dataset.sides(), dataset.statistics());
    let fields = with_all(dataset, vec![field], resolved)?;
    let reading = Arc::new(dataset.first_pass(fields)?);
    let order = Order { seed: 0, epoch: 0, shuffle: false };
    let mut windows = Windows::new(reading, workers.clone(), order, WINDOW, 0, None);
    while found.len() < wanted.len()
        && let Some(window) = windows.next_window()?
    {
        for piece in window.pieces.iter().filter(|piece| piece.span_start == 0) {
            for text in piece.block.columns[0].view::<Texts>().iter() {
                let Ok(text) = std::str::from_utf8(text) else { continue };
                let key = FeatureKey::from_text(text);
                if wanted.contains(&key) && !found.contains_key(&key) {
                    found.insert(key, text.to_owned());
                }
            }
        }
        windows.read_ahead();
    }
    Ok(found)
}

/// Returns for each feature whether a pass must read it: the feature is wanted, or a wanted cross
/// needs it.
fn with_members(schema: &Schema, wanted: impl Fn(&FeatureSpec) -> bool) -> Vec<bool> {
    let mut read: Vec<bool> = schema.features.iter().map(wanted).collect();
    // The members of a cross come before the cross in the schema.
    for (index, feature) in schema.features.iter().enumerate().rev() {
        if let (true, FeatureKind::Cross { of, .. }) = (read[index], &feature.kind) {
            of.iter().for_each(|&member| read[member] = true);
        }
    }
    read
}

/// Returns the fields that a pass must decode. If bad rows may be left out, these are all fields:
/// the same rows must be bad in every pass, so a pass also decodes the values that it does not use.
fn with_all(
    dataset: &Dataset,
    mut fields: Vec<Field>,
    all: impl FnOnce() -> Result<Vec<Field>>,
) -> Result<Vec<Field>> {
    if !dataset.leaves_out() || fields.is_empty() {
        return Ok(fields);
    }
    for field in all()? {
        let known = |f: &Field| f.used_by == field.used_by && f.column == field.column;
        if !dataset.lacks(&field) && !fields.iter().any(known) {
            fields.push(Field { slot: Slot::Pass, ..field });
        }
    }
    Ok(fields)
}

/// Decodes `fields` of every row and calls `show` with each window, in file order.
fn visit(
    dataset: &Dataset,
    fields: Vec<Field>,
    workers: &Arc<Workers>,
    mut show: impl FnMut(&mut Window) -> Result<()>,
) -> Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    let reading = Arc::new(dataset.first_pass(fields)?);
    let order = Order { seed: 0, epoch: 0, shuffle: false };
    let mut windows = Windows::new(reading, workers.clone(), order, WINDOW, 0, None);
    while let Some(mut window) = windows.next_window()? {
        windows.read_ahead();
        show(&mut window)?;
    }
    Ok(())
}

type KeySet = HashSet<FeatureKey, MixedHasher>;
