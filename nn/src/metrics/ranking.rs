//! Ranking metrics. They measure how many relevant items are at the beginning of a list.
//!
//! A list is the rows of a group (a user, a request) or, in retrieval, all candidates of a row. A
//! list without relevant items is left out of the mean.
//!
//! * `recall@k`: the share of the relevant items that are among the first k.
//! * `ndcg@k` (Järvelin & Kekäläinen 2002): the sum of `1 / log2(1 + place)` over the relevant
//!   items among the first k, divided by the same sum for the best order. The gain of a relevant
//!   item is 1.
//! * `mrr@k`: one divided by the place of the first relevant item, or 0 if it is not among the
//!   first k.
//!
//! Rows with equal scores have no order, so a metric is averaged over all their possible orders
//! (McSherry & Najork 2008). A model that gives every row the same score therefore gets the result
//! of random guessing. The order of the rows in the file has no effect.

use serde::Serialize;

use super::input::rank_key;

/// The ranking metrics to compute. Each metric has a value k, and considers only the first k places
/// of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cutoffs {
    /// The values of k for which `ndcg@k` is computed.
    pub ndcg: Vec<u32>,
    /// The values of k for which `recall@k` is computed.
    pub recall: Vec<u32>,
    /// The values of k for which `mrr@k` is computed.
    pub mrr: Vec<u32>,
}

impl Cutoffs {
    /// Returns whether no ranking metric is requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ndcg.is_empty() && self.recall.is_empty() && self.mrr.is_empty()
    }
}

/// A ranking metric: its name and its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankingFigure {
    /// The name of the metric, such as `ndcg@10` or `recall@10`.
    pub name: String,
    /// The mean over lists; `None` if no list has a relevant item.
    pub value: Option<f64>,
}

/// The sums of ranking metrics over lists, in the order in which the lists are pushed.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    cutoffs: Cutoffs,
    ndcg: Vec<f64>,
    recall: Vec<f64>,
    mrr: Vec<f64>,
    lists: u64,
}

impl Ranking {
    /// Creates the sums, which contain no list yet.
    #[must_use]
    pub fn new(cutoffs: Cutoffs) -> Self {
        let zeros = |cutoffs: &[u32]| vec![0.0; cutoffs.len()];
        let (ndcg, recall) = (zeros(&cutoffs.ndcg), zeros(&cutoffs.recall));
        let mrr = zeros(&cutoffs.mrr);
        Self { cutoffs, ndcg, recall, mrr, lists: 0 }
    }

    /// Returns the number of lists with a relevant item that have been pushed.
    #[must_use]
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// Adds a list. Each row is a score and a flag, which is `true` if the row is relevant. The
    /// list is sorted by score. A list without a relevant row is ignored.
    pub fn push_list(&mut self, rows: &mut [(f32, bool)]) {
        let wanted = rows.iter().filter(|(_, wanted)| *wanted).count() as u64;
        if wanted == 0 {
            return;
        }
        rows.sort_unstable_by_key(|&(score, _)| std::cmp::Reverse(rank_key(score)));
        self.lists += 1;
        let (mut above, mut is_found) = (0, false);
        for equal in rows.chunk_by(|a, b| rank_key(a.0) == rank_key(b.0)) {
            let hits = equal.iter().filter(|(_, wanted)| *wanted).count() as f64;
            let tied = equal.len() as u64;
            for (sum, &k) in self.ndcg.iter_mut().zip(&self.cutoffs.ndcg) {
                let ideal = discounts(0, wanted.min(u64::from(k)));
                *sum += hits * mean_discount(above, tied, k) / ideal;
            }
            for (sum, &k) in self.recall.iter_mut().zip(&self.cutoffs.recall) {
                *sum += hits * share_within(above, tied, k) / wanted as f64;
            }
            if hits > 0.0 && !is_found {
                is_found = true;
                for (sum, &k) in self.mrr.iter_mut().zip(&self.cutoffs.mrr) {
                    *sum += mean_reciprocal(above, tied, hits as u64, k);
                }
            }
            above += tied;
        }
    }

