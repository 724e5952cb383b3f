//! The series of the tables of a run.

use prometheus::{IntCounterVec, IntGaugeVec};
use zillion_embedding::{SpillStatistics, TableStatistics};

use super::{Maker, raise_to, to_i64};

pub(super) struct Tables {
    rows: IntGaugeVec,
    narrow: IntGaugeVec,
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
    narrow_gradients: IntCounterVec,
    grown: IntCounterVec,
    hot: IntGaugeVec,
    cold: IntGaugeVec,
    budget: IntGaugeVec,
    file: IntGaugeVec,
    cached_files: IntGaugeVec,
    brought_in: IntCounterVec,
    ahead: IntCounterVec,
    spilled: IntCounterVec,
    compacted: IntCounterVec,
    reads: IntCounterVec,
    read_bytes: IntCounterVec,
    writes: IntCounterVec,
    written_bytes: IntCounterVec,
}

impl Tables {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let gauges = |name: &str, help: &str| make.gauges(name, help, &["table"]);
        let counters = |name: &str, help: &str| make.counters(name, help, &["table"]);
        Ok(Self {
            rows: gauges("zillion_embedding_rows", "Rows of a table.")?,
            narrow: gauges(
                "zillion_embedding_narrow_rows",
                "Of these, rows that do not have all of their floats yet.",
            )?,
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
            narrow_gradients: counters(
                "zillion_embedding_narrow_gradients_total",
                "Row gradients for narrow rows: what these do not have of them was dropped.",
            )?,
            grown: counters("zillion_embedding_grown_rows_total", "Narrow rows that became full.")?,
            hot: gauges("zillion_embedding_hot_rows", "Rows in memory.")?,
            cold: gauges("zillion_embedding_cold_rows", "Rows on disk.")?,
            budget: gauges(
                "zillion_embedding_spill_memory_bytes",
                "Memory that the rows of a table that spills may take.",
            )?,
            file: gauges("zillion_embedding_spill_file_bytes", "Files of a table that spills.")?,
            cached_files: gauges(
                "zillion_embedding_spill_cached_files",
                "Files of a table that spills that go through the page cache or lie in memory.",
            )?,
            brought_in: counters(
                "zillion_embedding_brought_in_rows_total",
                "Rows read from disk because a batch needed them.",
            )?,
            ahead: counters(
                "zillion_embedding_read_ahead_rows_total",
                "Of these, rows whose reading had begun before their batch was looked up.",
            )?,
            spilled: counters(
                "zillion_embedding_spilled_rows_total",
                "Rows written to disk because their memory was needed.",
            )?,
            compacted: counters(
                "zillion_embedding_compacted_rows_total",
                "Rows written again so that the space between them can be used.",
            )?,
            reads: counters("zillion_embedding_spill_reads_total", "Reads of spilled rows.")?,
            read_bytes: counters("zillion_embedding_spill_read_bytes_total", "Bytes of these.")?,
            writes: counters("zillion_embedding_spill_writes_total", "Writes of spilled rows.")?,
            written_bytes: counters(
                "zillion_embedding_spill_written_bytes_total",
                "Bytes of these.",
            )?,
        })
    }

    pub(super) fn figures(&self, tables: &[TableStatistics]) {
        for figures in tables {
            let table = figures.table.as_str();
            self.rows.with_label_values(&[table]).set(to_i64(figures.rows));
            self.narrow.with_label_values(&[table]).set(to_i64(figures.narrow_rows));
            self.candidates.with_label_values(&[table]).set(to_i64(figures.candidates));
            for (kind, bytes) in [
                ("payload", figures.payload_bytes),
                ("state", figures.state_bytes),
                ("index", figures.index_bytes),
                ("candidates", figures.candidate_bytes),
                ("staged", figures.staged_bytes),
                ("changes", figures.change_bytes),
                ("snapshot", figures.snapshot_bytes),
                ("slack", figures.slack_bytes),
                ("spill", figures.spill.map_or(0, |spill| spill.buffer_bytes)),
            ] {
                self.bytes.with_label_values(&[table, kind]).set(to_i64(bytes));
            }
            // All rows of a table that does not spill are in memory.
            let all_hot = SpillStatistics { hot_rows: figures.rows, ..Default::default() };
            self.spilling(table, &figures.spill.unwrap_or(all_hot));
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
                (&self.narrow_gradients, counted.narrow_gradients),
                (&self.grown, counted.grown),
            ] {
                raise_to(&series.with_label_values(&[table]), count);
            }
        }
    }

    fn spilling(&self, table: &str, spill: &SpillStatistics) {
        for (series, value) in [
            (&self.hot, spill.hot_rows),
            (&self.cold, spill.cold_rows),
            (&self.budget, spill.budget_bytes),
            (&self.file, spill.disk_bytes),
            (&self.cached_files, spill.cached_files),
        ] {
            series.with_label_values(&[table]).set(to_i64(value));
        }
        for (series, count) in [
            (&self.brought_in, spill.brought_in),
            (&self.ahead, spill.ahead),
            (&self.spilled, spill.spilled),
            (&self.compacted, spill.compacted),
            (&self.reads, spill.reads),
            (&self.read_bytes, spill.read_bytes),
            (&self.writes, spill.writes),
            (&self.written_bytes, spill.written_bytes),
        ] {
            raise_to(&series.with_label_values(&[table]), count);
        }
    }
}
