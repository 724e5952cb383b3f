//! The growth of the number of keys with the size of the data, by Heaps' law `keys = k · rows^β`.
//! The law is fitted to measured numbers of keys.

use serde::Serialize;

/// The smallest number of points from which a law is fitted.
const LEAST: usize = 6;
/// The share of the data before the first point of a fit. At the beginning of the data, nearly
/// every row brings a new key, and the curve does not yet follow a power law.
const BEGIN: f64 = 1.0 / 32.0;

/// Heaps' law, fitted to measured numbers of keys, with the errors of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Heaps {
    /// The factor of the law, `k`.
    pub k: f64,
    /// The exponent of the law, `β`: 1 if every row brings new keys, 0 if no row does.
    pub beta: f64,
    /// The root mean square of the relative error at the fitted points.
    pub error: f64,
    /// The relative error of a prediction: a law is fitted to the first half of the data and
    /// predicts the number of keys at the end. A value above 0 means that the prediction is too
    /// high. `None` if the first half has too few points.
    pub foresight: Option<f64>,
}

impl Heaps {
    /// Fits the law to points (rows, keys), which must be in ascending order. Returns `None` if
    /// there are too few points.
    pub fn fit(points: &[(u64, f64)]) -> Option<Self> {
        let &(end, last) = points.last()?;
        let of = |up_to: f64| {
            let used = points.iter().filter(|&&(rows, keys)| {
                rows as f64 >= BEGIN * up_to && rows as f64 <= up_to && keys > 0.0
            });
            line(&used.map(|&(rows, keys)| ((rows as f64).ln(), keys.ln())).collect::<Vec<_>>())
        };
        let (log_k, beta, error) = of(end as f64)?;
        let foresight = of(end as f64 / 2.0)
            .map(|(log_k, beta, _)| (log_k + beta * (end as f64).ln()).exp() / last - 1.0);
        Some(Self { k: log_k.exp(), beta, error, foresight })
    }

    /// Returns the number of keys that the law predicts for this number of rows.
    pub fn keys(&self, rows: f64) -> f64 {
        self.k * rows.powf(self.beta)
    }
}

/// Fits a line to points by least squares. Returns its intercept, its slope (limited to the range
/// from 0 to 1) and the root mean square of the error, or `None` if no line can be fitted. The
/// weight of a point is its distance from the point before, so that the many points at the end do
/// not dominate.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    if points.len() < LEAST {
        return None;
    }
    let weight = |at: usize| match at {
        0 => points[1].0 - points[0].0,
        at => points[at].0 - points[at - 1].0,
    };
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().enumerate().map(|(at, &(x, y))| weight(at) * of(x, y)).sum()
    };
    let all = sum(&|_, _| 1.0);
    let (x, y) = (sum(&|x, _| x) / all, sum(&|_, y| y) / all);
    let spread = sum(&|a, _| (a - x) * (a - x));
    if spread <= 0.0 {
        return None;
    }
    let slope = (sum(&|a, b| (a - x) * (b - y)) / spread).clamp(0.0, 1.0);
    let error = sum(&|a, b| ((y + slope * (a - x) - b).exp() - 1.0).powi(2)) / all;
    Some((y - slope * x, slope, error.sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_is_found_again() {
        let points: Vec<(u64, f64)> =
            (1..=256).map(|i| (i * 1000, 3.0 * (i as f64 * 1000.0).powf(0.6))).collect();
        let law = Heaps::fit(&points).unwrap();
        assert!((law.beta - 0.6).abs() < 1e-9 && (law.k - 3.0).abs() < 1e-6, "{law:?}");
        assert!(law.error < 1e-9 && law.foresight.unwrap().abs() < 1e-9);
        assert!((law.keys(1e6) / (3.0 * 1e6f64.powf(0.6)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_vocabulary_that_ends_shows_in_the_foresight() {
        let points: Vec<(u64, f64)> =
            (1..=256).map(|i| (i * 1000, (i as f64 * 1000.0).powf(0.8).min(9000.0))).collect();
        let law = Heaps::fit(&points).unwrap();
        assert!(law.foresight.unwrap() > 0.05 && law.error > 0.05, "{law:?}");
        assert_eq!(Heaps::fit(&points[..5]), None);
    }
}