    /// Adds a list with one relevant row: `above` rows have a higher score, and `others_tied` other
    /// rows have the same score.
    pub fn push_place(&mut self, above: u64, others_tied: u64) {
        self.lists += 1;
        for (sum, &k) in self.ndcg.iter_mut().zip(&self.cutoffs.ndcg) {
            *sum += mean_discount(above, others_tied + 1, k);
        }
        for (sum, &k) in self.recall.iter_mut().zip(&self.cutoffs.recall) {
            *sum += share_within(above, others_tied + 1, k);
        }
        for (sum, &k) in self.mrr.iter_mut().zip(&self.cutoffs.mrr) {
            *sum += mean_reciprocal(above, others_tied + 1, 1, k);
        }
    }

    /// Returns the means over the lists.
    #[must_use]
    pub fn finish(&self) -> Vec<RankingFigure> {
        let mean = |sum: f64| (self.lists > 0).then(|| sum / self.lists as f64);
        let figures = |what: &'static str, cutoffs: &[u32], sums: &[f64]| -> Vec<RankingFigure> {
            let figure = |(k, &sum): (&u32, &f64)| RankingFigure {
                name: format!("{what}@{k}"),
                value: mean(sum),
            };
            cutoffs.iter().zip(sums).map(figure).collect()
        };
        let mut all = figures("ndcg", &self.cutoffs.ndcg, &self.ndcg);
        all.extend(figures("recall", &self.cutoffs.recall, &self.recall));
        all.extend(figures("mrr", &self.cutoffs.mrr, &self.mrr));
        all
    }
}

/// Returns the fraction of the places `above + 1 ..= above + tied` that are among the first k
/// places.
fn share_within(above: u64, tied: u64, k: u32) -> f64 {
    u64::from(k).saturating_sub(above).min(tied) as f64 / tied as f64
}

/// Returns the mean discount of the places `above + 1 ..= above + tied`. The discount of a place
/// after the k-th place is 0.
fn mean_discount(above: u64, tied: u64, k: u32) -> f64 {
    let end = (above + tied).min(u64::from(k));
    if end <= above { 0.0 } else { discounts(above, end) / tied as f64 }
}

/// Returns the mean over all orders of `tied` rows, `hits` of which are relevant, of one divided by
/// the place of the first relevant row. `above` rows stand before them. A place after the k-th
/// counts 0.
fn mean_reciprocal(above: u64, tied: u64, hits: u64, k: u32) -> f64 {
    let (mut none_before, mut mean) = (1.0, 0.0);
    for before in 0..=tied - hits {
        let place = above + before + 1;
        if place > u64::from(k) {
            break;
        }
        let share = hits as f64 / (tied - before) as f64;
        mean += none_before * share / place as f64;
        none_before *= 1.0 - share;
    }
    mean
}

/// Returns the sum of the discounts of the places `from + 1 ..= to`.
fn discounts(from: u64, to: u64) -> f64 {
    (from + 1..=to).map(|place| 1.0 / ((1 + place) as f64).log2()).sum()
}

