//! Benchmark of reading: millions of rows per second from files to batches.
//!
//! The data is a synthetic set with the shape of Criteo's data, as Parquet and as TSV. If
//! `ZILLION_DATA` names the folder that contains Frappe, Frappe is measured too. For each case, the
//! benchmark prints one line with two rates: by wall time, and by CPU time, which other programs
//! disturb less. The times include the opening of the file.

use std::fmt::Write as _;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use zillion_device::{Workers, machine};
use zillion_feature::random::mix64;
use zillion_feature::{Cursor, Schema};
use zillion_reader::{BatchOrder, DataConfig, Dataset};

const ROWS: u64 = 1_000_000;

fn schema(ids: usize, numbers: usize, id_type: &str, transform: &str) -> Schema {
    let mut job = String::new();
    for i in 0..numbers {
        let _ =
            write!(job, "[features.n{i}]\nkind='numeric'\ntransform='{transform}'\nmissing=0\n");
    }
    for i in 0..ids {
        let _ = write!(job, "[features.c{i}]\nkind='id'\ntype='{id_type}'\n");
    }
    parse(&(job + "[labels.label]"))
}

fn parse(job: &str) -> Schema {
    let job: toml::Value = toml::from_str::<toml::Table>(job).expect("valid toml").into();
    Schema::from_job(&job).expect("a valid schema")
}

/// Returns an id from a skewed distribution, in which small ids are frequent.
fn id(row: u64, column: u64) -> u64 {
    let draw = mix64(row * 64 + column);
    (draw >> 40) >> (draw % 20)
}

fn write_parquet(path: &Path, strings: bool) {
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    columns.push((
        "label".into(),
        Arc::new(Int64Array::from_iter_values((0..ROWS).map(|r| (id(r, 63) % 2) as i64))),
    ));
    for c in 0..13 {
        let values = (0..ROWS).map(|r| (id(r, c) % 1000) as f32);
        columns.push((format!("n{c}"), Arc::new(Float32Array::from_iter_values(values))));
    }
    for c in 0..26 {
        let values = (0..ROWS).map(|r| id(r, 13 + c));
        let column: ArrayRef = if strings {
            Arc::new(StringArray::from_iter_values(values.map(|v| format!("{v:08x}"))))
        } else {
            Arc::new(Int64Array::from_iter_values(values.map(|v| v as i64)))
        };
        columns.push((format!("c{c}"), column));
    }
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(250_000))
        .build();
    let file = File::create(path).expect("a writable folder");
    let mut writer =
        ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).and_then(|()| writer.close()).expect("a written file");
}

fn write_tsv(path: &Path) {
    let mut text = String::from("label");
    (0..13).for_each(|c| write!(text, "\tn{c}").expect("memory"));
    (0..26).for_each(|c| write!(text, "\tc{c}").expect("memory"));
    text.push('\n');
    for r in 0..ROWS {
        write!(text, "{}", id(r, 63) % 2).expect("memory");
        (0..13).for_each(|c| write!(text, "\t{}", id(r, c) % 1000).expect("memory"));
        (0..26).for_each(|c| write!(text, "\t{:08x}", id(r, 13 + c)).expect("memory"));
        text.push('\n');
    }
    std::fs::write(path, text).expect("a writable folder");
}

fn measure(name: &str, path: &Path, schema: &Schema) {
    // `cargo bench --bench rows -- tsv` runs the cases whose name has "tsv" in it.
    if std::env::args().skip(1).any(|arg| !arg.starts_with('-') && !name.contains(&arg)) {
        return;
    }
    let config = DataConfig::default();
    for threads in [1, 2] {
        for shuffle in [false, true] {
            let (mut best, mut least) = (f64::INFINITY, f64::INFINITY);
            let mut rows = 0;
            for epoch in 0..5 {
                let workers = NonZeroUsize::new(threads).expect("not zero");
                let workers = Arc::new(Workers::new(workers).expect("threads"));
                let start = Instant::now();
                let cpu = machine::CpuTimes::now().own;
                let dataset =
                    Dataset::open(&config, &[path.to_owned()], schema).expect("a dataset");
                let order = BatchOrder { seed: 1, shuffle, batch_rows: 4096, drop_last: false };
                let from = Cursor { epoch, row: 0 };
                rows = 0;
                for item in dataset.batches(order, from, workers).expect("a stream") {
                    rows += item.expect("a batch").0.rows;
                }
                best = best.min(start.elapsed().as_secs_f64());
                least = least.min((machine::CpuTimes::now().own - cpu).as_secs_f64());
            }
            let rate = |seconds: f64| rows as f64 / seconds / 1e6;
            eprintln!(
                "{name:<20} threads {threads} shuffle {shuffle:<5} {:6.2} M rows/s, {:6.2} a second of a core",
                rate(best),
                rate(least),
            );
        }
    }
}

/// Measures the CPU time that the Parquet decoder alone needs for a file. Reading the file with
/// this crate cannot take less time.
fn measure_decoder(name: &str, path: &Path) {
    if std::env::args().skip(1).any(|arg| !arg.starts_with('-') && !name.contains(&arg)) {
        return;
    }
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let cpu = machine::CpuTimes::now().own;
        let file = File::open(path).expect("a file");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("a Parquet file");
        let batches = reader.with_batch_size(8192).build().expect("a reader");
        let rows: usize = batches.map(|batch| batch.expect("a batch").num_rows()).sum();
        assert_eq!(rows as u64, ROWS);
        least = least.min((machine::CpuTimes::now().own - cpu).as_secs_f64());
    }
    eprintln!(
        "{name:<20} the decoder alone {:17} {:6.2} a second of a core",
        "",
        ROWS as f64 / least / 1e6
    );
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ints, strings, text) = (
        folder.path().join("i.parquet"),
        folder.path().join("s.parquet"),
        folder.path().join("t.tsv"),
    );
    write_parquet(&ints, false);
    measure_decoder("parquet, ints", &ints);
    measure("parquet, ints", &ints, &schema(26, 13, "i64", "raw"));
    measure("parquet, ints, log1p", &ints, &schema(26, 13, "i64", "log1p"));
    write_parquet(&strings, true);
    measure_decoder("parquet, strings", &strings);
    measure("parquet, strings", &strings, &schema(26, 13, "string", "raw"));
    write_tsv(&text);
    measure("tsv, strings", &text, &schema(26, 13, "string", "raw"));
    if let Some(root) = std::env::var_os("ZILLION_DATA") {
        let fields = [
            "user",
            "item",
            "daytime",
            "weekday",
            "isweekend",
            "homework",
            "cost",
            "weather",
            "country",
            "city",
        ];
        let features: String =
            fields.iter().map(|f| format!("[features.{f}]\nkind='id'\n")).collect();
        let path = Path::new(&root).join("frappe_x1r/train.parquet");
        measure("frappe", &path, &parse(&format!("{features}[labels.label]")));
    }
}
