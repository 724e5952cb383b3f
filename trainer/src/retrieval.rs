//! Retrieval: computes the rank of each row's item among all candidates.
//!
//! Candidates are the rows of a side table. The item's tower computes the vector of each candidate
//! once. The user's tower computes a vector for each row of the data, which is multiplied with the
//! vectors of all candidates in blocks. The items of a row's history can be excluded, but never the
//! row's own item. The baseline ranks the candidates by their frequencies in the training data.

use std::collections::HashMap;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::matmul::gemm;
use zillion_feature::{
    Attribute, Batch, FeatureKey, KeyColumn, LookupPlan, MixedHasher, PlanScratch,
};
use zillion_nn::metrics::{Cutoffs, Ranking, RankingFigure};
use zillion_nn::zoo::{ITEM, USER};
use zillion_nn::{Graph, Params, Settings};
use zillion_reader::Dataset;
use zillion_rows::RowSource;
use zillion_scorer::Scorer;

use crate::error::Result;
use crate::frequencies::Frequencies;
use crate::job::{Job, Retrieved};

/// The number of candidates in a batch of the item's tower.
const CANDIDATES: usize = 4096;
/// The largest number of scores that a task of the pool holds in memory.
const SCORES: usize = 1 << 20;
/// The largest number of rows that a task scores together.
const ROWS: usize = 64;

/// The two towers of a model, ready to run.
pub(crate) struct Towers {
    user: Scorer,
    item: Scorer,
    what: Retrieved,
}

impl Towers {
    /// Makes the towers of a job. Returns `None` if the job does not evaluate retrieval.
    pub(crate) fn new(
        job: &Job,
        graph: &Graph,
        settings: Settings,
        workers: &Arc<Workers>,
    ) -> Result<Option<Self>> {
        let Some(what) = job.resolve_retrieval()? else { return Ok(None) };
        let tower = |name| Scorer::with_outputs(graph, &[name], settings, workers.clone());
        Ok(Some(Self { user: tower(USER)?, item: tower(ITEM)?, what }))
    }

