//! The opening of one file of a checkpoint: it checks the bytes and finds the columns. Every number
//! is checked before it is used.

use std::ops::Range;
use std::path::PathBuf;

use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use zillion_device::mmap;
use zillion_feature::FeatureKey;

use super::candidates::{StoredCandidates, candidate_fields};
use super::read::{Need, StoredPart, StoredWeights};
use super::write::{dtype_of, fields};
use super::{FORMAT, PartInfo, REMEDY, describe_layout, describe_segments};
use crate::arrow_file::{ArrowFile, MAX_ROWS};
use crate::candidate::LARGEST_THRESHOLD;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// A file of a checkpoint that is being opened.
pub(super) struct Opening<'a> {
    pub(super) path: PathBuf,
    pub(super) shape: &'a RowShape,
    pub(super) need: Need,
}

impl Opening<'_> {
    pub(super) fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::Part { path: self.path.clone(), reason: reason.into() })
    }

    /// Maps a file of rows, compares it with its entry in the manifest, and finds its columns.
    pub(super) fn open(&self, info: &PartInfo, slots: Range<usize>) -> Result<StoredPart> {
        let buffer = self.verified(info)?;
        let part = self.row_columns(&buffer, slots)?;
        self.check_keys(&part.keys, &part.slots, info)?;
        self.check_last_steps(&part.last_steps)?;
        Ok(part)
    }

    /// Maps a file of candidates, compares it with its entry in the manifest, and finds its
    /// columns.
    pub(super) fn open_candidates(
        &self,
        info: &PartInfo,
        slots: Range<usize>,
    ) -> Result<StoredCandidates> {
        let part = self.open_plain(info, &slots, &candidate_fields(), |file| {
            let mut columns = file.columns();
            Ok(StoredCandidates {
                slots: slots.clone(),
                keys: columns.numbers("key")?,
                counts: columns.numbers("count")?,
                last_steps: columns.numbers("last_step")?,
            })
        })?;
        self.check_keys(&part.keys, &slots, info)?;
        self.check_last_steps(&part.last_steps)?;
        let is_legal = |&count: &u32| (1..LARGEST_THRESHOLD).contains(&count);
        match part.counts.iter().position(|count| !is_legal(count)) {
            Some(row) => self.refuse(format!(
                "column `count`, row {row}: the count of a waiting key is {} instead of a number from 1 to {}; {REMEDY}",
                part.counts[row],
                LARGEST_THRESHOLD - 1
            )),
            None => Ok(part),
        }
    }

    /// Maps a file with exactly the columns `fields`, checks it, and reads it.
    pub(super) fn open_plain<T>(
        &self,
        info: &PartInfo,
        slots: &Range<usize>,
        fields: &[Field],
        read: impl FnOnce(&ArrowFile<'_>) -> Result<T, String>,
    ) -> Result<T> {
        let buffer = self.verified(info)?;
        let file = self.arrow(&buffer)?;
        if !file.schema.fields().iter().map(AsRef::as_ref).eq(fields) {
            let names: Vec<_> = fields.iter().map(|field| field.name().as_str()).collect();
            let names = names.join("`, `");
            return self.refuse(format!("the file does not have the columns `{names}`; {REMEDY}"));
        }
        self.check_metadata(&file, slots)?;
        read(&file).or_else(|what| self.refuse(format!("{what}; {REMEDY}")))
    }

    /// Maps a file, and checks that its bytes have the size and the hash that the manifest lists.
    pub(super) fn verified(&self, info: &PartInfo) -> Result<Buffer> {
        let bytes = mmap::map(&self.path)?;
        if bytes.len() as u64 != info.bytes {
            return self.refuse(format!(
                "the file has {} bytes, but the checkpoint lists {}; the file was truncated or changed; {REMEDY}",
                bytes.len(),
                info.bytes
            ));
        }
        let hash = blake3::hash(&bytes).to_hex().to_string();
        if hash != info.blake3 {
            return self.refuse(format!(
                "the file has the BLAKE3 hash {hash}, but the checkpoint lists {}; the file was changed; {REMEDY}",
                info.blake3
            ));
        }
        Ok(Buffer::from(bytes))
    }

    /// Finds the only record batch of a file.
    ///
    /// # Errors
    /// Returns [`Error::Part`] if the file is not an Arrow file with one record batch.
    pub(super) fn arrow<'b>(&self, buffer: &'b Buffer) -> Result<ArrowFile<'b>> {
        ArrowFile::open(buffer).or_else(|what| {
            self.refuse(format!("the file is not a valid part of a checkpoint: {what}; {REMEDY}"))
        })
    }

    fn row_columns(&self, buffer: &Buffer, slots: Range<usize>) -> Result<StoredPart> {
        let file = self.arrow(buffer)?;
        let state_width = self.check_fields(&file.schema)?;
        self.check_metadata(&file, &slots)?;
        self.check_segments(&file)?;
        let width = self.shape.width;
        let has_uses = self.shape.spec.statistics.is_some();
        let mut columns = file.columns();
        let read = || {
            Ok(StoredPart {
                keys: columns.numbers("key")?,
                weights: match self.shape.spec.dtype {
                    Dtype::F32 => StoredWeights::F32(columns.lists("weights", width)?),
                    Dtype::F16 => StoredWeights::F16(columns.lists("weights", width)?),
                    Dtype::Bf16 => StoredWeights::Bf16(columns.lists("weights", width)?),
                },
                state: columns.lists("state", state_width)?,
                counts: columns.numbers("count")?,
                last_steps: columns.numbers("last_step")?,
                dirty_epochs: columns.numbers("dirty_epoch")?,
                uses: match has_uses {
                    true => Some((columns.numbers("show")?, columns.numbers("click")?)),
                    false => None,
                },
                slots,
                width,
                state_width,
                is_narrow: false,
            })
        };
        read().or_else(|what: String| self.refuse(format!("{what}; {REMEDY}")))
    }

    /// Checks the names and types of the columns. Returns the number of floats of the optimizer
    /// state of a row.
    fn check_fields(&self, schema: &Schema) -> Result<usize> {
        let mut state_width = self.shape.state_width;
        let dtype = self.shape.spec.dtype;
        let expected = fields(self.shape);
        for (i, field) in expected.iter().enumerate() {
            let Some(found) = schema.fields().get(i) else {
                return self.refuse(format!("column `{}` is missing; {REMEDY}", field.name()));
            };
            if found.name() != field.name() {
                return self.refuse(format!(
                    "column {i} is `{}` instead of `{}`; {REMEDY}",
                    found.name(),
                    field.name()
                ));
            }
            if field.name() == "weights"
                && let Some(stored) = dtype_of(found.data_type()).filter(|&stored| stored != dtype)
            {
                return self.refuse(format!(
                    "the weights of the part are {}, but the job's table has `dtype = \"{}\"`; use the job that \
                     wrote the checkpoint, or start without the checkpoint",
                    stored.name(),
                    dtype.name()
                ));
            }
            let agrees = match (found.data_type(), field.data_type()) {
                // The optimizer state may have another width if the optimizers differ.
                (DataType::FixedSizeList(item, width), DataType::FixedSizeList(expected, _))
                    if self.need == Need::Weights && field.name() == "state" =>
                {
                    state_width = usize::try_from(*width).unwrap_or(MAX_ROWS);
                    item == expected && state_width < MAX_ROWS
                }
                (found, expected) => found == expected,
            };
            if !agrees || found.is_nullable() {
                return self.refuse(format!(
                    "column `{}` is {}, but the job's table needs {}; use the job that wrote the checkpoint, or \
                     start without the checkpoint",
                    field.name(),
                    describe_type(found),
                    describe_type(field)
                ));
            }
        }
        if schema.fields().len() != expected.len() {
            let count = schema.fields().len();
            return self.refuse(format!(
                "the file has {count} columns instead of {}; {REMEDY}",
                expected.len()
            ));
        }
        Ok(state_width)
    }

    /// Checks the metadata of a file: its format, its table and its slots.
    pub(super) fn check_metadata(&self, file: &ArrowFile<'_>, slots: &Range<usize>) -> Result<()> {
        let found = |key: &str| file.metadata(key);
        if found("zillion.format") != FORMAT {
            return self.refuse(format!(
                "the format of the part is `{}`, but this version of Zillion reads `{FORMAT}`; use the version that wrote the part",
                found("zillion.format")
            ));
        }
        if found("zillion.table") != self.shape.name() {
            return self.refuse(format!(
                "the part belongs to table `{}` instead of `{}`; {REMEDY}",
                found("zillion.table"),
                self.shape.name()
            ));
        }
        let expected_slots = format!("{}..{}", slots.start, slots.end);
        if found("zillion.slots") != expected_slots {
            return self.refuse(format!(
                "the part holds slots {} instead of {expected_slots}; {REMEDY}",
                found("zillion.slots")
            ));
        }
        Ok(())
    }

    /// Checks the segments that the metadata of a file name.
    fn check_segments(&self, file: &ArrowFile<'_>) -> Result<()> {
        let segments = file.metadata("zillion.segments");
        let agrees = match self.need {
            Need::State => segments == describe_segments(self.shape),
            Need::Weights => names_and_dims(segments) == Some(describe_layout(&self.shape.layout)),
        };
        if !agrees {
            return self.refuse(format!(
                "the segments of the part are `{segments}`, but those of the job are `{}`; use the job that wrote \
                 the checkpoint, or start without the checkpoint",
                describe_segments(self.shape)
            ));
        }
        Ok(())
    }

    pub(super) fn check_keys(
        &self,
        keys: &[u64],
        slots: &Range<usize>,
        info: &PartInfo,
    ) -> Result<()> {
        if keys.len() as u64 != info.rows {
            return self.refuse(format!(
                "the file has {} rows, but the checkpoint lists {}; {REMEDY}",
                keys.len(),
                info.rows
            ));
        }
        if let Some(row) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let what = if keys[row] == keys[row + 1] { "the same as" } else { "below" };
            return self.refuse(format!(
                "column `key`, row {}: key {:#018x} is {what} the key before it, but the keys of a part must \
                 ascend; {REMEDY}",
                row + 1,
                keys[row + 1]
            ));
        }
        let outside = |key: &u64| !slots.contains(&FeatureKey(*key).slot());
        if let Some(row) = keys.iter().position(outside) {
            return self.refuse(format!(
                "column `key`, row {row}: key {:#018x} belongs to slot {}, but the part holds slots {}..{}; {REMEDY}",
                keys[row],
                FeatureKey(keys[row]).slot(),
                slots.start,
                slots.end
            ));
        }
        Ok(())
    }

    fn check_last_steps(&self, steps: &[u64]) -> Result<()> {
        if let Some(row) = steps.iter().position(|&step| step > u64::from(u32::MAX)) {
            return self.refuse(format!(
                "column `last_step`, row {row}: the step is {} instead of at most 4294967295; {REMEDY}",
                steps[row]
            ));
        }
        Ok(())
    }
}

fn describe_type(field: &Field) -> String {
    let nulls = if field.is_nullable() { " with nulls" } else { "" };
    format!("{}{nulls}", field.data_type())
}

/// Parses `name:dim:optimizer,…` into the names and dimensions of the segments. Returns `None` if
/// the text has another form.
fn names_and_dims(segments: &str) -> Option<Vec<(String, usize)>> {
    let segment = |text: &str| {
        let mut fields = text.split(':');
        let (name, dim) = (fields.next()?, fields.next()?);
        Some((name.to_owned(), dim.parse().ok()?))
    };
    segments.split(',').map(segment).collect()
}
