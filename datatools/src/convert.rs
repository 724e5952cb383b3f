//! Data files to Parquet or Arrow files that anybody opens: the same rows in the same order.
//!
//! Text goes through the decoders of training, chunk by chunk on the pool, so that a cell means in
//! the new file what it means in the old one; row groups are encoded on the pool too. Files of
//! columns keep the types that they have.
//!
//! The output is cut into parts of so many rows of the data, and a manifest beside them says of
//! each part that is finished how large it is and what its bytes hash to.
//!
//! # Crash consistency
//! A part gets its name when it is whole, and its entry in the manifest when it has its name. A
//! conversion that is started again over the same sources with the same settings keeps the parts
//! that are listed and still are what the manifest says, and makes the others: a part follows from
//! its rows alone, so that the bytes are those of a run that was not interrupted. Sources or
//! settings that have changed are refused by name.
//!
//! # Invariants
//! * Rows are those of the files in their order. A bad row is an error, or is left out, counted and
//!   listed, where some may be; it keeps its place in the numbers that cut parts.
//! * Memory is bounded by a few row groups for each thread.

mod manifest;
mod part;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::{Files, Workers};
use zillion_reader::{ArrowRows, ColumnType, DataConfig, ReaderError, Reject, Result};

use manifest::{Manifest, PartEntry};

/// The format of the files that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvertTo {
    /// Parquet, compressed with zstd.
    #[default]
    Parquet,
    /// Arrow IPC files (Feather V2), not compressed, so that they can be mapped.
    Arrow,
}

impl ConvertTo {
    /// Returns the ending of the files' names.
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
    /// The sources, in the order of their rows.
    pub sources: Vec<PathBuf>,
    /// Columns of text files and their types. Files of columns have their own: leave it empty.
    pub columns: Vec<(String, ColumnType)>,
    /// The format of the files that are written.
    pub to: ConvertTo,
    /// A folder of parts, or one file.
    pub output: ConvertOutput,
    /// Rows of a row group or a record batch, at least 1.
    pub group_rows: usize,
    /// Bad rows that may be left out.
    pub max_bad_rows: u64,
    /// Whether files that are there may be replaced.
    pub force: bool,
    /// BLAKE3 of some bytes, in hexadecimal.
    pub digest: fn(&[u8]) -> String,
}

/// The place of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertOutput {
    /// A folder of parts of so many rows of the data each, at least 1.
    Folder {
        /// The folder of the parts.
        folder: PathBuf,
        /// Rows of a part.
        part_rows: u64,
    },
    /// One file; it is made anew when it was interrupted.
    File(PathBuf),
}

/// The result of a conversion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// Rows that were written.
    pub rows: u64,
    /// Bad rows that were left out, in the order of the data.
    pub rejects: Vec<Reject>,
    /// The files, with their rows and bytes.
    pub files: Vec<(PathBuf, u64, u64)>,
    /// The number of files that an earlier run had made.
    pub kept: usize,
}

/// Converts the sources. `seen` is called after each row group with the number of rows of the data
/// that are done.
///
/// # Errors
/// A source that cannot be read, a row that is bad, by file, row and column; an output that has
/// something else in it, or that other sources or settings have begun
/// ([`ReaderError::OtherConversion`]).
pub fn convert(
    spec: &ConvertSpec,
    files: &Files,
    workers: &Arc<Workers>,
    seen: &mut dyn FnMut(u64),
) -> Result<Converted> {
    let place = Place::of(spec, files)?;
    let wanted = Manifest::wanted(spec)?;
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

/// Opens the sources at a row of the data.
fn open_rows(spec: &ConvertSpec, workers: &Arc<Workers>, from: u64) -> Result<ArrowRows> {
    let ConvertSpec { config, sources, columns, max_bad_rows, .. } = spec;
    ArrowRows::open(config, sources, columns, *max_bad_rows, workers, from)
}

/// The folder and names of the parts and the manifest.
struct Place {
    folder: PathBuf,
    manifest: PathBuf,
    part_rows: u64,
    /// The name of the one file.
    single: Option<String>,
}

impl Place {
    fn of(spec: &ConvertSpec, files: &Files) -> Result<Self> {
        match &spec.output {
            ConvertOutput::Folder { folder, part_rows } => {
                files.create_dir(folder).map_err(|e| failed("make the folder", folder, e))?;
                Ok(Self {
                    folder: folder.clone(),
                    manifest: folder.join("_convert.json"),
                    part_rows: *part_rows,
                    single: None,
                })
            }
            ConvertOutput::File(path) => {
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| ReaderError::Setting {
                    problem: "is not the name of a file; name one".to_owned(),
                    key: path.display().to_string(),
                })?;
                let folder = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                    _ => PathBuf::from("."),
                };
                files.create_dir(&folder).map_err(|e| failed("make the folder", &folder, e))?;
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
        // A file is called what the caller called it.
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

    /// Returns the manifest of a conversion that was begun here before, if it is the same one; else
    /// writes and returns a new one.
    fn begin(&self, spec: &ConvertSpec, wanted: Manifest, files: &Files) -> Result<Manifest> {
        let other =
            |what: String| ReaderError::OtherConversion { what, path: self.manifest.clone() };
        if let Some(known) = Manifest::read(&self.manifest)? {
            // One that ended at a bad row too many may go on with a higher limit.
            let goes_on = !known.complete && known.bad() <= spec.max_bad_rows;
            let known = if goes_on { known.with_limit_of(&wanted) } else { known };
            match known.difference(&wanted) {
                None => return Ok(known),
                Some(what) if !spec.force => return Err(other(what)),
                // The description goes first: half of what it describes must not be believed.
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

    /// Returns whether something is in the folder besides what an interrupted write leaves.
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

    /// Returns whether a part is there and is what its entry says.
    fn is_whole(&self, part: &PartEntry, digest: fn(&[u8]) -> String) -> bool {
        let path = self.folder.join(&part.name);
        let found = zillion_device::mmap::map(&path);
        found.is_ok_and(|bytes| bytes.len() as u64 == part.bytes && digest(&bytes) == part.blake3)
    }

    /// Writes the part that begins where `rows` stands; `None` where there are no more rows.
    #[expect(clippy::too_many_arguments, reason = "the one place where all of it meets")]
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

fn failed(what: &'static str, path: &Path, error: zillion_device::DeviceError) -> ReaderError {
    ReaderError::Io { what, source: std::io::Error::other(error), path: path.to_owned() }
}
