//! Test that memory depends on the size of a window and not on the size of the file. The test runs
//! in a process of its own, because it measures the memory of the whole process.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use zillion_device::{Workers, machine};
use zillion_feature::{Cursor, Schema};
use zillion_reader::{BatchOrder, DataConfig, Dataset, WindowRows};

const COLUMNS: usize = 14;
const WINDOW: usize = 40_000;
const ROWS: usize = 20 * WINDOW;

fn value(row: usize, column: usize) -> i64 {
    (row * 31 + column * 7) as i64
}

fn write_text(path: &Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let names: Vec<String> = (0..COLUMNS).map(|c| format!("c{c}")).collect();
    writeln!(file, "{},label", names.join(",")).unwrap();
    for row in 0..ROWS {
        (0..COLUMNS).for_each(|column| write!(file, "{},", value(row, column)).unwrap());
        writeln!(file, "{}", row % 2).unwrap();
    }
}

fn write_json(path: &Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for row in 0..ROWS {
        write!(file, "{{").unwrap();
        (0..COLUMNS).for_each(|c| write!(file, "\"c{c}\":{},", value(row, c)).unwrap());
        writeln!(file, "\"label\":{}}}", row % 2).unwrap();
    }
}

fn batch(rows: std::ops::Range<usize>) -> RecordBatch {
    let column = |c| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| value(row, c))))
    };
    let mut columns: Vec<(String, ArrayRef)> =
        (0..COLUMNS).map(|c| (format!("c{c}"), column(c))).collect();
    let label = Int64Array::from_iter_values(rows.clone().map(|row| row as i64 % 2));
    columns.push(("label".to_owned(), Arc::new(label)));
    RecordBatch::try_from_iter(columns).unwrap()
}

fn write_arrow(path: &Path) {
    let file = File::create(path).unwrap();
    let mut writer = FileWriter::try_new(file, &batch(0..1).schema()).unwrap();
    for start in (0..ROWS).step_by(10_000) {
        writer.write(&batch(start..start + 10_000)).unwrap();
    }
    writer.finish().unwrap();
}

/// Writes a Parquet file whose row groups each have the rows of five windows.
fn write_parquet(path: &Path) {
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(5 * WINDOW)).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch(0..1).schema(), Some(properties)).unwrap();
    for start in (0..ROWS).step_by(10_000) {
        writer.write(&batch(start..start + 10_000)).unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn resident_memory_stays_flat_on_a_file_of_twenty_windows() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a.csv", "a.parquet", "a.arrow", "a.jsonl"].map(|name| folder.path().join(name));
    write_text(&files[0]);
    write_parquet(&files[1]);
    write_arrow(&files[2]);
    write_json(&files[3]);
    let features: String = (0..COLUMNS).map(|c| format!("[features.c{c}]\nkind='id'\n")).collect();
    let job = toml::from_str::<toml::Table>(&format!("{features}[labels.label]")).unwrap();
    let schema = Schema::from_job(&job.into()).unwrap();
    let config =
        DataConfig { shuffle_window: WindowRows::new(WINDOW).unwrap(), ..DataConfig::default() };
    // This is the memory of all decoded rows. A window needs a twentieth of it.
    let whole = (ROWS * COLUMNS * size_of::<u64>()) as u64;
    for file in files {
        for shuffle in [true, false] {
            let (early, late) = peaks(&config, &file, &schema, shuffle);
            eprintln!("{}: {} MiB early, {} MiB late", file.display(), early >> 20, late >> 20);
            // The allocator decides when it returns memory. A quarter of the file is far above this
            // uncertainty, and far below the memory of all rows.
            assert!(late < early + whole / 4, "{file:?}: {early} grew to {late}");
        }
    }
}

/// Returns the largest resident memory during the first five windows and during the rest, in bytes.
fn peaks(config: &DataConfig, file: &PathBuf, schema: &Schema, shuffle: bool) -> (u64, u64) {
    let dataset = Dataset::open(config, std::slice::from_ref(file), schema).unwrap();
    let order = BatchOrder { seed: 1, shuffle, batch_rows: 1000, drop_last: false };
    let workers = Arc::new(Workers::new(NonZeroUsize::new(2).unwrap()).unwrap());
    let (mut early, mut late) = (0, 0);
    for item in dataset.batches(order, Cursor::default(), workers).unwrap() {
        let (_, cursor) = item.unwrap();
        let resident = machine::resident_memory().unwrap_or_default();
        let peak = if cursor.row < 5 * WINDOW as u64 { &mut early } else { &mut late };
        *peak = resident.max(*peak);
    }
    (early, late)
}
