//! The kind of work that limits the speed of a job, and the advice on settings to change.

use serde::Serialize;

/// The kind of work that a job's steps spend most of their time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The steps wait for reading, decoding and planning batches.
    Reader,
    /// The steps pull and push rows.
    Table,
    /// The steps compute matrix products.
    Products,
    /// The steps read and write values, in kernels without matrix products and in the dense
    /// optimizer.
    Memory,
    /// The threads have no work.
    Waiting,
}

impl Bound {
    /// Returns the name of the bound.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Table => "table",
            Self::Products => "products",
            Self::Memory => "memory",
            Self::Waiting => "waiting",
        }
    }
}

/// The shares of the kinds of work in the time of the steps, which add up to one. For work that all
/// threads do together, the times of all threads are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// The share of reading: waiting for batches, and decoding while the model runs.
    pub reader: f64,
    /// The share of pulling and pushing rows.
    pub table: f64,
    /// The share of matrix products.
    pub products: f64,
    /// The share of other kernels and of the dense optimizer.
    pub memory: f64,
    /// The share of time in which threads have no work while the model runs, or in which they wait
    /// for the work between steps.
    pub waiting: f64,
}

impl Shares {
    /// Returns the shares with their kinds, from the largest to the smallest.
    pub fn sorted(&self) -> [(Bound, f64); 5] {
        let mut shares = [
            (Bound::Reader, self.reader),
            (Bound::Table, self.table),
            (Bound::Products, self.products),
            (Bound::Memory, self.memory),
            (Bound::Waiting, self.waiting),
        ];
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// Returns the bound of the job, which is the kind of work with the largest share.
    pub fn bound(&self) -> Bound {
        self.sorted()[0].0
    }
}

/// The figures that the advice depends on, in addition to the shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Circumstances {
    /// The number of threads in the pool.
    pub threads: usize,
    /// The number of lanes that share a batch.
    pub lanes: usize,
    /// The rate of the matrix products divided by the best rate of the machine; absent if there are
    /// no products.
    pub products_of_limit: Option<f64>,
    /// The rate of pulls divided by the machine's rate of random reads; absent if there are no
    /// rows.
    pub pulls_of_limit: Option<f64>,
    /// The share of the run's time that checkpoints take.
    pub checkpoint: f64,
    /// The share of the run's time that publishing versions takes.
    pub publish: f64,
    /// The share of the run's time that validation takes.
    pub validate: f64,
}

/// The smallest share of a run's time for which the advice mentions the work that happens outside
/// of steps.
const WORTH_A_WORD: f64 = 0.2;
/// The share of a measured best rate above which a job becomes faster only if it does less work.
const NEAR_THE_LIMIT: f64 = 0.6;

/// Returns lines of advice with the names of settings, the most useful line first. The first line
/// names the bound of the job.
pub fn advice(shares: &Shares, known: &Circumstances) -> Vec<String> {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let [(bound, share), ..] = shares.sorted();
    let share = percent(share);
    let mut lines = match bound {
        Bound::Reader => vec![
            format!("the reader bounds this job: {share} of the steps' time goes to reading, decoding and planning batches"),
            "convert text to Parquet once (`zillion data convert`), and leave out columns that no feature reads".to_owned(),
            format!(
                "decoding runs while the model computes: set more threads than {} (`run.threads`) if the machine has more cores",
                known.threads
            ),
        ],
        Bound::Table => vec![
            format!("the tables bound this job: {share} of the steps' time goes to pulling and pushing rows"),
            "set a larger `train.batch_size`, which looks up each frequent row once for more samples; set \
             `admission` in `[tables.X]`, which makes no rows for rare keys"
                .to_owned(),
            "make rows smaller: a smaller `dim` or `dtype = \"bf16\"` in `[tables.X]`; `rowwise_adagrad` has the least state".to_owned(),
        ],
        Bound::Products => {
            vec![format!("matrix products bound this job: {share} of all threads' time in the steps")]
        }
        Bound::Memory => vec![
            format!(
                "memory bandwidth bounds this job: {share} of the steps' time goes to kernels without matrix products, \
                 and to the dense optimizer"
            ),
            "leave out no pass (`train.passes_off`), and choose `train.tile_rows` so that the values of a tile fit the cache".to_owned(),
            "raise `train.batch_size` or `train.accumulate`: the dense optimizer costs the same for any batch, so \
             fewer steps take less time"
                .to_owned(),
        ],
        Bound::Waiting => vec![
            format!("waiting bounds this job: in {share} of the steps' time threads have no work"),
            match known.threads > known.lanes {
                true => format!(
                    "{} lanes occupy {} of {} threads: raise `train.lanes` (it is part of the result), or take fewer `run.threads`",
                    known.lanes, known.lanes, known.threads
                ),
                false => format!(
                    "batches are too small for {} threads: raise `train.batch_size`, or take fewer `run.threads`; check also \
                     that no other program uses the processors",
                    known.threads
                ),
            },
        ],
    };
    match (bound, known.pulls_of_limit, known.products_of_limit) {
        (Bound::Table, Some(part), _) => lines.push(format!(
            "pulls reach {} of the rate at which this machine reads random rows",
            percent(part)
        )),
        (Bound::Products, _, Some(part)) if part >= NEAR_THE_LIMIT => lines.push(format!(
            "the products run at {} of the best rate: only fewer products (narrower `model.hidden`) or more \
             threads (`run.threads`) are faster",
            percent(part)
        )),
        (Bound::Products, _, Some(part)) => lines.push(format!(
            "the products run at {} of the best rate: layers may be too narrow (set widths in `model.hidden` \
             that are multiples of 16), or tiles may be too short (raise `train.tile_rows`)",
            percent(part)
        )),
        _ => {}
    }
    lines.extend(advise_beside_steps(known));
    lines
}

