//! The split of a data set into parts, such as training, validation and test.
//!
//! The part of a row depends on the seed and the number of the row (random split), on the seed and
//! the group of the row (split by group), or on the time of the row (split by time). The same call
//! therefore always writes the same files.
//!
//! Each part is written in a separate pass over the sources. Memory contains only one row group,
//! and each file is either complete or absent. The disadvantage is that each source is decoded once
//! for each part. A single pass for all parts was rejected, because an interruption would leave
//! several incomplete files.

use std::io;
use std::path::{Path, PathBuf};

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use zillion_device::Files;
use zillion_feature::random::{combine, mix64};
use zillion_feature::{DateOrder, FeatureKey};
use zillion_reader::{ArraySource, ParquetFile, ReaderError, Result, Stores};

use crate::history::column::{Moments, read_owners};
use crate::parquet_files::{
    create_folder, failed, properties, refuse_sources, setting, write_parquet,
};

/// The number of time ranges into which one pass divides the search for a cut.
const BINS: u64 = 1 << 16;

/// The rule that assigns rows to parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// Each row is drawn at random.
    Row,
    /// Each value of this column is drawn at random, so all rows with the same value are in one
    /// part.
    Group(String),
    /// The rows are divided by the time in this column. The earliest rows are in the first part,
    /// and rows with the same time are in one part.
    Time(String),
}

/// The settings of a split: the rule, the seed, and the parts with their shares of the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitSpec {
    /// The rule that assigns rows to parts.
    pub by: SplitBy,
    /// The order of day and month in texts with dates, or `None` if a date that needs one is an
    /// error.
    pub date_order: Option<DateOrder>,
    /// The seed of the draws.
    pub seed: u64,
    /// The name of each part and its fraction of the rows. The sum of the fractions is 1.
    pub parts: Vec<(String, f64)>,
}

/// A file that a split has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitFile {
    /// The name of the part.
    pub part: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The number of rows in the file.
    pub rows: u64,
}

