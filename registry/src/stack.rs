//! The layers that a server reads for a chain of versions.
//!
//! A chain can have hundreds of deltas, but a lookup should read at most four layers. So
//! neighbouring layers are merged. The choice depends only on the row counts of the chain. So every
//! server computes the same layers, a restarted server finds its earlier merges, and a new delta
//! changes only a few of them.
//!
//! The rule is that of log-structured merge trees. If a run is not much smaller than the run before
//! it, the two are joined. So a row is rewritten only a logarithmic number of times. If more than
//! four layers remain, the newest ones are joined. The deltas are joined to the base when they have
//! a quarter of its rows.

use std::ops::Range;

use zillion_rows::layer::MAX_LAYERS;

/// The number of times by which a run must be larger than the next run. Otherwise, the two are
/// joined.
const RATIO: u64 = 4;

/// Returns the runs of versions, each of which is merged to one layer. `rows` has the number of
/// rows of each version's layer, the base first. A run of one version needs no merge.
pub(crate) fn stack(rows: &[u64]) -> Vec<Range<usize>> {
    let size = |run: &Range<usize>| rows[run.clone()].iter().sum::<u64>();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for next in 0..rows.len() {
        runs.push(next..next + 1);
        while let [.., before, last] = &runs[..] {
            let is_base = before.start == 0;
            let joins = if is_base {
                size(last).saturating_mul(RATIO) >= size(before)
            } else {
                size(last).saturating_mul(RATIO) > size(before)
            };
            if !joins && runs.len() <= MAX_LAYERS {
                break;
            }
            join(&mut runs);
        }
    }
    runs
}

fn join(runs: &mut Vec<Range<usize>>) {
    if let Some(last) = runs.pop()
        && let Some(before) = runs.last_mut()
    {
        before.end = last.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_covers_the_chain_in_few_layers() {
        let mut chain = vec![10_000_000];
        let mut rewritten = 0;
        let mut before = stack(&chain);
        for _ in 0..500 {
            chain.push(10_000);
            let runs = stack(&chain);
            assert!(runs.len() <= MAX_LAYERS);
            assert_eq!((runs[0].start, runs[runs.len() - 1].end), (0, chain.len()));
            assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
            for run in runs.iter().filter(|run| run.len() > 1 && !before.contains(run)) {
                rewritten += chain[run.clone()].iter().sum::<u64>();
            }
            before = runs;
        }
        // 5 M rows came in, and the base joined once or twice.
        assert!(rewritten < 60_000_000, "{rewritten}");
    }

    #[test]
    fn small_chains_have_small_stacks() {
        let ends = |rows: &[u64]| stack(rows).iter().map(|run| run.end).collect::<Vec<_>>();
        assert!(stack(&[]).is_empty());
        assert_eq!(ends(&[5]), [1]);
        assert_eq!(ends(&[1000, 10]), [1, 2]);
        assert_eq!(ends(&[1000, 10, 10]), [1, 3]);
        assert_eq!(ends(&[1000, 500]), [2]);
        assert_eq!(ends(&[0, 0]), [2]);
    }
}
