//! Tests of the check of limits. The jobs have correct limits, or pairs of limits that contradict
//! each other.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tempfile::TempDir;
use zillion_device::Workers;
use zillion_trainer::{CheckReport, Job, Severity, check};

/// The number of rows of the data. Almost every row has its own user, and ten rows share an
/// item.
const ROWS: u64 = 4000;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = "user,item,kind,label\n".to_owned();
        for i in 0..ROWS {
            // Some users occur twice, because a user in every row would be a finding of its own.
            writeln!(text, "{},{},{},{}", i * 11 % (ROWS - 10), i % 400, i % 3, i % 2).unwrap();
        }
        std::fs::write(folder.path().join("train.csv"), text).unwrap();
        Self(folder)
    }

    fn check(&self, more: &str) -> CheckReport {
        let root = self.0.path().display();
        let text = format!(
            "{more}\n[data]\nroot = '{root}'\ntrain = ['train.csv']\n[features.user]\nkind = 'id'\n\
             [features.item]\nkind = 'id'\n[features.kind]\nkind = 'id'\n[labels.label]\n[model]\nkind = 'dnn'\nhidden = [8]\n"
        );
        let value: toml::Table = toml::from_str(&text).unwrap();
        let job = Job::from_value(value.into()).unwrap();
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        check(&job, 100_000, &workers).unwrap()
    }
}

/// Returns the findings about a key, with their severities.
fn about<'a>(report: &'a CheckReport, key: &str) -> Vec<(Severity, &'a str)> {
    let found = report.findings.iter().filter(|f| f.about == key);
    found.map(|f| (f.severity, f.text.as_str())).collect()
}

#[track_caller]
fn finds(report: &CheckReport, severity: Severity, key: &str, words: &[&str]) {
    let found = about(report, key);
    let fits =
        |(s, text): &(Severity, &str)| *s == severity && words.iter().all(|w| text.contains(w));
    assert!(
        found.iter().any(fits),
        "no {severity:?} of {key} with {words:?}: {:#?}",
        report.findings
    );
}

#[test]
fn a_job_without_limits_has_nothing_to_contradict() {
    let report = Place::new().check("");
    for key in ["train.max_table_bytes", "run.spill", "run.spill.user", "tables.user.max_rows"] {
        assert!(about(&report, key).is_empty(), "{:?}", report.findings);
    }
    assert_eq!(report.tables[0].rows, ROWS - 10);
    let memory = report.memory.unwrap();
    assert_eq!(memory.tables, report.tables.iter().map(|t| t.bytes).sum::<u64>());
}

#[test]
fn memory_of_rows_that_spill_is_their_budget_and_the_index() {
    let place = Place::new();
    let free = place.check("[tables.user]\ndim = 64");
    let report = place
        .check("[tables.user]\ndim = 64\n[train]\nbatch_size = 64\n[run.spill]\nuser = '512 KiB'");
    let (all, table) = (&free.tables[0], &report.tables[0]);
    assert_eq!(table.rows, all.rows, "spilling changes no result");
    let hot = table.hot_rows.unwrap();
    assert!(hot > 500 && hot < table.rows / 2, "{table:?}");
    // Spilling saves the rows only: the index has every key.
    assert!(table.bytes < all.bytes && table.bytes > (512 << 10), "{table:?} {all:?}");
    let record = 64 * 4;
    assert!(table.spill_bytes > 2 * (table.rows - hot) * record, "{table:?}");
    assert!(report.memory.unwrap().tables < free.memory.unwrap().tables);
    finds(&report, Severity::Note, "run.spill.user", &["in files of up to", "spill"]);
}

#[test]
fn budgets_that_cannot_work_are_named() {
    let place = Place::new();
    // The memory holds no row of a shard, and the run would refuse it with the same words.
    let report = place.check("[run.spill]\nuser = '16 KiB'");
    finds(&report, Severity::Error, "run.spill.user", &["too few for a row", "fewer shards"]);
    // The memory holds less than a step.
    let report = place.check("[train]\nbatch_size = 2000\n[run.spill]\nuser = '128 KiB'");
    finds(
        &report,
        Severity::Warning,
        "run.spill.user",
        &["one step needs about 19", "train.batch_size"],
    );
    // The memory holds more than the table.
    let report = place.check("[run.spill]\nuser = '64 MiB'");
    finds(&report, Severity::Note, "run.spill.user", &["nothing goes to disk"]);
    // The limit is reached before the memory is full.
    let report = place.check("[tables.user]\nmax_rows = 1000\n[run.spill]\nuser = '64 MiB'");
    finds(&report, Severity::Warning, "run.spill.user", &["own limit is 1000", "remove one"]);
    // The limit of all tables ignores that rows are on disk.
    let report = place.check("[train]\nmax_table_bytes = '1 GiB'\n[run.spill]\nuser = '256 KiB'");
    finds(
        &report,
        Severity::Warning,
        "run.spill.user",
        &["train.max_table_bytes", "as if they were in memory"],
    );
}

