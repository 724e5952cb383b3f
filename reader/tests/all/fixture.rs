//! Fixtures of the tests: files, schemas and readers.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use zillion_device::Workers;
use zillion_feature::{Batch, Cursor, Schema, Statistics};
use zillion_reader::{BatchOrder, DataConfig, Dataset, ReaderError};

/// A temporary folder of data files, with the `[data]` settings that read them.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
    pub(crate) config: DataConfig,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = DataConfig { root: folder.path().to_owned(), ..DataConfig::default() };
        Self { folder, config }
    }

    /// Makes a folder with additional `[data]` settings.
    pub(crate) fn with(settings: &str) -> Self {
        let mut folder = Self::new();
        folder.config = data_config(settings).unwrap();
        folder.config.root = folder.folder.path().to_owned();
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn write_gzip(&self, name: &str, bytes: &[u8]) {
        let file = File::create(self.path(name)).unwrap();
        let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap();
    }

    pub(crate) fn write_zstd(&self, name: &str, bytes: &[u8]) {
        let file = File::create(self.path(name)).unwrap();
        zstd::stream::copy_encode(bytes, file, 1).unwrap();
    }

    /// Writes a Parquet file with `group` rows in each row group.
    pub(crate) fn write_parquet(&self, name: &str, columns: Vec<(&str, ArrayRef)>, group: usize) {
        write_parquet(&self.path(name), columns, group, true);
    }

    pub(crate) fn open(&self, files: &[&str], schema: &Schema) -> Result<Dataset, ReaderError> {
        let files: Vec<PathBuf> = files.iter().map(|name| self.path(name)).collect();
        Dataset::open(&self.config, &files, schema)
    }

    /// Opens and reads the files and returns the message of the first error, without the name of
    /// the folder.
    pub(crate) fn error(&self, files: &[&str], schema: &Schema) -> String {
        let error = match self.open(files, schema) {
            Err(error) => error,
            Ok(dataset) => read(&dataset, PLAIN, Cursor::default(), 1)
                .map(|batches| panic!("{files:?} reads without an error: {batches:?}"))
                .unwrap_err(),
        };
        error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }

    /// Returns all rows of the files in file order, each as a text.
    pub(crate) fn rows(&self, files: &[&str], schema: &Schema) -> Vec<String> {
        let dataset = self.open(files, schema).unwrap();
        rows(&read(&dataset, PLAIN, Cursor::default(), 2).unwrap())
    }
}

pub(crate) const PLAIN: BatchOrder =
    BatchOrder { seed: 0, shuffle: false, batch_rows: 7, drop_last: false };

pub(crate) fn write_parquet(
    path: &Path,
    columns: Vec<(&str, ArrayRef)>,
    group: usize,
    dictionary: bool,
) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_dictionary_enabled(dictionary)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Writes an Arrow IPC file with `batch` rows in each record batch.
pub(crate) fn write_ipc(
    path: &Path,
    columns: Vec<(&str, ArrayRef)>,
    batch: usize,
    compression: Option<CompressionType>,
) {
    let all = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &all.schema(), options).unwrap();
    for start in (0..all.num_rows()).step_by(batch) {
        writer.write(&all.slice(start, batch.min(all.num_rows() - start))).unwrap();
    }
    writer.finish().unwrap();
}

pub(crate) fn data_config(settings: &str) -> Result<DataConfig, String> {
    let value: toml::Value = toml::from_str::<toml::Table>(settings).unwrap().into();
    zillion_config::from_value(&value, "data").map_err(|e| e.to_string())
}

pub(crate) fn schema(job: &str) -> Schema {
    let job: toml::Value = toml::from_str::<toml::Table>(job).unwrap().into();
    Schema::from_job(&job).unwrap()
}

pub(crate) fn workers(threads: usize) -> Arc<Workers> {
    Arc::new(Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap())
}

/// Returns all batches from the position `from` to the end of its epoch.
pub(crate) fn read(
    dataset: &Dataset,
    order: BatchOrder,
    from: Cursor,
    threads: usize,
) -> Result<Vec<(Batch, Cursor)>, ReaderError> {
    dataset.batches(order, from, workers(threads))?.collect()
}

/// Returns each row of the batches as a text, which is easy to compare, sort and print.
pub(crate) fn rows(batches: &[(Batch, Cursor)]) -> Vec<String> {
    batches.iter().flat_map(|(batch, _)| (0..batch.rows).map(|row| row_text(batch, row))).collect()
}

fn row_text(batch: &Batch, row: usize) -> String {
    let sparse: Vec<_> = batch.sparse.iter().map(|c| c.row(row).to_vec()).collect();
    let numeric: Vec<f32> = batch.numeric.iter().map(|c| c[row]).collect();
    let labels: Vec<_> = batch
        .labels
        .iter()
        .map(|l| (l.values.get(row).copied(), l.mask.as_ref().is_none_or(|mask| mask[row])))
        .collect();
    let weight = batch.weight.as_ref().map(|w| w[row]);
    let group = batch.group.as_ref().map(|g| g[row]);
    let time = batch.event_time.as_ref().map(|t| t[row]);
    format!("{sparse:?} {numeric:?} {labels:?} {weight:?} {group:?} {time:?}")
}

pub(crate) fn no_statistics() -> Statistics {
    Statistics::default()
}