/// Computes ranking metrics over the rows of each group. Rows of weight 0 are ignored. All other
/// weights have no effect.
pub(super) fn by_group(
    cutoffs: &Cutoffs,
    scores: &[f32],
    labels: &[bool],
    weights: Option<&[f32]>,
    groups: &[u64],
) -> Vec<RankingFigure> {
    let counts = |&row: &u32| weights.is_none_or(|weights| weights[row as usize] != 0.0);
    let mut order: Vec<u32> = (0..scores.len() as u32).filter(counts).collect();
    order.sort_unstable_by_key(|&row| (groups[row as usize], row));
    let mut ranking = Ranking::new(cutoffs.clone());
    let mut rows = Vec::new();
    for group in order.chunk_by(|&a, &b| groups[a as usize] == groups[b as usize]) {
        rows.clear();
        rows.extend(group.iter().map(|&row| (scores[row as usize], labels[row as usize])));
        ranking.push_list(&mut rows);
    }
    ranking.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cutoffs() -> Cutoffs {
        Cutoffs { ndcg: vec![1, 3, 10], recall: vec![1, 2, 10], mrr: vec![1, 2, 10] }
    }

    /// Returns all permutations of the numbers below `n`.
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for shorter in orders(n - 1) {
            for at in 0..n {
                let mut order = shorter.clone();
                order.insert(at, n - 1);
                all.push(order);
            }
        }
        all
    }

    /// Returns the means over all orders of the rows in which the scores descend. Rows with equal
    /// scores may have any order.
    fn brute_force(rows: &[(f32, bool)]) -> Option<Vec<f64>> {
        let wanted = rows.iter().filter(|r| r.1).count();
        if wanted == 0 {
            return None;
        }
        let sorted = |o: &Vec<usize>| o.windows(2).all(|w| rows[w[0]].0 >= rows[w[1]].0);
        let orders: Vec<_> = orders(rows.len()).into_iter().filter(sorted).collect();
        let mean = |figure: &dyn Fn(&[bool]) -> f64| {
            let of = |o: &Vec<usize>| figure(&o.iter().map(|&i| rows[i].1).collect::<Vec<_>>());
            orders.iter().map(of).sum::<f64>() / orders.len() as f64
        };
        let gain = |hits: &[bool], k: u32| -> f64 {
            let place =
                |(i, &hit): (usize, &bool)| f64::from(u8::from(hit)) / (i as f64 + 2.0).log2();
            hits.iter().enumerate().take(k as usize).map(place).sum()
        };
        let mut figures = Vec::new();
        for k in cutoffs().ndcg {
            let best = gain(&vec![true; wanted], k);
            figures.push(mean(&|hits| gain(hits, k) / best));
        }
        for k in cutoffs().recall {
            figures.push(mean(&|hits| {
                hits.iter().take(k as usize).filter(|h| **h).count() as f64 / wanted as f64
            }));
        }
        for k in cutoffs().mrr {
            figures.push(mean(&|hits| {
                let first = hits.iter().take(k as usize).position(|hit| *hit);
                first.map_or(0.0, |place| 1.0 / (place as f64 + 1.0))
            }));
        }
        Some(figures)
    }

    proptest! {
        #[test]
        fn equals_the_mean_over_all_orders_of_equals(
            rows in prop::collection::vec(((-2i32..2).prop_map(|s| s as f32), any::<bool>(), 0u64..3), 0..14)
        ) {
            let mut groups: std::collections::BTreeMap<u64, Vec<(f32, bool)>> = Default::default();
            rows.iter().for_each(|r| groups.entry(r.2).or_default().push((r.0, r.1)));
            prop_assume!(groups.values().all(|g| g.len() <= 6));
            let each: Vec<Vec<f64>> = groups.values().filter_map(|g| brute_force(g)).collect();
            let scores: Vec<f32> = rows.iter().map(|r| r.0).collect();
            let labels: Vec<bool> = rows.iter().map(|r| r.1).collect();
            let ids: Vec<u64> = rows.iter().map(|r| r.2).collect();
            let found = by_group(&cutoffs(), &scores, &labels, None, &ids);
            for (at, figure) in found.iter().enumerate() {
                let mean = each.iter().map(|g| g[at]).sum::<f64>() / each.len() as f64;
                match figure.value {
                    Some(value) => prop_assert!((value - mean).abs() < 1e-12, "{figure:?} {mean}"),
                    None => prop_assert!(each.is_empty()),
                }
            }
        }

        #[test]
        fn a_place_is_a_list_with_one_wanted_row(above in 0u64..12, tied in 0u64..4, below in 0u64..4) {
            let mut rows: Vec<(f32, bool)> = Vec::new();
            rows.extend((0..above).map(|_| (2.0, false)));
            rows.extend((0..tied).map(|_| (1.0, false)));
            rows.push((1.0, true));
            rows.extend((0..below).map(|_| (0.0, false)));
            let (mut by_list, mut by_place) = (Ranking::new(cutoffs()), Ranking::new(cutoffs()));
            by_list.push_list(&mut rows);
            by_place.push_place(above, tied);
            prop_assert_eq!(by_list.finish(), by_place.finish());
        }
    }

    #[test]
    fn rows_of_weight_zero_and_lists_of_nothing_do_not_count() {
        let cutoffs = Cutoffs { ndcg: vec![], recall: vec![1], mrr: vec![] };
        let value = |weights: Option<&[f32]>| {
            let scores = [0.9, 0.5, 0.1, 0.7];
            let labels = [false, true, false, false];
            by_group(&cutoffs, &scores, &labels, weights, &[1, 1, 1, 2])[0].value
        };
        assert_eq!(value(None), Some(0.0));
        assert_eq!(value(Some(&[0.0, 1.0, 1.0, 1.0])), Some(1.0));
        assert_eq!(value(Some(&[1.0, 0.0, 1.0, 1.0])), None);
    }
}