    /// Computes the vectors of all candidates.
    pub(crate) fn candidates(
        &mut self,
        job: &Job,
        dataset: &Dataset,
        frequencies: &Frequencies,
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<Candidates> {
        let schema = &job.schema;
        let table = &dataset.sides().tables()[self.what.side];
        let keys = table.index.keys();
        let mut attributes = Vec::new();
        for &feature in &self.what.attributes {
            if let Some(column) = table.column(feature) {
                attributes.push(Attribute::new(schema, feature, column, dataset.statistics())?);
            }
        }
        let mut vectors: Vec<f32> = Vec::new();
        let mut scratch = PlanScratch::default();
        for (chunk, keys) in keys.chunks(CANDIDATES).enumerate() {
            let rows = keys.len();
            let mut batch = Batch { rows, ..Batch::empty(schema) };
            // The inputs of the user's tower are not used, but the batch must have them.
            for (column, feature) in batch.sparse.iter_mut().zip(schema.sparse()) {
                *column = match feature.pooling() {
                    Some(_) => KeyColumn::ragged(vec![0; rows + 1], Vec::new()),
                    None => KeyColumn::single(vec![FeatureKey::missing(&feature.name); rows]),
                };
            }
            batch.numeric.iter_mut().for_each(|column| *column = vec![0.0; rows]);
            batch.sparse[self.what.item] = KeyColumn::single(keys.to_vec());
            let first = (chunk * CANDIDATES) as u32;
            let at: Vec<u32> = (first..first + rows as u32).collect();
            attributes.iter().for_each(|attribute| attribute.fill(&at, &mut batch));
            let plan = LookupPlan::build(&batch, schema, &mut scratch);
            let scored = self.item.score(&batch, &plan, source, params)?;
            vectors.extend_from_slice(scored.outputs[0]);
        }
        let counts: Vec<u64> = keys.iter().map(|&key| frequencies.count(key)).collect();
        let mut sorted_counts = counts.clone();
        sorted_counts.sort_unstable();
        let places = keys.iter().enumerate().map(|(at, &key)| (key, at as u32)).collect();
        let cutoffs = job.eval.cutoffs();
        Ok(Candidates {
            vectors,
            places,
            counts,
            sorted_counts,
            model: Ranking::new(cutoffs.clone()),
            popularity: Ranking::new(cutoffs),
            rows: 0,
            unknown: 0,
        })
    }

    /// Ranks the items of a batch's rows among the candidates. Returns the number of unique keys
    /// without a row.
    pub(crate) fn push(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        candidates: &mut Candidates,
        source: &mut dyn RowSource,
        params: &Params,
        workers: &Workers,
    ) -> Result<u64> {
        let scored = self.user.score(batch, plan, source, params)?;
        let label = batch.labels.first();
        let is_wanted = |row: usize| {
            let weight = batch.weight.as_ref().is_none_or(|w| w[row] != 0.0);
            let known = label.and_then(|l| l.mask.as_ref()).is_none_or(|mask| mask[row]);
            weight && known && label.is_none_or(|l| l.values.is_empty() || l.values[row] == 1.0)
        };
        let rows: Vec<Row> = (0..batch.rows)
            .filter(|&row| is_wanted(row))
            .map(|row| {
                let place = |key: &FeatureKey| candidates.places.get(key).copied();
                let own = place(&batch.sparse[self.what.item].keys[row]);
                let history = self.what.exclude.map(|column| batch.sparse[column].row(row));
                let mut excluded: Vec<u32> =
                    history.unwrap_or_default().iter().filter_map(place).collect();
                excluded.sort_unstable();
                excluded.dedup();
                excluded.retain(|&at| Some(at) != own);
                Row { row, own, excluded }
            })
            .collect();
        candidates.place(&rows, scored.outputs[0], batch.rows, workers);
        Ok(scored.missing)
    }
}

/// A row of a batch whose item gets a rank among the candidates.
struct Row {
    row: usize,
    /// The index of the row's item among the candidates; absent if the item is not a candidate.
    own: Option<u32>,
    /// The indices of the excluded items among the candidates, without the row's own item.
    excluded: Vec<u32>,
}

/// The number of candidates that rank above a row's item, and the number of candidates with the
/// same score.
#[derive(Clone, Copy, Default)]
struct Standing {
    above: u64,
    tied: u64,
}

/// The candidates, and the figures of the rows that were ranked so far.
pub(crate) struct Candidates {
    vectors: Vec<f32>,
    places: HashMap<FeatureKey, u32, MixedHasher>,
    /// The number of times that each candidate occurs in the training data.
    counts: Vec<u64>,
    sorted_counts: Vec<u64>,
    model: Ranking,
    popularity: Ranking,
    rows: u64,
    unknown: u64,
}

/// The figures of retrieval over a data set.
pub(crate) struct RetrievalReport {
    pub(crate) figures: Vec<RankingFigure>,
    pub(crate) popularity: Vec<RankingFigure>,
    pub(crate) candidates: u64,
    pub(crate) rows: u64,
    pub(crate) unknown: u64,
}

impl Candidates {
    fn place(&mut self, rows: &[Row], users: &[f32], batch_rows: usize, workers: &Workers) {
        let n = self.counts.len();
        if batch_rows == 0 || n == 0 {
            return;
        }
        let dim = users.len() / batch_rows;
        let together = (SCORES / n).clamp(1, ROWS);
        let mut standings = vec![[Standing::default(); 2]; rows.len()];
        {
            let this = &*self;
            let mut tasks: Vec<_> =
                rows.chunks(together).zip(standings.chunks_mut(together)).collect();
            workers.for_each_mut(&mut tasks, |_, (rows, standings)| {
                let mut queries = Vec::with_capacity(rows.len() * dim);
                for row in rows.iter() {
                    queries.extend_from_slice(&users[row.row * dim..][..dim]);
                }
                let mut scores = vec![0.0f32; rows.len() * n];
                let (m, v) = (rows.len(), &this.vectors);
                gemm(m, n, dim, 1.0, &queries, dim, 1, v, 1, dim, 0.0, &mut scores, n);
                for ((row, standing), scores) in
                    rows.iter().zip(standings.iter_mut()).zip(scores.chunks(n))
                {
                    let Some(own) = row.own else { continue };
                    *standing =
                        [by_score(scores, own, &row.excluded), this.by_count(own, &row.excluded)];
                }
            });
        }
        for (row, [model, popularity]) in rows.iter().zip(standings) {
            self.rows += 1;
            match row.own {
                Some(_) => {
                    self.model.push_place(model.above, model.tied);
                    self.popularity.push_place(popularity.above, popularity.tied);
                }
                // An item that is not a candidate cannot be retrieved.
                None => {
                    self.unknown += 1;
                    self.model.push_place(u64::from(u32::MAX), 0);
                    self.popularity.push_place(u64::from(u32::MAX), 0);
                }
            }
        }
    }

    fn by_count(&self, own: u32, excluded: &[u32]) -> Standing {
        let count = self.counts[own as usize];
        let upper = self.sorted_counts.partition_point(|&c| c <= count);
        let lower = self.sorted_counts.partition_point(|&c| c < count);
        let left_out = |which: fn(u64, u64) -> bool| {
            excluded.iter().filter(|&&at| which(self.counts[at as usize], count)).count()
        };
        Standing {
            above: (self.counts.len() - upper - left_out(|c, own| c > own)) as u64,
            tied: (upper - lower - 1 - left_out(|c, own| c == own)) as u64,
        }
    }