impl SplitSpec {
    /// Checks the names and the fractions of the parts.
    ///
    /// # Errors
    /// Returns an error if there are fewer than two parts, if a name is empty, occurs twice or
    /// contains other characters than ASCII letters, digits, `-` and `_`, if a fraction is not
    /// above 0, or if the sum of the fractions is not 1.
    pub fn check(&self) -> Result<()> {
        let problem = |problem: String| Err(setting(problem, "parts"));
        if self.parts.len() < 2 {
            return problem("the split has fewer than two parts; name at least two".to_owned());
        }
        let is_plain = |name: &str| {
            !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        for (index, (name, fraction)) in self.parts.iter().enumerate() {
            if !is_plain(name) {
                return problem(format!(
                    "part `{name}` has an invalid name; use only letters, digits, - and _"
                ));
            }
            if self.parts[..index].iter().any(|(other, _)| other == name) {
                return problem(format!("part `{name}` is given twice; rename one of them"));
            }
            if !(fraction.is_finite() && *fraction > 0.0) {
                return problem(format!(
                    "part `{name}`: the fraction is {fraction}; set it above 0"
                ));
            }
        }
        let sum: f64 = self.parts.iter().map(|(_, fraction)| fraction).sum();
        if (sum - 1.0).abs() > 1e-6 {
            return problem(format!(
                "the sum of the fractions is {sum}; set fractions with a sum of 1"
            ));
        }
        Ok(())
    }

    /// Checks that no part has a file in the folder `out`.
    ///
    /// # Errors
    /// Returns an error if the file of a part already exists.
    pub fn refuse_existing(&self, out: &Path) -> Result<()> {
        match self.targets(out).into_iter().find(|target| target.exists()) {
            Some(target) => {
                let problem =
                    format!("file `{}` exists; remove it or name another folder", target.display());
                Err(setting(problem, "out"))
            }
            None => Ok(()),
        }
    }

    /// Returns the paths of the files that a split writes into the folder `out`.
    pub fn targets(&self, out: &Path) -> Vec<PathBuf> {
        self.parts.iter().map(|(name, _)| out.join(format!("{name}.parquet"))).collect()
    }

    /// Returns the sum of the fractions up to the end of each part. The last part is left out,
    /// because its sum is 1.
    fn cuts(&self) -> Vec<f64> {
        let mut sum = 0.0;
        let sums = self.parts.iter().map(|(_, fraction)| {
            sum += fraction;
            sum
        });
        let mut cuts: Vec<f64> = sums.collect();
        cuts.pop();
        cuts
    }
}

/// Splits Parquet files with the same schema, and writes one Parquet file for each part to the
/// folder `out`. `seen` is called with the number of rows that the current pass has read.
///
/// # Errors
/// Returns an error in one of these cases: [`SplitSpec::check`] refuses the split; the file of a
/// part exists and `replace` is false; a source cannot be read or has another schema than the first
/// one; a column is missing or its type does not fit; rows are split by time and a row has no time.
pub fn split(
    spec: &SplitSpec,
    sources: &[PathBuf],
    out: &Path,
    replace: bool,
    files: &Files,
    seen: &mut dyn FnMut(u64),
) -> Result<Vec<SplitFile>> {
    spec.check()?;
    if !replace {
        spec.refuse_existing(out)?;
    }
    let targets = spec.targets(out);
    refuse_sources(sources, &targets)?;
    let sources = Sources::open(sources)?;
    let rule = Rule::new(spec, &sources, seen)?;
    create_folder(out, files)?;
    let mut written = Vec::with_capacity(targets.len());
    for (index, path) in targets.into_iter().enumerate() {
        let rows = write_part(&rule, &sources, index, &path, files, seen)?;
        written.push(SplitFile { part: spec.parts[index].0.clone(), path, rows });
    }
    Ok(written)
}

/// The opened sources. All of them have the same schema.
struct Sources {
    files: Vec<(ParquetFile, PathBuf)>,
    schema: SchemaRef,
}

impl Sources {
    fn open(paths: &[PathBuf]) -> Result<Self> {
        let stores = Stores::default();
        let mut files: Vec<(ParquetFile, PathBuf)> = Vec::with_capacity(paths.len());
        for path in paths {
            files.push((ParquetFile::open(path, &stores)?, path.clone()));
        }
        let Some((first, first_path)) = files.first() else {
            return Err(setting("no files are given; name at least one", "input"));
        };
        let schema = first.schema();
        for (file, path) in &files[1..] {
            if file.schema().fields() != schema.fields() {
                let problem = format!(
                    "file `{}` does not have the same columns as file `{}`; split them \
                     separately, or convert them together first",
                    path.display(),
                    first_path.display()
                );
                return Err(setting(problem, "input"));
            }
        }
        Ok(Self { files, schema })
    }

    /// Calls `visit` for each batch of every source.
    fn each_batch(
        &self,
        seen: &mut dyn FnMut(u64),
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<()>,
    ) -> Result<()> {
        let mut rows = 0;
        for (file, path) in &self.files {
            for batch in file.batches()? {
                let batch = batch?;
                visit(&batch, path)?;
                rows += batch.num_rows() as u64;
                seen(rows);
            }
        }
        Ok(())
    }
}

/// A rule with the cuts between the parts.
struct Rule<'a> {
    by: &'a SplitBy,
    date_order: Option<DateOrder>,
    seed: u64,
    cuts: Vec<f64>,
    /// The first time in each part except the first part, if rows are split by time; otherwise
    /// empty.
    moments: Vec<i64>,
}

impl<'a> Rule<'a> {
    fn new(spec: &'a SplitSpec, sources: &Sources, seen: &mut dyn FnMut(u64)) -> Result<Self> {
        let cuts = spec.cuts();
        let moments = match &spec.by {
            SplitBy::Time(column) => moments_at(&cuts, spec, column, sources, seen)?,
            _ => Vec::new(),
        };
        Ok(Self { by: &spec.by, date_order: spec.date_order, seed: spec.seed, cuts, moments })
    }

