//! The rules by which a pass leaves out rows: bad rows up to a limit, and rows that the sampling
//! does not select.
//!
//! # Invariants
//! * The sampling of a row is a pure function of the seed, the position of the file in the list and
//!   the number of the row in the file. For a row with label 0, it also depends on the epoch, so
//!   that training uses all such rows in the long run. The number of threads, the order of the rows
//!   and the position at which reading resumes change nothing.
//! * A row that is left out keeps its position in the order, because positions count all rows of
//!   the data.

use zillion_feature::random::combine;

const SAMPLE: u64 = 0x7361_6d70;
const NEGATIVES: u64 = 0x6e65_6761;

/// The rules by which a pass leaves out rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowPolicy {
    /// The number of bad rows that a pass may leave out. With 0, the first bad row is an error.
    pub(crate) max_bad: u64,
    pub(crate) thinning: Thinning,
}

/// The sampling of the rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thinning {
    pub(crate) seed: u64,
    /// The share of all rows that is kept, or `None` to keep all.
    pub(crate) sample: Option<f64>,
    /// The position of a label in the schema, and the share of the rows with label 0 that is kept.
    /// `None` if all rows with label 0 are kept.
    pub(crate) negatives: Option<(usize, f64)>,
}

/// The rules for the rows of one file in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Picker {
    pub(crate) max_bad: u64,
    sample: Option<Draw>,
    /// The index of the label's field, and the draw that decides which rows with label 0 are kept.
    /// `None` if all rows with label 0 are kept.
    pub(crate) negatives: Option<(usize, Draw)>,
}

/// A pseudo-random choice of rows: each row is kept with the same probability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    stream: u64,
    keep: f64,
}

impl Draw {
    /// Returns whether the draw keeps a row. `row` is the index of the row in the file, counted
    /// from 0.
    #[inline]
    pub(crate) fn keeps(&self, row: u64) -> bool {
        let unit = (combine(self.stream, row) >> 11) as f64 / (1u64 << 53) as f64;
        unit < self.keep
    }
}

impl RowPolicy {
    /// Returns the rules for the file at position `file` of the list. `label_field` is the index of
    /// the field with the label that the sampling depends on. It is `None` in a pass that does not
    /// decode this label; such a pass keeps all rows with label 0.
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
    /// Returns whether rows are sampled. Sampling needs the number of each row in the file.
    pub(crate) fn thins(&self) -> bool {
        self.sample.is_some() || self.negatives.is_some()
    }

    /// Returns whether the sampling of all rows keeps a row. `row` is the index of the row in the
    /// file, counted from 0.
    #[inline]
    pub(crate) fn samples(&self, row: u64) -> bool {
        self.sample.is_none_or(|draw| draw.keeps(row))
    }
}

/// A record of which rows of a block are kept. The record uses no memory before the first row is
/// left out.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The number of rows in the record, including rows that are not kept.
    pub(crate) span: usize,
    /// The number of rows that are kept.
    pub(crate) rows: usize,
    /// The indices of the kept rows in the span, or `None` if all rows are kept.
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

    /// Records that the next `rows` rows are kept.
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

    /// Returns the index in the span of a kept row. `row` is its index among the kept rows.
    pub(crate) fn place(&self, row: usize) -> usize {
        self.places.as_ref().map_or(row, |places| places[row] as usize)
    }

    /// Removes kept rows from the record. `gone` holds their indices among the kept rows,
    /// ascending.
    pub(crate) fn remove(&mut self, gone: &[u32]) {
        let span = self.span as u32;
        remove_sorted(self.places.get_or_insert_with(|| (0..span).collect()), gone);
        self.rows -= gone.len();
    }
}

/// Removes the elements at the indices `gone`, which must be ascending.
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
        // A pass that does not decode the label does not sample the rows with label 0.
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
