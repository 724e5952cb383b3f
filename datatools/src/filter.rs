//! The selection of rows by a condition on their columns, and by the number of rows of their ids.
//!
//! A condition alone needs one pass over the files, which may be larger than memory. Minimum counts
//! need a pass before it, which counts the rows of each id over all files. The counts take at most
//! [`ID_BYTES`] bytes for each distinct id. If they would take more memory than the limit, an error
//! says so.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, MixedHasher};
use zillion_reader::Result;

use crate::condition::Condition;
use crate::history::column::read_owners;
use crate::parquet_files::{failed, setting};
use crate::rewrite::{RewrittenFile, RowFiles, Transform};

/// The most bytes that a counted id takes: 17 in a hash table that is 7/16 full after it has grown,
/// and half as many in the table before it.
pub(crate) const ID_BYTES: u64 = 64;

/// The settings of a selection of rows. A row must fulfil all of them.
#[derive(Clone, Debug, Default)]
pub struct FilterSpec {
    /// The condition that rows fulfil, or `None` to select by counts only.
    pub condition: Option<Condition>,
    /// The columns of ids, each with the minimum number of rows that an id has over all files. Only
    /// rows that fulfil the condition count. A row without an id is left out.
    pub min_counts: Vec<(String, u32)>,
    /// The maximum number of bytes that the counts of ids may take.
    pub max_memory: u64,
}

/// The result of a selection of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filtered {
    /// The reports about the new files.
    pub files: Vec<RewrittenFile>,
    /// The number of distinct ids for each minimum count, and the number of ids that have it.
    pub ids: Vec<(u64, u64)>,
}

/// Selects rows. `seen` is called with the number of rows that the current pass has read.
///
/// # Errors
/// Returns an error if no rule is given, if a column is missing or its type does not fit, if the
/// counts of ids need more memory than allowed, if a source cannot be read, or if
/// [`RowFiles::targets`] refuses a new file.
pub fn filter(
    spec: &FilterSpec,
    rows: &RowFiles,
    workers: &Arc<Workers>,
    files: &Files,
    seen: &mut dyn FnMut(u64),
) -> Result<Filtered> {
    if spec.condition.is_none() && spec.min_counts.is_empty() {
        let problem = "no rule selects rows; set a condition or a minimum count";
        return Err(setting(problem, "where"));
    }
    rows.targets()?;
    let counts = count_ids(spec, rows, workers, seen)?;
    let ids = counts.iter().zip(&spec.min_counts).map(|(counts, (_, least))| {
        let enough = counts.values().filter(|&&count| count >= *least).count();
        (counts.len() as u64, enough as u64)
    });
    let ids = ids.collect();
    let mut selection = Selection { spec, counts, kept: None };
    let files = rows.rewrite(&mut selection, workers, files, seen)?;
    Ok(Filtered { files, ids })
}

type Counts = HashMap<FeatureKey, u32, MixedHasher>;

