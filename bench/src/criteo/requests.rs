//! The requests with the shape of Criteo's rows. The ids follow Zipf's law, and the numbers lie
//! between -1 and 1.

use anyhow::Result;
use zillion_feature::random::combine;
use zillion_feature::{RawColumn, RawColumns, RawValues};

use super::{HISTORY, IDS, NUMBERS};
use crate::load::bodies::{Body, Recipe};

/// The exponent of Zipf's law. A larger exponent makes frequent ids more frequent.
const ZIPF: f64 = 1.2;

/// The part of a request that all its candidates share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UserPart {
    /// The number of the first ids that have one value for the request.
    pub(crate) shared_fields: usize,
    /// The number of ids in the user's history. With 0, the model has no history.
    pub(crate) history: usize,
}

/// A fixed number of different requests, which are sent again and again in the same order.
pub(crate) struct Requests(Vec<RawColumns<'static>>);

impl Requests {
    /// Draws `different` requests of `candidates` rows. The ids are drawn in the same way as in the
    /// benchmark of the compared system: by Zipf's law, and then scattered by a factor within runs
    /// of 50,000 ids.
    pub(crate) fn new(rows: u64, candidates: usize, different: usize) -> Self {
        Self::with_user(rows, candidates, different, UserPart::default())
    }

    /// Draws the requests of [`Requests::new`], in which some ids have one value for all rows of a
    /// request. Each request has another user.
    pub(crate) fn with_user(
        rows: u64,
        candidates: usize,
        different: usize,
        user: UserPart,
    ) -> Self {
        let column = |values| RawColumn { values, lengths: None, is_shared: false };
        let request = |request: u64| {
            let mut columns = RawColumns::new();
            for i in 0..IDS {
                let mut stream = Stream::new(combine(request, i as u64));
                let is_shared = i < user.shared_fields;
                let count = if is_shared { 1 } else { candidates };
                let values = RawValues::Ints(stream.ids(rows, count));
                let name = format!("C{}", i + 1).into();
                columns.insert(name, RawColumn { is_shared, ..column(values) });
            }
            if user.history > 0 {
                let history = history(rows, 1, user.history, request);
                columns.insert(HISTORY.into(), RawColumn { is_shared: true, ..history });
            }
            for i in 0..NUMBERS {
                let mut stream = Stream::new(combine(request, (IDS + i) as u64));
                let values = (0..candidates).map(|_| 2.0 * stream.unit() - 1.0);
                let values = RawValues::Floats(values.collect());
                columns.insert(format!("I{}", i + 1).into(), column(values));
            }
            columns
        };
        Self((0..different as u64).map(request).collect())
    }

    /// Returns the bodies of all requests.
    pub(crate) fn bodies(&self, recipe: &Recipe) -> Result<Vec<Body>> {
        self.0.iter().map(|columns| recipe.body(columns.clone())).collect()
    }

    /// Returns the columns of request `i`, counted from 0. An index after the last request
    /// continues with the first request.
    pub(crate) fn get(&self, i: usize) -> &RawColumns<'static> {
        &self.0[i % self.0.len()]
    }
}

/// Draws a history of `values` ids for each of `count` rows.
pub(crate) fn history(rows: u64, count: usize, values: usize, request: u64) -> RawColumn<'static> {
    let mut stream = Stream::new(combine(request, (IDS + NUMBERS) as u64));
    let ids = RawValues::Ints(stream.ids(rows, count * values));
    RawColumn { values: ids, lengths: Some(vec![values; count]), is_shared: false }
}

/// A sequence of random numbers.
struct Stream {
    seed: u64,
    next: u64,
}

impl Stream {
    fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    /// Draws a number from 0 (included) to 1 (excluded).
    fn unit(&mut self) -> f64 {
        self.next += 1;
        (combine(self.seed, self.next) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws `count` ids of a table with `rows` rows.
    fn ids(&mut self, rows: u64, count: usize) -> Vec<i64> {
        let mut id = || {
            let spread = (self.unit() * 50_000.0) as i64;
            let id = self.zipf(ZIPF).wrapping_mul(7919).wrapping_add(spread);
            id.rem_euclid(rows as i64)
        };
        (0..count).map(|_| id()).collect()
    }

    /// Draws a rank from Zipf's law with the exponent `a`, which must be above 1. The rank fits an
    /// `i64`. The method is Devroye's rejection (Non-Uniform Random Variate Generation, X.6.1),
    /// which numpy uses too.
    fn zipf(&mut self, a: f64) -> i64 {
        let b = 2f64.powf(a - 1.0);
        loop {
            let (u, v) = (1.0 - self.unit(), self.unit());
            let x = u.powf(-1.0 / (a - 1.0)).floor();
            // A rank that does not fit an `i64` is drawn again.
            if x >= i64::MAX as f64 {
                continue;
            }
            let t = (1.0 + 1.0 / x).powf(a - 1.0);
            if v * x * (t - 1.0) / (b - 1.0) <= t / b {
                return x as i64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let mut stream = Stream::new(7);
        let draws = 200_000;
        let mut counts = [0u32; 4];
        for _ in 0..draws {
            let rank = stream.zipf(2.0);
            assert!(rank >= 1);
            if let Some(count) = counts.get_mut(rank as usize) {
                *count += 1;
            }
        }
        // For the exponent 2, P(k) = k^-2 / zeta(2), and zeta(2) = 1.644934.
        for (k, &count) in counts.iter().enumerate().skip(1) {
            let wanted = f64::from(draws) / (k * k) as f64 / 1.644_934;
            let found = f64::from(count);
            assert!((found - wanted).abs() < 5.0 * wanted.sqrt(), "rank {k}: {found} and {wanted}");
        }
    }

    #[test]
    fn requests_are_rows_of_the_table_and_differ() {
        let requests = Requests::new(1000, 5, 2);
        for columns in &requests.0 {
            assert_eq!(columns.len(), IDS + NUMBERS);
            for column in columns.values() {
                assert_eq!(column.values.len(), 5);
                if let RawValues::Ints(ids) = &column.values {
                    assert!(ids.iter().all(|id| (0..1000).contains(id)));
                }
            }
        }
        assert_ne!(requests.get(0), requests.get(1));
        assert_eq!(requests.get(0), requests.get(2));
    }

    #[test]
    fn the_ids_of_a_user_have_one_value_for_a_request() {
        let user = UserPart { shared_fields: 3, history: 7 };
        let requests = Requests::with_user(1000, 5, 2, user);
        let plain = Requests::new(1000, 5, 2);
        for (columns, plain) in requests.0.iter().zip(&plain.0) {
            for (name, column) in columns {
                let is_user = ["C1", "C2", "C3", HISTORY].contains(&name.as_ref());
                assert_eq!(column.is_shared, is_user, "{name}");
                match name.as_ref() {
                    HISTORY => assert_eq!(column.lengths.as_deref(), Some(&[7][..])),
                    _ if is_user => assert_eq!(column.values.len(), 1),
                    name => assert_eq!(*column, plain[name]),
                }
            }
        }
        assert_ne!(requests.get(0)["C1"], requests.get(1)["C1"], "each request has another user");
        assert_ne!(requests.get(0)[HISTORY], requests.get(1)[HISTORY]);
    }
}
