//! The conversion of data files to Parquet or Arrow files, which other tools can open. The new
//! files have the same rows in the same order.
//!
//! The pool decodes text chunk by chunk with the decoders of training, so a cell has the same
//! meaning in the new file as in training. The pool also encodes the row groups. The columns of
//! Parquet and Arrow files keep their types.
//!
//! The output is divided into parts of a fixed number of rows of the data. A manifest beside the
//! parts records the size and the hash of each finished part.
//!
//! # Crash consistency
//! A part gets its final name only when it is complete, and its entry in the manifest after that.
//! If a conversion is started again with the same sources and settings, it keeps the parts that
//! still match their entries in the manifest, and writes the others. The bytes of a part depend
//! only on its rows, so an interruption does not change them. If a source or a setting has changed,
//! the conversion is refused, and the error names the source or the setting.
//!
//! # Invariants
//! * The output has the rows of the sources in their order. A bad row is an error unless the
//!   settings allow bad rows. Allowed bad rows are left out, counted and listed. They still count
//!   towards the number of rows of their part.
//! * The memory in use is at most a few row groups for each thread.

mod manifest;
mod part;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::{Files, Workers};
use zillion_reader::{ArrowRows, ColumnType, DataConfig, ReaderError, Reject, Result};

use crate::parquet_files::{create_folder, failed, setting};
use manifest::{Manifest, PartEntry};

/// The format of the files that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvertTo {
    /// Parquet, compressed with zstd.
    #[default]
    Parquet,
    /// Arrow IPC files (Feather V2). They are not compressed, so that readers can map them into
    /// memory.
    Arrow,
}

impl ConvertTo {
    /// Returns the extension of the file names, without the leading dot.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }
}

/// The settings of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertSpec {
    /// The settings by which the sources are read.
    pub config: DataConfig,
    /// The source files, in the order of their rows.
    pub sources: Vec<PathBuf>,
    /// The columns of text files and their types. Empty for Parquet and Arrow files, which declare
    /// their types.
    pub columns: Vec<(String, ColumnType)>,
    /// The format of the files that are written.
    pub to: ConvertTo,
    /// The place of the output.
    pub output: ConvertOutput,
    /// The number of rows in a row group or record batch, at least 1.
    pub group_rows: usize,
    /// The number of bad rows that may be left out.
    pub max_bad_rows: u64,
    /// Whether existing files may be replaced.
    pub force: bool,
    /// The function that computes the BLAKE3 hash of bytes, in hexadecimal.
    pub digest: fn(&[u8]) -> String,
}

/// The place of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertOutput {
    /// A folder of parts, each of a fixed number of rows of the data.
    Folder {
        /// The folder of the parts.
        folder: PathBuf,
        /// The number of rows of a part, at least 1.
        part_rows: u64,
    },
    /// One file. After an interruption, it is written again from the beginning.
    File(PathBuf),
}

/// The result of a conversion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// The number of rows that were written.
    pub rows: u64,
    /// The bad rows that were left out, in the order of the sources.
    pub rejects: Vec<Reject>,
    /// The files that were written or kept: the path, the number of rows and the number of bytes of
    /// each.
    pub files: Vec<(PathBuf, u64, u64)>,
    /// The number of files that were kept from an earlier run.
    pub kept: usize,
}

/// Converts the sources. `seen` is called after each row group with the number of rows that have
/// been converted so far.
///
/// # Errors
/// Returns an error if a source cannot be read, or if a row is bad; the error then names file, row
/// and column. Returns [`ReaderError::OtherConversion`] if the output place contains other files,
/// or parts of a conversion with other sources or settings.
pub fn convert(
    spec: &ConvertSpec,
    files: &Files,
    workers: &Arc<Workers>,
    seen: &mut dyn FnMut(u64),
) -> Result<Converted> {
    let place = Place::of(spec, files)?;
    let wanted = Manifest::new(spec)?;
    let mut manifest = place.begin(spec, wanted, files)?;
    let before = manifest.parts.len();
    manifest.parts.retain(|_, part| place.is_whole(part, spec.digest));
    if manifest.parts.len() < before {
        manifest.complete = false;
        place.save(&manifest, files)?;
    }
    let kept = manifest.parts.len();
    let mut rows: Option<ArrowRows> = None;
    let mut at = 0;
    for index in 0.. {
        let span = match manifest.parts.get(&index) {
            Some(part) => part.span,
            None => {
                let rows = match &mut rows {
                    Some(rows) if rows.position() == at => rows,
                    rows => rows.insert(open_rows(spec, workers, at)?),
                };
                let bad = manifest.bad();
                let Some(part) = place.make(spec, index, rows, bad, files, workers, seen)? else {
                    break;
                };
                let span = part.span;
                manifest.parts.insert(index, part);
                place.save(&manifest, files)?;
                span
            }
        };
        at += span;
        seen(at);
        if span < place.part_rows {
            break;
        }
    }
    if !manifest.complete {
        manifest.complete = true;
        place.save(&manifest, files)?;
    }
    let parts = manifest.parts.values();
    Ok(Converted {
        rows: parts.clone().map(|part| part.rows).sum(),
        rejects: parts.clone().flat_map(|part| part.rejects.clone()).collect(),
        files: parts.map(|part| (place.path(&part.name), part.rows, part.bytes)).collect(),
        kept,
    })
}

/// Opens the sources at row `from` of the data, counted from 0.
fn open_rows(spec: &ConvertSpec, workers: &Arc<Workers>, from: u64) -> Result<ArrowRows> {
    let ConvertSpec { config, sources, columns, max_bad_rows, .. } = spec;
    ArrowRows::open(config, sources, columns, *max_bad_rows, workers, from)
}