    pub(crate) fn finish(self) -> RetrievalReport {
        // Without counts, there is no ranking by popularity.
        let is_counted = self.sorted_counts.last().is_some_and(|&count| count > 0);
        RetrievalReport {
            figures: self.model.finish(),
            popularity: if is_counted { self.popularity.finish() } else { Vec::new() },
            candidates: self.counts.len() as u64,
            rows: self.rows,
            unknown: self.unknown,
        }
    }
}

fn by_score(scores: &[f32], own: u32, excluded: &[u32]) -> Standing {
    let score = scores[own as usize];
    if score.is_nan() {
        return Standing { above: scores.len() as u64, tied: 0 };
    }
    let count = |which: fn(f32, f32) -> bool| {
        let all = scores.iter().filter(|&&s| which(s, score)).count();
        let out = excluded.iter().filter(|&&at| which(scores[at as usize], score)).count();
        (all - out) as u64
    };
    Standing { above: count(|s, own| s > own), tied: count(|s, own| s == own) - 1 }
}

impl crate::job::EvalConfig {
    pub(crate) fn cutoffs(&self) -> Cutoffs {
        Cutoffs {
            ndcg: self.ndcg_at.clone(),
            recall: self.recall_at.clone(),
            mrr: self.mrr_at.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn candidates(vectors: Vec<f32>, counts: Vec<u64>) -> Candidates {
        let mut sorted_counts = counts.clone();
        sorted_counts.sort_unstable();
        let cutoffs = Cutoffs { ndcg: vec![3], recall: vec![1, 2], mrr: vec![] };
        Candidates {
            vectors,
            places: (0..counts.len()).map(|i| (FeatureKey(i as u64), i as u32)).collect(),
            counts,
            sorted_counts,
            model: Ranking::new(cutoffs.clone()),
            popularity: Ranking::new(cutoffs),
            rows: 0,
            unknown: 0,
        }
    }

    fn value(figures: &[RankingFigure], name: &str) -> f64 {
        figures.iter().find(|f| f.name == name).and_then(|f| f.value).expect(name)
    }

    #[test]
    fn places_by_score_and_by_count_leave_out_what_is_excluded() {
        let workers = Workers::new(NonZeroUsize::new(2).unwrap()).unwrap();
        // One dimension: the score of candidate i for user 1 is its vector.
        let mut all = candidates(vec![0.5, 0.9, 0.1, 0.5], vec![4, 1, 4, 2]);
        let row = |row, own, excluded: &[u32]| Row { row, own, excluded: excluded.to_vec() };
        let rows = [
            row(0, Some(1), &[]),     // first by score, last by count
            row(1, Some(0), &[1]),    // tied with 3 by score, with 2 by count
            row(2, Some(2), &[0, 3]), // behind 1 by score, alone at the head by count
            row(3, None, &[]),
        ];
        all.place(&rows, &[1.0, 1.0, 1.0, 1.0], 4, &workers);
        let report = all.finish();
        assert_eq!((report.rows, report.unknown, report.candidates), (4, 1, 4));
        assert_eq!(value(&report.figures, "recall@1"), (1.0 + 0.5 + 0.0) / 4.0);
        assert_eq!(value(&report.figures, "recall@2"), (1.0 + 1.0 + 1.0) / 4.0);
        assert_eq!(value(&report.popularity, "recall@1"), (0.0 + 0.5 + 1.0) / 4.0);
        let second = 1.0 / 3f64.log2();
        let expected = (1.0 + (1.0 + second) / 2.0 + second) / 4.0;
        assert!((value(&report.figures, "ndcg@3") - expected).abs() < 1e-12);
    }

    #[test]
    fn many_rows_in_many_tasks_are_those_of_one() {
        let n = 300;
        let vectors: Vec<f32> = (0..n).map(|i| ((i * 7919) % 101) as f32 / 101.0).collect();
        let counts: Vec<u64> = (0..n).map(|i| (i * 31 % 17) as u64).collect();
        let rows: Vec<Row> = (0..1000)
            .map(|row| Row { row, own: Some((row % n) as u32), excluded: vec![] })
            .collect();
        let users = vec![1.0; 1000];
        let figures = |threads: usize| {
            let workers = Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let mut all = candidates(vectors.clone(), counts.clone());
            all.place(&rows, &users, 1000, &workers);
            let report = all.finish();
            (report.figures, report.popularity)
        };
        assert_eq!(figures(1), figures(3));
        let above = |row: usize| vectors.iter().filter(|&&v| v > vectors[row % n]).count();
        let tied = |row: usize| vectors.iter().filter(|&&v| v == vectors[row % n]).count();
        let share =
            |row: usize| (1usize.saturating_sub(above(row)) as f64 / tied(row) as f64).min(1.0);
        let mean = (0..1000).map(share).sum::<f64>() / 1000.0;
        assert!((value(&figures(2).0, "recall@1") - mean).abs() < 1e-12);
    }
}
