//! The rows of the data that a pass leaves out: bad rows up to a limit, and rows that are not
//! drawn.
//!
//! # Invariants
//! * Whether a row is drawn is a pure function of the seed, the file's place in the list and the
//!   row's number in the file. For rows with label 0 it also depends on the epoch, so that all of
//!   them are seen in the end. Threads, the order of rows and the place where reading was resumed
//!   do not matter.
//! * A row that is left out keeps its place in the order: positions count rows of the data.

use zillion_feature::random::combine;

const SAMPLE: u64 = 0x7361_6d70;
const NEGATIVES: u64 = 0x6e65_6761;

/// The rows that a pass leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowPolicy {
    /// The number of bad rows that a pass may leave out; with 0 the first one is an error.
    pub(crate) max_bad: u64,
    pub(crate) thinning: Thinning,
}

/// The sampling of rows of the data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thinning {
    pub(crate) seed: u64,
    /// The share of all rows that is drawn.
    pub(crate) sample: Option<f64>,
    /// The position of a label among the schema's labels, and the share of the rows with label 0
    /// that is drawn, if not all are.
    pub(crate) negatives: Option<(usize, f64)>,
}

/// The choice of the rows of one file in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Picker {
    pub(crate) max_bad: u64,
    sample: Option<Draw>,
    /// The field that holds the label, and the draw among the rows with label 0.
    pub(crate) negatives: Option<(usize, Draw)>,
}

/// A pseudo-random decision for each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    stream: u64,
    keep: f64,
}

impl Draw {
    /// Returns whether a row of the file, counted from 0, is drawn.
    #[inline]
    pub(crate) fn keeps(&self, row: u64) -> bool {
        let unit = (combine(self.stream, row) >> 11) as f64 / (1u64 << 53) as f64;
        unit < self.keep
    }
}

impl RowPolicy {
    /// Returns the picker for the file at this place of the list. `label_field` is the field that
    /// holds the label whose zeros are sampled; in a pass that does not decode the label, all rows
    /// are kept.
    pub(crate) fn of_file(&self, file: usize, epoch: u64, label_field: Option<usize>) -> Picker {
        let Thinning { seed, sample, negatives } = self.thinning;
        let stream =
            |kind: u64, epoch: u64| combine(combine(combine(seed, kind), epoch), file as u64);
        Picker {
            max_bad: self.max_bad,
            sample: sample.map(|keep| Draw { stream: stream(SAMPLE, 0), keep }),
            negatives: negatives
                .zip(label_field)
                .map(|((_, keep), field)| (field, Draw { stream: stream(NEGATIVES, epoch), keep })),
        }
    }
}

impl Picker {
    /// Returns whether rows are sampled, so that the number of each row must be known.
    pub(crate) fn thins(&self) -> bool {
        self.sample.is_some() || self.negatives.is_some()
    }

    /// Returns whether a row of the file, counted from 0, is in the sample of all rows.
    #[inline]
    pub(crate) fn samples(&self, row: u64) -> bool {
        self.sample.is_none_or(|draw| draw.keeps(row))
    }
}

/// The record of the rows of a block that are kept. The record needs no memory until the first row
/// is left out.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The number of rows that were recorded.
    pub(crate) span: usize,
    /// The number of rows that are kept.
    pub(crate) rows: usize,
    /// The places of the kept rows, if some rows are not kept.
    pub(crate) places: Option<Vec<u32>>,
}

impl Kept {
    #[inline]
    pub(crate) fn keep(&mut self) {
        if let Some(places) = &mut self.places {
            places.push(self.span as u32);
        }
        self.span += 1;
        self.rows += 1;
    }

    /// Records several rows that are kept.
    pub(crate) fn keep_all(&mut self, rows: usize) {
        if let Some(places) = &mut self.places {
            places.extend((self.span as u32..).take(rows));
        }
        self.span += rows;
        self.rows += rows;
    }

    #[inline]
    pub(crate) fn leave(&mut self) {
        let rows = self.rows as u32;
        self.places.get_or_insert_with(|| (0..rows).collect());
        self.span += 1;
    }

    /// Returns the place of the kept row with the number `row`.
    pub(crate) fn place(&self, row: usize) -> usize {
        self.places.as_ref().map_or(row, |places| places[row] as usize)
    }

    /// Removes rows that were kept, by their ascending numbers among the kept rows.
    pub(crate) fn remove(&mut self, gone: &[u32]) {
        let span = self.span as u32;
        remove_sorted(self.places.get_or_insert_with(|| (0..span).collect()), gone);
        self.rows -= gone.len();
    }
}

/// Removes the elements at the given places, which ascend.
pub(crate) fn remove_sorted<T>(values: &mut Vec<T>, gone: &[u32]) {
    let mut gone = gone.iter().peekable();
    let mut place = 0;
    values.retain(|_| {
        let stays = gone.next_if(|&&at| at == place).is_none();
        place += 1;
        stays
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(sample: Option<f64>, keep: Option<f64>) -> RowPolicy {
        let negatives = keep.map(|keep| (0, keep));
        RowPolicy { max_bad: 0, thinning: Thinning { seed: 3, sample, negatives } }
    }

    #[test]
    fn draws_have_their_share_and_differ_by_file_and_negatives_by_epoch() {
        let n = 100_000;
        let sampled = |file, epoch| {
            let picker = policy(Some(0.1), None).of_file(file, epoch, None);
            (0..n).filter(|&row| picker.samples(row)).collect::<Vec<_>>()
        };
        assert!((9_500..10_500).contains(&sampled(0, 0).len()));
        assert_eq!(sampled(0, 0), sampled(0, 1));
        assert_ne!(sampled(0, 0), sampled(1, 0));
        let negatives = |epoch| {
            let picker = policy(None, Some(0.3)).of_file(0, epoch, Some(5));
            let (field, draw) = picker.negatives.unwrap();
            assert_eq!(field, 5);
            (0..n).filter(|&row| draw.keeps(row)).collect::<Vec<_>>()
        };
        assert!((29_000..31_000).contains(&negatives(0).len()));
        assert_ne!(negatives(0), negatives(1));
        let all = policy(Some(1.0), None).of_file(0, 0, None);
        assert!((0..n).all(|row| all.samples(row)));
        // A pass without the label does not sample the rows with label 0.
        assert!(!policy(None, Some(0.3)).of_file(0, 0, None).thins());
    }

    #[test]
    fn what_stays_is_noted() {
        let mut kept = Kept::default();
        for stays in [true, true, false, true, false, true] {
            if stays { kept.keep() } else { kept.leave() }
        }
        assert_eq!((kept.span, kept.rows, kept.place(2)), (6, 4, 3));
        kept.remove(&[0, 3]);
        assert_eq!((kept.rows, kept.places), (2, Some(vec![1, 3])));
        let mut all = Kept { span: 3, rows: 3, places: None };
        all.remove(&[1]);
        assert_eq!((all.rows, all.places), (2, Some(vec![0, 2])));
    }
}
