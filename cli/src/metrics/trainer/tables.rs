//! The series of the tables of a run.

use prometheus::{IntCounterVec, IntGaugeVec};
use zillion_embedding::TableStatistics;

use super::{Maker, follow, whole};

pub(super) struct Tables {
    rows: IntGaugeVec,
    candidates: IntGaugeVec,
    bytes: IntGaugeVec,
    pulled: IntCounterVec,
    missing: IntCounterVec,
    pushed: IntCounterVec,
    created: IntCounterVec,
    admitted: IntCounterVec,
    waiting: IntCounterVec,
    evicted: IntCounterVec,
    displaced: IntCounterVec,
    lapsed: IntCounterVec,
    refused: IntCounterVec,
    refused_full: IntCounterVec,
    nonfinite: IntCounterVec,
    saturated: IntCounterVec,
}

impl Tables {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let gauges = |name: &str, help: &str| make.gauges(name, help, &["table"]);
        let counters = |name: &str, help: &str| make.counters(name, help, &["table"]);
        Ok(Self {
            rows: gauges("zillion_embedding_rows", "Rows of a table.")?,
            candidates: gauges("zillion_embedding_candidates", "Keys that wait to be admitted.")?,
            bytes: make.gauges(
                "zillion_embedding_bytes",
                "Memory of a table, by what it is for.",
                &["table", "kind"],
            )?,
            pulled: counters(
                "zillion_embedding_pulled_keys_total",
                "Unique keys of batches that training looked up.",
            )?,
            missing: counters(
                "zillion_embedding_missing_keys_total",
                "Of these, keys without a row: they read as their initial row.",
            )?,
            pushed: counters(
                "zillion_embedding_pushed_gradients_total",
                "Row gradients that were applied or staged.",
            )?,
            created: counters("zillion_embedding_created_rows_total", "Rows that were made.")?,
            admitted: counters(
                "zillion_embedding_admitted_rows_total",
                "Of these, rows of keys that admission has let in.",
            )?,
            waiting: counters(
                "zillion_embedding_waiting_gradients_total",
                "Row gradients dropped because their keys are not admitted yet.",
            )?,
            evicted: counters(
                "zillion_embedding_evicted_rows_total",
                "Rows that went, on schedule or to make room.",
            )?,
            displaced: counters(
                "zillion_embedding_displaced_rows_total",
                "Of these, rows that went to make room in a table at its limit.",
            )?,
            lapsed: counters(
                "zillion_embedding_lapsed_keys_total",
                "Keys that were forgotten before they were admitted.",
            )?,
            refused: counters(
                "zillion_embedding_refused_gradients_total",
                "Row gradients of keys that a fixed vocabulary does not have.",
            )?,
            refused_full: counters(
                "zillion_embedding_refused_full_gradients_total",
                "Row gradients of new keys that a table at its limit refused.",
            )?,
            nonfinite: counters(
                "zillion_embedding_nonfinite_gradients_total",
                "Row gradients dropped because a number in them was not finite.",
            )?,
            saturated: counters(
                "zillion_embedding_saturated_weights_total",
                "Weights that became the largest number of their type because they were beyond it.",
            )?,
        })
    }

    pub(super) fn figures(&self, tables: &[TableStatistics]) {
        for figures in tables {
            let table = figures.table.as_str();
            self.rows.with_label_values(&[table]).set(whole(figures.rows));
            self.candidates.with_label_values(&[table]).set(whole(figures.candidates));
            for (kind, bytes) in [
                ("payload", figures.payload_bytes),
                ("state", figures.state_bytes),
                ("index", figures.index_bytes),
                ("candidates", figures.candidate_bytes),
                ("staged", figures.staged_bytes),
                ("changes", figures.change_bytes),
                ("snapshot", figures.snapshot_bytes),
                ("slack", figures.slack_bytes),
            ] {
                self.bytes.with_label_values(&[table, kind]).set(whole(bytes));
            }
            let counted = &figures.counters;
            for (series, count) in [
                (&self.pulled, counted.pulled),
                (&self.missing, counted.missing),
                (&self.pushed, counted.pushed),
                (&self.created, counted.created),
                (&self.admitted, counted.admitted),
                (&self.waiting, counted.waiting),
                (&self.evicted, counted.evicted),
                (&self.displaced, counted.displaced),
                (&self.lapsed, counted.lapsed),
                (&self.refused, counted.refused),
                (&self.refused_full, counted.refused_full),
                (&self.nonfinite, counted.nonfinite),
                (&self.saturated, counted.saturated),
            ] {
                follow(&series.with_label_values(&[table]), count);
            }
        }
    }
}