    /// Returns the part of each row of a batch. `first` is the number of the first row of the
    /// batch.
    fn parts(&self, batch: &RecordBatch, first: u64, path: &Path) -> Result<Vec<usize>> {
        let rows = first..first + batch.num_rows() as u64;
        let draw = |seed: u64, word: u64| drawn_part(&self.cuts, combine(mix64(seed), word));
        Ok(match self.by {
            SplitBy::Row => rows.map(|row| draw(self.seed, row)).collect(),
            SplitBy::Group(column) => {
                let groups = read_owners(column, batch, path)?.into_iter().zip(rows);
                // A row without a group is drawn on its own.
                let part = |(group, row): (Option<FeatureKey>, u64)| {
                    group.map_or_else(|| draw(!self.seed, row), |key| draw(self.seed, key.0))
                };
                groups.map(part).collect()
            }
            SplitBy::Time(column) => {
                let moments =
                    Moments::in_order(column, self.date_order).read(batch, path)?.into_iter();
                let part = |moment: Option<i64>| match moment {
                    Some(moment) => Ok(self.moments.partition_point(|&cut| cut <= moment)),
                    None => Err(without_time(column, path)),
                };
                moments.map(part).collect::<Result<_>>()?
            }
        })
    }
}

/// Returns the part that a random word of 64 bits selects.
fn drawn_part(cuts: &[f64], bits: u64) -> usize {
    // With 53 bits, all floats between 0 and 1 are equally likely.
    let draw = (mix64(bits) >> 11) as f64 / (1u64 << 53) as f64;
    cuts.partition_point(|&cut| cut <= draw)
}

/// Writes the file of one part and returns its number of rows.
fn write_part(
    rule: &Rule<'_>,
    sources: &Sources,
    part: usize,
    path: &Path,
    files: &Files,
    seen: &mut dyn FnMut(u64),
) -> Result<u64> {
    let mut failure = None;
    let (mut first, mut rows) = (0u64, 0u64);
    let mut left = sources.files.iter();
    let mut open = None;
    let mut next = || -> Result<Vec<RecordBatch>> {
        loop {
            let (batches, source) = match &mut open {
                Some(open) => open,
                None => match left.next() {
                    Some((file, source)) => open.insert((file.batches()?, source)),
                    None => return Ok(Vec::new()),
                },
            };
            let Some(batch) = batches.next().transpose()? else {
                open = None;
                continue;
            };
            let parts = rule.parts(&batch, first, source)?;
            first += batch.num_rows() as u64;
            seen(first);
            let keep = BooleanArray::from_iter(parts.iter().map(|&of| Some(of == part)));
            let kept = filter_record_batch(&batch, &keep)
                .map_err(|error| failed("select rows of the file", source, error))?;
            if kept.num_rows() > 0 {
                rows += kept.num_rows() as u64;
                return Ok(vec![kept]);
            }
        }
    };
    let written = write_parquet(path, sources.schema.clone(), properties(), files, || {
        next().map_err(|error| {
            let text = io::Error::other(error.to_string());
            failure = Some(error);
            text
        })
    });
    match failure {
        // The cause of the error is a source, and not the file that is written.
        Some(error) => Err(error),
        None => written.map(|()| rows),
    }
}