/// Returns lines of advice on the work outside of steps that takes a large share of the run.
fn advise_beside_steps(known: &Circumstances) -> Vec<String> {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let mut lines = Vec::new();
    let beside = [
        (
            known.checkpoint,
            "checkpoints",
            "write fewer checkpoints (`train.checkpoint_every`), or only changes (`train.full_every`)",
        ),
        (known.publish, "versions", "publish less often (`publish.every`)"),
        (known.validate, "validation", "validate on fewer rows (`data.valid`)"),
    ];
    for (share, what, change) in beside {
        if share >= WORTH_A_WORD {
            lines.push(format!(
                "outside of the steps, {what} took {} of the run: {change}",
                percent(share)
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns shares in which the share of `bound` is the largest.
    fn mostly(bound: Bound) -> Shares {
        let share = |other: Bound| if other == bound { 0.6 } else { 0.1 };
        Shares {
            reader: share(Bound::Reader),
            table: share(Bound::Table),
            products: share(Bound::Products),
            memory: share(Bound::Memory),
            waiting: share(Bound::Waiting),
        }
    }

    #[test]
    fn the_largest_share_is_the_bound_and_its_setting_is_named() {
        let known = Circumstances { threads: 2, lanes: 8, ..Default::default() };
        for (bound, words, setting) in [
            (Bound::Reader, "the reader bounds", "`run.threads`"),
            (Bound::Table, "the tables bound", "`admission`"),
            (Bound::Products, "matrix products bound", "60 %"),
            (Bound::Memory, "memory bandwidth bounds", "`train.passes_off`"),
            (Bound::Waiting, "waiting bounds", "`train.batch_size`"),
        ] {
            let shares = mostly(bound);
            assert_eq!(shares.bound(), bound);
            let lines = advice(&shares, &known);
            assert!(lines[0].starts_with(words) && lines[0].contains("60 %"), "{lines:?}");
            assert!(lines.iter().any(|line| line.contains(setting)), "{lines:?}");
        }
    }

    #[test]
    fn advice_goes_by_what_is_known() {
        let about = |shares: &Shares, known: Circumstances| advice(shares, &known).join("\n");
        let many = Circumstances { threads: 16, lanes: 8, ..Default::default() };
        assert!(about(&mostly(Bound::Waiting), many).contains("raise `train.lanes`"));
        let products = mostly(Bound::Products);
        let near = Circumstances { products_of_limit: Some(0.8), ..Default::default() };
        assert!(about(&products, near).contains("narrower `model.hidden`"));
        let far = Circumstances { products_of_limit: Some(0.3), ..Default::default() };
        assert!(about(&products, far).contains("`train.tile_rows`"));
        let beside = Circumstances { checkpoint: 0.5, publish: 0.1, ..Default::default() };
        let lines = about(&products, beside);
        assert!(lines.contains("`train.checkpoint_every`") && !lines.contains("`publish.every`"));
    }
}
