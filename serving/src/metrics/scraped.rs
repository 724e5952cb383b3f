//! Collectors of counters that live elsewhere, as plain numbers.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, Result};

/// A collector that makes its series anew at each scrape, with the values of that moment.
pub(crate) struct Scraped<F> {
    series: F,
    descriptions: Vec<Desc>,
}

impl<F: Fn() -> Result<Vec<CounterVec>> + Send + Sync> Scraped<F> {
    /// Creates a collector of the series that `series` returns.
    ///
    /// # Errors
    /// Returns an error if the description of a series is invalid.
    pub(crate) fn new(series: F) -> Result<Self> {
        let descriptions = series()?.iter().flat_map(Collector::desc).cloned().collect();
        Ok(Self { series, descriptions })
    }
}

impl<F: Fn() -> Result<Vec<CounterVec>> + Send + Sync> Collector for Scraped<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The same series were created once before, so that this cannot fail.
        (self.series)().unwrap_or_default().iter().flat_map(Collector::collect).collect()
    }
}
