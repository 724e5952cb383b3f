//! Parity rows: raw rows of the job's data and the scores that training gives them.

use std::path::{Path, PathBuf};

use zillion_feature::{Batch, Encoder, LookupPlan, PlanScratch, RawColumns, Schema};
use zillion_nn::Params;
use zillion_reader::{DataConfig, Format, Paths, RawRows};
use zillion_rows::{RoundedRows, RowSource, TableSpec};
use zillion_scorer::{COMPUTED_WITH, ParityRows, Scorer};

use crate::error::{Error, Result};
use crate::job::Job;

/// The parity rows of a job, raw and encoded as a server encodes them.
pub(super) struct Parity {
    columns: RawColumns<'static>,
    /// The encoded rows, each in a batch of its own, because a server replays them one by one.
    rows: Vec<(Batch, LookupPlan)>,
}

impl Parity {
    /// Reads the first rows of the job's validation data. If there is no validation data, reads the
    /// test data. If there is neither, reads the training data.
    pub(super) fn read(job: &Job, encoder: &Encoder, limit: usize) -> Result<Self> {
        let data = &job.data;
        let has = |paths: &&Paths| !paths.is_empty();
        let paths = [&data.valid, &data.test, &data.train].into_iter().find(has);
        let paths = paths.unwrap_or(&data.train);
        let files = data.files(paths)?;
        let none = || {
            Error::Unsupported(
                "the data has no rows for the parity check of a version; add rows to `data.valid`"
                    .to_owned(),
            )
        };
        Self::of_files(data, &files, &job.schema, encoder, limit)?.ok_or_else(none)
    }

    /// Returns parity rows without a row, until there are some.
    pub(super) fn empty() -> Self {
        Self { columns: RawColumns::default(), rows: Vec::new() }
    }

    /// Reads the first rows of a file whose name says its format.
    pub(super) fn of_file(
        data: &DataConfig,
        schema: &Schema,
        encoder: &Encoder,
        file: &Path,
        limit: usize,
    ) -> Result<Self> {
        let data = DataConfig { format: Format::default(), ..data.clone() };
        let parity = Self::of_files(&data, &[file.to_owned()], schema, encoder, limit)?;
        Ok(parity.unwrap_or_else(Self::empty))
    }

    /// Reads the first rows of files. Returns `None` if there is no row.
    fn of_files(
        data: &DataConfig,
        files: &[PathBuf],
        schema: &Schema,
        encoder: &Encoder,
        limit: usize,
    ) -> Result<Option<Self>> {
        let block = RawRows::open(data, files, schema)?.next_block(limit)?;
        let Some(columns) = block.map(|block| block.columns) else { return Ok(None) };
        let mut single = RawRows::open(data, files, schema)?;
        let mut rows = Vec::with_capacity(limit);
        let mut scratch = PlanScratch::default();
        while rows.len() < limit
            && let Some(row) = single.next_block(1)?
        {
            let batch = encoder
                .encode(row.rows, &row.columns)
                .map_err(|e| Error::Scorer(zillion_scorer::Error::Input(e)))?;
            let plan = LookupPlan::build(&batch, schema, &mut scratch);
            rows.push((batch, plan));
        }
        Ok(Some(Self { columns, rows }))
    }