/// The place of the output: its folder, its manifest, and the names of the parts.
struct Place {
    folder: PathBuf,
    manifest: PathBuf,
    part_rows: u64,
    /// The name of the file, if the output is one file.
    single: Option<String>,
}

impl Place {
    fn of(spec: &ConvertSpec, files: &Files) -> Result<Self> {
        match &spec.output {
            ConvertOutput::Folder { folder, part_rows } => {
                create_folder(folder, files)?;
                Ok(Self {
                    folder: folder.clone(),
                    manifest: folder.join("_convert.json"),
                    part_rows: *part_rows,
                    single: None,
                })
            }
            ConvertOutput::File(path) => {
                let name = path.file_name().and_then(|name| name.to_str());
                let problem = "the path does not end in the name of a file; add one";
                let name = name.ok_or_else(|| setting(problem, path.display()))?;
                let folder = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                    _ => PathBuf::from("."),
                };
                create_folder(&folder, files)?;
                Ok(Self {
                    manifest: folder.join(format!("_{name}.convert.json")),
                    folder,
                    part_rows: u64::MAX,
                    single: Some(name.to_owned()),
                })
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        // If the caller gave only a file name, the folder is `.` and is left out of the path.
        match self.folder == Path::new(".") {
            true => PathBuf::from(name),
            false => self.folder.join(name),
        }
    }

    fn name(&self, index: usize, to: ConvertTo) -> String {
        match &self.single {
            Some(name) => name.clone(),
            None => format!("part-{index:05}.{}", to.ending()),
        }
    }

    /// Returns the manifest of an earlier run of the same conversion. If there is none, writes a
    /// new manifest and returns it.
    fn begin(&self, spec: &ConvertSpec, wanted: Manifest, files: &Files) -> Result<Manifest> {
        let other =
            |what: String| ReaderError::OtherConversion { what, path: self.manifest.clone() };
        if let Some(known) = Manifest::read(&self.manifest)? {
            // A conversion that ended because of too many bad rows can continue with a higher
            // limit.
            let goes_on = !known.complete && known.bad() <= spec.max_bad_rows;
            let known = if goes_on { known.with_limit_of(&wanted) } else { known };
            match known.difference(&wanted) {
                None => return Ok(known),
                Some(what) if !spec.force => return Err(other(what)),
                // The manifest is removed first, so that it never describes parts that are no
                // longer there.
                Some(_) => {
                    self.remove(&self.manifest, files)?;
                    for part in known.parts.values() {
                        let path = self.folder.join(&part.name);
                        if path.exists() {
                            self.remove(&path, files)?;
                        }
                    }
                }
            }
        } else if !spec.force {
            let taken = match &self.single {
                Some(name) => self.folder.join(name).exists(),
                None => self.has_files()?,
            };
            if taken {
                let what = match &self.single {
                    Some(name) => {
                        format!("the file `{name}` was not made by a conversion")
                    }
                    None => "the folder has files that were not made by a conversion".to_owned(),
                };
                return Err(other(what));
            }
        }
        self.save(&wanted, files)?;
        Ok(wanted)
    }

    /// Returns whether the folder contains files. The remains of interrupted writes do not count.
    fn has_files(&self) -> Result<bool> {
        let list =
            |source| ReaderError::Io { what: "list the folder", source, path: self.folder.clone() };
        for entry in std::fs::read_dir(&self.folder).map_err(list)? {
            if !entry.map_err(list)?.file_name().to_string_lossy().starts_with('.') {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn remove(&self, path: &Path, files: &Files) -> Result<()> {
        files.remove_file(path).map_err(|e| failed("remove the file", path, e))
    }

    fn save(&self, manifest: &Manifest, files: &Files) -> Result<()> {
        let bytes = manifest.to_bytes();
        let written = files.write_bytes(&self.manifest, &bytes);
        written.map_err(|e| failed("write the file", &self.manifest, e))
    }

    /// Returns whether a part exists and has the size and the hash in its entry of the manifest.
    fn is_whole(&self, part: &PartEntry, digest: fn(&[u8]) -> String) -> bool {
        let path = self.folder.join(&part.name);
        let found = zillion_device::mmap::map(&path);
        found.is_ok_and(|bytes| bytes.len() as u64 == part.bytes && digest(&bytes) == part.blake3)
    }

    /// Writes part number `index` with the next rows, and returns its entry for the manifest.
    /// Returns `None` if there are no more rows.
    #[expect(clippy::too_many_arguments, reason = "a part depends on the whole conversion")]
    fn make(
        &self,
        spec: &ConvertSpec,
        index: usize,
        rows: &mut ArrowRows,
        bad_before: u64,
        files: &Files,
        workers: &Arc<Workers>,
        seen: &mut dyn FnMut(u64),
    ) -> Result<Option<PartEntry>> {
        let name = self.name(index, spec.to);
        let path = self.folder.join(&name);
        let task =
            part::PartTask { spec, rows, part_rows: self.part_rows, bad_before, workers, seen };
        let Some(written) = task.write(&path, files)? else { return Ok(None) };
        let bytes = zillion_device::mmap::map(&path)
            .map_err(|e| failed("map the file into memory", &path, e))?;
        Ok(Some(PartEntry {
            name,
            span: written.span,
            rows: written.rows,
            bytes: bytes.len() as u64,
            blake3: (spec.digest)(&bytes),
            rejects: written.rejects,
        }))
    }
}