/// Returns the first time of the part after each cut. It is the time of one row: the row at the
/// cut's fraction of all rows, sorted by time.
///
/// The search narrows the range of times step by step, so that memory does not grow with the number
/// of rows. The first pass finds the smallest and the largest time. Each further pass divides the
/// current range into [`BINS`] equal bins, counts the rows in each bin, and continues with the bin
/// that contains the wanted row. A range of 2^16 different times needs one such pass, and a range
/// of 2^64 needs four.
fn moments_at(
    cuts: &[f64],
    spec: &SplitSpec,
    column: &str,
    sources: &Sources,
    seen: &mut dyn FnMut(u64),
) -> Result<Vec<i64>> {
    let (mut rows, mut low, mut high) = (0u64, i64::MAX, i64::MIN);
    let mut moments = Moments::in_order(column, spec.date_order);
    sources.each_batch(seen, |batch, path| {
        for moment in moments.read(batch, path)? {
            let moment = moment.ok_or_else(|| without_time(column, path))?;
            (rows, low, high) = (rows + 1, low.min(moment), high.max(moment));
        }
        Ok(())
    })?;
    if rows == 0 {
        return Ok(vec![i64::MAX; cuts.len()]);
    }
    let rank = |cut: f64| ((rows as f64 * cut).round() as u64).min(rows - 1);
    let mut ranges: Vec<Range> =
        cuts.iter().map(|&cut| Range { low, high, rank: rank(cut) }).collect();
    while ranges.iter().any(|range| range.low < range.high) {
        let mut counts = vec![vec![0u64; BINS as usize]; ranges.len()];
        let mut moments = Moments::in_order(column, spec.date_order);
        sources.each_batch(seen, |batch, path| {
            for moment in moments.read(batch, path)?.into_iter().flatten() {
                for (range, counts) in ranges.iter().zip(&mut counts) {
                    if let Some(bin) = range.bin(moment) {
                        counts[bin] += 1;
                    }
                }
            }
            Ok(())
        })?;
        for (range, counts) in ranges.iter_mut().zip(&counts) {
            range.narrow(counts);
        }
    }
    Ok(ranges.into_iter().map(|range| range.low).collect())
}

/// A range of times that contains the wanted row, and the rank of this row among the rows of the
/// range. Both ends belong to the range, and ranks count from 0.
struct Range {
    low: i64,
    high: i64,
    rank: u64,
}

impl Range {
    /// Returns the number of times in a bin.
    fn width(&self) -> u64 {
        // The range has one time more than the difference of its ends, so the number of times may
        // be 2^64.
        self.high.abs_diff(self.low) / BINS + 1
    }

    fn bin(&self, moment: i64) -> Option<usize> {
        let inside = (self.low..=self.high).contains(&moment);
        inside.then(|| (moment.abs_diff(self.low) / self.width()) as usize)
    }

    /// Narrows the range to the bin that contains the wanted row. `counts` holds the number of rows
    /// in each bin.
    fn narrow(&mut self, counts: &[u64]) {
        let width = self.width();
        let mut before = 0;
        for (bin, &count) in (0u64..).zip(counts) {
            if before + count > self.rank {
                let low = self.low.saturating_add_unsigned(bin * width);
                (self.low, self.high) =
                    (low, self.high.min(low.saturating_add_unsigned(width - 1)));
                self.rank -= before;
                return;
            }
            before += count;
        }
    }
}