    /// Scores the rows, and returns them with their scores in the form of a version's parity rows.
    /// Each row is scored alone, as a server scores a request, but their keys are looked up
    /// together. The rows of `source` are rounded as versions of `tables` have them.
    pub(super) fn score(
        &self,
        scorer: &mut Scorer,
        tables: &[TableSpec],
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<ParityRows> {
        let layouts = tables.iter().map(TableSpec::layout).collect();
        let mut rounded = RoundedRows::new(source, layouts);
        let logits = scorer.score_each(&self.rows, &mut rounded, params)?;
        let mut scored = ParityRows::new(self.rows.len(), &self.columns, logits);
        if scorer.has_onnx() {
            scored.computed_with = COMPUTED_WITH.to_owned();
        }
        Ok(scored)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Arc;

    use zillion_device::Workers;
    use zillion_feature::random::{combine, mix64};
    use zillion_feature::{FeatureKey, RowBuffer, Statistics};
    use zillion_nn::{Mode, Settings};
    use zillion_rows::{LookupReport, TableLayout, shape_rows};

    use super::*;

    const ROWS: u64 = 64;

    const DIN: &str = "kind = 'din'\nhidden = [7]\nattention_hidden = [5]\nsoftmax = true\n\
                       wide = true\nattention = [{ query = 'item', history = 'history' }]";
    const TOWERS: &str = "kind = 'two_tower'\nuser = ['user', 'history']\nitem = ['item', 'tags']\n\
                          hidden = [6]\ndim = 4";
    const DEEPFM: &str = "kind = 'deepfm'\nhidden = [7, 5]";

    /// A source that knows two of three keys, counts its lookups, and gives each key a row that
    /// depends on the key and on the table.
    struct Rows {
        layouts: Vec<TableLayout>,
        lookups: usize,
        found: BTreeSet<FeatureKey>,
        missing: BTreeSet<FeatureKey>,
    }

    impl RowSource for Rows {
        fn tables(&self) -> &[TableLayout] {
            &self.layouts
        }

        fn lookup(
            &mut self,
            plan: &LookupPlan,
            rows: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            self.lookups += 1;
            shape_rows(&self.layouts, plan, rows)?;
            let mut missing = vec![0; self.layouts.len()];
            for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
                let (index, stride) = (table.table.index(), rows.stride);
                let width = self.layouts[index].width();
                for (&key, row) in table.keys.iter().zip(rows.values.chunks_exact_mut(stride)) {
                    let is_known = !mix64(key.0).is_multiple_of(3);
                    missing[index] += u64::from(!is_known);
                    let of = if is_known { &mut self.found } else { &mut self.missing };
                    of.insert(key);
                    row.fill(0.0);
                    for (i, x) in row[..width].iter_mut().enumerate().filter(|_| is_known) {
                        let draw = mix64(combine(combine(key.0, index as u64), i as u64));
                        *x = (draw % 1009) as f32 / 1009.0 - 0.3;
                    }
                }
            }
            Ok(LookupReport { missing })
        }
    }

    /// Returns rows whose lists can be empty, and whose users and items are those of other rows.
    fn csv() -> String {
        let mut text = "user,item,history,tags,click\n".to_owned();
        for row in 0..ROWS {
            let draw = |salt: u64| mix64(combine(row, salt));
            let list = |salt: u64, most: u64| {
                let ids = (0..draw(salt) % most).map(|i| (draw(salt + i + 1) % 20).to_string());
                ids.collect::<Vec<_>>().join("|")
            };
            let (user, item) = (draw(1) % 9, draw(2) % 20);
            writeln!(text, "{user},{item},{},{},{}", list(30, 5), list(60, 3), row % 2).unwrap();
        }
        text
    }

    fn job(folder: &Path, model: &str) -> Job {
        let text = format!(
            "[data]\nroot = {folder:?}\ntrain = ['rows.csv']\nlist_separator = '|'\n\
             [features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n\
             [features.history]\nkind = 'sequence'\nmax_len = 8\ntable = 'item'\n[features.tags]\nkind = 'ids'\n\
             [labels.click]\n[tables.'*']\ndim = 4\n[model]\n{model}\n"
        );
        let value: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        Job::from_value(value.into()).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    #[test]
    fn parity_rows_are_looked_up_once_and_scored_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rows.csv"), csv()).unwrap();
        for model in [DEEPFM, DIN, TOWERS] {
            let job = job(folder.path(), model);
            let encoder = Encoder::new(&job.schema, &Statistics::default(), &[]).unwrap();
            let parity = Parity::read(&job, &encoder, ROWS as usize).unwrap();
            assert_eq!(parity.rows.len(), ROWS as usize);
            let graph = job.graph(Mode::Infer).unwrap();
            let params = Params::init(&graph.params, 1);
            let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
            let mut scorer = Scorer::new(&graph, Settings::default(), workers).unwrap();
            let layouts = job.tables.iter().map(TableSpec::layout).collect();
            let (found, missing) = (BTreeSet::new(), BTreeSet::new());
            let mut source = Rows { layouts, lookups: 0, found, missing };
            let mut single = Vec::new();
            for (batch, plan) in &parity.rows {
                let scores = scorer.score(batch, plan, &mut source, &params).unwrap();
                single.extend_from_slice(scores.outputs[0]);
            }
            assert_eq!(std::mem::take(&mut source.lookups), ROWS as usize);
            // The rows have unknown keys, keys of several rows, and empty lists.
            let keys: usize = parity.rows.iter().map(|(_, plan)| plan.unique()).sum();
            assert!(source.missing.len() > 3 && source.found.len() + source.missing.len() < keys);
            let is_empty = |(_, plan): &(Batch, LookupPlan)| plan.tables[2].keys.is_empty();
            assert!(job.tables.len() == 3 && parity.rows.iter().any(is_empty));
            let scored = parity.score(&mut scorer, &job.tables, &mut source, &params).unwrap();
            assert_eq!(source.lookups, 1);
            let alone = ParityRows::new(ROWS as usize, &parity.columns, vec![single.clone()]);
            assert_eq!(scored.to_json(), alone.to_json(), "{model}");
            assert!(single.iter().any(|score| score.to_bits() != single[0].to_bits()));
        }
    }
}
