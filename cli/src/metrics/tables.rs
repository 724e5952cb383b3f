//! The series of the tables of a run, which a trainer and a parameter server have.

use prometheus::{CounterVec, GaugeVec};
use zillion_embedding::{SpillStatistics, TableStatistics};

use super::maker::{Maker, raise_to};

/// A function that reads the value of a series from the statistics of a table.
type Figure = fn(&TableStatistics) -> u64;

/// The gauges with the label `table`. Each has the part of its name after `zillion_embedding_`, a
/// help text and a function for its value.
const GAUGES: [(&str, &str, Figure); 8] = [
    ("rows", "Rows of a table.", |t| t.rows),
    ("narrow_rows", "Of these, rows that do not have all of their floats yet.", |t| t.narrow_rows),
    ("candidates", "Keys that wait to be admitted.", |t| t.candidates),
    ("hot_rows", "Rows in memory.", |t| spill(t).hot_rows),
    ("cold_rows", "Rows on disk.", |t| spill(t).cold_rows),
    ("spill_memory_bytes", "Memory that the rows of a table that spills may take.", |t| {
        spill(t).budget_bytes
    }),
    ("spill_file_bytes", "Files of a table that spills.", |t| spill(t).disk_bytes),
    (
        "spill_cached_files",
        "Files of a table that spills that go through the page cache or lie in memory.",
        |t| spill(t).cached_files,
    ),
];

/// The counters with the label `table`. Each has the part of its name after `zillion_embedding_`, a
/// help text and a function for its value.
const COUNTERS: [(&str, &str, Figure); 23] = [
    ("pulled_keys_total", "Unique keys of batches that training looked up.", |t| t.counters.pulled),
    ("missing_keys_total", "Of these, keys without a row: they read as their initial row.", |t| {
        t.counters.missing
    }),
    ("pushed_gradients_total", "Row gradients that were applied or staged.", |t| t.counters.pushed),
    ("created_rows_total", "Rows that were made.", |t| t.counters.created),
    ("admitted_rows_total", "Of these, rows of keys that admission has let in.", |t| {
        t.counters.admitted
    }),
    (
        "waiting_gradients_total",
        "Row gradients dropped because their keys are not admitted yet.",
        |t| t.counters.waiting,
    ),
    ("evicted_rows_total", "Rows that were evicted, on schedule or to make room.", |t| {
        t.counters.evicted
    }),
    (
        "displaced_rows_total",
        "Of these, rows that were evicted to make room in a table at its limit.",
        |t| t.counters.displaced,
    ),
    ("lapsed_keys_total", "Keys that were forgotten before they were admitted.", |t| {
        t.counters.lapsed
    }),
    (
        "refused_gradients_total",
        "Row gradients of keys that a fixed vocabulary does not have.",
        |t| t.counters.refused,
    ),
    (
        "refused_full_gradients_total",
        "Row gradients of new keys that a table at its limit refused.",
        |t| t.counters.refused_full,
    ),
    (
        "nonfinite_gradients_total",
        "Row gradients dropped because a number in them was not finite.",
        |t| t.counters.nonfinite,
    ),
    (
        "saturated_weights_total",
        "Weights that became the largest number of their type because they were beyond it.",
        |t| t.counters.saturated,
    ),
    (
        "narrow_gradients_total",
        "Row gradients of narrow rows: the part for the missing floats was dropped.",
        |t| t.counters.narrow_gradients,
    ),
    ("grown_rows_total", "Narrow rows that became full.", |t| t.counters.grown),
    ("brought_in_rows_total", "Rows read from disk because a batch needed them.", |t| {
        spill(t).brought_in
    }),
    (
        "read_ahead_rows_total",
        "Of these, rows whose reading had begun before their batch was looked up.",
        |t| spill(t).ahead,
    ),
    ("spilled_rows_total", "Rows written to disk because their memory was needed.", |t| {
        spill(t).spilled
    }),
    (
        "compacted_rows_total",
        "Rows written again so that the space between them can be used.",
        |t| spill(t).compacted,
    ),
    ("spill_reads_total", "Reads of spilled rows.", |t| spill(t).reads),
    ("spill_read_bytes_total", "Bytes of the reads of spilled rows.", |t| spill(t).read_bytes),
    ("spill_writes_total", "Writes of spilled rows.", |t| spill(t).writes),
    ("spill_written_bytes_total", "Bytes of the writes of spilled rows.", |t| {
        spill(t).written_bytes
    }),
];

/// Returns the spill statistics of a table. If the table does not spill, all its rows count as rows
/// in memory.
fn spill(table: &TableStatistics) -> SpillStatistics {
    let all_hot = SpillStatistics { hot_rows: table.rows, ..Default::default() };
    table.spill.unwrap_or(all_hot)
}

/// The registered series of all tables.
pub(super) struct Tables {
    gauges: Vec<(GaugeVec, Figure)>,
    counters: Vec<(CounterVec, Figure)>,
    bytes: GaugeVec,
}

impl Tables {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let name = |name: &str| format!("zillion_embedding_{name}");
        let gauges = GAUGES
            .iter()
            .map(|(n, help, figure)| Ok((make.gauges(&name(n), help, &["table"])?, *figure)));
        let counters = COUNTERS
            .iter()
            .map(|(n, help, figure)| Ok((make.counters(&name(n), help, &["table"])?, *figure)));
        let help = "Memory of a table, by what it is for.";
        Ok(Self {
            gauges: gauges.collect::<prometheus::Result<_>>()?,
            counters: counters.collect::<prometheus::Result<_>>()?,
            bytes: make.gauges(&name("bytes"), help, &["table", "kind"])?,
        })
    }

    /// Updates the series of each table from its statistics.
    pub(super) fn update(&self, tables: &[TableStatistics]) {
        for figures in tables {
            let table = figures.table.as_str();
            for (kind, bytes) in [
                ("payload", figures.payload_bytes),
                ("state", figures.state_bytes),
                ("index", figures.index_bytes),
                ("candidates", figures.candidate_bytes),
                ("staged", figures.staged_bytes),
                ("changes", figures.change_bytes),
                ("snapshot", figures.snapshot_bytes),
                ("slack", figures.slack_bytes),
                ("spill", spill(figures).buffer_bytes),
            ] {
                self.bytes.with_label_values(&[table, kind]).set(bytes as f64);
            }
            for (series, figure) in &self.gauges {
                series.with_label_values(&[table]).set(figure(figures) as f64);
            }
            for (series, figure) in &self.counters {
                raise_to(&series.with_label_values(&[table]), figure(figures) as f64);
            }
        }
    }
}