#[test]
fn limits_below_one_step_are_named() {
    let place = Place::new();
    let lru = "eviction = { kind = 'lru' }";
    let report =
        place.check(&format!("[tables.user]\n{lru}\nmax_rows = 500\n[train]\nbatch_size = 2000"));
    finds(
        &report,
        Severity::Warning,
        "tables.user.max_rows",
        &["holds 500 rows", "needs about 19"],
    );
    let report =
        place.check(&format!("[tables.user]\n{lru}\nmax_rows = 500\n[train]\nbatch_size = 100"));
    assert!(about(&report, "tables.user.max_rows").is_empty(), "{:?}", report.findings);
    let report = place
        .check(&format!("[tables.user]\n{lru}\nmax_bytes = '600 KB'\n[train]\nbatch_size = 2000"));
    finds(
        &report,
        Severity::Warning,
        "tables.user.max_bytes",
        &["one step needs", "train.batch_size"],
    );
    let report = place.check(&format!(
        "[tables.\"*\"]\n{lru}\n[train]\nmax_table_bytes = '1200 KiB'\nbatch_size = 4000"
    ));
    finds(
        &report,
        Severity::Warning,
        "train.max_table_bytes",
        &["`user`", "one step needs about 3990"],
    );
    assert!(
        !report
            .findings
            .iter()
            .any(|f| f.severity == Severity::Warning && f.text.contains("`kind`")),
        "a table that gets what it needs is not blamed: {:?}",
        report.findings
    );
}

#[test]
fn limits_that_exclude_each_other_are_named() {
    let place = Place::new();
    let report = place.check("[tables.user]\nmax_rows = 1000000\nmax_bytes = '2 MiB'");
    finds(&report, Severity::Note, "tables.user.max_rows", &["never reached", "2 MiB"]);
    let report =
        place.check("[tables.user]\nmax_bytes = '2 GiB'\n[train]\nmax_table_bytes = '1 GiB'");
    finds(
        &report,
        Severity::Warning,
        "tables.user.max_bytes",
        &["never reached", "train.max_table_bytes"],
    );
    let report = place.check("[tables.user]\ndense = true\n[train]\nmax_table_bytes = '640 KiB'");
    finds(&report, Severity::Stop, "train.max_table_bytes", &["vocabulary", "dense = false"]);
    let ids: Vec<String> = (0..50).map(|i| i.to_string()).collect();
    let report = place.check(&format!(
        "[tables.user]\neviction = {{ kind = 'lru' }}\nmax_rows = 40\npinned = [{}]",
        ids.join(", ")
    ));
    finds(&report, Severity::Warning, "tables.user.max_rows", &["50 ids are pinned"]);
    let report = place.check("[train]\nmax_table_bytes = '4000 TiB'");
    finds(&report, Severity::Warning, "train.max_table_bytes", &["more than the machine's"]);
}

#[test]
fn memory_stays_within_the_limits_and_tables_share_them() {
    let place = Place::new();
    let free = place.check("[tables.user]\ndim = 256");
    let limit = 3 << 20;
    let lru = "eviction = { kind = 'lru' }";
    let report = place.check(&format!(
        "[tables.user]\ndim = 256\n{lru}\n[train]\nbatch_size = 64\nmax_table_bytes = {limit}"
    ));
    assert!(free.memory.unwrap().tables > limit);
    let memory = report.memory.unwrap();
    assert!(memory.tables <= limit && memory.tables_high <= limit, "{memory:?}");
    let [user, item, kind] = &report.tables[..] else { panic!("{:?}", report.tables) };
    assert!(user.rows < free.tables[0].rows && user.rows > 500, "{user:?}");
    assert_eq!((item.rows, kind.rows), (400, 3), "who needs little gets it");
    finds(
        &report,
        Severity::Note,
        "tables.user",
        &["within train.max_table_bytes", "the least important rows are evicted"],
    );
    // A table's own limit in bytes is one of its memory too.
    let report = place.check(&format!(
        "[tables.user]\ndim = 256\n{lru}\nmax_bytes = {limit}\n[train]\nbatch_size = 64"
    ));
    assert!(report.tables[0].bytes <= limit && report.tables[0].bytes_high <= limit);
    finds(
        &report,
        Severity::Note,
        "tables.user",
        &["holds ", "the least important rows are evicted"],
    );
}