fn without_time(column: &str, path: &Path) -> ReaderError {
    let problem = format!(
        "file `{}` has a row without a value in `{column}`, which decides the part of a row; \
         remove such rows first",
        path.display()
    );
    setting(problem, "by_time")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use arrow_array::Int64Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    const ROWS: i64 = 20_000;

    /// Writes a file of rows with a number, a user and a time. The times do not follow the order of
    /// the rows.
    fn source(folder: &Path) -> PathBuf {
        let path = folder.join("rows.parquet");
        let int = |name: &str| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![int("row"), int("user"), int("time")]));
        let column = |of: fn(i64) -> i64| {
            Arc::new(Int64Array::from_iter_values((0..ROWS).map(of))) as arrow_array::ArrayRef
        };
        let columns = vec![
            column(|row| row),
            column(|row| row * 7 % 911),
            column(|row| (row * 7919 % ROWS) * 1_000_003 - 5_000_000_000),
        ];
        let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
        let mut batches = Some(vec![batch]);
        let next = || Ok(batches.take().unwrap_or_default());
        write_parquet(&path, schema, properties(), &Files::new(), next).unwrap();
        path
    }

    fn spec(by: SplitBy) -> SplitSpec {
        let parts = [("train", 0.8), ("valid", 0.1), ("test", 0.1)];
        SplitSpec {
            by,
            date_order: None,
            seed: 1,
            parts: parts.map(|(name, f)| (name.to_owned(), f)).into(),
        }
    }

    /// Splits the test file, and returns the values of a column in each part.
    fn column_of_parts(by: SplitBy, column: usize) -> Vec<Vec<i64>> {
        let folder = tempfile::tempdir().unwrap();
        let path = source(folder.path());
        let out = folder.path().join("out");
        let files = Files::new();
        let written = split(&spec(by), &[path], &out, false, &files, &mut |_| ()).unwrap();
        let read = |file: &SplitFile| {
            let batches =
                ParquetFile::open(&file.path, &Stores::default()).unwrap().batches().unwrap();
            let mut values = Vec::new();
            for batch in batches {
                let batch = batch.unwrap();
                values.extend(batch.column(column).as_primitive::<Int64Type>().values());
            }
            assert_eq!(values.len() as u64, file.rows);
            values
        };
        written.iter().map(read).collect()
    }

    #[test]
    fn every_row_is_in_one_part_in_its_order() {
        let parts = column_of_parts(SplitBy::Row, 0);
        assert!(parts.iter().all(|rows| rows.is_sorted()));
        let mut all: Vec<i64> = parts.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..ROWS));
        for (rows, share) in parts.iter().zip([0.8, 0.1, 0.1]) {
            let found = rows.len() as f64 / ROWS as f64;
            assert!((found - share).abs() < 0.01, "{found} of {share}");
        }
        assert_eq!(parts, column_of_parts(SplitBy::Row, 0));
    }

    #[test]
    fn a_group_is_in_one_part_only() {
        let parts = column_of_parts(SplitBy::Group("user".to_owned()), 1);
        let users: Vec<BTreeSet<i64>> =
            parts.iter().map(|users| users.iter().copied().collect()).collect();
        assert_eq!(users.iter().map(BTreeSet::len).sum::<usize>(), 911);
        assert!(users.iter().all(|users| users.len() > 50));
    }

    #[test]
    fn later_parts_hold_later_rows() {
        let parts = column_of_parts(SplitBy::Time("time".to_owned()), 2);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [16_000, 2_000, 2_000]);
        for pair in parts.windows(2) {
            assert!(pair[0].iter().max() < pair[1].iter().min());
        }
    }

    #[test]
    fn ends_of_time_do_not_overflow() {
        let mut range = Range { low: i64::MIN, high: i64::MAX, rank: 1 };
        let sought = [i64::MIN, 5, i64::MAX];
        for _ in 0..4 {
            let mut counts = vec![0; BINS as usize];
            sought.iter().filter_map(|&m| range.bin(m)).for_each(|bin| counts[bin] += 1);
            range.narrow(&counts);
        }
        assert_eq!((range.low, range.high), (5, 5));
    }

    #[test]
    fn wrong_splits_are_refused() {
        let parts = |parts: &[(&str, f64)]| SplitSpec {
            date_order: None,
            parts: parts.iter().map(|&(name, f)| (name.to_owned(), f)).collect(),
            ..spec(SplitBy::Row)
        };
        for wrong in [
            &[("train", 1.0)][..],
            &[("a", 0.5), ("a", 0.5)],
            &[("a", 0.5), ("b", 0.4)],
            &[("a", 1.5), ("b", -0.5)],
            &[("a/b", 0.5), ("c", 0.5)],
        ] {
            assert!(parts(wrong).check().is_err(), "{wrong:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = source(folder.path());
        std::fs::write(folder.path().join("valid.parquet"), "something").unwrap();
        let files = Files::new();
        let refused =
            split(&spec(SplitBy::Row), &[path], folder.path(), false, &files, &mut |_| ());
        assert!(refused.unwrap_err().to_string().contains("valid.parquet"));
        assert!(!folder.path().join("train.parquet").exists());
    }
}
