//! The metrics that a server exports, in the text format of Prometheus.

use std::collections::BTreeMap;

use serde::Serialize;

/// The values of all series in a scrape, by name and labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(BTreeMap<String, f64>);

/// A histogram of all observations, or of the observations between two scrapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// The upper bounds of the buckets in ascending order, each with the number of observations
    /// that do not exceed the bound. The last bound is infinite.
    buckets: Vec<(f64, f64)>,
    count: f64,
    sum: f64,
}

/// A few figures of a histogram of seconds. For percentiles, only the bounds of the buckets are
/// known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    count: u64,
    mean_ms: f64,
    /// The upper bound of the bucket that contains the median.
    p50_at_most_ms: f64,
    p99_at_most_ms: f64,
    #[serde(rename = "p99_9_at_most_ms")]
    p999_at_most_ms: f64,
    max_at_most_ms: f64,
}

impl Series {
    pub(crate) fn parse(text: &str) -> Self {
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(value).collect())
    }

    /// Returns the value of the first series with this name and any labels, or 0 if there is no
    /// such series.
    pub(crate) fn value(&self, name: &str) -> f64 {
        let is_named = |series: &&String| series.split('{').next() == Some(name);
        self.0.keys().find(is_named).and_then(|series| self.0.get(series)).copied().unwrap_or(0.0)
    }

    /// Returns the value of the series with exactly this name and these labels, or 0 if there is no
    /// such series.
    pub(crate) fn sample(&self, series: &str) -> f64 {
        self.0.get(series).copied().unwrap_or(0.0)
    }

    /// Returns the histogram with this name, summed over all labels.
    pub(crate) fn histogram(&self, name: &str) -> Histogram {
        let bucket = format!("{name}_bucket{{");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (series, &count) in self.0.iter().filter(|(series, _)| series.starts_with(&bucket)) {
            let bound = series.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
            let bound = match bound {
                Some("+Inf") => Some(f64::INFINITY),
                bound => bound.and_then(|bound| bound.parse().ok()),
            };
            let Some(bound) = bound else { continue };
            match buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, all)) => *all += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total = |what: &str| self.value(&format!("{name}_{what}"));
        Histogram { buckets, count: total("count"), sum: total("sum") }
    }
}

impl Histogram {
    /// Returns the histogram of the observations after the scrape `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| {
            let same = earlier.buckets.iter().find(|(other, _)| *other == bound);
            same.map_or(0.0, |(_, count)| *count)
        };
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count - before(bound)));
        Self {
            buckets: buckets.collect(),
            count: self.count - earlier.count,
            sum: self.sum - earlier.sum,
        }
    }

    /// Returns the upper bound of the bucket that contains the quantile `share`, or 0 if there is
    /// no such bucket.
    fn quantile_bound(&self, share: f64) -> f64 {
        let wanted = share * self.count;
        let found = self.buckets.iter().find(|(_, count)| *count >= wanted);
        found.map_or(0.0, |(bound, _)| *bound)
    }

    /// Returns two numbers for the largest bound that does not exceed `limit`: the share of
    /// observations up to this bound, and the bound itself.
    pub(crate) fn share_within(&self, limit: f64) -> (f64, f64) {
        let within = self.buckets.iter().rev().find(|(bound, _)| *bound <= limit * (1.0 + 1e-9));
        let (bound, count) = within.copied().unwrap_or_default();
        (if self.count > 0.0 { count / self.count } else { 1.0 }, bound)
    }

    pub(crate) fn summary(&self) -> Summary {
        // Times are rounded to the microsecond, and they are limited because JSON has no infinity.
        let ms = |seconds: f64| (seconds.min(1e9) * 1e6).round() / 1e3;
        Summary {
            count: self.count as u64,
            mean_ms: ms(self.sum / self.count.max(1.0)),
            p50_at_most_ms: ms(self.quantile_bound(0.5)),
            p99_at_most_ms: ms(self.quantile_bound(0.99)),
            p999_at_most_ms: ms(self.quantile_bound(0.999)),
            max_at_most_ms: ms(self.quantile_bound(1.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP t Time.
# TYPE t histogram
t_bucket{model=\"m\",le=\"0.0001\"} 10
t_bucket{model=\"m\",le=\"0.0005\"} 998
t_bucket{model=\"m\",le=\"0.001\"} 1000
t_bucket{model=\"m\",le=\"+Inf\"} 1000
t_sum{model=\"m\"} 0.2
t_count{model=\"m\"} 1000
layers{model=\"m\"} 3
plain 4
";

    #[test]
    fn a_scrape_is_understood() {
        let series = Series::parse(TEXT);
        assert_eq!(
            [series.value("layers"), series.value("plain"), series.value("t")],
            [3., 4., 0.]
        );
        let all = series.histogram("t");
        assert_eq!(all.share_within(5e-4), (0.998, 5e-4));
        assert_eq!(all.share_within(9e-4), (0.998, 5e-4));
        let summary = all.summary();
        assert_eq!((summary.count, summary.mean_ms), (1000, 0.2));
        assert_eq!([summary.p50_at_most_ms, summary.p999_at_most_ms], [0.5, 1.0]);
        let none = all.since(&all);
        assert_eq!((none.summary().count, none.share_within(5e-4).0), (0, 1.0));
        assert_eq!(series.histogram("absent"), Histogram::default());
    }
}