/// Counts the rows of each id over all files, for each minimum count.
fn count_ids(
    spec: &FilterSpec,
    rows: &RowFiles,
    workers: &Arc<Workers>,
    seen: &mut dyn FnMut(u64),
) -> Result<Vec<Counts>> {
    let mut counts = vec![Counts::default(); spec.min_counts.len()];
    if counts.is_empty() {
        return Ok(counts);
    }
    rows.each_batch(workers, seen, |batch, path| {
        let selected = select(spec, batch, path)?;
        for ((column, _), counts) in spec.min_counts.iter().zip(&mut counts) {
            for (owner, _) in read_owners(column, batch, path)?
                .into_iter()
                .zip(&selected)
                .filter(|(_, yes)| **yes)
            {
                if let Some(owner) = owner {
                    let count = counts.entry(owner).or_default();
                    *count = count.saturating_add(1);
                }
            }
        }
        let ids: u64 = counts.iter().map(|counts| counts.len() as u64).sum();
        if ids.saturating_mul(ID_BYTES) > spec.max_memory {
            let problem = format!(
                "the counts of {ids} distinct ids need up to {} bytes, but the limit is {}; raise \
                 the limit, or count one column at a time",
                ids * ID_BYTES,
                spec.max_memory
            );
            return Err(setting(problem, "max_memory"));
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Returns whether each row fulfils the condition.
fn select(spec: &FilterSpec, batch: &RecordBatch, path: &Path) -> Result<Vec<bool>> {
    Ok(match &spec.condition {
        Some(condition) => {
            let truths = condition.evaluate(batch, "where", path)?;
            truths.into_iter().map(|truth| truth == Some(true)).collect()
        }
        None => vec![true; batch.num_rows()],
    })
}

struct Selection<'a> {
    spec: &'a FilterSpec,
    counts: Vec<Counts>,
    kept: Option<RecordBatch>,
}

impl Transform for Selection<'_> {
    fn start(&mut self, source: &SchemaRef, _path: &Path) -> Result<SchemaRef> {
        Ok(source.clone())
    }

    fn push(&mut self, batch: RecordBatch, path: &Path) -> Result<()> {
        let mut selected = select(self.spec, &batch, path)?;
        for ((column, least), counts) in self.spec.min_counts.iter().zip(&self.counts) {
            for (selected, owner) in selected.iter_mut().zip(read_owners(column, &batch, path)?) {
                let count = owner.and_then(|owner| counts.get(&owner)).copied();
                *selected &= count.is_some_and(|count| count >= *least);
            }
        }
        let kept = filter_record_batch(&batch, &BooleanArray::from(selected))
            .map_err(|error| failed("select rows of the file", path, error))?;
        self.kept = Some(kept);
        Ok(())
    }

    fn pull(&mut self, _path: &Path) -> Result<Option<RecordBatch>> {
        Ok(self.kept.take())
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use zillion_reader::{ColumnType, DataConfig};

    use super::*;
    use crate::rewrite::{one_worker, read_back};

    fn run(folder: &Path, condition: &str, min: &[(&str, u32)], memory: u64) -> Result<Filtered> {
        std::fs::write(folder.join("a.csv"), "user,clicks,country\n1,0,DE\n1,2,DE\n2,1,AT\n")
            .unwrap();
        std::fs::write(folder.join("b.csv"), "user,clicks,country\n1,5,DE\n,7,DE\n3,,DE\n")
            .unwrap();
        let column = |name: &str, of| (name.to_owned(), of);
        let rows = RowFiles {
            config: DataConfig::default(),
            sources: vec![folder.join("a.csv"), folder.join("b.csv")],
            columns: vec![
                column("user", ColumnType::Int64),
                column("clicks", ColumnType::Int64),
                column("country", ColumnType::Text),
            ],
            max_bad_rows: 0,
            out: folder.join("out"),
            overwrite: true,
        };
        let spec = FilterSpec {
            condition: (!condition.is_empty()).then(|| condition.parse().unwrap()),
            min_counts: min.iter().map(|&(name, least)| (name.to_owned(), least)).collect(),
            max_memory: memory,
        };
        filter(&spec, &rows, &one_worker(), &Files::new(), &mut |_| ())
    }

    fn clicks(done: &Filtered) -> Vec<Option<i64>> {
        let read = |file: &RewrittenFile| match file.rows {
            0 => Vec::new(),
            _ => read_back(&file.path)["clicks"].as_primitive::<Int64Type>().iter().collect(),
        };
        done.files.iter().flat_map(read).collect()
    }

    #[test]
    fn rows_are_selected_in_text_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let done = run(folder.path(), "clicks >= 1 and country = 'DE'", &[], 0).unwrap();
        assert_eq!(clicks(&done), [Some(2), Some(5), Some(7)]);
        assert_eq!((done.files[0].read, done.files[0].rows), (3, 1));
        assert!(done.files[1].path.ends_with("out/b.parquet"));
    }

    #[test]
    fn counts_are_those_of_selected_rows_of_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let done = run(folder.path(), "", &[("user", 3)], 1 << 20).unwrap();
        assert_eq!(clicks(&done), [Some(0), Some(2), Some(5)]);
        assert_eq!(done.ids, [(3, 1)]);
        let done = run(folder.path(), "clicks > 0", &[("user", 3)], 1 << 20).unwrap();
        assert_eq!((clicks(&done).len(), done.ids), (0, vec![(2, 0)]));
        let done = run(folder.path(), "", &[("user", 3), ("country", 5)], 1 << 20).unwrap();
        assert_eq!((clicks(&done).len(), done.ids), (3, vec![(3, 1), (2, 1)]));
    }

    #[test]
    fn limits_and_wrong_rules_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(folder.path(), "", &[("user", 1)], 128).unwrap_err().to_string();
        assert!(error.contains("3 distinct ids") && error.contains("raise the limit"), "{error}");
        let error = run(folder.path(), "", &[], 0).unwrap_err().to_string();
        assert!(error.contains("no rule"), "{error}");
        let error = run(folder.path(), "click > 1", &[], 0).unwrap_err().to_string();
        assert!(error.contains("did you mean `clicks`?"), "{error}");
        assert!(!folder.path().join("out/a.parquet").exists());
    }
}
